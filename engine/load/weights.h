/* From a weight table to opened weights. A model describes its tensors as rows (which names are stacked
 * into which slot, with which dimensions); this module finds them in the file, checks every shape and
 * format before anything is allocated on the device, hands matrices to the backend and puts vectors,
 * decoded to f32, into one device buffer. Refuses a file that lacks a tensor or holds one that no row
 * claims. Engine thread (plans: any thread). */
#ifndef ENGINE_LOAD_WEIGHTS_H
#define ENGINE_LOAD_WEIGHTS_H

#include "engine/load/ckpt.h"
#include "engine/ops.h"

enum weight_flag {
    WEIGHT_VECTOR = 1,    /* f32 tensor [sum of n_out]; else a matrix [sum of n_out, n_in] */
    WEIGHT_OPTIONAL = 2,  /* all parts or none; the slot stays zero when absent */
    WEIGHT_ROWS = 4,      /* also read by row (embedding) */
    WEIGHT_ROWS_TIED = 8, /* with WEIGHT_ROWS: multiplied too when `tied_by` is absent */
    WEIGHT_GLOBAL = 16,   /* one in the model, not one a layer */
    WEIGHT_FLAT = 32,     /* with WEIGHT_VECTOR: of any shape, n_out values in all */
    WEIGHT_EXPERTS =
        64, /* a matrix an expert, n_expert of them; a vector: an expert's parts one behind the other */
    WEIGHT_ALT = 8192, /* one of the rows of this slot must be there, whichever */
    /* what a folder's values need to become those of a GGUF file; vectors only but for HF_T */
    WEIGHT_HF_PLUS_1 = 128,  /* v + 1 */
    WEIGHT_HF_NEG_EXP = 256, /* -exp(v) */
    WEIGHT_HF_T = 512,       /* a dense matrix (or each expert's) is stored as [n_in, n_out] */
    WEIGHT_ELSE = 1024,      /* looked for only where the row before has no tensor */
    WEIGHT_ROW_ANY = 4096,   /* hf_row holds for GGUF files too */
    WEIGHT_UNUSED = 16384,   /* files may hold it; it is not looked at and fills no slot */
};

struct model_hp;

/* Parts of one slot. Names in a GGUF file: a layer's is "blk.N." + name. Names in a folder (`hf`): a layer's is the
 * table's hf_layer with N, + name; "{}" in it is the number of the expert, without it a tensor of WEIGHT_EXPERTS holds
 * all of them, [n_expert, n_out, n_in]. A kind of file that `name` or `hf` has nothing for lacks the row. */
struct weight_row {
    const char *name[3]; /* 1 to 3 parts, stacked along n_out; NULL ends */
    unsigned flags;
    int n_in;     /* index into weight_table.dim; matrices only */
    int n_out[3]; /* index into weight_table.dim */
    size_t slot;  /* offset of `struct dev_weight *` or `struct tensor` in the (layer) struct */
    const char *tied_by; /* see WEIGHT_ROWS_TIED; a GGUF name */
    const char *hf[3];
    int hf_n_out
        [3]; /* where the folder stacks otherwise (a fused product): the dims of hf; 0 = as n_out */
    const char *hf_tied_by;
    unsigned kind; /* layers that have it: those whose kind shares a bit; 0 = all */
    int n_expert;  /* WEIGHT_EXPERTS: index into weight_table.dim */
    /* WEIGHT_EXPERTS of a folder that has all in one matrix of n_expert * dim[hf_step] rows: expert x begins at row
     * x * dim[hf_step] + dim[hf_from]; 0: not so (hf_from 0: at the start). */
    int hf_step, hf_from;
    /* Row of the folder's part for row i of the slot's part (heads interleaved otherwise, ...); NULL: the same. */
    int64_t (*hf_row)(const struct model_hp *hp, int part, int64_t i);
};

struct weight_table {
    const struct weight_row *row;
    int n_row;
    const int64_t *dim; /* dimension values, by the model's own indices */
    int n_layer;
    const unsigned *kind; /* [n_layer] bits, see weight_row.kind; NULL = all bits */
    void *global;         /* base of WEIGHT_GLOBAL slots */
    void *layer;          /* base of layer slots: n_layer structs of layer_bytes */
    size_t layer_bytes;
    const char *hf_layer; /* "model.layers.%d." */
    const char *const
        *hf_ignore; /* parts of names that are no weights of this model; NULL ends; may be NULL */
    const struct model_hp *hp; /* for hf_row */
};

struct weight_plan; /* every tensor found and checked; points into the checkpoint */
/* ERR_NOTFOUND: a tensor is missing; ERR_INVAL: wrong shape (text has both) or format; ERR_UNSUPPORTED:
 * a tensor that the model does not know. */
int weights_plan_open(struct weight_plan **out, const struct ckpt *c, const struct weight_table *t,
                      struct err *e);
/* Multiplied matrices of f32, f16 and bf16 become "q8", "q4" or "fp8" (round.h) when they are loaded; NULL: none does.
 * `to` must stay. Before sizes are asked for. */
void weights_plan_round(struct weight_plan *p, const char *to);
void weights_plan_close(struct weight_plan *p); /* NULL is fine */
/* Bytes after packing by this backend, vectors included. */
size_t weights_plan_bytes(const struct weight_plan *p, const struct backend *be,
                          enum eng_precision precision);

struct weight_set; /* opened weights; owns them */
/* Fills the slots of the table that the plan was made from. File pages that a packed weight no longer
 * needs are given back to the kernel as it goes. On failure slots are unspecified and nothing is held. */
int weights_open(struct weight_set **out, const struct weight_plan *p, const struct backend *be,
                 struct dev *dev, struct err *e);
void weights_close(struct weight_set *s); /* NULL is fine; before the device closes */

#endif
