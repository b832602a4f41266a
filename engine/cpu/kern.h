/* Tables of the vector kernels, one per ISA: kern_norm.c, kern_attn.c, kern_sample.c and kern_image.c are
 * compiled once per ISA and export cpu_norm_<isa>, cpu_attn_<isa>, cpu_sample_<isa>, cpu_image_<isa>. Plain row kernels: no allocation, no
 * threads, no checks. A row's bits depend on the row alone. */
#ifndef ENGINE_CPU_KERN_H
#define ENGINE_CPU_KERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/ops_types.h"

struct op_act_mul;

#define CPU_KV_DIM_MAX 4096 /* of a head */

/* A block of one layer and KV head: K transposed [head_dim][16 tokens], so that the scores of 16 tokens are
 * lanes, then V [16 tokens][v_dim], v_dim = head_dim rounded up to 16 (zeros behind head_dim). */
struct cpu_kv_geom {
    enum dtype dtype;
    int head_dim, v_dim;
    size_t block_bytes; /* from block b to block b + 1 */
};
/* Codes (quant/kv8.h) lie in the same order, words (kv_words.h) in pairs; behind those of K, and of V, are the f32 scales of
 * the 16 tokens. Every part begins at a multiple of 64 bytes. */
static inline size_t cpu_kv_scales(const struct cpu_kv_geom *g)
{
    return dtype_is_code(g->dtype) || g->dtype == DT_I16 ? sizeof(float) * KV_BLOCK_TOKENS : 0;
}
/* Bytes of K without scales, which are then at this place. */
static inline size_t cpu_kv_k_bytes(const struct cpu_kv_geom *g)
{
    return (dtype_bytes(g->dtype) * KV_BLOCK_TOKENS * (size_t)g->head_dim + 63) / 64 * 64;
}
static inline size_t cpu_kv_v_at(const struct cpu_kv_geom *g)
{
    return cpu_kv_k_bytes(g) + cpu_kv_scales(g);
}
static inline size_t cpu_kv_v_scales_at(const struct cpu_kv_geom *g)
{
    return cpu_kv_v_at(g) + dtype_bytes(g->dtype) * KV_BLOCK_TOKENS * (size_t)g->v_dim;
}
/* All of a head: v_dim 0 is a pool without V. */
static inline size_t cpu_kv_head_bytes(const struct cpu_kv_geom *g)
{
    return g->v_dim ? cpu_kv_v_scales_at(g) + cpu_kv_scales(g) : cpu_kv_v_at(g);
}

struct cpu_rope_args {
    int n_head, n_kv_head, n_rot;
    enum rope_style style;
    const float *q_norm, *k_norm, *v_norm; /* [head_dim] or NULL */
    float eps;
    bool q_only;
    struct cpu_kv_geom geom;
    size_t head_bytes; /* from KV head h to h + 1 inside a block */
};

/* A row: x += add when add; dst = norm(x) * w + b when dst (dst may be x); w, b NULL: left out. */
struct cpu_norm_args {
    float *dst, *x;
    const float *add, *w, *b;
    int64_t d;
    float eps;
    bool center;
};

struct cpu_norm_kern {
    void (*norm)(const struct cpu_norm_args *a);
    /* n rows of qkv in place, of consecutive tokens of one block; cs = cos[n_rot/2] then sin[n_rot/2] of each; kv = the
     * layer's part of the block, slot = the first token's place in it. */
    void (*rope_kv)(const struct cpu_rope_args *a, float *qkv, int64_t ld, const float *cs,
                    void *kv, int slot, int n);
    /* One row of n values by a's activation; `gate` holds n values, then n more unless a->single. */
    void (*act_mul)(const struct op_act_mul *a, float *dst, const float *gate, int64_t n);
    void (*scale)(float *x, int64_t n, float scale, float softcap);
};
extern const struct cpu_norm_kern cpu_norm_scalar, cpu_norm_avx2, cpu_norm_avx512, cpu_norm_amx;

/* Attention is summed in chunks of CPU_ATTN_CHUNK tokens by online softmax, from nothing in every split of
 * CPU_ATTN_SPLIT tokens; splits are merged left to right. Both are at fixed absolute positions, so bits
 * depend neither on the tile nor on who computes which split. */
#define CPU_ATTN_CHUNK 64
#define CPU_ATTN_SPLIT 256
#define CPU_ATTN_TILE  16 /* query rows x grouped heads that share a load of K and V, about */

/* Query rows of one sequence against one KV head. */
struct cpu_attn_tile {
    const float *q; /* first row, first head of the group */
    float *dst;
    int64_t ldq, ldd; /* floats from row to row */
    int n_row, n_group;
    const int32_t *pos;   /* [n_row] the last token that a row sees */
    const int32_t *first; /* [n_row] the first one, or NULL: by window */
    const int32_t *table; /* block numbers of the sequence */
    const char *kv;       /* block 0, at this layer and KV head */
    struct cpu_kv_geom geom;
    float scale, softcap;
    int window;
    const float *sinks;     /* [n_group] or NULL */
    const float *alibi;     /* [n_group] or NULL */
    int split_lo, split_hi; /* splits to do */
    /* NULL: merge and write dst. Else [split - split_lo][n_row * n_group] states are left here. */
    float *part;
    float *scratch; /* cpu_attn_scratch(n_row * n_group, head_dim) floats */
};
/* Floats of a state: v_dim sums, then maximum and weight. */
static inline size_t cpu_attn_state(int v_dim)
{
    return (size_t)v_dim + 16;
}
static inline size_t cpu_attn_scratch(int m, int head_dim, int v_dim)
{
    return (size_t)m * ((size_t)head_dim + CPU_ATTN_CHUNK + 2 * cpu_attn_state(v_dim));
}
/* The first position that row m of a tile sees. */
static inline int cpu_attn_row_first(const struct cpu_attn_tile *t, int m)
{
    int row = m / t->n_group;
    return t->first ? t->first[row] : ops_first_seen(t->pos[row], t->window);
}

struct cpu_attn_kern {
    void (*tile)(const struct cpu_attn_tile *t);
    /* dst rows of t from the states of all its splits, `part` being split_lo's. */
    void (*merge)(const struct cpu_attn_tile *t);
};
extern const struct cpu_attn_kern cpu_attn_scalar, cpu_attn_avx2, cpu_attn_avx512, cpu_attn_amx;

/* The same for pools of words (kern_attn_words.c), for processors with VNNI; head_dim even and at most CPU_ATTN_WORDS_DIM. */
#define CPU_ATTN_WORDS_DIM 512
extern const struct cpu_attn_kern cpu_attn_words_avx512;

/* The same by bf16 tile products (kern_attn_amx.c), where the ISA has them: pools of f16 and bf16, head_dim at most
 * CPU_ATTN_TILES_DIM. K and V are packed once a split and tile, so tiles want many rows; `scratch` has
 * cpu_attn_tiles_scratch floats and is 64-aligned. States differ from those above in their last two values. */
#define CPU_ATTN_TILES_DIM 512
extern const struct cpu_attn_kern cpu_attn_tiles_amx;
size_t cpu_attn_tiles_scratch(int m, int head_dim);

/* Attention between row segments in bf16 (kern_attend_amx.c), where the ISA has tiles. Keys in blocks of 16, values in
 * blocks of 32, each a row of tiles of 1 KB: [block][head_dim / 32] and [block][head_dim / 16], rounded up; keys are
 * filled up to whole blocks of 32. */
#define CPU_ATTEND_ROWS  32
#define CPU_ATTEND_CHUNK 256
struct cpu_attend_tile {
    const float *q; /* first row, of one head */
    float *dst;
    int64_t ldq, ldd;
    int n_row, n_key, head_dim; /* n_row <= CPU_ATTEND_ROWS */
    float scale;
    const char *k, *v; /* packed, of the head */
    void *scratch;     /* cpu_attend_scratch bytes, 64-aligned */
};
struct cpu_attend_kern {
    /* n keys (at most 16, 32), rows of head_dim floats; missing ones become zeros. */
    void (*pack_k)(void *dst, const float *k, int64_t ld, int n, int head_dim);
    void (*pack_v)(void *dst, const float *v, int64_t ld, int n, int head_dim);
    void (*tile)(const struct cpu_attend_tile *t);
};
static inline size_t cpu_attend_scratch(int head_dim)
{
    size_t hd = ((size_t)head_dim + 31) / 32 * 32;
    return CPU_ATTEND_ROWS * (CPU_ATTEND_CHUNK * 6 + hd * 6);
}
extern const struct cpu_attend_kern cpu_attend_amx;

/* Latent attention of one row and n_head <= CPU_MLA_HEADS heads, see kern_mla.c. */
#define CPU_MLA_HEADS 16
struct cpu_mla_row {
    const float *q; /* [n_head][pad]: latent then rotated values, times the scale, zeros behind */
    float *dst;     /* [n_head][rank] */
    int n_head, dim, pad, rank, rank_pad; /* dim = rank + n_rope; pads: rounded up to 16 */
    int pos;
    const int32_t *table;
    const char *kv; /* block 0, at this layer */
    size_t block_bytes;
    enum dtype dtype;
    const float *seen; /* [pos + 1]: -inf: left out; or NULL */
    float *scratch;    /* [KV_BLOCK_TOKENS * pad + CPU_MLA_HEADS * rank_pad] */
};
/* Scores of op_index of one row for positions [0, pos]. */
struct cpu_index_row {
    const float *q, *weight; /* [n_head][pad], times the scale, zeros behind; [n_head] */
    float *score;
    int n_head, dim, pad, pos;
    const int32_t *table;
    const char *kv; /* block 0, at this layer */
    size_t block_bytes;
    enum dtype dtype;
    float *scratch; /* [KV_BLOCK_TOKENS * pad] */
};
struct cpu_mla_kern {
    void (*row)(const struct cpu_mla_row *a);
    void (*index)(const struct cpu_index_row *a);
};
extern const struct cpu_mla_kern cpu_mla_scalar, cpu_mla_avx2, cpu_mla_avx512, cpu_mla_amx;

struct cpu_top { /* most likely first */
    float x;
    int32_t id;
};
#define CPU_TOP_MAX 256
struct cpu_kept {
    float *x;
    int32_t *id;
};
struct cpu_sample_kern {
    /* Largest value and the lowest id that has it; false when x holds NaN or +Inf, or nothing but -Inf. */
    bool (*max)(const float *x, int64_t n, float *max, int32_t *id);
    /* log(sum(exp(x - max))) + max, in double. */
    double (*lse)(const float *x, int64_t n, float max);
    /* e = exp((x - max) * inv_t); returns the sum, in blocks of CPU_SUM_BLOCK. e may be x. */
    double (*exp_sum)(float *e, const float *x, int64_t n, float max, float inv_t);
    /* Sum of x in blocks, block sums to `sums` [ceil(n / CPU_SUM_BLOCK)] when given. */
    double (*sum)(const float *x, int64_t n, double *sums);
    /* The k (1..CPU_TOP_MAX) largest, ties by lower id; returns how many (n if smaller). */
    int (*top)(const float *x, int64_t n, int k, struct cpu_top *out);
    /* Values above v, and equal ones before index `at`. */
    int64_t (*rank)(const float *x, int64_t n, float v, int64_t at);
    /* Values of at least `least` and their ids (the index where id is NULL), in order; returns how many.
     * out may be x and id themselves. */
    int64_t (*keep)(const float *x, const int32_t *id, int64_t n, float least, struct cpu_kept out);
};
#define CPU_SUM_BLOCK 1024
extern const struct cpu_sample_kern cpu_sample_scalar, cpu_sample_avx2, cpu_sample_avx512,
    cpu_sample_amx;

struct cpu_image_kern {
    /* sum[k] += x, sq[k] += x^2 over n_row rows of c channels, in double. */
    void (*channel_sums)(const float *x, int64_t ld, int64_t n_row, int64_t c, double *sum,
                         double *sq);
    /* dst = act(x * mul + add), channel by channel. */
    void (*affine)(float *dst, const float *x, const float *mul, const float *add, int64_t n,
                   enum image_act act);
    /* dst = norm(x) * w + b, then * (1 + scale) + shift; any of the four may be NULL. */
    void (*layer_norm)(float *dst, const float *x, const float *const v[4], int64_t n, float eps,
                       bool rms);
    void (*act)(float *dst, const float *x, int64_t n, enum image_act act);
    /* x += factor * gate * y; gate may be NULL. */
    void (*gate_add)(float *x, const float *y, const float *gate, int64_t n, float factor);
    /* n pieces of 64 bytes from src (NULL: zeros) to every `step` bytes of dst. */
    void (*spread)(void *dst, size_t step, const void *src, int64_t n);
};
extern const struct cpu_image_kern cpu_image_scalar, cpu_image_avx2, cpu_image_avx512,
    cpu_image_amx;

#endif
