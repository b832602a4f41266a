/* Text encoders: CLIP with and without "text_model." before its names, OpenCLIP with fused attention, T5 and Qwen as
 * GGUF files name them. */
#include "engine/image/names_impl.h"

#include <string.h>

#define ROWS(t) (t), sizeof(t) / sizeof *(t)
#define MODEL   "text_model."

/* transformers changed its mind about the prefix; wanted names may have it or not. */
static const char *bare(const char *want)
{
    return strncmp(want, MODEL, sizeof MODEL - 1) == 0 ? want + sizeof MODEL - 1 : want;
}

/* The projection lies beside "text_model.", not in it. */
int names_clip(const struct source_map *m, const char *want, struct source_slice *slice)
{
    if (strncmp(want, "text_projection.", 16) == 0)
        return 0;
    return names_one(slice, "%s%s", *(const int *)m->arg ? MODEL : "", bare(want));
}

/* q, k and v are thirds of one matrix, "attn.in_proj_weight", and of one vector, "attn.in_proj_bias". The projection is
 * asked for as "text_projection", the file's own name: it is the other way round than transformers'. */
static const struct names_row openclip[] = {
    {"embeddings.token_embedding.*", "token_embedding.*", 0, 0, 0},
    {"embeddings.position_embedding.weight", "positional_embedding", 0, 0, 0},
    {"encoder.layers.#.layer_norm1.*", "transformer.resblocks.#.ln_1.*", 0, 0, 0},
    {"encoder.layers.#.layer_norm2.*", "transformer.resblocks.#.ln_2.*", 0, 0, 0},
    {"encoder.layers.#.mlp.fc1.*", "transformer.resblocks.#.mlp.c_fc.*", 0, 0, 0},
    {"encoder.layers.#.mlp.fc2.*", "transformer.resblocks.#.mlp.c_proj.*", 0, 0, 0},
    {"encoder.layers.#.self_attn.q_proj.*", "transformer.resblocks.#.attn.in_proj_*", 0, 3, 1},
    {"encoder.layers.#.self_attn.k_proj.*", "transformer.resblocks.#.attn.in_proj_*", 1, 3, 1},
    {"encoder.layers.#.self_attn.v_proj.*", "transformer.resblocks.#.attn.in_proj_*", 2, 3, 1},
    {"encoder.layers.#.self_attn.out_proj.*", "transformer.resblocks.#.attn.out_proj.*", 0, 0, 0},
    {"final_layer_norm.*", "ln_final.*", 0, 0, 0},
};

int names_openclip(const struct source_map *m, const char *want, struct source_slice *slice)
{
    (void)m;
    return names_rows(ROWS(openclip), bare(want), "", slice);
}

/* llama.cpp's names. The table of relative positions is in the first layer alone, there as in transformers. The gate of
 * the gated activation is wi_0; without one there is only "wi". */
static const struct names_row t5[] = {
    {"shared.*", "token_embd.*", 0, 0, 0},
    {"encoder.embed_tokens.*", "token_embd.*", 0, 0, 0},
    {"encoder.final_layer_norm.*", "enc.output_norm.*", 0, 0, 0},
    {"encoder.block.#.layer.0.layer_norm.*", "enc.blk.#.attn_norm.*", 0, 0, 0},
    {"encoder.block.#.layer.0.SelfAttention.relative_attention_bias.*", "enc.blk.#.attn_rel_b.*", 0,
     0, 0},
    {"encoder.block.#.layer.0.SelfAttention.q.*", "enc.blk.#.attn_q.*", 0, 0, 0},
    {"encoder.block.#.layer.0.SelfAttention.k.*", "enc.blk.#.attn_k.*", 0, 0, 0},
    {"encoder.block.#.layer.0.SelfAttention.v.*", "enc.blk.#.attn_v.*", 0, 0, 0},
    {"encoder.block.#.layer.0.SelfAttention.o.*", "enc.blk.#.attn_o.*", 0, 0, 0},
    {"encoder.block.#.layer.1.layer_norm.*", "enc.blk.#.ffn_norm.*", 0, 0, 0},
    {"encoder.block.#.layer.1.DenseReluDense.wi_0.*", "enc.blk.#.ffn_gate.*", 0, 0, 0},
    {"encoder.block.#.layer.1.DenseReluDense.wi_1.*", "enc.blk.#.ffn_up.*", 0, 0, 0},
    {"encoder.block.#.layer.1.DenseReluDense.wi.*", "enc.blk.#.ffn_up.*", 0, 0, 0},
    {"encoder.block.#.layer.1.DenseReluDense.wo.*", "enc.blk.#.ffn_down.*", 0, 0, 0},
};

int names_t5_gguf(const struct source_map *m, const char *want, struct source_slice *slice)
{
    (void)m;
    return names_rows(ROWS(t5), want, "", slice);
}

/* llama.cpp's names. Rows of q and k are in transformers' order: it permutes those of the Llama family alone. */
static const struct names_row lm[] = {
    {"embed_tokens.*", "token_embd.*", 0, 0, 0},
    {"norm.*", "output_norm.*", 0, 0, 0},
    {"lm_head.*", "output.*", 0, 0, 0},
    {"layers.#.input_layernorm.*", "blk.#.attn_norm.*", 0, 0, 0},
    {"layers.#.post_attention_layernorm.*", "blk.#.ffn_norm.*", 0, 0, 0},
    {"layers.#.self_attn.q_proj.*", "blk.#.attn_q.*", 0, 0, 0},
    {"layers.#.self_attn.k_proj.*", "blk.#.attn_k.*", 0, 0, 0},
    {"layers.#.self_attn.v_proj.*", "blk.#.attn_v.*", 0, 0, 0},
    {"layers.#.self_attn.o_proj.*", "blk.#.attn_output.*", 0, 0, 0},
    {"layers.#.self_attn.q_norm.*", "blk.#.attn_q_norm.*", 0, 0, 0},
    {"layers.#.self_attn.k_norm.*", "blk.#.attn_k_norm.*", 0, 0, 0},
    {"layers.#.mlp.gate_proj.*", "blk.#.ffn_gate.*", 0, 0, 0},
    {"layers.#.mlp.up_proj.*", "blk.#.ffn_up.*", 0, 0, 0},
    {"layers.#.mlp.down_proj.*", "blk.#.ffn_down.*", 0, 0, 0},
};

int names_lm_gguf(const struct source_map *m, const char *want, struct source_slice *slice)
{
    (void)m;
    return names_rows(ROWS(lm), strncmp(want, "model.", 6) == 0 ? want + 6 : want, "", slice);
}
