/* dst[n, n_out] f32 = src[n, n_in] bf16 * w^T (+ bias), w packed as weight.h tells. mma.sync m16n8k16 in bf16 with f32
 * sums; weights are copied as they lie by a ring of cp.async and become bf16 in registers: bf16(scale * level + min).
 * After Marlin (Frantar et al. 2024): an offline shuffle, so that a lane's codes are its fragments.
 *
 * A block of four warps computes 16 MT rows x 128 outputs, each warp one panel of 32. K is split into a number of parts
 * that depends on the matrix alone; parts are summed in order by the last block to arrive. Every row takes the same
 * path for any number of rows: equal bits in any company. Any n_in, n_out, n. Bound: the reference with operands rounded
 * to bf16, 1e-9 NMSE. */
#include "cuda/gemm.h"
#include "cuda/kern.cuh"
#include "cuda/ptx.cuh"

#define WARPS  4
#define STAGES 4

template <int BITS_, int GROUP_, bool MIN_, int OFFSET_, bool LEVELS_> struct Fmt {
    static constexpr int BITS = BITS_, GROUP = GROUP_, OFFSET = OFFSET_;
    static constexpr bool MIN = MIN_, LEVELS = LEVELS_;
    static constexpr int CODES = BITS * CU_PANEL * CU_STAGE / 8; /* bytes of a unit */
    static constexpr int UNIT =
        CODES + (GROUP ? CU_STAGE / (GROUP ? GROUP : 1) * CU_PANEL * 2 * (MIN ? 2 : 1) : 0);
};

struct gemm_args {
    float *dst;
    int64_t ld_dst;
    const bf16 *src;
    int64_t ld_src;
    const char *units;
    const float *row_scale, *bias;
    float *ws;
    int32_t *counter;
    const cu_count *count;
    int32_t rows, n_in, n_out, panels, stages, splits, slow, n_pad;
};

/* IQ4: four codes (the lower 16 bits of v) to four bytes of level + 128, by byte permutes: a table in memory would be
 * read at 16 addresses a warp. */
__device__ __forceinline__ uint32_t iq4_levels(uint32_t v)
{
    const uint32_t low = __byte_perm(0x3f2d1801u, 0x766a5d4fu, v & 0x7777u),
                   high = __byte_perm(0xa6998d81u, 0xf1d9c5b5u, v & 0x7777u);
    return __byte_perm(low, high, 0x3210u | (v & 0x8888u) >> 1);
}

/* code - offset in f32, exact for codes below 2^23: no conversion from integer, which is a slow instruction. */
__device__ __forceinline__ float level_of(uint32_t code, int offset)
{
    return __uint_as_float(0x4b000000u | code) - (float)(8388608 + offset);
}

/* The eight values of tile t in half c of a unit, as the B fragments of two k steps. s: scales (and mins) of the two
 * steps. */
template <class F>
__device__ __forceinline__ void decode(uint32_t (&b)[2][2], const char *unit, int c, int t,
                                       int lane, const float (&s)[2], const float (&m)[2])
{
    const char *half = unit + c * (F::CODES / 2);
    if (F::BITS == 16) {
        const uint4 v = *(const uint4 *)(half + (t * 32 + lane) * 16);
        b[0][0] = v.x, b[0][1] = v.y, b[1][0] = v.z, b[1][1] = v.w;
        return;
    }
    uint32_t lo = 0, hi = 0, p2 = 0, p1 = 0;
    if (F::BITS == 8) {
        const uint2 v = *(const uint2 *)(half + ((t / 2 * 32 + lane) * 2 + t % 2) * 8);
        lo = v.x, hi = v.y;
    }
    const int after4 = F::BITS >= 4 ? 512 : 0;
    if (F::BITS >= 4 && F::BITS < 8)
        lo = *(const uint32_t *)(half + (lane * 4 + t) * 4);
    if (F::LEVELS) {
        hi = iq4_levels(lo >> 16);
        lo = iq4_levels(lo);
    }
    if (F::BITS == 2 || F::BITS == 3 || F::BITS == 6)
        p2 = *(const uint16_t *)(half + after4 + (lane * 4 + t) * 2);
    if (F::BITS == 3 || F::BITS == 5)
        p1 = *(const uint8_t *)(half + after4 + (F::BITS == 3 ? 256 : 0) + lane * 4 + t);
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
        float w[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = e + i;
            uint32_t code;
            if (F::BITS == 8 || F::LEVELS)
                code = (at < 4 ? lo : hi) >> 8 * (at & 3) & 255;
            else if (F::BITS >= 4)
                code = (lo >> 4 * at & 15) | (F::BITS == 5 ? (p1 >> at & 1) << 4 : 0) |
                       (F::BITS == 6 ? (p2 >> 2 * at & 3) << 4 : 0);
            else
                code = (p2 >> 2 * at & 3) | (F::BITS == 3 ? (p1 >> at & 1) << 2 : 0);
            const float level = level_of(code, F::LEVELS ? 128 : F::OFFSET);
            w[i] = F::MIN ? __fmaf_rn(level, s[e / 4], m[e / 4]) : __fmul_rn(level, s[e / 4]);
        }
        const __nv_bfloat162 v = __floats2bfloat162_rn(w[0], w[1]);
        memcpy(&b[e / 4][e / 2 % 2], &v, 4);
    }
}

/* Scales of half c for the lane's row in each tile: [tile][k step]. */
template <class F>
__device__ __forceinline__ void scales_of(float (&s)[4][2], float (&m)[4][2], const char *unit,
                                          int c, int lane)
{
    if (F::GROUP == 0)
        return;
    const int groups = F::GROUP ? CU_STAGE / (F::GROUP ? F::GROUP : 1) : 1;
#pragma unroll
    for (int ks = 0; ks < 2; ks++) {
        const int g = F::GROUP == 32 ? c : c * 2 + ks;
        const __half *h = (const __half *)(unit + F::CODES) + (g * 8 + lane / 4) * 4;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            s[t][ks] = __half2float(h[t]);
            m[t][ks] = F::MIN ? __half2float(h[groups * CU_PANEL + t]) : 0;
        }
    }
}

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

__device__ __forceinline__ float finish(const gemm_args &a, float v, int col)
{
    if (a.row_scale)
        v = __fmul_rn(v, a.row_scale[col]);
    return a.bias ? __fadd_rn(v, a.bias[col]) : v;
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
        a.dst[(int64_t)r * a.ld_dst + col] = finish(a, v, col);
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
                    a.dst[(int64_t)r * a.ld_dst + col] = finish(a, acc[i][t][q], col);
                else
                    a.ws[((int64_t)blockIdx.z * a.n_pad + r) * a.n_out + col] = acc[i][t][q];
            }
    if (a.splits > 1)
        combine<MT>(a, m0, n);
}

/* ------------------------------------------------------------------ launch */

template <class F> static int go(const gemm_args &a, int n_max, cu_stream st)
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

static int by_format(const struct cu_part *p, const gemm_args &a, int n, cu_stream st)
{
    switch (p->bits) {
    case 2:
        return go<Fmt<2, 16, true, 0, false>>(a, n, st);
    case 3:
        return go<Fmt<3, 16, false, 4, false>>(a, n, st);
    case 4:
        if (p->levels)
            return go<Fmt<4, 32, false, 0, true>>(a, n, st);
        return p->min ? go<Fmt<4, 32, true, 0, false>>(a, n, st)
                      : go<Fmt<4, 32, false, 8, false>>(a, n, st);
    case 5:
        return p->min ? go<Fmt<5, 32, true, 0, false>>(a, n, st)
                      : go<Fmt<5, 32, false, 16, false>>(a, n, st);
    case 6:
        return go<Fmt<6, 16, false, 32, false>>(a, n, st);
    case 8:
        return go<Fmt<8, 32, false, 128, false>>(a, n, st);
    case 16:
        return go<Fmt<16, 0, false, 0, false>>(a, n, st);
    default:
        return CU_BAD;
    }
}

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
    gemm_args g = {};
    g.splits = cu_splits(a->w->n_in_pad, p->n_out);
    g.panels = (int)((p->n_out + CU_PANEL - 1) / CU_PANEL);
    g.n_pad = (n + 63) / 64 * 64;
    const int64_t counters = (int64_t)((g.panels + WARPS - 1) / WARPS) * (g.n_pad / 64);
    const size_t partial = (size_t)g.splits * (size_t)g.n_pad * (size_t)p->n_out * 4;
    if (g.splits > 1 &&
        (!a->ws || counters > CU_GEMM_COUNTERS || a->ws_bytes < CU_GEMM_HEAD_BYTES + partial))
        return CU_BAD;
    g.counter = (int32_t *)a->ws;
    g.ws = (float *)((char *)a->ws + CU_GEMM_HEAD_BYTES);
    g.dst = (float *)a->dst.p + col;
    g.ld_dst = a->dst.ld;
    g.src = (const bf16 *)a->src.p;
    g.ld_src = a->src.ld;
    g.units = (const char *)p->data;
    g.row_scale = p->row_scale;
    g.bias = a->bias ? a->bias + col : nullptr;
    g.count = s->count;
    g.rows = (int)a->rows;
    g.n_in = (int)a->w->n_in;
    g.n_out = (int)p->n_out;
    g.stages = (int)(a->w->n_in_pad / CU_STAGE);
    g.slow = a->w->n_in % 8 || a->src.ld % 8 || (uintptr_t)a->src.p % 16;
    return by_format(p, g, n, st);
}
