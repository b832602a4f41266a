/* Qwen2 and Qwen2.5 (Yang et al. 2024): as Llama, with biases on q, k and v, and rotation by halves. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,        ROW_OUT_NORM(0), ROW_HEAD,     ROW_ATTN_NORM, ROW_QKV,
    ROW_QKV_BIAS(0), ROW_ATTN_OUT,    ROW_FFN_NORM, ROW_GATE_UP,   ROW_DOWN,
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    return model_hp_common(hp, c, e);
}

const struct model_arch model_qwen2 = {
    .name = "qwen2",
    .hf = "Qwen2ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
