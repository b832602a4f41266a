/* cu_attn: which kernel attends. */
#include "cuda/attn.h"

#include <stdbool.h>

static bool shape_ok(const struct cu_attn *a, const struct cu_step *s)
{
    const struct cu_kv *kv = a->kv;
    if (!kv || !kv->p || !a->dst.p || !a->qkv.p || a->qkv.dt != CU_F32 || kv->n_kv_head <= 0 ||
        a->n_head <= 0 || a->n_head % kv->n_kv_head || a->layer < 0 || a->layer >= kv->n_layer ||
        s->row_max > 0x7fffffff / 64)
        return false;
    return a->dst.cols == a->n_head * kv->head_dim &&
           a->qkv.cols == (a->n_head + 2 * kv->n_kv_head) * kv->head_dim && a->softcap >= 0 &&
           (a->dst.dt == CU_F32 || a->dst.dt == CU_BF16);
}

static bool tensor(const struct cu_attn *a, const struct cu_step *s)
{
    const struct cu_kv *kv = a->kv;
    bool big = a->wide && kv->dt == CU_BF16 && s->dec_max == 0;
    return !a->alibi && a->dst.dt == CU_BF16 && kv->dt != CU_F32 && kv->head_dim % 16 == 0 &&
           kv->head_dim <= (big ? 512 : 256) && (uintptr_t)kv->p % 16 == 0;
}

size_t cu_attn_ws(int n_head, int head_dim, int dec_max, int split_max)
{
    return (size_t)n_head * (size_t)dec_max * (size_t)split_max * ((size_t)head_dim + 2) *
           sizeof(float);
}

int cu_attn_flags(int n_head, int dec_max)
{
    return n_head * dec_max;
}

int cu_attn(const struct cu_attn *a, const struct cu_step *s, cu_stream st)
{
    if (!shape_ok(a, s))
        return CU_BAD;
    if (s->row_max <= 0)
        return 0;
    if (!tensor(a, s))
        return cu_attn_any(a, s, st);
    if (!a->wgmma || a->exact || s->tile_max <= 0 || !cu_attn_wgmma_takes(a))
        return cu_attn_mma(a, s, st);
    struct cu_step dec = *s;
    dec.tile_max = 0;
    const int rc = cu_attn_mma(a, &dec, st);
    return rc ? rc : cu_attn_wgmma(a, s, st);
}
