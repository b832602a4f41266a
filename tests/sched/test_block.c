/* sched/block: holds, eviction order, counters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "sched/block.h"

static void ok(const struct block_pool *p)
{
    struct err e = {0};
    int rc = block_pool_check(p, &e);
    if (rc)
        print_error("%s\n", e.text);
    assert_int_equal(rc, 0);
}

static void test_take_drop(void **st)
{
    (void)st;
    struct block_pool *p;
    struct block_ref a, b, c, d;
    assert_int_equal(block_pool_open(&p, 4, NULL, NULL, NULL), 0);
    assert_int_equal(block_pool_total(p), 3);
    assert_int_equal(block_take_new(p, &a), 0);
    assert_int_equal(block_take_new(p, &b), 0);
    assert_int_equal(block_take_new(p, &c), 0);
    assert_true(a.id > 0 && b.id > 0 && c.id > 0 && a.id != b.id && b.id != c.id && a.id != c.id);
    assert_int_equal(block_take_new(p, &d), ERR_FULL);
    assert_int_equal(d.id, 0);
    d = block_take(p, a.id);
    assert_int_equal(block_refs(p, a.id), 2);
    block_id id = a.id;
    block_drop(p, &a);
    assert_int_equal(a.id, 0);
    assert_int_equal(block_pool_free(p), 0);
    block_drop(p, &a); /* holds nothing: no effect */
    block_drop(p, &d);
    assert_int_equal(block_pool_free(p), 1);
    assert_int_equal(block_refs(p, id), 0);
    ok(p);
    block_pool_close(p);
    block_pool_close(NULL);
}

static block_id evicted[8];
static int n_evicted;
static void on_evict(void *arg, block_id id)
{
    (void)arg;
    evicted[n_evicted++] = id;
}

static void test_eviction_order(void **st)
{
    (void)st;
    struct block_pool *p;
    struct block_ref r[5], x;
    block_id id[5];
    n_evicted = 0;
    assert_int_equal(block_pool_open(&p, 6, on_evict, NULL, NULL), 0);
    for (int i = 0; i < 5; i++) {
        block_take_new(p, &r[i]);
        id[i] = r[i].id;
    }
    /* 3, 1, 4 hold reusable content; 0 and 2 do not. */
    block_mark_indexed(p, id[3], true);
    block_mark_indexed(p, id[1], true);
    block_mark_indexed(p, id[4], true);
    block_drop(p, &r[3]);
    block_drop(p, &r[0]);
    block_drop(p, &r[1]);
    block_drop(p, &r[4]);
    block_drop(p, &r[2]);
    assert_int_equal(block_pool_cached(p), 3);
    assert_int_equal(block_pool_free(p), 5);
    ok(p);
    /* A hit on the oldest makes it the youngest. */
    x = block_take(p, id[3]);
    assert_int_equal(block_pool_cached(p), 2);
    block_drop(p, &x);
    block_id want[5] = {id[2], id[0], id[1], id[4], id[3]};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(block_take_new(p, &r[i]), 0);
        assert_int_equal(r[i].id, want[i]);
    }
    assert_int_equal(n_evicted, 3);
    assert_int_equal(evicted[0], id[1]);
    assert_int_equal(evicted[2], id[3]);
    assert_int_equal(block_pool_cached(p), 0);
    ok(p);
    block_pool_close(p);
}

static void test_random(void **st)
{
    (void)st;
    struct block_pool *p;
    struct block_ref held[64] = {{0}};
    assert_int_equal(block_pool_open(&p, 33, NULL, NULL, NULL), 0);
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t h = hash_u64(i);
        struct block_ref *r = &held[h % 64];
        struct block_ref *o = &held[(h >> 8) % 64];
        if (r->id)
            block_drop(p, r);
        else if (o->id && (h >> 16) % 2)
            *r = block_take(p, o->id);
        else
            (void)block_take_new(p, r);
        if (r->id && (h >> 20) % 3 == 0)
            block_mark_indexed(p, r->id, (h >> 24) % 2);
        int32_t used = 0;
        for (int b = 1; b < 33; b++)
            used += block_refs(p, b) > 0;
        assert_int_equal(used + block_pool_free(p), 32);
        if (i % 64 == 0)
            ok(p);
    }
    block_pool_close(p);
}

static void test_errors(void **st)
{
    (void)st;
    struct block_pool *p = NULL;
    struct err e;
    assert_int_equal(block_pool_open(&p, 1, NULL, NULL, &e), ERR_INVAL);
    for (long k = 1; k <= 2; k++) {
        mem_fail_after(k, false);
        assert_int_equal(block_pool_open(&p, 10, NULL, NULL, &e), ERR_NOMEM);
        mem_fail_after(0, false);
        assert_null(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_drop),
        cmocka_unit_test(test_eviction_order),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
