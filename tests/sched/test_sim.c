/* Simulation: random traffic on tiny pools against the fake engine and clock. After every step all
 * invariants are verified; every token is compared with what the request would get alone. Each run is made plainly,
 * with look-ahead, and with drafts, and what two of them finished must be the same. A million
 * steps by default (fewer with sanitizers); STEPD_SIM_STEPS or the first argument changes that, the second
 * argument runs a single seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "sched/sched_impl.h"
#include "tests/fake_engine.h"

#define N_SLOT  24
#define SEQ_MAX 256
#define REQ_MAX 8192 /* of one run */

/* What the client knows of one of its requests. */
struct client {
    uint64_t id;      /* 0 = free */
    struct request r; /* copy; prompt below */
    int32_t tok[8][SEQ_MAX];
    int32_t n_out[8];
    bool finished[8];
    int32_t scored;
    uint64_t digest;
    bool disturbed; /* the client ended a part of it */
    int32_t max_out;
};

static struct sim {
    uint64_t rng, seed;
    struct sched *s;
    struct engine *g, *draft;
    struct client c[N_SLOT];
    uint64_t last_id;
    int32_t past[SEQ_MAX]; /* the latest prompt and what follows it, for a next turn of that talk */
    int32_t n_past, past_want;
    uint64_t past_seed;
    enum way { PLAIN, AHEAD, DRAFTS, N_WAY } way;
    uint64_t done[N_WAY][REQ_MAX]; /* what request id got; 0 = not by itself */
    uint64_t compared, issued_ahead, drafts, accepted, foretold, small;
    bool failed;
    uint64_t tokens, hits, terminal, submitted, stops, lengths, bads, timeouts;
} sim;

static uint32_t rnd(uint32_t below)
{
    sim.rng += 1;
    return (uint32_t)(hash_u64(sim.rng) >> 33) % below;
}

#define REQUIRE(cond)                                                                              \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            print_error("seed %llu step %llu: ", (unsigned long long)sim.seed,                     \
                        (unsigned long long)fake_count.steps);                                     \
            assert_true(cond);                                                                     \
        }                                                                                          \
    } while (0)

static struct client *find(uint64_t id)
{
    for (int i = 0; i < N_SLOT; i++)
        if (sim.c[i].id == id)
            return &sim.c[i];
    return NULL;
}

static struct sample_row row_of(const struct client *c, int choice)
{
    return (struct sample_row){.seed = c->r.samp.seed + (uint64_t)choice,
                               .position = (uint32_t)(c->r.n_prompt + c->n_out[choice]),
                               .ban = c->r.stop_id,
                               .n_ban = c->n_out[choice] < c->r.min_tokens ? c->r.n_stop_id : 0,
                               .target = -1,
                               .n_top = c->r.samp.n_top};
}

static struct sample_out alone(const struct client *c, int choice)
{
    struct sample_row r = row_of(c, choice);
    return fake_choose(c->tok[choice], c->r.n_prompt + c->n_out[choice], &r);
}

static bool is_stop(const struct client *c, int32_t t)
{
    for (int i = 0; i < c->r.n_stop_id; i++)
        if (c->r.stop_id[i] == t)
            return true;
    return false;
}

static void same_out(const struct sample_out *a, const struct sample_out *b)
{
    REQUIRE(a->token == b->token && a->n_top == b->n_top && a->rank == b->rank);
    REQUIRE(a->logprob >= b->logprob && a->logprob <= b->logprob);
    REQUIRE(!a->bad && !b->bad);
}

static void on_token(struct client *c, const struct event *ev)
{
    int ch = ev->choice;
    REQUIRE(ch >= 0 && ch < c->r.n && !c->finished[ch]);
    REQUIRE(ev->index == c->n_out[ch] && ev->index < c->max_out);
    if (c->r.prompt_logprobs >= 0 && !ch)
        REQUIRE(c->scored == c->r.n_prompt - 1);
    struct sample_out want = alone(c, ch);
    same_out(&ev->tok, &want);
    REQUIRE(!is_stop(c, want.token));
    c->tok[ch][c->r.n_prompt + c->n_out[ch]++] = want.token;
    if (ev->predicted) {
        c->digest += hash_u64((uint64_t)ev->index << 8 | (uint64_t)ch);
        sim.foretold++;
    }
    sim.tokens++;
}

static void on_prompt(struct client *c, const struct event *ev)
{
    struct sample_row r = {.target = c->tok[0][ev->index], .n_top = c->r.prompt_logprobs};
    REQUIRE(c->r.prompt_logprobs >= 0 && !ev->choice && ev->index == c->scored + 1);
    struct sample_out want = fake_choose(c->tok[0], ev->index, &r);
    same_out(&ev->tok, &want);
    c->scored++;
}

static void on_finish(struct client *c, const struct event *ev)
{
    int ch = ev->choice;
    REQUIRE(ch >= 0 && ch < c->r.n && !c->finished[ch] && ev->index == c->n_out[ch]);
    c->finished[ch] = true;
    if (ev->finish == FINISH_STOP) {
        struct sample_out want = alone(c, ch);
        REQUIRE(want.token == ev->stop_token && is_stop(c, want.token) && !want.bad);
        REQUIRE(c->n_out[ch] >= c->r.min_tokens);
        sim.stops++;
    } else {
        REQUIRE(ev->finish == FINISH_LENGTH && c->n_out[ch] == c->max_out);
        REQUIRE(c->max_out || c->r.prompt_logprobs < 0 || ch || c->scored == c->r.n_prompt - 1);
        sim.lengths++;
    }
    uint64_t h =
        hash_u64((uint64_t)ch * 8 + (uint64_t)ev->finish + ((uint64_t)ev->stop_token << 32));
    for (int32_t i = 0; i < c->n_out[ch]; i++)
        h = hash_u64(h ^ (uint64_t)c->tok[ch][c->r.n_prompt + i]);
    c->digest += h; /* choices end in any order */
}

static void on_last(struct client *c, const struct event *ev)
{
    bool all = true;
    int32_t n = 0;
    for (int i = 0; i < c->r.n; i++) {
        all = all && c->finished[i];
        n += c->n_out[i];
    }
    if (ev->kind == EV_DONE)
        REQUIRE(all); /* cancelled ones were marked by cancel() */
    else if (ev->err.code == ERR_TIMEOUT)
        sim.timeouts++;
    else if (ev->err.code == ERR_DEVICE && !sim.failed && !fake.fail_step && !fake.fail_end) {
        bool bad = false; /* only for a request that really meets such a row */
        for (int i = 0; i < c->r.n; i++)
            bad = bad || fake_is_bad(c->tok[i], c->r.n_prompt + c->n_out[i]);
        for (int32_t i = 1; c->r.prompt_logprobs >= 0 && i < c->r.n_prompt; i++)
            bad = bad || fake_is_bad(c->tok[0], i);
        REQUIRE(bad && !strcmp(ev->err.text, "logits are not finite"));
        sim.bads++;
    } else
        REQUIRE(ev->err.code == ERR_DEVICE || ev->err.code == ERR_LIMIT);
    REQUIRE(ev->n_prompt == c->r.n_prompt && ev->n_cached < c->r.n_prompt);
    REQUIRE(ev->n_output <= n && (ev->kind != EV_DONE || ev->n_output == n || c->r.n_stop_id));
    REQUIRE(ev->req < REQ_MAX);
    if (!c->disturbed && ev->kind == EV_DONE)
        sim.done[sim.way][ev->req] =
            hash_u64(c->digest ^ ((uint64_t)ev->n_output << 32) ^ (uint64_t)c->scored) | 1;
    sim.hits += (uint64_t)ev->n_cached;
    sim.terminal++;
    c->id = 0;
}

static void on_event(void *arg, const struct event *ev)
{
    (void)arg;
    struct client *c = find(ev->req);
    REQUIRE(ev->req && c); /* nothing comes after the last event */
    switch (ev->kind) {
    case EV_TOKEN:
        on_token(c, ev);
        break;
    case EV_PROMPT:
        on_prompt(c, ev);
        break;
    case EV_FINISH:
        on_finish(c, ev);
        break;
    default:
        on_last(c, ev);
    }
}

/* Prompts share beginnings: one of four texts (one of a single
 * repeated token, so that equal blocks follow different ones), or what an earlier talk ended with. */
static int32_t make_prompt(int32_t *out)
{
    int32_t n = 0, most = (int32_t)(1 + rnd(rnd(4) ? 60 : 140));
    if (sim.n_past && rnd(4) == 0) {
        for (; sim.past_want; sim.past_want--) {
            struct sample_row r = {
                .seed = sim.past_seed, .position = (uint32_t)sim.n_past, .target = -1};
            sim.past[sim.n_past] = fake_choose(sim.past, sim.n_past, &r).token;
            sim.n_past++;
        }
        n = sim.n_past < most ? sim.n_past : most;
        memcpy(out, sim.past, (size_t)n * sizeof *out);
    } else {
        uint64_t text = rnd(4);
        int32_t shared = (int32_t)rnd((uint32_t)most + 1);
        for (; n < shared; n++)
            out[n] = text ? (int32_t)(hash_u64(text * 1000 + (uint64_t)n) % 50) : 7;
    }
    while (n < most)
        out[n++] = (int32_t)rnd(50);
    return n;
}

/* What the first choice will say, with a mistake here and there. */
static void predict(struct request *r)
{
    int32_t tok[SEQ_MAX], n = r->n_prompt, end = n + r->max_tokens;
    memcpy(tok, r->prompt, (size_t)n * sizeof *tok);
    for (; n < end && n < SEQ_MAX; n++) {
        struct sample_row row = {.seed = r->samp.seed, .position = (uint32_t)n, .target = -1};
        tok[n] = fake_choose(tok, n, &row).token;
    }
    r->predict = xmalloc(2 * SEQ_MAX * sizeof *r->predict);
    for (int32_t i = r->n_prompt; i < n; i++) {
        if (rnd(8) == 0)
            r->predict[r->n_predict++] = (int32_t)rnd(50);
        if (rnd(8))
            r->predict[r->n_predict++] = tok[i];
    }
}

static void submit(void)
{
    struct client *c = find(0);
    if (!c)
        return;
    memset(c, 0, sizeof *c);
    struct request *r = request_new();
    uint64_t rng = sim.rng; /* a request follows from its number alone */
    sim.rng = hash_u64(sim.seed ^ hash_u64(sim.last_id + 1)) << 20;
    r->prompt = xmalloc(SEQ_MAX * sizeof *r->prompt);
    r->n_prompt = make_prompt(r->prompt);
    r->id = ++sim.last_id;
    r->n = rnd(3) ? 1 : (int)(1 + rnd(8));
    r->max_tokens = (int32_t)(rnd(20) ? 1 + rnd(rnd(5) ? 30 : 100) : 0);
    r->min_tokens = (int32_t)(rnd(3) ? 0 : rnd(10));
    r->n_stop_id = (int)rnd(3);
    for (int i = 0; i < r->n_stop_id; i++)
        r->stop_id[i] = (int32_t)rnd(50);
    r->prompt_logprobs = rnd(8) ? -1 : (int)rnd(3);
    r->samp =
        (struct req_sampling){.seed = rnd(1000), .n_top = rnd(2) ? -1 : 2, .repetition_penalty = 1};
    if (rnd(12) == 0) /* must wait for its tokens; the fake engine does not mind */
        r->samp.presence_penalty = 1;
    r->priority = (int)rnd(3);
    r->cache_salt = rnd(4) ? 0 : rnd(3);
    r->arrival_us = fake_now_us;
    if (rnd(30) == 0)
        r->deadline_us = fake_now_us + 1 + rnd(20000);
    if (rnd(30) == 0)
        r->queue_deadline_us = fake_now_us + 1 + rnd(10000);
    if (rnd(10) == 0)
        predict(r);
    c->id = r->id;
    c->r = *r;
    int32_t room = sim.s->n_ctx - r->n_prompt;
    c->max_out = r->max_tokens < room ? r->max_tokens : room;
    for (int i = 0; i < r->n; i++)
        memcpy(c->tok[i], r->prompt, (size_t)r->n_prompt * sizeof(int32_t));
    memcpy(sim.past, r->prompt, (size_t)r->n_prompt * sizeof sim.past[0]);
    sim.n_past = r->n_prompt;
    sim.past_want = c->max_out > 24 ? 24 : c->max_out > 0 ? c->max_out : 0;
    sim.past_seed = r->samp.seed;
    sim.rng = rng;
    sim.submitted++;
    sched_submit(sim.s, r);
}

static void cancel(struct client *c)
{
    c->disturbed = true;
    for (int i = 0; i < c->r.n; i++)
        c->finished[i] = true;
    sched_cancel(sim.s, c->id);
    REQUIRE(!c->id);
}

static void finish_choice(struct client *c)
{
    int ch = (int)rnd((uint32_t)c->r.n);
    if (c->finished[ch])
        return;
    c->finished[ch] = c->disturbed = true;
    c->n_out[ch] = (int32_t)rnd((uint32_t)c->n_out[ch] + 1);
    sched_finish_choice(sim.s, c->id, ch, c->n_out[ch]);
}

static void traffic(uint32_t load)
{
    if (rnd(load) == 0)
        submit();
    if (rnd(200) == 0)
        for (uint32_t i = rnd(10); i; i--)
            submit(); /* a burst */
    struct client *c = &sim.c[rnd(N_SLOT)];
    if (c->id && rnd(150) == 0)
        cancel(c);
    else if (c->id && rnd(100) == 0)
        finish_choice(c);
    if (rnd(100) == 0)
        fake_now_us += rnd(100000);
    if (rnd(1000) == 0)
        sched_cancel(sim.s, 1ull << 60); /* nobody's */
}

static void verify(void)
{
    struct err e = {0};
    if (sched_check(sim.s, &e))
        print_error("seed %llu step %llu: %s\n", (unsigned long long)sim.seed,
                    (unsigned long long)fake_count.steps, e.text);
    assert_int_equal(e.code, 0);
    for (block_id id = 1; id < fake.info.n_block; id++)
        if (!block_refs(sim.s->pool, id) && !block_indexed(sim.s->pool, id))
            fake_poison(id);
}

static void open_sim(uint64_t seed, enum way way)
{
    struct err e;
    sim.seed = seed;
    sim.rng = hash_u64(seed) << 20;
    sim.n_past = sim.past_want = 0;
    sim.last_id = 0;
    sim.way = way;
    sim.failed = false;
    memset(sim.c, 0, sizeof sim.c);
    fake_reset((int32_t)(4 + rnd(rnd(2) ? 12 : 60)));
    fake.info.n_vocab = 50;
    fake.info.n_ctx = 200;
    if (rnd(3) == 0)
        fake.info.max_logit_rows = (int)(1 + rnd(16));
    if (rnd(4) == 0)
        fake.bad_every = 200 + rnd(2000);
    if (rnd(10) == 0)
        *(rnd(2) ? &fake.fail_step : &fake.fail_end) = 1 + rnd(1500);
    if (rnd(8) == 0)
        fake.info.block_len = (int32_t)(1 + rnd(16));
    if (rnd(2))
        fake.habit = 2 + rnd(30);
    fake.us_row = (int64_t)rnd(2) * 10;
    fake.info.lookahead = way == AHEAD || (way == DRAFTS && seed % 2);
    fake.info.n_state = seed % 3 == 0 ? (int32_t)(1 + rnd(rnd(2) ? 20 : 4)) : 0;
    struct sched_opts o = {.policy = (enum sched_policy)rnd(3),
                           .max_running = (int)(1 + rnd(8)),
                           .step_tokens = (int32_t)(1 + rnd(rnd(2) ? 64 : 10)),
                           .fill_rows = seed % 2 ? (int32_t)(seed % 23) : 0,
                           .step_us = rnd(2) ? 0 : 200 + rnd(400),
                           .age_us = 1 + rnd(50000),
                           .no_prefix_cache = rnd(4) == 0,
                           .spec_eager = rnd(2),
                           .spec_tokens = way == DRAFTS ? (int)(1 + seed % 7) : 0,
                           .hash_mask = rnd(3) ? 0 : rnd(4) + 1,
                           .clock = fake_clock,
                           .emit = on_event};
    assert_int_equal(eng_open(&sim.g, &(struct eng_opts){0}, &e), 0);
    fake.two = way == DRAFTS && seed % 3 == 1 && fake.info.max_logit_rows >= DRAFT_SEQS;
    fake.us_draft = 5;
    if (seed % 5 == 0)
        fake.fail_draft = seed * 50;
    if (fake.two)
        assert_int_equal(eng_open(&sim.draft, &(struct eng_opts){0}, &e), 0);
    o.draft = sim.draft;
    assert_int_equal(sched_open(&sim.s, sim.g, &o, &e), 0);
}

/* One turn; a turn that finds requests but runs nothing would be a deadlock. */
static void step(void)
{
    struct err e = {0};
    bool any = !sched_idle(sim.s);
    uint64_t before = sim.terminal;
    int rc = sched_step(sim.s, &e);
    if (rc < 0) {
        REQUIRE((fake.fail_step || fake.fail_end) && rc == ERR_DEVICE && sched_idle(sim.s));
        sim.failed = true;
    } else if (any && !rc) {
        REQUIRE(sched_idle(sim.s) || sim.terminal > before);
    }
    verify();
}

static uint64_t run_seed(uint64_t seed, uint64_t n, enum way way)
{
    open_sim(seed, way);
    uint32_t load = 2 + rnd(40);
    uint64_t i = 0;
    for (; i < n && !sim.failed; i++) {
        traffic(load);
        step();
    }
    uint64_t end = i + 200000;
    for (; !sched_idle(sim.s) && !sim.failed; i++) {
        REQUIRE(i < end);
        step();
    }
    for (int c = 0; c < N_SLOT; c++)
        REQUIRE(!sim.c[c].id);
    REQUIRE(!sim.s->n_open && (sim.s->st.steps_ahead > 0) <= fake.info.lookahead);
    REQUIRE(way == DRAFTS || !sim.s->st.drafts);
    sim.drafts += sim.s->st.draft_tokens;
    sim.accepted += sim.s->st.draft_accepted;
    sim.issued_ahead += sim.s->st.steps_ahead;
    REQUIRE(block_pool_free(sim.s->pool) == block_pool_total(sim.s->pool));
    for (int32_t k = 0; k < fake.info.n_state; k++)
        REQUIRE(!state_refs(sim.s->states, k));
    sched_close(sim.s);
    eng_close(sim.draft);
    eng_close(sim.g);
    sim.draft = NULL;
    sim.small += fake_count.draft_steps;
    return i ? i : 1;
}

/* All ways; what a request got by itself in two of them must be equal. */
static uint64_t run_ways(uint64_t seed, uint64_t n, uint64_t *copies)
{
    uint64_t steps = 0;
    memset(sim.done, 0, sizeof sim.done);
    for (int way = 0; way < N_WAY; way++) {
        steps += run_seed(seed, n, (enum way)way);
        *copies += fake_count.copies;
    }
    for (int i = 0; i < REQ_MAX; i++)
        for (int way = 1; way < N_WAY; way++) {
            if (!sim.done[0][i] || !sim.done[way][i])
                continue;
            REQUIRE(sim.done[0][i] == sim.done[way][i]);
            sim.compared++;
        }
    return steps;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static uint64_t n_steps = 100000, one_seed; /* ten times slower there */
#else
static uint64_t n_steps = 1000000, one_seed;
#endif

static void test_sim(void **st)
{
    (void)st;
    uint64_t done = 0, seed = one_seed ? one_seed : 1, copies = 0;
    memset(&sim, 0, sizeof sim);
    for (; done < n_steps; seed++) {
        done += run_ways(seed, 3000, &copies);
        if (one_seed)
            break;
    }
    assert_int_equal(sim.submitted, sim.terminal);
    print_message("%llu steps, %llu seeds: %llu requests, %llu tokens, %llu cached, %llu copies, "
                  "%llu stops, %llu lengths, %llu not finite, %llu late; %llu steps ahead, "
                  "%llu drafts, %llu right, %llu steps of a small model; %llu tokens foretold; "
                  "%llu requests equal\n",
                  (unsigned long long)done, (unsigned long long)seed - 1,
                  (unsigned long long)sim.submitted, (unsigned long long)sim.tokens,
                  (unsigned long long)sim.hits, (unsigned long long)copies,
                  (unsigned long long)sim.stops, (unsigned long long)sim.lengths,
                  (unsigned long long)sim.bads, (unsigned long long)sim.timeouts,
                  (unsigned long long)sim.issued_ahead, (unsigned long long)sim.drafts,
                  (unsigned long long)sim.accepted, (unsigned long long)sim.small,
                  (unsigned long long)sim.foretold, (unsigned long long)sim.compared);
    if (!one_seed) /* the run must have met what it is about */
        assert_true(sim.tokens && sim.hits && copies && sim.stops && sim.lengths && sim.timeouts &&
                    sim.issued_ahead && sim.accepted && sim.drafts > sim.accepted && sim.foretold &&
                    sim.small && sim.compared);
}

int main(int argc, char **argv)
{
    const char *env = getenv("STEPD_SIM_STEPS");
    if (argc > 1)
        env = argv[1];
    if (env)
        n_steps = strtoull(env, NULL, 10);
    if (argc > 2)
        one_seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sim)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
