/* cu_rope_kv: optional RMS norm of each q and k head, rotation by pos * inv_freq (Su et al. 2021), q back in place (f32),
 * k and v into the pool (f32, f16, bf16, codes). One block of four warps a row; a warp takes heads warp, warp + 4, ...; a row's
 * bits depend on the row alone. The angle is formed in double and reduced to one turn before it becomes a float, so that
 * positions of 128k tokens keep their digits. Bound: 1e-11 NMSE of the reference in f32.
 *
 * cu_kv_copy: whole blocks, all layers. */
#include "cuda/kv8.cuh"

#define WARPS        4
#define HEAD_DIM_MAX 512

struct rope_args {
    float *qkv;
    int64_t ld;
    int n_head, n_kv_head, head_dim, n_rot, style;
    const float *inv_freq, *q_norm, *k_norm, *v_norm;
    float attn_factor, eps;
    int q_only;
    char *pool; /* of the layer */
    int64_t block_bytes;
    int n_block;
};

/* Where the K (v = 0) or V (1) of a token's head begins, in values from the layer's start. */
__device__ __forceinline__ int64_t kv_at(const rope_args &a, int block, int slot, int head, int v)
{
    return (((int64_t)block * 2 + v) * a.n_kv_head + head) * CU_BLOCK_TOKENS * a.head_dim +
           (int64_t)slot * a.head_dim;
}

__device__ __forceinline__ void rotate_pair(const rope_args &a, float *x, int i, double pos)
{
    const double turn = 6.283185307179586, t = pos * (double)a.inv_freq[i];
    const float angle = (float)(t - turn * floor(t / turn));
    const float c = cosf(angle), s = sinf(angle);
    const int p = a.style == CU_ROPE_NORM ? 2 * i : i,
              q = a.style == CU_ROPE_NORM ? 2 * i + 1 : a.n_rot / 2 + i;
    const float u = x[p], v = x[q];
    x[p] = __fmul_rn(__fsub_rn(__fmul_rn(u, c), __fmul_rn(v, s)), a.attn_factor);
    x[q] = __fmul_rn(__fadd_rn(__fmul_rn(u, s), __fmul_rn(v, c)), a.attn_factor);
}

/* A head's K or V as codes and their scale, by one warp. */
template <class T>
__device__ __forceinline__ void put_codes(const rope_args &a, const float *x, int block, int slot,
                                          int head, int v, int lane)
{
    int top = 0;
    for (int i = lane; i < a.head_dim; i += 32)
        top = max(top, kv8_magnitude(x[i]));
    for (int o = 16; o; o >>= 1)
        top = max(top, __shfl_xor_sync(0xffffffffu, top, o));
    const float scale = kv8_scale(top, is_code<T>::max);
    char *b = a.pool + block * a.block_bytes;
    T *dst = (T *)b + ((int64_t)(v * a.n_kv_head + head) * CU_BLOCK_TOKENS + slot) * a.head_dim;
    for (int i = lane; i < a.head_dim; i += 32)
        kv8_put(dst + i, x[i], scale);
    if (lane == 0)
        *kv8_scale_at(b, a.n_kv_head, a.head_dim, slot, head, v) = scale;
}

template <class T>
static __global__ void __launch_bounds__(WARPS * 32)
    rope_kv(rope_args a, const cu_count *count, const int32_t *pos, const int32_t *row_seq,
            const int32_t *table, int stride)
{
    SHARED(float, head, [WARPS][HEAD_DIM_MAX]);
    const int64_t row = blockIdx.x;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, d = a.head_dim;
    if (row >= count->n_row)
        return;
    const int p = pos[row], block = table[(int64_t)row_seq[row] * stride + p / CU_BLOCK_TOKENS];
    const int slot = p % CU_BLOCK_TOKENS;
    float *x = head[warp];
    for (int h = warp; h < a.n_head + (a.q_only ? 0 : 2 * a.n_kv_head); h += WARPS) {
        float *src = a.qkv + row * a.ld + (int64_t)h * d;
        const int kind = h < a.n_head ? 0 : h < a.n_head + a.n_kv_head ? 1 : 2; /* q, k, v */
        const float *w = kind == 0 ? a.q_norm : kind == 1 ? a.k_norm : a.v_norm;
        float sum = 0;
        for (int i = lane; i < d; i += 32) {
            x[i] = src[i];
            sum = __fmaf_rn(x[i], x[i], sum);
        }
        const float inv = 1.0f / sqrtf(warp_sum(sum) / (float)d + a.eps);
        for (int i = lane; w && i < d; i += 32)
            x[i] = __fmul_rn(__fmul_rn(x[i], inv), w[i]);
        __syncwarp();
        for (int i = lane; kind < 2 && a.style != CU_ROPE_NONE && i < a.n_rot / 2; i += 32)
            rotate_pair(a, x, i, (double)p);
        __syncwarp();
        if (kind == 0) {
            for (int i = lane; i < d; i += 32)
                src[i] = x[i];
        } else if constexpr (is_code<T>::value) {
            put_codes<T>(a, x, block, slot, (h - a.n_head) % a.n_kv_head, kind - 1, lane);
        } else {
            T *dst = (T *)a.pool + kv_at(a, block, slot, (h - a.n_head) % a.n_kv_head, kind - 1);
            for (int i = lane; i < d; i += 32)
                store1(dst + i, x[i]);
        }
        __syncwarp();
    }
}

/* Grid (chunk, layer, pair); 16 bytes a thread. */
static __global__ void __launch_bounds__(256)
    kv_copy(char *pool, int64_t layer_bytes, int64_t block_bytes, const int32_t *src,
            const int32_t *dst)
{
    char *base = pool + (int64_t)blockIdx.y * layer_bytes;
    const uint4 *from = (const uint4 *)(base + (int64_t)src[blockIdx.z] * block_bytes);
    uint4 *to = (uint4 *)(base + (int64_t)dst[blockIdx.z] * block_bytes);
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i < block_bytes / 16)
        to[i] = from[i];
}

/* ------------------------------------------------------------------ launch */

static bool kv_ok(const struct cu_kv *kv)
{
    return kv && kv->p && kv->n_layer > 0 && kv->n_kv_head > 0 && kv->head_dim > 0 &&
           kv->n_block > 1 && ((kv->dt >= CU_F32 && kv->dt <= CU_BF16) || cu_is_code(kv->dt));
}

extern "C" int cu_rope_kv(const struct cu_rope_kv *a, const struct cu_step *s, cu_stream st)
{
    const struct cu_kv *kv = a->kv;
    if (!kv_ok(kv) || kv->head_dim > HEAD_DIM_MAX || a->layer < 0 || a->layer >= kv->n_layer ||
        !mat_ok(&a->qkv) || a->qkv.dt != CU_F32 ||
        a->qkv.cols != (a->n_head + 2 * kv->n_kv_head) * kv->head_dim)
        return CU_BAD;
    if (a->style != CU_ROPE_NONE &&
        (!a->inv_freq || a->n_rot <= 0 || a->n_rot % 2 || a->n_rot > kv->head_dim))
        return CU_BAD;
    if (s->row_max <= 0)
        return 0;
    const int64_t block = (int64_t)cu_kv_layer_block_bytes(kv);
    rope_args r = {(float *)a->qkv.p,
                   a->qkv.ld,
                   a->n_head,
                   kv->n_kv_head,
                   kv->head_dim,
                   a->n_rot,
                   a->style,
                   a->inv_freq,
                   a->q_norm,
                   a->k_norm,
                   a->v_norm,
                   a->attn_factor,
                   a->norm_eps,
                   a->q_only,
                   (char *)kv->p + a->layer * block * kv->n_block,
                   block,
                   kv->n_block};
    launch_cfg c = {
        dim3((unsigned)s->row_max), dim3(WARPS * 32), 0, (cudaStream_t)st, 0, false, false};
    auto k = kv->dt == CU_F32   ? rope_kv<float>
             : kv->dt == CU_F16 ? rope_kv<__half>
             : kv->dt == CU_I8  ? rope_kv<int8_t>
             : kv->dt == CU_F8  ? rope_kv<f8>
                                : rope_kv<bf16>;
    return launched(
        launch(c, k, r, s->count, s->pos, s->row_seq, s->block_table, (int)s->block_stride));
}

extern "C" int cu_kv_copy(const struct cu_kv *kv, const int32_t *src, const int32_t *dst, int n,
                          cu_stream st)
{
    if (!kv_ok(kv) || n < 0 || n > 65535 || kv->n_layer > 65535)
        return CU_BAD;
    if (n == 0)
        return 0;
    const int64_t block = (int64_t)cu_kv_layer_block_bytes(kv);
    if (block % 16 || (uintptr_t)kv->p % 16)
        return CU_BAD;
    launch_cfg c = {dim3((unsigned)((block / 16 + 255) / 256), (unsigned)kv->n_layer, (unsigned)n),
                    dim3(256),
                    0,
                    (cudaStream_t)st,
                    0,
                    false,
                    false};
    return launched(launch(c, kv_copy, (char *)kv->p, block * kv->n_block, block, src, dst));
}
