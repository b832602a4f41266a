/* Vectors of the GEMM kernels: GCC vector types of the ISA's length, and the few operations that the
 * compiler has no notation for. Included only by kern_gemm*.c, which are compiled once per ISA. */
#ifndef ENGINE_CPU_GEMM_VEC_H
#define ENGINE_CPU_GEMM_VEC_H

#include "engine/cpu/gemm_impl.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));

/* The kernels are generic functions whose constant arguments fold after inlining. Sanitizers blow the
 * results up to megabytes that compile for minutes: there, the same functions stay functions. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INLINE    static __attribute__((noinline, unused))
#define UNROLL(n) _Pragma("GCC unroll 1")
#define ROWS_MAX  2
#else
#define INLINE         static inline __attribute__((always_inline))
#define UNROLL_TEXT(x) _Pragma(#x)
#define UNROLL(n)      UNROLL_TEXT(GCC unroll n)
#define ROWS_MAX       (LANES == 16 ? 8 : 4) /* activation rows a vector of weights is expanded for */
#endif

INLINE vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE vu v_load_u(const uint8_t *p)
{
    vu v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
INLINE vf v_set(float x)
{
    return x - (vf){0};
}

/* a * b + c with one rounding where the ISA has it. */
INLINE vf v_fma(vf a, vf b, vf c)
{
#if LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* LANES halves, exact. */
INLINE vf v_load_f16(const uint8_t *p)
{
#if LANES == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif LANES == 8
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    uint16_t __attribute__((vector_size(LANES * 2))) h;
    memcpy(&h, p, sizeof h);
    vu u = __builtin_convertvector(h, vu);
    vu e = (u & 0x7fff) << 13;
    vu f = (vu)((vf)e * 0x1p112f);                   /* subnormals come out right as well */
    vu special = (vu)(e >= 0x0f800000) & 0x7f800000; /* inf, NaN */
    return (vf)(f | special | (u & 0x8000) << 16);
#endif
}

/* LANES signed bytes. */
INLINE vf v_load_i8(const uint8_t *p)
{
#if LANES == 16
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif LANES == 8
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    int8_t __attribute__((vector_size(LANES))) b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, vf);
#endif
}

/* f32 of a small unsigned integer minus bias, exact: the integer goes into the mantissa of 2^23. */
INLINE vf v_small(vu q, int bias)
{
    return (vf)(q | 0x4b000000) - (float)(0x800000 + bias);
}

/* The levels of codes 0..15; q has noise above its low four bits. */
INLINE vf v_level16(const enum quant_level kind, vu q)
{
    static const float fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const float *t = kind == LEVEL_FP4  ? fp4
                     : kind == LEVEL_B4 ? quant_levels_b4
                                        : quant_levels_nf4;
#if LANES == 16
    return (vf)_mm512_permutexvar_ps((__m512i)q, _mm512_loadu_ps(t));
#elif LANES == 8
    __m256 lo = _mm256_permutevar8x32_ps(_mm256_loadu_ps(t), (__m256i)q);
    __m256 hi = _mm256_permutevar8x32_ps(_mm256_loadu_ps(t + 8), (__m256i)q);
    return (vf)_mm256_blendv_ps(lo, hi, _mm256_castsi256_ps((__m256i)(q << 28)));
#else
    vf v;
    for (int i = 0; i < LANES; i++)
        v[i] = t[q[i] & 15];
    return v;
#endif
}

/* e4m3 in the low byte of q: its bits at a float's place, with the exponent put right; subnormals too. */
INLINE vf v_e4m3(vu q)
{
    vf v = (vf)((q & 127) << 20) * 0x1p120f;
    return (vf)((vu)v | (q & 128) << 24);
}

/* Rows row..row + n of panel p's results: y = acc + bias. A function, so that its many branches exist once
 * and not in every kernel. */
static __attribute__((noinline, unused)) void rows_store(const struct gemm_call *c, int p,
                                                         int64_t row, int n, const vf *acc)
{
    const int64_t col = (int64_t)p * LANES, left = c->n_out - col;
    for (int r = 0; r < n; r++) {
        float *y = c->y + (row + r) * c->ldy + col;
        if (left >= LANES) {
            v_store(y, c->bias ? acc[r] + v_load(c->bias + col) : acc[r]);
            continue;
        }
        for (int64_t i = 0; i < left; i++)
            y[i] = c->bias ? acc[r][i] + c->bias[col + i] : acc[r][i];
    }
}

/* Scale D and offset M of group g. */
INLINE void group_scale(const uint8_t *p, const struct gemm_spec s, int64_t g, vf *d, vf *m)
{
    const int64_t step = 1 + s.has_min;
    *m = v_set(0);
    if (s.scale == GS_F16) {
        p += g * step * 2 * LANES;
        *d = v_load_f16(p);
        if (s.has_min)
            *m = v_load_f16(p + 2 * LANES);
        return;
    }
    if (s.scale == GS_F32) {
        p += g * step * 4 * LANES;
        *d = v_load((const float *)(const void *)p);
        if (s.has_min)
            *m = v_load((const float *)(const void *)(p + 4 * LANES));
        return;
    }
    const int64_t n = GEMM_SUPER / s.group;
    p += g / n * step * (2 + n) * LANES;
    const uint8_t *q = p + step * 2 * LANES + g % n * LANES;
    *d = v_load_f16(p) * v_load_i8(q);
    if (s.has_min)
        *m = -(v_load_f16(p + 2 * LANES) * v_load_i8(q + n * LANES));
}

#endif
