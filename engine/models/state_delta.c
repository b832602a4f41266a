/* Gated delta net (Yang et al. 2024): work.state.in holds [q, k, v, output gate] of Qwen3-Next, or Kimi's [q, k, v]. */
#include "engine/models/state.h"

#define KEY_EPS 1e-6f

/* Beta, decay and output gate of a row. */
struct gates {
    struct tensor beta, decay, out;
};

static int gates_of(struct model *m, const struct model_layer *l, int n, struct gates *g)
{
    const struct state_hp *s = &m->hp.state;
    const int64_t *d = m->hp.dim;
    struct tensor ba = model_rows(m->work.state.ba, n);
    int rc = model_state_in(m, ba, l->state.ba, (struct tensor){0});
    g->beta = tensor_cols(ba, 0, s->n_head);
    if (!l->state.f_a) {
        g->decay = tensor_cols(ba, s->n_head, s->n_head);
        g->out = tensor_cols(model_rows(m->work.state.in, n), d[DIM_S_CONV], d[DIM_S_INNER]);
        return rc;
    }
    struct tensor low = model_rows(m->work.state.low, n), none = {0};
    struct tensor low32 = model_rows(m->work.state.low32, n);
    g->decay = model_rows(m->work.state.dt, n);
    g->out = model_rows(m->work.state.z, n);
    for (int i = 0; i < 2 && !rc; i++) {
        rc = model_state_in(m, low32, i ? l->state.g_a : l->state.f_a, none);
        if (!rc)
            rc = MODEL_OP(m, gated_norm, .dst = low, .x = low32);
        if (!rc)
            rc = MODEL_OP(m, linear, .dst = i ? g->out : g->decay, .src = low,
                          .w = i ? l->state.g_b : l->state.f_b);
    }
    return rc;
}

int model_mix_delta(struct model *m, int layer, int n)
{
    const struct model_layer *l = &m->layer[layer];
    const struct state_hp *s = &m->hp.state;
    const int64_t *d = m->hp.dim;
    int64_t keys = d[DIM_S_KEYS], values = d[DIM_S_INNER];
    struct tensor in = model_rows(m->work.state.in, n), conv = model_rows(m->work.state.conv, n);
    struct tensor y = model_rows(m->work.state.y, n), att = m->work.att;
    struct gates g;
    int rc = model_state_in(m, in, l->state.in, (struct tensor){0});
    if (rc || (rc = gates_of(m, l, n, &g)))
        return rc;
    rc = MODEL_OP(m, state_conv, .dst = conv, .x = tensor_cols(in, 0, d[DIM_S_CONV]),
                  .w = l->state.conv, .bias = l->state.conv_bias, .k = s->n_conv, .silu = true,
                  .at = model_state_at(m, layer, 0));
    if (rc)
        return rc;
    rc = MODEL_OP(m, state_delta, .dst = y, .q = tensor_cols(conv, 0, keys),
                  .k = tensor_cols(conv, keys, keys), .v = tensor_cols(conv, 2 * keys, values),
                  .g = g.decay, .g_bias = l->state.dt_bias, .a = l->state.a, .beta = g.beta,
                  .n_head = s->n_head, .n_key_head = s->n_key_head, .dk = s->d_key,
                  .dv = s->head_dim, .cycle = s->cycle, .scale = 1 / sqrtf((float)s->d_key),
                  .eps = KEY_EPS, .at = model_state_at(m, layer, (s->n_conv - 1) * d[DIM_S_CONV]));
    if (rc)
        return rc;
    return MODEL_OP(m, gated_norm, .dst = tensor_2d(att.dtype, att.buf, att.off, n, values), .x = y,
                    .gate = g.out, .w = l->state.norm, .group = s->head_dim,
                    .act = l->state.f_a ? GATE_SIGMOID : GATE_SILU, .eps = s->norm_eps);
}
