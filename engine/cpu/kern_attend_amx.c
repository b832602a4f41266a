/* Attention between row segments on AMX: bf16 scores and weights, f32 sums, online softmax (Dao et al. 2022) over chunks
 * of CPU_ATTEND_CHUNK keys at fixed places of the segment. A row's bits depend on its own segment alone. K and V of a
 * segment and head are packed once as weight tiles (cpu_attend.c). Empty in the other ISAs' objects. */
#include "engine/cpu/kern.h"

#ifdef CPU_ISA_amx
#include <math.h>
#include <string.h>

#include "engine/cpu/amx.h"

#define ROWS CPU_ATTEND_ROWS
#define KEYS CPU_ATTEND_CHUNK
/* 16 rows of 16 words, rows to columns. */
static void transpose(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; k++) {
            r[i + 2 * k] = _mm512_unpacklo_epi64(t[i + k], t[i + k + 2]);
            r[i + 2 * k + 1] = _mm512_unpackhi_epi64(t[i + k], t[i + k + 2]);
        }
    /* r[4 g + c]: in its quarter q, rows 4 g .. 4 g + 3 of column 4 q + c */
    for (int c = 0; c < 4; c++) {
        __m512i a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88),
                b = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd),
                d = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88),
                e = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(a, d, 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(b, e, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
        t[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
    }
    memcpy(r, t, sizeof t);
}

/* Up to 16 keys, [key][head_dim] floats: tile c holds pairs of dimensions 32 c + 2 i in its row i. */
static void pack_k(void *dst, const float *k, int64_t ld, int n, int hd)
{
    __m512i *out = dst, r[16];
    for (int c = 0; c < (hd + 31) / 32; c++) {
        for (int j = 0; j < 16; j++) {
            const float *x = k + j * ld + 32 * c;
            __m512 lo = amx_load_n(x, j < n ? hd - 32 * c : 0),
                   hi = amx_load_n(x + 16, j < n ? hd - 32 * c - 16 : 0);
            r[j] = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
        }
        transpose(r);
        for (int i = 0; i < 16; i++)
            _mm512_storeu_si512(out + c * 16 + i, r[i]);
    }
}

/* Up to 32 keys: tile c holds keys 2 i and 2 i + 1 of dimensions 16 c .. 16 c + 15 in its row i. */
static void pack_v(void *dst, const float *v, int64_t ld, int n, int hd)
{
    char *out = dst;
    const __m512i pairs = amx_pair_order();
    for (int c = 0; c < (hd + 15) / 16; c++)
        for (int i = 0; i < 16; i++) {
            int left = hd - 16 * c;
            __m512 a = amx_load_n(v + 2 * i * ld + 16 * c, 2 * i < n ? left : 0);
            __m512 b = amx_load_n(v + (2 * i + 1) * ld + 16 * c, 2 * i + 1 < n ? left : 0);
            _mm512_storeu_si512(
                out + c * AMX_TILE + i * 64,
                _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(b, a)));
        }
}

/* 2^x for x <= 0, to 2e-5 of its value: what bf16 weights need and more. */
static inline __m512 exp2_of(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(9.6181291e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

struct work {
    uint16_t *q; /* [ROWS][hd32], scaled by log2 e too */
    float *s;    /* [ROWS][KEYS] */
    uint16_t *p; /* [ROWS][KEYS] */
    float *o;    /* [ROWS][hd16] */
    float max[ROWS], sum[ROWS];
    int hd32, hd16;
};

/* s = q k^T for n_blk blocks of 16 keys, two at a time. */
static void scores(const struct work *w, const char *k, int n_blk)
{
    int n_c = w->hd32 / 32;
    size_t ldq = (size_t)w->hd32 * 2, block = (size_t)n_c * AMX_TILE;
    AMX_BARRIER(w->q);
    for (int b = 0; b < n_blk; b += 2) {
        const char *k0 = k + (size_t)b * block;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int c = 0; c < n_c; c++) {
            _tile_loadd(4, w->q + c * 32, ldq);
            _tile_loadd(6, k0 + c * AMX_TILE, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, k0 + block + c * AMX_TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, w->q + 16 * w->hd32 + c * 32, ldq);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, w->s + b * 16, KEYS * 4);
        _tile_stored(1, w->s + b * 16 + 16, KEYS * 4);
        _tile_stored(2, w->s + 16 * KEYS + b * 16, KEYS * 4);
        _tile_stored(3, w->s + 16 * KEYS + b * 16 + 16, KEYS * 4);
    }
    AMX_BARRIER(w->s);
}

/* Scores of n keys to weights, zeros up to n_pad; rescales the row's sums to the new maximum. */
static void softmax_row(struct work *w, int r, int n, int n_pad)
{
    float *s = w->s + r * KEYS, *o = w->o + r * w->hd16;
    uint16_t *p = w->p + r * KEYS;
    __m512 top = _mm512_set1_ps(-INFINITY), add = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        top = _mm512_mask_max_ps(top, m, top, _mm512_loadu_ps(s + i));
    }
    float old = w->max[r], now = _mm512_reduce_max_ps(top);
    now = old > now ? old : now;
    const __m512 base = _mm512_set1_ps(now);
    for (int i = 0; i < n_pad; i += 32) {
        __m512 e[2];
        for (int k = 0; k < 2; k++) {
            int left = n - i - 16 * k;
            __mmask16 m = left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
            e[k] = exp2_of(_mm512_sub_ps(_mm512_loadu_ps(s + i + 16 * k), base));
            e[k] = _mm512_maskz_mov_ps(m, e[k]);
            add = _mm512_add_ps(add, e[k]);
        }
        _mm512_storeu_si512(p + i, (__m512i)_mm512_cvtne2ps_pbh(e[1], e[0]));
    }
    float alpha = exp2f(old - now);
    w->max[r] = now;
    w->sum[r] = w->sum[r] * alpha + _mm512_reduce_add_ps(add);
    if (alpha != 1.0f)
        for (int d = 0; d < w->hd16; d += 16)
            _mm512_storeu_ps(o + d, _mm512_mul_ps(_mm512_loadu_ps(o + d), _mm512_set1_ps(alpha)));
}

/* o += p v for n_pair pairs of 16-key blocks. */
static void values(const struct work *w, const char *v, int n_pair)
{
    int n_c = w->hd16 / 16;
    size_t ldo = (size_t)w->hd16 * 4, block = (size_t)n_c * AMX_TILE;
    AMX_BARRIER(w->p);
    for (int c = 0; c < n_c; c += 2) {
        bool two = c + 1 < n_c;
        float *o = w->o + c * 16, *o2 = o + 16 * w->hd16;
        _tile_loadd(0, o, ldo);
        _tile_loadd(1, o2, ldo);
        if (two) {
            _tile_loadd(2, o + 16, ldo);
            _tile_loadd(3, o2 + 16, ldo);
        }
        for (int i = 0; i < n_pair; i++) {
            const char *v0 = v + (size_t)i * block + (size_t)c * AMX_TILE;
            _tile_loadd(4, w->p + i * 32, KEYS * 2);
            _tile_loadd(5, w->p + 16 * KEYS + i * 32, KEYS * 2);
            _tile_loadd(6, v0, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            if (two) {
                _tile_loadd(7, v0 + AMX_TILE, 64);
                _tile_dpbf16ps(2, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, o, ldo);
        _tile_stored(1, o2, ldo);
        if (two) {
            _tile_stored(2, o + 16, ldo);
            _tile_stored(3, o2 + 16, ldo);
        }
    }
    AMX_BARRIER(w->o);
}

static void work_open(struct work *w, const struct cpu_attend_tile *t)
{
    char *at = t->scratch;
    w->hd32 = (t->head_dim + 31) / 32 * 32;
    w->hd16 = (t->head_dim + 15) / 16 * 16;
    w->s = (float *)(void *)at;
    w->p = (uint16_t *)(void *)(at += ROWS * KEYS * 4);
    w->q = (uint16_t *)(void *)(at += ROWS * KEYS * 2);
    w->o = (float *)(void *)(at + ROWS * w->hd32 * 2);
    const __m512 scale = _mm512_set1_ps(t->scale * 1.44269504f);
    for (int r = 0; r < ROWS; r++) {
        const float *q = t->q + r * t->ldq;
        w->max[r] = -INFINITY;
        w->sum[r] = 0;
        for (int d = 0; d < w->hd32; d += 32) {
            int left = r < t->n_row ? t->head_dim - d : 0;
            __m512 lo = _mm512_mul_ps(amx_load_n(q + d, left), scale),
                   hi = _mm512_mul_ps(amx_load_n(q + d + 16, left - 16), scale);
            _mm512_storeu_si512(w->q + r * w->hd32 + d, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
        }
    }
    memset(w->o, 0, (size_t)ROWS * (size_t)w->hd16 * sizeof *w->o);
}

static void tile(const struct cpu_attend_tile *t)
{
    struct work w;
    work_open(&w, t);
    size_t k_step = (size_t)(w.hd32 / 32) * AMX_TILE * (KEYS / 16),
           v_step = (size_t)(w.hd16 / 16) * AMX_TILE * (KEYS / 32);
    amx_open(16);
    for (int at = 0, c = 0; at < t->n_key; at += KEYS, c++) {
        int n = t->n_key - at < KEYS ? t->n_key - at : KEYS, n_pad = (n + 31) / 32 * 32;
        scores(&w, t->k + (size_t)c * k_step, n_pad / 16);
        for (int r = 0; r < ROWS; r++)
            softmax_row(&w, r, n, n_pad);
        values(&w, t->v + (size_t)c * v_step, n_pad / 32);
    }
    _tile_release();
    for (int r = 0; r < t->n_row; r++) {
        const __m512 inv = _mm512_set1_ps(1 / w.sum[r]);
        for (int d = 0; d < t->head_dim; d += 16) {
            __mmask16 m =
                t->head_dim - d >= 16 ? 0xffff : (__mmask16)((1u << (t->head_dim - d)) - 1);
            _mm512_mask_storeu_ps(t->dst + r * t->ldd + d, m,
                                  _mm512_mul_ps(_mm512_loadu_ps(w.o + r * w.hd16 + d), inv));
        }
    }
}

const struct cpu_attend_kern cpu_attend_amx = {.pack_k = pack_k, .pack_v = pack_v, .tile = tile};

#endif
