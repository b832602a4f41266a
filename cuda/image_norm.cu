/* cu_group_norm (Wu and He 2018) and cu_layer_norm (adaptive: Peebles and Xie 2023). Group norm in three launches: sums of
 * each channel over chunks of CU_CHUNK_ROWS rows at fixed places, one factor and one term for each segment and channel,
 * then the rows. Sums in double: a mean far from zero must not eat the variance. Bound: 1e-11 NMSE of the reference in
 * f32, its rounding in bf16. */
#include "cuda/image.cuh"

#define THREADS 128
#define WARPS   (THREADS / 32)

/* Block (chunk, 128 channels): part[chunk][sum, square][c]. */
static __global__ void __launch_bounds__(THREADS)
    channel_sums(cu_mat x, const int32_t *start, const int32_t *chunk, int n_seg, double *part)
{
    const int c = (int)blockIdx.y * THREADS + (int)threadIdx.x;
    if (c >= x.cols)
        return;
    const int k = (int)blockIdx.x, s = seg_of(chunk, n_seg, k);
    const int64_t from = start[s] + (int64_t)(k - chunk[s]) * CU_CHUNK_ROWS,
                  to = min(from + CU_CHUNK_ROWS, (int64_t)start[s + 1]);
    double sum = 0, sq = 0;
    for (int64_t i = from; i < to; i++) {
        const double v = (double)row_at<const float>(x, i)[c];
        sum += v;
        sq += v * v;
    }
    part[((int64_t)k * 2) * x.cols + c] = sum;
    part[((int64_t)k * 2 + 1) * x.cols + c] = sq;
}

/* Block (segment, group): mul[segment][c], then add alike. */
static __global__ void __launch_bounds__(THREADS)
    group_factors(const double *part, float *mul, float *add, int c, int per, const int32_t *start,
                  const int32_t *chunk, const float *w, const float *b, float eps)
{
    SHARED(double, red, [2 * THREADS]);
    const int s = (int)blockIdx.x, g = (int)blockIdx.y, t = (int)threadIdx.x;
    const int64_t n_chunk = chunk[s + 1] - chunk[s], all = n_chunk * per;
    double sum = 0, sq = 0;
    for (int64_t i = t; i < all; i += THREADS) {
        const double *p = part + (chunk[s] + i / per) * 2 * c + g * per + i % per;
        sum += p[0];
        sq += p[c];
    }
    red[t] = sum;
    red[THREADS + t] = sq;
    __syncthreads();
    for (int o = THREADS / 2; o; o /= 2) {
        if (t < o) {
            red[t] += red[t + o];
            red[THREADS + t] += red[THREADS + t + o];
        }
        __syncthreads();
    }
    const double n = (double)per * (double)(start[s + 1] - start[s]);
    const double mean = n > 0 ? red[0] / n : 0, var = n > 0 ? red[THREADS] / n - mean * mean : 0;
    const double inv = 1 / sqrt((var > 0 ? var : 0) + (double)eps);
    for (int k = g * per + t; k < (g + 1) * per; k += THREADS) {
        mul[(int64_t)s * c + k] = (float)(inv * (double)w[k]);
        add[(int64_t)s * c + k] = (float)((double)b[k] - mean * inv * (double)w[k]);
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    affine(cu_mat dst, cu_mat x, const float *mul, const float *add, const int32_t *start,
           int n_seg, int act)
{
    const int64_t row = blockIdx.x;
    const int64_t at = (int64_t)seg_of(start, n_seg, row) * x.cols;
    for (int k = (int)threadIdx.x; k < x.cols; k += THREADS) {
        const float v = __fmaf_rn(row_at<const float>(x, row)[k], mul[at + k], add[at + k]);
        store1(row_at<T>(dst, row) + k, image_act(v, act));
    }
}

struct layer_args {
    cu_mat dst, x, scale, shift;
    const float *w, *b;
    const int32_t *start;
    int32_t n_seg, rms;
    float eps;
};

template <class T> static __global__ void __launch_bounds__(THREADS) layer_norm(layer_args a)
{
    SHARED(float, red, [WARPS]);
    const int64_t row = blockIdx.x;
    const float *x = row_at<const float>(a.x, row);
    const int d = a.x.cols, s = a.start ? seg_of(a.start, a.n_seg, row) : 0;
    float sum = 0, sq = 0;
    if (!a.rms)
        for (int k = (int)threadIdx.x; k < d; k += THREADS)
            sum = __fadd_rn(sum, x[k]);
    const float mean = a.rms ? 0.0f : block_sum<WARPS>(sum, red) / (float)d;
    for (int k = (int)threadIdx.x; k < d; k += THREADS) {
        const float v = __fsub_rn(x[k], mean);
        sq = __fmaf_rn(v, v, sq);
    }
    const float inv = 1.0f / sqrtf(block_sum<WARPS>(sq, red) / (float)d + a.eps);
    for (int k = (int)threadIdx.x; k < d; k += THREADS) {
        float v = __fmul_rn(__fsub_rn(x[k], mean), inv);
        v = a.w ? __fmul_rn(v, a.w[k]) : v;
        v = a.b ? __fadd_rn(v, a.b[k]) : v;
        if (a.scale.p)
            v = __fmul_rn(v, 1.0f + row_at<const float>(a.scale, s)[k]);
        if (a.shift.p)
            v = __fadd_rn(v, row_at<const float>(a.shift, s)[k]);
        store1(row_at<T>(a.dst, row) + k, v);
    }
}

/* ------------------------------------------------------------------ launch */

extern "C" size_t cu_group_norm_ws(const struct cu_layout *y, int c)
{
    return (size_t)y->n_chunk * 2 * (size_t)c * sizeof(double) +
           (size_t)y->n_seg * 2 * (size_t)c * sizeof(float);
}

extern "C" int cu_group_norm(const struct cu_group_norm *a, cu_stream st)
{
    const struct cu_layout *y = a->y;
    const int c = a->x.cols;
    if (!mat_ok(&a->x) || a->x.dt != CU_F32 || !mat_ok(&a->dst) || a->dst.cols != c ||
        !layout_ok(y) || !a->w || !a->b || a->groups < 1 || c % a->groups || !a->ws ||
        (uintptr_t)a->ws % 16 || !(a->eps >= 0) || y->n_row > 0x7fffffff)
        return CU_BAD;
    if (y->n_row == 0)
        return 0;
    double *part = (double *)a->ws;
    float *mul = (float *)(part + (int64_t)y->n_chunk * 2 * c), *add = mul + (int64_t)y->n_seg * c;
    const unsigned cols = (unsigned)((c + THREADS - 1) / THREADS);
    int rc = launched(launch(cfg_of(dim3((unsigned)y->n_chunk, cols), THREADS, st), channel_sums,
                             a->x, y->start, y->chunk, y->n_seg, part));
    if (!rc)
        rc = launched(launch(cfg_of(dim3((unsigned)y->n_seg, (unsigned)a->groups), THREADS, st),
                             group_factors, part, mul, add, c, c / a->groups, y->start, y->chunk,
                             a->w, a->b, a->eps));
    if (rc)
        return rc;
    launch_cfg g = cfg_of(dim3((unsigned)y->n_row), THREADS, st);
    return launched(launch(g, a->dst.dt == CU_BF16 ? affine<bf16> : affine<float>, a->dst, a->x,
                           mul, add, y->start, y->n_seg, a->act));
}

static bool by_seg(const cu_mat *m, const struct cu_layer_norm *a)
{
    return !m->p || (layout_ok(a->y) && mat_ok(m) && m->dt == CU_F32 && m->cols == a->x.cols);
}

extern "C" int cu_layer_norm(const struct cu_layer_norm *a, cu_stream st)
{
    if (!mat_ok(&a->x) || a->x.dt != CU_F32 || !mat_ok(&a->dst) || a->dst.cols != a->x.cols ||
        !by_seg(&a->scale, a) || !by_seg(&a->shift, a) || !(a->eps >= 0) || a->n > 0x7fffffff)
        return CU_BAD;
    if (a->n == 0)
        return 0;
    const layer_args l = {a->dst,
                          a->x,
                          a->scale,
                          a->shift,
                          a->w,
                          a->b,
                          a->y ? a->y->start : nullptr,
                          a->y ? a->y->n_seg : 0,
                          a->rms,
                          a->eps};
    launch_cfg g = cfg_of(dim3((unsigned)a->n), THREADS, st);
    return launched(launch(g, a->dst.dt == CU_BF16 ? layer_norm<bf16> : layer_norm<float>, l));
}
