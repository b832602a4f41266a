/* cu_state_scan: a warp a channel (four a block), lane l holds values l + 32 i of its state, sums go over a lane's values
 * and then over the lanes. cu_state_delta: a block a head and 32 columns of values: column e = t % 32, keys
 * t / 32 + 4 j; the strip of the state lies in shared memory while the sequence's rows are done (Yang et al. 2024), the
 * four parts of a sum are added in order. f32 arithmetic; bound: the reference to 1e-10 NMSE. */
#include "cuda/state.cuh"

#define THREADS 128
#define WARPS   4
#define LANES   (CU_KEY_MAX / 32) /* values of a state a lane holds, at most */
#define COLS    32
#define PARTS   4

static __global__ void __launch_bounds__(THREADS) scan_kernel(struct cu_state_scan a, seqs q)
{
    const span s = span_of(q, a.at);
    const int64_t ch = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32, n = a.n_state;
    if (ch >= (int64_t)a.n_head * a.head_dim || s.from == s.to)
        return;
    const int h = (int)(ch / a.head_dim);
    const int64_t group = (int64_t)(h / a.per_group) * n;
    const float skip = a.skip ? a.skip[h] : 0, bias = a.dt_bias ? a.dt_bias[h] : 0;
    float v[LANES], rate[LANES];
#pragma unroll
    for (int i = 0; i < LANES; i++) {
        const int j = lane + 32 * i;
        v[i] = j < n && s.src ? s.src[ch * n + j] : 0;
        rate[i] = j < n ? a.a[a.wide ? (int64_t)h * n + j : h] : 0;
    }
    for (int64_t r = s.from; r < s.to; r++) {
        const float *b = row(a.b, r) + group, *c = row(a.c, r) + group;
        const float x = row(a.x, r)[ch];
        const float t =
            fminf(fmaxf(softplus(__fadd_rn(row(a.dt, r)[h], bias)), a.dt_min), a.dt_max);
        const float add = __fmul_rn(t, x);
        float y = 0;
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            const int j = lane + 32 * i;
            if (j < n) {
                v[i] = __fmaf_rn(expf(__fmul_rn(t, rate[i])), v[i], __fmul_rn(add, b[j]));
                y = __fmaf_rn(v[i], c[j], y);
            }
        }
        y = warp_sum(y);
        if (lane == 0)
            ((float *)a.dst.p)[r * a.dst.ld + ch] = __fmaf_rn(skip, x, y);
    }
#pragma unroll
    for (int i = 0; i < LANES; i++)
        if (lane + 32 * i < n)
            s.dst[ch * n + lane + 32 * i] = v[i];
}

/* Keys, queries and decays of row r into shared memory; the same in every block of the head. */
__device__ __forceinline__ void delta_prepare(const struct cu_state_delta &a, int64_t r, int h,
                                              float *q, float *k, float *decay, float *part)
{
    const int kh = a.cycle ? h % a.n_key_head : h / (a.n_head / a.n_key_head);
    const float *rq = row(a.q, r) + (int64_t)kh * a.dk, *rk = row(a.k, r) + (int64_t)kh * a.dk;
    float sq = 0, sk = 0, nq = a.scale, nk = 1;
    for (int j = threadIdx.x; j < a.dk; j += THREADS) {
        sq = __fmaf_rn(rq[j], rq[j], sq);
        sk = __fmaf_rn(rk[j], rk[j], sk);
    }
    sq = block_sum<WARPS>(sq, part);
    sk = block_sum<WARPS>(sk, part);
    if (a.eps > 0) {
        nq = __fmul_rn(a.scale, 1.0f / sqrtf(__fadd_rn(sq, a.eps)));
        nk = 1.0f / sqrtf(__fadd_rn(sk, a.eps));
    }
    for (int j = threadIdx.x; j < a.dk; j += THREADS) {
        const int at = a.wide ? h * a.dk + j : h;
        const float g = __fadd_rn(row(a.g, r)[at], a.g_bias ? a.g_bias[at] : 0.0f);
        q[j] = __fmul_rn(rq[j], nq);
        k[j] = __fmul_rn(rk[j], nk);
        decay[j] = expf(__fmul_rn(a.a[h], softplus(g)));
    }
    __syncthreads();
}

/* The four parts of column e's sum, in order. */
__device__ __forceinline__ float parts_sum(float v, float (*all)[COLS], int e, int p)
{
    __syncthreads();
    all[p][e] = v;
    __syncthreads();
    return __fadd_rn(__fadd_rn(all[0][e], all[1][e]), __fadd_rn(all[2][e], all[3][e]));
}

static __global__ void __launch_bounds__(THREADS)
    delta_kernel(struct cu_state_delta a, seqs sq, int strips)
{
    SHARED(float, st, [CU_KEY_MAX][COLS]);
    SHARED(float, q, [CU_KEY_MAX]);
    SHARED(float, k, [CU_KEY_MAX]);
    SHARED(float, decay, [CU_KEY_MAX]);
    SHARED(float, all, [PARTS][COLS]);
    SHARED(float, part, [WARPS]);
    const span s = span_of(sq, a.at);
    const int h = (int)(blockIdx.x / strips), e = threadIdx.x % COLS, p = threadIdx.x / COLS;
    const int64_t col = (int64_t)(blockIdx.x % strips) * COLS + e;
    const bool on = col < a.dv;
    const int64_t head = (int64_t)h * a.dk * a.dv + col;
    if (s.from == s.to)
        return;
    for (int j = p; j < a.dk; j += PARTS)
        st[j][e] = on && s.src ? s.src[head + (int64_t)j * a.dv] : 0;
    for (int64_t r = s.from; r < s.to; r++) {
        __syncthreads();
        delta_prepare(a, r, h, q, k, decay, part);
        const float beta = sigmoid(row(a.beta, r)[h]);
        const float v = on ? row(a.v, r)[(int64_t)h * a.dv + col] : 0;
        float mem = 0, y = 0;
        for (int j = p; j < a.dk; j += PARTS)
            mem = __fmaf_rn(__fmul_rn(st[j][e], decay[j]), k[j], mem);
        mem = parts_sum(mem, all, e, p);
        const float more = __fmul_rn(beta, __fsub_rn(v, mem));
        for (int j = p; j < a.dk; j += PARTS) {
            st[j][e] = __fmaf_rn(k[j], more, __fmul_rn(st[j][e], decay[j]));
            y = __fmaf_rn(st[j][e], q[j], y);
        }
        y = parts_sum(y, all, e, p);
        if (on && p == 0)
            ((float *)a.dst.p)[r * a.dst.ld + (int64_t)h * a.dv + col] = y;
    }
    for (int j = p; j < a.dk; j += PARTS)
        if (on)
            s.dst[head + (int64_t)j * a.dv] = st[j][e];
}

/* ------------------------------------------------------------------ launch */

extern "C" int cu_state_scan(const struct cu_state_scan *a, const struct cu_step *s, cu_stream st)
{
    const int64_t d = (int64_t)a->n_head * a->head_dim;
    if (!at_ok(s, a->at) || !is_f32(a->x) || !is_f32(a->dst) || !is_f32(a->dt) || !is_f32(a->b) ||
        !is_f32(a->c) || !a->a || a->x.cols != d || a->dst.cols != d || a->dt.cols != a->n_head ||
        a->n_state < 1 || a->n_state > CU_KEY_MAX || a->per_group < 1 ||
        a->b.cols != a->n_head / a->per_group * a->n_state || a->c.cols != a->b.cols)
        return CU_BAD;
    if (s->seq_max <= 0)
        return 0;
    return launched(
        launch(cfg_of(s, (d + WARPS - 1) / WARPS, THREADS, st), scan_kernel, *a, seqs_of(s)));
}

extern "C" int cu_state_delta(const struct cu_state_delta *a, const struct cu_step *s, cu_stream st)
{
    const int strips = (a->dv + COLS - 1) / COLS;
    if (!at_ok(s, a->at) || !is_f32(a->q) || !is_f32(a->k) || !is_f32(a->v) || !is_f32(a->dst) ||
        !is_f32(a->g) || !is_f32(a->beta) || !a->a || a->dk < 1 || a->dk > CU_KEY_MAX ||
        a->n_key_head < 1 || a->n_head % a->n_key_head || a->q.cols != a->n_key_head * a->dk ||
        a->k.cols != a->q.cols || a->v.cols != a->n_head * a->dv || a->dst.cols != a->v.cols ||
        a->beta.cols != a->n_head || a->g.cols != (a->wide ? a->n_head * a->dk : a->n_head))
        return CU_BAD;
    if (s->seq_max <= 0)
        return 0;
    return launched(launch(cfg_of(s, (int64_t)a->n_head * strips, THREADS, st), delta_kernel, *a,
                           seqs_of(s), strips));
}
