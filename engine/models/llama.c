/* Llama family as GGUF stores it (Touvron et al. 2023; Llama 3 scaling by rope_freqs.weight): rotation
 * by interleaved pairs, q and k rows permuted to match; also Mistral, SmolLM2 and others of the shape. */
#include "engine/models/model.h"

#include <stddef.h>

#define LAYER(f) offsetof(struct model_layer, f)
#define MODEL(f) offsetof(struct model, f)

static const struct weight_row weights[] = {
    {{"token_embd.weight"},
     WEIGHT_GLOBAL | WEIGHT_ROWS | WEIGHT_ROWS_TIED,
     DIM_EMBD,
     {DIM_VOCAB},
     MODEL(embd),
     "output.weight"},
    {{"output_norm.weight"}, WEIGHT_GLOBAL | WEIGHT_VECTOR, 0, {DIM_EMBD}, MODEL(out_norm), NULL},
    {{"output.weight"}, WEIGHT_GLOBAL | WEIGHT_OPTIONAL, DIM_EMBD, {DIM_VOCAB}, MODEL(head), NULL},
    {{"rope_freqs.weight"},
     WEIGHT_GLOBAL | WEIGHT_VECTOR | WEIGHT_OPTIONAL,
     0,
     {DIM_ROPE},
     MODEL(rope_factors),
     NULL},
    {{"attn_norm.weight"}, WEIGHT_VECTOR, 0, {DIM_EMBD}, LAYER(attn_norm), NULL},
    {{"attn_q.weight", "attn_k.weight", "attn_v.weight"},
     0,
     DIM_EMBD,
     {DIM_Q, DIM_KV, DIM_KV},
     LAYER(qkv),
     NULL},
    {{"attn_q.bias", "attn_k.bias", "attn_v.bias"},
     WEIGHT_VECTOR | WEIGHT_OPTIONAL,
     0,
     {DIM_Q, DIM_KV, DIM_KV},
     LAYER(qkv_bias),
     NULL},
    {{"attn_output.weight"}, 0, DIM_Q, {DIM_EMBD}, LAYER(attn_out), NULL},
    {{"attn_output.bias"},
     WEIGHT_VECTOR | WEIGHT_OPTIONAL,
     0,
     {DIM_EMBD},
     LAYER(attn_out_bias),
     NULL},
    {{"ffn_norm.weight"}, WEIGHT_VECTOR, 0, {DIM_EMBD}, LAYER(ffn_norm), NULL},
    {{"ffn_gate.weight", "ffn_up.weight"}, 0, DIM_EMBD, {DIM_FF, DIM_FF}, LAYER(gate_up), NULL},
    {{"ffn_gate.bias", "ffn_up.bias"},
     WEIGHT_VECTOR | WEIGHT_OPTIONAL,
     0,
     {DIM_FF, DIM_FF},
     LAYER(gate_up_bias),
     NULL},
    {{"ffn_down.weight"}, 0, DIM_FF, {DIM_EMBD}, LAYER(down), NULL},
    {{"ffn_down.bias"}, WEIGHT_VECTOR | WEIGHT_OPTIONAL, 0, {DIM_EMBD}, LAYER(down_bias), NULL},
};

static int hparams(struct model_hp *hp, const struct gguf *g, struct err *e)
{
    hp->rope_style = ROPE_NORM;
    hp->act = ACT_SILU;
    return model_hp_common(hp, g, "llama", e);
}

const struct model_arch model_llama = {
    .name = "llama",
    .hparams = hparams,
    .weight = weights,
    .n_weight = sizeof weights / sizeof *weights,
    .forward = model_forward_decoder,
};
