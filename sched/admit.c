/* Admission: which waiting sequences get a slot. A sequence starts when its known tokens fit into
 * the pool beside what the running ones still need, plus a reserve: each sequence is expected to use
 * 1/8 of its possible answer. More is over-commitment, and preemption settles it. With nothing running the
 * first in line always fits, because sched_submit refused what never can. */
#include "sched/sched_impl.h"

#define COMING 4 /* blocks of a shared prefix that are worth waiting for */

static int32_t rest(const struct seq *q)
{
    return q->n_known - q->n_computed;
}

bool sched__req_before(const struct sched *s, const struct sreq *a, const struct sreq *b,
                       int32_t rest_a, int32_t rest_b)
{
    bool aged_a = s->now - a->entered_us > s->o.age_us;
    bool aged_b = s->now - b->entered_us > s->o.age_us;
    if (aged_a != aged_b)
        return aged_a;
    if (!aged_a && s->o.policy == SCHED_PRIORITY && a->r->priority != b->r->priority)
        return a->r->priority < b->r->priority;
    if (!aged_a && s->o.policy == SCHED_SHORTEST && rest_a != rest_b)
        return rest_a < rest_b;
    return a->order < b->order;
}

/* A running sibling whose blocks hold the prompt but its last token; NULL. */
static struct seq *fork_source(const struct sreq *r, bool *coming)
{
    *coming = false;
    for (int i = 0; i < r->r->n; i++) {
        struct seq *q = (struct seq *)&r->seq[i];
        if (q->state != SEQ_RUNNING)
            continue;
        if (q->n_final >= r->r->n_prompt - 1)
            return q;
        *coming = true;
    }
    return NULL;
}

/* Whether a running sequence is about to index more of r's prompt: r then waits, or both would compute it. */
static bool prefix_coming(const struct sched *s, const struct sreq *q)
{
    const struct request *r = q->r;
    const int32_t len = s->info.block_len, n = (r->n_prompt - 1) / len;
    if (!s->prefix || s->states || r->prompt_logprobs >= 0)
        return false;
    for (int i = 0; i < s->n_run; i++) {
        const struct seq *v = s->run[i];
        const struct request *o = v->req->r;
        int32_t have = v->n_indexed, most = o->n_prompt / len, b = 0;
        if (most > n)
            most = n;
        if (have + COMING > most || o->cache_salt != r->cache_salt ||
            !sched__req_before(s, v->req, q, rest(v),
                               r->n_prompt)) /* it may itself wait for long */
            continue;
        while (b < have + COMING &&
               !memcmp(r->prompt + b * len, o->prompt + b * len, (size_t)len * sizeof *o->prompt))
            b++;
        if (b == have + COMING)
            return true;
    }
    return false;
}

/* The choice of r to start next; NULL when all run, or should wait for a sibling's or another's prompt. */
static struct seq *startable(const struct sched *s, const struct sreq *r)
{
    if (!r->n_ready || r->ended)
        return NULL;
    const struct seq *q = r->seq;
    while (q->state != SEQ_WAITING && q->state != SEQ_PREEMPTED)
        q++;
    bool coming;
    if (q->n_known == r->r->n_prompt && !fork_source(r, &coming) && (coming || prefix_coming(s, r)))
        return NULL;
    return (struct seq *)q;
}

static struct seq *next_in_line(const struct sched *s)
{
    struct seq *best = NULL;
    for (struct sreq *r = s->head; r; r = r->next) {
        struct seq *q = startable(s, r);
        if (q && (!best || sched__req_before(s, r, best->req, rest(q), rest(best))))
            best = q;
    }
    return best;
}

/* Blocks that q, with n_known tokens and n_have blocks, should be sure of beyond n_have. */
static int32_t expected(const struct sched *s, const struct seq *q, int32_t n_have)
{
    int32_t now = sched__blocks(s, q->n_known);
    int32_t growth = sched__blocks(s, q->req->r->n_prompt + q->req->max_out) - now;
    int32_t reserve = growth ? 1 + growth / 8 : 0;
    return now + (reserve < growth ? reserve : growth) - n_have;
}

static bool scoring(const struct seq *q)
{
    const struct request *r = q->req->r;
    return !q->choice && r->prompt_logprobs >= 0 && q->n_scored < r->n_prompt - 1;
}

/* Longest reusable prefix goes to q->block as bare numbers; *in_use counts those held by others. *snapshot: the state
 * behind it. */
static int32_t match(const struct sched *s, struct seq *q, int32_t *in_use, int32_t *snapshot)
{
    *in_use = 0;
    *snapshot = -1;
    if (!s->prefix)
        return 0;
    int32_t limit = sched__seq_goal(q);
    if (q->req->max_out)
        limit--; /* the last token is always computed: its logits are needed */
    if (scoring(q) && q->n_scored < limit)
        limit = q->n_scored; /* hits have no log-probabilities */
    if (limit <= 0)
        return 0;
    int32_t n = prefix_match(s->prefix, q->req->r->cache_salt, q->tok, limit / s->info.block_len,
                             &q->block[0].id);
    int32_t all = n;
    n = sched__state_match(s, q, n, snapshot);
    for (int32_t i = n; i < all; i++)
        q->block[i].id = 0;
    for (int32_t i = 0; i < n; i++)
        *in_use += block_refs(s->pool, q->block[i].id) > 0;
    return n;
}

static void started(struct sched *s, struct seq *q, bool forked)
{
    struct sreq *r = q->req;
    if (s->prefix && !forked && q->state == SEQ_WAITING) {
        s->st.prefix_queries += (uint64_t)q->n_known;
        s->st.prefix_hits += (uint64_t)q->n_computed;
    }
    if (r->n_cached < 0)
        r->n_cached = q->n_computed;
    if (!r->scheduled_us) {
        r->scheduled_us = s->now;
        s->n_unstarted_tok -= r->r->n_prompt;
    }
    sched__seq_start(s, q);
}

/* Blocks that are there for the taking beside what the running sequences are expected to use. */
static int32_t available(const struct sched *s)
{
    int32_t n = block_pool_free(s->pool);
    for (int i = 0; i < s->n_run; i++)
        n -= expected(s, s->run[i], s->run[i]->n_block);
    return n;
}

/* 0, ERR_FULL (does not fit now), ERR_NOMEM. */
static int try_start(struct sched *s, struct seq *q)
{
    int32_t avail = available(s), in_use;
    if (s->n_run && avail <= q->avail_tried)
        return ERR_FULL;
    if (sched__seq_memory(s, q))
        return ERR_NOMEM;
    bool coming;
    int32_t snapshot, n_share = match(s, q, &in_use, &snapshot),
                      computed = n_share * s->info.block_len;
    /* A state can't go back to the prompt: siblings begin at its last snapshot. */
    const struct seq *from =
        scoring(q) || !q->req->max_out || s->states ? NULL : fork_source(q->req, &coming);
    if (from && computed < q->req->r->n_prompt - 1) {
        computed = q->req->r->n_prompt - 1;
        n_share = sched__blocks(s, computed);
        in_use = computed / s->info.block_len; /* a partial last block will be copied */
    } else {
        from = NULL;
    }
    if (s->n_run && avail < expected(s, q, in_use)) {
        memset(q->block, 0, (size_t)q->cap_block * sizeof *q->block);
        q->avail_tried = avail;
        return ERR_FULL;
    }
    if (s->states && sched__state_start(s, q, snapshot)) {
        memset(q->block, 0, (size_t)q->cap_block * sizeof *q->block);
        /* Alone, and the only slot holds the snapshot: the slot is worth more. */
        if (s->n_run || snapshot < 0 || sched__state_start(s, q, -1))
            return ERR_FULL;
        n_share = computed = 0;
    }
    for (int32_t i = 0; i < n_share; i++)
        q->block[i] = block_take(s->pool, from ? from->block[i].id : q->block[i].id);
    for (int32_t i = n_share; from && i < q->cap_block; i++)
        q->block[i].id = 0; /* a shorter match was noted there */
    q->n_block = n_share;
    q->n_computed = q->n_final = computed;
    q->n_indexed = computed / s->info.block_len;
    started(s, q, from != NULL);
    return 0;
}

void sched__admit(struct sched *s)
{
    while (s->n_run < s->o.max_running) {
        struct seq *q = next_in_line(s);
        if (!q)
            break;
        int rc = try_start(s, q);
        if (rc == ERR_FULL)
            break;
        if (rc) {
            sched__req_end(s, q->req, rc, "no memory for the tokens of this request");
            continue;
        }
        rc = sched__spec_open(s, q);
        if (rc) {
            sched__req_end(s, q->req, rc, "no memory for the guesses of this request");
            continue;
        }
        rc = sched__gram_open(s, q);
        if (rc) {
            sched__req_end(s, q->req, rc == ERR_NOMEM ? rc : ERR_INVAL, sched__gram_error(rc));
            continue;
        }
        if (q->n_computed >= sched__seq_goal(q)) /* nothing to compute: max_tokens 0 */
            sched__emit_finish(s, q, FINISH_LENGTH, -1);
    }
}
