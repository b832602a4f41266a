/* Reference: the image ops, plain loops, double accumulation. */
#include "engine/ref/ref_impl.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int ref__image_begin(struct dev *d, const struct image_meta *m)
{
    if (ops_check_image(m))
        return ERR_INVAL;
    d->image = *m;
    return 0;
}

/* The tensor's first element, or NULL without an error when it has no buffer. */
static float *opt_ptr(const struct dev *d, const struct tensor *t, bool *bad)
{
    float *p = t->buf ? ref__ptr(d, t) : NULL;
    *bad = *bad || (t->buf && !p);
    return p;
}

static int seg_of(const struct image_layout *y, int64_t row)
{
    int s = 0;
    while (row >= y->start[s + 1])
        s++;
    return s;
}

static double image_act(double x, enum image_act a)
{
    switch (a) {
    case IMAGE_ACT_SILU:
        return x / (1 + exp(-x));
    case IMAGE_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case IMAGE_ACT_GELU_ERF:
        return 0.5 * x * erfc(-x * M_SQRT1_2);
    case IMAGE_ACT_QUICK_GELU:
        return x / (1 + exp(-1.702 * x));
    case IMAGE_ACT_RELU:
        return x > 0 ? x : 0;
    default:
        return x;
    }
}

/* One output pixel and channel; w is the channel's row. at = {segment, y, x}. */
static double conv_at(const struct op_conv *a, const struct dev *d, const float *src,
                      const float *w, const int at[3])
{
    const struct image_layout *in = &d->image.layout[a->in];
    const struct image_layout *size = a->up ? &d->image.layout[a->out] : in;
    int up = a->up ? 2 : 1, h = size->h[at[0]], wd = size->w[at[0]];
    int64_t c = a->src.shape[1];
    double sum = 0;
    for (int ky = 0; ky < a->k; ky++)
        for (int kx = 0; kx < a->k; kx++) {
            int y = at[1] * a->stride + ky - a->pad, x = at[2] * a->stride + kx - a->pad;
            if (y < 0 || x < 0 || y >= h || x >= wd)
                continue;
            const float *p = src + (in->start[at[0]] + (int64_t)(y / up) * in->w[at[0]] + x / up) *
                                       a->src.stride[0];
            for (int64_t i = 0; i < c; i++)
                sum += (double)p[i] * (double)w[(ky * a->k + kx) * c + i];
        }
    return sum;
}

int ref__conv(struct dev *d, const struct op_conv *a)
{
    if (!a->w || ops_check_conv(a, DT_F32, &d->image, a->w->desc.n_in, a->w->n_out))
        return ERR_INVAL;
    bool bad = false;
    float *dst = opt_ptr(d, &a->dst, &bad);
    const float *src = opt_ptr(d, &a->src, &bad), *bias = opt_ptr(d, &a->bias, &bad);
    const float *vec = opt_ptr(d, &a->vec, &bad), *add = opt_ptr(d, &a->add, &bad);
    const struct image_layout *out = &d->image.layout[a->out];
    if (bad)
        return ERR_INVAL;
    for (int64_t o = 0; o < a->w->n_out; o++) {
        const float *w = ref__weight_row(a->w, o);
        for (int s = 0; s < out->n_seg; s++)
            for (int r = 0; r < out->h[s] * out->w[s]; r++) {
                int64_t row = out->start[s] + r;
                double v = conv_at(a, d, src, w, (int[3]){s, r / out->w[s], r % out->w[s]});
                v += (bias ? (double)bias[o] : 0) +
                     (vec ? (double)vec[s * a->vec.stride[0] + o] : 0);
                dst[row * a->dst.stride[0] + o] =
                    (float)(v + (add ? (double)add[row * a->add.stride[0] + o] : 0));
            }
    }
    return 0;
}

int ref__group_norm(struct dev *d, const struct op_group_norm *a)
{
    if (ops_check_group_norm(a, DT_F32, &d->image))
        return ERR_INVAL;
    bool bad = false;
    float *dst = opt_ptr(d, &a->dst, &bad);
    const float *x = opt_ptr(d, &a->x, &bad), *w = opt_ptr(d, &a->w, &bad),
                *b = opt_ptr(d, &a->b, &bad);
    const struct image_layout *y = &d->image.layout[a->layout];
    int64_t per = a->x.shape[1] / a->groups;
    if (bad)
        return ERR_INVAL;
    for (int s = 0; s < y->n_seg; s++)
        for (int64_t g = 0; g < a->groups; g++) {
            double sum = 0, sq = 0, n = (double)per * (y->start[s + 1] - y->start[s]);
            for (int64_t i = y->start[s]; i < y->start[s + 1]; i++)
                for (int64_t k = g * per; k < (g + 1) * per; k++)
                    sum += (double)x[i * a->x.stride[0] + k];
            double mean = sum / n;
            for (int64_t i = y->start[s]; i < y->start[s + 1]; i++)
                for (int64_t k = g * per; k < (g + 1) * per; k++)
                    sq += pow((double)x[i * a->x.stride[0] + k] - mean, 2);
            double inv = 1 / sqrt(sq / n + (double)a->eps);
            for (int64_t i = y->start[s]; i < y->start[s + 1]; i++)
                for (int64_t k = g * per; k < (g + 1) * per; k++) {
                    double v = ((double)x[i * a->x.stride[0] + k] - mean) * inv * (double)w[k] +
                               (double)b[k];
                    dst[i * a->dst.stride[0] + k] = (float)image_act(v, a->act);
                }
        }
    return 0;
}

int ref__layer_norm(struct dev *d, const struct op_layer_norm *a)
{
    if (ops_check_layer_norm(a, DT_F32, &d->image))
        return ERR_INVAL;
    bool bad = false;
    float *dst = opt_ptr(d, &a->dst, &bad);
    const float *x = opt_ptr(d, &a->x, &bad), *w = opt_ptr(d, &a->w, &bad),
                *b = opt_ptr(d, &a->b, &bad);
    const float *scale = opt_ptr(d, &a->scale, &bad), *shift = opt_ptr(d, &a->shift, &bad);
    int64_t n = a->x.shape[1];
    if (bad)
        return ERR_INVAL;
    for (int64_t i = 0; i < a->x.shape[0]; i++) {
        const float *r = x + i * a->x.stride[0];
        int64_t s = scale || shift ? seg_of(&d->image.layout[a->layout], i) : 0;
        double sum = 0, sq = 0;
        for (int64_t k = 0; k < n; k++)
            sum += (double)r[k];
        double mean = a->rms ? 0 : sum / (double)n;
        for (int64_t k = 0; k < n; k++)
            sq += ((double)r[k] - mean) * ((double)r[k] - mean);
        double inv = 1 / sqrt(sq / (double)n + (double)a->eps);
        for (int64_t k = 0; k < n; k++) {
            double v =
                ((double)r[k] - mean) * inv * (w ? (double)w[k] : 1) + (b ? (double)b[k] : 0);
            v *= scale ? 1 + (double)scale[s * a->scale.stride[0] + k] : 1;
            dst[i * a->dst.stride[0] + k] =
                (float)(v + (shift ? (double)shift[s * a->shift.stride[0] + k] : 0));
        }
    }
    return 0;
}

struct attend_row {
    const float *q, *k, *v, *bias; /* of this row and head */
    float *dst;
    int64_t first, n; /* keys seen: [first, n) */
};

static void attend_row(const struct op_attend *a, const struct attend_row *r, double *p)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = r->first; j < r->n; j++) {
        p[j] = 0;
        for (int i = 0; i < a->head_dim; i++)
            p[j] += (double)r->q[i] * (double)r->k[j * a->k.stride[0] + i];
        p[j] = p[j] * (double)a->scale + (r->bias ? (double)r->bias[j] : 0);
        max = p[j] > max ? p[j] : max;
    }
    for (int64_t j = r->first; j < r->n; j++)
        sum += p[j] = exp(p[j] - max);
    for (int i = 0; i < a->head_dim; i++) {
        double acc = 0;
        for (int64_t j = r->first; j < r->n; j++)
            acc += p[j] * (double)r->v[j * a->v.stride[0] + i];
        r->dst[i] = (float)(acc / sum);
    }
}

int ref__attend(struct dev *d, const struct op_attend *a)
{
    if (ops_check_attend(a, DT_F32, &d->image))
        return ERR_INVAL;
    bool bad = false;
    float *dst = opt_ptr(d, &a->dst, &bad);
    const float *q = opt_ptr(d, &a->q, &bad), *k = opt_ptr(d, &a->k, &bad),
                *v = opt_ptr(d, &a->v, &bad);
    const float *bias = opt_ptr(d, &a->bias, &bad);
    const struct image_layout *ql = &d->image.layout[a->q_layout],
                              *kl = &d->image.layout[a->kv_layout];
    double *p = bad ? NULL : mem_calloc((size_t)kl->start[kl->n_seg] + 1, sizeof *p);
    if (!p)
        return bad ? ERR_INVAL : ERR_NOMEM;
    for (int s = 0; s < ql->n_seg; s++)
        for (int64_t i = ql->start[s]; i < ql->start[s + 1]; i++)
            for (int h = 0; h < a->n_head; h++) {
                int64_t at = i - ql->start[s], hk = h / (a->n_head / a->n_kv_head) * a->head_dim;
                struct attend_row r = {
                    .q = q + i * a->q.stride[0] + h * a->head_dim,
                    .k = k + kl->start[s] * a->k.stride[0] + hk,
                    .v = v + kl->start[s] * a->v.stride[0] + hk,
                    .bias = bias ? bias + h * a->bias.stride[0] + at * a->bias_cols : NULL,
                    .dst = dst + i * a->dst.stride[0] + h * a->head_dim,
                    .n = a->causal ? at + 1 : kl->start[s + 1] - kl->start[s],
                };
                if (a->window > 0) {
                    r.first = at > a->window ? at - a->window : 0;
                    r.n = at + a->window + 1 < r.n ? at + a->window + 1 : r.n;
                }
                attend_row(a, &r, p);
            }
    free(p);
    return 0;
}

static void rotate_head(const struct op_rotate *a, float *x, const float *norm, const float *c,
                        const float *s)
{
    double sum = 0;
    int n = a->head_dim, half = n / 2;
    for (int i = 0; norm && i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double inv = 1 / sqrt(sum / n + (double)a->eps);
    for (int i = 0; norm && i < n; i++)
        x[i] = (float)((double)x[i] * inv * (double)norm[i]);
    for (int i = 0; c && i < half; i++) {
        float *p = a->style == ROPE_NORM ? x + 2 * i : x + i;
        float *q = a->style == ROPE_NORM ? x + 2 * i + 1 : x + half + i;
        double u = (double)*p, v = (double)*q;
        *p = (float)(u * (double)c[i] - v * (double)s[i]);
        *q = (float)(u * (double)s[i] + v * (double)c[i]);
    }
}

int ref__rotate(struct dev *d, const struct op_rotate *a)
{
    if (ops_check_rotate(a))
        return ERR_INVAL;
    bool bad = false;
    float *x = opt_ptr(d, &a->x, &bad);
    const float *norm = opt_ptr(d, &a->norm, &bad), *c = opt_ptr(d, &a->cos, &bad),
                *s = opt_ptr(d, &a->sin, &bad);
    if (bad)
        return ERR_INVAL;
    for (int64_t i = 0; i < a->x.shape[0]; i++)
        for (int h = 0; h < a->n_head; h++)
            rotate_head(a, x + i * a->x.stride[0] + h * a->head_dim, norm,
                        c ? c + i * a->cos.stride[0] : NULL, s ? s + i * a->sin.stride[0] : NULL);
    return 0;
}

int ref__act(struct dev *d, const struct op_act *a)
{
    bool bad = false;
    float *dst = opt_ptr(d, &a->dst, &bad);
    const float *x = opt_ptr(d, &a->x, &bad);
    if (bad || ops_check_act(a, DT_F32))
        return ERR_INVAL;
    for (int64_t i = 0; i < a->x.shape[0]; i++)
        for (int64_t k = 0; k < a->x.shape[1]; k++)
            dst[i * a->dst.stride[0] + k] =
                (float)image_act((double)x[i * a->x.stride[0] + k], a->act);
    return 0;
}

int ref__gate_add(struct dev *d, const struct op_gate_add *a)
{
    if (ops_check_gate_add(a, &d->image))
        return ERR_INVAL;
    bool bad = false;
    float *x = opt_ptr(d, &a->x, &bad);
    const float *y = opt_ptr(d, &a->y, &bad), *gate = opt_ptr(d, &a->gate, &bad);
    if (bad)
        return ERR_INVAL;
    for (int64_t i = 0; i < a->x.shape[0]; i++) {
        int64_t s = gate ? seg_of(&d->image.layout[a->layout], i) : 0;
        for (int64_t k = 0; k < a->x.shape[1]; k++)
            x[i * a->x.stride[0] + k] += a->factor * (gate ? gate[s * a->gate.stride[0] + k] : 1) *
                                         y[i * a->y.stride[0] + k];
    }
    return 0;
}

int ref__lookup(struct dev *d, const struct op_lookup *a)
{
    if (!a->w || ops_check_lookup(a, a->w->desc.n_in, a->w2 ? a->w2->desc.n_in : 0))
        return ERR_INVAL;
    float *dst = ref__ptr(d, &a->dst);
    const int32_t *ids = (const int32_t *)(const void *)ref__ptr(d, &a->ids);
    const int32_t *pos = a->w2 ? (const int32_t *)(const void *)ref__ptr(d, &a->pos) : NULL;
    if (!dst || !ids || (a->w2 && !pos))
        return ERR_INVAL;
    for (int64_t i = 0; i < a->dst.shape[0]; i++) {
        if (ids[i] < 0 || ids[i] >= a->w->n_out || (pos && (pos[i] < 0 || pos[i] >= a->w2->n_out)))
            return ERR_INVAL;
        float *r = dst + i * a->dst.stride[0];
        memcpy(r, ref__weight_row(a->w, ids[i]), (size_t)a->dst.shape[1] * sizeof *r);
        const float *p = pos ? ref__weight_row(a->w2, pos[i]) : NULL;
        for (int64_t k = 0; p && k < a->dst.shape[1]; k++)
            r[k] += p[k];
    }
    return 0;
}
