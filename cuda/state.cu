/* cu_state_conv, cu_state_shift, cu_state_wkv: a thread a channel (128 a block), a block row a sequence; the thread goes
 * through its sequence's rows with the state in registers. cu_gated_norm: a block of 128 threads a row, groups one after
 * the other; thread t sums columns t + k * 128. Any d, any ld. f32 arithmetic; bound: the reference to 1e-11 NMSE, its
 * rounding in bf16. */
#include "cuda/state.cuh"

#define THREADS 128

static __global__ void __launch_bounds__(THREADS) conv_kernel(struct cu_state_conv a, seqs q)
{
    const span s = span_of(q, a.at);
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x, d = a.x.cols;
    if (c >= d || s.from == s.to)
        return;
    float w[CU_CONV_MAX], old[CU_CONV_MAX];
    for (int j = 0; j < a.k; j++)
        w[j] = a.w[c * a.k + j];
    for (int j = 0; j < a.k - 1; j++)
        old[j] = s.src ? s.src[j * d + c] : 0;
    const float bias = a.bias ? a.bias[c] : 0;
    for (int64_t i = s.from; i < s.to; i++) {
        float now = row(a.x, i)[c], v = bias;
        if (a.in.p)
            now = __fmul_rn(now, row(a.in, i)[c]);
        for (int j = 0; j < a.k - 1; j++)
            v = __fmaf_rn(w[j], old[j], v);
        v = __fmaf_rn(w[a.k - 1], now, v);
        if (a.silu)
            v = __fmul_rn(v, sigmoid(v));
        if (a.out.p)
            v = __fmul_rn(v, row(a.out, i)[c]);
        for (int j = 0; j < a.k - 2; j++)
            old[j] = old[j + 1];
        old[a.k - 2] = now;
        store_any(a.dst, i, c, v);
        if (a.mul.p)
            store_any(a.mul, i, c, v);
    }
    for (int j = 0; j < a.k - 1; j++)
        s.dst[j * d + c] = old[j];
}

static __global__ void __launch_bounds__(THREADS) shift_kernel(struct cu_state_shift a, seqs q)
{
    const span s = span_of(q, a.at);
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x, d = a.x.cols;
    if (c >= d || s.from == s.to)
        return;
    float old = s.src ? s.src[c] : 0;
    for (int64_t i = s.from; i < s.to; i++) {
        const float now = load_any(a.x, i, c);
        for (int j = 0; j < a.n_mix; j++) {
            const float w = a.mix[j * d + c];
            store_any(a.dst, i, j * d + c, __fmaf_rn(now, w, __fmul_rn(old, __fsub_rn(1, w))));
        }
        old = now;
    }
    s.dst[c] = old;
}

static __global__ void __launch_bounds__(THREADS) wkv_kernel(struct cu_state_wkv a, seqs q)
{
    const span s = span_of(q, a.at);
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x, d = a.k.cols;
    if (c >= d || s.from == s.to)
        return;
    float num = s.src ? s.src[c] : 0, den = s.src ? s.src[d + c] : 0;
    float top = s.src ? s.src[2 * d + c] : -1e38f;
    const float decay = a.decay[c], first = a.first[c];
    for (int64_t i = s.from; i < s.to; i++) {
        const float k = row(a.k, i)[c], v = row(a.v, i)[c], now = __fadd_rn(k, first);
        float most = fmaxf(top, now), e1 = expf(top - most), e2 = expf(now - most);
        const float y = __fdiv_rn(__fmaf_rn(e1, num, __fmul_rn(e2, v)), __fmaf_rn(e1, den, e2));
        store_any(a.dst, i, c, __fmul_rn(sigmoid(row(a.r, i)[c]), y));
        const float fade = __fadd_rn(top, decay);
        top = fmaxf(fade, k);
        e1 = expf(fade - top);
        e2 = expf(k - top);
        num = __fmaf_rn(e1, num, __fmul_rn(e2, v));
        den = __fmaf_rn(e1, den, e2);
    }
    s.dst[c] = num;
    s.dst[d + c] = den;
    s.dst[2 * d + c] = top;
}

__device__ __forceinline__ float gate_of(const struct cu_gated_norm &a, int64_t i, int64_t c)
{
    const float g = row(a.gate, i)[c];
    return a.act == CU_GATE_SILU ? __fmul_rn(g, sigmoid(g)) : sigmoid(g);
}

static __global__ void __launch_bounds__(THREADS)
    gated_norm_kernel(struct cu_gated_norm a, const cu_count *count)
{
    SHARED(float, part, [THREADS / 32]);
    const int64_t i = blockIdx.x;
    if (i >= rows_of(count, (int)a.rows))
        return;
    for (int64_t from = 0; from < a.x.cols; from += a.group) {
        float sum = 0, inv = 1;
        for (int64_t k = threadIdx.x; k < a.group && !a.bare; k += THREADS) {
            float v = load_any(a.x, i, from + k);
            if (a.gate.p && a.gate_first)
                v = __fmul_rn(v, gate_of(a, i, from + k));
            sum = __fmaf_rn(v, v, sum);
        }
        if (!a.bare)
            inv = 1.0f / sqrtf(block_sum<THREADS / 32>(sum, part) / (float)a.group + a.eps);
        for (int64_t k = threadIdx.x; k < a.group; k += THREADS) {
            float v = load_any(a.x, i, from + k);
            if (a.gate.p && a.gate_first)
                v = __fmul_rn(v, gate_of(a, i, from + k));
            v = __fmul_rn(v, inv);
            if (a.w)
                v = __fmul_rn(v, a.w[(a.each ? from : 0) + k]);
            if (a.gate.p && !a.gate_first)
                v = __fmul_rn(v, gate_of(a, i, from + k));
            store_any(a.dst, i, from + k, v);
        }
    }
}

/* ------------------------------------------------------------------ launch */

static int64_t blocks_of(int64_t d)
{
    return (d + THREADS - 1) / THREADS;
}

extern "C" int cu_state_conv(const struct cu_state_conv *a, const struct cu_step *s, cu_stream st)
{
    const int32_t d = a->x.cols;
    if (!at_ok(s, a->at) || !is_f32(a->x) || !is_f32(a->dst) || a->dst.cols != d || !a->w ||
        a->k < 2 || a->k > CU_CONV_MAX || !opt_f32(a->in, d) || !opt_f32(a->out, d) ||
        (a->mul.p && (!mat_ok(&a->mul) || a->mul.cols != d)))
        return CU_BAD;
    if (s->seq_max <= 0)
        return 0;
    return launched(launch(cfg_of(s, blocks_of(d), THREADS, st), conv_kernel, *a, seqs_of(s)));
}

extern "C" int cu_state_shift(const struct cu_state_shift *a, const struct cu_step *s, cu_stream st)
{
    if (!at_ok(s, a->at) || !mat_ok(&a->x) || !mat_ok(&a->dst) || !a->mix || a->n_mix < 1 ||
        a->dst.cols != a->n_mix * a->x.cols)
        return CU_BAD;
    if (s->seq_max <= 0)
        return 0;
    return launched(
        launch(cfg_of(s, blocks_of(a->x.cols), THREADS, st), shift_kernel, *a, seqs_of(s)));
}

extern "C" int cu_state_wkv(const struct cu_state_wkv *a, const struct cu_step *s, cu_stream st)
{
    const int32_t d = a->k.cols;
    if (!at_ok(s, a->at) || !is_f32(a->r) || !is_f32(a->k) || !is_f32(a->v) || a->r.cols != d ||
        a->v.cols != d || !mat_ok(&a->dst) || a->dst.cols != d || !a->decay || !a->first)
        return CU_BAD;
    if (s->seq_max <= 0)
        return 0;
    return launched(launch(cfg_of(s, blocks_of(d), THREADS, st), wkv_kernel, *a, seqs_of(s)));
}

extern "C" int cu_gated_norm(const struct cu_gated_norm *a, const struct cu_step *s, cu_stream st)
{
    const int n = rows_max(s, a->rows);
    if (!mat_ok(&a->x) || !mat_ok(&a->dst) || a->dst.cols != a->x.cols ||
        !opt_f32(a->gate, a->x.cols) || a->group < 1 || a->x.cols % a->group || !(a->eps >= 0))
        return CU_BAD;
    if (n <= 0)
        return 0;
    launch_cfg c = {dim3((unsigned)n), dim3(THREADS), 0, (cudaStream_t)st, 0, false, false};
    return launched(launch(c, gated_norm_kernel, *a, s->count));
}
