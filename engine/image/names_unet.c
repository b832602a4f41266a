/* The UNet of Stable Diffusion 1.x, 2.x and XL as its authors named it: one list of input blocks and one of output
 * blocks, where diffusers has levels of blocks (with L res blocks a level going down, L + 1 going up):
 *
 *   input_blocks.0 conv_in · level b: L x (res .0, attention .1), then the downsampler · output_blocks: level b:
 *   (L + 1) x (res .0, attention .1, in the last one the upsampler as .1 or .2)
 *
 * With L = 2 down_blocks.1.resnets.0 is input_blocks.4.0 (0: conv_in; 1, 2, 3: level 0) and up_blocks.1.resnets.0 is
 * output_blocks.3.0. A level that does not exist leads to a name that no file has. */
#include "engine/image/names_impl.h"

#include <stdio.h>

#define ROWS(t) (t), sizeof(t) / sizeof *(t)

static const struct names_row outer[] = {
    {"time_embedding.linear_1.*", "time_embed.0.*", 0, 0, 0},
    {"time_embedding.linear_2.*", "time_embed.2.*", 0, 0, 0},
    {"time_embedding.cond_proj.*", "time_embed.cond_proj.*", 0, 0,
     0}, /* LCM: guidance as an input */
    {"add_embedding.linear_1.*", "label_emb.0.0.*", 0, 0, 0},
    {"add_embedding.linear_2.*", "label_emb.0.2.*", 0, 0, 0},
    {"conv_in.*", "input_blocks.0.0.*", 0, 0, 0},
    {"conv_norm_out.*", "out.0.*", 0, 0, 0},
    {"conv_out.*", "out.2.*", 0, 0, 0},
};
static const struct names_row res[] = {
    {"norm1.*", "in_layers.0.*", 0, 0, 0},
    {"conv1.*", "in_layers.2.*", 0, 0, 0},
    {"time_emb_proj.*", "emb_layers.1.*", 0, 0, 0},
    {"norm2.*", "out_layers.0.*", 0, 0, 0},
    {"conv2.*", "out_layers.3.*", 0, 0, 0},
    {"conv_shortcut.*", "skip_connection.*", 0, 0, 0},
};

/* at: what stands before the parts of the res block. */
static int in_res(const struct names_cap *c, struct source_slice *slice, const char *at)
{
    int n = names_rows(ROWS(res), c->rest, at, slice);
    return n ? n : -1;
}

/* kind: 0 res block, 1 attention, 2 downsampler of level c->n[0]; c->n[1] is the block's number in it. */
static int down(const struct names_cap *c, int kind, int l, struct source_slice *slice)
{
    int i = 1 + c->n[0] * (l + 1) + c->n[1];
    char at[64];
    snprintf(at, sizeof at, "input_blocks.%d.0.", i);
    if (kind == 0)
        return in_res(c, slice, at);
    if (kind == 1)
        return names_one(slice, "input_blocks.%d.1.%s", i, c->rest);
    return names_one(slice, "input_blocks.%d.0.op.%s", (c->n[0] + 1) * (l + 1), c->rest);
}

static int up(const struct source_map *m, const struct names_cap *c, int kind, int l,
              struct source_slice *slice)
{
    int i = c->n[0] * (l + 1) + c->n[1], last = c->n[0] * (l + 1) + l;
    char at[64];
    snprintf(at, sizeof at, "output_blocks.%d.0.", i);
    if (kind == 0)
        return in_res(c, slice, at);
    if (kind == 1)
        return names_one(slice, "output_blocks.%d.1.%s", i, c->rest);
    struct source_map raw = {.src = m->src, .prefix = m->prefix};
    /* behind an attention the upsampler is third, else second */
    bool attn = names_has(&raw, NULL, "output_blocks.%d.2.conv.%s", last, c->rest);
    return names_one(slice, "output_blocks.%d.%d.conv.%s", last, attn ? 2 : 1, c->rest);
}

int names_unet(const struct source_map *m, const char *want, struct source_slice *slice)
{
    static const char *const downs[] = {"down_blocks.#.resnets.#.*", "down_blocks.#.attentions.#.*",
                                        "down_blocks.#.downsamplers.0.conv.*"};
    static const char *const ups[] = {"up_blocks.#.resnets.#.*", "up_blocks.#.attentions.#.*",
                                      "up_blocks.#.upsamplers.0.conv.*"};
    struct names_cap c = {0};
    int l = *(const int *)m->arg;
    for (int k = 0; k < 3; k++) {
        if (names_match(downs[k], want, &c))
            return down(&c, k, l, slice);
        if (names_match(ups[k], want, &c))
            return up(m, &c, k, l, slice);
    }
    struct source_map raw = {.src = m->src, .prefix = m->prefix};
    if (names_match("mid_block.resnets.#.*", want,
                    &c)) { /* distilled models have no attention between the two */
        bool attn = names_has(&raw, NULL, "middle_block.2.in_layers.2.weight");
        return in_res(&c, slice,
                      !c.n[0] ? "middle_block.0."
                      : attn  ? "middle_block.2."
                              : "middle_block.1.");
    }
    if (names_match("mid_block.attentions.0.*", want, &c))
        return names_one(slice, "middle_block.1.%s", c.rest);
    return names_rows(ROWS(outer), want, "", slice);
}
