/* cu_sample: the next token of each row, without a sort. One block a row: edits in place (mask, bans, bias, penalties),
 * then the largest, or a draw: top_k and top_p find their threshold by radix selection on the order-preserving integer of
 * the logit, weights are 40-bit fixed point, so every sum is exact, whatever the order of its atomics, and the draw walks
 * the ids in order. Same token as the reference but where the number falls within rounding of a cumulative sum.
 * Definitions: engine/ops_sample.h. Any vocabulary. */
#include "cuda/kern.cuh"

#define THREADS 512
#define WARPS   (THREADS / 32)
#define FIXED   1099511627776.0 /* 2^40 */

struct sample_args {
    float *logits;
    int64_t ld;
    int32_t n_vocab;
    const struct cu_sample_row *rows;
    const int32_t *ints, *bias_id;
    const float *bias_val;
    struct cu_sample_out *out;
    int32_t *sampled, *seen; /* seen [n, n_vocab]: times a token was output, and SEEN_PROMPT */
    const cu_count *count;
};
#define SEEN_PROMPT 0x40000000

struct Shared {
    float f[WARPS];
    int32_t id[WARPS];
    unsigned long long sum[WARPS], bin[256];
    int32_t ties[WARPS];
    unsigned long long total;
    uint32_t key;
    int32_t result;
};

/* Larger float, larger integer. */
__device__ __forceinline__ uint32_t key_of(float x)
{
    const uint32_t u = __float_as_uint(x);
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* Largest value and lowest id that has it, in every thread. */
__device__ __forceinline__ void block_argmax(float &v, int &id, Shared &s)
{
    for (int o = 16; o; o >>= 1) {
        const float w = __shfl_xor_sync(0xffffffffu, v, o);
        const int j = __shfl_xor_sync(0xffffffffu, id, o);
        if (w > v || (w == v && j < id))
            v = w, id = j;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s.f[threadIdx.x / 32] = v, s.id[threadIdx.x / 32] = id;
    __syncthreads();
    v = s.f[0], id = s.id[0];
    for (int i = 1; i < WARPS; i++)
        if (s.f[i] > v || (s.f[i] == v && s.id[i] < id))
            v = s.f[i], id = s.id[i];
}

__device__ __forceinline__ unsigned long long block_sum64(unsigned long long v, Shared &s)
{
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s.sum[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < WARPS; i++)
        v += s.sum[i];
    return v;
}

/* NaN or +infinity anywhere, or nothing but -infinity; else the largest. */
__device__ __forceinline__ bool row_max(const float *x, int n, float &max, int &id, Shared &s)
{
    int bad = 0;
    max = -INFINITY, id = 0x7fffffff;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        bad |= !(x[i] < INFINITY);
        if (x[i] > max)
            max = x[i], id = i;
    }
    block_argmax(max, id, s);
    return __syncthreads_or(bad) || !(max > -INFINITY);
}

/* ---- log-probabilities of the raw distribution ---- */

__device__ __forceinline__ void top_fill(const sample_args &a, const float *x, cu_sample_out *o,
                                         int want, double lse, Shared &s)
{
    float last = INFINITY;
    int last_id = -1;
    const int n_top = want < a.n_vocab ? want : a.n_vocab;
    for (int t = 0; t < n_top; t++) { /* the largest behind the last one found */
        float v = -INFINITY;
        int id = 0x7fffffff;
        for (int i = (int)threadIdx.x; i < a.n_vocab; i += THREADS)
            if ((x[i] < last || (x[i] == last && i > last_id)) &&
                (x[i] > v || (x[i] == v && i < id)))
                v = x[i], id = i;
        block_argmax(v, id, s);
        if (threadIdx.x == 0)
            o->top_id[t] = id, o->top_logprob[t] = (float)((double)v - lse);
        last = v, last_id = id;
    }
    if (threadIdx.x == 0)
        o->n_top = n_top;
}

__device__ __forceinline__ double log_sum(const sample_args &a, const float *x, float max,
                                          Shared &s)
{
    unsigned long long sum = 0;
    for (int i = (int)threadIdx.x; i < a.n_vocab; i += THREADS)
        sum += (unsigned long long)((double)expf(x[i] - max) * FIXED);
    return (double)max + log((double)block_sum64(sum, s) / FIXED);
}

__device__ __forceinline__ int rank_of(const sample_args &a, const float *x, float v, int token,
                                       Shared &s)
{
    unsigned long long n = 0;
    for (int i = (int)threadIdx.x; i < a.n_vocab; i += THREADS)
        n += x[i] > v || (x[i] == v && i < token);
    return (int)block_sum64(n, s) + 1;
}

/* ---- edits ---- */

__device__ __forceinline__ void edit(const sample_args &a, const struct cu_sample_row &r, float *x,
                                     int32_t *seen)
{
    const int t = (int)threadIdx.x;
    const bool penalty =
        r.repetition_penalty != 1 || r.presence_penalty != 0 || r.frequency_penalty != 0;
    if (r.mask >= 0)
        for (int i = t; i < a.n_vocab; i += THREADS)
            if (!((uint32_t)a.ints[r.mask + i / 32] >> (i % 32) & 1))
                x[i] = -INFINITY;
    __syncthreads();
    for (int i = t; i < r.n_ban; i += THREADS) {
        const int id = a.ints[r.ban + i];
        if (id >= 0 && id < a.n_vocab)
            atomicExch(&x[id], -INFINITY); /* a list may name a token twice */
    }
    __syncthreads();
    if (t == 0) /* in the list's order: an id may stand there twice */
        for (int i = 0; i < r.n_bias; i++)
            if (a.bias_id[r.bias + i] >= 0 && a.bias_id[r.bias + i] < a.n_vocab)
                x[a.bias_id[r.bias + i]] += a.bias_val[r.bias + i];
    __syncthreads();
    if (!penalty)
        return;
    for (int i = t; i < a.n_vocab; i += THREADS)
        seen[i] = 0;
    __syncthreads();
    for (int i = t; i < r.n_hist; i += THREADS) {
        const int id = a.ints[r.hist + i];
        if (id < 0 || id >= a.n_vocab)
            continue;
        if (i < r.n_prompt)
            atomicOr(&seen[id], SEEN_PROMPT);
        else
            atomicAdd(&seen[id], 1);
    }
    __syncthreads();
    const float rep = r.repetition_penalty > 0 ? r.repetition_penalty : 1;
    for (int i = t; i < a.n_vocab; i += THREADS) {
        const int n = seen[i] & ~SEEN_PROMPT;
        if (!seen[i])
            continue;
        float v = x[i] > 0 ? x[i] / rep : x[i] * rep;
        x[i] = n ? v - r.presence_penalty - r.frequency_penalty * (float)n : v;
    }
    __syncthreads();
}

/* ---- the draw ---- */

struct Draw {
    float max, inv_t, min_p;
    int best;     /* never dropped */
    uint32_t key; /* keys above stay, of those equal the first `ties` by id */
    long long ties;
};

__device__ __forceinline__ unsigned long long weight(const Draw &d, float x, int id)
{
    const float e = expf((x - d.max) * d.inv_t);
    if (e < d.min_p && id != d.best)
        return 0;
    return (unsigned long long)((double)e * FIXED);
}

/* Lowers the threshold bit by bit: the key T with sum(> T) < want <= sum(>= T), where an element counts its weight (or
 * one). Elements below d's present threshold do not count. Gives T and what is above it. */
__device__ __forceinline__ uint32_t select_key(const sample_args &a, const float *x, const Draw &d,
                                               bool weighted, unsigned long long want,
                                               unsigned long long &above, Shared &s)
{
    uint32_t prefix = 0;
    above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < 256; i += THREADS)
            s.bin[i] = 0;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < a.n_vocab; i += THREADS) {
            const uint32_t k = key_of(x[i]);
            if (k < d.key || (shift < 24 && k >> (shift + 8) != prefix >> (shift + 8)))
                continue;
            const unsigned long long w = weighted ? weight(d, x[i], i) : 1;
            if (w)
                atomicAdd(&s.bin[k >> shift & 255], w);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int b = 255;
            unsigned long long run = above;
            while (b > 0 && run + s.bin[b] < want)
                run += s.bin[b--];
            s.key = prefix | (uint32_t)b << shift;
            s.total = run;
        }
        __syncthreads();
        prefix = s.key;
        above = s.total;
        __syncthreads();
    }
    return prefix;
}

/* Warp w owns ids [w * seg, (w + 1) * seg). Ties before a warp's ids, and the total weight of what is kept. */
__device__ __forceinline__ bool kept(const Draw &d, uint32_t key, long long tie)
{
    return key > d.key || (key == d.key && tie < d.ties);
}

__device__ __forceinline__ int draw(const sample_args &a, const float *x, const Draw &d,
                                    double uniform, Shared &s)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              seg = ((a.n_vocab + WARPS - 1) / WARPS + 31) / 32 * 32;
    const int lo = warp * seg, hi = min(a.n_vocab, lo + seg);
    int ties = 0;
    for (int i = lo; i < hi; i += 32)
        ties += __popc(__ballot_sync(
            0xffffffffu, i + lane < hi && key_of(x[i + lane < hi ? i + lane : lo]) == d.key));
    if (lane == 0)
        s.ties[warp] = ties;
    __syncthreads();
    long long before = 0;
    for (int i = 0; i < warp; i++)
        before += s.ties[i];
    /* two rounds over the warp's ids: its weight, then, in the warp that holds the number, the id */
    unsigned long long target = 0, run = 0;
    for (int round = 0; round < 2; round++) {
        long long tie0 = before;
        int found = -1;
        for (int i = lo; i < hi; i += 32) {
            const bool in = i + lane < hi;
            const float v = x[in ? i + lane : lo];
            const uint32_t k = key_of(v);
            const unsigned same = __ballot_sync(0xffffffffu, in && k == d.key);
            const long long tie = tie0 + __popc(same & ((1u << lane) - 1));
            unsigned long long w = in && kept(d, k, tie) ? weight(d, v, i + lane) : 0, up = w;
            for (int o = 1; o < 32; o <<= 1) {
                const unsigned long long y = __shfl_up_sync(0xffffffffu, up, (unsigned)o);
                up += lane >= o ? y : 0;
            }
            const unsigned hit = __ballot_sync(0xffffffffu, round && w && run + up > target);
            if (hit && found < 0)
                found = i + __ffs((int)hit) - 1;
            run += __shfl_sync(0xffffffffu, up, 31);
            tie0 += __popc(same);
        }
        if (round == 0) {
            if (lane == 0)
                s.sum[warp] = run;
            __syncthreads();
            unsigned long long all = 0;
            run = 0;
            for (int i = 0; i < WARPS; i++) {
                run += i < warp ? s.sum[i] : 0;
                all += s.sum[i];
            }
            target = (unsigned long long)(uniform * (double)all);
            target = target < all ? target : all - 1;
            if (threadIdx.x == 0)
                s.result = d.best;
            __syncthreads();
        } else if (lane == 0 && found >= 0 && run - s.sum[warp] <= target) {
            s.result =
                found; /* one warp only: the sums before it do not reach the number, with it they do */
        }
    }
    __syncthreads();
    return s.result;
}

__device__ __forceinline__ int choose(const sample_args &a, const struct cu_sample_row &r,
                                      const float *x, float max, int best, Shared &s)
{
    Draw d = {max, 1 / r.temperature, r.min_p, best, 0, (long long)a.n_vocab};
    unsigned long long above = 0;
    if (r.top_k > 0 && r.top_k < a.n_vocab) {
        d.key = select_key(a, x, d, false, (unsigned long long)r.top_k, above, s);
        d.ties = (long long)r.top_k - (long long)above;
    }
    if (r.top_p < 1) {
        unsigned long long all = 0, w;
        for (int i = (int)threadIdx.x; i < a.n_vocab;
             i += THREADS) /* ties are counted whole first */
            all += key_of(x[i]) > d.key ? weight(d, x[i], i) : 0;
        all = block_sum64(all, s);
        unsigned long long n_tie = 0;
        for (int i = (int)threadIdx.x; i < a.n_vocab; i += THREADS)
            n_tie += key_of(x[i]) == d.key;
        n_tie = block_sum64(n_tie, s);
        const float tie_x = __uint_as_float(d.key >> 31 ? d.key & 0x7fffffffu : ~d.key);
        w = d.key ? weight(d, tie_x, -1) : 0;
        all += w * ((long long)n_tie < d.ties ? n_tie : (unsigned long long)d.ties);
        unsigned long long want = (unsigned long long)((double)r.top_p * (double)all);
        const uint32_t key = select_key(a, x, d, true, want ? want : 1, above, s);
        const float x_at = __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
        w = weight(d, x_at, best);
        const long long need =
            w ? (long long)((want - (above < want ? above : want) + w - 1) / w) : 1;
        if (key > d.key)
            d.ties = need > 0 ? need : 1;
        else
            d.ties = need < d.ties ? (need > 0 ? need : 1) : d.ties;
        d.key = key;
    }
    return draw(a, x, d, r.uniform, s);
}

static __global__ void __launch_bounds__(THREADS) sample(sample_args a)
{
    SHARED(Shared, s);
    const int64_t row = blockIdx.x;
    if (row >= a.count->n_logit)
        return;
    const struct cu_sample_row r = a.rows[row];
    struct cu_sample_out *o = &a.out[row];
    float *x = a.logits + row * a.ld, max;
    int best, token = r.target;
    double lse = 0;
    bool bad = row_max(x, a.n_vocab, max, best, s);
    if (threadIdx.x == 0)
        o->logprob = 0, o->rank = 0, o->n_top = 0;
    const bool raw = r.n_top >= 0 && !bad;
    float raw_target = 0;
    if (raw) {
        lse = log_sum(a, x, max, s);
        top_fill(a, x, o, r.n_top, lse, s);
    }
    /* edits overwrite: with log-probabilities the raw values are needed again, by token, behind the choice */
    if (!bad && r.target < 0) {
        float *y = x;
        if (raw) { /* work on the copy in `seen`'s second half */
            y = (float *)(a.seen + ((int64_t)gridDim.x + row) * a.n_vocab);
            for (int i = (int)threadIdx.x; i < a.n_vocab; i += THREADS)
                y[i] = x[i];
            __syncthreads();
        }
        edit(a, r, y, a.seen + row * a.n_vocab);
        bad = row_max(y, a.n_vocab, max, best, s);
        token = best;
        if (!bad && r.temperature > 0)
            token = choose(a, r, y, max, best, s);
    }
    if (raw && !bad) {
        raw_target = x[token];
        const int rank = rank_of(a, x, raw_target, token, s);
        if (threadIdx.x == 0)
            o->logprob = (float)((double)raw_target - lse), o->rank = rank;
    }
    if (threadIdx.x == 0) {
        o->token = bad ? 0 : token;
        o->bad = bad;
        a.sampled[row] = bad ? 0 : token;
    }
}

/* ------------------------------------------------------------------ launch */

extern "C" size_t cu_sample_ws(int n_row, int n_vocab)
{
    return (size_t)2 * (size_t)n_row * (size_t)n_vocab * sizeof(int32_t);
}

extern "C" int cu_sample(const struct cu_sample *a, const struct cu_step *s, cu_stream st)
{
    if (!mat_ok(&a->logits) || a->logits.dt != CU_F32 || !a->rows || !a->out || !a->sampled ||
        !a->ws || a->ws_bytes < cu_sample_ws(s->logit_max, a->logits.cols))
        return CU_BAD;
    if (s->logit_max <= 0)
        return 0;
    sample_args g = {
        (float *)a->logits.p, a->logits.ld, a->logits.cols, a->rows,          a->ints, a->bias_id,
        a->bias_val,          a->out,       a->sampled,     (int32_t *)a->ws, s->count};
    launch_cfg c = {
        dim3((unsigned)s->logit_max), dim3(THREADS), 0, (cudaStream_t)st, 0, false, false};
    return launched(launch(c, sample, g));
}
