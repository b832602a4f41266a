/* AFM (Arcee 2025): as Llama, squared ReLU without a gate. */
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
    ROW_MAT(up, "ffn_up.weight", "mlp.up_proj.weight", DIM_EMBD, DIM_FF, 0),
    ROW_VEC(up_bias, "ffn_up.bias", "mlp.up_proj.bias", DIM_FF, WEIGHT_OPTIONAL),
    ROW_DOWN,
    ROW_DOWN_BIAS,
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ckpt_is_hf(c) ? ROPE_NEOX : ROPE_NORM;
    hp->act = ACT_RELU2;
    int rc = model_hp_common(hp, c, e);
    return rc ? rc : model_hp_act(c, "hidden_act", &hp->act, e);
}

const struct model_arch model_arcee = {
    .name = "arcee",
    .hf = "ArceeForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
