/* Paged attention of one query tile against one KV head on AMX: bf16 factors, f32 sums. The K and V of a split (kern.h)
 * are packed once as tiles, whatever the pool's format, for all rows of the query tile; a row's softmax is over the whole
 * split, so that its sums are never rescaled, and splits are merged left to right. Queries and keys go in two bf16 parts
 * each (an f16 value exactly), because an error of a score is an error of a weight's exponent. Tokens that a row does not
 * see get a weight of exactly 0. Codes (quant/kv8.h) are bf16 as they are; their scales go to the scores, and to the
 * weights behind their sum. A row's bits depend on its own query and tokens alone. Empty in the other ISAs' objects. */
#include "engine/cpu/kern.h"

#ifdef CPU_ISA_amx
#include <math.h>
#include <string.h>

#include "engine/cpu/amx.h"
#include "engine/cpu/vec.h"
#include "engine/cpu/vec_kv.h"

#define ROWS  32 /* of a pass: two tiles */
#define KEYS  CPU_ATTN_SPLIT
#define BT    KV_BLOCK_TOKENS
#define N_BLK (KEYS / BT)
#define LOG2E 1.44269504f

struct work {
    const struct cpu_attn_tile *t;
    uint16_t *q[2]; /* [n_pad][hd32], scaled: bf16, and what it leaves */
    float *all;     /* [m] states */
    float *o;       /* [ROWS][hd16], then [ROWS] maxima and [ROWS] sums */
    float *
        s; /* [ROWS][KEYS] scores, by log2 e; a row's weights, in bf16, take the place of its first half */
    int32_t *see; /* [m] first token that the row sees, then [m] one past the last */
    char *k[2],
        *v;       /* [N_BLK][hd32 / 32] tiles, the same of the rest; [N_BLK / 2][hd16 / 16] tiles */
    float *scale; /* [2][KEYS] of codes: of K, of V; 0 for tokens that no row sees */
    int m, hd32, hd16;
    int base;      /* position of the split's first token */
    int lo, hi;    /* tokens that any row sees, from base */
    int blocks[2]; /* the first and the last block that any row sees in the splits to do */
};

static int round_up(int n, int to)
{
    return (n + to - 1) / to * to;
}

size_t cpu_attn_tiles_scratch(int m, int head_dim)
{
    size_t hd32 = ((size_t)head_dim + 31) / 32 * 32, rows = ((size_t)m + ROWS - 1) / ROWS * ROWS;
    return rows * (hd32 + cpu_attn_state((int)hd32)) + ROWS * (hd32 + 2 + KEYS) + 2 * rows +
           2 * KEYS + KEYS * (hd32 + hd32 / 2) + 64;
}

/* ---- packing ---- */

/* Two times 16 values as f32. */
VI void load_two(const void *a, const void *b, enum dtype dt, __m512 *x, __m512 *y)
{
    *x = dt == DT_F16  ? vload_f16(a).v
         : dt == DT_I8 ? vload_i8(a).v
         : dt == DT_F8 ? vload_f8(a).v
                       : vload_bf16(a).v;
    *y = dt == DT_F16  ? vload_f16(b).v
         : dt == DT_I8 ? vload_i8(b).v
         : dt == DT_F8 ? vload_f8(b).v
                       : vload_bf16(b).v;
}

/* Upper halves of the words of a and b, as pairs: f32 cut to bf16. */
VI __m512i upper_pairs(__m512 a, __m512 b)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(a), 16),
                                   _mm512_castps_si512(b));
}

/* What cutting to bf16 takes away; of an f16 value bf16 holds it. */
VI __m512 rest_of(__m512 a)
{
    const __m512i upper = _mm512_set1_epi32(-65536);
    return _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), upper)));
}

/* A block from [head_dim][16] to tiles at `to`: pairs of dimensions 32 c + 2 i in row i of tile c; the same of the rest
 * at `rest`. Asks for as many bytes, as a block's K or V has, at ask[0] and ask[1]. */
VI void pack_k(const struct work *w, char *to, char *rest, const char *k, const char *const ask[2],
               enum dtype dt)
{
    const int hd = w->t->geom.head_dim, n_pair = w->hd32 / 2;
    const size_t row = BT * dtype_bytes(dt);
    for (int i = 0; i < n_pair; i++) {
        __m512 a = _mm512_setzero_ps(), b = a;
        _mm_prefetch(ask[0] + (size_t)i * 64, _MM_HINT_T1);
        _mm_prefetch(ask[1] + (size_t)i * 64, _MM_HINT_T1);
        const char *x = k + (size_t)(2 * i) * row;
        if (2 * i + 1 < hd)
            load_two(x, x + row, dt, &a, &b);
        else if (2 * i < hd)
            load_two(x, x, dt, &a, &a);
        _mm512_store_si512(to + (size_t)i * 64, upper_pairs(a, b));
        if (dt == DT_F16)
            _mm512_store_si512(rest + (size_t)i * 64, upper_pairs(rest_of(a), rest_of(b)));
    }
}

/* Two blocks of values to tiles: tokens 2 i and 2 i + 1 of dimensions 16 c .. in row i of tile c. Tokens outside
 * [lo, hi) become zeros: what lies there may be no number. Asks for a block's K at ask[0] and ask[1]. */
VI void pack_v(const struct work *w, int unit, const char *const v[2], const char *const ask[2],
               enum dtype dt)
{
    const int n_c = w->hd16 / 16;
    const __m512i pairs = amx_pair_order();
    char *out = w->v + (size_t)(unit * n_c) * AMX_TILE;
    for (int i = 0; i < 16; i++) {
        const int tok = unit * 32 + 2 * i;
        const bool see0 = tok >= w->lo && tok < w->hi, see1 = tok + 1 >= w->lo && tok + 1 < w->hi;
        const __mmask8 keep = (__mmask8)((see0 ? 0x0f : 0) | (see1 ? 0xf0 : 0));
        const size_t es = dtype_bytes(dt), row = (size_t)w->hd16 * es;
        const char *x = v[i / 8] + (size_t)(2 * i % BT) * row, *y = x + row;
        const char *next = ask[i / 8] + (size_t)(i % 8 * n_c) * 64;
        for (int c = 0; c < n_c; c++, next += 64) {
            __m512i r = _mm512_setzero_si512();
            _mm_prefetch(next, _MM_HINT_T1);
            if (keep && dt == DT_BF16) {
                r = _mm512_inserti64x4(
                    _mm512_castsi256_si512(_mm256_loadu_si256((const void *)(x + 32 * c))),
                    _mm256_loadu_si256((const void *)(y + 32 * c)), 1);
            } else if (keep) {
                __m512 a, b;
                load_two(x + 16 * es * (size_t)c, y + 16 * es * (size_t)c, dt, &a, &b);
                r = (__m512i)_mm512_cvtne2ps_pbh(b, a);
            }
            r = _mm512_permutexvar_epi16(pairs, _mm512_maskz_mov_epi64(keep, r));
            _mm512_store_si512(out + c * AMX_TILE + i * 64, r);
        }
    }
}

/* Block b of the sequence, or the nearest that any row sees. */
VI const char *block_at(const struct work *w, int b)
{
    b = b < w->blocks[0] ? w->blocks[0] : b > w->blocks[1] ? w->blocks[1] : b;
    return w->t->kv + (size_t)w->t->table[b] * w->t->geom.block_bytes;
}
static size_t v_at(const struct work *w)
{
    return cpu_kv_v_at(&w->t->geom);
}

/* Keys of 32 tokens to where the blocks `to` and `to` + 1 have theirs. Asks for the next keys, and values: the next
 * (`soon`) or these, which are then wanted after all keys of the split. */
VI void pack_keys(const struct work *w, int unit, int to, bool soon, enum dtype dt)
{
    const size_t block = (size_t)w->hd32 * 32, at = (size_t)to * block;
    for (int j = 0; j < 2; j++) {
        const int b = w->base / BT + 2 * unit + j;
        const char *const k = block_at(w, b), *const next = block_at(w, b + 2);
        const char *const ask[2] = {next, (soon ? next : k) + v_at(w)};
        pack_k(w, w->k[0] + at + (size_t)j * block, w->k[1] + at + (size_t)j * block, k, ask, dt);
    }
}

/* Asks for the keys of the next split, at these tokens' place, unless the next ones are soon wanted. */
VI void pack_values(const struct work *w, int unit, bool soon, enum dtype dt)
{
    const char *v[2], *ask[2];
    for (int j = 0; j < 2; j++) {
        const int b = w->base / BT + 2 * unit + j;
        v[j] = block_at(w, b) + v_at(w);
        ask[j] = soon ? v[j] : block_at(w, b + N_BLK);
    }
    pack_v(w, unit, v, ask, dt);
}

/* Low and high 16 words of v, as f32. */
VI __m512 as_f32(__m512i v, int half)
{
    __m256i h = half ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Queries by `mul`, zeros in rows that fill up a pass. */
static void pack_q(const struct work *w, float mul)
{
    const struct cpu_attn_tile *t = w->t;
    const int hd = t->geom.head_dim, n_pad = round_up(w->m, ROWS);
    const __m512 scale = _mm512_set1_ps(mul);
    for (int r = 0; r < n_pad; r++) {
        const float *q =
            r < w->m ? t->q + (r / t->n_group) * t->ldq + (int64_t)(r % t->n_group) * hd : t->q;
        for (int d = 0; d < w->hd32; d += 32) {
            int left = r < w->m ? hd - d : 0;
            __m512 a = _mm512_mul_ps(amx_load_n(q + d, left), scale),
                   b = _mm512_mul_ps(amx_load_n(q + d + 16, left - 16), scale);
            __m512i v = (__m512i)_mm512_cvtne2ps_pbh(b, a);
            _mm512_storeu_si512(w->q[0] + r * w->hd32 + d, v);
            v = (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(b, as_f32(v, 1)),
                                             _mm512_sub_ps(a, as_f32(v, 0)));
            _mm512_storeu_si512(w->q[1] + r * w->hd32 + d, v);
        }
    }
}

/* ---- products ---- */

/* Sums 0 to 3 += two row tiles (4, 5) by two blocks (6, 7). */
VI void dot_tiles(bool two)
{
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (two) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}
VI void load_rows(const uint16_t *q, size_t ldq, bool two)
{
    _tile_loadd(4, q, ldq);
    if (two)
        _tile_loadd(5, (const char *)q + 16 * ldq, ldq);
}
VI void load_blocks(const char *k, size_t block)
{
    _tile_loadd(6, k, 64);
    _tile_loadd(7, k + block, 64);
}

/* s = q k^T of the pass from row r for blocks [b0, b1), both even, k being b0's: what q's rest gives with k, then q with k, then q
 * with k's rest. */
VI void scores(const struct work *w, int r, int b0, int b1, const char *const k[2], bool two)
{
    const int n_c = w->hd32 / 32;
    const size_t ldq = (size_t)w->hd32 * 2, block = (size_t)n_c * AMX_TILE;
    const bool rest = w->t->geom.dtype == DT_F16;
    const uint16_t *q0 = w->q[0] + r * w->hd32, *q1 = w->q[1] + r * w->hd32;
    AMX_BARRIER(w->q[0]);
    for (int b = b0; b < b1; b += 2) {
        const char *k0 = k[0] + (size_t)(b - b0) * block, *k1 = k[1] + (size_t)(b - b0) * block;
        float *s = w->s + b * BT;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int c = 0; c < n_c; c++) {
            load_rows(q1 + c * 32, ldq, two);
            load_blocks(k0 + c * AMX_TILE, block);
            dot_tiles(two);
            load_rows(q0 + c * 32, ldq, two);
            dot_tiles(two);
            if (rest) {
                load_blocks(k1 + c * AMX_TILE, block);
                dot_tiles(two);
            }
        }
        _tile_stored(0, s, KEYS * 4);
        _tile_stored(1, s + 16, KEYS * 4);
        if (two) {
            _tile_stored(2, s + 16 * KEYS, KEYS * 4);
            _tile_stored(3, s + 16 * KEYS + 16, KEYS * 4);
        }
    }
    AMX_BARRIER(w->s);
}

/* o = p v of the tokens of units [u0, u1), 32 each. */
VI void values(const struct work *w, int u0, int u1, bool two)
{
    const int n_c = w->hd16 / 16;
    const size_t ldo = (size_t)w->hd16 * 4, unit = (size_t)n_c * AMX_TILE;
    AMX_BARRIER(w->s);
    for (int c = 0; c < n_c; c += 2) {
        const bool pair = c + 1 < n_c;
        float *o = w->o + c * 16, *o2 = o + 16 * w->hd16;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int u = u0; u < u1; u++) {
            const char *v = w->v + (size_t)u * unit + (size_t)c * AMX_TILE;
            _tile_loadd(4, w->s + u * 16, KEYS * 4);
            _tile_loadd(6, v, 64);
            _tile_dpbf16ps(0, 4, 6);
            if (pair) {
                _tile_loadd(7, v + AMX_TILE, 64);
                _tile_dpbf16ps(1, 4, 7);
            }
            if (two) {
                _tile_loadd(5, w->s + 16 * KEYS + u * 16, KEYS * 4);
                _tile_dpbf16ps(2, 5, 6);
                if (pair)
                    _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, o, ldo);
        if (pair)
            _tile_stored(1, o + 16, ldo);
        if (two)
            _tile_stored(2, o2, ldo);
        if (two && pair)
            _tile_stored(3, o2 + 16, ldo);
    }
    AMX_BARRIER(w->o);
}

/* ---- softmax ---- */

/* Scores after soft-cap and ALiBi, in tokens [lo, hi), lo a multiple of 16. */
static void shape_row(const struct work *w, int m, float *s, int lo, int hi)
{
    const struct cpu_attn_tile *t = w->t;
    static const float lane[BT] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const struct vf cap = vset1(t->softcap), log2e = vset1(LOG2E);
    const float slope = t->alibi ? t->alibi[m % t->n_group] * LOG2E : 0;
    for (int i = lo; i < hi; i += VL) {
        struct vf v = vload(s + i);
        if (t->softcap > 0)
            v = vmul(log2e, vmul(cap, vtanh(vdiv(v, cap))));
        if (t->alibi) {
            float first = (float)(w->base + i - t->pos[m / t->n_group]);
            v = vfma(vset1(slope), vadd(vload(lane), vset1(first)), v);
        }
        vstore(s + i, v);
    }
}

/* 2^(s - whole), exactly 0 for s = -1e30: s is n + f, a polynomial for 2^f, and 2^(n - whole) by the exponent. To 1e-4 of
 * its value, a bf16 weight's last bit being 4e-3. */
VI __m512 exp2_whole(__m512 s, __m512 whole)
{
    const __m512 magic = _mm512_set1_ps(12582912.0f); /* 1.5 * 2^23: rounds */
    __m512 n = _mm512_sub_ps(_mm512_add_ps(s, magic), magic);
    __m512 f = _mm512_sub_ps(s, n);
    __m512 p = _mm512_set1_ps(5.5171672e-2f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4261112e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9326098e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.9992807e-1f));
    return _mm512_scalef_ps(p, _mm512_sub_ps(n, whole));
}

/* -1e30 in tokens [from, to) of a row: a weight of 0, and no NaN on the way. */
VI void blank(float *s, int from, int to)
{
    for (int i = from; i < to;) {
        int n = to - i < 16 ? to - i : 16;
        _mm512_mask_storeu_ps(s + i, (__mmask16)((1u << n) - 1), _mm512_set1_ps(-1e30f));
        i += n;
    }
}

/* The next whole number over the largest score of [from, to), multiples of 32. */
VI float row_top(const float *s, int from, int to)
{
    __m512 top = _mm512_loadu_ps(s + from), top2 = _mm512_loadu_ps(s + from + 16);
    for (int i = from + 32; i < to; i += 32) {
        top = _mm512_max_ps(top, _mm512_loadu_ps(s + i));
        top2 = _mm512_max_ps(top2, _mm512_loadu_ps(s + i + 16));
    }
    return ceilf(_mm512_reduce_max_ps(_mm512_max_ps(top, top2)));
}

/* Scores to weights in place, by `scale` where there is one; their sum without it, else of the weights as bf16 leaves them,
 * so that their average has no error of its own. The reference is a whole number: splits differ by powers of 2. */
VI float row_weights(float *s, const float *scale, int from, int to, float whole)
{
    uint16_t *p = (uint16_t *)(void *)s;
    const __m512 base = _mm512_set1_ps(whole);
    __m512 add = _mm512_setzero_ps(), add2 = add;
    for (int i = from; i < to; i += 32) {
        __m512 a = exp2_whole(_mm512_loadu_ps(s + i), base);
        __m512 b = exp2_whole(_mm512_loadu_ps(s + i + 16), base);
        if (scale) {
            add = _mm512_add_ps(add, a);
            add2 = _mm512_add_ps(add2, b);
            a = _mm512_mul_ps(a, _mm512_loadu_ps(scale + i));
            b = _mm512_mul_ps(b, _mm512_loadu_ps(scale + i + 16));
        }
        const __m512i r = (__m512i)_mm512_cvtne2ps_pbh(b, a);
        if (!scale) {
            add = _mm512_add_ps(add, as_f32(r, 0));
            add2 = _mm512_add_ps(add2, as_f32(r, 1));
        }
        _mm512_storeu_si512(p + i, r);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(add, add2));
}

/* Of the n_key tokens from base those that row m sees; false: none. */
VI bool row_sees_of(const struct work *w, int m, int n_key, int *see)
{
    const int lo = w->see[m] - w->base, hi = w->see[w->m + m] - w->base;
    see[0] = lo < 0 ? 0 : lo;
    see[1] = hi > n_key ? n_key : hi;
    return see[0] < see[1];
}
VI bool row_sees(const struct work *w, int m, int *see)
{
    return row_sees_of(w, m, KEYS, see);
}

/* The same of rows [r, r + n), taken together. */
static bool rows_see(const struct work *w, int r, int n, int n_key, int range[2])
{
    int see[2];
    range[0] = n_key;
    range[1] = 0;
    for (int m = r; m < r + n; m++)
        if (row_sees_of(w, m, n_key, see)) {
            range[0] = see[0] < range[0] ? see[0] : range[0];
            range[1] = see[1] > range[1] ? see[1] : range[1];
        }
    return range[0] < range[1];
}

/* Scores of rows [r, r + n) to weights, 0 where a row does not see. First all maxima: they wait for nothing. */
VI void softmax(const struct work *w, int r, int n, int from, int to)
{
    const struct cpu_attn_tile *t = w->t;
    float *max = w->o + ROWS * w->hd16, *sum = max + ROWS;
    const bool code = dtype_is_code(t->geom.dtype);
    for (int i = 0; i < n; i++) {
        float *s = w->s + i * KEYS;
        int see[2];
        for (int k = from; code && k < to; k += VL)
            vstore(s + k, vmul(vload(s + k), vload(w->scale + k)));
        if (!row_sees(w, r + i, see)) {
            blank(s, from, to);
        } else {
            if (t->softcap > 0 || t->alibi)
                shape_row(w, r + i, s, from, to);
            blank(s, from, see[0]);
            blank(s, see[1], to);
        }
        max[i] = row_top(s, from, to);
    }
    for (int i = 0; i < n; i++)
        sum[i] = row_weights(w->s + i * KEYS, code ? w->scale + KEYS : NULL, from, to, max[i]);
}

/* ---- states: v_dim sums, then the reference of the exponents (-inf: nothing yet) and the sum of weights ---- */

static __m512 pow2(float n)
{
    return _mm512_scalef_ps(_mm512_set1_ps(1), _mm512_set1_ps(n));
}

static void state_clear(float *to, int v_dim)
{
    memset(to, 0, sizeof(float) * cpu_attn_state(v_dim));
    to[v_dim] = -INFINITY;
}

/* to = to and a state of sums o. */
static void state_merge(float *to, const float *o, float max, float sum, int v_dim)
{
    if (to[v_dim] == -INFINITY) {
        memcpy(to, o, sizeof(float) * (size_t)v_dim);
        to[v_dim] = max;
        to[v_dim + 1] = sum;
        return;
    }
    const float now = to[v_dim] > max ? to[v_dim] : max;
    const __m512 a = pow2(to[v_dim] - now), b = pow2(max - now);
    for (int d = 0; d < v_dim; d += 16)
        _mm512_storeu_ps(to + d, _mm512_fmadd_ps(_mm512_loadu_ps(o + d), b,
                                                 _mm512_mul_ps(_mm512_loadu_ps(to + d), a)));
    to[v_dim] = now;
    to[v_dim + 1] = to[v_dim + 1] * _mm512_cvtss_f32(a) + sum * _mm512_cvtss_f32(b);
}

static void write_row(const struct cpu_attn_tile *t, int m, const float *o)
{
    const int hd = t->geom.head_dim, v_dim = t->geom.v_dim;
    float *dst = t->dst + (m / t->n_group) * t->ldd + (int64_t)(m % t->n_group) * hd;
    float sum = o[v_dim + 1], a = 1;
    if (t->sinks) { /* joins last, so that splits need not know of it */
        float sink = t->sinks[m % t->n_group] * LOG2E, now = ceilf(sink);
        now = o[v_dim] > now ? o[v_dim] : now;
        a = exp2f(o[v_dim] - now);
        sum = sum * a + exp2f(sink - now);
    }
    const __m512 inv = _mm512_set1_ps(a / sum);
    for (int d = 0; d < hd; d += 16) {
        __mmask16 n = hd - d >= 16 ? 0xffff : (__mmask16)((1u << (hd - d)) - 1);
        _mm512_mask_storeu_ps(dst + d, n, _mm512_mul_ps(_mm512_loadu_ps(o + d), inv));
    }
}

/* ---- the tile ---- */

/* Softmax, values and states of a pass whose scores are there. */
VI void pass_end(const struct work *w, int r, int n, const int *range, float *states, bool two)
{
    const size_t ldo = cpu_attn_state(w->hd16);
    const float *max = w->o + ROWS * w->hd16;
    int see[2];
    softmax(w, r, n, range[0], range[1]);
    values(w, range[0] / 32, range[1] / 32, two);
    for (int i = 0; i < n; i++)
        if (row_sees(w, r + i, see))
            state_merge(states + (size_t)(r + i) * ldo, w->o + i * w->hd16, max[i], max[ROWS + i],
                        w->hd16);
}

/* Many rows: K and V of the split are packed once for all passes. */
VI void split_passes(const struct work *w, float *states, enum dtype dt)
{
    const size_t block = (size_t)w->hd32 * 32;
    int range[2];
    for (int u = w->lo / 32; u < (w->hi + 31) / 32; u++) {
        pack_keys(w, u, 2 * u, true, dt);
        pack_values(w, u, true, dt);
    }
    for (int r = 0; r < w->m; r += ROWS) {
        const int n = w->m - r < ROWS ? w->m - r : ROWS;
        if (!rows_see(w, r, n, KEYS, range))
            continue;
        range[0] = range[0] / 32 * 32;
        range[1] = round_up(range[1], 32);
        const int b0 = range[0] / BT;
        const char *k[2] = {w->k[0] + (size_t)b0 * block, w->k[1] + (size_t)b0 * block};
        if (n > 16) {
            scores(w, r, b0, range[1] / BT, k, true);
            pass_end(w, r, n, range, states, true);
        } else {
            scores(w, r, b0, range[1] / BT, k, false);
            pass_end(w, r, n, range, states, false);
        }
    }
}

/* At most 16 rows: keys are used soon after they are packed, in two places by turns, which stay in the first-level cache;
 * not at once, because a tile load waits for stores that are under way. */
VI void split_few(const struct work *w, float *states, enum dtype dt)
{
    const size_t two = (size_t)w->hd32 * 64;
    const int range[2] = {w->lo / 32 * 32, round_up(w->hi, 32)}, end = range[1] / 32;
    pack_keys(w, range[0] / 32, range[0] / 32 % 2 * 2, false, dt);
    for (int u = range[0] / 32; u < end; u++) {
        const char *const k[2] = {w->k[0] + (size_t)(u % 2) * two, w->k[1] + (size_t)(u % 2) * two};
        if (u + 1 < end)
            pack_keys(w, u + 1, (u + 1) % 2 * 2, false, dt);
        AMX_BARRIER(w->k[0]);
        scores(w, 0, 2 * u, 2 * u + 2, k, false);
    }
    for (int u = range[0] / 32; u < range[1] / 32; u++)
        pack_values(w, u, false, dt);
    pass_end(w, 0, w->m, range, states, false);
}

/* Scales of the split's tokens [lo, hi); what lies elsewhere may be no number. */
static void scales_load(const struct work *w)
{
    const struct cpu_kv_geom *g = &w->t->geom;
    const struct vf unit = vset1(g->dtype == DT_F8 ? F8_UNIT : 1);
    for (int b = 0; b < N_BLK; b++) {
        int lo = w->lo - b * BT, hi = w->hi - b * BT;
        lo = lo < 0 ? 0 : lo > BT ? BT : lo;
        hi = hi < lo ? lo : hi > BT ? BT : hi;
        const char *p = block_at(w, w->base / BT + b);
        for (int v = 0; v < 2; v++) {
            const size_t at = v ? cpu_kv_v_scales_at(g) : cpu_kv_k_bytes(g);
            const struct vf s = vload((const float *)(const void *)(p + at));
            vstore(w->scale + v * KEYS + b * BT, vkeep(vmul(s, unit), lo, hi, vset1(0)));
        }
    }
}

/* The split in its pool's format, few rows or many. */
VI void split_of(const struct work *w, float *states, enum dtype dt)
{
    if (w->m <= 16)
        split_few(w, states, dt);
    else
        split_passes(w, states, dt);
}

static void split_do(struct work *w, int split, float *states)
{
    w->base = split * KEYS;
    int range[2];
    if (!rows_see(w, 0, w->m, KEYS, range))
        return;
    w->lo = range[0];
    w->hi = range[1];
    if (dtype_is_code(w->t->geom.dtype))
        scales_load(w);
    if (w->t->geom.dtype == DT_F16)
        split_of(w, states, DT_F16);
    else if (w->t->geom.dtype == DT_I8)
        split_of(w, states, DT_I8);
    else if (w->t->geom.dtype == DT_F8)
        split_of(w, states, DT_F8);
    else
        split_of(w, states, DT_BF16);
}

static void work_open(struct work *w, const struct cpu_attn_tile *t)
{
    *w = (struct work){.t = t, .m = t->n_row * t->n_group, .hd16 = t->geom.v_dim};
    w->hd32 = round_up(t->geom.head_dim, 32);
    const size_t rows = (size_t)round_up(w->m, ROWS), hd32 = (size_t)w->hd32;
    float *at = t->scratch;
    w->q[0] = (uint16_t *)(void *)at;
    w->q[1] = w->q[0] + rows * hd32;
    w->k[0] = (char *)(at += rows * hd32);
    w->k[1] = w->k[0] + KEYS * hd32 * 2;
    w->v = (char *)(at += KEYS * hd32);
    w->s = at += KEYS * hd32 / 2;
    w->scale = at += ROWS * KEYS;
    w->o = at += 2 * KEYS;
    w->all = at += ROWS * (hd32 + 2);
    w->see = (int32_t *)(void *)(at + rows * cpu_attn_state((int)hd32));
    for (int m = 0; m < w->m; m++) {
        w->see[m] = cpu_attn_row_first(t, m);
        w->see[w->m + m] = t->pos[m / t->n_group] + 1;
    }
    int range[2];
    w->base = t->split_lo * KEYS;
    if (rows_see(w, 0, w->m, (t->split_hi - t->split_lo) * KEYS, range)) {
        w->blocks[0] = (w->base + range[0]) / BT;
        w->blocks[1] = (w->base + range[1] - 1) / BT;
    }
    pack_q(w, t->softcap > 0 ? t->scale : t->scale * LOG2E);
}

static void tile(const struct cpu_attn_tile *t)
{
    struct work w;
    work_open(&w, t);
    const size_t ldo = cpu_attn_state(w.hd16), states = (size_t)w.m * ldo;
    amx_open(w.m < 16 ? w.m : 16);
    for (int m = 0; m < w.m; m++)
        state_clear(w.all + (size_t)m * ldo, w.hd16);
    for (int sp = t->split_lo; sp < t->split_hi; sp++) {
        float *to = t->part ? t->part + (size_t)(sp - t->split_lo) * states : w.all;
        for (int m = 0; t->part && m < w.m; m++)
            state_clear(to + (size_t)m * ldo, w.hd16);
        split_do(&w, sp, to);
    }
    _tile_release();
    for (int m = 0; !t->part && m < w.m; m++)
        write_row(t, m, w.all + (size_t)m * ldo);
}

static void merge(const struct cpu_attn_tile *t)
{
    const int v_dim = t->geom.v_dim, m_all = t->n_row * t->n_group;
    const size_t ldo = cpu_attn_state(v_dim);
    for (int m = 0; m < m_all; m++) {
        float *all = t->scratch;
        state_clear(all, v_dim);
        for (int sp = 0; sp < t->split_hi - t->split_lo; sp++) {
            const float *o = t->part + ((size_t)sp * (size_t)m_all + (size_t)m) * ldo;
            if (o[v_dim] != -INFINITY)
                state_merge(all, o, o[v_dim], o[v_dim + 1], v_dim);
        }
        write_row(t, m, all);
    }
}

const struct cpu_attn_kern cpu_attn_tiles_amx = {.tile = tile, .merge = merge};

#endif
