/* Routing, rows sorted by expert, sums of experts' outputs, gates. f32 arithmetic in a fixed order: a row's bits depend on
 * the row alone (where a row stands among its expert's others does not matter to any product). */
#include "cuda/kern.cuh"
#include "cuda/moe.h"
#include "cuda/weight.h"

#define WARPS   4
#define THREADS 256

/* ---- route: a warp a row ---- */

struct best {
    float v;
    int i; /* -1: none */
};
static __device__ __forceinline__ bool better(float v, int i, const best &b)
{
    return i >= 0 && (b.i < 0 || v > b.v || (v == b.v && i < b.i));
}
/* The best of all lanes, in all of them. */
static __device__ __forceinline__ best warp_best(best b)
{
    for (int o = 16; o; o >>= 1) {
        const float v = __shfl_xor_sync(0xffffffffu, b.v, o);
        const int i = __shfl_xor_sync(0xffffffffu, b.i, o);
        if (better(v, i, b))
            b.v = v, b.i = i;
    }
    return b;
}
static __device__ __forceinline__ float sigmoid(float x)
{
    return __fdiv_rn(1, __fadd_rn(1, expf(-x)));
}

struct route_args {
    const float *logits, *bias, *own;
    float *weight;
    int32_t *id;
    int64_t ld_logits, ld_weight, ld_id;
    const cu_count *count;
    int n_expert, n_used, rows, score, n_group, n_group_used, top2, renorm;
    float scale;
};
enum { SOFTMAX, SOFTMAX_USED, SIGMOID }; /* enum route_score */

/* Bit g: group g is among the best. Lane g looks at group g. */
static __device__ uint32_t groups_of(const route_args &a, const float *choice, int lane)
{
    const int each = a.n_expert / a.n_group;
    best one = {0, -1}, two = {0, -1};
    for (int i = 0; lane < a.n_group && i < each; i++) {
        const float v = choice[lane * each + i];
        if (better(v, i, one)) {
            two = one;
            one.v = v, one.i = i;
        } else if (better(v, i, two)) {
            two.v = v, two.i = i;
        }
    }
    const float worth = a.top2 && two.i >= 0 ? __fadd_rn(one.v, two.v) : one.v;
    uint32_t chosen = 0;
    for (int k = 0; k < a.n_group_used; k++) {
        best b = {worth, lane < a.n_group && !(chosen >> lane & 1) ? lane : -1};
        chosen |= 1u << warp_best(b).i;
    }
    return chosen;
}

static __device__ void weights_store(const route_args &a, float *w, const int32_t *id, float *dst)
{
    float top = -INFINITY, sum = 0;
    if (a.score == SOFTMAX_USED) {
        for (int j = 0; j < a.n_used; j++)
            top = fmaxf(top, w[j]);
        for (int j = 0; j < a.n_used; j++)
            sum = __fadd_rn(sum, w[j] = expf(__fsub_rn(w[j], top)));
        for (int j = 0; j < a.n_used; j++)
            w[j] = __fdiv_rn(w[j], sum);
        sum = 0;
    }
    for (int j = 0; j < a.n_used; j++)
        sum = __fadd_rn(sum, w[j]);
    for (int j = 0; j < a.n_used; j++)
        dst[j] =
            __fmul_rn(__fmul_rn(a.renorm ? __fdiv_rn(w[j], __fadd_rn(sum, 1e-20f)) : w[j], a.scale),
                      a.own ? a.own[id[j]] : 1.0f);
}

static __global__ void __launch_bounds__(WARPS * 32) route_kernel(route_args a)
{
    SHARED(float, score_all, [WARPS][CU_EXPERTS_MAX]);
    SHARED(float, choice_all, [WARPS][CU_EXPERTS_MAX]);
    SHARED(float, used, [WARPS][CU_USED_MAX]);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int64_t row = (int64_t)blockIdx.x * WARPS + warp;
    float *score = score_all[warp], *choice = choice_all[warp];
    if (row >= rows_of(a.count, a.rows))
        return;
    const float *x = a.logits + row * a.ld_logits;
    const bool plain = !a.bias && !(a.n_group > 1 && a.top2);
    float top = -INFINITY, sum = 0;
    for (int i = lane; i < a.n_expert; i += 32)
        top = fmaxf(top, x[i]);
    top = warp_max(top);
    for (int i = lane; i < a.n_expert; i += 32) {
        score[i] = a.score == SOFTMAX   ? expf(__fsub_rn(x[i], top))
                   : a.score == SIGMOID ? sigmoid(x[i])
                                        : x[i];
        sum = __fadd_rn(sum, score[i]);
    }
    sum = warp_sum(sum);
    for (int i = lane; i < a.n_expert; i += 32) {
        if (a.score == SOFTMAX)
            score[i] = __fdiv_rn(score[i], sum);
        choice[i] = plain ? x[i] : a.bias ? __fadd_rn(score[i], a.bias[i]) : score[i];
    }
    __syncwarp();
    const uint32_t groups = a.n_group > 1 ? groups_of(a, choice, lane) : ~0u;
    uint32_t taken = 0; /* bit b: expert lane + 32 b */
    for (int b = 0, i = lane; a.n_group > 1 && i < a.n_expert; b++, i += 32)
        taken |= (groups >> i / (a.n_expert / a.n_group) & 1 ? 0u : 1u) << b;
    for (int j = 0; j < a.n_used; j++) {
        best b = {0, -1};
        for (int k = 0, i = lane; i < a.n_expert; k++, i += 32)
            if (!(taken >> k & 1) && better(choice[i], i, b))
                b.v = choice[i], b.i = i;
        b = warp_best(b);
        if (b.i % 32 == lane)
            taken |= 1u << b.i / 32;
        if (lane == 0) {
            a.id[row * a.ld_id + j] = b.i;
            used[warp][j] = score[b.i];
        }
    }
    if (lane == 0)
        weights_store(a, used[warp], a.id + row * a.ld_id, a.weight + row * a.ld_weight);
}

/* ---- rows by expert: one block ---- */

static __global__ void __launch_bounds__(THREADS) sort_kernel(cu_sort a)
{
    SHARED(int, count, [CU_EXPERTS_MAX]);
    SHARED(int, first, [CU_EXPERTS_MAX]);
    SHARED(int, tile0, [CU_EXPERTS_MAX]);
    const int tid = (int)threadIdx.x, all = rows_of(a.count, a.rows) * a.n_used;
    const int32_t *id = (const int32_t *)a.id.p;
    for (int e = tid; e < a.n_expert; e += THREADS)
        count[e] = 0;
    __syncthreads();
    for (int i = tid; i < all; i += THREADS)
        atomicAdd(&count[id[i / a.n_used * a.id.ld + i % a.n_used]], 1);
    __syncthreads();
    if (tid == 0) {
        int rows = 0, tiles = 0;
        for (int e = 0; e < a.n_expert; e++) {
            first[e] = rows;
            tile0[e] = tiles;
            rows += count[e];
            tiles += (count[e] + a.tile_rows - 1) / a.tile_rows;
        }
        *a.n_tile = tiles;
    }
    __syncthreads();
    for (int e = tid; e < a.n_expert; e += THREADS)
        for (int t = 0; t * a.tile_rows < count[e]; t++) {
            cu_expert_tile v = {e, first[e] + t * a.tile_rows,
                                min(a.tile_rows, count[e] - t * a.tile_rows), 0};
            a.tile[tile0[e] + t] = v;
        }
    __syncthreads();
    for (int i = tid; i < all; i += THREADS)
        a.order[atomicAdd(&first[id[i / a.n_used * a.id.ld + i % a.n_used]], 1)] = i;
}

/* ---- by elements ---- */

struct sum_args {
    float *dst;
    const float *src, *w;
    int64_t ld_dst, ld_src, ld_w;
    const cu_count *count;
    int d, n_used, add, rows;
};
static __global__ void __launch_bounds__(THREADS) sum_kernel(sum_args a)
{
    const int64_t row = blockIdx.x, k = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (row >= rows_of(a.count, a.rows) || k >= a.d)
        return;
    float v = a.add ? a.dst[row * a.ld_dst + k] : 0;
    for (int j = 0; j < a.n_used; j++) {
        const float x = a.src[(row * a.n_used + j) * a.ld_src + k];
        v = __fmaf_rn(a.w ? a.w[row * a.ld_w + j] : 1.0f, x, v);
    }
    a.dst[row * a.ld_dst + k] = v;
}

struct gate_args {
    void *dst;
    const void *x;
    const float *gate;
    int64_t ld_dst, ld_x, ld_gate;
    const cu_count *count;
    int d, one, rows;
};
template <class T, class X>
static __global__ void __launch_bounds__(THREADS) gate_kernel(gate_args a)
{
    const int64_t row = blockIdx.x, k = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (row >= rows_of(a.count, a.rows) || k >= a.d)
        return;
    const float g = a.gate[row * a.ld_gate + (a.one ? 0 : k)];
    store1((T *)a.dst + row * a.ld_dst + k,
           __fmul_rn(load1((const X *)a.x + row * a.ld_x + k), sigmoid(g)));
}

struct mul_args {
    void *dst;
    const void *src;
    const float *scale;
    int64_t ld_dst, ld_src, ld_scale;
    const cu_count *count;
    int d, n_used, each, rows;
    const int32_t *col;     /* NULL, or the order of columns */
    const cu_expert *table; /* NULL, or each expert's own order, by id */
    const int32_t *id;
    int64_t ld_id;
};
template <class T> static __global__ void __launch_bounds__(THREADS) mul_kernel(mul_args a)
{
    const int64_t r = blockIdx.x, row = r / a.n_used,
                  k = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (row >= rows_of(a.count, a.rows) || k >= a.d)
        return;
    const int32_t *col = a.table ? a.table[a.id[row * a.ld_id + r % a.n_used]].col : a.col;
    const float v = load1((const T *)a.src + (a.each ? r : row) * a.ld_src + (col ? col[k] : k));
    store1((T *)a.dst + r * a.ld_dst + k,
           a.scale ? __fmul_rn(v, a.scale[row * a.ld_scale + r % a.n_used]) : v);
}

/* ------------------------------------------------------------------ launch */

static bool is_f32(const cu_mat *m)
{
    return mat_ok(m) && m->dt == CU_F32;
}

static bool is_i32(const cu_mat *m)
{
    return m->p && m->dt == CU_I32 && m->cols > 0 && m->ld >= m->cols;
}

static launch_cfg cfg_of(unsigned x, int64_t cols, cu_stream st)
{
    launch_cfg c = {};
    c.grid = dim3(x, (unsigned)((cols + THREADS - 1) / THREADS));
    c.block = dim3(THREADS);
    c.stream = (cudaStream_t)st;
    return c;
}

extern "C" int cu_route(const struct cu_route *a, const struct cu_step *s, cu_stream st)
{
    const int n = rows_max(s, a->rows);
    if (!is_f32(&a->logits) || !is_f32(&a->weight) || !is_i32(&a->id) ||
        a->logits.cols > CU_EXPERTS_MAX || a->id.cols > CU_USED_MAX ||
        a->id.cols > a->logits.cols || a->weight.cols != a->id.cols || a->n_group > CU_GROUPS_MAX)
        return CU_BAD;
    if (n <= 0)
        return 0;
    route_args k = {(const float *)a->logits.p,
                    a->select_bias,
                    a->expert_scale,
                    (float *)a->weight.p,
                    (int32_t *)a->id.p,
                    a->logits.ld,
                    a->weight.ld,
                    a->id.ld,
                    s->count,
                    a->logits.cols,
                    a->id.cols,
                    (int)a->rows,
                    a->score,
                    a->n_group,
                    a->n_group_used,
                    a->group_top2,
                    a->renorm,
                    a->scale};
    launch_cfg c = cfg_of((unsigned)((n + WARPS - 1) / WARPS), 1, st);
    c.block = dim3(WARPS * 32);
    return launched(launch(c, route_kernel, k));
}

extern "C" int cu_experts_sort(const struct cu_sort *a, cu_stream st)
{
    if (!is_i32(&a->id) || a->n_expert > CU_EXPERTS_MAX || a->tile_rows < 1)
        return CU_BAD;
    return launched(launch(cfg_of(1, 1, st), sort_kernel, *a));
}

extern "C" int cu_experts_sum(const struct cu_experts_sum *a, const struct cu_step *s, cu_stream st)
{
    const int n = rows_max(s, a->rows);
    if (!is_f32(&a->dst) || !is_f32(&a->src) || a->src.cols != a->dst.cols || a->n_used < 1 ||
        (a->weight.p && (!is_f32(&a->weight) || a->weight.cols != a->n_used)))
        return CU_BAD;
    if (n <= 0)
        return 0;
    sum_args k = {(float *)a->dst.p,
                  (const float *)a->src.p,
                  (const float *)a->weight.p,
                  a->dst.ld,
                  a->src.ld,
                  a->weight.ld,
                  s->count,
                  a->dst.cols,
                  a->n_used,
                  a->add,
                  (int)a->rows};
    return launched(launch(cfg_of((unsigned)n, k.d, st), sum_kernel, k));
}

extern "C" int cu_sigmoid_mul(const struct cu_sigmoid_mul *a, const struct cu_step *s, cu_stream st)
{
    const int n = rows_max(s, a->rows);
    if (!mat_ok(&a->dst) || !mat_ok(&a->x) || !is_f32(&a->gate) || a->x.cols != a->dst.cols ||
        (a->gate.cols != 1 && a->gate.cols != a->dst.cols))
        return CU_BAD;
    if (n <= 0)
        return 0;
    gate_args k = {
        a->dst.p, a->x.p,      (const float *)a->gate.p, a->dst.ld,   a->x.ld, a->gate.ld,
        s->count, a->dst.cols, a->gate.cols == 1,        (int)a->rows};
    launch_cfg c = cfg_of((unsigned)n, k.d, st);
    if (a->dst.dt == CU_F32)
        return launched(a->x.dt == CU_F32 ? launch(c, gate_kernel<float, float>, k)
                                          : launch(c, gate_kernel<float, bf16>, k));
    return launched(a->x.dt == CU_F32 ? launch(c, gate_kernel<bf16, float>, k)
                                      : launch(c, gate_kernel<bf16, bf16>, k));
}

extern "C" int cu_experts_scale(const struct cu_experts *a, const struct cu_mat *dst,
                                const struct cu_step *s, cu_stream st)
{
    const int n = rows_max(s, a->rows) * a->n_used;
    if (!mat_ok(dst) || dst->dt != a->src.dt || !is_i32(&a->id) ||
        (a->in_scale.p && (!is_f32(&a->in_scale) || a->in_scale.cols != a->n_used)))
        return CU_BAD;
    mul_args k = {dst->p,
                  a->src.p,
                  (const float *)a->in_scale.p,
                  dst->ld,
                  a->src.ld,
                  a->in_scale.ld,
                  s->count,
                  a->src.cols,
                  a->n_used,
                  a->each,
                  (int)a->rows,
                  nullptr,
                  a->w->col ? a->table : nullptr,
                  (const int32_t *)a->id.p,
                  a->id.ld};
    launch_cfg c = cfg_of((unsigned)n, k.d, st);
    return launched(dst->dt == CU_F32 ? launch(c, mul_kernel<float>, k)
                                      : launch(c, mul_kernel<bf16>, k));
}

extern "C" int cu_cols(const struct cu_mat *dst, const struct cu_mat *src, const int32_t *col,
                       enum cu_rows rows, const struct cu_step *s, cu_stream st)
{
    const int n = rows_max(s, rows);
    if (!mat_ok(dst) || !mat_ok(src) || dst->dt != src->dt || dst->cols != src->cols || !col)
        return CU_BAD;
    if (n <= 0)
        return 0;
    mul_args k = {};
    k.dst = dst->p;
    k.src = src->p;
    k.ld_dst = dst->ld;
    k.ld_src = src->ld;
    k.count = s->count;
    k.d = src->cols;
    k.n_used = 1;
    k.rows = (int)rows;
    k.col = col;
    launch_cfg c = cfg_of((unsigned)n, k.d, st);
    return launched(dst->dt == CU_F32 ? launch(c, mul_kernel<float>, k)
                                      : launch(c, mul_kernel<bf16>, k));
}
