/* Softmax of scores that come by tiles, as weights for tiles: units of 32 keys, one after another, for up to 32 rows of
 * queries. Included by kern_attn_amx.c alone.
 *
 * Scores are in 1/1024 of a power of 2. A row's reference is a whole power of 2: the next over its largest score of the
 * first unit of the split in which it sees a token. A score is then 16 bits of fixed point, from 48 powers under the
 * reference (a weight of 0) to 16 over it, and a bf16 weight is its upper 13 bits after a table has bent its fraction: on
 * average wrong by 1.8e-3, by rounding to bf16 alone 1.7e-3. A row that goes beyond gets a new reference, and the weights it
 * has move down by whole powers of 2. Weights are small by 2^SOFT_LOW for that; SOFT_LOW goes to the state's reference.
 * All of it depends on the row's own scores alone, in the order of units. */
#ifndef ENGINE_CPU_AMX_SOFT_H
#define ENGINE_CPU_AMX_SOFT_H

#include <math.h>

#include "engine/cpu/amx.h"
#include "engine/cpu/kern.h"
#include "engine/cpu/vec.h"

#define SOFT_ROWS  32
#define SOFT_KEYS  32
#define SOFT_UNITS (CPU_ATTN_SPLIT / SOFT_KEYS)
#define SOFT_ONE   1024.0f /* of a score: a power of 2 */
#define SOFT_OVER  16
#define SOFT_SPAN  64
#define SOFT_LOW   (127 - SOFT_SPAN + SOFT_OVER)

/* Keys of a unit in a row of weights: eight words each of keys 4 j .. 4 j + 3 and of those 16 on; so packing leaves them. */
static inline int soft_key(int word)
{
    const int w = word % 8;
    return word / 8 * 4 + (w < 4 ? w : w + 12);
}

struct soft {
    uint16_t *p;        /* [SOFT_UNITS][SOFT_ROWS][SOFT_KEYS] weights, bf16 */
    uint16_t *plain;    /* the same before scales, where there are any */
    float *ref, *base;  /* [SOFT_ROWS]: reference (-inf: none yet); the score of a weight of 0 */
    const float *scale; /* of K [CPU_ATTN_SPLIT], then of V: codes only */
};

/* A unit's scores of a row. */
struct soft_pair {
    __m512 a, b;
};

/* The next whole power of 2 over the largest of m, in all lanes. */
VI __m512 soft_top(__m512 m)
{
    m = _mm512_max_ps(m, _mm512_shuffle_f32x4(m, m, 0x4e));
    m = _mm512_max_ps(m, _mm512_shuffle_f32x4(m, m, 0xb1));
    m = _mm512_max_ps(m, _mm512_permute_ps(m, 0x4e));
    m = _mm512_max_ps(m, _mm512_permute_ps(m, 0xb1));
    return _mm512_roundscale_ps(_mm512_mul_ps(m, _mm512_set1_ps(1 / SOFT_ONE)),
                                _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}
VI __m512 soft_base(__m512 ref)
{
    const float under =
        (float)(SOFT_SPAN - SOFT_OVER) * SOFT_ONE + 4; /* half of a weight's last bit */
    return _mm512_fmadd_ps(ref, _mm512_set1_ps(SOFT_ONE), _mm512_set1_ps(-under));
}

/* Fixed point, saturated at both ends. */
VI __m512i soft_fixed(struct soft_pair y)
{
    return _mm512_packus_epi32(_mm512_cvtps_epi32(y.a), _mm512_cvtps_epi32(y.b));
}
VI __m512i soft_all(void)
{
    return _mm512_set1_epi32(-1);
}
VI bool soft_beyond(__m512i u)
{
    return _mm512_cmpeq_epu16_mask(u, soft_all()) != 0;
}

/* 1 + f - 2^f in 1/1024 in the middle of each 64th of an octave; rounding to 7 bits is in it, see soft_base. */
static const _Alignas(64) uint8_t soft_bend[64] = {
    1,  6,  11, 15, 20, 24, 28, 32, 36, 40, 44, 47, 51, 54, 57, 60, 63, 66, 68, 71, 73, 75,
    77, 79, 80, 82, 83, 84, 85, 86, 87, 88, 88, 88, 88, 88, 88, 87, 86, 86, 85, 83, 82, 80,
    78, 76, 74, 72, 69, 66, 63, 60, 57, 53, 49, 45, 41, 37, 32, 27, 22, 16, 11, 5};

/* Weights of u: the fraction f of a power of 2 becomes the mantissa of 2^f. */
VI __m512i soft_weights(__m512i u)
{
    const __m512i bend = _mm512_load_si512(soft_bend);
    const __m512i less =
        _mm512_maskz_permutexvar_epi8(0x5555555555555555, _mm512_srli_epi16(u, 4), bend);
    return _mm512_srli_epi16(_mm512_subs_epu16(u, less), 3);
}

/* Weights by V's scales; what is too small for a normal number is 0 already. */
VI __m512i soft_scaled(__m512i p, const float *scale)
{
    const __m512i zero = _mm512_setzero_si512(), half = _mm512_set1_epi32(0x8000);
    __m512 a = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, p)),
           b = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, p));
    a = _mm512_mul_ps(a, _mm512_loadu_ps(scale));
    b = _mm512_mul_ps(b, _mm512_loadu_ps(scale + 16));
    return _mm512_packus_epi32(
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(a), half), 16),
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(b), half), 16));
}

VI void soft_store(const struct soft *w, int unit, int row, __m512i u, bool code)
{
    const int at = (unit * SOFT_ROWS + row) * SOFT_KEYS;
    __m512i p = soft_weights(u);
    if (code) {
        p = _mm512_maskz_mov_epi16(_mm512_cmpge_epu16_mask(p, _mm512_set1_epi16(128)), p);
        _mm512_storeu_si512(w->plain + at, p);
        p = soft_scaled(p, w->scale + CPU_ATTN_SPLIT + unit * SOFT_KEYS);
    }
    _mm512_storeu_si512(w->p + at, p);
}

/* Scores under the row's base. */
VI struct soft_pair soft_under(const struct soft *w, const float *s, int unit, __m512 base,
                               bool code)
{
    const float *k = w->scale + unit * SOFT_KEYS;
    const __m512 a = _mm512_loadu_ps(s), b = _mm512_loadu_ps(s + 16);
    if (code)
        return (struct soft_pair){_mm512_fmsub_ps(a, _mm512_loadu_ps(k), base),
                                  _mm512_fmsub_ps(b, _mm512_loadu_ps(k + 16), base)};
    return (struct soft_pair){_mm512_sub_ps(a, base), _mm512_sub_ps(b, base)};
}

/* A row that sees all of the unit and has a reference: scores s [SOFT_KEYS] to weights. The largest of u. */
VI __m512i soft_row(const struct soft *w, const float *s, int unit, int row, __m512i most,
                    bool code)
{
    const __m512i u = soft_fixed(soft_under(w, s, unit, _mm512_set1_ps(w->base[row]), code));
    soft_store(w, unit, row, u, code);
    return _mm512_max_epu16(most, u);
}

/* The scores of a unit by K's scales. */
VI struct soft_pair soft_scores(const struct soft *w, const float *s, int unit, bool code)
{
    const float *k = w->scale + unit * SOFT_KEYS;
    struct soft_pair x = {_mm512_loadu_ps(s), _mm512_loadu_ps(s + 16)};
    if (code) {
        x.a = _mm512_mul_ps(x.a, _mm512_loadu_ps(k));
        x.b = _mm512_mul_ps(x.b, _mm512_loadu_ps(k + 16));
    }
    return x;
}

/* The same of a row that has no reference yet. */
VI void soft_first(const struct soft *w, const float *s, int unit, int row, bool code)
{
    const struct soft_pair x = soft_scores(w, s, unit, code);
    const __m512 ref = soft_top(_mm512_max_ps(x.a, x.b)), base = soft_base(ref);
    w->ref[row] = _mm512_cvtss_f32(ref);
    w->base[row] = _mm512_cvtss_f32(base);
    soft_store(w, unit, row, soft_fixed(soft_under(w, s, unit, base, code)), code);
}

/* Weights of units [from, to) of a row: down by n powers of 2. */
static inline void soft_move(const struct soft *w, int from, int to, int row, float n, bool code)
{
    const __m512i by = _mm512_set1_epi16((short)(n < 255 ? (int)n * 128 : 255 * 128));
    for (int i = from; i < to; i++) {
        uint16_t *p = w->p + (i * SOFT_ROWS + row) * SOFT_KEYS, *q = w->plain + (p - w->p);
        _mm512_storeu_si512(p, _mm512_subs_epu16(_mm512_loadu_si512(p), by));
        if (code)
            _mm512_storeu_si512(q, _mm512_subs_epu16(_mm512_loadu_si512(q), by));
    }
}

/* Any row, which sees keys [see[0], see[1]) of unit[1]; unit[0] is the first unit that has weights. `shaped`: its scores,
 * where they are no more those of s; else NULL. */
VI void soft_any(const struct soft *w, const float *s, const int unit[2], int row, const int see[2],
                 const struct soft_pair *shaped, bool code)
{
    const int u_at = unit[1];
    if (see[0] >= see[1]) {
        const int at = (u_at * SOFT_ROWS + row) * SOFT_KEYS;
        _mm512_storeu_si512(w->p + at, _mm512_setzero_si512());
        if (code)
            _mm512_storeu_si512(w->plain + at, _mm512_setzero_si512());
        return;
    }
    const uint32_t seen = (uint32_t)((1ull << see[1]) - (1ull << see[0]));
    const __mmask16 ma = (__mmask16)seen, mb = (__mmask16)(seen >> 16);
    for (bool again = w->ref[row] == -INFINITY;;) {
        if (again) {
            const struct soft_pair x = shaped ? *shaped : soft_scores(w, s, u_at, code);
            const __m512 none = _mm512_set1_ps(-INFINITY);
            const __m512 ref = soft_top(_mm512_max_ps(_mm512_mask_mov_ps(none, ma, x.a),
                                                      _mm512_mask_mov_ps(none, mb, x.b)));
            const float now = _mm512_cvtss_f32(ref);
            if (w->ref[row] != -INFINITY)
                soft_move(w, unit[0], u_at, row, now - w->ref[row], code);
            w->ref[row] = now;
            w->base[row] = _mm512_cvtss_f32(soft_base(ref));
        }
        const __m512 base = _mm512_set1_ps(w->base[row]);
        struct soft_pair y = soft_under(w, s, u_at, base, code);
        if (shaped)
            y = (struct soft_pair){_mm512_sub_ps(shaped->a, base), _mm512_sub_ps(shaped->b, base)};
        const __m512i u = _mm512_packus_epi32(_mm512_maskz_cvtps_epi32(ma, y.a),
                                              _mm512_maskz_cvtps_epi32(mb, y.b));
        if (!again && soft_beyond(u)) {
            again = true;
            continue;
        }
        soft_store(w, u_at, row, u, code);
        return;
    }
}

/* The sum of the row's weights of units [from, to), as bf16 leaves them, so that their average has no error of its own;
 * before scales where there are any. */
VI float soft_sum(const struct soft *w, int from, int to, int row, bool code)
{
    const uint16_t *p = (code ? w->plain : w->p) + row * SOFT_KEYS;
    const __m512bh one = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_setzero_ps();
    for (int i = from; i < to; i++) {
        const __m512i x = _mm512_loadu_si512(p + i * SOFT_ROWS * SOFT_KEYS);
        sum = _mm512_dpbf16_ps(sum, (__m512bh)x, one);
    }
    return _mm512_reduce_add_ps(sum);
}

#endif
