/* GEMM kernels of the AMX table for up to SLIM_MAX rows, on tiles: the same sequence and bits as kern_gemm_amx.c's.
 * A product costs the same for one row as for 16, so what counts is that the four steps of a chunk - the tile of weights is
 * written, multiplied, its result stored and added - overlap those of others. Empty in the other ISAs' objects. */
#include "engine/cpu/gemm_vec.h"

#ifdef CPU_ISA_amx
#include "engine/cpu/gemm_ask.h"
#include "engine/cpu/gemm_tile.h"

#define SLIM_MAX 8
#define RING     8 /* chunks whose tiles and results are held */
/* Steps of a chunk after its tile was written. */
#define MULTIPLY 4
#define STORE    (MULTIPLY + 3)
#define ADD      (STORE + 1)

/* A worker's scratch. */
struct slim_work {
    uint8_t tile[RING][AMX_TILE];
    float res[RING][GEMM_ROWS * LANES];
};
_Static_assert(sizeof(struct slim_work) <= GEMM_WBUF_MIN, "gemm_wbuf_bytes");

/* Chunk k - MULTIPLY times x, to tile t; tile `old` has the result of three chunks before. x and w: where factors go. */
#define MULTIPLY_STEP(t, old, x, w)                                                                \
    do {                                                                                           \
        const int64_t now_ = k - MULTIPLY, done_ = k - STORE;                                      \
        if (now_ >= 0 && now_ < n_chunk) {                                                         \
            _tile_loadd(w, work->tile[now_ % RING], 64);                                           \
            _tile_loadd(x, c->xb + now_ * c->m * GEMM_CHUNK, 64);                                  \
            _tile_zero(t);                                                                         \
            _tile_dpbf16ps(t, x, w);                                                               \
        }                                                                                          \
        if (done_ >= 0 && done_ < n_chunk)                                                         \
            _tile_stored(old, work->res[done_ % RING], 64);                                        \
    } while (0)

/* n sums (>= m) of panel p. */
INLINE void slim_panel(const struct gemm_call *c, const struct gemm_spec s, const int n, int p)
{
    const uint8_t *scales = c->panel + (size_t)p * c->panel_bytes;
    const uint8_t *chunk = scales + gemm_scale_bytes(s, c->n_in, LANES);
    const int64_t n_chunk = c->n_in / GEMM_CHUNK;
    struct ask ask = ask_from(c, s, 1, p);
    const float *xs = c->xs;
    struct slim_work *work = c->wbuf;
    vf acc[SLIM_MAX];
    UNROLL(8)
    for (int r = 0; r < n; r++)
        acc[r] = v_set(0);
    for (int64_t k = 0; k < n_chunk + ADD; k++) {
        if (k < n_chunk) {
            ask_step(c, s, 1, &ask);
            chunk_expand(s, chunk, work->tile[k % RING]);
            chunk += gemm_chunk_bytes(s, LANES);
        }
        AMX_BARRIER(work);
        switch (k % 4) {
        case 0:
            MULTIPLY_STEP(0, 1, 4, 6);
            break;
        case 1:
            MULTIPLY_STEP(1, 2, 5, 7);
            break;
        case 2:
            MULTIPLY_STEP(2, 3, 4, 6);
            break;
        default:
            MULTIPLY_STEP(3, 0, 5, 7);
        }
        AMX_BARRIER(work);
        const int64_t g = k - ADD;
        if (g < 0)
            continue;
        const float *res = work->res[g % RING];
        vf d, m;
        group_scale(scales, s, g, &d, &m);
        UNROLL(8)
        for (int r = 0; r < n; r++) {
            acc[r] = v_fma(v_load(res + r * LANES), d, acc[r]);
            if (s.has_min)
                acc[r] = v_fma(v_set(xs[g * GEMM_ROWS + r]), m, acc[r]);
        }
    }
    rows_store(c, p, 0, (int)c->m, acc);
}

INLINE void slim_rows(const struct gemm_call *c, const struct gemm_spec s, const int n)
{
    ask_first(c, s, 1);
    for (int p = 0; p < c->n_panel; p++)
        slim_panel(c, s, n, p);
}

#define X(name, ...)                                                                               \
    bool gemm__slim_##name(const struct gemm_call *c)                                              \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        if (s.group != GEMM_CHUNK || c->m > SLIM_MAX)                                              \
            return false;                                                                          \
        memset(c->wbuf, 0, sizeof(struct slim_work)); /* results past m are added, but not used */ \
        amx_open((int)c->m);                                                                       \
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
