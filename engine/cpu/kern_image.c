/* Row kernels of the image ops. See kern.h. Every sum has one order, whatever the rows' company. */
#include "engine/cpu/kern.h"
#include "engine/cpu/vec.h"
#include "engine/cpu/vec_act.h"

#include <math.h>

static void channel_sums(const float *x, int64_t ld, int64_t n_row, int64_t c, double *restrict sum,
                         double *restrict sq)
{
    for (int64_t i = 0; i < n_row; i++) {
        const float *restrict r = x + i * ld;
        for (int64_t k = 0; k < c; k++) {
            double v = (double)r[k];
            sum[k] += v;
            sq[k] += v * v;
        }
    }
}

VI struct vf apply(struct vf x, enum image_act act)
{
    switch (act) {
    case IMAGE_ACT_SILU:
        return silu(x);
    case IMAGE_ACT_GELU_TANH:
        return gelu_tanh(x);
    case IMAGE_ACT_GELU_ERF:
        return gelu_erf(x);
    case IMAGE_ACT_QUICK_GELU:
        return quick_gelu(x);
    case IMAGE_ACT_RELU:
        return vmax(x, vset1(0));
    default:
        return x;
    }
}

/* One loop an activation, so that the choice is made once a row. */
#define BY_ACT(M)                                                                                  \
    switch (act) {                                                                                 \
    case IMAGE_ACT_SILU:                                                                           \
        M(IMAGE_ACT_SILU) break;                                                                   \
    case IMAGE_ACT_GELU_TANH:                                                                      \
        M(IMAGE_ACT_GELU_TANH) break;                                                              \
    case IMAGE_ACT_GELU_ERF:                                                                       \
        M(IMAGE_ACT_GELU_ERF) break;                                                               \
    case IMAGE_ACT_QUICK_GELU:                                                                     \
        M(IMAGE_ACT_QUICK_GELU) break;                                                             \
    case IMAGE_ACT_RELU:                                                                           \
        M(IMAGE_ACT_RELU) break;                                                                   \
    default:                                                                                       \
        M(IMAGE_ACT_NONE)                                                                          \
    }

static void affine(float *dst, const float *x, const float *mul, const float *add, int64_t n,
                   enum image_act act)
{
#define AFFINE(a)                                                                                  \
    for (int64_t i = 0; i < n; i += VL) {                                                          \
        int m = n - i < VL ? (int)(n - i) : VL;                                                    \
        struct vf v = vfma(vloadn(x + i, m), vloadn(mul + i, m), vloadn(add + i, m));              \
        vstoren(dst + i, apply(v, a), m);                                                          \
    }
    BY_ACT(AFFINE)
}

static void act_row(float *dst, const float *x, int64_t n, enum image_act act)
{
#define ACT(a)                                                                                     \
    for (int64_t i = 0; i < n; i += VL) {                                                          \
        int m = n - i < VL ? (int)(n - i) : VL;                                                    \
        vstoren(dst + i, apply(vloadn(x + i, m), a), m);                                           \
    }
    BY_ACT(ACT)
}

/* Sum of (x - mean)^power over four chains of lanes. */
static float chain_sum(const float *x, int64_t n, float mean, bool square)
{
    struct vf s[4] = {vset1(0), vset1(0), vset1(0), vset1(0)};
    for (int64_t i = 0, j = 0; i < n; i += VL, j++) {
        int m = n - i < VL ? (int)(n - i) : VL;
        struct vf v = vloadn(x + i, m);
        if (square) {
            /* lanes behind the end must not count: their value is the mean */
            float pad[VL];
            for (int k = 0; k < VL; k++)
                pad[k] = mean;
            if (m < VL) {
                vstoren(pad, v, m);
                v = vload(pad);
            }
            v = vsub(v, vset1(mean));
            s[j & 3] = vfma(v, v, s[j & 3]);
        } else {
            s[j & 3] = vadd(s[j & 3], v);
        }
    }
    return vhsum(vadd(vadd(s[0], s[1]), vadd(s[2], s[3])));
}

static void layer_norm(float *dst, const float *x, const float *const v[4], int64_t n, float eps,
                       bool rms)
{
    float mean = rms ? 0 : chain_sum(x, n, 0, false) / (float)n;
    struct vf inv = vset1(1.0f / sqrtf(chain_sum(x, n, mean, true) / (float)n + eps)),
              one = vset1(1);
    for (int64_t i = 0; i < n; i += VL) {
        int m = n - i < VL ? (int)(n - i) : VL;
        struct vf y = vmul(vsub(vloadn(x + i, m), vset1(mean)), inv);
        if (v[0])
            y = vmul(y, vloadn(v[0] + i, m));
        if (v[1])
            y = vadd(y, vloadn(v[1] + i, m));
        if (v[2])
            y = vmul(y, vadd(one, vloadn(v[2] + i, m)));
        if (v[3])
            y = vadd(y, vloadn(v[3] + i, m));
        vstoren(dst + i, y, m);
    }
}

static void gate_add(float *x, const float *y, const float *gate, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i += VL) {
        int m = n - i < VL ? (int)(n - i) : VL;
        struct vf v = vmul(vset1(factor), vloadn(y + i, m));
        if (gate)
            v = vmul(v, vloadn(gate + i, m));
        vstoren(x + i, vadd(vloadn(x + i, m), v), m);
    }
}

typedef uint32_t piece __attribute__((vector_size(64), aligned(4), may_alias));

static void spread(void *dst, size_t step, const void *src, int64_t n)
{
    char *d = dst;
    const char *p = src;
    const piece zero = {0};
    for (int64_t i = 0; i < n; i++)
        *(piece *)(void *)(d + (size_t)i * step) =
            p ? *(const piece *)(const void *)(p + 64 * i) : zero;
}

#define TABLE_(isa)                                                                                \
    const struct cpu_image_kern cpu_image_##isa = {.channel_sums = channel_sums,                   \
                                                   .affine = affine,                               \
                                                   .layer_norm = layer_norm,                       \
                                                   .act = act_row,                                 \
                                                   .gate_add = gate_add,                           \
                                                   .spread = spread}
#define TABLE(isa) TABLE_(isa)
TABLE(CPU_ISA);
