/* The kernels behind cu_attn. */
#ifndef CUDA_ATTN_H
#define CUDA_ATTN_H

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

int cu_attn_any(const struct cu_attn *a, const struct cu_step *s, cu_stream st);
/* 16-bit KV or codes, head_dim a multiple of 16 up to 256. */
int cu_attn_mma(const struct cu_attn *a, const struct cu_step *s, cu_stream st);

/* The tiles alone, on compute capability 9.0, bits not those of cu_attn_mma: bf16 KV (16-byte aligned), head_dim 64 or
 * 128, what cu_attn_wgmma_takes says; else CU_BAD. */
int cu_attn_wgmma(const struct cu_attn *a, const struct cu_step *s, cu_stream st);
int cu_attn_wgmma_takes(const struct cu_attn *a);

#ifdef __cplusplus
}
#endif
#endif
