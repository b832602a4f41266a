/* Qwen-Image's denoiser: diffusers' QwenImageTransformer2DModel (Wu et al. 2025). Engine thread only. */
#ifndef ENGINE_IMAGE_DIT_QWEN_H
#define ENGINE_IMAGE_DIT_QWEN_H

#include "engine/image/dit.h"

struct dit_qwen;
/* ERR_UNSUPPORTED names a key of another variant (layered pictures, embedded guidance); ERR_INVAL and ERR_NOTFOUND the
 * key or the tensor. With planned weights nothing but a dry run may follow. */
int dit_qwen_open(struct dit_qwen **out, struct nn_weights *w, struct comp *c, struct err *e);
void dit_qwen_close(struct dit_qwen *m); /* NULL is fine; the weights are nn_weights' */
struct dit_info dit_qwen_info(const struct dit_qwen *m);
/* One pass: row[i].out is the velocity. Sides are multiples of the patch. */
void dit_qwen_run(struct dit_qwen *m, struct nn *n, const struct img_row *row, int n_row);

#endif
