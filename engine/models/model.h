/* A loaded model: hyper-parameters, slots for weights, work tensors, and the architecture's functions.
 * Adding an architecture: its file (hyper-parameter table, weight table, forward as op calls), one line
 * in models.def, one test. Shared code never asks which architecture it is. Engine thread only. */
#ifndef ENGINE_MODELS_MODEL_H
#define ENGINE_MODELS_MODEL_H

#include "engine/load/gguf.h"
#include "engine/load/weights.h"
#include "engine/ops.h"

enum model_dim { /* indices into model_hp.dim */
                 DIM_EMBD,
                 DIM_VOCAB,
                 DIM_FF,
                 DIM_Q,    /* n_head * head_dim */
                 DIM_KV,   /* n_kv_head * head_dim */
                 DIM_HEAD, /* head_dim */
                 DIM_ROPE, /* n_rot / 2 */
                 DIM_COUNT
};

enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN };

/* Values come from the file's metadata; an architecture sets its defaults before they are read. */
struct model_hp {
    int32_t n_layer, n_embd, n_ff, n_head, n_kv_head, head_dim, n_rot;
    int32_t n_ctx; /* that the model was made for */
    int32_t n_vocab;
    int32_t n_expert;
    float norm_eps;
    enum rope_style rope_style;
    enum act_kind act;
    float rope_base, rope_factor;
    enum rope_scaling rope_scaling;
    int32_t rope_ctx_orig;                       /* YaRN: context before scaling, tokens */
    float rope_beta_fast, rope_beta_slow;        /* YaRN: rotations at the ends of the ramp */
    float rope_attn_factor, rope_log_multiplier; /* YaRN; 0 = not given */
    float attn_factor;                           /* derived: multiplies cos and sin */
    float attn_scale;                            /* derived: of q.k; 1 / sqrt(head_dim) */
    float embd_scale;                            /* of embeddings */
    int32_t window;         /* sliding window of local layers, tokens; 0 = none */
    int32_t window_period;  /* every n-th layer sees all; 0 = no layer does */
    float rope_base_local;  /* of local layers, unscaled; 0 = as the others */
    int64_t dim[DIM_COUNT]; /* derived */
};

/* Slots of one layer. A slot that the architecture has no tensor for stays zero, and the shared blocks
 * then leave that term out. */
struct model_layer {
    struct dev_weight *qkv, *attn_out, *gate_up, *down;
    struct tensor attn_norm, ffn_norm;
    struct tensor q_norm, k_norm;                /* per head */
    struct tensor attn_post_norm, ffn_post_norm; /* of a block's output, before it is added */
    struct tensor qkv_bias, attn_out_bias, gate_up_bias, down_bias;
};

/* Activations of a step, [max_rows or max_logit_rows, ...]. What only products read (h, att, ff, al) has the
 * backend's mul_dtype; the others, the residual stream among them, are f32. */
struct model_work {
    dev_buf buf;
    size_t bytes;
    struct tensor x, h, d, qkv, att, gate_up, ff; /* [max_rows, ...] */
    struct tensor xl, al;                         /* [max_logit_rows, n_embd], [.., n_q] */
    struct tensor logits;                         /* [max_logit_rows, n_vocab] f32 */
};

struct model;
struct model_arch {
    const char *name; /* general.architecture */
    /* Fill hp from the file and check it. */
    int (*hparams)(struct model_hp *hp, const struct gguf *g, struct err *e);
    const struct weight_row *weight;
    int n_weight;
    /* Issue the ops of one step; logits of meta->n_logit rows end in work.logits. */
    int (*forward)(struct model *m, const struct step_meta *meta);
};

struct model {
    const struct model_arch *arch;
    struct model_hp hp;
    const struct backend *be;
    struct dev *dev;
    struct dev_kv *kv;
    struct dev_weight *embd, *head; /* head NULL: tied to embd */
    struct tensor out_norm;
    struct tensor rope_factors; /* divide the frequencies; from the file, or buf 0 */
    dev_buf rope_buf;
    struct tensor inv_freq, inv_freq_local; /* [n_rot / 2] */
    struct model_layer *layer;
    struct model_work work;
    const char *failed_op; /* name of the op that returned an error, for the message */
};

/* NULL for a name that is not in models.def. */
const struct model_arch *model_arch_find(struct view name);
/* "gemma3, llama, ..." for messages; static storage. */
const char *model_arch_list(void);

/* Work tensors laid out for the limits; bytes only when dev is NULL. ERR_NOMEM. */
int model_work_open(struct model *m, enum dtype mul, int max_rows, int max_logit_rows,
                    struct err *e);
void model_work_close(struct model *m);

/* hp, and rope_factors read back from the device if present -> inv_freq on the device. */
int model_rope_open(struct model *m, struct err *e);
void model_rope_close(struct model *m);
/* The frequencies themselves, [n_rot / 2]; sets hp->attn_factor. Su et al. 2021; Peng et al. 2023. */
void model_rope_freqs(struct model_hp *hp, float *inv_freq);

/* ---- metadata tables (hparams.c) ---- */

enum hp_type { HP_INT, HP_FLOAT };
struct hp_row {
    const char *key; /* after "ARCH." */
    enum hp_type type;
    bool optional;
    size_t field;    /* offset in struct model_hp */
    double min, max; /* inclusive */
};
/* Rows that every decoder-only transformer has: sizes, heads, norm, rope. */
int model_hp_common(struct model_hp *hp, const struct gguf *g, const char *arch, struct err *e);
int model_hp_read(struct model_hp *hp, const struct gguf *g, const char *arch,
                  const struct hp_row *row, int n, struct err *e);

/* ---- shared blocks (blocks.c); all return 0 or an op's error ---- */

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
static inline struct tensor model_rows(struct tensor t, int n)
{
    t.shape[0] = n;
    return t;
}

struct model_attn { /* what may differ between layers */
    int window;
    struct tensor inv_freq;
};
/* h -> att: qkv product, rope, KV write; attention only when `attend`. */
int model_block_attn(struct model *m, int layer, int n, const struct model_attn *a, bool attend);
/* Pre-norm decoder (Touvron et al. 2023): embed, n_layer times {attention, gated MLP}, head. Optional by
 * field or slot: sliding windows, norms after the blocks (Gemma Team 2025). In the last layer only rows that
 * need logits go past attention. */
int model_forward_decoder(struct model *m, const struct step_meta *meta);

#endif
