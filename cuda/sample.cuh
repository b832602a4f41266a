/* The searches of sample.cu over one row, by one block: maximum, histogram, cut, ordered draw. See sample.cu for the
 * terms. Every function is called by all threads of the block and leaves them converged; results are the same in all
 * threads. Device code. */
#ifndef CUDA_SAMPLE_CUH
#define CUDA_SAMPLE_CUH

#include "cuda/cu.h"
#include "cuda/kernels.h"

#define SAMPLE_THREADS   512
#define SAMPLE_VOCAB_MAX (1 << 20)
#define N_BIN            2048
#define BIN_SCALE        64.0f /* bins a unit of logit: the histogram reaches 32 units below the maximum */
#define LIST_MAX         1024             /* keys of one bin that fit in shared memory */
#define MASS_ONE         8796093022208.0f /* 2^43 */
#define MASS_ULP         0x1p-43

typedef unsigned long long u64;

struct view { /* a row as the filters see it */
    const float *x;
    int n;
    float max, inv_t, min_w; /* weights below min_w do not take part */
};

struct cut { /* kept: key > `key`, and the first n_equal of those equal to it in id order */
    unsigned key, n_equal;
};

struct best {
    float x;
    int id, bad;
};

struct sample_smem {
    u64 bin_mass[N_BIN];
    unsigned bin_count[N_BIN];
    unsigned list_key[LIST_MAX];
    u64 list_mass[LIST_MAX];
    int top_id[32];
    u64 part[2][32];
    float part_x[32];
    int part_id[32], part_bad[32];
    u64 above_mass, above_count, kept_mass, total_count;
    cut found_cut;
    unsigned n_list;
    int bin, found;
};

static __device__ __forceinline__ unsigned key_of(float x)
{
    unsigned u = __float_as_uint(__fadd_rn(x, 0.0f)); /* -0 and 0 are one */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __device__ __forceinline__ float of_key(unsigned k)
{
    return __uint_as_float(k & 0x80000000u ? k & 0x7fffffffu : ~k);
}

static __device__ __forceinline__ float weight(const view &v, float x)
{
    return expf(__fmul_rn(__fsub_rn(x, v.max), v.inv_t));
}

static __device__ __forceinline__ u64 mass(const view &v, float x)
{
    float w = weight(v, x);
    return w >= v.min_w ? (u64)__fmul_rn(w, MASS_ONE) : 0;
}

static __device__ __forceinline__ bool takes_part(const view &v, float x)
{
    return !(v.min_w > 0) || weight(v, x) >= v.min_w;
}

static __device__ __forceinline__ int bin_of(const view &v, float x)
{
    float d = __fmul_rn(__fsub_rn(v.max, x), BIN_SCALE); /* >= 0, rising as x falls */
    return d < (float)(N_BIN - 1) ? (int)d : N_BIN - 1;
}

/* ---- over the block ---- */

static __device__ u64 block_add(u64 v, sample_smem *s)
{
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads(); /* part may still be read from the call before */
    if (threadIdx.x % 32 == 0)
        s->part[0][threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++)
        v += s->part[0][i];
    return v;
}

/* Sums of the threads before this one. */
static __device__ void block_before(u64 *a, u64 *b, sample_smem *s)
{
    u64 x = *a, y = *b;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int o = 1; o < 32; o <<= 1) {
        u64 p = __shfl_up_sync(0xffffffffu, x, (unsigned)o);
        u64 q = __shfl_up_sync(0xffffffffu, y, (unsigned)o);
        x += lane >= (unsigned)o ? p : 0;
        y += lane >= (unsigned)o ? q : 0;
    }
    __syncthreads();
    if (lane == 31) {
        s->part[0][warp] = x;
        s->part[1][warp] = y;
    }
    __syncthreads();
    x -= *a;
    y -= *b;
    for (unsigned i = 0; i < warp; i++) {
        x += s->part[0][i];
        y += s->part[1][i];
    }
    *a = x;
    *b = y;
}

static __device__ __forceinline__ void best_join(best *b, float x, int id, int bad)
{
    b->bad |= bad;
    if (x > b->x || (x == b->x && id < b->id)) {
        b->x = x;
        b->id = id;
    }
}

/* The greatest value and its lowest id. bad: NaN, +Inf, or nothing above -Inf. */
static __device__ best best_find(const view &v, sample_smem *s)
{
    best b = {-INFINITY, v.n, 0};
    for (int i = (int)threadIdx.x; i < v.n; i += (int)blockDim.x) {
        float x = v.x[i];
        best_join(&b, x, i, !(x < INFINITY));
    }
    for (int o = 16; o > 0; o >>= 1) {
        float x = __shfl_xor_sync(0xffffffffu, b.x, o);
        int id = __shfl_xor_sync(0xffffffffu, b.id, o);
        best_join(&b, x, id, __shfl_xor_sync(0xffffffffu, b.bad, o));
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        s->part_x[threadIdx.x / 32] = b.x;
        s->part_id[threadIdx.x / 32] = b.id;
        s->part_bad[threadIdx.x / 32] = b.bad;
    }
    __syncthreads();
    for (unsigned i = 0; i < blockDim.x / 32; i++)
        best_join(&b, s->part_x[i], s->part_id[i], s->part_bad[i]);
    b.bad |= b.x == -INFINITY;
    return b;
}

/* ---- cuts ---- */

/* Counts and masses by bin; total_count. Returns the mass of all. The last bin, where most of a vocabulary falls,
 * is summed in registers. */
static __device__ u64 histogram(const view &v, sample_smem *s)
{
    __syncthreads();
    for (int i = (int)threadIdx.x; i < N_BIN; i += (int)blockDim.x) {
        s->bin_mass[i] = 0;
        s->bin_count[i] = 0;
    }
    __syncthreads();
    u64 all = 0, low = 0, n_all = 0, n_low = 0;
    for (int i = (int)threadIdx.x; i < v.n; i += (int)blockDim.x) {
        float x = v.x[i];
        if (!takes_part(v, x))
            continue;
        u64 m = mass(v, x);
        int b = bin_of(v, x);
        all += m;
        n_all++;
        if (b == N_BIN - 1) {
            low += m;
            n_low++;
        } else {
            atomicAdd(&s->bin_mass[b], m);
            atomicAdd(&s->bin_count[b], 1u);
        }
    }
    all = block_add(all, s);
    low = block_add(low, s);
    n_all = block_add(n_all, s);
    n_low = block_add(n_low, s);
    if (threadIdx.x == 0) {
        s->bin_mass[N_BIN - 1] = low;
        s->bin_count[N_BIN - 1] = (unsigned)n_low;
        s->total_count = n_all;
    }
    __syncthreads();
    return all;
}

/* The bin in which the running weight, likeliest first, reaches target: s->bin, above_mass, above_count. */
template <bool MASS> static __device__ void bin_find(u64 target, sample_smem *s)
{
    int per = N_BIN / (int)blockDim.x, first = (int)threadIdx.x * per;
    u64 m = 0, c = 0;
    for (int i = first; i < first + per; i++) {
        m += s->bin_mass[i];
        c += s->bin_count[i];
    }
    block_before(&m, &c, s);
    for (int i = first; i < first + per; i++) {
        u64 run = MASS ? m : c, add = MASS ? s->bin_mass[i] : s->bin_count[i];
        if (run < target && run + add >= target) { /* true of one bin only */
            s->bin = i;
            s->above_mass = m;
            s->above_count = c;
        }
        m += s->bin_mass[i];
        c += s->bin_count[i];
    }
    __syncthreads();
}

/* Count and mass of the bin's keys >= key; reads the whole row. */
static __device__ void bin_weight(const view &v, int bin, unsigned key, u64 *count, u64 *sum,
                                  sample_smem *s)
{
    u64 n = 0, m = 0;
    for (int i = (int)threadIdx.x; i < v.n; i += (int)blockDim.x) {
        float x = v.x[i];
        if (bin_of(v, x) == bin && key_of(x) >= key && takes_part(v, x)) {
            n++;
            m += mass(v, x);
        }
    }
    *count = block_add(n, s);
    *sum = block_add(m, s);
}

/* What lies above the cut's key, and the cut, once the key is known. n, m: count and mass above it. */
template <bool MASS>
static __device__ __forceinline__ cut cut_end(unsigned key, u64 n, u64 m, u64 one, u64 target,
                                              u64 *kept)
{
    u64 need = MASS ? (target - m + one - 1) / one : target - n;
    *kept = m + need * one;
    return {key, (unsigned)need};
}

/* The bin's keys are listed: the one at which the weight reaches target, each against all. */
template <bool MASS> static __device__ void cut_listed(u64 target, sample_smem *s)
{
    unsigned n = s->n_list;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        unsigned key = s->list_key[i];
        u64 over_n = s->above_count, over_m = s->above_mass, same = 0;
        bool first = true;
        for (unsigned k = 0; k < n; k++) {
            if (s->list_key[k] > key) {
                over_n++;
                over_m += s->list_mass[k];
            } else if (s->list_key[k] == key) {
                same++;
                first = first && k >= i;
            }
        }
        u64 over = MASS ? over_m : over_n, more = MASS ? same * s->list_mass[i] : same;
        if (first && over < target && over + more >= target) /* true of one key */
            s->found_cut =
                cut_end<MASS>(key, over_n, over_m, s->list_mass[i], target, &s->kept_mass);
    }
    __syncthreads();
}

/* Too many keys for the list (hundreds of equal logits, or a cut in the last bin): bit by bit. */
template <bool MASS> static __device__ void cut_bisect(const view &v, u64 target, sample_smem *s)
{
    unsigned key = 0;
    u64 n, m, n0 = s->above_count, m0 = s->above_mass;
    int bin = s->bin;
    for (unsigned bit = 0x80000000u; bit; bit >>= 1) {
        bin_weight(v, bin, key | bit, &n, &m, s);
        if ((MASS ? m0 + m : n0 + n) >= target)
            key |= bit;
    }
    bin_weight(v, bin, key + 1, &n, &m,
               s); /* key is a token's: the weight drops below target right above it */
    if (threadIdx.x == 0)
        s->found_cut =
            cut_end<MASS>(key, n0 + n, m0 + m, mass(v, of_key(key)), target, &s->kept_mass);
    __syncthreads();
}

/* The shortest prefix whose count or mass reaches target, 1 <= target <= that of all; after histogram(). Sets
 * kept_mass. */
template <bool MASS> static __device__ cut cut_find(const view &v, u64 target, sample_smem *s)
{
    bin_find<MASS>(target, s);
    int bin = s->bin;
    if (s->bin_count[bin] > LIST_MAX) {
        cut_bisect<MASS>(v, target, s);
        return s->found_cut;
    }
    if (threadIdx.x == 0)
        s->n_list = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < v.n; i += (int)blockDim.x) {
        float x = v.x[i];
        if (bin_of(v, x) == bin && takes_part(v, x)) {
            unsigned at = atomicAdd(&s->n_list, 1u);
            s->list_key[at] = key_of(x);
            s->list_mass[at] = mass(v, x);
        }
    }
    __syncthreads();
    cut_listed<MASS>(target, s);
    return s->found_cut;
}

/* ---- in id order ---- */

/* Mass above the cut and number of equals in ids [from, to) that this thread visits in steps. */
static __device__ __forceinline__ void piece(const view &v, cut c, int from, int to, int step,
                                             u64 *m, u64 *eq)
{
    *m = *eq = 0;
    for (int i = from; i < to; i += step) {
        float x = v.x[i];
        unsigned k = key_of(x);
        if (k > c.key)
            *m += mass(v, x);
        else if (k == c.key)
            *eq += 1;
    }
}

static __device__ __forceinline__ u64 kept_equals(u64 before, u64 n, cut c)
{
    u64 end = before + n < c.n_equal ? before + n : c.n_equal;
    return end > before ? end - before : 0;
}

/* The token at which the running mass of the kept ones, in id order, passes u times all. */
static __device__ int draw(const view &v, cut c, double u, sample_smem *s)
{
    unsigned warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
    int seg = (v.n + (int)n_warp - 1) / (int)n_warp, from = (int)warp * seg;
    int to = from + seg < v.n ? from + seg : v.n;
    u64 m, eq, one = c.key ? mass(v, of_key(c.key)) : 0;
    piece(v, c, from + (int)(threadIdx.x % 32), to, 32, &m, &eq);
    for (int o = 16; o > 0; o >>= 1) {
        m += __shfl_xor_sync(0xffffffffu, m, o);
        eq += __shfl_xor_sync(0xffffffffu, eq, o);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        s->part[0][warp] = m;
        s->part[1][warp] = eq;
    }
    __syncthreads();
    u64 all = 0, n_eq = 0;
    for (unsigned i = 0; i < n_warp; i++) {
        all += s->part[0][i] + one * kept_equals(n_eq, s->part[1][i], c);
        n_eq += s->part[1][i];
    }
    double at = u * (double)all;
    u64 target = at > 0 ? (u64)at : 0, run = 0, add = 0;
    if (target >= all)
        target = all - 1;
    unsigned w = 0;
    for (n_eq = 0; w < n_warp; w++) {
        add = s->part[0][w] + one * kept_equals(n_eq, s->part[1][w], c);
        if (run + add > target)
            break;
        run += add;
        n_eq += s->part[1][w];
    }
    /* The segment again, a contiguous piece a thread. */
    from = (int)w * seg;
    to = from + seg < v.n ? from + seg : v.n;
    int per = (seg + (int)blockDim.x - 1) / (int)blockDim.x;
    int lo = from + (int)threadIdx.x * per, hi = lo + per < to ? lo + per : to;
    piece(v, c, lo, hi, 1, &m, &eq);
    block_before(&m, &eq, s);
    run += m + one * kept_equals(n_eq, eq, c);
    n_eq += eq;
    for (int i = lo; i < hi; i++) {
        float x = v.x[i];
        unsigned k = key_of(x);
        add = k > c.key ? mass(v, x) : k == c.key ? one * kept_equals(n_eq, 1, c) : 0;
        n_eq += k == c.key;
        if (run <= target && run + add > target)
            s->found = i; /* true of one token of the row */
        run += add;
    }
    __syncthreads();
    return s->found;
}

/* Key and id of the kept tokens, n in all, into the list, in no order. n <= 20. */
static __device__ void collect(const view &v, cut c, int n, sample_smem *s)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warp = blockDim.x / 32;
    int seg = (v.n + (int)n_warp - 1) / (int)n_warp, from = (int)warp * seg;
    int to = from + seg < v.n ? from + seg : v.n;
    u64 m, eq;
    piece(v, c, from + (int)lane, to, 32, &m, &eq);
    for (int o = 16; o > 0; o >>= 1)
        eq += __shfl_xor_sync(0xffffffffu, eq, o);
    __syncthreads();
    if (lane == 0)
        s->part[1][warp] = eq;
    if (threadIdx.x == 0)
        s->n_list = 0;
    __syncthreads();
    u64 before = 0;
    for (unsigned i = 0; i < warp; i++)
        before += s->part[1][i];
    for (int base = from; base < to; base += 32) {
        int i = base + (int)lane;
        float x = i < to ? v.x[i] : 0;
        unsigned k = key_of(x);
        bool same = i < to && k == c.key, over = i < to && k > c.key;
        unsigned b = __ballot_sync(0xffffffffu, same);
        over = over || (same && before + (u64)__popc(b & ((1u << lane) - 1)) < c.n_equal);
        before += (u64)__popc(b);
        if (over) {
            unsigned slot = atomicAdd(&s->n_list, 1u);
            if (slot < (unsigned)n) {
                s->list_key[slot] = k;
                s->top_id[slot] = i;
            }
        }
    }
    __syncthreads();
}

#endif
