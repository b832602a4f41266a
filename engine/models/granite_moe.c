/* Granite MoE (IBM 2024): Llama's layers with factors at embeddings, attention, residuals and logits; experts weighted by
 * the softmax of the chosen ones' logits. A GGUF file's q and k rows are permuted for interleaved pairs. */
#include "engine/models/rows_moe.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_ATTN_OUT,
    ROW_FFN_NORM,
    ROW_ROUTER("block_sparse_moe.router.layer"),
    ROW_EXPERTS_GATE_UP("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),
    ROW_EXPERTS_GATE_UP_ALL("block_sparse_moe.input_linear.weight", 0),
    ROW_EXPERTS_DOWN("mlp.experts.{}.down_proj"),
    ROW_EXPERTS_DOWN_ALL("block_sparse_moe.output_linear.weight", 0),
    {.name = {"ffn_gate_shexp.weight", "ffn_up_shexp.weight"},
     .hf = {"shared_mlp.input_linear.weight"},
     .flags = WEIGHT_OPTIONAL,
     .n_in = DIM_EMBD,
     .n_out = {DIM_SHARED_FF, DIM_SHARED_FF},
     .hf_n_out = {DIM_SHARED_FF2},
     .slot = LAYER(moe.shared_gate_up),
     .kind = KIND_MOE},
    {.name = {"ffn_down_shexp.weight"},
     .hf = {"shared_mlp.output_linear.weight"},
     .flags = WEIGHT_OPTIONAL,
     .n_in = DIM_SHARED_FF,
     .n_out = {DIM_EMBD},
     .slot = LAYER(moe.shared_down),
     .kind = KIND_MOE},
};

#define FACTOR(k, j, f)                                                                            \
    {                                                                                              \
        k, j, HP_FLOAT, true, offsetof(struct model_hp, f), 1e-9, 1e9                              \
    }
static const struct hp_row keys[] = {
    FACTOR("embedding_scale", "embedding_multiplier", embd_scale),
    FACTOR("residual_scale", "residual_multiplier", residual_scale),
    FACTOR("attention.scale", "attention_multiplier", attn_scale),
    FACTOR("logit_scale", "logits_scaling", logit_scale),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ckpt_is_hf(c) ? ROPE_NEOX : ROPE_NORM;
    hp->act = ACT_SILU;
    hp->moe.score = ROUTE_SOFTMAX_USED;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) ||
        (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)))
        return rc;
    hp->logit_scale = 1 / hp->logit_scale; /* both files hold what logits are divided by */
    return model_hp_moe(hp, c, e);
}

const struct model_arch model_granite_moe = {
    .name = "granitemoe",
    .hf = "GraniteMoeForCausalLM|GraniteMoeSharedForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
