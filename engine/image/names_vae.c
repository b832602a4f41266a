/* Autoencoders as their authors named them: latent diffusion's AutoencoderKL (Stable Diffusion, FLUX), whose decoder
 * counts levels from the other end, and Wan's (Qwen-Image), whose levels are one list. */
#include "engine/image/names_impl.h"

#include <stdio.h>

#define ROWS(t) (t), sizeof(t) / sizeof *(t)

/* ---- AutoencoderKL: behind "encoder." or "decoder." ----
 *
 * Going up, "decoder.up.0" is the finest level, which is the last of diffusers' up_blocks. The middle's attention is 1x1
 * convolutions in the file ([c, c, 1, 1]) and matrices in diffusers: readers take both. */
static const struct names_row kl[] = {
    {"mid_block.resnets.0.*", "mid.block_1.*", 0, 0, 0},
    {"mid_block.resnets.1.*", "mid.block_2.*", 0, 0, 0},
    {"mid_block.attentions.0.group_norm.*", "mid.attn_1.norm.*", 0, 0, 0},
    {"mid_block.attentions.0.to_q.*", "mid.attn_1.q.*", 0, 0, 0},
    {"mid_block.attentions.0.to_k.*", "mid.attn_1.k.*", 0, 0, 0},
    {"mid_block.attentions.0.to_v.*", "mid.attn_1.v.*", 0, 0, 0},
    {"mid_block.attentions.0.to_out.0.*", "mid.attn_1.proj_out.*", 0, 0, 0},
    {"conv_norm_out.*", "norm_out.*", 0, 0, 0},
    {"down_blocks.#.resnets.#.conv_shortcut.*", "down.#.block.#.nin_shortcut.*", 0, 0, 0},
    {"down_blocks.#.resnets.#.*", "down.#.block.#.*", 0, 0, 0},
    {"down_blocks.#.downsamplers.0.*", "down.#.downsample.*", 0, 0, 0},
};

int names_vae(const struct source_map *m, const char *want, struct source_slice *slice)
{
    int n_level = *(const int *)m->arg;
    struct names_cap c = {0}, u = {0};
    if (names_match("encoder.*", want, &c))
        return names_rows(ROWS(kl), c.rest, "encoder.", slice);
    if (!names_match("decoder.*", want, &c))
        return 0;
    if (names_match("up_blocks.#.resnets.#.conv_shortcut.*", c.rest, &u))
        return names_one(slice, "decoder.up.%d.block.%d.nin_shortcut.%s", n_level - 1 - u.n[0],
                         u.n[1], u.rest);
    if (names_match("up_blocks.#.resnets.#.*", c.rest, &u))
        return names_one(slice, "decoder.up.%d.block.%d.%s", n_level - 1 - u.n[0], u.n[1], u.rest);
    if (names_match("up_blocks.#.upsamplers.0.*", c.rest, &u))
        return names_one(slice, "decoder.up.%d.upsample.%s", n_level - 1 - u.n[0], u.rest);
    return names_rows(ROWS(kl), c.rest, "decoder.", slice);
}

/* ---- Wan ----
 *
 * A res block is one list, "residual": norm 0, convolution 2, norm 3, convolution 6; between them are layers without
 * weights. downsamples counts res blocks and downsamplers alike, as diffusers' down_blocks does; upsamples too, where
 * diffusers has levels. conv1 and conv2 at the top are the 1x1 convolutions around the latents. */

static const struct names_row wan[] = {
    {"quant_conv.*", "conv1.*", 0, 0, 0},
    {"post_quant_conv.*", "conv2.*", 0, 0, 0},
};
/* Of either half, behind "encoder." or "decoder.". */
static const struct names_row wan_half[] = {
    {"conv_in.*", "conv1.*", 0, 0, 0},
    {"norm_out.*", "head.0.*", 0, 0, 0},
    {"conv_out.*", "head.2.*", 0, 0, 0},
    {"mid_block.attentions.0.*", "middle.1.*", 0, 0, 0},
};
/* The last row: what a downsampler has (resample, time_conv) is called alike. */
static const struct names_row wan_res[] = {
    {"norm1.*", "residual.0.*", 0, 0, 0},       {"conv1.*", "residual.2.*", 0, 0, 0},
    {"norm2.*", "residual.3.*", 0, 0, 0},       {"conv2.*", "residual.6.*", 0, 0, 0},
    {"conv_shortcut.*", "shortcut.*", 0, 0, 0}, {"*", "*", 0, 0, 0},
};

static int in_wan_res(const char *half, const char *list, int i, const char *rest,
                      struct source_slice *slice)
{
    char at[64];
    snprintf(at, sizeof at, "%s.%s.%d.", half, list, i);
    return names_rows(ROWS(wan_res), rest, at, slice);
}

static int wan_of(const char *half, int l, const char *want, struct source_slice *slice)
{
    struct names_cap c = {0};
    char at[16];
    if (names_match("mid_block.resnets.#.*", want, &c))
        return in_wan_res(half, "middle", 2 * c.n[0], c.rest, slice);
    if (names_match("down_blocks.#.*", want, &c))
        return in_wan_res(half, "downsamples", c.n[0], c.rest, slice);
    /* going up: l + 1 res blocks and the upsampler */
    if (names_match("up_blocks.#.resnets.#.*", want, &c))
        return in_wan_res(half, "upsamples", c.n[0] * (l + 2) + c.n[1], c.rest, slice);
    if (names_match("up_blocks.#.upsamplers.0.*", want, &c))
        return in_wan_res(half, "upsamples", c.n[0] * (l + 2) + l + 1, c.rest, slice);
    snprintf(at, sizeof at, "%s.", half);
    return names_rows(ROWS(wan_half), want, at, slice);
}

int names_vae_wan(const struct source_map *m, const char *want, struct source_slice *slice)
{
    struct names_cap c = {0};
    int l = *(const int *)m->arg;
    if (names_match("encoder.*", want, &c))
        return wan_of("encoder", l, c.rest, slice);
    if (names_match("decoder.*", want, &c))
        return wan_of("decoder", l, c.rest, slice);
    return names_rows(ROWS(wan), want, "", slice);
}
