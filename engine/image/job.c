/* Jobs: parameters checked, steps laid out, host memory taken. See engine/image.h and model.h. */
#include "engine/base/mem.h"
#include "engine/engine_impl.h"
#include "engine/image/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int check_size(const struct eng_image_info *i, int w, int h, struct err *e)
{
    int side[2] = {w, h};
    static const char *const name[2] = {"width", "height"};
    for (int k = 0; k < 2; k++) {
        if (side[k] < i->size_min || side[k] > i->size_max)
            return err_set(e, ERR_INVAL, "%s must be %d to %d pixels, not %d", name[k], i->size_min,
                           i->size_max, side[k]);
        if (side[k] % i->size_step)
            return err_set(e, ERR_INVAL, "%s must be a multiple of %d, not %d", name[k],
                           i->size_step, side[k]);
    }
    if ((int64_t)w * h > i->pixels_max)
        return err_set(e, ERR_LIMIT, "%d x %d is more than the %lld pixels of this model", w, h,
                       (long long)i->pixels_max);
    return 0;
}

static int check(const struct eng_image_info *i, const struct img_params *p, struct err *e)
{
    if (!p->prompt)
        return err_set(e, ERR_INVAL, "prompt is missing");
    int rc = check_size(i, p->width, p->height, e);
    if (rc)
        return rc;
    if (p->steps < 1 || p->steps > i->steps_max)
        return err_set(e, ERR_INVAL, "steps must be 1 to %d, not %d", i->steps_max, p->steps);
    if (!(p->guidance >= 0 && p->guidance <= i->guidance_max))
        return err_set(e, ERR_INVAL, "guidance_scale must be 0 to %g", (double)i->guidance_max);
    if ((p->init || p->mask) && !i->edit)
        return err_set(e, ERR_UNSUPPORTED, "this model does not edit pictures");
    if (p->mask && !p->init)
        return err_set(e, ERR_INVAL, "mask without an image");
    if (p->init && !(p->strength > 0 && p->strength <= 1))
        return err_set(e, ERR_INVAL, "strength must be over 0 and at most 1");
    if (!(p->refiner_switch >= 0 && p->refiner_switch < 1))
        return err_set(e, ERR_INVAL, "refiner_switch must be 0 to below 1");
    if (p->refiner_switch > 0 && !i->refiner)
        return err_set(e, ERR_UNSUPPORTED, "refiner_switch: no refiner is loaded");
    if (!(p->flow_shift >= 0 && p->flow_shift <= 100))
        return err_set(e, ERR_INVAL, "flow_shift must be 0 to 100");
    return 0;
}

/* The model's schedule with what the request wants of it. */
static int schedule_of(const struct pipe *p, const struct img_params *q, struct nsched_config *c,
                       struct err *e)
{
    static const enum nsched_kind kind[] = {
        [IMG_SAMPLER_EULER] = NSCHED_EULER, [IMG_SAMPLER_EULER_A] = NSCHED_EULER_A,
        [IMG_SAMPLER_DDIM] = NSCHED_DDIM,   [IMG_SAMPLER_DPMPP_2M] = NSCHED_DPMPP_2M,
        [IMG_SAMPLER_LCM] = NSCHED_LCM,     [IMG_SAMPLER_FLOW_EULER] = NSCHED_FLOW,
    };
    bool flow = p->sched.kind == NSCHED_FLOW;
    *c = p->sched;
    if (q->sampler != IMG_SAMPLER_DEFAULT && !(flow && q->sampler == IMG_SAMPLER_EULER)) {
        if (flow != (q->sampler == IMG_SAMPLER_FLOW_EULER))
            return err_set(e, ERR_INVAL,
                           flow ? "sampler: this model has flow matching's Euler only"
                                : "sampler: flow matching is not for this model");
        c->kind = kind[q->sampler];
    }
    if (q->schedule != IMG_SCHEDULE_DEFAULT) {
        bool karras = q->schedule == IMG_SCHEDULE_KARRAS;
        if (karras && c->kind != NSCHED_EULER && c->kind != NSCHED_DPMPP_2M &&
            c->kind != NSCHED_EULER_A)
            return err_set(e, ERR_INVAL, "schedule: karras needs the sampler euler or dpm++2m");
        c->karras = karras;
    }
    if (q->flow_shift > 0) {
        if (!flow)
            return err_set(e, ERR_INVAL, "flow_shift is for flow matching models only");
        c->shift = (double)q->flow_shift;
        c->dynamic_shift = false;
    }
    return 0;
}

/* Lin et al. 2024's hand-over by timestep, as diffusers' denoising_end / denoising_start: the base model makes the steps
 * at or above the cut, the refiner those below. */
static int split_at(const struct nsched_table *t, double part)
{
    double cut = rint(t->c.n_train - part * t->c.n_train);
    int n = 0;
    while (n < t->n && (double)t->timestep[n] >= cut)
        n++;
    return n;
}

/* Step that image to image begins with, by the reference's arithmetic: pipelines of diffusion round the number of steps
 * down, those of flow matching that of the steps left out. The strength is the decimal number that was asked for. */
static int first_of(const struct pipe *p, int steps, float strength)
{
    double part = steps * (rint((double)strength * 1e6) / 1e6);
    int first = p->sched.kind == NSCHED_FLOW ? (int)(steps - part) : steps - (int)part;
    return first < steps ? first : steps - 1;
}

static int phase_open(struct img_job *j, int i, struct err *e)
{
    struct job_phase *f = &j->phase[i];
    const struct pipe *p = &j->m->pipe[i];
    struct nsched_config c;
    int rc = schedule_of(p, &j->p, &c, e);
    if (rc)
        return rc;
    j->n_phase = i + 1;
    f->pipe = i;
    int tokens = (j->h / p->patch) * (j->w / p->patch);
    if ((rc = nsched_table_open(&f->table, &c, j->p.steps, tokens, e)))
        return rc;
    f->end = f->table->n;
    if (j->p.init)
        f->first = first_of(p, j->p.steps, j->p.strength);
    return 0;
}

static int phases_open(struct img_job *j, struct err *e)
{
    int n = j->p.refiner_switch > 0 ? 2 : 1;
    for (int i = 0; i < n; i++) {
        int rc = phase_open(j, i, e);
        if (rc)
            return rc;
    }
    if (n == 2) {
        double part = (double)j->p.refiner_switch;
        j->phase[0].end = split_at(j->phase[0].table, part);
        j->phase[1].first = split_at(j->phase[1].table, part);
        if (j->phase[0].end <= j->phase[0].first || j->phase[1].first >= j->phase[1].end)
            return err_set(e, ERR_INVAL, "refiner_switch leaves one of the models no step");
    }
    for (int i = 0; i < n; i++)
        if (nsched_state_open(&j->phase[i].state, j->n, j->phase[i].first))
            return err_set(e, ERR_NOMEM, "no memory for the latents");
    j->step = j->phase[0].first;
    return 0;
}

static void *copy(const void *p, size_t n)
{
    void *q = mem_alloc(n);
    if (q)
        memcpy(q, p, n);
    return q;
}

static int job_copy(struct img_job *j, const struct img_params *p, struct err *e)
{
    const char *negative = p->negative ? p->negative : "";
    size_t px = (size_t)p->width * (size_t)p->height;
    j->p = *p;
    j->p.prompt = copy(p->prompt, strlen(p->prompt) + 1);
    j->p.negative = copy(negative, strlen(negative) + 1);
    j->p.init = p->init ? copy(p->init, px * 3) : NULL;
    j->p.mask = p->mask ? copy(p->mask, px) : NULL;
    bool ok = j->p.prompt && j->p.negative && !j->p.init == !p->init && !j->p.mask == !p->mask;
    j->rgb = mem_alloc(px * 3);
    return ok && j->rgb ? 0 : err_set(e, ERR_NOMEM, "no memory for a picture");
}

static int job_memory(struct img_job *j, struct err *e)
{
    const struct pipe *p = &j->m->pipe[0];
    float **v[] = {&j->x, &j->x0, &j->in, &j->out[0], &j->out[1], &j->clean, &j->noise};
    int n = j->p.init ? 7 : 5;
    size_t map = (size_t)j->h * (size_t)j->w;
    for (int i = 0; i < n; i++)
        if (!(*v[i] = mem_calloc(j->n, sizeof(float))))
            return err_set(e, ERR_NOMEM, "no memory for the latents");
    if (j->p.mask && !(j->keep = mem_calloc(map, sizeof(float))))
        return err_set(e, ERR_NOMEM, "no memory for the mask");
    if (p->c_extra && !(j->extra = mem_calloc(map * (size_t)p->c_extra, sizeof(float))))
        return err_set(e, ERR_NOMEM, "no memory for the mask");
    return 0;
}

void job__randn(struct img_job *j, float *dst, size_t n)
{
    if (j->p.rng == IMG_RNG_PHILOX)
        torch_philox_randn(&j->rng.philox, dst, n);
    else
        torch_mt_randn(&j->rng.mt, dst, n);
}

int img_job_open(struct engine *g, const struct img_params *p, struct img_job **out, struct err *e)
{
    *out = NULL;
    struct image_model *m = g->image;
    if (!m)
        return err_set(e, ERR_UNSUPPORTED, "the model makes no pictures");
    int rc = check(&m->info, p, e);
    if (rc)
        return rc;
    struct img_job *j = mem_calloc(1, sizeof *j);
    if (!j)
        return err_set(e, ERR_NOMEM, "no memory for a picture");
    j->m = m;
    j->c = m->pipe[0].c;
    j->h = p->height / m->pipe[0].factor;
    j->w = p->width / m->pipe[0].factor;
    j->n = (size_t)j->c * (size_t)j->h * (size_t)j->w;
    if (p->rng == IMG_RNG_PHILOX)
        j->rng.philox = (struct torch_philox){.seed = p->seed};
    else
        torch_mt_seed(&j->rng.mt, p->seed);
    if ((rc = job_copy(j, p, e)) || (rc = phases_open(j, e)) || (rc = job_memory(j, e))) {
        img_job_close(g, j);
        return rc;
    }
    *out = j;
    return 0;
}

void img_job_close(struct engine *g, struct img_job *j)
{
    (void)g;
    if (!j)
        return;
    for (int i = 0; i < IMG_PIPES; i++) {
        nsched_table_close(j->phase[i].table);
        nsched_state_close(&j->phase[i].state);
        img_cond_drop(j->phase[i].cond);
        img_cond_drop(j->phase[i].uncond);
    }
    void *all[] = {(void *)j->p.prompt,
                   (void *)j->p.negative,
                   (void *)j->p.init,
                   (void *)j->p.mask,
                   j->x,
                   j->x0,
                   j->in,
                   j->out[0],
                   j->out[1],
                   j->clean,
                   j->noise,
                   j->keep,
                   j->extra,
                   j->rgb};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(j);
}

enum img_stage img_job_stage(const struct img_job *j)
{
    return j->stage;
}

int img_job_step(const struct img_job *j)
{
    return j->done;
}

int img_job_steps(const struct img_job *j)
{
    int n = 0;
    for (int i = 0; i < j->n_phase; i++)
        n += j->phase[i].end - j->phase[i].first;
    return n;
}

int img_job_tokens(const struct img_job *j)
{
    return j->prompt_tokens;
}

int img_job_latent_tokens(const struct img_job *j)
{
    int p = j->m->pipe[0].patch;
    return (j->h / p) * (j->w / p);
}

int64_t img_job_rows(const struct img_job *j)
{
    const struct pipe *p = &j->m->pipe[0];
    bool two = !p->embedded_guidance && j->p.guidance > p->guidance_off;
    return (int64_t)img_job_latent_tokens(j) * (two ? 2 : 1);
}

const uint8_t *img_job_pixels(const struct img_job *j, int *width, int *height)
{
    *width = j->p.width;
    *height = j->p.height;
    return j->stage == IMG_DONE ? j->rgb : NULL;
}
