/* dst[n, n_out] f32 = src[n, n_in] bf16 * w^T (+ bias), w packed as weight.h tells. mma.sync m16n8k16 in bf16 with f32
 * sums; weights are copied as they lie by a ring of cp.async and become bf16 in registers: bf16(scale * level + min).
 * After Marlin (Frantar et al. 2024): an offline shuffle, so that a lane's codes are its fragments.
 *
 * A block of four warps computes 16 MT rows x 128 outputs, each warp one panel of 32. K is split into a number of parts
 * that depends on the matrix alone; parts are summed in order by the last block to arrive. Every row takes the same
 * path for any number of rows: equal bits in any company. Any n_in, n_out, n. Bound: the reference with operands rounded
 * to bf16, 1e-9 NMSE. */
#include "cuda/gemm.cuh"

#define WARPS  4
#define STAGES 4

/* Activations of stage kt: rows m0.., columns 64 kt..; chunk c of row r lies at c ^ (r % 8). */
template <int MT>
__device__ __forceinline__ void load_src(const gemm_args &a, bf16 *tile, int m0, int n, int kt)
{
    for (int i = (int)threadIdx.x; i < MT * 16 * 8; i += WARPS * 32) {
        const int r = i / 8, c = i % 8, k = kt * CU_STAGE + c * 8;
        const bool valid = m0 + r < n && k < a.n_in;
        bf16 *to = tile + r * CU_STAGE + ((c ^ (r & 7)) << 3);
        const bf16 *from = a.src + (int64_t)(m0 + r) * a.ld_src + k;
        if (!a.slow) {
            ptx::cp_async16(to, valid ? from : a.src, valid);
        } else {
            for (int e = 0; e < 8; e++)
                to[e] = valid && k + e < a.n_in ? from[e] : __float2bfloat16_rn(0.0f);
        }
    }
}

template <class F>
__device__ __forceinline__ void load_unit(const gemm_args &a, char *to, int panel, int kt, int lane)
{
    const bool valid = panel < a.panels;
    const char *from = a.units + ((int64_t)panel * a.stages + kt) * F::UNIT;
    for (int i = lane; i < F::UNIT / 16; i += 32)
        ptx::cp_async16(to + i * 16, valid ? from + i * 16 : a.units, valid);
}

/* Sums the parts of this tile in order; the last block to arrive does it. */
template <int MT> __device__ __forceinline__ void combine(const gemm_args &a, int m0, int n)
{
    SHARED(int, last);
    int32_t *counter = a.counter + (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(counter, 1) == a.splits - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    const int cols = min(WARPS * CU_PANEL, a.n_out - (int)blockIdx.x * WARPS * CU_PANEL),
              rows = min(MT * 16, n - m0);
    for (int i = (int)threadIdx.x; i < rows * cols; i += WARPS * 32) {
        const int r = m0 + i / cols, col = (int)blockIdx.x * WARPS * CU_PANEL + i % cols;
        float v = 0;
        for (int s = 0; s < a.splits; s++)
            v = __fadd_rn(v, a.ws[((int64_t)s * a.n_pad + r) * a.n_out + col]);
        a.dst[(int64_t)r * a.ld_dst + col] = finish(a, v, r, col);
    }
    if (threadIdx.x == 0)
        atomicExch(counter, 0);
}

template <class F, int MT> struct Smem {
    bf16 src[STAGES][MT * 16 * CU_STAGE];
    char unit[STAGES][WARPS][F::UNIT];
};

template <class F, int MT>
static __global__ void __launch_bounds__(WARPS * 32) gemm_quant(gemm_args a)
{
    typedef Smem<F, MT> S;
    DYN_SHARED(S, sm);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int n = rows_of(a.count, a.rows), m0 = (int)blockIdx.y * MT * 16,
              panel = (int)blockIdx.x * WARPS + warp;
    if (m0 >= n)
        return;
    const int per = (a.stages + a.splits - 1) / a.splits, from = (int)blockIdx.z * per,
              to = min(a.stages, from + per);
    float acc[MT][4][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (from + s < to) {
            load_src<MT>(a, sm->src[s], m0, n, from + s);
            load_unit<F>(a, sm->unit[s][warp], panel, from + s, lane);
        }
        ptx::cp_async_commit();
    }
    for (int kt = from; kt < to; kt++) {
        ptx::cp_async_wait<STAGES - 2>();
        __syncthreads();
        const int next = kt + STAGES - 1, at = (kt - from) % STAGES;
        if (next < to) {
            load_src<MT>(a, sm->src[(next - from) % STAGES], m0, n, next);
            load_unit<F>(a, sm->unit[(next - from) % STAGES][warp], panel, next, lane);
        }
        ptx::cp_async_commit();
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const char *unit = sm->unit[at][warp];
            uint32_t b[4][2][2];
            float s[4][2], m[4][2];
            scales_of<F>(s, m, unit, c, lane);
#pragma unroll
            for (int t = 0; t < 4; t++)
                decode<F>(b[t], unit, c, t, lane, s[t], m[t]);
#pragma unroll
            for (int ks = 0; ks < 2; ks++)
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    uint32_t x[4];
                    const int r = i * 16 + (lane & 15), chunk = c * 4 + ks * 2 + (lane >> 4);
                    ptx::ldmatrix_x4(x, sm->src[at] + r * CU_STAGE + ((chunk ^ (r & 7)) << 3));
#pragma unroll
                    for (int t = 0; t < 4; t++)
                        ptx::mma_bf16(acc[i][t], x, b[t][ks]);
                }
        }
    }
    ptx::cp_async_wait<0>();
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int r = m0 + i * 16 + lane / 4 + (q >> 1) * 8,
                          col = panel * CU_PANEL + t * 8 + lane % 4 * 2 + (q & 1);
                if (r >= n || col >= a.n_out)
                    continue;
                if (a.splits == 1)
                    a.dst[(int64_t)r * a.ld_dst + col] = finish(a, acc[i][t][q], r, col);
                else
                    a.ws[((int64_t)blockIdx.z * a.n_pad + r) * a.n_out + col] = acc[i][t][q];
            }
    if (a.splits > 1)
        combine<MT>(a, m0, n);
}

/* ------------------------------------------------------------------ launch */

template <class F> struct Run {
    static int go(const gemm_args &a, int n_max, cu_stream st)
    {
        const bool small = n_max <= 16;
        const int rows = small ? 16 : 64;
        launch_cfg c = {dim3((unsigned)((a.panels + WARPS - 1) / WARPS),
                             (unsigned)((n_max + rows - 1) / rows), (unsigned)a.splits),
                        dim3(WARPS * 32),
                        small ? sizeof(Smem<F, 1>) : sizeof(Smem<F, 4>),
                        (cudaStream_t)st,
                        0,
                        false,
                        false};
        return launched(launch(c, small ? gemm_quant<F, 1> : gemm_quant<F, 4>, a));
    }
};

extern "C" int cu_splits(int64_t n_in_pad, int64_t n_out)
{
    const int64_t blocks = (n_out + WARPS * CU_PANEL - 1) / (WARPS * CU_PANEL),
                  stages = n_in_pad / CU_STAGE;
    int64_t s =
        264 /
        blocks; /* two waves of a large GPU; of the matrix alone, so that bits do not depend on rows */
    s = s < stages / 4 ? s : stages / 4;
    return (int)(s < 1 ? 1 : s > 16 ? 16 : s);
}

extern "C" int cu_gemm_quant(const struct cu_linear *a, int part, int64_t col,
                             const struct cu_step *s, cu_stream st)
{
    const struct cu_part *p = &a->w->part[part];
    const int n = rows_max(s, a->rows);
    gemm_args g = gemm_fill(a, part, col, s);
    g.splits = a->steady ? 1 : cu_splits(a->w->n_in_pad, p->n_out);
    const int64_t counters = (int64_t)((g.panels + WARPS - 1) / WARPS) * (g.n_pad / 64);
    const size_t partial = (size_t)g.splits * (size_t)g.n_pad * (size_t)p->n_out * 4;
    if (g.splits > 1 &&
        (!a->ws || counters > CU_GEMM_COUNTERS || a->ws_bytes < CU_GEMM_HEAD_BYTES + partial))
        return CU_BAD;
    g.counter = (int32_t *)a->ws;
    g.ws = (float *)((char *)a->ws + CU_GEMM_HEAD_BYTES);
    return by_format<Run>(p, g, n, st);
}
