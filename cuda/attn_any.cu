/* Attention without tensor cores, for any head_dim up to 512 and any KV dtype, in f32: the oracle path and the fallback.
 * One block of 128 threads a (row, head). KV is taken in splits of CU_SPLIT_TOKENS at fixed absolute positions, each by
 * the textbook softmax, folded into a running (maximum, sum, output) in order: a row's bits depend neither on chunking
 * nor on company. Bound: 1e-11 NMSE of the reference in f32. */
#include "cuda/attn.cuh"
#include "cuda/attn.h"

#define THREADS      128
#define HEAD_DIM_MAX 512

/* K (v = 0) or V (1) of the token at position j; of codes, also their scale. */
template <class T>
__device__ __forceinline__ const T *vec_at(const attn_args &a, const int32_t *table, int j, int kvh,
                                           int v)
{
    const int block = table[j / CU_BLOCK_TOKENS], slot = j % CU_BLOCK_TOKENS;
    if (is_code<T>::value)
        return (const T *)code_at(a, block, slot, kvh, v);
    return (const T *)a.pool + attn_at(a, block, slot, kvh, v);
}
__device__ __forceinline__ float scale_at(const attn_args &a, const int32_t *table, int j, int kvh,
                                          int v)
{
    return code_scale(a, table[j / CU_BLOCK_TOKENS], j % CU_BLOCK_TOKENS, kvh, v);
}

template <class T> static __global__ void __launch_bounds__(THREADS) attn_any(attn_args a)
{
    SHARED(float, q, [HEAD_DIM_MAX]);
    SHARED(float, p, [CU_SPLIT_TOKENS]);
    SHARED(float, red, [THREADS / 32]);
    const int64_t row = blockIdx.x;
    const int head = (int)blockIdx.y, t = (int)threadIdx.x, d = a.head_dim;
    if (row >= a.count->n_row)
        return;
    const int pos = a.pos[row], from = first_of(pos, a.window);
    const int32_t *table = a.table + (int64_t)a.row_seq[row] * a.stride;
    const int kvh = head / (a.n_head / a.n_kv_head);
    for (int i = t; i < d; i += THREADS)
        q[i] = a.qkv[row * a.ld + (int64_t)head * d + i] * a.scale;
    float m = -INFINITY, l = 0, acc[HEAD_DIM_MAX / THREADS] = {};
    for (int s0 = from / CU_SPLIT_TOKENS * CU_SPLIT_TOKENS; s0 <= pos; s0 += CU_SPLIT_TOKENS) {
        const int lo = max(from, s0), hi = min(pos + 1, s0 + CU_SPLIT_TOKENS);
        float top = -INFINITY, sum = 0;
        __syncthreads();
        for (int j = lo + t; j < hi; j += THREADS) {
            const T *k = vec_at<T>(a, table, j, kvh, 0);
            float v = 0;
            for (int i = 0; i < d; i++)
                v = __fmaf_rn(q[i], load1(k + i), v);
            if (is_code<T>::value)
                v = __fmul_rn(v, scale_at(a, table, j, kvh, 0));
            if (a.softcap > 0)
                v = a.softcap * tanhf(v / a.softcap);
            if (a.alibi)
                v = __fmaf_rn(a.alibi[head], (float)(j - pos), v);
            p[j - s0] = v;
            top = fmaxf(top, v);
        }
        top = warp_max(top);
        __syncthreads();
        if (t % 32 == 0)
            red[t / 32] = top;
        __syncthreads();
        top = fmaxf(fmaxf(red[0], red[1]), fmaxf(red[2], red[3]));
        for (int j = lo + t; j < hi; j += THREADS) {
            p[j - s0] = expf(p[j - s0] - top);
            sum += p[j - s0];
            if (is_code<T>::value)
                p[j - s0] = __fmul_rn(p[j - s0], scale_at(a, table, j, kvh, 1));
        }
        sum = block_sum<THREADS / 32>(sum, red);
        const float now = fmaxf(m, top), keep = m > -INFINITY ? expf(m - now) : 0,
                    take = expf(top - now);
        for (int i = t, n = 0; i < d; i += THREADS, n++) {
            float v = 0;
            for (int j = lo; j < hi; j++) {
                const T *vp = vec_at<T>(a, table, j, kvh, 1);
                v = __fmaf_rn(p[j - s0], load1(vp + i), v);
            }
            acc[n] = __fadd_rn(__fmul_rn(acc[n], keep), __fmul_rn(v, take));
        }
        l = __fadd_rn(__fmul_rn(l, keep), __fmul_rn(sum, take));
        m = now;
    }
    if (a.sinks) { /* one more score, without a value */
        const float now = fmaxf(m, a.sinks[head]), keep = expf(m - now);
        l = __fadd_rn(__fmul_rn(l, keep), expf(a.sinks[head] - now));
        for (float &v : acc)
            v = __fmul_rn(v, keep);
    }
    const float inv = 1.0f / l;
    for (int i = t, n = 0; i < d; i += THREADS, n++) {
        const int64_t at = row * a.ld_dst + (int64_t)head * d + i;
        if (a.dst_bf16)
            store1((bf16 *)a.dst + at, acc[n] * inv);
        else
            store1((float *)a.dst + at, acc[n] * inv);
    }
}

/* ------------------------------------------------------------------ launch */

extern "C" int cu_attn_any(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    if (a->kv->head_dim > HEAD_DIM_MAX)
        return CU_BAD;
    launch_cfg c = {dim3((unsigned)s->row_max, (unsigned)a->n_head),
                    dim3(THREADS),
                    0,
                    (cudaStream_t)st,
                    0,
                    false,
                    false};
    auto k = a->kv->dt == CU_F32   ? attn_any<float>
             : a->kv->dt == CU_F16 ? attn_any<__half>
             : a->kv->dt == CU_I8  ? attn_any<int8_t>
             : a->kv->dt == CU_F8  ? attn_any<f8>
                                   : attn_any<bf16>;
    return launched(launch(c, k, attn_fill(a, s)));
}
