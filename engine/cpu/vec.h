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
/* ---------------------------------------------------------------- avx512 */
#include <immintrin.h>

struct vf {
    __m512 v;
};
#define VEC_FN2(name, op)                                                                          \
    VI struct vf name(struct vf a, struct vf b)                                                    \
    {                                                                                              \
        return (struct vf){_mm512_##op##_ps(a.v, b.v)};                                            \
    }
VEC_FN2(vadd, add)
VEC_FN2(vsub, sub)
VEC_FN2(vmul, mul)
VEC_FN2(vdiv, div)
VEC_FN2(vmax, max)
VEC_FN2(vmin, min)
VI __mmask16 vec_first(int n) /* lanes below n, n in 0..16 */
{
    return (__mmask16)((1u << n) - 1);
}
VI struct vf vset1(float x)
{
    return (struct vf){_mm512_set1_ps(x)};
}
VI struct vf vload(const float *p)
{
    return (struct vf){_mm512_loadu_ps(p)};
}
VI struct vf vloadn(const float *p, int n)
{
    return (struct vf){_mm512_maskz_loadu_ps(vec_first(n), p)};
}
VI void vstore(float *p, struct vf a)
{
    _mm512_storeu_ps(p, a.v);
}
VI void vstoren(float *p, struct vf a, int n)
{
    _mm512_mask_storeu_ps(p, vec_first(n), a.v);
}
VI struct vf vfma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm512_fmadd_ps(a.v, b.v, c.v)};
}
/* a where x < y, else b */
VI struct vf vsel_lt(struct vf x, struct vf y, struct vf a, struct vf b)
{
    return (struct vf){_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}
/* v in lanes [lo, hi), `other` elsewhere; 0 <= lo, hi <= 16 */
VI struct vf vkeep(struct vf v, int lo, int hi, struct vf other)
{
    __mmask16 m = (__mmask16)(vec_first(hi) & ~vec_first(lo));
    return (struct vf){_mm512_mask_blend_ps(m, other.v, v.v)};
}
/* One bit a lane. */
VI uint32_t vbits_gt(struct vf a, struct vf b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}
VI uint32_t vbits_nan(struct vf a)
{
    return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
}
VI uint32_t vbits_eq(struct vf a, struct vf b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}
/* 2^n for the integer n in the low bits of a float made by adding 1.5 * 2^23 */
VI struct vf vexp2_magic(struct vf t)
{
    __m512i n =
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(t.v), _mm512_set1_epi32(127)), 23);
    return (struct vf){_mm512_castsi512_ps(n)};
}
VI struct vf vabs(struct vf a)
{
    return (struct vf){_mm512_abs_ps(a.v)};
}
VI struct vf vload_f16(const uint16_t *p)
{
    return (struct vf){_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p))};
}
VI struct vf vload_bf16(const uint16_t *p)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return (struct vf){_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}
VI void vstore_f16(uint16_t *p, struct vf a)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
VI void vstore_bf16(uint16_t *p, struct vf a)
{
    __m512i u = _mm512_castps_si512(a.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(
        _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(64));
    r = _mm512_mask_blend_epi32((__mmask16)vbits_nan(a), r, quiet);
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(r));
}
VI __m256 vec_fold(struct vf a, __m256 *hi)
{
    *hi = _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(a.v), 1));
    return _mm512_castps512_ps256(a.v);
}

#elif defined(CPU_ISA_avx2)
/* ---------------------------------------------------------------- avx2 */
#include <immintrin.h>

struct vf {
    __m256 a, b;
};
#define VEC_FN2(name, op)                                                                          \
    VI struct vf name(struct vf x, struct vf y)                                                    \
    {                                                                                              \
        return (struct vf){_mm256_##op##_ps(x.a, y.a), _mm256_##op##_ps(x.b, y.b)};                \
    }
VEC_FN2(vadd, add)
VEC_FN2(vsub, sub)
VEC_FN2(vmul, mul)
VEC_FN2(vdiv, div)
VEC_FN2(vmax, max)
VEC_FN2(vmin, min)
VI __m256i vec_lt(int first, int n) /* all ones in lanes whose index first + i is below n */
{
    __m256i i =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), i);
}
VI struct vf vset1(float x)
{
    return (struct vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
VI struct vf vload(const float *p)
{
    return (struct vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
VI struct vf vloadn(const float *p, int n)
{
    return (struct vf){_mm256_maskload_ps(p, vec_lt(0, n)),
                       _mm256_maskload_ps(p + 8, vec_lt(8, n))};
}
VI void vstore(float *p, struct vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
VI void vstoren(float *p, struct vf x, int n)
{
    _mm256_maskstore_ps(p, vec_lt(0, n), x.a);
    _mm256_maskstore_ps(p + 8, vec_lt(8, n), x.b);
}
VI struct vf vfma(struct vf x, struct vf y, struct vf z)
{
    return (struct vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
VI struct vf vsel_lt(struct vf x, struct vf y, struct vf p, struct vf q)
{
    return (struct vf){_mm256_blendv_ps(q.a, p.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
                       _mm256_blendv_ps(q.b, p.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
VI struct vf vkeep(struct vf v, int lo, int hi, struct vf other)
{
    __m256i ma = _mm256_andnot_si256(vec_lt(0, lo), vec_lt(0, hi));
    __m256i mb = _mm256_andnot_si256(vec_lt(8, lo), vec_lt(8, hi));
    return (struct vf){_mm256_blendv_ps(other.a, v.a, _mm256_castsi256_ps(ma)),
                       _mm256_blendv_ps(other.b, v.b, _mm256_castsi256_ps(mb))};
}
#define VEC_BITS(cmp, x, y)                                                                        \
    ((uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((x).a, (y).a, cmp)) |                              \
     (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((x).b, (y).b, cmp)) << 8)
VI uint32_t vbits_gt(struct vf x, struct vf y)
{
    return VEC_BITS(_CMP_GT_OQ, x, y);
}
VI uint32_t vbits_nan(struct vf x)
{
    return VEC_BITS(_CMP_UNORD_Q, x, x);
}
VI uint32_t vbits_eq(struct vf x, struct vf y)
{
    return VEC_BITS(_CMP_EQ_OQ, x, y);
}
VI __m256 vec_exp2_half(__m256 t)
{
    __m256i n = _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
}
VI struct vf vexp2_magic(struct vf t)
{
    return (struct vf){vec_exp2_half(t.a), vec_exp2_half(t.b)};
}
VI struct vf vabs(struct vf x)
{
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return (struct vf){_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
VI struct vf vload_f16(const uint16_t *p)
{
    return (struct vf){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                       _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8)))};
}
VI __m256 vec_bf16_half(const uint16_t *p)
{
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
VI struct vf vload_bf16(const uint16_t *p)
{
    return (struct vf){vec_bf16_half(p), vec_bf16_half(p + 8)};
}
VI void vstore_f16(uint16_t *p, struct vf x)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
VI __m256i vec_to_bf16_half(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(
        _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(64));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(r, quiet, nan);
}
VI void vstore_bf16(uint16_t *p, struct vf x)
{
    __m256i w = _mm256_packus_epi32(vec_to_bf16_half(x.a), vec_to_bf16_half(x.b));
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(w, 0xd8));
}
VI __m256 vec_fold(struct vf x, __m256 *hi)
{
    *hi = x.b;
    return x.a;
}

#else
/* ---------------------------------------------------------------- scalar: x86-64's own 128 bits */
typedef float vec4 __attribute__((vector_size(16)));
typedef int32_t vec4i __attribute__((vector_size(16)));

struct vf {
    vec4 v[VL / 4];
};
#define VEC_EACH(expr)                                                                             \
    struct vf r;                                                                                   \
    for (int i = 0; i < VL / 4; i++)                                                               \
        r.v[i] = (expr);                                                                           \
    return r
#define VEC_FN2(name, expr)                                                                        \
    VI struct vf name(struct vf a, struct vf b)                                                    \
    {                                                                                              \
        VEC_EACH(expr);                                                                            \
    }
VI vec4 vec_pick(vec4i m, vec4 a, vec4 b) /* a where m is all ones, b where 0 */
{
    return (vec4)((m & (vec4i)a) | (~m & (vec4i)b));
}
VEC_FN2(vadd, a.v[i] + b.v[i])
VEC_FN2(vsub, a.v[i] - b.v[i])
VEC_FN2(vmul, a.v[i] * b.v[i])
VEC_FN2(vdiv, a.v[i] / b.v[i])
VEC_FN2(vmax, vec_pick(a.v[i] > b.v[i], a.v[i], b.v[i]))
VEC_FN2(vmin, vec_pick(a.v[i] < b.v[i], a.v[i], b.v[i]))
VI struct vf vset1(float x)
{
    VEC_EACH(((vec4){x, x, x, x}));
}
VI struct vf vload(const float *p)
{
    struct vf r;
    memcpy(&r, p, sizeof r);
    return r;
}
VI struct vf vloadn(const float *p, int n)
{
    if (n == VL)
        return vload(p);
    float t[VL] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return vload(t);
}
VI void vstore(float *p, struct vf a)
{
    memcpy(p, &a, sizeof a);
}
VI void vstoren(float *p, struct vf a, int n)
{
    if (n == VL)
        vstore(p, a);
    else
        memcpy(p, &a, (size_t)n * sizeof *p);
}
VI struct vf vfma(struct vf a, struct vf b, struct vf c)
{
    VEC_EACH(a.v[i] * b.v[i] + c.v[i]);
}
VI struct vf vsel_lt(struct vf x, struct vf y, struct vf a, struct vf b)
{
    VEC_EACH(vec_pick(x.v[i] < y.v[i], a.v[i], b.v[i]));
}
VI struct vf vkeep(struct vf v, int lo, int hi, struct vf other)
{
    const vec4i lane = {0, 1, 2, 3};
    VEC_EACH(vec_pick((lane + 4 * i >= lo) & (lane + 4 * i < hi), v.v[i], other.v[i]));
}
VI uint32_t vec_bits4(vec4i m, int i)
{
    return (uint32_t)((m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8)) << (4 * i);
}
#define VEC_BITS(expr)                                                                             \
    uint32_t r = 0;                                                                                \
    for (int i = 0; i < VL / 4; i++)                                                               \
        r |= vec_bits4(expr, i);                                                                   \
    return r
VI uint32_t vbits_gt(struct vf a, struct vf b)
{
    VEC_BITS(a.v[i] > b.v[i]);
}
VI uint32_t vbits_nan(struct vf a)
{
    VEC_BITS(a.v[i] != a.v[i]);
}
VI uint32_t vbits_eq(struct vf a, struct vf b)
{
    VEC_BITS(a.v[i] == b.v[i]);
}
VI struct vf vexp2_magic(struct vf t)
{
    VEC_EACH((vec4)(((vec4i)t.v[i] + 127) << 23));
}
VI struct vf vabs(struct vf a)
{
    VEC_EACH((vec4)((vec4i)a.v[i] & 0x7fffffff));
}
VI float vec_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
    if (e == 0) { /* subnormal: exact in f32 */
        float f = (float)m * 0x1p-24f;
        return vec_float(vec_bits(f) | sign);
    }
    if (e == 31)
        return vec_float(sign | 0x7f800000u | m << 13 | (m ? 1u << 22 : 0));
    return vec_float(sign | (e + 112) << 23 | m << 13);
}
VI uint16_t vec_to_f16(float f)
{
    uint32_t u = vec_bits(f), sign = (u >> 16) & 0x8000, r;
    u &= 0x7fffffffu;
    if (u >= 0x47800000u) /* 65536 and up, Inf, NaN */
        r = u > 0x7f800000u ? 0x7e00 | ((u >> 13) & 0x3ff) : 0x7c00;
    else if (u < 0x38800000u) /* below 2^-14: adding 0.5 rounds at the subnormal step */
        r = vec_bits(vec_float(u) + 0.5f) - 0x3f000000u;
    else
        r = (u - 0x38000000u + 0xfff + ((u >> 13) & 1)) >> 13;
    return (uint16_t)(r | sign);
}
VI struct vf vload_f16(const uint16_t *p)
{
    float t[VL];
    for (int i = 0; i < VL; i++)
        t[i] = vec_from_f16(p[i]);
    return vload(t);
}
VI struct vf vload_bf16(const uint16_t *p)
{
    float t[VL];
    for (int i = 0; i < VL; i++)
        t[i] = bf16_to_f32(p[i]);
    return vload(t);
}
VI void vstore_f16(uint16_t *p, struct vf a)
{
    float t[VL];
    vstore(t, a);
    for (int i = 0; i < VL; i++)
        p[i] = vec_to_f16(t[i]);
}
VI void vstore_bf16(uint16_t *p, struct vf a)
{
    float t[VL];
    vstore(t, a);
    for (int i = 0; i < VL; i++)
        p[i] = f32_to_bf16(t[i]);
}
#endif

/* ---------------------------------------------------------------- on top of the above */

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
