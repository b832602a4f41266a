/* Drafts: the same events as without them, in fewer steps where a text repeats itself, none where they do not pay; KV of
 * wrong ones is given back and never reused; what limits them; predictions; failures. */
#include "tests/sched/rig.h"

static void open_spec(int32_t n_block, int tokens, uint32_t habit)
{
    fake_reset(n_block);
    fake.habit = habit;
    fake.info.n_vocab = habit ? 50 : 1000;
    rig_open((struct sched_opts){.spec_tokens = tokens});
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
    assert_int_equal(block_pool_free(rig.s->pool), block_pool_total(rig.s->pool));
}

/* The events of a request but their times, hashed in order, choice by choice: those go on side by side. */
static uint64_t story(uint64_t id)
{
    uint64_t all = 0;
    for (int choice = 0; choice < 4; choice++) {
        uint64_t h = (uint64_t)choice + 1;
        for (int i = 0; i < rig.n_ev; i++) {
            const struct event *e = &rig.ev[i];
            if (e->req != id || e->choice != choice)
                continue;
            h = hash_u64(h ^ ((uint64_t)e->kind << 48) ^ ((uint64_t)e->index << 8) ^
                         (uint64_t)e->finish);
            h = hash_u64(h ^ (uint64_t)(uint32_t)e->stop_token ^ (uint64_t)e->predicted << 50);
            if (e->kind == EV_TOKEN || e->kind == EV_PROMPT)
                h = hash_u64(h ^ (uint64_t)(uint32_t)e->tok.token ^ ((uint64_t)e->tok.n_top << 40) ^
                             ((uint64_t)(int64_t)(e->tok.logprob * 100) << 16));
            if (e->kind == EV_DONE)
                h = hash_u64(h ^ ((uint64_t)e->n_output << 32) ^ (uint64_t)e->n_prompt);
        }
        all += h;
    }
    return all;
}

/* A text that repeats itself: several tokens a step, nothing else differs. */
static void test_same(void **st)
{
    (void)st;
    uint64_t told[2], steps[2];
    int64_t took[2];
    for (int k = 0; k < 2; k++) {
        open_spec(60, k * 4, 40);
        struct request *r = rig_request(1, 20, 150);
        r->samp.n_top = 3;
        r->samp.presence_penalty = 1; /* histories are compared by the engine */
        r->samp.repetition_penalty = 1.5f;
        uint64_t id = r->id;
        sched_submit(rig.s, r);
        int64_t from = fake_now_us;
        rig_run(400);
        took[k] = fake_now_us - from;
        told[k] = story(id);
        steps[k] = fake_count.steps;
        struct sched_stats s = stats();
        assert_int_equal(s.generated_tokens, 150);
        assert_int_equal(steps[k] + s.draft_accepted, 150);
        assert_true(s.draft_accepted <= s.draft_tokens && (s.drafts > 0) == k);
        uint64_t by_place = 0;
        for (int i = 0; i < SPEC_TOKENS_MAX; i++)
            by_place += s.draft_accepted_at[i];
        assert_int_equal(by_place, s.draft_accepted);
        assert_true(s.draft_accepted_at[0] >= s.draft_accepted_at[1] && !s.draft_accepted_at[4]);
        all_given_back();
        rig_close();
    }
    assert_true(told[0] == told[1]);
    print_message("%llu steps, %llu with drafts; %lld us, %lld\n", (unsigned long long)steps[0],
                  (unsigned long long)steps[1], (long long)took[0], (long long)took[1]);
    assert_true(steps[1] < steps[0] * 6 / 10 && took[1] < took[0] * 8 / 10);
}

/* Rows as dear as steps: after the first trials hardly any draft, and no noticeable loss. */
static void test_dear(void **st)
{
    (void)st;
    int64_t took[2];
    for (int k = 0; k < 2; k++) {
        fake_reset(60);
        fake.habit = 4;
        fake.info.n_vocab = 50;
        fake.us_step = 0;
        fake.us_row = 100;
        rig_open((struct sched_opts){.spec_tokens = k * 4});
        int64_t from = fake_now_us;
        for (int i = 0; i < 4; i++)
            rig_submit(i, 20, 200);
        rig_run(1000);
        took[k] = fake_now_us - from;
        print_message("%lld us, %llu drafts of %llu tokens, %llu right\n", (long long)took[k],
                      (unsigned long long)stats().drafts, (unsigned long long)stats().draft_tokens,
                      (unsigned long long)stats().draft_accepted);
        rig_close();
    }
    assert_true(took[1] * 100 <= took[0] * 103);
}

/* Blocks of wrong drafts go back at once; only accepted tokens are found by the next request. */
static void test_blocks(void **st)
{
    (void)st;
    fake_reset(60);
    fake.habit = 6;
    fake.info.n_vocab = 50;
    fake.info.block_len = 2;
    rig_open((struct sched_opts){.spec_tokens = 6, .spec_eager = true});
    uint64_t id = rig_submit(1, 30, 60);
    int32_t known[100], n = 30;
    while (!sched_idle(rig.s)) {
        rig_step(); /* sched_check: blocks are those of computed tokens */
        for (block_id b = 1; b < fake.info.n_block; b++)
            if (!block_refs(rig.s->pool, b) && !block_indexed(rig.s->pool, b))
                fake_poison(b);
    }
    assert_true(stats().draft_tokens > stats().draft_accepted && stats().draft_accepted);
    for (int i = 0; i < 30; i++)
        known[i] = (7 + i * 3) % 50;
    for (int i = 0; i < 60; i++)
        known[n++] = rig_find(id, EV_TOKEN, i, NULL)->tok.token;
    struct request *r = rig_request(1, 90, 5);
    memcpy(r->prompt, known, sizeof known[0] * 90);
    id = r->id;
    sched_submit(rig.s, r);
    rig_run(100); /* the engine compares what it reads with the history */
    assert_int_equal(rig_find(id, EV_DONE, 0, NULL)->n_cached, 88);
    all_given_back();
    rig_close();
}

/* Grammars and bounds on reasoning go one by one; so do models with recurrent states, and scoring. */
static void test_off(void **st)
{
    (void)st;
    fake_reset(60);
    fake.habit = 40;
    fake.info.n_vocab = 50;
    fake.info.n_state = 4;
    rig_open((struct sched_opts){.spec_tokens = 4, .spec_eager = true});
    rig_submit(1, 20, 100);
    rig_run(300);
    assert_int_equal(stats().drafts, 0);
    rig_close();
    open_spec(60, 0, 40);
    rig_submit(1, 20, 100);
    rig_run(300);
    assert_int_equal(stats().drafts, 0);
    rig_close();
    open_spec(60, 100, 40); /* more than there may be */
    assert_int_equal(rig.s->o.spec_tokens, SPEC_TOKENS_MAX);
    rig_submit(1, 100, 0);
    rig_submit(1, 100, 1);
    rig_run(300);
    assert_int_equal(stats().drafts, 0);
    rig_close();
}

static struct request *predicted(int32_t max_tokens, const int32_t *answer, int32_t n)
{
    struct request *r = rig_request(1, 20, max_tokens);
    r->predict = xmalloc((size_t)(n + 1) * sizeof *r->predict);
    memcpy(r->predict, answer, (size_t)n * sizeof *answer);
    r->n_predict = n;
    return r;
}

static int count_predicted(uint64_t id)
{
    int n = 0;
    for (int i = 0; i < rig.n_ev; i++)
        n += rig.ev[i].req == id && rig.ev[i].kind == EV_TOKEN && rig.ev[i].predicted;
    return n;
}

/* A prediction that is right but for an exchanged, a missing and an added token: fewer steps, each token that it named is
 * marked, with drafts or without. */
static void test_prediction(void **st)
{
    (void)st;
    int32_t answer[60], wrong[60];
    uint64_t told[2], steps[2];
    open_spec(60, 0, 0);
    uint64_t id = rig_submit(1, 20, 60);
    rig_run(100);
    for (int i = 0; i < 60; i++)
        answer[i] = rig_find(id, EV_TOKEN, i, NULL)->tok.token;
    rig_close();
    memcpy(wrong, answer, 15 * sizeof *answer);
    wrong[10] = 999;                                      /* exchanged */
    memcpy(wrong + 15, answer + 16, 15 * sizeof *answer); /* [15] is missing */
    wrong[30] = 998;                                      /* added */
    memcpy(wrong + 31, answer + 31, 29 * sizeof *answer);
    for (int k = 0; k < 2; k++) {
        open_spec(60, k * 4, 0);
        struct request *r = predicted(60, wrong, 60);
        id = r->id;
        sched_submit(rig.s, r);
        rig_run(100);
        told[k] = story(id);
        steps[k] = fake_count.steps;
        for (int i = 0; i < 60; i++)
            assert_int_equal(rig_find(id, EV_TOKEN, i, NULL)->tok.token, answer[i]);
        print_message("%d of 60 foretold, %llu steps\n", count_predicted(id),
                      (unsigned long long)steps[k]);
        assert_true(count_predicted(id) >= 52 && count_predicted(id) <= 59);
        rig_close();
    }
    assert_true(told[0] == told[1]);
    assert_int_equal(steps[0], 60);
    assert_true(steps[1] < 30);
    open_spec(60, 4, 0); /* nothing of it comes */
    int32_t none[4] = {999, 998, 997, 996};
    struct request *r = predicted(30, none, 4);
    id = r->id;
    sched_submit(rig.s, r);
    rig_run(100);
    assert_int_equal(count_predicted(id), 0);
    assert_int_equal(rig_count(id, EV_TOKEN), 30);
    rig_close();
}

/* Look-ahead stops for likely drafts and goes on where none are to be had. */
static void test_ahead(void **st)
{
    (void)st;
    uint64_t told[2][2];
    for (int k = 0; k < 2; k++) {
        fake_reset(60);
        fake.info.lookahead = true;
        fake.habit = 60;
        fake.info.n_vocab = 50;
        rig_open((struct sched_opts){.spec_tokens = k * 4});
        rig_submit(1, 20, 150);
        rig_run(300);
        told[k][0] = story(1);
        if (k)
            assert_true(stats().draft_accepted > 60);
        rig_close();
        fake.habit = 0;
        fake.info.n_vocab = 1000;
        rig_open((struct sched_opts){.spec_tokens = k * 4});
        rig_submit(1, 20, 150);
        rig_run(300);
        told[k][1] = story(1);
        assert_true(stats().steps_ahead >= 140);
        rig_close();
    }
    assert_true(told[0][0] == told[1][0] && told[0][1] == told[1][1]);
}

/* Logits that are not finite end the request behind the tokens before them, as without drafts; those of a wrong draft
 * are nobody's. */
static void test_bad(void **st)
{
    (void)st;
    int ends = 0, drafts = 0;
    for (int text = 0; text < 40; text++) {
        uint64_t told[2];
        for (int k = 0; k < 2; k++) {
            fake_reset(60);
            fake.habit = 20;
            fake.info.n_vocab = 50;
            fake.bad_every = 100;
            rig_open((struct sched_opts){.spec_tokens = k * 4, .spec_eager = true});
            rig_submit(text, 20, 100);
            rig_run(300);
            told[k] = story(1);
            ends += k && rig_count(1, EV_ERROR) && rig_count(1, EV_TOKEN);
            drafts += (int)stats().draft_accepted;
            all_given_back();
            rig_close();
        }
        assert_true(told[0] == told[1]);
    }
    assert_true(ends > 5 && drafts > 100);
}

/* Three answers with a small model that is right more often than not; what they say, and the time. */
static int64_t with_small(int tokens, int64_t us_draft, bool ahead, uint64_t fail, uint64_t told[3])
{
    fake_reset(60);
    fake.habit = 8;
    fake.info.lookahead = ahead;
    fake.two = tokens > 0;
    fake.us_step = 1000;
    fake.us_draft = us_draft;
    fake.fail_draft = fail;
    rig_open((struct sched_opts){.spec_tokens = tokens});
    struct request *r = rig_request(1, 150, 60); /* its KV there takes several steps to make */
    r->samp.temperature = 1;
    sched_submit(rig.s, r);
    r = rig_request(2, 20, 100);
    r->stop_id[r->n_stop_id++] = 600;
    sched_submit(rig.s, r);
    r = rig_request(3, 30, 2);
    r->n = 2;
    sched_submit(rig.s, r);
    int64_t from = fake_now_us;
    rig_run(500);
    for (int i = 0; i < 3; i++)
        told[i] = story((uint64_t)i + 1);
    print_message("%llu steps, %llu of the small model, %llu drafts, %llu right: %lld us\n",
                  (unsigned long long)fake_count.steps, (unsigned long long)fake_count.draft_steps,
                  (unsigned long long)stats().draft_tokens,
                  (unsigned long long)stats().draft_accepted, (long long)(fake_now_us - from));
    all_given_back();
    if (fake.two && rig.s->spec.drafter == NULL)
        assert_true(fail > 0);
    return fake_now_us - from;
}

static void test_small_model(void **st)
{
    (void)st;
    uint64_t plain[3], told[3];
    for (int ahead = 0; ahead < 2; ahead++) {
        int64_t took = with_small(0, 0, ahead, 0, plain);
        rig_close();
        int64_t fast = with_small(4, 50, ahead, 0, told);
        assert_memory_equal(told, plain, sizeof plain);
        assert_true(fake_count.draft_steps > 50 && fast < took * 7 / 10);
        rig_close();
        int64_t dear =
            with_small(4, 5000, ahead, 0, told); /* found to be no help, and left alone */
        assert_memory_equal(told, plain, sizeof plain);
        assert_true(fake_count.draft_steps > 0 && fake_count.draft_steps < 20);
        assert_true(dear < took + 20 * 5000);
        rig_close();
        for (uint64_t fail = 1; fail < 20; fail += 6) { /* goes on without it */
            with_small(4, 50, ahead, fail, told);
            assert_memory_equal(told, plain, sizeof plain);
            assert_null(rig.s->spec.drafter);
            rig_close();
        }
    }
}

/* Refused: states; room for too few sequences. */
static void test_small_refused(void **st)
{
    (void)st;
    struct engine *g, *small;
    struct sched *s;
    struct err e = {0};
    fake_reset(60);
    fake.two = true;
    assert_int_equal(eng_open(&g, &(struct eng_opts){0}, &e), 0);
    assert_int_equal(eng_open(&small, &(struct eng_opts){0}, &e), 0);
    struct sched_opts o = {.spec_tokens = 4, .draft = small};
    fake.info.max_logit_rows = DRAFT_SEQS - 1;
    assert_int_equal(sched_open(&s, g, &o, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "draft model"));
    fake.info.max_logit_rows = 16;
    fake.info.n_state = 4;
    assert_int_equal(sched_open(&s, g, &o, &e), ERR_UNSUPPORTED);
    fake.info.n_state = 0;
    for (int i = 1, rc = ERR_NOMEM; rc; i++) {
        mem_fail_after(i, false);
        rc = sched_open(&s, g, &o, &e);
        mem_fail_after(0, false);
        assert_true(rc == 0 || rc == ERR_NOMEM);
    }
    sched_close(s);
    eng_close(small);
    eng_close(g);
}

static void test_no_memory(void **st)
{
    (void)st;
    int refused = 0;
    for (int i = 0; i < 12; i++) {
        open_spec(60, 4, 40);
        struct request *r = rig_request(1, 20, 40);
        sched_submit(rig.s, r);
        mem_fail_after(i + 1, false);
        rig_step();
        mem_fail_after(0, false);
        rig_run(100);
        refused += rig_count(1, EV_ERROR);
        assert_int_equal(rig_count(1, EV_ERROR) + rig_count(1, EV_DONE), 1);
        all_given_back();
        rig_close();
    }
    assert_true(refused >= 4); /* tokens, blocks, guesses and their index */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),        cmocka_unit_test(test_dear),
        cmocka_unit_test(test_blocks),      cmocka_unit_test(test_off),
        cmocka_unit_test(test_prediction),  cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_bad),         cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_small_model), cmocka_unit_test(test_small_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
