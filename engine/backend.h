/* Picks the backend: the CPU one is linked in; a GPU one is a plug-in (stepd-cuda.so,
 * stepd-cuda-emu.so) that exports `const struct backend stepd_backend`. */
#ifndef ENGINE_BACKEND_H
#define ENGINE_BACKEND_H

#include "engine/ops.h"

extern const struct backend cpu_backend; /* engine/cpu */
extern const struct backend ref_backend; /* engine/ref: plain C, double accumulation: the truth */

/* device: "auto" (or NULL: cuda if its plug-in loads and a device opens, else cpu), "cpu", "ref", "cuda",
 * "cuda-emu". Plug-ins are looked for beside the executable, then in the installed library folder; the
 * environment variable STEPD_LIBDIR replaces both. ERR_NOTFOUND when a plug-in can't be loaded, with the
 * loader's reason; ERR_UNSUPPORTED on another BACKEND_ABI. Static storage. */
int backend_find(const char *device, const struct backend **out, struct err *e);

/* ---- shape checks that every backend does first (ops_check.c): 0, or ERR_INVAL for a bug in a forward. They
 * look at descriptors only; a backend checks extents against its own buffers. Any thread. ---- */

/* t is [rows, cols] of dtype d with contiguous columns; rows < 0: any number of rows. */
bool ops_is_2d(const struct tensor *t, enum dtype d, int64_t rows, int64_t cols);
/* t is f32 [n], or has no buffer and may. */
bool ops_is_vec(const struct tensor *t, int64_t n, bool may_miss);
/* Bytes from the tensor's first to behind its last element; false on overflow. */
bool ops_extent(const struct tensor *t, size_t *bytes);

/* Positions, sequence starts, block stride, logit rows. Block numbers are checked per pool. */
int ops_check_step(const struct step_meta *m);
/* Blocks that the rows of `m` need are there and in [1, n_block). */
int ops_check_blocks(const struct step_meta *m, int32_t n_block);
int ops_check_kv(const struct kv_desc *k, struct err *e);
int ops_check_weight(const struct weight_desc *w, struct err *e);

/* `mul` is the backend's mul_dtype, m the step. */
int ops_check_embed(const struct op_embed *a, const struct step_meta *m, int64_t n_in,
                    int64_t n_out);
/* The table of learned positions has a row for every position of the step. */
int ops_check_embed_pos(const struct step_meta *m, int64_t n_in, const struct weight_desc *pos);
int ops_check_rmsnorm(const struct op_rmsnorm *a, enum dtype mul);
int ops_check_linear(const struct op_linear *a, enum dtype mul, int64_t n_in, int64_t n_out);
int ops_check_rope_kv(const struct op_rope_kv *a, const struct step_meta *m,
                      const struct kv_desc *k);
int ops_check_attn(const struct op_attn *a, enum dtype mul, const struct step_meta *m,
                   const struct kv_desc *k);
/* Blocks that hold what the rows see are there; those wholly before every window may be gone. */
int ops_check_attn_blocks(const struct step_meta *m, int window, int32_t n_block);
int ops_check_act_mul(const struct op_act_mul *a, enum dtype mul);
int ops_check_gather(const struct op_gather *a, enum dtype mul, const struct step_meta *m);
/* m: of the step, or NULL outside of one. */
int ops_check_scale(const struct op_scale *a, const struct step_meta *m);
/* What row i is multiplied by. */
float ops_scale_of(const struct op_scale *a, const struct step_meta *m, int64_t i);
int ops_check_sample(const struct op_sample *a);
int ops_check_kv_copy(const struct op_kv_copy *a, int32_t n_block);

/* ---- state ops ---- */
int ops_check_state_pool(const struct state_desc *s, struct err *e);
/* Slots of the step are there and in the pool; `need` floats at `at` lie in a layer's part. */
int ops_check_state_at(const struct state_at *at, const struct state_desc *s, int64_t need,
                       const struct step_meta *m);
int ops_check_state_conv(const struct op_state_conv *a, enum dtype mul, const struct step_meta *m);
int ops_check_state_scan(const struct op_state_scan *a, const struct step_meta *m);
int ops_check_state_delta(const struct op_state_delta *a, const struct step_meta *m);
int ops_check_state_wkv(const struct op_state_wkv *a, enum dtype mul, const struct step_meta *m);
int ops_check_state_shift(const struct op_state_shift *a, enum dtype mul,
                          const struct step_meta *m);
int ops_check_gated_norm(const struct op_gated_norm *a, enum dtype mul);

/* ---- image ops; im as given to image_begin ---- */
int ops_check_image(const struct image_meta *im);
int ops_check_conv(const struct op_conv *a, enum dtype mul, const struct image_meta *im,
                   int64_t n_in, int64_t n_out);
int ops_check_group_norm(const struct op_group_norm *a, enum dtype mul,
                         const struct image_meta *im);
int ops_check_layer_norm(const struct op_layer_norm *a, enum dtype mul,
                         const struct image_meta *im);
int ops_check_attend(const struct op_attend *a, enum dtype mul, const struct image_meta *im);
int ops_check_rotate(const struct op_rotate *a);
int ops_check_act(const struct op_act *a, enum dtype mul);
int ops_check_gate_add(const struct op_gate_add *a, const struct image_meta *im);
/* Ids are device memory: a backend that can see them checks their range. */
int ops_check_lookup(const struct op_lookup *a, int64_t n_in, int64_t n_in2);

#endif
