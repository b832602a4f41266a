/* See block.h. */
#include "sched/block.h"

#include "engine/base/mem.h"

struct node {
    block_id prev, next; /* free list; block 0 is the list's head and tail */
    int32_t refs;
    bool indexed;
};

struct block_pool {
    struct node *node; /* [n_block] */
    int32_t n_block, n_free, n_cached;
    void (*evict)(void *arg, block_id id);
    void *arg;
};

static void list_put(struct block_pool *p, block_id id, block_id before)
{
    block_id prev = p->node[before].prev;
    p->node[id].prev = prev;
    p->node[id].next = before;
    p->node[prev].next = id;
    p->node[before].prev = id;
    p->n_free++;
    p->n_cached += p->node[id].indexed;
}

static void list_take(struct block_pool *p, block_id id)
{
    struct node *b = &p->node[id];
    p->node[b->prev].next = b->next;
    p->node[b->next].prev = b->prev;
    b->prev = b->next = 0;
    p->n_free--;
    p->n_cached -= b->indexed;
}

int block_pool_open(struct block_pool **out, int32_t n_block, void (*evict)(void *arg, block_id id),
                    void *arg, struct err *e)
{
    if (n_block < 2)
        return err_set(e, ERR_INVAL, "block pool: %d blocks are too few, 2 are the least", n_block);
    struct block_pool *p = mem_calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "block pool: no memory");
    p->node = mem_calloc((size_t)n_block, sizeof *p->node);
    if (!p->node) {
        free(p);
        return err_set(e, ERR_NOMEM, "block pool: no memory for %d blocks", n_block);
    }
    p->n_block = n_block;
    p->evict = evict;
    p->arg = arg;
    for (block_id id = 1; id < n_block; id++)
        list_put(p, id, 0);
    *out = p;
    return 0;
}

void block_pool_close(struct block_pool *p)
{
    if (!p)
        return;
    free(p->node);
    free(p);
}

void block_pool_on_evict(struct block_pool *p, void (*evict)(void *arg, block_id id), void *arg)
{
    p->evict = evict;
    p->arg = arg;
}

int block_take_new(struct block_pool *p, struct block_ref *out)
{
    out->id = 0;
    block_id id = p->node[0].next;
    if (!id)
        return ERR_FULL;
    list_take(p, id);
    struct node *b = &p->node[id];
    b->refs = 1;
    if (b->indexed) {
        b->indexed = false;
        if (p->evict)
            p->evict(p->arg, id);
    }
    out->id = id;
    return 0;
}

struct block_ref block_take(struct block_pool *p, block_id id)
{
    CHECK(id > 0 && id < p->n_block);
    struct node *b = &p->node[id];
    if (!b->refs) {
        CHECK(b->indexed); /* an unknown block's content is nobody's */
        list_take(p, id);
    }
    b->refs++;
    return (struct block_ref){id};
}

void block_drop(struct block_pool *p, struct block_ref *r)
{
    block_id id = r->id;
    r->id = 0;
    if (!id)
        return;
    CHECK(id > 0 && id < p->n_block);
    struct node *b = &p->node[id];
    CHECK(b->refs > 0);
    if (--b->refs)
        return;
    list_put(p, id, b->indexed ? 0 : p->node[0].next);
}

void block_mark_indexed(struct block_pool *p, block_id id, bool on)
{
    struct node *b = &p->node[id];
    if (b->indexed == on)
        return;
    b->indexed = on;
    if (!b->refs)
        p->n_cached += on ? 1 : -1;
}

bool block_indexed(const struct block_pool *p, block_id id)
{
    return p->node[id].indexed;
}

int32_t block_refs(const struct block_pool *p, block_id id)
{
    return p->node[id].refs;
}

int32_t block_pool_total(const struct block_pool *p)
{
    return p->n_block - 1;
}

int32_t block_pool_free(const struct block_pool *p)
{
    return p->n_free;
}

int32_t block_pool_cached(const struct block_pool *p)
{
    return p->n_cached;
}

int block_pool_check(const struct block_pool *p, struct err *e)
{
    int32_t n_free = 0, n_cached = 0, n_used = 0;
    for (block_id id = p->node[0].next, prev = 0; id; prev = id, id = p->node[id].next) {
        if (p->node[id].prev != prev)
            return err_set(e, ERR_INTERNAL, "free list: block %d points back to %d, not %d", id,
                           p->node[id].prev, prev);
        if (p->node[id].refs)
            return err_set(e, ERR_INTERNAL, "free list: block %d has %d refs", id,
                           p->node[id].refs);
        if (++n_free > p->n_block)
            return err_set(e, ERR_INTERNAL, "free list: a circle");
        n_cached += p->node[id].indexed;
    }
    for (block_id id = 1; id < p->n_block; id++)
        n_used += p->node[id].refs > 0;
    if (n_free != p->n_free || n_cached != p->n_cached || n_free + n_used != p->n_block - 1)
        return err_set(e, ERR_INTERNAL, "pool: %d free (counted %d), %d cached (%d), %d used of %d",
                       p->n_free, n_free, p->n_cached, n_cached, n_used, p->n_block - 1);
    if (p->node[0].refs || p->node[0].indexed)
        return err_set(e, ERR_INTERNAL, "pool: the null block is in use");
    return 0;
}
