/* See state.h. */
#include "sched/state.h"

#include "engine/base/mem.h"

/* One list: free slots at the head, then snapshots from the one used longest ago on. Held slots are in none. */
struct slot {
    int32_t prev, next; /* of the list; n_slot is its anchor */
    int32_t refs;
    block_id block; /* 0: no snapshot */
};

struct state_pool {
    struct slot *slot; /* [n_slot + 1] */
    int32_t *of_block; /* [n_block] slot + 1 of its snapshot, or 0 */
    int32_t n_slot, n_block, n_snapshot;
};

int state_pool_open(struct state_pool **out, int32_t n_slot, int32_t n_block, struct err *e)
{
    struct state_pool *p = mem_calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "state slots: no memory");
    p->n_slot = n_slot;
    p->n_block = n_block;
    p->slot = mem_calloc((size_t)n_slot + 1, sizeof *p->slot);
    p->of_block = mem_calloc((size_t)n_block, sizeof *p->of_block);
    if (!p->slot || !p->of_block) {
        state_pool_close(p);
        return err_set(e, ERR_NOMEM, "state slots: no memory for %d of them", n_slot);
    }
    for (int32_t i = 0; i <= n_slot; i++) {
        p->slot[i].next = i < n_slot ? i + 1 : 0;
        p->slot[i].prev = i ? i - 1 : n_slot;
    }
    *out = p;
    return 0;
}

void state_pool_close(struct state_pool *p)
{
    if (!p)
        return;
    free(p->slot);
    free(p->of_block);
    free(p);
}

static void unlist(struct state_pool *p, int32_t i)
{
    p->slot[p->slot[i].prev].next = p->slot[i].next;
    p->slot[p->slot[i].next].prev = p->slot[i].prev;
}

/* Behind `at`: the anchor for the head, its predecessor for the tail. */
static void list(struct state_pool *p, int32_t i, int32_t at)
{
    p->slot[i].prev = at;
    p->slot[i].next = p->slot[at].next;
    p->slot[p->slot[at].next].prev = i;
    p->slot[at].next = i;
}

static void unpublish(struct state_pool *p, int32_t i)
{
    p->of_block[p->slot[i].block] = 0;
    p->slot[i].block = 0;
    p->n_snapshot--;
    if (p->slot[i].refs)
        return;
    unlist(p, i);
    list(p, i, p->n_slot);
}

int32_t state_take(struct state_pool *p)
{
    int32_t i = p->slot[p->n_slot].next;
    if (i == p->n_slot)
        return -1;
    if (p->slot[i].block)
        unpublish(p, i);
    unlist(p, i);
    p->slot[i].refs = 1;
    return i;
}

void state_hold(struct state_pool *p, int32_t slot)
{
    if (!p->slot[slot].refs++)
        unlist(p, slot);
}

void state_drop(struct state_pool *p, int32_t slot)
{
    if (slot < 0)
        return;
    struct slot *s = &p->slot[slot];
    CHECK(s->refs > 0);
    if (--s->refs == 0)
        list(p, slot, s->block ? p->slot[p->n_slot].prev : p->n_slot);
}

void state_publish(struct state_pool *p, int32_t slot, block_id block)
{
    CHECK(block > 0 && block < p->n_block && p->slot[slot].refs > 0 && !p->slot[slot].block);
    if (p->of_block[block])
        return;
    p->of_block[block] = slot + 1;
    p->slot[slot].block = block;
    p->n_snapshot++;
}

int32_t state_find(const struct state_pool *p, block_id block)
{
    return p->of_block[block] - 1;
}

void state_forget(struct state_pool *p, block_id block)
{
    if (p->of_block[block])
        unpublish(p, p->of_block[block] - 1);
}

void state_retire(struct state_pool *p, block_id block)
{
    int32_t i = p->of_block[block] - 1;
    if (i >= 0 && !p->slot[i].refs)
        unpublish(p, i);
}

int32_t state_refs(const struct state_pool *p, int32_t slot)
{
    return p->slot[slot].refs;
}

int32_t state_pool_total(const struct state_pool *p)
{
    return p->n_slot;
}

int32_t state_pool_cached(const struct state_pool *p)
{
    return p->n_snapshot;
}

int state_pool_check(const struct state_pool *p, struct err *e)
{
    int32_t listed = 0, idle = 0, snapshots = 0;
    for (int32_t i = p->slot[p->n_slot].next; i != p->n_slot && listed <= p->n_slot;
         i = p->slot[i].next) {
        listed++;
        if (p->slot[i].refs || p->slot[p->slot[i].next].prev != i)
            return err_set(e, ERR_INTERNAL, "state slot %d is listed wrongly", i);
    }
    for (int32_t i = 0; i < p->n_slot; i++) {
        const struct slot *s = &p->slot[i];
        idle += !s->refs;
        snapshots += s->block != 0;
        if (s->block && p->of_block[s->block] != i + 1)
            return err_set(e, ERR_INTERNAL, "state slot %d is not block %d's", i, s->block);
    }
    if (listed != idle || snapshots != p->n_snapshot)
        return err_set(e, ERR_INTERNAL, "state slots: %d idle, %d listed, %d of %d snapshots", idle,
                       listed, snapshots, p->n_snapshot);
    return 0;
}
