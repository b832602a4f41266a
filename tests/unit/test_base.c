/* engine/base: errors, buffers, arenas, hashing, fault injection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/arena.h"
#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

static void test_err(void **st)
{
    (void)st;
    struct err e;
    assert_int_equal(err_set(&e, ERR_IO, "file %s", "a.gguf"), ERR_IO);
    assert_string_equal(e.text, "file a.gguf");
    assert_int_equal(err_prefix(&e, "load"), ERR_IO);
    assert_string_equal(e.text, "load: file a.gguf");
    assert_string_equal(err_name(ERR_CONTEXT), "context");
    assert_string_equal(err_name(ERR_INTERNAL), "internal");
    assert_int_equal(err_set(NULL, ERR_PARSE, "x"), ERR_PARSE);
    /* Cut inside a character: the part is dropped. */
    char big[400] = "";
    memset(big, 'a', 238);
    memcpy(big + 238, "\xC3\xA9", 3);
    err_set(&e, ERR_PARSE, "%s", big);
    assert_int_equal(strlen(e.text), 238);
}

static void test_buf(void **st)
{
    (void)st;
    struct buf b = {0};
    buf_fmt(&b, "%d-%s", 7, "x");
    buf_json(&b, "a\"\\\n\x01\xff\xC3\xA9", 8);
    assert_string_equal(buf_cstr(&b), "7-x\"a\\\"\\\\\\n\\u0001\xEF\xBF\xBD\xC3\xA9\"");
    buf_drop(&b, 3);
    assert_true(b.p[0] == '"');
    buf_free(&b);
    b.limit = 4;
    buf_str(&b, "abcd");
    assert_false(b.failed);
    buf_char(&b, 'e');
    assert_true(b.failed);
    assert_int_equal(b.len, 4);
    buf_free(&b);
}

static void test_utf8(void **st)
{
    (void)st;
    assert_true(utf8_valid("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 10));
    assert_false(utf8_valid("\xED\xA0\x80", 3)); /* surrogate */
    assert_false(utf8_valid("\xC0\x80", 2));     /* overlong */
    assert_false(utf8_valid("\xF4\x90\x80\x80", 4));
    assert_int_equal(utf8_len("\xE2\x82", 2), -1);
    assert_int_equal(utf8_len("\xE2\x28", 2), 0);
}

static void test_arena(void **st)
{
    (void)st;
    struct arena a = {0};
    for (size_t i = 1; i < 3000; i++) {
        char *p = arena_alloc(&a, i);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_int_equal(p[i - 1], 0);
        memset(p, 1, i);
    }
    arena_reset(&a);
    assert_string_equal(arena_fmt(&a, "%d", 42), "42");
    assert_null(arena_alloc(&a, SIZE_MAX));
    arena_free(&a);
    a.limit = 100;
    assert_non_null(arena_alloc(&a, 96));
    assert_null(arena_alloc(&a, 16));
    arena_free(&a);
}

static void test_hash(void **st)
{
    (void)st;
    /* Vector of the SipHash paper, appendix A. */
    struct hash_key k = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    unsigned char in[15];
    for (int i = 0; i < 15; i++)
        in[i] = (unsigned char)i;
    assert_true(hash_bytes(k, in, 15) == 0xa129ca6149be45e5u);
}

static void test_fail(void **st)
{
    (void)st;
    mem_fail_after(2, false);
    void *a = mem_alloc(1), *b = mem_alloc(1), *c = mem_alloc(1);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    free(a);
    free(c);
    mem_fail_after(1, true);
    assert_null(mem_alloc(1));
    assert_null(mem_alloc(1));
    mem_fail_after(0, false);
    size_t r = 5;
    assert_false(ck_mul(SIZE_MAX / 2, 3, &r));
    assert_int_equal(r, 5);
}

/* A short slice where the kernel has such; policy and niceness stay. */
static void test_latency(void **state)
{
    (void)state;
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } before = {0}, after = {0};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &before, sizeof before, 0), 0);
    thread_prefer_latency();
    assert_int_equal(syscall(SYS_sched_getattr, 0, &after, sizeof after, 0), 0);
    assert_int_equal(after.policy, before.policy);
    assert_int_equal(after.nice, before.nice);
    if (before.runtime && before.policy == 0) /* 0: a kernel without slices to choose */
        assert_int_equal(after.runtime, 100000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err),     cmocka_unit_test(test_buf),  cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_arena),   cmocka_unit_test(test_hash), cmocka_unit_test(test_fail),
        cmocka_unit_test(test_latency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
