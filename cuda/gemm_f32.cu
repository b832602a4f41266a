/* dst = src * w^T + bias in f32, no tensor cores: the oracle mode. A thread computes ROWS rows of one output, k from 0
 * up: a row's bits depend on the row alone. Any shape. Bound: 1e-11 NMSE of the reference. */
#include "cuda/gemm.h"
#include "cuda/kern.cuh"

#define THREADS 128
#define ROWS    8

static __global__ void __launch_bounds__(THREADS)
    gemm_f32(float *dst, int64_t ld_dst, const float *src, int64_t ld_src, const float *w,
             const float *bias, int n_in, int n_out, const cu_count *count, int rows,
             cu_after after)
{
    const int col = (int)blockIdx.x * THREADS + (int)threadIdx.x, r0 = (int)blockIdx.y * ROWS;
    const int n = min(rows_of(count, rows) - r0, ROWS);
    if (col >= n_out || n <= 0)
        return;
    const float *wr = w + (int64_t)col * n_in, *x = src + (int64_t)r0 * ld_src;
    float acc[ROWS] = {};
    for (int k = 0; k < n_in; k++) {
        const float v = wr[k];
        for (int i = 0; i < ROWS; i++)
            if (i < n)
                acc[i] = __fmaf_rn(x[i * ld_src + k], v, acc[i]);
    }
    for (int i = 0; i < n; i++)
        dst[(int64_t)(r0 + i) * ld_dst + col] =
            after_do(after, bias ? __fadd_rn(acc[i], bias[col]) : acc[i], r0 + i, col);
}

/* ------------------------------------------------------------------ launch */

extern "C" int cu_gemm_f32(const struct cu_linear *a, int part, int64_t col,
                           const struct cu_step *s, cu_stream st)
{
    const struct cu_part *p = &a->w->part[part];
    const int n = rows_max(s, a->rows);
    if (p->bits != 32 || a->src.dt != CU_F32)
        return CU_BAD;
    launch_cfg c = {
        dim3((unsigned)((p->n_out + THREADS - 1) / THREADS), (unsigned)((n + ROWS - 1) / ROWS)),
        dim3(THREADS),
        0,
        (cudaStream_t)st,
        0,
        false,
        false};
    return launched(launch(c, gemm_f32, (float *)a->dst.p + col, a->dst.ld, (const float *)a->src.p,
                           a->src.ld, (const float *)p->data, a->bias ? a->bias + col : nullptr,
                           (int)a->w->n_in, (int)p->n_out, s->count, (int)a->rows,
                           after_from(a->after, col)));
}
