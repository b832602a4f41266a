/* cu_pack_kv, cu_pad_heads: rows of K and V as the paged attention kernels read them, so that they attend between segments
 * too. cu_attend_bias: attention with a bias in f32, a block a (row, head): the softmax of a whole segment in one pass
 * over its scores. Bound: 1e-11 NMSE of the reference. */
#include "cuda/image.cuh"

#define THREADS 128
#define WARPS   (THREADS / 32)

struct pack_args {
    cu_mat k, v;
    void *pool;
    const int32_t *start, *block;
    int32_t n_seg, n_head, from, to; /* head_dim of the rows and of the pool */
    int64_t n;
};

/* A warp a row: K then V of all its heads, N values a lane at a time. */
template <class T, int N> static __global__ void __launch_bounds__(ROW_THREADS) pack_kv(pack_args a)
{
    const unsigned to = (unsigned)a.to / N, half = (unsigned)a.n_head * to;
    EACH_ROW(row, a.n)
    {
        const int s = seg_of(a.start, a.n_seg, row), at = (int)(row - a.start[s]);
        const int64_t block = a.block[s] + at / CU_BLOCK_TOKENS;
        T *dst = (T *)a.pool + block * 2 * a.n_head * CU_BLOCK_TOKENS * a.to +
                 at % CU_BLOCK_TOKENS * a.to;
        for (unsigned i = threadIdx.x % 32; i < 2 * half; i += 32) {
            const unsigned head = i / to, k = i % to * N; /* V's heads lie behind K's */
            const float *src = i < half
                                   ? row_at<const float>(a.k, row) + head * a.from
                                   : row_at<const float>(a.v, row) + (head - a.n_head) * a.from;
            float v[N] = {};
            if ((int)k < a.from)
                load_n(v, src + k);
            store_n(dst + (int64_t)head * CU_BLOCK_TOKENS * a.to + k, v);
        }
    }
}

template <class T, int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    pad_heads(cu_mat dst, cu_mat src, int64_t n, int n_head, int from, int to)
{
    EACH_ROW(row, n)
    {
        EACH_COL(i, n_head * to, N)
        {
            const int h = i / to, k = i % to;
            float v[N] = {};
            if (k < from)
                load_n(v, row_at<const T>(src, row) + h * from + k);
            store_n(row_at<T>(dst, row) + i, v);
        }
    }
}

struct bias_args {
    cu_mat dst, q, k, v, bias;
    const int32_t *q_start, *k_start;
    int32_t n_seg, group, head_dim, causal, cols, vec, window;
    float scale;
};

/* q * k, summed from 0 up: four values at a time change no bit. */
__device__ __forceinline__ float dot(const float *q, const float *k, int d, int vec)
{
    float v = 0, x[4], y[4];
    for (int i = 0; vec && i < d; i += 4) {
        load_n(x, q + i);
        load_n(y, k + i);
        for (int e = 0; e < 4; e++)
            v = __fmaf_rn(x[e], y[e], v);
    }
    for (int i = 0; !vec && i < d; i++)
        v = __fmaf_rn(q[i], k[i], v);
    return v;
}

template <class T> static __global__ void __launch_bounds__(THREADS) attend_bias(bias_args a)
{
    DYN_SHARED(float, p); /* [keys] */
    SHARED(float, red, [WARPS]);
    const int64_t row = blockIdx.x;
    const int head = (int)blockIdx.y, t = (int)threadIdx.x, d = a.head_dim, hk = head / a.group * d;
    const int s = seg_of(a.q_start, a.n_seg, row), at = (int)(row - a.q_start[s]);
    const int64_t k0 = a.k_start[s];
    const int len = (int)(a.k_start[s + 1] - k0);
    const int lo = a.window && at > a.window ? at - a.window : 0;
    const int n = a.causal ? at + 1 : a.window && at + a.window + 1 < len ? at + a.window + 1 : len;
    const float *q = row_at<const float>(a.q, row) + head * d;
    const float *bias =
        a.bias.p ? row_at<const float>(a.bias, head) + (int64_t)at * a.cols : nullptr;
    float top = -INFINITY, sum = 0;
    for (int j = lo + t; j < n; j += THREADS) {
        p[j] = __fmaf_rn(dot(q, row_at<const float>(a.k, k0 + j) + hk, d, a.vec), a.scale,
                         bias ? bias[j] : 0.0f);
        top = fmaxf(top, p[j]);
    }
    top = warp_max(top);
    if (t % 32 == 0)
        red[t / 32] = top;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        top = fmaxf(top, red[i]);
    for (int j = lo + t; j < n; j += THREADS) {
        p[j] = expf(p[j] - top);
        sum = __fadd_rn(sum, p[j]);
    }
    const float inv = __frcp_rn(block_sum<WARPS>(sum, red));
    for (int i = t; i < d; i += THREADS) {
        float v = 0;
        for (int j = lo; j < n; j++)
            v = __fmaf_rn(p[j], (row_at<const float>(a.v, k0 + j) + hk)[i], v);
        store1(row_at<T>(a.dst, row) + head * d + i, __fmul_rn(v, inv));
    }
}

/* ------------------------------------------------------------------ launch */

#define KEYS_MAX 24576 /* scores in shared memory */

extern "C" int cu_pack_kv(const struct cu_pack_kv *a, cu_stream st)
{
    const struct cu_kv *kv = a->kv;
    const int64_t cols = (int64_t)kv->n_kv_head * a->head_dim;
    if (kv->n_kv_head < 1 || !mat_ok(&a->k) || !mat_ok(&a->v) || a->k.dt != CU_F32 ||
        a->v.dt != CU_F32 || a->k.cols != cols || a->v.cols != cols || !layout_ok(a->l) ||
        !a->block || !kv->p || a->head_dim > kv->head_dim || kv->n_layer != 1 ||
        a->l->n_row > 0x7fffffff)
        return CU_BAD;
    if (a->l->n_row == 0)
        return 0;
    const pack_args p = {a->k,        a->v,          kv->p,       a->l->start,  a->block,
                         a->l->n_seg, kv->n_kv_head, a->head_dim, kv->head_dim, a->l->n_row};
    const bool four = rows_vec4(a->head_dim, {&a->k, &a->v}) && kv->head_dim % 4 == 0 &&
                      (uintptr_t)kv->p % 16 == 0;
    auto k = kv->dt == CU_F32 ? (four ? pack_kv<float, 4> : pack_kv<float, 1>)
                              : (four ? pack_kv<bf16, 4> : pack_kv<bf16, 1>);
    return launched(launch(rows_cfg(a->l->n_row, 1, st), k, p));
}

extern "C" int cu_pad_heads(const struct cu_pad_heads *a, cu_stream st)
{
    if (!mat_ok(&a->dst) || !mat_ok(&a->src) || a->dst.dt != a->src.dt || a->n_head < 1 ||
        a->src.cols != (int64_t)a->n_head * a->from || a->dst.cols != (int64_t)a->n_head * a->to ||
        a->n > 0x7fffffff)
        return CU_BAD;
    if (a->n == 0)
        return 0;
    const bool four = a->from % 4 == 0 && rows_vec4(a->to, {&a->dst, &a->src});
    auto k = a->dst.dt == CU_F32 ? (four ? pad_heads<float, 4> : pad_heads<float, 1>)
                                 : (four ? pad_heads<bf16, 4> : pad_heads<bf16, 1>);
    return launched(launch(rows_cfg(a->n, a->dst.cols, st), k, a->dst, a->src, a->n, a->n_head,
                           a->from, a->to));
}

extern "C" int cu_attend_bias(const struct cu_attend_bias *a, cu_stream st)
{
    const int64_t dq = (int64_t)a->n_head * a->head_dim, dk = (int64_t)a->n_kv_head * a->head_dim;
    if (!mat_ok(&a->dst) || !mat_ok(&a->q) || !mat_ok(&a->k) || !mat_ok(&a->v) ||
        (a->bias.p && !mat_ok(&a->bias)) || a->dst.cols != dq || a->q.cols != dq ||
        a->k.cols != dk || a->v.cols != dk || a->n_kv_head < 1 || a->n_head % a->n_kv_head ||
        !layout_ok(a->ql) || !layout_ok(a->kl) || a->ql->n_seg != a->kl->n_seg ||
        a->bias_cols > KEYS_MAX || a->ql->n_row > 0x7fffffff)
        return CU_BAD;
    if (a->ql->n_row == 0)
        return 0;
    const bias_args b = {a->dst,
                         a->q,
                         a->k,
                         a->v,
                         a->bias,
                         a->ql->start,
                         a->kl->start,
                         a->ql->n_seg,
                         a->n_head / a->n_kv_head,
                         a->head_dim,
                         a->causal,
                         a->bias_cols,
                         rows_vec4(a->head_dim, {&a->q, &a->k}),
                         a->window,
                         a->scale};
    launch_cfg c = cfg_of(dim3((unsigned)a->ql->n_row, (unsigned)a->n_head), THREADS, st);
    c.smem = (size_t)a->bias_cols * sizeof(float);
    return launched(launch(c, a->dst.dt == CU_BF16 ? attend_bias<bf16> : attend_bias<float>, b));
}
