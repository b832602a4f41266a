/* Small pieces that diffusion transformers share (Peebles and Xie 2023; Esser et al. 2024): which rows belong to which
 * picture, patches, rotary tables over several axes, timestep embeddings, modulation, and the block of two streams with
 * one attention. A pass over several pictures keeps the text rows of all of them behind each other, the image rows
 * likewise; attention sees the joint order: text then image of picture 0, text then image of picture 1, ... Engine
 * thread only.
 *
 *   txt    t0 t0 t1 t1 t1        img    i0 i0 i0 i1 i1        joint    t0 t0 i0 i0 i0 t1 t1 t1 i1 i1 */
#ifndef ENGINE_IMAGE_DIT_H
#define ENGINE_IMAGE_DIT_H

#include "engine/image/pipeline.h"

/* What pipelines ask of a transformer. */
struct dit_info {
    int channels, patch; /* of the latents; latents a token, of a side */
    int text_dim;        /* of the states that it reads (Z-Image: that captions are made of) */
    int pooled_dim;      /* of the pooled vector; 0: none */
};

/* ---- rows ---- */

/* Numbers of the layouts that dit_rows_layouts registers. */
enum dit_layout { DIT_TXT, DIT_IMG, DIT_JOINT, DIT_N_LAYOUT };
struct dit_rows {
    int n, cap;                   /* pictures in it; that fit */
    int32_t *start[DIT_N_LAYOUT]; /* [n + 1] by enum dit_layout; one allocation */
};
/* Room for n pictures, none in it. ERR_NOMEM. A zeroed struct is a valid start; one that is kept from step to step
 * allocates only when it grows. */
int dit_rows_begin(struct dit_rows *r, int n);
void dit_rows_add(struct dit_rows *r, int n_txt, int n_img);
void dit_rows_close(
    struct dit_rows *r); /* half-made too; not before the run that uses its layouts is over */
/* Registers the three layouts for the operations that follow. */
void dit_rows_layouts(const struct dit_rows *r, struct nn *n);
static inline int32_t dit_rows_sum(const struct dit_rows *r, enum dit_layout l)
{
    return r->start[l][r->n];
}
/* New temporary [joint rows, cols] of the two, which are [txt rows, cols] and [img rows, cols] of one dtype. */
struct tensor dit_join(struct nn *n, const struct dit_rows *r, struct tensor txt,
                       struct tensor img);
/* The opposite: into new temporaries; txt or img may be NULL. */
void dit_split(struct nn *n, const struct dit_rows *r, struct tensor joint, struct tensor *txt,
               struct tensor *img);

/* ---- patches: [c, h, w] <-> [(h / p) * (w / p), c * p * p] ---- */

enum dit_order {
    DIT_CHANNEL_FIRST, /* columns are [c, py, px]: FLUX, Qwen-Image, and a patch convolution's weight */
    DIT_CHANNEL_LAST, /* columns are [py, px, c]: Z-Image, SD3's output */
};
/* Patches of p x p latents; sides are multiples of p. */
struct dit_patch {
    int c, p;
    enum dit_order order;
};
static inline int dit_patch_count(const struct dit_patch *a, const struct img_row *r)
{
    return r->h / a->p * (r->w / a->p);
}
/* One picture [c, h, w] <-> rows. */
void dit_patch_pack(const struct dit_patch *a, int h, int w, const float *latent, float *rows);
/* rows * factor: -1 for models that predict the opposite direction. */
void dit_patch_unpack(const struct dit_patch *a, int h, int w, const float *rows, float factor,
                      float *latent);
/* Latents of all pictures as a new temporary [start[n_row], c * p * p], picture i from row start[i] on; rows between
 * are zero. */
struct tensor dit_put_latents(struct nn *n, const struct dit_patch *a, const struct img_row *row,
                              int n_row, const int32_t *start);
/* The way back: rows of t, [start[n_row], c * p * p], into row[i].out. */
void dit_get_latents(struct nn *n, const struct dit_patch *a, struct tensor t, float factor,
                     const struct img_row *row, int n_row, const int32_t *start);
/* cond->states of all pictures behind each other: a new temporary [rows, dim]. ERR_INVAL: a state of another width. */
struct tensor dit_put_states(struct nn *n, const struct img_row *row, int n_row, int dim);
/* Zeroed host memory of rows * cols values of `size` bytes for the time of a pass; NULL and a sticky error. */
void *dit_host(struct nn *n, int64_t rows, int64_t cols, size_t size);

/* ---- rotation over several axes (Su et al. 2021) ---- */

#define DIT_AXES 4
struct dit_rope {
    int n_axis;
    int dim[DIT_AXES]; /* even; their sum is the head's size */
    double theta;
};
int dit_rope_dim(const struct dit_rope *r); /* sum */
/* r->dim of three axes from the list `key`, which may be absent. ERR_INVAL, which names the key: they are not three even
 * numbers whose sum is head_dim. */
int dit_rope_read(struct dit_rope *r, struct config *c, const char *key, int head_dim,
                  struct err *e);
/* New temporaries cos and sin [rows, head / 2] from positions [rows, n_axis], for op_rotate. Angles are computed in
 * double once for each position of an axis. pos is not read in a dry run. */
void dit_rope_tables(struct nn *n, const struct dit_rope *r, const int32_t *pos, int64_t rows,
                     struct tensor *cos_out, struct tensor *sin_out);

/* ---- timestep and pooled embeddings, modulation ---- */

/* linear, SiLU, linear */
struct dit_mlp {
    struct nn_linear in, out;
};
/* Sizes may be NN_ANY; both layers have biases. */
void dit_mlp_load(struct nn_load *l, struct dit_mlp *m, const int64_t size[3], const char *in,
                  const char *out);
/* diffusers' time_text_embed.<what>_embedder: n_in -> d -> d */
void dit_embedder_load(struct nn_load *l, struct dit_mlp *m, const char *what, int64_t n_in,
                       int64_t d);
struct tensor dit_mlp_run(struct nn *n, const struct dit_mlp *m, struct tensor x);
/* sum += mlp(x), then x is freed */
void dit_mlp_add(struct nn *n, const struct dit_mlp *m, struct tensor x, struct tensor sum);
/* mlp(sinusoids of scale * t) [n_t, n_out], as many as the layer reads. t is not read in a dry run. */
struct tensor dit_time_run(struct nn *n, const struct dit_mlp *m, const float *t, int n_t,
                           float scale);
/* (mul) SiLU of x, which is freed. */
struct tensor dit_silu(struct nn *n, struct tensor *x);
/* New temporary [n_t, dim]: sinusoids of scale * t, cosines first. t is not read in a dry run. */
struct tensor dit_sinusoids(struct nn *n, const float *t, int n_t, int dim, float scale);

/* pooled vectors of all pictures: a new temporary [pictures, dim]. ERR_INVAL: one of another length. */
struct tensor dit_put_pooled(struct nn *n, const struct img_row *row, int n_row, int dim);

/* A slice of a modulation [pictures, k * d] that a linear layer made of the timestep: number `at` of width d. */
static inline struct tensor dit_slice(struct tensor mod, int at, int64_t d)
{
    return tensor_cols(mod, at * d, d);
}
/* layer norm(x) * (1 + scale) + shift, to mul: new temporary. Epsilon is 1e-6. */
struct tensor dit_modulate(struct nn *n, struct tensor x, struct tensor scale, struct tensor shift,
                           int layout);
/* x += gate * y, then y is freed */
void dit_gate(struct nn *n, struct tensor x, struct tensor *y, struct tensor gate, int layout);

/* ---- the block of two streams and one attention ---- */

/* Names behind the block's prefix, without ".weight". */
struct dit_stream_names {
    const char *mod, *q, *k, *v, *norm_q, *norm_k;
    const char
        *out; /* NULL: the stream ends in this block, which only reads it (SD3's last text) */
    const char *up, *down;
    const char *second; /* prefix of a second attention of the stream to itself (SD3.5), or NULL */
};
struct dit_attention {
    struct nn_linear qkv, out;
    struct tensor norm_q, norm_k; /* [head_dim]; buf 0: none */
};
struct dit_stream {
    /* [6 d]: shift, scale, gate of the attention; shift, scale, gate of the MLP; [9 d] with those of a second attention
     * behind them; [2 d], scale and shift, of a stream that ends here */
    struct nn_linear mod;
    struct dit_attention att, second;
    struct nn_linear up, down;
    bool ends, has_second;
};
void dit_stream_load(struct nn_load *l, struct dit_stream *s, int64_t d, int64_t head_dim,
                     const char *prefix, const struct dit_stream_names *names);
struct dit_joint {
    struct dit_stream txt, img;
    int n_head, head_dim;
};
/* The names of both streams in FLUX.1 and Stable Diffusion 3. */
extern const struct dit_stream_names dit_names_img, dit_names_txt;
/* Both streams of transformer_blocks.<i>. */
void dit_joint_load(struct nn_load *l, struct dit_joint *b, int i, int n_head, int head_dim,
                    const struct dit_stream_names *img, const struct dit_stream_names *txt);
/* What all blocks of a pass read. */
struct dit_pass {
    const struct dit_rows *rows;
    struct tensor temb;             /* (mul) [pictures, d], after SiLU */
    struct tensor cos_txt, sin_txt; /* [txt rows, head_dim / 2]; buf 0: no rotation */
    struct tensor cos_img, sin_img; /* [img rows, head_dim / 2] */
};
/* The pictures' rows into r, and its layouts for the operations that follow. False: the run has failed. */
bool dit_pass_begin(struct nn *n, struct dit_rows *r, const struct dit_patch *a,
                    const struct img_row *row, int n_row);
void dit_pass_end(struct nn *n, struct dit_pass *p); /* frees its tensors */
/* txt [txt rows, d] and img [img rows, d] (f32) one block on, in place. */
void dit_joint_run(struct nn *n, const struct dit_joint *b, const struct dit_pass *p,
                   struct tensor txt, struct tensor img);
/* up, tanh GELU, down: f32 [rows, n_out]. x (mul) is freed. */
struct tensor dit_gelu_mlp(struct nn *n, const struct nn_linear *up, const struct nn_linear *down,
                           struct tensor *x);

/* ---- the last layer: norm modulated by the timestep, scale before shift, then patches ---- */

struct dit_last {
    struct nn_linear mod, out; /* [2 d], [c * p * p] */
};
void dit_last_load(struct nn_load *l, struct dit_last *m, int64_t d, const struct dit_patch *a);
/* img [img rows, d], which is freed, into row[i].out. */
void dit_last_run(struct nn *n, const struct dit_last *m, const struct dit_pass *p,
                  const struct dit_patch *a, struct tensor *img, const struct img_row *row,
                  int n_row);

#endif
