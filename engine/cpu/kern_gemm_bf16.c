/* GEMM kernels for bf16 weights and activations: tiles of the AMX table, and VDPBF16PS of processors that have it beside the
 * AVX512 table (see gemm__bf16). Empty in the other ISAs' objects. */
#include "engine/cpu/gemm_vec.h"

#if LANES == 16
#define BF16                                                                                       \
    __attribute__((target("avx512bf16"))) /* these functions alone: the table is for others, too */

BF16 static void bf16_prep(const struct gemm_prep *p)
{
    uint16_t order[32]; /* each run of four k: 0 2 1 3 */
    for (int i = 0; i < 32; i++)
        order[i] = (uint16_t)((i & ~3) | (i & 1) << 1 | (i >> 1 & 1));
    const __m512i perm = _mm512_loadu_si512(order);
    for (int64_t c = 0; c < p->n_in / GEMM_CHUNK; c++)
        for (int r = 0; r < p->n_row; r++) {
            const float *x = p->x + r * p->ldx + c * GEMM_CHUNK;
            const __m512i v =
                (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
            _mm512_storeu_si512(p->xb + (c * p->n_row + r) * GEMM_CHUNK,
                                _mm512_permutexvar_epi16(perm, v));
        }
}
#endif

#ifdef CPU_ISA_avx512

/* An output is one chain of products over all pairs of k, whatever the number of rows and panels at a time: the same bits. */

#define ASK_BYTES 2048 /* of a panel that are asked for ahead */

/* n rows from `row` on, of one block, times n_panel panels. */
BF16 INLINE void bf16_rows(const struct gemm_call *c, const int n, const int n_panel, int p,
                           int64_t row)
{
    const int64_t from = row / GEMM_ROWS * GEMM_ROWS, left = c->m - from;
    const int64_t step = (left < GEMM_ROWS ? left : GEMM_ROWS) * GEMM_CHUNK;
    const uint16_t *x = c->xb + from * c->n_in + (row - from) * GEMM_CHUNK;
    const uint8_t *w = c->panel + (size_t)p * c->panel_bytes;
    vf acc[2 * ROWS_MAX];
    UNROLL(16)
    for (int i = 0; i < n * n_panel; i++)
        acc[i] = v_set(0);
    for (int64_t k = 0; k < c->n_in; k += GEMM_CHUNK, x += step) {
        UNROLL(4)
        for (int i = 0; i < GEMM_CHUNK / 2; i++, w += 64) {
            __m512i v[4];
            UNROLL(4)
            for (int q = 0; q < n_panel; q++) {
                v[q] = _mm512_loadu_si512(w + (size_t)q * c->panel_bytes);
                if (n <= 2)
                    __builtin_prefetch(w + (size_t)q * c->panel_bytes + ASK_BYTES);
            }
            UNROLL(8)
            for (int r = 0; r < n; r++) {
                int32_t pair;
                memcpy(&pair, x + r * GEMM_CHUNK + 2 * i, sizeof pair);
                const __m512i xs = _mm512_set1_epi32(pair);
                UNROLL(4)
                for (int q = 0; q < n_panel; q++)
                    acc[q * n + r] =
                        (vf)_mm512_dpbf16_ps((__m512)acc[q * n + r], (__m512bh)xs, (__m512bh)v[q]);
            }
        }
    }
    UNROLL(4)
    for (int q = 0; q < n_panel; q++)
        rows_store(c, p + q, row, n, acc + q * n);
}

#define ROWS(n, n_panel)                                                                           \
    for (; c->m - row >= (n); row += (n))                                                          \
    bf16_rows(c, n, n_panel, p, row)
/* All rows times n_panel panels; a block of n rows never lies across blocks of activations. */
BF16 INLINE void bf16_panels(const struct gemm_call *c, const int n_panel, int p)
{
    int64_t row = 0;
#if ROWS_MAX >= 8
    ROWS(8, n_panel);
    ROWS(4, n_panel);
#endif
    ROWS(2, n_panel);
    ROWS(1, n_panel);
}

BF16 static void bf16_fn(const struct gemm_call *c)
{
    int p = 0;
    for (; ROWS_MAX >= 4 && c->m == 1 && p + 4 <= c->n_panel; p += 4) /* streams of weights */
        bf16_rows(c, 1, ROWS_MAX >= 4 ? 4 : 1, p, 0);
    for (; p + 2 <= c->n_panel; p += 2)
        bf16_panels(c, 2, p);
    for (; p < c->n_panel; p++)
        bf16_panels(c, 1, p);
}

const struct gemm_bf16_kern gemm__bf16_avx512 = {bf16_fn, bf16_prep};
#endif

#ifdef CPU_ISA_amx
#include "engine/cpu/gemm_edge.h"

/* ---- weights: they are tiles already ---- */

/* One chain of products over all chunks, from the bias on, whatever the number of rows and panels at a time: the same
 * bits. Tiles 0 to 3: sums, 4 and 5: activations, 6 and 7: weights. */

/* A tile to its place in y, or by way of res where the panel has fewer outputs than lanes. */
#define STORE(tile, panel_, row_)                                                                  \
    do {                                                                                           \
        const int64_t col_ = (int64_t)(panel_)*LANES;                                              \
        if (c->n_out - col_ >= LANES) {                                                            \
            _tile_stored(tile, c->y + (row_)*c->ldy + col_, (size_t)c->ldy * 4);                   \
        } else {                                                                                   \
            _tile_stored(tile, res, 64);                                                           \
            sums_store(c, panel_, row_, rows, res);                                                \
        }                                                                                          \
    } while (0)

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

static void bf16_fn(const struct gemm_call *c)
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

const struct gemm_bf16_kern gemm__bf16_amx = {bf16_fn, bf16_prep};

#endif
