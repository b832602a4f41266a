/* What the attention kernels share: their arguments and where a token's K and V lie. */
#ifndef CUDA_ATTN_CUH
#define CUDA_ATTN_CUH

#include "cuda/kern.cuh"

struct attn_args {
    void *dst;
    int64_t ld_dst;
    const float *qkv;
    int64_t ld;
    const char *pool; /* of the layer */
    const cu_count *count;
    const int32_t *pos, *row_seq, *table, *dec;
    const cu_tile *tile;
    const float *sinks;
    float *ws;
    int32_t *flags;
    int32_t stride, n_head, n_kv_head, head_dim, window, dst_bf16, split_max;
    float scale, softcap;
};

/* In values from the layer's start; v = 0: K, 1: V. */
__device__ __forceinline__ int64_t attn_at(const attn_args &a, int block, int slot, int head, int v)
{
    return (((int64_t)block * 2 + v) * a.n_kv_head + head) * CU_BLOCK_TOKENS * a.head_dim +
           (int64_t)slot * a.head_dim;
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
    r.ws = a->ws;
    r.flags = a->flags;
    r.stride = s->block_stride;
    r.n_head = a->n_head;
    r.n_kv_head = kv->n_kv_head;
    r.head_dim = kv->head_dim;
    r.window = a->window;
    r.split_max = s->split_max;
    r.scale = a->scale;
    r.softcap = a->softcap;
    return r;
}

#endif
