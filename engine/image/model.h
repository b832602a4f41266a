/* An opened image model: one pipeline, or two (base and refiner), a run context, the cache of encoded prompts. And its
 * jobs: one picture each, moved from stage to stage. Private to engine/; engine thread only.
 *
 *   engine --> image_model --> pipe (base), pipe (refiner) --> files, weights
 *                 |  nn: work buffer                 ^
 *                 |  cond_cache: text -> img_cond    |
 *   img_job ------+--- phase[0], phase[1]: table, state, conds */
#ifndef ENGINE_IMAGE_MODEL_H
#define ENGINE_IMAGE_MODEL_H

#include "engine/image/pipeline.h"
#include "engine/image/rand.h"

#define IMG_PIPES 2
#define IMG_SEEN  16

struct eng_opts;
struct eng_info;
struct eng_memory;

/* Encoded prompts by (pipe, text), least recently used out first, under a byte cap. */
struct cond_cache;
struct cond_cache *cond_cache_new(size_t cap); /* bytes; NULL: no memory */
void cond_cache_free(struct cond_cache *c);    /* NULL is fine */
/* A new reference, or NULL. */
struct img_cond *cond_cache_get(struct cond_cache *c, int pipe, const char *text);
/* Takes a reference of its own; what does not fit is simply not kept. */
void cond_cache_put(struct cond_cache *c, int pipe, const char *text, struct img_cond *v);

struct image_model {
    struct pipe pipe[IMG_PIPES];
    int n_pipe;
    const struct backend *be;
    struct nn nn;
    struct cond_cache *cache;
    size_t work_max; /* bytes of the work buffer at most */
    struct {         /* what the last dry runs of denoising steps were of, by key */
        uint64_t key;
        size_t peak;
    } seen[IMG_SEEN];
    struct eng_image_info info;
    struct err failed; /* code != 0: the device failed; sticky */
};

/* info gets what an engine tells of itself (backend, weights, image). */
int imodel_open(struct image_model **out, const struct eng_opts *o, struct eng_info *info,
                struct err *e);
void imodel_close(struct image_model *m); /* NULL is fine */
int imodel_plan(const struct eng_opts *o, struct eng_memory *out, struct err *e);

/* The steps that one pipe makes of a job. */
struct job_phase {
    int pipe; /* of the model */
    struct nsched_table *table;
    struct nsched_state state;
    int first, end;                 /* steps of the table: [first, end) */
    struct img_cond *cond, *uncond; /* uncond NULL: one pass */
};

struct img_job {
    struct image_model *m;
    struct img_params p; /* texts and pixels are ours */
    enum img_stage stage;
    int c, h, w; /* latents */
    size_t n;    /* c * h * w */
    struct job_phase phase[IMG_PIPES];
    int n_phase, at, step; /* phase at work; table step of the next denoising */
    int done;              /* steps made, over all phases */
    float *x;              /* [n] latents */
    float *x0;             /* [n] clean ones that the last output meant; valid once done > 0 */
    float *in, *out[2];    /* [n] scaled input; outputs of the two passes */
    float *clean, *noise;  /* [n] of the picture that is edited, or NULL */
    float *keep;           /* [h * w] 1 = keep, or NULL: no mask */
    float *extra;          /* [c_extra, h, w] of an inpainting denoiser, or NULL */
    union {
        struct torch_mt mt;
        struct torch_philox philox;
    } rng;
    int prompt_tokens;
    size_t decode_bytes; /* peak of decoding it whole; 0 = not known yet */
    uint8_t *rgb;
};

/* Standard normals of the job's own stream. */
void job__randn(struct img_job *j, float *dst, size_t n);

/* Run `body` dry, make room, run it for real. ERR_NOMEM: it needs more than work_max (*peak says how much; may be NULL).
 * body must do the same both times. */
struct image_body {
    void (*fn)(struct image_model *m, void *arg);
    void *arg;
    const struct img_yield *yield;
};
int imodel__run(struct image_model *m, const struct image_body *b, size_t *peak, struct err *e);
/* Only the dry half; 0 after an error. */
size_t imodel__peak(struct image_model *m, const struct image_body *b);

/* One stage's work for jobs that are in it; each moves on. */
int imodel__encode(struct image_model *m, struct img_job *const *j, int n,
                   const struct img_yield *y, struct err *e);
int imodel__denoise(struct image_model *m, struct img_job *const *j, int n,
                    const struct img_yield *y, struct err *e);
int imodel__decode(struct image_model *m, struct img_job *const *j, int n,
                   const struct img_yield *y, struct err *e);
/* Work memory of one denoising step of these jobs (those of one pipe). */
size_t imodel__denoise_peak(struct image_model *m, struct img_job *const *j, int n);
/* Of decoding a picture of h x w latents whole; with sides of TILE_SIDE_MIN (tile.h) at most, that of the smallest tiles. SIZE_MAX: it
 * can't be done. */
size_t imodel__decode_peak(struct image_model *m, int h, int w);
/* Clean latents of the pictures to edit, [c, h, w] each; rgb [3, H, W] in [-1, 1]. */
int imodel__encode_image(struct image_model *m, struct img_tile *t, const struct img_yield *y,
                         struct err *e);

#endif
