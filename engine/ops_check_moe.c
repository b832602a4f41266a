/* The shape checks of ops_moe.h. */
#include "engine/backend.h"

#include <math.h>

#define WANT(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return ERR_INVAL;                                                                      \
    } while (0)

int ops_check_route(const struct op_route *a)
{
    int64_t n = a->logits.shape[0], n_expert = a->logits.shape[1], n_used = a->id.shape[1];
    WANT(ops_is_2d(&a->logits, DT_F32, -1, n_expert) && n_expert <= OPS_EXPERTS_MAX);
    WANT(ops_is_2d(&a->id, DT_I32, n, n_used) && ops_is_2d(&a->weight, DT_F32, n, n_used));
    WANT(n_used <= n_expert && n_used <= OPS_USED_MAX);
    WANT(ops_is_vec(&a->select_bias, n_expert, true) &&
         ops_is_vec(&a->expert_scale, n_expert, true));
    WANT(a->score >= ROUTE_SOFTMAX && a->score <= ROUTE_SIGMOID);
    if (a->n_group > 1)
        WANT(a->n_group <= OPS_GROUPS_MAX && n_expert % a->n_group == 0 && a->n_group_used >= 1 &&
             a->n_group_used <= a->n_group && a->n_group_used * (n_expert / a->n_group) >= n_used);
    return 0;
}

int ops_check_linear_experts(const struct op_linear_experts *a, enum dtype mul, int64_t n_in,
                             int64_t n_out)
{
    int64_t n = a->id.shape[0], n_used = a->id.shape[1], all = n * n_used;
    WANT(a->w && a->n_expert >= 1 && a->n_expert <= OPS_EXPERTS_MAX);
    WANT(ops_is_2d(&a->id, DT_I32, -1, n_used) && n_used <= OPS_USED_MAX);
    WANT(ops_is_2d(&a->dst, DT_F32, all, n_out) && ops_is_2d(&a->src, mul, -1, n_in));
    WANT(a->src.shape[0] == n || a->src.shape[0] == all);
    WANT(ops_is_vec(&a->bias, a->n_expert * n_out, true));
    WANT(!a->in_scale.buf || ops_is_2d(&a->in_scale, DT_F32, n, n_used));
    return 0;
}

int ops_check_experts_sum(const struct op_experts_sum *a)
{
    int64_t n = a->dst.shape[0], d = a->dst.shape[1], all = a->src.shape[0];
    WANT(ops_is_2d(&a->dst, DT_F32, -1, d) && ops_is_2d(&a->src, DT_F32, -1, d));
    if (n == 0) {
        WANT(all == 0);
        return 0;
    }
    WANT(all % n == 0 && all / n >= 1 && all / n <= OPS_USED_MAX);
    WANT(!a->weight.buf || ops_is_2d(&a->weight, DT_F32, n, all / n));
    return 0;
}

int ops_check_sigmoid_mul(const struct op_sigmoid_mul *a, enum dtype mul)
{
    int64_t n = a->dst.shape[0], d = a->dst.shape[1], g = a->gate.shape[1];
    WANT(ops_is_2d(&a->dst, a->dst.dtype == mul ? mul : DT_F32, -1, d));
    WANT(ops_is_2d(&a->x, a->x.dtype == mul ? mul : DT_F32, n, d));
    WANT(ops_is_2d(&a->gate, DT_F32, n, g) && (g == 1 || g == d));
    return 0;
}

/* ---- latent attention ---- */

static int check_latent(const struct tensor *q, const struct step_meta *m, const struct kv_desc *k,
                        const int head[5])
{
    int n_head = head[0], n_nope = head[1], n_rope = head[2], rank = head[3], layer = head[4];
    WANT(k->k_only && k->n_kv_head == 1 && k->head_dim == rank + n_rope);
    WANT(n_head > 0 && n_nope > 0 && rank > 0 && n_rope > 0 && n_rope % 2 == 0);
    WANT(k->head_dim <= OPS_LATENT_MAX && layer >= 0 && layer < k->n_layer);
    WANT(ops_is_2d(q, DT_F32, m->n_row, (int64_t)n_head * (n_nope + n_rope)));
    return 0;
}

/* Rows without gaps. */
static bool is_packed(const struct tensor *t, enum dtype d, int64_t rows, int64_t cols)
{
    return ops_is_2d(t, d, rows, cols) && (rows < 2 || t->stride[0] == cols);
}

int ops_check_mla_kv(const struct op_mla_kv *a, enum dtype mul, const struct step_meta *m,
                     const struct kv_desc *k)
{
    WANT(!check_latent(&a->q, m, k, (int[5]){a->n_head, a->n_nope, a->n_rope, a->rank, a->layer}));
    WANT(is_packed(&a->q_nope, mul, (int64_t)m->n_row * a->n_head, a->n_nope));
    WANT(ops_is_2d(&a->kv, DT_F32, m->n_row, a->rank + a->n_rope));
    WANT(ops_is_vec(&a->norm, a->rank, false) && a->norm_eps >= 0);
    WANT(a->style == ROPE_NORM || a->style == ROPE_NEOX);
    WANT(ops_is_vec(&a->inv_freq, a->n_rope / 2, false));
    return 0;
}

/* A column for every position that a row sees. */
static int seen_check(const struct tensor *t, const struct step_meta *m)
{
    if (!t->buf)
        return 0;
    WANT(ops_is_2d(t, DT_F32, m->n_row, t->shape[1]));
    for (int i = 0; i < m->n_row; i++)
        WANT(m->pos[i] < t->shape[1]);
    return 0;
}

int ops_check_mla_attn(const struct op_mla_attn *a, enum dtype mul, const struct step_meta *m,
                       const struct kv_desc *k)
{
    WANT(!check_latent(&a->q, m, k, (int[5]){a->n_head, a->n_nope, a->n_rope, a->rank, a->layer}));
    WANT(is_packed(&a->dst, mul, (int64_t)m->n_row * a->n_head, a->rank));
    WANT(is_packed(&a->q_abs, DT_F32, (int64_t)m->n_row * a->n_head, a->rank));
    WANT(a->scale > 0 && a->scale < 1e6f);
    return seen_check(&a->seen, m);
}

int ops_check_index(const struct op_index *a, const struct step_meta *m, const struct kv_desc *k)
{
    WANT(a->n_head > 0 && a->dim > 0 && a->n_head <= OPS_INDEX_MAX / a->dim && a->n_top > 0);
    WANT(k->k_only && k->n_kv_head == 1 && k->head_dim == a->dim && a->dim <= OPS_LATENT_MAX);
    WANT(a->layer >= 0 && a->layer < k->n_layer);
    WANT(ops_is_2d(&a->q, DT_F32, m->n_row, (int64_t)a->n_head * a->dim));
    WANT(ops_is_2d(&a->k, DT_F32, m->n_row, a->dim));
    WANT(ops_is_2d(&a->weight, DT_F32, m->n_row, a->n_head));
    WANT(a->n_rope >= 0 && a->n_rope % 2 == 0 && a->n_rope <= a->dim && isfinite(a->scale));
    WANT(a->style == ROPE_NORM || a->style == ROPE_NEOX);
    WANT(ops_is_vec(&a->inv_freq, a->n_rope / 2, false));
    return seen_check(&a->seen, m);
}
