/* Recurrent states: hits end at snapshots, a talk goes on from its answer's, forks and preemption, few slots, and what is
 * counted. The fake engine compares every state that a step reads with the tokens before it. */
#include "tests/sched/rig.h"

static const struct event *done(uint64_t id)
{
    const struct event *ev = rig_find(id, EV_DONE, 0, NULL);
    assert_non_null(ev);
    return ev;
}

static void open_with(int32_t n_block, int32_t n_state, bool lookahead)
{
    fake_reset(n_block);
    fake.info.n_state = n_state;
    fake.info.lookahead = lookahead;
    rig_open((struct sched_opts){0});
}

static struct sched_stats stats(void)
{
    struct sched_stats s;
    sched_stats_get(rig.s, &s);
    return s;
}

static void same_answer(uint64_t a, uint64_t b, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(rig_find(a, EV_TOKEN, i, NULL)->tok.token,
                         rig_find(b, EV_TOKEN, i, NULL)->tok.token);
}

static void reuse(bool lookahead)
{
    open_with(60, 12, lookahead);
    uint64_t a = rig_submit(1, 60, 40), b, c;
    rig_run(100);
    assert_int_equal(done(a)->n_cached, 0);
    uint64_t rows = fake_count.rows;
    b = rig_submit(1, 60, 40); /* three full blocks, the last one has a snapshot */
    rig_run(100);
    assert_int_equal(done(b)->n_cached, 48);
    assert_int_equal(fake_count.rows - rows, 60 - 48 + 39);
    same_answer(a, b, 40);
    /* The next turn of the talk: 99 tokens were computed, the answer's last full block ends at 96. */
    struct request *r = rig_request(1, 110, 5);
    for (int i = 0; i < 40; i++)
        r->prompt[60 + i] = rig_find(a, EV_TOKEN, i, NULL)->tok.token;
    c = r->id;
    sched_submit(rig.s, r);
    rig_run(100);
    assert_int_equal(done(c)->n_cached, 96);
    /* A prompt that shares two blocks finds their KV, but no state behind them. */
    r = rig_request(1, 60, 5);
    for (int i = 33; i < 60; i++)
        r->prompt[i] = 49;
    c = r->id;
    sched_submit(rig.s, r);
    rig_run(100);
    assert_int_equal(done(c)->n_cached, 0);
    struct sched_stats s = stats();
    assert_int_equal(s.states_total, 12);
    assert_true(s.states_cached >= 3 && s.states_cached <= 6);
    rig_close();
}

static void test_reuse(void **st)
{
    (void)st;
    reuse(false);
}

static void test_reuse_ahead(void **st)
{
    (void)st;
    reuse(true);
}

/* An answer keeps one snapshot of its own, not one a block. */
static void test_rolling(void **st)
{
    (void)st;
    open_with(60, 40, false);
    rig_submit(1, 20, 200);
    rig_run(300);
    assert_int_equal(stats().states_cached, 2); /* the prompt's block, and the answer's last */
    rig_close();
}

/* Every STATE_EVERY-th block of a long prompt. */
static void test_every(void **st)
{
    (void)st;
    fake_reset(400);
    fake.info.n_state = 20;
    fake.info.block_len = 1;
    rig_open((struct sched_opts){0});
    uint64_t a = rig_submit(1, 130, 1), b;
    rig_run(100);
    assert_int_equal(done(a)->n_cached, 0);
    struct request *r = rig_request(1, 130, 1);
    r->prompt[100] = 49; /* 96 = 3 * 32 are alike */
    b = r->id;
    sched_submit(rig.s, r);
    rig_run(100);
    assert_int_equal(done(b)->n_cached, 96);
    rig_close();
}

static void test_fork(void **st)
{
    (void)st;
    open_with(60, 12, false);
    struct request *r = rig_request(1, 70, 20);
    uint64_t id = r->id, rows = fake_count.rows;
    r->n = 3;
    sched_submit(rig.s, r);
    rig_run(200);
    assert_int_equal(done(id)->n_output, 60);
    assert_int_equal(fake_count.rows - rows,
                     70 + 2 * (70 - 64) + 3 * 19); /* from the block at 64 */
    assert_int_equal(fake_count.copies, 0);
    rig_close();
}

/* A pool too small for all: preempted sequences come back right. */
static void test_preempt(void **st)
{
    (void)st;
    open_with(14, 9, false);
    uint64_t id[4];
    for (int i = 0; i < 4; i++)
        id[i] = rig_submit(i, 30, 60);
    rig_run(2000);
    assert_true(stats().preemptions > 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(done(id[i])->n_output, 60);
    rig_close();
}

/* One slot: one sequence at a time, and nothing is kept while it runs. */
static void test_one_slot(void **st)
{
    (void)st;
    open_with(60, 1, false);
    uint64_t a = rig_submit(1, 40, 10), b = rig_submit(2, 40, 10), c;
    rig_step();
    assert_int_equal(stats().running_seqs, 1);
    rig_run(500);
    assert_int_equal(done(a)->n_output, 10);
    assert_int_equal(done(b)->n_output, 10);
    c = rig_submit(1, 40, 10);
    rig_run(500);
    same_answer(a, c, 10);
    rig_close();
}

static void test_pool(void **st)
{
    (void)st;
    struct state_pool *p;
    struct err e = {0};
    for (long k = 1; k <= 3; k++) {
        mem_fail_after(k, false);
        assert_int_equal(state_pool_open(&p, 3, 10, &e), ERR_NOMEM);
    }
    mem_fail_after(0, false);
    assert_int_equal(state_pool_open(&p, 3, 10, &e), 0);
    int32_t a = state_take(p), b = state_take(p), c = state_take(p);
    assert_true(a >= 0 && b >= 0 && c >= 0 && state_take(p) == -1);
    state_publish(p, a, 4);
    state_publish(p, b, 5);
    state_publish(p, c, 5); /* the first one stands */
    assert_int_equal(state_find(p, 5), b);
    state_drop(p, c);
    assert_int_equal(state_take(p), c); /* it was no snapshot: free */
    state_drop(p, a);
    state_drop(p, b);
    state_hold(p, a);
    state_drop(p, a); /* used last, given up last */
    assert_int_equal(state_pool_check(p, &e), 0);
    assert_int_equal(state_take(p), b);
    assert_int_equal(state_find(p, 5), -1);
    state_forget(p, 4);
    assert_int_equal(state_find(p, 4), -1);
    assert_int_equal(state_pool_cached(p), 0);
    assert_int_equal(state_pool_check(p, &e), 0);
    state_pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reuse),    cmocka_unit_test(test_reuse_ahead),
        cmocka_unit_test(test_rolling),  cmocka_unit_test(test_every),
        cmocka_unit_test(test_fork),     cmocka_unit_test(test_preempt),
        cmocka_unit_test(test_one_slot), cmocka_unit_test(test_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
