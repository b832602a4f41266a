/* Image ops: check as every backend does, translate, launch at once (image steps are not captured). What linear and its
 * like recorded before goes first. Segments of rows are uploaded by image_begin. */
#include "cuda/backend_impl.h"
#include "cuda/image.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)IMAGE_ACT_NONE == CU_IM_NONE && (int)IMAGE_ACT_SILU == CU_IM_SILU &&
                   (int)IMAGE_ACT_GELU_TANH == CU_IM_GELU_TANH &&
                   (int)IMAGE_ACT_GELU_ERF == CU_IM_GELU_ERF &&
                   (int)IMAGE_ACT_QUICK_GELU == CU_IM_QUICK_GELU &&
                   (int)IMAGE_ACT_RELU == CU_IM_RELU,
               "values of enum image_act");

#define COL_BYTES (32u << 20) /* of windows at a time: what an L2 cache keeps */
#define CONV_ROWS 128         /* a tile of the products */

/* ---- layouts ---- */

static size_t ints_of(const struct image_meta *m)
{
    size_t n = 0;
    for (int i = 0; i < m->n_layout; i++)
        n += 4 * ((size_t)m->layout[i].n_seg + 1);
    return n;
}

/* start, chunk, h, w of a layout at p; returns behind them. */
static int32_t *layout_fill(const struct image_layout *y, int32_t *p)
{
    int n = y->n_seg;
    int32_t *chunk = p + n + 1;
    memcpy(p, y->start, ((size_t)n + 1) * sizeof *p);
    chunk[0] = 0;
    for (int s = 0; s < n; s++)
        chunk[s + 1] =
            chunk[s] + (y->start[s + 1] - y->start[s] + CU_CHUNK_ROWS - 1) / CU_CHUNK_ROWS;
    p = chunk + n + 1;
    if (y->h) {
        memcpy(p, y->h, (size_t)n * sizeof *p);
        memcpy(p + n + 1, y->w, (size_t)n * sizeof *p);
    }
    return p + 2 * (n + 1);
}

/* Whether the layouts are those that the device has already: their numbers lie at `host`. */
static bool same_layouts(const struct dev *d, const struct image_meta *m, const int32_t *host,
                         size_t n)
{
    const struct cu_im *im = &d->im;
    if (im->n_layout != m->n_layout || im->n_int != n || memcmp(im->host, host, n * sizeof *host))
        return false;
    for (int i = 0; i < m->n_layout; i++)
        if (im->layout[i].n_seg != m->layout[i].n_seg || !im->layout[i].h != !m->layout[i].h)
            return false;
    return true;
}

/* Nothing is known of the device's arrays. */
static void layouts_forget(struct dev *d)
{
    free(d->im.host);
    d->im.host = NULL;
    d->im.n_layout = -1;
    d->im.n_int = 0;
    d->im.meta = (struct image_meta){0};
    for (int i = 0; i < CU_IM_PAIRS; i++)
        d->im.pair[i].valid = false;
}

static int layouts_upload(struct dev *d, const struct image_meta *m, int32_t *host, size_t bytes)
{
    int rc = cu__grow(d, &d->im.ints, bytes + 1, false);
    const int32_t *p = host;
    for (int i = 0; i < m->n_layout && !rc; i++) {
        const struct image_layout *y = &m->layout[i];
        int n = y->n_seg;
        const int32_t *at = (const int32_t *)d->im.ints.p + (p - host);
        d->im.layout[i] = (struct cu_layout){.n_seg = n,
                                             .n_row = y->start[n],
                                             .start = at,
                                             .chunk = at + n + 1,
                                             .h = y->h ? at + 2 * (n + 1) : NULL,
                                             .w = y->h ? at + 3 * (n + 1) : NULL,
                                             .n_chunk = p[2 * n + 1]};
        p += 4 * (n + 1);
    }
    /* the host's memory is pageable: it has been read when the call returns */
    return rc ? rc
              : cu__check(
                    d,
                    cudaMemcpyAsync(d->im.ints.p, host, bytes, cudaMemcpyHostToDevice, d->stream),
                    "layout");
}

int cu__image_begin(struct dev *d, const struct image_meta *m)
{
    int rc = ops_check_image(m) ? ERR_INVAL : cu__flush(d);
    if (rc)
        return rc;
    size_t n = ints_of(m);
    int32_t *host = mem_calloc(n + 1, sizeof *host), *p = host;
    if (!host) {
        layouts_forget(d);
        return ERR_NOMEM;
    }
    for (int i = 0; i < m->n_layout; i++)
        p = layout_fill(&m->layout[i], p);
    d->in_step = false; /* rows are no step's */
    if (d->im.host && same_layouts(d, m, host, n)) {
        free(host);
        d->im.meta = *m;
        return 0;
    }
    layouts_forget(d);
    rc = layouts_upload(d, m, host, n * sizeof *host);
    if (rc) {
        free(host);
        return rc;
    }
    d->im.host = host;
    d->im.n_int = n;
    d->im.n_layout = m->n_layout;
    d->im.meta = *m;
    return 0;
}

static const struct cu_layout *layout_at(const struct dev *d, int i)
{
    return i >= 0 ? &d->im.layout[i] : NULL;
}

/* ---- convolution ---- */

static int conv_windows(struct dev *d, const struct op_conv *a, const struct cu_mat *src,
                        const struct cu_mat *col, int64_t from, int64_t n)
{
    struct cu_im2col w = {.dst = *col,
                          .src = *src,
                          .in = layout_at(d, a->in),
                          .out = layout_at(d, a->out),
                          .from = from,
                          .n = n,
                          .k = a->k,
                          .stride = a->stride,
                          .pad = a->pad,
                          .up = a->up};
    return cu__launched(d, cu_im2col(&w, d->stream), "im2col");
}

/* Rows [from, from + n) of m, or of nothing. */
static struct cu_mat rows_from(struct cu_mat m, int64_t from)
{
    size_t size = m.dt == CU_F32 ? 4 : 2;
    m.p = m.p ? (char *)m.p + (size_t)(from * m.ld) * size : NULL;
    return m;
}

/* l holds all rows of dst, src and what is added; windows, or src itself, go a chunk at a time. */
static int conv_chunks(struct dev *d, const struct op_conv *a, const struct cu_linear *all)
{
    bool plain = a->k == 1 && a->stride == 1 && !a->up;
    int64_t n_in = (int64_t)a->k * a->k * a->src.shape[1], ld = (n_in + 7) / 8 * 8,
            n = layout_at(d, a->out)->n_row;
    size_t row = (size_t)ld * dtype_bytes(cu__mul(d));
    int64_t step = (int64_t)(COL_BYTES / row) / CONV_ROWS * CONV_ROWS;
    step = step < CONV_ROWS ? CONV_ROWS : step;
    step = plain || step > n ? n : step;
    int rc = plain ? 0 : cu__grow(d, &d->im.col, (size_t)step * row, false);
    const struct cu_mat col = {d->im.col.p, ld, (int32_t)cu__mul(d), (int32_t)n_in};
    for (int64_t from = 0; from < n && !rc; from += step) {
        int64_t k = n - from < step ? n - from : step;
        struct cu_linear l = *all;
        struct cu_step s;
        l.dst = rows_from(l.dst, from);
        l.after.add = rows_from(l.after.add, from);
        l.after.row = from;
        if (!plain)
            rc = conv_windows(d, a, &all->src, &col, from, k);
        l.src = plain ? all->src : col;
        if (!rc)
            rc = cu__lone_step(d, (int)k, &s);
        if (!rc)
            rc = cu__launched(d, cu_linear(&l, &s, d->stream), "conv");
    }
    return rc;
}

int cu__conv(struct dev *d, const struct op_conv *a)
{
    const struct cu_layout *out = layout_at(d, a->out);
    struct cu_linear l = {.exact = !d->loose,
                          .wgmma = d->cc == 90,
                          .steady = 1,
                          .lt = d->lt,
                          .ws = d->ws.p,
                          .ws_bytes = d->ws.n};
    if (!a->w || a->w->w.col ||
        ops_check_conv(a, cu__mul(d), &d->im.meta, a->w->w.n_in, a->w->w.n_out) ||
        !cu__mat(d, &a->dst, &l.dst) || !cu__mat(d, &a->src, &l.src) ||
        !cu__mat(d, &a->vec, &l.after.vec) || !cu__mat(d, &a->add, &l.after.add) ||
        !cu__vec(d, &a->bias, &l.bias))
        return ERR_INVAL;
    l.w = &a->w->w;
    l.after.start = out->start;
    l.after.n_seg = out->n_seg;
    int rc = cu__flush(d);
    return rc ? rc : conv_chunks(d, a, &l);
}

/* ---- norms ---- */

int cu__group_norm(struct dev *d, const struct op_group_norm *a)
{
    struct cu_group_norm o = {
        .groups = a->groups, .act = (int32_t)a->act, .eps = a->eps, .y = layout_at(d, a->layout)};
    if (ops_check_group_norm(a, cu__mul(d), &d->im.meta) || !cu__mat(d, &a->dst, &o.dst) ||
        !cu__mat(d, &a->x, &o.x) || !cu__vec(d, &a->w, &o.w) || !cu__vec(d, &a->b, &o.b))
        return ERR_INVAL;
    int rc = cu__flush(d);
    if (!rc)
        rc = cu__grow(d, &d->im.ws, cu_group_norm_ws(o.y, o.x.cols) + 1, false);
    o.ws = d->im.ws.p;
    return rc ? rc : cu__launched(d, cu_group_norm(&o, d->stream), "group_norm");
}

int cu__layer_norm(struct dev *d, const struct op_layer_norm *a)
{
    struct cu_layer_norm o = {.n = a->x.shape[0], .rms = a->rms, .eps = a->eps};
    if (ops_check_layer_norm(a, cu__mul(d), &d->im.meta) || !cu__mat(d, &a->dst, &o.dst) ||
        !cu__mat(d, &a->x, &o.x) || !cu__vec(d, &a->w, &o.w) || !cu__vec(d, &a->b, &o.b) ||
        !cu__mat(d, &a->scale, &o.scale) || !cu__mat(d, &a->shift, &o.shift))
        return ERR_INVAL;
    o.y = layout_at(d, a->layout);
    int rc = cu__flush(d);
    return rc ? rc : cu__launched(d, cu_layer_norm(&o, d->stream), "layer_norm");
}

/* ---- attention ---- */

/* Positions that make the paged kernels see a whole segment (its last position), or causally. */
static void pair_rows(const struct image_layout *q, const struct image_layout *kv, bool causal,
                      int32_t *pos, int32_t *row_seq, struct cu_tile *tile, struct cu_count *c)
{
    for (int s = 0; s < q->n_seg; s++) {
        int from = q->start[s], to = q->start[s + 1], last = kv->start[s + 1] - kv->start[s] - 1;
        for (int i = from; i < to; i++) {
            row_seq[i] = s;
            pos[i] = causal ? i - from : last;
            c->max_pos = pos[i] > c->max_pos ? pos[i] : c->max_pos;
        }
        for (int i = from; i < to; i += CU_TILE_ROWS)
            tile[c->n_tile++] =
                (struct cu_tile){s, i, to - i < CU_TILE_ROWS ? to - i : CU_TILE_ROWS};
    }
}

struct pair_ints { /* offsets in int32 */
    size_t pos, seq, tile, table, block, all;
};

static int pair_upload(struct dev *d, struct cu_im_pair *p, bool causal)
{
    const struct image_layout *q = &d->im.meta.layout[p->q], *kv = &d->im.meta.layout[p->kv];
    size_t n = (size_t)q->start[q->n_seg], n_seg = (size_t)q->n_seg, n_tile = 0, stride = 1;
    for (int s = 0; s < q->n_seg; s++) {
        size_t blocks =
            ((size_t)(kv->start[s + 1] - kv->start[s]) + CU_BLOCK_TOKENS - 1) / CU_BLOCK_TOKENS;
        stride = blocks > stride ? blocks : stride;
        n_tile += ((size_t)(q->start[s + 1] - q->start[s]) + CU_TILE_ROWS - 1) / CU_TILE_ROWS;
    }
    struct pair_ints o = {.pos = sizeof(struct cu_count) / 4};
    o.seq = o.pos + n;
    o.tile = o.seq + n;
    o.table = o.tile + 3 * n_tile;
    o.block = o.table + n_seg * stride;
    o.all = o.block + n_seg;
    int rc = cu__grow(d, &p->ints, o.all * sizeof(int32_t), false);
    int32_t *h = rc ? NULL : mem_calloc(o.all, sizeof *h), *v = p->ints.p;
    if (!h)
        return rc ? rc : ERR_NOMEM;
    struct cu_count c = {.n_row = (int32_t)n, .n_seq = (int32_t)n_seg};
    pair_rows(q, kv, causal, h + o.pos, h + o.seq, (struct cu_tile *)(void *)(h + o.tile), &c);
    memcpy(h, &c, sizeof c);
    p->n_block = 1;
    for (size_t s = 0; s < n_seg; s++) {
        h[o.block + s] = p->n_block;
        int blocks = (kv->start[s + 1] - kv->start[s] + CU_BLOCK_TOKENS - 1) / CU_BLOCK_TOKENS;
        for (int i = 0; i < blocks; i++)
            h[o.table + s * stride + (size_t)i] = p->n_block++;
    }
    p->block = v + o.block;
    p->step = (struct cu_step){.count = (const struct cu_count *)(const void *)v,
                               .pos = v + o.pos,
                               .row_seq = v + o.seq,
                               .block_table = v + o.table,
                               .tile = (const struct cu_tile *)(const void *)(v + o.tile),
                               .block_stride = (int32_t)stride,
                               .row_max = (int32_t)n,
                               .tile_max = (int32_t)n_tile,
                               .split_max = c.max_pos / CU_SPLIT_TOKENS + 1};
    rc = cu__check(d, cudaMemcpyAsync(v, h, o.all * sizeof *h, cudaMemcpyHostToDevice, d->stream),
                   "attend");
    free(h); /* pageable: it has been read */
    p->valid = !rc;
    return rc;
}

/* Row tables of two layouts, made once while the layouts stay. */
static int pair_find(struct dev *d, const struct op_attend *a, struct cu_im_pair **out)
{
    for (int i = 0; i < CU_IM_PAIRS; i++) {
        struct cu_im_pair *p = &d->im.pair[i];
        *out = p;
        if (p->valid && p->q == a->q_layout && p->kv == a->kv_layout && p->causal == a->causal)
            return 0;
    }
    struct cu_im_pair *p = *out = &d->im.pair[d->im.next_pair++ % CU_IM_PAIRS];
    p->valid = false;
    p->q = a->q_layout;
    p->kv = a->kv_layout;
    p->causal = a->causal;
    return pair_upload(d, p, a->causal);
}

static int attend_bias(struct dev *d, const struct op_attend *a, struct cu_attend_bias *o)
{
    o->n_head = a->n_head;
    o->n_kv_head = a->n_kv_head;
    o->head_dim = a->head_dim;
    o->causal = a->causal;
    o->bias_cols = a->bias_cols;
    o->window = a->window;
    const struct image_layout *kv = &d->im.meta.layout[a->kv_layout];
    for (int s = 0; a->window && s < kv->n_seg; s++) {
        int n = kv->start[s + 1] - kv->start[s];
        o->bias_cols = n > o->bias_cols ? n : o->bias_cols;
    }
    o->scale = a->scale;
    o->ql = layout_at(d, a->q_layout);
    o->kl = layout_at(d, a->kv_layout);
    return cu__launched(d, cu_attend_bias(o, d->stream), "attend");
}

/* Heads padded to what tensor cores take, on the way in and out; hd == head_dim: nothing to do. */
static int pad(struct dev *d, struct cu_mat *m, struct grow *g, const struct op_attend *a, int hd,
               bool copy)
{
    int64_t n = a->q.shape[0], cols = (int64_t)a->n_head * hd;
    size_t b = m->dt == CU_F32 ? 4 : 2;
    int rc = cu__grow(d, g, (size_t)(n * cols) * b + 1, false);
    struct cu_mat wide = {g->p, cols, m->dt, (int32_t)cols};
    if (!rc && copy)
        rc = cu__launched(d,
                          cu_pad_heads(&(struct cu_pad_heads){.dst = wide,
                                                              .src = *m,
                                                              .n = n,
                                                              .n_head = a->n_head,
                                                              .from = a->head_dim,
                                                              .to = hd},
                                       d->stream),
                          "pad_heads");
    *m = wide;
    return rc;
}

/* The kernels on tensor cores read and write two values at a time. */
static bool pairs_aligned(const struct cu_mat *q, const struct cu_mat *dst)
{
    return (uintptr_t)q->p % 8 == 0 && q->ld % 2 == 0 && (uintptr_t)dst->p % 8 == 0 &&
           dst->ld % 2 == 0;
}

static int attend_paged(struct dev *d, const struct op_attend *a, const struct cu_attend_bias *m)
{
    struct cu_im_pair *p;
    int hd = a->head_dim, rc = pair_find(d, a, &p);
    if (rc)
        return rc;
    if (!d->f32 && hd <= 512)
        hd = d->cc == 90 && hd <= 128 ? (hd + 63) / 64 * 64 : (hd + 15) / 16 * 16;
    bool widen = hd != a->head_dim || !pairs_aligned(&m->q, &m->dst);
    struct cu_kv kv = {.n_layer = 1,
                       .n_kv_head = a->n_kv_head,
                       .head_dim = hd,
                       .n_block = p->n_block,
                       .dt = (int32_t)cu__mul(d)};
    rc = cu__grow(d, &d->im.pool, cu_kv_layer_block_bytes(&kv) * (size_t)kv.n_block, false);
    kv.p = d->im.pool.p;
    if (!rc)
        rc = cu__launched(d,
                          cu_pack_kv(&(struct cu_pack_kv){.k = m->k,
                                                          .v = m->v,
                                                          .head_dim = a->head_dim,
                                                          .kv = &kv,
                                                          .l = layout_at(d, a->kv_layout),
                                                          .block = p->block},
                                     d->stream),
                          "pack_kv");
    struct cu_attn o = {.dst = m->dst,
                        .qkv = m->q,
                        .n_head = a->n_head,
                        .scale = a->scale,
                        .kv = &kv,
                        .wide = d->wide,
                        .wgmma = d->cc == 90}; /* no row decodes: equal bits without `exact` */
    if (!rc && widen) {
        rc = pad(d, &o.qkv, &d->im.q, a, hd, true);
        if (!rc)
            rc = pad(d, &o.dst, &d->im.out, a, hd, false);
    }
    o.qkv.cols = (a->n_head + 2 * a->n_kv_head) * hd; /* only q is read */
    if (!rc)
        rc = cu__launched(d, cu_attn(&o, &p->step, d->stream), "attend");
    if (rc || !widen)
        return rc;
    return cu__launched(d,
                        cu_pad_heads(&(struct cu_pad_heads){.dst = m->dst,
                                                            .src = o.dst,
                                                            .n = a->q.shape[0],
                                                            .n_head = a->n_head,
                                                            .from = hd,
                                                            .to = a->head_dim},
                                     d->stream),
                        "pad_heads");
}

int cu__attend(struct dev *d, const struct op_attend *a)
{
    struct cu_attend_bias o = {0};
    if (ops_check_attend(a, cu__mul(d), &d->im.meta) || !cu__mat(d, &a->dst, &o.dst) ||
        !cu__mat(d, &a->q, &o.q) || !cu__mat(d, &a->k, &o.k) || !cu__mat(d, &a->v, &o.v) ||
        !cu__mat(d, &a->bias, &o.bias))
        return ERR_INVAL;
    int rc = cu__flush(d);
    if (rc || a->q.shape[0] == 0)
        return rc;
    return o.bias.p || a->window ? attend_bias(d, a, &o) : attend_paged(d, a, &o);
}

/* ---- rows ---- */

int cu__rotate(struct dev *d, const struct op_rotate *a)
{
    struct cu_rotate o = {.n = a->x.shape[0],
                          .n_head = a->n_head,
                          .head_dim = a->head_dim,
                          .style = (int32_t)a->style,
                          .eps = a->eps};
    if (ops_check_rotate(a) || !cu__mat(d, &a->x, &o.x) || !cu__mat(d, &a->cos, &o.cos) ||
        !cu__mat(d, &a->sin, &o.sin) || !cu__vec(d, &a->norm, &o.norm))
        return ERR_INVAL;
    int rc = cu__flush(d);
    return rc ? rc : cu__launched(d, cu_rotate(&o, d->stream), "rotate");
}

int cu__act(struct dev *d, const struct op_act *a)
{
    struct cu_act o = {.n = a->x.shape[0], .act = (int32_t)a->act};
    if (ops_check_act(a, cu__mul(d)) || !cu__mat(d, &a->dst, &o.dst) || !cu__mat(d, &a->x, &o.x))
        return ERR_INVAL;
    int rc = cu__flush(d);
    return rc ? rc : cu__launched(d, cu_act(&o, d->stream), "act");
}

int cu__gate_add(struct dev *d, const struct op_gate_add *a)
{
    struct cu_gate_add o = {.n = a->x.shape[0], .factor = a->factor};
    if (ops_check_gate_add(a, &d->im.meta) || !cu__mat(d, &a->x, &o.x) ||
        !cu__mat(d, &a->y, &o.y) || !cu__mat(d, &a->gate, &o.gate))
        return ERR_INVAL;
    o.l = layout_at(d, a->layout);
    int rc = cu__flush(d);
    return rc ? rc : cu__launched(d, cu_gate_add(&o, d->stream), "gate_add");
}

/* Rows of a table: the embedding kernel with ids of the caller's. Their range is the caller's to check. */
static int rows_of_table(struct dev *d, const struct cu_mat *dst, const struct dev_weight *w,
                         const int32_t *ids, int n)
{
    struct cu_step s;
    int rc = cu__lone_step(d, n, &s);
    s.tok = ids;
    struct cu_embed e = {.dst = *dst, .w = &w->w, .scale = 1};
    return rc ? rc : cu__launched(d, cu_embed(&e, &s, d->stream), "lookup");
}

int cu__lookup(struct dev *d, const struct op_lookup *a)
{
    struct cu_mat dst = {0};
    int64_t n = a->dst.shape[0], cols = a->dst.shape[1];
    if (!a->w || ops_check_lookup(a, a->w->w.n_in, a->w2 ? a->w2->w.n_in : 0) ||
        !cu__mat(d, &a->dst, &dst))
        return ERR_INVAL;
    const int32_t *ids = cu__ptr(d, &a->ids), *pos = a->w2 ? cu__ptr(d, &a->pos) : NULL;
    if (!ids || (a->w2 && !pos))
        return ERR_INVAL;
    int rc = cu__flush(d);
    if (!rc && n)
        rc = rows_of_table(d, &dst, a->w, ids, (int)n);
    if (rc || !a->w2 || !n ||
        (rc = cu__grow(d, &d->im.ws, (size_t)(n * cols) * sizeof(float), false)))
        return rc;
    struct cu_mat more = {d->im.ws.p, cols, CU_F32, (int32_t)cols};
    rc = rows_of_table(d, &more, a->w2, pos, (int)n);
    struct cu_gate_add add = {.x = dst, .y = more, .n = n, .factor = 1};
    return rc ? rc : cu__launched(d, cu_gate_add(&add, d->stream), "lookup");
}

void cu__image_close(struct dev *d)
{
    free(d->im.host);
    struct grow *g[] = {&d->im.ints, &d->im.col, &d->im.ws, &d->im.pool, &d->im.q, &d->im.out};
    for (size_t i = 0; i < sizeof g / sizeof *g; i++)
        cudaFree(g[i]->p);
    for (int i = 0; i < CU_IM_PAIRS; i++)
        cudaFree(d->im.pair[i].ints.p);
}
