/* GEMM kernels of the AMX table: bf16 activations, exact weights. A tile product (TDPBF16PS) covers one
 * group: 16 activation rows x 32 (16) k x 16 outputs. Quantised values are small integers, exact in bf16;
 * the group's scale and offset are applied in f32 to the tile's result:
 *
 *   y += D * (tile of x q) + M * sum(x)
 *
 * A row of a tile product does not depend on the others, and every block of rows runs the same sequence, so
 * results do not depend on the number of rows. Empty in the other ISAs' objects. */
#include "engine/cpu/gemm_vec.h"

#ifdef CPU_ISA_amx
#include "engine/cpu/amx.h"

/* How far ahead of use packed weights are asked for; past a page's end the hardware does not. */
#define PREFETCH 2048

/* Tiles 0 and 1: results and 2: activations of full blocks, 3 to 5: of the last block; 6 and 7: weights. */
static void tiles_open(int group, int last_rows)
{
    struct amx_config t = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        t.rows[i] = (uint8_t)(i < 3 ? 16 : i < 6 ? last_rows : group / 2);
        t.row_bytes[i] = (uint16_t)(i == 2 || i == 5 ? group * 2 : 64);
    }
    AMX_BARRIER(&t);
    _tile_loadconfig(&t);
}

/* ---- activations ---- */

/* Even and odd bf16 of 16 words, added. */
static __m512 pair_sum(__m512i v)
{
    return _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(v, 16)),
                         _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-65536))));
}

void gemm__amx_prep(const struct gemm_prep *p)
{
    uint16_t order[32]; /* each run of four k: 0 2 1 3 */
    for (int i = 0; i < 32; i++)
        order[i] = (uint16_t)((i & ~3) | (i & 1) << 1 | (i >> 1 & 1));
    const __m512i perm = _mm512_loadu_si512(order);
    for (int r = 0; r < p->n_row; r++)
        for (int64_t c = 0; c < p->n_in / GEMM_CHUNK; c++) {
            const float *x = p->x + r * p->ldx + c * GEMM_CHUNK;
            __m512i v = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
            v = _mm512_permutexvar_epi16(perm, v);
            _mm512_storeu_si512(p->xb + (c * p->n_row + r) * GEMM_CHUNK, v);
            if (!p->xs32 && !p->xs16)
                continue;
            __m512 sum = pair_sum(v);
            float lo = _mm512_mask_reduce_add_ps(0x00ff, sum);
            float hi = _mm512_mask_reduce_add_ps(0xff00, sum);
            if (p->xs32)
                p->xs32[c * GEMM_ROWS + r] = lo + hi;
            if (p->xs16) {
                p->xs16[2 * c * GEMM_ROWS + r] = lo;
                p->xs16[(2 * c + 1) * GEMM_ROWS + r] = hi;
            }
        }
}

/* ---- weights to bf16 tiles: tile row 8h + 2i + o holds the pair k = 16h + 4i + o and + 2 ---- */

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
        t[i] = f32_to_bf16(kind == LEVEL_FP4 ? (float)quant_levels_fp4[i & 15]
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

/* ---- products ---- */

/* Blocks of rows times two panels, a segment of k at a time: its expanded tiles, some rows and the results stay in L1.
 * Results of a batch of groups are added to the sums while the next batch is multiplied. */
#define SEGMENT 4 /* chunks */
#define BATCH   4 /* groups */
#define PAIR    2 /* panels */

/* A worker's scratch. */
struct tile_work {
    uint8_t res[2][BATCH * PAIR * AMX_TILE]; /* [group][panel] */
    uint8_t tiles[PAIR][SEGMENT * AMX_TILE];
    float sum[GEMM_ROWS_MAX / GEMM_ROWS + 1][PAIR][GEMM_ROWS * LANES];
};
_Static_assert(sizeof(struct tile_work) <= GEMM_WBUF_MIN, "gemm_wbuf_bytes");

/* Groups g .. g + n of one block of rows. */
struct batch {
    int64_t block, g;
    int n;
};

#define PRODUCT(c_tile, x_tile, w_tile)                                                            \
    do {                                                                                           \
        _tile_loadd(w_tile, wt, 64);                                                               \
        _tile_zero(c_tile);                                                                        \
        _tile_dpbf16ps(c_tile, x_tile, w_tile);                                                    \
        _tile_stored(c_tile, res, 64);                                                             \
        res += AMX_TILE;                                                                           \
    } while (0)

INLINE void batch_tiles(const struct gemm_spec s, const bool full, const int n_panel, int rows,
                        const struct batch *b, int64_t g0, const uint16_t *xb, int64_t ahead,
                        struct tile_work *t, int slot)
{
    const int per = GEMM_CHUNK / s.group;
    AMX_BARRIER(t);
    for (int i = 0; i < b->n; i++) {
        const int64_t g = b->g + i;
        const uint16_t *xt = xb + g / per * rows * GEMM_CHUNK + g % per * 16;
        const uint8_t *wt = t->tiles[0] + (g - g0) * (AMX_TILE / per);
        uint8_t *res = t->res[slot] + i * PAIR * AMX_TILE;
        if (full) { /* the next block's rows, out of the second-level cache */
            UNROLL(16)
            for (int r = 0; r < GEMM_ROWS && ahead; r++)
                _mm_prefetch((const char *)(xt + ahead) + r * 64, _MM_HINT_T0);
            _tile_loadd(2, xt, 64);
            PRODUCT(0, 2, 6);
        } else {
            _tile_loadd(5, xt, 64);
            PRODUCT(3, 5, 6);
        }
        wt += SEGMENT * AMX_TILE;
        if (n_panel == 2 && full)
            PRODUCT(1, 2, 7);
        else if (n_panel == 2)
            PRODUCT(4, 5, 7);
    }
    AMX_BARRIER(t);
}

/* Adds the batch's results to the sums of n rows (>= the block's). Rows of results past the block's are whatever was there:
 * their sums are never stored to y. */
INLINE void batch_sum(const struct gemm_call *c, const struct gemm_spec s, const int n,
                      const int n_panel, const uint8_t *scales, const struct batch *b,
                      struct tile_work *t, int slot)
{
    const float *xs = c->xs + b->block * (c->n_in / s.group) * GEMM_ROWS + b->g * GEMM_ROWS;
    for (int q = 0; q < n_panel; q++, scales += c->panel_bytes) {
        float *sum = t->sum[b->block][q];
        vf acc[GEMM_ROWS];
        UNROLL(16)
        for (int r = 0; r < n; r++)
            acc[r] = v_load(sum + r * LANES);
        for (int i = 0; i < b->n; i++) {
            const float *res =
                (const float *)(const void *)(t->res[slot] + (i * PAIR + q) * AMX_TILE);
            vf d, m;
            group_scale(scales, s, b->g + i, &d, &m);
            UNROLL(16)
            for (int r = 0; r < n; r++) {
                acc[r] = v_fma(v_load(res + r * LANES), d, acc[r]);
                if (s.has_min)
                    acc[r] = v_fma(v_set(xs[i * GEMM_ROWS + r]), m, acc[r]);
            }
        }
        UNROLL(16)
        for (int r = 0; r < n; r++)
            v_store(sum + r * LANES, acc[r]);
    }
}

/* All rows times panels p and, where n_panel is 2, p + 1. */
INLINE void panel_pair(const struct gemm_call *c, const struct gemm_spec s, const int n_panel,
                       int p)
{
    const int64_t n_chunk = c->n_in / GEMM_CHUNK, per = GEMM_CHUNK / s.group;
    const int64_t n_full = c->m / GEMM_ROWS;
    const int last = (int)(c->m % GEMM_ROWS), n_block = (int)n_full + (last > 0);
    const uint8_t *scales = c->panel + (size_t)p * c->panel_bytes;
    const uint8_t *chunks = scales + gemm_scale_bytes(s, c->n_in, LANES);
    struct tile_work *t = c->wbuf;
    struct batch now = {0}, before = {0};
    int slot = 0;
    memset(t->sum, 0, (size_t)n_block * sizeof t->sum[0]);
    for (int64_t at = 0; at < n_chunk + SEGMENT; at += SEGMENT) {
        const bool flush = at >= n_chunk; /* no more products: the last batch is added */
        const int64_t end = at + SEGMENT < n_chunk ? at + SEGMENT : n_chunk;
        for (int64_t i = at; i < end; i++)
            for (int q = 0; q < n_panel; q++) {
                const uint8_t *chunk =
                    chunks + (size_t)q * c->panel_bytes + (size_t)i * gemm_chunk_bytes(s, LANES);
                UNROLL(8)
                for (size_t k = 0; k < gemm_chunk_bytes(s, LANES); k += 64)
                    _mm_prefetch((const char *)chunk + PREFETCH + k, _MM_HINT_T0);
                chunk_expand(s, chunk, t->tiles[q] + (i - at) * AMX_TILE);
            }
        const int64_t g0 = at * per, g1 = end * per;
        for (now.block = 0; now.block < (flush ? 1 : n_block); now.block++)
            for (now.g = g0; now.g < g1 || flush; now.g += BATCH, slot ^= 1) {
                const bool full = now.block < n_full;
                const uint16_t *xb = c->xb + now.block * GEMM_ROWS * c->n_in;
                now.n = g1 - now.g < BATCH ? (int)(g1 - now.g) : BATCH;
                if (!flush && full)
                    batch_tiles(s, true, n_panel, GEMM_ROWS, &now, g0, xb,
                                now.block + 1 < n_full ? GEMM_ROWS * c->n_in : 0, t, slot);
                else if (!flush)
                    batch_tiles(s, false, n_panel, last, &now, g0, xb, 0, t, slot);
                if (before.n && (before.block < n_full || last > 4))
                    batch_sum(c, s, 16, n_panel, scales, &before, t, slot ^ 1);
                else if (before.n)
                    batch_sum(c, s, 4, n_panel, scales, &before, t, slot ^ 1);
                before = now;
                if (flush)
                    break;
            }
        if (flush)
            break;
    }
    for (int b = 0; b < n_block; b++)
        for (int q = 0; q < n_panel; q++)
            rows_store(c, p + q, (int64_t)b * GEMM_ROWS, b < n_full ? GEMM_ROWS : last,
                       (const vf *)(const void *)t->sum[b][q]);
}

INLINE void quant_panels(const struct gemm_call *c, const struct gemm_spec s)
{
    const int last = (int)(c->m % GEMM_ROWS);
    struct tile_work *t = c->wbuf;
    int p = 0;
    memset(t->res, 0, sizeof t->res);
    tiles_open(s.group, last ? last : 1);
    /* One block of rows alone: groups of 16 have twice the results to hold. */
    for (; (c->m > GEMM_ROWS || s.group == GEMM_CHUNK) && p + 1 < c->n_panel; p += 2)
        panel_pair(c, s, 2, p);
    for (; p < c->n_panel; p++)
        panel_pair(c, s, 1, p);
    _tile_release();
}

/* Denormal numbers are zeros in tile products always, and so they are in all that surrounds them. */
#define MXCSR_FLUSH 0x8040

#define X(name, ...)                                                                               \
    void gemm__amx_##name(const struct gemm_call *c)                                               \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        const unsigned csr = _mm_getcsr();                                                         \
        _mm_setcsr(csr | MXCSR_FLUSH);                                                             \
        if (!gemm__few_##name(c))                                                                  \
            quant_panels(c, s);                                                                    \
        _mm_setcsr(csr);                                                                           \
    }
GEMM_QUANT_LAYOUTS(X)
#undef X

/* ---- bf16 weights: they are tiles already ---- */

/* One chain of products over all chunks, from the bias on, whatever the number of rows and panels at a time: the same
 * bits. Tiles 0 to 3: sums, 4 and 5: activations, 6 and 7: weights. */

/* The bias of a panel as 16 equal rows at t; zeros without one. */
static void bias_tile(const struct gemm_call *c, int panel, float *t)
{
    const int64_t col = (int64_t)panel * LANES, left = c->n_out - col;
    vf b = v_set(0);
    if (c->bias && left >= LANES)
        b = v_load(c->bias + col);
    else
        for (int64_t i = 0; c->bias && i < left; i++)
            b[i] = c->bias[col + i];
    for (int r = 0; r < 16; r++)
        v_store(t + r * 16, b);
}

/* A tile to its place in y, or by way of res where the panel has fewer outputs than lanes. */
#define STORE(tile, panel_, row_)                                                                  \
    do {                                                                                           \
        const int64_t col_ = (int64_t)(panel_)*LANES;                                              \
        if (c->n_out - col_ >= LANES) {                                                            \
            _tile_stored(tile, c->y + (row_)*c->ldy + col_, (size_t)c->ldy * 4);                   \
        } else {                                                                                   \
            _tile_stored(tile, res, 64);                                                           \
            part_store(c, col_, row_, rows, res);                                                  \
        }                                                                                          \
    } while (0)

static void part_store(const struct gemm_call *c, int64_t col, int64_t row, int rows,
                       const float *res)
{
    AMX_BARRIER(res);
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < c->n_out - col; i++)
            c->y[(row + r) * c->ldy + col + i] = res[r * 16 + i];
}

/* Two blocks of rows, two panels: a load feeds two products. */
static void bf16_2x2(const struct gemm_call *c, int p, int64_t row, const float *bias)
{
    const int64_t n_chunk = c->n_in / GEMM_CHUNK, x_step = GEMM_ROWS * c->n_in;
    const uint8_t *w = c->panel + (size_t)p * c->panel_bytes;
    const uint16_t *x = c->xb + row * c->n_in;
    float *res = c->wbuf;
    const int rows = GEMM_ROWS;
    _tile_loadd(0, bias, 64);
    _tile_loadd(1, bias + 256, 64);
    _tile_loadd(2, bias, 64);
    _tile_loadd(3, bias + 256, 64);
    for (int64_t i = 0; i < n_chunk; i++, w += AMX_TILE, x += GEMM_ROWS * GEMM_CHUNK) {
        _tile_loadd(4, x, 64);
        _tile_loadd(6, w, 64);
        _tile_loadd(7, w + c->panel_bytes, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, x + x_step, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    STORE(0, p, row);
    STORE(1, p + 1, row);
    STORE(2, p, row + GEMM_ROWS);
    STORE(3, p + 1, row + GEMM_ROWS);
}

/* One block of up to 16 rows, n panels of up to four. */
static void bf16_1x4(const struct gemm_call *c, int p, int n, int64_t row, int rows)
{
    const int64_t n_chunk = c->n_in / GEMM_CHUNK, step = (int64_t)rows * GEMM_CHUNK;
    const uint8_t *w = c->panel + (size_t)p * c->panel_bytes;
    const uint16_t *x = c->xb + row * c->n_in;
    float *res = c->wbuf, *bias = res + 256;
    AMX_BARRIER(bias);
    _tile_loadd(0, bias, 64);
    _tile_loadd(1, bias + 256, 64);
    _tile_loadd(2, bias + 512, 64);
    _tile_loadd(3, bias + 768, 64);
    for (int64_t i = 0; i < n_chunk; i++, w += AMX_TILE, x += step) {
        _tile_loadd(4, x, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (n > 1) {
            _tile_loadd(7, w + c->panel_bytes, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (n > 2) {
            _tile_loadd(6, w + 2 * c->panel_bytes, 64);
            _tile_dpbf16ps(2, 4, 6);
        }
        if (n > 3) {
            _tile_loadd(7, w + 3 * c->panel_bytes, 64);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    STORE(0, p, row);
    if (n > 1)
        STORE(1, p + 1, row);
    if (n > 2)
        STORE(2, p + 2, row);
    if (n > 3)
        STORE(3, p + 3, row);
}

void gemm__amx_bf16(const struct gemm_call *c)
{
    const int64_t n_full = c->m / GEMM_ROWS * GEMM_ROWS;
    const int last = (int)(c->m - n_full);
    float *bias = (float *)c->wbuf + 256; /* [4] tiles */
    if (n_full)
        amx_open(GEMM_ROWS);
    for (int p = 0; n_full && p < c->n_panel; p += 2) {
        int64_t row = 0;
        const int n = c->n_panel - p < 2 ? 1 : 2;
        for (int i = 0; i < n; i++)
            bias_tile(c, p + i, bias + 256 * i);
        AMX_BARRIER(bias);
        for (; n == 2 && row + 2 * GEMM_ROWS <= n_full; row += 2 * GEMM_ROWS)
            bf16_2x2(c, p, row, bias);
        for (; row < n_full; row += GEMM_ROWS)
            bf16_1x4(c, p, n, row, GEMM_ROWS);
    }
    if (last)
        amx_open(last);
    for (int p = 0; last && p < c->n_panel; p += 4) {
        const int n = c->n_panel - p < 4 ? c->n_panel - p : 4;
        for (int i = 0; i < n; i++)
            bias_tile(c, p + i, bias + 256 * i);
        bf16_1x4(c, p, n, n_full, last);
    }
    _tile_release();
    AMX_BARRIER(c->y);
}

#endif
