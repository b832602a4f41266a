/* FLUX.1's denoiser: diffusers' FluxTransformer2DModel (Black Forest Labs 2024), with and without embedded guidance.
 * Engine thread only. */
#ifndef ENGINE_IMAGE_DIT_FLUX_H
#define ENGINE_IMAGE_DIT_FLUX_H

#include "engine/image/dit.h"

struct dit_flux;
/* ERR_INVAL and ERR_NOTFOUND name the key or the tensor. With planned weights nothing but a dry run may follow. */
int dit_flux_open(struct dit_flux **out, struct nn_weights *w, struct comp *c, struct err *e);
void dit_flux_close(struct dit_flux *m); /* NULL is fine; the weights are nn_weights' */
struct dit_info dit_flux_info(const struct dit_flux *m);
bool dit_flux_guidance(const struct dit_flux *m); /* row.guidance is an input */
/* One pass: row[i].out is the velocity. Sides are even. ERR_INVAL: states of another width. */
void dit_flux_run(struct dit_flux *m, struct nn *n, const struct img_row *row, int n_row);

#endif
