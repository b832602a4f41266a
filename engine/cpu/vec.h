/* Sixteen f32 lanes on every ISA: one zmm (avx512, amx), two ymm (avx2), four xmm (scalar). Kernels are
 * written once against this; -DCPU_ISA_<isa> picks the body. Sixteen everywhere, because a KV block has 16
 * tokens and because one lane count gives one reduction order. Only kern_*.c include this: an object
 * without wide flags must not. NaN: vmax(a, b) and vmin(a, b) return b when either is NaN. */
#ifndef ENGINE_CPU_VEC_H
#define ENGINE_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#include "engine/quant/quant.h"

#define VL 16
#define VI static inline __attribute__((always_inline))

static inline uint32_t vec_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float vec_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

#if defined(CPU_ISA_avx512) || defined(CPU_ISA_amx)
#include "engine/cpu/vec_avx512.h"
#elif defined(CPU_ISA_avx2)
#include "engine/cpu/vec_avx2.h"
#else
#include "engine/cpu/vec_scalar.h"
#endif

/* Reductions: lane i with i + 8, then + 4, + 2, + 1. */
#if defined(CPU_ISA_scalar)
#define VEC_REDUCE(name, expr)                                                                     \
    VI float name(struct vf a)                                                                     \
    {                                                                                              \
        float t[VL];                                                                               \
        vstore(t, a);                                                                              \
        for (int w = VL / 2; w >= 1; w /= 2)                                                       \
            for (int i = 0; i < w; i++) {                                                          \
                float x = t[i], y = t[i + w];                                                      \
                t[i] = (expr);                                                                     \
            }                                                                                      \
        return t[0];                                                                               \
    }
VEC_REDUCE(vhsum, x + y)
VEC_REDUCE(vhmax, x > y ? x : y)
#else
#define VEC_REDUCE(name, op)                                                                       \
    VI float name(struct vf a)                                                                     \
    {                                                                                              \
        __m256 hi, lo = vec_fold(a, &hi);                                                          \
        __m256 w = _mm256_##op##_ps(lo, hi);                                                       \
        __m128 x = _mm_##op##_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));          \
        x = _mm_##op##_ps(x, _mm_movehl_ps(x, x));                                                 \
        return _mm_cvtss_f32(_mm_##op##_ss(x, _mm_movehdup_ps(x)));                                \
    }
VEC_REDUCE(vhsum, add)
VEC_REDUCE(vhmax, max)
#endif

/* e^x, relative error below 2e-7; 0 under -87.3, saturates at e^88.3; NaN stays NaN. After Cephes' expf:
 * x = n ln 2 + r, a polynomial of degree 7 in r, times 2^n. Every lane is computed alike, so a masked tail
 * has the bits of a full vector. */
VI struct vf vexp(struct vf x)
{
    const struct vf magic = vset1(12582912.0f);
    struct vf c = vmin(vset1(88.3f), vmax(vset1(-87.3f), x));
    struct vf t = vadd(vmul(c, vset1(1.44269504088896341f)), magic);
    struct vf n = vsub(t, magic);
    struct vf r = vfma(n, vset1(-0.693359375f), c);
    r = vfma(n, vset1(2.12194440e-4f), r);
    struct vf p = vset1(1.9875691500e-4f);
    p = vfma(p, r, vset1(1.3981999507e-3f));
    p = vfma(p, r, vset1(8.3334519073e-3f));
    p = vfma(p, r, vset1(4.1665795894e-2f));
    p = vfma(p, r, vset1(1.6666665459e-1f));
    p = vfma(p, r, vset1(5.0000001201e-1f));
    p = vadd(vfma(vmul(p, r), r, r), vset1(1.0f));
    p = vmul(p, vexp2_magic(t));
    return vsel_lt(x, vset1(-87.3f), vset1(0), p);
}

/* tanh, relative error below 4e-7. After Cephes' tanhf: an odd polynomial below 0.625, from there
 * 1 - 2 / (e^2|x| + 1) with the sign put back. */
VI struct vf vtanh(struct vf x)
{
    const struct vf one = vset1(1);
    struct vf a = vabs(x), z = vmul(x, x);
    struct vf p = vset1(-5.70498872745e-3f);
    p = vfma(p, z, vset1(2.06390887954e-2f));
    p = vfma(p, z, vset1(-5.37397155531e-2f));
    p = vfma(p, z, vset1(1.33314422036e-1f));
    p = vfma(p, z, vset1(-3.33332819422e-1f));
    p = vfma(vmul(p, z), x, x);
    struct vf t = vsub(one, vdiv(vset1(2), vadd(vexp(vadd(a, a)), one)));
    t = vsel_lt(x, vset1(0), vsub(vset1(0), t), t);
    return vsel_lt(a, vset1(0.625f), p, t);
}

/* The lane of e^x; for the few scalars that must have the vector's bits. */
VI float vexp1(float x)
{
    float r[VL];
    vstore(r, vexp(vset1(x)));
    return r[0];
}

#endif
