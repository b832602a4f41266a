/* Kernels of layers with a recurrent state, as kernels.h: state.cu, state_scan.cu. A sequence's rows of the step are taken
 * one after the other inside one block, so a row's bits are its own. */
#ifndef CUDA_STATE_H
#define CUDA_STATE_H

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CU_CONV_MAX 8
#define CU_KEY_MAX  256
enum { CU_GATE_SILU, CU_GATE_SIGMOID };

/* Where a layer's states lie: p + slot * ld. */
struct cu_state_at {
    float *p;
    int64_t ld; /* floats from slot to slot */
};
struct cu_state_conv { /* see op_state_conv; mul may be bf16, all others are f32 */
    struct cu_mat dst, mul, x, in, out;
    const float *w, *bias;
    struct cu_state_at at;
    int32_t k, silu;
};
struct cu_state_shift {
    struct cu_mat dst, x; /* f32 or bf16 */
    const float *mix;
    struct cu_state_at at;
    int32_t n_mix;
};
struct cu_state_wkv {
    struct cu_mat dst, r, k, v; /* dst: f32 or bf16 */
    const float *decay, *first;
    struct cu_state_at at;
};
struct cu_state_scan {
    struct cu_mat dst, x, dt, b, c;
    const float *dt_bias, *a, *skip;
    struct cu_state_at at;
    int32_t n_head, head_dim, per_group, n_state, wide;
    float dt_min, dt_max;
};
struct cu_state_delta {
    struct cu_mat dst, q, k, v, g, beta;
    const float *g_bias, *a;
    struct cu_state_at at;
    int32_t n_head, n_key_head, dk, dv, cycle, wide;
    float scale, eps;
};
struct cu_gated_norm {
    struct cu_mat dst, x, gate;
    const float *w;
    int64_t group;                       /* columns; all of them with `bare` */
    int32_t bare, act, each, gate_first; /* bare: no norm; each: w has x's columns */
    float eps;
    enum cu_rows rows;
};
int cu_state_conv(const struct cu_state_conv *a, const struct cu_step *s, cu_stream st);
int cu_state_shift(const struct cu_state_shift *a, const struct cu_step *s, cu_stream st);
int cu_state_wkv(const struct cu_state_wkv *a, const struct cu_step *s, cu_stream st);
int cu_state_scan(const struct cu_state_scan *a, const struct cu_step *s, cu_stream st);
int cu_state_delta(const struct cu_state_delta *a, const struct cu_step *s, cu_stream st);
int cu_gated_norm(const struct cu_gated_norm *a, const struct cu_step *s, cu_stream st);

#ifdef __cplusplus
}
#endif
#endif
