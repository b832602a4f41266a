/* Qwen3, dense (Yang et al. 2025): as Qwen2 without biases, with an RMS norm of every q and k head before
 * rotation. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,      ROW_OUT_NORM(0), ROW_HEAD,     ROW_ATTN_NORM, ROW_QKV,  ROW_Q_NORM(0),
    ROW_K_NORM(0), ROW_ATTN_OUT,    ROW_FFN_NORM, ROW_GATE_UP,   ROW_DOWN,
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    return rc ? rc : model_qwen_windows(hp, c, e);
}

const struct model_arch model_qwen3 = {
    .name = "qwen3",
    .hf = "Qwen3ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
/* Text of the model with vision, see qwen2.c. */
static const char *const ignore[] = {"visual.", NULL};
const struct model_arch model_qwen3vl = {
    .name = "qwen3vl",
    .hf = "Qwen3VLForConditionalGeneration",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
