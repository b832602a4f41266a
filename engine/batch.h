/* From a step plan to the metadata of a device step: checks every limit, then flattens sequences to rows
 * in arrays made once at open. One batch serves one step from begin to end, so two steps need two. Engine thread
 * only; no allocation after open. */
#ifndef ENGINE_BATCH_H
#define ENGINE_BATCH_H

#include "engine/engine.h"

struct batch {
    struct eng_info lim; /* limits that a plan must keep */
    int stride_max;      /* blocks of the longest sequence */
    int32_t *tok, *pos, *seq_start, *block_table, *logit_row;
    int32_t *copy_src, *copy_dst;   /* [max_seqs] */
    int32_t *state_src, *state_dst; /* [max_seqs] */
    int32_t *slot_seq;       /* [n_state] scratch: 1 + the sequence that writes a slot, or 0 */
    struct sample_row *rows; /* [max_logit_rows], plan order */
    struct sample_out *out;
    const struct step_plan *plan; /* of the step that is open, for eng_batch_scatter */
    int n_logit;
};

/* ERR_NOMEM leaves nothing behind. */
int eng_batch_open(struct batch *b, const struct eng_info *lim, struct err *e);
void eng_batch_close(struct batch *b);

/* Fill b and m from p. `before` is the step begun before, whose rows STEP_SAMPLED names. With `by_ref` they
 * stay (as TOK_SAMPLED, the same numbers); without, that step is over and they are looked up. ERR_INVAL names the
 * sequence and what is wrong; b is then unspecified. */
int eng_batch_build(struct batch *b, const struct step_plan *p, const struct batch *before,
                    bool by_ref, struct step_meta *m, struct err *e);
/* Hand b->out to the plan's `out` arrays. */
void eng_batch_scatter(const struct batch *b);

#endif
