/* Weight rows of mixtures of experts, and what an architecture of them reads first. A folder holds a matrix an expert or,
 * as transformers 5 saves some, all of them in one tensor: rows of both kinds share a slot, and one must be there. */
#ifndef ENGINE_MODELS_ROWS_MOE_H
#define ENGINE_MODELS_ROWS_MOE_H

#include "engine/models/rows.h"

/* After model_hp_common: experts, their sizes and routing by the usual keys into hp->moe, over what is set there before;
 * the dims; FFN_MOE for layers behind the leading dense ones. A model without experts is refused. */
int model_hp_moe(struct model_hp *hp, struct ckpt *c, struct err *e);
/* Layers without experts: those in mlp_only_layers, and all but every decoder_sparse_step-th. */
int model_hp_moe_sparse(struct model_hp *hp, struct ckpt *c, struct err *e);

/* Latent attention in every layer: ranks and heads, before and after model_hp_common. (deepseek.c) */
int model_hp_mla_sizes(struct model_hp *hp, struct ckpt *c, struct err *e);
int model_hp_mla(struct model_hp *hp, struct ckpt *c, struct err *e);

#define KIND_MOE (KIND_FFN(FFN_MOE) | KIND_FFN(FFN_BOTH))
/* clang-format off */
#define ROW_ROUTER(folder)                                                                         \
    {.name = {"ffn_gate_inp.weight"}, .hf = {folder ".weight"}, .n_in = DIM_EMBD,                  \
     .n_out = {DIM_EXPERTS}, .slot = LAYER(moe.router), .kind = KIND_MOE}
#define ROW_SELECT_BIAS(folder)                                                                    \
    {.name = {"exp_probs_b.bias"}, .hf = {folder},                                                 \
     .flags = WEIGHT_VECTOR | WEIGHT_FLAT | WEIGHT_OPTIONAL, .n_out = {DIM_EXPERTS},               \
     .slot = LAYER(moe.select_bias), .kind = KIND_MOE}
#define ROW_EXPERTS_GATE_UP(gate, up)                                                              \
    {.name = {"ffn_gate_exps.weight", "ffn_up_exps.weight"}, .hf = {gate ".weight", up ".weight"}, \
     .flags = WEIGHT_EXPERTS | WEIGHT_ALT, .n_in = DIM_EMBD,                                       \
     .n_out = {DIM_EXPERT_FF, DIM_EXPERT_FF}, .slot = LAYER(moe.gate_up), .n_expert = DIM_EXPERTS, \
     .kind = KIND_MOE}
/* All experts in one tensor, gate and up stacked; `more`: WEIGHT_HF_T or 0. */
#define ROW_EXPERTS_GATE_UP_ALL(folder, more)                                                      \
    {.name = {"ffn_gate_up_exps.weight"}, .hf = {folder},                                          \
     .flags = WEIGHT_EXPERTS | WEIGHT_ALT | (more), .n_in = DIM_EMBD, .n_out = {DIM_EXPERT_FF2},   \
     .slot = LAYER(moe.gate_up), .n_expert = DIM_EXPERTS, .kind = KIND_MOE}
#define ROW_EXPERTS_DOWN(folder)                                                                     \
    {.name = {"ffn_down_exps.weight"}, .hf = {folder ".weight"},                                     \
     .flags = WEIGHT_EXPERTS | WEIGHT_ALT, .n_in = DIM_EXPERT_FF, .n_out = {DIM_EMBD},             \
     .slot = LAYER(moe.down), .n_expert = DIM_EXPERTS, .kind = KIND_MOE}
#define ROW_EXPERTS_DOWN_ALL(folder, more)                                                         \
    {.hf = {folder}, .flags = WEIGHT_EXPERTS | WEIGHT_ALT | (more), .n_in = DIM_EXPERT_FF,         \
     .n_out = {DIM_EMBD}, .slot = LAYER(moe.down), .n_expert = DIM_EXPERTS, .kind = KIND_MOE}
/* The usual names, both kinds. */
#define ROWS_EXPERTS(folder)                                                                       \
    ROW_EXPERTS_GATE_UP(folder ".{}.gate_proj", folder ".{}.up_proj"),                             \
    ROW_EXPERTS_GATE_UP_ALL(folder ".gate_up_proj", 0),                                            \
    ROW_EXPERTS_DOWN(folder ".{}.down_proj"), ROW_EXPERTS_DOWN_ALL(folder ".down_proj", 0)
/* As Mixtral names them. */
#define ROWS_EXPERTS_W(folder)                                                                     \
    ROW_EXPERTS_GATE_UP(folder ".{}.w1", folder ".{}.w3"),                                         \
    ROW_EXPERTS_GATE_UP_ALL("mlp.experts.gate_up_proj", 0),                                        \
    ROW_EXPERTS_DOWN(folder ".{}.w2"), ROW_EXPERTS_DOWN_ALL("mlp.experts.down_proj", 0)
/* `more`: WEIGHT_OPTIONAL or 0. */
#define ROWS_SHARED(folder, more)                                                                  \
    {.name = {"ffn_gate_shexp.weight", "ffn_up_shexp.weight"},                                     \
     .hf = {folder ".gate_proj.weight", folder ".up_proj.weight"}, .flags = (more),                \
     .n_in = DIM_EMBD, .n_out = {DIM_SHARED_FF, DIM_SHARED_FF}, .slot = LAYER(moe.shared_gate_up), \
     .kind = KIND_MOE},                                                                            \
    {.name = {"ffn_down_shexp.weight"}, .hf = {folder ".down_proj.weight"}, .flags = (more),       \
     .n_in = DIM_SHARED_FF, .n_out = {DIM_EMBD}, .slot = LAYER(moe.shared_down), .kind = KIND_MOE}
/* Granite's experts and the MLP beside them, gate and up in one tensor; `more`: of that MLP, WEIGHT_OPTIONAL or 0. */
#define ROWS_GRANITE_EXPERTS(more)                                                                 \
    ROW_ROUTER("block_sparse_moe.router.layer"),                                                   \
    ROW_EXPERTS_GATE_UP("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),                     \
    ROW_EXPERTS_GATE_UP_ALL("block_sparse_moe.input_linear.weight", 0),                            \
    ROW_EXPERTS_DOWN("mlp.experts.{}.down_proj"),                                                  \
    ROW_EXPERTS_DOWN_ALL("block_sparse_moe.output_linear.weight", 0),                              \
    {.name = {"ffn_gate_shexp.weight", "ffn_up_shexp.weight"},                                     \
     .hf = {"shared_mlp.input_linear.weight"}, .flags = (more), .n_in = DIM_EMBD,                  \
     .n_out = {DIM_SHARED_FF, DIM_SHARED_FF}, .hf_n_out = {DIM_SHARED_FF2},                        \
     .slot = LAYER(moe.shared_gate_up), .kind = KIND_MOE},                                         \
    {.name = {"ffn_down_shexp.weight"}, .hf = {"shared_mlp.output_linear.weight"}, .flags = (more),\
     .n_in = DIM_SHARED_FF, .n_out = {DIM_EMBD}, .slot = LAYER(moe.shared_down), .kind = KIND_MOE}
/* Norms of q and k over all heads. */
#define ROWS_QK_NORM_ALL                                                                           \
    {.name = {"attn_q_norm.weight"}, .hf = {"self_attn.q_norm.weight"}, .flags = WEIGHT_VECTOR,    \
     .n_out = {DIM_Q}, .slot = LAYER(q_norm_all), .kind = KIND_MIX(MIX_ATTN)},                     \
    {.name = {"attn_k_norm.weight"}, .hf = {"self_attn.k_norm.weight"}, .flags = WEIGHT_VECTOR,    \
     .n_out = {DIM_KV}, .slot = LAYER(k_norm_all), .kind = KIND_MIX(MIX_ATTN)}
/* clang-format on */

#endif
