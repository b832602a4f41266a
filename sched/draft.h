/* A second, small model with the same tokens says what is likely to come. It has an engine and a cache of its own; a
 * sequence's KV there is made when its first drafts are wanted, in steps between those of the served model. What it says is
 * never more than a guess, and if it fails the answers go on without it. Private to sched/. Engine thread only. */
#ifndef SCHED_DRAFT_H
#define SCHED_DRAFT_H

#include "engine/engine.h"
#include "sched/block.h"

#define DRAFT_SEQS 8 /* with more sequences at work none is asked for */

struct draft_seq {           /* what the small model has of a sequence; zero: nothing */
    struct block_ref *block; /* [cap_block] */
    int32_t n_block, cap_block;
    int32_t n_done; /* leading tokens whose KV is there, drafts that it fed itself included */
};

/* One that is to be continued: tok[n_known] is known, drafts go behind it. */
struct draft_job {
    struct draft_seq *x;
    int32_t *tok;
    int32_t n_known;
    int32_t cap; /* tokens that it may have at most */
    int n;       /* drafts so far */
    bool ended;  /* no more are to be had */
};

struct drafter;
/* `g` is used, not owned; n_vocab: tokens of the served model. ERR_NOMEM, ERR_INVAL. */
int drafter_open(struct drafter **out, struct engine *g, int32_t n_vocab, struct err *e);
void drafter_close(struct drafter *d); /* NULL is fine */
/* Give back what it has of a sequence. */
void drafter_drop(struct drafter *d, struct draft_seq *x);
/* Bring the jobs' KV up to their last known tokens, by at most one step; those it is not enough for are `ended`. */
int drafter_catch_up(struct drafter *d, struct draft_job *job, int n, struct err *e);
/* One more draft for each job that has not ended. ERR_DEVICE: it is of no use any more. */
int drafter_step(struct drafter *d, struct draft_job *job, int n, struct err *e);

#endif
