/* Prefix index: which block holds the KV of these tokens after that prefix. A chain of full blocks:
 *
 *   root(salt) -- [tokens 0..15] -> block 7 -- [tokens 16..31] -> block 3 -- ...
 *                                          \-- [other tokens]  -> block 9
 *
 * The key of a link is (parent link, tokens, cache salt, layout id), hashed with a secret key because
 * clients choose the tokens. A hit compares parent, salt and tokens in full, so equal hashes never
 * give a wrong block. A link's parent is named by a number that is never used twice: when a parent
 * is evicted its children can't be reached any more, whatever its block holds later.
 * Only full blocks are indexed. Engine thread only. No allocation after prefix_open. */
#ifndef SCHED_PREFIX_H
#define SCHED_PREFIX_H

#include "engine/base/hash.h"
#include "sched/block.h"

struct prefix;
struct prefix_opts {
    int32_t block_len;   /* tokens a block */
    uint64_t layout_id;  /* KV dtype and layout */
    struct hash_key key; /* secret */
    void (*gone)(void *arg,
                 block_id id); /* an indexed block is forgotten or evicted; may be NULL */
    void *arg;
    uint64_t hash_mask; /* 0 = all bits; tests force equal hashes with fewer */
};

/* Registers itself as the pool's eviction callback. ERR_NOMEM. */
int prefix_open(struct prefix **out, struct block_pool *pool, const struct prefix_opts *o,
                struct err *e);
void prefix_close(struct prefix *x); /* before the pool; NULL is fine */

/* Longest indexed prefix of tok: block numbers of at most n_max full blocks go to out (no holds are
 * taken); returns how many. tok holds n_max * block_len tokens. */
int32_t prefix_match(const struct prefix *x, uint64_t salt, const int32_t *tok, int32_t n_max,
                     block_id *out);

/* Index `id`, which holds tok[block_len] after `parent` (0 = at the start). Returns the block
 * that stands for this content: `id`, or one indexed before (use that one and drop yours), or 0 when
 * the parent is not indexed. */
block_id prefix_insert(struct prefix *x, block_id parent, block_id id, uint64_t salt,
                       const int32_t *tok);

/* Forget one block's content (it is going to change, or is not to be trusted). */
void prefix_forget(struct prefix *x, block_id id);

/* Verify links against the pool's marks; ERR_INTERNAL. Tests. */
int prefix_check(const struct prefix *x, struct err *e);

#endif
