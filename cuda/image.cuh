/* What the image kernels share: segments of rows, activations. */
#ifndef CUDA_IMAGE_CUH
#define CUDA_IMAGE_CUH

#include "cuda/image.h"
#include "cuda/kern.cuh"

/* The segment of a row: start[s] <= row < start[s + 1]; empty segments are passed over. */
__device__ __forceinline__ int seg_of(const int32_t *start, int n_seg, int64_t row)
{
    int lo = 0, hi = n_seg - 1;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (row < start[mid + 1])
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

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
static inline bool layout_ok(const cu_layout *y)
{
    return y && y->n_seg > 0 && y->start && y->chunk;
}

#endif
