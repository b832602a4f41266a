/* Invariants between steps, for tests. */
#include "engine/base/mem.h"
#include "sched/sched_impl.h"

static int check_seq(const struct sched *s, const struct seq *q, struct err *e)
{
    bool running = q->state == SEQ_RUNNING;
    unsigned long long id = (unsigned long long)q->req->r->id;
    if (q->n_computed > q->n_known + q->n_coming || (q->tok && q->n_known > q->cap))
        return err_set(e, ERR_INTERNAL, "req %llu.%d: computed %d, known %d, cap %d", id, q->choice,
                       q->n_computed, q->n_known, q->cap);
    if (q->n_block != sched__blocks(s, q->n_computed) || (!running && q->n_block))
        return err_set(e, ERR_INTERNAL, "req %llu.%d: %d blocks for %d tokens in state %d", id,
                       q->choice, q->n_block, q->n_computed, (int)q->state);
    if (q->n_final > q->n_computed || (!q->n_flight && q->n_final != q->n_computed) ||
        q->n_coming > q->n_flight || q->n_flight > s->n_open || (q->n_flight && !running))
        return err_set(e, ERR_INTERNAL, "req %llu.%d: final %d, computed %d, %d coming of %d steps",
                       id, q->choice, q->n_final, q->n_computed, q->n_coming, q->n_flight);
    for (int32_t i = q->n_final / s->info.block_len; q->n_flight && i < q->n_block; i++)
        if (block_indexed(s->pool, q->block[i].id))
            return err_set(e, ERR_INTERNAL, "req %llu.%d: block %d is indexed and being written",
                           id, q->choice, q->block[i].id);
    if (running && !q->n_flight && q->n_computed >= sched__seq_goal(q))
        return err_set(e, ERR_INTERNAL, "req %llu.%d: runs with nothing to do", id, q->choice);
    if (q->state == SEQ_DONE && (q->tok || q->block))
        return err_set(e, ERR_INTERNAL, "req %llu.%d: done, but holds memory", id, q->choice);
    return 0;
}

/* holds[b] counts the sequences with block b in their table. */
static int count_holds(const struct sched *s, int32_t *holds, struct err *e)
{
    int n_run = 0;
    for (const struct sreq *r = s->head; r; r = r->next) {
        int ready = 0, live = 0;
        for (int c = 0; c < r->r->n; c++) {
            const struct seq *q = &r->seq[c];
            int rc = check_seq(s, q, e);
            if (rc)
                return rc;
            ready += q->state == SEQ_WAITING || q->state == SEQ_PREEMPTED;
            live += q->state != SEQ_DONE;
            n_run += q->state == SEQ_RUNNING;
            for (int32_t i = 0; i < q->n_block; i++) {
                if (q->block[i].id <= 0 || q->block[i].id >= s->info.n_block)
                    return err_set(e, ERR_INTERNAL, "a table names block %d", q->block[i].id);
                holds[q->block[i].id]++;
            }
        }
        if (ready != r->n_ready || live != r->n_live || !live || r->ended)
            return err_set(e, ERR_INTERNAL, "req %llu: %d ready (%d), %d live (%d)",
                           (unsigned long long)r->r->id, r->n_ready, ready, r->n_live, live);
        if (r->prev && r->prev->order >= r->order)
            return err_set(e, ERR_INTERNAL, "requests are not in the order of arrival");
    }
    if (n_run != s->n_run)
        return err_set(e, ERR_INTERNAL, "%d run, %d in the list", n_run, s->n_run);
    return 0;
}

/* A block in two tables is full for both, or a fork's last block that waits to be copied: then all its
 * holders belong to one request. */
static int check_sharing(const struct sched *s, const int32_t *holds, struct err *e)
{
    for (int i = 0; i < s->n_run; i++) {
        const struct seq *q = s->run[i];
        if (q->state != SEQ_RUNNING)
            return err_set(e, ERR_INTERNAL, "run[%d] is in state %d", i, (int)q->state);
        if (q->n_computed % s->info.block_len == 0)
            continue;
        block_id last = q->block[q->n_block - 1].id;
        int same = 0;
        for (int c = 0; c < q->req->r->n; c++) {
            const struct seq *b = &q->req->seq[c];
            same += b->n_block >= q->n_block && b->block[q->n_block - 1].id == last;
        }
        if (same != holds[last] && !block_indexed(s->pool, last))
            return err_set(e, ERR_INTERNAL, "block %d is partial for one request, held by others",
                           last);
    }
    return 0;
}

static int check_states(const struct sched *s, struct err *e)
{
    int rc = state_pool_check(s->states, e);
    for (int32_t i = 0; !rc && i < s->info.n_state; i++) {
        int32_t n = 0;
        for (int k = 0; k < s->n_run; k++) {
            const struct seq_recurrent *t = &s->run[k]->rec;
            n += (t->slot == i) + (t->kept == i) + (t->src == i && t->src != t->slot);
        }
        if (n != state_refs(s->states, i))
            rc = err_set(e, ERR_INTERNAL, "state slot %d has %d refs, sequences hold %d", i,
                         state_refs(s->states, i), n);
    }
    for (int k = 0; !rc && k < s->n_run; k++)
        if (s->run[k]->rec.slot < 0)
            rc = err_set(e, ERR_INTERNAL, "run[%d] has no state slot", k);
    return rc;
}

int sched_check(const struct sched *s, struct err *e)
{
    int rc = block_pool_check(s->pool, e);
    if (!rc && s->prefix)
        rc = prefix_check(s->prefix, e);
    if (!rc && s->states)
        rc = check_states(s, e);
    if (rc)
        return rc;
    int32_t *holds = xcalloc((size_t)s->info.n_block, sizeof *holds);
    rc = count_holds(s, holds, e);
    for (block_id id = 1; !rc && id < s->info.n_block; id++)
        if (holds[id] != block_refs(s->pool, id))
            rc = err_set(e, ERR_INTERNAL, "block %d has %d refs, tables hold %d", id,
                         block_refs(s->pool, id), holds[id]);
    if (!rc)
        rc = check_sharing(s, holds, e);
    free(holds);
    return rc;
}
