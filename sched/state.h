/* Pool of slots for recurrent states. A slot belongs to a running sequence, which writes it; or it keeps, as a snapshot,
 * the state behind the last token of an indexed block, and whoever begins there copies it by reading it once. A slot is
 * free when nobody holds it and it is no snapshot. Snapshots that nobody holds are given up in the order of their last
 * use, and with their blocks. Engine thread only. No allocation after state_pool_open. */
#ifndef SCHED_STATE_H
#define SCHED_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "sched/block.h"

struct state_pool;

/* ERR_NOMEM. n_block counts block 0. */
int state_pool_open(struct state_pool **out, int32_t n_slot, int32_t n_block, struct err *e);
void state_pool_close(struct state_pool *p); /* NULL is fine */

/* A slot with one hold; the oldest snapshot goes when none is free. -1: all are held. */
int32_t state_take(struct state_pool *p);
void state_hold(struct state_pool *p, int32_t slot);
void state_drop(struct state_pool *p, int32_t slot); /* -1 is fine */

/* The slot's content is from now on the state behind `block`, and must not change. Nothing happens when that block has a
 * snapshot already. */
void state_publish(struct state_pool *p, int32_t slot, block_id block);
int32_t state_find(const struct state_pool *p, block_id block); /* its snapshot, or -1; no hold */
void state_forget(struct state_pool *p, block_id block);        /* it is none any more */
/* The same, unless somebody holds it. */
void state_retire(struct state_pool *p, block_id block);

int32_t state_refs(const struct state_pool *p, int32_t slot);
int32_t state_pool_total(const struct state_pool *p);
int32_t state_pool_cached(const struct state_pool *p); /* snapshots */
/* Verify counters and lists; ERR_INTERNAL. Tests. */
int state_pool_check(const struct state_pool *p, struct err *e);

#endif
