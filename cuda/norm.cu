/* cu_rmsnorm: x += add (f32, in place), dst = x / sqrt(mean(x^2) + eps) * w, f32 or bf16 (Zhang and Sennrich 2019); with
 * `center` the layer norm of Ba et al. 2016, + b.
 * One block of 256 threads a row; thread t sums columns t * 4 + k * 1024 and the block sums its threads in one tree, so
 * a row's bits depend on the row alone. Any d, any ld; four values at a time where rows are aligned. Bound: the
 * reference to 1e-12 NMSE in f32, its rounding in bf16. */
#include "cuda/kern.cuh"

#define THREADS 256

/* VEC: columns go four at a time; the order of the sum is the same. */
template <class T, bool VEC>
static __global__ void __launch_bounds__(THREADS)
    rmsnorm(T *dst, int64_t ld_dst, float *x, int64_t ld_x, const float *add, int64_t ld_add,
            const float *w, int d, float eps, const cu_count *count, int rows)
{
    SHARED(float, part, [THREADS / 32]);
    const int64_t row = blockIdx.x;
    if (row >= rows_of(count, rows))
        return;
    float *r = x + row * ld_x;
    const float *a = add ? add + row * ld_add : nullptr;
    float sum = 0;
    for (int k = (int)threadIdx.x * 4; k < d; k += THREADS * 4) {
        float v[4];
        const int n = min(4, d - k);
        if (VEC) {
            float4 q = *(const float4 *)(r + k);
            if (a) {
                const float4 b = *(const float4 *)(a + k);
                q = make_float4(__fadd_rn(q.x, b.x), __fadd_rn(q.y, b.y), __fadd_rn(q.z, b.z),
                                __fadd_rn(q.w, b.w));
                *(float4 *)(r + k) = q;
            }
            v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
        } else {
            for (int i = 0; i < n; i++) {
                v[i] = a ? __fadd_rn(r[k + i], a[k + i]) : r[k + i];
                if (a)
                    r[k + i] = v[i];
            }
        }
        for (int i = 0; i < n; i++)
            sum = __fmaf_rn(v[i], v[i], sum);
    }
    if (!dst)
        return;
    const float inv = 1.0f / sqrtf(block_sum<THREADS / 32>(sum, part) / (float)d + eps);
    T *o = dst + row * ld_dst;
    for (int k = (int)threadIdx.x * 4; k < d; k += THREADS * 4) {
        if (VEC) {
            const float4 q = *(const float4 *)(r + k),
                         b = w ? *(const float4 *)(w + k) : make_float4(1, 1, 1, 1);
            store4(o + k, make_float4(__fmul_rn(__fmul_rn(q.x, inv), b.x),
                                      __fmul_rn(__fmul_rn(q.y, inv), b.y),
                                      __fmul_rn(__fmul_rn(q.z, inv), b.z),
                                      __fmul_rn(__fmul_rn(q.w, inv), b.w)));
        } else {
            for (int i = 0; i < min(4, d - k); i++)
                store1(o + k + i, __fmul_rn(__fmul_rn(r[k + i], inv), w ? w[k + i] : 1.0f));
        }
    }
}

struct layer_args {
    const float *add, *w, *b;
    int64_t ld_dst, ld_x, ld_add;
    int d, rows, center;
    float eps;
};

/* Thread t sums columns t + k * 256: first the mean (with center), then the squares of what is left. */
template <class T, class X>
static __global__ void __launch_bounds__(THREADS)
    layernorm(T *dst, X *x, layer_args a, const cu_count *count)
{
    SHARED(float, part, [THREADS / 32]);
    const int64_t row = blockIdx.x;
    if (row >= rows_of(count, a.rows))
        return;
    X *r = x + row * a.ld_x;
    float sum = 0, sq = 0;
    for (int k = (int)threadIdx.x; k < a.d; k += THREADS) {
        if (a.add)
            store1(r + k, __fadd_rn(load1(r + k), a.add[row * a.ld_add + k]));
        sum = __fadd_rn(sum, load1(r + k));
    }
    const float mean = a.center ? block_sum<THREADS / 32>(sum, part) / (float)a.d : 0;
    for (int k = (int)threadIdx.x; k < a.d; k += THREADS) {
        const float v = __fsub_rn(load1(r + k), mean);
        sq = __fmaf_rn(v, v, sq);
    }
    const float inv = 1.0f / sqrtf(block_sum<THREADS / 32>(sq, part) / (float)a.d + a.eps);
    for (int k = (int)threadIdx.x; k < a.d; k += THREADS) {
        const float v =
            __fmul_rn(__fmul_rn(__fsub_rn(load1(r + k), mean), inv), a.w ? a.w[k] : 1.0f);
        store1(dst + row * a.ld_dst + k, a.b ? __fadd_rn(v, a.b[k]) : v);
    }
}

/* ------------------------------------------------------------------ launch */

template <class T> static int go(const struct cu_rmsnorm *a, const cu_step *s, cu_stream st)
{
    const int n = rows_max(s, a->rows), d = a->x.cols;
    if (a->dst.p && (a->center || a->x.dt != CU_F32)) {
        layer_args l = {(const float *)a->add.p,
                        a->w,
                        a->b,
                        a->dst.ld,
                        a->x.ld,
                        a->add.ld,
                        d,
                        (int)a->rows,
                        a->center,
                        a->eps};
        launch_cfg lc = {dim3((unsigned)n), dim3(THREADS), 0, (cudaStream_t)st, 0, false, false};
        if (a->x.dt == CU_BF16)
            return launched(
                launch(lc, layernorm<T, bf16>, (T *)a->dst.p, (bf16 *)a->x.p, l, s->count));
        return launched(
            launch(lc, layernorm<T, float>, (T *)a->dst.p, (float *)a->x.p, l, s->count));
    }
    const bool vec = d % 4 == 0 && mat_vec4(&a->x) && (!a->add.p || mat_vec4(&a->add)) &&
                     (!a->dst.p || (mat_vec4(&a->dst) && (uintptr_t)a->w % 16 == 0));
    launch_cfg c = {dim3((unsigned)n), dim3(THREADS), 0, (cudaStream_t)st, 0, false, false};
    return launched(launch(c, vec ? rmsnorm<T, true> : rmsnorm<T, false>, (T *)a->dst.p, a->dst.ld,
                           (float *)a->x.p, a->x.ld, (const float *)a->add.p, a->add.ld, a->w, d,
                           a->eps, s->count, (int)a->rows));
}

extern "C" int cu_rmsnorm(const struct cu_rmsnorm *a, const struct cu_step *s, cu_stream st)
{
    if (!mat_ok(&a->x) || (a->x.dt != CU_F32 && a->add.p) || (!a->dst.p && !a->add.p))
        return CU_BAD;
    if (a->add.p && (!mat_ok(&a->add) || a->add.dt != CU_F32 || a->add.cols != a->x.cols))
        return CU_BAD;
    if (a->dst.p && (!mat_ok(&a->dst) || a->dst.cols != a->x.cols || !(a->eps >= 0)))
        return CU_BAD;
    if (a->b && !a->center)
        return CU_BAD;
    if (rows_max(s, a->rows) <= 0)
        return 0;
    return a->dst.p && a->dst.dt == CU_BF16 ? go<bf16>(a, s, st) : go<float>(a, s, st);
}
