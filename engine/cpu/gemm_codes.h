/* Codes of packed weights as vectors of f32, for the AMX kernels. Included by kern_gemm_*.c alone, after gemm_vec.h. */
#ifndef ENGINE_CPU_GEMM_CODES_H
#define ENGINE_CPU_GEMM_CODES_H

#include "engine/cpu/gemm_vec.h"

#ifdef CPU_ISA_amx

/* f32 of level i of a table, or its bf16. */
INLINE float codes_level(const struct gemm_spec s, const bool as_bf16, int i)
{
    const float v = s.level == LEVEL_INT   ? (float)(i - s.bias)
                    : s.level == LEVEL_FP4 ? (float)quant_levels_fp4[i & 15]
                    : s.level == LEVEL_B4  ? quant_levels_b4[i & 15]
                                           : quant_levels_nf4[i & 15];
    return as_bf16 ? bf16_to_f32(f32_to_bf16(v)) : v;
}

/* f32 of byte b of every lane, of 6 or 8 bits: the integer goes into the mantissa of 2^23, where it is (bit 23 is no
 * longer of the mantissa), and is scaled when the rest is taken off. */
INLINE __m512 codes_byte(const struct gemm_spec s, __m512i q, int b)
{
    const int shift = s.bits == 8 ? b / 2 * 16 : b / 3 * 8, at = 8 * b - shift;
    const __m512i mask = _mm512_set1_epi32(((1 << s.bits) - 1) << at);
    q = _mm512_ternarylogic_epi32(_mm512_srli_epi32(q, (unsigned)shift), mask,
                                  _mm512_set1_epi32(0x4b000000), 0xea); /* (q & mask) | 2^23 */
    const __m512 off = _mm512_set1_ps((float)((0x800000 >> at) + s.bias));
    if (!at)
        return _mm512_sub_ps(_mm512_castsi512_ps(q), off);
    return _mm512_fmsub_ps(_mm512_castsi512_ps(q), _mm512_set1_ps(1.0F / (float)(1 << at)), off);
}

/* f32 of bytes o and o + 2 of every lane (4 bits: of their low or high four, h). Bits above a code are noise. Levels that
 * bf16 does not hold are rounded to it where as_bf16. */
INLINE void codes_pair(const struct gemm_spec s, const bool as_bf16, __m512i q, int o, int h,
                       __m512 *a, __m512 *b)
{
    if (s.level == LEVEL_E4M3) {
        *a = (__m512)v_e4m3((vu)_mm512_srli_epi32(q, (unsigned)(8 * o)));
        *b = (__m512)v_e4m3((vu)_mm512_srli_epi32(q, (unsigned)(8 * o + 16)));
        return;
    }
    if (s.bits > 5) {
        *a = codes_byte(s, q, o);
        *b = codes_byte(s, q, o + 2);
        return;
    }
    float t[32];
    uint16_t t16[32];
    UNROLL(32)
    for (int i = 0; i < 32; i++) {
        t[i] = codes_level(s, as_bf16, s.bits == 4 ? i & 15 : i);
        t16[i] = f32_to_bf16(t[i]);
    }
    q = _mm512_srli_epi32(q, (unsigned)(8 * o + (s.bits == 4 ? 4 * h : 0)));
    *a = s.bits == 4 ? _mm512_permutexvar_ps(q, _mm512_loadu_ps(t))
                     : _mm512_permutex2var_ps(_mm512_loadu_ps(t), q, _mm512_loadu_ps(t + 16));
    if (as_bf16 || s.level == LEVEL_INT || s.level == LEVEL_FP4)
        /* By the upper word of the lane, as bf16 with zeros below: no shift. */
        *b = _mm512_castsi512_ps(
            _mm512_maskz_permutexvar_epi16(0xaaaaaaaa, q, _mm512_loadu_si512(t16)));
    else
        *b = _mm512_permutexvar_ps(_mm512_srli_epi32(q, 16), _mm512_loadu_ps(t));
}

/* Bytes with the codes k = 16h + 4i + b of a chunk, of 5 and 6 bits with all their bits; 4 bits: both halves. */
INLINE __m512i codes_bytes(const struct gemm_spec s, const uint8_t *chunk, int i, int h)
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

#endif
#endif
