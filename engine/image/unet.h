/* The denoiser of Stable Diffusion 1, 2, XL and their relatives: a U-shaped network of convolutions and transformer
 * blocks that read the prompt (Rombach et al. 2022; Podell et al. 2023), as diffusers' UNet2DConditionModel describes it.
 * Pictures of different sizes, moments and prompt lengths go through it in one pass; each one's result has the same bytes
 * as alone. Engine thread only. */
#ifndef ENGINE_IMAGE_UNET_H
#define ENGINE_IMAGE_UNET_H

#include "engine/nn/nn.h"

#define UNET_IDS_MAX 8

struct unet;

/* ERR_NOTFOUND, ERR_INVAL: a tensor or key that is missing or of another shape, by name. ERR_UNSUPPORTED: a variant that
 * changes the numbers and is not done here (class embeddings, image conditions, scale-shift norms, ...), by its key. */
int unet_open(struct unet **out, struct nn_weights *w, struct comp *c, struct err *e);
void unet_close(struct unet *m); /* NULL is fine; the weights are nn_weights' */

struct unet_info {
    int c_in, c_out; /* channels: more go in than come out of an inpainting model */
    int context_dim;
    int add_id_dim;   /* width of one time id's sinusoids; 0: takes no pooled text and time ids */
    int add_in;       /* pooled values + ids * add_id_dim; 0 as above */
    int guidance_dim; /* width of the guidance embedding (LCM); 0: takes no guidance */
    int sample_size;  /* latents a side that it was trained on */
};
const struct unet_info *unet_info(const struct unet *m);

/* One picture's pass; host memory, channels outermost. */
struct unet_row {
    int h, w;             /* of the latents: any */
    const float *latent;  /* [c_out, h, w] with extra, [c_in, h, w] without */
    const float *extra;   /* [c_in - c_out, h, w] or NULL */
    float timestep;       /* of the training schedule, may be fractional */
    float guidance;       /* read when guidance_dim > 0 */
    const float *context; /* [n_tok, context_dim] */
    int n_tok;            /* >= 1 */
    const float *pooled;  /* [n_pooled]; with ids when add_in > 0 */
    int n_pooled;
    float id[UNET_IDS_MAX];
    int n_id;
    float *out; /* [c_out, h, w] */
};
/* Between nn_begin and nn_end; sets the run's layouts. Dry: only h, w, n_tok are read. ERR_INVAL in n->rc: a row that
 * does not suit the model (a bug of the caller); ERR_NOMEM. */
void unet_run(struct unet *m, struct nn *n, const struct unet_row *rows, int n_row);

#endif
