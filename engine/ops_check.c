/* The shape checks of backend.h. */
#include "engine/backend.h"

#include "engine/base/mem.h"

#include <math.h>

#define WANT(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return ERR_INVAL;                                                                      \
    } while (0)

bool ops_is_2d(const struct tensor *t, enum dtype d, int64_t rows, int64_t cols)
{
    return t->buf && t->dtype == d && t->n_dim == 2 && t->shape[0] >= 0 &&
           (rows < 0 || t->shape[0] == rows) && t->shape[1] == cols && cols > 0 &&
           t->stride[1] == 1 && t->stride[0] >= (t->shape[0] > 1 ? cols : 0);
}

/* f32 or the dtype of products. */
static bool is_2d_of(const struct tensor *t, enum dtype mul, int64_t rows, int64_t cols)
{
    return ops_is_2d(t, t->dtype == mul ? mul : DT_F32, rows, cols);
}

bool ops_is_vec(const struct tensor *t, int64_t n, bool may_miss)
{
    if (!t->buf)
        return may_miss;
    if (t->dtype != DT_F32 || n <= 0)
        return false;
    if (t->n_dim == 1)
        return t->shape[0] == n && t->stride[0] == 1;
    return t->n_dim == 2 && t->shape[0] == 1 && t->shape[1] == n && t->stride[1] == 1;
}

bool ops_extent(const struct tensor *t, size_t *bytes)
{
    size_t last = 0, part;
    for (int i = 0; i < t->n_dim; i++) {
        if (t->shape[i] <= 0 || t->stride[i] < 0) {
            *bytes = 0;
            return t->shape[i] == 0;
        }
        if (!ck_mul((size_t)(t->shape[i] - 1), (size_t)t->stride[i], &part) ||
            !ck_add(last, part, &last))
            return false;
    }
    return ck_add(last, 1, &last) && ck_mul(last, dtype_bytes(t->dtype), bytes);
}

int ops_check_step(const struct step_meta *m)
{
    WANT(m->n_row >= 0 && m->n_seq >= 0 && m->n_logit >= 0 && m->n_logit <= m->n_row);
    if (m->n_row == 0)
        return 0;
    WANT(m->n_seq > 0 && m->tok && m->pos && m->seq_start);
    WANT(m->block_stride >= 0 && (m->block_table || m->block_stride == 0));
    WANT(m->seq_start[0] == 0 && m->seq_start[m->n_seq] == m->n_row);
    for (int s = 0; s < m->n_seq; s++)
        WANT(m->seq_start[s] <= m->seq_start[s + 1]);
    for (int i = 0; i < m->n_row; i++)
        WANT(m->pos[i] >= 0 && m->pos[i] < INT32_MAX - 4096);
    for (int i = 0; i < m->n_logit; i++)
        WANT(m->logit_row[i] >= 0 && m->logit_row[i] < m->n_row &&
             (i == 0 || m->logit_row[i] > m->logit_row[i - 1]));
    return 0;
}

int ops_check_blocks(const struct step_meta *m, int32_t n_block)
{
    for (int s = 0; s < m->n_seq; s++) {
        const int32_t *t = m->block_table + (int64_t)s * m->block_stride;
        for (int i = m->seq_start[s]; i < m->seq_start[s + 1]; i++) {
            int b = m->pos[i] / KV_BLOCK_TOKENS;
            WANT(b < m->block_stride && t[b] > 0 && t[b] < n_block);
        }
    }
    return 0;
}

int ops_check_kv(const struct kv_desc *k, struct err *e)
{
    if (k->n_layer <= 0 || k->n_kv_head <= 0 || k->head_dim <= 0 || k->n_block <= 1)
        return err_set(e, ERR_INVAL, "KV pool: %d layers, %d heads of %d, %d blocks", k->n_layer,
                       k->n_kv_head, k->head_dim, (int)k->n_block);
    if (k->dtype != DT_F32 && k->dtype != DT_F16 && k->dtype != DT_BF16 && !dtype_is_code(k->dtype))
        return err_set(e, ERR_INVAL, "KV pool: dtype %d is not f32, f16, bf16, int8 or fp8",
                       (int)k->dtype);
    return 0;
}

int ops_check_weight(const struct weight_desc *w, struct err *e)
{
    const char *name = w->name ? w->name : "weight";
    if (w->n_in <= 0 || w->n_part < 1 || w->n_part > 3)
        return err_set(e, ERR_INVAL, "%s: %lld inputs in %d parts", name, (long long)w->n_in,
                       w->n_part);
    for (int64_t k = 0; w->col && k < w->n_in; k++)
        if (w->rows || w->col[k] < 0 || w->col[k] >= w->n_in)
            return err_set(e, ERR_INVAL, "%s: column %lld stands for %d of %lld", name,
                           (long long)k, (int)w->col[k], (long long)w->n_in);
    for (int i = 0; i < w->n_part; i++) {
        const struct quant_format *f = quant_format_get((uint32_t)w->part[i].fmt);
        size_t row, all;
        if (!f)
            return err_set(e, ERR_UNSUPPORTED, "%s: format %d is not known", name,
                           (int)w->part[i].fmt);
        if (!quant_row_bytes(f, w->n_in, &row))
            return err_set(e, ERR_INVAL, "%s: rows of %lld values are no whole %s blocks", name,
                           (long long)w->n_in, f->name);
        if (!w->part[i].data || w->part[i].n_out <= 0 ||
            !ck_mul(row, (size_t)w->part[i].n_out, &all))
            return err_set(e, ERR_INVAL, "%s: part %d has no data or %lld rows", name, i,
                           (long long)w->part[i].n_out);
    }
    return 0;
}

int ops_check_embed_pos(const struct step_meta *m, int64_t n_in, const struct weight_desc *pos)
{
    WANT(pos->rows && pos->n_in == n_in && pos->n_part == 1);
    for (int i = 0; i < m->n_row; i++)
        WANT(m->pos[i] < pos->part[0].n_out);
    return 0;
}

int ops_check_embed(const struct op_embed *a, const struct step_meta *m, int64_t n_in,
                    int64_t n_out)
{
    WANT(ops_is_2d(&a->dst, DT_F32, m->n_row, n_in));
    for (int i = 0; i < m->n_row; i++)
        WANT(m->tok[i] <
             n_out); /* negative: see TOK_SAMPLED; step_begin refuses it where it must */
    return 0;
}

int ops_check_rmsnorm(const struct op_rmsnorm *a, enum dtype mul)
{
    int64_t n = a->x.shape[0], d = a->x.shape[1];
    WANT(a->add.buf ? ops_is_2d(&a->x, DT_F32, -1, d) : is_2d_of(&a->x, mul, -1, d));
    WANT(!a->add.buf || ops_is_2d(&a->add, DT_F32, n, d));
    WANT(a->dst.buf || a->add.buf);
    if (a->dst.buf)
        WANT(is_2d_of(&a->dst, mul, n, d) && ops_is_vec(&a->w, d, true) && a->eps >= 0);
    WANT(ops_is_vec(&a->b, d, true) && (a->center || !a->b.buf));
    return 0;
}

int ops_check_linear(const struct op_linear *a, enum dtype mul, int64_t n_in, int64_t n_out)
{
    WANT(ops_is_2d(&a->src, mul, -1, n_in));
    WANT(ops_is_2d(&a->dst, DT_F32, a->src.shape[0], n_out));
    WANT(ops_is_vec(&a->bias, n_out, true));
    return 0;
}

static int check_qkv(const struct tensor *qkv, const struct step_meta *m, const struct kv_desc *k,
                     const int head[4])
{
    int n_head = head[0], n_kv_head = head[1], head_dim = head[2], layer = head[3];
    WANT(n_kv_head == k->n_kv_head && head_dim == k->head_dim);
    WANT(n_head > 0 && n_head % n_kv_head == 0 && layer >= 0 && layer < k->n_layer);
    WANT(ops_is_2d(qkv, DT_F32, m->n_row, (int64_t)(n_head + 2 * n_kv_head) * head_dim));
    return 0;
}

int ops_check_rope_kv(const struct op_rope_kv *a, const struct step_meta *m,
                      const struct kv_desc *k)
{
    WANT(!check_qkv(&a->qkv, m, k, (int[4]){a->n_head, a->n_kv_head, a->head_dim, a->layer}));
    WANT(a->style == ROPE_NORM || a->style == ROPE_NEOX || a->style == ROPE_NONE);
    if (a->style != ROPE_NONE) {
        WANT(a->n_rot > 0 && a->n_rot % 2 == 0 && a->n_rot <= a->head_dim);
        WANT(ops_is_vec(&a->inv_freq, a->n_rot / 2, false));
    }
    WANT(ops_is_vec(&a->q_norm, a->head_dim, true) && ops_is_vec(&a->k_norm, a->head_dim, true) &&
         ops_is_vec(&a->v_norm, a->head_dim, true));
    return 0;
}

int ops_check_attn(const struct op_attn *a, enum dtype mul, const struct step_meta *m,
                   const struct kv_desc *k)
{
    WANT(!check_qkv(&a->qkv, m, k, (int[4]){a->n_head, a->n_kv_head, a->head_dim, a->layer}));
    WANT(ops_is_2d(&a->dst, mul, m->n_row, (int64_t)a->n_head * a->head_dim));
    WANT(ops_is_vec(&a->sinks, a->n_head, true) && ops_is_vec(&a->alibi, a->n_head, true));
    WANT(a->window >= OPS_WINDOW_MIN && a->softcap >= 0 && isfinite(a->scale));
    return 0;
}

int ops_check_attn_blocks(const struct step_meta *m, int window, int32_t n_block)
{
    /* Blocks wholly before every window may have been given back: only what is read must be there. */
    for (int s = 0; s < m->n_seq; s++) {
        const int32_t *t = m->block_table + (int64_t)s * m->block_stride;
        int from = INT32_MAX, to = -1;
        for (int i = m->seq_start[s]; i < m->seq_start[s + 1]; i++) {
            int lo = ops_first_seen(m->pos[i], window);
            from = lo < from ? lo : from;
            to = m->pos[i] > to ? m->pos[i] : to;
        }
        if (to < 0)
            continue;
        WANT(to / KV_BLOCK_TOKENS < m->block_stride);
        for (int b = from / KV_BLOCK_TOKENS; b <= to / KV_BLOCK_TOKENS; b++)
            WANT(t[b] > 0 && t[b] < n_block);
    }
    return 0;
}

int ops_check_act_mul(const struct op_act_mul *a, enum dtype mul)
{
    int64_t n = a->dst.shape[0], d = a->dst.shape[1];
    WANT(ops_is_2d(&a->dst, mul, -1, d));
    WANT(ops_is_2d(&a->gate_up, DT_F32, n, a->single ? d : 2 * d));
    WANT(a->act >= ACT_SILU && a->act <= ACT_SWIGLU_OAI);
    WANT(a->act != ACT_SWIGLU_OAI || (!a->single && a->limit > 0));
    return 0;
}

int ops_check_gather(const struct op_gather *a, enum dtype mul, const struct step_meta *m)
{
    int64_t d = a->dst.shape[1];
    WANT(is_2d_of(&a->dst, mul, m->n_logit, d) && ops_is_2d(&a->src, a->dst.dtype, m->n_row, d));
    return 0;
}

float ops_scale_of(const struct op_scale *a, const struct step_meta *m, int64_t i)
{
    if (a->temper <= 0)
        return a->scale;
    int32_t n = (m->pos[i] + a->temper_from) / a->temper_every;
    return (float)((double)a->scale * (1 + (double)a->temper * log(1.0 + n)));
}

int ops_check_scale(const struct op_scale *a, const struct step_meta *m)
{
    WANT(ops_is_2d(&a->x, DT_F32, -1, a->x.shape[1]) && a->softcap >= 0 && a->temper >= 0 &&
         a->clip >= 0);
    if (a->temper > 0)
        WANT(m && a->x.shape[0] == m->n_row && a->temper_every > 0 && a->temper_from >= 0 &&
             a->temper_from <= 4096);
    return 0;
}

static int check_row(const struct sample_row *r, int64_t n_vocab)
{
    WANT(r->n_hist >= 0 && r->n_prompt >= 0 && r->n_prompt <= r->n_hist);
    WANT(r->hist || r->n_hist == 0);
    WANT(r->n_bias >= 0 && (r->bias || r->n_bias == 0));
    WANT(r->n_ban >= 0 && (r->ban || r->n_ban == 0));
    WANT(r->target < n_vocab && r->n_top >= -1 && r->n_top <= SAMPLE_TOP_MAX);
    WANT(r->repetition_penalty >= 0 && !isnan(r->temperature));
    return 0;
}

int ops_check_sample(const struct op_sample *a)
{
    int64_t n = a->logits.shape[0], n_vocab = a->logits.shape[1];
    WANT(ops_is_2d(&a->logits, DT_F32, -1, n_vocab) && n_vocab < INT32_MAX);
    WANT(n == 0 || (a->rows && a->out));
    for (int64_t i = 0; i < n; i++)
        WANT(!check_row(&a->rows[i], n_vocab));
    return 0;
}

int ops_check_kv_copy(const struct op_kv_copy *a, int32_t n_block)
{
    WANT(a->n >= 0 && (a->n == 0 || (a->src && a->dst)));
    for (int i = 0; i < a->n; i++)
        WANT(a->src[i] > 0 && a->src[i] < n_block && a->dst[i] > 0 && a->dst[i] < n_block &&
             a->src[i] != a->dst[i]);
    return 0;
}
