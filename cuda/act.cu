/* cu_act_mul: dst = act(gate) * up. cu_gather: rows by number. cu_scale: softcap and factor in place. All element by
 * element in f32, any shape; limited by memory. Bounds: 1e-12 NMSE of the reference in f32, its rounding in bf16. */
#include "cuda/kern.cuh"

#define THREADS 256

__device__ __forceinline__ float act_of(float x, int act)
{
    if (act == CU_ACT_SILU)
        return x / (1 + expf(-x));
    if (act == CU_ACT_GELU_TANH)
        return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    return 0.5f * x * erfcf(-x * 0.7071067812f);
}

/* Block (column chunk, row). */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    act_mul(T *dst, int64_t ld_dst, const float *src, int64_t ld_src, int d, int act,
            const cu_count *count, int rows)
{
    const int64_t row = blockIdx.y;
    const int k = ((int)blockIdx.x * THREADS + (int)threadIdx.x) * 4;
    if (row >= rows_of(count, rows))
        return;
    const float *g = src + row * ld_src, *u = g + d;
    for (int i = k; i < min(k + 4, d); i++)
        store1(dst + row * ld_dst + i, __fmul_rn(act_of(g[i], act), u[i]));
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    gather(T *dst, int64_t ld_dst, const T *src, int64_t ld_src, int d, const int32_t *which,
           const cu_count *count)
{
    const int64_t row = blockIdx.y;
    const int k = ((int)blockIdx.x * THREADS + (int)threadIdx.x) * 4;
    if (row >= count->n_logit)
        return;
    const T *r = src + (int64_t)which[row] * ld_src;
    for (int i = k; i < min(k + 4, d); i++)
        dst[row * ld_dst + i] = r[i];
}

static __global__ void __launch_bounds__(THREADS)
    scale(float *x, int64_t ld, int d, float factor, float softcap, const cu_count *count, int rows)
{
    const int64_t row = blockIdx.y;
    const int k = ((int)blockIdx.x * THREADS + (int)threadIdx.x) * 4;
    if (row >= rows_of(count, rows))
        return;
    for (int i = k; i < min(k + 4, d); i++) {
        float v = x[row * ld + i];
        if (softcap > 0)
            v = softcap * tanhf(v / softcap);
        x[row * ld + i] = v * factor;
    }
}

/* ------------------------------------------------------------------ launch */

static launch_cfg chunks(int d, int rows, cu_stream st)
{
    return {dim3((unsigned)((d + THREADS * 4 - 1) / (THREADS * 4)), (unsigned)rows),
            dim3(THREADS),
            0,
            (cudaStream_t)st,
            0,
            false,
            false};
}

extern "C" int cu_act_mul(const struct cu_act_mul *a, const struct cu_step *s, cu_stream st)
{
    const int n = rows_max(s, a->rows), d = a->dst.cols;
    if (!mat_ok(&a->dst) || !mat_ok(&a->gate_up) || a->gate_up.dt != CU_F32 ||
        a->gate_up.cols != 2 * d || a->act < 0 || a->act > CU_ACT_GELU_ERF || n > 65535)
        return CU_BAD;
    if (n <= 0)
        return 0;
    if (a->dst.dt == CU_BF16)
        return launched(launch(chunks(d, n, st), act_mul<bf16>, (bf16 *)a->dst.p, a->dst.ld,
                               (const float *)a->gate_up.p, a->gate_up.ld, d, a->act, s->count,
                               (int)a->rows));
    return launched(launch(chunks(d, n, st), act_mul<float>, (float *)a->dst.p, a->dst.ld,
                           (const float *)a->gate_up.p, a->gate_up.ld, d, a->act, s->count,
                           (int)a->rows));
}

extern "C" int cu_gather(const struct cu_gather *a, const struct cu_step *s, cu_stream st)
{
    const int n = s->logit_max, d = a->dst.cols;
    if (!mat_ok(&a->dst) || !mat_ok(&a->src) || a->src.dt != a->dst.dt || a->src.cols != d ||
        n > 65535)
        return CU_BAD;
    if (n <= 0)
        return 0;
    if (a->dst.dt == CU_BF16)
        return launched(launch(chunks(d, n, st), gather<bf16>, (bf16 *)a->dst.p, a->dst.ld,
                               (const bf16 *)a->src.p, a->src.ld, d, s->logit_row, s->count));
    return launched(launch(chunks(d, n, st), gather<float>, (float *)a->dst.p, a->dst.ld,
                           (const float *)a->src.p, a->src.ld, d, s->logit_row, s->count));
}

extern "C" int cu_scale(const struct cu_scale *a, const struct cu_step *s, cu_stream st)
{
    const int n = rows_max(s, a->rows);
    if (!mat_ok(&a->x) || a->x.dt != CU_F32 || !(a->softcap >= 0) || n > 65535)
        return CU_BAD;
    if (n <= 0)
        return 0;
    return launched(launch(chunks(a->x.cols, n, st), scale, (float *)a->x.p, a->x.ld, a->x.cols,
                           a->scale, a->softcap, s->count, (int)a->rows));
}
