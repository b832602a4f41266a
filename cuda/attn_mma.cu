/* Attention on tensor cores (mma.sync m16n8k16): KV f16, bf16 or codes, head_dim a multiple of 16 up to 256 (tiles of bf16: up to
 * 512, where a block may have 152 KiB of shared memory), Q and the weights P rounded to the KV's dtype, f32 sums, softmax in
 * powers of two (flash attention, Dao 2023; split KV with the last block combining, Dao et al. 2023).
 *
 * One arithmetic for decode rows and prefill tiles, so that a row's bits depend on neither: KV goes in steps of 64 tokens
 * at fixed absolute positions. A step is reduced from nothing to a state (maximum, weight, output); the 4 steps of a split
 * of 256 are folded in order into the split's state, and the splits in order into the row's. Tokens that a row does not
 * see have weight 0 and change nothing. Tokens that no row of a block sees are not read (their block numbers may be 0).
 *
 *   decode:  block = (row, KV head x 16 query heads, split), 4 warps, each one step; the group's heads are the mma's rows
 *   prefill: block = 64 of a tile's (row, head) pairs, a KV head and up to 128 columns of V, 4 warps of 16 pairs
 * Codes are halves in shared memory, of what they say a power of two less; the scales go to the scores, and to the weights
 * behind their sum, so that both are of the size of the values.
 * Head sizes between 64, 128 and 256 are padded with zeros in shared memory only. Bound: 1e-4 NMSE (bf16), 1e-6 (f16). */
#include "cuda/attn.cuh"
#include "cuda/attn.h"
#include "cuda/ptx.cuh"

#define STEP    64
#define N_STEP  (CU_SPLIT_TOKENS / STEP)
#define WARPS   4
#define THREADS (WARPS * 32)

/* ---- the arithmetic that both kernels share ---- */

/* What a pool holds, and what is multiplied. */
struct kv_code {
}; /* int8, or e4m3 where attn_args.fp8 */
template <class S> struct kv_type {
    typedef S T;
    static const bool code = false;
};
template <> struct kv_type<kv_code> {
    typedef __half T;
    static const bool code = true;
};
/* Scales of the tokens of N steps: K's, then V's. */
template <bool CODE, int N> struct kv_scales {
};
template <int N> struct kv_scales<true, N> {
    float scale[N][2][STEP];
};

/* Two codes, the lower or upper ones of v, as halves: int8 / 128, e4m3 / 256. Exact. */
__device__ __forceinline__ uint32_t code_pair(uint32_t v, bool upper, bool fp8)
{
    if (fp8) { /* bytes on top; exponent and fraction one bit lower */
        const uint32_t w = __byte_perm(v, 0, upper ? 0x3424u : 0x1404u);
        return (w & 0x80008000u) | (w >> 1 & 0x3f803f80u);
    }
    union {
        uint32_t u;
        __half2 h;
    } x, mul, add;
    /* 1024 + 128 + code, whose low bits are the byte with its sign turned; / 128 - 9 */
    x.u = __byte_perm(v ^ 0x80808080u, 0x64646464u, upper ? 0x4342u : 0x4140u);
    mul.u = 0x20002000u;
    add.u = 0xc880c880u;
    x.h = __hfma2(x.h, mul.h, add.h);
    return x.u;
}
#define UNIT_I8 128.0f
#define UNIT_F8 256.0f

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

/* 16-byte chunk c of row r of a tile of rows of D values: XOR swizzle, ldmatrix without bank conflicts. */
template <int D, class T> __device__ __forceinline__ T *chunk(T *tile, int r, int c)
{
    return tile + r * D + ((c ^ (r & 7)) << 3);
}

/* s = the scores of 16 query rows against 16 tokens: two n-tiles, one chain over head_dim. q(kk) = fragment kk of Q. */
template <int D, class T, class Q>
__device__ __forceinline__ void qk(float (&s0)[4], float (&s1)[4], T *k, const Q &q)
{
    const int lane = (int)threadIdx.x % 32, mi = lane / 8, row = mi / 2 * 8 + lane % 8;
#pragma unroll(Q::unroll)
    for (int kk = 0; kk < D / 16; kk++) {
        uint32_t r[4], a[4];
        ptx::ldmatrix_x4(r, chunk<D>(k, row, kk * 2 + (mi & 1)));
        q.get(a, kk);
        const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
        mma(s0, a, b0, T());
        mma(s1, a, b1, T());
    }
}

/* o0, o1 += P of 16 tokens times columns [16 n, 16 n + 16) of V. */
template <int D, class T>
__device__ __forceinline__ void pv(float (&o0)[4], float (&o1)[4], const uint32_t (&p)[4], T *v,
                                   int n)
{
    const int lane = (int)threadIdx.x % 32, mi = lane / 8;
    uint32_t r[4];
    ptx::ldmatrix_x4_trans(r, chunk<D>(v, (mi & 1) * 8 + lane % 8, n * 2 + mi / 2));
    const uint32_t b0[2] = {r[0], r[1]}, b1[2] = {r[2], r[3]};
    mma(o0, p, b0, T());
    mma(o1, p, b1, T());
}

/* Scores of the step at position `at` to weights in P fragments; m and l of the step for the thread's two rows. */
template <class S>
__device__ __forceinline__ void soften(float (&s)[STEP / 8][4], uint32_t (&p)[STEP / 16][4],
                                       float (&m)[2], float (&l)[2], const attn_args &a,
                                       const sight &see, int at, const float (*scale)[STEP])
{
    typedef typename kv_type<S>::T T;
    const int t = (int)threadIdx.x % 4;
    if constexpr (kv_type<S>::code)
#pragma unroll
        for (int j = 0; j < STEP / 8; j++) {
            const float2 k = *(const float2 *)&scale[0][j * 8 + t * 2];
            s[j][0] = __fmul_rn(s[j][0], k.x), s[j][1] = __fmul_rn(s[j][1], k.y);
            s[j][2] = __fmul_rn(s[j][2], k.x), s[j][3] = __fmul_rn(s[j][3], k.y);
        }
    if (a.softcap > 0) {
        const float k = __fmul_rn(__fdiv_rn(a.scale, a.softcap), 2 * LOG2E),
                    cap = __fmul_rn(a.softcap, LOG2E);
#pragma unroll
        for (int j = 0; j < STEP / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[j][i] = capped(s[j][i], k, cap);
    } else {
        const float k = __fmul_rn(a.scale, LOG2E);
#pragma unroll
        for (int j = 0; j < STEP / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[j][i] = __fmul_rn(s[j][i], k);
    }
    m[0] = m[1] = -INFINITY;
#pragma unroll
    for (int j = 0; j < STEP / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int pos = at + j * 8 + t * 2 + (i & 1), r = i >> 1;
            s[j][i] = pos >= see.lo[r] && pos <= see.hi[r] ? s[j][i] : -INFINITY;
            m[r] = fmaxf(m[r], s[j][i]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        m[r] = fmaxf(m[r], __shfl_xor_sync(0xffffffffu, m[r], 1));
        m[r] = fmaxf(m[r], __shfl_xor_sync(0xffffffffu, m[r], 2));
        l[r] = 0;
    }
    const float ref[2] = {m[0] == -INFINITY ? 0.0f : m[0], m[1] == -INFINITY ? 0.0f : m[1]};
#pragma unroll
    for (int j = 0; j < STEP / 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[j][i] = exp2f(__fsub_rn(s[j][i], ref[i >> 1]));
            l[i >> 1] = __fadd_rn(l[i >> 1], s[j][i]);
        }
        if constexpr (kv_type<S>::code) {
            const float2 v = *(const float2 *)&scale[1][j * 8 + t * 2];
            s[j][0] = __fmul_rn(s[j][0], v.x), s[j][1] = __fmul_rn(s[j][1], v.y);
            s[j][2] = __fmul_rn(s[j][2], v.x), s[j][3] = __fmul_rn(s[j][3], v.y);
        }
        p[j / 2][(j & 1) * 2] = pack2(s[j][0], s[j][1], T());
        p[j / 2][(j & 1) * 2 + 1] = pack2(s[j][2], s[j][3], T());
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] = __fadd_rn(l[r], __shfl_xor_sync(0xffffffffu, l[r], 1));
        l[r] = __fadd_rn(l[r], __shfl_xor_sync(0xffffffffu, l[r], 2));
    }
}

/* Fragment kk of the thread's two query rows (NULL: no such row, zeros), rounded to T. */
template <class T>
__device__ __forceinline__ void q_load(uint32_t (&f)[4], const float *const (&row)[2], int kk,
                                       int head_dim)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = kk * 16 + (i >> 1) * 8 + (int)threadIdx.x % 4 * 2;
        float2 v = make_float2(0, 0);
        if (row[i & 1] && at < head_dim)
            v = *(const float2 *)(row[i & 1] + at);
        f[i] = pack2(v.x, v.y, T());
    }
}
template <int D> struct q_regs {
    static const int unroll = D / 16;
    uint32_t f[D / 16][4];
    __device__ __forceinline__ void get(uint32_t (&a)[4], int kk) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = f[kk][i];
    }
};
struct q_shared { /* the thread's own words: [fragment][4][THREADS] */
    static const int unroll = 2;
    const uint32_t *f;
    __device__ __forceinline__ void get(uint32_t (&a)[4], int kk) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = f[(kk * 4 + i) * THREADS + (int)threadIdx.x];
    }
};

/* The same as fetch() of codes; the caller's next barrier is its end. */
template <int D>
__device__ __forceinline__ void fetch_codes(const attn_args &a, __half *tile, const int32_t *table,
                                            int kvh, int v, int col, int at, int n, int lo, int hi,
                                            int me, int threads)
{
#pragma unroll 2
    for (int i = me; i < n * (D / 16); i += threads) {
        const int r = i / (D / 16), c = i % (D / 16), pos = at + r;
        uint4 w = {0, 0, 0, 0}, lo8, hi8;
        if (pos >= lo && pos <= hi && col + c * 16 < a.head_dim)
            w = *(const uint4 *)(code_at(a, table[pos / PAGE], pos % PAGE, kvh, v) + col + c * 16);
        lo8.x = code_pair(w.x, 0, a.fp8), lo8.y = code_pair(w.x, 1, a.fp8);
        lo8.z = code_pair(w.y, 0, a.fp8), lo8.w = code_pair(w.y, 1, a.fp8);
        hi8.x = code_pair(w.z, 0, a.fp8), hi8.y = code_pair(w.z, 1, a.fp8);
        hi8.z = code_pair(w.w, 0, a.fp8), hi8.w = code_pair(w.w, 1, a.fp8);
        *(uint4 *)chunk<D>(tile, r, 2 * c) = lo8;
        *(uint4 *)chunk<D>(tile, r, 2 * c + 1) = hi8;
    }
}

/* Scales of a step at position `at`; 0 for tokens outside [lo, hi]. */
__device__ __forceinline__ void fetch_scales(const attn_args &a, float (*scale)[STEP],
                                             const int32_t *table, int kvh, int at, int lo, int hi,
                                             int me, int threads)
{
    for (int i = me; i < 2 * STEP; i += threads) {
        const int pos = at + i % STEP;
        scale[i / STEP][i % STEP] =
            pos >= lo && pos <= hi
                ? __fmul_rn(code_scale(a, table[pos / PAGE], pos % PAGE, kvh, i / STEP),
                            a.fp8 ? UNIT_F8 : UNIT_I8)
                : 0;
    }
}

/* Begin to copy K (v = 0) or V (1) of `n` tokens from position `at` by `threads` threads; tokens outside [lo, hi] and
 * columns behind head_dim become zeros; col = the tile's first column. */
template <int D, class S>
__device__ __forceinline__ void fetch(const attn_args &a, typename kv_type<S>::T *tile,
                                      const int32_t *table, int kvh, int v, int col, int at, int n,
                                      int lo, int hi, int me, int threads)
{
    if constexpr (kv_type<S>::code) {
        fetch_codes<D>(a, tile, table, kvh, v, col, at, n, lo, hi, me, threads);
    } else {
        typedef typename kv_type<S>::T T;
#pragma unroll 1 /* more addresses at once cost registers that the sums need */
        for (int i = me; i < n * (D / 8); i += threads) {
            const int r = i / (D / 8), c = i % (D / 8), pos = at + r;
            const bool ok = pos >= lo && pos <= hi && col + c * 8 < a.head_dim;
            const T *src = (const T *)a.pool;
            if (ok)
                src += attn_at(a, table[pos / PAGE], pos % PAGE, kvh, v) + col + c * 8;
            ptx::cp_async16(chunk<D>(tile, r, c), src, ok);
        }
    }
}

/* ---- decode ---- */

#define RING 4 /* pages under way a warp */

template <int D, class S> struct dec_shared : kv_scales<kv_type<S>::code, WARPS> {
    typedef typename kv_type<S>::T T;
    union {
        T ring[WARPS][RING][PAGE * D];
        float o[WARPS][16][D]; /* outputs of the steps, when all pages are used up */
    };
    float m[WARPS][16], l[WARPS][16];
    int last;
};

/* Output, maximum and weight of the split: the warps' steps in order. */
template <int D, class S>
__device__ __forceinline__ float dec_fold(const dec_shared<D, S> *sm, int r, int d, float &m,
                                          float &l)
{
    float o = 0;
    m = -INFINITY;
    l = 0;
    for (int w = 0; w < WARPS; w++) {
        const fold f = fold_of(m, sm->m[w][r]);
        o = fold_do(o, sm->o[w][r][d], f);
        l = fold_do(l, sm->l[w][r], f);
        m = f.max;
    }
    return o;
}

/* One warp, one step: state to shared memory. */
template <int D, class S>
__device__ __forceinline__ void dec_step(const attn_args &a, dec_shared<D, S> *sm,
                                         const float *const (&q)[2], const int32_t *table, int kvh,
                                         int at, int lo, int hi)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    typedef typename kv_type<S>::T T;
    T(*ring)[PAGE * D] = sm->ring[warp];
    const float(*scale)[STEP] = nullptr;
    if constexpr (kv_type<S>::code) {
        fetch_scales(a, sm->scale[warp], table, kvh, at, lo, hi, lane, 32);
        scale = sm->scale[warp];
    }
    float o[D / 8][4] = {}, s[STEP / 8][4] = {}, m[2], l[2];
    uint32_t p[STEP / 16][4];
    for (int i = 0; i < RING; i++) {
        fetch<D, S>(a, ring[i], table, kvh, 0, 0, at + i * PAGE, PAGE, lo, hi, lane, 32);
        ptx::cp_async_commit();
    }
    q_regs<D> qf;
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
        q_load<T>(qf.f[kk], q, kk, a.head_dim);
#pragma unroll
    for (int i = 0; i < STEP / PAGE; i++) { /* V takes the slot that K has left */
        ptx::cp_async_wait<RING - 1>();
        __syncwarp();
        qk<D, T>(s[2 * i], s[2 * i + 1], ring[i], qf);
        __syncwarp();
        fetch<D, S>(a, ring[i], table, kvh, 1, 0, at + i * PAGE, PAGE, lo, hi, lane, 32);
        ptx::cp_async_commit();
    }
    soften<S>(s, p, m, l, a, {{lo, lo}, {hi, hi}}, at, scale);
#pragma unroll
    for (int i = 0; i < STEP / PAGE; i++) {
        ptx::cp_async_wait<RING - 1>();
        ptx::cp_async_commit();
        __syncwarp();
#pragma unroll
        for (int n = 0; n < D / 16; n++)
            pv<D, T>(o[2 * n], o[2 * n + 1], p[i], ring[i], n);
    }
    ptx::cp_async_wait<0>();
    __syncthreads(); /* the outputs overlay all warps' rings */
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            *(float2 *)&sm->o[warp][lane / 4 + r * 8][n * 8 + lane % 4 * 2] =
                make_float2(o[n][2 * r], o[n][2 * r + 1]);
    if (lane % 4 == 0)
        for (int r = 0; r < 2; r++) {
            sm->m[warp][lane / 4 + r * 8] = m[r];
            sm->l[warp][lane / 4 + r * 8] = l[r];
        }
    __syncthreads();
}

template <int D, class S> static __global__ void __launch_bounds__(THREADS) attn_decode(attn_args a)
{
    typedef dec_shared<D, S> shared;
    DYN_SHARED(shared, sm);
    const int di = (int)blockIdx.x, split = (int)blockIdx.z, group = a.n_head / a.n_kv_head,
              per = (group + 15) / 16;
    if (di >= a.count->n_dec)
        return;
    const int64_t row = a.dec[di];
    const int pos = a.pos[row], lo = first_of(pos, a.window);
    const int split_lo = lo / CU_SPLIT_TOKENS, n_split = pos / CU_SPLIT_TOKENS - split_lo + 1;
    if (split < split_lo || split >= split_lo + n_split)
        return;
    const int kvh = (int)blockIdx.y / per, head0 = kvh * group + (int)blockIdx.y % per * 16;
    const int heads = min(16, (kvh + 1) * group - head0), warp = (int)threadIdx.x / 32,
              g = (int)threadIdx.x % 32 / 4;
    const float *q0 = a.qkv + row * a.ld + (int64_t)head0 * a.head_dim;
    const float *q[2] = {g < heads ? q0 + (int64_t)g * a.head_dim : nullptr,
                         g + 8 < heads ? q0 + (int64_t)(g + 8) * a.head_dim : nullptr};
    dec_step<D, S>(a, sm, q, a.table + (int64_t)a.row_seq[row] * a.stride, kvh,
                   split * CU_SPLIT_TOKENS + warp * STEP, lo, pos);
    /* [row][head][split of split_max][head_dim + 2] */
    const int64_t part = a.head_dim + 2;
    float *ws = a.ws + ((int64_t)di * a.n_head + head0) * a.split_max * part;
    for (int i = (int)threadIdx.x; i < heads * a.head_dim / 2; i += THREADS) {
        const int r = i / (a.head_dim / 2), d = i % (a.head_dim / 2) * 2;
        float m, l;
        const float x = dec_fold(sm, r, d, m, l), y = dec_fold(sm, r, d + 1, m, l);
        if (n_split == 1) {
            const float inv = finish(m, l, a.sinks, head0 + r);
            put2(a, row, head0 + r, d, scaled(x, inv), scaled(y, inv));
            continue;
        }
        float *to = ws + ((int64_t)r * a.split_max + split) * part;
        *(float2 *)(to + d) = make_float2(x, y);
        if (d == 0)
            *(float2 *)(to + a.head_dim) = make_float2(m, l);
    }
    if (n_split == 1)
        return;
    __threadfence();
    __syncthreads();
    int32_t *flag = a.flags + (int64_t)di * a.n_head + blockIdx.y;
    if (threadIdx.x == 0)
        sm->last = atomicAdd(flag, 1) == n_split - 1;
    __syncthreads();
    if (!sm->last)
        return;
    __threadfence();
    for (int i = (int)threadIdx.x; i < heads * a.head_dim / 2; i += THREADS) {
        const int r = i / (a.head_dim / 2), d = i % (a.head_dim / 2) * 2;
        float m = -INFINITY, l = 0, x = 0, y = 0;
        for (int s = split_lo; s < split_lo + n_split; s++) {
            const float *from = ws + ((int64_t)r * a.split_max + s) * part;
            const float2 ml = *(const float2 *)(from + a.head_dim), o = *(const float2 *)(from + d);
            const fold f = fold_of(m, ml.x);
            x = fold_do(x, o.x, f);
            y = fold_do(y, o.y, f);
            l = fold_do(l, ml.y, f);
            m = f.max;
        }
        const float inv = finish(m, l, a.sinks, head0 + r);
        put2(a, row, head0 + r, d, scaled(x, inv), scaled(y, inv));
    }
    if (threadIdx.x == 0)
        atomicExch(flag, 0);
}

/* ---- prefill ---- */

/* Q stays in registers where the output leaves room for it. */
template <int D> struct pre_q {
    static const int words = D > 64 ? D / 4 : 0; /* of shared memory a thread */
    static const int cols =
        D > 256   ? 64 /* shared memory is K's and Q's */
        : D > 128 ? 128
                  : D; /* of V and the output a block: more do not fit its registers */
};
template <int D, class S> struct pre_shared : kv_scales<kv_type<S>::code, 1> {
    typedef typename kv_type<S>::T T;
    static const int C = pre_q<D>::cols;
    T k[STEP * D], v[STEP * C];
    float o[C / 2][THREADS]; /* the row's output so far: the thread's own values */
    uint32_t q[pre_q<D>::words ? pre_q<D>::words : 1][THREADS]; /* the thread's own fragments */
};

/* Everything of a step behind its scores: weights, then V by pairs of n-tiles, each folded at once. */
template <int D, class T>
__device__ __forceinline__ void pre_fold(float (&o)[pre_q<D>::cols / 8][4],
                                         const uint32_t (&p)[STEP / 16][4], const fold (&f)[2],
                                         T *v)
{
    constexpr int C = pre_q<D>::cols;
#pragma unroll
    for (int n = 0; n < C / 16; n++) {
        float t0[4] = {}, t1[4] = {};
#pragma unroll
        for (int j = 0; j < STEP / 16; j++)
            pv<C, T>(t0, t1, p[j], v + j * 16 * C, n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            o[2 * n][i] = fold_do(o[2 * n][i], t0[i], f[i >> 1]);
            o[2 * n + 1][i] = fold_do(o[2 * n + 1][i], t1[i], f[i >> 1]);
        }
    }
}

/* The split's state into the row's, then from nothing again. */
template <int D, class S>
__device__ __forceinline__ void pre_split(pre_shared<D, S> *sm, float (&o)[pre_q<D>::cols / 8][4],
                                          float (&m)[2], float (&l)[2], float (&m_all)[2],
                                          float (&l_all)[2])
{
    fold f[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f[r] = fold_of(m_all[r], m[r]);
        l_all[r] = fold_do(l_all[r], l[r], f[r]);
        m_all[r] = f[r].max;
        m[r] = -INFINITY;
        l[r] = 0;
    }
#pragma unroll
    for (int n = 0; n < pre_q<D>::cols / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *to = &sm->o[n * 4 + i][threadIdx.x];
            *to = fold_do(*to, o[n][i], f[i >> 1]);
            o[n][i] = 0;
        }
        if (n % 2)
            __syncwarp(); /* keeps the compiler from loading all of them at once: registers */
    }
}

template <int D, class S, class Q>
__device__ __forceinline__ void pre_walk(const attn_args &a, pre_shared<D, S> *sm, const Q &q,
                                         const cu_tile &tile, int kvh, int first, int lo, int hi)
{
    typedef typename kv_type<S>::T T;
    constexpr int C = pre_q<D>::cols;
    const int col = (int)blockIdx.z * C;
    const float(*scale)[STEP] = nullptr;
    const int32_t *table = a.table + (int64_t)tile.seq * a.stride;
    const int me = (int)threadIdx.x;
    const int pos[2] = {pre_at(a, tile, kvh, first).pos, pre_at(a, tile, kvh, first + 8).pos};
    const sight see = {{first_of(pos[0], a.window), first_of(pos[1], a.window)}, {pos[0], pos[1]}};
    float o[C / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {},
                m_all[2] = {-INFINITY, -INFINITY}, l_all[2] = {};
#pragma unroll
    for (int i = 0; i < C / 2; i++)
        sm->o[i][me] = 0;
    int at = lo / STEP * STEP;
    fetch<D, S>(a, sm->k, table, kvh, 0, 0, at, STEP, lo, hi, me, THREADS);
    ptx::cp_async_commit();
    for (; at <= hi; at += STEP) {
        fetch<C, S>(a, sm->v, table, kvh, 1, col, at, STEP, lo, hi, me, THREADS);
        ptx::cp_async_commit();
        if constexpr (kv_type<S>::code) {
            fetch_scales(a, sm->scale[0], table, kvh, at, lo, hi, me, THREADS);
            scale = sm->scale[0];
        }
        ptx::cp_async_wait<1>();
        __syncthreads();
        float s[STEP / 8][4] = {}, ms[2], ls[2];
        uint32_t p[STEP / 16][4];
#pragma unroll
        for (int j = 0; j < STEP / 16; j++)
            qk<D, T>(s[2 * j], s[2 * j + 1], sm->k + j * 16 * D, q);
        __syncthreads();
        if (at + STEP <= hi)
            fetch<D, S>(a, sm->k, table, kvh, 0, 0, at + STEP, STEP, lo, hi, me, THREADS);
        ptx::cp_async_commit();
        soften<S>(s, p, ms, ls, a, see, at, scale);
        fold f[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f[r] = fold_of(m[r], ms[r]);
            l[r] = fold_do(l[r], ls[r], f[r]);
            m[r] = f[r].max;
        }
        ptx::cp_async_wait<1>();
        __syncthreads();
        pre_fold<D, T>(o, p, f, sm->v);
        if ((at + STEP) % CU_SPLIT_TOKENS == 0 || at + STEP > hi)
            pre_split(sm, o, m, l, m_all, l_all);
        __syncthreads();
    }
    ptx::cp_async_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const pre_row my = pre_at(a, tile, kvh, first + r * 8);
        if (my.pos < 0)
            continue;
        const float inv = finish(m_all[r], l_all[r], a.sinks, my.head);
        for (int n = 0; n < pre_q<D>::cols / 8; n++) {
            const int d = col + n * 8 + me % 4 * 2;
            if (d < a.head_dim)
                put2(a, my.row, my.head, d, scaled(sm->o[n * 4 + 2 * r][me], inv),
                     scaled(sm->o[n * 4 + 2 * r + 1][me], inv));
        }
    }
}

template <int D, class S>
static __global__ void __launch_bounds__(THREADS, 2) attn_prefill(attn_args a)
{
    typedef typename kv_type<S>::T T;
    typedef pre_shared<D, S> shared;
    DYN_SHARED(shared, sm);
    const int group = a.n_head / a.n_kv_head, ti = (int)blockIdx.x / group, kvh = (int)blockIdx.y;
    if (ti >= a.count->n_tile)
        return;
    const cu_tile tile = a.tile[ti];
    const int base = (int)blockIdx.x % group * (WARPS * 16), n = tile.n * group;
    if (base >= n || (int)blockIdx.z * pre_q<D>::cols >= a.head_dim)
        return;
    const int i = base + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    const pre_row my[2] = {pre_at(a, tile, kvh, i), pre_at(a, tile, kvh, i + 8)};
    const int lo = first_of(pre_at(a, tile, kvh, base).pos, a.window);
    const int hi = pre_at(a, tile, kvh, min(base + WARPS * 16, n) - 1).pos;
    const float *qp[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        qp[r] =
            my[r].pos >= 0 ? a.qkv + my[r].row * a.ld + (int64_t)my[r].head * a.head_dim : nullptr;
    if constexpr (pre_q<D>::words > 0) {
        for (int kk = 0; kk < D / 16; kk++) {
            uint32_t f[4];
            q_load<T>(f, qp, kk, a.head_dim);
            for (int j = 0; j < 4; j++)
                sm->q[kk * 4 + j][threadIdx.x] = f[j];
        }
        pre_walk<D, S>(a, sm, q_shared{&sm->q[0][0]}, tile, kvh, i, lo, hi);
    } else {
        q_regs<D> q;
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
            q_load<T>(q.f[kk], qp, kk, a.head_dim);
        pre_walk<D, S>(a, sm, q, tile, kvh, i, lo, hi);
    }
}

/* ------------------------------------------------------------------ launch */

/* Rows of tiles. */
template <int D, class T>
static int run_tiles(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    const int group = a->n_head / a->kv->n_kv_head;
    /* a tile has at most CU_TILE_ROWS * group pairs: `group` blocks of 64 */
    static_assert(CU_TILE_ROWS == WARPS * 16, "blocks a tile");
    launch_cfg c = {dim3((unsigned)(s->tile_max * group), (unsigned)a->kv->n_kv_head,
                         (unsigned)(D / pre_q<D>::cols)),
                    dim3(THREADS),
                    sizeof(pre_shared<D, T>),
                    (cudaStream_t)st,
                    0,
                    false,
                    false};
    return s->tile_max == 0 ? 0 : launched(launch(c, attn_prefill<D, T>, attn_fill(a, s)));
}

template <int D, class T>
static int run(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    const int group = a->n_head / a->kv->n_kv_head;
    const attn_args r = attn_fill(a, s);
    if (s->dec_max > 0) {
        if (s->split_max < 1 || s->split_max > 65535 || !s->dec)
            return CU_BAD;
        if (s->split_max > 1 &&
            (!a->ws || !a->flags || a->n_flag < cu_attn_flags(a->n_head, s->dec_max) ||
             a->ws_bytes < cu_attn_ws(a->n_head, a->kv->head_dim, s->dec_max, s->split_max)))
            return CU_BAD;
        launch_cfg c = {dim3((unsigned)s->dec_max,
                             (unsigned)(a->kv->n_kv_head * ((group + 15) / 16)),
                             (unsigned)s->split_max),
                        dim3(THREADS),
                        sizeof(dec_shared<D, T>),
                        (cudaStream_t)st,
                        0,
                        false,
                        false};
        cudaError_t e = launch(c, attn_decode<D, T>, r);
        if (e != cudaSuccess)
            return launched(e);
    }
    return run_tiles<D, T>(a, s, st);
}

template <class T>
static int run_dim(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    const int d = a->kv->head_dim;
    return d <= 64    ? run<64, T>(a, s, st)
           : d <= 128 ? run<128, T>(a, s, st)
                      : run<256, T>(a, s, st);
}

extern "C" int cu_attn_mma(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    if (a->kv->head_dim > 256) /* an image's, which never decodes */
        return a->kv->dt == CU_BF16 && s->dec_max == 0 ? run_tiles<512, bf16>(a, s, st) : CU_BAD;
    if (cu_is_code(a->kv->dt))
        return run_dim<kv_code>(a, s, st);
    return a->kv->dt == CU_F16 ? run_dim<__half>(a, s, st) : run_dim<bf16>(a, s, st);
}
