/* The kernels' C interface: what backend.c launches. Plain structs of device pointers; no CUDA type but the stream, so
 * the host side stays C17. One launcher an op, in the .cu file named beside it.
 *
 * Every launcher: checks every precondition and byte size, uses 64-bit offsets, takes the stream, never allocates,
 * never synchronises, and returns 0, CU_BAD (a broken precondition: a bug of the caller) or a positive cudaError_t.
 * A row's result has the same bits whatever the other rows, their number and the launch bounds (see ops.h), unless
 * said otherwise. Counts that change from step to step are read on the device (struct cu_count), so that one captured
 * graph serves every step of its bucket: host-side numbers are launch bounds only. */
#ifndef CUDA_KERNELS_H
#define CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CU_BAD (-1)
typedef void *cu_stream; /* a cudaStream_t */

/* Values of enum dtype, enum act_kind, enum rope_style (asserted in backend.c). */
enum { CU_F32 = 0, CU_F16 = 1, CU_BF16 = 2, CU_I8 = 4, CU_F8 = 5 }; /* the last two: KV codes */
/* clang-format off */
enum { CU_ACT_SILU, CU_ACT_GELU_TANH, CU_ACT_GELU_ERF, CU_ACT_RELU, CU_ACT_RELU2, CU_ACT_SWIGLU_OAI };
/* clang-format on */
enum { CU_ROPE_NORM = 0, CU_ROPE_NEOX = 1, CU_ROPE_NONE = 2 };

#define CU_BLOCK_TOKENS 16  /* KV_BLOCK_TOKENS */
#define CU_TILE_ROWS    64  /* rows of a prefill tile at most */
#define CU_SPLIT_TOKENS 256 /* KV is split at multiples of this absolute position */

/* ---- the step, on the device ---- */

struct cu_count {
    int32_t n_row, n_seq, n_logit;
    int32_t n_dec;  /* rows that are alone in their sequence this step */
    int32_t n_tile; /* tiles of the other sequences */
    int32_t max_pos;
    int32_t pad[2];
};
struct cu_tile { /* rows [row, row + n) of one sequence, 1 <= n <= CU_TILE_ROWS, ascending */
    int32_t seq, row, n;
};
/* Arrays are device memory. The *_max members are host-side launch bounds (a graph's bucket), >= the counts. */
struct cu_step {
    const struct cu_count *count;
    const int32_t *tok;     /* [n_row]; negative: -1 - i, the token that `sampled` row i holds */
    const int32_t *sampled; /* [..] tokens that the last sample chose, by its row */
    const int32_t *pos, *row_seq;                     /* [n_row] */
    const int32_t *block_table;                       /* [n_seq, block_stride] */
    const int32_t *logit_row;                         /* [n_logit] */
    const int32_t *dec;                               /* [n_dec] row numbers */
    const struct cu_tile *tile;                       /* [n_tile] */
    const int32_t *seq_start, *state_src, *state_dst; /* [n_seq (+ 1)]; src -1: zeros */
    int32_t block_stride;
    int32_t row_max, logit_max, dec_max, tile_max, seq_max;
    int32_t split_max; /* KV splits of the longest sequence, >= 1 */
};

/* Which of the step's counts bounds an op's rows. */
enum cu_rows { CU_ROWS_ALL, CU_ROWS_LOGIT };

/* A matrix of rows in device memory; ld in elements. */
struct cu_mat {
    void *p;
    int64_t ld;
    int32_t dt; /* CU_F32 or CU_BF16 */
    int32_t cols;
};

/* ---- weights: weight.c packs on the host, gemm_*.cu and embed.cu read ---- */
struct cu_weight; /* cuda/weight.h */
struct cu_lt;     /* cuda/lt_api.h */

/* dst[i,:] = scale * w[tok[i],:] + pos[pos[i],:]; embed.cu */
struct cu_embed {
    struct cu_mat dst;
    const struct cu_weight *w, *pos; /* pos: NULL or one part */
    float scale;
};
int cu_embed(const struct cu_embed *a, const struct cu_step *s, cu_stream st);

/* What a product adds to its rows before it stores them: vec[segment of the row], then add[row]; p NULL = absent. */
struct cu_after {
    struct cu_mat vec, add; /* f32; add may be dst itself */
    const int32_t
        *start; /* device [n_seg + 1], first row of each segment; the product's row 0 is `row` */
    int32_t n_seg;
    int64_t row;
};

/* dst = src * w^T + bias (+ after); gemm.c picks among gemm_quant.cu, gemm_f32.cu, gemm_wgmma.cu and gemm_lt.c. */
struct cu_linear {
    struct cu_mat dst; /* f32 */
    struct cu_mat src; /* f32 for f32-packed weights, else bf16 */
    const struct cu_weight *w;
    const float *bias; /* NULL or [n_out] */
    enum cu_rows rows;
    void *
        ws; /* split-K partial sums and counters; zeroed once at open, left zeroed counters by every launch */
    size_t ws_bytes;
    int32_t
        wgmma; /* the device is of compute capability 9.0, and the product is steady or need not have equal bits */
    int32_t exact; /* batch invariant: lt is not used */
    int32_t
        steady; /* image steps: one kernel whatever the number of rows and K not split, so that wgmma keeps bits equal too */
    struct cu_after after; /* lt is not used with it */
    /* NULL or cuBLASLt (cuda/lt_api.h): takes parts of a weight planned for it, from 64 rows of the launch bound on. It
     * reads and writes all rows of the bound, so src and dst must have them. */
    struct cu_lt *lt;
};
int cu_linear(const struct cu_linear *a, const struct cu_step *s, cu_stream st);
/* Work space that any product with at most n_row rows needs. Pure. */
size_t cu_linear_ws(const struct cu_weight *w, int n_row);

/* See op_rmsnorm; norm.cu */
struct cu_rmsnorm {
    struct cu_mat dst, x, add; /* p NULL = absent (dst, add) */
    const float *w, *b;        /* NULL = absent; b with `center` only */
    float eps;
    int32_t center;
    enum cu_rows rows;
};
int cu_rmsnorm(const struct cu_rmsnorm *a, const struct cu_step *s, cu_stream st);

/* dst = act(gate) * up, or act(gate) when `single`; act.cu */
struct cu_act_mul {
    struct cu_mat dst, gate_up;
    int32_t act, single;
    float limit; /* CU_ACT_SWIGLU_OAI */
    enum cu_rows rows;
};
int cu_act_mul(const struct cu_act_mul *a, const struct cu_step *s, cu_stream st);

/* dst[i,:] = src[logit_row[i],:]; act.cu */
struct cu_gather {
    struct cu_mat dst, src; /* the same dtype, f32 or bf16 */
};
int cu_gather(const struct cu_gather *a, const struct cu_step *s, cu_stream st);

/* In place: softcap * tanh(x / softcap) when softcap > 0, then * scale, times op_scale's temper; act.cu */
struct cu_scale {
    struct cu_mat x;
    float scale, softcap, clip, temper;
    int32_t temper_every, temper_from;
    enum cu_rows rows;
};
int cu_scale(const struct cu_scale *a, const struct cu_step *s, cu_stream st);

/* ---- KV and attention ---- */

/* One pool: [layer][block][K then V][kv head][CU_BLOCK_TOKENS][head_dim], so that 16 tokens of a head are one
 * contiguous piece of K (and of V). Behind a block's codes (CU_I8, CU_F8) lie their f32 scales, [K then V][kv head]
 * [CU_BLOCK_TOKENS]. */
struct cu_kv {
    void *p;
    int32_t n_layer, n_kv_head, head_dim, n_block, dt, k_only; /* k_only: no V, see mla.h */
};
#define cu_is_code(dt) ((dt) == CU_I8 || (dt) == CU_F8)
/* Bytes of one block of one layer. */
static inline size_t cu_kv_layer_block_bytes(const struct cu_kv *k)
{
    size_t d = (size_t)k->head_dim,
           n = cu_is_code(k->dt) ? d + sizeof(float) : d * (k->dt == CU_F32 ? 4 : 2);
    return (size_t)(k->k_only ? 1 : 2) * CU_BLOCK_TOKENS * (size_t)k->n_kv_head * n;
}

/* See op_rope_kv; rope_kv.cu */
struct cu_rope_kv {
    struct cu_mat qkv; /* f32 */
    int32_t n_head, n_rot, style;
    const float *inv_freq;
    float attn_factor;
    const float *q_norm, *k_norm, *v_norm; /* [head_dim] or NULL */
    float norm_eps;
    int32_t q_only;
    const struct cu_kv *kv; /* host struct */
    int32_t layer;
};
int cu_rope_kv(const struct cu_rope_kv *a, const struct cu_step *s, cu_stream st);

/* See op_attn. attn.c picks: attn_any.cu (any head_dim <= 512, any dtype, f32 arithmetic), attn_mma.cu (all but f32 KV,
 * head_dim a multiple of 16 up to 256: decode rows and prefill tiles with one arithmetic, so equal bits), attn_wgmma.cu
 * (prefill on compute capability 9.0, when equal bits with decode are not asked for). */
struct cu_attn {
    struct cu_mat dst; /* f32 or bf16 */
    struct cu_mat qkv; /* f32 */
    int32_t n_head;
    float scale, softcap;
    int32_t window, layer; /* see ops_first_seen; of the pool */
    const float *sinks;     /* NULL or [n_head] */
    const float *alibi;     /* NULL or [n_head]: attn_any.cu then */
    const struct cu_kv *kv; /* host struct */
    float *ws;      /* split partials, see cu_attn_ws */
    int32_t *flags; /* [cu_attn_flags] counters, zero before and after */
    size_t ws_bytes;
    int32_t n_flag;
    int32_t exact; /* batch invariant: the same arithmetic for decode and prefill */
    int32_t wgmma; /* tiles may go to attn_wgmma.cu (compute capability 9.0) */
    int32_t wide;  /* heads over 256 go in tiles (8.0, 9.0, 10.0), when no row decodes */
};
int cu_attn(const struct cu_attn *a, const struct cu_step *s, cu_stream st);
size_t cu_attn_ws(int n_head, int head_dim, int dec_max, int split_max); /* bytes; pure */
int cu_attn_flags(int n_head, int dec_max);

/* Whole blocks, all layers; src, dst device arrays [n]; rope_kv.cu */
int cu_kv_copy(const struct cu_kv *kv, const int32_t *src, const int32_t *dst, int n, cu_stream st);

/* ---- sampling; sample.cu ---- */

struct cu_sample_row { /* device form of struct sample_row; offsets index the arrays of cu_sample */
    float temperature, top_p, min_p;
    int32_t top_k;
    float repetition_penalty, presence_penalty, frequency_penalty;
    double uniform;                 /* rng_uniform(seed, position), computed on the host */
    int32_t hist, n_prompt, n_hist; /* into ints */
    int32_t bias, n_bias;           /* into bias_id / bias_val */
    int32_t ban, n_ban;             /* into ints */
    int32_t mask;                   /* into ints (words); -1 = none */
    int32_t target, n_top;
};
struct cu_sample_out { /* as struct sample_out */
    int32_t token;
    float logprob;
    int32_t rank, n_top;
    int32_t top_id[20];
    float top_logprob[20];
    int32_t bad;
};
struct cu_sample {
    struct cu_mat logits; /* f32 [n, n_vocab]; may be overwritten */
    const struct cu_sample_row *rows;
    const int32_t *ints;
    const int32_t *bias_id;
    const float *bias_val;
    struct cu_sample_out *out;
    int32_t *sampled; /* [n] the tokens again, for the next step's TOK_SAMPLED */
    void *ws;
    size_t ws_bytes;
    int32_t
        simple; /* every row: greedy or plain temperature, no edits, no log-probabilities (host knows) */
};
int cu_sample(const struct cu_sample *a, const struct cu_step *s, cu_stream st);
size_t cu_sample_ws(int n_row, int n_vocab);

#ifdef __cplusplus
}
#endif
#endif
