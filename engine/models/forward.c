/* The forward of decoder models, by the layer list and the slots that are filled. */
#include "engine/models/model.h"

static struct tensor no_tensor(void)
{
    return (struct tensor){0};
}

int64_t model_mix_width(const struct model *m, int layer)
{
    const struct layer_hp *y = &m->hp.layer[layer];
    if (y->mixer > MIX_MLA)
        return m->hp.dim[DIM_S_INNER];
    return m->hp.dim[y->other_heads ? DIM_Q_OTHER : DIM_Q];
}

/* What a layer's mixer leaves, in t (work.att or work.al). */
static struct tensor mixed(const struct model *m, int layer, struct tensor t, int n)
{
    return tensor_2d(t.dtype, t.buf, t.off, n, model_mix_width(m, layer));
}

static int mix(struct model *m, int layer, int kind, int n, bool attend)
{
    switch (kind) {
    case MIX_NONE:
        return 0;
    case MIX_ATTN:
        return model_mix_attn(m, layer, n, attend);
    case MIX_MLA:
        return model_mix_mla(m, layer, n, attend);
    case MIX_MAMBA:
        return model_mix_mamba(m, layer, n);
    case MIX_MAMBA2:
        return model_mix_mamba2(m, layer, n);
    case MIX_DELTA:
        return model_mix_delta(m, layer, n);
    case MIX_CONV:
        return model_mix_conv(m, layer, n);
    case MIX_RWKV:
        return model_mix_rwkv(m, layer, n);
    default:
        return ERR_UNSUPPORTED;
    }
}

/* h is the norm of x. */
static int ffn(struct model *m, int layer, struct tensor x, struct tensor h, struct tensor d)
{
    int n = (int)x.shape[0];
    switch (m->hp.layer[layer].ffn) {
    case FFN_DENSE:
        return model_ffn_dense(m, layer, h, d, n);
    case FFN_MOE:
        return model_ffn_moe(m, layer, h, d, n);
    case FFN_BOTH:
        return model_ffn_both(m, layer, x, h, d, n);
    case FFN_RWKV:
        return model_ffn_rwkv(m, layer, h, d, n);
    default:
        return ERR_UNSUPPORTED;
    }
}

/* In place on a block's output: the norm behind it and the residual's factor, where the model has them. */
static int block_end(struct model *m, struct tensor d, struct tensor w)
{
    int rc = w.buf ? model_norm(m, d, d, no_tensor(), w, no_tensor()) : 0;
    if (rc || m->hp.residual_scale == 1)
        return rc;
    return MODEL_OP(m, scale, .x = d, .scale = m->hp.residual_scale);
}

/* Rows that a layer still needs behind its mixer. */
struct rows {
    struct tensor x, h, att; /* stream, the mixer's input, its output */
    struct tensor att2;      /* of the mixer beside it */
    int n;
};

/* The product behind a second mixer, added to d. */
static int beside_add(struct model *m, int layer, const struct rows *r, struct tensor d)
{
    struct tensor d2 = model_rows(m->work.d2, r->n);
    if (!m->hp.layer[layer].beside)
        return 0;
    int rc = MODEL_OP(m, linear, .dst = d2, .src = r->att2, .w = m->layer[layer].state.out);
    if (!rc)
        rc = model_scale(m, d2, m->hp.mup.ssm_out);
    return rc ? rc : model_norm(m, no_tensor(), d, d2, no_tensor(), no_tensor());
}

/* att, x -> d, still to be added: output product, and the feed-forward block. */
static int block_rest(struct model *m, int layer, const struct rows *r)
{
    const struct model_layer *l = &m->layer[layer];
    struct tensor d = model_rows(m->work.d, r->n), d2 = model_rows(m->work.d2, r->n);
    struct tensor h = model_rows(m->work.h, r->n);
    int kind = m->hp.layer[layer].ffn;
    if (m->hp.layer[layer].mixer == MIX_NONE) { /* the only norm is before the feed-forward block */
        int end = ffn(m, layer, r->x, r->h, d);
        return end ? end : block_end(m, d, l->ffn_post_norm);
    }
    int rc =
        MODEL_OP(m, linear, .dst = d, .src = r->att, .w = l->attn_out, .bias = l->attn_out_bias);
    if (rc || (rc = model_scale(m, d, m->hp.mup.attn_out)) || (rc = beside_add(m, layer, r, d)) ||
        (rc = block_end(m, d, l->attn_post_norm)) || kind == FFN_NONE)
        return rc;
    if (m->hp.parallel) {
        struct tensor in = r->h;
        if (l->ffn_norm.buf) {
            in = model_rows(m->work.h2, r->n);
            rc = model_norm(m, in, r->x, no_tensor(), l->ffn_norm, l->ffn_norm_b);
        }
        if (rc || (rc = ffn(m, layer, r->x, in, d2)) || (rc = block_end(m, d2, l->ffn_post_norm)))
            return rc;
        return model_norm(m, no_tensor(), d, d2, no_tensor(), no_tensor());
    }
    rc = model_norm(m, h, r->x, d, l->ffn_norm, l->ffn_norm_b);
    if (rc || (rc = ffn(m, layer, r->x, h, d)))
        return rc;
    return block_end(m, d, l->ffn_post_norm);
}

static int head(struct model *m, struct tensor x, struct tensor d, int n_logit)
{
    struct tensor h = model_rows(m->work.h, n_logit), y = model_rows(m->work.logits, n_logit);
    int rc = model_norm(m, h, x, d, m->out_norm, m->out_norm_b);
    if (rc)
        return rc;
    rc = MODEL_OP(m, linear, .dst = y, .src = h, .w = m->head ? m->head : m->embd,
                  .bias = m->head_bias);
    if (!rc && m->hp.logit_scale != 1)
        rc = MODEL_OP(m, scale, .x = y, .scale = m->hp.logit_scale);
    if (!rc && m->hp.logit_softcap > 0)
        rc = MODEL_OP(m, scale, .x = y, .scale = 1, .softcap = m->hp.logit_softcap);
    return rc;
}

/* Last layer: only rows with logits are worth more than their KV. xl, al and hl hold them. */
static int last_layer(struct model *m, int layer, int n, int n_logit)
{
    struct rows r = {.x = model_rows(m->work.xl, n_logit),
                     .h = model_rows(m->work.hl, n_logit),
                     .att = mixed(m, layer, m->work.al, n_logit),
                     .n = n_logit};
    int rc = MODEL_OP(m, gather, .dst = r.x, .src = model_rows(m->work.x, n));
    bool bare = m->hp.layer[layer].mixer == MIX_NONE;
    if (!rc && (m->hp.parallel || bare))
        rc = MODEL_OP(m, gather, .dst = r.h, .src = model_rows(m->work.h, n));
    if (!rc && !bare)
        rc = MODEL_OP(m, gather, .dst = r.att, .src = mixed(m, layer, m->work.att, n));
    if (!rc && m->hp.layer[layer].beside) {
        r.att2 = m->work.al2;
        r.att2.shape[0] = n_logit;
        rc = MODEL_OP(m, gather, .dst = r.att2, .src = model_rows(m->work.att2, n));
    }
    if (rc || (rc = block_rest(m, layer, &r)))
        return rc;
    if (!model_ple_has(&m->hp))
        return head(m, r.x, model_rows(m->work.d, n_logit), n_logit);
    rc = model_ple_end(m, layer, r.x, model_rows(m->work.d, n_logit), true);
    return rc ? rc : head(m, r.x, no_tensor(), n_logit);
}

static int embed(struct model *m, int n)
{
    struct tensor x = model_rows(m->work.x, n);
    int rc =
        MODEL_OP(m, embed, .dst = x, .w = m->embd, .scale = m->hp.embd_scale, .pos = m->pos_embd);
    if (rc || !m->embd_norm.buf)
        return rc;
    return model_norm(m, x, x, no_tensor(), m->embd_norm, m->embd_norm_b);
}

/* d, x -> logits, when all rows went through the last layer. */
static int head_of_all(struct model *m, int n, int n_logit)
{
    struct tensor x = model_rows(m->work.x, n), xl = model_rows(m->work.xl, n_logit);
    int rc = model_norm(m, no_tensor(), x, model_rows(m->work.d, n), no_tensor(), no_tensor());
    if (!rc)
        rc = MODEL_OP(m, gather, .dst = xl, .src = x);
    return rc ? rc : head(m, xl, no_tensor(), n_logit);
}

int model_forward_decoder(struct model *m, const struct step_meta *meta)
{
    int n = meta->n_row, last = m->hp.n_layer - 1;
    struct rows r = {.x = model_rows(m->work.x, n), .h = model_rows(m->work.h, n), .n = n};
    bool whole = m->hp.layer[last].ffn == FFN_RWKV; /* it leaves a state, too */
    bool ends = model_ple_has(&m->hp); /* then d is added at a layer's end, not by the next */
    m->n_row = n;
    int rc = embed(m, n);
    if (!rc && ends)
        rc = model_ple_inputs(m, n);
    for (int i = 0; i <= last && !rc; i++) {
        const struct model_layer *l = &m->layer[i];
        bool attend = i < last || meta->n_logit > 0;
        struct tensor d = model_rows(m->work.d, n);
        rc = model_norm(m, r.h, r.x, i && !ends ? d : no_tensor(), l->attn_norm, l->attn_norm_b);
        if (rc || (rc = mix(m, i, m->hp.layer[i].mixer, n, attend)) ||
            (m->hp.layer[i].beside && (rc = mix(m, i, m->hp.layer[i].beside, n, attend))))
            break;
        r.att2 = model_rows(m->work.att2, n);
        r.att = mixed(m, i, m->work.att, n);
        if (i < last || whole)
            rc = block_rest(m, i, &r);
        if (!rc && ends && i < last)
            rc = model_ple_end(m, i, r.x, d, false);
    }
    if (rc || meta->n_logit == 0)
        return rc;
    return whole ? head_of_all(m, n, meta->n_logit) : last_layer(m, last, n, meta->n_logit);
}
