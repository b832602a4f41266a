/* ERNIE 4.5, dense (ERNIE Team 2025), and Helium (Kyutai 2025): as Llama, neighbouring pairs rotated in folders as well. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,         ROW_OUT_NORM(0),
    ROW_HEAD,         ROW_ATTN_NORM,
    ROW_QKV,          ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,     ROW_ATTN_OUT_BIAS(WEIGHT_OPTIONAL),
    ROW_FFN_NORM,     ROW_GATE_UP,
    ROW_GATE_UP_BIAS, ROW_DOWN,
    ROW_DOWN_BIAS,
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NORM;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    return rc ? rc : model_hp_act(c, "hidden_act", &hp->act, e);
}

const struct model_arch model_ernie4_5 = {
    .name = "ernie4_5",
    .hf = "Ernie4_5ForCausalLM|HeliumForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
