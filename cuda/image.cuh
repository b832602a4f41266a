/* What the image kernels share: walks over rows, activations. */
#ifndef CUDA_IMAGE_CUH
#define CUDA_IMAGE_CUH

#include "cuda/image.h"
#include "cuda/kern.cuh"

#include <initializer_list>

__device__ __forceinline__ float image_act(float x, int act)
{
    switch (act) {
    case CU_IM_SILU:
        return x / (1.0f + expf(-x));
    case CU_IM_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case CU_IM_GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    case CU_IM_QUICK_GELU:
        return x / (1.0f + expf(-1.702f * x));
    case CU_IM_RELU:
        return x > 0 ? x : 0.0f;
    default:
        return x;
    }
}

/* Row i of a matrix of rows. */
template <class T> __device__ __forceinline__ T *row_at(const cu_mat &m, int64_t i)
{
    return (T *)m.p + i * m.ld;
}

/* Element-wise work on [n, cols]: a block of eight warps, a warp a row and ROW_COLS of its columns at a time, N values a
 * lane; N is 4 where every row of every operand allows it. No value depends on another: N changes no bit. */
#define ROW_WARPS   8
#define ROW_THREADS (ROW_WARPS * 32)
#define ROW_COLS    512
#define ROW_BLOCKS  16384
#define EACH_ROW(row, n)                                                                           \
    for (int64_t row = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32; row < (n);              \
         row += (int64_t)gridDim.x * ROW_WARPS)
#define EACH_COL(k, cols, N)                                                                       \
    for (int k = (int)blockIdx.y * ROW_COLS + (int)threadIdx.x % 32 * (N);                         \
         k < min((int)(blockIdx.y + 1) * ROW_COLS, cols); k += 32 * (N))

template <int N> __device__ __forceinline__ void load_n(float (&v)[N], const float *p)
{
    if constexpr (N == 4) {
        const float4 q = *(const float4 *)p;
        v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
    } else {
        v[0] = *p;
    }
}
template <int N> __device__ __forceinline__ void load_n(float (&v)[N], const bf16 *p)
{
    if constexpr (N == 4) {
        const uint2 q = *(const uint2 *)p; /* a bf16 is the upper half of a float */
        v[0] = __uint_as_float(q.x << 16), v[1] = __uint_as_float(q.x & 0xffff0000u);
        v[2] = __uint_as_float(q.y << 16), v[3] = __uint_as_float(q.y & 0xffff0000u);
    } else {
        v[0] = load1(p);
    }
}
template <int N, class T> __device__ __forceinline__ void store_n(T *p, const float (&v)[N])
{
    if constexpr (N == 4)
        store4(p, make_float4(v[0], v[1], v[2], v[3]));
    else
        store1(p, v[0]);
}

/* Blocks for n items of work by `per` each; 0 when there are too many for a grid. */
static inline unsigned grid_of(int64_t n, int64_t per)
{
    const int64_t g = (n + per - 1) / per;
    return g > 0x7fffffff ? 0 : (unsigned)g;
}
static inline launch_cfg cfg_of(dim3 grid, unsigned threads, cu_stream st)
{
    return {grid, dim3(threads), 0, (cudaStream_t)st, 0, false, false};
}
static inline launch_cfg rows_cfg(int64_t n, int cols, cu_stream st)
{
    const int64_t g = (n + ROW_WARPS - 1) / ROW_WARPS;
    return cfg_of(dim3((unsigned)(g < ROW_BLOCKS ? g : ROW_BLOCKS),
                       (unsigned)((cols + ROW_COLS - 1) / ROW_COLS)),
                  ROW_THREADS, st);
}
/* Whether rows go four values at a time; an absent matrix does not matter. */
static inline bool rows_vec4(int cols, std::initializer_list<const cu_mat *> all)
{
    bool ok = cols % 4 == 0;
    for (const cu_mat *m : all)
        ok = ok && (!m->p || mat_vec4(m));
    return ok;
}
static inline bool layout_ok(const cu_layout *y)
{
    return y && y->n_seg > 0 && y->start && y->chunk;
}

#endif
