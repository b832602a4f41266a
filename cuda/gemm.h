/* The products behind cu_linear. Each computes one part of a weight, columns from `col` on of dst. */
#ifndef CUDA_GEMM_H
#define CUDA_GEMM_H

#include "cuda/kernels.h"
#include "cuda/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Work space of split products: counters first, in a place of one size for all shapes (a product must find the zeros
 * that the one before left, whatever the shapes of both), then partial sums. */
#define CU_GEMM_COUNTERS   65536
#define CU_GEMM_HEAD_BYTES ((size_t)CU_GEMM_COUNTERS * 4)

/* gemm_quant.cu: packed weights, bf16 activations. CU_BAD also when a split product needs more counters than there are:
 * one for each 128 outputs x 64 rows (16 rows when there are no more). */
int cu_gemm_quant(const struct cu_linear *a, int part, int64_t col, const struct cu_step *s,
                  cu_stream st);
/* Parts that K is split into when the product is not steady; of the matrix alone. Pure. */
int cu_splits(int64_t n_in_pad, int64_t n_out);
/* gemm_wgmma.cu: the same for many rows on compute capability 9.0. src 16-byte aligned, ld a multiple of 8. */
int cu_gemm_wgmma(const struct cu_linear *a, int part, int64_t col, const struct cu_step *s,
                  cu_stream st);
/* Whether it is to be preferred for up to n_row rows: 1 or 0. Pure. */
int cu_gemm_wgmma_takes(const struct cu_linear *a, int part, int n_row);
/* gemm_f32.cu: float weights and activations, the oracle mode. */
int cu_gemm_f32(const struct cu_linear *a, int part, int64_t col, const struct cu_step *s,
                cu_stream st);

#ifdef __cplusplus
}
#endif
#endif
