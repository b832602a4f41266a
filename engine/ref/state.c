/* Reference: layers with a recurrent state, a row after the other. States are kept as f32; sums are double. */
#include "engine/ref/ref_impl.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct dev_state {
    struct state_desc desc;
    float *p; /* [slot][layer][n] */
};

int ref__state_open(struct dev *d, struct dev_state **out, const struct state_desc *s,
                    struct err *e)
{
    (void)d;
    size_t n;
    int rc = ops_check_state_pool(s, e);
    if (rc)
        return rc;
    struct dev_state *st = mem_calloc(1, sizeof *st);
    if (st && ck_mul((size_t)s->n, (size_t)s->n_layer, &n) && ck_mul(n, (size_t)s->n_slot, &n))
        st->p = mem_calloc(n, sizeof *st->p);
    if (!st || !st->p) {
        free(st);
        return err_set(e, ERR_NOMEM, "no memory for %d recurrent states", (int)s->n_slot);
    }
    st->desc = *s;
    *out = st;
    return 0;
}

void ref__state_close(struct dev *d, struct dev_state *s)
{
    (void)d;
    if (!s)
        return;
    free(s->p);
    free(s);
}

static float *slot_of(const struct state_at *at, int32_t slot)
{
    const struct state_desc *s = &at->pool->desc;
    return at->pool->p + ((int64_t)slot * s->n_layer + at->layer) * s->n + at->off;
}

/* State of sequence s for its first row of this step, in place where it is to be left. */
static float *begin(const struct dev *d, const struct state_at *at, int s, int64_t n)
{
    float *dst = slot_of(at, d->meta.state_dst[s]);
    int32_t src = d->meta.state_src[s];
    if (src < 0)
        memset(dst, 0, (size_t)n * sizeof *dst);
    else if (src != d->meta.state_dst[s])
        memcpy(dst, slot_of(at, src), (size_t)n * sizeof *dst);
    return dst;
}

static bool at_ok(const struct dev *d, const struct state_at *at, int64_t n)
{
    return d->in_step && at->pool && !ops_check_state_at(at, &at->pool->desc, n, &d->meta);
}

/* A tensor that may be absent; false: it is outside its buffer. */
static bool opt(const struct dev *d, const struct tensor *t, float **p)
{
    *p = t->buf ? ref__ptr(d, t) : NULL;
    return !t->buf || *p;
}

static float *row(float *p, const struct tensor *t, int64_t i)
{
    return p ? p + i * t->stride[0] : NULL;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

struct conv {
    float *dst, *mul, *x, *in, *out, *w, *bias;
};

static void conv_row(const struct op_state_conv *a, const struct conv *p, float *st, int i)
{
    const float *x = row(p->x, &a->x, i), *in = row(p->in, &a->in_gate, i);
    const float *out = row(p->out, &a->out_gate, i);
    int64_t d = a->x.shape[1];
    int k = a->k;
    for (int64_t c = 0; c < d; c++) {
        float now = in ? x[c] * in[c] : x[c];
        double v = p->bias ? (double)p->bias[c] : 0;
        for (int j = 0; j < k - 1; j++)
            v += (double)p->w[c * k + j] * (double)st[j * d + c];
        v += (double)p->w[c * k + k - 1] * (double)now;
        if (a->silu)
            v *= sigmoid(v);
        for (int j = 0; j < k - 2; j++)
            st[j * d + c] = st[(j + 1) * d + c];
        st[(k - 2) * d + c] = now;
        float y = (float)(out ? v * (double)out[c] : v);
        row(p->dst, &a->dst, i)[c] = y;
        if (p->mul)
            row(p->mul, &a->mul, i)[c] = y;
    }
}

int ref__state_conv(struct dev *d, const struct op_state_conv *a)
{
    int64_t n = a->x.shape[1] * (a->k - 1);
    struct conv p;
    if (!d->in_step || ops_check_state_conv(a, DT_F32, &d->meta) || !at_ok(d, &a->at, n) ||
        !opt(d, &a->dst, &p.dst) || !opt(d, &a->mul, &p.mul) || !opt(d, &a->x, &p.x) ||
        !opt(d, &a->in_gate, &p.in) || !opt(d, &a->out_gate, &p.out) || !opt(d, &a->w, &p.w) ||
        !opt(d, &a->bias, &p.bias))
        return ERR_INVAL;
    for (int s = 0; s < d->meta.n_seq; s++) {
        float *st = begin(d, &a->at, s, n);
        for (int i = d->meta.seq_start[s]; i < d->meta.seq_start[s + 1]; i++)
            conv_row(a, &p, st, i);
    }
    return 0;
}

struct scan {
    float *dst, *x, *dt, *dt_bias, *b, *c, *a, *skip;
};

static void scan_row(const struct op_state_scan *a, const struct scan *p, float *st, int i)
{
    int n = a->n_state, per_group = a->n_head / a->n_group;
    bool wide = (a->a.n_dim == 1 ? a->a.shape[0] : a->a.shape[1]) != a->n_head;
    for (int h = 0; h < a->n_head; h++) {
        const float *b = row(p->b, &a->b, i) + (h / per_group) * n;
        const float *c = row(p->c, &a->c, i) + (h / per_group) * n;
        double t = (double)row(p->dt, &a->dt, i)[h] + (p->dt_bias ? (double)p->dt_bias[h] : 0);
        t = fmin(fmax(softplus(t), (double)a->dt_min), (double)a->dt_max);
        for (int e = 0; e < a->head_dim; e++) {
            int64_t ch = (int64_t)h * a->head_dim + e;
            double x = (double)row(p->x, &a->x, i)[ch], y = 0;
            for (int j = 0; j < n; j++) {
                double decay = exp(t * (double)p->a[wide ? h * n + j : h]);
                float *v = &st[ch * n + j];
                *v = (float)(decay * (double)*v + t * x * (double)b[j]);
                y += (double)*v * (double)c[j];
            }
            row(p->dst, &a->dst, i)[ch] = (float)(y + (p->skip ? (double)p->skip[h] * x : 0));
        }
    }
}

int ref__state_scan(struct dev *d, const struct op_state_scan *a)
{
    int64_t n = (int64_t)a->n_head * a->head_dim * a->n_state;
    struct scan p;
    if (!d->in_step || ops_check_state_scan(a, &d->meta) || !at_ok(d, &a->at, n) ||
        !opt(d, &a->dst, &p.dst) || !opt(d, &a->x, &p.x) || !opt(d, &a->dt, &p.dt) ||
        !opt(d, &a->dt_bias, &p.dt_bias) || !opt(d, &a->b, &p.b) || !opt(d, &a->c, &p.c) ||
        !opt(d, &a->a, &p.a) || !opt(d, &a->skip, &p.skip))
        return ERR_INVAL;
    for (int s = 0; s < d->meta.n_seq; s++) {
        float *st = begin(d, &a->at, s, n);
        for (int i = d->meta.seq_start[s]; i < d->meta.seq_start[s + 1]; i++)
            scan_row(a, &p, st, i);
    }
    return 0;
}

struct delta {
    float *dst, *q, *k, *v, *g, *g_bias, *a, *beta;
};

static double inv_length(const float *x, int n, float eps)
{
    double sum = 0;
    for (int j = 0; j < n; j++)
        sum += (double)x[j] * (double)x[j];
    return eps > 0 ? 1 / sqrt(sum + (double)eps) : 1;
}

/* One head of one row; st [dk, dv]. */
static void delta_head(const struct op_state_delta *a, const struct delta *p, float *st, int i,
                       int h)
{
    int dk = a->dk, dv = a->dv;
    int kh = a->cycle ? h % a->n_key_head : h / (a->n_head / a->n_key_head);
    bool wide = a->g.shape[1] != a->n_head;
    const float *q = row(p->q, &a->q, i) + kh * dk, *k = row(p->k, &a->k, i) + kh * dk;
    const float *v = row(p->v, &a->v, i) + h * dv, *g = row(p->g, &a->g, i);
    double nq = inv_length(q, dk, a->eps) * (double)a->scale, nk = inv_length(k, dk, a->eps);
    double beta = sigmoid((double)row(p->beta, &a->beta, i)[h]);
    for (int j = 0; j < dk; j++) {
        int at = wide ? h * dk + j : h;
        double t = (double)g[at] + (p->g_bias ? (double)p->g_bias[at] : 0);
        double decay = exp((double)p->a[h] * softplus(t));
        for (int e = 0; e < dv; e++)
            st[j * dv + e] = (float)((double)st[j * dv + e] * decay);
    }
    for (int e = 0; e < dv; e++) {
        double mem = 0, y = 0;
        for (int j = 0; j < dk; j++)
            mem += (double)st[j * dv + e] * (double)k[j] * nk;
        double more = beta * ((double)v[e] - mem);
        for (int j = 0; j < dk; j++) {
            st[j * dv + e] = (float)((double)st[j * dv + e] + (double)k[j] * nk * more);
            y += (double)st[j * dv + e] * (double)q[j] * nq;
        }
        row(p->dst, &a->dst, i)[h * dv + e] = (float)y;
    }
}

int ref__state_delta(struct dev *d, const struct op_state_delta *a)
{
    int64_t head = (int64_t)a->dk * a->dv, n = a->n_head * head;
    struct delta p;
    if (!d->in_step || ops_check_state_delta(a, &d->meta) || !at_ok(d, &a->at, n) ||
        !opt(d, &a->dst, &p.dst) || !opt(d, &a->q, &p.q) || !opt(d, &a->k, &p.k) ||
        !opt(d, &a->v, &p.v) || !opt(d, &a->g, &p.g) || !opt(d, &a->g_bias, &p.g_bias) ||
        !opt(d, &a->a, &p.a) || !opt(d, &a->beta, &p.beta))
        return ERR_INVAL;
    for (int s = 0; s < d->meta.n_seq; s++) {
        float *st = begin(d, &a->at, s, n);
        for (int i = d->meta.seq_start[s]; i < d->meta.seq_start[s + 1]; i++)
            for (int h = 0; h < a->n_head; h++)
                delta_head(a, &p, st + h * head, i, h);
    }
    return 0;
}

struct wkv {
    float *dst, *r, *k, *v, *decay, *first;
};

static void wkv_row(const struct op_state_wkv *a, const struct wkv *p, float *st, int i)
{
    int64_t d = a->k.shape[1];
    for (int64_t c = 0; c < d; c++) {
        double num = (double)st[c], den = (double)st[d + c], top = (double)st[2 * d + c];
        double k = (double)row(p->k, &a->k, i)[c], v = (double)row(p->v, &a->v, i)[c];
        double now = k + (double)p->first[c], most = fmax(top, now);
        double e1 = exp(top - most), e2 = exp(now - most);
        double y = (e1 * num + e2 * v) / (e1 * den + e2);
        row(p->dst, &a->dst, i)[c] = (float)(sigmoid((double)row(p->r, &a->r, i)[c]) * y);
        double old = top + (double)p->decay[c];
        most = fmax(old, k);
        e1 = exp(old - most);
        e2 = exp(k - most);
        st[c] = (float)(e1 * num + e2 * v);
        st[d + c] = (float)(e1 * den + e2);
        st[2 * d + c] = (float)most;
    }
}

int ref__state_wkv(struct dev *d, const struct op_state_wkv *a)
{
    int64_t n = a->k.shape[1];
    struct wkv p;
    if (!d->in_step || ops_check_state_wkv(a, DT_F32, &d->meta) || !at_ok(d, &a->at, 3 * n) ||
        !opt(d, &a->dst, &p.dst) || !opt(d, &a->r, &p.r) || !opt(d, &a->k, &p.k) ||
        !opt(d, &a->v, &p.v) || !opt(d, &a->decay, &p.decay) || !opt(d, &a->first, &p.first))
        return ERR_INVAL;
    for (int s = 0; s < d->meta.n_seq; s++) {
        float *st = begin(d, &a->at, s, 3 * n);
        for (int64_t c = 0; d->meta.state_src[s] < 0 && c < n; c++)
            st[2 * n + c] = -1e38f;
        for (int i = d->meta.seq_start[s]; i < d->meta.seq_start[s + 1]; i++)
            wkv_row(a, &p, st, i);
    }
    return 0;
}

int ref__state_shift(struct dev *d, const struct op_state_shift *a)
{
    int64_t n = a->x.shape[1];
    float *dst, *x, *mix;
    if (!d->in_step || ops_check_state_shift(a, DT_F32, &d->meta) || !at_ok(d, &a->at, n) ||
        !opt(d, &a->dst, &dst) || !opt(d, &a->x, &x) || !opt(d, &a->mix, &mix))
        return ERR_INVAL;
    for (int s = 0; s < d->meta.n_seq; s++) {
        float *st = begin(d, &a->at, s, n);
        for (int i = d->meta.seq_start[s]; i < d->meta.seq_start[s + 1]; i++) {
            const float *now = row(x, &a->x, i);
            for (int64_t j = 0; j < a->n_mix * n; j++) {
                double w = (double)mix[j];
                row(dst, &a->dst, i)[j] =
                    (float)((double)now[j % n] * w + (double)st[j % n] * (1 - w));
            }
            memcpy(st, now, (size_t)n * sizeof *st);
        }
    }
    return 0;
}

static double gate_of(enum gate_kind k, float x)
{
    return (k == GATE_SILU ? (double)x : 1) * sigmoid((double)x);
}

int ref__gated_norm(struct dev *d, const struct op_gated_norm *a)
{
    float *dst, *x, *gate, *w;
    if (ops_check_gated_norm(a, DT_F32) || !opt(d, &a->dst, &dst) || !opt(d, &a->x, &x) ||
        !opt(d, &a->gate, &gate) || !opt(d, &a->w, &w))
        return ERR_INVAL;
    int64_t cols = a->x.shape[1], n = a->group ? a->group : cols;
    bool each = w && (a->w.n_dim == 1 ? a->w.shape[0] : a->w.shape[1]) == cols;
    for (int64_t i = 0; i < a->x.shape[0]; i++)
        for (int64_t from = 0; from < cols; from += n) {
            const float *r = row(x, &a->x, i) + from;
            const float *g = gate ? row(gate, &a->gate, i) + from : NULL;
            float *y = row(dst, &a->dst, i) + from;
            const float *wt = each ? w + from : w;
            double sum = 0;
            for (int64_t k = 0; k < n; k++) {
                double v = (double)r[k] * (g && a->gate_first ? gate_of(a->act, g[k]) : 1);
                sum += v * v;
            }
            double inv = a->group ? 1 / sqrt(sum / (double)n + (double)a->eps) : 1;
            for (int64_t k = 0; k < n; k++)
                y[k] = (float)((double)r[k] * (g ? gate_of(a->act, g[k]) : 1) * inv *
                               (wt ? (double)wt[k] : 1));
        }
    return 0;
}
