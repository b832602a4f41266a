/* Qwen3, dense (Yang et al. 2025): as Qwen2 without biases, with an RMS norm of every q and k head before
 * rotation. */
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
    {{"attn_norm.weight"}, WEIGHT_VECTOR, 0, {DIM_EMBD}, LAYER(attn_norm), NULL},
    {{"attn_q.weight", "attn_k.weight", "attn_v.weight"},
     0,
     DIM_EMBD,
     {DIM_Q, DIM_KV, DIM_KV},
     LAYER(qkv),
     NULL},
    {{"attn_q_norm.weight"}, WEIGHT_VECTOR, 0, {DIM_HEAD}, LAYER(q_norm), NULL},
    {{"attn_k_norm.weight"}, WEIGHT_VECTOR, 0, {DIM_HEAD}, LAYER(k_norm), NULL},
    {{"attn_output.weight"}, 0, DIM_Q, {DIM_EMBD}, LAYER(attn_out), NULL},
    {{"ffn_norm.weight"}, WEIGHT_VECTOR, 0, {DIM_EMBD}, LAYER(ffn_norm), NULL},
    {{"ffn_gate.weight", "ffn_up.weight"}, 0, DIM_EMBD, {DIM_FF, DIM_FF}, LAYER(gate_up), NULL},
    {{"ffn_down.weight"}, 0, DIM_FF, {DIM_EMBD}, LAYER(down), NULL},
};

static int hparams(struct model_hp *hp, const struct gguf *g, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    return model_hp_common(hp, g, "qwen3", e);
}

const struct model_arch model_qwen3 = {
    .name = "qwen3",
    .hparams = hparams,
    .weight = weights,
    .n_weight = sizeof weights / sizeof *weights,
    .forward = model_forward_decoder,
};
