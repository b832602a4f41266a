/* Look-ahead: a step is planned and begun while the one before runs. What it may not change, when it waits, what
 * becomes of rows whose sequence has ended meanwhile, failures with a step in flight. */
#include "tests/sched/rig.h"

static void open_ahead(int32_t n_block, bool ahead)
{
    fake_reset(n_block);
    fake.info.lookahead = ahead;
    rig_open((struct sched_opts){0});
}

static struct sched_stats stats(void)
{
    struct sched_stats s;
    sched_stats_get(rig.s, &s);
    return s;
}

static void all_given_back(void)
{
    assert_true(sched_idle(rig.s));
    assert_int_equal(rig.s->n_open, 0);
    assert_int_equal(block_pool_free(rig.s->pool), block_pool_total(rig.s->pool));
}

/* Answers that end by length: the same events and rows, one step's lead, no idle device. */
static void test_steady(void **st)
{
    (void)st;
    int32_t tok[2][4][20];
    uint64_t rows[2], steps[2];
    int64_t took[2];
    for (int ahead = 0; ahead < 2; ahead++) {
        open_ahead(60, ahead);
        uint64_t id[4];
        for (int i = 0; i < 4; i++)
            id[i] = rig_submit(i, 10 + i, 20);
        int64_t from = fake_now_us;
        while (!sched_idle(rig.s)) {
            rig_step();
            fake_now_us += 50; /* the host's share */
        }
        took[ahead] = fake_now_us - from;
        rows[ahead] = fake_count.rows;
        steps[ahead] = fake_count.steps;
        for (int i = 0; i < 4; i++) {
            assert_int_equal(rig_count(id[i], EV_TOKEN), 20);
            for (int k = 0; k < 20; k++)
                tok[ahead][i][k] = rig_find(id[i], EV_TOKEN, k, NULL)->tok.token;
        }
        struct sched_stats s = stats();
        assert_int_equal(s.steps, steps[ahead]);
        assert_int_equal(s.steps_ahead, ahead ? steps[1] - 1 : 0);
        assert_int_equal(s.gap_us_total, ahead ? 0 : 50 * (int64_t)(steps[0] - 1));
        assert_int_equal(fake_count.refs, ahead ? 4 * 19 : 0);
        assert_int_equal(s.step_us_total, took[ahead] - 50 - s.gap_us_total);
        all_given_back();
        rig_close();
    }
    assert_memory_equal(tok[0], tok[1], sizeof tok[0]);
    assert_int_equal(rows[0], rows[1]);
    assert_int_equal(steps[0], steps[1]);
    assert_int_equal(took[0] - took[1], 50 * (int64_t)(steps[0] - 1));
}

/* Prompt tokens count once however many chunks and steps in flight; idle time is no gap. */
static void test_counts(void **st)
{
    (void)st;
    for (int ahead = 0; ahead < 2; ahead++) {
        open_ahead(60, ahead);
        rig_submit(1, 150, 20); /* three chunks */
        rig_step();
        rig_submit(2, 100, 20);
        rig_run(100);
        struct sched_stats s = stats();
        assert_int_equal(s.prompt_tokens, 250);
        assert_int_equal(s.generated_tokens, 40);
        assert_int_equal(s.gap_us_total, 0); /* the fake host takes no time */
        fake_now_us += 1000000;
        rig_submit(3, 10, 5);
        rig_run(100);
        assert_int_equal(stats().gap_us_total, 0);
        rig_close();
    }
}

/* A stop token shows one step late: the row behind it is computed for nobody. */
static void test_stop(void **st)
{
    (void)st;
    open_ahead(60, true);
    uint64_t free_run = rig_submit(1, 10, 20);
    rig_run(50);
    int32_t sixth = rig_find(free_run, EV_TOKEN, 5, NULL)->tok.token;
    uint64_t rows = fake_count.rows, hits = stats().prefix_hits;
    struct request *r = rig_request(1, 10, 20);
    uint64_t id = r->id;
    r->stop_id[0] = sixth;
    r->n_stop_id = 1;
    sched_submit(rig.s, r);
    rig_run(50);
    const struct event *f = rig_find(id, EV_FINISH, 0, NULL);
    assert_int_equal(f->finish, FINISH_STOP);
    assert_int_equal(f->stop_token, sixth);
    assert_int_equal(rig_count(id, EV_TOKEN), 5);
    assert_int_equal(rig_find(id, EV_DONE, 0, NULL)->n_output, 5);
    assert_int_equal(stats().prefix_hits, hits);
    assert_int_equal(fake_count.rows - rows, 10 + 5 + 1);
    all_given_back();
    rig_close();
}

/* After a cancel, a deadline or the end of a choice the step in flight is the last one with its rows. */
static void test_ended_from_outside(void **st)
{
    (void)st;
    for (int how = 0; how < 3; how++) {
        open_ahead(60, true);
        struct request *r = rig_request(1, 10, 50);
        uint64_t a = r->id, b;
        r->deadline_us = how == 1 ? fake_now_us + 5000 : 0;
        sched_submit(rig.s, r);
        b = rig_submit(2, 10, 50);
        for (int i = 0; i < 5; i++)
            rig_step();
        assert_int_equal(rig.s->n_open, 1);
        int n_tok = rig_count(a, EV_TOKEN);
        uint64_t rows = fake_count.rows;
        if (how == 0)
            sched_cancel(rig.s, a);
        else if (how == 1)
            fake_now_us += 10000;
        else
            sched_finish_choice(rig.s, a, 0, 2);
        rig_step();
        rig_step();
        assert_int_equal(fake_count.rows - rows, 2); /* b's alone */
        assert_int_equal(rig_count(a, EV_TOKEN), n_tok);
        assert_int_equal(rig_count(a, how == 1 ? EV_ERROR : EV_DONE), 1);
        rig_run(100);
        assert_int_equal(rig_count(b, EV_TOKEN), 50);
        all_given_back();
        rig_close();
    }
}

/* Everybody goes while a step is in flight, and what comes next takes the blocks that it still uses. */
static void test_blocks_in_flight(void **st)
{
    (void)st;
    open_ahead(5, true); /* room for one */
    uint64_t a = rig_submit(1, 40, 20), b;
    for (int i = 0; i < 4; i++)
        rig_step();
    assert_int_equal(rig.s->n_open, 1);
    sched_cancel(rig.s, a);
    assert_true(sched_idle(rig.s));
    assert_int_equal(block_pool_free(rig.s->pool), 4);
    b = rig_submit(2, 60, 4);
    rig_run(50);
    assert_int_equal(rig_count(b, EV_TOKEN), 4);
    all_given_back();
    a = rig_submit(1, 40, 20);
    for (int i = 0; i < 4; i++)
        rig_step();
    sched_cancel(rig.s, a);
    assert_int_equal(rig_step(), 1); /* idle, but the step is waited for */
    all_given_back();
    assert_int_equal(rig_step(), 0);
    rig_submit(1, 40, 20);
    rig_step();
    rig_close(); /* with a step in flight */
    assert_int_equal(fake_count.opens, fake_count.closes);
}

/* Penalties count the token that is not known yet: then every step waits, for all, and none is left out. */
static void test_penalty_waits(void **st)
{
    (void)st;
    open_ahead(60, true);
    rig_submit(1, 10, 30);
    rig_step();
    rig_step();
    assert_int_equal(rig.s->n_open, 1);
    struct request *r = rig_request(2, 10, 8);
    uint64_t id = r->id, before;
    r->samp.frequency_penalty = 0.5f;
    sched_submit(rig.s, r);
    rig_step(); /* its prompt goes ahead: the token before it is no secret */
    before = stats().steps_ahead;
    for (int i = 0; i < 8; i++) {
        rig_step();
        assert_int_equal(rig_count(id, EV_TOKEN), i + 1); /* in each step */
    }
    assert_true(stats().steps_ahead <= before + 1); /* the last one: nothing comes behind it */
    assert_int_equal(rig_count(id, EV_DONE), 1);
    before = stats().steps_ahead;
    rig_step();
    rig_step();
    assert_true(stats().steps_ahead >= before + 2);
    rig_run(100);
    all_given_back();
    rig_close();
}

/* A block that is written is never indexed before the step is over (sched_check), yet found afterwards. */
static void test_prefix(void **st)
{
    (void)st;
    open_ahead(60, true);
    uint64_t a = rig_submit(1, 48, 40), b;
    rig_run(100);
    assert_int_equal(rig_count(a, EV_TOKEN), 40);
    struct request *r = rig_request(1, 100, 5);
    for (int i = 0; i < 40; i++)
        r->prompt[48 + i] = rig_find(a, EV_TOKEN, i, NULL)->tok.token;
    b = r->id;
    sched_submit(rig.s, r);
    rig_run(100);
    assert_int_equal(rig_find(b, EV_DONE, 0, NULL)->n_cached, 80);
    rig_close();
}

/* Forks wait for the prompt to be there; the same tokens as without look-ahead, copies included. */
static void test_fork(void **st)
{
    (void)st;
    int32_t tok[2][4] = {{0}};
    for (int ahead = 0; ahead < 2; ahead++) {
        open_ahead(60, ahead);
        struct request *r = rig_request(1, 56, 12);
        uint64_t id = r->id;
        r->n = 4;
        sched_submit(rig.s, r);
        rig_run(60);
        assert_int_equal(rig_find(id, EV_DONE, 0, NULL)->n_output, 48);
        assert_int_equal(fake_count.rows, 56 + 3 + 4 * 11);
        assert_true(fake_count.copies >= 3 && fake_count.copies <= 4);
        for (int i = 0; i < rig.n_ev; i++)
            if (rig.ev[i].kind == EV_TOKEN && rig.ev[i].index == 11)
                tok[ahead][rig.ev[i].choice] = rig.ev[i].tok.token;
        rig_close();
    }
    assert_memory_equal(tok[0], tok[1], sizeof tok[0]);
}

/* Too few blocks: look-ahead pauses, the older sequence goes on, both end. */
static void test_pressure(void **st)
{
    (void)st;
    open_ahead(8, true);
    uint64_t a = rig_submit(1, 30, 60), b = rig_submit(2, 30, 60);
    rig_run(400);
    assert_int_equal(rig_count(a, EV_TOKEN), 60);
    assert_int_equal(rig_count(b, EV_TOKEN), 60);
    assert_true(stats().preemptions > 0 && stats().steps_ahead > 0);
    assert_true(rig_place(a, EV_DONE) < rig_place(b, EV_DONE));
    all_given_back();
    rig_close();
}

/* A device that fails to begin or to end step k: one error for each, nothing is held, the next call says it too. */
static void test_failures(void **st)
{
    (void)st;
    for (uint64_t k = 1; k <= 8; k++)
        for (int at_end = 0; at_end < 2; at_end++) {
            fake_reset(60);
            fake.info.lookahead = true;
            *(at_end ? &fake.fail_end : &fake.fail_step) = k;
            rig_open((struct sched_opts){.max_running = 2});
            uint64_t id[4];
            for (int i = 0; i < 4; i++)
                id[i] = rig_submit(i, 20, 50);
            int rc = 1;
            for (uint64_t i = 0; i < k + 1 && rc > 0; i++)
                rc = rig_step();
            assert_int_equal(rc, ERR_DEVICE);
            assert_int_equal(fake_count.ends, at_end ? k : k - 1 - (k > 1));
            for (int i = 0; i < 4; i++) {
                assert_int_equal(rig_count(id[i], EV_ERROR), 1);
                assert_int_equal(rig_find(id[i], EV_ERROR, 0, NULL)->err.code, ERR_DEVICE);
            }
            all_given_back();
            id[0] = rig_submit(1, 20, 50);
            assert_int_equal(rig_step(), ERR_DEVICE);
            assert_int_equal(rig_count(id[0], EV_ERROR), 1);
            rig_close();
        }
}

/* A drain that is over ends requests between two calls. */
static void test_fail_all(void **st)
{
    (void)st;
    open_ahead(60, true);
    uint64_t a = rig_submit(1, 20, 50);
    for (int i = 0; i < 5; i++)
        rig_step();
    assert_int_equal(rig.s->n_open, 1);
    sched_fail_all(rig.s, ERR_DRAINING, "over");
    assert_int_equal(rig_count(a, EV_ERROR), 1);
    assert_true(sched_idle(rig.s));
    assert_int_equal(block_pool_free(rig.s->pool), block_pool_total(rig.s->pool));
    rig_close();
    assert_int_equal(fake_count.opens, fake_count.closes);
}

static void test_no_allocation(void **st)
{
    (void)st;
    fake_reset(700);
    fake.info.n_ctx = 2000;
    fake.info.lookahead = true;
    rig_open((struct sched_opts){0});
    for (int i = 0; i < 8; i++)
        rig_submit(i, 30, 1200);
    for (int i = 0; i < 10; i++)
        sched_step(rig.s, NULL);
    uint64_t before = mem_count(), ahead = stats().steps_ahead;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(sched_step(rig.s, NULL), 1);
    assert_int_equal(mem_count() - before, 0);
    assert_int_equal(stats().steps_ahead - ahead, 1000);
    rig_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_ended_from_outside),
        cmocka_unit_test(test_blocks_in_flight),
        cmocka_unit_test(test_penalty_waits),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_pressure),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_fail_all),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
