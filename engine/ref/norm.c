/* Reference: RMS and layer norm, gated activation, gather, scale. */
#include "engine/ref/ref_impl.h"

#include <math.h>

static void norm_row(const struct op_rmsnorm *a, const float *x, float *dst, const float *w,
                     const float *b)
{
    int64_t n = a->x.shape[1];
    double mean = 0, sum = 0;
    for (int64_t k = 0; a->center && k < n; k++)
        mean += (double)x[k];
    mean /= (double)n;
    for (int64_t k = 0; k < n; k++)
        sum += ((double)x[k] - mean) * ((double)x[k] - mean);
    double inv = 1 / sqrt(sum / (double)n + (double)a->eps);
    for (int64_t k = 0; k < n; k++)
        dst[k] =
            (float)(((double)x[k] - mean) * inv * (double)(w ? w[k] : 1) + (double)(b ? b[k] : 0));
}

int ref__rmsnorm(struct dev *d, const struct op_rmsnorm *a)
{
    if (ops_check_rmsnorm(a, DT_F32))
        return ERR_INVAL;
    float *x = ref__ptr(d, &a->x);
    const float *add = a->add.buf ? ref__ptr(d, &a->add) : NULL;
    float *dst = a->dst.buf ? ref__ptr(d, &a->dst) : NULL;
    const float *w = a->w.buf ? ref__ptr(d, &a->w) : NULL;
    const float *b = a->b.buf ? ref__ptr(d, &a->b) : NULL;
    if (!x || (a->add.buf && !add) || (a->dst.buf && !dst) || (a->w.buf && !w) || (a->b.buf && !b))
        return ERR_INVAL;
    int64_t n = a->x.shape[1];
    for (int64_t i = 0; i < a->x.shape[0]; i++) {
        float *r = x + i * a->x.stride[0];
        for (int64_t k = 0; add && k < n; k++)
            r[k] += add[i * a->add.stride[0] + k];
        if (dst)
            norm_row(a, r, dst + i * a->dst.stride[0], w, b);
    }
    return 0;
}

static double act(double x, enum act_kind kind)
{
    switch (kind) {
    case ACT_SILU:
        return x / (1 + exp(-x));
    case ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_RELU2:
        return x > 0 ? x * x : 0;
    default:
        return 0.5 * x * erfc(-x * M_SQRT1_2);
    }
}

/* What the row's gate and up (1 without one) make. */
static double gated(const struct op_act_mul *a, double gate, double up)
{
    if (a->act != ACT_SWIGLU_OAI)
        return act(gate, a->act) * up;
    double limit = (double)a->limit;
    gate = fmin(gate, limit);
    up = fmin(fmax(up, -limit), limit);
    return (up + 1) * gate / (1 + exp(-1.702 * gate));
}

int ref__act_mul(struct dev *d, const struct op_act_mul *a)
{
    if (ops_check_act_mul(a, DT_F32))
        return ERR_INVAL;
    float *dst = ref__ptr(d, &a->dst);
    const float *g = ref__ptr(d, &a->gate_up);
    if (!dst || !g)
        return ERR_INVAL;
    int64_t n = a->dst.shape[1];
    for (int64_t i = 0; i < a->dst.shape[0]; i++)
        for (int64_t k = 0; k < n; k++) {
            const float *r = g + i * a->gate_up.stride[0];
            dst[i * a->dst.stride[0] + k] =
                (float)gated(a, (double)r[k], a->single ? 1 : (double)r[n + k]);
        }
    return 0;
}

int ref__gather(struct dev *d, const struct op_gather *a)
{
    if (!d->in_step || ops_check_gather(a, DT_F32, &d->meta))
        return ERR_INVAL;
    float *dst = ref__ptr(d, &a->dst);
    const float *src = ref__ptr(d, &a->src);
    if (!dst || !src)
        return ERR_INVAL;
    for (int i = 0; i < d->meta.n_logit; i++)
        for (int64_t k = 0; k < a->dst.shape[1]; k++)
            dst[i * a->dst.stride[0] + k] = src[d->meta.logit_row[i] * a->src.stride[0] + k];
    return 0;
}

int ref__scale(struct dev *d, const struct op_scale *a)
{
    if (ops_check_scale(a, d->in_step ? &d->meta : NULL))
        return ERR_INVAL;
    float *x = ref__ptr(d, &a->x);
    if (!x)
        return ERR_INVAL;
    for (int64_t i = 0; i < a->x.shape[0]; i++) {
        double by = (double)ops_scale_of(a, &d->meta, i);
        for (int64_t k = 0; k < a->x.shape[1]; k++) {
            float *p = x + i * a->x.stride[0] + k;
            double v = (double)*p, cap = (double)a->softcap, clip = (double)a->clip;
            if (clip > 0)
                v = fmin(fmax(v, -clip), clip);
            if (cap > 0)
                v = cap * tanh(v / cap);
            *p = (float)(v * by);
        }
    }
    return 0;
}
