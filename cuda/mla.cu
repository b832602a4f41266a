/* Latent attention (DeepSeek-AI 2024), absorbed. f32 arithmetic.
 *   mla_kv    a block a row: norm and rotation of the token's vector, into the pool; rotation of the heads' parts of q,
 *             the other parts to q_nope in the products' dtype
 *   mla_attn  a warp a row and head: tokens from 0 up by online softmax, four at a time, lane i holding the values
 *             i, i + 32, ...; a row's bits depend on the row alone. Bound: 1e-11 NMSE of the reference in f32. */
#include "cuda/mla.cuh"

#define TOKENS 4 /* a turn */

struct kv_args {
    float *q, *kv;
    void *nope;
    int64_t ld_q, ld_kv;
    const float *norm, *inv_freq;
    char *pool; /* of the layer */
    const cu_count *count;
    const int32_t *pos, *row_seq, *table;
    int stride, n_head, n_nope, n_rope, rank, style;
    float eps, factor;
};

template <class T, class N> static __global__ void __launch_bounds__(WARPS * 32) mla_kv(kv_args a)
{
    SHARED(float, part, [WARPS]);
    const int64_t row = blockIdx.x;
    const int tid = (int)threadIdx.x, all = WARPS * 32, half = a.n_rope / 2;
    if (row >= a.count->n_row)
        return;
    const int pos = a.pos[row], width = a.n_nope + a.n_rope, dim = a.rank + a.n_rope;
    float *x = a.kv + row * a.ld_kv, sum = 0;
    for (int i = tid; i < a.rank; i += all)
        sum = __fmaf_rn(x[i], x[i], sum);
    const float inv =
        1.0f / sqrtf(__fadd_rn(__fdiv_rn(block_sum<WARPS>(sum, part), (float)a.rank), a.eps));
    for (int i = tid; i < a.rank; i += all)
        x[i] = __fmul_rn(__fmul_rn(x[i], inv), a.norm[i]);
    for (int i = tid; i < half; i += all)
        turn_pair(a.style, a.n_rope, a.inv_freq, a.factor, x + a.rank, i, (double)pos);
    for (int i = tid; i < a.n_head * half; i += all)
        turn_pair(a.style, a.n_rope, a.inv_freq, a.factor,
                  a.q + row * a.ld_q + i / half * width + a.n_nope, i % half, (double)pos);
    for (int i = tid; i < a.n_head * a.n_nope; i += all)
        store1((N *)a.nope + row * a.n_head * a.n_nope + i,
               a.q[row * a.ld_q + i / a.n_nope * width + i % a.n_nope]);
    __syncthreads();
    const int64_t block = a.table[(int64_t)a.row_seq[row] * a.stride + pos / CU_BLOCK_TOKENS];
    if constexpr (is_code<T>::value) {
        float *scale;
        T *dst = codes_of<T>(a.pool, block, pos % CU_BLOCK_TOKENS, dim, scale);
        put_codes(dst, scale, x, dim, (int *)part);
    } else {
        T *dst = (T *)a.pool + (block * CU_BLOCK_TOKENS + pos % CU_BLOCK_TOKENS) * dim;
        for (int i = tid; i < dim; i += all)
            store1(dst + i, x[i]);
    }
}

struct attn_args {
    void *dst;
    const float *q_abs, *q;
    int64_t ld_q;
    const char *pool; /* of the layer */
    const cu_count *count;
    const int32_t *pos, *row_seq, *table;
    int stride, n_head, n_nope, n_rope, rank;
    float scale;
    const float *seen; /* or NULL */
    int64_t ld_seen;
};

/* V: values a lane; 32 V >= rank + n_rope. */
template <class T, class D, int V>
static __global__ void __launch_bounds__(WARPS * 32) mla_attn(attn_args a)
{
    const int64_t row = blockIdx.x;
    const int lane = (int)threadIdx.x % 32, head = (int)blockIdx.y * WARPS + (int)threadIdx.x / 32,
              dim = a.rank + a.n_rope;
    if (row >= a.count->n_row || head >= a.n_head)
        return;
    const float *abs = a.q_abs + (row * a.n_head + head) * a.rank,
                *rot = a.q + row * a.ld_q + head * (a.n_nope + a.n_rope) + a.n_nope;
    const int32_t *table = a.table + (int64_t)a.row_seq[row] * a.stride;
    const int last = a.pos[row];
    const float *seen = a.seen ? a.seen + row * a.ld_seen : nullptr;
    float q[V], acc[V] = {}, top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        const int k = lane + 32 * i;
        q[i] = k < a.rank ? __fmul_rn(abs[k], a.scale)
               : k < dim  ? __fmul_rn(rot[k - a.rank], a.scale)
                          : 0;
    }
    for (int at = 0; at <= last; at += TOKENS) {
        float x[TOKENS][V], s[TOKENS], high = top;
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const int p = min(at + t, last);
            const int64_t block = table[p / CU_BLOCK_TOKENS];
            const T *src =
                (const T *)a.pool + (block * CU_BLOCK_TOKENS + p % CU_BLOCK_TOKENS) * dim;
            float *scale = nullptr;
            if (is_code<T>::value)
                src = codes_of<const T>(a.pool, block, p % CU_BLOCK_TOKENS, dim, scale);
            const float unit = is_code<T>::value ? *scale : 1;
            s[t] = 0;
#pragma unroll
            for (int i = 0; i < V; i++) {
                const int k = lane + 32 * i;
                x[t][i] = k < dim ? load1(src + k) : 0;
                if (is_code<T>::value)
                    x[t][i] = __fmul_rn(x[t][i], unit);
                s[t] = __fmaf_rn(q[i], x[t][i], s[t]);
            }
            s[t] = warp_sum(s[t]);
            if (at + t > last || (seen && seen[p] == -INFINITY))
                s[t] = -INFINITY;
            high = fmaxf(high, s[t]);
        }
        if (high == -INFINITY) /* none is seen yet */
            continue;
        const float keep = expf(__fsub_rn(top, high));
        sum = __fmul_rn(sum, keep);
#pragma unroll
        for (int i = 0; i < V; i++)
            acc[i] = __fmul_rn(acc[i], keep);
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const float w = expf(__fsub_rn(s[t], high));
            sum = __fadd_rn(sum, w);
#pragma unroll
            for (int i = 0; i < V; i++)
                acc[i] = __fmaf_rn(w, x[t][i], acc[i]);
        }
        top = high;
    }
    D *dst = (D *)a.dst + (row * a.n_head + head) * a.rank;
#pragma unroll
    for (int i = 0; i < V; i++)
        if (lane + 32 * i < a.rank)
            store1(dst + lane + 32 * i, __fdiv_rn(acc[i], sum));
}

/* ------------------------------------------------------------------ launch */

template <class T> static int kv_launch(const launch_cfg &c, const kv_args &k, int dt)
{
    return launched(dt == CU_F32 ? launch(c, mla_kv<T, float>, k) : launch(c, mla_kv<T, bf16>, k));
}

extern "C" int cu_mla_kv(const struct cu_mla_kv *a, const struct cu_step *s, cu_stream st)
{
    if (!mat_ok(&a->q) || !mat_ok(&a->kv) || !mat_ok(&a->q_nope) || a->q.dt != CU_F32 ||
        a->kv.dt != CU_F32 || !pool_ok(a->pool, a->rank + a->n_rope, a->layer))
        return CU_BAD;
    if (s->row_max <= 0)
        return 0;
    kv_args k = {(float *)a->q.p, (float *)a->kv.p, a->q_nope.p, a->q.ld,
                 a->kv.ld,        a->norm,          a->inv_freq, layer_of(a->pool, a->layer),
                 s->count,        s->pos,           s->row_seq,  s->block_table,
                 s->block_stride, a->n_head,        a->n_nope,   a->n_rope,
                 a->rank,         a->style,         a->norm_eps, a->attn_factor};
    launch_cfg c = {};
    c.grid = dim3((unsigned)s->row_max);
    c.block = dim3(WARPS * 32);
    c.stream = (cudaStream_t)st;
    switch (a->pool->dt) {
    case CU_F32:
        return kv_launch<float>(c, k, a->q_nope.dt);
    case CU_F16:
        return kv_launch<__half>(c, k, a->q_nope.dt);
    case CU_I8:
        return kv_launch<int8_t>(c, k, a->q_nope.dt);
    case CU_F8:
        return kv_launch<f8>(c, k, a->q_nope.dt);
    default:
        return kv_launch<bf16>(c, k, a->q_nope.dt);
    }
}

template <class T, class D> static int attn_width(const launch_cfg &c, const attn_args &k)
{
    const int dim = k.rank + k.n_rope;
    if (dim <= 64)
        return launched(launch(c, mla_attn<T, D, 2>, k));
    if (dim <= 576)
        return launched(launch(c, mla_attn<T, D, 18>, k));
    return launched(launch(c, mla_attn<T, D, 32>, k));
}

template <class T> static int attn_launch(const launch_cfg &c, const attn_args &k, int dt)
{
    return dt == CU_F32 ? attn_width<T, float>(c, k) : attn_width<T, bf16>(c, k);
}

extern "C" int cu_mla_attn(const struct cu_mla_attn *a, const struct cu_step *s, cu_stream st)
{
    if (!mat_ok(&a->dst) || !mat_ok(&a->q_abs) || !mat_ok(&a->q) || a->q.dt != CU_F32 ||
        a->q_abs.dt != CU_F32 || a->dst.cols != a->rank ||
        !pool_ok(a->pool, a->rank + a->n_rope, a->layer))
        return CU_BAD;
    if (s->row_max <= 0)
        return 0;
    attn_args k = {a->dst.p,
                   (const float *)a->q_abs.p,
                   (const float *)a->q.p,
                   a->q.ld,
                   layer_of(a->pool, a->layer),
                   s->count,
                   s->pos,
                   s->row_seq,
                   s->block_table,
                   s->block_stride,
                   a->n_head,
                   a->n_nope,
                   a->n_rope,
                   a->rank,
                   a->scale,
                   (const float *)a->seen.p,
                   a->seen.ld};
    launch_cfg c = {};
    c.grid = dim3((unsigned)s->row_max, (unsigned)((a->n_head + WARPS - 1) / WARPS));
    c.block = dim3(WARPS * 32);
    c.stream = (cudaStream_t)st;
    switch (a->pool->dt) {
    case CU_F32:
        return attn_launch<float>(c, k, a->dst.dt);
    case CU_F16:
        return attn_launch<__half>(c, k, a->dst.dt);
    case CU_I8:
        return attn_launch<int8_t>(c, k, a->dst.dt);
    case CU_F8:
        return attn_launch<f8>(c, k, a->dst.dt);
    default:
        return attn_launch<bf16>(c, k, a->dst.dt);
    }
}
