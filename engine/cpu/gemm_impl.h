/* Private to the GEMM family: the packed panel layouts, and the table that a kernel file fills per ISA.
 *
 * A panel holds `lanes` consecutive output rows (the ISA's f32 vector length), so that one vector holds one
 * k of all its rows and no horizontal sums are needed. k runs in chunks of 32. All words little-endian.
 *
 *   panel = [scales, padded to 64 bytes][chunk 0][chunk 1]...       lane = output row, fastest
 *   scales, GS_F16: per chunk  f16 d[lanes], (f16 m[lanes])
 *           GS_F32: per group  f32 d[lanes], (f32 m[lanes])
 *           GS_K:   per 256    f16 d[lanes], (f16 dmin[lanes]),
 *                              per group i8 s[lanes], (per group i8 m[lanes])
 *   chunk, 4 to 6 bits: u32 nib[4][lanes]: byte b of nib[i] = q[4i + b] | q[16 + 4i + b] << 4 (low 4 bits)
 *                       u32 high[bits - 4][lanes]: bit gemm_high_bit(k) = bit 4 (5) of q[k]
 *          8 bits:      u32 q[8][lanes]: byte b of q[i] = q[4i + b]
 *   dense: f32 w[32][lanes], f16 w[32][lanes], or for bf16 pairs u32[16][lanes]: [2i + o] = the values
 *          k = 4i + o (low half) and 4i + o + 2
 *
 * Pairs of k that are 2 apart are what byte and nibble shifts leave in the two halves of a word; the
 * activations of the bf16 path are permuted the same way. A group (32 or 16 values, k < 16 and k >= 16 of a
 * chunk) has one scale: w[k] = D * (q[k] - bias) + M, with D = d or d * s, and M = m or -(dmin * m): the same
 * f32 operations as the reference decoder. Where codes stand for other than whole numbers in order (`level`), q - bias
 * is the level. */
#ifndef ENGINE_CPU_GEMM_IMPL_H
#define ENGINE_CPU_GEMM_IMPL_H

#include "engine/cpu/gemm.h"
#include "engine/quant/split.h"

enum gemm_scale { GS_F16, GS_F32, GS_K };

/* X(name, bits, bias, group, scale, has_min, level) */
#define GEMM_INT_LAYOUTS(X)                                                                        \
    X(Q4, 4, 8, 32, GS_F16, 0, LEVEL_INT)                                                          \
    X(Q4M, 4, 0, 32, GS_F16, 1, LEVEL_INT)                                                         \
    X(Q4K, 4, 0, 32, GS_K, 1, LEVEL_INT)                                                           \
    X(Q4F, 4, 0, 32, GS_F32, 1, LEVEL_INT)                                                         \
    X(Q5, 5, 16, 32, GS_F16, 0, LEVEL_INT)                                                         \
    X(Q5M, 5, 0, 32, GS_F16, 1, LEVEL_INT)                                                         \
    X(Q5K, 5, 0, 32, GS_K, 1, LEVEL_INT)                                                           \
    X(Q6K, 6, 32, 16, GS_K, 0, LEVEL_INT)                                                          \
    X(Q8, 8, 128, 32, GS_F16, 0, LEVEL_INT)                                                        \
    X(Q8K, 8, 128, 32, GS_K, 0, LEVEL_INT)                                                         \
    X(Q8F, 8, 128, 32, GS_F32, 0, LEVEL_INT)                                                       \
    X(Q8F16, 8, 128, 16, GS_F32, 0, LEVEL_INT)                                                     \
    X(Q8FM, 8, 128, 32, GS_F32, 1, LEVEL_INT)                                                      \
    X(Q2K, 4, 0, 16, GS_K, 1, LEVEL_INT)                                                           \
    X(Q3K, 4, 4, 16, GS_K, 0, LEVEL_INT)
/* No kernels in integers: there PRECISION_INT8 multiplies these in f32. */
#define GEMM_LEVEL_LAYOUTS(X)                                                                      \
    X(F4, 4, 0, 32, GS_F32, 0, LEVEL_FP4)                                                          \
    X(F416, 4, 0, 16, GS_F32, 0, LEVEL_FP4)                                                        \
    X(NF4, 4, 0, 32, GS_F32, 0, LEVEL_NF4)                                                         \
    X(B4, 4, 0, 32, GS_F32, 0, LEVEL_B4)                                                           \
    X(F8, 8, 0, 32, GS_F32, 0, LEVEL_E4M3)
#define GEMM_QUANT_LAYOUTS(X) GEMM_INT_LAYOUTS(X) GEMM_LEVEL_LAYOUTS(X)

enum gemm_layout {
    GL_F32,
    GL_F16,
    GL_BF16,
#define X(name, ...) GL_##name,
    GEMM_QUANT_LAYOUTS(X)
#undef X
        GL_N
};

struct gemm_spec {
    int bits, bias, group;
    enum gemm_scale scale;
    int has_min;
    enum quant_level level;
};

#define GEMM_CHUNK    32
#define GEMM_TAIL     128 /* bytes that a panel of 16 lanes ends with: see gemm_fixed.h */
#define GEMM_SUPER    256
#define GEMM_ROWS_MAX 256 /* rows of a call at most */
#define GEMM_ROWS     16  /* activation rows a block in the converted activations */

/* Where bit 4 (or 5) of q[k] lies in its plane, k = 16h + 4i + b: one shift by 4h + i moves those of four k below the
 * bytes that hold their low bits. */
static inline int gemm_high_bit(int k)
{
    return (k & 3) * 8 + (k >> 2);
}

static inline size_t gemm_pad64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Bytes of a panel's scales (padded) and of one chunk. Sizes are checked once, in gemm.c. */
static inline size_t gemm_scale_bytes(struct gemm_spec s, int64_t n_in, int lanes)
{
    size_t per = s.scale == GS_F16 ? 2 : s.scale == GS_F32 ? 4 : 2 + (size_t)(GEMM_SUPER / s.group);
    size_t n = (size_t)(n_in / (s.scale == GS_F16   ? GEMM_CHUNK
                                : s.scale == GS_F32 ? s.group
                                                    : GEMM_SUPER));
    return gemm_pad64(n * per * (size_t)(1 + s.has_min) * (size_t)lanes);
}
static inline size_t gemm_chunk_bytes(struct gemm_spec s, int lanes)
{
    return (s.bits == 8 ? 8u : (unsigned)s.bits) * 4u * (size_t)lanes;
}

/* Some panels times some activation rows. */
struct gemm_call {
    const uint8_t *panel;
    size_t panel_bytes;
    int n_panel;
    int64_t n_out; /* rows of these panels that exist: the last panel may be partial */
    int64_t n_in, m;
    const float *x; /* [m, n_in], stride ldx */
    int64_t ldx;
    const uint16_t
        *xb;         /* bf16, in blocks of up to 16 rows (the last is shorter): [n_chunk][rows][32],
                           each run of four k stored in the order 0, 2, 1, 3 */
    const float *xs; /* group sums of the activations as the kernel sees them, per block of 16 rows:
                           [n_group][16] */
    /* int8: the activations in blocks of rows like xb, [n_chunk][rows] of 64 bytes: 32 words of 16 bits, ordered like xb;
     * scales [n_in / 32][16] a block, and the sums of 32 and of 16 values, negated, as integers. xs are then scale * sum. */
    const int8_t *xq;
    const float *sx;
    const int32_t *minus32, *minus16;
    bool one; /* fixed point, for whose xq, sx and minus* see kern_gemm_fixed.c */
    float *y; /* [m, n_out], stride ldy */
    int64_t ldy;
    const float *bias; /* [n_out] or NULL */
    void *wbuf;        /* the worker's scratch, gemm_wbuf_bytes */
};

/* Convert one block of up to 16 activation rows; outputs not wanted are NULL. Sums are of the bf16 values
 * when xb is wanted. */
struct gemm_prep {
    const float *x;
    int64_t ldx, n_in;
    int n_row;
    uint16_t *xb;
    float *xs32, *xs16; /* [n_in / 32][16], [n_in / 16][16] */
    /* For int8, all wanted: see gemm_call. */
    int8_t *xq;
    float *sx;
    int32_t *minus32, *minus16;
    bool one; /* fixed point: one row in all */
};

typedef void gemm_fn(const struct gemm_call *c);

/* 8-bit activations (kern_gemm_int8.c): one table per ISA, NULL for layouts that are not quantised. */
struct gemm_int8_kern {
    gemm_fn *fn[GL_N];
    gemm_fn *vnni[GL_N]; /* the same bits, for processors that have (AVX512-)VNNI; or NULL */
    void (*prep)(const struct gemm_prep *p);
};
extern const struct gemm_int8_kern gemm__int8_scalar, gemm__int8_avx2, gemm__int8_avx512;

/* Fixed point (kern_gemm_fixed.c): all precisions but f32. Rows are converted as a whole, packed panels are finished. */
struct gemm_fixed_kern {
    gemm_fn *fn[GL_N]; /* NULL for layouts that are not quantised */
    void (*finish[GL_N])(uint8_t *panel, size_t panel_bytes, int64_t n_in);
    void (*prep)(const struct gemm_prep *p);
};
extern const struct gemm_fixed_kern gemm__fixed_amx;

struct gemm_bf16_kern { /* bf16 weights times activations rounded to bf16 (kern_gemm_bf16.c) */
    gemm_fn *fn;
    void (*prep)(const struct gemm_prep *p);
};
extern const struct gemm_bf16_kern gemm__bf16_avx512, gemm__bf16_amx;

struct cpu_gemm_kern {
    const char *name;
    int lanes;
    gemm_fn *fast[GL_N];               /* default precision; NULL: as int8, or fixed */
    gemm_fn *exact[GL_N];              /* f32 activations, weights dequantised in f32 */
    const struct gemm_bf16_kern *bf16; /* or NULL */
    const struct gemm_int8_kern *int8; /* or NULL: fixed */
    const struct gemm_fixed_kern *fixed;
};
/* The table's kernels for bf16 where this processor has them and they pay, or NULL. */
const struct gemm_bf16_kern *gemm__bf16(const struct cpu_gemm_kern *k);
#define GEMM_WBUF_MIN ((size_t)88 << 10) /* bytes of one worker's scratch */
static inline size_t gemm_wbuf_bytes(int64_t n_in)
{
    return (size_t)n_in * 64 + GEMM_WBUF_MIN; /* expanded tiles, results, sums; see the kernels */
}

/* Converted activations and the workers' buffers, as offsets into one scratch: [xb or xq][sx][minus32][minus16][xs32]
 * [xs16][fixed point][worker buffers]. */
struct gemm_scratch {
    size_t sx, minus32, minus16, xs32, xs16, fixed, wbuf, wbuf_each, total;
    bool one; /* a product has one row */
};
struct gemm_scratch gemm__scratch_plan(int64_t m, int64_t n_in, int n_threads);
/* Whether the weight's kernels read converted activations. */
bool gemm__wants_prep(const struct cpu_packed *w);
/* ... or (too) the rows as they are. */
bool gemm__reads_floats(const struct cpu_packed *w);
/* ... or rows converted as a whole: gemm__prep_cols will not do. */
bool gemm__wants_whole(const struct cpu_packed *w);
/* Converts n_row <= GEMM_ROWS rows; they become rows [row, row + n_row) of the scratch, row a multiple of GEMM_ROWS. */
void gemm__prep(const struct cpu_packed *w, const struct gemm_scratch *s, void *scratch,
                int64_t row, const float *x, int64_t ldx, int n_row);
/* The same of columns [col, col + n) only, multiples of GEMM_CHUNK; x is their first. */
void gemm__prep_cols(const struct cpu_packed *w, const struct gemm_scratch *s, void *scratch,
                     const struct gemm_prep *p, int64_t row, int64_t col);
/* All rows of a product, on the workers. */
void gemm__prep_all(struct cpu_pool *pool, const struct cpu_gemm_args *a);
/* Ranges of panels to hand out in order for m rows: large ones first, small ones last, so that workers end together; on
 * several nodes of memory all alike. A range but the last has a multiple of `unit` panels. */
#define GEMM_CUT_MAX 512
struct gemm_cut {
    int n;
    int32_t from[GEMM_CUT_MAX + 1];
};
void gemm__cut(struct gemm_cut *c, int64_t n_panel, int64_t unit, const struct cpu_pool *pool,
               int64_t m);
/* Are all workers near one memory? */
bool gemm__one_node(const struct cpu_pool *pool);
/* Panels [from, to) times the m rows of the scratch from `row` on (a multiple of GEMM_ROWS), in the calling thread. */
struct gemm_piece {
    const struct cpu_packed *w;
    const struct gemm_scratch *s;
    const void *scratch;
    int64_t row, m;
    const float *x; /* the m rows themselves, for kernels that read them so */
    int64_t ldx;
    float *y; /* [m] rows that begin with column `col` of the result */
    int64_t ldy, col;
    const float *bias;
    int64_t from, to;
    void *wbuf; /* scratch->wbuf_each bytes */
};
void gemm__piece(const struct gemm_piece *q);
/* The least panels that pay for handing them out (16 KB of weights, what a call sets up), an even number. */
int64_t gemm__least(const struct cpu_packed *w, int64_t m);
int gemm__lanes(const struct cpu_packed *w);
/* First panel of output `col`, or -1 where none begins there. */
int64_t gemm__panel_at(const struct cpu_packed *w, int64_t col);
/* Bytes of a panel, on average. */
int64_t gemm__panel_cost(const struct cpu_packed *w);

/* gemm_pack.c. Layout of a format; GL_N when there is none. */
enum gemm_layout gemm__layout(enum quant_fmt f);
struct gemm_spec gemm__spec(enum gemm_layout l);
size_t gemm__panel_bytes(enum gemm_layout l, int64_t n_in, int lanes);
/* Fill one panel from n_row rows (<= lanes) of `row_bytes` each; missing rows become zero weights. */
void gemm__panel_pack(uint8_t *panel, int lanes, enum quant_fmt f, int64_t n_in,
                      const uint8_t *rows, size_t row_bytes, int n_row);

#endif
