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
#include "engine/cpu/gemm_tile.h"

/* How far ahead of use packed weights are asked for. */
#define AHEAD 8 /* groups */
#define UNIT  4 /* groups that are multiplied at a time */

/* ---- activations ---- */

/* Even and odd bf16 of 16 words, added. */
static __m512 pair_sum(__m512i v)
{
    return _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(v, 16)),
                         _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-65536))));
}

/* Sums of lanes 0 to 7 and 8 to 15 of one vector, added in the order of rows_sum. */
static void row_sum(__m512 v, float *lo, float *hi)
{
    *lo = _mm512_mask_reduce_add_ps(0x00ff, v);
    *hi = _mm512_mask_reduce_add_ps(0xff00, v);
}

/* The same of 16 vectors: lanes four apart are added, then two, then one. */
static void rows_sum(const __m512 *v, __m512 *lo, __m512 *hi)
{
    __m512 four[8], end[2];
    UNROLL(8)
    for (int i = 0; i < 8; i++) { /* [low of row i][high][low of row i + 4][high] */
        const __m512 a = v[i / 4 * 8 + i % 4], b = v[i / 4 * 8 + i % 4 + 4];
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    UNROLL(2)
    for (int i = 0; i < 2; i++) {
        const __m512 *f = four + 4 * i;
        const __m512 a =
            _mm512_add_ps(_mm512_shuffle_ps(f[0], f[1], 0x44), _mm512_shuffle_ps(f[0], f[1], 0xee));
        const __m512 b =
            _mm512_add_ps(_mm512_shuffle_ps(f[2], f[3], 0x44), _mm512_shuffle_ps(f[2], f[3], 0xee));
        end[i] = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
    }
    *lo = _mm512_shuffle_f32x4(end[0], end[1], 0x88);
    *hi = _mm512_shuffle_f32x4(end[0], end[1], 0xdd);
}

/* Sums of chunk c of a whole block. */
static void sums_put(const struct gemm_prep *p, int64_t c, const __m512 *sum)
{
    __m512 lo, hi;
    rows_sum(sum, &lo, &hi);
    if (p->xs32)
        _mm512_storeu_ps(p->xs32 + c * GEMM_ROWS, _mm512_add_ps(lo, hi));
    if (p->xs16) {
        _mm512_storeu_ps(p->xs16 + 2 * c * GEMM_ROWS, lo);
        _mm512_storeu_ps(p->xs16 + (2 * c + 1) * GEMM_ROWS, hi);
    }
}

void gemm__amx_prep(const struct gemm_prep *p)
{
    uint16_t order[32]; /* each run of four k: 0 2 1 3 */
    for (int i = 0; i < 32; i++)
        order[i] = (uint16_t)((i & ~3) | (i & 1) << 1 | (i >> 1 & 1));
    const __m512i perm = _mm512_loadu_si512(order);
    const bool sums = p->xs32 || p->xs16, block = p->n_row == GEMM_ROWS;
    for (int64_t c = 0; c < p->n_in / GEMM_CHUNK; c++) {
        __m512 sum[GEMM_ROWS];
        for (int r = 0; r < p->n_row; r++) {
            const float *x = p->x + r * p->ldx + c * GEMM_CHUNK;
            __m512i v = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
            v = _mm512_permutexvar_epi16(perm, v);
            _mm512_storeu_si512(p->xb + (c * p->n_row + r) * GEMM_CHUNK, v);
            if (!sums)
                continue;
            sum[r] = pair_sum(v);
            if (block)
                continue;
            float lo, hi;
            row_sum(sum[r], &lo, &hi);
            if (p->xs32)
                p->xs32[c * GEMM_ROWS + r] = lo + hi;
            if (p->xs16) {
                p->xs16[2 * c * GEMM_ROWS + r] = lo;
                p->xs16[(2 * c + 1) * GEMM_ROWS + r] = hi;
            }
        }
        if (sums && block)
            sums_put(p, c, sum);
    }
}

/* ---- weights as tiles ---- */

/* Scale and offset of a group. */
struct scales {
    float d[LANES], m[LANES];
};

/* Groups [g, g + n) of a panel as tiles and as f32 scales. */
struct expand {
    const uint8_t *panel;
    int64_t n_in, g;
    int n;
    uint8_t *tiles;
    struct scales *scales;
};

INLINE void groups_expand(const struct gemm_spec s, const struct expand *e)
{
    const int per = GEMM_CHUNK / s.group;
    const size_t bytes = gemm_chunk_bytes(s, LANES);
    const uint8_t *chunk =
        e->panel + gemm_scale_bytes(s, e->n_in, LANES) + (size_t)(e->g / per) * bytes;
    uint8_t *tile = e->tiles;
    for (int i = 0; i < e->n; i += per, chunk += bytes, tile += AMX_TILE)
        chunk_expand(s, chunk, tile);
    for (int i = 0; i < e->n; i++) {
        vf d, m;
        group_scale(e->panel, s, e->g + i, &d, &m);
        v_store(e->scales[i].d, d);
        v_store(e->scales[i].m, m);
    }
}

typedef void expand_fn(const struct expand *e);
#define X(name, ...)                                                                               \
    static void expand_##name(const struct expand *e)                                              \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        groups_expand(s, e);                                                                       \
    }
GEMM_QUANT_LAYOUTS(X)
#undef X
/* ---- products ---- */

/* A quad of panels is multiplied with all blocks of rows a segment of four groups at a time, so that the segment's tiles and
 * what a block needs stay in the first-level cache. A unit is one block times one panel: four products, whose results
 * are added to the sums while the next unit's products run. The kernels know no format. */
#define QUAD 4 /* panels */

/* A worker's scratch. Scales alternate: a segment's last unit is added when the next segment's are there already. */
struct tile_work {
    uint8_t res[2][UNIT * AMX_TILE];
    uint8_t tiles[QUAD][UNIT * AMX_TILE];
    struct scales scales[2][QUAD][UNIT];
    float sum[GEMM_ROWS_MAX / GEMM_ROWS][QUAD][GEMM_ROWS * LANES];
};
_Static_assert(sizeof(struct tile_work) <= GEMM_WBUF_MIN, "gemm_wbuf_bytes");

/* A block of rows times a panel whose results are not added yet. */
struct unit {
    const float *from; /* sums so far */
    float *sum;        /* ... and after */
    const float *res;
    const struct scales *scales;
    const float *xs;
    int n; /* groups */
};

/* Tiles 0 to 3: activations of four groups, 4 and 5: results, 6 and 7: weights. */
static void tiles_open(int group, int rows)
{
    struct amx_config t = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        t.rows[i] = (uint8_t)(i < 6 ? rows : group / 2);
        t.row_bytes[i] = (uint16_t)(i < 4 ? group * 2 : 64);
    }
    AMX_BARRIER(&t);
    _tile_loadconfig(&t);
}

/* Group i of a unit, its results added to the sums of n rows. Rows of results past the block's are whatever was there:
 * their sums are never stored to y. */
INLINE void group_add(const bool has_min, const int n, int i, vf *acc, const struct unit *u)
{
    const vf d = v_load(u->scales[i].d), m = v_load(u->scales[i].m);
    UNROLL(16)
    for (int r = 0; r < n; r++) {
        acc[r] = v_fma(v_load(u->res + i * 256 + r * LANES), d, acc[r]);
        if (has_min)
            acc[r] = v_fma(v_set(u->xs[i * GEMM_ROWS + r]), m, acc[r]);
    }
}

/* Four products with the weight tiles at w to res. Between the start and the end of each, results of the unit before are
 * added. As functions of their own, these have the registers to themselves. */
#define STEP(i, c_tile, w_tile, w_step)                                                            \
    do {                                                                                           \
        _tile_loadd(w_tile, w + (i) * (w_step), 64);                                               \
        _tile_zero(c_tile);                                                                        \
        _tile_dpbf16ps(c_tile, i, w_tile);                                                         \
        group_add(has_min, n, i, acc, &u);                                                         \
        _tile_stored(c_tile, res + (i)*AMX_TILE, 64);                                              \
    } while (0)

INLINE void unit_run(const int group, const bool has_min, const int n, const uint8_t *w,
                     uint8_t *res, const struct unit *before)
{
    const struct unit u = *before; /* in registers */
    vf acc[GEMM_ROWS];
    AMX_BARRIER(w);
    UNROLL(16)
    for (int r = 0; r < n; r++)
        acc[r] = v_load(u.from + r * LANES);
    STEP(0, 4, 6, group * 32);
    STEP(1, 5, 7, group * 32);
    STEP(2, 4, 6, group * 32);
    STEP(3, 5, 7, group * 32);
    UNROLL(16)
    for (int r = 0; r < n; r++)
        v_store(u.sum + r * LANES, acc[r]);
    AMX_BARRIER(res);
}

typedef void unit_fn(const uint8_t *w, uint8_t *res, const struct unit *before);
#define UNIT_FN(name, group, has_min, n)                                                           \
    static __attribute__((noinline)) void name(const uint8_t *w, uint8_t *res,                     \
                                               const struct unit *before)                          \
    {                                                                                              \
        unit_run(group, has_min, n, w, res, before);                                               \
    }
#define UNIT_FNS(name, group)                                                                      \
    UNIT_FN(name##_4, group, false, 4)                                                             \
    UNIT_FN(name##_8, group, false, 8)                                                             \
    UNIT_FN(name##_16, group, false, 16)                                                           \
    UNIT_FN(name##_min_4, group, true, 4)                                                          \
    UNIT_FN(name##_min_8, group, true, 8)                                                          \
    UNIT_FN(name##_min_16, group, true, 16)
UNIT_FNS(unit32, 32)
UNIT_FNS(unit16, 16)

/* [groups of 16][has_min][rows] */
#define UNITS(name)                                                                                \
    {                                                                                              \
        {name##_4, name##_8, name##_16}, {name##_min_4, name##_min_8, name##_min_16},              \
    }
static unit_fn *const units[2][2][3] = {UNITS(unit32), UNITS(unit16)};

/* The same apart, for the first, the last and short units: n products... */
static void part_products(int n, const uint8_t *w, int w_step, uint8_t *res)
{
    AMX_BARRIER(w);
#define PART(i, c_tile, w_tile)                                                                    \
    if (i < n) {                                                                                   \
        _tile_loadd(w_tile, w + (i)*w_step, 64);                                                   \
        _tile_zero(c_tile);                                                                        \
        _tile_dpbf16ps(c_tile, i, w_tile);                                                         \
        _tile_stored(c_tile, res + (i)*AMX_TILE, 64);                                              \
    }
    PART(0, 4, 6)
    PART(1, 5, 7)
    PART(2, 4, 6)
    PART(3, 5, 7)
    AMX_BARRIER(res);
}

/* ... and the results of a unit. */
static __attribute__((noinline)) void part_add(bool has_min, const struct unit *u)
{
    vf acc[GEMM_ROWS];
    UNROLL(16)
    for (int r = 0; r < GEMM_ROWS; r++)
        acc[r] = v_load(u->from + r * LANES);
    for (int i = 0; i < u->n; i++)
        if (has_min)
            group_add(true, GEMM_ROWS, i, acc, u);
        else
            group_add(false, GEMM_ROWS, i, acc, u);
    UNROLL(16)
    for (int r = 0; r < GEMM_ROWS; r++)
        v_store(u->sum + r * LANES, acc[r]);
}

/* ---- segments ---- */

/* Groups [g, g + n) of panels [p, p + n_panel). */
struct segment {
    const struct gemm_call *c;
    struct tile_work *t;
    const float *zeros; /* a tile of them */
    expand_fn *expand;
    unit_fn *unit;
    struct gemm_spec spec;
    const uint16_t *x; /* activations */
    int64_t g;
    int p, n_panel, n, n_block;
    int odd, slot;   /* which scales, which results */
    const float *xs; /* of the first block, steps to the next */
    int64_t xs_step;
    bool touch, last; /* y is written soon, now */
    /* What is asked for of each panel: lines of two places. */
    const uint8_t *ahead[2];
    int lines[2];
};

/* A unit's part of what is asked for. */
static void ahead_run(const struct segment *s, int q, int block)
{
    const size_t step = s->c->panel_bytes;
    for (int k = 0; k < 2; k++) {
        const uint8_t *at = s->ahead[k] + (size_t)q * step;
        for (int i = block; i < s->lines[k]; i += s->n_block)
            _mm_prefetch((const char *)at + i * 64, _MM_HINT_T0);
    }
}

/* A unit's share of a block's rows: [*from, *to). */
static void share_get(const struct segment *s, int q, int64_t block, int64_t *from, int64_t *to)
{
    const int64_t row = block * GEMM_ROWS, m = s->c->m;
    *from = row + q * GEMM_ROWS / s->n_panel;
    *to = row + (q + 1) * GEMM_ROWS / s->n_panel;
    *from = *from < m ? *from : m;
    *to = *to < m ? *to : m;
}

/* Asks for some rows of y. */
static void rows_touch(const struct segment *s, int64_t from, int64_t to)
{
    const struct gemm_call *c = s->c;
    for (int64_t row = from; row < to; row++)
        for (int i = 0; i < s->n_panel; i++)
            __builtin_prefetch(c->y + row * c->ldy + (int64_t)(s->p + i) * LANES, 1);
}

/* The sums of some rows to their places in y, row by row: a row's panels lie side by side. */
static void rows_put(const struct segment *s, int64_t from, int64_t to)
{
    const struct gemm_call *c = s->c;
    const int64_t col = (int64_t)s->p * LANES, left = (c->n_out - col) / LANES;
    const int whole = left < s->n_panel ? (int)left : s->n_panel;
    float(*sum)[GEMM_ROWS * LANES] = s->t->sum[from / GEMM_ROWS];
    const int64_t first = from % GEMM_ROWS * LANES;
    for (int q = whole; q < s->n_panel && from < to; q++)
        rows_store(c, s->p + q, from, (int)(to - from), (const vf *)(const void *)(sum[q] + first));
    for (int64_t at = first; from < to; from++, at += LANES) {
        float *y = c->y + from * c->ldy + col;
        for (int q = 0; q < whole; q++) {
            const vf v = v_load(sum[q] + at);
            v_store(y + q * LANES, c->bias ? v + v_load(c->bias + col + q * LANES) : v);
        }
    }
}

/* The activations of a block: as many tiles as groups. */
static void block_load(const struct segment *s, int64_t row)
{
    const struct gemm_call *c = s->c;
    const int64_t rows = c->m - row < GEMM_ROWS ? c->m - row : GEMM_ROWS;
    const int64_t step = rows * GEMM_CHUNK; /* past a short block's rows comes its next chunk */
    const bool half = s->spec.group < GEMM_CHUNK;
    const uint16_t *x = s->x + row * c->n_in + (half ? s->g / 2 : s->g) * step;
    AMX_BARRIER(x);
    _tile_loadd(0, x, 64);
    if (s->n > 1)
        _tile_loadd(1, half ? x + 16 : x + step, 64);
    if (s->n > 2)
        _tile_loadd(2, half ? x + step : x + 2 * step, 64);
    if (s->n > 3)
        _tile_loadd(3, half ? x + step + 16 : x + 3 * step, 64);
}

/* One block times one panel of the segment, after the unit *u, which this one replaces. */
static void segment_unit(struct segment *s, int block, int q, struct unit *u)
{
    const struct gemm_call *c = s->c;
    struct tile_work *t = s->t;
    uint8_t *res = t->res[s->slot];
    s->slot ^= 1;
    if (block == 0)
        s->expand(&(struct expand){.panel = c->panel + (size_t)(s->p + q) * c->panel_bytes,
                                   .n_in = c->n_in,
                                   .g = s->g,
                                   .n = s->n,
                                   .tiles = t->tiles[q],
                                   .scales = t->scales[s->odd][q]});
    ahead_run(s, q, block);
    int64_t from, to;
    share_get(s, q, s->last ? block - 1 : block, &from, &to);
    if (s->touch)
        rows_touch(s, from, to);
    if (s->n == UNIT && u->n == UNIT) {
        s->unit(t->tiles[q], res, u);
    } else {
        part_products(s->n, t->tiles[q], s->spec.group * 32, res);
        part_add(s->spec.has_min, u);
    }
    if (s->last && block > 0) /* all of the block before is added now */
        rows_put(s, from, to);
    u->from = s->g ? t->sum[block][q] : s->zeros;
    u->sum = t->sum[block][q];
    u->res = (const float *)(const void *)res;
    u->scales = t->scales[s->odd][q];
    u->xs = s->xs + (int64_t)block * s->xs_step;
    u->n = s->n;
}

/* What to ask for during a segment: the next but one, which may be of the quad behind this one. */
static void ahead_plan(struct segment *s)
{
    const struct gemm_call *c = s->c;
    const int64_t n_group = c->n_in / s->spec.group, at = s->g + AHEAD;
    const int64_t g = at < n_group ? at : at - n_group < n_group ? at - n_group : 0;
    const uint8_t *panel = c->panel + (size_t)(s->p + (at < n_group ? 0 : QUAD)) * c->panel_bytes;
    const size_t scales = gemm_scale_bytes(s->spec, c->n_in, LANES),
                 each = scales / (size_t)n_group;
    const size_t chunks = gemm_chunk_bytes(s->spec, LANES) * (size_t)s->spec.group / GEMM_CHUNK;
    s->ahead[0] = panel + scales + (size_t)g * chunks;
    s->ahead[1] = panel + (size_t)g * each;
    s->lines[0] = (int)(UNIT * chunks / 64);
    s->lines[1] = (int)((UNIT * each + 63) / 64);
    if (at >= n_group && s->p + QUAD >= c->n_panel)
        s->lines[0] = s->lines[1] = 0;
}

/* All rows times up to four panels from s->p on. */
static void quad_run(struct segment *s)
{
    const struct gemm_call *c = s->c;
    struct tile_work *t = s->t;
    const int64_t n_group = c->n_in / s->spec.group;
    struct unit u = {.from = s->zeros, .sum = t->sum[0][0]};
    s->n_panel = c->n_panel - s->p < QUAD ? c->n_panel - s->p : QUAD;
    for (s->g = 0; s->g < n_group; s->g += UNIT, s->odd ^= 1) {
        const int64_t left = n_group - s->g;
        s->n = left < UNIT ? (int)left : UNIT;
        s->xs = c->xs + s->g * GEMM_ROWS;
        s->last = left <= UNIT;
        s->touch = !s->last && left <= 2 * UNIT;
        ahead_plan(s);
        for (int block = 0; block < s->n_block; block++) {
            block_load(s, (int64_t)block * GEMM_ROWS);
            for (int q = 0; q < s->n_panel; q++)
                segment_unit(s, block, q, &u);
        }
    }
    part_add(s->spec.has_min, &u);
    rows_put(s, (int64_t)(s->n_block - 1) * GEMM_ROWS, c->m);
}

static void quant_panels(const struct gemm_call *c, const struct gemm_spec spec, expand_fn *expand)
{
    static const float zeros[GEMM_ROWS * LANES] __attribute__((aligned(64)));
    const int rows = c->m <= 4 ? 0 : c->m <= 8 ? 1 : 2;
    struct segment s = {.c = c,
                        .t = c->wbuf,
                        .zeros = zeros,
                        .expand = expand,
                        .unit = units[spec.group == 16][spec.has_min][rows],
                        .spec = spec,
                        .x = c->xb,
                        .xs_step = c->n_in / spec.group * GEMM_ROWS,
                        .n_block = (int)((c->m + GEMM_ROWS - 1) / GEMM_ROWS)};
    tiles_open(spec.group, c->m < GEMM_ROWS ? (int)c->m : GEMM_ROWS);
    for (; s.p < c->n_panel; s.p += QUAD)
        quad_run(&s);
    _tile_release();
}

#define X(name, ...)                                                                               \
    void gemm__amx_##name(const struct gemm_call *c)                                               \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        const unsigned csr = _mm_getcsr();                                                         \
        _mm_setcsr(csr | AMX_FLUSH);                                                               \
        if (!gemm__few_##name(c))                                                                  \
            quant_panels(c, s, expand_##name);                                                     \
        _mm_setcsr(csr);                                                                           \
    }
GEMM_QUANT_LAYOUTS(X)
#undef X

#endif
