/* GEMM kernels in integers, for every layout of whole numbers: PRECISION_INT8, and the default where there are no
 * tiles. In blocks of 32 of a row, activations become 12-bit integers, x = sx * v: closer than bf16, while 8 bits
 * alone change 4 % of the best tokens of a small model. They are multiplied as words of 16 bits. The products of a group are
 * summed in integers, which is exact, and the scales are applied in f32:
 *
 *   y += D * (sx * sum((q - bias) v)) + M * (sx * sum(v))
 *
 * The order of these f32 operations depends on the layout only, so that every instruction which can sum
 * integers (VNNI, plain multiplies) gives the same bits; tables that have FMA agree with each other.
 * Compiled once per ISA; empty for AMX, which has fixed point instead (kern_gemm_fixed.c). */
#include "engine/cpu/gemm_ask.h"
#include "engine/cpu/gemm_vec.h"

#ifndef CPU_ISA_amx
#if LANES == 16
#include "engine/cpu/fold16.h"
#endif

/* How integers are multiplied and summed. */
enum dot_kind { DOT_PLAIN, DOT_VNNI };

typedef int8_t vb __attribute__((vector_size(LANES)));
typedef int16_t vw __attribute__((vector_size(LANES * 2)));

/* ---- activations ---- */

INLINE vi vi_max(vi a, vi b)
{
    vi more = a > b;
    return (a & more) | (b & ~more);
}

/* Largest value and sum of the lanes: halves are exchanged until all lanes are equal. */
INLINE int32_t vi_max_lane(vi v)
{
    for (int step = LANES / 2; step > 0; step /= 2) {
        vi from;
        for (int i = 0; i < LANES; i++)
            from[i] = i ^ step;
        v = vi_max(v, __builtin_shuffle(v, from));
    }
    return v[0];
}
INLINE int32_t vi_sum_lane(vi v)
{
    for (int step = LANES / 2; step > 0; step /= 2) {
        vi from;
        for (int i = 0; i < LANES; i++)
            from[i] = i ^ step;
        v += __builtin_shuffle(v, from);
    }
    return v[0];
}

#define N_VEC    (GEMM_CHUNK / LANES)
#define XQ_BYTES (2 * GEMM_CHUNK) /* of a chunk of a row */

/* LANES integers of 12 bits to their place in the chunk at dst, `i` vectors in. */
INLINE void words_put(int8_t *dst, int i, vi v)
{
    vw w = __builtin_convertvector(v, vw), order;
    for (int k = 0; k < LANES; k++) /* each run of four: 0 2 1 3 */
        order[k] = (int16_t)((k & ~3) | (k & 1) << 1 | (k >> 1 & 1));
    w = __builtin_shuffle(w, order);
    memcpy(dst + i * LANES * 2, &w, sizeof w);
}

#define V_MAX (127 * 16) /* |sum((q - bias) v)| < 2^24: exact in f32 as well */

/* One block of one row: its integers to dst, sums of 16 to sum[2]; returns the scale. A block that holds NaN
 * or Inf gets a scale of NaN, one of nearly nothing a scale of 0. */
INLINE float block_round(const float *x, int8_t *dst, int32_t *sum)
{
    vi top = {0};
    for (int i = 0; i < N_VEC; i++) /* NaN > Inf > all others, as integers */
        top = vi_max(top, (vi)v_load(x + i * LANES) & 0x7fffffff);
    const int32_t bits = vi_max_lane(top);
    float most, inv = 0, scale = 0;
    memcpy(&most, &bits, sizeof most);
    if (bits >= 0x7f800000) {
        scale = __builtin_nanf("");
    } else if (most >= 0x1p-100f) {
        inv = V_MAX / most;
        scale = most / V_MAX;
    }
    vi s[2] = {{0}, {0}};
    for (int i = 0; i < N_VEC; i++) {
        /* To nearest, ties to even: the addition leaves the integer in the low bits. Where the scale is
         * 0 or NaN all are zeros. */
        vf r = v_load(x + i * LANES) * inv + 0x1.8p23f;
        vi v = inv > 0 ? (vi)r - 0x4b400000 : (vi){0};
        words_put(dst, i, v);
        s[i * LANES / 16] += v;
    }
    sum[0] = vi_sum_lane(s[0]);
    sum[1] = vi_sum_lane(s[1]);
    return scale;
}

#if LANES == 16
#define ROWS_LEAST                                                                                 \
    4 /* that are converted sixteen at a time: a row alone takes as long as four of them */

INLINE vi vi_add(vi a, vi b)
{
    return a + b;
}
INLINE vi vi_pick(vi x, vi y, fold_lanes from)
{
    return (vi)_mm512_permutex2var_epi32((__m512i)x, (__m512i)from, (__m512i)y);
}

/* Rows of a block; those behind the last are as the first one, and their words go nowhere. */
struct rows {
    const float *x[16];
    int8_t *to[16];
    int64_t step[16]; /* bytes of `to` from chunk to chunk */
};

/* Inverses of the scales of 16 rows, and the scales, by the largest magnitudes, a row a lane: as block_round. */
INLINE vf rows_scale(vi bits, vf *inv)
{
    const vf most = (vf)bits;
    const vi some = most >= v_set(0x1p-100f), bad = bits >= 0x7f800000, in = some & ~bad;
    *inv = (vf)((vi)(V_MAX / most) & in);
    return (vf)(((vi)(most / V_MAX) & in) | (bad & 0x7fc00000));
}

INLINE void rows_sums(const struct gemm_prep *p, int64_t c, vf scale, vi sum0, vi sum1)
{
    const int64_t at = c * GEMM_ROWS;
    const vi sum = sum0 + sum1;
    v_store(p->sx + at, scale);
    v_store((float *)p->minus32 + at, (vf)-sum);
    v_store((float *)p->minus16 + 2 * at, (vf)-sum0);
    v_store((float *)p->minus16 + 2 * at + GEMM_ROWS, (vf)-sum1);
    if (p->xs32)
        v_store(p->xs32 + at, scale * __builtin_convertvector(sum, vf));
    if (p->xs16) {
        v_store(p->xs16 + 2 * at, scale * __builtin_convertvector(sum0, vf));
        v_store(p->xs16 + 2 * at + GEMM_ROWS, scale * __builtin_convertvector(sum1, vf));
    }
}

/* A chunk of 16 rows: as block_round, with what belongs to a row in its lane. */
INLINE void rows_round(const struct gemm_prep *p, const struct rows *rows, int64_t c)
{
    uint16_t from[32]; /* low halves of 16 and 16 integers; each run of four: 0 2 1 3 */
    for (int k = 0; k < 32; k++)
        from[k] = (uint16_t)(2 * ((k & ~3) | (k & 1) << 1 | (k >> 1 & 1)));
    const __m512i order = _mm512_loadu_si512(from), ones = _mm512_set1_epi16(1);
    vi v[16];
    UNROLL(16)
    for (int r = 0; r < 16; r++) {
        const float *x = rows->x[r] + c * GEMM_CHUNK;
        v[r] = vi_max((vi)v_load(x) & 0x7fffffff, (vi)v_load(x + 16) & 0x7fffffff);
    }
    FOLD_ROWS(vi, v, 16, vi_max, vi_pick);
    vf inverse;
    float inv[16];
    const vf scale = rows_scale(v[0], &inverse);
    v_store(inv, inverse);
    UNROLL(16)
    for (int r = 0; r < 16; r++) {
        const float *x = rows->x[r] + c * GEMM_CHUNK;
        const __mmask16 live = inv[r] > 0 ? 0xffff : 0;
        const __m512i a = _mm512_maskz_cvtps_epi32(live, (__m512)(v_load(x) * inv[r]));
        const __m512i b = _mm512_maskz_cvtps_epi32(live, (__m512)(v_load(x + 16) * inv[r]));
        const __m512i w = _mm512_permutex2var_epi16(a, order, b);
        _mm512_storeu_si512(rows->to[r] + c * rows->step[r], w);
        v[r] = (vi)_mm512_madd_epi16(w, ones); /* the first 16 values in lanes 0 to 7 */
    }
    FOLD_STEP(vi, v, 16, 1, vi_add, vi_pick)
    FOLD_STEP(vi, v, 16, 2, vi_add, vi_pick)
    FOLD_STEP(vi, v, 16, 4, vi_add, vi_pick)
    rows_sums(p, c, scale, vi_pick(v[0], v[1], FOLD_LANES(8, 0)),
              vi_pick(v[0], v[1], FOLD_LANES(8, 8)));
}

static void rows_prep(const struct gemm_prep *p)
{
    int8_t none[XQ_BYTES];
    struct rows rows;
    for (int r = 0; r < 16; r++) {
        const bool is = r < p->n_row;
        rows.x[r] = p->x + (is ? r * p->ldx : 0);
        rows.to[r] = is ? p->xq + r * XQ_BYTES : none;
        rows.step[r] = is ? p->n_row * XQ_BYTES : 0;
    }
    for (int64_t c = 0; c < p->n_in / GEMM_CHUNK; c++)
        rows_round(p, &rows, c);
}
#endif

static void int8_prep(const struct gemm_prep *p)
{
#if LANES == 16
    if (p->n_row >= ROWS_LEAST) {
        rows_prep(p);
        return;
    }
#endif
    for (int64_t c = 0; c < p->n_in / GEMM_CHUNK; c++)
        for (int r = 0; r < p->n_row; r++) {
            int32_t sum[2];
            const float scale = block_round(p->x + r * p->ldx + c * GEMM_CHUNK,
                                            p->xq + (c * p->n_row + r) * XQ_BYTES, sum);
            const int64_t at = c * GEMM_ROWS + r, at16 = 2 * c * GEMM_ROWS + r;
            p->sx[at] = scale;
            p->minus32[at] = -(sum[0] + sum[1]);
            p->minus16[at16] = -sum[0];
            p->minus16[at16 + GEMM_ROWS] = -sum[1];
            if (p->xs32)
                p->xs32[at] = scale * (float)(sum[0] + sum[1]);
            if (p->xs16) {
                p->xs16[at16] = scale * (float)sum[0];
                p->xs16[at16 + GEMM_ROWS] = scale * (float)sum[1];
            }
        }
}

/* ---- products ---- */

INLINE vu shift_left(vu v, int n)
{
    return n >= 0 ? v << n : v >> -n;
}

/* Byte b of every lane: q[16h + 4i + b], biased as it is packed. */
INLINE vu q_bytes(const struct gemm_spec s, const uint8_t *chunk, const vu *high, int i, int h)
{
    if (s.bits == 8)
        return v_load_u(chunk + (size_t)(4 * h + i) * LANES * 4);
    vu q = v_load_u(chunk + (size_t)i * LANES * 4) >> 4 * h & 0x0f0f0f0f;
    for (int plane = 0; plane < s.bits - 4; plane++) { /* gemm_high_bit */
        const int to = 4 + plane, from = 4 * h + i;
        q |= shift_left(high[plane], to - from) & 0x01010101u << to;
    }
    return q;
}

/* sum += dot of two unsigned words of every lane and the two signed words at x. */
INLINE vi dot_words(const enum dot_kind kind, vi sum, vu q, const int8_t *x)
{
#if LANES >= 8
    if (kind == DOT_VNNI) { /* by name: this object may be compiled for processors without it */
#if LANES == 16
        __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(q), "m"(*(const int8_t(*)[4])x));
#else
        int32_t word;
        memcpy(&word, x, sizeof word);
        __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(q), "x"(_mm256_set1_epi32(word)));
#endif
        return sum;
    }
#endif
    (void)kind;
#if LANES >= 8
    int32_t both;
    memcpy(&both, x, sizeof both);
#else
    int16_t pair[2];
    memcpy(pair, x, sizeof pair);
#endif
#if LANES == 16
    return sum + (vi)_mm512_madd_epi16((__m512i)q, _mm512_set1_epi32(both));
#elif LANES == 8
    return sum + (vi)_mm256_madd_epi16((__m256i)q, _mm256_set1_epi32(both));
#else
    return sum + (vi)(q & 0xffff) * (int32_t)pair[0] + (vi)(q >> 16) * (int32_t)pair[1];
#endif
}

/* Where the activations of the block of up to 16 rows that holds `row` lie. */
struct act_block {
    int rows; /* of the block */
    const int8_t *xq;
    const float *sx, *xs;
    const int32_t *minus;
};

INLINE struct act_block act_block(const struct gemm_call *c, const struct gemm_spec s, int64_t row)
{
    const int64_t from = row / GEMM_ROWS * GEMM_ROWS, r = row - from, n = c->m - from;
    return (struct act_block){
        .rows = n < GEMM_ROWS ? (int)n : GEMM_ROWS,
        .xq = c->xq + from * 2 * c->n_in + r * XQ_BYTES,
        .sx = c->sx + from * (c->n_in / GEMM_CHUNK) + r,
        .xs = s.has_min ? c->xs + from * (c->n_in / s.group) + r : NULL,
        .minus = (s.group == 32 ? c->minus32 : c->minus16) + from * (c->n_in / s.group) + r,
    };
}

/* acc + the group's part of one row. */
INLINE vf group_add(const struct gemm_spec s, vf acc, vi sum, vf d, vf m, const float *sx,
                    const float *xs)
{
    acc = v_fma(d, __builtin_convertvector(sum, vf) * v_set(*sx), acc);
    return s.has_min ? v_fma(m, v_set(*xs), acc) : acc;
}

/* Words i and i + 4 of the chunk (those of k >= 16h0 and < 16h1) times n rows. high[]: planes, shifted right by i. */
INLINE void word_dots(const struct gemm_spec s, const enum dot_kind kind, const int n,
                      const uint8_t *word, const vu *high, const int h0, const int h1,
                      const int8_t *x, vi *hi, vi *lo)
{
    UNROLL(2)
    for (int h = h0; h < h1; h++) {
        const vu q = q_bytes(s, word, high, 0, h);
        const vu even = q & 0x00ff00ff, odd = q >> 8 & 0x00ff00ff;
        UNROLL(8)
        for (int r = 0; r < n; r++) {
            const int8_t *at = x + r * XQ_BYTES + 32 * h;
            lo[r] = dot_words(kind, lo[r], even, at);
            if (n <= 2)
                hi[r] = dot_words(kind, hi[r], odd, at + 4);
            else
                lo[r] = dot_words(kind, lo[r], odd, at + 4);
        }
    }
}

/* The sums of n rows for one group (k >= 16h0 and < 16h1 of the chunk). */
INLINE void group_sums(const struct gemm_spec s, const enum dot_kind kind, const int n,
                       const uint8_t *chunk, const vu *high, const int h0, const int h1,
                       const int8_t *x, const int32_t *minus, vi *sum)
{
    const int x_step = XQ_BYTES / 8;
    vi hi[ROWS_MAX], lo[ROWS_MAX]; /* two chains where rows are few */
    vu plane[2] = {high[0], high[1]};
    UNROLL(8)
    for (int r = 0; r < n; r++) {
        hi[r] = (vi){0};
        lo[r] = s.bias ? (minus[r] - (vi){0}) * s.bias : (vi){0}; /* biases are powers of two */
    }
#define STEP                                                                                       \
    {                                                                                              \
        word_dots(s, kind, n, chunk + (size_t)i * LANES * 4, plane, h0, h1, x + i * x_step, hi,    \
                  lo);                                                                             \
        plane[0] >>= 1;                                                                            \
        plane[1] >>= 1;                                                                            \
    }
    if (n > 2) { /* unrolled, the compiler would keep products in memory */
        UNROLL(1)
        for (int i = 0; i < 4; i++)
            STEP
    } else {
        UNROLL(4)
        for (int i = 0; i < 4; i++)
            STEP
    }
#undef STEP
    UNROLL(8)
    for (int r = 0; r < n; r++)
        sum[r] = n <= 2 ? lo[r] + hi[r] : lo[r];
}

/* n rows times n_panel panels: several streams of weights for one row, which waits for memory only. */
INLINE void int8_rows(const struct gemm_call *c, const struct gemm_spec s, const enum dot_kind kind,
                      const int n, const int n_panel, int p, int64_t row)
{
    const uint8_t *scales = c->panel + (size_t)p * c->panel_bytes;
    const uint8_t *chunk = scales + gemm_scale_bytes(s, c->n_in, LANES);
    const struct act_block a = act_block(c, s, row);
    const int8_t *x = a.xq;
    const int per = GEMM_CHUNK / s.group;
    struct ask ask = ask_from(c, s, n_panel, p);
    vf acc[ROWS_MAX];
    UNROLL(8)
    for (int r = 0; r < n * n_panel; r++)
        acc[r] = v_set(0);
    for (int64_t i = 0; i < c->n_in / GEMM_CHUNK; i++) {
        ask_step(c, s, n_panel, &ask);
        UNROLL(4)
        for (int q = 0; q < n_panel; q++) {
            const size_t at = (size_t)q * c->panel_bytes;
            vu high[2] = {{0}};
            for (int plane = 0; plane < s.bits - 4 && s.bits < 8; plane++)
                high[plane] = v_load_u(chunk + at + (size_t)(4 + plane) * LANES * 4);
            UNROLL(2)
            for (int j = 0; j < per; j++) {
                const int64_t g = (i * per + j) * GEMM_ROWS;
                vi sum[ROWS_MAX];
                vf d, m;
                group_sums(s, kind, n, chunk + at, high, j, per == 2 ? j + 1 : 2, x, a.minus + g,
                           sum);
                group_scale(scales + at, s, i * per + j, &d, &m);
                UNROLL(8)
                for (int r = 0; r < n; r++)
                    acc[q * n + r] =
                        group_add(s, acc[q * n + r], sum[r], d, m, a.sx + i * GEMM_ROWS + r,
                                  s.has_min ? a.xs + g + r : NULL);
            }
        }
        chunk += gemm_chunk_bytes(s, LANES);
        x += a.rows * XQ_BYTES;
    }
    UNROLL(4)
    for (int q = 0; q < n_panel; q++)
        rows_store(c, p + q, row, n, acc + q * n);
}

/* Rows from `row` on of panel p, in blocks of ROWS_MAX, ..., 2, 1. */
#define ROWS(n)                                                                                    \
    for (; c->m - row >= (n); row += (n))                                                          \
    int8_rows(c, s, kind, n, 1, p, row)
INLINE void panel_rows(const struct gemm_call *c, const struct gemm_spec s,
                       const enum dot_kind kind, int p, int64_t row)
{
#if ROWS_MAX >= 8
    ROWS(8);
#endif
#if ROWS_MAX >= 4
    ROWS(4);
#endif
    ROWS(2);
    ROWS(1);
}

/* All panels times few rows, which go without tiles. */
#define SINGLE_PANELS (ROWS_MAX < 4 ? ROWS_MAX : 4) /* of one row, at a time */
INLINE void vector_panels(const struct gemm_call *c, const struct gemm_spec s,
                          const enum dot_kind kind)
{
    int p = 0;
    ask_first(c, s, c->m == 1 && c->n_panel >= SINGLE_PANELS ? SINGLE_PANELS : 1);
    for (; c->m == 1 && p + SINGLE_PANELS <= c->n_panel; p += SINGLE_PANELS)
        int8_rows(c, s, kind, 1, SINGLE_PANELS, p, 0);
    for (; p < c->n_panel; p++)
        panel_rows(c, s, kind, p, 0);
}

#define VECTOR_FN(fn, kind, ...)                                                                   \
    static void fn(const struct gemm_call *c)                                                      \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        vector_panels(c, s, kind);                                                                 \
    }

#define X(name, ...) VECTOR_FN(int8_##name, DOT_PLAIN, __VA_ARGS__)
GEMM_INT_LAYOUTS(X)
#undef X

#if defined(CPU_ISA_avx512) || defined(CPU_ISA_avx2)
#define X(name, ...) VECTOR_FN(vnni_##name, DOT_VNNI, __VA_ARGS__)
GEMM_INT_LAYOUTS(X)
#undef X
#endif

#define TABLE_OF(isa) gemm__int8_##isa
#define TABLE(isa)    TABLE_OF(isa)

const struct gemm_int8_kern TABLE(CPU_ISA) = {
    .prep = int8_prep,
    .fn =
        {
#define X(name, ...) [GL_##name] = int8_##name,
            GEMM_INT_LAYOUTS(X)
#undef X
        },
#if defined(CPU_ISA_avx512) || defined(CPU_ISA_avx2)
    .vnni =
        {
#define X(name, ...) [GL_##name] = vnni_##name,
            GEMM_INT_LAYOUTS(X)
#undef X
        },
#endif
};

#endif
