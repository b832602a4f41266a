/* GEMM kernels of the AMX table for one row: bf16 activations and exact weights like kern_gemm_amx.c's, in vectors of f32.
 * Empty in the other ISAs' objects. */
#include "engine/cpu/gemm_ask.h"
#include "engine/cpu/gemm_codes.h"

#ifdef CPU_ISA_amx
#include "engine/cpu/gemm_edge.h"

/* A tile product sums even and odd values of a row apart, in order, by fused multiply-adds that flush denormal numbers,
 * then adds both: vectors of f32 give the same bits, and need no tiles of weights to be built. For one row that is faster. */

/* Panels at a time: one sum after the other would wait for itself, and memory gives more to several streams. */
#define PANELS_MAX 4

/* One group of n_panel panels: the results that tile products would have. x: 32 f32 in the order of xb. */
INLINE void few_group(const struct gemm_spec s, const int n_panel, const uint8_t *chunk,
                      size_t panel_bytes, const int h0, const int h1, const float *x, __m512 *sum)
{
    __m512 even[PANELS_MAX], odd[PANELS_MAX];
    UNROLL(4)
    for (int p = 0; p < n_panel; p++)
        even[p] = odd[p] = _mm512_setzero_ps();
    UNROLL(2)
    for (int h = h0; h < h1; h++)
        UNROLL(4)
    for (int i = 0; i < 4; i++)
        UNROLL(4)
    for (int p = 0; p < n_panel; p++) {
        const __m512i q = codes_bytes(s, chunk + (size_t)p * panel_bytes, i, h);
        UNROLL(2)
        for (int o = 0; o < 2; o++) {
            __m512 a, b;
            codes_pair(s, true, q, o, h, &a, &b);
            const float *at = x + 2 * (8 * h + 2 * i + o);
            even[p] = _mm512_fmadd_ps(a, _mm512_set1_ps(at[0]), even[p]);
            odd[p] = _mm512_fmadd_ps(b, _mm512_set1_ps(at[1]), odd[p]);
        }
    }
    UNROLL(4)
    for (int p = 0; p < n_panel; p++) /* the tile was zero: makes +0 of -0 */
        sum[p] = _mm512_add_ps(_mm512_add_ps(even[p], odd[p]), _mm512_setzero_ps());
}

INLINE void few_panels(const struct gemm_call *c, const struct gemm_spec s, const int n_panel,
                       int p, const float *x)
{
    const int per = GEMM_CHUNK / s.group;
    const uint8_t *scales = c->panel + (size_t)p * c->panel_bytes;
    const uint8_t *chunk = scales + gemm_scale_bytes(s, c->n_in, LANES);
    struct ask ask = ask_from(c, s, n_panel, p);
    vf acc[PANELS_MAX];
    UNROLL(4)
    for (int q = 0; q < n_panel; q++)
        acc[q] = v_set(0);
    for (int64_t i = 0; i < c->n_in / GEMM_CHUNK; i++, x += GEMM_CHUNK) {
        ask_step(c, s, n_panel, &ask);
        UNROLL(2)
        for (int j = 0; j < per; j++) {
            const int64_t g = i * per + j;
            __m512 sum[PANELS_MAX];
            few_group(s, n_panel, chunk, c->panel_bytes, j, per == 2 ? j + 1 : 2, x, sum);
            UNROLL(4)
            for (int q = 0; q < n_panel; q++) {
                vf d, m;
                group_scale(scales + (size_t)q * c->panel_bytes, s, g, &d, &m);
                acc[q] = v_fma((vf)sum[q], d, acc[q]);
                if (s.has_min)
                    acc[q] = v_fma(v_set(c->xs[g * GEMM_ROWS]), m, acc[q]);
            }
        }
        chunk += gemm_chunk_bytes(s, LANES);
    }
    UNROLL(4)
    for (int q = 0; q < n_panel; q++)
        rows_store(c, p + q, 0, 1, acc + q);
}

INLINE void few_row(const struct gemm_call *c, const struct gemm_spec s)
{
    float *x = c->wbuf;
    int p = 0;
    ask_first(c, s, c->n_panel >= 4 ? 4 : c->n_panel >= 2 ? 2 : 1);
    row_widen(c, x);
    for (; p + 4 <= c->n_panel; p += 4)
        few_panels(c, s, 4, p, x);
    for (; p + 2 <= c->n_panel; p += 2)
        few_panels(c, s, 2, p, x);
    for (; p < c->n_panel; p++)
        few_panels(c, s, 1, p, x);
}

#define X(name, ...)                                                                               \
    bool gemm__few_##name(const struct gemm_call *c)                                               \
    {                                                                                              \
        const struct gemm_spec s = {__VA_ARGS__};                                                  \
        if (c->m > 1)                                                                              \
            return gemm__slim_##name(c);                                                           \
        few_row(c, s);                                                                             \
        return true;                                                                               \
    }
GEMM_QUANT_LAYOUTS(X)
#undef X

#endif
