/* engine/load/hfq: every layout of tests/data/folders/q-*, whole and by rows; damaged headers, truncation, no memory. What
 * the values are is tests/models/test_folders' business. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/load/ckpt.h"
#include "engine/load/hfq.h"
#include "tests/tree.h"

#define DATA      "tests/data/folders"
#define MUTATIONS 450 /* a case: over 10,000 in all */

static char dir[TREE_PATH];
static char cases[64][64];
static int n_case;

static int setup(void **st)
{
    (void)st;
    DIR *d = opendir(DATA);
    struct dirent *x;
    tree_make(dir);
    while (d && (x = readdir(d)) && n_case < 64)
        if (strncmp(x->d_name, "q-", 2) == 0 && strncmp(x->d_name, "q-mla", 5) != 0) {
            char src[TREE_PATH];
            snprintf(cases[n_case], sizeof cases[0], "%.63s", x->d_name);
            snprintf(src, sizeof src, DATA "/%.63s", x->d_name);
            tree_copy(src, tree_path(dir, x->d_name));
            remove(tree_path(tree_path(dir, x->d_name), "golden.safetensors"));
            n_case++;
        }
    if (d)
        closedir(d);
    return n_case ? 0 : -1;
}

static int teardown(void **st)
{
    (void)st;
    tree_remove(dir);
    return 0;
}

static struct ckpt *open_case(const char *name, struct err *e)
{
    struct ckpt *c = NULL;
    int rc = ckpt_open(&c, tree_path(dir, name), e);
    assert_true((rc == 0) == (c != NULL));
    return c;
}

/* The plain name behind the i-th tensor, when it is the first part of a quantised matrix. */
static bool quantised(const struct ckpt *c, size_t i, struct ckpt_tensor *t)
{
    static const char *const tail[] = {".qweight", ".weight_packed", ".weight"};
    struct err e;
    size_t len;
    const char *name = ckpt_tensor_name(c, i, &len);
    for (int k = 0; k < 3; k++) {
        size_t n = strlen(tail[k]);
        char plain[256];
        if (len <= n || strcmp(name + len - n, tail[k]) != 0)
            continue;
        snprintf(plain, sizeof plain, "%.*s.weight", (int)(len - n), name);
        return ckpt_tensor(c, plain, t, &e) == 0 && t->hfq && t->index == i;
    }
    return false;
}

static void test_rows(void **st)
{
    (void)st;
    for (int k = 0; k < n_case; k++) {
        struct err e = {0};
        struct ckpt *c = open_case(cases[k], &e);
        int found = 0;
        if (!c)
            fail_msg("%s: %s", cases[k], e.text);
        for (size_t i = 0; i < ckpt_n_tensor(c); i++) {
            struct ckpt_tensor t;
            size_t row;
            if (!quantised(c, i, &t))
                continue;
            found++;
            const struct quant_format *f = quant_format_get((uint32_t)t.fmt);
            assert_int_equal(t.n_dim, 2);
            assert_true(ckpt_is_part(c, i) && quant_row_bytes(f, t.dim[1], &row));
            size_t n = row * (size_t)t.dim[0];
            uint8_t *all = xmalloc(n), *some = xmalloc(n);
            float *v = xmalloc((size_t)(t.dim[0] * t.dim[1]) * sizeof *v);
            assert_int_equal(hfq_rows(t.hfq, 0, t.dim[0], all, &e), 0);
            for (int64_t r = 0, step = 1; r < t.dim[0]; r += step, step = step * 2 + 1) {
                step = step < t.dim[0] - r ? step : t.dim[0] - r;
                assert_int_equal(hfq_rows(t.hfq, r, step, some + (size_t)r * row, &e), 0);
            }
            assert_memory_equal(all, some, n);
            f->decode(all, v, t.dim[0] * t.dim[1]);
            double sum = 0;
            for (int64_t x = 0; x < t.dim[0] * t.dim[1]; x++)
                sum += (double)v[x] * (double)v[x];
            assert_true(sum > 0 && isfinite(sum));
            free(all);
            free(some);
            free(v);
        }
        assert_int_equal(found, 21); /* seven of each layer */
        ckpt_close(c);
    }
}

/* A folder that is damaged in any way is refused with a reason or gives numbers; it never harms. */
static void try_damaged(const char *name)
{
    struct err e = {0};
    struct ckpt *c = open_case(name, &e);
    if (!c) {
        assert_true(e.text[0]);
        return;
    }
    for (size_t i = 0; i < ckpt_n_tensor(c); i += 5) {
        struct ckpt_tensor t;
        size_t row;
        if (!quantised(c, i, &t) ||
            !quant_row_bytes(quant_format_get((uint32_t)t.fmt), t.dim[1], &row))
            continue;
        uint8_t *b = xmalloc(row);
        e = (struct err){0};
        assert_true(hfq_rows(t.hfq, t.dim[0] - 1, 1, b, &e) == 0 || e.text[0]);
        free(b);
    }
    ckpt_close(c);
}

static void test_mutations(void **st)
{
    (void)st;
    uint32_t state = 1;
    log_set_level(LOG_ERROR);
    for (int k = 0; k < n_case; k++) {
        uint64_t head = 0;
        int fd = open(tree_path(tree_path(dir, cases[k]), "model.safetensors"), O_RDWR);
        assert_true(fd >= 0 && pread(fd, &head, 8, 0) == 8);
        for (int i = 0; i < MUTATIONS; i++) {
            uint8_t was[4], is[4];
            off_t at[4];
            int n = 1 + i % 3;
            for (int m = 0; m < n; m++) {
                state = state * 1664525u + 1013904223u;
                at[m] = (off_t)(8 + (state >> 4) % head);
                assert_int_equal(pread(fd, &was[m], 1, at[m]), 1);
                state = state * 1664525u + 1013904223u;
                /* digits to digits: shapes and offsets that parse */
                is[m] = was[m] >= '0' && was[m] <= '9' ? (uint8_t)('0' + (state >> 8) % 10)
                                                       : (uint8_t)(state >> 24);
                assert_int_equal(pwrite(fd, &is[m], 1, at[m]), 1);
            }
            try_damaged(cases[k]);
            for (int m = n - 1; m >= 0; m--)
                assert_int_equal(pwrite(fd, &was[m], 1, at[m]), 1);
        }
        close(fd);
    }
}

/* config.json likewise, and what it says about the layout. */
static void test_config(void **st)
{
    (void)st;
    uint32_t state = 9;
    log_set_level(LOG_ERROR);
    for (int k = 0; k < n_case; k++) {
        char text[4096];
        int fd = open(tree_path(tree_path(dir, cases[k]), "config.json"), O_RDWR);
        ssize_t n = pread(fd, text, sizeof text, 0);
        assert_true(n > 100 && n < (ssize_t)sizeof text);
        for (int i = 0; i < 60; i++) {
            state = state * 1664525u + 1013904223u;
            off_t at = (off_t)((state >> 4) % (uint32_t)n);
            uint8_t c = (uint8_t)(32 + (state >> 24) % 96);
            assert_int_equal(pwrite(fd, &c, 1, at), 1);
            try_damaged(cases[k]);
            assert_int_equal(pwrite(fd, text + at, 1, at), 1);
        }
        close(fd);
    }
}

/* Experts in one tensor: MXFP4 blocks as gpt-oss has them, fp8 with a scale an expert; against their definition. */
static void test_experts(void **st)
{
    (void)st;
    static uint8_t blocks[2 * 4 * 2 * 16], scales[2 * 4 * 2], fp8[2 * 4 * 32];
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6}, factor[2] = {0.5f, 4};
    for (size_t i = 0; i < sizeof blocks; i++)
        blocks[i] = (uint8_t)(i * 37 + i / 16);
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = (uint8_t)(120 + i);
    for (size_t i = 0; i < sizeof fp8; i++)
        fp8[i] = (uint8_t)(i * 7 % 127);
    const struct tree_tensor t[] = {{"a.experts.up_blocks", "U8", 4, {2, 4, 2, 16}, blocks},
                                    {"a.experts.up_scales", "U8", 3, {2, 4, 2}, scales},
                                    {"b.experts.down", "F8_E4M3", 3, {2, 4, 32}, fp8},
                                    {"b.experts.down_scale", "F32", 1, {2}, factor}};
    tree_safetensors(dir, "experts.safetensors", t, 4);
    struct source *src = NULL;
    struct hfq *h = NULL;
    struct err e = {0};
    assert_int_equal(source_open_parts(&src, tree_path(dir, "experts.safetensors"), &e), 0);
    if (hfq_open(&h, src, NULL, &e))
        fail_msg("%s", e.text);
    const struct source_tensor *m = hfq_find(h, "a.experts.up"), *f = hfq_find(h, "b.experts.down");
    assert_true(m && m->fmt == QF_MXFP4 && m->n_dim == 3 && m->dim[0] == 2 && m->dim[2] == 64);
    assert_true(f && f->fmt == QF_F8_32 && f->n_dim == 3);
    uint8_t b[512];
    float v[8 * 64];
    assert_int_equal(hfq_rows(hfq_of(h, m), 0, 8, b, &e), 0);
    quant_format_get(QF_MXFP4)->decode(b, v, 8 * 64);
    for (int i = 0; i < 8 * 64; i++) {
        int c = blocks[i / 2] >> 4 * (i % 2) & 15;
        float want = ldexpf(c & 8 ? -e2m1[c & 7] : e2m1[c & 7], scales[i / 32] - 127);
        assert_true(v[i] == want);
    }
    assert_int_equal(hfq_rows(hfq_of(h, f), 0, 8, b, &e), 0);
    quant_format_get(QF_F8_32)->decode(b, v, 8 * 32);
    for (int i = 0; i < 8 * 32; i++)
        assert_true(v[i] == quant_e4m3(fp8[i]) * factor[i / 128]);
    assert_null(hfq_find(h, "a.experts"));
    hfq_close(h);
    source_close(src);
}

static void test_truncated(void **st)
{
    (void)st;
    const char *name = "cut";
    log_set_level(LOG_ERROR);
    tree_copy(tree_path(dir, cases[0]), tree_path(dir, name));
    char file[TREE_PATH + 64];
    struct stat s;
    snprintf(file, sizeof file, "%s/%s/model.safetensors", dir, name);
    assert_int_equal(stat(file, &s), 0);
    for (int percent = 99; percent >= 0; percent--) {
        struct err e = {0};
        struct ckpt *c = NULL;
        assert_int_equal(truncate(file, s.st_size * percent / 100), 0);
        assert_int_not_equal(ckpt_open(&c, tree_path(dir, name), &e), 0);
        assert_true(!c && e.text[0]);
    }
}

/* Rows [from, from + n) of a matrix turned are what hfq_rows says, and the same bytes however many columns are asked for. */
static void turned_check(const struct ckpt_tensor *t, int64_t from, int64_t n)
{
    struct err e = {0};
    const enum quant_fmt fmt = hfq_turned_fmt(t->hfq, from, n);
    const struct quant_format *f = quant_format_get((uint32_t)t->fmt),
                              *g = quant_format_get((uint32_t)fmt);
    const int64_t n_in = t->dim[1];
    size_t row = 0, turned = 0;
    assert_true(quant_row_bytes(f, n_in, &row) && quant_row_bytes(g, n, &turned));
    uint8_t *rows = xmalloc(row * (size_t)n), *all = xmalloc(turned * (size_t)n_in),
            *some = xmalloc(turned * (size_t)n_in);
    float *v = xmalloc((size_t)(n * n_in) * sizeof *v), *w = xmalloc((size_t)n * sizeof *w);
    assert_int_equal(hfq_rows(t->hfq, from, n, rows, &e), 0);
    f->decode(rows, v, n * n_in);
    assert_int_equal(hfq_turned(t->hfq, from, n, 0, n_in, all, &e), 0);
    for (int64_t k = 0, step = 1; k < n_in; k += step, step = step * 2 + 1) {
        step = step < n_in - k ? step : n_in - k;
        assert_int_equal(hfq_turned(t->hfq, from, n, k, step, some + (size_t)k * turned, &e), 0);
    }
    assert_memory_equal(all, some, turned * (size_t)n_in);
    const int32_t *col = hfq_col(t->hfq);
    for (int64_t k = 0; k < n_in; k++) {
        g->decode(all + (size_t)(col ? col[k] : k) * turned, w, n);
        for (int64_t i = 0; i < n; i++) {
            float x = v[i * n_in + k];
            assert_true(fabsf(x - w[i]) <= 1e-6f * fabsf(x) + 1e-7f);
        }
    }
    free(rows);
    free(all);
    free(some);
    free(v);
    free(w);
}

static void test_turned(void **st)
{
    (void)st;
    for (int k = 0; k < n_case; k++) {
        struct err e = {0};
        struct ckpt *c = open_case(cases[k], &e);
        struct ckpt_tensor t;
        assert_non_null(c);
        assert_int_equal(ckpt_tensor(c, "model.layers.1.mlp.up_proj.weight", &t, &e), 0);
        assert_non_null(t.hfq);
        turned_check(&t, 0, 32);
        turned_check(&t, 32, 64);
        turned_check(&t, 5, 7);
        /* Only fp8 with a scale for 32 rows keeps its codes. */
        bool fp8 = !strcmp(cases[k], "q-fp8-block") || !strcmp(cases[k], "q-fp8-tensor");
        assert_int_equal(hfq_turned_fmt(t.hfq, 32, 32), fp8 ? QF_F8_32 : QF_F32);
        assert_int_equal(hfq_turned_fmt(t.hfq, 32, 31), QF_F32);
        for (int i = 1; i <= 2; i++) {
            float b[128];
            mem_fail_after(i, false);
            assert_int_equal(hfq_turned(t.hfq, 0, 32, 0, 1, b, &e), ERR_NOMEM);
            mem_fail_after(0, false);
        }
        ckpt_close(c);
    }
}

/* Columns in activation order: a permutation that sorts them by group, and the same values as in the matrix's order. */
static void test_sorted(void **st)
{
    (void)st;
    static const char *const names[] = {"q-gptq3-act", "q-gptq4-act", "q-gptq8-act",
                                        "q-ct-int4-act"};
    for (int c = 0; c < 4; c++) {
        struct err e = {0};
        struct ckpt_tensor t;
        struct ckpt *k = open_case(names[c], &e);
        assert_int_equal(ckpt_tensor(k, "model.layers.1.mlp.down_proj.weight", &t, &e), 0);
        const int64_t n_in = t.dim[1];
        const int32_t *col = hfq_col(t.hfq);
        bool seen[1024] = {false};
        assert_non_null(col);
        assert_true(t.fmt == (c == 2 ? QF_I8M_32 : QF_I4_32) && n_in <= 1024);
        for (int64_t i = 0; i < n_in; i++) {
            assert_true(col[i] >= 0 && col[i] < n_in && !seen[col[i]]);
            seen[col[i]] = true;
        }
        const struct quant_format *f = quant_format_get((uint32_t)t.fmt);
        size_t row;
        assert_true(quant_row_bytes(f, n_in, &row));
        uint8_t *b = xmalloc(row);
        uint16_t *h = xmalloc((size_t)n_in * sizeof *h);
        float *v = xmalloc((size_t)n_in * sizeof *v);
        for (int64_t r = 0; r < t.dim[0]; r += 7) {
            assert_int_equal(hfq_rows(t.hfq, r, 1, b, &e), 0);
            assert_int_equal(hfq_rows_dense(t.hfq, QF_F16, r, 1, h, &e), 0);
            f->decode(b, v, n_in);
            for (int64_t i = 0; i < n_in; i++)
                assert_true(fabsf(v[i] - f16_to_f32(h[col[i]])) <= 1e-3f * fabsf(v[i]) + 1e-6f);
        }
        mem_fail_after(1, false);
        assert_int_equal(hfq_rows_dense(t.hfq, QF_F32, 0, 1, v, &e), ERR_NOMEM);
        mem_fail_after(0, false);
        free(b);
        free(h);
        free(v);
        ckpt_close(k);
    }
}

/* A code of fp8 that is no number, in a matrix that keeps its codes and in one that does not. */
static void test_turned_nan(void **st)
{
    (void)st;
    static const char *const names[] = {"q-fp8-block", "q-fp8-channel"};
    for (int i = 0; i < 2; i++) {
        struct err e = {0};
        struct ckpt_tensor t;
        uint8_t b[1024], nan = 0x7f, was;
        struct ckpt *c = open_case(names[i], &e);
        assert_int_equal(ckpt_tensor(c, "model.layers.0.mlp.up_proj.weight", &t, &e), 0);
        const int64_t n_in = t.dim[1];
        was = ((const uint8_t *)t.data)[3 * n_in + 9];
        /* where the matrix begins in the file: found by its first bytes */
        int fd = open(tree_path(tree_path(dir, names[i]), "model.safetensors"), O_RDWR);
        struct stat s;
        assert_int_equal(fstat(fd, &s), 0);
        uint8_t *all = xmalloc((size_t)s.st_size);
        assert_int_equal(pread(fd, all, (size_t)s.st_size, 0), s.st_size);
        off_t at = 0;
        while (memcmp(all + at, t.data, 64) != 0)
            at++;
        at += 3 * n_in + 9;
        free(all);
        assert_int_equal(pwrite(fd, &nan, 1, at), 1);
        assert_int_equal(hfq_turned(t.hfq, 0, 32, 8, 1, b, &e), 0);
        assert_int_equal(hfq_turned(t.hfq, 0, 32, 9, 1, b, &e), ERR_INVAL);
        assert_non_null(strstr(e.text, "layers.0.mlp.up_proj.weight: a weight is not a number"));
        assert_int_equal(hfq_rows(t.hfq, 3, 1, b, &e), ERR_INVAL);
        assert_int_equal(pwrite(fd, &was, 1, at), 1);
        close(fd);
        ckpt_close(c);
    }
}

static void test_nomem(void **st)
{
    (void)st;
    for (int i = 1;; i++) {
        struct err e = {0};
        mem_fail_after(i, true);
        struct ckpt *c = NULL;
        int rc = ckpt_open(&c, tree_path(dir, cases[0]), &e);
        struct ckpt_tensor t;
        uint8_t b[4096];
        for (size_t k = 0; !rc && k < ckpt_n_tensor(c); k++)
            if (quantised(c, k, &t)) {
                rc = hfq_rows(t.hfq, 0, 1, b, &e);
                break;
            }
        mem_fail_after(0, false);
        ckpt_close(c);
        if (!rc)
            return;
        assert_int_equal(rc, ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),       cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_config),     cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_experts),    cmocka_unit_test(test_nomem),
        cmocka_unit_test(test_sorted),     cmocka_unit_test(test_turned),
        cmocka_unit_test(test_turned_nan),
    };
    return cmocka_run_group_tests_name("hfq", tests, setup, teardown);
}
