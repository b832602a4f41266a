/* GEMM kernels of the AMX table for PRECISION_INT8: activations and weights, w = D (q - bias) + M, both with the eight
 * significant bits of bf16. One chain of tile products (TDPBF16PS) over all k, from the bias on, whatever the number of rows: a
 * row of a product does not depend on the others, so the bits are the same for all of them, and sums leave a tile and come back
 * as they were. Exact codes (kern_gemm_amx.c) have to leave it after each group, which costs more than the products. Empty
 * in the other ISAs' objects. */
#include "engine/cpu/gemm_vec.h"

#ifdef CPU_ISA_amx
#include "engine/cpu/gemm_ask.h"
#include "engine/cpu/gemm_codes.h"
#include "engine/cpu/gemm_edge.h"

/* Tiles 0 to 3: sums; 4 and 5: activations; 6 and 7: weights. */

/* ---- weights ---- */

/* The weights of bytes o and o + 2 of every lane, half a unit of bf16's last bit above. */
INLINE void weight_pair(const struct gemm_spec s, __m512i q, int o, int h, __m512 d, __m512 m,
                        __m512i *a, __m512i *b)
{
    const __m512i half = _mm512_set1_epi32(0x8000);
    __m512 v, w;
    codes_pair(s, false, q, o, h, &v, &w);
    v = s.has_min ? _mm512_fmadd_ps(v, d, m) : _mm512_mul_ps(v, d);
    w = s.has_min ? _mm512_fmadd_ps(w, d, m) : _mm512_mul_ps(w, d);
    *a = _mm512_add_epi32(_mm512_castps_si512(v), half);
    *b = _mm512_add_epi32(_mm512_castps_si512(w), half);
}

/* Chunk `at` of a panel as a tile: row 8h + 2i + o has the pair k = 16h + 4i + o and + 2. */
INLINE void chunk_tile(const struct gemm_spec s, const uint8_t *panel, int64_t n_in, int64_t at,
                       uint8_t *tile)
{
    const int per = GEMM_CHUNK / s.group;
    const uint8_t *chunk =
        panel + gemm_scale_bytes(s, n_in, LANES) + (size_t)at * gemm_chunk_bytes(s, LANES);
    const __m512i upper = _mm512_set1_epi32(-65536);
    vf d = v_set(0), m = d;
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        if (h < per)
            group_scale(panel, s, at * per + h, &d, &m);
        UNROLL(4)
        for (int i = 0; i < 4; i++) {
            const __m512i q = codes_bytes(s, chunk, i, h);
            UNROLL(2)
            for (int o = 0; o < 2; o++) {
                __m512i a, b;
                weight_pair(s, q, o, h, (__m512)d, (__m512)m, &a, &b);
                a = _mm512_ternarylogic_epi32(upper, b, _mm512_srli_epi32(a, 16), 0xca);
                _mm512_store_si512(tile + (8 * h + 2 * i + o) * 64, a); /* upper ? b : a >> 16 */
            }
        }
    }
}

typedef void tile_fn(const uint8_t *panel, int64_t n_in, int64_t at, uint8_t *tile);

/* ---- one row: vectors of f32 ---- */

/* A tile product sums even and odd values of a row apart, in order, by fused multiply-adds that flush denormal numbers,
 * and adds both to each other, then to the tile: vectors give the same bits, and need no tiles of weights to be built. */

/* Panels at a time: several streams from memory, several sums that wait for themselves. */
#define STREAMS 4

/* What a chunk of n_panel panels adds. x: 32 f32 in the order of xb. */
INLINE void row_chunk(const struct gemm_call *c, const struct gemm_spec s, const int n_panel, int p,
                      int64_t at, const float *x, __m512 *acc)
{
    const int per = GEMM_CHUNK / s.group;
    const __m512i upper = _mm512_set1_epi32(-65536);
    const uint8_t *panel = c->panel + (size_t)p * c->panel_bytes;
    const uint8_t *chunk =
        panel + gemm_scale_bytes(s, c->n_in, LANES) + (size_t)at * gemm_chunk_bytes(s, LANES);
    __m512 even[STREAMS], odd[STREAMS];
    vf d[STREAMS], m[STREAMS];
    UNROLL(4)
    for (int k = 0; k < n_panel; k++)
        even[k] = odd[k] = _mm512_setzero_ps();
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        UNROLL(4)
        for (int k = 0; k < n_panel && h < per; k++)
            group_scale(panel + (size_t)k * c->panel_bytes, s, at * per + h, &d[k], &m[k]);
        UNROLL(4)
        for (int i = 0; i < 4; i++)
            UNROLL(4)
        for (int k = 0; k < n_panel; k++) {
            const __m512i q = codes_bytes(s, chunk + (size_t)k * c->panel_bytes, i, h);
            UNROLL(2)
            for (int o = 0; o < 2; o++) {
                const float *v = x + 2 * (8 * h + 2 * i + o);
                __m512i a, b;
                weight_pair(s, q, o, h, (__m512)d[k], (__m512)m[k], &a, &b);
                a = _mm512_and_si512(a, upper);
                b = _mm512_and_si512(b, upper);
                even[k] = _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_set1_ps(v[0]), even[k]);
                odd[k] = _mm512_fmadd_ps(_mm512_castsi512_ps(b), _mm512_set1_ps(v[1]), odd[k]);
            }
        }
    }
    UNROLL(4)
    for (int k = 0; k < n_panel; k++)
        acc[k] = _mm512_add_ps(acc[k], _mm512_add_ps(even[k], odd[k]));
}

INLINE void row_panels(const struct gemm_call *c, const struct gemm_spec s, const int n_panel,
                       int p, const float *x)
{
    struct ask ask = ask_from(c, s, n_panel, p);
    __m512 acc[STREAMS];
    UNROLL(4)
    for (int k = 0; k < n_panel; k++)
        acc[k] = bias_of(c, p + k);
    for (int64_t i = 0; i < c->n_in / GEMM_CHUNK; i++) {
        ask_step(c, s, n_panel, &ask);
        row_chunk(c, s, n_panel, p, i, x + i * GEMM_CHUNK, acc);
    }
    UNROLL(4)
    for (int k = 0; k < n_panel; k++)
        _mm512_mask_storeu_ps(c->y + (int64_t)(p + k) * LANES, panel_mask(c, p + k), acc[k]);
}

INLINE void row_run(const struct gemm_call *c, const struct gemm_spec s)
{
    float *x = c->wbuf; /* xb as f32 */
    int p = 0;
    ask_first(c, s, c->n_panel >= 4 ? 4 : c->n_panel >= 2 ? 2 : 1);
    row_widen(c, x);
    for (; p + 4 <= c->n_panel; p += 4)
        row_panels(c, s, 4, p, x);
    for (; p + 2 <= c->n_panel; p += 2)
        row_panels(c, s, 2, p, x);
    for (; p < c->n_panel; p++)
        row_panels(c, s, 1, p, x);
}

/* ---- up to 16 rows: weights pass once ---- */

#define RING 4 /* chunks that are held as tiles */
#define LAG  2 /* chunks between the writing of a tile and its product */

struct stream_work {
    uint8_t tile[RING][STREAMS][AMX_TILE];
    float sum[STREAMS][GEMM_ROWS * LANES];
};
_Static_assert(sizeof(struct stream_work) <= GEMM_WBUF_MIN, "gemm_wbuf_bytes");

INLINE void stream_products(const struct gemm_call *c, const int n_panel, int64_t i,
                            const struct stream_work *t)
{
    const uint8_t *w = t->tile[i % RING][0];
    _tile_loadd(4, c->xb + i * c->m * GEMM_CHUNK, 64);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (n_panel > 1) {
        _tile_loadd(7, w + AMX_TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (n_panel > 2) {
        _tile_loadd(6, w + 2 * AMX_TILE, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, w + 3 * AMX_TILE, 64);
        _tile_dpbf16ps(3, 4, 7);
    }
}

/* n_panel (1, 2 or 4) panels from p on. */
INLINE void stream_panels(const struct gemm_call *c, const struct gemm_spec s, const int n_panel,
                          int p)
{
    struct stream_work *t = c->wbuf;
    const int64_t n = c->n_in / GEMM_CHUNK;
    struct ask ask = ask_from(c, s, n_panel, p);
    for (int k = 0; k < n_panel; k++)
        bias_tile(c, p + k, t->sum[k]);
    AMX_BARRIER(t);
    _tile_loadd(0, t->sum[0], 64);
    if (n_panel > 1)
        _tile_loadd(1, t->sum[1], 64);
    if (n_panel > 2) {
        _tile_loadd(2, t->sum[2], 64);
        _tile_loadd(3, t->sum[3], 64);
    }
    for (int64_t i = 0; i < n + LAG; i++) {
        if (i < n) {
            ask_step(c, s, n_panel, &ask);
            UNROLL(4)
            for (int k = 0; k < n_panel; k++)
                chunk_tile(s, c->panel + (size_t)(p + k) * c->panel_bytes, c->n_in, i,
                           t->tile[i % RING][k]);
        }
        AMX_BARRIER(t);
        if (i >= LAG)
            stream_products(c, n_panel, i - LAG, t);
    }
    _tile_stored(0, t->sum[0], 64);
    if (n_panel > 1)
        _tile_stored(1, t->sum[1], 64);
    if (n_panel > 2) {
        _tile_stored(2, t->sum[2], 64);
        _tile_stored(3, t->sum[3], 64);
    }
    AMX_BARRIER(t);
    for (int k = 0; k < n_panel; k++)
        sums_store(c, p + k, 0, c->m, t->sum[k]);
}

INLINE void stream_run(const struct gemm_call *c, const struct gemm_spec s)
{
    int p = 0;
    amx_open((int)c->m);
    ask_first(c, s, c->n_panel >= 4 ? 4 : c->n_panel >= 2 ? 2 : 1);
    for (; p + 4 <= c->n_panel; p += 4)
        stream_panels(c, s, 4, p);
    for (; p + 2 <= c->n_panel; p += 2)
        stream_panels(c, s, 2, p);
    for (; p < c->n_panel; p++)
        stream_panels(c, s, 1, p);
    _tile_release();
}

/* ---- more: two panels times two blocks of rows, so that a load feeds two products ---- */

#define PAIR 2 /* panels */
#define SEG  8 /* chunks of a segment: two segments' tiles stay in the first-level cache */

struct pair_work {
    uint8_t tile[2][PAIR][SEG][AMX_TILE];
    float sum[GEMM_ROWS_MAX / GEMM_ROWS][PAIR][GEMM_ROWS * LANES];
    float bias[PAIR][GEMM_ROWS * LANES];
};
_Static_assert(sizeof(struct pair_work) <= GEMM_WBUF_MIN, "gemm_wbuf_bytes");

/* Chunks [from, from + n) of the panels from p on. */
struct segment {
    int p, n_panel;
    int64_t from, n;
};

struct pairs {
    const struct gemm_call *c;
    struct pair_work *t;
    tile_fn *tile;
    int n_block;
    struct segment now,
        next;       /* multiplied; written as tiles meanwhile, a step's share after each step */
    int slot;       /* the tiles of `now` */
    int done, all;  /* of the next segment's tiles: written, to be written */
    int due, steps; /* tiles times steps that are due, steps of a segment */
};

static struct segment segment_after(const struct gemm_call *c, struct segment s)
{
    const int64_t n = c->n_in / GEMM_CHUNK;
    s.from += s.n;
    if (s.from == n) {
        s.from = 0;
        s.p += s.n_panel;
    }
    s.n = n - s.from < SEG ? n - s.from : SEG;
    s.n_panel = c->n_panel - s.p < PAIR ? c->n_panel - s.p : PAIR; /* 0: the end */
    return s;
}

/* Writes the next tile of the next segment. */
static void tile_write(struct pairs *a)
{
    const struct segment *s = &a->next;
    const int i = a->done / s->n_panel, k = a->done % s->n_panel;
    a->tile(a->c->panel + (size_t)(s->p + k) * a->c->panel_bytes, a->c->n_in, s->from + i,
            a->t->tile[!a->slot][k][i]);
    a->done++;
}

static inline void step_end(struct pairs *a)
{
    for (a->due += a->all; a->due >= a->steps; a->due -= a->steps)
        tile_write(a);
}

/* Activations of a block from the segment's first chunk on. A short last block is followed by its next chunk, or by other
 * scratch: rows past its end are multiplied, but not used. */
static const uint16_t *block_at(const struct pairs *a, int block, int64_t *step)
{
    const int64_t row = (int64_t)block * GEMM_ROWS, left = a->c->m - row;
    *step = (left < GEMM_ROWS ? left : GEMM_ROWS) * GEMM_CHUNK;
    return a->c->xb + row * a->c->n_in + a->now.from * *step;
}

static void pair_2x2(struct pairs *a, int block)
{
    int64_t step0, step1;
    const uint16_t *x0 = block_at(a, block, &step0), *x1 = block_at(a, block + 1, &step1);
    const uint8_t *w = a->t->tile[a->slot][0][0];
    float *sum = a->t->sum[block][0];
    const float *first = a->now.from ? sum : a->t->bias[0];
    const int64_t other = a->now.from ? PAIR * 256 : 0;
    AMX_BARRIER(first);
    _tile_loadd(0, first, 64);
    _tile_loadd(1, first + 256, 64);
    _tile_loadd(2, first + other, 64);
    _tile_loadd(3, first + other + 256, 64);
    for (int64_t i = 0; i < a->now.n; i++, w += AMX_TILE, x0 += step0, x1 += step1) {
        _tile_loadd(4, x0, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + SEG * AMX_TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x1, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        step_end(a);
    }
    _tile_stored(0, sum, 64);
    _tile_stored(1, sum + 256, 64);
    _tile_stored(2, sum + PAIR * 256, 64);
    _tile_stored(3, sum + PAIR * 256 + 256, 64);
    AMX_BARRIER(sum);
}

static void pair_1x2(struct pairs *a, int block)
{
    int64_t step;
    const uint16_t *x = block_at(a, block, &step);
    const uint8_t *w = a->t->tile[a->slot][0][0];
    float *sum = a->t->sum[block][0];
    const float *first = a->now.from ? sum : a->t->bias[0];
    AMX_BARRIER(first);
    _tile_loadd(0, first, 64);
    _tile_loadd(1, first + 256, 64);
    for (int64_t i = 0; i < a->now.n; i++, w += AMX_TILE, x += step) {
        _tile_loadd(4, x, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + SEG * AMX_TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        step_end(a);
    }
    _tile_stored(0, sum, 64);
    _tile_stored(1, sum + 256, 64);
    AMX_BARRIER(sum);
}

/* The sums of blocks [b, end) to y. */
static void blocks_store(const struct pairs *a, int b, int end)
{
    for (; b < end; b++)
        for (int k = 0; k < a->now.n_panel; k++) {
            const int64_t row = (int64_t)b * GEMM_ROWS, left = a->c->m - row;
            sums_store(a->c, a->now.p + k, row, left < GEMM_ROWS ? left : GEMM_ROWS,
                       a->t->sum[b][k]);
        }
}

static void segment_run(struct pairs *a)
{
    const bool last = a->now.from + a->now.n == a->c->n_in / GEMM_CHUNK;
    a->done = a->due = 0;
    a->all = a->next.n_panel * (int)a->next.n;
    a->steps = (a->n_block + 1) / 2 * (int)a->now.n;
    for (int b = 0; b < a->n_block; b += 2) {
        const bool two = b + 1 < a->n_block;
        if (two)
            pair_2x2(a, b);
        else
            pair_1x2(a, b);
        if (last)
            blocks_store(a, b, b + 1 + two);
    }
}

static void pairs_run(const struct gemm_call *c, tile_fn *tile)
{
    struct pairs a = {.c = c,
                      .t = c->wbuf,
                      .tile = tile,
                      .n_block = (int)((c->m + GEMM_ROWS - 1) / GEMM_ROWS),
                      .slot = 1};
    amx_open(GEMM_ROWS);
    a.next = segment_after(c, a.next);
    for (a.all = a.next.n_panel * (int)a.next.n; a.done < a.all;)
        tile_write(&a);
    while (a.next.n_panel) {
        a.now = a.next;
        a.next = segment_after(c, a.now);
        a.slot ^= 1;
        for (int k = 0; k < a.now.n_panel && !a.now.from; k++)
            bias_tile(c, a.now.p + k, a.t->bias[k]);
        segment_run(&a);
    }
    _tile_release();
}

#define X(name, ...)                                                                               \
    static void tile_##name(const uint8_t *panel, int64_t n_in, int64_t at, uint8_t *tile)         \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        chunk_tile(s, panel, n_in, at, tile);                                                      \
    }                                                                                              \
    void gemm__round_##name(const struct gemm_call *c)                                             \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        const unsigned csr = _mm_getcsr();                                                         \
        _mm_setcsr(csr | AMX_FLUSH);                                                               \
        if (c->m == 1)                                                                             \
            row_run(c, s);                                                                         \
        else if (c->m <= GEMM_ROWS)                                                                \
            stream_run(c, s);                                                                      \
        else                                                                                       \
            pairs_run(c, tile_##name);                                                             \
        _mm_setcsr(csr);                                                                           \
        AMX_BARRIER(c->y);                                                                         \
    }
GEMM_QUANT_LAYOUTS(X)
#undef X

#endif
