/* RWKV-4 (Peng et al. 2023): time mixing and channel mixing, each of which sees the token before through its state. A
 * layer's state: wkv's three rows, the last input of time mixing, that of channel mixing. */
#include "engine/models/state.h"

/* Column part i of the mixed inputs, as a product reads it. */
static struct tensor part(struct tensor t, int i, int64_t d)
{
    return tensor_cols(t, i * d, d);
}

int model_mix_rwkv(struct model *m, int layer, int n)
{
    const struct model_layer *l = &m->layer[layer];
    int64_t d = m->hp.dim[DIM_S_INNER];
    struct tensor mul = model_rows(m->work.state.mul, n), rkv = model_rows(m->work.state.rkv, n);
    struct tensor att = m->work.att;
    struct dev_weight *const w[] = {l->state.r, l->state.k, l->state.v};
    int rc = MODEL_OP(m, state_shift, .dst = mul, .x = model_rows(m->work.h, n),
                      .mix = l->state.mix, .n_mix = 3, .at = model_state_at(m, layer, 3 * d));
    for (int i = 0; i < 3 && !rc; i++)
        rc = MODEL_OP(m, linear, .dst = part(rkv, i, d), .src = part(mul, i, d), .w = w[i]);
    return rc ? rc
              : MODEL_OP(m, state_wkv, .dst = tensor_2d(att.dtype, att.buf, att.off, n, d),
                         .r = part(rkv, 0, d), .k = part(rkv, 1, d), .v = part(rkv, 2, d),
                         .decay = l->state.decay, .first = l->state.first,
                         .at = model_state_at(m, layer, 0));
}

/* d = sigmoid(r) * (relu(k)^2 down). */
int model_ffn_rwkv(struct model *m, int layer, struct tensor h, struct tensor d, int n)
{
    const struct model_layer *l = &m->layer[layer];
    int64_t e = m->hp.dim[DIM_S_INNER];
    struct tensor mul = tensor_cols(model_rows(m->work.state.mul, n), 0, 2 * e);
    struct tensor gu = model_rows(m->work.gate_up, n), ff = model_rows(m->work.ff, n);
    struct tensor r = tensor_cols(model_rows(m->work.state.rkv, n), 0, e);
    gu = tensor_cols(gu, 0, m->hp.dim[DIM_FF]);
    int rc = MODEL_OP(m, state_shift, .dst = mul, .x = h, .mix = l->state.ffn_mix, .n_mix = 2,
                      .at = model_state_at(m, layer, 4 * e));
    if (!rc)
        rc = MODEL_OP(m, linear, .dst = r, .src = part(mul, 0, e), .w = l->state.ffn_r);
    if (!rc)
        rc = MODEL_OP(m, linear, .dst = gu, .src = part(mul, 1, e), .w = l->up);
    if (!rc)
        rc = MODEL_OP(m, act_mul, .dst = ff, .gate_up = gu, .act = ACT_RELU2, .single = true);
    if (!rc)
        rc = MODEL_OP(m, linear, .dst = d, .src = ff, .w = l->down);
    return rc ? rc : MODEL_OP(m, gated_norm, .dst = d, .x = d, .gate = r, .act = GATE_SIGMOID);
}
