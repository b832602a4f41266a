/* Stable Diffusion 3's and 3.5's denoiser: diffusers' SD3Transformer2DModel (Esser et al. 2024). Engine thread only. */
#ifndef ENGINE_IMAGE_DIT_SD3_H
#define ENGINE_IMAGE_DIT_SD3_H

#include "engine/image/dit.h"

struct dit_sd3;
/* ERR_INVAL, ERR_NOTFOUND and ERR_UNSUPPORTED name the key or the tensor. With planned weights nothing but a dry run may
 * follow. */
int dit_sd3_open(struct dit_sd3 **out, struct nn_weights *w, struct comp *c, struct err *e);
void dit_sd3_close(struct dit_sd3 *m); /* NULL is fine; the weights are nn_weights' */
struct dit_info dit_sd3_info(const struct dit_sd3 *m);
int dit_sd3_tokens_max(const struct dit_sd3 *m);  /* of a side: its table of positions */
int dit_sd3_sample_size(const struct dit_sd3 *m); /* latents of a side that it was trained on */
/* One pass: row[i].out is the velocity. Sides are multiples of the patch. */
void dit_sd3_run(struct dit_sd3 *m, struct nn *n, const struct img_row *row, int n_row);

#endif
