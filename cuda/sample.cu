/* op_sample on the device: one block a row, no sort, no wait, nothing between rows.
 *
 * Order: value, then lower id. A "key" is a float's order as an unsigned number. Every filter (min_p, top_k, top_p)
 * keeps a prefix of the tokens in that order, so the candidates are always: key > cut.key, and the first cut.n_equal
 * ids of those equal to it. A cut is found by one histogram of linear bins below the maximum, then among the keys of
 * the one bin that the target falls in: all against all when they fit in shared memory, else by bisection of the bits.
 *
 * Weights exp((x - max) / T) are whole numbers of 2^-43: sums are exact, so they need no fixed order, and the inverse
 * cumulative distribution has no rounding beyond that of each weight (expf, relative 2e-7, plus 2^-44).
 * n_vocab <= 2^20, so a sum fits 64 bits. With T = 1 the same sums give log-probabilities.
 *
 * Work space, one piece a row: f32 [n_vocab] the edited logits, u32 [n_vocab] counts of known tokens; nothing is
 * expected in it. Rows without edits leave it alone. The logits are only read. */
#include "cuda/sample.cuh"

/* ---------------------------------------------------------------- edits */

static __device__ bool penalised(const cu_sample_row &r)
{
    return (r.repetition_penalty > 0 && r.repetition_penalty != 1) || r.presence_penalty != 0 ||
           r.frequency_penalty != 0;
}

/* The logits after mask, bans and bias, in e. cnt is zeroed where penalties follow. */
static __device__ void edit_lists(const struct cu_sample &a, const cu_sample_row &r, const float *x,
                                  float *e, unsigned *cnt, int n)
{
    bool pen = penalised(r);
    const int32_t *mask = r.mask >= 0 ? a.ints + r.mask : nullptr;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        bool on = !mask || ((unsigned)mask[i / 32] >> (i % 32) & 1);
        e[i] = on ? x[i] : -INFINITY;
        if (pen)
            cnt[i] = 0;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < r.n_ban; i += (int)blockDim.x) {
        int t = a.ints[r.ban + i];
        if (t >= 0 && t < n)
            atomicExch(&e[t], -INFINITY); /* a list may name a token twice */
    }
    __syncthreads();
    const int32_t *id = a.bias_id + r.bias;
    for (int i = (int)threadIdx.x; i < r.n_bias; i += (int)blockDim.x) {
        int t = id[i], first = 0;
        if (t < 0 || t >= n)
            continue;
        while (id[first] != t)
            first++;
        if (first < i)
            continue; /* the thread of its first entry adds all, in order */
        float v = e[t];
        for (int k = i; k < r.n_bias; k++)
            if (id[k] == t)
                v = __fadd_rn(v, a.bias_val[r.bias + k]);
        e[t] = v;
    }
    __syncthreads();
}

/* Count each known token, then let whoever takes its count away first apply the penalties. */
static __device__ void edit_penalties(const struct cu_sample &a, const cu_sample_row &r, float *e,
                                      unsigned *cnt, int n)
{
    const int32_t *hist = a.ints + r.hist;
    float rep = r.repetition_penalty > 0 ? r.repetition_penalty : 1;
    for (int i = (int)threadIdx.x; i < r.n_hist; i += (int)blockDim.x) {
        int t = hist[i];
        if (t >= 0 && t < n) {
            atomicOr(&cnt[t], 0x80000000u);
            if (i >= r.n_prompt)
                atomicAdd(&cnt[t], 1u);
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < r.n_hist; i += (int)blockDim.x) {
        int t = hist[i];
        unsigned c = t >= 0 && t < n ? atomicExch(&cnt[t], 0u) : 0;
        if (!c)
            continue;
        float v = e[t], out = (float)(c & 0x7fffffffu);
        v = v > 0 ? __fdiv_rn(v, rep) : __fmul_rn(v, rep);
        if (out > 0)
            v = __fsub_rn(v, __fmaf_rn(r.frequency_penalty, out, r.presence_penalty));
        e[t] = v;
    }
    __syncthreads();
}

/* ---------------------------------------------------------------- the choice */

struct pick {
    int token, bad;
};

/* Kept: whole bins below the histogram's cut and the part of the cut's bin. Returns the kept mass. */
static __device__ u64 filter(const view &v, const cu_sample_row &r, cut *c, sample_smem *s)
{
    u64 all = histogram(v, s);
    *c = {0, ~0u};
    if (r.top_k > 0 && (u64)r.top_k < s->total_count) {
        *c = cut_find<false>(v, (u64)r.top_k, s);
        all = s->kept_mass;
    }
    if (r.top_p < 1) {
        double want = (r.top_p > 0 ? (double)r.top_p : 0) * (double)all;
        u64 target = (u64)ceil(want);
        target = target < 1 ? 1 : target > all ? all : target;
        /* A prefix of a prefix: the mass before its end is the same with or without top_k. */
        *c = cut_find<true>(v, target, s);
        all = s->kept_mass;
    }
    return all;
}

static __device__ int choose_random(view v, const cu_sample_row &r, sample_smem *s, bool simple)
{
    float t = 1 / r.temperature;
    v.inv_t = t < 1e30f ? t : 1e30f;
    v.min_w = r.min_p > 0 ? (r.min_p < 1 ? r.min_p : 1) : 0;
    cut c = {0, ~0u};
    if (!simple && (r.top_k > 0 || r.top_p < 1))
        filter(v, r, &c, s);
    return draw(v, c, r.uniform, s);
}

static __device__ pick choose(const struct cu_sample &a, const cu_sample_row &r, view v, char *ws,
                              sample_smem *s, best raw)
{
    best b = raw;
    if (!a.simple && (r.mask >= 0 || r.n_ban > 0 || r.n_bias > 0 || penalised(r))) {
        float *e = reinterpret_cast<float *>(ws);
        unsigned *cnt = reinterpret_cast<unsigned *>(e + v.n);
        edit_lists(a, r, v.x, e, cnt, v.n);
        if (penalised(r))
            edit_penalties(a, r, e, cnt, v.n);
        v.x = e;
        b = best_find(v, s);
        if (b.bad)
            return {0, 1};
    }
    v.max = b.x;
    return {r.temperature > 0 ? choose_random(v, r, s, a.simple) : b.id, 0};
}

/* ---------------------------------------------------------------- log-probabilities */

/* The n_top most likely of the raw distribution into o, most likely first. */
static __device__ void top_list(const view &v, int n_top, double lse, cu_sample_out *o,
                                sample_smem *s)
{
    histogram(v, s);
    cut c = {0, ~0u};
    if (n_top < v.n)
        c = cut_find<false>(v, (u64)n_top, s);
    collect(v, c, n_top, s);
    /* At most 20, each found with its place by counting those before it. */
    int i = (int)threadIdx.x;
    if (i < n_top) {
        unsigned key = s->list_key[i];
        int id = s->top_id[i], at = 0;
        for (int k = 0; k < n_top; k++)
            at += s->list_key[k] > key || (s->list_key[k] == key && s->top_id[k] < id);
        o->top_id[at] = id;
        o->top_logprob[at] = (float)((double)v.x[id] - lse);
    }
}

static __device__ void logprobs(const cu_sample_row &r, view v, int token, cu_sample_out *o,
                                sample_smem *s)
{
    v.inv_t = 1;
    v.min_w = 0;
    u64 sum = 0;
    unsigned before = 0;
    float xt = v.x[token];
    for (int i = (int)threadIdx.x; i < v.n; i += (int)blockDim.x) {
        float x = v.x[i];
        sum += mass(v, x);
        before += x > xt || (x == xt && i < token);
    }
    sum = block_add(sum, s);
    u64 rank = block_add((u64)before, s);
    double lse = (double)v.max + log((double)sum * MASS_ULP);
    int n_top = r.n_top < v.n ? r.n_top : v.n;
    if (n_top > 20)
        n_top = 20;
    if (threadIdx.x == 0) {
        o->logprob = (float)((double)xt - lse);
        o->rank = (int32_t)rank + 1;
        o->n_top = n_top;
    }
    if (n_top > 0)
        top_list(v, n_top, lse, o, s);
}

/* ---------------------------------------------------------------- kernel */

struct sample_args {
    struct cu_sample a;
    const cu_count *count;
    size_t ws_row;
};

static __global__ void __launch_bounds__(SAMPLE_THREADS) sample_kernel(sample_args k)
{
    DYN_SHARED(sample_smem, s);
    const struct cu_sample &a = k.a;
    int64_t row = blockIdx.x;
    if (row >= k.count->n_logit)
        return;
    const cu_sample_row r = a.rows[row];
    cu_sample_out *o = a.out + row;
    view v = {static_cast<const float *>(a.logits.p) + row * a.logits.ld, a.logits.cols, 0, 1, 0};
    if (threadIdx.x < 20) {
        o->top_id[threadIdx.x] = 0;
        o->top_logprob[threadIdx.x] = 0;
    }
    best b = best_find(v, s); /* its barriers order the zeros above before any result */
    pick p = {r.target, b.bad};
    if (!b.bad) {
        v.max = b.x;
        if (r.target < 0)
            p = choose(a, r, v, static_cast<char *>(a.ws) + (size_t)row * k.ws_row, s, b);
        else if (r.target >= v.n)
            p.bad = 1;
    }
    if (threadIdx.x == 0) {
        o->token = p.bad ? 0 : p.token;
        o->bad = p.bad;
        o->logprob = 0;
        o->rank = o->n_top = 0;
        if (a.sampled)
            a.sampled[row] = o->token;
    }
    if (!a.simple && !p.bad && r.n_top >= 0)
        logprobs(r, v, p.token, o, s);
}

/* ---------------------------------------------------------------- launch */

static size_t ws_row_bytes(int n_vocab)
{
    return ((size_t)n_vocab * 8 + 255) / 256 * 256;
}

extern "C" size_t cu_sample_ws(int n_row, int n_vocab)
{
    return n_row > 0 && n_vocab > 0 ? (size_t)n_row * ws_row_bytes(n_vocab) : 0;
}

extern "C" int cu_sample(const struct cu_sample *a, const struct cu_step *s, cu_stream st)
{
    if (!a || !s || !s->count || s->logit_max < 0 || !a->rows || !a->out)
        return CU_BAD;
    const cu_mat &m = a->logits;
    if (!m.p || m.dt != CU_F32 || m.cols < 1 || m.cols > SAMPLE_VOCAB_MAX || m.ld < m.cols ||
        (uintptr_t)m.p % 4)
        return CU_BAD;
    /* The lists may be absent: no row names an entry then. */
    if (!a->simple &&
        (!a->ws || (uintptr_t)a->ws % 4 || a->ws_bytes < cu_sample_ws(s->logit_max, m.cols)))
        return CU_BAD;
    if (s->logit_max == 0)
        return 0;
    launch_cfg c = {};
    c.grid = dim3((unsigned)s->logit_max);
    /* A function of the vocabulary alone. */
    c.block = dim3(m.cols <= 2048 ? 128 : SAMPLE_THREADS);
    c.smem = sizeof(sample_smem);
    c.stream = (cudaStream_t)st;
    sample_args k = {*a, s->count, ws_row_bytes(m.cols)};
    return (int)launch(c, sample_kernel, k);
}
