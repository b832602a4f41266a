/* A pipeline is one file over shared blocks: how a family encodes prompts, what one denoiser pass over rows of many
 * pictures is, how latents become pixels. Everything else (jobs, stages, guidance, schedules, noise, image to image,
 * tiling, previews) is pipeline.c's and the same for all. encode, denoise, decode and encode_image are each called twice
 * by it: in a dry run (n->dry; only temporaries are counted, what they give is dropped) and, when the work buffer is
 * large enough, for real; they never call nn_begin, nn_reserve or nn_end themselves. Adding a family: its file, a line in pipelines.def, a test.
 * Engine thread only. */
#ifndef ENGINE_IMAGE_PIPELINE_H
#define ENGINE_IMAGE_PIPELINE_H

#include "engine/image/files.h"
#include "engine/image/schedule.h"
#include "engine/nn/nn.h"

/* An encoded prompt, in host memory; shared by jobs and the cache. */
struct img_cond {
    int refs;
    int n_tok, dim; /* states [n_tok, dim] f32 */
    float *states;
    int n_pooled; /* pooled [n_pooled] f32; 0 = none */
    float *pooled;
    int prompt_tokens; /* what the text was, without padding: usage */
};
struct img_cond *img_cond_new(int n_tok, int dim, int n_pooled); /* refs 1; NULL: no memory */
void img_cond_drop(struct img_cond *c);                          /* NULL is fine */

/* One denoiser pass of one picture. Latents are [c, h, w] f32 as diffusers draws them. */
struct img_row {
    int h, w;            /* of the latents */
    int width, height;   /* of the picture, pixels */
    const float *latent; /* scaled for the model's input */
    const float
        *extra; /* channels that an inpainting denoiser reads besides: [c_in - c, h, w], or NULL */
    const struct img_cond *cond;
    float timestep; /* as the schedule's table gives it */
    float guidance; /* for models that take it as an input */
    bool negative;  /* the unconditional half */
    float *out;     /* [c, h, w]: the schedule's model output */
};

struct pipe;
struct img_tile;
struct vae;
struct pipe_class {
    const char *name; /* values of img_files.pipeline, separated by spaces */
    /* Load the components from p->files into p->state and fill p->info, c, factor, schedule and what else differs. With
     * p->dev NULL only a plan: p->weights counts, no buffer exists. */
    int (*open)(struct pipe *p, struct err *e);
    void (*close)(struct pipe *p); /* of p->state; half-open and NULL states too */
    /* Tokenise and encode texts; out[i] is new. Long prompts are cut at info.prompt_tokens_max. */
    int (*encode)(struct pipe *p, struct nn *n, const char *const *text, int n_text,
                  struct img_cond **out, struct err *e);
    /* One pass for all rows. In a dry run only sizes are looked at (cond->n_tok, not its states; latent and out are NULL). */
    void (*denoise)(struct pipe *p, struct nn *n, const struct img_row *row, int n_row);
    /* cond (in place) <- guided prediction, both [c, h, w]; NULL = u + s (c - u). */
    void (*guide)(float *cond, const float *uncond, float scale, int c, int h, int w);
    /* Latents [c, h, w] of n pictures or tiles, scaled back already, -> RGB f32 [3, H, W] in [-1, 1] each. */
    void (*decode)(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in);
    /* RGB f32 [3, H, W] in [-1, 1] -> mean of the latents, scaled. NULL: no image to image. */
    void (*encode_image)(struct pipe *p, struct nn *n, const struct img_tile *in, int n_in);
};
struct img_tile {
    int h, w;      /* of the latents */
    float *latent; /* [c, h, w]; decode: as the sampler left it (unscaling is the VAE's) */
    float *rgb;    /* [3, h * factor, w * factor] */
};

struct pipe {
    const struct pipe_class *cls;
    struct img_files *files;
    const struct backend *be;
    struct dev *dev;
    struct nn_weights *weights;
    void *state;     /* of the class */
    struct vae *vae; /* opened by the class, closed with the pipe; NULL: not yet */
    /* set by open */
    struct eng_image_info info;
    struct nsched_config sched;
    int c, factor; /* latent channels; pixels a latent (of a side) */
    int c_extra;   /* extra input channels of an inpainting denoiser: mask 1 + masked latents c */
    int patch;     /* latents a token (of a side): tokens of a picture for dynamic shift */
    float
        guidance_off; /* guidance up to here is one pass a step: 1 unless open sets it (Z-Image 0) */
    bool embedded_guidance; /* guidance is an input: one pass whatever the scale */
    bool zero_negative;     /* an empty negative prompt is zeros, not the encoding of "" */
    const float (*preview)
        [3]; /* [c + 1][3]: latent -> RGB in 0..1, last row the bias; NULL = first three channels */
};

#endif
