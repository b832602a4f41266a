/* What one request gets: limits, stops, forks, prefix reuse, scoring, failures, memory. */
#include "tests/sched/rig.h"

static const struct event *done(uint64_t id)
{
    const struct event *e = rig_find(id, EV_DONE, 0, NULL);
    assert_non_null(e);
    return e;
}

static void refused(struct request *r, int code, const char *part)
{
    uint64_t id = r->id;
    sched_submit(rig.s, r);
    const struct event *e = rig_find(id, EV_ERROR, 0, NULL);
    assert_non_null(e);
    assert_int_equal(e->err.code, code);
    if (!strstr(e->err.text, part))
        print_error("%s\n", e->err.text);
    assert_non_null(strstr(e->err.text, part));
    assert_true(sched_idle(rig.s));
}

static void test_refusals(void **st)
{
    (void)st;
    fake_reset(10); /* 144 tokens, context 256 */
    rig_open((struct sched_opts){0});
    struct request *r;
    refused(rig_request(1, 256, 1), ERR_CONTEXT, "256");
    refused(rig_request(1, 144, 1), ERR_LIMIT, "KV cache of 144");
    refused(rig_request(1, 0, 1), ERR_INVAL, "prompt");
    refused(rig_request(1, 5, -1), ERR_INVAL, "max_tokens");
    r = rig_request(1, 5, 1);
    r->n = 0;
    refused(r, ERR_INVAL, "n:");
    r = rig_request(1, 5, 1);
    r->n = 129;
    refused(r, ERR_INVAL, "n:");
    r = rig_request(1, 5, 1);
    r->prompt[3] = 1000;
    refused(r, ERR_INVAL, "token 3 is 1000");
    r = rig_request(1, 5, 1);
    r->prompt[0] = -1;
    refused(r, ERR_INVAL, "token 0 is -1");
    r = rig_request(1, 5, 1);
    r->prompt_logprobs = 21;
    refused(r, ERR_INVAL, "logprobs");
    r = rig_request(1, 5, 1);
    r->n_stop_id = 17;
    refused(r, ERR_INVAL, "stop_token_ids");
    r = rig_request(1, 5, 1);
    r->samp.bias = xcalloc(1, sizeof *r->samp.bias);
    r->samp.n_bias = 1;
    r->samp.bias[0].token = 1000;
    refused(r, ERR_INVAL, "logit_bias");
    uint64_t id = rig_submit(1, 143, 100); /* fits, and ends where the cache ends */
    rig_run(20);
    assert_int_equal(done(id)->n_output, 1);
    rig_close();
}

static void test_context_end(void **st)
{
    (void)st;
    fake_reset(40);
    rig_open((struct sched_opts){0});
    uint64_t id = rig_submit(1, 250, 100);
    rig_run(50);
    assert_int_equal(done(id)->n_output, 6);
    assert_int_equal(rig_find(id, EV_FINISH, 0, NULL)->finish, FINISH_LENGTH);
    rig_close();
}

static void test_stop(void **st)
{
    (void)st;
    fake_reset(40);
    rig_open((struct sched_opts){0});
    uint64_t free_run = rig_submit(1, 10, 20);
    rig_run(50);
    int32_t sixth = rig_find(free_run, EV_TOKEN, 5, NULL)->tok.token;
    struct request *r = rig_request(1, 10, 20);
    uint64_t id = r->id;
    r->stop_id[0] = sixth;
    r->n_stop_id = 1;
    sched_submit(rig.s, r);
    rig_run(50);
    const struct event *f = rig_find(id, EV_FINISH, 0, NULL);
    assert_int_equal(f->finish, FINISH_STOP);
    assert_int_equal(f->stop_token, sixth);
    assert_int_equal(rig_count(id, EV_TOKEN), 5); /* the stop token is not sent */
    assert_int_equal(done(id)->n_output, 5);
    /* With min_tokens it can't come before. */
    r = rig_request(1, 10, 20);
    id = r->id;
    r->stop_id[0] = sixth;
    r->n_stop_id = 1;
    r->min_tokens = 10;
    sched_submit(rig.s, r);
    rig_run(50);
    assert_true(rig_count(id, EV_TOKEN) >= 10);
    assert_int_not_equal(rig_find(id, EV_TOKEN, 5, NULL)->tok.token, sixth);
    rig_close();
}

static void test_prefix_reuse(void **st)
{
    (void)st;
    fake_reset(60);
    rig_open((struct sched_opts){0});
    uint64_t a = rig_submit(1, 48, 40), b, c, d;
    rig_run(100);
    assert_int_equal(done(a)->n_cached, 0);
    uint64_t rows = fake_count.rows;
    b = rig_submit(1, 48, 40); /* a whole hit still computes the last token's block */
    rig_run(100);
    assert_int_equal(done(b)->n_cached, 32);
    assert_int_equal(fake_count.rows - rows, 48 - 32 + 39);
    for (int i = 0; i < 40; i++)
        assert_int_equal(rig_find(a, EV_TOKEN, i, NULL)->tok.token,
                         rig_find(b, EV_TOKEN, i, NULL)->tok.token);
    /* The next turn of the talk finds the answer's blocks too: 48 + 39 computed, 5 full blocks. */
    struct request *r = rig_request(1, 100, 5);
    for (int i = 0; i < 40; i++)
        r->prompt[48 + i] = rig_find(a, EV_TOKEN, i, NULL)->tok.token;
    c = r->id;
    sched_submit(rig.s, r);
    rig_run(100);
    assert_int_equal(done(c)->n_cached, 80);
    /* Another salt, nothing. */
    r = rig_request(1, 48, 5);
    d = r->id;
    r->cache_salt = 77;
    sched_submit(rig.s, r);
    rig_run(100);
    assert_int_equal(done(d)->n_cached, 0);
    struct sched_stats s;
    sched_stats_get(rig.s, &s);
    assert_int_equal(s.prefix_hits, 112);
    assert_int_equal(s.prefix_queries, 48 * 3 + 100);
    rig_close();
}

/* n choices: the prompt is computed once, its full blocks are held once. */
static void test_fork(void **st)
{
    (void)st;
    fake_reset(60);
    rig_open((struct sched_opts){.no_prefix_cache = true});
    struct request *r = rig_request(1, 56, 12);
    uint64_t id = r->id;
    r->n = 4;
    sched_submit(rig.s, r);
    rig_step(); /* choice 0 alone */
    rig_step();
    struct sched_stats s;
    sched_stats_get(rig.s, &s);
    assert_int_equal(s.running_seqs, 4);
    assert_int_equal(s.running, 1);
    assert_int_equal(s.blocks_used, 3 + 4); /* three shared, a last one each */
    rig_run(50);
    assert_true(fake_count.copies >= 3 && fake_count.copies <= 4);
    assert_int_equal(fake_count.rows, 56 + 3 + 4 * 11); /* siblings redo the last prompt token */
    assert_int_equal(done(id)->n_output, 48);
    assert_int_equal(rig_count(id, EV_FINISH), 4);
    rig_close();

    /* Choice i is what a request with seed + i gets. */
    int32_t tok[4];
    for (int i = 0; i < rig.n_ev; i++)
        if (rig.ev[i].kind == EV_TOKEN && rig.ev[i].index == 11)
            tok[rig.ev[i].choice] = rig.ev[i].tok.token;
    fake_reset(60);
    rig_open((struct sched_opts){0});
    for (int i = 0; i < 4; i++) {
        r = rig_request(1, 56, 12);
        r->samp.seed += (uint64_t)i;
        id = r->id;
        sched_submit(rig.s, r);
        rig_run(50);
        assert_int_equal(rig_find(id, EV_TOKEN, 11, NULL)->tok.token, tok[i]);
    }
    rig_close();
}

/* More choices than slots run one after the other. */
static void test_fork_waves(void **st)
{
    (void)st;
    fake_reset(20);
    rig_open((struct sched_opts){.max_running = 3});
    struct request *r = rig_request(1, 33, 7);
    uint64_t id = r->id;
    r->n = 20;
    sched_submit(rig.s, r);
    rig_run(500);
    assert_int_equal(done(id)->n_output, 140);
    assert_int_equal(rig_count(id, EV_FINISH), 20);
    rig_close();
}

static void test_scoring(void **st)
{
    (void)st;
    fake_reset(60);
    fake.info.max_logit_rows = 10; /* bounds a scored chunk */
    rig_open((struct sched_opts){0});
    uint64_t warm = rig_submit(1, 60, 1);
    rig_run(20);
    assert_int_equal(done(warm)->n_output, 1);
    struct request *r = rig_request(1, 60, 2);
    uint64_t id = r->id;
    r->prompt_logprobs = 3;
    sched_submit(rig.s, r);
    rig_run(50);
    assert_int_equal(done(id)->n_cached, 0); /* computed, not found */
    assert_int_equal(rig_count(id, EV_PROMPT), 59);
    for (int i = 0; i < 59; i++) {
        const struct event *e = rig_find(id, EV_PROMPT, i, NULL);
        assert_int_equal(e->index, i + 1);
        assert_int_equal(e->tok.token, ((i + 1) * 3 + 7) % 50);
        assert_int_equal(e->tok.n_top, 3);
    }
    assert_int_equal(rig_count(id, EV_TOKEN), 2);
    rig_close();
}

static void test_score_only(void **st)
{
    (void)st;
    fake_reset(60);
    rig_open((struct sched_opts){0});
    struct request *r = rig_request(1, 40, 0);
    uint64_t id = r->id, one, plain;
    r->prompt_logprobs = 0;
    r->n = 2;
    sched_submit(rig.s, r);
    rig_run(50);
    assert_int_equal(rig_count(id, EV_PROMPT), 39);
    assert_int_equal(rig_count(id, EV_TOKEN), 0);
    assert_int_equal(rig_count(id, EV_FINISH), 2);
    assert_int_equal(done(id)->n_output, 0);
    r = rig_request(1, 1, 0); /* nothing to compute */
    one = r->id;
    r->prompt_logprobs = 0;
    sched_submit(rig.s, r);
    plain = rig_submit(2, 40, 0); /* fills the cache, answers nothing */
    rig_run(50);
    assert_int_equal(rig_count(one, EV_PROMPT), 0);
    assert_int_equal(rig_count(one, EV_FINISH), 1);
    assert_int_equal(rig_count(plain, EV_PROMPT), 0);
    assert_int_equal(done(plain)->n_output, 0);
    uint64_t after = rig_submit(2, 40, 1);
    rig_run(50);
    assert_int_equal(done(after)->n_cached, 32);
    rig_close();
}

static void test_not_finite(void **st)
{
    (void)st;
    fake_reset(60);
    fake.bad_every = 1;
    rig_open((struct sched_opts){0});
    uint64_t a = rig_submit(1, 40, 5);
    rig_run(5);
    const struct event *e = rig_find(a, EV_ERROR, 0, NULL);
    assert_int_equal(e->err.code, ERR_DEVICE);
    assert_string_equal(e->err.text, "logits are not finite");
    assert_int_equal(rig_count(a, EV_TOKEN), 0);
    fake.bad_every = 0;
    uint64_t b = rig_submit(1, 40, 5);
    rig_run(50);
    assert_int_equal(done(b)->n_cached, 0); /* its blocks are not trusted */
    assert_int_equal(done(b)->n_output, 5);
    rig_close();
}

static void test_engine_fails(void **st)
{
    (void)st;
    fake_reset(60);
    fake.fail_step = 4;
    rig_open((struct sched_opts){.max_running = 2});
    uint64_t id[4];
    for (int i = 0; i < 4; i++)
        id[i] = rig_submit(i, 20, 50);
    for (int i = 0; i < 3; i++)
        assert_int_equal(rig_step(), 1);
    assert_int_equal(rig_step(), ERR_DEVICE);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(rig_count(id[i], EV_ERROR), 1);
        assert_int_equal(rig_find(id[i], EV_ERROR, 0, NULL)->err.code, ERR_DEVICE);
    }
    assert_true(sched_idle(rig.s));
    assert_int_equal(block_pool_free(rig.s->pool), block_pool_total(rig.s->pool));
    rig_close();
}

static void test_cancel(void **st)
{
    (void)st;
    fake_reset(60);
    rig_open((struct sched_opts){.max_running = 1});
    struct request *r = rig_request(1, 20, 50);
    uint64_t a = r->id, b;
    r->n = 3;
    sched_submit(rig.s, r);
    b = rig_submit(2, 20, 50);
    for (int i = 0; i < 5; i++)
        rig_step();
    sched_cancel(rig.s, a);
    sched_cancel(rig.s, b);
    sched_cancel(rig.s, b);
    sched_cancel(rig.s, 1000);
    assert_int_equal(done(a)->n_output, 5);
    assert_int_equal(done(b)->n_output, 0);
    assert_int_equal(rig_count(b, EV_DONE), 1);
    assert_true(sched_idle(rig.s));
    assert_int_equal(rig_step(), 0);
    struct sched_stats s;
    sched_stats_get(rig.s, &s);
    assert_int_equal(s.cancelled, 2);
    assert_int_equal(s.blocks_used, 0);
    rig_submit(3, 20, 50); /* left inside: freed by close */
    rig_step();
    rig_close();
}

/* 1,000 decode steps of 8 streams: no allocation at all. */
static void test_no_allocation(void **st)
{
    (void)st;
    fake_reset(700);
    fake.info.n_ctx = 2000;
    rig_open((struct sched_opts){0});
    for (int i = 0; i < 8; i++)
        rig_submit(i, 30, 1200);
    for (int i = 0; i < 10; i++)
        sched_step(rig.s, NULL);
    uint64_t before = mem_count();
    for (int i = 0; i < 1000; i++)
        assert_int_equal(sched_step(rig.s, NULL), 1);
    assert_int_equal(mem_count() - before, 0);
    assert_int_equal(rig_count(8, EV_TOKEN) > 1000, 1);
    sched_fail_all(rig.s, ERR_DRAINING, "over");
    rig_close();
}

static void test_no_memory(void **st)
{
    (void)st;
    struct sched *s = NULL;
    struct err e = {0};
    struct sched_opts o = {.clock = fake_clock};
    fake_reset(20);
    assert_int_equal(eng_open(&rig.g, &(struct eng_opts){0}, &e), 0);
    long k = 1;
    for (;; k++) {
        mem_fail_after(k, false);
        int rc = sched_open(&s, rig.g, &o, &e);
        mem_fail_after(0, false);
        if (!rc)
            break;
        assert_int_equal(rc, ERR_NOMEM);
        assert_null(s);
    }
    assert_true(k > 12);
    sched_close(s);
    eng_close(rig.g);

    rig_open((struct sched_opts){0});
    struct request *r = rig_request(1, 10, 5);
    uint64_t id = r->id;
    mem_fail_after(1, false);
    sched_submit(rig.s, r);
    mem_fail_after(0, false);
    assert_int_equal(rig_find(id, EV_ERROR, 0, NULL)->err.code, ERR_NOMEM);
    for (k = 1; k <= 2; k++) {
        id = rig_submit(1, 10, 5);
        uint64_t other = rig_submit(2, 10, 5);
        mem_fail_after(k, false);
        rig_step();
        mem_fail_after(0, false);
        assert_int_equal(rig_find(id, EV_ERROR, 0, NULL)->err.code, ERR_NOMEM);
        rig_run(20);
        assert_int_equal(done(other)->n_output, 5);
    }
    rig_close();
}

static void test_bad_engine(void **st)
{
    (void)st;
    struct sched *s = NULL;
    struct err e = {0};
    fake_reset(1);
    assert_int_equal(eng_open(&rig.g, &(struct eng_opts){0}, &e), 0);
    assert_int_equal(sched_open(&s, rig.g, &(struct sched_opts){0}, &e), ERR_INVAL);
    assert_null(s);
    eng_close(rig.g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_context_end),
        cmocka_unit_test(test_stop),       cmocka_unit_test(test_prefix_reuse),
        cmocka_unit_test(test_fork),       cmocka_unit_test(test_fork_waves),
        cmocka_unit_test(test_scoring),    cmocka_unit_test(test_score_only),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_engine_fails),
        cmocka_unit_test(test_cancel),     cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_bad_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
