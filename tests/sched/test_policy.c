/* Order, budgets, pressure: who runs, when, and who gives way. */
#include "tests/sched/rig.h"

static uint64_t submit_with(int text, int32_t n_prompt, int32_t max_tokens, int priority)
{
    struct request *r = rig_request(text, n_prompt, max_tokens);
    uint64_t id = r->id;
    r->priority = priority;
    sched_submit(rig.s, r);
    return id;
}

static void test_fcfs(void **st)
{
    (void)st;
    fake_reset(100);
    rig_open((struct sched_opts){.max_running = 1});
    uint64_t a = rig_submit(1, 50, 5), b = rig_submit(2, 10, 5), c = rig_submit(3, 30, 5);
    rig_run(100);
    assert_true(rig_place(a, EV_DONE) < rig_place(b, EV_TOKEN));
    assert_true(rig_place(b, EV_DONE) < rig_place(c, EV_TOKEN));
    rig_close();
}

static void test_priority(void **st)
{
    (void)st;
    fake_reset(100);
    rig_open((struct sched_opts){.max_running = 1, .policy = SCHED_PRIORITY});
    uint64_t a = submit_with(1, 10, 5, 5), b = submit_with(2, 10, 5, 1),
             c = submit_with(3, 10, 5, 1), d = submit_with(4, 10, 5, -3);
    rig_run(100);
    assert_true(rig_place(d, EV_DONE) < rig_place(b, EV_TOKEN));
    assert_true(rig_place(b, EV_DONE) < rig_place(c, EV_TOKEN));
    assert_true(rig_place(c, EV_DONE) < rig_place(a, EV_TOKEN));
    rig_close();
}

static void test_shortest(void **st)
{
    (void)st;
    fake_reset(100);
    rig_open((struct sched_opts){.max_running = 1, .policy = SCHED_SHORTEST});
    uint64_t a = rig_submit(1, 60, 5), b = rig_submit(2, 10, 5), c = rig_submit(3, 30, 5);
    rig_run(100);
    assert_true(rig_place(b, EV_DONE) < rig_place(c, EV_TOKEN));
    assert_true(rig_place(c, EV_DONE) < rig_place(a, EV_TOKEN));
    rig_close();
}

/* An endless stream of short (or important) requests must not starve a long (or unimportant) one. */
static void starve(enum sched_policy policy)
{
    fake_reset(100);
    rig_open((struct sched_opts){.max_running = 2, .policy = policy, .age_us = 20000});
    uint64_t a = submit_with(1, 200, 5, 9);
    int steps = 0;
    for (; steps < 2000 && !rig_find(a, EV_DONE, 0, NULL); steps++) {
        while (sched_live(rig.s) < 6)
            submit_with(2 + steps % 7, 8, 3, 0);
        rig_step();
    }
    assert_true(steps < 2000);
    /* ... and it did wait, so that the policy means something. */
    assert_true(rig_find(a, EV_DONE, 0, NULL)->scheduled_us > 20000);
    rig_close();
}

static void test_no_starvation(void **st)
{
    (void)st;
    starve(SCHED_SHORTEST);
    starve(SCHED_PRIORITY);
}

/* A stream gets a token in every step while long prompts come in. */
static void test_stream_not_stalled(void **st)
{
    (void)st;
    fake_reset(100);
    rig_open((struct sched_opts){0});
    uint64_t a = rig_submit(1, 5, 60);
    rig_step();
    for (int i = 0; i < 4; i++)
        rig_submit(2 + i, 200, 3);
    for (int i = 1; i < 60; i++) {
        rig_step();
        assert_int_equal(rig_count(a, EV_TOKEN), i + 1);
    }
    assert_int_equal(fake_count.max_rows, 64); /* the prompts filled what was left */
    rig_run(100);
    rig_close();
}

static void test_time_budget(void **st)
{
    (void)st;
    fake_reset(100);
    fake.info.max_rows = 256;
    fake.us_step = 0;
    fake.us_row = 100;
    rig_open((struct sched_opts){.step_us = 4000});
    rig_submit(1, 200, 40); /* alone: no stream to protect, one step */
    rig_step();
    assert_int_equal(fake_count.max_rows, 200);
    fake_count.max_rows = 0;
    rig_submit(2, 200, 3);
    int64_t from = fake_now_us;
    rig_step();
    assert_int_equal(fake_now_us - from, 4000); /* 1 + 39 rows */
    rig_run(100);
    assert_true(fake_count.max_rows <= 41);
    rig_close();
}

/* Rows beyond what fills the device: the first prompt's token does not wait for the second prompt; small prompts still go
 * together, and a long one alone takes the whole budget. */
static void test_fill(void **st)
{
    (void)st;
    for (int fill = 0; fill < 2; fill++) {
        fake_reset(400);
        fake.info.max_rows = 400;
        rig_open((struct sched_opts){.step_tokens = 300, .fill_rows = fill * 128});
        uint64_t a = rig_submit(1, 150, 3), b = rig_submit(2, 150, 3);
        rig_step();
        assert_int_equal(rig_count(a, EV_TOKEN), 1);
        assert_int_equal(rig_count(b, EV_TOKEN), !fill);
        rig_step();
        assert_int_equal(rig_count(b, EV_TOKEN), fill ? 1 : 2);
        rig_run(20);
        fake_count.max_rows = 0;
        uint64_t c = rig_submit(3, 40, 1), d = rig_submit(4, 40, 1), f = rig_submit(5, 240, 1);
        rig_step();
        assert_int_equal(rig_count(c, EV_TOKEN) + rig_count(d, EV_TOKEN), 2);
        assert_int_equal(fake_count.max_rows, 300); /* what is left goes to the long one */
        rig_step();
        assert_int_equal(rig_count(f, EV_TOKEN), 1);
        rig_run(20);
        rig_close();
    }
}

/* Requests that come together with one prefix: it is computed once, whoever shares nothing does not wait, and a request
 * that is more urgent than the one at work does not either. */
static void test_shared_at_once(void **st)
{
    (void)st;
    for (int salted = 0; salted < 2; salted++) {
        fake_reset(400);
        rig_open((struct sched_opts){.step_tokens = 64, .policy = SCHED_PRIORITY});
        uint64_t id[5];
        for (int i = 0; i < 5; i++) {
            struct request *r = rig_request(i < 4 ? 1 : 2, 200, 3);
            r->prompt[199] = i;
            r->cache_salt = salted && i ? 9 : 0;
            r->priority = i == 3 ? -1 : 0;
            id[i] = r->id;
            sched_submit(rig.s, r);
        }
        rig_run(100);
        /* 192 of 200 are whole blocks; the urgent one begins first, the others wait for it. */
        int32_t cached = 0;
        for (int i = 0; i < 5; i++) {
            const struct event *d = rig_find(id[i], EV_DONE, 0, NULL);
            assert_int_equal(d->n_output, 3);
            cached += d->n_cached;
        }
        assert_int_equal(cached, (salted ? 2 : 3) * 192);
        rig_close();
    }
}

/* A budget below the number of streams: all of them progress in turns, prompts too. */
static void test_tiny_budget(void **st)
{
    (void)st;
    fake_reset(100);
    rig_open((struct sched_opts){.step_tokens = 3});
    uint64_t id[6];
    for (int i = 0; i < 5; i++)
        id[i] = rig_submit(i, 2, 40);
    for (int i = 0; i < 20; i++)
        rig_step();
    id[5] = rig_submit(6, 30, 2);
    for (int i = 0; i < 60; i++)
        rig_step();
    assert_true(fake_count.max_rows <= 3);
    int least = 1000, most = 0;
    for (int i = 0; i < 5; i++) {
        int n = rig_count(id[i], EV_TOKEN);
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    assert_true(least > 20 && most - least <= 2);
    assert_int_equal(rig_count(id[5], EV_TOKEN) > 0, 1); /* 30 steps of one row, then tokens */
    rig_run(200);
    rig_close();
}

/* The victim is the one with the least to recompute, and never the oldest. */
static void test_victim(void **st)
{
    (void)st;
    fake_reset(9); /* 8 blocks */
    rig_open((struct sched_opts){.no_prefix_cache = true});
    uint64_t a = rig_submit(1, 16, 100), b = rig_submit(2, 48, 60), c = rig_submit(3, 16, 60);
    rig_run(1000);
    const struct event *da = rig_find(a, EV_DONE, 0, NULL), *db = rig_find(b, EV_DONE, 0, NULL),
                       *dc = rig_find(c, EV_DONE, 0, NULL);
    assert_int_equal(da->n_preempted, 0);
    assert_true(dc->n_preempted > 0);
    assert_true(db->n_preempted + dc->n_preempted <= 6); /* no thrashing */
    assert_int_equal(da->n_output + db->n_output + dc->n_output, 220);
    rig_close();
}

/* A pool for 3 of 64 requests: all finish, and roughly in the order in which they came. */
static void test_storm(void **st)
{
    (void)st;
    fake_reset(3 * 5 + 1);
    fake.info.max_seqs = 64;
    fake.info.max_logit_rows = 64;
    rig_open((struct sched_opts){0});
    uint64_t first = rig.last_id + 1;
    for (int i = 0; i < 64; i++)
        rig_submit(i, 20, 60);
    rig_run(20000);
    int worst = 0;
    for (int i = 0; i < 64; i++) {
        const struct event *d = rig_find(first + (uint64_t)i, EV_DONE, 0, NULL);
        assert_non_null(d);
        assert_int_equal(d->n_output, 60);
        int ahead = 0; /* later ones that were done before it */
        for (int j = i + 1; j < 64; j++)
            ahead += rig_place(first + (uint64_t)j, EV_DONE) < rig_place(d->req, EV_DONE);
        worst = ahead > worst ? ahead : worst;
    }
    struct sched_stats s;
    sched_stats_get(rig.s, &s);
    assert_true(worst <= 4);
    /* Recomputed work stays small beside the real work. */
    assert_true(fake_count.rows < 2 * 64 * 80);
    rig_close();
}

/* Over-commitment: long possible answers do not keep others out while they are short in fact. */
static void test_overcommit(void **st)
{
    (void)st;
    fake_reset(33); /* 32 blocks; each request could use 16 */
    rig_open((struct sched_opts){0});
    for (int i = 0; i < 8; i++)
        rig_submit(i, 16, 230);
    rig_step();
    struct sched_stats s;
    sched_stats_get(rig.s, &s);
    assert_true(s.running > 2 && s.running <= 8);
    rig_run(5000);
    rig_close();
}

static void test_deadlines(void **st)
{
    (void)st;
    fake_reset(100);
    rig_open((struct sched_opts){.max_running = 1});
    struct request *a = rig_request(1, 10, 200), *b = rig_request(2, 10, 5);
    uint64_t ia = a->id, ib = b->id;
    a->deadline_us = fake_now_us + 3000;
    b->queue_deadline_us = fake_now_us + 1000;
    sched_submit(rig.s, a);
    sched_submit(rig.s, b);
    rig_run(200);
    const struct event *ea = rig_find(ia, EV_ERROR, 0, NULL), *eb = rig_find(ib, EV_ERROR, 0, NULL);
    assert_int_equal(ea->err.code, ERR_TIMEOUT);
    assert_true(ea->n_output > 0 && ea->done_us < fake_now_us + 500);
    assert_int_equal(eb->err.code, ERR_TIMEOUT);
    assert_true(eb->scheduled_us == 0 && eb->done_us < ea->done_us);
    /* A queue deadline does not touch what has started. */
    struct request *c = rig_request(3, 10, 50);
    uint64_t ic = c->id;
    c->queue_deadline_us = fake_now_us + 500;
    sched_submit(rig.s, c);
    rig_run(200);
    assert_int_equal(rig_find(ic, EV_DONE, 0, NULL)->n_output, 50);
    rig_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fcfs),
        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_shortest),
        cmocka_unit_test(test_no_starvation),
        cmocka_unit_test(test_stream_not_stalled),
        cmocka_unit_test(test_time_budget),
        cmocka_unit_test(test_fill),
        cmocka_unit_test(test_shared_at_once),
        cmocka_unit_test(test_tiny_budget),
        cmocka_unit_test(test_victim),
        cmocka_unit_test(test_storm),
        cmocka_unit_test(test_overcommit),
        cmocka_unit_test(test_deadlines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
