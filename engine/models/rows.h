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
#define ROW_GATE_UP_OF(gate, up)                                                                   \
    {.name = {"ffn_gate.weight", "ffn_up.weight"}, .hf = {gate ".weight", up ".weight"},           \
     .n_in = DIM_EMBD, .n_out = {DIM_FF, DIM_FF}, .slot = LAYER(gate_up), .kind = KIND_FFN(FFN_DENSE)}
#define ROW_GATE_UP ROW_GATE_UP_OF("mlp.gate_proj", "mlp.up_proj")
#define ROW_GATE_UP_BIAS                                                                           \
    {.name = {"ffn_gate.bias", "ffn_up.bias"}, .hf = {"mlp.gate_proj.bias", "mlp.up_proj.bias"},   \
     .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL, .n_out = {DIM_FF, DIM_FF}, .slot = LAYER(gate_up_bias),\
     .kind = KIND_FFN(FFN_DENSE)}
#define ROW_DOWN_OF(folder)                                                                        \
    {.name = {"ffn_down.weight"}, .hf = {folder ".weight"}, .n_in = DIM_FF, .n_out = {DIM_EMBD},   \
     .slot = LAYER(down), .kind = KIND_FFN(FFN_DENSE)}
#define ROW_DOWN ROW_DOWN_OF("mlp.down_proj")
#define ROW_DOWN_BIAS                                                                              \
    {.name = {"ffn_down.bias"}, .hf = {"mlp.down_proj.bias"},                                      \
     .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL, .n_out = {DIM_EMBD}, .slot = LAYER(down_bias),      \
     .kind = KIND_FFN(FFN_DENSE)}

/* Rows by hand: a vector or matrix of a layer, or of the model. */
#define ROW_VEC(field, gguf, folder, n, more)                                                      \
    {.name = {gguf}, .hf = {folder}, .flags = WEIGHT_VECTOR | (more), .n_out = {n}, .slot = LAYER(field)}
#define ROW_MAT(field, gguf, folder, in, out, more)                                                \
    {.name = {gguf}, .hf = {folder}, .flags = (more), .n_in = (in), .n_out = {out}, .slot = LAYER(field)}
#define ROW_G_VEC(field, gguf, folder, n, more)                                                    \
    {.name = {gguf}, .hf = {folder}, .flags = WEIGHT_GLOBAL | WEIGHT_VECTOR | (more), .n_out = {n},\
     .slot = MODEL(field)}
/* Embeddings and head under a folder's other names. */
#define ROW_EMBD_OF(folder, tied)                                                                  \
    {.name = {"token_embd.weight"}, .hf = {folder},                                                \
     .flags = WEIGHT_GLOBAL | WEIGHT_ROWS | WEIGHT_ROWS_TIED, .n_in = DIM_EMBD,                    \
     .n_out = {DIM_VOCAB}, .slot = MODEL(embd), .tied_by = "output.weight", .hf_tied_by = (tied)}
#define ROW_HEAD_OF(folder)                                                                        \
    {.name = {"output.weight"}, .hf = {folder}, .flags = WEIGHT_GLOBAL | WEIGHT_OPTIONAL,            \
     .n_in = DIM_EMBD, .n_out = {DIM_VOCAB}, .slot = MODEL(head)}
#define ROW_POS_EMBD(folder)                                                                       \
    {.name = {"position_embd.weight"}, .hf = {folder}, .flags = WEIGHT_GLOBAL | WEIGHT_ROWS,       \
     .n_in = DIM_EMBD, .n_out = {DIM_CTX}, .slot = MODEL(pos_embd)}
/* A layer norm's two vectors. */
#define ROW_LAYER_NORM(field, gguf, folder, more)                                                  \
    ROW_NORM(field, gguf, folder, more),                                                           \
    ROW_VEC(field##_b, gguf ".bias", folder ".bias", DIM_EMBD, (more) & WEIGHT_OPTIONAL)
#define ROW_OUT_LAYER_NORM(folder, more)                                                           \
    ROW_G_VEC(out_norm, "output_norm.weight", folder ".weight", DIM_EMBD, more),                   \
    ROW_G_VEC(out_norm_b, "output_norm.bias", folder ".bias", DIM_EMBD, 0)
/* q, k and v as the folder has them apart; a GGUF file may have them in one. */
#define ROW_QKV_EITHER                                                                             \
    {.name = {"attn_qkv.weight"}, .flags = WEIGHT_OPTIONAL, .n_in = DIM_EMBD, .n_out = {DIM_QKV},  \
     .slot = LAYER(qkv)},                                                                          \
    {.name = {"attn_q.weight", "attn_k.weight", "attn_v.weight"},                                  \
     .hf = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},      \
     .flags = WEIGHT_ELSE, .n_in = DIM_EMBD, .n_out = {DIM_Q, DIM_KV, DIM_KV}, .slot = LAYER(qkv)}
#define ROW_QKV_BIAS_EITHER(more)                                                                  \
    {.name = {"attn_qkv.bias"}, .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL, .n_out = {DIM_QKV},      \
     .slot = LAYER(qkv_bias)},                                                                     \
    {.name = {"attn_q.bias", "attn_k.bias", "attn_v.bias"},                                        \
     .hf = {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},            \
     .flags = WEIGHT_VECTOR | WEIGHT_ELSE | (more), .n_out = {DIM_Q, DIM_KV, DIM_KV},              \
     .slot = LAYER(qkv_bias)}
/* clang-format on */

/* hp_rows of optional values. */
#define HP_OPT(key, json, type, f, lo, hi)                                                         \
    {                                                                                              \
        key, json, type, true, offsetof(struct model_hp, f), lo, hi                                \
    }

#define ROWS(table) .weight = (table), .n_weight = sizeof(table) / sizeof *(table)

#endif
