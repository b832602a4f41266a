/* The contract between model forwards and backends: fused operations over tensors. Every backend
 * (engine/ref, engine/cpu, cuda/) fills one `struct backend`. Ops are issued in order on the backend's
 * queue and may be asynchronous: only `read`, `sync` and `sample_wait` wait. Shapes are checked by the op
 * (ERR_INVAL = a bug in a forward); a device failure is sticky (ERR_DEVICE). Nothing here allocates after the
 * buffers, weights and KV pool are opened. One thread (the engine thread) calls everything here.
 *
 * Batch invariance: for a given backend, ISA and precision, a row's result has the same bits whatever
 * the other rows of the step, the number of rows, and the number of threads. */
#ifndef ENGINE_OPS_H
#define ENGINE_OPS_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "engine/ops_types.h"

struct dev;        /* an open device */
struct dev_weight; /* a weight in the backend's own packing */
struct dev_kv;     /* the KV pool of one model */

struct backend_opts {
    int n_threads;   /* CPU: 0 = all that the cgroup and affinity allow */
    bool pin;        /* CPU: pin workers to processors */
    const char *isa; /* CPU: force a table ("scalar", "avx2", ...); NULL = best */
    enum eng_precision precision;
    bool loose; /* GPU: a row may get other bits among many rows than alone, where that is faster */
};

struct backend_info {
    char name[64]; /* "cpu avx512 f32", ... */
    enum dtype
        mul_dtype; /* of tensors that only products read: f32, or bf16 where they multiply it */
    int n_threads;
    bool bf16; /* products of bf16 weights are the fast ones: dense weights may be rounded to it */
    bool lookahead; /* ops are asynchronous and step_meta.tok may hold TOK_SAMPLED(i) */
};

struct kv_desc {
    int n_layer, n_kv_head;
    int head_dim;     /* of K and of V */
    int32_t n_block;  /* blocks of KV_BLOCK_TOKENS; block 0 is the null block and never read */
    enum dtype dtype; /* DT_F32, DT_F16, DT_BF16; DT_I8, DT_F8: see quant/kv8.h */
    bool k_only;      /* no room for V: see ops_mla.h */
};

/* A token that the host does not know yet: what the last `sample` chose in its row i. Only for backends with
 * backend_info.lookahead, so that a step can be issued while the one before still runs. */
#define TOK_SAMPLED(i) (-1 - (i))

/* Everything a step's ops need about its rows; uploaded once per step. A row is one token. Rows of a
 * sequence are consecutive. Pointers belong to the caller and stay valid until the next step_begin. */
struct step_meta {
    int n_row, n_seq, n_logit;
    const int32_t *tok;         /* [n_row] token ids, or TOK_SAMPLED */
    const int32_t *pos;         /* [n_row] positions */
    const int32_t *seq_start;   /* [n_seq + 1] first row of each sequence */
    const int32_t *block_table; /* [n_seq, block_stride] block numbers */
    int block_stride;
    const int32_t *logit_row; /* [n_logit] rows that need logits, ascending */
    const int32_t *state_src,
        *state_dst; /* [n_seq] state slots, see ops_state.h; NULL: no states */
};

/* ---- arguments of the ops; tensors are f32 [rows, cols] unless said otherwise. (mul): mul_dtype, the rounding that
 * the product behind it makes anyway, so a half-size tensor loses nothing ---- */

/* dst[i,:] = scale * w[tok[i],:], then + pos[pos[i],:] where there is such a table (learned positions) */
struct op_embed {
    struct tensor dst; /* [n_row, n_embd] */
    const struct dev_weight *w;
    float scale;
    const struct dev_weight *pos; /* NULL: none; positions stay below its rows */
};

/* If add.buf: x += add. Then dst = x / sqrt(mean(x^2) + eps) * w (Zhang and Sennrich 2019); with `center` the layer norm
 * of Ba et al. 2016: x less its mean first, + b. w.buf == 0: ones.
 * dst.buf == 0: only the addition. dst may be x itself when nothing is added. */
struct op_rmsnorm {
    struct tensor dst;    /* [n, d] f32 or (mul) */
    struct tensor x, add; /* [n, d]; x may be (mul) where nothing is added */
    struct tensor w;      /* f32 [d] or buf 0 */
    struct tensor b;      /* f32 [d] or buf 0; with `center` only */
    float eps;
    bool center;
};

/* dst = src * w^T + bias; bias.buf may be 0. */
struct op_linear {
    struct tensor dst; /* [n, n_out] */
    struct tensor src; /* (mul) [n, n_in] */
    const struct dev_weight *w;
    struct tensor bias; /* f32 [n_out] */
};

/* In place on qkv: optional per-head RMS norm of q, k and v, rotation of q and k by pos * inv_freq (Su et al. 2021); then
 * k and v of every row are written to the layer's KV blocks. q_only: k and v are neither read nor written; the layer
 * attends to what another one wrote. */
struct op_rope_kv {
    struct tensor qkv; /* [n_row, (n_head + 2 n_kv_head) * head_dim], q then k then v */
    int n_head, n_kv_head, head_dim;
    int n_rot; /* rotated dimensions, even, <= head_dim */
    enum rope_style style;
    struct tensor inv_freq;               /* f32 [n_rot / 2] */
    float attn_factor;                    /* multiplies cos and sin (YaRN); 1 */
    struct tensor q_norm, k_norm, v_norm; /* f32 [head_dim] or buf 0 */
    float norm_eps;
    bool q_only;
    struct dev_kv *kv;
    int layer;
};

/* Causal paged attention: row i of a sequence sees positions [ops_first_seen(pos, window), pos].
 * KV is split at fixed absolute positions, so a row's result does not depend on chunking. */
struct op_attn {
    struct tensor dst; /* (mul) [n_row, n_head * head_dim] */
    struct tensor qkv; /* as in op_rope_kv; only q is read */
    int n_head, n_kv_head, head_dim;
    float scale;
    int window;    /* see ops_first_seen; 0 = none */
    float softcap; /* 0 = none; else softcap * tanh(s / softcap) */
    /* f32 [n_head] or buf 0: a learned score a head that takes part in the softmax's sum and adds no value
     * (attention sink, gpt-oss; Xiao et al. 2023). */
    struct tensor sinks;
    /* f32 [n_head] or buf 0: a slope a head; alibi * (key's position - row's) is added to a score, behind the soft
     * cap (Press et al. 2022). */
    struct tensor alibi;
    const struct dev_kv *kv;
    int layer;
};

/* dst = act(gate) * up; `single`: dst = act(gate), [n, d] */
struct op_act_mul {
    struct tensor dst;     /* (mul) [n, d] */
    struct tensor gate_up; /* [n, 2 d]: gate then up; `single`: [n, d] */
    enum act_kind act;
    bool single;
    float limit; /* ACT_SWIGLU_OAI */
};

/* The three in order, in.dst being act.gate_up and act.dst out.src: of equal bits, but what in and act leave in their
 * tensors is not to be read. Only for backends that win by it; NULL in others. */
struct op_mlp {
    struct op_linear in;
    struct op_act_mul act;
    struct op_linear out;
};

/* dst[i,:] = src[logit_row[i],:] */
struct op_gather {
    struct tensor dst; /* [n_logit, d] f32 or (mul) */
    struct tensor src; /* [n_row, d] as dst */
};

/* In place: with clip > 0 x = min(max(x, -clip), clip); x = softcap * tanh(x / softcap) when softcap > 0; x *= scale. With temper > 0 row i, of all rows of a step, is
 * multiplied by 1 + temper * ln(1 + floor((pos[i] + temper_from) / temper_every)), too: queries that stay sharp in long
 * contexts (Nakanishi 2025). */
struct op_scale {
    struct tensor x;
    float scale, softcap;
    float clip, temper;
    int32_t temper_every, temper_from;
};

/* Copy whole blocks, all layers: copy-on-write. Pairs do not overlap. */
struct op_kv_copy {
    struct dev_kv *kv;
    const int32_t *src, *dst; /* [n] block numbers */
    int n;
};

#include "engine/ops_image.h"
#include "engine/ops_mla.h"
#include "engine/ops_moe.h"
#include "engine/ops_sample.h"
#include "engine/ops_state.h"

/* One line per op: X(name) calls with `const struct op_<name> *`. */
#define OPS_LIST(X)                                                                                \
    X(embed)                                                                                       \
    X(rmsnorm) X(linear) X(rope_kv) X(attn) X(act_mul) X(gather) X(scale) X(sample) X(kv_copy)

#define BACKEND_ABI 6
struct backend {
    uint32_t abi; /* BACKEND_ABI */
    const char *name;
    int (*open)(struct dev **out, const struct backend_opts *o, struct err *e);
    void (*close)(struct dev *d);
    void (*info)(const struct dev *d, struct backend_info *out);
    /* Bytes of the device's own memory; NULL: it uses the host's. ERR_DEVICE. */
    int (*memory)(size_t *free_bytes, size_t *total);

    /* Memory of the device, zeroed. ERR_NOMEM. Release all before close. */
    int (*buf_alloc)(struct dev *d, size_t bytes, dev_buf *out);
    void (*buf_free)(struct dev *d, dev_buf b);
    int (*write)(struct dev *d, dev_buf b, size_t off, const void *src, size_t n);
    int (*read)(struct dev *d, dev_buf b, size_t off, void *dst, size_t n); /* waits */

    int (*weight_open)(struct dev *d, struct dev_weight **out, const struct weight_desc *w,
                       struct err *e);
    void (*weight_close)(struct dev *d, struct dev_weight *w);
    size_t (*weight_bytes)(const struct weight_desc *w, enum eng_precision p); /* of the packing */
    bool weights_in_place; /* it reads them after weight_open; others do for `rows` only */

    int (*kv_open)(struct dev *d, struct dev_kv **out, const struct kv_desc *k, struct err *e);
    void (*kv_close)(struct dev *d, struct dev_kv *kv);
    size_t (*kv_block_bytes)(const struct kv_desc *k); /* one block, all layers */

    /* Zeroed. NULL in a backend that has no op of OPS_STATE_LIST. */
    int (*state_open)(struct dev *d, struct dev_state **o, const struct state_desc *s,
                      struct err *e);
    void (*state_close)(struct dev *d, struct dev_state *s);

    /* `m` describes the rows of all ops until the next step_begin. */
    int (*step_begin)(struct dev *d, const struct step_meta *m);
    int (*sync)(struct dev *d); /* wait for everything issued */
    /* Wait for the oldest `sample` that is not waited for; later ones go on. At most 2 may be open. */
    int (*sample_wait)(struct dev *d);

    /* `m` names the layouts of the image ops until the next image_begin. NULL, like every image op, in a backend that
     * has none of them. */
    int (*image_begin)(struct dev *d, const struct image_meta *m);

#define OPS_FIELD(name) int (*name)(struct dev * d, const struct op_##name *a);
    OPS_LIST(OPS_FIELD)
    OPS_IMAGE_LIST(OPS_FIELD)
    OPS_MOE_LIST(OPS_FIELD) /* NULL in a backend that has none of them */
    OPS_MLA_LIST(OPS_FIELD) /* the same */
    OPS_STATE_LIST(OPS_FIELD)
    OPS_FIELD(mlp) /* may be NULL */
#undef OPS_FIELD
};

#endif
