/* Planning: which tokens of which running sequences the next step computes. Sequences with one token to go
 * ("decode rows") come first, so that a long prompt never stalls a stream; prompts share what is left of
 * the budget in the order of the policy. Blocks are taken here, as late as possible; when they run
 * out, the sequence that is cheapest to redo is preempted.
 *
 * No deadlock: run[0] is never preempted, and the last free block is kept for it until it is planned,
 * so it progresses in every step and ends at last; then there is another run[0].
 *
 * A step may be planned while the one before is in flight (`lookahead`): a sequence whose next token is not known yet
 * gets its row by reference. Only the device's order is needed for that, not its end. Three things wait
 * for the end: a row that needs the token on the host (penalties count it, grammars follow it, drafts stand behind it),
 * preemption, and forks. If one sequence must
 * wait, all do: the device idles for the host's share of one step, while leaving the row out would halve that
 * stream's speed. A prompt step without samples is not looked beyond either: it is long, and a cancel
 * should not find many of them issued. */
#include "sched/plan.h"

#include "engine/base/mem.h"
#include "sched/sched_impl.h"

#define CHUNK_MIN 16 /* rows of prompt that a step takes whatever the time budget says */

int plan_init(struct plan *p, int cap_seq, int cap_logit)
{
    *p = (struct plan){.cap_seq = cap_seq, .cap_logit = cap_logit};
    size_t n = (size_t)cap_seq, l = (size_t)cap_logit;
    p->seq = mem_calloc(n, sizeof *p->seq);
    p->entry = mem_calloc(n, sizeof *p->entry);
    p->copy = mem_calloc(n, sizeof *p->copy);
    p->copy_of = mem_calloc(n, sizeof *p->copy_of);
    p->row = mem_calloc(l, sizeof *p->row);
    p->out = mem_calloc(l, sizeof *p->out);
    return p->seq && p->entry && p->copy && p->copy_of && p->row && p->out ? 0 : ERR_NOMEM;
}

void plan_free(struct plan *p)
{
    free(p->seq);
    free(p->entry);
    free(p->copy);
    free(p->copy_of);
    free(p->row);
    free(p->out);
    *p = (struct plan){0};
}

static bool planned(const struct sched *s, const struct seq *q)
{
    return q->last_step == s->n_plan;
}

/* The block that the next token goes into must be copied first: others read it too. */
static bool must_copy(const struct sched *s, const struct seq *q)
{
    if (q->n_computed % s->info.block_len == 0)
        return false;
    block_id id = q->block[q->n_block - 1].id;
    int32_t refs = block_refs(s->pool, id);
    if (refs == 1)
        return false;
    for (int i = 0; i < s->plan->n_copy; i++)
        refs -= s->plan->copy_of[i].id == id; /* the plan's own holds read nothing later */
    return refs > 1;
}

/* Computed tokens that nobody else holds: what preempting q throws away (at most). */
static int32_t redo_cost(const struct sched *s, const struct seq *q)
{
    int32_t n = 0;
    for (int32_t i = 0; i < q->n_block; i++)
        n += block_refs(s->pool, q->block[i].id) == 1;
    return n;
}

/* Preempt one sequence that is not in this plan (q itself may be it). false: there is none. */
static bool preempt_one(struct sched *s)
{
    struct seq *victim = NULL;
    int32_t least = 0;
    if (s->n_open) /* its rows in flight would be thrown away; see sched__plan_ahead */
        return false;
    for (int i = 1; i < s->n_run; i++) {
        struct seq *v = s->run[i];
        if (planned(s, v))
            continue;
        int32_t cost = redo_cost(s, v);
        bool better = !victim || cost <= least; /* run[] is old to young: ties go to the youngest */
        if (victim && s->o.policy == SCHED_PRIORITY &&
            v->req->r->priority != victim->req->r->priority)
            better = v->req->r->priority > victim->req->r->priority;
        if (better) {
            victim = v;
            least = cost;
        }
    }
    if (!victim)
        return false;
    sched__seq_preempt(s, victim);
    return true;
}

/* A new block for q, preempting if allowed. False: none to be had (or q was preempted itself). */
static bool new_block(struct sched *s, struct seq *q, bool may_preempt, struct block_ref *out)
{
    struct seq *first = s->run[0];
    int32_t keep = q != first && !planned(s, first) &&
                   (first->n_computed % s->info.block_len == 0 || must_copy(s, first));
    while (block_pool_free(s->pool) <= keep) {
        if (!may_preempt || !preempt_one(s) || q->state != SEQ_RUNNING)
            return false;
    }
    return block_take_new(s->pool, out) == 0;
}

/* Make block[n_computed / block_len] of q writable. */
static bool make_writable(struct sched *s, struct seq *q, bool may_preempt)
{
    struct plan *p = s->plan;
    struct block_ref own;
    if (!q->n_block || q->n_computed % s->info.block_len == 0)
        return true;
    struct block_ref *last = &q->block[q->n_block - 1];
    while (must_copy(s, q)) {
        int n_run = s->n_run;
        if (block_pool_free(s->pool) == 0 && may_preempt && preempt_one(s)) {
            if (q->state != SEQ_RUNNING)
                return false;
            CHECK(s->n_run < n_run);
            continue; /* the victim may have been the one we share with */
        }
        if (!new_block(s, q, may_preempt, &own))
            return false;
        p->copy[p->n_copy] = (struct step_copy){.src = last->id, .dst = own.id};
        p->copy_of[p->n_copy++] = *last;
        *last = own;
        return true;
    }
    if (s->prefix)
        prefix_forget(s->prefix, last->id); /* a full block that we hold only in part */
    return true;
}

/* Blocks for up to n more tokens; how many fit (0: none, or q was preempted). */
static int32_t make_room(struct sched *s, struct seq *q, int32_t n, bool may_preempt)
{
    int32_t len = s->info.block_len;
    if (!make_writable(s, q, may_preempt))
        return 0;
    while ((int64_t)q->n_block * len < (int64_t)q->n_computed + n) {
        struct block_ref b;
        /* Nobody is thrown out for more than the next token. */
        bool force = may_preempt && q->n_block * len == q->n_computed;
        if (!new_block(s, q, force, &b)) {
            n = q->state == SEQ_RUNNING ? q->n_block * len - q->n_computed : 0;
            break;
        }
        q->block[q->n_block++] = b;
    }
    return n;
}

/* Leading rows of the prompt whose next token is known and has to be scored. */
static bool scores_prompt(const struct seq *q)
{
    const struct request *r = q->req->r;
    return !q->choice && r->prompt_logprobs >= 0 && q->n_scored < r->n_prompt - 1;
}

/* The row that chooses the token behind `ahead` drafts. */
static struct sample_row sampling_row(const struct sched *s, const struct seq *q, int ahead)
{
    int32_t n_more = q->n_coming + ahead;
    const struct request *r = q->req->r;
    const struct req_sampling *p = &r->samp;
    return (struct sample_row){
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .repetition_penalty = p->repetition_penalty,
        .presence_penalty = p->presence_penalty,
        .frequency_penalty = p->frequency_penalty,
        .seed = p->seed + (uint64_t)q->choice,
        .position = (uint32_t)(q->n_known + n_more),
        .hist = q->tok,
        .n_prompt = r->n_prompt,
        .n_hist = q->n_known + ahead,
        .bias = p->bias,
        .n_bias = p->n_bias,
        .ban = r->stop_id,
        .n_ban = q->n_output + n_more < r->min_tokens ? r->n_stop_id : 0,
        .mask = q->gram                           ? sched__gram_mask(s, q, ahead)
                : r->think && q->think.force >= 0 ? q->mask
                                                  : p->mask,
        .target = -1,
        .n_top = p->n_top,
    };
}

/* Plain distribution, given token: the row at `pos` is asked about tok[pos + 1]. */
static struct sample_row scoring_row(const struct seq *q, int32_t pos)
{
    return (struct sample_row){
        .top_p = 1,
        .repetition_penalty = 1,
        .position = (uint32_t)pos + 1,
        .hist = q->tok,
        .n_prompt = pos + 1,
        .n_hist = pos + 1,
        .target = q->tok[pos + 1],
        .n_top = q->req->r->prompt_logprobs,
    };
}

/* Returns whether the last row chooses a token; with drafts, those before it do too. */
static bool add_rows(const struct sched *s, struct step_seq *at, const struct seq *q, int32_t n,
                     int n_draft)
{
    struct plan *p = s->plan;
    n -= n_draft;
    int32_t end = q->n_computed + n, first = end;
    if (scores_prompt(q))
        first = q->n_scored > q->n_computed ? q->n_scored : q->n_computed;
    if (first > end)
        first = end;
    bool samples = q->req->max_out > 0 && end == q->n_known + q->n_coming;
    int32_t last_scored = end < q->req->r->n_prompt - 1 ? end : q->req->r->n_prompt - 1;
    at->rows = p->row + p->n_logit;
    at->out = p->out + p->n_logit;
    for (int32_t pos = first; pos < last_scored; pos++)
        p->row[p->n_logit++] = scoring_row(q, pos);
    CHECK(samples || !n_draft);
    for (int i = 0; samples && i <= n_draft; i++)
        p->row[p->n_logit++] = sampling_row(s, q, i);
    at->n_logit = (int32_t)(p->row + p->n_logit - at->rows);
    CHECK(p->n_logit <= p->cap_logit && at->n_logit <= n + n_draft);
    return samples;
}

static int32_t to_go(const struct seq *q)
{
    return sched__seq_goal(q) - q->n_computed;
}

/* Put up to n tokens of q into the plan; returns how many. Those beyond what q has to go are drafts. */
static int32_t plan_seq(struct sched *s, struct seq *q, int32_t n, bool may_preempt)
{
    struct plan *p = s->plan;
    int32_t go = to_go(q);
    if (q->state != SEQ_RUNNING || planned(s, q) || p->n_seq == p->cap_seq)
        return 0;
    int32_t left = p->cap_logit - p->n_logit;
    if (scores_prompt(q)) { /* every row from n_scored on has logits */
        int32_t skip = q->n_scored > q->n_computed ? q->n_scored - q->n_computed : 0;
        n = n < left + skip ? n : left + skip;
    } else if (q->req->max_out && n >= go) {
        n = n - go < left ? n : go - 1 + left;
    }
    n = sched__state_chunk(s, q, n);
    if (n > 0)
        n = make_room(s, q, n, may_preempt || q == s->run[0]);
    if (n <= 0)
        return 0;
    struct step_seq *at = &p->seq[p->n_seq];
    struct plan_entry *en = &p->entry[p->n_seq++];
    bool by_ref = q->n_computed == q->n_known; /* the only token to go is the coming one */
    *en = (struct plan_entry){.q = q, .n_tok = n, .first_logit = p->n_logit};
    en->n_draft = n > go ? n - go : 0;
    *at = (struct step_seq){.tok = by_ref ? &q->ref : q->tok + q->n_computed,
                            .n_tok = n,
                            .pos = q->n_computed,
                            .block = &q->block[0].id,
                            .n_block = q->n_block};
    sched__state_plan(s, q, at);
    en->samples = add_rows(s, at, q, n, en->n_draft);
    p->n_tok += n;
    q->last_step = s->n_plan;
    return n;
}

/* Insertion sort of list[n]: few entries, nearly sorted from step to step. */
static void sort(const struct sched *s, struct seq **list, int n, bool decode)
{
    for (int i = 1; i < n; i++) {
        struct seq *q = list[i];
        int at = i;
        for (; at > 0; at--) {
            struct seq *b = list[at - 1];
            bool before = decode ? q->last_step < b->last_step
                                 : q->req != b->req &&
                                       sched__req_before(s, q->req, b->req, to_go(q), to_go(b));
            if (!before)
                break;
            list[at] = b;
        }
        list[at] = q;
    }
}

/* Rows that prompts may have beside n_dec decode rows. */
static int32_t prompt_budget(const struct sched *s, int32_t left, int32_t n_dec)
{
    if (!s->o.step_us || !n_dec || s->us_per_row <= 0)
        return left;
    double rows = (double)s->o.step_us / s->us_per_row - n_dec;
    int32_t most = rows < CHUNK_MIN ? CHUNK_MIN : rows > left ? left : (int32_t)rows;
    return most < left ? most : left;
}

void sched__plan(struct sched *s)
{
    struct plan *p = s->plan = &s->ring[(s->first + s->n_open) % 2];
    p->n_seq = p->n_copy = p->n_logit = 0;
    p->n_tok = 0;
    p->decode = false;
    s->n_plan++;
    int n_dec = 0, n_all = 0;
    for (int i = 0; i < s->n_run; i++)
        if (to_go(s->run[i]) == 1)
            s->list[n_dec++] = s->run[i];
    n_all = n_dec;
    for (int i = 0; i < s->n_run; i++)
        if (to_go(s->run[i]) > 1)
            s->list[n_all++] = s->run[i];
    sort(s, s->list, n_dec, true);
    sort(s, s->list + n_dec, n_all - n_dec, false);
    /* Prompts keep an eighth of the rows, or they would starve under a budget of few rows. */
    int32_t budget = s->o.step_tokens, kept = n_all > n_dec ? (budget + 7) / 8 : 0;
    if (kept >= budget)
        kept = 0;
    /* A step with prompts in it is long whatever else is in it, and drafts would take rows from them. */
    p->decode = n_all == n_dec;
    sched__spec_choose(s, s->list, n_dec);
    for (int i = 0; i < n_dec && p->n_tok < budget - kept; i++) {
        int32_t n = 1 + (s->list[i]->spec ? s->list[i]->spec->n_draft : 0);
        int32_t left = budget - kept - p->n_tok;
        plan_seq(s, s->list[i], n < left ? n : left, true);
    }
    int32_t left = prompt_budget(s, budget - p->n_tok, p->n_tok);
    for (int i = n_dec; i < n_all && left > 0; i++) {
        int32_t want = to_go(s->list[i]), got;
        left -= got = plan_seq(s, s->list[i], want < left ? want : left, false);
        if (got == want && s->o.fill_rows && p->n_tok >= s->o.fill_rows)
            break; /* more rows would bring nobody's first token sooner, and this one's later */
    }
}

static bool has_penalty(const struct request *r)
{
    const struct req_sampling *p = &r->samp;
    return p->repetition_penalty < 1 || p->repetition_penalty > 1 || p->presence_penalty < 0 ||
           p->presence_penalty > 0 || p->frequency_penalty < 0 || p->frequency_penalty > 0;
}

/* Whether a row by reference can be had, and nobody has to wait. Bans before min_tokens and the
 * mask depend on how many tokens there are, not on which. */
static bool gains(struct sched *s)
{
    bool any = false;
    for (int i = 0; i < s->n_run; i++) {
        const struct seq *q = s->run[i];
        if (q->n_flight && q->n_computed > q->n_known) /* nobody knows yet which drafts are right */
            return false;
        if (!q->n_coming || to_go(q) != 1)
            continue;
        if (sched__spec_waits(s, q))
            return false;
        if (has_penalty(q->req->r) || q->gram ||
            sched__thinks(q)) /* which token may come depends on the one before */
            return false;
        any = true;
    }
    return any;
}

/* Every decode row finds its block without preemption, and so does run[0]. */
static bool roomy(const struct sched *s)
{
    int32_t need = 1;
    for (int i = 0; i < s->n_run; i++) {
        const struct seq *q = s->run[i];
        if (to_go(q) == 1)
            need += q->n_computed % s->info.block_len == 0 || must_copy(s, q);
    }
    return need <= block_pool_free(s->pool);
}

bool sched__plan_ahead(struct sched *s)
{
    if (!s->info.lookahead || !gains(s))
        return false;
    sched__admit(s);
    if (!roomy(s))
        return false;
    sched__plan(s);
    return s->plan->n_seq > 0;
}

void sched__plan_forget(struct sched *s, struct seq *q)
{
    for (int k = 0; q->n_flight && k < s->n_open; k++) {
        struct plan *p = &s->ring[(s->first + k) % 2];
        for (int i = 0; i < p->n_seq; i++) {
            if (p->entry[i].q != q)
                continue;
            p->entry[i].q = NULL;
            q->n_flight--;
        }
    }
    CHECK(!q->n_flight);
}
