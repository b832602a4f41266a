/* A loaded model: hyper-parameters, slots for weights, work tensors, and the architecture's tables.
 * Adding an architecture: its file (hyper-parameter rows, weight rows, what its layers consist of), one line
 * in models.def, one test. Shared code never asks which architecture it is. Engine thread only. */
#ifndef ENGINE_MODELS_MODEL_H
#define ENGINE_MODELS_MODEL_H

#include "engine/load/weights.h"
#include "engine/models/hp_read.h"

/* Slots of one layer. A slot that the architecture has no tensor for stays zero, and the shared blocks
 * then leave that term out. */
struct model_layer {
    struct dev_weight *qkv, *attn_out, *gate_up, *up, *down;    /* `up`: an MLP without gate */
    struct tensor attn_norm, ffn_norm, attn_norm_b, ffn_norm_b; /* _b: biases of layer norms */
    struct tensor q_norm, k_norm;                               /* per head */
    struct tensor q_norm_all, k_norm_all; /* over all heads: [DIM_Q], [DIM_KV] */
    struct { /* layer norms by head: weights of all heads, or of one for all; biases of one */
        struct tensor q, k, q_b, k_b;
    } head_norm;
    struct tensor attn_sub_norm,
        ffn_sub_norm; /* before a block's last product: [DIM_Q], [DIM_FF] */
    struct tensor attn_post_norm, ffn_post_norm; /* of a block's output, before it is added */
    struct tensor qkv_bias, attn_out_bias, gate_up_bias, up_bias, down_bias;
    struct tensor sinks; /* [n_head] */
    struct {             /* moe.c */
        struct dev_weight *router, *shared_gate_up, *shared_down, *shared_router;
        struct dev_weight **gate_up, **down; /* [n_expert] */
        struct tensor router_bias;           /* [n_expert] added to the logits */
        struct tensor select_bias;           /* [n_expert] added for the choice only */
        struct tensor expert_scale;          /* [n_expert] of an expert's weight */
        struct tensor router_norm, norm, post_norm, dense_post_norm; /* FFN_BOTH */
        struct tensor gate_up_bias, down_bias;                       /* [n_expert * ...] */
    } moe;
    struct { /* state.c; the product behind the mixer is attn_out */
        struct dev_weight *in, *x, *dt;
        struct dev_weight *z, *ba;                /* delta: output gate; beta and decay */
        struct dev_weight *f_a, *f_b, *g_a, *g_b; /* ... of low rank */
        struct dev_weight *r, *k, *v, *ffn_r;     /* RWKV */
        struct dev_weight *out;                   /* of a mixer beside another one */
        struct tensor in_bias, conv, conv_bias, dt_bias, a, skip;
        struct tensor norm, dt_norm, b_norm, c_norm;
        struct tensor mix, ffn_mix, decay, first; /* RWKV */
    } state;
    struct { /* mla.c */
        struct dev_weight *q_a, *q_b, *kv_a;
        struct dev_weight **k_b, **v_b; /* [n_head]: [rank, n_nope], [v_head, rank] */
        struct tensor q_a_norm, kv_a_norm;
        struct dev_weight *index_q, *index_k, *index_w;
        struct tensor index_norm, index_norm_b;
    } mla;
    struct { /* ple.c */
        struct dev_weight *gate, *proj;
        struct tensor norm, scale; /* scale [1] */
        float by;                  /* the value of scale; 1 without it */
    } ple;
};

/* Activations of a step, [max_rows or max_logit_rows, ...]. What only products read (h, att, ff, al) has the
 * backend's mul_dtype; the others, the residual stream among them, are f32. */
struct model_work {
    dev_buf buf;
    size_t bytes;
    struct tensor x, h, d, qkv, att, gate_up, ff; /* [max_rows, ...] */
    struct tensor d2, h2;     /* of a parallel MLP or a second mixer, else without rows */
    struct tensor att2, al2;  /* of a second mixer: as att, al */
    struct tensor xl, al, hl; /* [max_logit_rows, n_embd], [.., width of att], [.., n_embd] as h */
    struct tensor logits;     /* [max_logit_rows, n_vocab] f32 */
    struct {                  /* moe.c */
        struct tensor logits, weight, id; /* [rows, n_expert], [rows, n_used], [rows, n_used] i32 */
        struct tensor gate_up, ff, out;   /* [rows * n_used, ...] */
        struct tensor shared_gate_up, shared_ff, shared_weight;
    } moe;
    struct { /* state.c: [max_rows, ...] */
        struct tensor in, conv, mul, x, dt, dt_mul, y, z, ba, low, low32, rkv;
    } state;
    struct {                                   /* mla.c */
        struct tensor q_a, q_ah, q, kv;        /* [rows, ...]; q_ah as h */
        struct tensor q_nope, q_abs, ctx, out; /* [rows * n_head, ...]; q_nope, ctx as h */
        struct tensor id;                      /* [rows, n_head] i32: the number of the head */
        struct tensor index_q, index_k, index_w, seen; /* [rows, ...]; seen: [rows, positions] */
    } mla;
    struct { /* ple.c: [max_rows, ...]; last: [max_logit_rows, ...] of the last layer */
        struct tensor all, proj, gate_up, ff, last;
    } ple;
};
/* Where work tensors are laid out: model_work_place appends one. */
struct work_plan {
    struct tensor *t[96];
    int n;
    size_t at; /* bytes so far */
    bool bad;  /* overflow */
    enum dtype mul;
    int64_t n_row, n_logit;
};
void model_work_place(struct work_plan *p, struct tensor *t, enum dtype d, int64_t rows,
                      int64_t cols);

struct model;
struct model_arch {
    const char *name; /* general.architecture */
    const char *hf;   /* names in architectures[], '|' between; NULL: none */
    const char *gguf; /* general.architecture of a file that is made of a folder; NULL: name */
    /* Fill hp from the file and check it. */
    int (*hparams)(struct model_hp *hp, struct ckpt *c, struct err *e);
    const struct weight_row *weight;
    int n_weight;
    const char *hf_layer;         /* NULL: "model.layers.%d." */
    const char *const *hf_ignore; /* see weight_table */
    /* Issue the ops of one step; logits of meta->n_logit rows end in work.logits. */
    int (*forward)(struct model *m, const struct step_meta *meta);
};

struct model {
    const struct model_arch *arch;
    struct model_hp hp;
    const struct backend *be;
    struct dev *dev;
    struct dev_kv *kv[MODEL_POOLS];         /* NULL: no layer has KV there */
    struct dev_state *state;                /* NULL: no layer has a state */
    struct dev_weight *embd, *head;         /* head NULL: tied to embd */
    struct dev_weight *pos_embd;            /* learned positions [n_ctx, n_embd] or NULL */
    struct dev_weight *ple_embd, *ple_proj; /* per-layer embeddings (ple.c) */
    struct tensor ple_norm;
    struct tensor out_norm, out_norm_b, embd_norm, embd_norm_b, head_bias;
    struct tensor rope_factors;          /* divide the frequencies; from the file, or buf 0 */
    struct tensor rope_long, rope_short; /* ROPE_SCALING_LONG of a GGUF file; read into hp */
    dev_buf rope_buf;
    struct tensor alibi;                    /* [n_head] or buf 0 */
    struct tensor inv_freq, inv_freq_local; /* [n_rot / 2], [n_rot_local / 2] */
    struct tensor ones;                     /* [MODEL_HEAD_MAX] or buf 0: a norm without weights */
    struct model_layer *layer;
    unsigned *kind; /* [n_layer] bits of each layer, for weight rows */
    struct model_work work;
    int n_row;             /* of the step */
    const char *failed_op; /* name of the op that returned an error, for the message */
};

/* Sliding windows of Qwen's folders. (qwen2.c) */
int model_qwen_windows(struct model_hp *hp, struct ckpt *c, struct err *e);
/* Granite's factors of embeddings, scores, residuals and logits. (granite.c) */
int model_granite_factors(struct model_hp *hp, struct ckpt *c, struct err *e);
/* Gemma's scale of scores, by query_pre_attn_scalar; n_layer: of the size that scales otherwise in a GGUF file, where no
 * key tells. (gemma2.c) */
int model_gemma_scale(struct model_hp *hp, struct ckpt *c, int n_layer, struct err *e);

/* By the name in the file, a GGUF's or a folder's (any of several); NULL for one that is not in models.def. */
const struct model_arch *model_arch_find(struct view name, bool hf);

/* Work tensors laid out for the limits; bytes only when dev is NULL. ERR_NOMEM. */
int model_work_open(struct model *m, enum dtype mul, int max_rows, int max_logit_rows,
                    struct err *e);
void model_work_close(struct model *m);

/* hp, and rope_factors read back from the device if present -> inv_freq on the device. */
int model_rope_open(struct model *m, struct err *e);
void model_rope_close(struct model *m);
/* The frequencies themselves, [n_rot / 2]; sets hp->attn_factor. Su et al. 2021; Peng et al. 2023. */
void model_rope_freqs(struct model_hp *hp, float *inv_freq);

/* ---- shared blocks; all return 0 or an op's error ---- */

/* Run one op: rc = MODEL_OP(m, linear, .dst = ..., .src = ...). */
#define MODEL_OP(m, op, ...)                                                                       \
    model_op_done((m), #op, (m)->be->op((m)->dev, &(struct op_##op){__VA_ARGS__}))
static inline int model_op_done(struct model *m, const char *op, int rc)
{
    if (rc)
        m->failed_op = op;
    return rc;
}
/* The first n rows. */
static inline struct tensor model_rows(struct tensor t, int64_t n)
{
    t.shape[0] = n;
    return t;
}

/* x += add (where add.buf), then dst = norm(x) by the model's kind of norm; dst.buf 0: only the addition; w.buf 0: dst
 * is a copy. (blocks.c) */
int model_norm(struct model *m, struct tensor dst, struct tensor x, struct tensor add,
               struct tensor w, struct tensor b);

/* x *= factor; 0 = 1. (blocks.c) */
int model_scale(struct model *m, struct tensor x, float factor);

/* A mixer reads work.h [n rows] and leaves its output before the last product in work.att [n, its width]; without
 * `attend` only caches and states are written. Its weights are in the layer's slots. */
int model_mix_attn(struct model *m, int layer, int n, bool attend);
/* Width of what a layer's mixer leaves; the product behind it is layer.attn_out. */
int64_t model_mix_width(const struct model *m, int layer);
/* h [n, n_embd] (mul) -> d [n, n_embd] f32. */
int model_ffn_dense(struct model *m, int layer, struct tensor h, struct tensor d, int n);
int model_ffn_moe(struct model *m, int layer, struct tensor h, struct tensor d, int n);
/* x: the stream that h is the norm of. */
int model_ffn_both(struct model *m, int layer, struct tensor x, struct tensor h, struct tensor d,
                   int n);
/* The kinds with a state (state*.c). */
int model_mix_mamba(struct model *m, int layer, int n);
int model_mix_mamba2(struct model *m, int layer, int n);
int model_mix_delta(struct model *m, int layer, int n);
int model_mix_conv(struct model *m, int layer, int n);
int model_mix_rwkv(struct model *m, int layer, int n);
int model_ffn_rwkv(struct model *m, int layer, struct tensor h, struct tensor d, int n);
void model_state_work(const struct model_hp *hp, struct model_work *w, struct work_plan *p);
int model_mix_mla(struct model *m, int layer, int n, bool attend);
void model_mla_work(const struct model_hp *hp, struct model_work *w, struct work_plan *p);
/* Fills work.mla.id. */
int model_mla_open(struct model *m, struct err *e);
void model_moe_work(const struct model_hp *hp, struct model_work *w, struct work_plan *p);
/* What a layer ends with where the model has per-layer embeddings or factors (ple.c). After the weights: */
int model_ple_open(struct model *m, struct err *e);
void model_ple_work(const struct model_hp *hp, struct model_work *w, struct work_plan *p);
/* work.x, the embeddings -> the inputs of all layers. */
int model_ple_inputs(struct model *m, int n);
/* x = (x + d + what the layer's own embedding adds) * its factor; n rows, those with logits when last. */
int model_ple_end(struct model *m, int layer, struct tensor x, struct tensor d, bool last);
static inline bool model_ple_has(const struct model_hp *hp)
{
    return hp->n_ple > 0 || hp->layer_scale;
}

/* Pre-norm decoder (Touvron et al. 2023): embed, n_layer times {mixer, feed-forward}, head, by layer_hp and slots:
 * windows, norms after the blocks, parallel blocks, experts. In the last layer only rows that need logits go past
 * the mixer. (forward.c) */
int model_forward_decoder(struct model *m, const struct step_meta *meta);

#endif
