/* gpt-oss (OpenAI 2025): sinks, a window in every other layer, YaRN with a ramp that is not rounded, biases everywhere,
 * experts with a clamped gate. A folder holds gate and up interleaved (and, in bf16, every expert transposed). */
#include "engine/models/rows_moe.h"

/* Row of a folder's fused tensor for row i of gate then up. */
static int64_t gate_up_row(const struct model_hp *hp, int part, int64_t i)
{
    int64_t ff = hp->moe.n_ff;
    (void)part;
    return i < ff ? 2 * i : 2 * (i - ff) + 1;
}

static int64_t gate_up_bias(const struct model_hp *hp, int part, int64_t i)
{
    int64_t n = 2 * (int64_t)hp->moe.n_ff;
    return i / n * n + gate_up_row(hp, part, i % n);
}

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_QKV_BIAS(0),
    {.name = {"attn_sinks.weight"},
     .hf = {"self_attn.sinks"},
     .flags = WEIGHT_VECTOR,
     .n_out = {DIM_HEADS},
     .slot = LAYER(sinks)},
    ROW_ATTN_OUT,
    ROW_ATTN_OUT_BIAS(0),
    ROW_NORM(ffn_norm, "post_attention_norm", "post_attention_layernorm", 0),
    ROW_ROUTER("mlp.router"),
    {.name = {"ffn_gate_inp.bias"},
     .hf = {"mlp.router.bias"},
     .flags = WEIGHT_VECTOR,
     .n_out = {DIM_EXPERTS},
     .slot = LAYER(moe.router_bias)},
    {.name = {"ffn_gate_exps.weight", "ffn_up_exps.weight"},
     .hf = {"mlp.experts.gate_up_proj"},
     .flags = WEIGHT_EXPERTS | WEIGHT_HF_T,
     .n_in = DIM_EMBD,
     .n_out = {DIM_EXPERT_FF, DIM_EXPERT_FF},
     .hf_n_out = {DIM_EXPERT_FF2},
     .hf_row = gate_up_row,
     .slot = LAYER(moe.gate_up),
     .n_expert = DIM_EXPERTS},
    {.name = {"ffn_gate_exps.bias", "ffn_up_exps.bias"},
     .hf = {"mlp.experts.gate_up_proj_bias"},
     .flags = WEIGHT_EXPERTS | WEIGHT_VECTOR | WEIGHT_FLAT,
     .n_out = {DIM_EXPERTS_FF, DIM_EXPERTS_FF},
     .hf_n_out = {DIM_EXPERTS_FF2},
     .hf_row = gate_up_bias,
     .slot = LAYER(moe.gate_up_bias),
     .n_expert = DIM_EXPERTS},
    {.name = {"ffn_down_exps.weight"},
     .hf = {"mlp.experts.down_proj"},
     .flags = WEIGHT_EXPERTS | WEIGHT_HF_T,
     .n_in = DIM_EXPERT_FF,
     .n_out = {DIM_EMBD},
     .slot = LAYER(moe.down),
     .n_expert = DIM_EXPERTS},
    {.name = {"ffn_down_exps.bias"},
     .hf = {"mlp.experts.down_proj_bias"},
     .flags = WEIGHT_EXPERTS | WEIGHT_VECTOR | WEIGHT_FLAT,
     .n_out = {DIM_EXPERTS_EMBD},
     .slot = LAYER(moe.down_bias),
     .n_expert = DIM_EXPERTS},
};

static const struct hp_row keys[] = {
    {"attention.sliding_window", "sliding_window", HP_INT, true, offsetof(struct model_hp, window),
     0, 1 << 26},
    {NULL, "swiglu_limit", HP_FLOAT, true, offsetof(struct model_hp, moe.act_limit), 1e-3, 1e6},
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SWIGLU_OAI;
    hp->moe.act_limit = 7;
    hp->moe.score = ROUTE_SOFTMAX_USED;
    int rc = model_hp_common(hp, c, e);
    hp->rope_exact = true;
    if (rc || (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)) ||
        (rc = model_hp_moe(hp, c, e)))
        return rc;
    return model_hp_slides(hp, c, 2, e);
}

const struct model_arch model_gpt_oss = {
    .name = "gpt-oss",
    .hf = "GptOssForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
