/* Paged attention on tensor cores, for 16-bit KV and head_dim 16 to 256 (the instances at the end). Flash-style online
 * softmax (Dao et al. 2022; Dao 2023) with split KV (Dao et al. 2023), by mma.sync m16n8k16: q and the weights p are
 * rounded to the KV's dtype, sums are f32, exponentials to base 2.
 *
 * One arithmetic for every row, so that it gets the same bits as a decode row, in a chunk of any size and in any company:
 * a warp holds 16 query rows (heads of a GQA group, then tokens), KV goes in tiles of KT tokens from absolute multiples of
 * KT, each split of CU_SPLIT_TOKENS from nothing; a finished split is folded into the running (maximum, sum, output). A
 * tile or split that a row does not see leaves it exactly as it is.
 *
 * Decode rows: a block of one warp a (row, KV head, split); partial results go to ws, the last block folds them in order.
 * Tiles: four warps, 64 query rows, all splits in order. Bound: 5e-6 NMSE of the reference with bf16 KV, 1e-6 with f16. */
#include "cuda/attn.cuh"
#include "cuda/attn.h"
#include "cuda/ptx.cuh"

#define LOG2E 1.4426950408889634f

template <class T> __device__ __forceinline__ uint32_t pack2(float a, float b);
template <> __device__ __forceinline__ uint32_t pack2<bf16>(float a, float b)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}
template <> __device__ __forceinline__ uint32_t pack2<__half>(float a, float b)
{
    const __half2 v = __floats2half2_rn(a, b);
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    bf16)
{
    ptx::mma_bf16(d, a, b);
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    __half)
{
    ptx::mma_f16(d, a, b);
}

template <class T, int HD, int W> struct AttnSmem {
    static constexpr int KT = HD > 128 ? 32 : 64,
                         LD = HD + 8; /* 8 more: rows fall into different banks */
    T q[W * 16][LD], k[2][KT][LD], v[2][KT][LD];
    float o[W][HD / 2][32]; /* running output, a lane's own values */
};

/* A warp's softmax state: rows lane / 4 and lane / 4 + 8. */
template <int HD> struct State {
    float m[2], l[2], acc[HD / 8][4]; /* of the split */
    float run_m[2], run_l[2];         /* of what is folded */
};

/* exp2(a - b), 0 when a is -infinity (also if b is). */
__device__ __forceinline__ float ratio(float a, float b)
{
    return a > -INFINITY ? exp2f(__fsub_rn(a, b)) : 0;
}
__device__ __forceinline__ float fold1(float run, float keep, float part, float take)
{
    return __fadd_rn(__fmul_rn(run, keep), __fmul_rn(part, take));
}

template <int HD> __device__ __forceinline__ void split_start(State<HD> &s)
{
    for (int i = 0; i < 2; i++)
        s.m[i] = -INFINITY, s.l[i] = 0;
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
        for (int j = 0; j < 4; j++)
            s.acc[i][j] = 0;
}

/* The split's sums over the quad; then into the running state. */
template <int HD> __device__ __forceinline__ void split_sum(State<HD> &s)
{
    for (int i = 0; i < 2; i++) {
        s.l[i] = __fadd_rn(s.l[i], __shfl_xor_sync(0xffffffffu, s.l[i], 1));
        s.l[i] = __fadd_rn(s.l[i], __shfl_xor_sync(0xffffffffu, s.l[i], 2));
    }
}
template <int HD> __device__ __forceinline__ void split_fold(State<HD> &s, float (*o)[32], int lane)
{
    float keep[2], take[2];
    for (int i = 0; i < 2; i++) {
        const float now = fmaxf(s.run_m[i], s.m[i]);
        keep[i] = ratio(s.run_m[i], now);
        take[i] = ratio(s.m[i], now);
        s.run_l[i] = fold1(s.run_l[i], keep[i], s.l[i], take[i]);
        s.run_m[i] = now;
    }
#pragma unroll
    for (int t = 0; t < HD / 8; t++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            o[t * 4 + j][lane] = fold1(o[t * 4 + j][lane], keep[j >> 1], s.acc[t][j], take[j >> 1]);
}

/* K and V of tokens [t0, t0 + KT) into stage `at`; tokens outside [lo, hi) become zeros and are not read. */
template <class T, int HD, int W>
__device__ __forceinline__ void load_kv(const attn_args &a, AttnSmem<T, HD, W> *sm, int at,
                                        const int32_t *table, int kvh, int t0, int lo, int hi)
{
    constexpr int KT = AttnSmem<T, HD, W>::KT, CHUNKS = HD / 8;
    const T *pool = (const T *)a.pool;
    for (int i = (int)threadIdx.x; i < KT * CHUNKS; i += W * 32) {
        const int t = t0 + i / CHUNKS, c = i % CHUNKS * 8;
        const bool valid = t >= lo && t < hi;
        const int block = valid ? table[t / CU_BLOCK_TOKENS] : 0;
        ptx::cp_async16(&sm->k[at][i / CHUNKS][c],
                        pool + attn_at(a, block, t % CU_BLOCK_TOKENS, kvh, 0) + c, valid);
        ptx::cp_async16(&sm->v[at][i / CHUNKS][c],
                        pool + attn_at(a, block, t % CU_BLOCK_TOKENS, kvh, 1) + c, valid);
    }
}

/* One tile of KT tokens from t0 on: rows see [from[i], pos[i]]. */
template <class T, int HD, int W>
__device__ __forceinline__ void tile_step(const attn_args &a, const AttnSmem<T, HD, W> *sm, int at,
                                          State<HD> &s, int t0, const int (&from)[2],
                                          const int (&pos)[2])
{
    constexpr int KT = AttnSmem<T, HD, W>::KT;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float p[KT / 8][4];
#pragma unroll
    for (int i = 0; i < KT / 8; i++)
        for (int j = 0; j < 4; j++)
            p[i][j] = 0;
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++) {
        uint32_t q[4];
        ptx::ldmatrix_x4(q, &sm->q[warp * 16 + (lane & 15)][kk * 16 + (lane >> 4) * 8]);
#pragma unroll
        for (int j = 0; j < KT / 16; j++) {
            uint32_t r[4];
            ptx::ldmatrix_x4(
                r,
                &sm->k[at][j * 16 + (lane & 7) + (lane >> 4) * 8][kk * 16 + (lane >> 3 & 1) * 8]);
            const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
            mma(p[2 * j], q, b0, T());
            mma(p[2 * j + 1], q, b1, T());
        }
    }
    float top[2] = {-INFINITY, -INFINITY}, keep[2];
#pragma unroll
    for (int i = 0; i < KT / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int t = t0 + i * 8 + lane % 4 * 2 + (j & 1), r = j >> 1;
            float v = __fmul_rn(p[i][j], a.scale);
            if (a.softcap > 0)
                v = a.softcap * tanhf(v / a.softcap);
            p[i][j] = t >= from[r] && t <= pos[r] ? __fmul_rn(v, LOG2E) : -INFINITY;
            top[r] = fmaxf(top[r], p[i][j]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
        top[r] = fmaxf(fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2)), s.m[r]);
        keep[r] = ratio(s.m[r], top[r]);
        s.m[r] = top[r];
        s.l[r] = __fmul_rn(s.l[r], keep[r]);
    }
#pragma unroll
    for (int i = 0; i < KT / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            p[i][j] = ratio(p[i][j], s.m[j >> 1]);
            s.l[j >> 1] = __fadd_rn(s.l[j >> 1], p[i][j]);
        }
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            s.acc[d][j] = __fmul_rn(s.acc[d][j], keep[j >> 1]);
#pragma unroll
    for (int j = 0; j < KT / 16; j++) {
        const uint32_t w[4] = {
            pack2<T>(p[2 * j][0], p[2 * j][1]), pack2<T>(p[2 * j][2], p[2 * j][3]),
            pack2<T>(p[2 * j + 1][0], p[2 * j + 1][1]), pack2<T>(p[2 * j + 1][2], p[2 * j + 1][3])};
#pragma unroll
        for (int d = 0; d < HD / 16; d++) {
            uint32_t r[4];
            ptx::ldmatrix_x4_trans(
                r, &sm->v[at][j * 16 + (lane & 7) + (lane >> 3 & 1) * 8][d * 16 + (lane >> 4) * 8]);
            const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
            mma(s.acc[2 * d], w, b0, T());
            mma(s.acc[2 * d + 1], w, b1, T());
        }
    }
}

/* Output of one query row from its folded values, sink and all. */
__device__ __forceinline__ float sink_keep(const attn_args &a, int head, float m, float &l)
{
    if (!a.sinks)
        return 1;
    const float s = a.sinks[head] * LOG2E, now = fmaxf(m, s), keep = ratio(m, now);
    l = __fadd_rn(__fmul_rn(l, keep), ratio(s, now));
    return keep;
}
__device__ __forceinline__ void out_put(const attn_args &a, int64_t row, int head, int d, float v)
{
    const int64_t at = row * a.ld_dst + (int64_t)head * a.head_dim + d;
    if (a.dst_bf16)
        store1((bf16 *)a.dst + at, v);
    else
        store1((float *)a.dst + at, v);
}

/* A block's query rows: index i is token i / group, head i % group of the group. */
struct Work {
    int row, n, kvh, first, group,
        split; /* split >= 0: that one alone, counted from the row's first */
    const int32_t *table;
};

template <class T, int HD, int W>
__device__ __forceinline__ void load_q(const attn_args &a, AttnSmem<T, HD, W> *sm, const Work &w)
{
    for (int i = (int)threadIdx.x; i < W * 16 * HD; i += W * 32) {
        const int qi = w.first + i / HD;
        const bool valid = qi < w.n * w.group;
        const int64_t at = (int64_t)(w.row + qi / w.group) * a.ld +
                           (int64_t)(w.kvh * w.group + qi % w.group) * HD + i % HD;
        store1(&sm->q[i / HD][i % HD], valid ? a.qkv[at] : 0.0f);
    }
}

/* All KV tiles of [lo, hi), lo's first; folds at every split's end. */
template <class T, int HD, int W>
__device__ __forceinline__ void attend(const attn_args &a, AttnSmem<T, HD, W> *sm, const Work &w,
                                       State<HD> &s, int lo, int hi, const int (&from)[2],
                                       const int (&pos)[2])
{
    constexpr int KT = AttnSmem<T, HD, W>::KT;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, first = lo / KT,
              end = (hi + KT - 1) / KT;
    for (int i = 0; i < HD / 2; i++)
        sm->o[warp][i][lane] = 0;
    for (int i = 0; i < 2; i++)
        s.run_m[i] = -INFINITY, s.run_l[i] = 0;
    split_start(s);
    load_kv(a, sm, 0, w.table, w.kvh, first * KT, lo, hi);
    ptx::cp_async_commit();
    for (int t = first; t < end; t++) {
        const int at = (t - first) & 1;
        if (t + 1 < end)
            load_kv(a, sm, at ^ 1, w.table, w.kvh, (t + 1) * KT, lo, hi);
        ptx::cp_async_commit();
        ptx::cp_async_wait<1>();
        __syncthreads();
        tile_step(a, sm, at, s, t * KT, from, pos);
        if ((t + 1) * KT % CU_SPLIT_TOKENS == 0 || t + 1 == end) {
            split_sum(s);
            if (w.split < 0) {
                split_fold(s, sm->o[warp], lane);
                split_start(s);
            }
        }
        __syncthreads();
    }
    ptx::cp_async_wait<0>();
}

/* The state of every row of the warp in order: what to do with value d of query row i is fn(i, d, value, m, l). */
template <class T, int HD, int W, class Fn>
__device__ __forceinline__ void each(const AttnSmem<T, HD, W> *sm, const State<HD> &s, bool folded,
                                     Fn fn)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < HD / 8; t++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            fn(warp * 16 + lane / 4 + (j >> 1) * 8, t * 8 + lane % 4 * 2 + (j & 1),
               folded ? sm->o[warp][t * 4 + j][lane] : s.acc[t][j], j >> 1);
}

template <class T, int HD, int W>
__device__ __forceinline__ void finish(const attn_args &a, const AttnSmem<T, HD, W> *sm,
                                       const Work &w, State<HD> &s)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float mul[2];
    for (int r = 0; r < 2; r++) {
        const int qi = w.first + warp * 16 + lane / 4 + r * 8;
        float l = s.run_l[r];
        const float keep =
            qi < w.n * w.group ? sink_keep(a, w.kvh * w.group + qi % w.group, s.run_m[r], l) : 0;
        mul[r] = keep / l;
    }
    each<T, HD, W>(sm, s, true, [&](int i, int d, float v, int r) {
        const int qi = w.first + i;
        if (qi < w.n * w.group)
            out_put(a, w.row + qi / w.group, w.kvh * w.group + qi % w.group, d,
                    __fmul_rn(v, mul[r]));
    });
}

template <class T, int HD> static __global__ void __launch_bounds__(128) attn_tile(attn_args a)
{
    typedef AttnSmem<T, HD, 4> S;
    DYN_SHARED(S, sm);
    if ((int)blockIdx.x >= a.count->n_tile)
        return;
    const cu_tile tile = a.tile[blockIdx.x];
    const int group = a.n_head / a.n_kv_head, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    Work w = {tile.row,
              tile.n,
              (int)blockIdx.y,
              (int)blockIdx.z * 64,
              group,
              -1,
              a.table + (int64_t)tile.seq * a.stride};
    if (w.first >= w.n * group)
        return;
    const int last_row = min(w.n, (w.first + 63) / group + 1) - 1,
              low = a.pos[tile.row + w.first / group];
    const int hi = a.pos[tile.row + last_row] + 1,
              lo = a.window > 0 && low >= a.window ? low - a.window + 1 : 0;
    int from[2], pos[2];
    for (int r = 0; r < 2; r++) {
        const int qi = min(w.first + warp * 16 + lane / 4 + r * 8, w.n * group - 1);
        pos[r] = a.pos[tile.row + qi / group];
        from[r] = a.window > 0 && pos[r] >= a.window ? pos[r] - a.window + 1 : 0;
    }
    State<HD> s;
    load_q(a, sm, w);
    attend(a, sm, w, s, lo, hi, from, pos);
    finish(a, sm, w, s);
}

/* Partial results of split z of the row's heads: [head][split_max][HD + 2], m and l last. */
template <class T, int HD>
__device__ __forceinline__ void part_put(const attn_args &a, AttnSmem<T, HD, 1> *sm, const Work &w,
                                         const State<HD> &s, int64_t dec)
{
    each<T, HD, 1>(sm, s, false, [&](int i, int d, float v, int r) {
        if (w.first + i >= w.group)
            return;
        float *p =
            a.ws +
            ((dec * a.n_head + w.kvh * w.group + w.first + i) * a.split_max + w.split) * (HD + 2);
        p[d] = v;
        if (d == 0)
            p[HD] = s.m[r], p[HD + 1] = s.l[r];
    });
}

template <class T, int HD>
__device__ __forceinline__ void combine(const attn_args &a, const Work &w, int64_t dec, int n_split)
{
    const int lane = (int)threadIdx.x;
    for (int i = 0; i < 16 && w.first + i < w.group; i++) {
        const int head = w.kvh * w.group + w.first + i;
        float m = -INFINITY, l = 0, o[(HD + 31) / 32];
#pragma unroll
        for (int k = 0; k < (HD + 31) / 32; k++)
            o[k] = 0;
        for (int z = 0; z < n_split; z++) {
            const float *p = a.ws + ((dec * a.n_head + head) * a.split_max + z) * (HD + 2);
            const float now = fmaxf(m, p[HD]), keep = ratio(m, now), take = ratio(p[HD], now);
            l = fold1(l, keep, p[HD + 1], take);
#pragma unroll
            for (int k = 0; k < (HD + 31) / 32; k++)
                o[k] = fold1(o[k], keep, k * 32 + lane < HD ? p[k * 32 + lane] : 0.0f, take);
            m = now;
        }
        const float keep = sink_keep(a, head, m, l), mul = keep / l;
#pragma unroll
        for (int k = 0; k < (HD + 31) / 32; k++)
            if (k * 32 + lane < HD)
                out_put(a, w.row, head, k * 32 + lane, __fmul_rn(o[k], mul));
    }
}

template <class T, int HD> static __global__ void __launch_bounds__(32) attn_decode(attn_args a)
{
    typedef AttnSmem<T, HD, 1> S;
    DYN_SHARED(S, sm);
    SHARED(int, last);
    const int64_t dec = blockIdx.x;
    if (dec >= a.count->n_dec)
        return;
    const int group = a.n_head / a.n_kv_head, per = (group + 15) / 16, row = a.dec[dec],
              pos = a.pos[row];
    const int from = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
    const int n_split = pos / CU_SPLIT_TOKENS - from / CU_SPLIT_TOKENS + 1, z = (int)blockIdx.z;
    if (z >= n_split)
        return;
    Work w = {row,
              1,
              (int)blockIdx.y / per,
              (int)blockIdx.y % per * 16,
              group,
              z,
              a.table + (int64_t)a.row_seq[row] * a.stride};
    const int s0 = (from / CU_SPLIT_TOKENS + z) * CU_SPLIT_TOKENS;
    const int f[2] = {from, from}, p[2] = {pos, pos};
    State<HD> s;
    if (n_split == 1)
        w.split = -1;
    load_q(a, sm, w);
    attend(a, sm, w, s, max(from, s0), min(pos + 1, s0 + CU_SPLIT_TOKENS), f, p);
    if (n_split == 1) {
        finish(a, sm, w, s);
        return;
    }
    part_put(a, sm, w, s, dec);
    int32_t *flag = a.flags + dec * gridDim.y + blockIdx.y;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(flag, 1) == n_split - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    combine<T, HD>(a, w, dec, n_split);
    if (threadIdx.x == 0)
        atomicExch(flag, 0);
}

/* ------------------------------------------------------------------ launch */

template <class T, int HD>
static int go(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    const attn_args r = attn_fill(a, s);
    const int group = a->n_head / a->kv->n_kv_head, per = (group + 15) / 16;
    if (s->dec_max > 0) {
        if (s->split_max > 1 &&
            (!a->ws || !a->flags || a->n_flag < cu_attn_flags(a->n_head, s->dec_max) ||
             a->ws_bytes < cu_attn_ws(a->n_head, HD, s->dec_max, s->split_max)))
            return CU_BAD;
        launch_cfg c = {
            dim3((unsigned)s->dec_max, (unsigned)(a->kv->n_kv_head * per), (unsigned)s->split_max),
            dim3(32),
            sizeof(AttnSmem<T, HD, 1>),
            (cudaStream_t)st,
            0,
            false,
            false};
        cudaError_t e = launch(c, attn_decode<T, HD>, r);
        if (e != cudaSuccess)
            return launched(e);
    }
    if (s->tile_max <= 0)
        return 0;
    launch_cfg c = {dim3((unsigned)s->tile_max, (unsigned)a->kv->n_kv_head,
                         (unsigned)((CU_TILE_ROWS * group + 63) / 64)),
                    dim3(128),
                    sizeof(AttnSmem<T, HD, 4>),
                    (cudaStream_t)st,
                    0,
                    false,
                    false};
    return launched(launch(c, attn_tile<T, HD>, r));
}

template <class T> static int by_dim(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    switch (a->kv->head_dim) {
    case 16:
        return go<T, 16>(a, s, st);
    case 32:
        return go<T, 32>(a, s, st);
    case 64:
        return go<T, 64>(a, s, st);
    case 80:
        return go<T, 80>(a, s, st);
    case 96:
        return go<T, 96>(a, s, st);
    case 128:
        return go<T, 128>(a, s, st);
    case 256:
        return go<T, 256>(a, s, st);
    default:
        return cu_attn_any(a, s, st);
    }
}

extern "C" int cu_attn_mma(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    return a->kv->dt == CU_F16 ? by_dim<__half>(a, s, st) : by_dim<bf16>(a, s, st);
}
