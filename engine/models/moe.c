/* Mixture of experts: router, the chosen experts, experts that all rows share. */
#include "engine/models/rows_moe.h"

#include <math.h>

#define FF_MAX (1 << 20)

#define INT_OPT(k, j, f, lo, hi)                                                                   \
    {                                                                                              \
        k, j, HP_INT, true, offsetof(struct model_hp, f), lo, hi                                   \
    }
#define BOOL_OPT(k, j, f)                                                                          \
    {                                                                                              \
        k, j, HP_BOOL, true, offsetof(struct model_hp, f), 0, 1                                    \
    }
static const struct hp_row keys[] = {
    INT_OPT(NULL, "moe_num_experts|ffn_config.moe_num_experts", moe.n_expert, 0, OPS_EXPERTS_MAX),
    INT_OPT("expert_used_count",
            "num_experts_per_tok|num_experts_per_token|top_k_experts|moe_k|moe_topk|ffn_config.moe_"
            "top_k",
            moe.n_used, 1, OPS_USED_MAX),
    INT_OPT("expert_feed_forward_length", "moe_intermediate_size|ffn_config.ffn_hidden_size",
            moe.n_ff, 1, FF_MAX),
    INT_OPT("expert_shared_feed_forward_length",
            "shared_expert_intermediate_size|shared_intermediate_size", moe.n_ff_shared, 0, FF_MAX),
    INT_OPT("expert_group_count", "n_group", moe.n_group, 0, OPS_GROUPS_MAX),
    INT_OPT("expert_group_used_count", "topk_group", moe.n_group_used, 0, OPS_GROUPS_MAX),
    BOOL_OPT("expert_weights_norm", "norm_topk_prob", moe.renorm),
    {"expert_weights_scale", "routed_scaling_factor", HP_FLOAT, true,
     offsetof(struct model_hp, moe.scale), 0, 1e6},
};

/* A GGUF file may say how scores are made. */
static int gating_read(struct moe_hp *x, struct ckpt *c, struct err *e)
{
    static const enum route_score known[] = {0, ROUTE_SOFTMAX, ROUTE_SIGMOID, ROUTE_SOFTMAX_USED};
    int64_t v = 0;
    char name[200];
    int rc = ckpt_int(c, "expert_gating_func", NULL, &v, e);
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    if (v < 0 || v > 3)
        return err_set(e, ERR_UNSUPPORTED, "%s is %lld; known are 1, 2, 3",
                       ckpt_key_text(c, "expert_gating_func", NULL, name, sizeof name),
                       (long long)v);
    x->score = v ? known[v] : x->score;
    return 0;
}

/* A count by which the files tell sizes; *out stays when it is not there. */
static int count_read(struct ckpt *c, const char *key, const char *json, int64_t *out,
                      struct err *e)
{
    char name[200];
    int rc = ckpt_int(c, key, json, out, e);
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    if (*out < 0 || *out > 1024)
        return err_set(e, ERR_INVAL, "%s is %lld, expected 0 to 1024",
                       ckpt_key_text(c, key, json, name, sizeof name), (long long)*out);
    return 0;
}

static void dims_set(struct model_hp *hp)
{
    const struct moe_hp *x = &hp->moe;
    int64_t *d = hp->dim;
    d[DIM_EXPERTS] = x->n_expert;
    d[DIM_EXPERT_FF] = x->n_ff;
    d[DIM_EXPERT_FF2] = 2 * (int64_t)x->n_ff;
    d[DIM_EXPERTS_FF] = (int64_t)x->n_expert * x->n_ff;
    d[DIM_EXPERTS_FF2] = 2 * d[DIM_EXPERTS_FF];
    d[DIM_EXPERTS_EMBD] = (int64_t)x->n_expert * hp->n_embd;
    d[DIM_SHARED_FF] = x->n_ff_shared;
    d[DIM_SHARED_FF2] = 2 * (int64_t)x->n_ff_shared;
}

static int experts_check(const struct moe_hp *x, struct ckpt *c, struct err *e)
{
    char name[200];
    if (x->n_expert < 1 || x->n_expert > OPS_EXPERTS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%s is %d, expected 1 to %d",
                       ckpt_key_text(c, "expert_count", "num_experts", name, sizeof name),
                       x->n_expert, OPS_EXPERTS_MAX);
    if (x->n_used < 1 || x->n_used > x->n_expert)
        return err_set(
            e, ERR_INVAL, "%s is %d of %d experts",
            ckpt_key_text(c, "expert_used_count", "num_experts_per_tok", name, sizeof name),
            x->n_used, x->n_expert);
    if (x->n_group > 1 &&
        (x->n_expert % x->n_group || x->n_group_used < 1 || x->n_group_used > x->n_group ||
         x->n_group_used * (x->n_expert / x->n_group) < x->n_used))
        return err_set(e, ERR_INVAL, "%s: %d of %d groups can't give %d of %d experts",
                       ckpt_key_text(c, "expert_group_count", "n_group", name, sizeof name),
                       x->n_group_used, x->n_group, x->n_used, x->n_expert);
    return 0;
}

int model_hp_moe(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    struct moe_hp *x = &hp->moe;
    int64_t n_shared = 0, n_dense = 0;
    int rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e);
    if (rc || (rc = gating_read(x, c, e)) ||
        (rc = count_read(c, "expert_shared_count",
                         "n_shared_experts|num_shared_experts|moe_num_shared_experts", &n_shared,
                         e)) ||
        (rc = count_read(c, "leading_dense_block_count", "first_k_dense_replace", &n_dense, e)))
        return rc;
    if (x->n_ff == 0)
        x->n_ff = hp->n_ff;
    if (x->n_ff_shared == 0 && n_shared > 0)
        x->n_ff_shared = (int32_t)(n_shared * x->n_ff);
    rc = experts_check(x, c, e);
    if (rc)
        return rc;
    x->act = hp->act;
    dims_set(hp);
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].ffn = i < n_dense ? FFN_DENSE : FFN_MOE;
    return 0;
}

int model_hp_moe_sparse(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t step = 1;
    int rc = count_read(c, NULL, "decoder_sparse_step", &step, e);
    for (int i = 0; i < hp->n_layer && !rc; i++)
        if (step < 1 || (i + 1) % step)
            hp->layer[i].ffn = FFN_DENSE;
    int n = ckpt_is_hf(c) ? ckpt_len(c, NULL, "mlp_only_layers") : 0;
    for (int i = 0; i < n && !rc; i++) {
        double at = 0;
        rc = ckpt_num_at(c, NULL, "mlp_only_layers", i, &at, e);
        if (!rc && at >= 0 && at < hp->n_layer)
            hp->layer[(int)at].ffn = FFN_DENSE;
    }
    return rc;
}

void model_moe_work(const struct model_hp *hp, struct model_work *w, struct work_plan *p)
{
    const struct moe_hp *x = &hp->moe;
    int64_t n = p->n_row, k = n * x->n_used;
    if (x->n_expert == 0)
        return;
    model_work_place(p, &w->moe.logits, DT_F32, n, x->n_expert);
    model_work_place(p, &w->moe.weight, DT_F32, n, x->n_used);
    model_work_place(p, &w->moe.id, DT_I32, n, x->n_used);
    model_work_place(p, &w->moe.gate_up, DT_F32, k, 2 * (int64_t)x->n_ff);
    model_work_place(p, &w->moe.ff, p->mul, k, x->n_ff);
    model_work_place(p, &w->moe.out, DT_F32, k, hp->n_embd);
    if (x->n_ff_shared == 0)
        return;
    model_work_place(p, &w->moe.shared_gate_up, DT_F32, n, 2 * (int64_t)x->n_ff_shared);
    model_work_place(p, &w->moe.shared_ff, p->mul, n, x->n_ff_shared);
    model_work_place(p, &w->moe.shared_weight, DT_F32, n, 1);
}

/* d = the shared expert's part, times its own gate where there is one. */
static int shared(struct model *m, int layer, struct tensor h, struct tensor d, int n)
{
    const struct model_layer *l = &m->layer[layer];
    struct tensor gu = model_rows(m->work.moe.shared_gate_up, n);
    struct tensor ff = model_rows(m->work.moe.shared_ff, n);
    bool single = m->hp.moe.single;
    if (single)
        gu = tensor_2d(gu.dtype, gu.buf, gu.off, n, m->hp.moe.n_ff_shared);
    struct tensor g = model_rows(m->work.moe.shared_weight, n);
    int rc = MODEL_OP(m, linear, .dst = gu, .src = h, .w = l->moe.shared_gate_up);
    if (!rc)
        rc = MODEL_OP(m, act_mul, .dst = ff, .gate_up = gu, .act = m->hp.moe.act, .single = single);
    if (!rc)
        rc = MODEL_OP(m, linear, .dst = d, .src = ff, .w = l->moe.shared_down);
    if (!rc && l->moe.shared_router)
        rc = MODEL_OP(m, linear, .dst = g, .src = h, .w = l->moe.shared_router);
    if (!rc && l->moe.shared_router)
        rc = MODEL_OP(m, sigmoid_mul, .dst = d, .x = d, .gate = g);
    return rc;
}

/* By the logits of the router, in work. */
static int experts(struct model *m, int layer, struct tensor h, struct tensor d, int n)
{
    const struct model_layer *l = &m->layer[layer];
    const struct moe_hp *x = &m->hp.moe;
    int64_t k = (int64_t)n * x->n_used;
    struct tensor logits = model_rows(m->work.moe.logits, n), id = model_rows(m->work.moe.id, n);
    struct tensor weight = model_rows(m->work.moe.weight, n), none = {0};
    struct tensor gu = model_rows(m->work.moe.gate_up, k), ff = model_rows(m->work.moe.ff, k);
    struct tensor out = model_rows(m->work.moe.out, k);
    int rc = MODEL_OP(m, route, .logits = logits, .select_bias = l->moe.select_bias, .id = id,
                      .weight = weight, .expert_scale = l->moe.expert_scale, .score = x->score,
                      .n_group = x->n_group, .n_group_used = x->n_group_used,
                      .group_top2 = x->group_top2, .renorm = x->renorm,
                      .scale = x->scale > 0 ? x->scale : 1);
    if (rc || (l->moe.shared_gate_up && (rc = shared(m, layer, h, d, n))))
        return rc;
    if (x->single)
        gu = tensor_2d(gu.dtype, gu.buf, gu.off, k, x->n_ff);
    rc = MODEL_OP(m, linear_experts, .dst = gu, .src = h, .w = l->moe.gate_up,
                  .n_expert = x->n_expert, .bias = l->moe.gate_up_bias, .id = id,
                  .in_scale = x->in_scale ? weight : none);
    if (!rc)
        rc = MODEL_OP(m, act_mul, .dst = ff, .gate_up = gu, .act = x->act, .single = x->single,
                      .limit = x->act_limit);
    if (!rc)
        rc = MODEL_OP(m, linear_experts, .dst = out, .src = ff, .w = l->moe.down,
                      .n_expert = x->n_expert, .bias = l->moe.down_bias, .id = id);
    if (!rc)
        rc = MODEL_OP(m, experts_sum, .dst = d, .src = out, .weight = x->in_scale ? none : weight,
                      .add = l->moe.shared_gate_up != NULL);
    return rc;
}

int model_ffn_moe(struct model *m, int layer, struct tensor h, struct tensor d, int n)
{
    const struct model_layer *l = &m->layer[layer];
    int rc = MODEL_OP(m, linear, .dst = model_rows(m->work.moe.logits, n), .src = h,
                      .w = l->moe.router, .bias = l->moe.router_bias);
    return rc ? rc : experts(m, layer, h, d, n);
}

int model_ffn_both(struct model *m, int layer, struct tensor x, struct tensor h, struct tensor d,
                   int n)
{
    const struct model_layer *l = &m->layer[layer];
    struct tensor logits = model_rows(m->work.moe.logits, n), none = {0};
    struct tensor h2 = model_rows(m->work.h2, n), d2 = model_rows(m->work.d2, n);
    int rc = model_ffn_dense(m, layer, h, d, n);
    if (rc || (rc = model_norm(m, d, d, none, l->moe.dense_post_norm, none)) ||
        (rc = model_norm(m, h2, x, none, l->moe.router_norm, none)) ||
        (rc = MODEL_OP(m, linear, .dst = logits, .src = h2, .w = l->moe.router)) ||
        (rc = model_scale(m, logits, 1 / sqrtf((float)m->hp.n_embd))) ||
        (rc = model_norm(m, h2, x, none, l->moe.norm, none)) ||
        (rc = experts(m, layer, h2, d2, n)) ||
        (rc = model_norm(m, d2, d2, none, l->moe.post_norm, none)))
        return rc;
    return model_norm(m, none, d, d2, none, none);
}
