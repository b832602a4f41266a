/* Granite (Granite Team 2024): as Llama, with factors for the embeddings, the scores, what a block adds, and the logits (that
 * one divides). */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_G_VEC(rope_factors, "rope_freqs.weight", NULL, DIM_ROPE, WEIGHT_OPTIONAL),
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,
    ROW_ATTN_OUT_BIAS(WEIGHT_OPTIONAL),
    ROW_FFN_NORM,
    ROW_GATE_UP,
    ROW_GATE_UP_BIAS,
    ROW_DOWN,
    ROW_DOWN_BIAS,
};

static const struct hp_row keys[] = {
    HP_OPT("embedding_scale", "embedding_multiplier", HP_FLOAT, embd_scale, 1e-9, 1e9),
    HP_OPT("attention.scale", "attention_multiplier", HP_FLOAT, attn_scale, 1e-9, 1e9),
    HP_OPT("residual_scale", "residual_multiplier", HP_FLOAT, residual_scale, 1e-9, 1e9),
    HP_OPT("logit_scale", "logits_scaling", HP_FLOAT, logit_scale, 1e-9, 1e9),
};

int model_granite_factors(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e);
    hp->logit_scale = 1 / hp->logit_scale; /* both files hold what logits are divided by */
    return rc;
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ckpt_is_hf(c) ? ROPE_NEOX : ROPE_NORM;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)))
        return rc;
    return model_granite_factors(hp, c, e);
}

const struct model_arch model_granite = {
    .name = "granite",
    .hf = "GraniteForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
