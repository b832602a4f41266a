/* Packed weights as 16-bit fixed point, and as tiles of their two digits. Included by kern_gemm_fixed.c alone.
 *
 * An output has one scale S for all its weights: w = S W with |W| <= FIXED_TOP, to half a unit (2^-16 of the largest). A code is
 * a 16-bit level A = FIXED level (a shift, or a table), a group's scale becomes a 16-bit factor, and a rounding high multiply
 * (VPMULHRSW) with the group's offset added makes W: four instructions for 32 weights. */
#ifndef ENGINE_CPU_GEMM_FIXED_H
#define ENGINE_CPU_GEMM_FIXED_H

#include <float.h>

#include "engine/cpu/gemm_vec.h"

#ifdef CPU_ISA_amx
#include "engine/cpu/amx.h"

#define FIXED_TOP   30000
#define FIXED_K     64     /* k of a tile of bytes: two chunks */
#define FIXED_DIGIT 0x8080 /* W + this: both digits' bytes are unsigned, 128 over */

/* What a panel ends with. */
struct fixed_scale {
    float s[LANES], inv[LANES]; /* S, and its inverse or 0 */
};
_Static_assert(sizeof(struct fixed_scale) == GEMM_TAIL, "gemm__panel_bytes");
INLINE struct fixed_scale *fixed_scale_at(const uint8_t *panel, size_t panel_bytes)
{
    return (struct fixed_scale *)(void *)(uintptr_t)(panel + panel_bytes -
                                                     sizeof(struct fixed_scale));
}

/* Of a level of 1. Codes that are whole numbers in order count from the middle, so that their levels are -half to half - 1 and
 * fill 16 bits. */
INLINE float fixed_unit(const struct gemm_spec s)
{
    return s.level == LEVEL_INT    ? (float)(1 << (16 - s.bits))
           : s.level == LEVEL_NF4  ? 32767.0F
           : s.level == LEVEL_E4M3 ? 64.0F
                                   : 2048.0F;
}

/* The middle's distance from the code of 0. */
INLINE float fixed_middle(const struct gemm_spec s)
{
    return s.level == LEVEL_INT ? (float)((1 << (s.bits - 1)) - s.bias) : 0;
}

/* Least and largest level. */
INLINE void fixed_range(const struct gemm_spec s, float *least, float *most)
{
    const float half = (float)(1 << (s.bits - 1));
    *most = s.level == LEVEL_INT    ? half - 1
            : s.level == LEVEL_NF4  ? 1
            : s.level == LEVEL_E4M3 ? 480
                                    : 12;
    *least = s.level == LEVEL_INT ? -half : -*most;
}

/* D and the offset of the middle of group g. */
INLINE void fixed_group(const uint8_t *panel, const struct gemm_spec s, int64_t g, vf *d, vf *m)
{
    group_scale(panel, s, g, d, m);
    if (fixed_middle(s) != 0)
        *m = v_fma(*d, v_set(fixed_middle(s)), *m);
}

/* S of all outputs of a packed panel. */
INLINE void fixed_finish(const struct gemm_spec s, uint8_t *panel, size_t panel_bytes, int64_t n_in)
{
    float least, most;
    fixed_range(s, &least, &most);
    const __m512 widest = _mm512_set1_ps(32768 / fixed_unit(s) / 32767);
    const __m512 top = _mm512_set1_ps(1.0F / FIXED_TOP);
    __m512 max = _mm512_setzero_ps();
    __mmask16 bad = 0;
    for (int64_t g = 0; g < n_in / s.group; g++) {
        vf d, m;
        fixed_group(panel, s, g, &d, &m);
        const __m512 lo = _mm512_abs_ps((__m512)v_fma(d, v_set(least), m));
        const __m512 hi = _mm512_abs_ps((__m512)v_fma(d, v_set(most), m));
        bad |= _mm512_cmp_ps_mask(_mm512_add_ps(lo, hi), _mm512_set1_ps(FLT_MAX), _CMP_NLE_UQ);
        max = _mm512_max_ps(max, _mm512_mul_ps(_mm512_max_ps(lo, hi), top));
        max = _mm512_max_ps(max, _mm512_mul_ps(_mm512_abs_ps((__m512)d), widest));
    }
    /* What is not finite makes its output not a number; tiny ones are 0. */
    const __mmask16 some = _mm512_cmp_ps_mask(max, _mm512_set1_ps(0x1p-120F), _CMP_GE_OQ) & ~bad;
    struct fixed_scale *o = fixed_scale_at(panel, panel_bytes);
    _mm512_storeu_ps(o->inv, _mm512_maskz_div_ps(some, _mm512_set1_ps(1), max));
    max = _mm512_maskz_mov_ps(some, max);
    _mm512_storeu_ps(o->s, _mm512_mask_mov_ps(max, bad, _mm512_set1_ps(__builtin_nanf(""))));
}

/* A 16-bit number of every lane in both its words. */
INLINE __m512i fixed_both(__m512 v)
{
    uint16_t twice[32];
    UNROLL(32)
    for (int i = 0; i < 32; i++)
        twice[i] = (uint16_t)(i & ~1);
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(twice), _mm512_cvtps_epi32(v));
}

/* A group's factor and offset; the offset has FIXED_DIGIT in it. */
INLINE void fixed_factors(const struct gemm_spec s, const uint8_t *panel, int64_t g, __m512 inv,
                          __m512i *factor, __m512i *offset)
{
    vf d, m;
    fixed_group(panel, s, g, &d, &m);
    *factor = fixed_both(
        _mm512_mul_ps((__m512)d, _mm512_mul_ps(inv, _mm512_set1_ps(32768 / fixed_unit(s)))));
    *offset = _mm512_set1_epi16((short)FIXED_DIGIT);
    if (s.has_min || fixed_middle(s) != 0)
        *offset = _mm512_add_epi16(*offset, fixed_both(_mm512_mul_ps((__m512)m, inv)));
}

typedef uint16_t fixed_u16 __attribute__((vector_size(64)));

/* Words shifted left by n, or right by -n. */
INLINE __m512i fixed_shift(__m512i v, const int n)
{
    return n >= 0 ? (__m512i)((fixed_u16)v << n) : (__m512i)((fixed_u16)v >> -n);
}

/* Level i of a table. */
INLINE float fixed_level(const struct gemm_spec s, int i)
{
    return s.level == LEVEL_FP4  ? (float)quant_levels_fp4[i]
           : s.level == LEVEL_B4 ? quant_levels_b4[i]
                                 : quant_levels_nf4[i];
}

/* Bytes with the codes k = 16h + 4i + b of a chunk, of 5 and 6 bits with all their bits; 4 bits: both halves. */
INLINE __m512i fixed_codes(const struct gemm_spec s, const uint8_t *chunk, int i, int h)
{
    const __m512i v = _mm512_loadu_si512(chunk + (i + (s.bits == 8 ? 4 * h : 0)) * 64);
    if (s.bits == 8 || s.bits == 4)
        return v;
    __m512i q = _mm512_srli_epi32(v, (unsigned)(4 * h));
    UNROLL(2)
    for (int plane = 0; plane < s.bits - 4; plane++) {
        const int to = 4 + plane, from = 4 * h + i; /* gemm_high_bit */
        __m512i bit = _mm512_loadu_si512(chunk + (4 + plane) * 64);
        bit = from >= to ? _mm512_srli_epi32(bit, (unsigned)(from - to))
                         : _mm512_slli_epi32(bit, (unsigned)(to - from));
        const __m512i low = _mm512_set1_epi8((char)((1 << to) - 1));
        q = _mm512_ternarylogic_epi32(low, q, bit, 0xca); /* low ? q : bit */
    }
    return q;
}

/* The levels of a code in bits [at, at + bits) of every word; what else is in the word is noise. */
INLINE __m512i fixed_words(const struct gemm_spec s, __m512i q, const int at)
{
    if (s.level == LEVEL_E4M3) {
        const __m512 unit = _mm512_set1_ps(fixed_unit(s));
        const __m512i v = fixed_shift(q, -at);
        const __m512i lo = _mm512_cvtps_epi32(_mm512_mul_ps((__m512)v_e4m3((vu)v), unit));
        const __m512i hi =
            _mm512_cvtps_epi32(_mm512_mul_ps((__m512)v_e4m3((vu)_mm512_srli_epi32(v, 16)), unit));
        return _mm512_mask_blend_epi16(0xaaaaaaaa, lo, _mm512_slli_epi32(hi, 16));
    }
    if (s.level != LEVEL_INT) {
        int16_t t[32];
        UNROLL(32)
        for (int i = 0; i < 32; i++) {
            const float v = fixed_level(s, i & 15) * fixed_unit(s);
            t[i] = (int16_t)(v < 0 ? v - 0.5F : v + 0.5F);
        }
        return _mm512_permutexvar_epi16(fixed_shift(q, -at), _mm512_loadu_si512(t));
    }
    const int up = 16 - s.bits - at; /* so that it becomes a signed number */
    q = fixed_shift(q, up);
    const __m512i mask = _mm512_set1_epi16((short)-(1 << (16 - s.bits)));
    return _mm512_ternarylogic_epi32(q, mask, _mm512_set1_epi16((short)0x8000), 0x6a); /* & ^ */
}

/* W + FIXED_DIGIT of k = 4i .. 4i + 3 of half h (all of them with 8 bits: i < 8) of a chunk: words of 4i and 4i + 2, and of
 * 4i + 1 and 4i + 3. */
INLINE void fixed_pair(const struct gemm_spec s, const uint8_t *chunk, int i, int h, __m512i factor,
                       __m512i offset, __m512i *even, __m512i *odd)
{
    const __m512i q = fixed_codes(s, chunk, i, h);
    const int at = s.bits == 4 ? 4 * h : 0;
    *even = _mm512_add_epi16(_mm512_mulhrs_epi16(fixed_words(s, q, at), factor), offset);
    *odd = _mm512_add_epi16(_mm512_mulhrs_epi16(fixed_words(s, q, at + 8), factor), offset);
}

/* Chunk `at` of a panel as rows 8 (at & 1) .. + 7 of two tiles: of the bytes k .. k + 3 of the higher digits and of the lower
 * ones, or, `words`, of the words k, k + 2 and k + 1, k + 3: six instructions fewer for 64 weights, but a product more. */
INLINE void fixed_chunk(const struct gemm_spec s, const bool words, const uint8_t *panel,
                        int64_t n_in, int64_t at, __m512 inv, uint8_t *tile)
{
    const int per = GEMM_CHUNK / s.group;
    const __m512i upper = _mm512_set1_epi16((short)0xff00);
    const uint8_t *chunk =
        panel + gemm_scale_bytes(s, n_in, LANES) + (size_t)at * gemm_chunk_bytes(s, LANES);
    __m512i factor = _mm512_setzero_si512(), offset = factor;
    tile += (at & 1) * (AMX_TILE / 2);
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        if (h < per)
            fixed_factors(s, panel, at * per + h, inv, &factor, &offset);
        UNROLL(4)
        for (int i = 0; i < 4; i++) {
            uint8_t *to = tile + (4 * h + i) * 64;
            __m512i a, b; /* even, odd; then higher, lower */
            fixed_pair(s, chunk, i, h, factor, offset, &a, &b);
            if (!words) { /* upper ? second : first */
                const __m512i e = a, o = b;
                a = _mm512_ternarylogic_epi32(_mm512_srli_epi16(e, 8), o, upper, 0xd8);
                b = _mm512_ternarylogic_epi32(e, _mm512_slli_epi16(o, 8), upper, 0xd8);
            }
            _mm512_store_si512(to, a);
            _mm512_store_si512(to + AMX_TILE, b);
        }
    }
}

#endif
#endif
