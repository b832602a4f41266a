/* Shared by vae*.c: the network that all supported autoencoders are, and who fills it. */
#ifndef ENGINE_IMAGE_VAE_IMPL_H
#define ENGINE_IMAGE_VAE_IMPL_H

#include "engine/image/vae.h"

#define VAE_LEVELS 6 /* resolutions; each a layout */
#define VAE_RES    8 /* residual blocks of a level */

/* x + conv2(act(norm2(conv1(act(norm1 x))))), the x before the sum through `shortcut` where channels change. */
struct vae_res {
    int c_in, c_out;
    struct nn_norm norm1, norm2;
    struct nn_conv conv1, conv2, shortcut;
};
/* One head over all positions of a map. */
struct vae_attn {
    int c; /* 0: there is none */
    struct nn_norm norm;
    struct nn_linear qkv, out;
};
struct vae_level {
    int n_res;
    struct vae_res res[VAE_RES];
    bool resample; /* to the next level */
    struct nn_conv conv;
};
/* encoder: in -> level 0.. (fine to coarse) -> mid -> norm -> out -> quant
 * decoder: quant -> in -> mid -> level 0.. (coarse to fine) -> norm -> out */
struct vae_half {
    bool quant;
    struct nn_conv quant_conv, in, out;
    struct vae_res mid[2];
    struct vae_attn attn;
    struct vae_level level[VAE_LEVELS];
    struct nn_norm norm;
};
struct vae {
    int n_level;
    int groups; /* of the group norms; 0: RMS norm of each position (a causal video autoencoder) */
    int c;
    bool encoder;
    double scaling;
    float *mul, *add; /* [c] each: decoder's input = latent * mul + add */
    struct vae_half enc, dec;
    int32_t *rows; /* start, h, w of the last run's layouts */
    struct image_layout layout[VAE_LEVELS];
};

/* Weights and constants of one class into *m; cls of c is known. */
int vae__kl_load(struct vae *m, struct nn_weights *w, struct comp *c, struct err *e);
int vae__wan_load(struct vae *m, struct nn_weights *w, struct comp *c, struct err *e);
/* m->mul and m->add [c], ones and zeros. */
int vae__scale_new(struct vae *m, struct err *e);
/* mul *= latents_std, add = latents_mean, both of c values; absent: nothing. Errors are the configuration's. */
void vae__mean_std(struct vae *m, struct config *cfg);

#endif
