/* The image side of the engine's door (included by engine.h): a job is one picture; its unit of work is one stage
 * step: encoding the prompts, one denoising step, decoding. The scheduler decides which jobs make a step together; they
 * may differ in size, step number, sampler, guidance. A job's bytes are the same alone and in any company. Engine
 * thread only, but for img_job_* readers where said. */
#ifndef ENGINE_IMAGE_H
#define ENGINE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

struct engine;

enum img_sampler {
    IMG_SAMPLER_DEFAULT, /* what the model's scheduler configuration names */
    IMG_SAMPLER_EULER,
    IMG_SAMPLER_EULER_A,
    IMG_SAMPLER_DDIM,
    IMG_SAMPLER_DPMPP_2M,
    IMG_SAMPLER_LCM,
    IMG_SAMPLER_FLOW_EULER,
};
enum img_rng {
    IMG_RNG_TORCH_CPU, /* the noise of torch.randn with a CPU generator (Mersenne Twister) */
    IMG_RNG_PHILOX,    /* the noise of torch.randn on a CUDA generator */
};
enum img_schedule { IMG_SCHEDULE_DEFAULT, IMG_SCHEDULE_NORMAL, IMG_SCHEDULE_KARRAS };

/* Resolved by the caller from the request and eng_info.image; text and pixels are copied by img_job_open. */
struct img_params {
    const char *prompt;   /* UTF-8 */
    const char *negative; /* "" = none */
    int width, height;    /* pixels, multiples of eng_image_info.size_step */
    int steps;
    float guidance; /* 1 = one pass a step */
    float strength; /* image to image: 0 < s <= 1; ignored without init */
    uint64_t seed;  /* of this picture: request seed + index */
    enum img_rng rng;
    enum img_sampler sampler;
    enum img_schedule schedule;
    float flow_shift; /* 0 = the model's */
    float
        refiner_switch; /* part of the steps that the base model makes before the refiner: 0 < s < 1; 0 = no refiner */
    const uint8_t *init; /* RGB8 [height, width, 3] or NULL */
    const uint8_t *mask; /* [height, width]: 255 = repaint, 0 = keep; or NULL */
};

enum img_stage { IMG_ENCODE, IMG_DENOISE, IMG_DECODE, IMG_DONE, IMG_N_STAGE };

/* Constant facts of an opened image model; NULL for a text model. */
struct eng_image_info {
    int size_default, size_min, size_max; /* of a side, pixels */
    int size_step;                        /* sides are multiples of it */
    int64_t pixels_max;                   /* width * height */
    int steps_default, steps_max;
    float guidance_default, guidance_max;
    bool negative; /* negative prompts mean something (classic guidance) */
    bool edit;     /* init and mask are understood */
    int prompt_tokens_max;
    bool refiner; /* a refiner is loaded beside it */
    float refiner_switch_default;
    enum img_sampler sampler_default;
    enum img_schedule schedule_default;
    char pipeline[48]; /* "StableDiffusionPipeline" */
};

/* Whether the model in `path` makes pictures (reads names only). Any thread. */
bool eng_path_is_image(const char *path);

struct img_job;
/* Checks p against eng_image_info (ERR_INVAL / ERR_LIMIT name the field), copies it, allocates the job's host memory.
 * e may be NULL. */
int img_job_open(struct engine *g, const struct img_params *p, struct img_job **out, struct err *e);
void img_job_close(struct engine *g, struct img_job *j); /* NULL is fine */

enum img_stage img_job_stage(const struct img_job *j);
int img_job_step(const struct img_job *j); /* denoising steps done */
int img_job_steps(
    const struct img_job *j); /* that it will take (fewer than asked with strength < 1) */
int img_job_tokens(
    const struct img_job *j); /* prompt tokens encoded, both prompts; after IMG_ENCODE */
int64_t img_job_rows(
    const struct img_job *j); /* cost of one step: latent rows of the denoiser, both passes */
int img_job_latent_tokens(const struct img_job *j); /* of the picture, after patching: usage */
/* Host and device bytes that its decoding needs at its peak, untiled; what the engine has; tiles keep below it. */
size_t img_job_decode_bytes(const struct engine *g, const struct img_job *j);

/* Called between device operations of a long step so that another engine of the process may use the device. Not 0: the
 * step is not wanted any more and ends at once with ERR_CANCELLED. */
struct img_yield {
    int (*fn)(void *arg);
    void *arg;
};
/* One unit of work for all n jobs, which must be in the same stage; moves each on. ERR_NOMEM: try fewer jobs (or, in
 * IMG_DECODE, it was tiled down to the smallest tile and still did not fit); ERR_CANCELLED: y asked for it. Jobs are
 * then as they were, but in IMG_DECODE some may be finished. ERR_DEVICE is sticky. */
int eng_image_step(struct engine *g, struct img_job *const *jobs, int n, const struct img_yield *y,
                   struct err *e);
/* Jobs that fit into one denoising step beside each other, by work memory: how many of jobs[0..n) from the start. 0: not
 * even the first. */
int eng_image_fit(struct engine *g, struct img_job *const *jobs, int n);

/* Finished picture, RGB8 [height, width, 3]; NULL before IMG_DONE. Owned by the job. */
const uint8_t *img_job_pixels(const struct img_job *j, int *width, int *height);
/* A rough view of the current latents by the model's linear factors: RGB8 [h, w, 3] at latent resolution, malloc'ed
 * for the caller. ERR_AGAIN before the first step. */
int img_job_preview(const struct engine *g, const struct img_job *j, uint8_t **rgb, int *w, int *h);

#endif
