/* Inside of unet*.c: unet_load.c reads configuration and weights, unet_blocks.c has the pieces of the forward, unet.c a run.
 *
 *   latents -> conv_in -> down[0] --------- skips ---------> up[2] -> norm, conv_out -> out     level 0: h x w
 *                            | stride 2                        ^ x 2
 *                         down[1] --------- skips ---------> up[1]                            level 1: half of it
 *                            | stride 2                        ^ x 2
 *                         down[2] -> mid -- skips ---------> up[0]                            level 2
 *
 * Every resnet of the way in leaves its result (after its transformer), conv_in and the halvings too, as a skip; every
 * resnet of the way out takes one back, last one first, as further channels. */
#ifndef ENGINE_IMAGE_UNET_IMPL_H
#define ENGINE_IMAGE_UNET_IMPL_H

#include "engine/image/unet.h"

#define UNET_LEVELS 8 /* resolutions */
#define UNET_LAYERS 8 /* resnets a block */
#define UNET_SKIPS  (1 + UNET_LEVELS * (UNET_LAYERS + 1))

/* x + conv2(silu(norm2(conv1(silu(norm1(x))) + time(temb)))) */
struct unet_resnet {
    struct nn_norm norm1, norm2;
    struct nn_conv conv1, conv2;
    struct nn_linear shortcut; /* n_out 0: as many channels come out as go in */
    struct nn_linear time;
};
struct unet_layer { /* of a transformer */
    struct nn_norm norm1, norm2, norm3;
    struct nn_linear qkv, out1;   /* self-attention */
    struct nn_linear q, kv, out2; /* attention to the prompt */
    struct nn_linear ff_in, ff_out;
};
/* Names and shapes of diffusers' Transformer2DModel; proj_in and proj_out are 1 x 1 convolutions in older files. */
struct unet_transformer {
    struct nn_norm norm;
    struct nn_linear proj_in, proj_out;
    int n_head, head_dim, n_layer;
    struct unet_layer *layer; /* owned */
};
/* resnet, transformer, resnet, transformer, ..., then a change of resolution */
struct unet_block {
    int n_res;
    struct unet_resnet res[UNET_LAYERS];
    struct unet_transformer attn[UNET_LAYERS]; /* n_layer 0: none */
    struct nn_conv sample;                     /* c_out 0: none */
};

struct unet {
    struct unet_info info;
    int n_level, channels[UNET_LEVELS]; /* outermost first */
    int groups;
    float eps;
    bool cos_first, centre;
    float freq_shift;
    struct nn_conv conv_in, conv_out;
    struct nn_norm norm_out;
    struct nn_linear time1, time2, add1, add2, guidance;
    struct unet_block down[UNET_LEVELS], mid, up[UNET_LEVELS]; /* up[0] is the innermost */

    /* of the run */
    struct image_meta meta; /* layouts 0..n_level-1 the resolutions, n_level the prompts */
    int32_t *ints;          /* what meta points into */
    size_t n_ints;
    float *host; /* staging */
    size_t n_host;
};

/* Everything but the run's fields, into a zeroed m. */
int unet__load(struct unet *m, struct nn_weights *w, struct comp *c, struct err *e);

/* A pass over the rows of a run. */
struct unet_pass {
    const struct unet *m;
    struct nn *n;
    struct tensor temb;    /* (mul) [n_row, 4 channels[0]], activated */
    struct tensor context; /* (mul) [rows of the prompts, context_dim] */
};
/* f32 [rows, c_in] -> new f32 [rows, c_out]; x stays. */
struct tensor unet__resnet(const struct unet_pass *p, const struct unet_resnet *r, struct tensor x,
                           int level);
/* In place. */
void unet__transformer(const struct unet_pass *p, const struct unet_transformer *t, struct tensor x,
                       int level);
/* To the next resolution, inwards (`to` = from + 1) or outwards; new f32; x stays. */
struct tensor unet__sample(const struct unet_pass *p, const struct nn_conv *c, struct tensor x,
                           int from, int to);

#endif
