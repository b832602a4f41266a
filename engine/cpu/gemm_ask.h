/* Asking for packed weights ahead of use, for kernels that read them once. Included by kern_gemm_*.c alone. */
#ifndef ENGINE_CPU_GEMM_ASK_H
#define ENGINE_CPU_GEMM_ASK_H

#include "engine/cpu/gemm_vec.h"

/* How many bytes of a panel ahead, and into which cache. Tiles: memory answers that soon, and the first level holds that of four
 * panels. Elsewhere the second level takes them: the first one of Zen 4 has 32 KB and few misses at a time. */
#ifdef CPU_ISA_amx
#define ASK_BYTES 2048
#define ASK_LEVEL 3
#else
#define ASK_BYTES 4096
#define ASK_LEVEL 2
#endif

/* Bytes of scales of a chunk; of a group of 256 the average. */
INLINE size_t ask_scale_bytes(const struct gemm_spec s)
{
    const size_t n = 1 + (size_t)s.has_min, per = (size_t)(GEMM_CHUNK / s.group);
    return s.scale == GS_F16   ? 2 * n * LANES
           : s.scale == GS_F32 ? 4 * n * per * LANES
                               : (2 + (size_t)(GEMM_SUPER / s.group)) * n * LANES / 8;
}

/* Asks for chunks [0, n) of n_panel panels, and their scales. */
INLINE void ask_chunks(const struct gemm_spec s, const int n_panel, size_t panel_bytes,
                       const uint8_t *chunk, const uint8_t *scale, int64_t n)
{
    const size_t cb = gemm_chunk_bytes(s, LANES), sb = ask_scale_bytes(s);
    for (; n > 0; n--, chunk += cb, scale += sb)
        UNROLL(4)
    for (int q = 0; q < n_panel; q++) {
        for (size_t b = 0; b < cb; b += 64)
            __builtin_prefetch(chunk + (size_t)q * panel_bytes + b, 0, ASK_LEVEL);
        for (size_t b = 0; b < sb; b += 64)
            __builtin_prefetch(scale + (size_t)q * panel_bytes + b, 0, ASK_LEVEL);
    }
}

/* How many chunks ahead. */
INLINE int64_t ask_ahead(const struct gemm_call *c, const struct gemm_spec s)
{
    const int64_t n = ASK_BYTES / (int64_t)gemm_chunk_bytes(s, LANES), all = c->n_in / GEMM_CHUNK;
    return n < all ? n : all;
}

/* Where a walk over n_panel panels at a time asks: a step for every chunk. Behind the panels' last chunk come the next ones'
 * first; behind the last panels' what has been read already. */
struct ask {
    const uint8_t *chunk, *scale;
    int64_t turn; /* chunks until the next panels */
    size_t chunk_back, scale_back;
};

/* Panels p to p + n_panel; the first `ahead` chunks of them were asked for. */
INLINE struct ask ask_from(const struct gemm_call *c, const struct gemm_spec s, const int n_panel,
                           int p)
{
    const size_t cb = gemm_chunk_bytes(s, LANES), sb = ask_scale_bytes(s);
    const uint8_t *scale = c->panel + (size_t)p * c->panel_bytes;
    const int64_t ahead = ask_ahead(c, s), n = c->n_in / GEMM_CHUNK;
    const size_t next = p + n_panel < c->n_panel ? (size_t)n_panel * c->panel_bytes : 0;
    return (struct ask){.chunk = scale + gemm_scale_bytes(s, c->n_in, LANES) + (size_t)ahead * cb,
                        .scale = scale + (size_t)ahead * sb,
                        .turn = n - ahead,
                        .chunk_back = (size_t)n * cb - next,
                        .scale_back = (size_t)n * sb - next};
}

INLINE void ask_step(const struct gemm_call *c, const struct gemm_spec s, const int n_panel,
                     struct ask *a)
{
    if (a->turn-- == 0) {
        a->chunk -= a->chunk_back;
        a->scale -= a->scale_back;
    }
    ask_chunks(s, n_panel, c->panel_bytes, a->chunk, a->scale, 1);
    a->chunk += gemm_chunk_bytes(s, LANES);
    a->scale += ask_scale_bytes(s);
}

/* The first chunks of the call's first n_panel panels. */
INLINE void ask_first(const struct gemm_call *c, const struct gemm_spec s, const int n_panel)
{
    ask_chunks(s, n_panel, c->panel_bytes, c->panel + gemm_scale_bytes(s, c->n_in, LANES), c->panel,
               ask_ahead(c, s));
}

#endif
