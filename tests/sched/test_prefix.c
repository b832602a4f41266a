/* sched/prefix: chains, salts, forced equal hashes, eviction, and a trace of real traffic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "sched/prefix.h"

#define LEN 4

static struct block_pool *pool;
static struct prefix *x;

static void open_index(int32_t n_block, uint64_t hash_mask)
{
    struct prefix_opts o = {
        .block_len = LEN, .layout_id = 1, .key = hash_key_random(), .hash_mask = hash_mask};
    assert_int_equal(block_pool_open(&pool, n_block, NULL, NULL, NULL), 0);
    assert_int_equal(prefix_open(&x, pool, &o, NULL), 0);
}

static void close_index(void)
{
    struct err e = {0};
    prefix_check(x, &e);
    block_pool_check(pool, &e);
    assert_string_equal(e.text, "");
    prefix_close(x);
    block_pool_close(pool);
}

/* Compute and index a whole chain, then let it go; id[] gets its blocks. Reuses what is there, as
 * the scheduler does. Returns how many blocks were hits, -1 when the pool is too small. */
static int32_t use(uint64_t salt, const int32_t *tok, int32_t n, block_id *id)
{
    struct block_ref ref[512] = {{0}};
    int32_t hit = prefix_match(x, salt, tok, n, id), got = 0;
    for (; got < hit; got++)
        ref[got] = block_take(pool, id[got]);
    for (; got < n && !block_take_new(pool, &ref[got]); got++) {
        block_id b = prefix_insert(x, got ? ref[got - 1].id : 0, ref[got].id, salt,
                                   tok + (ptrdiff_t)got * LEN);
        assert_int_equal(b, ref[got].id);
        id[got] = b;
    }
    for (int32_t i = got; i-- > 0;)
        block_drop(pool, &ref[i]);
    return got == n ? hit : -1;
}

static void test_chain(void **st)
{
    (void)st;
    int32_t a[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, b[12];
    block_id id[3], other[3];
    open_index(20, 0);
    assert_int_equal(use(0, a, 3, id), 0);
    assert_int_equal(use(0, a, 3, other), 3);
    assert_memory_equal(id, other, sizeof id);
    assert_int_equal(prefix_match(x, 0, a, 2, other), 2); /* no more than asked for */
    assert_int_equal(prefix_match(x, 7, a, 3, other), 0); /* another salt */
    memcpy(b, a, sizeof b);
    b[5] = 99;
    assert_int_equal(use(0, b, 3, other),
                     1); /* same first block; the third is not the same third */
    assert_int_equal(other[0], id[0]);
    assert_true(other[2] != id[2]);
    assert_int_equal(prefix_match(x, 0, a + 4, 2, other), 0); /* the middle is no beginning */
    assert_int_equal(block_pool_cached(pool), 5);
    close_index();
}

static void test_equal_hashes(void **st)
{
    (void)st;
    /* With one bit of hash nearly everything collides; the comparison keeps them apart. */
    block_id id[8], again[8];
    int32_t same[32] = {0}; /* equal tokens, different parents */
    open_index(200, 1);
    assert_int_equal(use(0, same, 8, id), 0);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(id[i], id[j]);
    assert_int_equal(prefix_match(x, 0, same, 8, again), 8);
    assert_memory_equal(id, again, sizeof id);
    for (int32_t t = 1; t < 20; t++) {
        int32_t tok[4] = {t, 0, 0, 0};
        assert_int_equal(use(0, tok, 1, id), 0);
        assert_int_equal(prefix_match(x, 1, tok, 1, again), 0);
        assert_int_equal(use((uint64_t)t + 5, tok, 1, again), 0);
        assert_int_not_equal(id[0], again[0]);
    }
    close_index();
}

static void test_duplicate(void **st)
{
    (void)st;
    int32_t a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct block_ref p, q, r;
    open_index(10, 0);
    block_take_new(pool, &p);
    block_take_new(pool, &q);
    block_take_new(pool, &r);
    assert_int_equal(prefix_insert(x, 0, p.id, 0, a), p.id);
    assert_int_equal(prefix_insert(x, 0, q.id, 0, a), p.id); /* computed twice: the first stands */
    assert_false(block_indexed(pool, q.id));
    assert_int_equal(prefix_insert(x, q.id, r.id, 0, a + 4), 0); /* no link to hang it on */
    assert_int_equal(prefix_insert(x, p.id, r.id, 0, a + 4), r.id);
    block_drop(pool, &p);
    block_drop(pool, &q);
    block_drop(pool, &r);
    close_index();
}

static void test_evicted_parent(void **st)
{
    (void)st;
    int32_t a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8] = {9, 9, 9, 9, 5, 6, 7, 8};
    block_id id[2], out[2];
    struct block_ref p;
    open_index(4, 0);
    assert_int_equal(use(0, a, 2, id), 0);
    /* The parent's block gets other content at the same place in the chain: the child, whose tokens
     * fit, must not be found behind it. */
    struct block_ref child = block_take(pool, id[1]), spare;
    assert_int_equal(block_take_new(pool, &spare), 0);
    assert_int_equal(block_take_new(pool, &p), 0);
    assert_int_equal(p.id, id[0]); /* evicted */
    assert_int_equal(prefix_insert(x, 0, p.id, 0, b), p.id);
    assert_int_equal(prefix_match(x, 0, b, 2, out), 1);
    assert_int_equal(prefix_match(x, 0, a, 2, out), 0);
    block_drop(pool, &p);
    block_drop(pool, &spare);
    block_drop(pool, &child);
    close_index();
}

static void test_eviction(void **st)
{
    (void)st;
    int32_t tok[5 * LEN];
    block_id id[5], out[5];
    open_index(11, 0); /* two chains of five */
    for (int32_t c = 0; c < 3; c++) {
        for (int i = 0; i < 5 * LEN; i++)
            tok[i] = c;
        assert_int_equal(use(0, tok, 5, id), 0);
    }
    /* The third took the place of the first; the second is whole. */
    for (int32_t c = 0; c < 3; c++) {
        for (int i = 0; i < 5 * LEN; i++)
            tok[i] = c;
        assert_int_equal(prefix_match(x, 0, tok, 5, out), c ? 5 : 0);
    }
    assert_int_equal(block_pool_cached(pool), 10);
    /* Half of it goes: ends are evicted before beginnings. */
    struct block_ref r[2];
    block_take_new(pool, &r[0]);
    block_take_new(pool, &r[1]);
    for (int i = 0; i < 5 * LEN; i++)
        tok[i] = 1;
    assert_int_equal(prefix_match(x, 0, tok, 5, out), 3);
    block_drop(pool, &r[0]);
    block_drop(pool, &r[1]);
    close_index();
}

/* A line of tests/data/sched/mooncake.txt: the ids of a conversation's 512-token pieces. Each id stands for
 * one block here. With an unbounded pool the hits must equal what a plain set of chains says. */
static int32_t read_line(FILE *f, int32_t *tok)
{
    char line[4096];
    if (!fgets(line, sizeof line, f))
        return -1;
    int32_t n = 0;
    char *at = line, *end;
    for (long v = strtol(at, &end, 10); end != at; v = strtol(at, &end, 10), n++, at = end)
        for (int i = 0; i < LEN; i++)
            tok[n * LEN + i] = (int32_t)v;
    return n;
}

static void test_trace(void **st)
{
    (void)st;
    static int32_t tok[512 * LEN], seen[1 << 16];
    block_id id[512];
    FILE *f = fopen("tests/data/sched/mooncake.txt", "r");
    assert_non_null(f);
    open_index(20000, 0);
    int32_t n, lines = 0;
    int64_t hits = 0, blocks = 0;
    memset(seen, 0, sizeof seen);
    while ((n = read_line(f, tok)) >= 0) {
        int32_t want = 0; /* in this trace an id names the piece and all before it */
        while (want < n && seen[tok[want * LEN]])
            want++;
        assert_int_equal(use(0, tok, n, id), want);
        for (int32_t i = 0; i < n; i++)
            seen[tok[i * LEN]] = 1;
        hits += want;
        blocks += n;
        lines++;
    }
    (void)fclose(f);
    assert_int_equal(lines, 300);
    assert_true(hits > 0 && hits < blocks);
    print_message("%d conversations, %lld of %lld blocks found\n", lines, (long long)hits,
                  (long long)blocks);
    close_index();
}

static void test_no_memory(void **st)
{
    (void)st;
    struct prefix *none = NULL;
    struct prefix_opts o = {.block_len = LEN};
    struct err e;
    assert_int_equal(block_pool_open(&pool, 8, NULL, NULL, NULL), 0);
    for (long k = 1; k <= 5; k++) {
        mem_fail_after(k, false);
        assert_int_equal(prefix_open(&none, pool, &o, &e), ERR_NOMEM);
        mem_fail_after(0, false);
        assert_null(none);
    }
    block_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),     cmocka_unit_test(test_equal_hashes),
        cmocka_unit_test(test_duplicate), cmocka_unit_test(test_evicted_parent),
        cmocka_unit_test(test_eviction),  cmocka_unit_test(test_trace),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
