/* A sequence's recurrent state. It owns a slot while it runs. A step reads the state from `src` and leaves it in `slot`:
 *
 *   start           src = -1 (zeros), or the snapshot of the last block of a hit, held until the step has begun
 *   from then on    src = slot
 *   at a boundary   the slot becomes a snapshot and the next step writes another one: nothing is copied for it
 *
 * The block that a snapshot belongs to may be indexed only after the step that computes it is over; until then the slot
 * waits as `kept`. Snapshots are taken at the last full block of a prompt, at every STATE_EVERY-th block (chunks end
 * there), and behind the last full block of an answer, where the one before is given up. */
#include "sched/sched_impl.h"

#define STATE_EVERY 32 /* blocks */

void sched__state_init(struct seq *q)
{
    q->rec = (struct seq_recurrent){.slot = -1, .src = -1, .kept = -1};
}

/* Tokens up to which an equal prompt could be taken over. */
static int32_t prompt_end(const struct sched *s, const struct seq *q)
{
    return (q->req->r->n_prompt - 1) / s->info.block_len * s->info.block_len;
}

int32_t sched__state_chunk(const struct sched *s, const struct seq *q, int32_t n)
{
    int32_t every = STATE_EVERY * s->info.block_len, at = q->n_computed, end = prompt_end(s, q);
    if (!s->states || !s->prefix || n <= 0)
        return n;
    int32_t next = (at / every + 1) * every;
    if (at < end && end < next)
        next = end;
    return n < next - at ? n : next - at;
}

int sched__state_start(struct sched *s, struct seq *q, int32_t snapshot)
{
    struct seq_recurrent *t = &q->rec;
    if (snapshot >= 0)
        state_hold(s->states, snapshot);
    t->slot = state_take(s->states);
    if (t->slot < 0) {
        state_drop(s->states, snapshot);
        return ERR_FULL;
    }
    t->src = snapshot;
    return 0;
}

/* The last token computed ends a block whose state is worth keeping. */
static bool worth(const struct sched *s, const struct seq *q, bool *rolling)
{
    int32_t len = s->info.block_len, n = q->n_computed;
    *rolling = n > q->req->r->n_prompt && n % (STATE_EVERY * len);
    return s->prefix && n && n % len == 0 &&
           (n > q->req->r->n_prompt || n == prompt_end(s, q) || n % (STATE_EVERY * len) == 0);
}

/* Publish `slot` as the state behind block number i of q, if that is indexed. */
static void publish(struct sched *s, struct seq *q, int32_t slot, int32_t i, bool rolling)
{
    struct seq_recurrent *t = &q->rec;
    block_id id = q->block[i].id;
    if (!block_indexed(s->pool, id))
        return;
    if (rolling && t->rolling && t->rolling != id)
        state_retire(s->states, t->rolling);
    state_publish(s->states, slot, id);
    t->rolling = rolling ? id : 0;
}

void sched__state_indexed(struct sched *s, struct seq *q)
{
    struct seq_recurrent *t = &q->rec;
    if (!s->states || t->kept < 0 || q->n_indexed <= t->kept_at)
        return;
    publish(s, q, t->kept, t->kept_at, t->kept_rolling);
    state_drop(s->states, t->kept);
    t->kept = -1;
}

void sched__state_plan(struct sched *s, struct seq *q, struct step_seq *at)
{
    struct seq_recurrent *t = &q->rec;
    bool rolling;
    if (!s->states)
        return;
    if (t->src == t->slot && t->kept < 0 && worth(s, q, &rolling)) {
        int32_t fresh = state_take(s->states);
        if (fresh >= 0) {
            state_hold(s->states, t->slot); /* as src; the hold it had goes with `kept` */
            t->kept = t->slot;
            t->kept_at = q->n_computed / s->info.block_len - 1;
            t->kept_rolling = rolling;
            t->slot = fresh;
            sched__state_indexed(s, q);
        }
    }
    at->state_src = t->src;
    at->state_dst = t->slot;
}

void sched__state_begun(struct sched *s, struct seq *q)
{
    struct seq_recurrent *t = &q->rec;
    if (!s->states || t->src == t->slot)
        return;
    state_drop(s->states, t->src);
    t->src = t->slot;
}

void sched__state_leave(struct sched *s, struct seq *q)
{
    struct seq_recurrent *t = &q->rec;
    bool rolling;
    if (!s->states || t->slot < 0)
        return;
    sched__state_indexed(s, q);
    int32_t full = q->n_computed / s->info.block_len;
    if (t->src == t->slot && q->n_final == q->n_computed && q->n_indexed == full &&
        worth(s, q, &rolling))
        publish(s, q, t->slot, full - 1, rolling);
    if (t->src != t->slot)
        state_drop(s->states, t->src);
    state_drop(s->states, t->kept);
    state_drop(s->states, t->slot);
    sched__state_init(q);
}

int32_t sched__state_match(const struct sched *s, const struct seq *q, int32_t n, int32_t *snapshot)
{
    *snapshot = -1;
    while (s->states && n > 0 && (*snapshot = state_find(s->states, q->block[n - 1].id)) < 0)
        n--;
    return n;
}
