/* Private to weights.c and weights_out.c: what a plan consists of. */
#ifndef ENGINE_LOAD_WEIGHTS_IMPL_H
#define ENGINE_LOAD_WEIGHTS_IMPL_H

#include "engine/load/weights.h"

#define NAME_MAX_LEN 128
#define VEC_ALIGN    64 /* bytes; vectors start on cache lines */

/* Rows of one file tensor. */
struct piece {
    struct ckpt_tensor t;
    int64_t n_out;      /* rows wanted */
    const char *at;     /* the first of them, before any transposing */
    int64_t row;        /* its number in the tensor */
    const int32_t *col; /* order of the columns that hfq_rows makes, or NULL */
    bool turned; /* of a quantised matrix: rows [row, row + n_in) turned are meant, in t.fmt */
};

/* One slot with its tensors. */
struct bind {
    char name[NAME_MAX_LEN]; /* of the first part, in the file */
    const struct weight_row *row;
    int piece, n_part; /* pieces [piece, piece + n_part * n_expert), an expert behind the other */
    int n_expert;      /* 0: no WEIGHT_EXPERTS, or a vector in one tensor */
    int n_turn;        /* of a vector: experts, else 1 */
    int64_t n_in;
    int64_t n_out;   /* of all parts */
    bool multiplied; /* false: only read by row */
    size_t vec_off;  /* bytes in the vector buffer */
    int layer;       /* 0 of a global one */
    void *slot;
};

struct weight_plan {
    struct bind *item;
    struct piece *piece;
    int n, n_piece, n_piece_max;
    size_t vec_bytes;
    int64_t vec_max; /* longest vector, elements */
    bool hf;
    const char *round; /* see weights_plan_round */
    int n_f16;         /* matrices whose parts have columns in different orders */
    const struct model_hp *hp;
    bool *claimed;              /* [tensors] while the plan is made */
    char missing[NAME_MAX_LEN]; /* a name that was not there */
};

/* Whether a layer has a row. */
bool weights__row_has(const struct weight_table *t, const struct weight_row *r, int layer);
/* Stored as [n_in, n_out]. Packed formats are not: their blocks run along n_in (gpt-oss: bf16 experts, or MXFP4). */
bool weights__is_turned(const struct weight_plan *p, const struct weight_row *r,
                        const struct ckpt_tensor *t);
/* Rows of the file's parts lie in another order than the slot's. */
bool weights__rows_moved(const struct weight_plan *p, const struct bind *b);
/* A whole vector in the slot's order, as the slot means it (1 + w, -exp(v) done): n_out values. */
void weights__vector(const struct weight_plan *p, const struct bind *b, float *dst);

#endif
