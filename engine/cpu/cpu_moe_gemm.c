/* CPU backend: products of rows with the weights that each row chose. Rows are sorted by expert; an expert's rows are one
 * product, of whose panels and rows tasks are made, so that all experts together keep the workers even. Only weights that
 * some row chose are read. The kernels are those of op_linear and never cut the reduction: equal bits. */
#include "engine/base/mem.h"
#include "engine/cpu/cpu_impl.h"
#include "engine/cpu/gemm_impl.h"

#include <string.h>

#define ROWS_MAX 256 /* of a task */
#define PANELS   8   /* of a call: its result stays in a worker's buffer until it is spread */

/* The rows of one expert. */
struct group {
    const struct dev_weight *w;
    const float *bias;
    int32_t n, first;     /* order[first, first + n): rows of dst */
    int64_t row;          /* of the scratch; a multiple of GEMM_ROWS */
    int32_t prep, task;   /* first task of each kind */
    int32_t panels, rows; /* a task's at most */
    int32_t n_row_task;
};

struct group_job {
    const struct op_linear_experts *a;
    struct group *group;
    int n_group;
    int32_t *order;
    int64_t n_in, pad, n_used;
    bool each; /* src has a row for each row of dst */
    const float *src, *scale;
    float *dst, *x; /* x: sorted rows, for kernels that read floats */
    struct gemm_scratch s;
    uint8_t *scratch, *worker;
    size_t worker_bytes;
};

/* The group of a task: the last that starts at or before it. */
static const struct group *group_of(const struct group_job *j, int task, bool prep)
{
    int lo = 0, hi = j->n_group - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if ((prep ? j->group[mid].prep : j->group[mid].task) <= task)
            lo = mid;
        else
            hi = mid - 1;
    }
    return &j->group[lo];
}

/* The scratch as the products of a group use it. */
static struct gemm_scratch scratch_of(const struct group_job *j, const struct group *g)
{
    struct gemm_scratch s = j->s;
    s.one = g->n == 1;
    return s;
}

/* Rows [at, at + n) of a group, one behind the other, as its weight wants them. */
static void rows_gather(const struct group_job *j, const struct group *g, int64_t at, int64_t n,
                        float *x)
{
    for (int64_t i = 0; i < n; i++, x += j->pad) {
        const int32_t r = j->order[g->first + at + i];
        const int64_t row = r / j->n_used, used = r % j->n_used;
        const float *src = j->src + (j->each ? r : row) * j->a->src.stride[0];
        cpu__weight_row_in(g->w, src, x);
        const float f = j->scale ? j->scale[row * j->a->in_scale.stride[0] + used] : 1;
        for (int64_t k = 0; j->scale && k < j->n_in; k++)
            x[k] *= f;
    }
}

static void prep_task(void *arg, int task, int worker)
{
    const struct group_job *j = arg;
    const struct group *g = group_of(j, task, true);
    const int64_t at = (int64_t)(task - g->prep) * GEMM_ROWS, left = g->n - at;
    const int64_t n = left < GEMM_ROWS ? left : GEMM_ROWS;
    float *x = (float *)(void *)(j->worker + (size_t)worker * j->worker_bytes);
    if (j->x)
        x = j->x + (g->row + at) * j->pad;
    rows_gather(j, g, at, n, x);
    const struct gemm_scratch s = scratch_of(j, g);
    if (gemm__wants_prep(g->w->packed))
        gemm__prep(g->w->packed, &s, j->scratch, g->row + at, x, j->pad, (int)n);
}

static void product_task(void *arg, int task, int worker)
{
    const struct group_job *j = arg;
    const struct group *g = group_of(j, task, false);
    const struct cpu_packed *w = g->w->packed;
    const int t = task - g->task, n_panel = (int)cpu_gemm_panels(w);
    const int64_t at = (int64_t)(t % g->n_row_task) * g->rows;
    const int panel = t / g->n_row_task * g->panels;
    const int end = panel + g->panels < n_panel ? panel + g->panels : n_panel;
    float *y = (float *)(void *)(j->worker + (size_t)worker * j->worker_bytes);
    const struct gemm_scratch s = scratch_of(j, g);
    struct gemm_piece p = {.w = w,
                           .s = &s,
                           .scratch = j->scratch,
                           .row = g->row + at,
                           .m = g->n - at < g->rows ? g->n - at : g->rows,
                           .x = j->x ? j->x + (g->row + at) * j->pad : NULL,
                           .ldx = j->pad,
                           .y = y,
                           .bias = g->bias,
                           .wbuf = j->scratch + j->s.wbuf + (size_t)worker * j->s.wbuf_each};
    const int32_t *order = j->order + g->first + at;
    const int64_t ld = j->a->dst.stride[0];
    if (p.m == 1) {
        p.y = j->dst + order[0] * ld;
        p.from = panel;
        p.to = end;
        gemm__piece(&p);
        return;
    }
    for (p.from = panel; p.from < end; p.from = p.to) {
        p.to = p.from + PANELS < end ? p.from + PANELS : end;
        p.col = cpu_gemm_col(w, p.from);
        p.ldy = cpu_gemm_col(w, p.to) - p.col;
        gemm__piece(&p);
        for (int64_t i = 0; i < p.m; i++)
            memcpy(j->dst + order[i] * ld + p.col, y + i * p.ldy, (size_t)p.ldy * sizeof *y);
    }
}

/* How each group's product is cut. Costs are of panels times rows: a panel is read whole for one row, so few rows cost as
 * if they were some more. */
static int tasks_plan(struct group_job *j, int n_threads)
{
    int64_t all = 0;
    int32_t task = 0;
    for (int i = 0; i < j->n_group; i++)
        all += cpu_gemm_panels(j->group[i].w->packed) * (j->group[i].n + 3);
    for (int i = 0; i < j->n_group; i++) {
        struct group *g = &j->group[i];
        const int64_t n_panel = cpu_gemm_panels(g->w->packed);
        g->rows = g->n < ROWS_MAX ? (g->n + GEMM_ROWS - 1) / GEMM_ROWS * GEMM_ROWS : ROWS_MAX;
        g->n_row_task = (g->n + g->rows - 1) / g->rows;
        const int64_t m = g->n < g->rows ? g->n : g->rows;
        const int64_t floor = (16 << 10) / (gemm__panel_cost(g->w->packed) * (m < 8 ? m : 8));
        int64_t panels = all / (6 * n_threads) / (m + 3) + 1;
        panels = panels < floor ? floor : panels;
        g->panels = (int32_t)(panels < n_panel ? panels : n_panel);
        g->task = task;
        task += (int32_t)((n_panel + g->panels - 1) / g->panels) * g->n_row_task;
    }
    return task;
}

/* Sorts rows by expert. Returns the number of preparing tasks, or a negative error: an id out of range, a weight of
 * another shape. */
static int groups_make(struct group_job *j, const int32_t *id, const float *bias, int64_t n_out)
{
    const struct op_linear_experts *a = j->a;
    int32_t at[OPS_EXPERTS_MAX] = {0}, first = 0, prep = 0;
    const int64_t n = a->id.shape[0];
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < j->n_used; k++) {
            const int32_t x = id[i * a->id.stride[0] + k];
            if (x < 0 || x >= a->n_expert)
                return ERR_INVAL;
            at[x]++;
        }
    for (int x = 0; x < a->n_expert; x++) {
        const struct dev_weight *w = a->w[x];
        const int32_t count = at[x];
        if (count == 0)
            continue;
        if (!w || w->desc.n_in != j->n_in || w->n_in_pad != j->pad ||
            cpu_packed_n_out(w->packed) != n_out || (!j->x && gemm__reads_floats(w->packed)))
            return ERR_INVAL;
        j->group[j->n_group++] = (struct group){.w = w,
                                                .bias = bias ? bias + x * n_out : NULL,
                                                .n = count,
                                                .first = first,
                                                .row = (int64_t)prep * GEMM_ROWS,
                                                .prep = prep};
        at[x] = first;
        first += count;
        prep += (count + GEMM_ROWS - 1) / GEMM_ROWS;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < j->n_used; k++)
            j->order[at[id[i * a->id.stride[0] + k]]++] = (int32_t)(i * j->n_used + k);
    return prep;
}

/* Memory for the largest such op of n * n_used rows, whatever they choose: a later step needs no more. */
static int group_memory(struct dev *d, struct group_job *j, bool floats)
{
    const struct op_linear_experts *a = j->a;
    const int64_t all = a->dst.shape[0], n = a->n_expert < all ? a->n_expert : all;
    const int64_t rows = all + n * (GEMM_ROWS - 1);
    const size_t y = (size_t)ROWS_MAX * PANELS * 16 * sizeof(float);
    const size_t x = (size_t)GEMM_ROWS * (size_t)j->pad * sizeof(float);
    const size_t groups = gemm_pad64((size_t)n * sizeof(struct group));
    j->s = gemm__scratch_plan(rows, j->pad, d->n_threads);
    j->worker_bytes = gemm_pad64(x > y ? x : y);
    int rc = cpu__grow(&d->group, groups + (size_t)all * sizeof(int32_t));
    if (!rc)
        rc = cpu__grow(&d->gemm, j->s.total);
    if (!rc)
        rc = cpu__grow(&d->group_rows, j->worker_bytes * (size_t)d->n_threads);
    if (!rc && floats)
        rc = cpu__grow(&d->im2col, (size_t)(rows * j->pad) * sizeof(float));
    if (rc)
        return rc;
    j->group = d->group.p;
    j->order = (int32_t *)(void *)((char *)d->group.p + groups);
    j->scratch = d->gemm.p;
    j->worker = d->group_rows.p;
    j->x = floats ? d->im2col.p : NULL;
    return 0;
}

int cpu__linear_experts(struct dev *d, const struct op_linear_experts *a)
{
    const struct dev_weight *w = a->w ? a->w[0] : NULL;
    bool bad = false;
    if (!w || ops_check_linear_experts(a, DT_F32, w->desc.n_in, cpu_packed_n_out(w->packed)))
        return ERR_INVAL;
    struct group_job j = {.a = a,
                          .n_in = w->desc.n_in,
                          .pad = w->n_in_pad,
                          .n_used = a->id.shape[1],
                          .each = a->src.shape[0] != a->id.shape[0],
                          .src = cpu__ptr(d, &a->src),
                          .dst = cpu__ptr(d, &a->dst),
                          .scale = cpu__opt_ptr(d, &a->in_scale, &bad)};
    const int32_t *id = cpu__ptr(d, &a->id);
    const float *bias = cpu__opt_ptr(d, &a->bias, &bad);
    if (!j.src || !j.dst || !id || bad)
        return ERR_INVAL;
    if (a->dst.shape[0] == 0)
        return 0;
    int rc = group_memory(d, &j, gemm__reads_floats(w->packed));
    if (rc)
        return rc;
    int n_prep = groups_make(&j, id, bias, cpu_packed_n_out(w->packed));
    if (n_prep < 0)
        return n_prep;
    cpu__run(d, prep_task, &j, n_prep, (double)(a->dst.shape[0] * j.pad) * 0.5);
    int n_task = tasks_plan(&j, d->n_threads);
    cpu_pool_run(d->pool, product_task, &j, n_task);
    return 0;
}
