/* A sequence's states, memory and blocks. See sched_impl.h. */
#include "engine/base/mem.h"
#include "sched/sched_impl.h"

_Static_assert(sizeof(struct block_ref) == sizeof(block_id), "block tables go to the engine as is");

/* legal[from][to] */
static const bool legal[SEQ_STATES][SEQ_STATES] = {
    [SEQ_WAITING] = {[SEQ_RUNNING] = true, [SEQ_DONE] = true},
    [SEQ_RUNNING] = {[SEQ_PREEMPTED] = true, [SEQ_DONE] = true},
    [SEQ_PREEMPTED] = {[SEQ_RUNNING] = true, [SEQ_DONE] = true},
    [SEQ_DONE] = {0},
};

static bool is_ready(enum seq_state st)
{
    return st == SEQ_WAITING || st == SEQ_PREEMPTED;
}

void sched__seq_move(struct seq *q, enum seq_state to)
{
    CHECK(legal[q->state][to]);
    q->req->n_ready += is_ready(to) - is_ready(q->state);
    q->req->n_live -= to == SEQ_DONE;
    q->state = to;
}

int32_t sched__seq_goal(const struct seq *q)
{
    if (q->req->max_out > 0) /* the last token of an answer is not computed, whatever it is */
        return q->n_known + q->n_coming - (q->n_output + q->n_coming >= q->req->max_out);
    /* Scoring only: the last prompt token predicts nothing that is asked for, and further choices
     * have nothing to add. */
    return q->choice ? 0 : q->req->r->n_prompt - 1;
}

int sched__seq_memory(const struct sched *s, struct seq *q)
{
    const struct request *r = q->req->r;
    if (q->tok)
        return 0;
    q->cap = r->n_prompt + q->req->max_out;
    q->cap_block = sched__blocks(s, q->cap);
    q->tok = mem_alloc((size_t)q->cap * sizeof *q->tok);
    q->block = mem_calloc((size_t)q->cap_block, sizeof *q->block);
    if (!q->tok || !q->block) {
        free(q->tok);
        free(q->block);
        q->tok = NULL;
        q->block = NULL;
        return ERR_NOMEM;
    }
    memcpy(q->tok, r->prompt, (size_t)r->n_prompt * sizeof *q->tok);
    return 0;
}

/* Whether a takes precedence over b among running sequences: a fixed order, so that the first of it always
 * progresses. */
static bool senior(const struct sched *s, const struct seq *a, const struct seq *b)
{
    if (s->o.policy == SCHED_PRIORITY && a->req->r->priority != b->req->r->priority)
        return a->req->r->priority < b->req->r->priority;
    if (a->req != b->req)
        return a->req->order < b->req->order;
    return a->choice < b->choice;
}

void sched__seq_start(struct sched *s, struct seq *q)
{
    CHECK(s->n_run < s->o.max_running);
    sched__seq_move(q, SEQ_RUNNING);
    int at = s->n_run++;
    for (; at > 0 && senior(s, q, s->run[at - 1]); at--)
        s->run[at] = s->run[at - 1];
    s->run[at] = q;
}

/* From the last block to the first: a chain's end is evicted before what it hangs on. A step in flight may still use
 * them: whatever takes one of them next begins later, so runs later. */
static void drop_blocks(struct sched *s, struct seq *q)
{
    while (q->n_block)
        block_drop(s->pool, &q->block[--q->n_block]);
    q->n_computed = q->n_final = 0;
    q->n_indexed = 0;
}

void sched__seq_trim(struct sched *s, struct seq *q, int32_t n)
{
    q->n_computed -= n;
    while (q->n_block > sched__blocks(s, q->n_computed))
        block_drop(s->pool, &q->block[--q->n_block]);
}

static void leave_slot(struct sched *s, struct seq *q)
{
    int at = 0;
    while (s->run[at] != q)
        CHECK(++at < s->n_run);
    memmove(s->run + at, s->run + at + 1, (size_t)(s->n_run - at - 1) * sizeof(struct seq *));
    s->n_run--;
}

void sched__seq_preempt(struct sched *s, struct seq *q)
{
    CHECK(!q->n_flight && !q->n_coming);
    sched__seq_move(q, SEQ_PREEMPTED);
    leave_slot(s, q);
    sched__state_leave(s, q);
    drop_blocks(s, q);
    sched__model_drop(s, q);
    q->avail_tried = -1;
    q->req->n_preempted++;
    s->st.preemptions++;
}

void sched__seq_end(struct sched *s, struct seq *q)
{
    if (q->state == SEQ_RUNNING)
        leave_slot(s, q);
    sched__plan_forget(s, q);
    sched__state_leave(s, q);
    drop_blocks(s, q);
    q->n_coming = 0;
    sched__seq_move(q, SEQ_DONE);
    q->req->n_output += q->n_output;
    free(q->tok);
    free(q->block);
    q->tok = NULL;
    q->block = NULL;
    sched__gram_close(q);
    sched__spec_close(s, q);
}

void sched__seq_index(struct sched *s, struct seq *q)
{
    int32_t len = s->info.block_len, n_full = q->n_final / len;
    if (!s->prefix)
        return;
    for (; q->n_indexed < n_full; q->n_indexed++) {
        int32_t i = q->n_indexed;
        struct block_ref *own = &q->block[i];
        block_id parent = i ? q->block[i - 1].id : 0;
        block_id id = prefix_insert(s->prefix, parent, own->id, q->req->r->cache_salt,
                                    q->tok + (size_t)i * (size_t)len);
        if (!id || id == own->id)
            continue;
        /* Somebody computed the same content before: hold that block, so that the chain stays whole
         * and the copy's memory comes back. */
        struct block_ref first = block_take(s->pool, id);
        block_drop(s->pool, own);
        *own = first;
    }
    sched__state_indexed(s, q);
}

void sched__seq_distrust(struct sched *s, struct seq *q)
{
    for (int32_t i = 0; s->prefix && i < q->n_block; i++)
        prefix_forget(s->prefix, q->block[i].id);
}
