/* Element-wise rows: gated activation, gather, scale with soft cap. f32 arithmetic, one thread four values; every
 * element is a function of its own inputs alone. Any width, pitch and alignment.
 *   act_mul  dst[i, k] = act(gate_up[i, k]) * gate_up[i, d + k]; gate_up f32 [n, 2 d], dst f32 or bf16 [n, d];
 *            single: dst[i, k] = act(gate_up[i, k]), gate_up [n, d]
 *   gather   dst[i, :] = src[logit_row[i], :]; both f32 or both bf16
 *   scale    x = softcap * tanh(x / softcap) if softcap > 0; x *= scale; f32 */
#include "cuda/kern.cuh"

#define ACT_THREADS 256
#define COLS_MAX    (1 << 28)

/* A group of four values is the unit whether it moves as one vector or one by one: alignment changes no bit. */

/* x[k, k + 4) of a row of n values; zeros past its end. V: x is 16-byte aligned. */
template <bool V> static __device__ __forceinline__ float4 row_load(const float *x, int k, int n)
{
    if (V && k + 4 <= n)
        return *reinterpret_cast<const float4 *>(x + k);
    float4 v = make_float4(0, 0, 0, 0);
    if (k < n)
        v.x = x[k];
    if (k + 1 < n)
        v.y = x[k + 1];
    if (k + 2 < n)
        v.z = x[k + 2];
    if (k + 3 < n)
        v.w = x[k + 3];
    return v;
}

template <bool V> static __device__ __forceinline__ void row_store(float *x, int k, int n, float4 v)
{
    if (V && k + 4 <= n) {
        *reinterpret_cast<float4 *>(x + k) = v;
        return;
    }
    if (k < n)
        x[k] = v.x;
    if (k + 1 < n)
        x[k + 1] = v.y;
    if (k + 2 < n)
        x[k + 2] = v.z;
    if (k + 3 < n)
        x[k + 3] = v.w;
}

/* V: x is 8-byte aligned. */
template <bool V>
static __device__ __forceinline__ void row_store(__nv_bfloat16 *x, int k, int n, float4 v)
{
    if (V && k + 4 <= n) {
        store4(x + k, v);
        return;
    }
    if (k < n)
        x[k] = __float2bfloat16(v.x);
    if (k + 1 < n)
        x[k + 1] = __float2bfloat16(v.y);
    if (k + 2 < n)
        x[k + 2] = __float2bfloat16(v.z);
    if (k + 3 < n)
        x[k + 3] = __float2bfloat16(v.w);
}

template <int ACT> static __device__ __forceinline__ float act(float x)
{
    if (ACT == CU_ACT_RELU)
        return fmaxf(x, 0);
    if (ACT == CU_ACT_RELU2)
        return __fmul_rn(fmaxf(x, 0), fmaxf(x, 0));
    if (ACT == CU_ACT_SILU)
        return __fdiv_rn(x, __fadd_rn(1, expf(-x)));
    if (ACT == CU_ACT_GELU_TANH) {
        float x3 = __fmul_rn(__fmul_rn(x, x), x);
        /* (1 + tanh t) / 2 = 1 / (1 + exp(-2 t)): no cancellation where tanh is near -1 */
        float t = __fmul_rn(-1.5957691216f, __fmaf_rn(0.044715f, x3, x));
        return __fdiv_rn(x, __fadd_rn(1, expf(t)));
    }
    return __fmul_rn(__fmul_rn(0.5f, x), erfcf(__fmul_rn(-x, 0.7071067812f)));
}

struct act_args {
    const float *src;
    void *dst;
    int64_t ld_src, ld_dst;
    const cu_count *count;
    int d, rows, single;
    float limit;
};

/* act(gate) * up; `u` is 1 without one, which changes no bit. */
template <int ACT> static __device__ __forceinline__ float gated(float g, float u, float limit)
{
    if (ACT != CU_ACT_SWIGLU_OAI)
        return __fmul_rn(act<ACT>(g), u);
    g = fminf(g, limit);
    u = fminf(fmaxf(u, -limit), limit);
    return __fmul_rn(__fadd_rn(u, 1), __fdiv_rn(g, __fadd_rn(1, expf(__fmul_rn(-1.702f, g)))));
}

template <class T, int ACT, bool V>
static __global__ void __launch_bounds__(ACT_THREADS) act_kernel(act_args a)
{
    int64_t row = blockIdx.x, k = ((int64_t)blockIdx.y * ACT_THREADS + threadIdx.x) * 4;
    if (row >= rows_of(a.count, a.rows) || k >= a.d)
        return;
    const float *src = a.src + row * a.ld_src;
    float4 g = row_load<V>(src, (int)k, a.d), u = make_float4(1, 1, 1, 1);
    if (!a.single)
        u = row_load<V>(src + a.d, (int)k, a.d);
    float4 o = make_float4(gated<ACT>(g.x, u.x, a.limit), gated<ACT>(g.y, u.y, a.limit),
                           gated<ACT>(g.z, u.z, a.limit), gated<ACT>(g.w, u.w, a.limit));
    row_store<V>(static_cast<T *>(a.dst) + row * a.ld_dst, (int)k, a.d, o);
}

struct scale_args {
    float *x;
    int64_t ld;
    const cu_count *count;
    const int32_t *pos;
    float scale, cap, clip, temper;
    int d, rows, every, from;
};

static __device__ __forceinline__ float scaled(float x, float clip, float cap, float scale)
{
    if (clip > 0)
        x = fminf(fmaxf(x, -clip), clip);
    if (cap > 0)
        x = __fmul_rn(cap, tanhf(__fdiv_rn(x, cap)));
    return __fmul_rn(x, scale);
}

template <bool V> static __global__ void __launch_bounds__(ACT_THREADS) scale_kernel(scale_args a)
{
    int64_t row = blockIdx.x, k = ((int64_t)blockIdx.y * ACT_THREADS + threadIdx.x) * 4;
    if (row >= rows_of(a.count, a.rows) || k >= a.d)
        return;
    float *x = a.x + row * a.ld;
    float4 v = row_load<V>(x, (int)k, a.d);
    float by = a.scale;
    if (a.temper > 0)
        by = (float)((double)by *
                     (1 + (double)a.temper * log(1.0 + (a.pos[row] + a.from) / a.every)));
    v = make_float4(scaled(v.x, a.clip, a.cap, by), scaled(v.y, a.clip, a.cap, by),
                    scaled(v.z, a.clip, a.cap, by), scaled(v.w, a.clip, a.cap, by));
    row_store<V>(x, (int)k, a.d, v);
}

struct gather_args {
    const char *src;
    char *dst;
    int64_t ld_src, ld_dst; /* bytes */
    const cu_count *count;
    const int32_t *logit_row;
    int64_t n; /* units of a row */
};

/* W: the unit that moves. */
template <class W>
static __global__ void __launch_bounds__(ACT_THREADS) gather_kernel(gather_args a)
{
    int64_t row = blockIdx.x, k = (int64_t)blockIdx.y * ACT_THREADS + threadIdx.x;
    if (row >= a.count->n_logit || k >= a.n)
        return;
    const W *src = reinterpret_cast<const W *>(a.src + a.logit_row[row] * a.ld_src);
    reinterpret_cast<W *>(a.dst + row * a.ld_dst)[k] = src[k];
}

/* ---------------------------------------------------------------- launch */

/* A block for each piece of ACT_THREADS units of each row; false: too many pieces. */
static bool rows_cfg(launch_cfg *c, int rows, int64_t units, cu_stream st)
{
    int64_t y = (units + ACT_THREADS - 1) / ACT_THREADS;
    *c = {};
    c->grid = dim3((unsigned)rows, (unsigned)y);
    c->block = dim3(ACT_THREADS);
    c->stream = (cudaStream_t)st;
    return y <= 65535;
}

template <class T, int ACT> static int act_launch(const launch_cfg &c, const act_args &a, bool v)
{
    return (int)(v ? launch(c, act_kernel<T, ACT, true>, a)
                   : launch(c, act_kernel<T, ACT, false>, a));
}

template <class T> static int act_switch(const launch_cfg &c, const act_args &a, int act, bool v)
{
    switch (act) {
    case CU_ACT_SILU:
        return act_launch<T, CU_ACT_SILU>(c, a, v);
    case CU_ACT_GELU_TANH:
        return act_launch<T, CU_ACT_GELU_TANH>(c, a, v);
    case CU_ACT_GELU_ERF:
        return act_launch<T, CU_ACT_GELU_ERF>(c, a, v);
    case CU_ACT_RELU:
        return act_launch<T, CU_ACT_RELU>(c, a, v);
    case CU_ACT_RELU2:
        return act_launch<T, CU_ACT_RELU2>(c, a, v);
    case CU_ACT_SWIGLU_OAI:
        return act_launch<T, CU_ACT_SWIGLU_OAI>(c, a, v);
    default:
        return CU_BAD;
    }
}

extern "C" int cu_act_mul(const struct cu_act_mul *a, const struct cu_step *s, cu_stream st)
{
    if (!mat_ok(&a->dst) || !mat_ok(&a->gate_up) || a->gate_up.dt != CU_F32 ||
        a->dst.cols > COLS_MAX || a->gate_up.cols != (a->single ? 1 : 2) * a->dst.cols)
        return CU_BAD;
    if (a->act < CU_ACT_SILU || a->act > CU_ACT_SWIGLU_OAI ||
        (a->act == CU_ACT_SWIGLU_OAI && (a->single || !(a->limit > 0))))
        return CU_BAD;
    int d = a->dst.cols, rows = rows_max(s, a->rows);
    launch_cfg c;
    if (!rows_cfg(&c, rows, (d + 3) / 4, st))
        return CU_BAD;
    if (rows <= 0)
        return 0;
    act_args k = {(const float *)a->gate_up.p,
                  a->dst.p,
                  a->gate_up.ld,
                  a->dst.ld,
                  s->count,
                  d,
                  (int)a->rows,
                  a->single,
                  a->limit};
    bool v = mat_vec4(&a->dst) && mat_vec4(&a->gate_up) && d % 4 == 0;
    return a->dst.dt == CU_F32 ? act_switch<float>(c, k, a->act, v)
                               : act_switch<__nv_bfloat16>(c, k, a->act, v);
}

extern "C" int cu_scale(const struct cu_scale *a, const struct cu_step *s, cu_stream st)
{
    if (!mat_ok(&a->x) || a->x.dt != CU_F32 || !(a->softcap >= 0) || a->x.cols > COLS_MAX)
        return CU_BAD;
    int d = a->x.cols, rows = rows_max(s, a->rows);
    launch_cfg c;
    if (!rows_cfg(&c, rows, (d + 3) / 4, st))
        return CU_BAD;
    if (rows <= 0)
        return 0;
    scale_args k = {(float *)a->x.p, a->x.ld,       s->count,  s->pos, a->scale,
                    a->softcap,      a->clip,       a->temper, d,      (int)a->rows,
                    a->temper_every, a->temper_from};
    return (int)(mat_vec4(&a->x) ? launch(c, scale_kernel<true>, k)
                                 : launch(c, scale_kernel<false>, k));
}

extern "C" int cu_gather(const struct cu_gather *a, const struct cu_step *s, cu_stream st)
{
    if (!s->logit_row || !mat_ok(&a->dst) || !mat_ok(&a->src) || a->src.dt != a->dst.dt ||
        a->src.cols != a->dst.cols || a->src.p == a->dst.p)
        return CU_BAD;
    int64_t e = a->dst.dt == CU_F32 ? 4 : 2, bytes = a->dst.cols * e;
    gather_args k = {(const char *)a->src.p,
                     (char *)a->dst.p,
                     a->src.ld * e,
                     a->dst.ld * e,
                     s->count,
                     s->logit_row,
                     0};
    bool v = ((uintptr_t)k.src | (uintptr_t)k.dst | (uintptr_t)k.ld_src | (uintptr_t)k.ld_dst |
              (uintptr_t)bytes) %
                 16 ==
             0;
    k.n = bytes / (v ? 16 : e);
    launch_cfg c;
    if (!rows_cfg(&c, s->logit_max, k.n, st))
        return CU_BAD;
    if (s->logit_max <= 0)
        return 0;
    if (v)
        return (int)launch(c, gather_kernel<uint4>, k);
    return (int)(e == 4 ? launch(c, gather_kernel<uint32_t>, k)
                        : launch(c, gather_kernel<uint16_t>, k));
}
