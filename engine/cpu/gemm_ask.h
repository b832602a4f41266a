/* Asking for packed weights ahead of use, for kernels that read them once. Included by kern_gemm_*.c alone. */
#ifndef ENGINE_CPU_GEMM_ASK_H
#define ENGINE_CPU_GEMM_ASK_H

#include "engine/cpu/gemm_vec.h"

/* How many bytes of a panel ahead: memory answers that soon, and the first-level cache holds that of four panels. */
#define AHEAD 2048

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
            __builtin_prefetch(chunk + (size_t)q * panel_bytes + b);
        for (size_t b = 0; b < sb; b += 64)
            __builtin_prefetch(scale + (size_t)q * panel_bytes + b);
    }
}

/* How many chunks ahead. */
INLINE int64_t ask_ahead(const struct gemm_call *c, const struct gemm_spec s)
{
    const int64_t n = AHEAD / (int64_t)gemm_chunk_bytes(s, LANES), all = c->n_in / GEMM_CHUNK;
    return n < all ? n : all;
}

#endif
