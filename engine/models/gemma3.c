/* Gemma 3, text (Gemma Team 2025): scaled embeddings, norms before and after each block (the file holds
 * 1 + w), head norms, five layers with a sliding window to one without, GELU, tied output. */
#include "engine/models/model.h"

#include <math.h>
#include <stddef.h>

#define LAYER(f) offsetof(struct model_layer, f)
#define MODEL(f) offsetof(struct model, f)

#define LAYERS_27B 62

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
    {{"post_attention_norm.weight"}, WEIGHT_VECTOR, 0, {DIM_EMBD}, LAYER(attn_post_norm), NULL},
    {{"ffn_norm.weight"}, WEIGHT_VECTOR, 0, {DIM_EMBD}, LAYER(ffn_norm), NULL},
    {{"ffn_gate.weight", "ffn_up.weight"}, 0, DIM_EMBD, {DIM_FF, DIM_FF}, LAYER(gate_up), NULL},
    {{"ffn_down.weight"}, 0, DIM_FF, {DIM_EMBD}, LAYER(down), NULL},
    {{"post_ffw_norm.weight"}, WEIGHT_VECTOR, 0, {DIM_EMBD}, LAYER(ffn_post_norm), NULL},
};

static const struct hp_row keys[] = {
    {"attention.sliding_window", HP_INT, false, offsetof(struct model_hp, window), 1, 1 << 26},
    {"rope.freq_base_swa", HP_FLOAT, true, offsetof(struct model_hp, rope_base_local), 1, 1e12},
};

static int hparams(struct model_hp *hp, const struct gguf *g, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_GELU_TANH;
    hp->rope_base = 1e6f;
    hp->rope_base_local = 1e4f;
    hp->window_period = 6; /* files do not say */
    int rc = model_hp_common(hp, g, "gemma3", e);
    if (rc || (rc = model_hp_read(hp, g, "gemma3", keys, sizeof keys / sizeof *keys, e)))
        return rc;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    if (hp->n_layer == LAYERS_27B) /* only this size scales by n_embd / n_head; no key tells */
        hp->attn_scale = 1 / sqrtf((float)hp->n_embd / (float)hp->n_head);
    return 0;
}

const struct model_arch model_gemma3 = {
    .name = "gemma3",
    .hparams = hparams,
    .weight = weights,
    .n_weight = sizeof weights / sizeof *weights,
    .forward = model_forward_decoder,
};
