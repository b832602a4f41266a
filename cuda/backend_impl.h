/* Inside of the CUDA backend's host side: the device, its step buffers, the list of recorded ops. Engine thread. */
#ifndef CUDA_BACKEND_IMPL_H
#define CUDA_BACKEND_IMPL_H

#include "cuda/image.h"
#include "cuda/kernels.h"
#include "cuda/lt_api.h"
#include "cuda/mla.h"
#include "cuda/moe.h"
#include "cuda/rt.h"
#include "cuda/state.h"
#include "cuda/weight.h"
#include "engine/backend.h"

struct dev_weight {
    struct cu_weight w;
    void *mem, *col;
};
struct dev_kv {
    struct kv_desc desc;
    struct cu_kv kv;
};

/* One op of a step, as its launcher takes it. Padding is zero, so that equal ops are equal bytes. */
enum rec_kind {
    REC_EMBED,
    REC_RMSNORM,
    REC_LINEAR,
    REC_ROPE_KV,
    REC_ATTN,
    REC_ACT_MUL,
    REC_GATHER,
    REC_SCALE,
    REC_SAMPLE,
    REC_STATE_CONV,
    REC_STATE_SHIFT,
    REC_STATE_WKV,
    REC_STATE_SCAN,
    REC_STATE_DELTA,
    REC_GATED_NORM,
    REC_ROUTE,
    REC_EXPERTS,
    REC_EXPERTS_SUM,
    REC_SIGMOID_MUL,
    REC_MLA_KV,
    REC_MLA_ATTN,
    REC_INDEX
};
struct rec {
    enum rec_kind kind;
    int32_t lone; /* > 0: that many rows, whatever the step has */
    union {
        struct cu_embed embed;
        struct cu_rmsnorm rmsnorm;
        struct cu_linear linear;
        struct cu_rope_kv rope_kv;
        struct cu_attn attn;
        struct cu_act_mul act_mul;
        struct cu_gather gather;
        struct cu_scale scale;
        struct cu_sample sample;
        struct cu_state_conv state_conv;
        struct cu_state_shift state_shift;
        struct cu_state_wkv state_wkv;
        struct cu_state_scan state_scan;
        struct cu_state_delta state_delta;
        struct cu_gated_norm gated_norm;
        struct cu_route route;
        struct cu_experts experts;
        struct cu_experts_sum experts_sum;
        struct cu_sigmoid_mul sigmoid_mul;
        struct cu_mla_kv mla_kv;
        struct cu_mla_attn mla_attn;
        struct cu_index index;
    } u;
};

/* Device (and pinned host) memory that only grows; a step after warm-up finds it large enough. */
struct grow {
    void *p;
    size_t n;
};

#define N_SLOT  3 /* steps whose host buffers may be in use: one planned, two on the device */
#define N_GRAPH 32

struct slot {                      /* pinned; free when its event has passed */
    struct grow meta, sample, out; /* out: struct cu_sample_out [n] */
    cudaEvent_t done;
};
struct open_sample {
    int slot, n;
    struct sample_out *out;
};
struct graph {
    struct rec *key; /* [n_rec] */
    int n_rec;
    struct cu_step step; /* with its bounds */
    cudaGraphExec_t exec;
    uint64_t used;
};

#define CU_IM_PAIRS 6
/* Row tables of an attention between two layouts, and where their KV blocks lie. */
struct cu_im_pair {
    bool valid, causal;
    int q, kv;
    struct grow ints;
    struct cu_step step;
    const int32_t *block;
    int32_t n_block;
};
/* Image ops: the layouts in force, and work space that only grows. */
struct cu_im {
    struct image_meta meta;
    int32_t *host; /* what `ints` holds, or NULL */
    size_t n_int;
    int n_layout;
    struct cu_layout layout[IMAGE_LAYOUTS];
    struct cu_im_pair pair[CU_IM_PAIRS];
    int next_pair;
    struct grow ints, col, ws, pool, q, out;
};

struct dev {
    cudaStream_t stream;
    int cc;
    bool f32, graphs, loose;
    bool wide; /* a block may have 152 KiB of shared memory */
    struct cu_lt
        *lt;    /* cuBLASLt, when rows need not be alike and the library is there; else NULL */
    int failed; /* ERR_DEVICE from the first runtime error on */
    struct cu_buf {
        void *p;
        size_t n;
    } * bufs;
    int n_buf;

    struct step_meta meta;
    bool in_step, decode_only;
    struct cu_step step;
    int32_t stride, cap_row, cap_seq; /* what the device's step arrays are laid out for */
    struct grow dev_lone, dev_meta, dev_sample, dev_out, dev_seen, ws, attn_ws, flags, moe_ws, cols;
    int32_t *sampled;
    size_t n_sampled;

    struct slot slot[N_SLOT];
    int at_slot;
    struct open_sample open[2];
    int n_open;

    struct rec *rec;
    int n_rec, cap_rec;
    struct graph graph[N_GRAPH];
    uint64_t clock, n_replay;
    int lone_n; /* rows that dev_lone says; 0 = none yet */
    struct cu_im im;
    struct cu_table *table; /* moe.c */
    int n_table;
};

/* 0, or the sticky ERR_DEVICE: logs the first error with what was tried. */
int cu__check(struct dev *d, cudaError_t e, const char *what);
/* A launcher's result: CU_BAD is ERR_INVAL. */
int cu__launched(struct dev *d, int rc, const char *what);
/* First element of t in device memory, NULL when it does not lie inside its buffer. */
void *cu__ptr(const struct dev *d, const struct tensor *t);
int cu__grow(struct dev *d, struct grow *g, size_t bytes, bool zero);
/* Pinned host memory of at least n bytes; its last user has passed. Contents are not kept. */
int cu__pinned(struct dev *d, struct grow *g, size_t n);

/* ops.c: rows of a 2-d tensor (p NULL when it is absent), a vector; false: outside its buffer. */
bool cu__mat(const struct dev *d, const struct tensor *t, struct cu_mat *m);
bool cu__vec(const struct dev *d, const struct tensor *t, const float **out);
/* Which of the step's counts the rows of an op are: forwards work on all rows or on those with logits. Another number is
 * noted in *lone. */
enum cu_rows cu__rows_of(const struct dev *d, int64_t n, int32_t *lone);
/* What products read. */
static inline enum dtype cu__mul(const struct dev *d)
{
    return d->f32 ? DT_F32 : DT_BF16;
}
/* step.c */
int cu__step_begin(struct dev *d, const struct step_meta *m);
/* queue.c: append; the record's kind is set, the rest zero. NULL: no memory. */
struct rec *cu__record(struct dev *d, enum rec_kind kind);
/* Launch what is recorded, as a graph when the step allows it. */
int cu__flush(struct dev *d);
void cu__graphs_drop(struct dev *d);
/* A step of n rows that are not the step's. */
int cu__lone_step(struct dev *d, int n, struct cu_step *s);
/* sampling.c */
int cu__sample(struct dev *d, const struct op_sample *a);
int cu__sample_wait(struct dev *d);
/* Of a sample whose copy has arrived. */
void cu__sample_fill(struct dev *d);

#define CU_OP_DECL(name) int cu__##name(struct dev *d, const struct op_##name *a);
CU_OP_DECL(embed)
CU_OP_DECL(rmsnorm)
CU_OP_DECL(linear)
CU_OP_DECL(rope_kv)
CU_OP_DECL(attn)
CU_OP_DECL(act_mul)
CU_OP_DECL(gather)
CU_OP_DECL(scale)
CU_OP_DECL(kv_copy)
/* moe.c */
OPS_MOE_LIST(CU_OP_DECL)
OPS_MLA_LIST(CU_OP_DECL)
/* Before any weight goes away; nothing runs. */
void cu__tables_drop(struct dev *d);
/* image_ops.c */
int cu__image_begin(struct dev *d, const struct image_meta *m);
void cu__image_close(struct dev *d);
OPS_IMAGE_LIST(CU_OP_DECL)
/* state_ops.c */
OPS_STATE_LIST(CU_OP_DECL)
int cu__state_open(struct dev *d, struct dev_state **out, const struct state_desc *s,
                   struct err *e);
void cu__state_close(struct dev *d, struct dev_state *s);
#undef CU_OP_DECL

#endif
