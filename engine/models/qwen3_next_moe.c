/* Qwen3-Next and Qwen3.5 with experts, text: see qwen3_next.c. A folder of Qwen3-Next holds the delta net's first products
 * by heads of keys; so do GGUF files, but for those that hold them apart. */
#include "engine/models/qwen3_next.h"
#include "engine/models/rows_moe.h"

#define ROWS_MLP                                                                                   \
    ROW_ROUTER("mlp.gate"), ROWS_EXPERTS("mlp.experts"), ROWS_SHARED("mlp.shared_expert", 0),      \
    {                                                                                              \
        .name = {"ffn_gate_inp_shexp.weight"}, .hf = {"mlp.shared_expert_gate.weight"},            \
        .n_in = DIM_EMBD, .n_out = {DIM_ONE}, .slot = LAYER(moe.shared_router), .kind = KIND_MOE   \
    }

static const struct weight_row weights_next[] = {
    ROWS_QWEN3_NEXT,
    {.name = {"attn_qkv.weight", "attn_gate.weight"},
     .flags = WEIGHT_ALT,
     .n_in = DIM_EMBD,
     .n_out = {DIM_S_CONV, DIM_S_INNER},
     .slot = LAYER(state.in),
     .kind = KIND_MIX(MIX_DELTA)},
    {.name = {"ssm_in.weight"},
     .hf = {"linear_attn.in_proj_qkvz.weight"},
     .flags = WEIGHT_ALT | WEIGHT_ROW_ANY,
     .n_in = DIM_EMBD,
     .n_out = {DIM_S_IN},
     .slot = LAYER(state.in),
     .kind = KIND_MIX(MIX_DELTA),
     .hf_row = qwen3_next_in_row},
    {.name = {"ssm_ba.weight"},
     .hf = {"linear_attn.in_proj_ba.weight"},
     .flags = WEIGHT_ROW_ANY,
     .n_in = DIM_EMBD,
     .n_out = {DIM_S_BA},
     .slot = LAYER(state.ba),
     .kind = KIND_MIX(MIX_DELTA),
     .hf_row = qwen3_next_ba_row},
    ROWS_MLP,
};

static const struct weight_row weights_3_5[] = {
    ROWS_QWEN3_NEXT,
    ROWS_QWEN3_5_IN,
    ROWS_MLP,
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    hp->moe.renorm = true;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) || (rc = model_hp_moe(hp, c, e)) ||
        (rc = model_hp_moe_sparse(hp, c, e)))
        return rc;
    return qwen3_next_hparams(hp, c, e);
}

static int hparams_3_5(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->state.cycle = !ckpt_is_hf(c);
    return hparams(hp, c, e);
}

static const char *const ignore[] = {"model.visual.", "mtp.", NULL};

const struct model_arch model_qwen3_next = {
    .name = "qwen3next",
    .hf = "Qwen3NextForCausalLM",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights_next),
    .forward = model_forward_decoder,
};
const struct model_arch model_qwen3_5_moe = {
    .name = "qwen35moe",
    .hf = "Qwen3_5MoeForCausalLM|Qwen3_5MoeForConditionalGeneration",
    .hf_ignore = ignore,
    .hparams = hparams_3_5,
    ROWS(weights_3_5),
    .forward = model_forward_decoder,
};
