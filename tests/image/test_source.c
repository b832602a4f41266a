/* engine/load/source: files and shards behind one list of tensors, values of every format as f32, fp8 factors, shapes
 * that GGUF could not hold, slices through nn_tensor.c; every kind of broken folder named; cuts, failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/image/names_impl.h"
#include "engine/nn/nn_impl.h"
#include "engine/load/gguf.h"
#include "tests/tree.h"

static char dir[TREE_PATH];

static int setup(void **state)
{
    (void)state;
    tree_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tree_remove(dir);
    return 0;
}

static struct source *open_ok(const char *path)
{
    struct source *s = NULL;
    struct err e = {0};
    int rc = source_open(&s, path, &e);
    if (rc)
        print_error("%s\n", e.text);
    assert_int_equal(rc, 0);
    return s;
}

static void refuse(const char *path, int code, const char *a, const char *b)
{
    struct source *s = NULL;
    struct err e = {0};
    int rc = source_open(&s, path, &e);
    if (rc != code || !strstr(e.text, a) || !strstr(e.text, b))
        print_error("%d '%s', expected %d with '%s' and '%s'\n", rc, e.text, code, a, b);
    assert_int_equal(rc, code);
    assert_null(s);
    assert_non_null(strstr(e.text, a));
    assert_non_null(strstr(e.text, b));
    assert_int_equal(source_open(&s, path, NULL), code);
}

#define W(name_) ((struct tree_tensor){name_, "F32", 2, {2, 3}, NULL})

/* ---- formats ---- */

static void check_values(const struct source *s, const char *name, const float *want, int n)
{
    float got[16] = {0};
    const struct source_tensor *t = source_find(s, name);
    assert_non_null(t);
    assert_int_equal(source_decode(t, 0, n, got), 0);
    for (int i = 0; i < n; i++)
        assert_true(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])));
    for (int i = 0; i < n; i++) { /* one by one */
        assert_int_equal(source_decode(t, i, 1, got), 0);
        assert_true(got[0] == want[i] || (isnan(got[0]) && isnan(want[i])));
    }
}

static void test_formats(void **state)
{
    (void)state;
    static const uint16_t half[] = {0x3c00, 0xc000, 0x0001, 0x7c00};
    static const uint16_t bf[] = {0x3f80, 0xc000, 0x7f80, 0x3dcc};
    static const uint8_t e4m3[] = {0x38, 0xc0, 0x7e, 0x01}; /* 1, -2, 448, 2^-9 */
    static const uint8_t e5m2[] = {0x3c, 0xc0, 0x7b, 0x01}; /* 1, -2, 57344, 2^-16 */
    static const double wide[] = {1, -2, 0.5, 1e300};
    static const float scale[] = {0.25f};
    tree_safetensors(dir, "f.safetensors",
                     (struct tree_tensor[]){
                         {"e4.weight", "F8_E4M3", 2, {2, 2}, e4m3},
                         {"half", "F16", 1, {4}, half},
                         {"bf", "BF16", 1, {4}, bf},
                         {"scaled.weight", "F8_E4M3", 1, {4}, e4m3},
                         {"scaled.scale_weight", "F32", 0, {0}, scale},
                         {"other.weight", "F8_E5M2", 1, {4}, e5m2},
                         {"other.weight_scale", "F32", 1, {1}, scale},
                         {"e5.weight", "F8_E5M2", 1, {4}, e5m2},
                         {"wide", "F64", 1, {4}, wide},
                         {"ids", "I64", 1, {2}, NULL},
                         {"none", "F32", 2, {0, 3}, NULL},
                     },
                     11);
    struct source *s = open_ok(tree_path(dir, "f.safetensors"));
    assert_int_equal(source_n(s), 11);
    for (size_t i = 0; i < source_n(s); i++) {
        assert_ptr_equal(source_find(s, source_at(s, i)->name), source_at(s, i));
        assert_true(i == 0 || strcmp(source_at(s, i - 1)->name, source_at(s, i)->name) < 0);
    }
    check_values(s, "half", (float[]){1, -2, 0x1p-24f, INFINITY}, 4);
    check_values(s, "bf", (float[]){1, -2, INFINITY, 0x1.98p-4f}, 4);
    check_values(s, "e4.weight", (float[]){1, -2, 448, 0x1p-9f}, 4);
    check_values(s, "scaled.weight", (float[]){0.25f, -0.5f, 112, 0x1p-11f}, 4);
    check_values(s, "e5.weight", (float[]){1, -2, 57344, 0x1p-16f}, 4);
    check_values(s, "other.weight", (float[]){0.25f, -0.5f, 14336, 0x1p-18f}, 4);
    check_values(s, "wide", (float[]){1, -2, 0.5f, INFINITY}, 4);
    float x[2];
    assert_int_equal(source_decode(source_find(s, "ids"), 0, 2, x), ERR_INVAL);
    assert_int_equal(source_find(s, "ids")->kind, SOURCE_INT);
    assert_int_equal(source_decode(source_find(s, "none"), 0, 0, x), 0);
    assert_true(source_has_prefix(s, "scaled.") && source_has_prefix(s, "") &&
                source_has_prefix(s, "wide"));
    assert_false(source_has_prefix(s, "widest") || source_has_prefix(s, "zz"));
    assert_null(source_gguf(s));
    assert_null(source_meta(s, "format"));
    assert_int_equal(source_bytes(s), 4 * 8 + 4 * 4 + 4 * 2 * 2 + 2 * 8 + 2 * 4);
    source_close(s);
    source_close(NULL);
}

/* The table of codes gives what the single ones give. */
static void test_f8_many(void **state)
{
    (void)state;
    static float one[2048], many[2048];
    static uint8_t code[2048];
    for (int i = 0; i < 2048; i++)
        code[i] = (uint8_t)(i * 7);
    for (int k = 0; k < 2; k++) {
        struct source_tensor t = {.kind = k ? SOURCE_F8_E5M2 : SOURCE_F8_E4M3,
                                  .n_dim = 1,
                                  .dim = {2048},
                                  .data = code,
                                  .bytes = 2048,
                                  .scale = 3};
        assert_int_equal(source_decode(&t, 0, 2048, many), 0);
        for (int i = 0; i < 2048; i++)
            assert_int_equal(source_decode(&t, i, 1, one + i), 0);
        assert_memory_equal(one, many, sizeof one);
    }
}

static void test_bad_scale(void **state)
{
    (void)state;
    tree_safetensors(dir, "s.safetensors",
                     (struct tree_tensor[]){{"a.weight", "F8_E4M3", 2, {2, 2}, NULL},
                                            {"a.weight_scale", "F32", 1, {2}, NULL}},
                     2);
    refuse(tree_path(dir, "s.safetensors"), ERR_UNSUPPORTED, "a.weight_scale", "one factor");
    tree_safetensors(dir, "s.safetensors",
                     &(struct tree_tensor){"deep", "F32", 6, {1, 1, 1, 1, 1, 1}, NULL}, 1);
    refuse(tree_path(dir, "s.safetensors"), ERR_UNSUPPORTED, "deep", "6 dimensions");
}

/* ---- GGUF ---- */

static void put(uint8_t **p, const void *v, size_t n)
{
    memcpy(*p, v, n);
    *p += n;
}

static void put_n(uint8_t **p, uint64_t v, size_t n)
{
    put(p, &v, n);
}

static void put_s(uint8_t **p, const char *s)
{
    put_n(p, strlen(s), 8);
    put(p, s, strlen(s));
}

/* One q8_0 matrix [4, 32] called "conv.weight" whose true shape is said to be `n` numbers of `dim`. */
static void put_gguf(const char *name, const int32_t *dim, int n)
{
    static uint8_t file[4096];
    uint8_t *p = file;
    memset(file, 0, sizeof file);
    put(&p, "GGUF", 4);
    put_n(&p, 3, 4);
    put_n(&p, 1, 8);
    put_n(&p, 2, 8);
    put_s(&p, "general.architecture");
    put_n(&p, GGUF_STRING, 4);
    put_s(&p, "sd1");
    put_s(&p, "comfy.gguf.orig_shape.conv.weight");
    put_n(&p, GGUF_ARRAY, 4);
    put_n(&p, GGUF_I32, 4);
    put_n(&p, (uint64_t)n, 8);
    put(&p, dim, (size_t)n * 4);
    put_s(&p, "conv.weight");
    put_n(&p, 2, 4);
    put_n(&p, 32, 8);
    put_n(&p, 4, 8);
    put_n(&p, QF_Q8_0, 4);
    put_n(&p, 0, 8);
    size_t at = (size_t)(p - file + 31) / 32 * 32;
    for (int b = 0; b < 4; b++) {
        uint16_t one = f32_to_f16((float)(b + 1));
        memcpy(file + at, &one, 2);
        for (int i = 0; i < 32; i++)
            file[at + 2 + (size_t)i] = (uint8_t)i;
        at += 34;
    }
    tree_put(dir, name, file, at);
}

static void test_gguf(void **state)
{
    (void)state;
    float v[64];
    put_gguf("g.gguf", (int32_t[]){2, 16, 2, 2}, 4);
    struct source *s = open_ok(tree_path(dir, "g.gguf"));
    const struct source_tensor *t = source_find(s, "conv.weight");
    assert_int_equal(t->n_dim, 4);
    assert_true(t->dim[0] == 2 && t->dim[1] == 16 && t->dim[2] == 2 && t->dim[3] == 2);
    assert_int_equal(t->fmt, QF_Q8_0);
    assert_int_equal(source_decode(t, 32, 64, v), 0);
    for (int i = 0; i < 64; i++)
        assert_true(v[i] == (float)((2 + i / 32) * (i % 32)));
    assert_int_equal(source_decode(t, 1, 32, v), ERR_INVAL);
    assert_int_equal(source_decode(t, 0, 33, v), ERR_INVAL);
    assert_string_equal(source_meta(s, "general.architecture"), "sd1");
    assert_null(source_meta(s, "comfy.gguf.orig_shape.conv.weight"));
    assert_non_null(source_gguf(s));
    source_close(s);
    static const int32_t bad[][6] = {
        {2, 16, 2, 3}, {0, 64}, {-1, -128}, {1, 1, 1, 1, 1, 128}, {1 << 30, 1 << 30, 1 << 30}};
    static const int len[] = {4, 2, 2, 6, 3};
    for (int i = 0; i < 5; i++) {
        put_gguf("g.gguf", bad[i], len[i]);
        refuse(tree_path(dir, "g.gguf"), ERR_INVAL, "orig_shape.conv.weight", "128 values");
    }
}

/* ---- folders ---- */

static void shard_index(const char *name, const char *map)
{
    char text[512];
    snprintf(text, sizeof text, "{\"metadata\": {}, \"weight_map\": %s}", map);
    tree_text(dir, name, text);
}

static void test_shards(void **state)
{
    (void)state;
    static const char index[] = "sh/model.safetensors.index.json";
    const char *root = tree_path(dir, "sh");
    char at[TREE_PATH];
    snprintf(at, sizeof at, "%s", root);
    tree_safetensors(dir, "sh/m-1.safetensors", (struct tree_tensor[]){W("b"), W("d")}, 2);
    tree_safetensors(dir, "sh/m-2.safetensors", (struct tree_tensor[]){W("a"), W("c")}, 2);
    refuse(at, ERR_INVAL, "2 .safetensors", "no index");
    shard_index(index, "{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\","
                       "\"c\":\"m-2.safetensors\",\"d\":\"m-1.safetensors\"}");
    struct source *s = open_ok(at);
    struct err e = {0};
    assert_int_equal(source_n(s), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(source_at(s, (size_t)i)->name[0], 'a' + i);
    assert_string_equal(source_path(s), at);
    assert_int_equal(source_check_files(s, &e), 0);
    assert_int_equal(truncate(tree_path(at, "m-2.safetensors"), 4), 0);
    assert_int_equal(source_check_files(s, &e), ERR_IO);
    assert_non_null(strstr(e.text, "m-2.safetensors"));
    source_close(s);
    refuse(at, ERR_PARSE, "m-2.safetensors", "too few");
    tree_safetensors(dir, "sh/m-2.safetensors", (struct tree_tensor[]){W("a"), W("b")}, 2);
    refuse(at, ERR_INVAL, "'c' is not in 'm-2.safetensors'", "index.json");
    shard_index(index, "{\"a\":\"m-2.safetensors\",\"d\":\"m-1.safetensors\"}");
    refuse(at, ERR_INVAL, "'b' is in two", "sh");
    shard_index(index, "{\"a\":\"m-3.safetensors\"}");
    refuse(at, ERR_NOTFOUND, "shard 'm-3.safetensors'", "index.json");
    shard_index(index, "{\"a\":\"../sh/m-1.safetensors\"}");
    refuse(at, ERR_INVAL, "no file of this folder", "'a'");
    shard_index(index, "{\"a\":\"..\"}");
    refuse(at, ERR_INVAL, "no file of this folder", "'a'");
    shard_index(index, "{\"a\":7}");
    refuse(at, ERR_INVAL, "no file of this folder", "'a'");
    shard_index(index, "{}");
    refuse(at, ERR_INVAL, "names no tensor", "index.json");
    shard_index(index, "[]");
    refuse(at, ERR_INVAL, "weight_map", "index.json");
    tree_text(dir, index, "{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}");
    refuse(at, ERR_PARSE, "duplicate", "index.json");
    tree_text(dir, index, "");
    refuse(at, ERR_PARSE, "empty", "index.json");
    tree_remove(at);
}

/* Which file of a folder is taken: from the least wanted to the most. */
static void test_preference(void **state)
{
    (void)state;
    static const char *const name[] = {"x.gguf", "odd.safetensors",
                                       "diffusion_pytorch_model.fp16.safetensors",
                                       "diffusion_pytorch_model.safetensors", "model.safetensors"};
    char at[TREE_PATH];
    snprintf(at, sizeof at, "%s", tree_path(dir, "pref"));
    assert_int_equal(mkdir(at, 0777), 0);
    refuse(at, ERR_NOTFOUND, "no .safetensors or .gguf", "pref");
    tree_text(dir, "pref/pytorch_model.bin", "PK");
    refuse(at, ERR_NOTFOUND, ".bin", "not read");
    for (int i = 0; i < 5; i++) {
        struct tree_tensor t = W(name[i]);
        char file[128];
        snprintf(file, sizeof file, "pref/%s", name[i]);
        if (i == 0)
            put_gguf(file, (int32_t[]){4, 32}, 2);
        else
            tree_safetensors(dir, file, &t, 1);
        struct source *s = open_ok(at);
        assert_string_equal(source_at(s, 0)->name, i ? name[i] : "conv.weight");
        source_close(s);
    }
    tree_remove(at);
    refuse(at, ERR_NOTFOUND, "pref", "cannot open");
    refuse("/dev/null", ERR_INVAL, "/dev/null", "not a regular file");
}

/* ---- slices ---- */

static int find(const struct source_map *m, const char *want, struct source_slice *slice)
{
    static const struct names_row rows[] = {
        {"k.#", "q.#.kv", 1, 4, 1},   {"v.#", "q.#.kv", 2, 4, 2},  {"swap", "q.0.kv", 2, 4, 2},
        {"swap", "q.0.kv", 0, 4, 2},  {"odd", "q.0.kv", 0, 3, 1},  {"over", "q.0.kv", 3, 4, 2},
        {"mixed", "q.0.kv", 0, 4, 1}, {"mixed", "other", 0, 1, 1}, {"absent.*", "no.*", 0, 0, 0},
    };
    (void)m;
    return names_rows(rows, sizeof rows / sizeof *rows, want, "", slice);
}

static void test_slices(void **state)
{
    (void)state;
    float v[24];
    struct err e = {0};
    struct nn_view w;
    int64_t dim[SOURCE_DIMS];
    int n_dim;
    for (int i = 0; i < 24; i++)
        v[i] = (float)i;
    tree_safetensors(dir, "sl.safetensors",
                     (struct tree_tensor[]){{"p.q.0.kv", "F32", 2, {8, 3}, v}, W("p.other")}, 2);
    struct source *s = open_ok(tree_path(dir, "sl.safetensors"));
    struct comp c = {.name = "c", .map = {.find = find, .src = s, .prefix = "p."}};
    static const struct {
        const char *want;
        int from, n;
    } one[] = {{"k.0", 6, 6}, {"v.0", 12, 12}, {"q.0.kv", 0, 24}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(nn__view(&c, one[i].want, &w, &e), 0);
        assert_int_equal(w.dim[0] * w.dim[1], one[i].n);
        assert_memory_equal(w.data, v + one[i].from, (size_t)one[i].n * sizeof *v);
        free(w.own);
    }
    assert_int_equal(nn__view(&c, "swap", &w, &e), 0);
    assert_int_equal(w.dim[0], 8);
    assert_memory_equal(w.data, v + 12, 12 * sizeof *v);
    assert_memory_equal((const float *)w.data + 12, v, 12 * sizeof *v);
    free(w.own);
    assert_int_equal(nn__view(&c, "odd", &w, &e), ERR_INVAL);
    assert_int_equal(nn__view(&c, "over", &w, &e), ERR_INVAL);
    assert_int_equal(nn__view(&c, "absent.x", &w, &e), ERR_NOTFOUND);
    assert_int_equal(nn__view(&c, "k.1", &w, &e), ERR_NOTFOUND);
    assert_true(nn__find(&c, "v.0", dim, &n_dim) && dim[0] == 4 && dim[1] == 3 && n_dim == 2);
    assert_true(nn__find(&c, "mixed", dim, &n_dim) && dim[0] == 4);
    assert_true(names_has(&c.map, dim, "%s.%d", "v", 0) && dim[0] == 4 && dim[2] == 0);
    assert_false(names_has(&c.map, dim, "absent.x"));
    assert_int_equal(names_count(&c.map, 8, "k.#"), 1);
    source_close(s);
}

static void test_match(void **state)
{
    (void)state;
    struct names_cap c;
    struct source_slice s[SOURCE_SLICES];
    static const struct names_row row[] = {{"a.*", "b.*", 0, 0, 0}};
    char want[200];
    assert_true(names_match("x.#.y.#.*", "x.12.y.3.tail.0", &c));
    assert_true(c.n[0] == 12 && c.n[1] == 3);
    assert_string_equal(c.rest, "tail.0");
    assert_true(names_match("x", "x", &c));
    assert_false(names_match("x", "xy", &c) || names_match("xy", "x", &c));
    assert_false(names_match("x.#", "x.", &c) || names_match("x.#.y", "x.1234567.y", &c));
    memset(want, 'w', sizeof want);
    memcpy(want, "a.", 2);
    want[sizeof want - 1] = 0; /* no name of a file: an error, not another name */
    assert_int_equal(names_rows(row, 1, want, "", s), -1);
    assert_int_equal(names_one(s, "%s", want), -1);
    assert_int_equal(names_rows(row, 1, "z", "", s), 0);
}

/* ---- pages, cuts, memory ---- */

static void test_drop(void **state)
{
    (void)state;
    struct tree_tensor t = {"big", "U8", 1, {1 << 16}, NULL};
    tree_safetensors(dir, "d.safetensors", &t, 1);
    struct source *s = open_ok(tree_path(dir, "d.safetensors"));
    const struct source_tensor *b = source_at(s, 0);
    const uint8_t *p = b->data;
    for (int i = 0; i < 1 << 16; i++)
        assert_int_equal(p[i], i % 251);
    source_drop(s, b->data, b->bytes);
    source_drop(s, b->data, 1);
    for (int i = 0; i < 1 << 16; i++)
        assert_int_equal(p[i], i % 251);
    source_close(s);
}

static void test_cuts(void **state)
{
    (void)state;
    struct source *s = NULL;
    struct stat st;
    const char *names[] = {"cut.safetensors", "cut.gguf"};
    tree_safetensors(dir, names[0], (struct tree_tensor[]){W("a"), W("b")}, 2);
    put_gguf(names[1], (int32_t[]){4, 32}, 2);
    for (int k = 0; k < 2; k++) {
        char path[TREE_PATH];
        snprintf(path, sizeof path, "%s", tree_path(dir, names[k]));
        assert_int_equal(stat(path, &st), 0);
        for (off_t n = st.st_size - 1; n >= 0; n--) {
            assert_int_equal(truncate(path, n), 0);
            assert_true(source_open(&s, path, NULL) < 0);
        }
    }
}

static void test_nomem(void **state)
{
    (void)state;
    char at[TREE_PATH];
    snprintf(at, sizeof at, "%s", tree_path(dir, "mem"));
    tree_safetensors(dir, "mem/m-1.safetensors", (struct tree_tensor[]){W("a")}, 1);
    put_gguf("mem/m-2.gguf", (int32_t[]){4, 32}, 2);
    shard_index("mem/model.safetensors.index.json",
                "{\"a\":\"m-1.safetensors\",\"conv.weight\":\"m-2.gguf\"}");
    for (int sticky = 0; sticky < 2; sticky++) {
        long k = 1;
        for (;; k++) {
            struct source *s = NULL;
            struct err e = {0};
            mem_fail_after(k, sticky);
            int rc = source_open(&s, at, &e);
            mem_fail_after(0, false);
            source_close(s);
            if (rc == 0)
                break;
            assert_int_equal(rc, ERR_NOMEM);
            assert_int_equal(e.code, ERR_NOMEM);
        }
        assert_true(k > 6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),   cmocka_unit_test(test_f8_many),
        cmocka_unit_test(test_bad_scale), cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_shards),    cmocka_unit_test(test_preference),
        cmocka_unit_test(test_slices),    cmocka_unit_test(test_match),
        cmocka_unit_test(test_drop),      cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_nomem),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
