/* engine/load/safetensors: good files, every malformed kind with the text it gives, truncation, flips, failing
 * allocations; and engine/load/kind, which sends a path to its reader. Files live in one memfd. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/load/kind.h"
#include "engine/load/safetensors.h"

static int mem_fd = -1;
static char mem_path[64];

static void put_file(const void *p, size_t n)
{
    if (mem_fd < 0) {
        mem_fd = memfd_create("safetensors", MFD_CLOEXEC);
        snprintf(mem_path, sizeof mem_path, "/proc/self/fd/%d", mem_fd);
    }
    assert_int_equal(ftruncate(mem_fd, (off_t)n), 0);
    assert_int_equal(pwrite(mem_fd, p, n, 0), (ssize_t)n);
}

/* Length, header and n bytes of data 0, 1, 2, ...; release with free(). */
static char *make(const char *header, size_t n, size_t *size)
{
    uint64_t len = strlen(header);
    char *p = malloc(8 + len + n);
    memcpy(p, &len, 8);
    memcpy(p + 8, header, len);
    for (size_t i = 0; i < n; i++)
        p[8 + len + i] = (char)i;
    *size = 8 + len + n;
    return p;
}

static volatile uint64_t sink;
static void walk(const struct safetensors *s)
{
    size_t total = 0;
    for (size_t i = 0; i < safetensors_n_tensor(s); i++) {
        const struct st_tensor *t = safetensors_tensor_at(s, i);
        size_t bits = (size_t)st_dtype_bits(t->dtype);
        for (int d = 0; d < t->n_dim; d++)
            bits *= (size_t)t->dim[d];
        assert_int_equal(bits, t->bytes * 8);
        assert_ptr_equal(safetensors_tensor_find(s, t->name.p), t);
        for (size_t k = 0; k < t->bytes; k++)
            sink += t->data[k];
        total += t->bytes;
    }
    assert_true(total < safetensors_file_bytes(s));
}

/* Open the bytes: 0 if accepted (then everything is walked), else the code with its text in *e. */
static int try_bytes(const void *p, size_t n, struct err *e)
{
    struct safetensors *s = NULL;
    *e = (struct err){0};
    put_file(p, n);
    int rc = safetensors_open(&s, mem_path, e);
    if (rc == 0) {
        walk(s);
        safetensors_close(s);
        return 0;
    }
    assert_null(s);
    assert_int_equal(rc, e->code);
    assert_true(strlen(e->text) > strlen(mem_path) + 2);
    return rc;
}

static const char good[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
    "\"none\":{\"dtype\":\"I64\",\"shape\":[7,0],\"data_offsets\":[16,16],\"extra\":1},"
    "\"q\":{\"dtype\":\"F4\",\"shape\":[2,2],\"data_offsets\":[16,18]}}   ";
#define GOOD_DATA 18

static void test_good(void **state)
{
    (void)state;
    struct err e = {0};
    struct safetensors *s = NULL;
    size_t n;
    char *p = make(good, GOOD_DATA, &n);
    put_file(p, n);
    assert_int_equal(safetensors_open(&s, mem_path, &e), 0);
    walk(s);
    assert_int_equal(safetensors_file_bytes(s), n);
    assert_int_equal(safetensors_n_tensor(s), 4);
    assert_string_equal(safetensors_tensor_at(s, 0)->name.p, "a");
    assert_int_equal(safetensors_tensor_at(s, 0)->n_dim, 0);
    const struct st_tensor *t = safetensors_tensor_find(s, "b.weight");
    assert_non_null(t);
    assert_string_equal(st_dtype_name(t->dtype), "BF16");
    assert_int_equal(t->n_dim, 2);
    assert_int_equal(t->dim[0], 2);
    assert_int_equal(t->dim[1], 3);
    assert_int_equal(t->bytes, 12);
    assert_int_equal(t->data[0], 4);
    assert_int_equal(safetensors_tensor_find(s, "none")->bytes, 0);
    assert_null(safetensors_tensor_find(s, "__metadata__"));
    assert_null(safetensors_tensor_find(s, "zz"));
    assert_string_equal(safetensors_meta(s, "format"), "pt");
    assert_null(safetensors_meta(s, "other"));
    assert_int_equal(safetensors_check_file(s, &e), 0);
    assert_int_equal(ftruncate(mem_fd, (off_t)n + 1), 0);
    assert_int_equal(safetensors_check_file(s, &e), ERR_IO);
    safetensors_close(s);
    safetensors_close(NULL);
    free(p);
    p = make("{}", 0, &n);
    assert_int_equal(try_bytes(p, n, &e), 0);
    free(p);
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data;
    int rc;
    const char *text; /* that the error must contain */
} bad[] = {
    {"", 0, ERR_PARSE, "does not start"},
    {" {}", 0, ERR_PARSE, "does not start"},
    {"[]", 0, ERR_PARSE, "does not start"},
    {"{", 0, ERR_PARSE, "header: "},
    {"{}x", 0, ERR_PARSE, "header: "},
    {"{\"a\\u0000\":1}", 0, ERR_PARSE, "header: "},
    {"{\"a\xff\":1}", 0, ERR_PARSE, "header: "},
    {"{\"a\":[[[[[[[[[1]]]]]]]]]}", 0, ERR_PARSE, "nested deeper"},
    {"{\"w\":" T("U8", "[1]", "[0,1]") ",\"w\":" T("U8", "[1]", "[1,2]") "}", 2, ERR_PARSE,
     "duplicate"},
    {"{\"\\u0077\":" T("U8", "[1]", "[0,1]") ",\"w\":" T("U8", "[1]", "[1,2]") "}", 2, ERR_PARSE,
     "duplicate"},
    {"{\"__metadata__\":1}", 0, ERR_PARSE, "__metadata__ is no object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, ERR_PARSE, "'k' is no text"},
    {"{\"w\":1}", 0, ERR_PARSE, "'w': its entry is no object"},
    {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ERR_PARSE, "'w': dtype is missing"},
    {"{\"w\":" T("Q9", "[1]", "[0,4]") "}", 4, ERR_UNSUPPORTED, "'w': unknown dtype 'Q9'"},
    {"{\"w\":" T("f32", "[1]", "[0,4]") "}", 4, ERR_UNSUPPORTED, "'w': unknown dtype"},
    {"{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, ERR_PARSE, "'w': shape is missing"},
    {"{\"w\":" T("U8", "{}", "[0,1]") "}", 1, ERR_PARSE, "'w': shape is missing"},
    {"{\"w\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, ERR_UNSUPPORTED, "9 dimensions"},
    {"{\"w\":" T("U8", "[-1]", "[0,1]") "}", 1, ERR_PARSE, "'w': dimension 0"},
    {"{\"w\":" T("U8", "[1,1.0]", "[0,1]") "}", 1, ERR_PARSE, "'w': dimension 1"},
    {"{\"w\":" T("U8", "[\"1\"]", "[0,1]") "}", 1, ERR_PARSE, "'w': dimension 0"},
    {"{\"w\":" T("F32", "[4294967296,4294967296,4]", "[0,16]") "}", 16, ERR_PARSE,
     "'w': its shape takes more"},
    {"{\"w\":" T("F64", "[9223372036854775807]", "[0,16]") "}", 16, ERR_PARSE,
     "'w': its shape takes more"},
    {"{\"w\":" T("F4", "[3]", "[0,2]") "}", 2, ERR_PARSE, "'w': 12 bits"},
    {"{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, ERR_PARSE, "'w': data_offsets is no pair"},
    {"{\"w\":" T("U8", "[1]", "[0]") "}", 1, ERR_PARSE, "'w': data_offsets is no pair"},
    {"{\"w\":" T("U8", "[1]", "[0,1,2]") "}", 1, ERR_PARSE, "'w': data_offsets is no pair"},
    {"{\"w\":" T("U8", "[1]", "[-1,0]") "}", 1, ERR_PARSE, "'w': data_offsets is no pair"},
    {"{\"w\":" T("F32", "[1]", "[4,0]") "}", 4, ERR_PARSE, "'w': data_offsets end (0) before"},
    {"{\"w\":" T("F64", "[4]", "[0,16]") "}", 16, ERR_PARSE, "'w': 16 bytes of data"},
    {"{\"w\":" T("F32", "[1000,1000]", "[0,4]") "}", 4, ERR_PARSE, "'w': 4 bytes of data"},
    {"{\"w\":" T("U8", "[2]", "[0,2]") "}", 1, ERR_PARSE, "'w': its data ends at byte 2"},
    {"{\"w\":" T("U8", "[1]", "[9223372036854775806,9223372036854775807]") "}", 1, ERR_PARSE,
     "'w': its data ends at byte 9223372036854775807"},
    {"{\"w\":" T("U8", "[1]", "[1,2]") "}", 2, ERR_PARSE, "'w': 1 bytes before"},
    {"{\"w\":" T("U8", "[1]", "[0,1]") ",\"v\":" T("U8", "[1]", "[2,3]") "}", 3, ERR_PARSE,
     "'v': 1 bytes before"},
    {"{\"w\":" T("U8", "[2]", "[0,2]") ",\"v\":" T("U8", "[2]", "[1,3]") "}", 3, ERR_PARSE,
     "'v': its data overlaps that of 'w'"},
    {"{\"w\":" T("U8", "[2]", "[0,2]") ",\"v\":" T("U8", "[2]", "[0,2]") "}", 2, ERR_PARSE,
     "overlaps"},
    {"{\"w\":" T("U8", "[2]", "[0,2]") ",\"v\":" T("U8", "[0]", "[1,1]") "}", 2, ERR_PARSE,
     "'v': its data overlaps that of 'w'"},
    {"{\"w\":" T("U8", "[1]", "[0,1]") "}", 2, ERR_PARSE, "1 bytes at the file's end"},
    {"{}", 1, ERR_PARSE, "1 bytes at the file's end"},
};

static void test_malformed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e;
        size_t n;
        char *p = make(bad[i].header, bad[i].data, &n);
        int rc = try_bytes(p, n, &e);
        if (rc != bad[i].rc || !strstr(e.text, bad[i].text))
            fail_msg("%s: %d %s", bad[i].header, rc, e.text);
        free(p);
    }
}

/* The length field: one less, one more, beyond the file, beyond the limit. */
static void test_length(void **state)
{
    (void)state;
    struct err e;
    size_t n;
    char *p = make("{}", 0, &n);
    const struct {
        uint64_t len;
        int rc;
    } lens[] = {{0, ERR_PARSE},
                {1, ERR_PARSE},
                {3, ERR_PARSE},
                {100000000, ERR_PARSE},
                {100000001, ERR_LIMIT},
                {UINT64_MAX, ERR_LIMIT},
                {(uint64_t)1 << 63, ERR_LIMIT}};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        memcpy(p, &lens[i].len, 8);
        assert_int_equal(try_bytes(p, n, &e), lens[i].rc);
    }
    free(p);
}

/* Cut at each byte and extended by one: only the whole file is accepted. */
static void test_truncated(void **state)
{
    (void)state;
    struct err e;
    size_t n;
    char *p = make(good, GOOD_DATA, &n);
    for (size_t k = 1; k < n; k++)
        assert_int_equal(try_bytes(p, k, &e), ERR_PARSE);
    assert_int_equal(try_bytes(p, n, &e), 0);
    put_file(p, 0);
    struct safetensors *s = NULL;
    assert_int_equal(safetensors_open(&s, mem_path, &e), ERR_PARSE);
    free(p);
}

/* Every byte of length and header with every bit flipped, then damage in several places. */
static void test_flips(void **state)
{
    (void)state;
    struct err e;
    size_t n, ok = 0;
    char *p = make(good, GOOD_DATA, &n);
    for (size_t i = 0; i < n - GOOD_DATA; i++)
        for (int bit = 0; bit < 8; bit++) {
            p[i] = (char)(p[i] ^ 1 << bit);
            ok += try_bytes(p, n, &e) == 0;
            p[i] = (char)(p[i] ^ 1 << bit);
        }
    assert_true(ok > 10 && ok < (n - GOOD_DATA) * 4); /* names may change, structure may not */
    uint64_t r = 1;
    char *q = malloc(n);
    for (int round = 0; round < 3000; round++) {
        memcpy(q, p, n);
        for (int k = 0; k < 3; k++) {
            r = hash_u64(r);
            q[r % (n - GOOD_DATA)] = (char)(r >> 32);
        }
        try_bytes(q, n, &e);
    }
    free(q);
    free(p);
}

static void *counted(size_t n)
{
    return mem_alloc(n);
}

/* Each allocation fails in turn, the JSON reader's too. That reader words a failed string as a bad token, so its
 * share may come back as ERR_PARSE. */
static void test_nomem(void **state)
{
    (void)state;
    struct err e;
    size_t n;
    long k = 1;
    int nomem = 0;
    char *p = make(good, GOOD_DATA, &n);
    json_set_alloc_funcs(counted, free);
    for (int rc = -1; rc; k++) {
        mem_fail_after(k, false);
        rc = try_bytes(p, n, &e);
        mem_fail_after(0, false);
        assert_true(rc == 0 || rc == ERR_NOMEM || rc == ERR_PARSE);
        nomem += rc == ERR_NOMEM;
        assert_true(k < 1000);
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(k > 20 && nomem > 2);
    free(p);
}

static void test_paths(void **state)
{
    (void)state;
    struct err e = {0};
    struct safetensors *s = NULL;
    char dir[] = "/tmp/stepd-st-XXXXXX", fifo[64];
    assert_non_null(mkdtemp(dir));
    snprintf(fifo, sizeof fifo, "%s/x.safetensors", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(safetensors_open(&s, fifo, &e), ERR_INVAL);
    assert_int_equal(safetensors_open(&s, dir, &e), ERR_INVAL);
    assert_int_equal(safetensors_open(&s, "/dev/null", &e), ERR_INVAL);
    assert_int_equal(safetensors_open(&s, "/nonexistent/x", &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "/nonexistent/x: cannot open"));
    assert_int_equal(model_file_gguf(fifo, &e), 0);
    assert_int_equal(model_file_gguf("/nonexistent/x", &e), 0);
    unlink(fifo);
    rmdir(dir);
}

/* By content whatever the name, by name when the content says nothing. */
static void test_kind(void **state)
{
    (void)state;
    struct err e = {0};
    size_t n;
    char path[] = "/tmp/stepd-st-XXXXXX.safetensors";
    char *p = make("{\"w\":" T("U8", "[1]", "[0,1]") "}", 1, &n);
    put_file(p, n);
    assert_int_equal(model_file_gguf(mem_path, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "give its folder or a GGUF file"));
    put_file(p, n - 1);
    assert_int_equal(model_file_gguf(mem_path, &e), ERR_PARSE);
    assert_non_null(strstr(e.text, "'w'"));
    put_file("GGUF....{", 9);
    assert_int_equal(model_file_gguf(mem_path, &e), 0);
    put_file("hello world", 11);
    assert_int_equal(model_file_gguf(mem_path, NULL), 0);
    int fd = mkstemps(path, 12);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "hello world", 11), 11);
    assert_int_equal(model_file_gguf(path, &e), ERR_LIMIT);
    assert_int_equal(pwrite(fd, "GGUF", 4, 0), 4);
    assert_int_equal(model_file_gguf(path, &e), 0);
    close(fd);
    unlink(path);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),   cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_length), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_flips),  cmocka_unit_test(test_nomem),
        cmocka_unit_test(test_paths),  cmocka_unit_test(test_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
