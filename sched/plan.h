/* Memory of one step plan, made once with the largest sizes. Engine thread only. */
#ifndef SCHED_PLAN_H
#define SCHED_PLAN_H

#include "engine/engine.h"
#include "sched/block.h"

struct seq;
struct plan_entry {
    struct seq *q; /* NULL: it ended while the step ran, what the step brings for it is dropped */
    int32_t n_tok;
    int first_logit; /* its rows in `row` and `out` */
    bool samples;    /* the last of them chooses its next token */
    int n_draft;     /* its last tokens are drafts (spec.h), and each row before chooses one */
};

struct plan {
    struct step_seq *seq;      /* [cap_seq] what the engine gets */
    struct plan_entry *entry;  /* [cap_seq] what harvest needs, same order */
    struct step_copy *copy;    /* [cap_seq] */
    struct block_ref *copy_of; /* [cap_seq] holds on the copies' sources until the step has begun */
    struct sample_row *row;    /* [cap_logit] */
    struct sample_out *out;    /* [cap_logit] */
    int cap_seq, cap_logit;
    int n_seq, n_copy, n_logit;
    int32_t n_tok;
    bool decode;           /* no part of a prompt in it */
    struct step_plan step; /* what the engine keeps a pointer to while the step is open */
    int64_t begin_us;
};

int plan_init(struct plan *p, int cap_seq, int cap_logit); /* ERR_NOMEM */
void plan_free(struct plan *p); /* half-made is fine; holds must have been dropped */

#endif
