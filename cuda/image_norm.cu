/* cu_group_norm (Wu and He 2018) and cu_layer_norm (adaptive: Peebles and Xie 2023). Group norm in three launches: sums of
 * each channel over chunks of CU_CHUNK_ROWS rows at fixed places, one factor and one term for each segment and channel,
 * then the rows. Sums in double: a mean far from zero must not eat the variance. Bound: 1e-11 NMSE of the reference in
 * f32, its rounding in bf16. */
#include "cuda/image.cuh"

#define THREADS        128
#define WARPS          (THREADS / 32)
#define FACTOR_THREADS 256

/* Block (chunk, 128 channels): part[chunk][sum, square][c]. */
static __global__ void __launch_bounds__(THREADS)
    channel_sums(cu_mat x, const int32_t *start, const int32_t *chunk, int n_seg, double *part)
{
    const int c = (int)blockIdx.y * THREADS + (int)threadIdx.x;
    if (c >= x.cols)
        return;
    const int k = (int)blockIdx.x, s = seg_of(chunk, n_seg, k);
    const int64_t from = start[s] + (int64_t)(k - chunk[s]) * CU_CHUNK_ROWS;
    const int n = (int)min((int64_t)CU_CHUNK_ROWS, start[s + 1] - from);
    const float *p = row_at<const float>(x, from) + c;
    double sum = 0, sq = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        const double v = (double)p[i * x.ld];
        sum += v;
        sq += v * v;
    }
    part[((int64_t)k * 2) * x.cols + c] = sum;
    part[((int64_t)k * 2 + 1) * x.cols + c] = sq;
}

/* Block (segment, group): mul[segment][c], then add alike. A thread sums one channel of every so many chunks. */
static __global__ void __launch_bounds__(FACTOR_THREADS)
    group_factors(const double *part, float *mul, float *add, int c, int per, const int32_t *start,
                  const int32_t *chunk, const float *w, const float *b, float eps)
{
    SHARED(double, red, [2 * FACTOR_THREADS]);
    const int s = (int)blockIdx.x, g = (int)blockIdx.y, t = (int)threadIdx.x;
    const int n_chunk = chunk[s + 1] - chunk[s], wide = min(per, FACTOR_THREADS),
              deep = FACTOR_THREADS / wide;
    const double *first = part + (int64_t)chunk[s] * 2 * c + g * per;
    double sum = 0, sq = 0;
    for (int ch = t % wide; ch < per && t < wide * deep; ch += wide)
#pragma unroll 2
        for (int k = t / wide; k < n_chunk; k += deep) {
            const double *p = first + (int64_t)k * 2 * c + ch;
            sum += p[0];
            sq += p[c];
        }
    red[t] = sum;
    red[FACTOR_THREADS + t] = sq;
    __syncthreads();
    for (int o = FACTOR_THREADS / 2; o; o /= 2) {
        if (t < o) {
            red[t] += red[t + o];
            red[FACTOR_THREADS + t] += red[FACTOR_THREADS + t + o];
        }
        __syncthreads();
    }
    const double n = (double)per * (double)(start[s + 1] - start[s]);
    const double mean = n > 0 ? red[0] / n : 0,
                 var = n > 0 ? red[FACTOR_THREADS] / n - mean * mean : 0;
    const double inv = 1 / sqrt((var > 0 ? var : 0) + (double)eps);
    for (int k = g * per + t; k < (g + 1) * per; k += FACTOR_THREADS) {
        mul[(int64_t)s * c + k] = (float)(inv * (double)w[k]);
        add[(int64_t)s * c + k] = (float)((double)b[k] - mean * inv * (double)w[k]);
    }
}

template <class T, int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    affine(cu_mat dst, cu_mat x, const float *mul, const float *add, const int32_t *start,
           int n_seg, int64_t n, int act)
{
    EACH_ROW(row, n)
    {
        const int64_t at = (int64_t)seg_of(start, n_seg, row) * x.cols;
        EACH_COL(k, x.cols, N)
        {
            float v[N], m[N], b[N];
            load_n(v, row_at<const float>(x, row) + k);
            load_n(m, mul + at + k);
            load_n(b, add + at + k);
#pragma unroll
            for (int i = 0; i < N; i++)
                v[i] = image_act(__fmaf_rn(v[i], m[i], b[i]), act);
            store_n(row_at<T>(dst, row) + k, v);
        }
    }
}

struct layer_args {
    cu_mat dst, x, scale, shift;
    const float *w, *b;
    const int32_t *start;
    int32_t n_seg, rms;
    float eps;
};

/* Up to four values of a vector: all of them at once when VEC. */
template <bool VEC> __device__ __forceinline__ void load4_of(float (&v)[4], const float *p, int n)
{
    if constexpr (VEC) {
        load_n(v, p);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = i < n ? p[i] : 0.0f;
    }
}

/* A block a row; thread t has columns 4 t + 512 i, whether they go four at a time or not: the same bits. */
template <class T, bool VEC>
static __global__ void __launch_bounds__(THREADS) layer_norm(layer_args a)
{
    SHARED(float, red, [WARPS]);
    const int64_t row = blockIdx.x;
    const float *x = row_at<const float>(a.x, row);
    const int d = a.x.cols, s = a.start ? seg_of(a.start, a.n_seg, row) : 0,
              first = (int)threadIdx.x * 4;
    float sum = 0, sq = 0, v[4];
    for (int k = first; !a.rms && k < d; k += THREADS * 4) {
        load4_of<VEC>(v, x + k, d - k);
        sum = __fadd_rn(sum, __fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3])));
    }
    const float mean = a.rms ? 0.0f : block_sum<WARPS>(sum, red) / (float)d;
    for (int k = first; k < d; k += THREADS * 4) {
        load4_of<VEC>(v, x + k, d - k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float u = VEC || i < d - k ? __fsub_rn(v[i], mean) : 0.0f;
            sq = __fmaf_rn(u, u, sq);
        }
    }
    const float inv = 1.0f / sqrtf(block_sum<WARPS>(sq, red) / (float)d + a.eps);
    for (int k = first; k < d; k += THREADS * 4) {
        const int n = d - k;
        float p[4];
        load4_of<VEC>(v, x + k, n);
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = __fmul_rn(__fsub_rn(v[i], mean), inv);
        if (a.w) {
            load4_of<VEC>(p, a.w + k, n);
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = __fmul_rn(v[i], p[i]);
        }
        if (a.b) {
            load4_of<VEC>(p, a.b + k, n);
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = __fadd_rn(v[i], p[i]);
        }
        if (a.scale.p) {
            load4_of<VEC>(p, row_at<const float>(a.scale, s) + k, n);
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = __fmul_rn(v[i], __fadd_rn(1.0f, p[i]));
        }
        if (a.shift.p) {
            load4_of<VEC>(p, row_at<const float>(a.shift, s) + k, n);
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = __fadd_rn(v[i], p[i]);
        }
        T *to = row_at<T>(a.dst, row) + k;
        if (VEC) {
            store_n(to, v);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < n)
                    store1(to + i, v[i]);
        }
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
        rc = launched(
            launch(cfg_of(dim3((unsigned)y->n_seg, (unsigned)a->groups), FACTOR_THREADS, st),
                   group_factors, part, mul, add, c, c / a->groups, y->start, y->chunk, a->w, a->b,
                   a->eps));
    if (rc)
        return rc;
    const bool bf = a->dst.dt == CU_BF16, four = rows_vec4(c, {&a->dst, &a->x});
    auto k = bf ? (four ? affine<bf16, 4> : affine<bf16, 1>)
                : (four ? affine<float, 4> : affine<float, 1>);
    return launched(launch(rows_cfg(y->n_row, c, st), k, a->dst, a->x, mul, add, y->start, y->n_seg,
                           y->n_row, a->act));
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
    const bool bf = a->dst.dt == CU_BF16,
               vec = rows_vec4(a->x.cols, {&a->dst, &a->x, &a->scale, &a->shift}) &&
                     (uintptr_t)a->w % 16 == 0 && (uintptr_t)a->b % 16 == 0;
    auto k = bf ? (vec ? layer_norm<bf16, true> : layer_norm<bf16, false>)
                : (vec ? layer_norm<float, true> : layer_norm<float, false>);
    return launched(launch(g, k, l));
}
