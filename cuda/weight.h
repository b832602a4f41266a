/* Weights as the CUDA kernels read them: packed on the host once, then on the device for the life of the model. C17 and
 * C++17.
 *
 * f32 mode (the oracle): rows of floats, [n_out][n_in].
 *
 * Otherwise rows are grouped in panels of 32 and columns in stages of 64; a (panel, stage) is one unit of contiguous
 * bytes, what a warp copies at once:
 *
 *   codes   for each half of 32 columns, by planes of 4, 2, 1, 8 or 16 bits. In the half, lane l of the warp owns, of each
 *           of the panel's four tiles of 8 rows, row l / 4 and the eight columns of its two mma.m16n8k16 B fragments:
 *           value e is column (e / 4) * 16 + (e / 2 % 2) * 8 + (l % 4) * 2 + e % 2.
 *             16: [tile][lane] 8 bf16     8: [tile pair][lane][tile] 8 bytes     4: [lane][tile] u32, value e at bit 4e
 *              2: [lane][tile] u16        1: [lane][tile] u8
 *           (5 bits: planes 4 and 1; 6: 4 and 2; 3: 2 and 1)
 *   scales  [group][row % 8][row / 8] half, then mins alike where the format has them; groups of 16 or 32 columns
 *
 * x = row_scale * (scale * level + min); row_scale is a power of two that keeps the halves in their best range. Sizes:
 * bits + 16 (or 32) / group bits a weight. n_in is filled up to 64 and n_out to 32 with zeros. */
#ifndef CUDA_WEIGHT_H
#define CUDA_WEIGHT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CU_PANEL 32
#define CU_STAGE 64

struct cu_part {
    int32_t bits;  /* 2 3 4 5 6 8, 16 = bf16, 32 = f32 */
    int32_t group; /* 16, 32; 0 for 16 and 32 bits */
    int32_t min, offset;
    int32_t levels; /* enum quant_level */
    int64_t n_out;
    int64_t unit_bytes;
    const void *data;       /* device: units, or f32 rows */
    const float *row_scale; /* device [n_out]; NULL for 16 and 32 bits */
    const void *rows; /* device bf16 [n_out][n_in], the values of 16-bit units again; or NULL */
};
struct cu_weight {
    int64_t n_in, n_in_pad, n_out;
    int32_t n_part;
    int32_t lt; /* 16-bit parts have `rows` too, for gemm_lt.c: twice the memory */
    const int32_t
        *col; /* device [n_in] or NULL: a product wants column col[k] of its input k-th (cu_cols) */
    struct cu_part part[3];
};

struct weight_desc;
struct err;
/* Describes w and how many bytes its packing takes; data pointers stay NULL. 0, or ERR_*. */
int cu_weight_plan(struct cu_weight *out, const struct weight_desc *w, int f32, size_t *bytes,
                   struct err *e);
/* The same with struct cu_weight's lt set: the packing of 16-bit parts holds row-major values beside the units. */
int cu_weight_plan_lt(struct cu_weight *out, const struct weight_desc *w, size_t *bytes,
                      struct err *e);
/* Fills dst [bytes] with what cu_weight_bind expects on the device. ERR_NOMEM. */
int cu_weight_pack(const struct cu_weight *p, const struct weight_desc *w, void *dst);
/* Sets the device pointers; base is 256-aligned. */
void cu_weight_bind(struct cu_weight *p, void *base);

#ifdef __cplusplus
}
#endif
#endif
