/* What the kernels of latent attention and of its index share: vectors of a k_only pool, rotation. */
#ifndef CUDA_MLA_CUH
#define CUDA_MLA_CUH

#include "cuda/kv8.cuh"
#include "cuda/mla.h"

#define WARPS 4

/* A token's vector of codes, and the place of its scale behind those of its block. */
template <class T>
static __device__ __forceinline__ T *codes_of(const char *pool, int64_t block, int slot, int dim,
                                              float *&scale)
{
    char *p = (char *)pool + block * CU_BLOCK_TOKENS * (dim + (int)sizeof(float));
    scale = (float *)(p + CU_BLOCK_TOKENS * dim) + slot;
    return (T *)p + slot * dim;
}

/* x as codes, by all threads; part: [WARPS] shared and free to use. */
template <class T>
static __device__ __forceinline__ void put_codes(T *dst, float *to, const float *x, int dim,
                                                 int *part)
{
    const int tid = (int)threadIdx.x, all = WARPS * 32;
    int top = 0;
    for (int i = tid; i < dim; i += all)
        top = max(top, kv8_magnitude(x[i]));
    for (int o = 16; o; o >>= 1)
        top = max(top, __shfl_xor_sync(0xffffffffu, top, o));
    if (tid % 32 == 0)
        part[tid / 32] = top;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        top = max(top, part[i]);
    const float scale = kv8_scale(top, is_code<T>::max);
    for (int i = tid; i < dim; i += all)
        kv8_put(dst + i, x[i], scale);
    if (tid == 0)
        *to = scale;
}

/* Pair i of x turned by the angle; formed in double, so that far positions keep their digits. */
static __device__ __forceinline__ void turn_pair(int style, int n_rope, const float *inv_freq,
                                                 float factor, float *x, int i, double pos)
{
    const double turn = 6.283185307179586, t = pos * (double)inv_freq[i];
    const float angle = (float)(t - turn * floor(t / turn));
    const float c = cosf(angle), s = sinf(angle);
    const int p = style == CU_ROPE_NORM ? 2 * i : i,
              q = style == CU_ROPE_NORM ? 2 * i + 1 : n_rope / 2 + i;
    const float u = x[p], v = x[q];
    x[p] = __fmul_rn(__fsub_rn(__fmul_rn(u, c), __fmul_rn(v, s)), factor);
    x[q] = __fmul_rn(__fadd_rn(__fmul_rn(u, s), __fmul_rn(v, c)), factor);
}

static inline bool pool_ok(const struct cu_kv *p, int dim, int layer)
{
    return p && p->p && p->k_only && p->n_kv_head == 1 && p->head_dim == dim &&
           p->head_dim <= CU_LATENT_MAX && layer >= 0 && layer < p->n_layer;
}

static inline char *layer_of(const struct cu_kv *p, int layer)
{
    return (char *)p->p + (size_t)layer * cu_kv_layer_block_bytes(p) * (size_t)p->n_block;
}

#endif
