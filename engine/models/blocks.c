/* Blocks that decoder models share. Terms whose slot is empty drop out. */
#include "engine/models/model.h"

int model_norm(struct model *m, struct tensor dst, struct tensor x, struct tensor add,
               struct tensor w, struct tensor b)
{
    if (dst.buf && !w.buf && !m->hp.norm_bare) { /* no norm here: the addition, then a copy */
        int rc = add.buf ? MODEL_OP(m, rmsnorm, .x = x, .add = add) : 0;
        return rc ? rc : MODEL_OP(m, act, .dst = dst, .x = x, .act = IMAGE_ACT_NONE);
    }
    return MODEL_OP(m, rmsnorm, .dst = dst, .x = x, .add = add, .w = w, .b = b,
                    .eps = m->hp.norm_eps, .center = m->hp.norm == NORM_LAYER);
}

int model_scale(struct model *m, struct tensor x, float factor)
{
    if (factor == 0 || factor == 1)
        return 0;
    return MODEL_OP(m, scale, .x = x, .scale = factor);
}

/* Norms of q and k over all heads at once, before the rotation. */
static int norm_all(struct model *m, const struct model_layer *l, struct tensor qkv)
{
    int64_t n_q = m->hp.dim[DIM_Q], n_kv = m->hp.dim[DIM_KV];
    if (!l->q_norm_all.buf)
        return 0;
    struct tensor q = tensor_cols(qkv, 0, n_q), k = tensor_cols(qkv, n_q, n_kv);
    int rc = MODEL_OP(m, rmsnorm, .dst = q, .x = q, .w = l->q_norm_all, .eps = m->hp.norm_eps);
    return rc ? rc
              : MODEL_OP(m, rmsnorm, .dst = k, .x = k, .w = l->k_norm_all, .eps = m->hp.norm_eps);
}

/* Layer norms of n heads of x, each with its own part of w, or with all of it. */
static int norm_heads(struct model *m, struct tensor x, struct tensor w, struct tensor b, int n)
{
    int64_t dim = x.shape[1] / n, step = w.buf && w.shape[0] > dim ? dim : 0;
    int rc = 0;
    for (int h = 0; w.buf && h < n && !rc; h++) {
        struct tensor y = tensor_cols(x, h * dim, dim), own = w;
        own.off += (size_t)(h * step) * sizeof(float);
        own.shape[0] = dim;
        rc = MODEL_OP(m, rmsnorm, .dst = y, .x = y, .w = own, .b = b, .eps = m->hp.norm_eps,
                      .center = true);
    }
    return rc;
}

/* Of what a block's last product reads, in place. */
static int norm_inside(struct model *m, struct tensor x, struct tensor w)
{
    return MODEL_OP(m, rmsnorm, .dst = x, .x = x, .w = w, .eps = m->hp.norm_eps);
}

/* Sizes of a layer's heads. */
struct heads {
    int n_kv, dim;
    int64_t q, kv;
};

static struct heads heads_of(const struct model_hp *hp, const struct layer_hp *y)
{
    if (y->other_heads)
        return (struct heads){hp->other.n_kv_head, hp->other.head_dim, hp->dim[DIM_Q_OTHER],
                              hp->dim[DIM_KV_OTHER]};
    return (struct heads){hp->n_kv_head, hp->head_dim, hp->dim[DIM_Q], hp->dim[DIM_KV]};
}

/* The weights of a norm by head: w, or ones where there is none and `unit`. */
static struct tensor head_norm(const struct model *m, struct tensor w, bool unit, int dim)
{
    if (w.buf || !unit)
        return w;
    struct tensor t = m->ones;
    t.shape[0] = dim;
    return t;
}

/* Projections, norms and rotation; keys and values go to the pool. */
static int attn_in(struct model *m, int layer, struct heads z, struct tensor all, struct tensor qkv)
{
    const struct model_layer *l = &m->layer[layer];
    const struct model_hp *hp = &m->hp;
    const struct layer_hp *y = &hp->layer[layer];
    bool local = y->local && hp->n_rot_local > 0, unit = y->qk_unit;
    int rc = MODEL_OP(m, linear, .dst = y->share ? tensor_cols(all, 0, z.q) : all,
                      .src = model_rows(m->work.h, all.shape[0]), .w = l->qkv, .bias = l->qkv_bias);
    if (rc || (rc = model_scale(m, qkv, hp->mup.qkv)) ||
        (rc = model_scale(m, tensor_cols(qkv, z.q, z.kv), hp->mup.k)) ||
        (rc = norm_all(m, l, qkv)) ||
        (rc = norm_heads(m, tensor_cols(qkv, 0, z.q), l->head_norm.q, l->head_norm.q_b,
                         hp->n_head)) ||
        (rc = norm_heads(m, tensor_cols(qkv, z.q, z.kv), l->head_norm.k, l->head_norm.k_b, z.n_kv)))
        return rc;
    if (hp->clip_qkv > 0 && (rc = MODEL_OP(m, scale, .x = qkv, .scale = 1, .clip = hp->clip_qkv)))
        return rc;
    rc = MODEL_OP(
        m, rope_kv, .qkv = qkv, .n_head = hp->n_head, .n_kv_head = z.n_kv, .head_dim = z.dim,
        .n_rot = local ? hp->n_rot_local : hp->n_rot, .style = y->nope ? ROPE_NONE : hp->rope_style,
        .inv_freq = y->local ? m->inv_freq_local : m->inv_freq,
        .attn_factor = y->local && hp->rope_base_local > 0 ? 1 : hp->attn_factor,
        .q_norm = head_norm(m, l->q_norm, unit, z.dim),
        .k_norm = head_norm(m, l->k_norm, unit, z.dim),
        .v_norm = head_norm(m, (struct tensor){0}, hp->v_unit, z.dim), .norm_eps = hp->norm_eps,
        .q_only = y->share > 0, .kv = m->kv[y->other_heads], .layer = y->kv);
    if (rc || !y->temper)
        return rc;
    return MODEL_OP(m, scale, .x = tensor_cols(qkv, 0, z.q), .scale = 1, .temper = hp->temper,
                    .temper_every = hp->temper_every, .temper_from = hp->temper_from);
}

int model_mix_attn(struct model *m, int layer, int n, bool attend)
{
    const struct model_layer *l = &m->layer[layer];
    const struct model_hp *hp = &m->hp;
    const struct layer_hp *y = &hp->layer[layer];
    struct heads z = heads_of(hp, y);
    int64_t n_gate = hp->attn_gate ? z.q : 0, width = z.q + 2 * z.kv;
    struct tensor all = tensor_cols(model_rows(m->work.qkv, n), 0, n_gate + width);
    struct tensor qkv = tensor_cols(all, n_gate, width);
    int rc = attn_in(m, layer, z, all, qkv);
    if (rc || !attend)
        return rc;
    struct tensor att = tensor_2d(m->work.att.dtype, m->work.att.buf, m->work.att.off, n, z.q);
    rc = MODEL_OP(m, attn, .dst = att, .qkv = qkv, .n_head = hp->n_head, .n_kv_head = z.n_kv,
                  .head_dim = z.dim, .scale = hp->attn_scale, .window = y->window,
                  .softcap = hp->attn_softcap, .sinks = l->sinks, .alibi = m->alibi,
                  .kv = m->kv[y->other_heads], .layer = y->kv);
    if (!rc && n_gate)
        rc = MODEL_OP(m, gated_norm, .dst = att, .x = att, .gate = tensor_cols(all, 0, n_gate),
                      .act = GATE_SIGMOID);
    return rc || !l->attn_sub_norm.buf ? rc : norm_inside(m, att, l->attn_sub_norm);
}

int model_ffn_dense(struct model *m, int layer, struct tensor h, struct tensor d, int n)
{
    const struct model_layer *l = &m->layer[layer];
    int64_t width = m->hp.dim[m->hp.layer[layer].other_ff ? DIM_FF_OTHER : DIM_FF];
    struct tensor gu = m->work.gate_up, ff = m->work.ff;
    gu = tensor_2d(gu.dtype, gu.buf, gu.off, n, l->up ? width : 2 * width);
    ff = tensor_2d(ff.dtype, ff.buf, ff.off, n, width);
    const struct op_linear in = {.dst = gu,
                                 .src = h,
                                 .w = l->up ? l->up : l->gate_up,
                                 .bias = l->up ? l->up_bias : l->gate_up_bias};
    const struct op_act_mul act = {
        .dst = ff, .gate_up = gu, .act = m->hp.act, .single = l->up != NULL};
    const struct op_linear out = {.dst = d, .src = ff, .w = l->down, .bias = l->down_bias};
    float scale = m->hp.mup.gate;
    int rc;
    if (m->be->mlp && !l->ffn_sub_norm.buf && (scale == 0 || scale == 1)) {
        rc = MODEL_OP(m, mlp, .in = in, .act = act, .out = out);
        return rc ? rc : model_scale(m, d, m->hp.mup.down);
    }
    rc = model_op_done(m, "linear", m->be->linear(m->dev, &in));
    if (!rc)
        rc = model_scale(m, tensor_cols(gu, 0, width), scale);
    if (!rc)
        rc = model_op_done(m, "act_mul", m->be->act_mul(m->dev, &act));
    if (!rc && l->ffn_sub_norm.buf)
        rc = norm_inside(m, ff, l->ffn_sub_norm);
    if (!rc)
        rc = model_op_done(m, "linear", m->be->linear(m->dev, &out));
    return rc ? rc : model_scale(m, d, m->hp.mup.down);
}
