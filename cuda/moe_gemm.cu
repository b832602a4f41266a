/* dst[i * n_used + j, :] f32 = src[row] * w[id[i, j]]^T + bias: products by expert over all packed formats. The kernels are
 * those of gemm_quant.cu and gemm_f32.cu with two differences: a block's rows are one tile of cu_experts_sort, read and
 * written through its list, and the parts that K is split into are summed by the one block, in the same order: equal bits
 * with the product of one weight. The grid is for the worst case of choices; blocks behind the last tile end at once. */
#include "cuda/gemm.cuh"
#include "cuda/moe.h"

#define WARPS       4
#define STAGES      4
#define TILE_FEW    16
#define TILE_MANY   64
#define F32_THREADS 128
#define F32_ROWS    8

struct moe_args : gemm_args {
    const cu_expert *table; /* of the part */
    const cu_expert_tile *tile;
    const int32_t *n_tile, *order;
    int64_t bias_step;
    int each, n_used, tile_max;
};

/* Rows of src and dst of the tile; -1 behind its last. */
static __device__ __forceinline__ void rows_list(const moe_args &a, const cu_expert_tile &t,
                                                 int *src, int *dst, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        const int r = i < t.n ? a.order[t.first + i] : -1;
        dst[i] = r;
        src[i] = r < 0 || a.each ? r : r / a.n_used;
    }
    __syncthreads();
}

template <int MT>
static __device__ __forceinline__ void load_src(const moe_args &a, bf16 *tile, const int *rows,
                                                int kt)
{
    for (int i = (int)threadIdx.x; i < MT * 16 * 8; i += WARPS * 32) {
        const int r = i / 8, c = i % 8, k = kt * CU_STAGE + c * 8, row = rows[r];
        const bool valid = row >= 0 && k < a.n_in;
        bf16 *to = tile + r * CU_STAGE + ((c ^ (r & 7)) << 3);
        const bf16 *from = a.src + (int64_t)row * a.ld_src + k;
        if (!a.slow) {
            ptx::cp_async16(to, valid ? from : a.src, valid);
        } else {
            for (int e = 0; e < 8; e++)
                to[e] = valid && k + e < a.n_in ? from[e] : __float2bfloat16_rn(0.0f);
        }
    }
}

template <class F>
static __device__ __forceinline__ void load_unit(const moe_args &a, const char *units, char *to,
                                                 int panel, int kt, int lane)
{
    const bool valid = panel < a.panels;
    const char *from = units + ((int64_t)panel * a.stages + kt) * F::UNIT;
    for (int i = lane; i < F::UNIT / 16; i += 32)
        ptx::cp_async16(to + i * 16, valid ? from + i * 16 : units, valid);
}

template <class F, int MT> struct Smem {
    bf16 src[STAGES][MT * 16 * CU_STAGE];
    char unit[STAGES][WARPS][F::UNIT];
};

/* acc += stages [from, to). */
template <class F, int MT>
static __device__ __forceinline__ void span(const moe_args &a, Smem<F, MT> *sm, const char *units,
                                            const int *rows, int from, int to,
                                            float (&acc)[MT][4][4])
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              panel = (int)blockIdx.x * WARPS + warp;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (from + s < to) {
            load_src<MT>(a, sm->src[s], rows, from + s);
            load_unit<F>(a, units, sm->unit[s][warp], panel, from + s, lane);
        }
        ptx::cp_async_commit();
    }
    for (int kt = from; kt < to; kt++) {
        ptx::cp_async_wait<STAGES - 2>();
        __syncthreads();
        const int next = kt + STAGES - 1, at = (kt - from) % STAGES;
        if (next < to) {
            load_src<MT>(a, sm->src[(next - from) % STAGES], rows, next);
            load_unit<F>(a, units, sm->unit[(next - from) % STAGES][warp], panel, next, lane);
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
    __syncthreads();
}

template <class F, int MT>
static __global__ void __launch_bounds__(WARPS * 32) gemm_experts(moe_args a)
{
    typedef Smem<F, MT> S;
    DYN_SHARED(S, sm);
    SHARED(int, src_row, [MT * 16]);
    SHARED(int, dst_row, [MT * 16]);
    if ((int)blockIdx.y >= *a.n_tile)
        return;
    const cu_expert_tile t = a.tile[blockIdx.y];
    const cu_expert e = a.table[t.expert];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              panel = (int)blockIdx.x * WARPS + warp;
    a.row_scale = e.row_scale;
    a.bias = a.bias ? a.bias + t.expert * a.bias_step : nullptr;
    rows_list(a, t, src_row, dst_row, MT * 16);
    const int per = (a.stages + a.splits - 1) / a.splits;
    float sum[MT][4][4] = {};
    for (int s = 0; s < a.splits; s++) {
        float acc[MT][4][4] = {};
        span<F, MT>(a, sm, (const char *)e.data, src_row, s * per, min(a.stages, (s + 1) * per),
                    acc);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int q = 0; q < 4; q++)
                    sum[i][k][q] =
                        a.splits == 1 ? acc[i][k][q] : __fadd_rn(sum[i][k][q], acc[i][k][q]);
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int r = i * 16 + lane / 4 + (q >> 1) * 8,
                          col = panel * CU_PANEL + k * 8 + lane % 4 * 2 + (q & 1);
                if (r < t.n && col < a.n_out)
                    a.dst[(int64_t)dst_row[r] * a.ld_dst + col] = finish(a, sum[i][k][q], r, col);
            }
}

static __global__ void __launch_bounds__(F32_THREADS) gemm_experts_f32(moe_args a, const float *src)
{
    SHARED(int, src_row, [TILE_FEW]);
    SHARED(int, dst_row, [TILE_FEW]);
    if ((int)blockIdx.y >= *a.n_tile)
        return;
    const cu_expert_tile t = a.tile[blockIdx.y];
    const int col = (int)blockIdx.x * F32_THREADS + (int)threadIdx.x;
    rows_list(a, t, src_row, dst_row, TILE_FEW);
    if (col >= a.n_out)
        return;
    const float *w = (const float *)a.table[t.expert].data + (int64_t)col * a.n_in;
    for (int r0 = 0; r0 < t.n; r0 += F32_ROWS) {
        const int n = min(t.n - r0, F32_ROWS);
        float acc[F32_ROWS] = {};
        for (int k = 0; k < a.n_in; k++) {
            const float v = w[k];
            for (int i = 0; i < F32_ROWS; i++)
                if (i < n)
                    acc[i] = __fmaf_rn(src[src_row[r0 + i] * a.ld_src + k], v, acc[i]);
        }
        for (int i = 0; i < n; i++)
            a.dst[dst_row[r0 + i] * a.ld_dst + col] =
                a.bias ? __fadd_rn(acc[i], a.bias[t.expert * a.bias_step + col]) : acc[i];
    }
}

/* ------------------------------------------------------------------ launch */

template <class F> struct Run {
    static int go(const gemm_args &g, int tile_rows, cu_stream st)
    {
        const moe_args &a = static_cast<const moe_args &>(g);
        const bool few = tile_rows == TILE_FEW;
        launch_cfg c = {};
        c.grid = dim3((unsigned)((a.panels + WARPS - 1) / WARPS), (unsigned)a.tile_max);
        c.block = dim3(WARPS * 32);
        c.smem = few ? sizeof(Smem<F, 1>) : sizeof(Smem<F, 4>);
        c.stream = (cudaStream_t)st;
        return launched(launch(c, few ? gemm_experts<F, 1> : gemm_experts<F, 4>, a));
    }
};

/* Work space: one number, tiles, the sorted list, scaled rows. */
struct space {
    int tile_rows, tile_max;
    size_t tile, order, rows, all;
};

static space space_of(const struct cu_experts *a, int n_row)
{
    const size_t all = (size_t)n_row * (size_t)a->n_used, n = (size_t)a->n_expert;
    space s = {};
    /* Bits do not depend on it: wide tiles when the experts have that many rows on average. */
    s.tile_rows = a->w->part[0].bits == 32 || all <= 16 * n ? TILE_FEW : TILE_MANY;
    s.tile_max = (int)((all < n ? all : n) + all / (size_t)s.tile_rows);
    s.tile = 256;
    s.order = s.tile + ((size_t)s.tile_max * sizeof(cu_expert_tile) + 255) / 256 * 256;
    s.rows = s.order + (all * 4 + 255) / 256 * 256;
    const size_t each = a->src.dt == CU_F32 ? 4 : 2;
    s.all =
        s.rows + (a->in_scale.p || a->w->col ? all * (size_t)((a->w->n_in + 7) / 8 * 8) * each : 0);
    return s;
}

extern "C" size_t cu_experts_ws(const struct cu_experts *a, int n_row)
{
    return space_of(a, n_row).all;
}

static bool experts_ok(const struct cu_experts *a)
{
    const cu_mat *i = &a->id;
    return a->w && a->table && mat_ok(&a->dst) && a->dst.dt == CU_F32 &&
           a->dst.cols == a->w->n_out && mat_ok(&a->src) && a->src.cols == a->w->n_in &&
           a->w->n_out <= INT32_MAX && a->w->n_in <= INT32_MAX && i->p && i->dt == CU_I32 &&
           i->cols == a->n_used && i->ld >= i->cols && a->n_expert <= CU_EXPERTS_MAX;
}

/* One part of all experts' weights. */
static int part_launch(const struct cu_experts *a, int i, int64_t col, const moe_args &common,
                       int tile_rows, cu_stream st)
{
    const struct cu_part *p = &a->w->part[i];
    moe_args g = common;
    g.table = a->table + (int64_t)i * a->n_expert;
    g.dst = (float *)a->dst.p + col;
    g.bias = a->bias ? a->bias + col : nullptr;
    g.n_out = (int)p->n_out;
    g.panels = (int)((p->n_out + CU_PANEL - 1) / CU_PANEL);
    g.splits = a->steady ? 1 : cu_splits(a->w->n_in_pad, p->n_out);
    if (p->bits != 32)
        return by_format<Run>(p, g, tile_rows, st);
    launch_cfg c = {};
    c.grid = dim3((unsigned)((p->n_out + F32_THREADS - 1) / F32_THREADS), (unsigned)g.tile_max);
    c.block = dim3(F32_THREADS);
    c.stream = (cudaStream_t)st;
    return launched(launch(c, gemm_experts_f32, g, (const float *)(const void *)g.src));
}

extern "C" int cu_linear_experts(const struct cu_experts *a, const struct cu_step *s, cu_stream st)
{
    const int n_row = rows_max(s, a->rows);
    if (!experts_ok(a) || a->src.dt != (a->w->part[0].bits == 32 ? CU_F32 : CU_BF16))
        return CU_BAD;
    if (n_row <= 0)
        return 0;
    const space sp = space_of(a, n_row);
    char *ws = (char *)a->ws;
    if (!ws || a->ws_bytes < sp.all || sp.tile_max > 65535)
        return CU_BAD;
    cu_sort sort = {a->id,
                    s->count,
                    a->n_expert,
                    a->n_used,
                    sp.tile_rows,
                    (int)a->rows,
                    (int32_t *)ws,
                    (cu_expert_tile *)(ws + sp.tile),
                    (int32_t *)(ws + sp.order)};
    cu_mat src = a->src;
    int rc = cu_experts_sort(&sort, st), each = a->each;
    if (!rc && (a->in_scale.p || a->w->col)) {
        src.p = ws + sp.rows;
        src.ld = (a->w->n_in + 7) / 8 * 8;
        rc = cu_experts_scale(a, &src, s, st);
        each = 1;
    }
    moe_args g = {};
    g.ld_dst = a->dst.ld;
    g.src = (const bf16 *)src.p;
    g.ld_src = src.ld;
    g.count = s->count;
    g.n_in = (int)a->w->n_in;
    g.stages = (int)(a->w->n_in_pad / CU_STAGE);
    g.slow = a->w->n_in % 8 || src.ld % 8 || (uintptr_t)src.p % 16;
    g.tile = sort.tile;
    g.n_tile = sort.n_tile;
    g.order = sort.order;
    g.bias_step = a->w->n_out;
    g.each = each;
    g.n_used = a->n_used;
    g.tile_max = sp.tile_max;
    int64_t col = 0;
    for (int i = 0; i < a->w->n_part && !rc; i++) {
        rc = part_launch(a, i, col, g, sp.tile_rows, st);
        col += a->w->part[i].n_out;
    }
    return rc;
}
