/* Resampling, one axis at a time: each axis averages areas when it shrinks and interpolates with the Catmull-Rom cubic when
 * it grows (Keys 1981, a = -1/2). Colours are weighted by their alpha, so that what cannot be seen does not bleed. */
#include "api/picture.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RING = 4 }; /* filtered rows that are kept: as many as a cubic reads */

/* For each output position: `n` inputs from `first` on, weights at w[i * taps]; their sum is 1. */
struct axis {
    int n_out, taps;
    int *first, *n;
    float *w;
};

struct scaler {
    struct axis x, y;
    const struct picture *in;
    float *src;        /* one input row, colours times alpha: [in.width, 4] */
    float *ring[RING]; /* rows filtered along x: [x.n_out, 4] */
    int row[RING];     /* which input row each is; -1 = none */
    float *sum;        /* [x.n_out, 4] */
};

static double cubic(double t)
{
    t = fabs(t);
    return t < 1 ? (1.5 * t - 2.5) * t * t + 1 : t < 2 ? ((-0.5 * t + 2.5) * t - 4) * t + 2 : 0;
}

/* What input i contributes to output o, before normalising. */
static double weight(int o, int i, double scale)
{
    if (scale < 1)
        return cubic((o + 0.5) * scale - (i + 0.5));
    double lo = fmax(i, o * scale), hi = fmin(i + 1, (o + 1) * scale);
    return hi > lo ? hi - lo : 0;
}

static int axis_make(struct axis *a, int n_in, int n_out)
{
    double scale = (double)n_in / n_out;
    a->n_out = n_out;
    a->taps = scale < 1 ? RING : (int)ceil(scale) + 1;
    a->first = mem_calloc((size_t)n_out, sizeof *a->first);
    a->n = mem_calloc((size_t)n_out, sizeof *a->n);
    size_t n_w;
    if (ck_mul((size_t)n_out, (size_t)a->taps, &n_w))
        a->w = mem_calloc(n_w, sizeof *a->w);
    if (!a->first || !a->n || !a->w)
        return ERR_NOMEM;
    for (int o = 0; o < n_out; o++) {
        double at = scale < 1 ? floor((o + 0.5) * scale - 0.5) - 1 : floor(o * scale);
        int lo = at < 0 ? 0 : (int)at, hi = (int)at + a->taps;
        double sum = 0;
        hi = hi < n_in ? hi : n_in;
        for (int i = lo; i < hi; i++)
            sum += weight(o, i, scale);
        for (int i = lo; i < hi; i++)
            a->w[(size_t)o * (size_t)a->taps + (size_t)(i - lo)] =
                (float)(weight(o, i, scale) / sum);
        a->first[o] = lo;
        a->n[o] = hi - lo;
    }
    return 0;
}

static void axis_free(struct axis *a)
{
    free(a->first);
    free(a->n);
    free(a->w);
}

/* Input row y, filtered along x. */
static const float *row_get(struct scaler *s, int y)
{
    float *to = s->ring[y % RING];
    if (s->row[y % RING] == y)
        return to;
    const uint8_t *px = s->in->rgba + (size_t)y * (size_t)s->in->width * 4;
    for (int i = 0; i < s->in->width; i++) {
        float a = (float)px[i * 4 + 3] * (1.0F / 255);
        for (int c = 0; c < 3; c++)
            s->src[i * 4 + c] = (float)px[i * 4 + c] * a;
        s->src[i * 4 + 3] = px[i * 4 + 3];
    }
    for (int o = 0; o < s->x.n_out; o++) {
        const float *w = s->x.w + (size_t)o * (size_t)s->x.taps;
        const float *v = s->src + (size_t)s->x.first[o] * 4;
        float sum[4] = {0};
        for (int k = 0; k < s->x.n[o]; k++)
            for (int c = 0; c < 4; c++)
                sum[c] += w[k] * v[k * 4 + c];
        /* The cubic overshoots at edges; cut here, or the other axis multiplies it. */
        for (int c = 0; c < 4; c++)
            to[o * 4 + c] = sum[c] < 0 ? 0 : sum[c] > 255 ? 255 : sum[c];
    }
    s->row[y % RING] = y;
    return to;
}

static uint8_t byte_of(float v)
{
    return v <= 0 ? 0 : v >= 255 ? 255 : (uint8_t)(v + 0.5F);
}

static void row_put(uint8_t *to, const float *sum, int n)
{
    for (int o = 0; o < n; o++, to += 4, sum += 4) {
        float inv = sum[3] > 0 ? 255 / sum[3] : 0;
        for (int c = 0; c < 3; c++)
            to[c] = byte_of(sum[c] * inv);
        to[3] = byte_of(sum[3]);
    }
}

static int scaler_make(struct scaler *s, int w, int h)
{
    size_t row = (size_t)w * 4;
    int rc = axis_make(&s->x, s->in->width, w);
    if (!rc)
        rc = axis_make(&s->y, s->in->height, h);
    s->src = mem_calloc((size_t)s->in->width * 4, sizeof *s->src);
    s->sum = mem_calloc(row, sizeof *s->sum);
    for (int i = 0; i < RING; i++) {
        s->row[i] = -1;
        s->ring[i] = mem_calloc(row, sizeof *s->sum);
        if (!s->ring[i])
            rc = ERR_NOMEM;
    }
    return s->src && s->sum ? rc : ERR_NOMEM;
}

static void scaler_free(struct scaler *s)
{
    axis_free(&s->x);
    axis_free(&s->y);
    free(s->src);
    free(s->sum);
    for (int i = 0; i < RING; i++)
        free(s->ring[i]);
}

static void scale(struct scaler *s, struct picture *p)
{
    size_t row = (size_t)p->width * 4;
    for (int y = 0; y < p->height; y++) {
        memset(s->sum, 0, row * sizeof *s->sum);
        for (int k = 0; k < s->y.n[y]; k++) {
            const float *v = row_get(s, s->y.first[y] + k);
            float w = s->y.w[(size_t)y * (size_t)s->y.taps + (size_t)k];
            for (size_t i = 0; i < row; i++)
                s->sum[i] += w * v[i];
        }
        row_put(p->rgba + (size_t)y * row, s->sum, p->width);
    }
}

int picture_resize(struct picture *out, const struct picture *in, int w, int h)
{
    struct picture p = {w, h, in->alpha, NULL};
    struct scaler s = {.in = in};
    size_t px, n;
    int rc = ERR_NOMEM;
    *out = (struct picture){0};
    CHECK(w > 0 && h > 0);
    if (!ck_mul((size_t)w, (size_t)h, &px) || !ck_mul(px, 4, &n))
        return ERR_NOMEM;
    p.rgba = mem_alloc(n);
    if (!p.rgba)
        return ERR_NOMEM;
    if (w == in->width && h == in->height) {
        memcpy(p.rgba, in->rgba, n);
        rc = 0;
    } else {
        rc = scaler_make(&s, w, h);
        if (!rc)
            scale(&s, &p);
        scaler_free(&s);
    }
    if (rc)
        free(p.rgba);
    else
        *out = p;
    return rc;
}
