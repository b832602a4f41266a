/* engine/requant: a file in every type, read back: metadata, names and shapes as they were, values near. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/load/gguf.h"
#include "engine/tools.h"
#include "tests/tree.h"
#include "tests/unxz.h"

static char in[256], dir[TREE_PATH];

static int setup(void **st)
{
    (void)st;
    tree_make(dir);
    return unxz_temp("tests/data/gguf-tiny/tiny-llama-f32.gguf.xz", in, sizeof in);
}

static int teardown(void **st)
{
    (void)st;
    tree_remove(dir);
    return unlink(in);
}

static float *values(const struct gguf_tensor *t, int64_t *n)
{
    *n = t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
    float *v = xmalloc((size_t)*n * sizeof *v);
    quant_format_get((uint32_t)t->fmt)->decode(t->data, v, *n);
    return v;
}

/* Error's square over the values' square, of all matrices; vectors and metadata are equal. */
static double compare(const struct gguf *a, const struct gguf *b)
{
    double err = 0, all = 0;
    assert_int_equal(gguf_n_tensor(a), gguf_n_tensor(b));
    for (size_t i = 0; i < gguf_n_tensor(a); i++) {
        const struct gguf_tensor *x = gguf_tensor_at(a, i), *y = gguf_tensor_at(b, i);
        int64_t n, m;
        assert_int_equal(x->name.len, y->name.len);
        assert_memory_equal(x->name.p, y->name.p, x->name.len);
        assert_memory_equal(x->dim, y->dim, sizeof x->dim);
        float *v = values(x, &n), *w = values(y, &m);
        for (int64_t k = 0; k < n; k++) {
            err += ((double)v[k] - (double)w[k]) * ((double)v[k] - (double)w[k]);
            all += (double)v[k] * (double)v[k];
        }
        if (x->n_dim == 1)
            assert_memory_equal(v, w, (size_t)n * sizeof *v);
        free(v);
        free(w);
    }
    for (size_t i = 0; i < gguf_n_kv(a); i++) {
        char key[256];
        const struct gguf_kv *x = gguf_kv_at(a, i);
        snprintf(key, sizeof key, "%.*s", (int)x->key.len, x->key.p);
        const struct gguf_kv *y = gguf_kv_find(b, key);
        if (strncmp(key, "general.", 8) == 0 && x->type == GGUF_U32)
            continue;
        assert_non_null(y);
        assert_true(x->type == y->type && x->n == y->n);
        for (uint64_t k = 0; x->type == GGUF_ARRAY && x->elem == GGUF_STRING && k < x->n; k++) {
            struct view p = gguf_arr_str(x, k), q = gguf_arr_str(y, k);
            assert_true(p.len == q.len && memcmp(p.p, q.p, p.len) == 0);
        }
    }
    return err / all;
}

static void test_types(void **st)
{
    (void)st;
    static const struct {
        const char *type;
        double bound;
        uint32_t file_type;
    } t[] = {{"f32", 0, 0},       {"F16", 1e-6, 1},   {"BF16", 1e-5, 32}, {"Q8_0", 1e-4, 7},
             {"Q6_K", 1e-3, 18},  {"Q5_K", 2e-3, 16}, {"Q4_K", 8e-3, 14}, {"Q5_1", 2e-3, 9},
             {"Q5_0", 3e-3, 8},   {"Q4_1", 8e-3, 3},  {"Q4_0", 0.012, 2}, {"MXFP4", 0.03, 38},
             {"tq2_0", 0.012, 37}};
    struct gguf *a = NULL;
    assert_int_equal(gguf_open(&a, in, NULL), 0);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct gguf *b = NULL;
        struct err e = {0};
        uint32_t file_type = 99;
        const char *out = tree_path(dir, "out.gguf");
        if (tools_quantize(in, out, t[i].type, NULL, NULL, &e) || gguf_open(&b, out, &e))
            fail_msg("%s: %s", t[i].type, e.text);
        double err = compare(a, b);
        if (!(err <= t[i].bound))
            fail_msg("%s: error %g", t[i].type, err);
        assert_int_equal(gguf_get_u32(b, "general.file_type", &file_type, &e), 0);
        assert_int_equal(file_type, t[i].file_type);
        gguf_close(b);
    }
    gguf_close(a);
}

static void refused(const char *from, const char *to, const char *type, int code, const char *text)
{
    struct err e = {0};
    assert_int_equal(tools_quantize(from, to, type, NULL, NULL, &e), code);
    if (!strstr(e.text, text))
        fail_msg("'%s' does not say '%s'", e.text, text);
}

static void test_refused(void **st)
{
    (void)st;
    const char *out = tree_path(dir, "no.gguf");
    refused(in, out, "Q9_9", ERR_INVAL, "Q9_9");
    refused(in, out, "IQ2_XS", ERR_INVAL, "IQ2_XS"); /* read, not written */
    refused(in, in, "Q8_0", ERR_INVAL, "over itself");
    refused(dir, out, "Q8_0", ERR_UNSUPPORTED, "folder");
    refused("tests/data/gguf-tiny/bad-offset-beyond.gguf", out, "Q8_0", ERR_PARSE, "");
    refused(in, tree_path(dir, "none/x.gguf"), "Q8_0", ERR_IO, "none/x.gguf");
    assert_int_not_equal(access(out, F_OK), 0);
    assert_int_not_equal(access(tree_path(dir, "no.gguf.part"), F_OK), 0);
    for (int i = 1;; i++) {
        struct err e = {0};
        mem_fail_after(i, true);
        int rc = tools_quantize(in, out, "Q8_0", NULL, NULL, &e);
        mem_fail_after(0, false);
        if (!rc)
            break;
        assert_int_equal(rc, ERR_NOMEM);
        assert_int_not_equal(access(out, F_OK), 0);
    }
}

static void test_inspect(void **st)
{
    (void)st;
    struct err e = {0};
    struct buf b = {0};
    assert_int_equal(tools_inspect(in, false, &b, &e), 0);
    const char *s = buf_cstr(&b);
    assert_true(strstr(s, "general.architecture = \"llama\"") &&
                strstr(s, "blk.0.attn_q.weight [") && strstr(s, "types:"));
    buf_free(&b);
    b = (struct buf){0};
    assert_int_equal(tools_inspect(in, true, &b, &e), 0);
    assert_true(strstr(buf_cstr(&b), "\"tensors\":[{\"name\":"));
    buf_free(&b);
    b = (struct buf){0};
    assert_int_equal(tools_inspect("tests/data/safetensors/good.safetensors", false, &b, &e), 0);
    assert_true(strstr(buf_cstr(&b), "safetensors"));
    assert_int_not_equal(tools_inspect("tests/data/safetensors/overlap.safetensors", false, &b, &e),
                         0);
    assert_int_equal(tools_inspect(tree_path(dir, "none"), false, &b, &e), ERR_NOTFOUND);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_types), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_inspect)};
    return cmocka_run_group_tests_name("requant", tests, setup, teardown);
}
