/* Tables. See schedule.h; sampler.c makes the steps. Arithmetic is in float where torch's is. */
#include "engine/image/schedule.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *cls;
    enum nsched_kind kind;
} classes[] = {
    {"DDIMScheduler", NSCHED_DDIM},
    {"PNDMScheduler", NSCHED_PNDM},
    {"EulerDiscreteScheduler", NSCHED_EULER},
    {"EulerAncestralDiscreteScheduler", NSCHED_EULER_A},
    {"DPMSolverMultistepScheduler", NSCHED_DPMPP_2M},
    {"LCMScheduler", NSCHED_LCM},
    {"FlowMatchEulerDiscreteScheduler", NSCHED_FLOW},
};

bool nsched_kind_by_class(const char *cls, enum nsched_kind *out)
{
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (!strcmp(classes[i].cls, cls)) {
            *out = classes[i].kind;
            return true;
        }
    return false;
}

void nsched_config_default(struct nsched_config *c, enum nsched_kind kind)
{
    *c = (struct nsched_config){
        .kind = kind,
        .n_train = 1000,
        .beta_start = 0.0001,
        .beta_end = 0.02,
        .spacing = kind == NSCHED_EULER || kind == NSCHED_EULER_A || kind == NSCHED_DPMPP_2M
                       ? SPACING_LINSPACE
                       : SPACING_LEADING,
        .alpha_to_one = kind == NSCHED_DDIM || kind == NSCHED_LCM,
        .lcm_original_steps = 50,
        .lcm_timestep_scaling = 10,
        .shift = 1,
        .base_shift = 0.5,
        .max_shift = 1.15,
        .base_len = 256,
        .max_len = 4096,
    };
}

/* Lin et al. 2024, algorithm 1: the last cumulative product becomes 0. */
static void zero_snr(float *alpha, int n)
{
    float first = sqrtf(alpha[0]), last = sqrtf(alpha[n - 1]);
    for (int i = 0; i < n; i++) {
        float s = (sqrtf(alpha[i]) - last) * (first / (first - last));
        alpha[i] = s * s;
    }
}

static int alphas_fill(struct nsched_table *t)
{
    const struct nsched_config *c = &t->c;
    t->alpha = mem_calloc((size_t)c->n_train, sizeof *t->alpha);
    if (!t->alpha)
        return ERR_NOMEM;
    double lo = c->scaled_linear ? sqrt(c->beta_start) : c->beta_start;
    double hi = c->scaled_linear ? sqrt(c->beta_end) : c->beta_end,
           step = (hi - lo) / (c->n_train - 1);
    double prod = 1; /* torch accumulates in double */
    for (int i = 0; i < c->n_train; i++) {
        /* torch.linspace in float: from both ends to the middle */
        float b =
            i < c->n_train / 2 ? (float)(lo + step * i) : (float)(hi - step * (c->n_train - 1 - i));
        b = c->scaled_linear ? b * b : b;
        prod *= (double)(1 - b);
        t->alpha[i] = (float)prod;
    }
    if (c->zero_snr)
        zero_snr(t->alpha, c->n_train);
    if (c->zero_snr &&
        (c->kind == NSCHED_EULER || c->kind == NSCHED_EULER_A || c->kind == NSCHED_DPMPP_2M))
        t->alpha[c->n_train - 1] = 0x1p-24f; /* sigma stays finite */
    t->final_alpha = c->alpha_to_one ? 1 : t->alpha[0];
    return 0;
}

static double sigma_of(const struct nsched_table *t, int i)
{
    return (double)sqrtf((1 - t->alpha[i]) / t->alpha[i]);
}

/* Between the training sigmas, linearly in the timestep. */
static double sigma_at(const struct nsched_table *t, double at)
{
    int i = (int)floor(at), last = t->c.n_train - 1;
    if (i >= last)
        return sigma_of(t, last);
    return sigma_of(t, i) + (at - i) * (sigma_of(t, i + 1) - sigma_of(t, i));
}

static double log_sigma_of(const struct nsched_table *t, int i)
{
    return (double)logf((float)sigma_of(t, i));
}

/* The timestep whose sigma it is, linearly in log sigma. */
static double timestep_of(const struct nsched_table *t, double sigma)
{
    double log_s = log(fmax(sigma, 1e-10));
    int lo = 0, last = t->c.n_train - 1;
    while (lo < last - 1 && log_sigma_of(t, lo + 1) <= log_s)
        lo++;
    double a = log_sigma_of(t, lo), b = log_sigma_of(t, lo + 1),
           w = (a - log_s) / (double)((float)a - (float)b);
    w = w < 0 ? 0 : w > 1 ? 1 : w;
    return (1 - w) * lo + w * (lo + 1);
}

/* Timesteps of the spacing, first step first; n of them. */
static void spaced(const struct nsched_table *t, int n, float *dst)
{
    const struct nsched_config *c = &t->c;
    int extra = c->kind == NSCHED_DPMPP_2M; /* divides by one more and drops the end */
    bool whole = c->kind != NSCHED_EULER && c->kind != NSCHED_EULER_A;
    for (int i = 0; i < n; i++) {
        double v;
        if (c->spacing == SPACING_LINSPACE) {
            int m = n + extra;
            v = m > 1 ? (double)(c->n_train - 1) * (m - 1 - i) / (m - 1) : 0;
            v = whole ? nearbyint(v) : (double)(float)v;
        } else if (c->spacing == SPACING_LEADING) {
            v = (double)(c->n_train / (n + extra)) * (n - 1 + extra - i) + c->steps_offset;
        } else {
            v = nearbyint(c->n_train - (double)c->n_train / n * i) - 1;
        }
        dst[i] = (float)v;
    }
}

/* Between the ends of the plain table (Euler) or of all training sigmas (DPM-Solver++), as diffusers has it. */
static void karras(struct nsched_table *t)
{
    bool all = t->c.kind == NSCHED_DPMPP_2M;
    double lo = all ? sigma_of(t, 0) : (double)t->sigma[t->n - 1], rho = 7;
    double hi = all ? sigma_of(t, t->c.n_train - 1) : (double)t->sigma[0];
    double a = pow(lo, 1 / rho), b = pow(hi, 1 / rho);
    for (int i = 0; i < t->n; i++) {
        double ramp = t->n > 1 ? (double)i / (t->n - 1) : 0;
        double s = pow(b + ramp * (a - b), rho), at = timestep_of(t, s);
        t->sigma[i] = (float)s;
        t->timestep[i] = (float)(t->c.kind == NSCHED_DPMPP_2M ? nearbyint(at) : at);
    }
}

static void sigmas_fill(struct nsched_table *t)
{
    const struct nsched_config *c = &t->c;
    spaced(t, t->n, t->timestep);
    for (int i = 0; i < t->n; i++)
        t->sigma[i] = (float)sigma_at(t, (double)t->timestep[i]);
    if (c->karras)
        karras(t);
    t->sigma[t->n] = 0;
    if (c->kind == NSCHED_DPMPP_2M)
        return;
    float max = t->sigma[0];
    t->init_sigma = c->spacing == SPACING_LEADING ? sqrtf(max * max + 1) : max;
}

/* skip_prk_steps: the second timestep is visited twice. */
static void pndm_fill(struct nsched_table *t)
{
    spaced(t, t->steps, t->timestep);
    if (t->steps > 1) {
        memmove(t->timestep + 2, t->timestep + 1, (size_t)(t->steps - 1) * sizeof *t->timestep);
        t->timestep[1] = t->timestep[2];
    } else {
        t->timestep[1] = t->timestep[0];
    }
}

static int lcm_fill(struct nsched_table *t, struct err *e)
{
    const struct nsched_config *c = &t->c;
    int orig = c->lcm_original_steps, k = c->n_train / orig;
    if (t->n > orig)
        return err_set(e, ERR_INVAL, "steps: %d, but this LCM schedule was trained with %d", t->n,
                       orig);
    for (int i = 0; i < t->n; i++) {
        /* np.linspace(0, orig, n, endpoint = false), floored, from the end */
        int at = (int)floor((double)orig / t->n * i);
        t->timestep[i] = (float)((orig - at) * k - 1);
    }
    return 0;
}

/* numpy's float64 until the table is stored. */
static void flow_fill(struct nsched_table *t, int n_token)
{
    const struct nsched_config *c = &t->c;
    double hi = 1, lo = 1.0 / t->n, mu = 0;
    if (c->dynamic_shift) {
        double m = (c->max_shift - c->base_shift) / (c->max_len - c->base_len);
        mu = n_token * m + c->base_shift - m * c->base_len;
    } else if (!c->sigmas_given) { /* between the ends of the shifted training sigmas */
        double s = 1.0 / c->n_train;
        lo = (double)(float)(c->shift * s / (1 + (c->shift - 1) * s));
    }
    for (int i = 0; i < t->n; i++) {
        double s = t->n > 1 ? hi + (lo - hi) * i / (t->n - 1) : hi;
        if (c->dynamic_shift) {
            s = (double)(float)s;
            s = c->dynamic_linear ? mu / (mu + (1 / s - 1)) : exp(mu) / (exp(mu) + (1 / s - 1));
        } else {
            s = c->shift * s / (1 + (c->shift - 1) * s);
        }
        t->sigma[i] = (float)s;
    }
    if (c->shift_terminal > 0 && t->n > 0) {
        float scale = (1 - t->sigma[t->n - 1]) / (float)(1 - c->shift_terminal);
        for (int i = 0; i < t->n && scale > 0; i++)
            t->sigma[i] = 1 - (1 - t->sigma[i]) / scale;
    }
    t->sigma[t->n] = 0;
    for (int i = 0; i < t->n; i++)
        t->timestep[i] = t->sigma[i] * (float)c->n_train;
}

int nsched_config_check(const struct nsched_config *c, struct err *e)
{
    if (c->n_train < 2 || c->n_train > 100000)
        return err_set(e, ERR_INVAL, "scheduler configuration: num_train_timesteps is %d",
                       c->n_train);
    bool flow = c->kind == NSCHED_FLOW;
    if (flow && (!(c->shift > 0) || c->max_len <= c->base_len))
        return err_set(e, ERR_INVAL,
                       "scheduler configuration: shift is %g, base_image_seq_len %d, "
                       "max_image_seq_len %d: out of range",
                       c->shift, c->base_len, c->max_len);
    if (!flow && (!(c->beta_start > 0) || !(c->beta_end > c->beta_start) || c->beta_end >= 1))
        return err_set(e, ERR_INVAL,
                       "scheduler configuration: beta_start is %g, beta_end %g: out of range",
                       c->beta_start, c->beta_end);
    if (c->kind == NSCHED_LCM && (c->lcm_original_steps < 1 || c->lcm_original_steps > c->n_train))
        return err_set(e, ERR_INVAL, "original_inference_steps: %d", c->lcm_original_steps);
    return 0;
}

static int steps_check(const struct nsched_config *c, int steps, struct err *e)
{
    if (steps < 1 || steps > NSCHED_STEPS_MAX || steps > c->n_train)
        return err_set(e, ERR_INVAL, "steps: %d is not in 1..%d", steps,
                       c->n_train < NSCHED_STEPS_MAX ? c->n_train : NSCHED_STEPS_MAX);
    return nsched_config_check(c, e);
}

static int table_fill(struct nsched_table *t, int n_token, struct err *e)
{
    t->timestep = mem_calloc((size_t)t->n, sizeof *t->timestep);
    t->sigma = mem_calloc((size_t)t->n + 1, sizeof *t->sigma);
    if (!t->timestep || !t->sigma || (t->c.kind != NSCHED_FLOW && alphas_fill(t)))
        return err_set(e, ERR_NOMEM, "no memory for a schedule of %d steps", t->steps);
    t->init_sigma = 1;
    switch (t->c.kind) {
    case NSCHED_DDIM:
        spaced(t, t->n, t->timestep);
        break;
    case NSCHED_PNDM:
        pndm_fill(t);
        break;
    case NSCHED_LCM:
        return lcm_fill(t, e);
    case NSCHED_FLOW:
        flow_fill(t, n_token);
        break;
    default:
        sigmas_fill(t);
    }
    return 0;
}

int nsched_table_open(struct nsched_table **out, const struct nsched_config *c, int steps,
                      int n_token, struct err *e)
{
    int rc = steps_check(c, steps, e);
    if (rc)
        return rc;
    struct nsched_table *t = mem_calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for a schedule");
    t->c = *c;
    t->steps = steps;
    t->n = steps + (c->kind == NSCHED_PNDM);
    rc = table_fill(t, n_token, e);
    if (rc) {
        nsched_table_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void nsched_table_close(struct nsched_table *t)
{
    if (!t)
        return;
    free(t->timestep);
    free(t->sigma);
    free(t->alpha);
    free(t);
}
