/* Noise schedules: from a scheduler's configuration and a number of steps to an immutable table of timesteps and
 * sigmas, equal to diffusers' to 1e-6. A table belongs to one job; nothing is shared or changed while steps run. Pure
 * but for the allocation of the table; any thread.
 *
 * Sources: Ho et al. 2020 (betas), Song et al. 2021 (DDIM), Karras et al. 2022, Lin et al. 2024 (zero terminal SNR,
 * trailing spacing), Lu et al. 2022 (DPM-Solver++), Liu et al. 2022 (PNDM), Luo et al. 2023 (LCM), Esser et al. 2024
 * (flow matching and its shift). */
#ifndef ENGINE_IMAGE_SCHEDULE_H
#define ENGINE_IMAGE_SCHEDULE_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "engine/image.h"

#define NSCHED_STEPS_MAX 1000

enum nsched_kind {
    NSCHED_DDIM,
    NSCHED_PNDM,
    NSCHED_EULER,
    NSCHED_EULER_A,
    NSCHED_DPMPP_2M,
    NSCHED_LCM,
    NSCHED_FLOW
};
enum nsched_spacing { SPACING_LINSPACE, SPACING_LEADING, SPACING_TRAILING };
enum nsched_prediction { PREDICT_EPSILON, PREDICT_V, PREDICT_SAMPLE };

/* scheduler_config.json, with the class's own defaults filled in (nsched_config_default). */
struct nsched_config {
    enum nsched_kind kind;
    int n_train; /* num_train_timesteps */
    double beta_start, beta_end;
    bool scaled_linear; /* else linear */
    enum nsched_spacing spacing;
    enum nsched_prediction prediction;
    int steps_offset;
    bool alpha_to_one, zero_snr, karras;
    int lcm_original_steps;
    double lcm_timestep_scaling;
    /* flow matching */
    /* Before the shift from 1 to 1/steps, as the pipelines of FLUX, Qwen-Image and Z-Image hand them over; else
     * between the scheduler's own ends. With a dynamic shift always the former. */
    bool sigmas_given;
    double shift;
    bool dynamic_shift, dynamic_linear; /* time_shift_type: exponential unless linear */
    double base_shift, max_shift;
    int base_len, max_len; /* latent tokens */
    double shift_terminal; /* 0 = none */
};
void nsched_config_default(struct nsched_config *c, enum nsched_kind kind);
/* Values that no schedule can be made of: ERR_INVAL names them. */
int nsched_config_check(const struct nsched_config *c, struct err *e);
/* "DDIMScheduler" -> kind; false for a class that is not known. */
bool nsched_kind_by_class(const char *cls, enum nsched_kind *out);

struct nsched_table {
    struct nsched_config c;
    int n;             /* denoiser calls (PNDM: one more than the steps asked for) */
    int steps;         /* as asked */
    float *timestep;   /* [n] given to the denoiser */
    float *sigma;      /* [n + 1]; last one is the end's; empty for DDIM, PNDM, LCM */
    float *alpha;      /* [n_train] cumulative products; NULL for flow */
    float final_alpha; /* before timestep 0 */
    float init_sigma;  /* scale of the starting noise */
};
/* n_token: latent tokens of the picture (dynamic shift only). ERR_INVAL names what is wrong; ERR_NOMEM. */
int nsched_table_open(struct nsched_table **out, const struct nsched_config *c, int steps,
                      int n_token, struct err *e);
void nsched_table_close(struct nsched_table *t); /* NULL is fine */

/* State of one job beside the table: what multistep methods remember. */
struct nsched_state {
    int order;     /* outputs remembered */
    int first;     /* first step of this job (image to image starts later) */
    float *old[4]; /* [n_value] each, newest first */
    size_t n_value;
};
int nsched_state_open(struct nsched_state *s, size_t n_value, int first);
void nsched_state_close(struct nsched_state *s);

/* Scale that the denoiser's input needs at step i: x * scale. */
float nsched_input_scale(const struct nsched_table *t, int i);
/* x (the latents, [n_value]) one step on by the denoiser's output `out` (which may be overwritten). `noise` is asked
 * for [n_value] normals where the method adds noise at this step (Euler a, LCM); may be NULL elsewhere. */
bool nsched_wants_noise(const struct nsched_table *t, int i);
void nsched_step(const struct nsched_table *t, struct nsched_state *s, int i, float *x, float *out,
                 const float *noise);
/* The clean latents that output `out` for latents x at step i stands for (previews). */
void nsched_x0(const struct nsched_table *t, int i, const float *x, const float *out, float *x0,
               size_t n);
/* Noisy version of clean latents at step i: for image to image and for keeping what a mask keeps. i == t->n: clean. */
void nsched_add_noise(const struct nsched_table *t, int i, const float *clean, const float *noise,
                      float *x, size_t n);

#endif
