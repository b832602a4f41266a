/* GEMM kernels of the AMX table in fixed point: activations and quantised weights as 16-bit integers with one scale a row and
 * one an output, each as two signed digits of 8 bits: X = 256 Xh + Xl, W = 256 Wh + Wl.
 *
 *   y = 256 (256 sum(Xh Wh) + sum(Xh Wl) + sum(Xl Wh)) * scale of the row * scale of the output
 *
 * The product of the lower digits is left out: 2^-12 of a product, where bf16 loses 2^-9 of each factor. Sums are whole numbers of
 * 32 bits in tiles (TDPBSUD) and exact, so any order and any number of rows gives the same bits, and they stay in their
 * tiles over all k. Empty in the other ISAs' objects. */
#include "engine/cpu/gemm_vec.h"

#ifdef CPU_ISA_amx
#include "engine/cpu/gemm_ask.h"
#include "engine/cpu/gemm_edge.h"
#include "engine/cpu/gemm_fixed.h"

/* ---- activations ---- */

/* The largest magnitude of a row, as bits of a float: what is not a number is above infinity. */
static uint32_t row_top(const float *x, int64_t n)
{
    __m512i top = _mm512_setzero_si512();
    for (int64_t i = 0; i < n; i += LANES)
        top = _mm512_max_epu32(top, _mm512_slli_epi32(_mm512_loadu_si512(x + i), 1));
    return _mm512_reduce_max_epu32(top) >> 1;
}

static float float_of(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* 64 words of 32 bits, their values within 16, as bytes of higher and lower digits, in order. */
static void digits_split(const __m512i *v, __m512i *high, __m512i *low)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i half = _mm512_set1_epi16(128), byte = _mm512_set1_epi16(255);
    const __m512i a = _mm512_packs_epi32(v[0], v[1]), b = _mm512_packs_epi32(v[2], v[3]);
    *high = _mm512_permutexvar_epi32(
        order, _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(a, half), 8),
                                  _mm512_srai_epi16(_mm512_add_epi16(b, half), 8)));
    *low = _mm512_permutexvar_epi32(
        order, _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte)));
}

/* Digits of 64 k of a row as tiles of them read it, or as tiles of words do (`words`): for the even words what makes the lower
 * sums (Xh, Xl beside the weights' lower and higher bytes) and the higher ones (0, Xh), and the same for the odd words.
 * Pieces lie `each` bytes apart. */
INLINE void digits_put(const bool words, __m512i high, __m512i low, int8_t *to, int64_t each)
{
    const __m512i upper = _mm512_set1_epi16((short)0xff00);
    if (!words) {
        _mm512_storeu_si512(to, high);
        _mm512_storeu_si512(to + each, low);
        return;
    }
    _mm512_storeu_si512(/* upper ? second : first */
                        to,
                        _mm512_ternarylogic_epi32(high, _mm512_slli_epi16(low, 8), upper, 0xd8));
    _mm512_storeu_si512(to + each, _mm512_slli_epi16(high, 8));
    _mm512_storeu_si512(to + 2 * each,
                        _mm512_ternarylogic_epi32(_mm512_srli_epi16(high, 8), low, upper, 0xd8));
    _mm512_storeu_si512(to + 3 * each, _mm512_and_si512(high, upper));
}

/* A row's digits; returns the sums of both. */
INLINE void row_digits(const bool words, const float *x, int64_t n, float inv, int8_t *to,
                       int64_t each, int32_t sum[2])
{
    const __m512 f = _mm512_set1_ps(inv);
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i high_sum = _mm512_setzero_si512(), low_sum = high_sum;
    for (int64_t k = 0; k < n; k += FIXED_K, to += (words ? 4 : 2) * each) {
        __m512i v[4], high, low;
        for (int i = 0; i < 4; i++)
            v[i] = k + i * LANES < n
                       ? _mm512_cvtps_epi32(_mm512_mul_ps(f, _mm512_loadu_ps(x + k + i * LANES)))
                       : _mm512_setzero_si512();
        digits_split(v, &high, &low);
        digits_put(words, high, low, to, each);
        high_sum = _mm512_dpbusd_epi32(high_sum, ones, high);
        low_sum = _mm512_dpbusd_epi32(low_sum, ones, low);
    }
    sum[0] = _mm512_reduce_add_epi32(high_sum);
    sum[1] = _mm512_reduce_add_epi32(low_sum);
}

/* xq: per step of 64 k two (of one row: four) pieces of [rows] of 64 bytes. sx: a row's scale. minus32, minus16: what the weights'
 * bytes, 128 over their digits, add to both sums. */
static void fixed_prep(const struct gemm_prep *p)
{
    const int64_t each = (int64_t)p->n_row * FIXED_K;
    for (int r = 0; r < p->n_row; r++) {
        const float *x = p->x + r * p->ldx;
        const uint32_t bits = row_top(x, p->n_in);
        const float top = float_of(bits);
        const bool some = top >= 0x1p-110F && bits < 0x7f800000;
        const float inv = some ? FIXED_TOP / top : 0;
        int32_t sum[2];
        if (p->one)
            row_digits(true, x, p->n_in, inv, p->xq + r * FIXED_K, each, sum);
        else
            row_digits(false, x, p->n_in, inv, p->xq + r * FIXED_K, each, sum);
        p->sx[r] = some ? top * (256.0F / FIXED_TOP) : bits < 0x7f800000 ? 0 : __builtin_nanf("");
        p->minus32[r] = 128 * sum[0];
        p->minus16[r] = 128 * (sum[0] + sum[1]);
    }
}

/* ---- results ---- */

/* What a block of rows has besides its digits. */
struct block {
    int64_t row;
    int rows;
    const float *sx;
    const int32_t *over[2];
};

static struct block block_of(const struct gemm_call *c, int b)
{
    const int64_t row = (int64_t)b * GEMM_ROWS, at = row * (c->n_in / GEMM_CHUNK);
    const int64_t left = c->m - row;
    return (struct block){.row = row,
                          .rows = left < GEMM_ROWS ? (int)left : GEMM_ROWS,
                          .sx = c->sx + at,
                          .over = {c->minus32 + at, c->minus16 + 2 * at}};
}

/* What makes outputs of a panel's sums. */
struct ending {
    __m512 scale, bias;
    __mmask16 mask;
};

static inline struct ending ending_of(const struct gemm_call *c, int panel)
{
    const uint8_t *p = c->panel + (size_t)panel * c->panel_bytes;
    return (struct ending){_mm512_loadu_ps(fixed_scale_at(p, c->panel_bytes)->s), bias_of(c, panel),
                           panel_mask(c, panel)};
}

/* A row's sums of a panel to y. */
static inline void row_put(const struct ending *e, const struct block *b, int r, __m512i high,
                           __m512i low, float *y)
{
    const __m512 h = _mm512_cvtepi32_ps(_mm512_sub_epi32(high, _mm512_set1_epi32(b->over[0][r])));
    const __m512 l = _mm512_cvtepi32_ps(_mm512_sub_epi32(low, _mm512_set1_epi32(b->over[1][r])));
    const __m512 v = _mm512_mul_ps(_mm512_fmadd_ps(h, _mm512_set1_ps(256), l), e->scale);
    _mm512_mask_storeu_ps(y, e->mask, _mm512_fmadd_ps(v, _mm512_set1_ps(b->sx[r]), e->bias));
}

/* Sums [2][16][LANES] each of a block and n_panel panels to y. */
INLINE void sums_put(const struct gemm_call *c, const struct block *of, const int n_panel,
                     int panel, const int32_t *sum)
{
    const struct block b = *of;
    const struct ending e = ending_of(c, panel), f = ending_of(c, panel + n_panel - 1);
    float *y = c->y + b.row * c->ldy + (int64_t)panel * LANES;
    for (int r = 0; r < b.rows; r++, sum += LANES, y += c->ldy) {
        row_put(&e, &b, r, _mm512_load_si512(sum), _mm512_load_si512(sum + 256), y);
        if (n_panel > 1)
            row_put(&f, &b, r, _mm512_load_si512(sum + 512), _mm512_load_si512(sum + 768),
                    y + LANES);
    }
}

/* ---- products ---- */

#define PAIR       2              /* panels */
#define STEP_BYTES (4 * AMX_TILE) /* a step's weights: of each panel higher and lower digits */

/* Tiles 0 and 1: sums of the first panel, 2 and 3: of the second; 4 and 5: activations; 6 and 7: weights. No sum waits for
 * the product before. */
INLINE void step_products(const int n_panel, const int8_t *high, const int8_t *low,
                          const uint8_t *w)
{
    _tile_loadd(4, high, 64);
    _tile_loadd(6, w + AMX_TILE, 64);
    _tile_dpbsud(1, 4, 6);
    if (n_panel > 1) {
        _tile_loadd(7, w + 3 * AMX_TILE, 64);
        _tile_dpbsud(3, 4, 7);
    }
    _tile_loadd(6, w, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(5, low, 64);
    _tile_dpbsud(1, 5, 6);
    if (n_panel > 1) {
        _tile_loadd(7, w + 2 * AMX_TILE, 64);
        _tile_dpbsud(3, 5, 7);
        _tile_dpbsud(2, 4, 7);
    }
}

INLINE void tiles_zero(const int n_panel)
{
    _tile_zero(0);
    _tile_zero(1);
    if (n_panel > 1) {
        _tile_zero(2);
        _tile_zero(3);
    }
}
INLINE void tiles_load(const int n_panel, const int32_t *sum)
{
    AMX_BARRIER(sum);
    _tile_loadd(0, sum, 64);
    _tile_loadd(1, sum + 256, 64);
    if (n_panel > 1) {
        _tile_loadd(2, sum + 512, 64);
        _tile_loadd(3, sum + 768, 64);
    }
}
INLINE void tiles_store(const int n_panel, int32_t *sum)
{
    _tile_stored(0, sum, 64);
    _tile_stored(1, sum + 256, 64);
    if (n_panel > 1) {
        _tile_stored(2, sum + 512, 64);
        _tile_stored(3, sum + 768, 64);
    }
    AMX_BARRIER(sum);
}

/* Of a row. A last half step's activations are 0, so its weights may be anything. */
static int64_t steps_of(const struct gemm_call *c)
{
    return (c->n_in + FIXED_K - 1) / FIXED_K;
}

/* Chunk `at` of a panel to a step's tiles. */
INLINE void chunk_write(const struct gemm_call *c, const struct gemm_spec s, const bool words,
                        int panel, int64_t at, uint8_t *tile)
{
    const uint8_t *p = c->panel + (size_t)panel * c->panel_bytes;
    const __m512 inv = _mm512_loadu_ps(fixed_scale_at(p, c->panel_bytes)->inv);
    fixed_chunk(s, words, p, c->n_in, at, inv, tile);
}

/* ---- one row: vectors of integers, no tiles to write ---- */

#define STREAMS 4 /* panels at a time: streams from memory, sums that wait for themselves */

/* What a chunk of n_panel panels adds to the lower and higher sums; x: of its step, four pieces of 64 bytes. */
INLINE void row_chunk(const struct gemm_call *c, const struct gemm_spec s, const int n_panel, int p,
                      int64_t at, const int8_t *x, __m512i *low, __m512i *high)
{
    const int per = GEMM_CHUNK / s.group;
    const size_t chunks = gemm_scale_bytes(s, c->n_in, LANES);
    __m512i factor[STREAMS], offset[STREAMS];
    x += (at & 1) * 32;
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        UNROLL(4)
        for (int k = 0; k < n_panel && h < per; k++) {
            const uint8_t *panel = c->panel + (size_t)(p + k) * c->panel_bytes;
            const __m512 inv = _mm512_loadu_ps(fixed_scale_at(panel, c->panel_bytes)->inv);
            fixed_factors(s, panel, at * per + h, inv, &factor[k], &offset[k]);
        }
        UNROLL(4)
        for (int i = 0; i < 4; i++) {
            int32_t v[4];
            for (int j = 0; j < 4; j++)
                memcpy(&v[j], x + 64 * j + (4 * h + i) * 4, sizeof v[j]);
            UNROLL(4)
            for (int k = 0; k < n_panel; k++) {
                const uint8_t *chunk = c->panel + (size_t)(p + k) * c->panel_bytes + chunks +
                                       (size_t)at * gemm_chunk_bytes(s, LANES);
                __m512i even, odd;
                fixed_pair(s, chunk, i, h, factor[k], offset[k], &even, &odd);
                low[k] = _mm512_dpbusd_epi32(low[k], even, _mm512_set1_epi32(v[0]));
                high[k] = _mm512_dpbusd_epi32(high[k], even, _mm512_set1_epi32(v[1]));
                low[k] = _mm512_dpbusd_epi32(low[k], odd, _mm512_set1_epi32(v[2]));
                high[k] = _mm512_dpbusd_epi32(high[k], odd, _mm512_set1_epi32(v[3]));
            }
        }
    }
}

INLINE void row_panels(const struct gemm_call *c, const struct gemm_spec s, const int n_panel,
                       int p)
{
    struct ask ask = ask_from(c, s, n_panel, p);
    const struct block b = block_of(c, 0);
    __m512i low[STREAMS], high[STREAMS];
    UNROLL(4)
    for (int k = 0; k < n_panel; k++)
        low[k] = high[k] = _mm512_setzero_si512();
    for (int64_t i = 0; i < c->n_in / GEMM_CHUNK; i++) {
        ask_step(c, s, n_panel, &ask);
        row_chunk(c, s, n_panel, p, i, c->xq + i / 2 * 4 * FIXED_K, low, high);
    }
    UNROLL(4)
    for (int k = 0; k < n_panel; k++) {
        const struct ending e = ending_of(c, p + k);
        row_put(&e, &b, 0, high[k], low[k], c->y + (int64_t)(p + k) * LANES);
    }
}

INLINE void row_run(const struct gemm_call *c, const struct gemm_spec s)
{
    int p = 0;
    ask_first(c, s, c->n_panel >= 4 ? 4 : c->n_panel >= 2 ? 2 : 1);
    for (; p + 4 <= c->n_panel; p += 4)
        row_panels(c, s, 4, p);
    for (; p + 2 <= c->n_panel; p += 2)
        row_panels(c, s, 2, p);
    for (; p < c->n_panel; p++)
        row_panels(c, s, 1, p);
}

/* ---- up to 16 rows: weights pass once ---- */

#define RING 4 /* steps that are held as tiles */
#define LAG  2 /* steps between the writing of tiles and their products */

struct stream_work {
    uint8_t tile[RING][STEP_BYTES];
    int32_t sum[4 * GEMM_ROWS * LANES];
    int8_t x[];
};

static void words_from(const struct gemm_call *c, int8_t *to)
{
    const int64_t n = steps_of(c), each = c->m * FIXED_K;
    const int8_t *x = c->xq;
    for (int64_t i = 0; i < n; i++, x += 2 * each, to += 4 * each)
        for (int64_t r = 0; r < each; r += FIXED_K)
            digits_put(true, _mm512_loadu_si512(x + r), _mm512_loadu_si512(x + each + r), to + r,
                       each);
}

/* One panel's even or odd words. */
INLINE void words_products(const int k, const uint8_t *w)
{
    if (k == 0) {
        _tile_loadd(6, w, 64);
        _tile_dpbsud(1, 4, 6);
        _tile_dpbsud(0, 5, 6);
    } else {
        _tile_loadd(7, w, 64);
        _tile_dpbsud(3, 4, 7);
        _tile_dpbsud(2, 5, 7);
    }
}

INLINE void stream_panels(const struct gemm_call *c, const struct gemm_spec s, const int n_panel,
                          int p, struct stream_work *t)
{
    const int64_t n = c->n_in / GEMM_CHUNK, steps = (n + 1) / 2, each = c->m * FIXED_K;
    struct ask ask = ask_from(c, s, n_panel, p);
    const int8_t *x = t->x;
    tiles_zero(n_panel);
    for (int64_t i = 0; i < steps + LAG; i++) {
        const uint8_t *w = t->tile[(i - LAG) & (RING - 1)];
        UNROLL(2)
        for (int j = 0; j < 2; j++) {
            const int64_t at = 2 * i + j;
            if (at < n)
                ask_step(c, s, n_panel, &ask);
            if (i >= LAG) {
                _tile_loadd(4, x, 64);
                _tile_loadd(5, x + each, 64);
                x += 2 * each;
            }
            UNROLL(2)
            for (int k = 0; k < n_panel; k++) {
                if (at < n)
                    chunk_write(c, s, true, p + k, at, t->tile[i & (RING - 1)] + k * 2 * AMX_TILE);
                AMX_BARRIER(t);
                if (i >= LAG)
                    words_products(k, w + (2 * k + j) * AMX_TILE);
            }
        }
    }
    tiles_store(n_panel, t->sum);
    const struct block b = block_of(c, 0);
    sums_put(c, &b, n_panel, p, t->sum);
}

INLINE void stream_run(const struct gemm_call *c, const struct gemm_spec s)
{
    int p = 0;
    amx_open((int)c->m);
    ask_first(c, s, c->n_panel >= PAIR ? PAIR : 1);
    struct stream_work *t = c->wbuf;
    words_from(c, t->x);
    for (; p + PAIR <= c->n_panel; p += PAIR)
        stream_panels(c, s, PAIR, p, t);
    for (; p < c->n_panel; p++)
        stream_panels(c, s, 1, p, t);
    _tile_release();
}

/* ---- more: a segment's tiles of two panels times all blocks of rows ---- */

#define SEG 4 /* steps of a segment: its tiles stay in the first-level cache */

struct pair_work {
    uint8_t tile[SEG][STEP_BYTES];
    int32_t sum[GEMM_ROWS_MAX / GEMM_ROWS][4 * GEMM_ROWS * LANES];
};
_Static_assert(sizeof(struct pair_work) <= GEMM_WBUF_MIN, "gemm_wbuf_bytes");
_Static_assert(sizeof(struct stream_work) <= GEMM_WBUF_MIN, "gemm_wbuf_bytes");

/* Steps [from, from + n) of the panels from p on. */
struct segment {
    int p, n_panel;
    int64_t from, n;
};

/* Writes a segment's tiles. Not beside products: loads of tiles whose place in a page is a pending store's wait for it. */
INLINE void segment_write(const struct gemm_call *c, const struct gemm_spec s, const int n_panel,
                          const struct segment *g, uint8_t *tile, struct ask *ask)
{
    const int64_t n = c->n_in / GEMM_CHUNK, last = 2 * (g->from + g->n);
    for (int64_t at = 2 * g->from; at < (last < n ? last : n); at++) {
        uint8_t *to = tile + (at / 2 - g->from) * STEP_BYTES;
        ask_step(c, s, n_panel, ask);
        UNROLL(2)
        for (int k = 0; k < n_panel; k++)
            chunk_write(c, s, false, g->p + k, at, to + k * 2 * AMX_TILE);
    }
}

/* Asks for a block's rows of y: they are written soon. */
INLINE void block_touch(const struct gemm_call *c, const struct block *b, int panel)
{
    const float *y = c->y + b->row * c->ldy + (int64_t)panel * LANES;
    for (int r = 0; r < b->rows; r++, y += c->ldy) {
        __builtin_prefetch(y, 1);
        __builtin_prefetch(y + LANES, 1);
    }
}

/* One block times a segment. A short last block is followed by other scratch: rows past its end are multiplied, but not
 * used. */
INLINE void pair_block(const struct gemm_call *c, struct pair_work *t, const int n_panel,
                       const struct segment *g, int block)
{
    const struct block b = block_of(c, block);
    const int64_t low = b.rows * FIXED_K, steps = steps_of(c);
    const int8_t *x = c->xq + b.row * 2 * steps * FIXED_K + g->from * 2 * low;
    const uint8_t *w = t->tile[0];
    const bool last = g->from + g->n == steps;
    int32_t *sum = t->sum[block];
    if (last)
        block_touch(c, &b, g->p);
    if (g->from)
        tiles_load(n_panel, sum);
    else
        tiles_zero(n_panel);
    for (int64_t i = 0; i < g->n; i++, w += STEP_BYTES, x += 2 * low)
        step_products(n_panel, x, x + low, w);
    tiles_store(n_panel, sum);
}

static __attribute__((noinline)) void segment_run(const struct gemm_call *c, struct pair_work *t,
                                                  const struct segment *g)
{
    const int n_block = (int)((c->m + GEMM_ROWS - 1) / GEMM_ROWS);
    const bool last = g->from + g->n == steps_of(c);
    AMX_BARRIER(t);
    for (int i = 0; i < n_block + 1;
         i++) { /* a block's sums are ready while the next one is multiplied */
        if (i < n_block && g->n_panel == PAIR)
            pair_block(c, t, PAIR, g, i);
        else if (i < n_block)
            pair_block(c, t, 1, g, i);
        if (i == 0 || !last)
            continue;
        const struct block b = block_of(c, i - 1);
        if (g->n_panel == PAIR)
            sums_put(c, &b, PAIR, g->p, t->sum[i - 1]);
        else
            sums_put(c, &b, 1, g->p, t->sum[i - 1]);
    }
}

INLINE void pairs_run(const struct gemm_call *c, const struct gemm_spec s)
{
    const int64_t steps = steps_of(c), n_seg = (steps + SEG - 1) / SEG;
    const int64_t most = (steps + n_seg - 1) / n_seg;
    struct pair_work *t = c->wbuf;
    struct ask ask = ask_from(c, s, c->n_panel >= PAIR ? PAIR : 1, 0);
    struct segment g = {0};
    ask_first(c, s, c->n_panel >= PAIR ? PAIR : 1);
    amx_open(GEMM_ROWS);
    for (; g.p < c->n_panel; g.p += PAIR)
        for (g.from = 0; g.from < steps; g.from += g.n) {
            g.n = steps - g.from < most ? steps - g.from : most;
            g.n_panel = c->n_panel - g.p < PAIR ? 1 : PAIR;
            if (g.n_panel == PAIR)
                segment_write(c, s, PAIR, &g, t->tile[0], &ask);
            else
                segment_write(c, s, 1, &g, t->tile[0], &ask);
            segment_run(c, t, &g);
        }
    _tile_release();
}

#define X(name, ...)                                                                               \
    static void finish_##name(uint8_t *panel, size_t panel_bytes, int64_t n_in)                    \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        fixed_finish(s, panel, panel_bytes, n_in);                                                 \
    }                                                                                              \
    static void run_##name(const struct gemm_call *c)                                              \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        if (c->one)                                                                                \
            row_run(c, s);                                                                         \
        else if (c->m <= GEMM_ROWS)                                                                \
            stream_run(c, s);                                                                      \
        else                                                                                       \
            pairs_run(c, s);                                                                       \
        AMX_BARRIER(c->y);                                                                         \
    }
GEMM_QUANT_LAYOUTS(X)
#undef X

const struct gemm_fixed_kern gemm__fixed_amx = {
#define X(name, ...) .fn[GL_##name] = run_##name, .finish[GL_##name] = finish_##name,
    GEMM_QUANT_LAYOUTS(X)
#undef X
        .prep = fixed_prep,
};

#endif
