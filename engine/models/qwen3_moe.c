/* Qwen3 MoE (Yang et al. 2025): Qwen3 with experts chosen by softmax, weights of the chosen summing to one. */
#include "engine/models/rows_moe.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_Q_NORM(0),
    ROW_K_NORM(0),
    ROW_ATTN_OUT,
    ROW_FFN_NORM,
    ROW_GATE_UP,
    ROW_DOWN,
    ROW_ROUTER("mlp.gate"),
    ROWS_EXPERTS("mlp.experts"),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    hp->moe.renorm = !ckpt_is_hf(c); /* a GGUF file need not say so */
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) || (rc = model_hp_moe(hp, c, e)))
        return rc;
    return model_hp_moe_sparse(hp, c, e);
}

const struct model_arch model_qwen3_moe = {
    .name = "qwen3moe",
    .hf = "Qwen3MoeForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
