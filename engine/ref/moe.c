/* Reference: routing, products by expert, their sums, gates. */
#include "engine/ref/ref_impl.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Scores of one row over all experts. */
static void scores(const float *logit, int64_t n, enum route_score kind, double *score)
{
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        top = fmax(top, (double)logit[i]);
    for (int64_t i = 0; i < n; i++) {
        double x = (double)logit[i];
        score[i] = kind == ROUTE_SIGMOID ? sigmoid(x) : kind == ROUTE_SOFTMAX ? exp(x - top) : x;
        sum += score[i];
    }
    for (int64_t i = 0; i < n && kind == ROUTE_SOFTMAX; i++)
        score[i] /= sum;
}

/* Index of the best that is not taken; the lowest of equals. */
static int64_t best_of(const double *v, const bool *taken, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || v[i] > v[best]))
            best = i;
    return best;
}

/* Experts of groups that are not among the best count as taken. */
static void groups_mask(const struct op_route *a, const double *choice, int64_t n, bool *taken)
{
    double worth[OPS_EXPERTS_MAX];
    bool chosen[OPS_EXPERTS_MAX] = {false};
    int64_t each = n / a->n_group;
    for (int g = 0; g < a->n_group; g++) {
        bool none[OPS_EXPERTS_MAX] = {false};
        const double *v = choice + g * each;
        int64_t first = best_of(v, none, each);
        worth[g] = v[first];
        none[first] = true;
        if (a->group_top2 && each > 1)
            worth[g] += v[best_of(v, none, each)];
    }
    for (int i = 0; i < a->n_group_used; i++)
        chosen[best_of(worth, chosen, a->n_group)] = true;
    for (int64_t i = 0; i < n; i++)
        taken[i] = !chosen[i / each];
}

/* own: [n_expert] factors, or NULL. */
static void route_row(const struct op_route *a, const float *logit, const float *bias,
                      const float *own, int32_t *id, float *weight)
{
    double score[OPS_EXPERTS_MAX], choice[OPS_EXPERTS_MAX], w[OPS_USED_MAX], sum = 0;
    bool taken[OPS_EXPERTS_MAX] = {false};
    int64_t n = a->logits.shape[1], n_used = a->id.shape[1];
    /* Without a bias the logits choose the same, and no rounding makes ties of them. */
    bool plain = !bias && !(a->n_group > 1 && a->group_top2);
    scores(logit, n, a->score, score);
    for (int64_t i = 0; i < n; i++)
        choice[i] = plain ? (double)logit[i] : score[i] + (bias ? (double)bias[i] : 0);
    if (a->n_group > 1)
        groups_mask(a, choice, n, taken);
    for (int64_t j = 0; j < n_used; j++) {
        id[j] = (int32_t)best_of(choice, taken, n);
        taken[id[j]] = true;
        w[j] = score[id[j]];
    }
    if (a->score == ROUTE_SOFTMAX_USED) {
        double top = -INFINITY, all = 0;
        for (int64_t j = 0; j < n_used; j++)
            top = fmax(top, w[j]);
        for (int64_t j = 0; j < n_used; j++)
            all += w[j] = exp(w[j] - top);
        for (int64_t j = 0; j < n_used; j++)
            w[j] /= all;
    }
    for (int64_t j = 0; j < n_used; j++)
        sum += w[j];
    for (int64_t j = 0; j < n_used; j++)
        weight[j] = (float)((a->renorm ? w[j] / (sum + 1e-20) : w[j]) * (double)a->scale *
                            (own ? (double)own[id[j]] : 1));
}

int ref__route(struct dev *d, const struct op_route *a)
{
    if (ops_check_route(a))
        return ERR_INVAL;
    const float *logit = ref__ptr(d, &a->logits);
    const float *bias = a->select_bias.buf ? ref__ptr(d, &a->select_bias) : NULL;
    const float *own = a->expert_scale.buf ? ref__ptr(d, &a->expert_scale) : NULL;
    int32_t *id = (int32_t *)(void *)ref__ptr(d, &a->id);
    float *weight = ref__ptr(d, &a->weight);
    if (!logit || !id || !weight || (a->select_bias.buf && !bias) || (a->expert_scale.buf && !own))
        return ERR_INVAL;
    for (int64_t i = 0; i < a->logits.shape[0]; i++)
        route_row(a, logit + i * a->logits.stride[0], bias, own, id + i * a->id.stride[0],
                  weight + i * a->weight.stride[0]);
    return 0;
}

/* One row by one expert. */
static void expert_row(const struct dev_weight *w, const float *x, const float *scale,
                       const float *bias, float *dst)
{
    for (int64_t o = 0; o < w->n_out; o++) {
        const float *row = ref__weight_row(w, o);
        double sum = bias ? (double)bias[o] : 0;
        for (int64_t k = 0; k < w->desc.n_in; k++)
            sum += (double)(scale ? x[k] * *scale : x[k]) * (double)row[k];
        dst[o] = (float)sum;
    }
}

int ref__linear_experts(struct dev *d, const struct op_linear_experts *a)
{
    if (!a->w || !a->w[0] ||
        ops_check_linear_experts(a, DT_F32, a->w[0]->desc.n_in, a->w[0]->n_out))
        return ERR_INVAL;
    int64_t n_used = a->id.shape[1], n_in = a->w[0]->desc.n_in, n_out = a->w[0]->n_out;
    float *dst = ref__ptr(d, &a->dst);
    const float *src = ref__ptr(d, &a->src);
    const int32_t *id = (const int32_t *)(const void *)ref__ptr(d, &a->id);
    const float *bias = a->bias.buf ? ref__ptr(d, &a->bias) : NULL;
    const float *scale = a->in_scale.buf ? ref__ptr(d, &a->in_scale) : NULL;
    if (!dst || !src || !id || (a->bias.buf && !bias) || (a->in_scale.buf && !scale))
        return ERR_INVAL;
    bool each = a->src.shape[0] != a->id.shape[0];
    for (int64_t i = 0; i < a->dst.shape[0]; i++) {
        int64_t row = i / n_used, j = i % n_used;
        int32_t x = id[row * a->id.stride[0] + j];
        if (x < 0 || x >= a->n_expert || !a->w[x] || a->w[x]->desc.n_in != n_in ||
            a->w[x]->n_out != n_out)
            return ERR_INVAL;
        expert_row(a->w[x], src + (each ? i : row) * a->src.stride[0],
                   scale ? scale + row * a->in_scale.stride[0] + j : NULL,
                   bias ? bias + x * n_out : NULL, dst + i * a->dst.stride[0]);
    }
    return 0;
}

int ref__experts_sum(struct dev *d, const struct op_experts_sum *a)
{
    if (ops_check_experts_sum(a))
        return ERR_INVAL;
    int64_t n = a->dst.shape[0], n_used = n ? a->src.shape[0] / n : 1;
    float *dst = ref__ptr(d, &a->dst);
    const float *src = ref__ptr(d, &a->src);
    const float *w = a->weight.buf ? ref__ptr(d, &a->weight) : NULL;
    if (!dst || !src || (a->weight.buf && !w))
        return ERR_INVAL;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < a->dst.shape[1]; k++) {
            float *at = dst + i * a->dst.stride[0] + k;
            double sum = a->add ? (double)*at : 0;
            for (int64_t j = 0; j < n_used; j++)
                sum += (w ? (double)w[i * a->weight.stride[0] + j] : 1) *
                       (double)src[(i * n_used + j) * a->src.stride[0] + k];
            *at = (float)sum;
        }
    return 0;
}

int ref__sigmoid_mul(struct dev *d, const struct op_sigmoid_mul *a)
{
    if (ops_check_sigmoid_mul(a, DT_F32))
        return ERR_INVAL;
    float *dst = ref__ptr(d, &a->dst);
    const float *x = ref__ptr(d, &a->x), *gate = ref__ptr(d, &a->gate);
    if (!dst || !x || !gate)
        return ERR_INVAL;
    bool one = a->gate.shape[1] == 1;
    for (int64_t i = 0; i < a->dst.shape[0]; i++)
        for (int64_t k = 0; k < a->dst.shape[1]; k++)
            dst[i * a->dst.stride[0] + k] =
                (float)((double)x[i * a->x.stride[0] + k] *
                        sigmoid((double)gate[i * a->gate.stride[0] + (one ? 0 : k)]));
    return 0;
}
