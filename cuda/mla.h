/* Latent attention on the device; see engine/ops_mla.h and kernels.h, whose rules these launchers keep. */
#ifndef CUDA_MLA_H
#define CUDA_MLA_H

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CU_LATENT_MAX 1024 /* OPS_LATENT_MAX */

/* A k_only pool: [layer][block][CU_BLOCK_TOKENS][rank + n_rope]. */
struct cu_mla_kv {
    struct cu_mat q, q_nope, kv; /* q_nope: f32 or bf16 rows of n_nope */
    const float *norm, *inv_freq;
    float norm_eps, attn_factor;
    int32_t n_head, n_nope, n_rope, rank, style;
    const struct cu_kv *pool; /* host struct */
    int32_t layer;
};
int cu_mla_kv(const struct cu_mla_kv *a, const struct cu_step *s, cu_stream st);

struct cu_mla_attn {
    struct cu_mat dst, q_abs, q; /* dst: f32 or bf16 rows of rank */
    int32_t n_head, n_nope, n_rope, rank;
    float scale;
    struct cu_mat seen;       /* p NULL: all */
    const struct cu_kv *pool; /* host struct */
    int32_t layer;
};
int cu_mla_attn(const struct cu_mla_attn *a, const struct cu_step *s, cu_stream st);

struct cu_index {
    struct cu_mat q, k, weight, seen; /* seen.p NULL: only k is written */
    int32_t n_head, dim, n_rope, n_top, style;
    float scale, attn_factor;
    const float *inv_freq;
    const struct cu_kv *pool; /* host struct */
    int32_t layer;
};
int cu_index(const struct cu_index *a, const struct cu_step *s, cu_stream st); /* index.cu */

#ifdef __cplusplus
}
#endif
#endif
