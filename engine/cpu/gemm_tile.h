/* Packed weights to tiles of bf16. Included by the AMX kernels kern_gemm_*.c alone, after gemm_vec.h. */
#ifndef ENGINE_CPU_GEMM_TILE_H
#define ENGINE_CPU_GEMM_TILE_H

#include "engine/cpu/amx.h"
#include "engine/cpu/gemm_vec.h"

/* A tile's row 8h + 2i + o holds the pair k = 16h + 4i + o and + 2 */

/* bf16 of i - bias for the 5-bit i (plus `from`). With 4 bits, bit 4 of an index is noise. */
INLINE __m512i level_table(int from, int bits, int bias)
{
    uint16_t t[32];
    UNROLL(32)
    for (int i = 0; i < 32; i++)
        t[i] = f32_to_bf16((float)(from + (bits == 4 ? i & 15 : i) - bias));
    return _mm512_loadu_si512(t);
}

/* The low byte of both words of every lane, minus bias: exact through f32. */
INLINE __m512i byte_pair(__m512i v, int bias)
{
    const __m512i mant = _mm512_set1_epi32(0x4b000000), mask = _mm512_set1_epi32(255);
    const __m512 off = _mm512_set1_ps((float)(0x800000 + bias));
    __m512i lo = _mm512_ternarylogic_epi32(v, mask, mant, 0xea); /* (v & mask) | mant */
    __m512i hi = _mm512_ternarylogic_epi32(_mm512_srli_epi32(v, 16), mask, mant, 0xea);
    lo = _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(lo), off));
    hi = _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(hi), off));
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(lo, 16), hi);
}

typedef uint16_t words __attribute__((vector_size(64)));

/* 16-bit lanes shifted right by n, or left by -n. */
INLINE __m512i shift_words(__m512i v, int n)
{
    return n >= 0 ? (__m512i)((words)v >> n) : (__m512i)((words)v << -n);
}

/* The low byte of both words of every lane as e4m3: exact. */
INLINE __m512i e4m3_pair(__m512i v)
{
    __m512i lo = (__m512i)v_e4m3((vu)v), hi = (__m512i)v_e4m3((vu)_mm512_srli_epi32(v, 16));
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(lo, 16), hi);
}

/* bf16 of a table of 16, twice. NF4's levels are rounded here. */
INLINE __m512i level16_table(const enum quant_level kind)
{
    uint16_t t[32];
    for (int i = 0; i < 32; i++)
        t[i] = f32_to_bf16(kind == LEVEL_FP4  ? (float)quant_levels_fp4[i & 15]
                           : kind == LEVEL_B4 ? quant_levels_b4[i & 15]
                                              : quant_levels_nf4[i & 15]);
    return _mm512_loadu_si512(t);
}

INLINE void chunk_expand(const struct gemm_spec s, const uint8_t *chunk, uint8_t *tile)
{
    if (s.level == LEVEL_E4M3) {
        UNROLL(8)
        for (int i = 0; i < 8; i++) {
            __m512i v = _mm512_loadu_si512(chunk + i * 64);
            _mm512_store_si512(tile + (2 * i) * 64, e4m3_pair(v));
            _mm512_store_si512(tile + (2 * i + 1) * 64, e4m3_pair(_mm512_srli_epi32(v, 8)));
        }
        return;
    }
    if (s.bits == 8) {
        UNROLL(8)
        for (int i = 0; i < 8; i++) {
            __m512i v = _mm512_loadu_si512(chunk + i * 64);
            _mm512_store_si512(tile + (2 * i) * 64, byte_pair(v, s.bias));
            _mm512_store_si512(tile + (2 * i + 1) * 64, byte_pair(_mm512_srli_epi32(v, 8), s.bias));
        }
        return;
    }
    const __m512i level =
        s.level != LEVEL_INT ? level16_table(s.level) : level_table(0, s.bits, s.bias);
    const __m512i level2 = level_table(32, s.bits, s.bias);
    const __m512i low4 = _mm512_set1_epi16(15), low5 = _mm512_set1_epi16(31);
    __m512i high[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int plane = 0; plane < s.bits - 4; plane++)
        high[plane] = _mm512_loadu_si512(chunk + (4 + plane) * 64);
    UNROLL(4)
    for (int i = 0; i < 4; i++) {
        __m512i v = _mm512_loadu_si512(chunk + i * 64);
        UNROLL(4)
        for (int t = 0; t < 4; t++) {
            const int h = t & 1, o = t >> 1, at = 8 * o + 4 * h + i; /* gemm_high_bit */
            __m512i q = shift_words(v, 8 * o + 4 * h);
            if (s.bits > 4) { /* bit 4 of the plane, the rest of q */
                __m512i b = shift_words(high[0], at - 4);
                q = _mm512_ternarylogic_epi32(low4, q, b, 0xca); /* mask ? q : b */
            }
            if (s.bits > 5) {
                __m512i b = shift_words(high[1], at - 5);
                q = _mm512_ternarylogic_epi32(low5, q, b, 0xca);
            }
            /* The permutations look at the low five (six) bits of an index. */
            if (s.bits < 6)
                q = _mm512_permutexvar_epi16(q, level);
            else
                q = _mm512_permutex2var_epi16(level, q, level2);
            _mm512_store_si512(tile + (8 * h + 2 * i + o) * 64, q);
        }
    }
}

#endif
