/* CPU backend: routing to experts, sums of their outputs, gates. All by rows; see cpu_moe_gemm.c for the products. */
#include "engine/cpu/cpu_impl.h"

#include <math.h>

/* A job over rows in tasks of `grain`. */
struct moe_rows {
    int64_t n, grain, cols, n_used;
    const void *op;
    float *dst;
    const float *x, *w; /* w: weights, gates or a bias */
    const float *own;   /* factors of experts, or NULL */
    int32_t *id;
};

static void rows_run(struct dev *d, struct moe_rows *r, void (*fn)(void *, int, int), double cost)
{
    r->grain = cpu__grain(cost);
    cpu__run(d, fn, r, (int)((r->n + r->grain - 1) / r->grain), (double)r->n * cost);
}

static int64_t rows_end(const struct moe_rows *r, int task)
{
    int64_t end = ((int64_t)task + 1) * r->grain;
    return end < r->n ? end : r->n;
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* Scores of one row over all experts. */
static void scores(const float *logit, int64_t n, enum route_score kind, float *score)
{
    float top = -INFINITY, sum = 0;
    if (kind == ROUTE_SIGMOID) {
        for (int64_t i = 0; i < n; i++)
            score[i] = sigmoid(logit[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        top = fmaxf(top, logit[i]);
    for (int64_t i = 0; i < n; i++) {
        score[i] = kind == ROUTE_SOFTMAX ? expf(logit[i] - top) : logit[i];
        sum += score[i];
    }
    for (int64_t i = 0; i < n && kind == ROUTE_SOFTMAX; i++)
        score[i] /= sum;
}

/* Index of the best that is not taken; the lowest of equals. */
static int64_t best_of(const float *v, const bool *taken, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || v[i] > v[best]))
            best = i;
    return best;
}

/* Experts of groups that are not among the best count as taken. */
static void groups_mask(const struct op_route *a, const float *choice, int64_t n, bool *taken)
{
    float worth[OPS_EXPERTS_MAX];
    bool chosen[OPS_EXPERTS_MAX] = {false}, one[OPS_EXPERTS_MAX] = {false};
    int64_t each = n / a->n_group;
    for (int g = 0; g < a->n_group; g++) {
        const float *v = choice + g * each;
        int64_t first = best_of(v, one, each);
        worth[g] = v[first];
        if (!a->group_top2 || each < 2)
            continue;
        one[first] = true;
        worth[g] += v[best_of(v, one, each)];
        one[first] = false;
    }
    for (int i = 0; i < a->n_group_used; i++)
        chosen[best_of(worth, chosen, a->n_group)] = true;
    for (int64_t i = 0; i < n; i++)
        taken[i] = !chosen[i / each];
}

/* w[0..n) = weights of the chosen scores. */
static void weights(const struct op_route *a, float *w, int64_t n)
{
    float top = -INFINITY, sum = 0;
    if (a->score == ROUTE_SOFTMAX_USED) {
        for (int64_t j = 0; j < n; j++)
            top = fmaxf(top, w[j]);
        for (int64_t j = 0; j < n; j++)
            sum += w[j] = expf(w[j] - top);
        for (int64_t j = 0; j < n; j++)
            w[j] /= sum;
        sum = 0;
    }
    for (int64_t j = 0; j < n && a->renorm; j++)
        sum += w[j];
    for (int64_t j = 0; j < n; j++)
        w[j] = (a->renorm ? w[j] / (sum + 1e-20f) : w[j]) * a->scale;
}

static void route_rows(void *arg, int task, int worker)
{
    (void)worker;
    const struct moe_rows *r = arg;
    const struct op_route *a = r->op;
    float score[OPS_EXPERTS_MAX], with_bias[OPS_EXPERTS_MAX];
    /* Without a bias the logits choose the same, and no rounding makes ties of them. */
    bool plain = !r->w && !(a->n_group > 1 && a->group_top2);
    for (int64_t i = task * r->grain; i < rows_end(r, task); i++) {
        const float *logit = r->x + i * a->logits.stride[0], *choice = plain ? logit : score;
        int32_t *id = r->id + i * a->id.stride[0];
        float *w = r->dst + i * a->weight.stride[0];
        bool taken[OPS_EXPERTS_MAX] = {false};
        scores(logit, r->cols, a->score, score);
        if (r->w) {
            for (int64_t k = 0; k < r->cols; k++)
                with_bias[k] = score[k] + r->w[k];
            choice = with_bias;
        }
        if (a->n_group > 1)
            groups_mask(a, choice, r->cols, taken);
        for (int64_t j = 0; j < r->n_used; j++) {
            id[j] = (int32_t)best_of(choice, taken, r->cols);
            taken[id[j]] = true;
            w[j] = score[id[j]];
        }
        weights(a, w, r->n_used);
        for (int64_t j = 0; r->own && j < r->n_used; j++)
            w[j] *= r->own[id[j]];
    }
}

int cpu__route(struct dev *d, const struct op_route *a)
{
    bool bad = false;
    if (ops_check_route(a))
        return ERR_INVAL;
    struct moe_rows r = {.n = a->logits.shape[0],
                         .cols = a->logits.shape[1],
                         .n_used = a->id.shape[1],
                         .op = a,
                         .dst = cpu__ptr(d, &a->weight),
                         .x = cpu__ptr(d, &a->logits),
                         .id = cpu__ptr(d, &a->id),
                         .w = cpu__opt_ptr(d, &a->select_bias, &bad),
                         .own = cpu__opt_ptr(d, &a->expert_scale, &bad)};
    if (!r.dst || !r.x || !r.id || bad)
        return ERR_INVAL;
    rows_run(d, &r, route_rows, (double)r.cols * (4 + (double)r.n_used));
    return 0;
}

static void sum_rows(void *arg, int task, int worker)
{
    (void)worker;
    const struct moe_rows *r = arg;
    const struct op_experts_sum *a = r->op;
    for (int64_t i = task * r->grain; i < rows_end(r, task); i++) {
        float *restrict dst = r->dst + i * a->dst.stride[0];
        for (int64_t j = 0; j < r->n_used; j++) {
            const float *restrict src = r->x + (i * r->n_used + j) * a->src.stride[0];
            const float w = r->w ? r->w[i * a->weight.stride[0] + j] : 1;
            if (j == 0 && !a->add)
                for (int64_t k = 0; k < r->cols; k++)
                    dst[k] = w * src[k];
            else
                for (int64_t k = 0; k < r->cols; k++)
                    dst[k] += w * src[k];
        }
    }
}

int cpu__experts_sum(struct dev *d, const struct op_experts_sum *a)
{
    bool bad = false;
    if (ops_check_experts_sum(a))
        return ERR_INVAL;
    struct moe_rows r = {.n = a->dst.shape[0],
                         .cols = a->dst.shape[1],
                         .op = a,
                         .dst = cpu__ptr(d, &a->dst),
                         .x = cpu__ptr(d, &a->src),
                         .w = cpu__opt_ptr(d, &a->weight, &bad)};
    if (!r.dst || !r.x || bad)
        return ERR_INVAL;
    r.n_used = r.n ? a->src.shape[0] / r.n : 1;
    rows_run(d, &r, sum_rows, (double)(r.cols * r.n_used) * 0.2);
    return 0;
}

static void sigmoid_rows(void *arg, int task, int worker)
{
    (void)worker;
    const struct moe_rows *r = arg;
    const struct op_sigmoid_mul *a = r->op;
    for (int64_t i = task * r->grain; i < rows_end(r, task); i++) {
        float *dst = r->dst + i * a->dst.stride[0];
        const float *x = r->x + i * a->x.stride[0], *gate = r->w + i * a->gate.stride[0];
        const float one = sigmoid(gate[0]);
        if (a->gate.shape[1] == 1)
            for (int64_t k = 0; k < r->cols; k++)
                dst[k] = x[k] * one;
        else
            for (int64_t k = 0; k < r->cols; k++)
                dst[k] = x[k] * sigmoid(gate[k]);
    }
}

int cpu__sigmoid_mul(struct dev *d, const struct op_sigmoid_mul *a)
{
    if (ops_check_sigmoid_mul(a, DT_F32))
        return ERR_INVAL;
    struct moe_rows r = {.n = a->dst.shape[0],
                         .cols = a->dst.shape[1],
                         .op = a,
                         .dst = cpu__ptr(d, &a->dst),
                         .x = cpu__ptr(d, &a->x),
                         .w = cpu__ptr(d, &a->gate)};
    if (!r.dst || !r.x || !r.w)
        return ERR_INVAL;
    rows_run(d, &r, sigmoid_rows, (double)r.cols * (a->gate.shape[1] == 1 ? 0.2 : 5));
    return 0;
}
