/* Prefill attention on compute capability 9.0: wgmma m64n64k16, bf16 KV, head_dim 64 or 128, Q and the weights P rounded to
 * bf16, f32 sums (the asynchronous, warp-specialised form of flash attention: Shah et al. 2024).
 *
 * A block is 64 of a tile's (row, head) pairs and a KV head. One warp gathers pages, 64 tokens of K or V a tile, into a
 * ring of four tiles; one warpgroup multiplies. K lies as it is stored, which is K-major for S = Q K^T. V too: its rows are
 * tokens, so for O += P V it is operand B in MN-major order, transposed on reading; no copy turns it around. Rows of 64
 * columns are 128 bytes, swizzled as wgmma expects; head_dim 128 is two panels of 64 columns.
 *
 * Steps of 64 tokens begin at fixed positions and are folded in order, so a row's bits don't depend on its company; they
 * are not those of attn_mma.cu, which sums a step's output before it folds. Tokens that no row of a block sees are not
 * read. Bound: as attn_mma.cu. */
#include "cuda/attn.cuh"
#include "cuda/attn.h"
#include "cuda/ptx.cuh"

#define STEP    64
#define ROWS    64
#define RING    4 /* K and V of two steps */
#define LAG     2 /* tiles under way before one is handed on */
#define CONSUME 128
#define THREADS (CONSUME + 32)
#define PANEL   64 /* columns */

template <int D> struct wg_shared {
    bf16 q[ROWS * D], ring[RING][STEP * D]; /* panels of 64 rows; 1024-aligned */
    uint64_t full[RING], empty[RING];       /* a phase a use of the slot */
};

/* 16-byte chunk c of row r of a tile of 64 rows. */
__device__ __forceinline__ bf16 *chunk(bf16 *tile, int r, int c)
{
    return tile + c / 8 * (64 * PANEL) + r * PANEL + ((c % 8 ^ (r & 7)) << 3);
}

/* The block's rows of Q to shared memory as bf16; pairs that there are not become zeros. */
template <int D>
__device__ __forceinline__ void q_store(const attn_args &a, bf16 *q, const cu_tile &tile, int kvh,
                                        int base)
{
    for (int i = (int)threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
        const int r = i / (D / 8), c = i % (D / 8);
        const pre_row my = pre_at(a, tile, kvh, base + r);
        uint4 w = {0, 0, 0, 0};
        if (my.pos >= 0) {
            const float2 *x =
                (const float2 *)(a.qkv + my.row * a.ld + (int64_t)my.head * D + c * 8);
            w.x = pack2(x[0].x, x[0].y, bf16());
            w.y = pack2(x[1].x, x[1].y, bf16());
            w.z = pack2(x[2].x, x[2].y, bf16());
            w.w = pack2(x[3].x, x[3].y, bf16());
        }
        *(uint4 *)chunk(q, r, c) = w;
    }
}

/* The gathering warp: tile j is K (even) or V (odd) of step j / 2. */
template <int D>
__device__ __forceinline__ void gather(const attn_args &a, wg_shared<D> *sm, const int32_t *table,
                                       int kvh, int at, int lo, int hi)
{
    const int lane = (int)threadIdx.x % 32, n = ((hi - at) / STEP + 1) * 2;
    for (int j = 0; j < n; j++) {
        if (j >= RING)
            ptx::mbar_wait(&sm->empty[j % RING], (unsigned)(j / RING - 1) & 1);
#pragma unroll 4
        for (int i = lane; i < STEP * (D / 8); i += 32) {
            const int r = i / (D / 8), c = i % (D / 8), pos = at + j / 2 * STEP + r;
            const bool ok = pos >= lo && pos <= hi;
            const bf16 *src = (const bf16 *)a.pool;
            if (ok)
                src += attn_at(a, table[pos / PAGE], pos % PAGE, kvh, j % 2) + c * 8;
            ptx::cp_async16(chunk(sm->ring[j % RING], r, c), src, ok);
        }
        ptx::cp_async_commit();
        if (j < LAG)
            continue;
        ptx::cp_async_wait<LAG>();
        ptx::fence_async();
        ptx::mbar_arrive(&sm->full[(j - LAG) % RING]);
    }
    ptx::cp_async_wait<0>(); /* n is at least LAG */
    ptx::fence_async();
    for (int j = n - LAG; j < n; j++)
        ptx::mbar_arrive(&sm->full[j % RING]);
}

/* s = the 64 rows of Q times 64 tokens of K. */
template <int D>
__device__ __forceinline__ void scores(float (&s)[32], const bf16 *q, const bf16 *k)
{
    ptx::wgmma_hold(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        const int at = kk / 4 * (64 * PANEL) + kk % 4 * 16;
        ptx::wgmma_m64n64k16(s, ptx::wgmma_desc(q + at), ptx::wgmma_desc(k + at), kk > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_hold(s);
}

/* Scores of the step at position `at` to weights P; m, l: maximum and sum so far of the thread's two rows; keep: what
 * their output so far is multiplied with. */
__device__ __forceinline__ void weigh(float (&s)[32], uint32_t (&p)[STEP / 16][4], float (&m)[2],
                                      float (&l)[2], float (&keep)[2], const attn_args &a,
                                      const sight &see, int at)
{
    const bool cap = a.softcap > 0;
    const float k = cap ? __fmul_rn(__fdiv_rn(a.scale, a.softcap), 2 * LOG2E)
                        : __fmul_rn(a.scale, LOG2E),
                top = __fmul_rn(a.softcap, LOG2E);
    const int t = (int)threadIdx.x % 4;
    float max[2] = {-INFINITY, -INFINITY}, ref[2], sum[2] = {};
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int pos = at + i / 4 * 8 + t * 2 + (i & 1), r = i >> 1 & 1;
        const float x = cap ? capped(s[i], k, top) : __fmul_rn(s[i], k);
        s[i] = pos >= see.lo[r] && pos <= see.hi[r] ? x : -INFINITY;
        max[r] = fmaxf(max[r], s[i]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        max[r] = fmaxf(max[r], __shfl_xor_sync(0xffffffffu, max[r], 1));
        max[r] = fmaxf(max[r], __shfl_xor_sync(0xffffffffu, max[r], 2));
        const float old = m[r];
        m[r] = fmaxf(old, max[r]);
        ref[r] = m[r] == -INFINITY ? 0.0f : m[r]; /* nothing seen yet: weights and factor 0 */
        keep[r] = exp2f(__fsub_rn(old, ref[r]));
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        s[i] = exp2f(__fsub_rn(s[i], ref[i >> 1 & 1]));
        sum[i >> 1 & 1] = __fadd_rn(sum[i >> 1 & 1], s[i]);
    }
#pragma unroll
    for (int i = 0; i < 32; i += 2)
        p[i / 8][i / 2 % 4] = pack2(s[i], s[i + 1], bf16());
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(0xffffffffu, sum[r], 1));
        sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(0xffffffffu, sum[r], 2));
        l[r] = __fmaf_rn(l[r], keep[r], sum[r]);
    }
}

/* The multiplying warpgroup. */
template <int D>
__device__ __forceinline__ void multiply(const attn_args &a, wg_shared<D> *sm, const cu_tile &tile,
                                         int kvh, int base, int at, int hi)
{
    const int lane = (int)threadIdx.x % 32, first = base + (int)threadIdx.x / 32 * 16 + lane / 4;
    const int pos[2] = {pre_at(a, tile, kvh, first).pos, pre_at(a, tile, kvh, first + 8).pos};
    const sight see = {{first_of(pos[0], a.window), first_of(pos[1], a.window)}, {pos[0], pos[1]}};
    float o[D / PANEL][32] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    for (int j = 0; at <= hi; at += STEP, j += 2) {
        const int ks = j % RING, vs = ks + 1;
        const unsigned phase = (unsigned)(j / RING) & 1;
        float s[32] = {}, keep[2];
        uint32_t p[STEP / 16][4];
        ptx::mbar_wait(&sm->full[ks], phase);
        scores<D>(s, sm->q, sm->ring[ks]);
        if (lane == 0)
            ptx::mbar_arrive(&sm->empty[ks]);
        weigh(s, p, m, l, keep, a, see, at);
#pragma unroll
        for (int n = 0; n < D / PANEL; n++) {
#pragma unroll
            for (int i = 0; i < 32; i++)
                o[n][i] = __fmul_rn(o[n][i], keep[i >> 1 & 1]);
            ptx::wgmma_hold(o[n]);
        }
        ptx::mbar_wait(&sm->full[vs], phase);
        ptx::wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < STEP / 16; kk++)
#pragma unroll
            for (int n = 0; n < D / PANEL; n++)
                ptx::wgmma_m64n64k16_ra_bt(
                    o[n], p[kk], ptx::wgmma_desc(sm->ring[vs] + n * (64 * PANEL) + kk * 16 * PANEL),
                    1);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
#pragma unroll
        for (int n = 0; n < D / PANEL; n++)
            ptx::wgmma_hold(o[n]);
        if (lane == 0)
            ptx::mbar_arrive(&sm->empty[vs]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const pre_row my = pre_at(a, tile, kvh, first + r * 8);
        if (my.pos < 0)
            continue;
        const float inv = finish(m[r], l[r], a.sinks, my.head);
#pragma unroll
        for (int n = 0; n < D / PANEL; n++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                put2(a, my.row, my.head, n * PANEL + i * 8 + lane % 4 * 2,
                     scaled(o[n][i * 4 + 2 * r], inv), scaled(o[n][i * 4 + 2 * r + 1], inv));
    }
}

template <int D> static __global__ void __launch_bounds__(THREADS, 2) attn_wgmma(attn_args a)
{
    typedef wg_shared<D> shared;
    DYN_SHARED(shared, sm);
    const int group = a.n_head / a.n_kv_head, ti = (int)blockIdx.x / group, kvh = (int)blockIdx.y;
    if (ti >= a.count->n_tile)
        return;
    const cu_tile tile = a.tile[ti];
    const int base = (int)blockIdx.x % group * ROWS, n = tile.n * group;
    if (base >= n)
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; i++) {
            ptx::mbar_init(&sm->full[i], 32);
            ptx::mbar_init(&sm->empty[i], CONSUME / 32);
        }
        ptx::mbar_fence_init();
    }
    q_store<D>(a, sm->q, tile, kvh, base);
    ptx::fence_async();
    __syncthreads();
    const int lo = first_of(pre_at(a, tile, kvh, base).pos, a.window), at = lo / STEP * STEP;
    const int hi = pre_at(a, tile, kvh, min(base + ROWS, n) - 1).pos;
    if (threadIdx.x >= CONSUME)
        gather<D>(a, sm, a.table + (int64_t)tile.seq * a.stride, kvh, at, lo, hi);
    else
        multiply<D>(a, sm, tile, kvh, base, at, hi);
}

/* ------------------------------------------------------------------ launch */

template <int D> static int run(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    const int group = a->n_head / a->kv->n_kv_head;
    static_assert(CU_TILE_ROWS == ROWS, "a tile is at most `group` blocks");
    launch_cfg c = {dim3((unsigned)(s->tile_max * group), (unsigned)a->kv->n_kv_head),
                    dim3(THREADS),
                    sizeof(wg_shared<D>),
                    (cudaStream_t)st,
                    0,
                    false,
                    false};
    return launched(launch(c, attn_wgmma<D>, attn_fill(a, s)));
}

extern "C" int cu_attn_wgmma_takes(const struct cu_attn *a)
{
    const struct cu_kv *kv = a->kv;
    return kv->dt == CU_BF16 && (kv->head_dim == 64 || kv->head_dim == 128) &&
           (uintptr_t)kv->p % 16 == 0;
}

extern "C" int cu_attn_wgmma(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    if (!cu_attn_wgmma_takes(a))
        return CU_BAD;
    if (s->tile_max <= 0)
        return 0;
    return a->kv->head_dim == 64 ? run<64>(a, s, st) : run<128>(a, s, st);
}
