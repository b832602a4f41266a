/* What the files of recurrent layers share, and rows of their weights. */
#ifndef ENGINE_MODELS_STATE_H
#define ENGINE_MODELS_STATE_H

#include <math.h>

#include "engine/models/rows.h"

/* A layer's part of the states, from float `off` on. */
struct state_at model_state_at(const struct model *m, int layer, int64_t off);
/* dst [n, ...] = the mixer's input times w. */
int model_state_in(struct model *m, struct tensor dst, struct dev_weight *w, struct tensor bias);

/* Sizes of mamba layers from "ssm.*" or a folder's keys (under a prefix such as "mamba_d_"); the dims. */
int model_hp_mamba(struct model_hp *hp, struct ckpt *c, struct err *e);
int model_hp_mamba2(struct model_hp *hp, struct ckpt *c, struct err *e);

/* clang-format off */
#define ROW_S(field, gguf, folder, more, out, kinds)                                               \
    {.name = {gguf}, .hf = {folder}, .flags = WEIGHT_VECTOR | WEIGHT_FLAT | (more),                \
     .n_out = {out}, .slot = LAYER(state.field), .kind = KIND_MIX(kinds)}
#define ROW_S_MAT(field, gguf, folder, in, out, kinds)                                             \
    {.name = {gguf ".weight"}, .hf = {folder ".weight"}, .n_in = in, .n_out = {out},               \
     .slot = LAYER(field), .kind = KIND_MIX(kinds)}

/* at: "mixer." or what a folder calls it */
#define ROWS_MAMBA(at)                                                                             \
    ROW_S_MAT(state.in, "ssm_in", at "in_proj", DIM_EMBD, DIM_S_IN, MIX_MAMBA),                    \
    ROW_S(in_bias, "ssm_in.bias", at "in_proj.bias", WEIGHT_OPTIONAL, DIM_S_IN, MIX_MAMBA),        \
    ROW_S(conv, "ssm_conv1d.weight", at "conv1d.weight", 0, DIM_S_TAPS, MIX_MAMBA),                \
    ROW_S(conv_bias, "ssm_conv1d.bias", at "conv1d.bias", WEIGHT_OPTIONAL, DIM_S_CONV, MIX_MAMBA), \
    ROW_S_MAT(state.x, "ssm_x", at "x_proj", DIM_S_INNER, DIM_S_X, MIX_MAMBA),                     \
    ROW_S_MAT(state.dt, "ssm_dt", at "dt_proj", DIM_S_RANK, DIM_S_INNER, MIX_MAMBA),               \
    ROW_S(dt_bias, "ssm_dt.bias", at "dt_proj.bias", 0, DIM_S_INNER, MIX_MAMBA),                   \
    ROW_S(a, "ssm_a", at "A_log", WEIGHT_HF_NEG_EXP, DIM_S_A, MIX_MAMBA),                          \
    ROW_S(skip, "ssm_d", at "D", 0, DIM_S_INNER, MIX_MAMBA),                                       \
    ROW_S_MAT(attn_out, "ssm_out", at "out_proj", DIM_S_INNER, DIM_EMBD, MIX_MAMBA),               \
    {.name = {"ssm_out.bias"}, .hf = {at "out_proj.bias"}, .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL,\
     .n_out = {DIM_EMBD}, .slot = LAYER(attn_out_bias), .kind = KIND_MIX(MIX_MAMBA)}

/* out: the slot of the product behind it */
#define ROWS_MAMBA2(at, out, norm_more)                                                            \
    ROW_S_MAT(state.in, "ssm_in", at "in_proj", DIM_EMBD, DIM_S_IN, MIX_MAMBA2),                   \
    ROW_S(in_bias, "ssm_in.bias", at "in_proj.bias", WEIGHT_OPTIONAL, DIM_S_IN, MIX_MAMBA2),       \
    ROW_S(conv, "ssm_conv1d.weight", at "conv1d.weight", 0, DIM_S_TAPS, MIX_MAMBA2),               \
    ROW_S(conv_bias, "ssm_conv1d.bias", at "conv1d.bias", WEIGHT_OPTIONAL, DIM_S_CONV, MIX_MAMBA2),\
    ROW_S(dt_bias, "ssm_dt.bias", at "dt_bias", 0, DIM_S_HEADS, MIX_MAMBA2),                       \
    ROW_S(a, "ssm_a", at "A_log", WEIGHT_HF_NEG_EXP, DIM_S_HEADS, MIX_MAMBA2),                     \
    ROW_S(skip, "ssm_d", at "D", 0, DIM_S_HEADS, MIX_MAMBA2),                                      \
    ROW_S(norm, "ssm_norm.weight", at "norm.weight", norm_more, DIM_S_INNER, MIX_MAMBA2),          \
    ROW_S_MAT(out, "ssm_out", at "out_proj", DIM_S_INNER, DIM_EMBD, MIX_MAMBA2)
/* clang-format on */

#endif
