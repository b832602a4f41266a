/* Transformers as their authors named them: FLUX.1 (q, k, v and in single blocks the MLP's first layer are one matrix;
 * the last modulation has shift before scale, diffusers the other way round), Stable Diffusion 3 (the same, also in the
 * last block's text) and Z-Image (fused q, k, v). Qwen-Image's names are diffusers' own. */
#include "engine/image/names_impl.h"

#include <stdio.h>

#define ROWS(t) (t), sizeof(t) / sizeof *(t)

/* ---- FLUX.1 ----
 *
 * diffusers scales, then shifts: rows [scale | shift] of norm_out.linear; the authors' file has [shift | scale], so that
 * two slices are swapped. The modulations inside the blocks have one order in both. */

static const struct names_row flux[] = {
    {"x_embedder.*", "img_in.*", 0, 0, 0},
    {"context_embedder.*", "txt_in.*", 0, 0, 0},
    {"time_text_embed.timestep_embedder.linear_1.*", "time_in.in_layer.*", 0, 0, 0},
    {"time_text_embed.timestep_embedder.linear_2.*", "time_in.out_layer.*", 0, 0, 0},
    {"time_text_embed.guidance_embedder.linear_1.*", "guidance_in.in_layer.*", 0, 0, 0},
    {"time_text_embed.guidance_embedder.linear_2.*", "guidance_in.out_layer.*", 0, 0, 0},
    {"time_text_embed.text_embedder.linear_1.*", "vector_in.in_layer.*", 0, 0, 0},
    {"time_text_embed.text_embedder.linear_2.*", "vector_in.out_layer.*", 0, 0, 0},
    {"norm_out.linear.*", "final_layer.adaLN_modulation.1.*", 1, 2, 1},
    {"norm_out.linear.*", "final_layer.adaLN_modulation.1.*", 0, 2, 1},
    {"proj_out.*", "final_layer.linear.*", 0, 0, 0},
};
static const struct names_row flux_double[] = {
    {"norm1.linear.*", "img_mod.lin.*", 0, 0, 0},
    {"norm1_context.linear.*", "txt_mod.lin.*", 0, 0, 0},
    {"attn.to_q.*", "img_attn.qkv.*", 0, 3, 1},
    {"attn.to_k.*", "img_attn.qkv.*", 1, 3, 1},
    {"attn.to_v.*", "img_attn.qkv.*", 2, 3, 1},
    {"attn.add_q_proj.*", "txt_attn.qkv.*", 0, 3, 1},
    {"attn.add_k_proj.*", "txt_attn.qkv.*", 1, 3, 1},
    {"attn.add_v_proj.*", "txt_attn.qkv.*", 2, 3, 1},
    {"attn.norm_q.weight", "img_attn.norm.query_norm.scale", 0, 0, 0},
    {"attn.norm_k.weight", "img_attn.norm.key_norm.scale", 0, 0, 0},
    {"attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale", 0, 0, 0},
    {"attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale", 0, 0, 0},
    {"attn.to_out.0.*", "img_attn.proj.*", 0, 0, 0},
    {"attn.to_add_out.*", "txt_attn.proj.*", 0, 0, 0},
    {"ff.net.0.proj.*", "img_mlp.0.*", 0, 0, 0},
    {"ff.net.2.*", "img_mlp.2.*", 0, 0, 0},
    {"ff_context.net.0.proj.*", "txt_mlp.0.*", 0, 0, 0},
    {"ff_context.net.2.*", "txt_mlp.2.*", 0, 0, 0},
};
/* linear1 is [q | k | v | MLP], the MLP some pieces as large as q: how many the map's argument says (-1 stands for what
 * follows from it). One slice of several pieces needs no copy. */
static const struct names_row flux_single[] = {
    {"norm.linear.*", "modulation.lin.*", 0, 0, 0},
    {"attn.to_q.*", "linear1.*", 0, -1, 1},
    {"attn.to_k.*", "linear1.*", 1, -1, 1},
    {"attn.to_v.*", "linear1.*", 2, -1, 1},
    {"proj_mlp.*", "linear1.*", 3, -1, -1},
    {"proj_out.*", "linear2.*", 0, 0, 0},
    {"attn.norm_q.weight", "norm.query_norm.scale", 0, 0, 0},
    {"attn.norm_k.weight", "norm.key_norm.scale", 0, 0, 0},
};

int names_flux(const struct source_map *m, const char *want, struct source_slice *slice)
{
    struct names_cap c = {0};
    char at[64];
    if (names_match("transformer_blocks.#.*", want, &c)) {
        snprintf(at, sizeof at, "double_blocks.%d.", c.n[0]);
        return names_rows(ROWS(flux_double), c.rest, at, slice);
    }
    if (!names_match("single_transformer_blocks.#.*", want, &c))
        return names_rows(ROWS(flux), want, "", slice);
    snprintf(at, sizeof at, "single_blocks.%d.", c.n[0]);
    int n = names_rows(ROWS(flux_single), c.rest, at, slice), pieces = *(const int *)m->arg;
    for (int i = 0; i < n; i++) {
        if (slice[i].n_part < 0)
            slice[i].n_part = pieces;
        if (slice[i].n_take < 0)
            slice[i].n_take = pieces - slice[i].part;
    }
    return n;
}

/* ---- Stable Diffusion 3 ----
 *
 * joint_blocks.N holds the picture's stream as x_block and the text's as context_block. attn2 is the second attention,
 * of the picture with itself, that some blocks of 3.5 medium have. */

static const struct names_row sd3[] = {
    {"pos_embed.pos_embed", "pos_embed", 0, 0, 0},
    {"pos_embed.proj.*", "x_embedder.proj.*", 0, 0, 0},
    {"time_text_embed.timestep_embedder.linear_1.*", "t_embedder.mlp.0.*", 0, 0, 0},
    {"time_text_embed.timestep_embedder.linear_2.*", "t_embedder.mlp.2.*", 0, 0, 0},
    {"time_text_embed.text_embedder.linear_1.*", "y_embedder.mlp.0.*", 0, 0, 0},
    {"time_text_embed.text_embedder.linear_2.*", "y_embedder.mlp.2.*", 0, 0, 0},
    {"norm_out.linear.*", "final_layer.adaLN_modulation.1.*", 1, 2, 1},
    {"norm_out.linear.*", "final_layer.adaLN_modulation.1.*", 0, 2, 1},
    {"proj_out.*", "final_layer.linear.*", 0, 0, 0},
};
static const struct names_row sd3_block[] = {
    {"norm1.linear.*", "x_block.adaLN_modulation.1.*", 0, 0, 0},
    {"norm1_context.linear.*", "context_block.adaLN_modulation.1.*", 0, 0, 0},
    {"attn.to_q.*", "x_block.attn.qkv.*", 0, 3, 1},
    {"attn.to_k.*", "x_block.attn.qkv.*", 1, 3, 1},
    {"attn.to_v.*", "x_block.attn.qkv.*", 2, 3, 1},
    {"attn.add_q_proj.*", "context_block.attn.qkv.*", 0, 3, 1},
    {"attn.add_k_proj.*", "context_block.attn.qkv.*", 1, 3, 1},
    {"attn.add_v_proj.*", "context_block.attn.qkv.*", 2, 3, 1},
    {"attn.norm_q.*", "x_block.attn.ln_q.*", 0, 0, 0},
    {"attn.norm_k.*", "x_block.attn.ln_k.*", 0, 0, 0},
    {"attn.norm_added_q.*", "context_block.attn.ln_q.*", 0, 0, 0},
    {"attn.norm_added_k.*", "context_block.attn.ln_k.*", 0, 0, 0},
    {"attn.to_out.0.*", "x_block.attn.proj.*", 0, 0, 0},
    {"attn.to_add_out.*", "context_block.attn.proj.*", 0, 0, 0},
    {"attn2.to_q.*", "x_block.attn2.qkv.*", 0, 3, 1},
    {"attn2.to_k.*", "x_block.attn2.qkv.*", 1, 3, 1},
    {"attn2.to_v.*", "x_block.attn2.qkv.*", 2, 3, 1},
    {"attn2.norm_q.*", "x_block.attn2.ln_q.*", 0, 0, 0},
    {"attn2.norm_k.*", "x_block.attn2.ln_k.*", 0, 0, 0},
    {"attn2.to_out.0.*", "x_block.attn2.proj.*", 0, 0, 0},
    {"ff.net.0.proj.*", "x_block.mlp.fc1.*", 0, 0, 0},
    {"ff.net.2.*", "x_block.mlp.fc2.*", 0, 0, 0},
    {"ff_context.net.0.proj.*", "context_block.mlp.fc1.*", 0, 0, 0},
    {"ff_context.net.2.*", "context_block.mlp.fc2.*", 0, 0, 0},
};
/* The text's stream ends before the last block's MLP: its modulation is one of a final layer. */
static const struct names_row sd3_last[] = {
    {"norm1_context.linear.*", "context_block.adaLN_modulation.1.*", 1, 2, 1},
    {"norm1_context.linear.*", "context_block.adaLN_modulation.1.*", 0, 2, 1},
};

int names_sd3(const struct source_map *m, const char *want, struct source_slice *slice)
{
    struct names_cap c = {0};
    char at[64];
    if (!names_match("transformer_blocks.#.*", want, &c))
        return names_rows(ROWS(sd3), want, "", slice);
    snprintf(at, sizeof at, "joint_blocks.%d.", c.n[0]);
    bool last = c.n[0] == *(const int *)m->arg - 1;
    int n = last ? names_rows(ROWS(sd3_last), c.rest, at, slice) : 0;
    return n ? n : names_rows(ROWS(sd3_block), c.rest, at, slice);
}

/* ---- Z-Image ----
 *
 * The published folder names its embedders by patch sizes ("2-1": two latents a side, one frame). Feed-forward and norms
 * have one name in both. */

static const struct names_row zimage[] = {
    {"all_x_embedder.2-1.*", "x_embedder.*", 0, 0, 0},
    {"all_final_layer.2-1.*", "final_layer.*", 0, 0, 0},
};
static const struct names_row zimage_attn[] = {
    {"to_q.*", "qkv.*", 0, 3, 1},      {"to_k.*", "qkv.*", 1, 3, 1},
    {"to_v.*", "qkv.*", 2, 3, 1},      {"to_out.0.*", "out.*", 0, 0, 0},
    {"norm_q.*", "q_norm.*", 0, 0, 0}, {"norm_k.*", "k_norm.*", 0, 0, 0},
};

int names_zimage(const struct source_map *m, const char *want, struct source_slice *slice)
{
    static const char *const lists[] = {"layers", "noise_refiner", "context_refiner"};
    struct names_cap c = {0};
    (void)m;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char at[64];
        snprintf(at, sizeof at, "%s.#.attention.*", lists[i]);
        if (!names_match(at, want, &c))
            continue;
        snprintf(at, sizeof at, "%s.%d.attention.", lists[i], c.n[0]);
        return names_rows(ROWS(zimage_attn), c.rest, at, slice);
    }
    return names_rows(ROWS(zimage), want, "", slice);
}
