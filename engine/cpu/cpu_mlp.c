/* CPU backend: a feed-forward block in one go. A task multiplies some outputs of the gate and of up, applies the activation
 * while they are in its cache, and converts the result to what the second product reads: neither gate_up nor act's result
 * goes through memory. All steps are those of the three ops, by row and in order, so bits are equal. */
#include "engine/cpu/cpu_impl.h"
#include "engine/cpu/gemm_impl.h"

#define ROWS_MAX   256 /* of a task */
#define BUF_FLOATS 32768
#define UNIT       GEMM_CHUNK /* outputs: what conversion takes at a time */

struct mlp_job {
    struct dev *d;
    const struct op_act_mul *act;
    const struct cpu_packed *in, *out;
    struct cpu_gemm_args
        a; /* of the first product; y: act's result, for kernels that read floats, or NULL */
    struct gemm_scratch s, s_out;
    uint8_t *scratch_out;
    int64_t rows, n_ff, up_panel; /* up_panel: the first of up */
    bool whole; /* the second product's rows are converted when they are complete */
    int n_row_task;
    struct gemm_cut cut; /* of the gate's panels */
};

/* Outputs [col, col + n) of m rows, n a multiple of UNIT. */
static void piece_run(const struct mlp_job *j, struct gemm_piece *p, int64_t col, int64_t n)
{
    const int lanes = gemm__lanes(j->in);
    const int64_t ld = p->ldy, row = p->row;
    float *buf = p->y;
    p->from = col / lanes;
    p->to = (col + n) / lanes;
    p->col = col;
    gemm__piece(p);
    if (!j->act->single) {
        p->from += j->up_panel;
        p->to += j->up_panel;
        p->col = j->n_ff + col;
        p->y = buf + n;
        gemm__piece(p);
        p->y = buf;
    }
    float *dst = j->a.y ? j->a.y + row * j->a.ldy + col : buf;
    const int64_t ldd = j->a.y ? j->a.ldy : ld;
    for (int64_t i = 0; i < p->m; i++)
        j->d->isa->norm->act_mul(j->act, dst + i * ldd, buf + i * ld, n);
    for (int64_t at = 0; at < p->m && !j->whole && gemm__wants_prep(j->out); at += GEMM_ROWS) {
        const int64_t left = p->m - at;
        const struct gemm_prep q = {.x = dst + at * ldd,
                                    .ldx = ldd,
                                    .n_in = n,
                                    .n_row = left < GEMM_ROWS ? (int)left : GEMM_ROWS};
        gemm__prep_cols(j->out, &j->s_out, j->scratch_out, &q, row + at, col);
    }
}

static void mlp_task(void *arg, int task, int worker)
{
    const struct mlp_job *j = arg;
    const struct cpu_gemm_args *a = &j->a;
    const int lanes = gemm__lanes(j->in), range = task / j->n_row_task;
    const int64_t row = task % j->n_row_task * j->rows, m = a->m - row;
    struct gemm_piece p = {.w = j->in,
                           .s = &j->s,
                           .scratch = a->scratch,
                           .row = row,
                           .m = m < j->rows ? m : j->rows,
                           .x = a->x + row * a->ldx,
                           .ldx = a->ldx,
                           .y = (float *)j->d->mlp_rows.p + (size_t)worker * BUF_FLOATS,
                           .bias = a->bias,
                           .wbuf =
                               (uint8_t *)a->scratch + j->s.wbuf + (size_t)worker * j->s.wbuf_each};
    const int64_t wide = j->act->single ? 1 : 2;
    const int64_t most = BUF_FLOATS / (wide * p.m) / UNIT * UNIT;
    const int64_t end = (int64_t)j->cut.from[range + 1] * lanes;
    for (int64_t n, col = (int64_t)j->cut.from[range] * lanes; col < end; col += n) {
        n = end - col < most ? end - col : most;
        p.ldy = wide * n;
        piece_run(j, &p, col, n);
    }
}

/* false: the three ops it is. */
static bool mlp_fits(const struct dev *d, const struct op_mlp *a, struct mlp_job *j)
{
    const int64_t m = a->in.src.shape[0];
    j->in = a->in.w->packed;
    j->out = a->out.w->packed;
    j->n_ff = a->act.dst.shape[1];
    j->up_panel = a->act.single ? 0 : gemm__panel_at(j->in, j->n_ff);
    /* Many rows of bf16 are converted by the tasks that multiply them. */
    const bool own = cpu_gemm_form(j->in) == CPU_GEMM_BF16 && m >= (int64_t)d->n_threads * 96;
    const bool sorted = a->in.w->col || a->out.w->col; /* rows would have to be gathered first */
    /* On several nodes of memory the halves of gate and up are far from those that read them here. */
    return m > 0 && j->up_panel >= 0 && !own && !sorted && gemm__one_node(d->pool) &&
           j->n_ff % UNIT == 0 && a->in.w->n_in_pad == a->in.w->desc.n_in &&
           a->out.w->n_in_pad == j->n_ff;
}

static int mlp_run(struct dev *d, const struct op_mlp *a, struct mlp_job *j)
{
    bool bad = false;
    const int64_t m = a->in.src.shape[0], n_in = a->in.w->desc.n_in;
    struct cpu_gemm_args out = {.w = j->out,
                                .m = m,
                                .ldx = a->out.src.stride[0],
                                .ldy = a->out.dst.stride[0],
                                .ready = true};
    out.x = cpu__ptr(d, &a->out.src);
    out.y = cpu__ptr(d, &a->out.dst);
    out.bias = cpu__opt_ptr(d, &a->out.bias, &bad);
    j->a = (struct cpu_gemm_args){.w = j->in, .m = m, .ldx = a->in.src.stride[0]};
    j->a.x = cpu__ptr(d, &a->in.src);
    j->a.bias = cpu__opt_ptr(d, &a->in.bias, &bad);
    j->whole = gemm__wants_whole(j->out);
    out.ready = !j->whole;
    if (j->whole || gemm__reads_floats(j->out)) {
        j->a.y = cpu__ptr(d, &a->act.dst);
        j->a.ldy = a->act.dst.stride[0];
    }
    if (bad || !out.x || !out.y || !j->a.x)
        return ERR_INVAL;
    j->s = gemm__scratch_plan(m, n_in, d->n_threads);
    j->s_out = gemm__scratch_plan(m, j->n_ff, d->n_threads);
    int rc = cpu__grow(&d->gemm, j->s.total);
    if (rc || (rc = cpu__grow(&d->mlp, j->s_out.total)) ||
        (rc = cpu__grow(&d->mlp_rows, (size_t)d->n_threads * BUF_FLOATS * sizeof(float))))
        return rc;
    j->a.scratch = d->gemm.p;
    out.scratch = j->scratch_out = d->mlp.p;
    cpu__norm_take(d, &a->in.src, &j->a);
    gemm__prep_all(d->pool, &j->a);

    const int lanes = gemm__lanes(j->in);
    int64_t unit = gemm__least(j->in, m) / (a->act.single ? 1 : 2) * lanes;
    unit = (unit + UNIT - 1) / UNIT * UNIT / lanes;
    j->rows = m < ROWS_MAX ? (m + GEMM_ROWS - 1) / GEMM_ROWS * GEMM_ROWS : ROWS_MAX;
    j->n_row_task = (int)((m + j->rows - 1) / j->rows);
    gemm__cut(&j->cut, j->n_ff / lanes, unit, d->pool, m);
    cpu_pool_run(d->pool, mlp_task, j, j->cut.n * j->n_row_task);
    cpu_gemm(d->pool, &out);
    return 0;
}

int cpu__mlp(struct dev *d, const struct op_mlp *a)
{
    if (!a->in.w || !a->out.w ||
        ops_check_linear(&a->in, DT_F32, a->in.w->desc.n_in, cpu_packed_n_out(a->in.w->packed)) ||
        ops_check_act_mul(&a->act, DT_F32) ||
        ops_check_linear(&a->out, DT_F32, a->out.w->desc.n_in,
                         cpu_packed_n_out(a->out.w->packed)) ||
        a->act.dst.shape[0] != a->in.src.shape[0] || a->out.src.shape[0] != a->in.src.shape[0] ||
        a->act.gate_up.shape[1] != a->in.dst.shape[1])
        return ERR_INVAL;
    struct mlp_job j = {.d = d, .act = &a->act};
    if (mlp_fits(d, a, &j))
        return mlp_run(d, a, &j);
    int rc = cpu__linear(d, &a->in);
    if (!rc)
        rc = cpu__act_mul(d, &a->act);
    return rc ? rc : cpu__linear(d, &a->out);
}
