/* GEMM kernels of the AMX table for up to SLIM_MAX rows, on tiles: the same sequence and bits as kern_gemm_amx.c's.
 * A product costs the same for one row as for 16, so what counts is that the four steps of a chunk - the tile of weights is
 * written, multiplied, its result stored and added - overlap those of others. Empty in the other ISAs' objects. */
#include "engine/cpu/gemm_vec.h"

#ifdef CPU_ISA_amx
#include "engine/cpu/gemm_ask.h"
#include "engine/cpu/gemm_tile.h"

#define SLIM_MAX 8
#define PAIR     2 /* panels: two streams of weights */
#define RING     4 /* chunks whose tiles and results are held */
/* Steps of a group after its tiles were written. */
#define MULTIPLY 2
#define STORE    (MULTIPLY + 1)
#define ADD      (STORE + 1)

/* A worker's scratch. */
struct slim_work {
    uint8_t tile[RING][PAIR][AMX_TILE];
    float res[RING][PAIR][GEMM_ROWS * LANES];
};
_Static_assert(sizeof(struct slim_work) <= GEMM_WBUF_MIN, "gemm_wbuf_bytes");

/* Tiles 0 to 3 hold results, 4 and 5 activations, 6 and 7 a group of weights. */
static void slim_open(int group, int rows)
{
    struct amx_config t = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        t.rows[i] = (uint8_t)(i < 6 ? rows : group / 2);
        t.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? group * 2 : 64);
    }
    AMX_BARRIER(&t);
    _tile_loadconfig(&t);
}

/* Group k - MULTIPLY of both panels times x, to tiles t0 and t1; old0 and old1 have the results of the group before. */
#define MULTIPLY_STEP(t0, t1, old0, old1, x)                                                       \
    do {                                                                                           \
        const int64_t now_ = k - MULTIPLY, done_ = k - STORE;                                      \
        if (now_ >= 0 && now_ < n_group) {                                                         \
            const uint8_t *w_ = work->tile[now_ / per % RING][0] + now_ % per * (AMX_TILE / 2);    \
            _tile_loadd(x, c->xb + now_ / per * c->m * GEMM_CHUNK + now_ % per * 16, 64);          \
            _tile_loadd(6, w_, 64);                                                                \
            _tile_zero(t0);                                                                        \
            _tile_dpbf16ps(t0, x, 6);                                                              \
            if (n_panel == 2) {                                                                    \
                _tile_loadd(7, w_ + AMX_TILE, 64);                                                 \
                _tile_zero(t1);                                                                    \
                _tile_dpbf16ps(t1, x, 7);                                                          \
            }                                                                                      \
        }                                                                                          \
        if (done_ >= 0 && done_ < n_group) {                                                       \
            _tile_stored(old0, work->res[done_ % RING][0], 64);                                    \
            if (n_panel == 2)                                                                      \
                _tile_stored(old1, work->res[done_ % RING][1], 64);                                \
        }                                                                                          \
    } while (0)

/* n sums (>= m) of n_panel panels from p on. */
INLINE void slim_panels(const struct gemm_call *c, const struct gemm_spec s, const int n,
                        const int n_panel, int p)
{
    const uint8_t *scales = c->panel + (size_t)p * c->panel_bytes;
    const uint8_t *chunk = scales + gemm_scale_bytes(s, c->n_in, LANES);
    const int64_t n_group = c->n_in / s.group, per = GEMM_CHUNK / s.group;
    struct ask ask = ask_from(c, s, n_panel, p);
    const float *xs = c->xs;
    struct slim_work *work = c->wbuf;
    vf acc[SLIM_MAX * PAIR];
    UNROLL(16)
    for (int r = 0; r < n * n_panel; r++)
        acc[r] = v_set(0);
    for (int64_t k = 0; k < n_group + ADD; k++) {
        if (k < n_group && k % per == 0) {
            ask_step(c, s, n_panel, &ask);
            UNROLL(2)
            for (int q = 0; q < n_panel; q++)
                chunk_expand(s, chunk + (size_t)q * c->panel_bytes, work->tile[k / per % RING][q]);
            chunk += gemm_chunk_bytes(s, LANES);
        }
        AMX_BARRIER(work);
        if (k % 2 == 0)
            MULTIPLY_STEP(0, 1, 2, 3, 4);
        else
            MULTIPLY_STEP(2, 3, 0, 1, 5);
        AMX_BARRIER(work);
        const int64_t g = k - ADD;
        UNROLL(2)
        for (int q = 0; q < n_panel && g >= 0; q++) {
            const float *res = work->res[g % RING][q];
            vf d, m;
            group_scale(scales + (size_t)q * c->panel_bytes, s, g, &d, &m);
            UNROLL(8)
            for (int r = 0; r < n; r++) {
                acc[q * n + r] = v_fma(v_load(res + r * LANES), d, acc[q * n + r]);
                if (s.has_min)
                    acc[q * n + r] = v_fma(v_set(xs[g * GEMM_ROWS + r]), m, acc[q * n + r]);
            }
        }
    }
    vf y[SLIM_MAX * PAIR]; /* acc's address stays unknown: AMX_BARRIER would put it into memory */
    UNROLL(16)
    for (int r = 0; r < n * n_panel; r++)
        y[r] = acc[r];
    for (int q = 0; q < n_panel; q++)
        rows_store(c, p + q, 0, (int)c->m, y + q * n);
}

INLINE void slim_rows(const struct gemm_call *c, const struct gemm_spec s, const int n)
{
    int p = 0;
    ask_first(c, s, c->n_panel < PAIR ? 1 : PAIR);
    for (; p + PAIR <= c->n_panel; p += PAIR)
        slim_panels(c, s, n, PAIR, p);
    if (p < c->n_panel)
        slim_panels(c, s, n, 1, p);
}

#define X(name, ...)                                                                               \
    bool gemm__slim_##name(const struct gemm_call *c)                                              \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        if (c->m > SLIM_MAX)                                                                       \
            return false;                                                                          \
        memset(c->wbuf, 0, sizeof(struct slim_work)); /* results past m are added, but not used */ \
        slim_open(s.group, (int)c->m);                                                             \
        if (c->m <= 2)                                                                             \
            slim_rows(c, s, 2);                                                                    \
        else if (c->m <= 4)                                                                        \
            slim_rows(c, s, 4);                                                                    \
        else                                                                                       \
            slim_rows(c, s, SLIM_MAX);                                                             \
        _tile_release();                                                                           \
        return true;                                                                               \
    }
GEMM_QUANT_LAYOUTS(X)
#undef X

#endif
