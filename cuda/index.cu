/* cu_index: the positions that sparse attention looks at; see op_index. f32 arithmetic; a row's bits depend on the row alone.
 *   index_kv      a block a row: rotation of q's heads and of k; k into the pool
 *   index_score   a warp a token, the tokens of a row over the grid's second dimension
 *   index_select  a block a row: the n_top-th largest by its bits, eight at a time, then what is below it becomes -inf */
#include "cuda/mla.cuh"

#define SPLITS  16 /* blocks that share a row's tokens, at most */
#define BLOCKS  64 /* about as many in all */
#define THREADS (WARPS * 32)

struct index_args {
    float *q, *k, *seen;
    const float *weight, *inv_freq;
    int64_t ld_q, ld_k, ld_seen, ld_weight;
    char *pool; /* of the layer */
    const cu_count *count;
    const int32_t *pos, *row_seq, *table;
    int stride, n_head, dim, n_rope, n_top, style;
    float scale, factor;
};

template <class T> static __global__ void __launch_bounds__(THREADS) index_kv(index_args a)
{
    SHARED(int, part, [WARPS]);
    const int64_t row = blockIdx.x;
    const int tid = (int)threadIdx.x, half = a.n_rope / 2;
    if (row >= a.count->n_row)
        return;
    const int pos = a.pos[row];
    float *k = a.k + row * a.ld_k;
    for (int i = tid; i < a.n_head * half; i += THREADS)
        turn_pair(a.style, a.n_rope, a.inv_freq, a.factor, a.q + row * a.ld_q + i / half * a.dim,
                  i % half, (double)pos);
    for (int i = tid; i < half; i += THREADS)
        turn_pair(a.style, a.n_rope, a.inv_freq, a.factor, k, i, (double)pos);
    __syncthreads();
    const int64_t block = a.table[(int64_t)a.row_seq[row] * a.stride + pos / CU_BLOCK_TOKENS];
    if constexpr (is_code<T>::value) {
        float *scale;
        T *dst = codes_of<T>(a.pool, block, pos % CU_BLOCK_TOKENS, a.dim, scale);
        put_codes(dst, scale, k, a.dim, part);
    } else {
        T *dst = (T *)a.pool + (block * CU_BLOCK_TOKENS + pos % CU_BLOCK_TOKENS) * a.dim;
        for (int i = tid; i < a.dim; i += THREADS)
            store1(dst + i, k[i]);
    }
}

/* V: values a lane; 32 V >= dim. */
template <class T, int V>
static __global__ void __launch_bounds__(THREADS) index_score(index_args a)
{
    const int64_t row = blockIdx.x;
    const int lane = (int)threadIdx.x % 32;
    if (row >= a.count->n_row)
        return;
    const int32_t *table = a.table + (int64_t)a.row_seq[row] * a.stride;
    const float *q = a.q + row * a.ld_q, *weight = a.weight + row * a.ld_weight;
    const int last = a.pos[row];
    for (int t = (int)blockIdx.y * WARPS + (int)threadIdx.x / 32; t <= last;
         t += (int)gridDim.y * WARPS) {
        float x[V], sum = 0;
        const int64_t block = table[t / CU_BLOCK_TOKENS];
        const T *src = (const T *)a.pool + (block * CU_BLOCK_TOKENS + t % CU_BLOCK_TOKENS) * a.dim;
        float *scale = nullptr;
        if (is_code<T>::value)
            src = codes_of<const T>(a.pool, block, t % CU_BLOCK_TOKENS, a.dim, scale);
        const float unit = is_code<T>::value ? __fmul_rn(*scale, a.scale) : a.scale;
#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = lane + 32 * i < a.dim ? __fmul_rn(load1(src + lane + 32 * i), unit) : 0;
        for (int h = 0; h < a.n_head && last >= a.n_top; h++) {
            float s = 0;
#pragma unroll
            for (int i = 0; i < V; i++)
                if (lane + 32 * i < a.dim)
                    s = __fmaf_rn(q[h * a.dim + lane + 32 * i], x[i], s);
            s = warp_sum(s);
            sum = __fmaf_rn(weight[h], fmaxf(s, 0.0f), sum);
        }
        if (lane == 0)
            a.seen[row * a.ld_seen + t] = sum;
    }
}

/* Larger floats have larger keys. */
static __device__ __forceinline__ uint32_t key_of(float x)
{
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f)); /* -0 is 0 */
    return u >> 31 ? ~u : u | 0x80000000u;
}

static __global__ void __launch_bounds__(THREADS) index_select(index_args a)
{
    SHARED(int, hist, [256]);
    SHARED(int, ties, [THREADS]);
    SHARED(uint32_t,
           found, [2]); /* the key's bits so far; how many of those that have them are wanted */
    const int64_t row = blockIdx.x;
    const int tid = (int)threadIdx.x;
    if (row >= a.count->n_row)
        return;
    const int n = a.pos[row] + 1;
    float *x = a.seen + row * a.ld_seen;
    if (n <= a.n_top)
        return;
    if (tid == 0) {
        found[0] = 0;
        found[1] = (uint32_t)a.n_top;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = tid; i < 256; i += THREADS)
            hist[i] = 0;
        __syncthreads();
        const uint32_t mask = shift == 24 ? 0 : ~0u << (shift + 8), prefix = found[0];
        for (int t = tid; t < n; t += THREADS) {
            const uint32_t k = key_of(x[t]);
            if ((k & mask) == prefix)
                atomicAdd(&hist[k >> shift & 255], 1);
        }
        __syncthreads();
        if (tid == 0) {
            int left = (int)found[1], b = 255;
            while (b > 0 && hist[b] < left)
                left -= hist[b--];
            found[0] = prefix | (uint32_t)b << shift;
            found[1] = (uint32_t)left;
        }
        __syncthreads();
    }
    /* Of those equal to the last one the first `left` stay: every thread has a stretch of positions. */
    const uint32_t least = found[0];
    const int each = (n + THREADS - 1) / THREADS, from = min(tid * each, n),
              to = min(from + each, n);
    int equal = 0;
    for (int t = from; t < to; t++)
        equal += key_of(x[t]) == least;
    ties[tid] = equal;
    __syncthreads();
    int left = (int)found[1];
    for (int i = 0; i < tid; i++)
        left -= ties[i];
    for (int t = from; t < to; t++) {
        const uint32_t k = key_of(x[t]);
        if (k < least || (k == least && left-- <= 0))
            x[t] = -INFINITY;
    }
}

/* ------------------------------------------------------------------ launch */

template <class T>
static int index_launch(const launch_cfg &one, const launch_cfg &split, const index_args &k)
{
    int rc = launched(launch(one, index_kv<T>, k));
    if (rc || !k.seen)
        return rc;
    rc = k.dim <= 128 ? launched(launch(split, index_score<T, 4>, k))
                      : launched(launch(split, index_score<T, 32>, k));
    return rc ? rc : launched(launch(one, index_select, k));
}

extern "C" int cu_index(const struct cu_index *a, const struct cu_step *s, cu_stream st)
{
    if (!mat_ok(&a->q) || !mat_ok(&a->k) || !mat_ok(&a->weight) || a->q.dt != CU_F32 ||
        a->k.dt != CU_F32 || a->weight.dt != CU_F32 || !pool_ok(a->pool, a->dim, a->layer))
        return CU_BAD;
    if (s->row_max <= 0)
        return 0;
    index_args k = {(float *)a->q.p,
                    (float *)a->k.p,
                    (float *)a->seen.p,
                    (const float *)a->weight.p,
                    a->inv_freq,
                    a->q.ld,
                    a->k.ld,
                    a->seen.ld,
                    a->weight.ld,
                    layer_of(a->pool, a->layer),
                    s->count,
                    s->pos,
                    s->row_seq,
                    s->block_table,
                    s->block_stride,
                    a->n_head,
                    a->dim,
                    a->n_rope,
                    a->n_top,
                    a->style,
                    a->scale,
                    a->attn_factor};
    launch_cfg one = {}, split = {};
    one.grid = dim3((unsigned)s->row_max);
    const int n = BLOCKS / s->row_max;
    split.grid = dim3((unsigned)s->row_max, (unsigned)(n < 1 ? 1 : n > SPLITS ? SPLITS : n));
    one.block = split.block = dim3(THREADS);
    one.stream = split.stream = (cudaStream_t)st;
    switch (a->pool->dt) {
    case CU_F32:
        return index_launch<float>(one, split, k);
    case CU_F16:
        return index_launch<__half>(one, split, k);
    case CU_I8:
        return index_launch<int8_t>(one, split, k);
    case CU_F8:
        return index_launch<f8>(one, split, k);
    default:
        return index_launch<bf16>(one, split, k);
    }
}
