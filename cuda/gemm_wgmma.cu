/* dst[n, n_out] f32 = src[n, n_in] bf16 * w^T (+ bias) for many rows, on compute capability 9.0: wgmma m64n64k16 with the
 * weights as operand A, so that packed codes become fragments in registers and never bf16 in shared memory (weight.h's
 * order is that of A too: two tiles of 8 rows make a warp's 16). Activations are operand B, brought by TMA.
 *
 * A block of two warpgroups computes 128 outputs x 128 rows. Codes come by cp.async, both in a ring of three stages of 64
 * columns; two blocks fit on a multiprocessor, so that one decodes while the other multiplies. K is never split. A row has
 * the same bits in any company, but not those of gemm_quant.cu. Limits: src 16-byte aligned with ld a multiple of 8.
 * Bound: as gemm_quant.cu. */
#include "cuda/gemm.cuh"

#define ROWS   128 /* of src, a block */
#define OUTS   128 /* outputs, a block: 64 a warpgroup */
#define RING   3
#define PANELS (OUTS / CU_PANEL)

template <class F> struct WgSmem {
    bf16 src[RING][ROWS * CU_STAGE]; /* 128-byte rows, swizzled by TMA; 1024-aligned */
    char unit[RING][PANELS][F::UNIT];
    uint64_t full[RING]; /* a phase a filling of src */
};

/* Starts the copies of stage kt into its slot, whose last readers are done. */
template <class F>
__device__ __forceinline__ void stage_load(const gemm_args &a, const CUtensorMap *map,
                                           WgSmem<F> *sm, int m0, int kt)
{
    const int at = kt % RING, panel0 = (int)blockIdx.x * PANELS;
    if (threadIdx.x == 0) {
        ptx::mbar_expect_tx(&sm->full[at], ROWS * CU_STAGE * 2);
        ptx::tma_load_2d(sm->src[at], map, kt * CU_STAGE, m0, &sm->full[at]);
    }
    for (int i = (int)threadIdx.x; i < PANELS * (F::UNIT / 16); i += 256) {
        const int p = i / (F::UNIT / 16), chunk = i % (F::UNIT / 16) * 16;
        const bool valid = panel0 + p < a.panels;
        const char *from = a.units + ((int64_t)(panel0 + p) * a.stages + kt) * F::UNIT + chunk;
        ptx::cp_async16(sm->unit[at][p] + chunk, valid ? from : a.units, valid);
    }
}

/* The warp's 16 outputs in half c of a unit, as A fragments of two k steps. t: its first tile, 0 or 2. */
template <class F>
__device__ __forceinline__ void fragments(uint32_t (&w)[2][4], const char *unit, int c, int t,
                                          int lane)
{
    float s[4][2], m[4][2];
    scales_of<F>(s, m, unit, c, lane);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float si[2] = {0, 0}, mi[2] = {0, 0};
        if (F::GROUP)
            for (int ks = 0; ks < 2; ks++) { /* no index that the compiler does not know */
                si[ks] = t ? s[2 + i][ks] : s[i][ks];
                mi[ks] = t ? m[2 + i][ks] : m[i][ks];
            }
        uint32_t b[2][2];
        decode<F>(b, unit, c, t + i, lane, si, mi);
#pragma unroll
        for (int ks = 0; ks < 2; ks++)
            w[ks][i] = b[ks][0], w[ks][2 + i] = b[ks][1];
    }
}

template <class F>
static __global__ void __launch_bounds__(256, 2)
    gemm_wgmma(gemm_args a, const __grid_constant__ CUtensorMap map)
{
    DYN_SHARED(WgSmem<F>, sm);
    const int tid = (int)threadIdx.x, wg = tid / 128, warp = tid % 128 / 32, lane = tid % 32;
    const int n = rows_of(a.count, a.rows), m0 = (int)blockIdx.y * ROWS;
    if (m0 >= n)
        return;
    if (tid == 0) {
        for (int i = 0; i < RING; i++)
            ptx::mbar_init(&sm->full[i], 1);
        ptx::mbar_fence_init();
    }
    __syncthreads();
    float acc[2][32];
#pragma unroll
    for (int i = 0; i < 32; i++)
        acc[0][i] = acc[1][i] = 0;
#pragma unroll
    for (int s = 0; s < RING - 1; s++) {
        if (s < a.stages)
            stage_load(a, &map, sm, m0, s);
        ptx::cp_async_commit();
    }
    for (int kt = 0; kt < a.stages; kt++) {
        const int at = kt % RING;
        ptx::cp_async_wait<RING - 2>();
        ptx::mbar_wait(&sm->full[at], (unsigned)(kt / RING) & 1);
        __syncthreads(); /* all have multiplied by stage kt - 1, whose slot is next */
        if (kt + RING - 1 < a.stages)
            stage_load(a, &map, sm, m0, kt + RING - 1);
        ptx::cp_async_commit();
        const char *unit = sm->unit[at][wg * 2 + warp / 2];
        uint32_t w[2][2][4];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            fragments<F>(w[c], unit, c, warp % 2 * 2, lane);
            ptx::wgmma_fence();
#pragma unroll
            for (int ks = 0; ks < 2; ks++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    ptx::wgmma_m64n64k16_ra(
                        acc[j], w[c][ks],
                        ptx::wgmma_desc(sm->src[at] + j * 64 * CU_STAGE + (c * 2 + ks) * 16), 1);
            ptx::wgmma_commit();
        }
        ptx::wgmma_wait<0>();
    }
    ptx::cp_async_wait<0>();
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int r = m0 + j * 64 + i / 4 * 8 + lane % 4 * 2 + (i & 1),
                      col = (int)blockIdx.x * OUTS + wg * 64 + warp * 16 + lane / 4 +
                            (i >> 1 & 1) * 8;
            if (r < n && col < a.n_out)
                a.dst[(int64_t)r * a.ld_dst + col] = finish(a, acc[j][i], r, col);
        }
}

/* ------------------------------------------------------------------ launch */

template <class F> struct Run {
    static int go(const gemm_args &a, int n_max, cu_stream st)
    {
        CUtensorMap map;
        cudaError_t e = cu_tensormap_2d(&map, a.src, (uint64_t)a.n_in, (uint64_t)n_max,
                                        (uint64_t)a.ld_src * 2, CU_STAGE, ROWS);
        if (e != cudaSuccess)
            return launched(e);
        launch_cfg c = {dim3((unsigned)((a.panels + PANELS - 1) / PANELS),
                             (unsigned)((n_max + ROWS - 1) / ROWS)),
                        dim3(256),
                        sizeof(WgSmem<F>),
                        (cudaStream_t)st,
                        0,
                        false,
                        false};
        return launched(launch(c, gemm_wgmma<F>, a, map));
    }
};

extern "C" int cu_gemm_wgmma_takes(const struct cu_linear *a, int part, int n_row)
{
    const int bits = a->w->part[part].bits;
    return a->wgmma && bits != 32 && (a->steady || n_row >= ROWS) && a->src.ld % 8 == 0 &&
           (uintptr_t)a->src.p % 16 == 0;
}

extern "C" int cu_gemm_wgmma(const struct cu_linear *a, int part, int64_t col,
                             const struct cu_step *s, cu_stream st)
{
    if (a->src.ld % 8 || (uintptr_t)a->src.p % 16)
        return CU_BAD;
    const gemm_args g = gemm_fill(a, part, col, s);
    return by_format<Run>(&a->w->part[part], g, rows_max(s, a->rows), st);
}
