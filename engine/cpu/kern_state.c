/* See kern_state.h. Sums over a state's values or a head's keys go in vectors of 16 in one chain, whatever else is
 * computed beside, so that a row's bits are its own. */
#include "engine/cpu/kern_state.h"
#include "engine/cpu/vec.h"
#include "engine/cpu/vec_act.h"

#include <math.h>

VI struct vf sigmoid(struct vf x)
{
    return vdiv(vset1(1), vadd(vset1(1), vexp(vsub(vset1(0), x))));
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(vexp1(x));
}

static inline float *at_row(const struct cpu_rows *r, int64_t i)
{
    return r->p + i * r->ld;
}

static void conv(const struct cpu_conv_state *a, const struct cpu_span *s, int64_t at)
{
    int n = a->d - at < VL ? (int)(a->d - at) : VL, k = a->k;
    struct vf w[CPU_CONV_MAX], old[CPU_CONV_MAX], bias = vset1(0);
    if (a->bias)
        bias = vloadn(a->bias + at, n);
    for (int j = 0; j < k; j++) {
        float t[VL] = {0};
        for (int c = 0; c < n; c++)
            t[c] = a->w[(at + c) * k + j];
        w[j] = vload(t);
    }
    for (int j = 0; j < k - 1; j++)
        old[j] = s->src ? vloadn(s->src + j * a->d + at, n) : vset1(0);
    for (int64_t i = s->from; i < s->to; i++) {
        struct vf now = vloadn(at_row(&a->x, i) + at, n), v = bias;
        if (a->in.p)
            now = vmul(now, vloadn(at_row(&a->in, i) + at, n));
        for (int j = 0; j < k - 1; j++)
            v = vfma(w[j], old[j], v);
        v = vfma(w[k - 1], now, v);
        if (a->silu)
            v = silu(v);
        if (a->out.p)
            v = vmul(v, vloadn(at_row(&a->out, i) + at, n));
        for (int j = 0; j < k - 2; j++)
            old[j] = old[j + 1];
        old[k - 2] = now;
        vstoren(at_row(&a->dst, i) + at, v, n);
        if (a->mul.p)
            vstoren(at_row(&a->mul, i) + at, v, n);
    }
    for (int j = 0; j < k - 1; j++)
        vstoren(s->dst + j * a->d + at, old[j], n);
}

#define SCAN_ROWS 32

/* Rows [from, to), at most SCAN_ROWS, of channel ch; t and decay are theirs. st [n_state]. */
VI void scan_channel(const struct cpu_scan_state *a, const struct cpu_span *s, int64_t ch,
                     const float *t, const float *decay)
{
    int n = a->n_state, h = (int)(ch / a->head_dim);
    int64_t group = (int64_t)(h / a->per_group) * n;
    float skip = a->skip ? a->skip[h] : 0;
    struct vf st[CPU_KEY_MAX / VL], rate[CPU_KEY_MAX / VL];
    for (int j = 0; j < n; j += VL) {
        int m = n - j < VL ? n - j : VL;
        st[j / VL] = s->src ? vloadn(s->src + ch * n + j, m) : vset1(0);
        rate[j / VL] = a->wide ? vloadn(a->a + (int64_t)h * n + j, m) : vset1(0);
    }
    for (int i = s->from; i < s->to; i++) {
        const float *b = at_row(&a->b, i) + group, *c = at_row(&a->c, i) + group;
        float x = at_row(&a->x, i)[ch], step = t[i - s->from];
        struct vf add = vset1(step * x), keep = vset1(decay[i - s->from]), y = vset1(0);
        for (int j = 0; j < n; j += VL) {
            int m = n - j < VL ? n - j : VL;
            struct vf f = a->wide ? vexp(vmul(vset1(step), rate[j / VL])) : keep;
            struct vf v = vfma(f, st[j / VL], vmul(add, vloadn(b + j, m)));
            st[j / VL] = v;
            y = vfma(v, vloadn(c + j, m), y);
        }
        at_row(&a->dst, i)[ch] = vhsum(y) + skip * x;
    }
    for (int j = 0; j < n; j += VL)
        vstoren(s->dst + ch * n + j, st[j / VL], n - j < VL ? n - j : VL);
}

static void scan(const struct cpu_scan_state *a, const struct cpu_span *s, int h)
{
    float t[SCAN_ROWS], decay[SCAN_ROWS];
    struct cpu_span part = *s;
    for (part.from = s->from; part.from < s->to; part.from = part.to) {
        part.to = s->to - part.from < SCAN_ROWS ? s->to : part.from + SCAN_ROWS;
        for (int i = part.from; i < part.to; i++) {
            float v = softplus(at_row(&a->dt, i)[h] + (a->dt_bias ? a->dt_bias[h] : 0));
            v = v < a->dt_min ? a->dt_min : v > a->dt_max ? a->dt_max : v;
            t[i - part.from] = v;
            decay[i - part.from] = a->wide ? 0 : vexp1(v * a->a[h]);
        }
        for (int64_t ch = (int64_t)h * a->head_dim; ch < ((int64_t)h + 1) * a->head_dim; ch++)
            scan_channel(a, &part, ch, t, decay);
        part.src = s->dst;
    }
}

/* dst = x * factor / length of x. */
static void key_norm(float *dst, const float *x, int n, float eps, float factor)
{
    struct vf sum = vset1(0);
    for (int j = 0; j < n; j += VL) {
        struct vf v = vloadn(x + j, n - j < VL ? n - j : VL);
        sum = vfma(v, v, sum);
    }
    if (eps > 0)
        factor *= 1.0f / sqrtf(vhsum(sum) + eps);
    for (int j = 0; j < n; j += VL) {
        int m = n - j < VL ? n - j : VL;
        vstoren(dst + j, vmul(vloadn(x + j, m), vset1(factor)), m);
    }
}

struct delta_row {
    float q[CPU_KEY_MAX], k[CPU_KEY_MAX], decay[CPU_KEY_MAX];
    float beta;
};

static void delta_prepare(const struct cpu_delta_state *a, struct delta_row *r, int64_t i, int h)
{
    int kh = a->cycle ? h % a->n_key_head : h / (a->n_head / a->n_key_head), dk = a->dk;
    const float *g = at_row(&a->g, i);
    key_norm(r->q, at_row(&a->q, i) + (int64_t)kh * dk, dk, a->eps, a->scale);
    key_norm(r->k, at_row(&a->k, i) + (int64_t)kh * dk, dk, a->eps, 1);
    r->beta = 1.0f / (1.0f + vexp1(-at_row(&a->beta, i)[h]));
    for (int j = 0; j < dk; j++) {
        int at = a->wide ? h * dk + j : h;
        r->decay[j] = j && !a->wide
                          ? r->decay[0]
                          : vexp1(a->a[h] * softplus(g[at] + (a->g_bias ? a->g_bias[at] : 0)));
    }
}

/* One row and 16 values (n of them real): a column strip of the state [dk, dv]. */
VI void delta_strip(const struct cpu_delta_state *a, const struct delta_row *r, const float *src,
                    float *dst, struct vf v, float *out, int n)
{
    struct vf mem = vset1(0), y = vset1(0);
    int dk = a->dk;
    for (int j = 0; j < dk; j++) {
        struct vf s = src ? vloadn(src + (int64_t)j * a->dv, n) : vset1(0);
        mem = vfma(vmul(s, vset1(r->decay[j])), vset1(r->k[j]), mem);
    }
    struct vf more = vmul(vset1(r->beta), vsub(v, mem));
    for (int j = 0; j < dk; j++) {
        struct vf s = src ? vloadn(src + (int64_t)j * a->dv, n) : vset1(0);
        s = vfma(vset1(r->k[j]), more, vmul(s, vset1(r->decay[j])));
        vstoren(dst + (int64_t)j * a->dv, s, n);
        y = vfma(s, vset1(r->q[j]), y);
    }
    vstoren(out, y, n);
}

static void delta(const struct cpu_delta_state *a, const struct cpu_span *s, int h)
{
    struct delta_row r;
    int64_t head = (int64_t)h * a->dk * a->dv;
    const float *src = s->src ? s->src + head : NULL;
    for (int64_t i = s->from; i < s->to; i++) {
        delta_prepare(a, &r, i, h);
        for (int e = 0; e < a->dv; e += VL) {
            int n = a->dv - e < VL ? a->dv - e : VL;
            int64_t at = (int64_t)h * a->dv + e;
            delta_strip(a, &r, src ? src + e : NULL, s->dst + head + e,
                        vloadn(at_row(&a->v, i) + at, n), at_row(&a->dst, i) + at, n);
        }
        src = s->dst + head;
    }
}

static void wkv(const struct cpu_wkv_state *a, const struct cpu_span *s, int64_t at)
{
    int n = a->d - at < VL ? (int)(a->d - at) : VL;
    struct vf num = vset1(0), den = vset1(0), top = vset1(-1e38f);
    struct vf decay = vloadn(a->decay + at, n), first = vloadn(a->first + at, n);
    if (s->src) {
        num = vloadn(s->src + at, n);
        den = vloadn(s->src + a->d + at, n);
        top = vloadn(s->src + 2 * a->d + at, n);
    }
    for (int64_t i = s->from; i < s->to; i++) {
        struct vf k = vloadn(at_row(&a->k, i) + at, n), v = vloadn(at_row(&a->v, i) + at, n);
        struct vf now = vadd(k, first), most = vmax(top, now);
        struct vf e1 = vexp(vsub(top, most)), e2 = vexp(vsub(now, most));
        struct vf y = vdiv(vfma(e1, num, vmul(e2, v)), vfma(e1, den, e2));
        y = vmul(sigmoid(vloadn(at_row(&a->r, i) + at, n)), y);
        vstoren(at_row(&a->dst, i) + at, y, n);
        struct vf old = vadd(top, decay);
        top = vmax(old, k);
        e1 = vexp(vsub(old, top));
        e2 = vexp(vsub(k, top));
        num = vfma(e1, num, vmul(e2, v));
        den = vfma(e1, den, e2);
    }
    vstoren(s->dst + at, num, n);
    vstoren(s->dst + a->d + at, den, n);
    vstoren(s->dst + 2 * a->d + at, top, n);
}

static void shift(const struct cpu_shift_state *a, const struct cpu_span *s, int64_t at)
{
    int n = a->d - at < VL ? (int)(a->d - at) : VL;
    struct vf old = s->src ? vloadn(s->src + at, n) : vset1(0);
    for (int64_t i = s->from; i < s->to; i++) {
        struct vf now = vloadn(at_row(&a->x, i) + at, n);
        for (int j = 0; j < a->n_mix; j++) {
            struct vf w = vloadn(a->mix + j * a->d + at, n);
            struct vf y = vfma(now, w, vmul(old, vsub(vset1(1), w)));
            vstoren(at_row(&a->dst, i) + j * a->d + at, y, n);
        }
        old = now;
    }
    vstoren(s->dst + at, old, n);
}

VI struct vf gate(bool plain, struct vf x)
{
    return plain ? sigmoid(x) : silu(x);
}

/* x with what the gate does before the norm. */
VI struct vf gated(const struct cpu_gated_args *a, int64_t row, int64_t at, int n)
{
    struct vf v = vloadn(at_row(&a->x, row) + at, n);
    if (a->gate.p && a->gate_first)
        v = vmul(v, gate(a->sigmoid, vloadn(at_row(&a->gate, row) + at, n)));
    return v;
}

static void gated_norm(const struct cpu_gated_args *a, int64_t row)
{
    for (int64_t from = 0; from < a->cols; from += a->group) {
        struct vf sum = vset1(0), inv = vset1(1);
        for (int64_t k = 0; a->norm && k < a->group; k += VL) {
            struct vf v = gated(a, row, from + k, a->group - k < VL ? (int)(a->group - k) : VL);
            sum = vfma(v, v, sum);
        }
        if (a->norm)
            inv = vset1(1.0f / sqrtf(vhsum(sum) / (float)a->group + a->eps));
        for (int64_t k = 0; k < a->group; k += VL) {
            int n = a->group - k < VL ? (int)(a->group - k) : VL;
            struct vf v = vmul(gated(a, row, from + k, n), inv);
            if (a->w)
                v = vmul(v, vloadn(a->w + (a->each ? from : 0) + k, n));
            if (a->gate.p && !a->gate_first)
                v = vmul(v, gate(a->sigmoid, vloadn(at_row(&a->gate, row) + from + k, n)));
            vstoren(at_row(&a->dst, row) + from + k, v, n);
        }
    }
}

#define TABLE_(isa)                                                                                \
    const struct cpu_state_kern cpu_state_##isa = {.conv = conv,                                   \
                                                   .wkv = wkv,                                     \
                                                   .shift = shift,                                 \
                                                   .scan = scan,                                   \
                                                   .delta = delta,                                 \
                                                   .gated_norm = gated_norm}
#define TABLE(isa) TABLE_(isa)
TABLE(CPU_ISA);
