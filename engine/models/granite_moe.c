/* Granite MoE (IBM 2024): Llama's layers with factors at embeddings, attention, residuals and logits; experts weighted by
 * the softmax of the chosen ones' logits. A GGUF file's q and k rows are permuted for interleaved pairs. */
#include "engine/models/rows_moe.h"

static const struct weight_row weights[] = {
    ROW_EMBD, ROW_OUT_NORM(0), ROW_HEAD,     ROW_ATTN_NORM,
    ROW_QKV,  ROW_ATTN_OUT,    ROW_FFN_NORM, ROWS_GRANITE_EXPERTS(WEIGHT_OPTIONAL),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ckpt_is_hf(c) ? ROPE_NEOX : ROPE_NORM;
    hp->act = ACT_SILU;
    hp->moe.score = ROUTE_SOFTMAX_USED;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) ||
        (rc = model_granite_factors(hp, c, e)))
        return rc;
    return model_hp_moe(hp, c, e);
}

const struct model_arch model_granite_moe = {
    .name = "granitemoe",
    .hf = "GraniteMoeForCausalLM|GraniteMoeSharedForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
