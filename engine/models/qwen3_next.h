/* What Qwen3-Next and Qwen3.5 share: qwen3_next.c. */
#ifndef ENGINE_MODELS_QWEN3_NEXT_H
#define ENGINE_MODELS_QWEN3_NEXT_H

#include "engine/models/state.h"

int64_t qwen3_next_q_row(const struct model_hp *hp, int part, int64_t i);
int64_t qwen3_next_in_row(const struct model_hp *hp, int part, int64_t i);
int64_t qwen3_next_ba_row(const struct model_hp *hp, int part, int64_t i);
/* After model_hp_common: sizes, the layer list, dims. */
int qwen3_next_hparams(struct model_hp *hp, struct ckpt *c, struct err *e);

/* clang-format off */
/* All but the delta net's first products and the MLP. */
#define ROWS_QWEN3_NEXT                                                                            \
    ROW_EMBD, ROW_OUT_NORM(WEIGHT_HF_PLUS_1), ROW_HEAD,                                            \
    ROW_NORM(attn_norm, "attn_norm", "input_layernorm", WEIGHT_HF_PLUS_1),                         \
    ROW_NORM(ffn_norm, "post_attention_norm", "post_attention_layernorm", WEIGHT_HF_PLUS_1),       \
    {.name = {"attn_q.weight", "attn_k.weight", "attn_v.weight"},                                  \
     .hf = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},      \
     .flags = WEIGHT_ROW_ANY, .n_in = DIM_EMBD, .n_out = {DIM_Q2, DIM_KV, DIM_KV},                 \
     .slot = LAYER(qkv), .kind = KIND_MIX(MIX_ATTN), .hf_row = qwen3_next_q_row},                  \
    ROW_Q_NORM(WEIGHT_HF_PLUS_1), ROW_K_NORM(WEIGHT_HF_PLUS_1), ROW_ATTN_OUT,                      \
    ROW_S(conv, "ssm_conv1d.weight", "linear_attn.conv1d.weight", 0, DIM_S_TAPS, MIX_DELTA),       \
    ROW_S(dt_bias, "ssm_dt.bias", "linear_attn.dt_bias", 0, DIM_S_HEADS, MIX_DELTA),               \
    ROW_S(a, "ssm_a", "linear_attn.A_log", WEIGHT_HF_NEG_EXP, DIM_S_HEADS, MIX_DELTA),             \
    ROW_S(norm, "ssm_norm.weight", "linear_attn.norm.weight", 0, DIM_S_VALUE, MIX_DELTA),          \
    ROW_S_MAT(attn_out, "ssm_out", "linear_attn.out_proj", DIM_S_INNER, DIM_EMBD, MIX_DELTA)
/* Those products as Qwen3.5 has them. */
#define ROWS_QWEN3_5_IN                                                                            \
    {.name = {"attn_qkv.weight", "attn_gate.weight"},                                              \
     .hf = {"linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight"}, .n_in = DIM_EMBD,   \
     .n_out = {DIM_S_CONV, DIM_S_INNER}, .slot = LAYER(state.in), .kind = KIND_MIX(MIX_DELTA)},    \
    {.name = {"ssm_beta.weight", "ssm_alpha.weight"},                                              \
     .hf = {"linear_attn.in_proj_b.weight", "linear_attn.in_proj_a.weight"}, .n_in = DIM_EMBD,     \
     .n_out = {DIM_S_HEADS, DIM_S_HEADS}, .slot = LAYER(state.ba), .kind = KIND_MIX(MIX_DELTA)}
/* clang-format on */

#endif
