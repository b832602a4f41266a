/* Qwen2 MoE (Yang et al. 2024): Qwen2 with experts chosen by softmax, and an expert that all rows share behind a gate of
 * its own. */
#include "engine/models/rows_moe.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,
    ROW_FFN_NORM,
    ROW_GATE_UP,
    ROW_DOWN,
    ROW_ROUTER("mlp.gate"),
    ROWS_EXPERTS("mlp.experts"),
    ROWS_SHARED("mlp.shared_expert", 0),
    {.name = {"ffn_gate_inp_shexp.weight"},
     .hf = {"mlp.shared_expert_gate.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_ONE},
     .slot = LAYER(moe.shared_router),
     .kind = KIND_MOE},
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) || (rc = model_hp_moe(hp, c, e)))
        return rc;
    return model_hp_moe_sparse(hp, c, e);
}

const struct model_arch model_qwen2_moe = {
    .name = "qwen2moe",
    .hf = "Qwen2MoeForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
