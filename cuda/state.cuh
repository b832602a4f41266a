/* What state.cu and state_scan.cu share. */
#ifndef CUDA_STATE_CUH
#define CUDA_STATE_CUH

#include "cuda/kern.cuh"
#include "cuda/state.h"

/* The rows of sequence blockIdx.y, and where its states are; none: to == from. */
struct span {
    int from, to;
    const float *src; /* NULL: zeros */
    float *dst;
};
struct seqs {
    const cu_count *count;
    const int32_t *start, *src, *dst;
};
static inline seqs seqs_of(const cu_step *s)
{
    return {s->count, s->seq_start, s->state_src, s->state_dst};
}
__device__ __forceinline__ span span_of(const seqs &q, const cu_state_at &at)
{
    const int s = (int)blockIdx.y;
    if (s >= q.count->n_seq)
        return {0, 0, nullptr, nullptr};
    return {q.start[s], q.start[s + 1], q.src[s] < 0 ? nullptr : at.p + q.src[s] * at.ld,
            at.p + q.dst[s] * at.ld};
}
__device__ __forceinline__ const float *row(const cu_mat &m, int64_t i)
{
    return (const float *)m.p + i * m.ld;
}
__device__ __forceinline__ float load_any(const cu_mat &m, int64_t i, int64_t col)
{
    return m.dt == CU_BF16 ? load1((const bf16 *)m.p + i * m.ld + col) : row(m, i)[col];
}
__device__ __forceinline__ void store_any(const cu_mat &m, int64_t i, int64_t col, float v)
{
    if (m.dt == CU_BF16)
        store1((bf16 *)m.p + i * m.ld + col, v);
    else
        store1((float *)m.p + i * m.ld + col, v);
}
__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}
__device__ __forceinline__ float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* Launchers. */
static inline bool is_f32(const cu_mat &m)
{
    return mat_ok(&m) && m.dt == CU_F32;
}
static inline bool opt_f32(const cu_mat &m, int32_t cols)
{
    return !m.p || (is_f32(m) && m.cols == cols);
}
static inline bool at_ok(const cu_step *s, const cu_state_at &at)
{
    return at.p && at.ld > 0 && s->seq_start && s->state_src && s->state_dst;
}
static inline launch_cfg cfg_of(const cu_step *s, int64_t units, int threads, cu_stream st)
{
    return {dim3((unsigned)units, (unsigned)s->seq_max),
            dim3((unsigned)threads),
            0,
            (cudaStream_t)st,
            0,
            false,
            false};
}

#endif
