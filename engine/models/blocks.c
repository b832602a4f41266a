/* Blocks that decoder models share. Terms whose slot is empty drop out. */
#include "engine/models/model.h"

int model_block_attn(struct model *m, int layer, int n, const struct model_attn *a, bool attend)
{
    const struct model_layer *l = &m->layer[layer];
    const struct model_hp *hp = &m->hp;
    struct tensor qkv = model_rows(m->work.qkv, n);
    int rc = MODEL_OP(m, linear, .dst = qkv, .src = model_rows(m->work.h, n), .w = l->qkv,
                      .bias = l->qkv_bias);
    if (rc)
        return rc;
    rc = MODEL_OP(m, rope_kv, .qkv = qkv, .n_head = hp->n_head, .n_kv_head = hp->n_kv_head,
                  .head_dim = hp->head_dim, .n_rot = hp->n_rot, .style = hp->rope_style,
                  .inv_freq = a->inv_freq, .attn_factor = hp->attn_factor, .q_norm = l->q_norm,
                  .k_norm = l->k_norm, .norm_eps = hp->norm_eps, .kv = m->kv, .layer = layer);
    if (rc || !attend)
        return rc;
    return MODEL_OP(m, attn, .dst = model_rows(m->work.att, n), .qkv = qkv, .n_head = hp->n_head,
                    .n_kv_head = hp->n_kv_head, .head_dim = hp->head_dim, .scale = hp->attn_scale,
                    .window = a->window, .kv = m->kv, .layer = layer);
}

/* In place on a block's output, where the model has such a norm. */
static int post_norm(struct model *m, struct tensor d, struct tensor w)
{
    return w.buf ? MODEL_OP(m, rmsnorm, .dst = d, .x = d, .w = w, .eps = m->hp.norm_eps) : 0;
}

/* att, x -> d: output product, second norm, gated MLP; x receives the attention's part, d is still to be
 * added. */
static int block_rest(struct model *m, int layer, struct tensor att, struct tensor x, int n)
{
    const struct model_layer *l = &m->layer[layer];
    struct tensor d = model_rows(m->work.d, n), h = model_rows(m->work.h, n);
    struct tensor gu = model_rows(m->work.gate_up, n), ff = model_rows(m->work.ff, n);
    int rc = MODEL_OP(m, linear, .dst = d, .src = att, .w = l->attn_out, .bias = l->attn_out_bias);
    if (rc || (rc = post_norm(m, d, l->attn_post_norm)))
        return rc;
    rc = MODEL_OP(m, rmsnorm, .dst = h, .x = x, .add = d, .w = l->ffn_norm, .eps = m->hp.norm_eps);
    if (rc)
        return rc;
    rc = MODEL_OP(m, linear, .dst = gu, .src = h, .w = l->gate_up, .bias = l->gate_up_bias);
    if (rc)
        return rc;
    rc = MODEL_OP(m, act_mul, .dst = ff, .gate_up = gu, .act = m->hp.act);
    if (rc)
        return rc;
    rc = MODEL_OP(m, linear, .dst = d, .src = ff, .w = l->down, .bias = l->down_bias);
    return rc ? rc : post_norm(m, d, l->ffn_post_norm);
}

/* Last layer: only rows with logits are worth more than their KV. xl and al hold them. */
static int last_layer(struct model *m, int layer, int n, int n_logit)
{
    struct tensor x = model_rows(m->work.xl, n_logit), al = model_rows(m->work.al, n_logit);
    int rc = MODEL_OP(m, gather, .dst = x, .src = model_rows(m->work.x, n));
    if (rc)
        return rc;
    rc = MODEL_OP(m, gather, .dst = al, .src = model_rows(m->work.att, n));
    if (rc || (rc = block_rest(m, layer, al, x, n_logit)))
        return rc;
    struct tensor h = model_rows(m->work.h, n_logit);
    rc = MODEL_OP(m, rmsnorm, .dst = h, .x = x, .add = model_rows(m->work.d, n_logit),
                  .w = m->out_norm, .eps = m->hp.norm_eps);
    if (rc)
        return rc;
    return MODEL_OP(m, linear, .dst = model_rows(m->work.logits, n_logit), .src = h,
                    .w = m->head ? m->head : m->embd);
}

int model_forward_decoder(struct model *m, const struct step_meta *meta)
{
    const struct model_hp *hp = &m->hp;
    int n = meta->n_row, last = hp->n_layer - 1;
    struct tensor x = model_rows(m->work.x, n), h = model_rows(m->work.h, n);
    struct tensor d = model_rows(m->work.d, n), none = {0};
    int rc = MODEL_OP(m, embed, .dst = x, .w = m->embd, .scale = hp->embd_scale);
    for (int i = 0; i <= last && !rc; i++) {
        bool attend = i < last || meta->n_logit > 0;
        bool local = hp->window > 0 && !(hp->window_period && (i + 1) % hp->window_period == 0);
        struct model_attn a = {.window = local ? hp->window : 0,
                               .inv_freq = local ? m->inv_freq_local : m->inv_freq};
        rc = MODEL_OP(m, rmsnorm, .dst = h, .x = x, .add = i ? d : none, .w = m->layer[i].attn_norm,
                      .eps = hp->norm_eps);
        if (rc || (rc = model_block_attn(m, i, n, &a, attend)))
            break;
        if (i < last)
            rc = block_rest(m, i, model_rows(m->work.att, n), x, n);
    }
    if (rc || meta->n_logit == 0)
        return rc;
    return last_layer(m, last, n, meta->n_logit);
}
