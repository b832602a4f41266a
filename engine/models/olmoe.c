/* OLMoE (Muennighoff et al. 2024): norms of q and k over all heads, experts in every layer, chosen by softmax. */
#include "engine/models/rows_moe.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROWS_QK_NORM_ALL,
    ROW_ATTN_OUT,
    ROW_FFN_NORM,
    ROW_ROUTER("mlp.gate"),
    ROWS_EXPERTS("mlp.experts"),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)))
        return rc;
    return model_hp_moe(hp, c, e);
}

const struct model_arch model_olmoe = {
    .name = "olmoe",
    .hf = "OlmoeForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
