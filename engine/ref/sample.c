/* Reference: sampling over a full sort, in double. Same meaning and the same random number as every other
 * backend; a token may differ only where a cumulative sum falls within rounding of the number. */
#include "engine/ref/ref_impl.h"

#include "engine/base/mem.h"
#include "engine/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct cand {
    double x; /* logit, later weight */
    int32_t id;
};

static bool in_list(const int32_t *list, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (list[i] == id)
            return true;
    return false;
}

/* The logit of one token after mask, bans, bias and penalties. */
static double edited(const struct sample_row *r, double x, int32_t id)
{
    if ((r->mask && !(r->mask[id / 32] >> (id % 32) & 1)) || in_list(r->ban, r->n_ban, id))
        x = -INFINITY;
    for (int i = 0; i < r->n_bias; i++)
        if (r->bias[i].token == id)
            x += (double)r->bias[i].bias;
    if (!in_list(r->hist, r->n_hist, id))
        return x;
    double rep = r->repetition_penalty > 0 ? (double)r->repetition_penalty : 1;
    int n = 0;
    for (int i = r->n_prompt; i < r->n_hist; i++)
        n += r->hist[i] == id;
    x = x > 0 ? x / rep : x * rep;
    return n ? x - (double)r->presence_penalty - (double)r->frequency_penalty * n : x;
}

static int by_value(const void *pa, const void *pb)
{
    const struct cand *a = pa, *b = pb;
    if (a->x > b->x || a->x < b->x)
        return a->x > b->x ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

static int by_id(const void *pa, const void *pb)
{
    const struct cand *a = pa, *b = pb;
    return (a->id > b->id) - (a->id < b->id);
}

static int32_t choose_random(struct cand *c, int64_t n, const struct sample_row *r)
{
    double max = c[0].x, all = 0, run = 0; /* sorted, most likely first */
    if (r->top_k > 0 && r->top_k < n)
        n = r->top_k;
    for (int64_t i = 0; i < n; i++)
        c[i].x = exp((c[i].x - max) / (double)r->temperature);
    while (n > 1 && c[n - 1].x < (double)r->min_p)
        n--;
    for (int64_t i = 0; i < n; i++)
        all += c[i].x;
    if (r->top_p < 1) {
        int64_t keep = 0;
        while (keep < n && (keep == 0 || run < (double)r->top_p * all))
            run += c[keep++].x;
        n = keep;
        all = run;
    }
    qsort(c, (size_t)n, sizeof *c, by_id);
    double target = rng_uniform(r->seed, r->position) * all;
    run = 0;
    for (int64_t i = 0; i < n; i++) {
        run += c[i].x;
        if (run > target)
            return c[i].id;
    }
    while (n > 1 && !(c[n - 1].x > 0))
        n--;
    return c[n - 1].id;
}

static void sample_row(const float *x, int64_t n, const struct sample_row *r, struct sample_out *o,
                       struct cand *c)
{
    memset(o, 0, sizeof *o);
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        o->bad = o->bad || isnan(x[i]) || x[i] == INFINITY;
        max = (double)x[i] > max ? (double)x[i] : max;
    }
    if (o->bad || max == -INFINITY) {
        o->bad = true;
        return;
    }
    o->token = r->target;
    if (r->target < 0) {
        for (int64_t i = 0; i < n; i++) {
            c[i] = (struct cand){edited(r, (double)x[i], (int32_t)i), (int32_t)i};
            o->bad = o->bad || isnan(c[i].x) || c[i].x == INFINITY;
        }
        qsort(c, (size_t)n, sizeof *c, by_value);
        if (o->bad || c[0].x == -INFINITY) {
            o->bad = true;
            return;
        }
        o->token = r->temperature > 0 ? choose_random(c, n, r) : c[0].id;
    }
    if (r->n_top < 0)
        return;
    for (int64_t i = 0; i < n; i++) {
        sum += exp((double)x[i] - max);
        c[i] = (struct cand){(double)x[i], (int32_t)i};
    }
    double lse = max + log(sum);
    qsort(c, (size_t)n, sizeof *c, by_value);
    o->logprob = (float)((double)x[o->token] - lse);
    for (int64_t i = 0; c[i].id != o->token; i++)
        o->rank++;
    o->rank++;
    o->n_top = r->n_top < n ? r->n_top : (int)n;
    for (int i = 0; i < o->n_top; i++) {
        o->top_id[i] = c[i].id;
        o->top_logprob[i] = (float)(c[i].x - lse);
    }
}

int ref__sample(struct dev *d, const struct op_sample *a)
{
    if (ops_check_sample(a))
        return ERR_INVAL;
    const float *x = ref__ptr(d, &a->logits);
    if (!x)
        return ERR_INVAL;
    int64_t n = a->logits.shape[1];
    struct cand *c = mem_calloc((size_t)n, sizeof *c);
    if (!c)
        return ERR_NOMEM;
    for (int64_t i = 0; i < a->logits.shape[0]; i++)
        sample_row(x + i * a->logits.stride[0], n, &a->rows[i], &a->out[i], c);
    free(c);
    return 0;
}
