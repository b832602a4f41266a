/* Multi-head latent attention (DeepSeek-AI 2024), absorbed: a query's unrotated part goes through the head's key matrix
 * into the latent space, attention reads the latent vectors alone, and the head's value matrix leads out of it. The two
 * products of every head are products by expert, the head being the expert. */
#include "engine/base/mem.h"
#include "engine/models/model.h"

#include <math.h>

#define INDEX_EPS 1e-6f /* of the norm of the index's keys; no key tells */

void model_mla_work(const struct model_hp *hp, struct model_work *w, struct work_plan *p)
{
    const int64_t *d = hp->dim, n = p->n_row, heads = n * hp->n_head;
    if (hp->kv_rank == 0)
        return;
    if (hp->q_rank > 0) {
        model_work_place(p, &w->mla.q_a, DT_F32, n, hp->q_rank);
        model_work_place(p, &w->mla.q_ah, p->mul, n, hp->q_rank);
    }
    model_work_place(p, &w->mla.q, DT_F32, n, d[DIM_Q_MLA]);
    model_work_place(p, &w->mla.kv, DT_F32, n, d[DIM_KV_A]);
    model_work_place(p, &w->mla.q_nope, p->mul, heads, hp->n_nope);
    model_work_place(p, &w->mla.q_abs, DT_F32, heads, hp->kv_rank);
    model_work_place(p, &w->mla.ctx, p->mul, heads, hp->kv_rank);
    model_work_place(p, &w->mla.out, DT_F32, heads, hp->v_head);
    model_work_place(p, &w->mla.id, DT_I32, n, hp->n_head);
    if (hp->index.n_head == 0)
        return;
    model_work_place(p, &w->mla.index_q, DT_F32, n, d[DIM_INDEX_Q]);
    model_work_place(p, &w->mla.index_k, DT_F32, n, d[DIM_INDEX_K]);
    model_work_place(p, &w->mla.index_w, DT_F32, n, d[DIM_INDEX_HEADS]);
    model_work_place(p, &w->mla.seen, DT_F32, n, hp->n_ctx_run ? hp->n_ctx_run : hp->n_ctx);
}

int model_mla_open(struct model *m, struct err *e)
{
    struct tensor t = m->work.mla.id;
    if (m->hp.kv_rank == 0)
        return 0;
    size_t n = (size_t)(t.shape[0] * t.shape[1]);
    int32_t *id = mem_calloc(n + 1, sizeof *id);
    if (!id)
        return err_set(e, ERR_NOMEM, "no memory for the numbers of heads");
    for (size_t i = 0; i < n; i++)
        id[i] = (int32_t)(i % (size_t)t.shape[1]);
    int rc = m->be->write(m->dev, t.buf, t.off, id, n * sizeof *id);
    free(id);
    return rc ? err_set(e, rc, "numbers of heads: %s", err_name(rc)) : 0;
}

/* h -> q, by way of a low-rank product where the model has one. */
static int queries(struct model *m, const struct model_layer *l, struct tensor h, struct tensor q,
                   int n)
{
    struct tensor a = model_rows(m->work.mla.q_a, n), ah = model_rows(m->work.mla.q_ah, n);
    if (!l->mla.q_a)
        return MODEL_OP(m, linear, .dst = q, .src = h, .w = l->mla.q_b);
    int rc = MODEL_OP(m, linear, .dst = a, .src = h, .w = l->mla.q_a);
    if (!rc)
        rc = MODEL_OP(m, rmsnorm, .dst = ah, .x = a, .w = l->mla.q_a_norm, .eps = m->hp.norm_eps);
    return rc ? rc : MODEL_OP(m, linear, .dst = q, .src = ah, .w = l->mla.q_b);
}

/* Which positions the layer looks at, in work.mla.seen; `attend` false: only the index's keys are kept. */
static int index_run(struct model *m, int layer, int n, bool attend)
{
    const struct model_layer *l = &m->layer[layer];
    const struct model_hp *hp = &m->hp;
    struct tensor q = model_rows(m->work.mla.index_q, n), k = model_rows(m->work.mla.index_k, n);
    struct tensor w = model_rows(m->work.mla.index_w, n), h = model_rows(m->work.h, n), none = {0};
    int rc =
        MODEL_OP(m, linear, .dst = q, .src = model_rows(m->work.mla.q_ah, n), .w = l->mla.index_q);
    if (rc || (rc = MODEL_OP(m, linear, .dst = k, .src = h, .w = l->mla.index_k)) ||
        (rc = MODEL_OP(m, rmsnorm, .dst = k, .x = k, .w = l->mla.index_norm,
                       .b = l->mla.index_norm_b, .eps = INDEX_EPS, .center = true)) ||
        (rc = MODEL_OP(m, linear, .dst = w, .src = h, .w = l->mla.index_w)) ||
        (rc = model_scale(m, w, 1 / sqrtf((float)hp->index.n_head))))
        return rc;
    return MODEL_OP(m, index, .q = q, .k = k, .weight = w,
                    .seen = attend ? model_rows(m->work.mla.seen, n) : none,
                    .n_head = hp->index.n_head, .dim = hp->index.dim, .n_rope = hp->n_rot,
                    .n_top = hp->index.n_top, .scale = 1 / sqrtf((float)hp->index.dim),
                    .style = ROPE_NEOX, .inv_freq = m->inv_freq, .attn_factor = hp->attn_factor,
                    .kv_pool = m->kv[1], .layer = hp->layer[layer].kv);
}

int model_mix_mla(struct model *m, int layer, int n, bool attend)
{
    struct tensor seen = {0};
    const struct model_layer *l = &m->layer[layer];
    const struct model_hp *hp = &m->hp;
    struct dev_kv *pool = m->kv[0];
    int64_t heads = (int64_t)n * hp->n_head;
    int kv_layer = hp->layer[layer].kv, n_rope = hp->n_rot;
    struct tensor h = model_rows(m->work.h, n), q = model_rows(m->work.mla.q, n);
    struct tensor kv = model_rows(m->work.mla.kv, n), id = model_rows(m->work.mla.id, n);
    struct tensor nope = model_rows(m->work.mla.q_nope, heads);
    struct tensor abs = model_rows(m->work.mla.q_abs, heads);
    struct tensor ctx = model_rows(m->work.mla.ctx, heads);
    struct tensor out = model_rows(m->work.mla.out, heads);
    int rc = queries(m, l, h, q, n);
    if (!rc)
        rc = MODEL_OP(m, linear, .dst = kv, .src = h, .w = l->mla.kv_a);
    if (!rc)
        rc = MODEL_OP(m, mla_kv, .q = q, .q_nope = nope, .kv = kv, .norm = l->mla.kv_a_norm,
                      .norm_eps = hp->norm_eps, .n_head = hp->n_head, .n_nope = hp->n_nope,
                      .n_rope = n_rope, .rank = hp->kv_rank, .style = hp->rope_style,
                      .inv_freq = m->inv_freq, .attn_factor = hp->attn_factor, .kv_pool = pool,
                      .layer = kv_layer);
    if (!rc && hp->index.n_head > 0) {
        rc = index_run(m, layer, n, attend);
        seen = model_rows(m->work.mla.seen, n);
    }
    if (rc || !attend)
        return rc;
    rc = MODEL_OP(m, linear_experts, .dst = abs, .src = nope, .w = l->mla.k_b,
                  .n_expert = hp->n_head, .id = id);
    if (!rc)
        rc = MODEL_OP(m, mla_attn, .dst = ctx, .q_abs = abs, .q = q, .n_head = hp->n_head,
                      .n_nope = hp->n_nope, .n_rope = n_rope, .rank = hp->kv_rank,
                      .scale = hp->attn_scale, .seen = seen, .kv_pool = pool, .layer = kv_layer);
    if (!rc)
        rc = MODEL_OP(m, linear_experts, .dst = out, .src = ctx, .w = l->mla.v_b,
                      .n_expert = hp->n_head, .id = id);
    if (rc)
        return rc;
    /* The heads of a row lie side by side: the same bytes as rows of all of them. */
    out = tensor_2d(DT_F32, out.buf, out.off, n, hp->dim[DIM_Q]);
    struct tensor att = m->work.att;
    return MODEL_OP(m, act, .dst = tensor_2d(att.dtype, att.buf, att.off, n, hp->dim[DIM_Q]),
                    .x = out, .act = IMAGE_ACT_NONE);
}
