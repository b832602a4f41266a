/* Z-Image's denoiser: diffusers' ZImageTransformer2DModel (Z-Image team 2025), text to image. A caption's part that
 * does not depend on the timestep is made once when the prompt is encoded, not in every step. Engine thread only. */
#ifndef ENGINE_IMAGE_DIT_ZIMAGE_H
#define ENGINE_IMAGE_DIT_ZIMAGE_H

#include "engine/image/dit.h"

struct dit_zimage;
/* ERR_INVAL and ERR_NOTFOUND name the key or the tensor. With planned weights nothing but a dry run may follow. */
int dit_zimage_open(struct dit_zimage **out, struct nn_weights *w, struct comp *c, struct err *e);
void dit_zimage_close(struct dit_zimage *m); /* NULL is fine; the weights are nn_weights' */
struct dit_info dit_zimage_info(const struct dit_zimage *m);
int dit_zimage_dim(const struct dit_zimage *m); /* of the captions that a pass reads */
/* Rows of a caption of n_tok tokens: filled up to a multiple of 32, and the filling is seen by all others. */
int dit_zimage_caption_rows(int n_tok);
/* Text states [start[n_text], text_dim] of n_text prompts behind each other (host; not read in a dry run) -> their
 * captions, out[i] [caption rows, dim] (host). Its own run is the caller's. */
struct dit_zimage_text {
    int n;
    const int32_t *start; /* [n + 1] */
    const float *states;
    float *const *out; /* [n] */
};
void dit_zimage_caption(struct dit_zimage *m, struct nn *n, const struct dit_zimage_text *t);
/* One pass; cond->states are captions. row[i].out is the velocity as the schedule wants it (the model's, negated). */
void dit_zimage_run(struct dit_zimage *m, struct nn *n, const struct img_row *row, int n_row);

#endif
