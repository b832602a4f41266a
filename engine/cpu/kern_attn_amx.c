/* Paged attention of one query tile against one KV head on AMX: bf16 factors, f32 sums. The K and V of a split (kern.h)
 * are packed once as tiles, whatever the pool's format, for all rows of the query tile; weights of a split (amx_soft.h) have
 * one reference, so that its sums are never rescaled, and splits are merged left to right. Queries and keys go in two bf16 parts
 * each (an f16 value exactly), because an error of a score is an error of a weight's exponent. Tokens that a row does not
 * see get a weight of exactly 0. Codes (quant/kv8.h) are bf16 as they are; their scales go to the scores, and to the
 * weights behind their sum. A row's bits depend on its own query and tokens alone. Empty in the other ISAs' objects. */
#include "engine/cpu/kern.h"

#ifdef CPU_ISA_amx
#include <math.h>
#include <string.h>

#include "engine/cpu/amx.h"
#include "engine/cpu/amx_soft.h"
#include "engine/cpu/vec.h"
#include "engine/cpu/vec_kv.h"

#define ROWS   SOFT_ROWS /* of a pass: two tiles */
#define KEYS   CPU_ATTN_SPLIT
#define BT     KV_BLOCK_TOKENS
#define N_BLK  (KEYS / BT)
#define LOG2E  1.44269504f
#define P_UNIT (ROWS * SOFT_KEYS) /* weights of a unit */
#define LAG    2 /* units whose scores wait: what was just stored is slow to read */

struct work {
    const struct cpu_attn_tile *t;
    uint16_t *q[2]; /* [n_pad][hd32], scaled: bf16, and what it leaves */
    float *all;     /* [m] states */
    float *o;       /* [ROWS][hd16], then [ROWS] sums */
    float *s;       /* [2][ROWS][SOFT_KEYS] scores of a unit, by turns */
    struct soft soft;
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
    return rows * (hd32 + cpu_attn_state((int)hd32)) + ROWS * (hd32 + 3) + 2 * rows +
           (LAG + 1) * P_UNIT + SOFT_UNITS * P_UNIT + 2 * KEYS + KEYS * (hd32 + hd32 / 2) + 64;
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

/* Asks for the line that has value 32 i of a block's K or V. */
VI void ask_line(const char *p, int i, enum dtype dt)
{
    if (!dtype_is_code(dt))
        _mm_prefetch(p + (size_t)i * 64, _MM_HINT_T1);
    else if (i % 2 == 0)
        _mm_prefetch(p + (size_t)i * 32, _MM_HINT_T1);
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
        ask_line(ask[0], i, dt);
        ask_line(ask[1], i, dt);
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

/* Two blocks of values to tiles: words 2 i and 2 i + 1 of a row of weights (soft_key) in row i of tile c. Tokens outside
 * [lo, hi) become zeros: what lies there may be no number. Asks for a block's K at ask[0] and ask[1]. */
VI void pack_v(const struct work *w, int unit, const char *const v[2], const char *const ask[2],
               enum dtype dt)
{
    const int n_c = w->hd16 / 16;
    const __m512i pairs = amx_pair_order();
    char *out = w->v + (size_t)(unit * n_c) * AMX_TILE;
    for (int i = 0; i < 16; i++) {
        const int key = soft_key(2 * i), tok = unit * 32 + key;
        const bool see0 = tok >= w->lo && tok < w->hi, see1 = tok + 1 >= w->lo && tok + 1 < w->hi;
        const __mmask8 keep = (__mmask8)((see0 ? 0x0f : 0) | (see1 ? 0xf0 : 0));
        const size_t es = dtype_bytes(dt), row = (size_t)w->hd16 * es;
        const char *x = v[key / BT] + (size_t)(key % BT) * row, *y = x + row;
        for (int c = 0; c < n_c; c++) {
            __m512i r = _mm512_setzero_si512();
            ask_line(ask[i / 8], i % 8 * n_c + c, dt);
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

/* Sums 0 to 3 += two row tiles (4, 5) by two blocks (6, 7). A tile is loaded anew as soon as its last product is under
 * way: q, the next row tiles, ldq bytes from row to row, and k, the next blocks, where they are not NULL. */
VI void dot_tiles(const uint16_t *q, size_t ldq, const char *k, size_t block, bool two)
{
    _tile_dpbf16ps(0, 4, 6);
    if (two && !q) {
        _tile_dpbf16ps(2, 5, 6);
        if (k)
            _tile_loadd(6, k, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    } else {
        _tile_dpbf16ps(1, 4, 7);
        if (q)
            _tile_loadd(4, q, ldq);
        if (two)
            _tile_dpbf16ps(2, 5, 6);
        if (k)
            _tile_loadd(6, k, 64);
        if (two) {
            _tile_dpbf16ps(3, 5, 7);
            if (q)
                _tile_loadd(5, (const char *)q + 16 * ldq, ldq);
        }
    }
    if (k)
        _tile_loadd(7, k + block, 64);
}

/* ---- softmax, while products are under way ---- */

enum how { HOW_FULL, HOW_FIRST, HOW_ANY };

/* A pass, and the unit of it whose scores wait to be weighed. */
struct turn {
    int r, n;     /* rows of the query tile */
    int from, to; /* units of the split that any of them sees */
    int lo, hi;   /* tokens that all of them see, from base; lo < 0: rows have begun before */
    int unit;
    enum how how;
    const float *s;
};

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

/* Scores after soft-cap and ALiBi. */
VI struct vf shape(const struct work *w, int m, int tok, struct vf v)
{
    const struct cpu_attn_tile *t = w->t;
    static const float lane[BT] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const struct vf cap = vset1(t->softcap);
    if (t->softcap > 0)
        v = vmul(vset1(LOG2E * SOFT_ONE), vmul(cap, vtanh(vdiv(v, cap))));
    if (t->alibi) {
        const float slope = t->alibi[m % t->n_group] * (LOG2E * SOFT_ONE);
        const float first = (float)(w->base + tok - t->pos[m / t->n_group]);
        v = vfma(vset1(slope), vadd(vload(lane), vset1(first)), v);
    }
    return v;
}

/* Any row i of the turn's pass. */
__attribute__((noinline)) static void weigh_any(const struct work *w, const struct turn *t, int i,
                                                bool code)
{
    const int at = t->unit * SOFT_KEYS, unit[2] = {t->from, t->unit};
    const float *s = t->s + i * SOFT_KEYS;
    int see[2];
    row_sees(w, t->r + i, see);
    see[0] = see[0] < at ? 0 : see[0] - at > SOFT_KEYS ? SOFT_KEYS : see[0] - at;
    see[1] = see[1] < at ? 0 : see[1] - at > SOFT_KEYS ? SOFT_KEYS : see[1] - at;
    if (w->t->softcap > 0 || w->t->alibi) {
        struct soft_pair x = soft_scores(&w->soft, s, t->unit, code);
        x.a = shape(w, t->r + i, at, (struct vf){x.a}).v;
        x.b = shape(w, t->r + i, at + 16, (struct vf){x.b}).v;
        soft_any(&w->soft, s, unit, i, see, &x, code);
    } else {
        soft_any(&w->soft, s, unit, i, see, NULL, code);
    }
}

/* Rows [i, end) of the turn. The largest score, in fixed point, of those that the reference has to do for. */
VI __m512i weigh(const struct work *w, const struct turn *t, int i, int end, __m512i most,
                 bool code)
{
    end = end < t->n ? end : t->n;
    if (t->how == HOW_FULL)
        for (; i < end; i++)
            most = soft_row(&w->soft, t->s + i * SOFT_KEYS, t->unit, i, most, code);
    else if (t->how == HOW_FIRST)
        for (; i < end; i++)
            soft_first(&w->soft, t->s + i * SOFT_KEYS, t->unit, i, code);
    else
        for (; i < end; i++)
            weigh_any(w, t, i, code);
    return most;
}

/* Behind all rows of a turn: once more where a score was beyond a reference. */
VI void weigh_end(const struct work *w, const struct turn *t, __m512i most, bool code)
{
    if (!soft_beyond(most))
        return;
    for (int i = 0; i < t->n; i++)
        weigh_any(w, t, i, code);
}

/* s = q k^T of the pass from row r with a unit's blocks at k: what q's rest gives with k, then q with k, then q with k's
 * rest. Meanwhile the rows of `turn` are weighed, if it is not NULL. */
VI void scores(const struct work *w, int r, const char *const k[2], float *s,
               const struct turn *turn, enum dtype dt, bool two)
{
    const int n_c = w->hd32 / 32, step = (ROWS - 1) / (n_c * (dt == DT_F16 ? 3 : 2)) + 1;
    const size_t ldq = (size_t)w->hd32 * 2, block = (size_t)n_c * AMX_TILE;
    const uint16_t *q0 = w->q[0] + r * w->hd32, *q1 = w->q[1] + r * w->hd32;
    const bool code = dtype_is_code(dt);
    __m512i most = _mm512_setzero_si512();
    int i = 0;
    AMX_BARRIER(w->q[0]);
    _tile_loadd(6, k[0], 64);
    _tile_loadd(4, q1, ldq);
    _tile_zero(0);
    _tile_loadd(7, k[0] + block, 64);
    _tile_zero(1);
    if (two)
        _tile_loadd(5, (const char *)q1 + 16 * ldq, ldq);
    _tile_zero(2);
    _tile_zero(3);
    for (int c = 0; c < n_c; c++) {
        const int next = c + 1 < n_c ? c + 1 : c; /* behind the last: in vain */
        const char *k_next = k[0] + next * AMX_TILE;
        dot_tiles(q0 + c * 32, ldq, NULL, block, two);
        if (turn)
            most = weigh(w, turn, i, i + step, most, code);
        i += step;
        if (dt == DT_F16) {
            dot_tiles(NULL, ldq, k[1] + c * AMX_TILE, block, two);
            if (turn)
                most = weigh(w, turn, i, i + step, most, code);
            i += step;
        }
        dot_tiles(q1 + next * 32, ldq, k_next, block, two);
        if (turn)
            most = weigh(w, turn, i, i + step, most, code);
        i += step;
    }
    if (turn)
        weigh_end(w, turn, most, code);
    _tile_stored(0, s, SOFT_KEYS * 4);
    _tile_stored(1, s + 16, SOFT_KEYS * 4);
    if (two) {
        _tile_stored(2, s + 16 * SOFT_KEYS, SOFT_KEYS * 4);
        _tile_stored(3, s + 16 * SOFT_KEYS + 16, SOFT_KEYS * 4);
    }
    AMX_BARRIER(w->s);
}

/* o = p v of the tokens of the turn's units, and the sums of weights. */
VI void values(const struct work *w, const struct turn *t, enum dtype dt, bool two)
{
    const int n_c = w->hd16 / 16;
    const size_t ldo = (size_t)w->hd16 * 4, unit = (size_t)n_c * AMX_TILE;
    const int step = (t->n - 1) / ((n_c + 1) / 2 * (t->to - t->from)) + 1;
    float *sum = w->o + ROWS * w->hd16;
    int i = 0;
    AMX_BARRIER(w->soft.p);
    for (int c = 0; c < n_c; c += 2) {
        const bool pair = c + 1 < n_c;
        float *o = w->o + c * 16, *o2 = o + 16 * w->hd16;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int u = t->from; u < t->to; u++) {
            const char *v = w->v + (size_t)u * unit + (size_t)c * AMX_TILE;
            const uint16_t *p = w->soft.p + u * P_UNIT;
            _tile_loadd(6, v, 64);
            _tile_loadd(4, p, 64);
            _tile_dpbf16ps(0, 4, 6);
            if (two) {
                _tile_loadd(5, p + P_UNIT / 2, 64);
                _tile_dpbf16ps(2, 5, 6);
            }
            if (pair) {
                _tile_loadd(7, v + AMX_TILE, 64);
                _tile_dpbf16ps(1, 4, 7);
                if (two)
                    _tile_dpbf16ps(3, 5, 7);
            }
            for (int end = i + step; i < end && i < t->n; i++)
                sum[i] = soft_sum(&w->soft, t->from, t->to, i, dtype_is_code(dt));
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
VI void state_merge(float *to, const float *o, float max, float sum, int v_dim)
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

/* Values and states of a pass whose weights are there. */
VI void turn_end(const struct work *w, const struct turn *t, float *states, enum dtype dt, bool two)
{
    const size_t ldo = cpu_attn_state(w->hd16);
    const float *sum = w->o + ROWS * w->hd16;
    int see[2];
    values(w, t, dt, two);
    for (int i = 0; i < t->n; i++) {
        if (row_sees(w, t->r + i, see))
            state_merge(states + (size_t)(t->r + i) * ldo, w->o + i * w->hd16,
                        w->soft.ref[i] + SOFT_LOW, sum[i], w->hd16);
        w->soft.ref[i] = -INFINITY;
    }
}

/* The pass from row r in this split; false: it sees nothing. */
static bool turn_begin(const struct work *w, struct turn *t, int r)
{
    int range[2];
    *t = (struct turn){.r = r, .n = w->m - r < ROWS ? w->m - r : ROWS, .hi = KEYS};
    if (!rows_see(w, r, t->n, KEYS, range))
        return false;
    for (int m = r; m < r + t->n; m++) {
        const int lo = w->see[m] - w->base, hi = w->see[w->m + m] - w->base;
        t->lo = lo > t->lo ? lo : t->lo;
        t->hi = hi < t->hi ? hi : t->hi;
    }
    t->from = range[0] / SOFT_KEYS;
    t->to = (range[1] + SOFT_KEYS - 1) / SOFT_KEYS;
    return true;
}

/* How the rows take a unit whose scores are at s. */
VI void turn_set(const struct work *w, struct turn *t, int unit, const float *s)
{
    const int at = unit * SOFT_KEYS;
    const bool all = t->hi >= at + SOFT_KEYS && !(w->t->softcap > 0) && !w->t->alibi;
    t->unit = unit;
    t->s = s;
    if (all && unit == t->from && t->lo <= at)
        t->how = HOW_FIRST;
    else if (all && unit > t->from && (t->lo <= 0 || t->lo < at))
        t->how = HOW_FULL;
    else
        t->how = HOW_ANY;
}

/* Behind the last unit of a pass: its values and states. */
VI void turn_finish(const struct work *w, const struct turn *t, float *states, enum dtype dt)
{
    if (t->unit + 1 < t->to)
        return;
    if (t->n > 16)
        turn_end(w, t, states, dt, true);
    else
        turn_end(w, t, states, dt, false);
}

/* Scores of the pass's unit at s, while the turn before is weighed. */
VI void turn_scores(const struct work *w, const struct turn *t, const char *const k[2], float *s,
                    const struct turn *before, enum dtype dt)
{
    if (t->n > 16)
        scores(w, t->r, k, s, before, dt, true);
    else
        scores(w, t->r, k, s, before, dt, false);
}

/* What waits when no more scores come. */
VI void turn_last(const struct work *w, const struct turn *t, float *states, enum dtype dt)
{
    const bool code = dtype_is_code(dt);
    weigh_end(w, t, weigh(w, t, 0, t->n, _mm512_setzero_si512(), code), code);
    turn_finish(w, t, states, dt);
}

/* Asks for K and V of the next split, a share of `all` at a time. */
VI void ask_ahead(const struct work *w, int share, int all, enum dtype dt)
{
    const int first = w->base / BT + N_BLK;
    const size_t part = (v_at(w) + (size_t)w->hd16 * BT * dtype_bytes(dt) + 255) / 256 * 64;
    for (int i = N_BLK * 4 * share / all; i < N_BLK * 4 * (share + 1) / all; i++) {
        if (first + i / 4 > w->blocks[1])
            return;
        const char *p = block_at(w, first + i / 4) + (size_t)(i % 4) * part;
        for (size_t at = 0; at < part; at += 64)
            _mm_prefetch(p + at, _MM_HINT_T1);
    }
}

/* Asks for the states of the turn's rows. */
VI void ask_states(const struct work *w, const struct turn *t, const float *states)
{
    const size_t ldo = cpu_attn_state(w->hd16);
    const char *p = (const char *)(states + (size_t)t->r * ldo);
    for (size_t at = 0; at < (size_t)t->n * ldo * sizeof *states; at += 64)
        _mm_prefetch(p + at, _MM_HINT_T0);
}

/* Many rows: K and V of the split are packed once for all passes. A unit is weighed while the next one's scores are made,
 * be it of another pass. */
VI void split_passes(const struct work *w, float *states, enum dtype dt)
{
    const size_t two = (size_t)w->hd32 * 64;
    struct turn now, wait[LAG];
    const int shares = (w->m + ROWS - 1) / ROWS * SOFT_UNITS;
    int n = 0;
    for (int u = w->lo / 32; u < (w->hi + 31) / 32; u++) {
        pack_keys(w, u, 2 * u, true, dt);
        pack_values(w, u, true, dt);
    }
    for (int r = 0; r < w->m; r += ROWS) {
        if (!turn_begin(w, &now, r))
            continue;
        for (int u = now.from; u < now.to; u++, n++) {
            const char *const k[2] = {w->k[0] + (size_t)u * two, w->k[1] + (size_t)u * two};
            float *s = w->s + n % (LAG + 1) * P_UNIT;
            struct turn *before = &wait[n % LAG];
            turn_scores(w, &now, k, s, n >= LAG ? before : NULL, dt);
            ask_ahead(w, n, shares, dt);
            if (u + 1 == now.to)
                ask_states(w, &now, states);
            if (n >= LAG)
                turn_finish(w, before, states, dt);
            turn_set(w, &now, u, s);
            *before = now;
        }
    }
    for (int i = n < LAG ? 0 : n - LAG; i < n; i++)
        turn_last(w, &wait[i % LAG], states, dt);
}

/* At most 16 rows: keys are used soon after they are packed, in two places by turns, which stay in the first-level cache;
 * not at once, because a tile load waits for stores that are under way. */
VI void split_few(const struct work *w, float *states, enum dtype dt)
{
    const size_t two = (size_t)w->hd32 * 64;
    struct turn now, before = {0};
    if (!turn_begin(w, &now, 0))
        return;
    pack_keys(w, now.from, now.from % 2 * 2, false, dt);
    for (int u = now.from; u < now.to; u++) {
        const char *const k[2] = {w->k[0] + (size_t)(u % 2) * two, w->k[1] + (size_t)(u % 2) * two};
        float *s = w->s + u % 2 * P_UNIT;
        if (u + 1 < now.to)
            pack_keys(w, u + 1, (u + 1) % 2 * 2, false, dt);
        AMX_BARRIER(w->k[0]);
        scores(w, 0, k, s, u > now.from ? &before : NULL, dt, false);
        turn_set(w, &now, u, s);
        before = now;
    }
    for (int u = now.from; u < now.to; u++)
        pack_values(w, u, false, dt);
    turn_last(w, &before, states, dt);
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
    w->soft.p = (uint16_t *)(void *)(at += (LAG + 1) * P_UNIT);
    w->soft.plain = w->soft.p + SOFT_UNITS * P_UNIT;
    w->soft.scale = w->scale = at += SOFT_UNITS * P_UNIT;
    w->o = at += 2 * KEYS;
    w->soft.ref = at += ROWS * (hd32 + 1);
    w->soft.base = at += ROWS;
    w->all = at += ROWS;
    for (int i = 0; i < ROWS; i++)
        w->soft.ref[i] = -INFINITY;
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
    pack_q(w, t->softcap > 0 ? t->scale : t->scale * LOG2E * SOFT_ONE);
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
