/* Words of 16 bits with a scale: how the AVX512 table keeps keys and values of an f16 pool where the processor multiplies
 * words (VNNI), and what it makes of queries. A half has 11 significant bits; with one scale for a token's K, or V, of a head the
 * largest value has 15, and those down to a sixteenth of it no fewer than a half has.
 *
 *   K, Q   scale = max(largest / 32767, |x| / 46200): a sum of products of two such vectors, and every part of it, stays within
 *          31 bits (Cauchy, Schwarz: |q||k| < 2^31 however many values there are)
 *   V      scale = largest / 32767
 *
 * All (nearly) zero: scale and words 0. A value that is not finite: scale NaN, words 0, so that it shows in whatever reads the
 * token. A block of a head: K as pairs of dimensions u32[head_dim / 2][16 tokens], f32 scale[16]; V as pairs of tokens
 * u32[8][v_dim], f32 scale[16]; the lower half comes first. head_dim is even. Only kern_*.c include this, after vec.h. */
#ifndef ENGINE_CPU_KV_WORDS_H
#define ENGINE_CPU_KV_WORDS_H

#include "engine/cpu/kern.h"
#include "engine/cpu/vec.h"

#ifdef CPU_ISA_avx512

#define WORD_MAX      32767.0f
#define WORD_NORM_MAX 46200.0f /* 2^15.5 less what rounding adds, and f32 sums */
#define WORD_LEAST    1e-18f /* what is smaller counts as nothing: its square is no normal number */

/* The scale of n values. */
VI float words_scale(const float *x, int n, bool norm)
{
    __m512i top = _mm512_setzero_si512();
    struct vf sum = vset1(0);
    for (int i = 0; i < n; i += VL) {
        const struct vf v = vloadn(x + i, n - i < VL ? n - i : VL);
        top = _mm512_max_epi32(top, _mm512_castps_si512(vabs(v).v)); /* NaN > Inf > all others */
        sum = vfma(v, v, sum);
    }
    const float most = vec_float((uint32_t)_mm512_reduce_max_epi32(top));
    if (most < WORD_LEAST)
        return 0;
    const float a = most / WORD_MAX, b = norm ? __builtin_sqrtf(vhsum(sum)) / WORD_NORM_MAX : 0;
    const float scale = a > b ? a : b;
    return scale < 1e30f ? scale : __builtin_nanf(""); /* NaN, Inf, and squares that are */
}

/* n values as words at dst, with zeros up to a multiple of 16; returns the scale. */
static inline float words_pack(uint32_t *dst, const float *x, int n, bool norm)
{
    const float scale = words_scale(x, n, norm);
    const __mmask16 some = scale > 0 ? 0xffff : 0; /* or zeros */
    for (int i = 0; i < n; i += VL) {
        const struct vf v = vmul(vloadn(x + i, n - i < VL ? n - i : VL), vset1(1 / scale));
        const __m512i w = _mm512_maskz_cvtps_epi32(some, v.v);
        _mm256_storeu_si256((void *)(dst + i / 2), _mm512_cvtsepi32_epi16(w));
    }
    return scale;
}

/* A token's V to its half of the pairs. */
static inline void words_write_v(const struct cpu_kv_geom *g, char *kv, const float *v, int slot)
{
    uint32_t t[CPU_ATTN_WORDS_DIM / 2];
    const __mmask32 odd = 0xaaaaaaaa;
    char *to = kv + cpu_kv_v_at(g) + (size_t)(slot / 2) * (size_t)g->v_dim * 4;
    float *scale = (float *)(void *)(kv + cpu_kv_v_scales_at(g)) + slot;
    *scale = words_pack(t, v, g->head_dim, false);
    for (int d = 0; d < g->v_dim; d += VL, to += 64) {
        const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(t + d / 2)));
        const __m512i was = _mm512_loadu_si512(to);
        _mm512_storeu_si512(to, slot % 2
                                    ? _mm512_mask_blend_epi16(odd, was, _mm512_slli_epi32(w, 16))
                                    : _mm512_mask_blend_epi16(odd, w, was));
    }
}

/* K and V of n tokens from slot on, ld floats from token to token. */
static inline void words_write(const struct cpu_kv_geom *g, char *kv, const float *k,
                               const float *v, int64_t ld, int slot, int n)
{
    uint32_t t[KV_BLOCK_TOKENS][CPU_ATTN_WORDS_DIM / 2];
    uint32_t *to = (uint32_t *)(void *)kv + slot;
    float *scale = (float *)(void *)(kv + cpu_kv_k_bytes(g)) + slot;
    for (int i = 0; i < n; i++) {
        scale[i] = words_pack(t[i], k + i * ld, g->head_dim, true);
        words_write_v(g, kv, v + i * ld, slot + i);
    }
    for (int d = 0; d < g->head_dim / 2; d++, to += KV_BLOCK_TOKENS)
        for (int i = 0; i < n; i++)
            to[i] = t[i][d];
}

#endif
#endif
