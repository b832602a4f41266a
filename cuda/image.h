/* The image ops' kernels (engine/ops_image.h): what image_ops.c launches. As kernels.h: checked launchers, no allocation,
 * no synchronisation; a row's bits depend on its own segment alone. Row counts are the host's: image steps are not
 * captured. Values of enum image_act are asserted in image_ops.c. */
#ifndef CUDA_IMAGE_H
#define CUDA_IMAGE_H

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CU_IM_NONE = 0,
    CU_IM_SILU = 1,
    CU_IM_GELU_TANH = 2,
    CU_IM_GELU_ERF = 3,
    CU_IM_QUICK_GELU = 4,
    CU_IM_RELU = 5
};
#define CU_CHUNK_ROWS 64 /* rows of one partial sum of a group norm, at fixed places in a segment */

/* Segments of rows; arrays are device memory. */
struct cu_layout {
    int32_t n_seg;
    int64_t n_row;
    const int32_t *start; /* [n_seg + 1] */
    const int32_t *h, *w; /* [n_seg] or NULL */
    const int32_t *chunk; /* [n_seg + 1] first chunk of CU_CHUNK_ROWS rows of each segment */
    int32_t n_chunk;
};

/* image_conv.cu: windows of output rows [from, from + n) to rows of dst, [k, k, c] each: src of a cu_linear. */
struct cu_im2col {
    struct cu_mat dst, src; /* the same dtype; dst.cols = k * k * src.cols */
    const struct cu_layout *in, *out;
    int64_t from, n;
    int32_t k, stride, pad, up;
};
int cu_im2col(const struct cu_im2col *a, cu_stream st);
/* image_norm.cu */
struct cu_group_norm {
    struct cu_mat dst, x;
    const float *w, *b;
    int32_t groups, act;
    float eps;
    const struct cu_layout *y;
    void *ws; /* cu_group_norm_ws bytes, 16-aligned */
};
int cu_group_norm(const struct cu_group_norm *a, cu_stream st);
size_t cu_group_norm_ws(const struct cu_layout *y, int c);

struct cu_layer_norm {
    struct cu_mat dst, x;
    int64_t n;
    const float *w, *b;         /* [d] or NULL */
    struct cu_mat scale, shift; /* [n_seg, d] or p NULL */
    int32_t rms;
    float eps;
    const struct cu_layout *y; /* NULL without scale and shift */
};
int cu_layer_norm(const struct cu_layer_norm *a, cu_stream st);

/* image_rows.cu */
struct cu_rotate {
    struct cu_mat x, cos, sin; /* p NULL: no rotation */
    int64_t n;
    int32_t n_head, head_dim, style;
    const float *norm; /* or NULL */
    float eps;
};
int cu_rotate(const struct cu_rotate *a, cu_stream st);
struct cu_act {
    struct cu_mat dst, x;
    int64_t n;
    int32_t act;
};
int cu_act(const struct cu_act *a, cu_stream st);
struct cu_gate_add {
    struct cu_mat x, y, gate; /* gate p NULL: 1 */
    int64_t n;
    float factor;
    const struct cu_layout *l; /* NULL without gate */
};
int cu_gate_add(const struct cu_gate_add *a, cu_stream st);

/* image_attend.cu: K and V rows of segments to KV blocks as struct cu_kv lays them out (one layer), block 0 unused;
 * segment s has the blocks from block[s] on. head_dim of the pool may be wider: zeros. */
struct cu_pack_kv {
    struct cu_mat k, v; /* f32 [rows, n_kv_head * head_dim] */
    int32_t head_dim;
    const struct cu_kv *kv; /* host struct */
    const struct cu_layout *l;
    const int32_t *block; /* device [n_seg] */
};
int cu_pack_kv(const struct cu_pack_kv *a, cu_stream st);
/* Heads of `from` columns to heads of `to` columns (zeros behind, or cut); f32 or bf16, both the same. */
struct cu_pad_heads {
    struct cu_mat dst, src;
    int64_t n;
    int32_t n_head, from, to;
};
int cu_pad_heads(const struct cu_pad_heads *a, cu_stream st);
/* Attention with a bias by row and column inside the segment (T5's), or inside a window around the row, in f32. */
struct cu_attend_bias {
    struct cu_mat dst, q, k, v;
    int32_t n_head, n_kv_head, head_dim, causal, bias_cols; /* bias_cols: longest kv segment */
    float scale;
    struct cu_mat bias; /* f32 [n_head, ..], or p NULL */
    int32_t window;     /* 0 = none */
    const struct cu_layout *ql, *kl;
};
int cu_attend_bias(const struct cu_attend_bias *a, cu_stream st);

#ifdef __cplusplus
}
#endif
#endif
