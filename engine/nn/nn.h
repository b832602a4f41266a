/* What image models, encoders and speech models are built of: layers that load themselves from a component's tensors, temporaries in one work
 * buffer, and runs of operations with one sticky error. The same forward code runs twice: dry (no operation is issued,
 * temporaries are only counted), which gives the exact work memory of a step before it is tried, and for real. Engine
 * thread only.
 *
 *   struct nn_load -> layers (weights on the device)      struct nn -> a run: layouts, temporaries, operations */
#ifndef ENGINE_NN_H
#define ENGINE_NN_H

#include <stdarg.h>

#include "engine/image.h"
#include "engine/nn/comp.h"
#include "engine/ops.h"

/* ---- weights ---- */

struct eng_opts;
struct eng_info;
struct eng_memory;
struct nn_weights; /* opened weights of an image model; owns them */
int nn_weights_open(struct nn_weights **out, const struct backend *be, struct dev *dev,
                    enum eng_precision precision, struct err *e);
void nn_weights_close(struct nn_weights *w);         /* NULL is fine; before the device closes */
size_t nn_weights_bytes(const struct nn_weights *w); /* held, or planned */

/* Loading one component. The error is sticky: after the first one the loaders do nothing. With dev NULL in
 * nn_weights_open everything is found and checked and its bytes counted, nothing is opened. */
struct nn_load {
    struct nn_weights *w;
    struct comp *c;
    int rc;
    struct err *e;
};
#define NN_ANY (-1) /* a size that the file decides */

struct nn_linear {
    struct dev_weight *w; /* NULL: the layer is absent */
    struct tensor bias;   /* buf 0: none */
    int64_t n_in, n_out;
};
struct nn_conv {
    struct dev_weight *w;
    struct tensor bias;
    int c_in, c_out, k;
};
struct nn_norm {
    struct tensor w, b; /* buf 0: none */
};

enum nn_flag {
    NN_OPTIONAL = 1,  /* absent: the struct stays zero */
    NN_NO_BIAS = 2,   /* there must be none; without it a bias is taken if it is there */
    NN_ROWS = 4,      /* read by row (nn_load_table) */
    NN_PART_BIAS = 8, /* of a stack: a part without a bias has one of zeros if another has one */
};
/* fmt, ...: the layer's name without ".weight" / ".bias". Errors name the tensor and both shapes. */
void nn_load_linear(struct nn_load *l, struct nn_linear *out, int64_t n_in, int64_t n_out,
                    unsigned flags, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Several layers of one input as one product: their rows stacked in this order (q, k, v). n_name 1..3; names are
 * prefix + name[i]. All parts have a bias or none. */
struct nn_stack {
    const char *prefix;
    const char *name[3];
    int n_name;
    int64_t n_in, n_out[3]; /* NN_ANY allowed */
    unsigned flags;
};
void nn_load_stack(struct nn_load *l, struct nn_linear *out, const struct nn_stack *s);
/* [c_out, c_in, k, k] in the file (also [.., 1, k, k] and [c_out, c_in] for k = 1). */
void nn_load_conv(struct nn_load *l, struct nn_conv *out, int c_in, int c_out, int k,
                  const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* A 3-D convolution's weight [c_out, c_in, kt, k, k] at one moment `t` of kt: what a single frame sees of a causal
 * video VAE. t < 0 counts from the end. */
void nn_load_conv_3d(struct nn_load *l, struct nn_conv *out, int c_in, int c_out, int t,
                     const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Taps [from, from + n) of a 1-D convolution [c_out, c_in, k] as a matrix [c_out, n * c_in] for rows in which the n
 * inputs of an output lie behind each other. from 0 has the bias with it. */
struct nn_taps {
    int c_in, c_out, k, from, n;
};
void nn_load_taps(struct nn_load *l, struct nn_linear *out, const struct nn_taps *t,
                  const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void nn_load_norm(struct nn_load *l, struct nn_norm *out, int64_t n, unsigned flags,
                  const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* One f32 vector (any shape of n values; n may be NN_ANY) by its full name. */
void nn_load_vec(struct nn_load *l, struct tensor *out, int64_t n, unsigned flags, const char *fmt,
                 ...) __attribute__((format(printf, 5, 6)));
/* A table that is read by row: [rows, n_in] by its full name. Sizes may be NN_ANY; n_in and n_out (rows) come back in
 * *out. */
void nn_load_table(struct nn_load *l, struct nn_linear *out, int64_t n_in, int64_t rows,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Host copy of a small tensor as f32 (malloc'ed for the caller, *n values); NULL and an error if absent. */
float *nn_load_host(struct nn_load *l, int64_t *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether the component has this tensor; dim[0..n_dim) its shape when dim is not NULL. */
bool nn_load_has(const struct nn_load *l, int64_t dim[SOURCE_DIMS], const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Zeroed host memory for n layers of `size` bytes, the caller's to free; NULL after an error, ERR_NOMEM among them. */
void *nn_load_room(struct nn_load *l, int n, size_t size);
/* f32 values of our own making on the device, for as long as the weights live. */
void nn_load_const(struct nn_load *l, struct tensor *out, const float *v, int64_t n);

/* ---- runs ---- */

#define NN_LIVE 192 /* temporaries at a time */

struct nn {
    const struct backend *be;
    struct dev *dev;
    enum dtype mul; /* what products read */
    bool dry;
    int rc;             /* sticky: nothing is issued after an error */
    const char *failed; /* the operation that failed */
    struct {
        dev_buf buf;
        size_t cap, peak; /* bytes */
        int n;
        struct {
            size_t at, bytes;
        } live[NN_LIVE]; /* ascending */
    } mem;
    struct image_meta meta;
    const struct img_yield *yield; /* may be NULL */
};
/* n->be by the options, before any device is opened. ERR_UNSUPPORTED for the null device, which has no `what`. */
int nn_backend(struct nn *n, const struct eng_opts *o, const char *what, struct err *e);
/* Opens n->be's device for `work` ("run encoders": what an error says the device can't do); n->dev is then set, and the
 * caller's to close. Nothing else of n must be in use. */
int nn_open(struct nn *n, const struct eng_opts *o, enum eng_precision precision, const char *work,
            struct eng_info *info, struct err *e);
/* Bytes that the backend's device may still take; 0 when it can't say. Any thread. */
size_t nn_memory(const struct backend *be);
/* Start a run: no temporaries, no error. The buffer (mem.buf, mem.cap) stays. meta's arrays stay the caller's until the
 * run ends. A run may call nn_layouts again in its middle. */
void nn_begin(struct nn *n, bool dry);
void nn_layouts(struct nn *n, const struct image_meta *m);
/* Make the work buffer at least `bytes`; contents are lost. ERR_NOMEM. */
int nn_reserve(struct nn *n, size_t bytes);
void nn_close(struct nn *n); /* the device stays open */
/* Wait for everything; the run's result. e may be NULL. */
int nn_end(struct nn *n, struct err *e);

/* What is run twice: dry for its memory, then for real. */
struct nn_body {
    void (*fn)(struct nn *n, void *arg);
    void *arg;
    const char *what; /* "a batch": for errors */
    size_t most;      /* bytes of the work buffer that it may take; 0: any */
    const struct img_yield *yield;
};
/* Bytes of the dry run; 0 after an error, which n->rc has. */
size_t nn_peak(struct nn *n, const struct nn_body *b);
/* Both runs; *peak (may be NULL) what nn_peak gives. ERR_NOMEM: the work buffer. */
int nn_do(struct nn *n, const struct nn_body *b, size_t *peak, struct err *e);
/* out->work is set: file, weights, KV and the sum for a model of one file, of which `info` was filled in. */
void nn_plan(const struct nn *n, const struct source *src, const struct eng_info *info,
             struct eng_memory *out);

/* A temporary [rows, cols]; its memory is undefined. Zero tensor after an error (ERR_NOMEM: beyond the buffer;
 * ERR_LIMIT: NN_LIVE). Free in any order. */
struct tensor nn_tmp(struct nn *n, enum dtype d, int64_t rows, int64_t cols);
void nn_free(struct nn *n, struct tensor *t); /* zeroes *t; a zero tensor is fine */

/* Host <-> device; nothing happens in a dry run (nn_get then leaves dst). t must have contiguous rows. */
void nn_put(struct nn *n, const struct tensor *t, const void *src);
void nn_get(struct nn *n, const struct tensor *t, void *dst);

/* Run one operation: NN_OP(n, conv, .dst = ..., .src = ...). */
#define NN_OP(n, op, ...)                                                                          \
    do {                                                                                           \
        struct nn *nn_ = (n);                                                                      \
        if (!nn_->rc && !nn_->dry)                                                                 \
            nn_done(nn_, #op, nn_->be->op(nn_->dev, &(struct op_##op){__VA_ARGS__}));              \
    } while (0)
void nn_done(struct nn *n, const char *op, int rc); /* notes an error; yields */

/* The pieces that nearly every model is made of. Results are new temporaries unless said otherwise. */
/* x [rows, n_in] (f32 or mul: f32 is turned into mul on the way) -> f32 [rows, n_out]. */
struct tensor nn_linear(struct nn *n, const struct nn_linear *l, struct tensor x);
/* The same into dst (may be columns of a wider tensor). */
void nn_linear_to(struct nn *n, const struct nn_linear *l, struct tensor x, struct tensor dst);
/* dtype `to` copy of x through an activation. */
struct tensor nn_act(struct nn *n, struct tensor x, enum image_act act, enum dtype to);
/* Layer norm without adaption, to mul. */
struct tensor nn_norm_mul(struct nn *n, struct tensor x, const struct nn_norm *w, float eps,
                          bool rms);
/* Columns of a and b side by side (f32). */
struct tensor nn_concat(struct nn *n, struct tensor a, struct tensor b);
/* Rows [from, from + rows) of t: the same memory. */
static inline struct tensor nn_rows(struct tensor t, int64_t from, int64_t rows)
{
    t.off += (size_t)(from * t.stride[0]) * dtype_bytes(t.dtype);
    t.shape[0] = rows;
    return t;
}

/* Sinusoids of a timestep (Ho et al. 2020; diffusers' get_timestep_embedding): host. dst [dim]; flip: cosines first. */
void nn_sinusoid(float t, int dim, bool flip, float shift, float scale, float max_period,
                 float *dst);

#endif
