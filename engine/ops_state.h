/* Operations of layers with a recurrent state. Included by ops.h only. A state pool has slots; in a slot every layer has
 * `n` floats, which an op addresses by an offset of its own. A sequence of the step starts from step_meta.state_src[s]
 * (-1: from zeros) and leaves its state in slot state_dst[s]; the two may be one. No sequence's state_dst is another
 * one's slot. Rows of a sequence are taken one after the other, so a row's bits depend neither on how a text is cut
 * into steps nor on company. All tensors are f32 [n_row, ...] but where (mul) is said; they may be columns of wider
 * ones. */
#ifndef ENGINE_OPS_STATE_H
#define ENGINE_OPS_STATE_H

struct dev_state; /* the state pool of one model */

struct state_desc {
    int32_t n_slot;
    int n_layer;
    int64_t n; /* floats a layer and slot */
};

struct state_at { /* where an op's part of the states lies */
    struct dev_state *pool;
    int layer;
    int64_t off; /* floats */
};

#define STATE_CONV_MAX 8
#define STATE_KEY_MAX  256

/* Causal convolution along the sequence, each channel for itself, with what stood before in the state [k - 1, d]:
 *   dst[i, c] = out_gate[i, c] * act(bias[c] + sum over j of w[c, j] * (x * in_gate)[i - k + 1 + j, c]) */
struct op_state_conv {
    struct tensor dst; /* [n_row, d]; not x */
    struct tensor mul; /* (mul) the same again for a product, or buf 0 */
    struct tensor x;
    struct tensor in_gate, out_gate; /* or buf 0 */
    struct tensor w;                 /* [d * k], a channel's values together */
    struct tensor bias;              /* [d] or buf 0 */
    int k;                           /* 2..STATE_CONV_MAX */
    bool silu;
    struct state_at at; /* (k - 1) * d floats */
};

/* Selective scan (Gu and Dao 2023; Dao and Gu 2024) over channels c = (h, p), p < head_dim, in groups of heads; state
 * [d, n_state]:
 *   t = clamp(softplus(dt[i, h] + dt_bias[h]), dt_min, dt_max)
 *   s[c, :] = exp(t * a[h, :]) * s[c, :] + t * x[i, c] * b[i, g, :];  dst[i, c] = s[c, :] . c[i, g, :] + skip[h] * x[i, c]
 * Mamba 1: head_dim 1, one group. */
struct op_state_scan {
    struct tensor dst; /* [n_row, n_head * head_dim]; not x */
    struct tensor x;
    struct tensor dt;      /* [n_row, n_head] */
    struct tensor dt_bias; /* [n_head] or buf 0 */
    struct tensor b, c;    /* [n_row, n_group * n_state] */
    struct tensor a;    /* [n_head], or a number for each value of the state: [n_head * n_state] */
    struct tensor skip; /* [n_head] or buf 0 */
    int n_head, head_dim, n_group;
    int n_state; /* at most STATE_KEY_MAX */
    float dt_min, dt_max;
    struct state_at at; /* n_head * head_dim * n_state floats */
};

/* Gated delta rule (Yang et al. 2024), for value head h of n_head; state [n_head, dk, dv]:
 *   q, k: normed to length 1 (x / sqrt(sum of squares + eps)) where eps > 0; then q *= scale
 *   s[j, :] *= exp(a[h] * softplus(g[i, h (, j)] + g_bias[h (, j)]))
 *   s += k (x) (sigmoid(beta[i, h]) * (v - k^T s));  dst[i, h, :] = q^T s */
struct op_state_delta {
    struct tensor dst;    /* [n_row, n_head * dv]; not v */
    struct tensor q, k;   /* [n_row, n_key_head * dk] */
    struct tensor v;      /* [n_row, n_head * dv] */
    struct tensor g;      /* [n_row, n_head], or a gate a key channel: [n_row, n_head * dk] */
    struct tensor g_bias; /* as many columns */
    struct tensor a;      /* [n_head] */
    struct tensor beta;   /* [n_row, n_head] */
    int n_head, n_key_head, dk, dv; /* dk at most STATE_KEY_MAX */
    bool cycle; /* value head h reads key head h % n_key_head, else h / (n_head / n_key_head) */
    float scale, eps;
    struct state_at at; /* n_head * dk * dv floats */
};

/* RWKV-4 (Peng et al. 2023): dst = sigmoid(r) * wkv; state [3, d]: numerator, denominator, their exponent. A state that
 * starts is {0, 0, -1e38}. */
struct op_state_wkv {
    struct tensor dst; /* (mul) [n_row, d] */
    struct tensor r, k, v;
    struct tensor decay; /* [d], -exp of the file's */
    struct tensor first; /* [d] */
    struct state_at at;  /* 3 * d floats */
};

/* dst[i, j * d + c] = x[i, c] * mix[j * d + c] + x[i - 1, c] * (1 - mix[j * d + c]) for j < n_mix; state [d]: the last x. */
struct op_state_shift {
    struct tensor dst; /* (mul) [n_row, n_mix * d] */
    struct tensor x;   /* f32 or (mul) [n_row, d] */
    struct tensor mix; /* [n_mix * d] */
    int n_mix;
    struct state_at at; /* d floats */
};

enum gate_kind { GATE_SILU, GATE_SIGMOID };
/* RMS norm in groups of n columns, with a gate; row-wise, no state. gate_first: norm(x * act(gate)) * w, else
 * norm(x) * w * act(gate). */
struct op_gated_norm {
    struct tensor dst;  /* [n, d] f32 or (mul); may be x */
    struct tensor x;    /* [n, d] f32 or (mul) */
    struct tensor gate; /* [n, d] or buf 0 */
    struct tensor w;    /* [d], [group] (for every group), or buf 0: ones */
    int64_t group;      /* divides d; 0: no norm, the gate alone */
    enum gate_kind act;
    bool gate_first;
    float eps;
};

#define OPS_STATE_LIST(X)                                                                          \
    X(state_conv) X(state_scan) X(state_delta) X(state_wkv) X(state_shift) X(gated_norm)

#endif
