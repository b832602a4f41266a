/* See batch.h. */
#include "engine/batch.h"
#include "engine/base/mem.h"

static int blocks_for(int64_t n_tok)
{
    return (int)((n_tok + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);
}

int eng_batch_open(struct batch *b, const struct eng_info *lim, struct err *e)
{
    size_t rows = (size_t)lim->max_rows, seqs = (size_t)lim->max_seqs;
    size_t logits = (size_t)lim->max_logit_rows, table;
    *b = (struct batch){.lim = *lim, .stride_max = blocks_for(lim->n_ctx)};
    if (!ck_mul(seqs, (size_t)b->stride_max, &table))
        return err_set(e, ERR_LIMIT, "block tables of %d sequences do not fit", lim->max_seqs);
    b->tok = mem_calloc(rows, sizeof *b->tok);
    b->pos = mem_calloc(rows, sizeof *b->pos);
    b->seq_start = mem_calloc(seqs + 1, sizeof *b->seq_start);
    b->block_table = mem_calloc(table, sizeof *b->block_table);
    b->logit_row = mem_calloc(logits, sizeof *b->logit_row);
    b->copy_src = mem_calloc(seqs, sizeof *b->copy_src);
    b->copy_dst = mem_calloc(seqs, sizeof *b->copy_dst);
    b->state_src = mem_calloc(seqs, sizeof *b->state_src);
    b->state_dst = mem_calloc(seqs, sizeof *b->state_dst);
    b->slot_seq = mem_calloc((size_t)lim->n_state + 1, sizeof *b->slot_seq);
    b->rows = mem_calloc(logits, sizeof *b->rows);
    b->out = mem_calloc(logits, sizeof *b->out);
    if (b->tok && b->pos && b->seq_start && b->block_table && b->logit_row && b->copy_src &&
        b->copy_dst && b->state_src && b->state_dst && b->slot_seq && b->rows && b->out)
        return 0;
    eng_batch_close(b);
    return err_set(e, ERR_NOMEM, "no memory for the step's block tables (%zu entries)", table);
}

void eng_batch_close(struct batch *b)
{
    free(b->tok);
    free(b->pos);
    free(b->seq_start);
    free(b->block_table);
    free(b->logit_row);
    free(b->copy_src);
    free(b->copy_dst);
    free(b->state_src);
    free(b->state_dst);
    free(b->slot_seq);
    free(b->rows);
    free(b->out);
    *b = (struct batch){0};
}

_Static_assert(STEP_SAMPLED(3) == TOK_SAMPLED(3), "a plan's references go to the device as is");

static bool is_ref(int32_t tok, int n_before)
{
    return tok < 0 && tok >= STEP_SAMPLED(n_before - 1);
}

/* All of them in 1..n_block-1. Without a branch in it: long contexts have thousands in every step. */
__attribute__((optimize("O3"))) static bool blocks_valid(const int32_t *block, int n,
                                                         int32_t n_block)
{
    uint32_t bad = 0, most = (uint32_t)n_block - 1;
    for (int k = 0; k < n; k++)
        bad |= (uint32_t)block[k] - 1u >= most;
    return !bad;
}

static int seq_check(const struct batch *b, const struct step_seq *s, int i, int n_before,
                     struct err *e)
{
    int64_t end = (int64_t)s->pos + s->n_tok;
    if (s->n_tok < 1 || s->pos < 0 || end > b->lim.n_ctx)
        return err_set(e, ERR_INVAL, "step: sequence %d: tokens %d at %d, context is %d", i,
                       s->n_tok, s->pos, b->lim.n_ctx);
    if (s->n_block < blocks_for(end))
        return err_set(e, ERR_INVAL, "step: sequence %d: %d blocks do not cover %lld tokens", i,
                       s->n_block, (long long)end);
    if (s->n_logit < 0 || s->n_logit > s->n_tok)
        return err_set(e, ERR_INVAL, "step: sequence %d: %d logit rows of %d", i, s->n_logit,
                       s->n_tok);
    for (int32_t t = 0; t < s->n_tok; t++)
        if (s->tok[t] >= b->lim.n_vocab || (s->tok[t] < 0 && !is_ref(s->tok[t], n_before)))
            return err_set(e, ERR_INVAL, "step: sequence %d: token %d is not in 0..%d", i,
                           s->tok[t], b->lim.n_vocab - 1);
    int need = blocks_for(end);
    if (!blocks_valid(s->block, need, b->lim.n_block))
        for (int k = 0; k < need; k++)
            if (s->block[k] < 1 || s->block[k] >= b->lim.n_block)
                return err_set(e, ERR_INVAL, "step: sequence %d: block %d is not in 1..%d", i,
                               s->block[k], b->lim.n_block - 1);
    return 0;
}

/* Slots are in range; nobody reads or writes what another sequence of the step writes. */
static int states_check(const struct batch *b, const struct step_plan *p, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < p->n_seq && !rc && b->lim.n_state > 0; i++) {
        const struct step_seq *s = &p->seq[i];
        if (s->state_dst < 0 || s->state_dst >= b->lim.n_state || s->state_src < -1 ||
            s->state_src >= b->lim.n_state || (s->state_src < 0) != (s->pos == 0))
            rc = err_set(e, ERR_INVAL, "step: sequence %d: state slots %d to %d of %d at %d", i,
                         s->state_src, s->state_dst, b->lim.n_state, s->pos);
        else if (b->slot_seq[s->state_dst])
            rc = err_set(e, ERR_INVAL, "step: state slot %d is written twice", s->state_dst);
        else
            b->slot_seq[s->state_dst] = i + 1;
    }
    for (int i = 0; i < p->n_seq && !rc && b->lim.n_state > 0; i++) {
        int32_t src = p->seq[i].state_src;
        if (src >= 0 && b->slot_seq[src] && b->slot_seq[src] != i + 1)
            rc = err_set(e, ERR_INVAL, "step: sequence %d reads state slot %d, another writes it",
                         i, src);
    }
    for (int i = 0; i < p->n_seq; i++)
        if (p->seq[i].state_dst >= 0 && p->seq[i].state_dst < b->lim.n_state)
            b->slot_seq[p->seq[i].state_dst] = 0;
    return rc;
}

static int plan_check(const struct batch *b, const struct step_plan *p, int n_before, int *stride,
                      struct err *e)
{
    int64_t rows = 0, logits = 0;
    *stride = 1;
    if (p->n_seq < 0 || p->n_seq > b->lim.max_seqs || p->n_copy < 0 || p->n_copy > b->lim.max_seqs)
        return err_set(e, ERR_INVAL, "step: %d sequences and %d copies, limit %d", p->n_seq,
                       p->n_copy, b->lim.max_seqs);
    for (int i = 0; i < p->n_copy; i++)
        if (p->copy[i].src < 1 || p->copy[i].src >= b->lim.n_block || p->copy[i].dst < 1 ||
            p->copy[i].dst >= b->lim.n_block)
            return err_set(e, ERR_INVAL, "step: copy %d: blocks %d to %d", i, p->copy[i].src,
                           p->copy[i].dst);
    for (int i = 0; i < p->n_seq; i++) {
        const struct step_seq *s = &p->seq[i];
        int rc = seq_check(b, s, i, n_before, e);
        if (rc)
            return rc;
        rows += s->n_tok;
        logits += s->n_logit;
        int need = blocks_for((int64_t)s->pos + s->n_tok);
        *stride = need > *stride ? need : *stride;
    }
    if (rows > b->lim.max_rows || logits > b->lim.max_logit_rows)
        return err_set(e, ERR_INVAL, "step: %lld rows and %lld logit rows, limits %d and %d",
                       (long long)rows, (long long)logits, b->lim.max_rows, b->lim.max_logit_rows);
    return states_check(b, p, e);
}

int eng_batch_build(struct batch *b, const struct step_plan *p, const struct batch *before,
                    bool by_ref, struct step_meta *m, struct err *e)
{
    int stride, row = 0, logit = 0;
    int rc = plan_check(b, p, before->n_logit, &stride, e);
    if (rc)
        return rc;
    for (int i = 0; i < p->n_copy; i++) {
        b->copy_src[i] = p->copy[i].src;
        b->copy_dst[i] = p->copy[i].dst;
    }
    for (int i = 0; i < p->n_seq; i++) {
        const struct step_seq *s = &p->seq[i];
        b->seq_start[i] = row;
        b->state_src[i] = s->state_src;
        b->state_dst[i] = s->state_dst;
        int need = blocks_for((int64_t)s->pos + s->n_tok);
        int32_t *table = b->block_table + (size_t)i * (size_t)stride;
        memcpy(table, s->block, (size_t)need * sizeof *table);
        memset(table + need, 0, (size_t)(stride - need) * sizeof *table);
        for (int32_t t = 0; t < s->n_tok; t++, row++) {
            b->tok[row] = s->tok[t] < 0 && !by_ref ? before->out[-1 - s->tok[t]].token : s->tok[t];
            b->pos[row] = s->pos + t;
        }
        for (int32_t k = 0; k < s->n_logit; k++, logit++) {
            b->logit_row[logit] = row - s->n_logit + k;
            b->rows[logit] = s->rows[k];
        }
    }
    b->seq_start[p->n_seq] = row;
    b->plan = p;
    b->n_logit = logit;
    *m = (struct step_meta){.n_row = row,
                            .n_seq = p->n_seq,
                            .n_logit = logit,
                            .tok = b->tok,
                            .pos = b->pos,
                            .seq_start = b->seq_start,
                            .block_table = b->block_table,
                            .block_stride = stride,
                            .logit_row = b->logit_row,
                            .state_src = b->lim.n_state ? b->state_src : NULL,
                            .state_dst = b->lim.n_state ? b->state_dst : NULL};
    return 0;
}

void eng_batch_scatter(const struct batch *b)
{
    const struct step_plan *p = b->plan;
    int at = 0;
    for (int i = 0; i < p->n_seq; i++)
        for (int32_t k = 0; k < p->seq[i].n_logit; k++)
            p->seq[i].out[k] = b->out[at++];
}
