/* Inside of the reference backend: plain loops, double accumulation, one thread. The truth for the tests of
 * every other backend; slow on purpose. */
#ifndef ENGINE_REF_REF_IMPL_H
#define ENGINE_REF_REF_IMPL_H

#include "engine/backend.h"

struct ref_buf {
    char *p; /* NULL: free slot */
    size_t n;
};

struct dev_weight {
    struct weight_desc desc;
    int64_t n_out; /* of all parts */
    float *row;    /* [n_in] one decoded row */
    float *stored; /* the same before its columns are put in order; NULL without col */
    int32_t *col;  /* own copy of desc.col, or NULL */
};

/* KV as [layer][block][token][kv head][K then V], each head_dim values in the pool's dtype and, behind codes, their
 * scale. */
struct dev_kv {
    struct kv_desc desc;
    char *p;
    double *acc, *x; /* [head_dim] sums of one query head; values being read */
};
/* Bytes of one token's K or V of a head; its values from and to floats. */
size_t ref__kv_vec_bytes(const struct kv_desc *k);
void ref__kv_store(const struct kv_desc *k, char *p, const float *x);
void ref__kv_load(const struct kv_desc *k, const char *p, double *x);

struct dev {
    struct ref_buf *bufs;
    int n_buf;
    struct step_meta meta;
    bool in_step;
    struct image_meta image;
};

/* Row i of t (or its first element), NULL when t does not lie inside its buffer. */
float *ref__ptr(const struct dev *d, const struct tensor *t);
/* Decode row `row` of w into w->row. */
const float *ref__weight_row(const struct dev_weight *w, int64_t row);

int ref__weight_open(struct dev *d, struct dev_weight **out, const struct weight_desc *w,
                     struct err *e);
void ref__weight_close(struct dev *d, struct dev_weight *w);
int ref__kv_open(struct dev *d, struct dev_kv **out, const struct kv_desc *k, struct err *e);
void ref__kv_close(struct dev *d, struct dev_kv *kv);
size_t ref__kv_block_bytes(const struct kv_desc *k);

#define REF_DECL(name) int ref__##name(struct dev *d, const struct op_##name *a);
OPS_LIST(REF_DECL)
OPS_IMAGE_LIST(REF_DECL)
OPS_STATE_LIST(REF_DECL)
int ref__state_open(struct dev *d, struct dev_state **out, const struct state_desc *s,
                    struct err *e);
void ref__state_close(struct dev *d, struct dev_state *s);
OPS_MOE_LIST(REF_DECL)
OPS_MLA_LIST(REF_DECL)
int ref__image_begin(struct dev *d, const struct image_meta *m);
#undef REF_DECL

#endif
