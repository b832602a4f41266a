/* See fake_engine.h. */
#include "tests/fake_engine_impl.h"

#include <errno.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"

struct fake_cfg fake;
struct fake_count fake_count;
int64_t fake_now_us;
struct engine *fake_the_engine;

int64_t fake_clock(void *arg)
{
    (void)arg;
    return fake_now_us;
}

void fake_reset(int32_t n_block)
{
    fake = (struct fake_cfg){.info = {.backend = "fake",
                                      .arch = "fake",
                                      .n_ctx = 256,
                                      .n_vocab = 1000,
                                      .block_len = 16,
                                      .n_block = n_block,
                                      .max_seqs = 8,
                                      .max_rows = 64,
                                      .max_logit_rows = 16,
                                      .layout_id = 42},
                             .us_step = 100,
                             .us_row = 10};
    fake_count = (struct fake_count){0};
    fake_now_us = 1000;
}

static size_t n_slot(void)
{
    return (size_t)fake.info.n_block * (size_t)fake.info.block_len;
}

int eng_open(struct engine **out, const struct eng_opts *o, struct err *e)
{
    (void)o;
    if (fake.fail_open)
        return err_set(e, fake.fail_open, "fake engine: told to fail");
    CHECK(!fake_the_engine || fake.two);
    struct engine *g = xcalloc(1, sizeof *g);
    g->slot = xcalloc(n_slot(), sizeof *g->slot);
    for (size_t i = 0; i < n_slot(); i++)
        g->slot[i].tok = POISON;
    g->state = xcalloc((size_t)fake.info.n_state + 1, sizeof *g->state);
    for (int32_t i = 0; i < fake.info.n_state; i++)
        g->state[i].n = POISON;
    fake_count.opens++;
    g->second = fake_the_engine != NULL;
    if (!g->second)
        fake_the_engine = g;
    *out = g;
    return 0;
}

void eng_close(struct engine *g)
{
    if (!g)
        return;
    CHECK(!g->n_open || g->failed); /* the scheduler closes what it began */
    CHECK(!fake_count.jobs_open);
    if (g == fake_the_engine)
        fake_the_engine = NULL;
    free(g->slot);
    free(g->state);
    free(g);
    fake_count.closes++;
}

const struct eng_info *eng_info(const struct engine *g)
{
    (void)g;
    return &fake.info;
}

int eng_logits(struct engine *g, int i, float *dst)
{
    (void)g;
    (void)i;
    (void)dst;
    return ERR_UNSUPPORTED;
}

int eng_memory_plan(const struct eng_opts *o, struct eng_memory *out, struct err *e)
{
    (void)o;
    *out = (struct eng_memory){0};
    return err_set(e, ERR_UNSUPPORTED, "fake engine: has no memory plan");
}

void fake_poison(int32_t block)
{
    CHECK(block > 0 && block < fake.info.n_block);
    for (int32_t i = 0; i < fake.info.block_len; i++)
        fake_the_engine->slot[(int64_t)block * fake.info.block_len + i].tok = POISON;
}

static uint64_t hash_next(uint64_t h, int32_t tok)
{
    return hash_u64(h * 31 + (uint64_t)tok);
}

static uint64_t history_hash(const int32_t *tok, int32_t n)
{
    uint64_t h = 1;
    for (int32_t i = 0; i < n; i++)
        h = hash_next(h, tok[i]);
    return h;
}

bool fake_is_bad(const int32_t *tok, int32_t n)
{
    return fake.bad_every && hash_u64(history_hash(tok, n) ^ 99) % fake.bad_every == 0;
}

static bool banned(const struct sample_row *r, int32_t t)
{
    for (int i = 0; i < r->n_ban; i++)
        if (r->ban[i] == t)
            return true;
    return r->mask && !(r->mask[t / 32] >> (t % 32) & 1);
}

struct sample_out fake_choose(const int32_t *tok, int32_t n, const struct sample_row *r)
{
    struct sample_out o = {.rank = 1};
    uint64_t h = history_hash(tok, n);
    if (r->target >= 0) {
        o.token = r->target;
    } else {
        uint64_t pick = hash_u64(h ^ hash_u64(r->seed + ((uint64_t)r->position << 32)));
        if (fake.habit && pick / 64 % fake.habit)
            pick = history_hash(tok + n - 1, 1);
        o.token = (int32_t)(pick % (uint64_t)fake.info.n_vocab);
        for (int i = 0; banned(r, o.token) && i < fake.info.n_vocab; i++)
            o.token = (o.token + 1) % fake.info.n_vocab;
    }
    if (r->n_top >= 0) {
        o.logprob = -(float)((h ^ (uint64_t)o.token) % 1000) / 100;
        o.n_top = r->n_top;
        for (int i = 0; i < r->n_top; i++)
            o.top_id[i] = (int32_t)((h + (uint64_t)i) % (uint64_t)fake.info.n_vocab);
    }
    o.bad = fake_is_bad(tok, n);
    return o;
}

static struct slot *slot_of(struct engine *g, const struct step_seq *q, int32_t pos)
{
    int32_t len = fake.info.block_len;
    CHECK(pos / len < q->n_block);
    int32_t b = q->block[pos / len];
    CHECK(b > 0 && b < fake.info.n_block);
    return &g->slot[(int64_t)b * len + pos % len];
}

static void do_copies(struct engine *g, const struct step_plan *p)
{
    size_t len = (size_t)fake.info.block_len;
    for (int i = 0; i < p->n_copy; i++) {
        struct step_copy c = p->copy[i];
        CHECK(c.src > 0 && c.dst > 0 && c.src < fake.info.n_block && c.dst < fake.info.n_block);
        for (int j = 0; j < p->n_copy; j++)
            CHECK(p->copy[j].src != c.dst && (i == j || p->copy[j].dst != c.dst));
        memcpy(g->slot + (size_t)c.dst * len, g->slot + (size_t)c.src * len, len * sizeof *g->slot);
    }
    fake_count.copies += (uint64_t)p->n_copy;
}

static void check_limits(struct engine *g, struct open_step *b, const struct step_plan *p)
{
    int32_t rows = 0, logits = 0;
    CHECK(p->n_seq > 0 && p->n_seq <= fake.info.max_seqs);
    for (int i = 0; i < p->n_seq; i++) {
        const struct step_seq *q = &p->seq[i];
        CHECK(q->n_tok > 0 && q->pos >= 0 && q->n_logit >= 0 && q->n_logit <= q->n_tok);
        CHECK(q->pos + q->n_tok <= fake.info.n_ctx);
        CHECK(q->n_block == (q->pos + q->n_tok + fake.info.block_len - 1) / fake.info.block_len);
        rows += q->n_tok;
        logits += q->n_logit;
    }
    CHECK(rows <= fake.info.max_rows && logits <= fake.info.max_logit_rows);
    CHECK(logits <= OUT_MAX);
    if (!g->second)
        fake_count.rows += (uint64_t)rows;
    if (rows > fake_count.max_rows && !g->second)
        fake_count.max_rows = rows;
    int64_t from = g->busy_us > fake_now_us ? g->busy_us : fake_now_us;
    b->done_us = g->busy_us =
        from + (g->second ? fake.us_draft : fake.us_step + rows * fake.us_row);
    if (fake.sleep) {
        struct timespec ts = {.tv_nsec = (fake.us_step + rows * fake.us_row) * 1000};
        nanosleep(&ts, NULL);
    }
}

/* A token by reference is what the step begun before this one chose in that row. */
static int32_t token_of(const struct engine *g, int32_t tok)
{
    const struct open_step *before = &g->ring[!g->turn];
    if (tok < 0) {
        CHECK(fake.info.lookahead && tok >= STEP_SAMPLED(before->n_out - 1));
        fake_count.refs++;
        tok = before->out[-1 - tok].token;
    }
    CHECK(tok >= 0 && tok < fake.info.n_vocab);
    return tok;
}

/* A written slot starts its block anew: nobody may rely on the slots behind it. */
static void write_rows(struct engine *g, const struct step_seq *q)
{
    int32_t len = fake.info.block_len;
    for (int32_t i = 0; i < q->n_tok; i++) {
        int32_t pos = q->pos + i, behind = len - 1 - pos % len;
        struct slot *at = slot_of(g, q, pos);
        int32_t tok = token_of(g, q->tok[i]);
        at->hash = hash_next(pos ? slot_of(g, q, pos - 1)->hash : 1, tok);
        at->tok = tok;
        for (int32_t j = 1; j <= behind; j++)
            at[j].tok = POISON;
    }
}

/* Every state is read before one is written, as no order among sequences may matter. */
static void move_states(struct engine *g, const struct step_plan *p)
{
    struct state next[64];
    CHECK(p->n_seq <= 64);
    for (int i = 0; i < p->n_seq; i++) {
        const struct step_seq *q = &p->seq[i];
        next[i] = (struct state){0, 1};
        CHECK(q->state_dst >= 0 && q->state_dst < fake.info.n_state);
        CHECK(q->state_src >= -1 && q->state_src < fake.info.n_state);
        if (q->state_src >= 0)
            next[i] = g->state[q->state_src];
        CHECK(next[i].n == q->pos); /* the state of this place, and of these tokens */
        CHECK(next[i].hash == (q->pos ? slot_of(g, q, q->pos - 1)->hash : 1));
        for (int32_t k = 0; k < q->n_tok; k++)
            next[i].hash = hash_next(next[i].hash, slot_of(g, q, q->pos + k)->tok);
        next[i].n += q->n_tok;
        for (int j = 0; j < p->n_seq; j++)
            CHECK(j == i ||
                  (p->seq[j].state_dst != q->state_dst && p->seq[j].state_src != q->state_dst));
    }
    for (int i = 0; i < p->n_seq; i++)
        g->state[p->seq[i].state_dst] = next[i];
}

static void answer_rows(struct engine *g, struct open_step *b, const struct step_seq *q)
{
    static int32_t back[1 << 16];
    int32_t n = q->pos + q->n_tok;
    CHECK(n <= 1 << 16);
    uint64_t h = 1;
    for (int32_t i = 0; i < n; i++) {
        const struct slot *at = slot_of(g, q, i);
        back[i] = at->tok;
        CHECK(at->tok != POISON);
        h = hash_next(h, at->tok);
        CHECK(at->hash == h); /* computed after these very tokens */
    }
    for (int32_t i = 0; i < q->n_logit; i++) {
        int32_t upto = n - q->n_logit + i + 1;
        const struct sample_row *r = &q->rows[i];
        int32_t unknown = i == q->n_logit - 1 && q->tok[q->n_tok - 1] < 0;
        CHECK(r->position == (uint32_t)upto && r->n_hist == upto - unknown);
        CHECK(r->n_prompt <= r->n_hist);
        CHECK(!memcmp(r->hist, back, (size_t)r->n_hist * sizeof *back));
        if (unknown) /* nothing that the unknown token has a part in */
            CHECK(r->repetition_penalty == 1 && r->presence_penalty == 0 &&
                  r->frequency_penalty == 0 && r->target < 0);
        b->out[b->n_out++] = fake_choose(back, upto, r);
        q->out[i] = (struct sample_out){.token = POISON, .rank = POISON, .bad = true};
    }
}

int eng_step_begin(struct engine *g, const struct step_plan *p, struct err *e)
{
    struct open_step *b = &g->ring[g->turn];
    CHECK(g->n_open <= fake.info.lookahead);
    uint64_t number = g->second ? ++fake_count.draft_steps : ++fake_count.steps;
    uint64_t fails = g->second ? fake.fail_draft : fake.fail_step;
    if (g->failed || (fails && number >= fails)) {
        g->failed = true;
        return err_set(e, ERR_DEVICE, "fake engine: the device fell off");
    }
    b->n_out = 0;
    b->plan = p;
    b->number = number;
    check_limits(g, b, p);
    do_copies(g, p);
    for (int i = 0; i < p->n_seq; i++)
        write_rows(g, &p->seq[i]);
    if (fake.info.n_state > 0)
        move_states(g, p);
    for (int i = 0; i < p->n_seq; i++)
        answer_rows(g, b, &p->seq[i]);
    g->turn = !g->turn;
    g->n_open++;
    return 0;
}

int eng_step_end(struct engine *g, struct err *e)
{
    if (g->failed)
        return err_set(e, ERR_DEVICE, "fake engine: the device fell off");
    CHECK(g->n_open);
    const struct open_step *b = &g->ring[g->n_open == 2 ? g->turn : !g->turn];
    if (fake_now_us < b->done_us)
        fake_now_us = b->done_us;
    g->n_open--;
    fake_count.ends += !g->second;
    if (fake.fail_end && !g->second && b->number >= fake.fail_end) {
        g->failed = true;
        return err_set(e, ERR_DEVICE, "fake engine: the device fell off at the end");
    }
    int at = 0;
    for (int i = 0; i < b->plan->n_seq; i++)
        for (int32_t k = 0; k < b->plan->seq[i].n_logit; k++)
            b->plan->seq[i].out[k] = b->out[at++];
    CHECK(at == b->n_out);
    return 0;
}

int eng_step(struct engine *g, const struct step_plan *p, struct err *e)
{
    CHECK(!g->n_open);
    int rc = eng_step_begin(g, p, e);
    return rc ? rc : eng_step_end(g, e);
}
