/* CPU backend: image ops on rows. Convolutions are in cpu_conv.c, attention in cpu_attend.c. */
#include "engine/cpu/cpu_impl.h"

#include <math.h>
#include <string.h>

int cpu__image_begin(struct dev *d, const struct image_meta *m)
{
    if (ops_check_image(m))
        return ERR_INVAL;
    d->image = *m;
    return 0;
}

float *cpu__opt_ptr(const struct dev *d, const struct tensor *t, bool *bad)
{
    float *p = t->buf ? cpu__ptr(d, t) : NULL;
    *bad = *bad || (t->buf && !p);
    return p;
}

int cpu__seg_of(const struct image_layout *y, int64_t row)
{
    int lo = 0, hi = y->n_seg - 1;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (row < y->start[mid + 1])
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* A job over rows; every op below fills what it needs. */
struct job {
    struct dev *d;
    const void *op;
    const struct image_layout *y;
    int64_t n, grain, from, ld_add;
    float *dst, *x;
    const float *v[5];
    double *sum;
};

static void job_run(struct job *j, void (*fn)(void *, int, int), double row_cost)
{
    j->grain = cpu__grain(row_cost);
    cpu__run(j->d, fn, j, (int)((j->n + j->grain - 1) / j->grain), (double)j->n * row_cost);
}

static int64_t job_end(const struct job *j, int task)
{
    int64_t end = ((int64_t)task + 1) * j->grain;
    return end < j->n ? end : j->n;
}

/* ---- norms ---- */

#define SUM_ROWS 64 /* rows of one partial sum, at fixed places in a segment */

static void group_sum_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct job *j = arg;
    const struct op_group_norm *a = j->op;
    int64_t c = a->x.shape[1], first = j->from + (int64_t)task * SUM_ROWS,
            n = j->n - (int64_t)task * SUM_ROWS;
    double *s = j->sum + (int64_t)task * 2 * c;
    memset(s, 0, (size_t)(2 * c) * sizeof *s);
    j->d->isa->image->channel_sums(j->x + first * a->x.stride[0], a->x.stride[0],
                                   n < SUM_ROWS ? n : SUM_ROWS, c, s, s + c);
}

/* Partial sums of a segment to a factor and a term for each channel: j->v[0], j->v[1] [c], from w and b. */
static void group_factors(const struct job *j, int64_t n_part, const float *w, const float *b,
                          float *mul)
{
    const struct op_group_norm *a = j->op;
    int64_t c = a->x.shape[1], per = c / a->groups;
    float *add = mul + c;
    for (int64_t g = 0; g < a->groups; g++) {
        double s = 0, q = 0, n = (double)per * (double)j->n;
        for (int64_t p = 0; p < n_part; p++)
            for (int64_t k = g * per; k < (g + 1) * per; k++) {
                s += j->sum[p * 2 * c + k];
                q += j->sum[p * 2 * c + c + k];
            }
        double mean = s / n, var = q / n - mean * mean;
        double inv = 1 / sqrt((var > 0 ? var : 0) + (double)a->eps);
        for (int64_t k = g * per; k < (g + 1) * per; k++) {
            mul[k] = (float)(inv * (double)w[k]);
            add[k] = (float)((double)b[k] - mean * inv * (double)w[k]);
        }
    }
}

static void affine_rows(void *arg, int task, int worker)
{
    (void)worker;
    const struct job *j = arg;
    const struct op_group_norm *a = j->op;
    for (int64_t i = task * j->grain; i < job_end(j, task); i++)
        j->d->isa->image->affine(j->dst + (j->from + i) * a->dst.stride[0],
                                 j->x + (j->from + i) * a->x.stride[0], j->v[0], j->v[1],
                                 a->x.shape[1], a->act);
}

int cpu__group_norm(struct dev *d, const struct op_group_norm *a)
{
    if (ops_check_group_norm(a, DT_F32, &d->image))
        return ERR_INVAL;
    bool bad = false;
    struct job j = {.d = d, .op = a, .y = &d->image.layout[a->layout]};
    j.dst = cpu__opt_ptr(d, &a->dst, &bad);
    j.x = cpu__opt_ptr(d, &a->x, &bad);
    const float *w = cpu__opt_ptr(d, &a->w, &bad), *b = cpu__opt_ptr(d, &a->b, &bad);
    int64_t c = a->x.shape[1], longest = 0;
    for (int s = 0; s < j.y->n_seg; s++)
        longest = j.y->start[s + 1] - j.y->start[s] > longest ? j.y->start[s + 1] - j.y->start[s]
                                                              : longest;
    int64_t parts = (longest + SUM_ROWS - 1) / SUM_ROWS;
    int rc =
        bad ? ERR_INVAL
            : cpu__grow(&d->seg, (size_t)(parts * 2 * c) * sizeof(double) + (size_t)(2 * c) * 4);
    if (rc)
        return rc;
    j.sum = d->seg.p;
    float *mul = (float *)(void *)(j.sum + parts * 2 * c), *add = mul + c;
    j.v[0] = mul;
    j.v[1] = add;
    for (int s = 0; s < j.y->n_seg; s++) {
        j.from = j.y->start[s];
        j.n = j.y->start[s + 1] - j.from;
        int n_part = (int)((j.n + SUM_ROWS - 1) / SUM_ROWS);
        cpu__run(d, group_sum_task, &j, n_part, (double)(j.n * c) * 0.5);
        group_factors(&j, n_part, w, b, mul);
        job_run(&j, affine_rows, (double)c * 0.5);
    }
    return 0;
}

static void layer_norm_rows(void *arg, int task, int worker)
{
    (void)worker;
    const struct job *j = arg;
    const struct op_layer_norm *a = j->op;
    for (int64_t i = task * j->grain; i < job_end(j, task); i++) {
        int64_t s = j->v[2] || j->v[3] ? cpu__seg_of(j->y, i) : 0;
        const float *v[4] = {j->v[0], j->v[1], j->v[2] ? j->v[2] + s * a->scale.stride[0] : NULL,
                             j->v[3] ? j->v[3] + s * a->shift.stride[0] : NULL};
        j->d->isa->image->layer_norm(j->dst + i * a->dst.stride[0], j->x + i * a->x.stride[0], v,
                                     a->x.shape[1], a->eps, a->rms);
    }
}

int cpu__layer_norm(struct dev *d, const struct op_layer_norm *a)
{
    if (ops_check_layer_norm(a, DT_F32, &d->image))
        return ERR_INVAL;
    bool bad = false;
    struct job j = {.d = d, .op = a, .n = a->x.shape[0]};
    j.y = a->layout >= 0 ? &d->image.layout[a->layout] : NULL;
    j.dst = cpu__opt_ptr(d, &a->dst, &bad);
    j.x = cpu__opt_ptr(d, &a->x, &bad);
    j.v[0] = cpu__opt_ptr(d, &a->w, &bad);
    j.v[1] = cpu__opt_ptr(d, &a->b, &bad);
    j.v[2] = cpu__opt_ptr(d, &a->scale, &bad);
    j.v[3] = cpu__opt_ptr(d, &a->shift, &bad);
    if (bad)
        return ERR_INVAL;
    job_run(&j, layer_norm_rows, (double)a->x.shape[1] * 0.5);
    return 0;
}

/* ---- rows ---- */

static void act_rows(void *arg, int task, int worker)
{
    (void)worker;
    const struct job *j = arg;
    const struct op_act *a = j->op;
    for (int64_t i = task * j->grain; i < job_end(j, task); i++)
        j->d->isa->image->act(j->dst + i * a->dst.stride[0], j->x + i * a->x.stride[0],
                              a->x.shape[1], a->act);
}

int cpu__act(struct dev *d, const struct op_act *a)
{
    bool bad = false;
    struct job j = {.d = d, .op = a, .n = a->x.shape[0]};
    j.dst = cpu__opt_ptr(d, &a->dst, &bad);
    j.x = cpu__opt_ptr(d, &a->x, &bad);
    if (bad || ops_check_act(a, DT_F32))
        return ERR_INVAL;
    job_run(&j, act_rows, (double)a->x.shape[1] * 0.5);
    return 0;
}

static void gate_add_rows(void *arg, int task, int worker)
{
    (void)worker;
    const struct job *j = arg;
    const struct op_gate_add *a = j->op;
    for (int64_t i = task * j->grain; i < job_end(j, task); i++) {
        const float *gate = j->v[1] ? j->v[1] + cpu__seg_of(j->y, i) * a->gate.stride[0] : NULL;
        j->d->isa->image->gate_add(j->x + i * a->x.stride[0], j->v[0] + i * a->y.stride[0], gate,
                                   a->x.shape[1], a->factor);
    }
}

int cpu__gate_add(struct dev *d, const struct op_gate_add *a)
{
    if (ops_check_gate_add(a, &d->image))
        return ERR_INVAL;
    bool bad = false;
    struct job j = {.d = d, .op = a, .n = a->x.shape[0]};
    j.y = a->layout >= 0 ? &d->image.layout[a->layout] : NULL;
    j.x = cpu__opt_ptr(d, &a->x, &bad);
    j.v[0] = cpu__opt_ptr(d, &a->y, &bad);
    j.v[1] = cpu__opt_ptr(d, &a->gate, &bad);
    if (bad)
        return ERR_INVAL;
    job_run(&j, gate_add_rows, (double)a->x.shape[1] * 0.3);
    return 0;
}

int cpu__lookup(struct dev *d, const struct op_lookup *a)
{
    if (!a->w || ops_check_lookup(a, a->w->desc.n_in, a->w2 ? a->w2->desc.n_in : 0))
        return ERR_INVAL;
    bool bad = false;
    float *dst = cpu__opt_ptr(d, &a->dst, &bad);
    const int32_t *ids = (const int32_t *)(const void *)cpu__opt_ptr(d, &a->ids, &bad);
    const int32_t *pos =
        a->w2 ? (const int32_t *)(const void *)cpu__opt_ptr(d, &a->pos, &bad) : NULL;
    int64_t n = a->dst.shape[1];
    int rc = bad ? ERR_INVAL : cpu__grow(&d->seg, (size_t)n * sizeof(float));
    for (int64_t i = 0; !rc && i < a->dst.shape[0]; i++) {
        float *row = dst + i * a->dst.stride[0];
        if (ids[i] < 0 || ids[i] >= cpu_packed_n_out(a->w->packed) ||
            (pos && (pos[i] < 0 || pos[i] >= cpu_packed_n_out(a->w2->packed))))
            return ERR_INVAL;
        cpu_weight_row(&a->w->desc, ids[i], row);
        if (pos) {
            cpu_weight_row(&a->w2->desc, pos[i], d->seg.p);
            d->isa->image->gate_add(row, d->seg.p, NULL, n, 1);
        }
    }
    return rc;
}
