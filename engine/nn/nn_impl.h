/* Shared by nn_load.c, nn_tensor.c and nn_weights.c; private to them. */
#ifndef ENGINE_NN_IMPL_H
#define ENGINE_NN_IMPL_H

#include "engine/nn/nn.h"

#define NN_NAME 192

struct nn_weights {
    const struct backend *be;
    struct dev *dev; /* NULL: a plan */
    enum eng_precision precision;
    uint16_t *
        round; /* [65536] bf16 of each f16 when dense matrices are rounded: the device's fast products */
    struct dev_weight **w; /* [n] */
    int n, cap;
    void **own; /* [n_own] host copies that backends read in place */
    int n_own, cap_own;
    dev_buf *buf; /* [n_buf] vectors; the last one has room */
    int n_buf, cap_buf;
    size_t buf_used, buf_cap; /* of the last */
    size_t bytes;
};

/* A wanted tensor found in the files: one piece of memory in a format that a backend knows. */
struct nn_view {
    enum quant_fmt fmt;
    int n_dim;
    int64_t dim[SOURCE_DIMS];
    const void *data;
    size_t bytes;
    void *own;                /* the copy that data points into, or NULL: the file's */
    const struct source *src; /* of file memory */
};
/* Whether the component has the tensor; its shape if dim is not NULL. */
bool nn__find(const struct comp *c, const char *name, int64_t dim[SOURCE_DIMS], int *n_dim);
/* ERR_NOTFOUND without a text; other errors name the tensor. own is the caller's to free. */
int nn__view(const struct comp *c, const char *name, struct nn_view *out, struct err *e);
/* Decode all of v as f32 into dst. */
void nn__decode(const struct nn_view *v, float *dst);
/* Dense values as bf16, where the device prefers it; others stay. ERR_NOMEM. */
int nn__round(const struct nn_weights *w, struct nn_view *v);
int64_t nn__count(const struct nn_view *v);
/* "[320, 4, 3, 3]" into s [n]. */
const char *nn__shape(const int64_t *dim, int n_dim, char *s, size_t n);

/* Room for n floats in device memory; writes v when it is there. ERR_NOMEM. */
int nn__vec(struct nn_weights *w, struct tensor *out, const float *v, int64_t n);
/* Opens (or counts) a matrix; v[0..n_v) are its parts and their copies are taken over or freed. */
int nn__matrix(struct nn_weights *w, struct dev_weight **out, const struct weight_desc *d,
               struct nn_view *v, int n_v, struct err *e);

#endif
