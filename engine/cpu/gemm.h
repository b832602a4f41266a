/* Matrix products of f32 activations with quantised weights, per ISA: y[m, n] = sum_k x[m, k] w[n, k].
 * Weights are packed once into panels of the ISA's lane count (output rows across lanes), nibbles and scales
 * kept exact; one reduction order over k for any number of rows m. Engine thread + workers. */
#ifndef ENGINE_CPU_GEMM_H
#define ENGINE_CPU_GEMM_H

#include <stddef.h>
#include <stdint.h>

#include "engine/cpu/pool.h"
#include "engine/cpu/slab.h"
#include "engine/ops_types.h"

struct cpu_gemm_kern; /* one table per ISA, exported by kern_gemm*.c as cpu_gemm_<isa> */
extern const struct cpu_gemm_kern cpu_gemm_scalar, cpu_gemm_avx2, cpu_gemm_avx512, cpu_gemm_amx;

/* Whether products of bf16 weights are faster than those of other dense formats. */
bool cpu_gemm_prefers_bf16(const struct cpu_gemm_kern *k);

struct cpu_packed; /* a packed weight matrix */

/* Pack w for the table and precision. ERR_NOMEM; ERR_INVAL names the weight (n_in no multiple of the
 * block, ...). Uses the pool to pack in parallel (start-up time is judged). */
int cpu_packed_open(struct cpu_packed **out, const struct cpu_gemm_kern *k, enum eng_precision p,
                    const struct weight_desc *w, struct cpu_pool *pool, struct err *e);
/* The same, with the memory out of *slab, which must outlive the weight and gets it back only as a whole. */
int cpu_packed_open_in(struct cpu_packed **out, const struct cpu_gemm_kern *k, enum eng_precision p,
                       const struct weight_desc *w, struct cpu_pool *pool, struct cpu_slab **slab,
                       struct err *e);
void cpu_packed_close(struct cpu_packed *w);
int64_t cpu_packed_n_out(const struct cpu_packed *w);
int64_t cpu_packed_n_in(const struct cpu_packed *w);
/* Bytes that cpu_packed_open will hold. */
size_t cpu_packed_bytes(const struct weight_desc *w, enum eng_precision p);

/* Bytes of scratch that cpu_gemm needs for up to m rows of n_in values (converted activations). */
size_t cpu_gemm_scratch(const struct cpu_gemm_kern *k, int64_t m, int64_t n_in, int n_threads);

struct cpu_gemm_args {
    const struct cpu_packed *w;
    const float *x; /* [m, n_in], row stride ldx floats */
    int64_t ldx;
    float *y; /* [m, n_out], row stride ldy floats */
    int64_t ldy;
    int64_t m;
    const float *bias; /* [n_out] or NULL */
    void *scratch;     /* 64-aligned, cpu_gemm_scratch bytes */
    bool ready;        /* the scratch holds the rows converted (gemm__prep) */
    /* Or NULL: makes rows [row, row + n) of x, n <= 16, before they are read; on any worker. */
    void (*make)(void *arg, int64_t row, int64_t n);
    void *make_arg;
};
void cpu_gemm(struct cpu_pool *pool, const struct cpu_gemm_args *a);

/* For rows that the caller makes itself, a few at a time (windows of a convolution): how the kernel reads them. */
enum cpu_gemm_form {
    CPU_GEMM_OWN,  /* only cpu_gemm can make them */
    CPU_GEMM_F32,  /* [m][n_in] floats */
    CPU_GEMM_BF16, /* in blocks of up to 16 rows (the last is shorter): [n_in / 32][rows][32] bf16, each run of four k in
                    * the order 0, 2, 1, 3; cpu_gemm_bf16_row makes [n_in] so */
};
enum cpu_gemm_form cpu_gemm_form(const struct cpu_packed *w);
void cpu_gemm_bf16_row(const struct cpu_packed *w, const float *x, uint16_t *dst, int64_t n);
/* Panels [from, to) of `lanes` outputs for m rows in that form, in the calling thread; y, ldy, bias as above (of all
 * outputs). wbuf: cpu_gemm_wbuf bytes, 64-aligned. The same bits as cpu_gemm's. */
struct cpu_gemm_block {
    const struct cpu_packed *w;
    const void *rows;
    int64_t m;
    float *y;
    int64_t ldy;
    const float *bias;
    int64_t from, to;
    void *wbuf;
};
void cpu_gemm_block(const struct cpu_gemm_block *b);
int64_t cpu_gemm_panels(const struct cpu_packed *w);
int64_t cpu_gemm_col(const struct cpu_packed *w,
                     int64_t panel); /* first output of a panel; n_out behind the last */
size_t cpu_gemm_wbuf(const struct cpu_packed *w);

/* One row of a packed or original weight as f32 (embedding look-up): dst[n_in]. Same values as the
 * format's reference decoder. */
void cpu_weight_row(const struct weight_desc *w, int64_t row, float *dst);

#endif
