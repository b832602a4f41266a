/* Weight rows that many architectures share, with their names in both kinds of files. An architecture's table is a list
 * of these and of its own. */
#ifndef ENGINE_MODELS_ROWS_H
#define ENGINE_MODELS_ROWS_H

#include <stddef.h>

#include "engine/models/model.h"

#define LAYER(f) offsetof(struct model_layer, f)
#define MODEL(f) offsetof(struct model, f)

/* clang-format off */
#define ROW_EMBD                                                                                   \
    {.name = {"token_embd.weight"}, .hf = {"model.embed_tokens.weight"},                           \
     .flags = WEIGHT_GLOBAL | WEIGHT_ROWS | WEIGHT_ROWS_TIED, .n_in = DIM_EMBD,                    \
     .n_out = {DIM_VOCAB}, .slot = MODEL(embd), .tied_by = "output.weight",                        \
     .hf_tied_by = "lm_head.weight"}
/* `more`: WEIGHT_HF_PLUS_1 or 0. */
#define ROW_OUT_NORM(more)                                                                         \
    {.name = {"output_norm.weight"}, .hf = {"model.norm.weight"},                                  \
     .flags = WEIGHT_GLOBAL | WEIGHT_VECTOR | (more), .n_out = {DIM_EMBD}, .slot = MODEL(out_norm)}
#define ROW_HEAD                                                                                   \
    {.name = {"output.weight"}, .hf = {"lm_head.weight"}, .flags = WEIGHT_GLOBAL | WEIGHT_OPTIONAL,\
     .n_in = DIM_EMBD, .n_out = {DIM_VOCAB}, .slot = MODEL(head)}
/* A vector of n_embd values of a layer. */
#define ROW_NORM(field, gguf, folder, more)                                                        \
    {.name = {gguf ".weight"}, .hf = {folder ".weight"}, .flags = WEIGHT_VECTOR | (more),          \
     .n_out = {DIM_EMBD}, .slot = LAYER(field)}
#define ROW_ATTN_NORM ROW_NORM(attn_norm, "attn_norm", "input_layernorm", 0)
#define ROW_FFN_NORM ROW_NORM(ffn_norm, "ffn_norm", "post_attention_layernorm", 0)
#define ROW_QKV                                                                                    \
    {.name = {"attn_q.weight", "attn_k.weight", "attn_v.weight"},                                  \
     .hf = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},      \
     .n_in = DIM_EMBD, .n_out = {DIM_Q, DIM_KV, DIM_KV}, .slot = LAYER(qkv), .kind = KIND_MIX(MIX_ATTN)}
#define ROW_QKV_BIAS(more)                                                                         \
    {.name = {"attn_q.bias", "attn_k.bias", "attn_v.bias"},                                        \
     .hf = {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},            \
     .flags = WEIGHT_VECTOR | (more), .n_out = {DIM_Q, DIM_KV, DIM_KV}, .slot = LAYER(qkv_bias),   \
     .kind = KIND_MIX(MIX_ATTN)}
#define ROW_ATTN_OUT                                                                               \
    {.name = {"attn_output.weight"}, .hf = {"self_attn.o_proj.weight"}, .n_in = DIM_Q,             \
     .n_out = {DIM_EMBD}, .slot = LAYER(attn_out), .kind = KIND_MIX(MIX_ATTN)}
#define ROW_ATTN_OUT_BIAS(more)                                                                    \
    {.name = {"attn_output.bias"}, .hf = {"self_attn.o_proj.bias"}, .flags = WEIGHT_VECTOR | (more),\
     .n_out = {DIM_EMBD}, .slot = LAYER(attn_out_bias), .kind = KIND_MIX(MIX_ATTN)}
#define ROW_Q_NORM(more)                                                                           \
    {.name = {"attn_q_norm.weight"}, .hf = {"self_attn.q_norm.weight"},                            \
     .flags = WEIGHT_VECTOR | (more), .n_out = {DIM_HEAD}, .slot = LAYER(q_norm), .kind = KIND_MIX(MIX_ATTN)}
#define ROW_K_NORM(more)                                                                           \
    {.name = {"attn_k_norm.weight"}, .hf = {"self_attn.k_norm.weight"},                            \
     .flags = WEIGHT_VECTOR | (more), .n_out = {DIM_HEAD}, .slot = LAYER(k_norm), .kind = KIND_MIX(MIX_ATTN)}
#define ROW_GATE_UP                                                                                \
    {.name = {"ffn_gate.weight", "ffn_up.weight"},                                                 \
     .hf = {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, .n_in = DIM_EMBD,                       \
     .n_out = {DIM_FF, DIM_FF}, .slot = LAYER(gate_up), .kind = KIND_FFN(FFN_DENSE)}
#define ROW_GATE_UP_BIAS                                                                           \
    {.name = {"ffn_gate.bias", "ffn_up.bias"}, .hf = {"mlp.gate_proj.bias", "mlp.up_proj.bias"},   \
     .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL, .n_out = {DIM_FF, DIM_FF}, .slot = LAYER(gate_up_bias),\
     .kind = KIND_FFN(FFN_DENSE)}
#define ROW_DOWN                                                                                   \
    {.name = {"ffn_down.weight"}, .hf = {"mlp.down_proj.weight"}, .n_in = DIM_FF,                  \
     .n_out = {DIM_EMBD}, .slot = LAYER(down), .kind = KIND_FFN(FFN_DENSE)}
#define ROW_DOWN_BIAS                                                                              \
    {.name = {"ffn_down.bias"}, .hf = {"mlp.down_proj.bias"},                                      \
     .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL, .n_out = {DIM_EMBD}, .slot = LAYER(down_bias),      \
     .kind = KIND_FFN(FFN_DENSE)}
/* clang-format on */

#define ROWS(table) .weight = (table), .n_weight = sizeof(table) / sizeof *(table)

#endif
