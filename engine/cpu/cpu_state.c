/* CPU backend: layers with a recurrent state. Work is spread over sequences and channels (or heads); a task takes its
 * sequence's rows in order. */
#include "engine/cpu/cpu_impl.h"
#include "engine/cpu/kern_state.h"

#include "engine/base/mem.h"

#include <stdlib.h>

_Static_assert(STATE_CONV_MAX == CPU_CONV_MAX && STATE_KEY_MAX == CPU_KEY_MAX, "limits");

struct dev_state {
    struct state_desc desc;
    float *p; /* [slot][layer][n], 64-aligned */
    void *raw;
};

int cpu__state_open(struct dev *d, struct dev_state **out, const struct state_desc *s,
                    struct err *e)
{
    (void)d;
    size_t n = 0;
    int rc = ops_check_state_pool(s, e);
    if (rc)
        return rc;
    struct dev_state *st = mem_calloc(1, sizeof *st);
    if (st && ck_mul((size_t)s->n, (size_t)s->n_layer, &n) && ck_mul(n, (size_t)s->n_slot, &n) &&
        ck_mul(n, sizeof(float), &n) && ck_add(n, 64, &n))
        st->raw = mem_calloc(1, n); /* pages come as they are used */
    if (!st || !st->raw) {
        free(st);
        return err_set(e, ERR_NOMEM, "no memory for %d recurrent states", (int)s->n_slot);
    }
    st->desc = *s;
    st->p = (float *)(void *)((char *)st->raw + (64 - (uintptr_t)st->raw % 64) % 64);
    *out = st;
    return 0;
}

void cpu__state_close(struct dev *d, struct dev_state *s)
{
    (void)d;
    if (!s)
        return;
    free(s->raw);
    free(s);
}

/* A job: `unit` channels (or heads) of every sequence, `per_seq` units a sequence. */
struct job {
    struct dev *d;
    const struct state_at *at;
    const void *args;
    void (*fn)(const struct job *j, const struct cpu_span *s, int64_t unit);
    int64_t per_seq, grain;
};

static float *slot_of(const struct state_at *at, int32_t slot)
{
    const struct state_desc *s = &at->pool->desc;
    return at->pool->p + ((int64_t)slot * s->n_layer + at->layer) * s->n + at->off;
}

static void job_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct job *j = arg;
    const struct step_meta *m = &j->d->meta;
    int64_t all = j->per_seq * m->n_seq, end = ((int64_t)task + 1) * j->grain;
    for (int64_t u = task * j->grain; u < (end < all ? end : all); u++) {
        int s = (int)(u / j->per_seq);
        struct cpu_span span = {.from = m->seq_start[s], .to = m->seq_start[s + 1]};
        span.dst = slot_of(j->at, m->state_dst[s]);
        span.src = m->state_src[s] < 0 ? NULL : slot_of(j->at, m->state_src[s]);
        if (span.to > span.from)
            j->fn(j, &span, u % j->per_seq);
    }
}

/* row_cost: nanoseconds of a unit and row. */
static int job_run(struct job *j, double row_cost)
{
    const struct step_meta *m = &j->d->meta;
    if (m->n_seq == 0)
        return 0;
    double cost = row_cost * m->n_row / m->n_seq;
    int64_t all = j->per_seq * m->n_seq;
    j->grain = cpu__grain(cost);
    cpu__run(j->d, job_task, j, (int)((all + j->grain - 1) / j->grain), cost * (double)all);
    return 0;
}

static bool at_ok(const struct dev *d, const struct state_at *at, int64_t n)
{
    return at->pool && !ops_check_state_at(at, &at->pool->desc, n, &d->meta);
}

static bool rows_of(const struct dev *d, const struct tensor *t, struct cpu_rows *r)
{
    *r = (struct cpu_rows){0};
    if (!t->buf)
        return true;
    *r = (struct cpu_rows){cpu__ptr(d, t), t->stride[0]};
    return r->p;
}

static bool vec_of(const struct dev *d, const struct tensor *t, const float **p)
{
    *p = t->buf ? cpu__ptr(d, t) : NULL;
    return !t->buf || *p;
}

static int64_t vec_len(const struct tensor *t)
{
    return t->n_dim == 1 ? t->shape[0] : t->shape[1];
}

static int64_t tiles(int64_t d)
{
    return (d + 15) / 16;
}

static void conv_unit(const struct job *j, const struct cpu_span *s, int64_t u)
{
    j->d->isa->state->conv(j->args, s, u * 16);
}

int cpu__state_conv(struct dev *d, const struct op_state_conv *a)
{
    struct cpu_conv_state p = {.d = a->x.shape[1], .k = a->k, .silu = a->silu};
    if (!d->in_step || ops_check_state_conv(a, DT_F32, &d->meta) ||
        !at_ok(d, &a->at, p.d * (a->k - 1)))
        return ERR_INVAL;
    if (!rows_of(d, &a->dst, &p.dst) || !rows_of(d, &a->mul, &p.mul) || !rows_of(d, &a->x, &p.x) ||
        !rows_of(d, &a->in_gate, &p.in) || !rows_of(d, &a->out_gate, &p.out) ||
        !vec_of(d, &a->w, &p.w) || !vec_of(d, &a->bias, &p.bias))
        return d->meta.n_row ? ERR_INVAL : 0;
    struct job j = {.d = d, .at = &a->at, .args = &p, .fn = conv_unit, .per_seq = tiles(p.d)};
    return job_run(&j, 20);
}

static void scan_unit(const struct job *j, const struct cpu_span *s, int64_t u)
{
    j->d->isa->state->scan(j->args, s, (int)u);
}

int cpu__state_scan(struct dev *d, const struct op_state_scan *a)
{
    int64_t n = (int64_t)a->n_head * a->head_dim * a->n_state;
    if (!d->in_step || ops_check_state_scan(a, &d->meta) || !at_ok(d, &a->at, n))
        return ERR_INVAL;
    struct cpu_scan_state p = {.n_head = a->n_head,
                               .head_dim = a->head_dim,
                               .per_group = a->n_head / a->n_group,
                               .n_state = a->n_state,
                               .wide = vec_len(&a->a) != a->n_head,
                               .dt_min = a->dt_min,
                               .dt_max = a->dt_max};
    if (!rows_of(d, &a->dst, &p.dst) || !rows_of(d, &a->x, &p.x) || !rows_of(d, &a->dt, &p.dt) ||
        !rows_of(d, &a->b, &p.b) || !rows_of(d, &a->c, &p.c) || !vec_of(d, &a->a, &p.a) ||
        !vec_of(d, &a->dt_bias, &p.dt_bias) || !vec_of(d, &a->skip, &p.skip))
        return d->meta.n_row ? ERR_INVAL : 0;
    struct job j = {.d = d, .at = &a->at, .args = &p, .fn = scan_unit, .per_seq = a->n_head};
    return job_run(&j, 20 + a->head_dim * (10 + a->n_state * 0.3));
}

static void delta_unit(const struct job *j, const struct cpu_span *s, int64_t u)
{
    j->d->isa->state->delta(j->args, s, (int)u);
}

int cpu__state_delta(struct dev *d, const struct op_state_delta *a)
{
    int64_t n = (int64_t)a->n_head * a->dk * a->dv;
    if (!d->in_step || ops_check_state_delta(a, &d->meta) || !at_ok(d, &a->at, n))
        return ERR_INVAL;
    struct cpu_delta_state p = {.n_head = a->n_head,
                                .n_key_head = a->n_key_head,
                                .dk = a->dk,
                                .dv = a->dv,
                                .cycle = a->cycle,
                                .wide = a->g.shape[1] != a->n_head,
                                .scale = a->scale,
                                .eps = a->eps};
    if (!rows_of(d, &a->dst, &p.dst) || !rows_of(d, &a->q, &p.q) || !rows_of(d, &a->k, &p.k) ||
        !rows_of(d, &a->v, &p.v) || !rows_of(d, &a->g, &p.g) || !rows_of(d, &a->beta, &p.beta) ||
        !vec_of(d, &a->g_bias, &p.g_bias) || !vec_of(d, &a->a, &p.a))
        return d->meta.n_row ? ERR_INVAL : 0;
    struct job j = {.d = d, .at = &a->at, .args = &p, .fn = delta_unit, .per_seq = a->n_head};
    return job_run(&j, 200 + a->dk * a->dv * 0.3);
}

static void wkv_unit(const struct job *j, const struct cpu_span *s, int64_t u)
{
    j->d->isa->state->wkv(j->args, s, u * 16);
}

int cpu__state_wkv(struct dev *d, const struct op_state_wkv *a)
{
    struct cpu_wkv_state p = {.d = a->k.shape[1]};
    if (!d->in_step || ops_check_state_wkv(a, DT_F32, &d->meta) || !at_ok(d, &a->at, 3 * p.d))
        return ERR_INVAL;
    if (!rows_of(d, &a->dst, &p.dst) || !rows_of(d, &a->r, &p.r) || !rows_of(d, &a->k, &p.k) ||
        !rows_of(d, &a->v, &p.v) || !vec_of(d, &a->decay, &p.decay) ||
        !vec_of(d, &a->first, &p.first))
        return d->meta.n_row ? ERR_INVAL : 0;
    struct job j = {.d = d, .at = &a->at, .args = &p, .fn = wkv_unit, .per_seq = tiles(p.d)};
    return job_run(&j, 60);
}

static void shift_unit(const struct job *j, const struct cpu_span *s, int64_t u)
{
    j->d->isa->state->shift(j->args, s, u * 16);
}

int cpu__state_shift(struct dev *d, const struct op_state_shift *a)
{
    struct cpu_shift_state p = {.d = a->x.shape[1], .n_mix = a->n_mix};
    if (!d->in_step || ops_check_state_shift(a, DT_F32, &d->meta) || !at_ok(d, &a->at, p.d))
        return ERR_INVAL;
    if (!rows_of(d, &a->dst, &p.dst) || !rows_of(d, &a->x, &p.x) || !vec_of(d, &a->mix, &p.mix))
        return d->meta.n_row ? ERR_INVAL : 0;
    struct job j = {.d = d, .at = &a->at, .args = &p, .fn = shift_unit, .per_seq = tiles(p.d)};
    return job_run(&j, 10 * a->n_mix);
}

struct norm_job {
    struct dev *d;
    struct cpu_gated_args a;
    int64_t n, grain;
};

static void norm_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct norm_job *j = arg;
    int64_t end = ((int64_t)task + 1) * j->grain;
    for (int64_t i = task * j->grain; i < (end < j->n ? end : j->n); i++)
        j->d->isa->state->gated_norm(&j->a, i);
}

int cpu__gated_norm(struct dev *d, const struct op_gated_norm *a)
{
    if (ops_check_gated_norm(a, DT_F32))
        return ERR_INVAL;
    struct norm_job j = {.d = d, .n = a->x.shape[0]};
    int64_t cols = a->x.shape[1];
    j.a = (struct cpu_gated_args){.cols = cols,
                                  .group = a->group ? a->group : cols,
                                  .sigmoid = a->act == GATE_SIGMOID,
                                  .each = a->w.buf && vec_len(&a->w) == cols,
                                  .norm = a->group > 0,
                                  .gate_first = a->gate_first,
                                  .eps = a->eps};
    if (j.n == 0)
        return 0;
    if (!rows_of(d, &a->dst, &j.a.dst) || !rows_of(d, &a->x, &j.a.x) ||
        !rows_of(d, &a->gate, &j.a.gate) || !vec_of(d, &a->w, &j.a.w))
        return ERR_INVAL;
    double cost = (double)cols * 0.8;
    j.grain = cpu__grain(cost);
    cpu__run(d, norm_task, &j, (int)((j.n + j.grain - 1) / j.grain), cost * (double)j.n);
    return 0;
}
