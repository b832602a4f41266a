/* Ops of a step as a list of records; launched when something waits for them or the step samples. Decode-only steps run as
 * graphs: one a bucket of rows and a list of equal ops, captured once, replayed with the counts on the device. */
#include "cuda/backend_impl.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct rec *cu__record(struct dev *d, enum rec_kind kind)
{
    if (d->n_rec == d->cap_rec) {
        int n = d->cap_rec ? 2 * d->cap_rec : 512;
        struct rec *p = mem_realloc(d->rec, (size_t)n * sizeof *p);
        if (!p)
            return NULL;
        d->rec = p;
        d->cap_rec = n;
    }
    struct rec *r = &d->rec[d->n_rec++];
    memset(r, 0, sizeof *r);
    r->kind = kind;
    return r;
}

static const char *const names[] = {
    "embed",       "rmsnorm",     "linear",     "rope_kv",    "attn",        "act_mul",
    "gather",      "scale",       "sample",     "state_conv", "state_shift", "state_wkv",
    "state_scan",  "state_delta", "gated_norm", "route",      "experts",     "experts_sum",
    "sigmoid_mul", "mla_kv",      "mla_attn",   "index"};

/* How far apart rows lie whose columns were put into a weight's order. */
static int64_t cols_ld(const struct cu_linear *a)
{
    return (a->w->n_in + 7) / 8 * 8;
}

static int linear_launch(struct dev *d, struct cu_linear *a, const struct cu_step *s)
{
    struct cu_mat sorted = a->src;
    a->ws = d->ws.p;
    a->ws_bytes = d->ws.n;
    if (a->w->col) {
        sorted.p = d->cols.p;
        sorted.ld = cols_ld(a);
        int rc = cu_cols(&sorted, &a->src, a->w->col, a->rows, s, d->stream);
        if (rc)
            return rc;
        a->src = sorted;
    }
    return cu_linear(a, s, d->stream);
}

/* Work space is the device's: it is put in here, not kept in the record, so that growing changes no key. */
static int rec_launch(struct dev *d, const struct rec *r, const struct cu_step *s)
{
    cu_stream st = d->stream;
    struct rec x = *r;
    switch (r->kind) {
    case REC_EMBED:
        return cu_embed(&r->u.embed, s, st);
    case REC_RMSNORM:
        return cu_rmsnorm(&r->u.rmsnorm, s, st);
    case REC_LINEAR:
        return linear_launch(d, &x.u.linear, s);
    case REC_ROPE_KV:
        return cu_rope_kv(&r->u.rope_kv, s, st);
    case REC_ATTN:
        x.u.attn.ws = d->attn_ws.p;
        x.u.attn.ws_bytes = d->attn_ws.n;
        x.u.attn.flags = d->flags.p;
        x.u.attn.n_flag = (int32_t)(d->flags.n / sizeof(int32_t));
        return cu_attn(&x.u.attn, s, st);
    case REC_ACT_MUL:
        return cu_act_mul(&r->u.act_mul, s, st);
    case REC_GATHER:
        return cu_gather(&r->u.gather, s, st);
    case REC_SCALE:
        return cu_scale(&r->u.scale, s, st);
    case REC_STATE_CONV:
        return cu_state_conv(&r->u.state_conv, s, st);
    case REC_STATE_SHIFT:
        return cu_state_shift(&r->u.state_shift, s, st);
    case REC_STATE_WKV:
        return cu_state_wkv(&r->u.state_wkv, s, st);
    case REC_STATE_SCAN:
        return cu_state_scan(&r->u.state_scan, s, st);
    case REC_STATE_DELTA:
        return cu_state_delta(&r->u.state_delta, s, st);
    case REC_GATED_NORM:
        return cu_gated_norm(&r->u.gated_norm, s, st);
    case REC_ROUTE:
        return cu_route(&r->u.route, s, st);
    case REC_EXPERTS:
        x.u.experts.ws = d->moe_ws.p;
        x.u.experts.ws_bytes = d->moe_ws.n;
        return cu_linear_experts(&x.u.experts, s, st);
    case REC_EXPERTS_SUM:
        return cu_experts_sum(&r->u.experts_sum, s, st);
    case REC_MLA_KV:
        return cu_mla_kv(&r->u.mla_kv, s, st);
    case REC_MLA_ATTN:
        return cu_mla_attn(&r->u.mla_attn, s, st);
    case REC_INDEX:
        return cu_index(&r->u.index, s, st);
    case REC_SIGMOID_MUL:
        return cu_sigmoid_mul(&r->u.sigmoid_mul, s, st);
    default:
        return cu_sample(&r->u.sample, s, st);
    }
}

int cu__lone_step(struct dev *d, int n, struct cu_step *s)
{
    struct cu_count c = {.n_row = n, .n_logit = n};
    int rc = cu__grow(d, &d->dev_lone, sizeof c, false);
    *s = (struct cu_step){.count = d->dev_lone.p,
                          .sampled = d->sampled,
                          .row_max = n,
                          .logit_max = n,
                          .split_max = 1};
    if (rc || n == d->lone_n)
        return rc;
    d->lone_n = n;
    return cu__check(
        d, cudaMemcpyAsync(d->dev_lone.p, &c, sizeof c, cudaMemcpyHostToDevice, d->stream),
        "count");
}

static int launch_all(struct dev *d)
{
    int rc = 0;
    struct cu_step lone;
    for (int i = 0; i < d->n_rec && !rc; i++) {
        const struct rec *r = &d->rec[i];
        if (r->lone && (rc = cu__lone_step(d, r->lone, &lone)))
            break;
        rc = cu__launched(d, rec_launch(d, r, r->lone ? &lone : &d->step), names[r->kind]);
    }
    return rc;
}

/* Launch bound of a product's rows. */
static int rows_bound(const struct dev *d, const struct rec *r)
{
    enum cu_rows rows = r->kind == REC_LINEAR ? r->u.linear.rows : r->u.experts.rows;
    return r->lone ? r->lone : rows == CU_ROWS_LOGIT ? d->step.logit_max : d->step.row_max;
}

/* Work space of all records; split-K and attention counters are zero between launches. Growing invalidates graphs. */
static int workspace(struct dev *d)
{
    size_t gemm = 0, attn = 0, flags = 0, moe = 0, cols = 0;
    for (int i = 0; i < d->n_rec; i++) {
        const struct rec *r = &d->rec[i];
        size_t n = 0;
        if (r->kind == REC_LINEAR && !r->u.linear.steady)
            n = cu_linear_ws(r->u.linear.w, rows_bound(d, r));
        gemm = n > gemm ? n : gemm;
        n = 0;
        if (r->kind == REC_LINEAR && r->u.linear.w->col)
            n = (size_t)rows_bound(d, r) * (size_t)cols_ld(&r->u.linear) *
                (r->u.linear.src.dt == CU_F32 ? 4 : 2);
        cols = n > cols ? n : cols;
        n = r->kind == REC_EXPERTS ? cu_experts_ws(&r->u.experts, rows_bound(d, r)) : 0;
        moe = n > moe ? n : moe;
        if (r->kind != REC_ATTN || d->step.split_max < 2)
            continue;
        n = cu_attn_ws(r->u.attn.n_head, r->u.attn.kv->head_dim, d->step.dec_max,
                       d->step.split_max);
        attn = n > attn ? n : attn;
        n = (size_t)cu_attn_flags(r->u.attn.n_head, d->step.dec_max) * sizeof(int32_t);
        flags = n > flags ? n : flags;
    }
    if (gemm > d->ws.n || attn > d->attn_ws.n || flags > d->flags.n || moe > d->moe_ws.n ||
        cols > d->cols.n)
        cu__graphs_drop(d);
    int rc = cu__grow(d, &d->ws, gemm, true);
    if (!rc)
        rc = cu__grow(d, &d->attn_ws, attn, false);
    if (!rc)
        rc = cu__grow(d, &d->moe_ws, moe, false);
    if (!rc)
        rc = cu__grow(d, &d->cols, cols, false);
    return rc ? rc : cu__grow(d, &d->flags, flags, true);
}

/* ---- graphs ---- */

static void graph_close(struct graph *g)
{
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    free(g->key);
    *g = (struct graph){0};
}

void cu__graphs_drop(struct dev *d)
{
    for (int i = 0; i < N_GRAPH; i++)
        graph_close(&d->graph[i]);
}

static bool same_ops(const struct dev *d, const struct graph *g)
{
    return g->exec && g->n_rec == d->n_rec && !memcmp(&g->step, &d->step, sizeof g->step) &&
           !memcmp(g->key, d->rec, (size_t)d->n_rec * sizeof *d->rec);
}

/* The graph of these ops, or the least recently used place for it. */
static struct graph *graph_find(struct dev *d)
{
    struct graph *oldest = &d->graph[0];
    for (int i = 0; i < N_GRAPH; i++) {
        if (same_ops(d, &d->graph[i]))
            return &d->graph[i];
        if (d->graph[i].used < oldest->used)
            oldest = &d->graph[i];
    }
    graph_close(oldest);
    return oldest;
}

static int graph_capture(struct dev *d, struct graph *g)
{
    cudaGraph_t list = NULL;
    g->key = mem_calloc((size_t)d->n_rec, sizeof *g->key);
    if (!g->key)
        return ERR_NOMEM;
    memcpy(g->key, d->rec, (size_t)d->n_rec * sizeof *g->key);
    g->n_rec = d->n_rec;
    g->step = d->step;
    int rc = cu__check(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal),
                       "capture");
    if (rc)
        return rc;
    rc = launch_all(d);
    cudaError_t e = cudaStreamEndCapture(d->stream, &list);
    if (!rc)
        rc = cu__check(d, e, "capture");
    if (!rc)
        rc = cu__check(d, cudaGraphInstantiate(&g->exec, list, 0), "instantiate");
    if (list)
        cudaGraphDestroy(list);
    return rc;
}

static int graph_run(struct dev *d)
{
    struct graph *g = graph_find(d);
    int rc = 0;
    if (!g->exec) {
        rc = graph_capture(d, g);
        if (rc)
            graph_close(g);
    } else {
        d->n_replay++;
    }
    if (rc)
        return rc;
    g->used = ++d->clock;
    return cu__check(d, cudaGraphLaunch(g->exec, d->stream), "graph");
}

int cu__flush(struct dev *d)
{
    int rc = d->failed;
    if (!rc && d->n_rec)
        rc = workspace(d);
    if (!rc && d->n_rec) {
        bool lone = false;
        for (int i = 0; i < d->n_rec; i++)
            lone = lone || d->rec[i].lone;
        bool whole =
            !lone && d->rec[0].kind == REC_EMBED && d->rec[d->n_rec - 1].kind == REC_SAMPLE;
        rc = d->graphs && d->decode_only && whole ? graph_run(d) : launch_all(d);
    }
    d->n_rec = 0;
    return rc;
}
