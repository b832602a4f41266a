/* What opening a pipeline takes in most families: components by their names, an autoencoder and a schedule that fit the
 * transformer, the limits of flow matching models, a language model that reads the prompts. What was opened before an
 * error is closed with the pipe. Engine thread only. */
#ifndef ENGINE_IMAGE_PIPE_PARTS_H
#define ENGINE_IMAGE_PIPE_PARTS_H

#include "engine/image/dit.h"
#include "engine/image/lm_prompt.h"

/* The n components of these names. ERR_NOTFOUND names the first that is missing. */
int pipe_parts_find(struct pipe *p, const char *const *name, int n, struct comp **out,
                    struct err *e);

/* p->vae and p->sched from the components "vae" and "scheduler", which are there. ERR_INVAL: the transformer's latents
 * have other channels; ERR_UNSUPPORTED: no flow matching. */
int pipe_flow_open(struct pipe *p, const struct dit_info *dit, struct err *e);
/* p->c, factor and patch, and of p->info what these models have alike: limits, size_step, edit, the sampler. */
void pipe_flow_info(struct pipe *p, const struct dit_info *dit);

/* Prompts read by a language model: components "tokenizer" and "text_encoder". */
struct pipe_lm {
    struct tokenizer *tok;
    struct lm_enc *lm;
    struct lm_prompt prompt; /* the caller's, but for its tok, lm and skip */
};
/* skip: the hidden layer, from the end. *dit: the component "transformer". */
int pipe_lm_open(struct pipe *p, struct pipe_lm *m, int skip, struct comp **dit, struct err *e);
/* The transformer reads states as the encoder gives them, then pipe_flow_open. */
int pipe_lm_fit(struct pipe *p, const struct pipe_lm *m, const struct dit_info *dit, struct err *e);
void pipe_lm_close(struct pipe_lm *m);

/* struct pipe_class's decode and encode_image by p->vae. */
void pipe_vae_decode(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in);
void pipe_vae_encode(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in);

#endif
