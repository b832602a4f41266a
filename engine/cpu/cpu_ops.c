/* CPU backend: ops on rows of activations. Each checks shapes, finds its rows and spreads them over the
 * pool in tasks of some microseconds. Costs are nanoseconds by rule of thumb; they only steer the split. */
#include "engine/cpu/cpu_impl.h"

#include <math.h>

#include <string.h>

static void rows_run(struct cpu_row_job *r, void (*fn)(void *, int, int), double row_cost)
{
    r->grain = cpu__grain(row_cost);
    cpu__run(r->d, fn, r, (int)((r->n + r->grain - 1) / r->grain), (double)r->n * row_cost);
}

static int64_t rows_end(const struct cpu_row_job *r, int task)
{
    int64_t end = ((int64_t)task + 1) * r->grain;
    return end < r->n ? end : r->n;
}

static void embed_rows(void *arg, int task, int worker)
{
    const struct cpu_row_job *r = arg;
    const struct op_embed *a = r->op;
    for (int64_t i = task * r->grain; i < rows_end(r, task); i++) {
        float *dst = r->dst + i * r->ld_dst;
        cpu_weight_row(&a->w->desc, r->d->meta.tok[i], dst);
        if (a->scale < 1 || a->scale > 1)
            r->d->isa->norm->scale(dst, r->cols, a->scale, 0);
        if (a->pos) {
            float *p = (float *)r->d->im2col.p + (size_t)worker * (size_t)r->cols;
            cpu_weight_row(&a->pos->desc, r->d->meta.pos[i], p);
            r->d->isa->norm->norm(&(struct cpu_norm_args){.x = dst, .add = p, .d = r->cols});
        }
    }
}

int cpu__embed(struct dev *d, const struct op_embed *a)
{
    if (!d->in_step || !a->w || !a->w->desc.rows ||
        ops_check_embed(a, &d->meta, a->w->desc.n_in, cpu_packed_n_out(a->w->packed)) ||
        (a->pos && ops_check_embed_pos(&d->meta, a->w->desc.n_in, &a->pos->desc)))
        return ERR_INVAL;
    struct cpu_row_job r = {.d = d, .n = d->meta.n_row, .cols = a->w->desc.n_in, .op = a};
    r.dst = cpu__ptr(d, &a->dst);
    r.ld_dst = a->dst.stride[0];
    if (!r.dst)
        return ERR_INVAL;
    int rc =
        a->pos ? cpu__grow(&d->im2col, (size_t)d->n_threads * (size_t)r.cols * sizeof(float)) : 0;
    if (rc)
        return rc;
    rows_run(&r, embed_rows, (double)r.cols);
    return 0;
}

/* Rows [row, row + n). */
static void norm_make(void *arg, int64_t row, int64_t n)
{
    const struct cpu_row_job *r = arg;
    const struct op_rmsnorm *a = r->op;
    struct cpu_norm_args p = {
        .w = r->w, .b = r->b, .d = r->cols, .eps = a->eps, .center = a->center};
    for (int64_t i = row; i < row + n; i++) {
        p.dst = r->dst ? r->dst + i * r->ld_dst : NULL;
        p.x = r->x + i * r->ld_x;
        p.add = r->add ? r->add + i * r->ld_add : NULL;
        r->d->isa->norm->norm(&p);
    }
}

static void rmsnorm_rows(void *arg, int task, int worker)
{
    (void)worker;
    const int64_t from = task * ((struct cpu_row_job *)arg)->grain;
    norm_make(arg, from, rows_end(arg, task) - from);
}

/* Where the tensor is, or NULL where it has no buffer; *ok becomes false when it ought to have one. */
static void *optional(struct dev *d, const struct tensor *t, bool *ok)
{
    void *p = t->buf ? cpu__ptr(d, t) : NULL;
    *ok = *ok && (p || !t->buf);
    return p;
}

#define WAIT_ROWS 32 /* at least: fewer are in the cache anyway */

int cpu__rmsnorm(struct dev *d, const struct op_rmsnorm *a)
{
    if (ops_check_rmsnorm(a, DT_F32))
        return ERR_INVAL;
    struct cpu_row_job r = {.d = d, .n = a->x.shape[0], .cols = a->x.shape[1], .op = a};
    bool ok = true;
    r.x = cpu__ptr(d, &a->x);
    r.ld_x = a->x.stride[0];
    r.add = optional(d, &a->add, &ok);
    r.ld_add = a->add.stride[0];
    r.dst = optional(d, &a->dst, &ok);
    r.ld_dst = a->dst.stride[0];
    r.w = optional(d, &a->w, &ok);
    r.b = optional(d, &a->b, &ok);
    if (!r.x || !ok)
        return ERR_INVAL;
    if (r.dst && r.n >= WAIT_ROWS) {
        d->norm_waits = true;
        d->norm = *a;
        d->norm_rows = r;
        d->norm_rows.op = &d->norm;
        return 0;
    }
    rows_run(&r, rmsnorm_rows, (double)r.cols * 0.3);
    return 0;
}

void cpu__norm_settle(struct dev *d)
{
    struct cpu_row_job *r = &d->norm_rows;
    if (d->norm_waits)
        rows_run(r, rmsnorm_rows, (double)r->cols * 0.3);
    d->norm_waits = false;
}

/* Do the product's results share memory with what the norm reads? Its last reader was the norm, as far as a caller that
 * plans memory knows. n floats at p, ld from row to row; p may be NULL. */
static bool lies_in(const struct cpu_gemm_args *g, const float *p, int64_t rows, int64_t ld,
                    int64_t n)
{
    const uintptr_t y = (uintptr_t)g->y, from = (uintptr_t)p;
    const int64_t y_n = (g->m - 1) * g->ldy + cpu_packed_n_out(g->w);
    return p && g->y && from < y + (size_t)y_n * sizeof(float) &&
           y < from + (size_t)((rows - 1) * ld + n) * sizeof(float);
}

void cpu__norm_take(struct dev *d, const struct tensor *src, struct cpu_gemm_args *g)
{
    const struct tensor *t = &d->norm.dst;
    const struct cpu_row_job *r = &d->norm_rows;
    if (d->norm_waits && t->buf == src->buf && t->off == src->off && t->shape[0] == src->shape[0] &&
        t->shape[1] == src->shape[1] && t->stride[0] == src->stride[0] &&
        !lies_in(g, r->x, r->n, r->ld_x, r->cols) &&
        !lies_in(g, r->add, r->n, r->ld_add, r->cols) && !lies_in(g, r->w, 1, 0, r->cols) &&
        !lies_in(g, r->b, 1, 0, r->cols)) {
        g->make = norm_make;
        g->make_arg = &d->norm_rows;
        d->norm_waits = false;
    }
    cpu__norm_settle(d);
}

struct rows_in {
    const struct dev_weight *w;
    const float *src;
    float *dst;
    int64_t ld, n, grain;
};

static void rows_in_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct rows_in *r = arg;
    const int64_t end = (task + 1) * r->grain;
    for (int64_t i = task * r->grain; i < (end < r->n ? end : r->n); i++)
        cpu__weight_row_in(r->w, r->src + i * r->ld, r->dst + i * r->w->n_in_pad);
}

/* Rows that the weight wants otherwise than they are, in d->im2col. */
static int rows_in(struct dev *d, const struct dev_weight *w, struct cpu_gemm_args *g)
{
    int rc = cpu__grow(&d->im2col, (size_t)(g->m * w->n_in_pad) * sizeof(float));
    if (rc)
        return rc;
    const double cost = (double)w->n_in_pad * (w->col ? 0.5 : 0.1);
    struct rows_in r = {w, g->x, d->im2col.p, g->ldx, g->m, cpu__grain(cost)};
    cpu__run(d, rows_in_task, &r, (int)((r.n + r.grain - 1) / r.grain), cost * (double)r.n);
    g->x = r.dst;
    g->ldx = w->n_in_pad;
    return 0;
}

int cpu__linear(struct dev *d, const struct op_linear *a)
{
    if (!a->w)
        return ERR_INVAL;
    int64_t n_in = a->w->desc.n_in, n_out = cpu_packed_n_out(a->w->packed), m = a->src.shape[0];
    if (ops_check_linear(a, DT_F32, n_in, n_out))
        return ERR_INVAL;
    struct cpu_gemm_args g = {.w = a->w->packed, .m = m};
    g.x = cpu__ptr(d, &a->src);
    g.y = cpu__ptr(d, &a->dst);
    g.ldx = a->src.stride[0];
    g.ldy = a->dst.stride[0];
    g.bias = a->bias.buf ? cpu__ptr(d, &a->bias) : NULL;
    if (!g.x || !g.y || (a->bias.buf && !g.bias))
        return ERR_INVAL;
    int64_t pad = a->w->n_in_pad;
    int rc = cpu__grow(&d->gemm, cpu_gemm_scratch(d->isa->gemm, m, pad, d->n_threads));
    if (!rc && (pad != n_in || a->w->col) && m > 0) {
        cpu__norm_settle(d);
        rc = rows_in(d, a->w, &g);
    }
    if (rc)
        return rc;
    g.scratch = d->gemm.p;
    cpu__norm_take(d, &a->src, &g);
    if (m > 0)
        cpu_gemm(d->pool, &g);
    return 0;
}

static void act_rows(void *arg, int task, int worker)
{
    (void)worker;
    const struct cpu_row_job *r = arg;
    const struct op_act_mul *a = r->op;
    for (int64_t i = task * r->grain; i < rows_end(r, task); i++) {
        const float *gate = r->x + i * r->ld_x;
        r->d->isa->norm->act_mul(a, r->dst + i * r->ld_dst, gate, r->cols);
    }
}

int cpu__act_mul(struct dev *d, const struct op_act_mul *a)
{
    if (ops_check_act_mul(a, DT_F32))
        return ERR_INVAL;
    struct cpu_row_job r = {.d = d, .n = a->dst.shape[0], .cols = a->dst.shape[1], .op = a};
    r.dst = cpu__ptr(d, &a->dst);
    r.x = cpu__ptr(d, &a->gate_up);
    r.ld_dst = a->dst.stride[0];
    r.ld_x = a->gate_up.stride[0];
    if (!r.dst || !r.x)
        return ERR_INVAL;
    rows_run(&r, act_rows, (double)r.cols * 0.8);
    return 0;
}

int cpu__gather(struct dev *d, const struct op_gather *a)
{
    if (!d->in_step || ops_check_gather(a, DT_F32, &d->meta))
        return ERR_INVAL;
    float *dst = cpu__ptr(d, &a->dst);
    const float *src = cpu__ptr(d, &a->src);
    if (!dst || !src)
        return ERR_INVAL;
    for (int i = 0; i < d->meta.n_logit; i++)
        memcpy(dst + i * a->dst.stride[0], src + d->meta.logit_row[i] * a->src.stride[0],
               (size_t)a->dst.shape[1] * sizeof *dst);
    return 0;
}

static void scale_rows(void *arg, int task, int worker)
{
    (void)worker;
    const struct cpu_row_job *r = arg;
    const struct op_scale *a = r->op;
    for (int64_t i = task * r->grain; i < rows_end(r, task); i++) {
        float *x = r->x + i * r->ld_x;
        for (int64_t k = 0; a->clip > 0 && k < r->cols; k++)
            x[k] = fminf(fmaxf(x[k], -a->clip), a->clip);
        r->d->isa->norm->scale(x, r->cols, ops_scale_of(a, &r->d->meta, i), a->softcap);
    }
}

int cpu__scale(struct dev *d, const struct op_scale *a)
{
    if (ops_check_scale(a, d->in_step ? &d->meta : NULL))
        return ERR_INVAL;
    struct cpu_row_job r = {.d = d, .n = a->x.shape[0], .cols = a->x.shape[1], .op = a};
    r.x = cpu__ptr(d, &a->x);
    r.ld_x = a->x.stride[0];
    if (!r.x)
        return ERR_INVAL;
    rows_run(&r, scale_rows, (double)r.cols * (a->softcap > 0 ? 0.8 : 0.1));
    return 0;
}
