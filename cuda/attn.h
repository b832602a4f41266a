/* The kernels behind cu_attn. */
#ifndef CUDA_ATTN_H
#define CUDA_ATTN_H

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

int cu_attn_any(const struct cu_attn *a, const struct cu_step *s, cu_stream st);
/* 16-bit KV, head_dim a multiple of 16 up to 256. */
int cu_attn_mma(const struct cu_attn *a, const struct cu_step *s, cu_stream st);

#ifdef __cplusplus
}
#endif
#endif
