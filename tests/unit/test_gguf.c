/* engine/load/gguf: real files, malformed files, and families of damaged ones made here. Files live in one
 * memfd, opened by its /proc name, so that thousands of variants cost no disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/load/gguf.h"
#include "tests/bad_gguf.h"
#include "tests/unxz.h"

#define DATA "tests/data/gguf-tiny/"
#define GOOD DATA "tiny-qwen2-f16.gguf.xz"

static int mem_fd = -1;
static char mem_path[64];

static void put_file(const void *p, size_t n)
{
    if (mem_fd < 0) {
        mem_fd = memfd_create("gguf", MFD_CLOEXEC);
        snprintf(mem_path, sizeof mem_path, "/proc/self/fd/%d", mem_fd);
    }
    assert_int_equal(ftruncate(mem_fd, (off_t)n), 0);
    assert_int_equal(pwrite(mem_fd, p, n, 0), (ssize_t)n);
}

/* Touch all that a parsed file hands out: a wrong bound shows as a fault or a sanitizer report. */
static volatile uint64_t sink;
static void walk(const struct gguf *g)
{
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        sink += (uint8_t)kv->key.p[0] + (uint8_t)kv->key.p[kv->key.len - 1];
        if (kv->type == GGUF_STRING)
            sink += kv->data[0] + kv->data[7];
        for (uint64_t k = 0; kv->type == GGUF_ARRAY && k < kv->n; k++) {
            if (kv->elem == GGUF_STRING) {
                struct view s = gguf_arr_str(kv, k);
                sink += s.len ? (uint8_t)s.p[s.len - 1] : 0;
            } else if (kv->elem == GGUF_F32 || kv->elem == GGUF_F64) {
                sink += gguf_arr_f32(kv, k) > 0;
            } else {
                sink += (uint64_t)gguf_arr_int(kv, k);
            }
        }
    }
    for (size_t i = 0; i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t *p = t->data;
        assert_true(t->bytes > 0 && t->n_dim >= 1 && t->n_dim <= 4);
        assert_int_equal((uintptr_t)p % 8, 0);
        sink += p[0] + p[t->bytes - 1];
    }
}

/* Open the bytes: 0 if accepted (then everything is walked), else the code, with a text. Running out of
 * memory counts as a failure of the test: no file may make the parser ask for much. */
static int try_bytes(const void *p, size_t n)
{
    struct err e = {0};
    struct gguf *g = NULL;
    put_file(p, n);
    int rc = gguf_open(&g, mem_path, &e);
    if (rc == 0) {
        walk(g);
        gguf_close(g);
    } else {
        assert_null(g);
        assert_int_equal(rc, e.code);
        assert_true(strlen(e.text) > strlen(mem_path) + 2);
        assert_true(rc == ERR_PARSE || rc == ERR_UNSUPPORTED || rc == ERR_INVAL);
    }
    return rc;
}

static struct gguf *open_ok(const void *p, size_t n)
{
    struct err e = {0};
    struct gguf *g = NULL;
    put_file(p, n);
    if (gguf_open(&g, mem_path, &e))
        fail_msg("%s", e.text);
    return g;
}

/* ---- a writer ---- */

struct maker {
    struct buf b;
    size_t count[64]; /* positions of 8-byte counts, lengths, dimensions and offsets */
    int n_count;
};

static void u32(struct maker *m, uint32_t v)
{
    buf_add(&m->b, &v, 4);
}
static void u64(struct maker *m, uint64_t v)
{
    assert_true(m->n_count < 64);
    m->count[m->n_count++] = m->b.len;
    buf_add(&m->b, &v, 8);
}
static void str(struct maker *m, const char *s)
{
    u64(m, strlen(s));
    buf_str(&m->b, s);
}
static void header(struct maker *m, uint32_t version, uint64_t n_tensor, uint64_t n_kv)
{
    buf_str(&m->b, "GGUF");
    u32(m, version);
    u64(m, n_tensor);
    u64(m, n_kv);
}
static void key(struct maker *m, const char *name, uint32_t type)
{
    str(m, name);
    u32(m, type);
}
static void kv_bytes(struct maker *m, const char *name, uint32_t type, const void *p, size_t n)
{
    key(m, name, type);
    buf_add(&m->b, p, n);
}
static void array(struct maker *m, const char *name, uint32_t elem, uint64_t n)
{
    key(m, name, GGUF_ARRAY);
    u32(m, elem);
    u64(m, n);
}
static void tensor(struct maker *m, const char *name, uint32_t type, uint64_t n, uint64_t offset)
{
    str(m, name);
    u32(m, 2);
    u64(m, n);
    u64(m, 1);
    u32(m, type);
    u64(m, offset);
}
static void data(struct maker *m, size_t align, size_t n)
{
    while (m->b.len % align)
        buf_char(&m->b, 0);
    for (size_t i = 0; i < n; i++)
        buf_char(&m->b, (char)i);
}

/* Every value type, three arrays, two tensors; version 2. Returns the header's length. */
static size_t make_all(struct maker *m)
{
    header(m, 2, 2, 17);
    kv_bytes(m, "u8", GGUF_U8, "\xff", 1);
    kv_bytes(m, "i8", GGUF_I8, "\xff", 1);
    kv_bytes(m, "u16", GGUF_U16, "\xff\xff", 2);
    kv_bytes(m, "i16", GGUF_I16, "\xfe\xff", 2);
    kv_bytes(m, "u32", GGUF_U32, "\xff\xff\xff\xff", 4);
    kv_bytes(m, "i32", GGUF_I32, "\x07\x00\x00\x00", 4);
    kv_bytes(m, "f32", GGUF_F32, "\x00\x00\x80\x3f", 4);
    kv_bytes(m, "nan", GGUF_F32, "\x00\x00\xc0\x7f", 4);
    kv_bytes(m, "bool", GGUF_BOOL, "\x01", 1);
    key(m, "str", GGUF_STRING);
    str(m, "text");
    kv_bytes(m, "u64", GGUF_U64, "\x00\x00\x00\x00\x01\x00\x00\x00", 8);
    kv_bytes(m, "i64", GGUF_I64, "\x05\x00\x00\x00\x00\x00\x00\x00", 8);
    kv_bytes(m, "f64", GGUF_F64, "\x00\x00\x00\x00\x00\x00\xe0\x3f", 8);
    array(m, "strs", GGUF_STRING, 3);
    str(m, "a");
    str(m, "");
    str(m, "bcd");
    array(m, "ints", GGUF_I16, 2);
    buf_add(&m->b, "\xff\xff\x02\x00", 4);
    array(m, "none", GGUF_STRING, 0);
    kv_bytes(m, "general.alignment", GGUF_U32, "\x40\x00\x00\x00", 4);
    tensor(m, "t.f32", QF_F32, 4, 0);
    tensor(m, "t.q8", QF_Q8_0, 64, 64);
    size_t n = m->b.len;
    data(m, 64, 64 + 68);
    return n;
}

/* ---- tests ---- */

static void test_values(void **st)
{
    (void)st;
    struct maker m = {0};
    struct err e;
    make_all(&m);
    struct gguf *g = open_ok(m.b.p, m.b.len);
    uint32_t u = 0;
    float f = 0;
    bool flag = false;
    struct view s;
    walk(g);
    assert_int_equal(gguf_version(g), 2);
    assert_int_equal(gguf_n_kv(g), 17);
    assert_int_equal(gguf_file_bytes(g), m.b.len);
    static const struct {
        const char *key;
        int rc;
        uint32_t v;
    } ints[] = {{"u8", 0, 255},         {"i8", ERR_INVAL, 0},   {"u16", 0, 65535},
                {"i16", ERR_INVAL, 0},  {"u32", 0, UINT32_MAX}, {"i32", 0, 7},
                {"u64", ERR_INVAL, 0},  {"i64", 0, 5},          {"f32", ERR_INVAL, 0},
                {"bool", ERR_INVAL, 0}, {"str", ERR_INVAL, 0},  {"ints", ERR_INVAL, 0},
                {"no", ERR_NOTFOUND, 0}};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        u = 12345;
        assert_int_equal(gguf_get_u32(g, ints[i].key, &u, &e), ints[i].rc);
        assert_int_equal(u, ints[i].rc ? 12345 : ints[i].v);
        if (ints[i].rc)
            assert_non_null(strstr(e.text, ints[i].key));
    }
    assert_int_equal(gguf_get_f32(g, "f32", &f, &e), 0);
    assert_true(f == 1.0f);
    assert_int_equal(gguf_get_f32(g, "f64", &f, &e), 0);
    assert_true(f == 0.5f);
    assert_int_equal(gguf_get_f32(g, "nan", &f, &e), ERR_INVAL);
    assert_int_equal(gguf_get_f32(g, "u8", &f, &e), ERR_INVAL);
    assert_int_equal(gguf_get_bool(g, "bool", &flag, &e), 0);
    assert_true(flag);
    assert_int_equal(gguf_get_bool(g, "u8", &flag, &e), ERR_INVAL);
    assert_int_equal(gguf_get_str(g, "str", &s, &e), 0);
    assert_true(view_is(s, "text"));
    assert_int_equal(gguf_get_str(g, "u8", &s, &e), ERR_INVAL);
    const struct gguf_kv *kv = gguf_kv_find(g, "strs");
    assert_int_equal(kv->n, 3);
    assert_true(view_is(gguf_arr_str(kv, 0), "a"));
    assert_int_equal(gguf_arr_str(kv, 1).len, 0);
    assert_true(view_is(gguf_arr_str(kv, 2), "bcd"));
    kv = gguf_kv_find(g, "ints");
    assert_int_equal(gguf_arr_int(kv, 0), -1);
    assert_int_equal(gguf_arr_int(kv, 1), 2);
    assert_true(gguf_arr_f32(kv, 0) == -1.0f);
    assert_int_equal(gguf_kv_find(g, "none")->n, 0);
    const struct gguf_tensor *t = gguf_tensor_find(g, "t.q8");
    assert_int_equal(t->bytes, 68);
    assert_int_equal(t->dim[0], 64);
    assert_int_equal(t->dim[3], 1);
    assert_int_equal(*(const uint8_t *)t->data, 64);
    assert_null(gguf_tensor_find(g, "t.q"));
    gguf_close(g);
    gguf_close(NULL);
    buf_free(&m.b);
}

static void test_real(void **st)
{
    (void)st;
    size_t n;
    char *p = unxz_read(GOOD, &n);
    assert_non_null(p);
    struct gguf *g = open_ok(p, n);
    struct err e;
    struct view s;
    uint32_t u;
    walk(g);
    assert_int_equal(gguf_version(g), 3);
    assert_int_equal(gguf_n_kv(g), 23);
    assert_int_equal(gguf_n_tensor(g), 38);
    assert_int_equal(gguf_get_str(g, "general.architecture", &s, &e), 0);
    assert_true(view_is(s, "qwen2"));
    assert_int_equal(gguf_get_u32(g, "qwen2.block_count", &u, &e), 0);
    assert_int_equal(u, 3);
    assert_int_equal(gguf_kv_find(g, "tokenizer.ggml.tokens")->n, 512);
    for (size_t i = 0; i < gguf_n_tensor(g); i++) { /* every name leads back to its record */
        char name[80];
        struct view v = gguf_tensor_at(g, i)->name;
        snprintf(name, sizeof name, "%.*s", (int)v.len, v.p);
        assert_ptr_equal(gguf_tensor_find(g, name), gguf_tensor_at(g, i));
    }
    const struct gguf_tensor *t = gguf_tensor_find(g, "token_embd.weight");
    assert_int_equal(t->fmt, QF_F16);
    assert_int_equal(t->dim[1], 512);
    assert_int_equal(t->bytes, (size_t)t->dim[0] * 512 * 2);
    gguf_close(g);

    /* Faults whose files would be as large as this one. */
    p[3] = 'X';
    assert_int_equal(try_bytes(p, n), ERR_PARSE);
    memcpy(p, "FUGG", 4);
    assert_int_equal(try_bytes(p, n), ERR_UNSUPPORTED);
    memcpy(p, "GGUF\x63\0\0\0", 8);
    assert_int_equal(try_bytes(p, n), ERR_UNSUPPORTED);
    memcpy(p, "GGUF\0\0\0\x03", 8);
    put_file(p, n);
    assert_int_equal(gguf_open(&g, mem_path, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "big-endian"));
    memcpy(p, "GGUF\x03\0\0\0", 8);
    put_file(p, n - 1000);
    assert_int_equal(gguf_open(&g, mem_path, &e), ERR_PARSE);
    assert_non_null(strstr(e.text, "incomplete"));
    free(p);
}

static void test_bad_files(void **st)
{
    (void)st;
    for (size_t i = 0; i < BAD_GGUF_N; i++) {
        const struct bad_gguf *b = &bad_gguf[i];
        char path[128];
        size_t n;
        struct err e = {0};
        struct gguf *g = NULL;
        snprintf(path, sizeof path, DATA "bad-%s", b->file);
        char *p = unxz_read(path, &n);
        assert_non_null(p);
        put_file(p, n);
        int rc = gguf_open(&g, mem_path, &e);
        if (rc != b->rc || !strstr(e.text, b->says) || !strstr(e.text, mem_path))
            fail_msg("%s: %d %s", b->file, rc, e.text);
        free(p);
    }
}

/* One fault each in a file made here: the text must name what is wrong. */
static void refuse(struct maker *m, int rc, const char *says)
{
    struct err e = {0};
    struct gguf *g = NULL;
    for (int i = 0; i < 8; i++) /* room, so that the fault itself is met and not the file's end */
        buf_add(&m->b, "\0\0\0\0\0\0\0\0", 8);
    put_file(m->b.p, m->b.len);
    int got = gguf_open(&g, mem_path, &e);
    if (got != rc || !strstr(e.text, says))
        fail_msg("wanted '%s', got %d %s", says, got, e.text);
    buf_free(&m->b);
    *m = (struct maker){0};
}

static void test_made_faults(void **st)
{
    (void)st;
    struct maker m = {0};
    header(&m, 3, 0, 1);
    key(&m, "", GGUF_U8);
    refuse(&m, ERR_PARSE, "a name of 0 bytes");
    header(&m, 3, 0, 1);
    u64(&m, 1000);
    refuse(&m, ERR_PARSE, "name (1000 bytes) goes beyond");
    header(&m, 3, 0, 1);
    key(&m, "esc\x1b[2J", 77);
    refuse(&m, ERR_PARSE, "'esc?[2J': unknown value type 77");
    header(&m, 3, 0, 1);
    kv_bytes(&m, "b", GGUF_BOOL, "\x02", 1);
    refuse(&m, ERR_PARSE, "'b': 2 is no bool");
    header(&m, 3, 0, 1);
    array(&m, "b", GGUF_BOOL, 2);
    buf_add(&m.b, "\x01\x09", 2);
    refuse(&m, ERR_PARSE, "'b': 9 is no bool");
    header(&m, 3, 0, 1);
    array(&m, "x", 13, 2);
    refuse(&m, ERR_PARSE, "'x': unknown element type 13");
    header(&m, 3, 0, 1);
    array(&m, "x", GGUF_STRING, 5000);
    refuse(&m, ERR_PARSE, "'x': 5000 strings");
    header(&m, 3, 0, 1);
    array(&m, "x", GGUF_STRING, 2);
    u64(&m, 0);
    u64(&m, 999);
    refuse(&m, ERR_PARSE, "'x': string 1 goes beyond");
    header(&m, 3, 0, 1);
    key(&m, "general.alignment", GGUF_STRING);
    str(&m, "32");
    refuse(&m, ERR_INVAL, "'general.alignment': string where an integer");
    header(&m, 3, 2, 0);
    tensor(&m, "same", QF_F32, 1, 0);
    tensor(&m, "same", QF_F32, 1, 0);
    refuse(&m, ERR_PARSE, "tensor 'same' is there twice");
    header(&m, 3, 1, 0);
    tensor(&m, "z", QF_F32, 0, 0);
    refuse(&m, ERR_PARSE, "tensor 'z': dimension 0 is 0");
    header(&m, 3, 1, 0);
    tensor(&m, "z", QF_F32, (uint64_t)1 << 62, 0);
    refuse(&m, ERR_PARSE, "tensor 'z': its size overflows");
    header(&m, 3, 1, 0);
    tensor(&m, "z", 28, 256, 0);
    refuse(&m, ERR_UNSUPPORTED, "tensor 'z': type 28 (F64)");
    header(&m, 3, 1, 0);
    tensor(&m, "z", QF_F32, 8, UINT64_MAX - 31);
    refuse(&m, ERR_PARSE, "tensor 'z': 32 bytes at");
    header(&m, 1, 0, 0);
    refuse(&m, ERR_UNSUPPORTED, "version 1");
}

/* Every 8-byte field takes each nasty value. */
static void test_counts(void **st)
{
    (void)st;
    struct maker m = {0};
    make_all(&m);
    const uint64_t n = m.b.len;
    const uint64_t nasty[] = {0,
                              1,
                              2,
                              n - 1,
                              n,
                              n + 1,
                              INT64_MAX,
                              UINT64_MAX,
                              UINT64_MAX - 1,
                              (uint64_t)1 << 63,
                              1u << 31,
                              UINT32_MAX,
                              (uint64_t)1 << 61};
    int refused = 0, taken = 0;
    for (int i = 0; i < m.n_count; i++) {
        uint64_t was;
        memcpy(&was, m.b.p + m.count[i], 8);
        for (size_t k = 0; k < sizeof nasty / sizeof *nasty; k++) {
            memcpy(m.b.p + m.count[i], &nasty[k], 8);
            if (try_bytes(m.b.p, m.b.len))
                refused++;
            else
                taken++;
        }
        memcpy(m.b.p + m.count[i], &was, 8);
    }
    assert_int_equal(try_bytes(m.b.p, m.b.len), 0);
    assert_true(refused > 10 * taken);
    buf_free(&m.b);
}

static void test_truncated(void **st)
{
    (void)st;
    struct maker m = {0};
    size_t head = make_all(&m);
    for (size_t n = 0; n < m.b.len; n++)
        if (try_bytes(m.b.p, n) == 0)
            fail_msg("a file cut at %zu (header %zu, file %zu) was taken", n, head, m.b.len);
    buf_free(&m.b);
}

/* Single bytes changed in a real header: refused or read, within bounds. Seeded. */
static void test_flips(void **st)
{
    (void)st;
    enum { FLIPS = 10000, HEAD = 14240 };
    size_t n;
    char *p = unxz_read(GOOD, &n);
    assert_non_null(p);
    int refused = 0;
    put_file(p, n);
    for (uint64_t i = 0; i < FLIPS; i++) {
        uint64_t r = hash_u64(i);
        size_t at = r % HEAD;
        char was = p[at];
        struct gguf *g = NULL;
        struct err e = {0};
        p[at] = (char)(was ^ (char)(1 + (r >> 32) % 255));
        assert_int_equal(pwrite(mem_fd, p + at, 1, (off_t)at), 1);
        int rc = gguf_open(&g, mem_path, &e);
        if (rc == 0)
            walk(g);
        assert_int_not_equal(rc, ERR_NOMEM);
        refused += rc != 0;
        gguf_close(g);
        p[at] = was;
        assert_int_equal(pwrite(mem_fd, &was, 1, (off_t)at), 1);
    }
    assert_true(refused > 1000 && refused < FLIPS);
    assert_int_equal(try_bytes(p, n), 0);
    free(p);
}

static void test_no_memory(void **st)
{
    (void)st;
    struct maker m = {0};
    make_all(&m);
    put_file(m.b.p, m.b.len);
    long k = 1;
    for (;; k++) {
        struct gguf *g = NULL;
        struct err e = {0};
        mem_fail_after(k, false);
        int rc = gguf_open(&g, mem_path, &e);
        mem_fail_after(0, false);
        if (rc == 0) {
            gguf_close(g);
            break;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_null(g);
        assert_true(e.text[0] != 0);
    }
    assert_true(k > 7);
    buf_free(&m.b);
}

static void test_not_a_file(void **st)
{
    (void)st;
    struct gguf *g = NULL;
    struct err e;
    char dir[] = "/tmp/stepd-gguf-XXXXXX", fifo[64];
    assert_non_null(mkdtemp(dir));
    snprintf(fifo, sizeof fifo, "%s/f", dir);
    assert_int_equal(gguf_open(&g, fifo, &e), ERR_NOTFOUND);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(gguf_open(&g, fifo, &e), ERR_INVAL); /* and does not wait for a writer */
    assert_int_equal(gguf_open(&g, dir, &e), ERR_INVAL);
    assert_int_equal(gguf_open(&g, dir, NULL), ERR_INVAL);
    unlink(fifo);
    rmdir(dir);
}

static void test_changed(void **st)
{
    (void)st;
    struct maker m = {0};
    struct err e;
    make_all(&m);
    struct gguf *g = open_ok(m.b.p, m.b.len);
    assert_int_equal(gguf_check_file(g, &e), 0);
    assert_int_equal(ftruncate(mem_fd, (off_t)m.b.len - 1), 0);
    assert_int_equal(gguf_check_file(g, &e), ERR_IO);
    gguf_close(g);
    buf_free(&m.b);
}

int main(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    /* What a hostile count makes the parser ask for must fail here, and then fails the test. */
    setrlimit(RLIMIT_AS, &(struct rlimit){256 << 20, 256 << 20});
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),     cmocka_unit_test(test_real),
        cmocka_unit_test(test_bad_files),  cmocka_unit_test(test_made_faults),
        cmocka_unit_test(test_counts),     cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_flips),      cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_not_a_file), cmocka_unit_test(test_changed),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
