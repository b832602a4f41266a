/* Operations of mixtures of experts. Included by ops.h only. All are row-wise: a row's result does not depend on the
 * other rows, whichever experts those chose. */
#ifndef ENGINE_OPS_MOE_H
#define ENGINE_OPS_MOE_H

#define OPS_EXPERTS_MAX 1024 /* experts of a layer */
#define OPS_USED_MAX    128  /* of a row */
#define OPS_GROUPS_MAX  32

enum route_score {
    ROUTE_SOFTMAX,      /* over all experts, before the choice */
    ROUTE_SOFTMAX_USED, /* over the chosen ones' logits */
    ROUTE_SIGMOID
};

/* The n_used best experts of every row and their weights. Ties: the lower number. Experts stand in id by falling choice.
 * Choice: score + select_bias (the weight is without the bias); with n_group > 1 only inside the n_group_used best of
 * n_group equal groups. */
struct op_route {
    struct tensor logits;      /* f32 [n, n_expert] */
    struct tensor select_bias; /* f32 [n_expert] or buf 0 */
    struct tensor id;          /* i32 [n, n_used] */
    struct tensor weight;      /* f32 [n, n_used] */
    enum route_score score;
    int n_group, n_group_used;
    bool group_top2; /* a group's score: the sum of its two best choices, else its best */
    bool renorm;     /* weights / (their sum + 1e-20) */
    float scale;     /* then times this */
    struct tensor expert_scale; /* f32 [n_expert] or buf 0: then times the expert's own */
};

/* dst[i * n_used + j, :] = src[row] * w[id[i, j]]^T + bias[id[i, j]]; row = i, or i * n_used + j when src has n * n_used
 * rows. Bits as op_linear with that expert's weight alone. in_scale: src is multiplied first. */
struct op_linear_experts {
    struct tensor dst;           /* f32 [n * n_used, n_out] */
    struct tensor src;           /* (mul) [n or n * n_used, n_in] */
    struct dev_weight *const *w; /* [n_expert], all [n_out, n_in] */
    int n_expert;
    struct tensor bias;     /* f32 [n_expert * n_out] or buf 0 */
    struct tensor id;       /* i32 [n, n_used] */
    struct tensor in_scale; /* f32 [n, n_used] or buf 0 */
};

/* dst[i, :] = (add ? dst[i, :] : 0) + sum over j (in order) of weight[i, j] * src[i * n_used + j, :] */
struct op_experts_sum {
    struct tensor dst;    /* f32 [n, d] */
    struct tensor src;    /* f32 [n * n_used, d] */
    struct tensor weight; /* f32 [n, n_used] or buf 0: ones */
    bool add;
};

/* x[i, :] *= sigmoid(gate[i, 0]) (gate [n, 1]: a shared expert's) or, of as many columns, *= sigmoid(gate[i, :]). dst may
 * be x; (mul) where a product reads it. */
struct op_sigmoid_mul {
    struct tensor dst;  /* [n, d] f32 or (mul) */
    struct tensor x;    /* [n, d] f32 or (mul) */
    struct tensor gate; /* f32 [n, 1] or [n, d] */
};

/* The shape checks, see backend.h (ops_check_moe.c). Ids are device memory: a backend that can see them checks their
 * range. */
int ops_check_route(const struct op_route *a);
int ops_check_linear_experts(const struct op_linear_experts *a, enum dtype mul, int64_t n_in,
                             int64_t n_out);
int ops_check_experts_sum(const struct op_experts_sum *a);
int ops_check_sigmoid_mul(const struct op_sigmoid_mul *a, enum dtype mul);

#define OPS_MOE_LIST(X) X(route) X(linear_experts) X(experts_sum) X(sigmoid_mul)

#endif
