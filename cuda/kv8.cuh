/* Eight-bit KV on the device: codes and scales mean what engine/quant/kv8.h says, bit for bit. */
#ifndef CUDA_KV8_CUH
#define CUDA_KV8_CUH

#include "cuda/kern.cuh"

struct f8 { /* an e4m3 */
    uint8_t code;
};
template <class T> struct is_code {
    static const bool value = false;
};
template <> struct is_code<int8_t> {
    static const bool value = true;
    static constexpr float max = 127;
};
template <> struct is_code<f8> {
    static const bool value = true;
    static constexpr float max = 448;
};

__device__ __forceinline__ float load1(const int8_t *p)
{
    return (float)*p;
}
__device__ __forceinline__ float load1(const f8 *p)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(p->code, __NV_E4M3)));
}

/* top: the largest magnitude's bits; max: is_code<>::max. */
__device__ __forceinline__ float kv8_scale(int top, float max)
{
    return top < 0x7f800000 ? __fdiv_rn(__int_as_float(top), max) : __int_as_float(0x7fc00000);
}
__device__ __forceinline__ int kv8_magnitude(float x)
{
    return __float_as_int(x) & 0x7fffffff;
}
__device__ __forceinline__ void kv8_put(int8_t *p, float x, float scale)
{
    *p = scale > 0 ? (int8_t)__float2int_rn(fminf(fmaxf(__fdiv_rn(x, scale), -127.0f), 127.0f)) : 0;
}
__device__ __forceinline__ void kv8_put(f8 *p, float x, float scale)
{
    p->code = scale > 0 ? __nv_cvt_float_to_fp8(__fdiv_rn(x, scale), __NV_SATFINITE, __NV_E4M3) : 0;
}

/* The scale of K (v = 0) or V (1) of a token's head: behind the codes of a block of one layer. */
__device__ __forceinline__ float *kv8_scale_at(char *block, int n_kv_head, int head_dim, int slot,
                                               int head, int v)
{
    return (float *)(block + (int64_t)2 * n_kv_head * CU_BLOCK_TOKENS * head_dim) +
           (v * n_kv_head + head) * CU_BLOCK_TOKENS + slot;
}

#endif
