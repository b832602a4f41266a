/* See draft.h. */
#include "sched/draft.h"

#include <stdlib.h>

#include "engine/base/mem.h"

#define SHORT 8 /* tokens that the step of a first draft takes in beside */

struct drafter {
    struct engine *g;
    struct eng_info info;
    int32_t n_vocab; /* tokens that both know */
    struct block_pool *pool;
    struct step_seq seq[DRAFT_SEQS];
    struct sample_row row[DRAFT_SEQS];
    struct sample_out out[DRAFT_SEQS];
    int job[DRAFT_SEQS]; /* whose entry it is */
    struct step_plan plan;
};

int drafter_open(struct drafter **out, struct engine *g, int32_t n_vocab, struct err *e)
{
    const struct eng_info *i = eng_info(g);
    if (i->n_vocab < 1 || i->n_block < 2 || i->max_seqs < DRAFT_SEQS ||
        i->max_rows < DRAFT_SEQS * SHORT || i->max_logit_rows < DRAFT_SEQS)
        return err_set(e, ERR_INVAL, "draft model: no language model, or no room for %d sequences",
                       DRAFT_SEQS);
    if (i->n_state > 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "draft model: it has recurrent states, which can't be taken back");
    struct drafter *d = mem_calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ERR_NOMEM, "draft model: no memory");
    d->g = g;
    d->info = *i;
    d->n_vocab = n_vocab < i->n_vocab ? n_vocab : i->n_vocab;
    int rc = block_pool_open(&d->pool, i->n_block, NULL, NULL, e);
    if (rc) {
        free(d);
        return rc;
    }
    *out = d;
    return 0;
}

void drafter_close(struct drafter *d)
{
    if (!d)
        return;
    block_pool_close(d->pool);
    free(d);
}

void drafter_drop(struct drafter *d, struct draft_seq *x)
{
    while (x->n_block)
        block_drop(d->pool, &x->block[--x->n_block]);
    free(x->block);
    *x = (struct draft_seq){0};
}

/* Blocks for n tokens; the table is made when it is first needed. */
static bool make_room(struct drafter *d, struct draft_job *j, int32_t n)
{
    int32_t len = d->info.block_len, need = (n + len - 1) / len;
    struct draft_seq *x = j->x;
    if (n > d->info.n_ctx)
        return false;
    if (!x->block) {
        x->cap_block = (j->cap + len - 1) / len;
        x->block = mem_calloc((size_t)x->cap_block, sizeof *x->block);
    }
    if (!x->block || need > x->cap_block)
        return false;
    for (; x->n_block < need; x->n_block++)
        if (block_take_new(d->pool, &x->block[x->n_block]))
            return false;
    return true;
}

static bool knows_all(const struct drafter *d, const int32_t *tok, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (tok[i] >= d->n_vocab)
            return false;
    return true;
}

/* Put the job's tokens [n_done, n_done + n) into the plan. */
static void add(struct drafter *d, struct draft_job *j, int number, int32_t n, bool choose)
{
    struct draft_seq *x = j->x;
    int at = d->plan.n_seq;
    if (!make_room(d, j, x->n_done + n) || !knows_all(d, j->tok + x->n_done, n)) {
        j->ended = true;
        return;
    }
    d->job[at] = number;
    d->row[at] = (struct sample_row){.top_p = 1,
                                     .repetition_penalty = 1,
                                     .position = (uint32_t)(x->n_done + n),
                                     .hist = j->tok,
                                     .n_prompt = x->n_done + n,
                                     .n_hist = x->n_done + n,
                                     .target = -1,
                                     .n_top = -1};
    d->seq[at] =
        (struct step_seq){.tok = j->tok + x->n_done,
                          .n_tok = n,
                          .pos = x->n_done,
                          .block = &x->block[0].id,
                          .n_block = (x->n_done + n + d->info.block_len - 1) / d->info.block_len,
                          .state_src = -1,
                          .state_dst = -1,
                          .n_logit = choose,
                          .rows = &d->row[at],
                          .out = &d->out[at]};
    d->plan.n_seq++;
}

static int run(struct drafter *d, struct draft_job *job, struct err *e)
{
    int rc = d->plan.n_seq ? eng_step(d->g, &d->plan, e) : 0;
    for (int i = 0; !rc && i < d->plan.n_seq; i++)
        job[d->job[i]].x->n_done += d->seq[i].n_tok;
    return rc;
}

int drafter_catch_up(struct drafter *d, struct draft_job *job, int n, struct err *e)
{
    int32_t left = d->info.max_rows;
    d->plan = (struct step_plan){.seq = d->seq};
    for (int i = 0; i < n; i++) {
        int32_t more = job[i].n_known - job[i].x->n_done;
        if (job[i].ended || more <= SHORT)
            continue;
        more = more - 1 < left ? more - 1 : left; /* the last one belongs to the first draft */
        if (more > 0)
            add(d, &job[i], i, more, false);
        left -= more;
    }
    int rc = run(d, job, e);
    for (int i = 0; i < n; i++)
        if (job[i].n_known - job[i].x->n_done > SHORT)
            job[i].ended = true;
    return rc;
}

int drafter_step(struct drafter *d, struct draft_job *job, int n, struct err *e)
{
    d->plan = (struct step_plan){.seq = d->seq};
    for (int i = 0; i < n; i++)
        if (!job[i].ended)
            add(d, &job[i], i, job[i].n_known + job[i].n - job[i].x->n_done, true);
    int rc = run(d, job, e);
    for (int i = 0; !rc && i < d->plan.n_seq; i++) {
        struct draft_job *j = &job[d->job[i]];
        const struct sample_out *o = &d->out[i];
        j->ended = o->bad || o->token < 0 || o->token >= d->n_vocab;
        if (!j->ended)
            j->tok[j->n_known + j->n++] = o->token;
    }
    return rc;
}
