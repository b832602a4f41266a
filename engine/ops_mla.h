/* Multi-head latent attention (DeepSeek-AI 2024), its projections absorbed: what is kept of a token is one vector for all
 * heads, `rank` normalised values and n_rope rotated ones, and is key and (its first `rank` values) value at once. The
 * pool is one of kv_desc.k_only with one head of rank + n_rope. Included by ops.h only. */
#ifndef ENGINE_OPS_MLA_H
#define ENGINE_OPS_MLA_H

#define OPS_LATENT_MAX 1024 /* rank + n_rope */

/* In place on q: the last n_rope values of every head are rotated by pos * inv_freq; q_nope = the others. kv: the first
 * `rank` values by their RMS norm, the rest rotated; then written to the layer's KV blocks. */
struct op_mla_kv {
    struct tensor q;      /* f32 [n_row, n_head * (n_nope + n_rope)] */
    struct tensor q_nope; /* (mul) [n_row * n_head, n_nope], contiguous */
    struct tensor kv;     /* f32 [n_row, rank + n_rope] */
    struct tensor norm;   /* f32 [rank] */
    float norm_eps;
    int n_head, n_nope, n_rope, rank;
    enum rope_style style;
    struct tensor inv_freq; /* f32 [n_rope / 2] */
    float attn_factor;
    struct dev_kv *kv_pool;
    int layer;
};

/* dst[i * n_head + h, :] = sum over positions <= pos of softmax(scale * (q_abs . latent + q_rope . rotated)) * latent.
 * Tokens are summed in one order from 0 up, whatever the chunks. */
struct op_mla_attn {
    struct tensor dst;   /* (mul) [n_row * n_head, rank], contiguous */
    struct tensor q_abs; /* f32 [n_row * n_head, rank], contiguous */
    struct tensor q;     /* as in op_mla_kv; only the rotated values are read */
    int n_head, n_nope, n_rope, rank;
    float scale;
    struct tensor seen; /* op_index's: positions with -inf are left out; or buf 0 */
    const struct dev_kv *kv_pool;
    int layer;
};

#define OPS_INDEX_MAX 16384 /* values of a row's q */

/* The positions that sparse attention looks at (DeepSeek-AI 2025). In place on q and k: the first n_rope values of every
 * head are rotated; k is written to the layer's blocks of its own pool (k_only, one head of dim). seen.buf 0: nothing more.
 * seen[i, t] for t <= pos: sum over heads of weight[i, h] * max(0, scale * q[i, h] . k[t]) where that is one of the n_top
 * largest (ties: the lower t), else -inf; where pos < n_top, 0. */
struct op_index {
    struct tensor q;      /* f32 [n_row, n_head * dim] */
    struct tensor k;      /* f32 [n_row, dim] */
    struct tensor weight; /* f32 [n_row, n_head] */
    struct tensor seen;   /* f32 [n_row, more than any pos] */
    int n_head, dim, n_rope, n_top;
    float scale;
    enum rope_style style;
    struct tensor inv_freq; /* f32 [n_rope / 2] */
    float attn_factor;
    struct dev_kv *kv_pool;
    int layer;
};

struct step_meta;
struct kv_desc;
/* The shape checks, see backend.h (ops_check_moe.c). */
int ops_check_mla_kv(const struct op_mla_kv *a, enum dtype mul, const struct step_meta *m,
                     const struct kv_desc *k);
int ops_check_mla_attn(const struct op_mla_attn *a, enum dtype mul, const struct step_meta *m,
                       const struct kv_desc *k);

int ops_check_index(const struct op_index *a, const struct step_meta *m, const struct kv_desc *k);

#define OPS_MLA_LIST(X) X(mla_kv) X(mla_attn) X(index)

#endif
