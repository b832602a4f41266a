/* Inside of the CPU backend: the device, its buffers and scratch. Engine thread, but for row functions that
 * run on the pool. */
#ifndef ENGINE_CPU_CPU_IMPL_H
#define ENGINE_CPU_CPU_IMPL_H

#include "engine/backend.h"
#include "engine/cpu/dispatch.h"
#include "engine/cpu/pool.h"

/* Memory that only grows: a step after warm-up finds it large enough. */
struct cpu_grow {
    void *p;
    size_t n; /* bytes */
};

struct cpu_buf {
    char *p;   /* 64-aligned; NULL: free slot */
    void *raw; /* what to free */
    size_t n;
};

struct dev_weight {
    struct weight_desc desc;
    struct cpu_packed *packed;
    int64_t n_in_pad; /* desc.n_in, or what zeros fill it up to: panels want a multiple of 32 */
    int32_t *col;     /* own copy of desc.col, or NULL */
    char name[80];
};

struct dev_kv {
    struct kv_desc desc;
    struct cpu_kv_geom geom;
    size_t head_bytes, layer_bytes;
    char *base; /* block 0, 64-aligned: [block][layer][kv head]{K, V} */
    void *raw;
    struct cpu_pool *chore; /* of this pool's workers: its pages (kv_touch); or NULL */
    _Atomic size_t high;    /* bytes from base: behind the last block written so far */
    size_t touched;         /* behind the last page that was touched ahead */
};

/* cos and sin of the step's rows for one frequency vector. */
#define CPU_N_ROPE 4
struct cpu_rope_cache {
    bool set; /* for this step */
    dev_buf buf;
    size_t off;
    int n_rot;
    float attn_factor;
    struct cpu_grow cs; /* [n_row][n_rot]: cos, then sin */
};

/* Block tables that this step has already been checked for. */
#define CPU_N_SEEN     8
#define CPU_OWN_BLOCKS INT32_MIN /* below any window */
struct cpu_seen {
    const struct dev_kv *kv;
    int window; /* or CPU_OWN_BLOCKS: those that the rows are written to */
};

struct cpu_tile {
    int seq, row, n;
    int split_lo, split_hi;
    int64_t task; /* first task of the tile */
    float *part;  /* NULL: one task a KV head */
    int n_part;   /* else: a KV head's tasks, each of some splits */
};

/* A job over rows; `ld` are floats from row to row. */
struct cpu_row_job {
    struct dev *d;
    int64_t n, grain, cols;
    float *dst;
    float *x;
    const float *add;
    int64_t ld_dst, ld_x, ld_add;
    const void *op;
    const float *w, *b;
};

struct dev {
    struct cpu_pool *pool;
    const struct cpu_isa *isa;
    enum eng_precision precision;
    int n_threads;
    struct cpu_slab *slab; /* packed weights */
    struct cpu_buf *bufs;
    int n_buf, n_buf_max;

    struct step_meta meta;
    bool in_step;
    struct cpu_grow row_seq; /* int32 [n_row] */
    struct cpu_rope_cache rope[CPU_N_ROPE];
    struct cpu_seen seen[CPU_N_SEEN];
    int n_rope, n_seen;
    struct dev_kv *kv_touched; /* whose pages idle workers touch ahead, or NULL */

    /* A norm that waits: should the next op be a product of its result, that makes the rows as it converts them, while they
     * are in its cache; any other op settles it first. */
    bool norm_waits;
    struct op_rmsnorm norm;
    struct cpu_row_job norm_rows;

    struct cpu_grow gemm;              /* cpu_gemm_scratch */
    struct cpu_grow tiles;             /* struct cpu_tile [n_row] */
    struct cpu_grow attn, part;        /* a worker's tile scratch; states of split tiles */
    struct cpu_grow sample;            /* a worker's vocabulary scratch */
    int64_t sample_vocab;              /* of the last op_sample */
    struct cpu_grow group, group_rows; /* cpu_moe_gemm.c: rows by expert; workers' rows */
    struct cpu_grow mlp, mlp_rows;     /* cpu_mlp.c: scratch of its second product; workers' rows */

    struct image_meta image;
    struct cpu_grow im2col, seg, packs, map; /* windows; per-segment vectors; K and V as attention
                                              * tiles read them; a convolution's input in bf16 */
};

/* At least `bytes`, 64-aligned; contents are not kept. ERR_NOMEM. */
int cpu__grow(struct cpu_grow *g, size_t bytes);

/* First element of t, or NULL when it does not lie inside its buffer (or has none). */
void *cpu__ptr(const struct dev *d, const struct tensor *t);

/* The same of a tensor that may be absent: NULL, and *bad set, when it has a buffer but lies outside it. */
float *cpu__opt_ptr(const struct dev *d, const struct tensor *t, bool *bad);

/* A row of activations as w's panels want it: its columns in their order, zeros behind them up to n_in_pad. */
void cpu__weight_row_in(const struct dev_weight *w, const float *src, float *dst);

/* fn(arg, task, worker) for all tasks; in this thread when `cost` (about nanoseconds in all) is too small
 * to be worth waking a worker. */
void cpu__run(struct dev *d, void (*fn)(void *, int, int), void *arg, int n_task, double cost);
/* Rows per task so that a task costs at least some microseconds. */
int cpu__grain(double row_cost);

/* cpu_attn.c */
int cpu__kv_open(struct dev *d, struct dev_kv **out, const struct kv_desc *k, struct err *e);
void cpu__kv_close(struct dev *d, struct dev_kv *kv);
size_t cpu__kv_block_bytes(const struct kv_desc *k);
int cpu__rope_kv(struct dev *d, const struct op_rope_kv *a);
int cpu__attn(struct dev *d, const struct op_attn *a);
int cpu__kv_copy(struct dev *d, const struct op_kv_copy *a);
/* cpu_ops.c */
int cpu__embed(struct dev *d, const struct op_embed *a);
int cpu__rmsnorm(struct dev *d, const struct op_rmsnorm *a);
void cpu__norm_settle(struct dev *d);
/* g reads src: whatever norm waits is done, or is g's to do (cpu_gemm_args.make). Just before the product. */
void cpu__norm_take(struct dev *d, const struct tensor *src, struct cpu_gemm_args *g);
int cpu__linear(struct dev *d, const struct op_linear *a);
int cpu__act_mul(struct dev *d, const struct op_act_mul *a);
int cpu__gather(struct dev *d, const struct op_gather *a);
int cpu__scale(struct dev *d, const struct op_scale *a);
/* cpu_mlp.c */
int cpu__mlp(struct dev *d, const struct op_mlp *a);
/* cpu_moe.c, cpu_moe_gemm.c, cpu_mla.c */
#define CPU_MOE_DECL(name) int cpu__##name(struct dev *d, const struct op_##name *a);
OPS_MOE_LIST(CPU_MOE_DECL)
OPS_MLA_LIST(CPU_MOE_DECL)
#undef CPU_MOE_DECL
/* cpu_sample.c */
int cpu__sample(struct dev *d, const struct op_sample *a);

/* cpu_conv.c, cpu_image.c, cpu_attend.c */
int cpu__seg_of(const struct image_layout *y, int64_t row); /* the segment of a row */
int cpu__image_begin(struct dev *d, const struct image_meta *m);
#define CPU_IMAGE_DECL(name) int cpu__##name(struct dev *d, const struct op_##name *a);
OPS_IMAGE_LIST(CPU_IMAGE_DECL)
/* cpu_state.c */
OPS_STATE_LIST(CPU_IMAGE_DECL)
#undef CPU_IMAGE_DECL
int cpu__state_open(struct dev *d, struct dev_state **out, const struct state_desc *s,
                    struct err *e);
void cpu__state_close(struct dev *d, struct dev_state *s);

#endif
