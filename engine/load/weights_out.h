/* The tensors of a GGUF file of the model that a folder's weight plan describes: names and shapes by the rows' GGUF side,
 * rows from the folder's tensors. Any thread. */
#ifndef ENGINE_LOAD_WEIGHTS_OUT_H
#define ENGINE_LOAD_WEIGHTS_OUT_H

#include "engine/load/weights.h"

struct weight_out {
    char name[128];
    enum quant_fmt fmt; /* its rows' in the folder; QF_F32: a vector */
    int n_dim;
    int64_t dim[4];   /* dim[0]: the row's length; unused are 1 */
    int item;         /* of the plan */
    int64_t at, rows; /* first row (value) in the slot, and how many (of an expert) */
    int n_expert;     /* 0: none */
    bool slot_order;  /* rows as in the slot, else as in the folder */
    /* the other order that a GGUF file has rotated heads in: head_dim, n_rot; 0: as they are */
    int32_t head, rot;
};
/* How the queries and keys of slot `qkv` (and its bias) are permuted: pairs beside each other where the folder has them
 * half a head apart. n_q rows of queries, then n_k rows of keys; head 0: they are not. */
struct weight_out_rope {
    size_t qkv, qkv_bias; /* slots, in the layer */
    int64_t n_q, n_k;
    int32_t head, rot;
};

/* *out [*n], to be freed. ERR_UNSUPPORTED names a tensor that has no place in a GGUF file. */
int weights_out_list(struct weight_out **out, int *n, const struct weight_plan *p,
                     const struct weight_table *t, const struct weight_out_rope *rope,
                     struct err *e);
bool weights_out_is_vector(const struct weight_plan *p, const struct weight_out *w);
bool weights_out_is_multiplied(const struct weight_plan *p, const struct weight_out *w);
/* Row r (experts one behind the other) in w's fmt; of a vector all values at r = 0. */
int weights_out_row(const struct weight_plan *p, const struct weight_out *w, int64_t r, void *dst,
                    struct err *e);

#endif
