/* Where a panel's sums begin and end in the AMX kernels. Included by kern_gemm_*.c alone, inside their ISA. */
#ifndef ENGINE_CPU_GEMM_EDGE_H
#define ENGINE_CPU_GEMM_EDGE_H

#include "engine/cpu/amx.h"
#include "engine/cpu/gemm_vec.h"

/* The panel's outputs that exist. */
static inline __mmask16 panel_mask(const struct gemm_call *c, int panel)
{
    const int64_t left = c->n_out - (int64_t)panel * LANES;
    return (__mmask16)(left >= LANES ? 0xffff : (1 << left) - 1);
}

/* The bias of a panel, or zeros. */
static inline __m512 bias_of(const struct gemm_call *c, int panel)
{
    return c->bias ? _mm512_maskz_loadu_ps(panel_mask(c, panel), c->bias + (int64_t)panel * LANES)
                   : _mm512_setzero_ps();
}

/* ... as a tile of 16 equal rows at t. */
static inline void bias_tile(const struct gemm_call *c, int panel, float *t)
{
    const __m512 b = bias_of(c, panel);
    for (int r = 0; r < GEMM_ROWS; r++)
        _mm512_store_ps(t + r * LANES, b);
}

/* The first `rows` rows of a tile to rows `row` on of y. */
static inline void sums_store(const struct gemm_call *c, int panel, int64_t row, int64_t rows,
                              const float *sum)
{
    const __mmask16 mask = panel_mask(c, panel);
    float *y = c->y + row * c->ldy + (int64_t)panel * LANES;
    AMX_BARRIER(sum);
    for (int64_t r = 0; r < rows; r++, y += c->ldy)
        _mm512_mask_storeu_ps(y, mask, _mm512_load_ps(sum + r * LANES));
}

#endif
