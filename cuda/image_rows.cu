/* cu_rotate, cu_act, cu_gate_add: small work on rows. */
#include "cuda/image.cuh"

#define THREADS 128

struct rotate_args {
    cu_mat x, cos, sin;
    const float *norm;
    int64_t n;
    int32_t n_head, head_dim, style;
    float eps;
};

/* A warp a (row, head); one warp a block of 128 threads each. */
static __global__ void __launch_bounds__(THREADS) rotate(rotate_args a)
{
    const int64_t at = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32, d = a.head_dim, half = d / 2;
    const bool ok = at < a.n * a.n_head;
    const int64_t row = ok ? at / a.n_head : 0;
    float *x = row_at<float>(a.x, row) + (ok ? at % a.n_head : 0) * d;
    if (a.norm) {
        float sum = 0;
        for (int i = lane; ok && i < d; i += 32)
            sum = __fmaf_rn(x[i], x[i], sum);
        const float inv = 1.0f / sqrtf(warp_sum(sum) / (float)d + a.eps);
        for (int i = lane; ok && i < d; i += 32)
            x[i] = __fmul_rn(__fmul_rn(x[i], inv), a.norm[i]);
    }
    if (!a.cos.p)
        return;
    __syncwarp();
    const float *c = row_at<const float>(a.cos, row), *s = row_at<const float>(a.sin, row);
    for (int i = lane; ok && i < half; i += 32) {
        const int p = a.style == CU_ROPE_NORM ? 2 * i : i,
                  q = a.style == CU_ROPE_NORM ? p + 1 : half + i;
        const float u = x[p], v = x[q];
        x[p] = __fsub_rn(__fmul_rn(u, c[i]), __fmul_rn(v, s[i]));
        x[q] = __fadd_rn(__fmul_rn(u, s[i]), __fmul_rn(v, c[i]));
    }
}

template <class T, class S, int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    act_rows(cu_mat dst, cu_mat x, int64_t n, int act)
{
    EACH_ROW(row, n)
    {
        EACH_COL(k, x.cols, N)
        {
            float v[N];
            load_n(v, row_at<const S>(x, row) + k);
#pragma unroll
            for (int i = 0; i < N; i++)
                v[i] = image_act(v[i], act);
            store_n(row_at<T>(dst, row) + k, v);
        }
    }
}

template <int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    gate_add(cu_mat x, cu_mat y, cu_mat gate, const int32_t *start, int n_seg, int64_t n,
             float factor)
{
    EACH_ROW(row, n)
    {
        const float *g = gate.p ? row_at<const float>(gate, seg_of(start, n_seg, row)) : nullptr;
        EACH_COL(k, x.cols, N)
        {
            float v[N], u[N], f[N];
            load_n(v, row_at<const float>(x, row) + k);
            load_n(u, row_at<const float>(y, row) + k);
            if (g)
                load_n(f, g + k);
#pragma unroll
            for (int i = 0; i < N; i++)
                v[i] = __fmaf_rn(g ? __fmul_rn(factor, f[i]) : factor, u[i], v[i]);
            store_n(row_at<float>(x, row) + k, v);
        }
    }
}

/* ------------------------------------------------------------------ launch */

extern "C" int cu_rotate(const struct cu_rotate *a, cu_stream st)
{
    if (!mat_ok(&a->x) || a->x.dt != CU_F32 || a->n_head < 1 || a->head_dim < 1 ||
        a->x.cols != (int64_t)a->n_head * a->head_dim || !a->cos.p != !a->sin.p)
        return CU_BAD;
    if (a->cos.p && (!mat_ok(&a->cos) || !mat_ok(&a->sin) || a->head_dim % 2 ||
                     a->cos.cols != a->head_dim / 2 || a->sin.cols != a->head_dim / 2 ||
                     (a->style != CU_ROPE_NORM && a->style != CU_ROPE_NEOX)))
        return CU_BAD;
    const unsigned grid = grid_of(a->n * a->n_head, THREADS / 32);
    if (a->n == 0)
        return 0;
    const rotate_args r = {a->x,      a->cos,      a->sin,   a->norm, a->n,
                           a->n_head, a->head_dim, a->style, a->eps};
    return grid ? launched(launch(cfg_of(dim3(grid), THREADS, st), rotate, r)) : CU_BAD;
}

extern "C" int cu_act(const struct cu_act *a, cu_stream st)
{
    if (!mat_ok(&a->x) || !mat_ok(&a->dst) || a->dst.cols != a->x.cols || a->n < 0)
        return CU_BAD;
    if (a->n == 0)
        return 0;
    const bool to = a->dst.dt == CU_BF16, from = a->x.dt == CU_BF16,
               four = rows_vec4(a->x.cols, {&a->dst, &a->x});
    auto k = to ? (from ? (four ? act_rows<bf16, bf16, 4> : act_rows<bf16, bf16, 1>)
                        : (four ? act_rows<bf16, float, 4> : act_rows<bf16, float, 1>))
                : (from ? (four ? act_rows<float, bf16, 4> : act_rows<float, bf16, 1>)
                        : (four ? act_rows<float, float, 4> : act_rows<float, float, 1>));
    return launched(launch(rows_cfg(a->n, a->x.cols, st), k, a->dst, a->x, a->n, a->act));
}

extern "C" int cu_gate_add(const struct cu_gate_add *a, cu_stream st)
{
    if (!mat_ok(&a->x) || !mat_ok(&a->y) || a->x.dt != CU_F32 || a->y.dt != CU_F32 ||
        a->y.cols != a->x.cols ||
        (a->gate.p && (!layout_ok(a->l) || !mat_ok(&a->gate) || a->gate.cols != a->x.cols)))
        return CU_BAD;
    if (a->n == 0)
        return 0;
    const bool four = rows_vec4(a->x.cols, {&a->x, &a->y, &a->gate});
    return launched(launch(rows_cfg(a->n, a->x.cols, st), four ? gate_add<4> : gate_add<1>, a->x,
                           a->y, a->gate, a->l ? a->l->start : nullptr, a->l ? a->l->n_seg : 0,
                           a->n, a->factor));
}
