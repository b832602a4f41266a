/* Types of ops.h that kernels need: apart, so that a new operation does not compile every kernel again. */
#ifndef ENGINE_OPS_TYPES_H
#define ENGINE_OPS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/quant/quant.h"
#include "engine/tensor.h"

#define KV_BLOCK_TOKENS 16 /* tokens a KV block */

/* The first position that a row at `pos` sees. window > 0: the last `window` positions; < 0: those of its own chunk of
 * -window positions, chunks begin at multiples; 0: all. Never falls as pos grows. */
#define OPS_WINDOW_MIN (-(1 << 30))
static inline int ops_first_seen(int pos, int window)
{
    if (window < 0)
        return pos / -window * -window;
    return window > 0 && pos >= window ? pos - window + 1 : 0;
}

struct dev_weight; /* a weight in the backend's own packing */

enum eng_precision {
    PRECISION_DEFAULT, /* bf16 or better activations, whatever is fastest on this device */
    PRECISION_F32,     /* f32 activations, dequantised weights, f32 KV: the oracle mode */
    PRECISION_INT8,    /* about 8 bits of an activation, as the backend is fast with: opt-in */
};

/* A matrix [n_out, n_in] made of parts stacked along n_out (e.g. q, k, v). A part's rows lie as in the
 * file: rows of n_in values in `fmt`. The bytes must stay mapped while the weight is open if `rows` or
 * backend.weights_in_place: they are then used in place. */
struct weight_part {
    enum quant_fmt fmt;
    const void *data;
    int64_t n_out;
};
struct weight_desc {
    const char *name; /* for messages */
    int64_t n_in;
    int n_part;
    struct weight_part part[3];
    bool rows;      /* also read by row (embedding look-up) */
    bool only_rows; /* never multiplied: needs no packing for op_linear */
    /* NULL, or [n_in]: what lies k-th in the parts' rows is column col[k] of the matrix (columns sorted so that blocks have
     * one scale). Not with `rows`. Read by weight_open alone. */
    const int32_t *col;
};

enum rope_style {
    ROPE_NORM /* pairs (2i, 2i+1) */,
    ROPE_NEOX /* pairs (i, i + rot/2) */,
    ROPE_NONE
};

enum act_kind {
    ACT_SILU,
    ACT_GELU_TANH,
    ACT_GELU_ERF,
    ACT_RELU,
    ACT_RELU2, /* max(0, x)^2 */
    ACT_SWIGLU_OAI /* gate = min(gate, limit), up = clamp(up, -limit, limit): (up + 1) * gate * sigmoid(1.702 gate) */
};

enum image_act {
    IMAGE_ACT_NONE,
    IMAGE_ACT_SILU,
    IMAGE_ACT_GELU_TANH,
    IMAGE_ACT_GELU_ERF,
    IMAGE_ACT_QUICK_GELU,
    IMAGE_ACT_RELU
};

#endif
