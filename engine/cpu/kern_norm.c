/* Row kernels: RMS and layer norm, rotary embedding with KV write, gated activation, scaling. See kern.h. */
#include "engine/cpu/kern.h"
#include "engine/cpu/kv_words.h"
#include "engine/cpu/vec.h"
#include "engine/cpu/vec_act.h"
#include "engine/ops.h"
#include "engine/quant/kv8.h"

#include <math.h>
#include <string.h>

/* Four chains of 16 lanes, whatever the length; the tail is a masked vector of the next chain. */
static float sum_squares(const float *x, int64_t d)
{
    struct vf s[4] = {vset1(0), vset1(0), vset1(0), vset1(0)};
    int64_t i = 0;
    for (; i + 4 * VL <= d; i += 4 * VL)
        for (int j = 0; j < 4; j++) {
            struct vf v = vload(x + i + j * VL);
            s[j] = vfma(v, v, s[j]);
        }
    for (int j = 0; i < d; i += VL, j++) {
        struct vf v = vloadn(x + i, d - i < VL ? (int)(d - i) : VL);
        s[j] = vfma(v, v, s[j]);
    }
    return vhsum(vadd(vadd(s[0], s[1]), vadd(s[2], s[3])));
}

/* w may be NULL. */
static void norm_scale(float *dst, const float *x, const float *w, int64_t d, float eps)
{
    struct vf vr = vset1(1.0f / sqrtf(sum_squares(x, d) / (float)d + eps));
    int64_t i = 0;
    for (; w && i + VL <= d; i += VL)
        vstore(dst + i, vmul(vmul(vload(x + i), vr), vload(w + i)));
    for (; i < d; i += VL) {
        int n = d - i < VL ? (int)(d - i) : VL;
        struct vf v = vmul(vloadn(x + i, n), vr);
        vstoren(dst + i, w ? vmul(v, vloadn(w + i, n)) : v, n);
    }
}

/* (x - mean) / sqrt(var + eps) * w + b, the sums in the same four chains. */
static void norm_center(const struct cpu_norm_args *a)
{
    struct vf s[4] = {vset1(0), vset1(0), vset1(0), vset1(0)};
    const float *x = a->x;
    int64_t i = 0;
    for (int j = 0; i < a->d; i += VL, j = (j + 1) % 4)
        s[j] = vadd(s[j], vloadn(x + i, a->d - i < VL ? (int)(a->d - i) : VL));
    const struct vf mean = vset1(vhsum(vadd(vadd(s[0], s[1]), vadd(s[2], s[3]))) / (float)a->d);
    s[0] = s[1] = s[2] = s[3] = vset1(0);
    i = 0;
    for (int j = 0; i < a->d; i += VL, j = (j + 1) % 4) {
        int n = a->d - i < VL ? (int)(a->d - i) : VL;
        struct vf v = vkeep(vsub(vloadn(x + i, n), mean), 0, n, vset1(0));
        s[j] = vfma(v, v, s[j]);
    }
    float var = vhsum(vadd(vadd(s[0], s[1]), vadd(s[2], s[3]))) / (float)a->d;
    const struct vf inv = vset1(1.0f / sqrtf(var + a->eps));
    for (i = 0; i < a->d; i += VL) {
        int n = a->d - i < VL ? (int)(a->d - i) : VL;
        struct vf v = vmul(vsub(vloadn(x + i, n), mean), inv);
        if (a->w)
            v = vmul(v, vloadn(a->w + i, n));
        if (a->b)
            v = vadd(v, vloadn(a->b + i, n));
        vstoren(a->dst + i, v, n);
    }
}

static void norm(const struct cpu_norm_args *a)
{
    if (a->add) {
        int64_t i = 0;
        for (; i + VL <= a->d; i += VL)
            vstore(a->x + i, vadd(vload(a->x + i), vload(a->add + i)));
        for (; i < a->d; i++)
            a->x[i] += a->add[i];
    }
    if (a->dst && a->center)
        norm_center(a);
    else if (a->dst)
        norm_scale(a->dst, a->x, a->w, a->d, a->eps);
}

static void rope_head(float *x, const float *c, const float *s, int n_rot, enum rope_style style)
{
    int half = n_rot / 2;
    if (style == ROPE_NORM) {
        for (int i = 0; i < half; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * c[i] - b * s[i];
            x[2 * i + 1] = a * s[i] + b * c[i];
        }
    } else if (style == ROPE_NEOX) {
        for (int i = 0; i < half; i++) {
            float a = x[i], b = x[half + i];
            x[i] = a * c[i] - b * s[i];
            x[half + i] = a * s[i] + b * c[i];
        }
    }
}

static float pack(enum dtype dt, uint8_t *code, const float *x, int n)
{
    return dt == DT_I8 ? kv8_pack_i8(code, x, n) : kv8_pack_f8(code, x, n);
}

/* A token's K and V of a head as codes. */
static void write_codes(const struct cpu_kv_geom *g, char *kv, const float *k, const float *v,
                        int slot)
{
    uint8_t t[CPU_KV_DIM_MAX];
    uint8_t *to = (uint8_t *)kv + slot;
    float *ks = (float *)(void *)(kv + cpu_kv_k_bytes(g));
    float *vs = (float *)(void *)(kv + cpu_kv_v_scales_at(g));
    ks[slot] = pack(g->dtype, t, k, g->head_dim);
    for (int d = 0; d < g->head_dim; d++)
        to[d * KV_BLOCK_TOKENS] = t[d];
    to = (uint8_t *)kv + cpu_kv_v_at(g) + (size_t)(slot * g->v_dim);
    vs[slot] = pack(g->dtype, to, v, g->head_dim);
    memset(to + g->head_dim, 0, (size_t)(g->v_dim - g->head_dim));
}

/* 16 values (n of them real) as the KV dtype; `es` bytes each. */
VI void convert(void *dst, struct vf v, enum dtype dt)
{
    if (dt == DT_F16)
        vstore_f16(dst, v);
    else if (dt == DT_BF16)
        vstore_bf16(dst, v);
    else
        vstore(dst, v);
}

static void write_k(const struct cpu_kv_geom *g, char *kv, const float *k, int slot)
{
    union {
        float f[VL];
        uint16_t h[VL];
    } t;
    for (int d = 0; d < g->head_dim; d += VL) {
        int n = g->head_dim - d < VL ? g->head_dim - d : VL;
        convert(&t, vloadn(k + d, n), g->dtype);
        if (g->dtype == DT_F32) {
            float *p = (float *)(void *)kv + (size_t)d * KV_BLOCK_TOKENS + (size_t)slot;
            for (int i = 0; i < n; i++)
                p[i * KV_BLOCK_TOKENS] = t.f[i];
        } else {
            uint16_t *p = (uint16_t *)(void *)kv + (size_t)d * KV_BLOCK_TOKENS + (size_t)slot;
            for (int i = 0; i < n; i++)
                p[i * KV_BLOCK_TOKENS] = t.h[i];
        }
    }
}

typedef uint16_t u16x16 __attribute__((vector_size(32)));

/* K of a whole block's 16 tokens: rows of token and dimension, turned. ld: floats from token to token. */
static void write_k16(const struct cpu_kv_geom *g, char *kv, const float *k, int64_t ld)
{
    for (int d = 0; d < g->head_dim; d += VL) {
        const int n = g->head_dim - d < VL ? g->head_dim - d : VL;
        u16x16 v[16], w[16];
        for (int t = 0; t < 16; t++)
            convert(&v[t], vloadn(k + t * ld + d, n), g->dtype);
        for (int round = 0; round < 4; round++) { /* a perfect shuffle of rows and of lanes */
            for (int i = 0; i < 8; i++) {
                w[2 * i] = __builtin_shufflevector(v[i], v[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4,
                                                   20, 5, 21, 6, 22, 7, 23);
                w[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 8], 8, 24, 9, 25, 10, 26, 11, 27,
                                                       12, 28, 13, 29, 14, 30, 15, 31);
            }
            memcpy(v, w, sizeof v);
        }
        memcpy(kv + (size_t)d * KV_BLOCK_TOKENS * 2, v, (size_t)n * sizeof *v);
    }
}

static void write_v(const struct cpu_kv_geom *g, char *kv, const float *v, int slot)
{
    size_t es = dtype_bytes(g->dtype);
    char *p = kv + es * KV_BLOCK_TOKENS * (size_t)g->head_dim + es * (size_t)(slot * g->v_dim);
    for (int d = 0; d < g->head_dim; d += VL) {
        int n = g->head_dim - d < VL ? g->head_dim - d : VL;
        convert(p + es * (size_t)d, vloadn(v + d, n), g->dtype);
    }
}

/* Norms and rotation of one row. */
static void rope_row(const struct cpu_rope_args *a, float *qkv, const float *cs)
{
    const float *c = cs, *s = cs + a->n_rot / 2;
    const int hd = a->geom.head_dim, n_kv = a->q_only ? 0 : a->n_kv_head;
    for (int h = 0; h < a->n_head + n_kv; h++) {
        float *x = qkv + (int64_t)h * hd;
        const float *w = h < a->n_head ? a->q_norm : a->k_norm;
        if (w)
            norm_scale(x, x, w, hd, a->eps);
        rope_head(x, c, s, a->n_rot, a->style);
    }
    float *v = qkv + (int64_t)(a->n_head + a->n_kv_head) * hd;
    for (int h = 0; a->v_norm && h < n_kv; h++)
        norm_scale(v + (int64_t)h * hd, v + (int64_t)h * hd, a->v_norm, hd, a->eps);
}

static void rope_kv(const struct cpu_rope_args *a, float *qkv, int64_t ld, const float *cs,
                    void *kv, int slot, int n)
{
    const struct cpu_kv_geom *g = &a->geom;
    const int hd = g->head_dim, n_kv = a->q_only ? 0 : a->n_kv_head;
    const bool turn = n == KV_BLOCK_TOKENS && (g->dtype == DT_F16 || g->dtype == DT_BF16);
    for (int i = 0; i < n; i++)
        rope_row(a, qkv + i * ld, cs + (int64_t)i * a->n_rot);
    for (int h = 0; h < n_kv; h++) {
        char *p = (char *)kv + (size_t)h * a->head_bytes;
        const float *k = qkv + (int64_t)(a->n_head + h) * hd, *v = k + (int64_t)a->n_kv_head * hd;
#ifdef CPU_ISA_avx512
        if (g->dtype == DT_I16) {
            words_write(g, p, k, v, ld, slot, n);
            continue;
        }
#endif
        if (turn)
            write_k16(g, p, k, ld);
        for (int i = 0; i < n; i++, k += ld, v += ld) {
            if (dtype_is_code(g->dtype)) {
                write_codes(g, p, k, v, slot + i);
                continue;
            }
            if (!turn)
                write_k(g, p, k, slot + i);
            write_v(g, p, v, slot + i);
        }
    }
}

#define ACT_LOOP(fn)                                                                               \
    for (int64_t i = 0; i < n; i += VL) {                                                          \
        int m = n - i < VL ? (int)(n - i) : VL;                                                    \
        struct vf v = fn(vloadn(gate + i, m));                                                     \
        vstoren(dst + i, up ? vmul(v, vloadn(up + i, m)) : v, m);                                  \
    }

VI struct vf relu(struct vf x)
{
    return vsel_lt(x, vset1(0), vset1(0), x);
}
VI struct vf relu2(struct vf x)
{
    struct vf r = relu(x);
    return vmul(r, r);
}

static void act_swiglu_oai(float *dst, const float *gate, int64_t n, float limit)
{
    const struct vf hi = vset1(limit), lo = vset1(-limit);
    for (int64_t i = 0; i < n; i += VL) {
        int m = n - i < VL ? (int)(n - i) : VL;
        struct vf g = vmin(vloadn(gate + i, m), hi);
        struct vf u = vmin(vmax(vloadn(gate + n + i, m), lo), hi);
        vstoren(dst + i, vmul(vadd(u, vset1(1)), quick_gelu(g)), m);
    }
}

static void act_mul(const struct op_act_mul *a, float *dst, const float *gate, int64_t n)
{
    const float *up = a->single ? NULL : gate + n;
    if (a->act == ACT_SILU) {
        ACT_LOOP(silu)
    } else if (a->act == ACT_GELU_TANH) {
        ACT_LOOP(gelu_tanh)
    } else if (a->act == ACT_GELU_ERF) {
        ACT_LOOP(gelu_erf)
    } else if (a->act == ACT_RELU) {
        ACT_LOOP(relu)
    } else if (a->act == ACT_RELU2) {
        ACT_LOOP(relu2)
    } else {
        act_swiglu_oai(dst, gate, n, a->limit);
    }
}

static void scale(float *x, int64_t n, float k, float softcap)
{
    for (int64_t i = 0; i < n; i += VL) {
        int m = n - i < VL ? (int)(n - i) : VL;
        struct vf v = vloadn(x + i, m);
        if (softcap > 0)
            v = vmul(vset1(softcap), vtanh(vdiv(v, vset1(softcap))));
        vstoren(x + i, vmul(v, vset1(k)), m);
    }
}

#define TABLE_(isa)                                                                                \
    const struct cpu_norm_kern cpu_norm_##isa = {                                                  \
        .norm = norm, .rope_kv = rope_kv, .act_mul = act_mul, .scale = scale}
#define TABLE(isa) TABLE_(isa)
TABLE(CPU_ISA);
