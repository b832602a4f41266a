/* What the attention kernels share: their arguments and where a token's K and V lie. */
#ifndef CUDA_ATTN_CUH
#define CUDA_ATTN_CUH

#include "cuda/kv8.cuh"

struct attn_args {
    void *dst;
    int64_t ld_dst;
    const float *qkv;
    int64_t ld;
    const char *pool; /* of the layer */
    const cu_count *count;
    const int32_t *pos, *row_seq, *table, *dec;
    const cu_tile *tile;
    const float *sinks, *alibi;
    float *ws;
    int32_t *flags;
    int32_t stride, n_head, n_kv_head, head_dim, window, dst_bf16, split_max, fp8;
    int64_t block_bytes; /* of the layer */
    float scale, softcap;
};

/* In values from the layer's start; v = 0: K, 1: V. */
__device__ __forceinline__ int64_t attn_at(const attn_args &a, int block, int slot, int head, int v)
{
    return (((int64_t)block * 2 + v) * a.n_kv_head + head) * CU_BLOCK_TOKENS * a.head_dim +
           (int64_t)slot * a.head_dim;
}

/* The same of a pool of codes, and the vector's scale. */
__device__ __forceinline__ const uint8_t *code_at(const attn_args &a, int block, int slot, int head,
                                                  int v)
{
    return (const uint8_t *)a.pool + block * a.block_bytes +
           ((int64_t)(v * a.n_kv_head + head) * CU_BLOCK_TOKENS + slot) * a.head_dim;
}
__device__ __forceinline__ float code_scale(const attn_args &a, int block, int slot, int head,
                                            int v)
{
    return *kv8_scale_at((char *)a.pool + block * a.block_bytes, a.n_kv_head, a.head_dim, slot,
                         head, v);
}

static inline attn_args attn_fill(const struct cu_attn *a, const struct cu_step *s)
{
    attn_args r = {};
    const struct cu_kv *kv = a->kv;
    r.dst = a->dst.p;
    r.ld_dst = a->dst.ld;
    r.dst_bf16 = a->dst.dt == CU_BF16;
    r.qkv = (const float *)a->qkv.p;
    r.ld = a->qkv.ld;
    r.pool = (const char *)kv->p +
             (int64_t)a->layer * (int64_t)cu_kv_layer_block_bytes(kv) * kv->n_block;
    r.count = s->count;
    r.pos = s->pos;
    r.row_seq = s->row_seq;
    r.table = s->block_table;
    r.dec = s->dec;
    r.tile = s->tile;
    r.sinks = a->sinks;
    r.alibi = a->alibi;
    r.ws = a->ws;
    r.flags = a->flags;
    r.stride = s->block_stride;
    r.n_head = a->n_head;
    r.n_kv_head = kv->n_kv_head;
    r.head_dim = kv->head_dim;
    r.window = a->window;
    r.split_max = s->split_max;
    r.fp8 = kv->dt == CU_F8;
    r.block_bytes = (int64_t)cu_kv_layer_block_bytes(kv);
    r.scale = a->scale;
    r.softcap = a->softcap;
    return r;
}

/* ---- the arithmetic of the kernels on tensor cores ---- */

#define LOG2E 1.4426950408889634f
#define PAGE  CU_BLOCK_TOKENS

__device__ __forceinline__ uint32_t pack2(float a, float b, bf16)
{
    union {
        __nv_bfloat162 h;
        uint32_t u;
    } x;
    x.h = __floats2bfloat162_rn(a, b);
    return x.u;
}
__device__ __forceinline__ uint32_t pack2(float a, float b, __half)
{
    union {
        __half2 h;
        uint32_t u;
    } x;
    x.h = __floats2half2_rn(a, b);
    return x.u;
}
/* How a state and one more are weighed in their common maximum. A state without tokens has maximum -inf and the factor 0;
 * the other one's is then exactly 1. */
struct fold {
    float max, keep, take;
};
__device__ __forceinline__ fold fold_of(float m, float m2)
{
    const float now = fmaxf(m, m2), ref = now == -INFINITY ? 0.0f : now;
    return {now, exp2f(__fsub_rn(m, ref)), exp2f(__fsub_rn(m2, ref))};
}
__device__ __forceinline__ float fold_do(float x, float y, const fold &f)
{
    return __fmaf_rn(y, f.take, __fmul_rn(x, f.keep));
}

/* What the finished output is multiplied with; a sink joins the sum here. */
__device__ __forceinline__ float finish(float m, float l, const float *sinks, int head)
{
    float keep = 1;
    if (sinks) {
        const fold f = fold_of(m, __fmul_rn(sinks[head], LOG2E));
        l = __fmaf_rn(l, f.keep, f.take);
        keep = f.keep;
    }
    return __fdiv_rn(keep, l);
}
/* Adding 0 makes -0 and +0 one: a step that adds nothing may turn one into the other. */
__device__ __forceinline__ float scaled(float o, float inv)
{
    return __fadd_rn(__fmul_rn(o, inv), 0.0f);
}

/* cap * tanh(x), as 1 - 2 / (2^(k x) + 1): absolute error 1e-7 of the cap */
__device__ __forceinline__ float capped(float x, float k, float cap)
{
    return __fmul_rn(cap,
                     __fsub_rn(1.0f, __fdividef(2.0f, __fadd_rn(exp2f(__fmul_rn(x, k)), 1.0f))));
}

/* Positions that the thread's two query rows see: [lo, hi], empty when hi < lo. */
struct sight {
    int lo[2], hi[2];
};
__device__ __forceinline__ int first_of(int pos, int window)
{
    if (window < 0) /* see ops_first_seen */
        return pos / -window * -window;
    return window > 0 && pos >= window ? pos - window + 1 : 0;
}

__device__ __forceinline__ void put2(const attn_args &a, int64_t row, int head, int d, float x,
                                     float y)
{
    const int64_t at = row * a.ld_dst + (int64_t)head * a.head_dim + d;
    if (a.dst_bf16)
        *(uint32_t *)((bf16 *)a.dst + at) = pack2(x, y, bf16());
    else
        *(float2 *)((float *)a.dst + at) = make_float2(x, y);
}

/* The (row, head) pairs of a block. */
struct pre_row {
    int64_t row;
    int head, pos; /* pos -1: no such pair */
};
__device__ __forceinline__ pre_row pre_at(const attn_args &a, const cu_tile &t, int kvh, int i)
{
    const int group = a.n_head / a.n_kv_head;
    if (i >= t.n * group)
        return {0, 0, -1};
    const int64_t row = t.row + i / group;
    return {row, kvh * group + i % group, a.pos[row]};
}

#endif
