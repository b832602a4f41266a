/* Steps of the samplers over a table. See schedule.h. Coefficients are float, as torch's scalars are. */
#include "engine/image/schedule.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int nsched_state_open(struct nsched_state *s, size_t n_value, int first)
{
    *s = (struct nsched_state){.first = first, .n_value = n_value};
    for (int i = 0; i < 4; i++)
        if (!(s->old[i] = mem_calloc(n_value, sizeof *s->old[i]))) {
            nsched_state_close(s);
            return ERR_NOMEM;
        }
    return 0;
}

void nsched_state_close(struct nsched_state *s)
{
    for (int i = 0; i < 4; i++)
        free(s->old[i]);
    *s = (struct nsched_state){0};
}

float nsched_input_scale(const struct nsched_table *t, int i)
{
    if (t->c.kind != NSCHED_EULER && t->c.kind != NSCHED_EULER_A)
        return 1;
    float s = t->sigma[i];
    return 1 / sqrtf(s * s + 1);
}

bool nsched_wants_noise(const struct nsched_table *t, int i)
{
    if (t->c.kind == NSCHED_EULER_A)
        return true; /* the last draw is scaled by 0, but drawn all the same */
    return t->c.kind == NSCHED_LCM && i < t->n - 1;
}

/* out becomes the newest remembered value; returns where it now lies. */
static float *remember(struct nsched_state *s, const float *v)
{
    float *last = s->old[3];
    memmove(s->old + 1, s->old, 3 * sizeof *s->old);
    s->old[0] = last;
    memcpy(last, v, s->n_value * sizeof *v);
    s->order += s->order < 4;
    return last;
}

static float alpha_at(const struct nsched_table *t, int timestep)
{
    return timestep >= 0 ? t->alpha[timestep] : t->final_alpha;
}

/* Clean latents and noise that an output means, at cumulative product a. */
static void predict(const struct nsched_table *t, float a, float x, float out, float *x0,
                    float *eps)
{
    float sa = sqrtf(a), sb = sqrtf(1 - a);
    switch (t->c.prediction) {
    case PREDICT_EPSILON:
        *x0 = (x - sb * out) / sa;
        *eps = out;
        break;
    case PREDICT_V:
        *x0 = sa * x - sb * out;
        *eps = sa * out + sb * x;
        break;
    default:
        *x0 = out;
        *eps = (x - sa * out) / sb;
    }
}

static void step_ddim(const struct nsched_table *t, struct nsched_state *s, int i, float *x,
                      const float *out)
{
    int at = (int)t->timestep[i];
    float a = t->alpha[at], prev = alpha_at(t, at - t->c.n_train / t->steps), x0, eps;
    float sp = sqrtf(prev), dir = sqrtf(1 - prev);
    for (size_t k = 0; k < s->n_value; k++) {
        predict(t, a, x[k], out[k], &x0, &eps);
        x[k] = sp * x0 + dir * eps;
    }
}

/* Linear multistep weights of the remembered outputs, newest first. */
static const float plms[4][4] = {{1, 0, 0, 0},
                                 {1.5f, -0.5f, 0, 0},
                                 {23.f / 12, -16.f / 12, 5.f / 12, 0},
                                 {55.f / 24, -59.f / 24, 37.f / 24, -9.f / 24}};

/* The second call repeats the first step with the mean of both outputs, from the latents that the first call saw; they
 * are kept in the slot that is not yet used. */
static void step_pndm(const struct nsched_table *t, struct nsched_state *s, int i, float *x,
                      float *out)
{
    int count = i - s->first, ratio = t->c.n_train / t->steps;
    int at = (int)t->timestep[i], prev = at - ratio;
    size_t n = s->n_value;
    if (count == 1) {
        prev = at;
        at += ratio;
        for (size_t k = 0; k < n; k++)
            out[k] = (out[k] + s->old[0][k]) / 2;
        memcpy(x, s->old[1], n * sizeof *x);
    } else {
        if (count == 0)
            memcpy(s->old[0], x, n * sizeof *x); /* moves to old[1] below */
        remember(s, out);
        const float *w = plms[s->order - 1];
        for (size_t k = 0; k < n; k++) {
            float v = w[0] * s->old[0][k];
            for (int j = 1; j < s->order; j++)
                v += w[j] * s->old[j][k];
            out[k] = v;
        }
    }
    at = at < t->c.n_train ? at : t->c.n_train - 1;
    float a = t->alpha[at], ap = alpha_at(t, prev), b = 1 - a, bp = 1 - ap;
    float cx = sqrtf(ap / a), den = a * sqrtf(bp) + sqrtf(a * b * ap), sa = sqrtf(a), sb = sqrtf(b);
    for (size_t k = 0; k < n; k++) {
        float e = t->c.prediction == PREDICT_V ? sa * out[k] + sb * x[k] : out[k];
        x[k] = cx * x[k] - (ap - a) * e / den;
    }
}

static void step_euler(const struct nsched_table *t, struct nsched_state *s, int i, float *x,
                       const float *out, const float *noise)
{
    float from = t->sigma[i], to = t->sigma[i + 1], up = 0, down = to;
    if (t->c.kind == NSCHED_EULER_A) {
        up = sqrtf(to * to * (from * from - to * to) / (from * from));
        down = sqrtf(to * to - up * up);
    }
    for (size_t k = 0; k < s->n_value; k++) {
        float x0 = out[k];
        if (t->c.prediction == PREDICT_EPSILON)
            x0 = x[k] - from * out[k];
        else if (t->c.prediction == PREDICT_V)
            x0 = out[k] * (-from / sqrtf(from * from + 1)) + x[k] / (from * from + 1);
        x[k] += (x[k] - x0) / from * (down - from);
        if (up > 0 && noise)
            x[k] += noise[k] * up;
    }
}

struct lambda {
    float alpha, sigma, lambda;
};
static struct lambda lambda_of(float s)
{
    float a = 1 / sqrtf(s * s + 1);
    return (struct lambda){a, s * a, logf(a) - logf(s * a)};
}

/* DPM-Solver++ of second order by midpoint; first order at both ends. */
static void step_dpmpp(const struct nsched_table *t, struct nsched_state *s, int i, float *x,
                       float *out)
{
    struct lambda from = lambda_of(t->sigma[i]), to = lambda_of(t->sigma[i + 1]);
    for (size_t k = 0; k < s->n_value; k++) {
        if (t->c.prediction == PREDICT_EPSILON)
            out[k] = (x[k] - from.sigma * out[k]) / from.alpha;
        else if (t->c.prediction == PREDICT_V)
            out[k] = from.alpha * x[k] - from.sigma * out[k];
    }
    const float *m0 = remember(s, out), *m1 = s->old[1];
    float h = to.lambda - from.lambda, e = expf(-h) - 1, ratio = to.sigma / from.sigma, r0 = 0;
    bool second = s->order > 1 && i < t->n - 1;
    if (second)
        r0 = (from.lambda - lambda_of(t->sigma[i - 1]).lambda) / h;
    for (size_t k = 0; k < s->n_value; k++) {
        float v = ratio * x[k] - to.alpha * e * m0[k];
        if (second)
            v -= 0.5f * (to.alpha * e) * ((1 / r0) * (m0[k] - m1[k]));
        x[k] = v;
    }
}

static void step_lcm(const struct nsched_table *t, struct nsched_state *s, int i, float *x,
                     const float *out, const float *noise)
{
    int at = (int)t->timestep[i], last = i == t->n - 1, prev = last ? at : (int)t->timestep[i + 1];
    double scaled = at * t->c.lcm_timestep_scaling, d = scaled * scaled + 0.25;
    float skip = (float)(0.25 / d), c_out = (float)(scaled / sqrt(d)), x0, eps;
    float a = t->alpha[at], ap = alpha_at(t, prev), sp = sqrtf(ap), sn = sqrtf(1 - ap);
    for (size_t k = 0; k < s->n_value; k++) {
        predict(t, a, x[k], out[k], &x0, &eps);
        float v = c_out * x0 + skip * x[k];
        x[k] = last || !noise ? v : sp * v + sn * noise[k];
    }
}

void nsched_step(const struct nsched_table *t, struct nsched_state *s, int i, float *x, float *out,
                 const float *noise)
{
    switch (t->c.kind) {
    case NSCHED_DDIM:
        step_ddim(t, s, i, x, out);
        break;
    case NSCHED_PNDM:
        step_pndm(t, s, i, x, out);
        break;
    case NSCHED_EULER:
    case NSCHED_EULER_A:
        step_euler(t, s, i, x, out, noise);
        break;
    case NSCHED_DPMPP_2M:
        step_dpmpp(t, s, i, x, out);
        break;
    case NSCHED_LCM:
        step_lcm(t, s, i, x, out, noise);
        break;
    case NSCHED_FLOW:
        for (size_t k = 0; k < s->n_value; k++)
            x[k] += (t->sigma[i + 1] - t->sigma[i]) * out[k];
    }
}

void nsched_add_noise(const struct nsched_table *t, int i, const float *clean, const float *noise,
                      float *x, size_t n)
{
    float cx = 1, cn = 0;
    if (i < t->n) {
        switch (t->c.kind) {
        case NSCHED_FLOW:
            cn = t->sigma[i], cx = 1 - cn;
            break;
        case NSCHED_EULER:
        case NSCHED_EULER_A:
            cn = t->sigma[i];
            break;
        case NSCHED_DPMPP_2M:
            cx = lambda_of(t->sigma[i]).alpha, cn = lambda_of(t->sigma[i]).sigma;
            break;
        default:
            cx = sqrtf(t->alpha[(int)t->timestep[i]]),
            cn = sqrtf(1 - t->alpha[(int)t->timestep[i]]);
        }
    }
    for (size_t k = 0; k < n; k++)
        x[k] = cx * clean[k] + cn * noise[k];
}

void nsched_x0(const struct nsched_table *t, int i, const float *x, const float *out, float *x0,
               size_t n)
{
    enum nsched_kind kind = t->c.kind;
    float eps;
    for (size_t k = 0; k < n; k++) {
        if (kind == NSCHED_FLOW) {
            x0[k] = x[k] - t->sigma[i] * out[k];
        } else if (kind == NSCHED_EULER || kind == NSCHED_EULER_A || kind == NSCHED_DPMPP_2M) {
            /* DPM-Solver's latents are already scaled by alpha; Euler's are not. */
            struct lambda l = lambda_of(t->sigma[i]);
            float v = kind == NSCHED_DPMPP_2M ? x[k] : x[k] * l.alpha;
            predict(t, l.alpha * l.alpha, v, out[k], &x0[k], &eps);
        } else {
            predict(t, t->alpha[(int)t->timestep[i]], x[k], out[k], &x0[k], &eps);
        }
    }
}
