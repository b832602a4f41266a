/* Mixture of experts: router, the chosen experts, experts that all rows share. */
#include "engine/models/model.h"

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
    struct tensor g = model_rows(m->work.moe.shared_weight, n);
    int rc = MODEL_OP(m, linear, .dst = gu, .src = h, .w = l->moe.shared_gate_up);
    if (!rc)
        rc = MODEL_OP(m, act_mul, .dst = ff, .gate_up = gu, .act = m->hp.moe.act);
    if (!rc)
        rc = MODEL_OP(m, linear, .dst = d, .src = ff, .w = l->moe.shared_down);
    if (!rc && l->moe.shared_router)
        rc = MODEL_OP(m, linear, .dst = g, .src = h, .w = l->moe.shared_router);
    if (!rc && l->moe.shared_router)
        rc = MODEL_OP(m, sigmoid_mul, .dst = d, .x = d, .gate = g);
    return rc;
}

int model_ffn_moe(struct model *m, int layer, struct tensor h, struct tensor d, int n)
{
    const struct model_layer *l = &m->layer[layer];
    const struct moe_hp *x = &m->hp.moe;
    int64_t k = (int64_t)n * x->n_used;
    struct tensor logits = model_rows(m->work.moe.logits, n), id = model_rows(m->work.moe.id, n);
    struct tensor weight = model_rows(m->work.moe.weight, n), none = {0};
    struct tensor gu = model_rows(m->work.moe.gate_up, k), ff = model_rows(m->work.moe.ff, k);
    struct tensor out = model_rows(m->work.moe.out, k);
    int rc = MODEL_OP(m, linear, .dst = logits, .src = h, .w = l->moe.router,
                      .bias = l->moe.router_bias);
    if (rc)
        return rc;
    rc = MODEL_OP(m, route, .logits = logits, .select_bias = l->moe.select_bias, .id = id,
                  .weight = weight, .score = x->score, .n_group = x->n_group,
                  .n_group_used = x->n_group_used, .group_top2 = x->group_top2, .renorm = x->renorm,
                  .scale = x->scale > 0 ? x->scale : 1);
    if (rc || (l->moe.shared_gate_up && (rc = shared(m, layer, h, d, n))))
        return rc;
    rc = MODEL_OP(m, linear_experts, .dst = gu, .src = h, .w = l->moe.gate_up,
                  .n_expert = x->n_expert, .bias = l->moe.gate_up_bias, .id = id,
                  .in_scale = x->in_scale ? weight : none);
    if (!rc)
        rc = MODEL_OP(m, act_mul, .dst = ff, .gate_up = gu, .act = x->act, .limit = x->act_limit);
    if (!rc)
        rc = MODEL_OP(m, linear_experts, .dst = out, .src = ff, .w = l->moe.down,
                      .n_expert = x->n_expert, .bias = l->moe.down_bias, .id = id);
    if (!rc)
        rc = MODEL_OP(m, experts_sum, .dst = d, .src = out, .weight = x->in_scale ? none : weight,
                      .add = l->moe.shared_gate_up != NULL);
    return rc;
}
