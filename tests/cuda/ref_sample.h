/* The reference backend's sampling behind plain arguments, for C++ tests. */
#ifndef TESTS_CUDA_REF_SAMPLE_H
#define TESTS_CUDA_REF_SAMPLE_H

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif
/* One row: x f32 [n]; r's offsets index ints, bias_id, bias_val; r->uniform is not read. Aborts if ref refuses. */
void ref_sample_row(const float *x, int n, const struct cu_sample *a, const struct cu_sample_row *r,
                    uint64_t seed, uint32_t position, struct cu_sample_out *out);
double ref_uniform(uint64_t seed, uint32_t position);
#ifdef __cplusplus
}
#endif
#endif
