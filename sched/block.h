/* Pool of KV block numbers. A block is held only through a `struct block_ref`: block_take_new and
 * block_take are the only ways in, block_drop the only way out; look-ups take none.
 *
 *      take_new (head; an indexed block is evicted first)
 *   head <-> 7 <-> 3 <-> 12 <-> 9 <-> tail      free list: refs == 0
 *    ^ blocks without reusable content            ^ indexed blocks, in the order they were dropped
 *
 * Free and cached blocks are one list, and its order is the eviction order: what was dropped first
 * goes first. Block 0 is the null block and never handed out. Engine thread only. No allocation
 * after block_pool_open. */
#ifndef SCHED_BLOCK_H
#define SCHED_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"

typedef int32_t block_id;

/* One counted hold on a block; id 0 = holds nothing. Copying a ref by assignment moves it. */
struct block_ref {
    block_id id;
};

struct block_pool;

/* n_block counts block 0 and must be >= 2. `evict` (may be NULL) is called with an indexed block
 * that is about to be reused; the block's index mark is already gone. ERR_INVAL, ERR_NOMEM. */
int block_pool_open(struct block_pool **out, int32_t n_block, void (*evict)(void *arg, block_id id),
                    void *arg, struct err *e);
void block_pool_close(struct block_pool *p); /* NULL is fine */
/* Set the eviction callback after opening (the index is opened after the pool). */
void block_pool_on_evict(struct block_pool *p, void (*evict)(void *arg, block_id id), void *arg);

/* A block that nobody holds, with refs 1. ERR_FULL when all are held; *out is then {0}. */
int block_take_new(struct block_pool *p, struct block_ref *out);
/* One more hold on a block: held by somebody, or cached (it leaves the free list). */
struct block_ref block_take(struct block_pool *p, block_id id);
/* Give a hold back and clear it. The last hold puts the block on the free list: at the tail if it is
 * indexed, else at the head. {0} is fine. */
void block_drop(struct block_pool *p, struct block_ref *r);

/* Mark: the prefix index knows this block's content. */
void block_mark_indexed(struct block_pool *p, block_id id, bool on);
bool block_indexed(const struct block_pool *p, block_id id);
int32_t block_refs(const struct block_pool *p, block_id id);

int32_t block_pool_total(const struct block_pool *p);  /* without block 0 */
int32_t block_pool_free(const struct block_pool *p);   /* could be taken now: free + cached */
int32_t block_pool_cached(const struct block_pool *p); /* of those, indexed */

/* Verify counters and list; ERR_INTERNAL with the first contradiction. Tests. */
int block_pool_check(const struct block_pool *p, struct err *e);

#endif
