/* Mixtures of experts on the device; see engine/ops_moe.h and kernels.h, whose rules these launchers keep. */
#ifndef CUDA_MOE_H
#define CUDA_MOE_H

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CU_I32         3    /* enum dtype's */
#define CU_EXPERTS_MAX 1024 /* OPS_EXPERTS_MAX */
#define CU_USED_MAX    128  /* OPS_USED_MAX */
#define CU_GROUPS_MAX  32   /* OPS_GROUPS_MAX */

/* See op_route; moe.cu */
struct cu_route {
    struct cu_mat logits, id, weight;
    const float *select_bias, *expert_scale; /* [n_expert] or NULL */
    int32_t score, n_group, n_group_used, group_top2, renorm;
    float scale;
    enum cu_rows rows;
};
int cu_route(const struct cu_route *a, const struct cu_step *s, cu_stream st);

/* See op_experts_sum; moe.cu */
struct cu_experts_sum {
    struct cu_mat dst, src, weight; /* weight.p NULL: ones */
    int32_t n_used, add;
    enum cu_rows rows; /* of dst */
};
int cu_experts_sum(const struct cu_experts_sum *a, const struct cu_step *s, cu_stream st);

/* See op_sigmoid_mul; moe.cu */
struct cu_sigmoid_mul {
    struct cu_mat dst, x, gate;
    enum cu_rows rows;
};
int cu_sigmoid_mul(const struct cu_sigmoid_mul *a, const struct cu_step *s, cu_stream st);

/* Where one expert's part lies. */
struct cu_expert {
    const void *data;
    const float *row_scale;
    const int32_t *col; /* of the whole weight */
};
struct cu_weight;

/* See op_linear_experts; moe_gemm.cu. Rows are sorted by expert on the device into tiles of one expert's rows; which
 * experts have how many is never known to the host: the grid is for the worst case, and blocks without a tile end. */
struct cu_experts {
    struct cu_mat dst, src, id, in_scale; /* in_scale.p NULL: none */
    const struct cu_weight *w;            /* shape of each */
    const struct cu_expert *table;        /* device [n_part][n_expert] */
    const float *bias;                    /* [n_expert * n_out] or NULL */
    int32_t n_expert, n_used;
    int32_t each;      /* src has a row for each row of dst */
    enum cu_rows rows; /* of id */
    void *ws;          /* cu_experts_ws bytes, 256-aligned */
    size_t ws_bytes;
    int32_t steady; /* as cu_linear's: K is not split */
};
int cu_linear_experts(const struct cu_experts *a, const struct cu_step *s, cu_stream st);
/* Work space for at most n_row rows of id. Pure. */
size_t cu_experts_ws(const struct cu_experts *a, int n_row);

/* moe.cu: the rows of n_used choices by expert. Pointers are device memory. */
struct cu_expert_tile {
    int32_t expert, first, n; /* order[first, first + n) */
    int32_t pad;
};
struct cu_sort {
    struct cu_mat id;
    const struct cu_count *count;
    int32_t n_expert, n_used, tile_rows, rows;
    int32_t *n_tile;             /* one number */
    struct cu_expert_tile *tile; /* [experts with rows + rows / tile_rows] */
    int32_t *order;              /* [rows * n_used]: rows of dst */
};
int cu_experts_sort(const struct cu_sort *a, cu_stream st);
/* dst[i * n_used + j, :] = src[i or i * n_used + j, :] * scale[i, j], columns in the expert's order; f32 or bf16. moe.cu */
int cu_experts_scale(const struct cu_experts *a, const struct cu_mat *dst, const struct cu_step *s,
                     cu_stream st);

/* dst[i, k] = src[i, col[k]]; of one type, f32 or bf16. moe.cu */
int cu_cols(const struct cu_mat *dst, const struct cu_mat *src, const int32_t *col,
            enum cu_rows rows, const struct cu_step *s, cu_stream st);

#ifdef __cplusplus
}
#endif
#endif
