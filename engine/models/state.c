/* Mixers with a recurrent state: Mamba (Gu and Dao 2023), Mamba 2 (Dao and Gu 2024), gated short convolution (LFM2).
 * A layer's state: first what the convolution saw last, then the scan's. */
#include "engine/models/state.h"

void model_state_set(struct model_hp *hp)
{
    struct state_hp *s = &hp->state;
    int64_t *d = hp->dim, taps = s->n_conv - 1;
    d[DIM_S_TAPS] = d[DIM_S_CONV] * s->n_conv;
    d[DIM_S_STATE] = s->n_state;
    d[DIM_S_RANK] = s->n_rank;
    d[DIM_S_HEADS] = s->n_head;
    s->n = 0;
    for (int i = 0; i < hp->n_layer; i++) {
        int64_t n = 0;
        uint8_t kind = hp->layer[i].mixer > MIX_MLA ? hp->layer[i].mixer : hp->layer[i].beside;
        if (kind == MIX_MAMBA || kind == MIX_MAMBA2)
            n = taps * d[DIM_S_CONV] + d[DIM_S_INNER] * s->n_state;
        else if (kind == MIX_DELTA)
            n = taps * d[DIM_S_CONV] + d[DIM_S_INNER] * s->d_key;
        else if (kind == MIX_CONV)
            n = taps * d[DIM_S_CONV];
        else if (kind == MIX_RWKV)
            n = 5 * d[DIM_S_INNER];
        s->n = n > s->n ? n : s->n;
    }
}

static bool has(const struct model_hp *hp, int kind)
{
    for (int i = 0; i < hp->n_layer; i++)
        if (hp->layer[i].mixer == kind || hp->layer[i].beside == kind)
            return true;
    return false;
}

void model_state_work(const struct model_hp *hp, struct model_work *w, struct work_plan *p)
{
    const int64_t *d = hp->dim;
    int64_t n = p->n_row;
    if (model_state_layers(hp) == 0)
        return;
    if (has(hp, MIX_RWKV)) {
        model_work_place(p, &w->state.mul, p->mul, n, 3 * d[DIM_S_INNER]);
        model_work_place(p, &w->state.rkv, DT_F32, n, 3 * d[DIM_S_INNER]);
        return;
    }
    model_work_place(p, &w->state.in, DT_F32, n, d[DIM_S_IN]);
    model_work_place(p, &w->state.conv, DT_F32, n, d[DIM_S_CONV]);
    model_work_place(p, &w->state.y, DT_F32, n, d[DIM_S_INNER]);
    if (has(hp, MIX_MAMBA)) {
        model_work_place(p, &w->state.mul, p->mul, n, d[DIM_S_INNER]);
        model_work_place(p, &w->state.x, DT_F32, n, d[DIM_S_X]);
        model_work_place(p, &w->state.dt_mul, p->mul, n, d[DIM_S_RANK]);
        model_work_place(p, &w->state.dt, DT_F32, n, d[DIM_S_INNER]);
    }
    if (has(hp, MIX_DELTA)) {
        model_work_place(p, &w->state.z, DT_F32, n, d[DIM_S_INNER]);
        model_work_place(p, &w->state.ba, DT_F32, n, d[DIM_S_BA]);
        model_work_place(p, &w->state.low, p->mul, n, d[DIM_S_VALUE]);
        model_work_place(p, &w->state.low32, DT_F32, n, d[DIM_S_VALUE]);
        model_work_place(p, &w->state.dt, DT_F32, n, d[DIM_S_KEYS]);
    }
}

struct state_at model_state_at(const struct model *m, int layer, int64_t off)
{
    return (struct state_at){.pool = m->state, .layer = m->hp.layer[layer].state, .off = off};
}

/* Where a mixer leaves what the product behind it reads. */
static struct tensor out_of(const struct model *m, int layer, int n)
{
    struct tensor t = m->hp.layer[layer].beside > MIX_MLA ? m->work.att2 : m->work.att;
    return tensor_2d(t.dtype, t.buf, t.off, n, m->hp.dim[DIM_S_INNER]);
}

int model_state_in(struct model *m, struct tensor dst, struct dev_weight *w, struct tensor bias)
{
    return MODEL_OP(m, linear, .dst = dst, .src = model_rows(m->work.h, dst.shape[0]), .w = w,
                    .bias = bias);
}

/* In x [dt, B, C]: the norms, where the model has them; dt as its product reads it. */
static int dt_b_c(struct model *m, const struct model_layer *l, struct tensor x, struct tensor dt)
{
    const struct state_hp *s = &m->hp.state;
    struct tensor b = tensor_cols(x, s->n_rank, s->n_state);
    struct tensor c = tensor_cols(x, s->n_rank + s->n_state, s->n_state);
    int64_t on = s->inner_norm;
    int rc = MODEL_OP(m, gated_norm, .dst = dt, .x = tensor_cols(x, 0, s->n_rank),
                      .w = l->state.dt_norm, .group = on * s->n_rank, .eps = s->norm_eps);
    if (rc || !on)
        return rc;
    rc = MODEL_OP(m, gated_norm, .dst = b, .x = b, .w = l->state.b_norm, .group = s->n_state,
                  .eps = s->norm_eps);
    return rc ? rc
              : MODEL_OP(m, gated_norm, .dst = c, .x = c, .w = l->state.c_norm, .group = s->n_state,
                         .eps = s->norm_eps);
}

int model_mix_mamba(struct model *m, int layer, int n)
{
    const struct model_layer *l = &m->layer[layer];
    const struct state_hp *s = &m->hp.state;
    int64_t d = m->hp.dim[DIM_S_INNER];
    struct tensor in = model_rows(m->work.state.in, n), conv = model_rows(m->work.state.conv, n);
    struct tensor x = model_rows(m->work.state.x, n), dt = model_rows(m->work.state.dt, n);
    struct tensor low = model_rows(m->work.state.dt_mul, n), y = model_rows(m->work.state.y, n);
    struct tensor mul = model_rows(m->work.state.mul, n);
    int rc = model_state_in(m, in, l->state.in, l->state.in_bias);
    if (!rc)
        rc = MODEL_OP(m, state_conv, .dst = conv, .mul = mul, .x = tensor_cols(in, 0, d),
                      .w = l->state.conv, .bias = l->state.conv_bias, .k = s->n_conv, .silu = true,
                      .at = model_state_at(m, layer, 0));
    if (!rc)
        rc = MODEL_OP(m, linear, .dst = x, .src = mul, .w = l->state.x);
    if (rc || (rc = dt_b_c(m, l, x, low)))
        return rc;
    rc = MODEL_OP(m, linear, .dst = dt, .src = low, .w = l->state.dt);
    if (rc)
        return rc;
    rc = MODEL_OP(m, state_scan, .dst = y, .x = conv, .dt = dt, .dt_bias = l->state.dt_bias,
                  .b = tensor_cols(x, s->n_rank, s->n_state),
                  .c = tensor_cols(x, s->n_rank + s->n_state, s->n_state), .a = l->state.a,
                  .skip = l->state.skip, .n_head = (int)d, .head_dim = 1, .n_group = 1,
                  .n_state = s->n_state, .dt_min = 0, .dt_max = INFINITY,
                  .at = model_state_at(m, layer, (s->n_conv - 1) * d));
    return rc ? rc
              : MODEL_OP(m, gated_norm, .dst = out_of(m, layer, n), .x = y,
                         .gate = tensor_cols(in, d, d));
}

/* Factors of the gate, x, B, C and dt in `in`. */
static int zones_scale(struct model *m, struct tensor in)
{
    const struct state_hp *s = &m->hp.state;
    int64_t d = m->hp.dim[DIM_S_INNER], bc = (int64_t)s->n_group * s->n_state, at = 0;
    const int64_t width[] = {d, d, bc, bc, s->n_head};
    int rc = 0;
    for (int i = 0; i < 5 && !rc; at += width[i++])
        rc = model_scale(m, tensor_cols(in, at, width[i]), m->hp.mup.ssm[i]);
    return rc;
}

int model_mix_mamba2(struct model *m, int layer, int n)
{
    const struct model_layer *l = &m->layer[layer];
    const struct state_hp *s = &m->hp.state;
    int64_t d = m->hp.dim[DIM_S_INNER], width = m->hp.dim[DIM_S_CONV];
    int64_t bc = (int64_t)s->n_group * s->n_state;
    struct tensor in = model_rows(m->work.state.in, n), conv = model_rows(m->work.state.conv, n);
    struct tensor y = model_rows(m->work.state.y, n);
    int rc = model_state_in(m, in, l->state.in, l->state.in_bias);
    if (!rc)
        rc = zones_scale(m, in);
    if (!rc)
        rc = MODEL_OP(m, state_conv, .dst = conv, .x = tensor_cols(in, d, width),
                      .w = l->state.conv, .bias = l->state.conv_bias, .k = s->n_conv, .silu = true,
                      .at = model_state_at(m, layer, 0));
    if (rc)
        return rc;
    rc =
        MODEL_OP(m, state_scan, .dst = y, .x = tensor_cols(conv, 0, d),
                 .dt = tensor_cols(in, d + width, s->n_head), .dt_bias = l->state.dt_bias,
                 .b = tensor_cols(conv, d, bc), .c = tensor_cols(conv, d + bc, bc), .a = l->state.a,
                 .skip = l->state.skip, .n_head = s->n_head, .head_dim = s->head_dim,
                 .n_group = s->n_group, .n_state = s->n_state, .dt_min = s->dt_min,
                 .dt_max = s->dt_max, .at = model_state_at(m, layer, (s->n_conv - 1) * width));
    return rc ? rc
              : MODEL_OP(m, gated_norm, .dst = out_of(m, layer, n), .x = y,
                         .gate = tensor_cols(in, 0, d), .w = l->state.norm,
                         .group = l->state.norm.buf ? d / s->n_group : 0,
                         .gate_first = !s->norm_then_gate, .eps = s->norm_eps);
}

int model_mix_conv(struct model *m, int layer, int n)
{
    const struct model_layer *l = &m->layer[layer];
    int64_t d = m->hp.dim[DIM_S_INNER];
    struct tensor in = model_rows(m->work.state.in, n), y = model_rows(m->work.state.y, n);
    int rc = model_state_in(m, in, l->state.in, l->state.in_bias);
    return rc ? rc
              : MODEL_OP(m, state_conv, .dst = y, .mul = out_of(m, layer, n),
                         .x = tensor_cols(in, 2 * d, d), .in_gate = tensor_cols(in, 0, d),
                         .out_gate = tensor_cols(in, d, d), .w = l->state.conv,
                         .bias = l->state.conv_bias, .k = m->hp.state.n_conv,
                         .at = model_state_at(m, layer, 0));
}
