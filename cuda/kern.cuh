/* What kernel files share: row counts, loads and stores by dtype, sums in a fixed order. */
#ifndef CUDA_KERN_CUH
#define CUDA_KERN_CUH

#include "cuda/cu.h"
#include "cuda/kernels.h"

typedef __nv_bfloat16 bf16;

/* Rows of the step that an op covers, read on the device. */
__device__ __forceinline__ int rows_of(const cu_count *c, int rows)
{
    return rows == CU_ROWS_LOGIT ? c->n_logit : c->n_row;
}
/* Its bound at launch. */
static inline int rows_max(const cu_step *s, int rows)
{
    return rows == CU_ROWS_LOGIT ? s->logit_max : s->row_max;
}

__device__ __forceinline__ float load1(const float *p)
{
    return *p;
}
__device__ __forceinline__ float load1(const bf16 *p)
{
    return __bfloat162float(*p);
}
__device__ __forceinline__ float load1(const __half *p)
{
    return __half2float(*p);
}
__device__ __forceinline__ void store1(float *p, float v)
{
    *p = v;
}
__device__ __forceinline__ void store1(bf16 *p, float v)
{
    *p = __float2bfloat16_rn(v);
}
__device__ __forceinline__ void store1(__half *p, float v)
{
    *p = __float2half_rn(v);
}
/* Four values, 16-byte (f32) or 8-byte aligned. */
__device__ __forceinline__ void store4(float *p, float4 v)
{
    *(float4 *)p = v;
}
__device__ __forceinline__ void store4(bf16 *p, float4 v)
{
    union {
        __nv_bfloat162 h[2];
        uint2 u;
    } x;
    x.h[0] = __floats2bfloat162_rn(v.x, v.y);
    x.h[1] = __floats2bfloat162_rn(v.z, v.w);
    *(uint2 *)p = x.u;
}

/* Sum over the 32 lanes, the same in all: lane i with i ^ 16, then 8, 4, 2, 1. */
__device__ __forceinline__ float warp_sum(float v)
{
    for (int o = 16; o; o >>= 1)
        v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}
__device__ __forceinline__ float warp_max(float v)
{
    for (int o = 16; o; o >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}
/* Sum over a block of WARPS warps, the same in all threads; `s` is [WARPS] shared and free to use. */
template <int WARPS> __device__ __forceinline__ float block_sum(float v, float *s)
{
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s[threadIdx.x / 32] = v;
    __syncthreads();
    float t = s[0];
    for (int i = 1; i < WARPS; i++)
        t = __fadd_rn(t, s[i]);
    return t;
}

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

/* A product's value v of row r and column col, before it is stored. */
__device__ __forceinline__ float after_do(const cu_after &a, float v, int r, int col)
{
    if (a.vec.p)
        v = __fadd_rn(
            v, ((const float *)a.vec.p)[seg_of(a.start, a.n_seg, a.row + r) * a.vec.ld + col]);
    if (a.add.p)
        v = __fadd_rn(v, ((const float *)a.add.p)[r * a.add.ld + col]);
    return v;
}
/* Of the columns from `col` on. */
static inline cu_after after_from(cu_after a, int64_t col)
{
    a.vec.p = a.vec.p ? (float *)a.vec.p + col : nullptr;
    a.add.p = a.add.p ? (float *)a.add.p + col : nullptr;
    return a;
}

/* Launchers. */
static inline bool mat_ok(const cu_mat *m)
{
    return m->p && m->cols > 0 && m->ld >= m->cols && (m->dt == CU_F32 || m->dt == CU_BF16);
}
/* Rows may be read and written four values at a time. */
static inline bool mat_vec4(const cu_mat *m)
{
    uintptr_t a = m->dt == CU_F32 ? 16 : 8;
    return (uintptr_t)m->p % a == 0 && m->ld % 4 == 0;
}
static inline int launched(cudaError_t e)
{
    return (int)e;
}

#endif
