/* Variational autoencoders of image models: pictures <-> latents (Kingma and Welling 2014; Rombach et al. 2022).
 * AutoencoderKL, and the causal video autoencoders of Wan and Qwen-Image on a single frame, as diffusers writes them. A
 * run takes several pictures or tiles of different sizes behind each other; each one's bytes are the same alone and in
 * any company. Engine thread only. */
#ifndef ENGINE_IMAGE_VAE_H
#define ENGINE_IMAGE_VAE_H

#include "engine/image/pipeline.h"

struct vae;

/* By c->cls: "AutoencoderKL" (also when it is ""), "AutoencoderKLQwenImage", "AutoencoderKLWan". The encoder may be
 * missing in the files; half of one is an error. ERR_UNSUPPORTED names the class, block type or key that is not known;
 * ERR_INVAL the key or the tensor. With weights that are only planned, nothing is opened and no run but a dry one may
 * follow. */
int vae_open(struct vae **out, struct nn_weights *w, struct comp *c, struct err *e);
void vae_close(struct vae *m); /* NULL is fine; the weights are nn_weights' */

int vae_factor(const struct vae *m);   /* pixels a latent, of a side */
int vae_channels(const struct vae *m); /* of the latents */
double
vae_scaling(const struct vae *m); /* scaling_factor; 1 where mean and deviation are by channel */
bool vae_has_encoder(const struct vae *m);

/* Inside a run (nn_begin ... nn_end are the caller's); both set the layouts they need. Results are in in[i].rgb or
 * in[i].latent when they return, and nothing is left in the work buffer. In a dry run only h and w are read. Sticky
 * errors are n->rc; ERR_NOMEM beyond the work buffer.
 * decode: in[i].latent [c, h, w] as the sampler left it -> in[i].rgb [3, h * factor, w * factor], about -1 to 1, not
 * clamped. */
void vae_decode(struct vae *m, struct nn *n, const struct img_tile *in, int n_in);
/* encode: in[i].rgb in [-1, 1] -> in[i].latent: the mean of the posterior, scaled as the denoiser expects it.
 * ERR_UNSUPPORTED without an encoder. */
void vae_encode(struct vae *m, struct nn *n, const struct img_tile *in, int n_in);

#endif
