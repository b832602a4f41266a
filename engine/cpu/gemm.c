/* See gemm.h. Packs weights, converts activations, and splits a product into tasks; knows no ISA. A split
 * never cuts the reduction, so results do not depend on it. */
#include "engine/base/mem.h"
#include "engine/cpu/gemm_impl.h"

#define N_IN_MAX   (1 << 26)
#define FIXED_N_IN (1 << 16) /* sums of more could overflow */

struct part {
    enum gemm_layout layout;
    enum quant_fmt fmt;
    const uint8_t *data; /* while packing */
    size_t row_bytes, panel_bytes;
    int64_t n_out, col, n_panel;
    uint8_t *panel;
    gemm_fn *fn;
    bool floats; /* fn reads the activations as they are */
};

struct cpu_packed {
    const struct cpu_gemm_kern *k;
    int64_t n_in, n_out;
    int n_part;
    struct part part[3];
    const struct gemm_bf16_kern *bf16; /* for its bf16 parts, or NULL */
    /* The converted activations that kernels read. */
    bool want_xb, want_xs32, want_xs16, want_int8, want_fixed;
    void *mem; /* NULL when a slab owns it */
};

static int part_init(struct part *p, const struct weight_desc *w, int i, int lanes, struct err *e)
{
    const struct weight_part *src = &w->part[i];
    const struct quant_format *f = quant_format_get((uint32_t)src->fmt);
    p->layout = gemm__layout(src->fmt);
    if (!f || p->layout == GL_N)
        return err_set(e, ERR_UNSUPPORTED, "%s: weight format %d is not known", w->name,
                       (int)src->fmt);
    int align = f->block_len > GEMM_CHUNK ? f->block_len : GEMM_CHUNK;
    if (w->n_in <= 0 || w->n_in > N_IN_MAX || w->n_in % align)
        return err_set(e, ERR_INVAL, "%s: row length %lld is not a multiple of %d for %s", w->name,
                       (long long)w->n_in, align, f->name);
    if (src->n_out <= 0 || src->n_out > INT32_MAX || !quant_row_bytes(f, w->n_in, &p->row_bytes))
        return err_set(e, ERR_INVAL, "%s: %lld rows are not in 1..%d", w->name,
                       (long long)src->n_out, INT32_MAX);
    p->fmt = src->fmt;
    p->data = src->data;
    p->n_out = src->n_out;
    p->n_panel = (src->n_out + lanes - 1) / lanes;
    p->panel_bytes = gemm__panel_bytes(p->layout, w->n_in, lanes);
    return 0;
}

/* Parts and sizes; no memory yet. */
static int packed_init(struct cpu_packed *o, const struct weight_desc *w, int lanes, size_t *bytes,
                       struct err *e)
{
    if (w->n_part < 1 || w->n_part > 3)
        return err_set(e, ERR_INVAL, "%s: %d parts are not in 1..3", w->name, w->n_part);
    *bytes = 0;
    o->n_in = w->n_in;
    o->n_part = w->n_part;
    for (int i = 0; i < w->n_part; i++) {
        int rc = part_init(&o->part[i], w, i, lanes, e);
        if (rc)
            return rc;
        size_t n;
        if (!ck_mul((size_t)o->part[i].n_panel, o->part[i].panel_bytes, &n) ||
            !ck_add(*bytes, n, bytes))
            return err_set(e, ERR_NOMEM, "%s: too large", w->name);
        o->part[i].col = o->n_out;
        o->n_out += o->part[i].n_out;
    }
    return 0;
}

/* Zen 4 multiplies 32 pairs of bf16 in the time of 16 of f32; elsewhere, without tiles, both take as long. */
const struct gemm_bf16_kern *gemm__bf16(const struct cpu_gemm_kern *k)
{
    const bool fast = k->fixed || (k->lanes == 16 && __builtin_cpu_supports("avx512bf16") &&
                                   __builtin_cpu_is("amd"));
    return fast ? k->bf16 : NULL;
}

bool cpu_gemm_prefers_bf16(const struct cpu_gemm_kern *k)
{
    return gemm__bf16(k) != NULL;
}

/* Tasks in the order of a product's (gemm_task): on several nodes of memory a panel is written first where it is read. */
struct pack_job {
    struct cpu_packed *w;
    int64_t per_task; /* panels */
};

static int pack_tasks(const struct pack_job *j, const struct part *p)
{
    return (int)((p->n_panel + j->per_task - 1) / j->per_task);
}

static void pack_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct pack_job *j = arg;
    const struct part *p = j->w->part;
    for (int n; task >= (n = pack_tasks(j, p)); p++)
        task -= n;
    const int lanes = j->w->k->lanes;
    int64_t at = task * j->per_task,
            end = at + j->per_task < p->n_panel ? at + j->per_task : p->n_panel;
    for (; at < end; at++) {
        int64_t row = at * lanes, n = p->n_out - row;
        gemm__panel_pack(p->panel + (size_t)at * p->panel_bytes, lanes, p->fmt, j->w->n_in,
                         p->data + (size_t)row * p->row_bytes, p->row_bytes,
                         n < lanes ? (int)n : lanes);
        const struct gemm_fixed_kern *f = j->w->k->fixed;
        if (f && f->finish[p->layout])
            f->finish[p->layout](p->panel + (size_t)at * p->panel_bytes, p->panel_bytes,
                                 j->w->n_in);
    }
}

/* Rows in bf16 lie where those in integers would: beside a part that wants the latter, bf16 weights are multiplied in f32. */
static const struct gemm_bf16_kern *weight_bf16(const struct cpu_packed *o)
{
    for (int i = 0; i < o->n_part; i++)
        if (o->k->int8 && o->part[i].layout != GL_BF16)
            return NULL;
    return gemm__bf16(o->k);
}

/* Choose the part's kernel, and note which activations it reads. */
static void part_kernel(struct cpu_packed *o, struct part *q, enum eng_precision p)
{
    const struct cpu_gemm_kern *k = o->k;
    const struct gemm_spec s = gemm__spec(q->layout);
    const bool bf16 = q->layout == GL_BF16 && o->bf16;
    q->fn = k->exact[q->layout];
    q->floats = true;
    if (p != PRECISION_F32 && k->fixed && k->fixed->fn[q->layout] && o->n_in <= FIXED_N_IN) {
        q->fn = k->fixed->fn[q->layout];
        q->floats = false;
        o->want_fixed = true;
        return;
    }
    const bool as_int8 =
        k->int8 && (p == PRECISION_INT8 || (p == PRECISION_DEFAULT && !k->fast[q->layout]));
    if (as_int8 && k->int8->fn[q->layout]) {
        q->fn = k->int8->fn[q->layout];
        const bool vnni = k->lanes == 16 ? __builtin_cpu_supports("avx512vnni")
                                         : __builtin_cpu_supports("avxvnni");
        if (k->int8->vnni[q->layout] && vnni)
            q->fn = k->int8->vnni[q->layout];
        o->want_int8 = true;
        q->floats = false;
    } else if (k->fast[q->layout] &&
               (p == PRECISION_DEFAULT || (p == PRECISION_INT8 && (bf16 || !k->int8)))) {
        q->fn = bf16 ? o->bf16->fn : k->fast[q->layout];
        q->floats = !bf16;
        o->want_xb = o->want_xb || bf16;
    } else { /* f32, and what has no such kernel beside 8-bit activations */
        return;
    }
    o->want_xs32 = o->want_xs32 || (s.has_min && s.group == 32);
    o->want_xs16 = o->want_xs16 || (s.has_min && s.group == 16);
}

int cpu_packed_open(struct cpu_packed **out, const struct cpu_gemm_kern *k, enum eng_precision p,
                    const struct weight_desc *w, struct cpu_pool *pool, struct err *e)
{
    return cpu_packed_open_in(out, k, p, w, pool, NULL, e);
}

int cpu_packed_open_in(struct cpu_packed **out, const struct cpu_gemm_kern *k, enum eng_precision p,
                       const struct weight_desc *w, struct cpu_pool *pool, struct cpu_slab **slab,
                       struct err *e)
{
    struct cpu_packed *o = mem_calloc(1, sizeof *o);
    if (!o)
        return err_set(e, ERR_NOMEM, "%s: out of memory", w->name);
    o->k = k;
    size_t bytes, total;
    int rc = packed_init(o, w, k->lanes, &bytes, e);
    if (rc)
        goto out;
    /* Not zeroed: the packing tasks touch the pages first, on all workers. */
    void *mem = NULL;
    if (slab)
        mem = cpu_slab_take(slab, bytes);
    else if (ck_add(bytes, 64, &total))
        mem = o->mem = mem_alloc(total);
    if (!mem) {
        rc = err_set(e, ERR_NOMEM, "%s: %zu bytes for the packed weight can't be had", w->name,
                     bytes);
        goto out;
    }
    uint8_t *at = (uint8_t *)gemm_pad64((uintptr_t)mem);
    o->bf16 = weight_bf16(o);
    for (int i = 0; i < o->n_part; i++) {
        struct part *q = &o->part[i];
        q->panel = at;
        at += (size_t)q->n_panel * q->panel_bytes;
        part_kernel(o, q, p);
    }
    struct pack_job job = {o, 1 + (64 << 10) / gemm__panel_cost(o)};
    int n = 0;
    for (int i = 0; i < o->n_part; i++)
        n += pack_tasks(&job, &o->part[i]);
    cpu_pool_run(pool, pack_task, &job, n);
    for (int i = 0; i < o->n_part; i++)
        o->part[i].data = NULL; /* the file may be unmapped now */
    *out = o;
    return 0;
out:
    cpu_packed_close(o);
    return rc;
}

void cpu_packed_close(struct cpu_packed *w)
{
    if (!w)
        return;
    free(w->mem);
    free(w);
}

int64_t cpu_packed_n_out(const struct cpu_packed *w)
{
    return w->n_out;
}

int64_t cpu_packed_n_in(const struct cpu_packed *w)
{
    return w->n_in;
}

size_t cpu_packed_bytes(const struct weight_desc *w, enum eng_precision p)
{
    (void)p; /* all precisions read the same packing */
    struct cpu_packed o = {0};
    size_t bytes;
    return packed_init(&o, w, 16, &bytes, NULL) ? 0 : bytes + 64 + sizeof o;
}

/* ---- scratch: [xb or xq][sx][minus32][minus16][xs32][xs16][fixed point][worker buffers] ---- */

/* Steps of 64 values of two bytes; one row alone has room for four. */
static size_t fixed_row_bytes(int64_t n_in)
{
    return gemm_pad64((size_t)n_in) * 2;
}

struct gemm_scratch gemm__scratch_plan(int64_t m, int64_t n_in, int n_threads)
{
    const size_t rows = (size_t)((m + GEMM_ROWS - 1) / GEMM_ROWS) * GEMM_ROWS;
    const size_t each = rows * (size_t)n_in; /* a multiple of 512 */
    struct gemm_scratch s;
    s.sx = each * 2;
    s.minus32 = s.sx + each / 8;
    s.minus16 = s.minus32 + each / 8;
    s.xs32 = s.minus16 + each / 4;
    s.xs16 = s.xs32 + each / 8;
    s.one = m == 1;
    s.fixed = s.xs16 + each / 4;
    s.wbuf = s.fixed + rows * fixed_row_bytes(n_in);
    s.wbuf_each = gemm_pad64(gemm_wbuf_bytes(n_in));
    s.total = s.wbuf + s.wbuf_each * (size_t)n_threads;
    return s;
}

size_t cpu_gemm_scratch(const struct cpu_gemm_kern *k, int64_t m, int64_t n_in, int n_threads)
{
    (void)k;
    return gemm__scratch_plan(m, n_in, n_threads).total;
}

/* ---- the product ---- */

struct gemm_job {
    const struct cpu_gemm_args *a;
    struct gemm_scratch s;
    struct gemm_cut cut;
    int64_t rows;   /* a task's at most; a multiple of GEMM_ROWS */
    int n_row_task; /* tasks along the rows */
};

bool gemm__reads_floats(const struct cpu_packed *w)
{
    bool any = false;
    for (int i = 0; i < w->n_part; i++)
        any = any || w->part[i].floats;
    return any;
}

bool gemm__wants_whole(const struct cpu_packed *w)
{
    return w->want_fixed;
}

bool gemm__wants_prep(const struct cpu_packed *w)
{
    return w->want_fixed || w->want_xb || w->want_xs32 || w->want_xs16 || w->want_int8;
}

void gemm__prep_cols(const struct cpu_packed *w, const struct gemm_scratch *s, void *scratch,
                     const struct gemm_prep *of, int64_t row, int64_t col)
{
    const int64_t n_in = w->n_in, n_row = of->n_row, chunk = col / GEMM_CHUNK;
    const int64_t sum32 = row * (n_in / 32) + chunk * GEMM_ROWS;
    const int64_t sum16 = row * (n_in / 16) + chunk * 2 * GEMM_ROWS;
    uint8_t *base = scratch;
    struct gemm_prep p = *of;
    p.xb = w->want_xb ? (uint16_t *)base + row * n_in + col * n_row : NULL;
    p.xs32 = w->want_xs32 ? (float *)(base + s->xs32) + sum32 : NULL;
    p.xs16 = w->want_xs16 ? (float *)(base + s->xs16) + sum16 : NULL;
    p.xq = (int8_t *)base + (row * n_in + col * n_row) * 2;
    p.sx = (float *)(base + s->sx) + sum32;
    p.minus32 = (int32_t *)(base + s->minus32) + sum32;
    p.minus16 = (int32_t *)(base + s->minus16) + sum16;
    if (w->want_int8)
        w->k->int8->prep(&p);
    else if (w->want_xb)
        w->bf16->prep(&p);
    if (!w->want_fixed)
        return;
    p.one = s->one;
    p.xq = (int8_t *)base + s->fixed + (size_t)row * fixed_row_bytes(n_in);
    w->k->fixed->prep(&p);
}

void gemm__prep(const struct cpu_packed *w, const struct gemm_scratch *s, void *scratch,
                int64_t row, const float *x, int64_t ldx, int n_row)
{
    const struct gemm_prep p = {.x = x, .ldx = ldx, .n_in = w->n_in, .n_row = n_row};
    gemm__prep_cols(w, s, scratch, &p, row, 0);
}

static void prep_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct gemm_job *j = arg;
    const struct cpu_gemm_args *a = j->a;
    const int64_t row = (int64_t)task * GEMM_ROWS, left = a->m - row;
    const int64_t n = left < GEMM_ROWS ? left : GEMM_ROWS;
    if (a->make)
        a->make(a->make_arg, row, n);
    if (gemm__wants_prep(a->w))
        gemm__prep(a->w, &j->s, a->scratch, row, a->x + row * a->ldx, a->ldx, (int)n);
}

static void part_run(const struct part *p, const struct gemm_piece *q, int64_t panel, int n_panel)
{
    const struct cpu_packed *w = q->w;
    const struct gemm_scratch *s = q->s;
    const int64_t col = panel * w->k->lanes, row = q->row;
    const int group = gemm__spec(p->layout).group;
    const uint8_t *base = q->scratch;
    struct gemm_call c = {
        .panel = p->panel + (size_t)panel * p->panel_bytes,
        .panel_bytes = p->panel_bytes,
        .n_panel = n_panel,
        .n_out = p->n_out - col,
        .n_in = w->n_in,
        .m = q->m,
        .x = q->x,
        .ldx = q->ldx,
        .xb = (const uint16_t *)(const void *)base + row * w->n_in,
        .xq = w->want_fixed
                  ? (const int8_t *)base + s->fixed + (size_t)row * fixed_row_bytes(w->n_in)
                  : (const int8_t *)base + row * w->n_in * 2,
        .sx = (const float *)(const void *)(base + s->sx) + row * (w->n_in / 32),
        .minus32 = (const int32_t *)(const void *)(base + s->minus32) + row * (w->n_in / 32),
        .minus16 = (const int32_t *)(const void *)(base + s->minus16) + row * (w->n_in / 16),
        .one = s->one,
        .y = q->y + (p->col + col - q->col),
        .ldy = q->ldy,
        .bias = q->bias ? q->bias + p->col + col : NULL,
        .wbuf = q->wbuf,
    };
    if (group)
        c.xs = (const float *)(const void *)(base + (group == 32 ? s->xs32 : s->xs16)) +
               row * (w->n_in / group);
    p->fn(&c);
}

void gemm__piece(const struct gemm_piece *q)
{
    int64_t first = 0; /* panel of the part in all */
    for (int i = 0; i < q->w->n_part; first += q->w->part[i++].n_panel) {
        const struct part *p = &q->w->part[i];
        int64_t from = q->from > first ? q->from - first : 0, to = q->to - first;
        to = to < p->n_panel ? to : p->n_panel;
        if (from < to)
            part_run(p, q, from, (int)(to - from));
    }
}

int64_t gemm__panel_cost(const struct cpu_packed *w)
{
    int64_t n_panel = 0, bytes = 0;
    for (int i = 0; i < w->n_part; i++) {
        n_panel += w->part[i].n_panel;
        bytes += w->part[i].n_panel * (int64_t)w->part[i].panel_bytes;
    }
    return bytes / n_panel;
}

/* With few rows memory is the limit, and every place where a thread begins to read costs a wait for it: one long task a thread
 * first, of three quarters together, then short ones that even out the cores. */
#define FEW_ROWS 8

static void gemm_task(void *arg, int task, int worker)
{
    const struct gemm_job *j = arg;
    const struct cpu_gemm_args *a = j->a;
    const int range = task / j->n_row_task;
    const int64_t row = task % j->n_row_task * j->rows, m = a->m - row;
    gemm__piece(&(struct gemm_piece){.w = a->w,
                                     .s = &j->s,
                                     .scratch = a->scratch,
                                     .row = row,
                                     .m = m < j->rows ? m : j->rows,
                                     .x = a->x + row * a->ldx,
                                     .ldx = a->ldx,
                                     .y = a->y + row * a->ldy,
                                     .ldy = a->ldy,
                                     .bias = a->bias,
                                     .from = j->cut.from[range],
                                     .to = j->cut.from[range + 1],
                                     .wbuf = (uint8_t *)a->scratch + j->s.wbuf +
                                             (size_t)worker * j->s.wbuf_each});
}

bool gemm__one_node(const struct cpu_pool *pool)
{
    return cpu_pool_node(pool, cpu_pool_threads(pool) - 1) == 0;
}

void gemm__cut(struct gemm_cut *c, int64_t n_panel, int64_t unit, const struct cpu_pool *pool,
               int64_t m)
{
    const int n_thread = cpu_pool_threads(pool);
    const int64_t least = (n_panel / (GEMM_CUT_MAX / 2) + unit - 1) / unit * unit;
    /* A node's share of tasks is its share of panels. */
    const int64_t same = gemm__one_node(pool) ? 0 : n_panel / (6 * n_thread) / unit * unit + unit;
    const int64_t first = m <= FEW_ROWS ? n_panel * 3 / (4 * n_thread) / unit * unit : 0;
    int64_t at = 0;
    for (c->n = 0; at < n_panel; c->n++) {
        const int64_t left = n_panel - at;
        int64_t n = left / (2 * n_thread) / unit * unit;
        if (same || (c->n < n_thread && first))
            n = same ? same : first;
        n = n < least ? least : n;
        n = n < unit ? unit : n;
        c->from[c->n] = (int32_t)at;
        at = n < left && c->n + 1 < GEMM_CUT_MAX ? at + n : n_panel;
    }
    c->from[c->n] = (int32_t)n_panel;
}

int64_t gemm__least(const struct cpu_packed *w, int64_t m)
{
    const int64_t n = (16 << 10) / (gemm__panel_cost(w) * (m < 8 ? m : 8));
    if (m <= FEW_ROWS)
        return 2 * (n / 2 + 1);
    return n < 4 ? 4 : (n + 3) / 4 * 4; /* kernels like quads */
}

int gemm__lanes(const struct cpu_packed *w)
{
    return w->k->lanes;
}

int64_t gemm__panel_at(const struct cpu_packed *w, int64_t col)
{
    int64_t first = 0;
    for (int i = 0; i < w->n_part; first += w->part[i++].n_panel) {
        const int64_t at = col - w->part[i].col;
        if (at >= 0 && at < w->part[i].n_out)
            return at % w->k->lanes ? -1 : first + at / w->k->lanes;
    }
    return -1;
}

/* ---- many rows of bf16: a task converts its own rows, which stay in its cache ---- */

#define OWN_BYTES (512 << 10) /* of converted rows */
#define OWN_MIN   32
/* Every task reads all weights: they must stay in its cache, too. */
#define OWN_WEIGHTS (1 << 20)

struct own_job {
    const struct cpu_gemm_args *a;
    int64_t rows;
    uint8_t *wbuf;
    size_t wbuf_each;
};

static void own_task(void *arg, int task, int worker)
{
    const struct own_job *j = arg;
    const struct cpu_gemm_args *a = j->a;
    const int64_t row = (int64_t)task * j->rows, n_in = a->w->n_in;
    const int64_t m = a->m - row < j->rows ? a->m - row : j->rows;
    uint16_t *xb = (uint16_t *)a->scratch + (int64_t)worker * j->rows * n_in;
    for (int64_t at = 0; at < m; at += GEMM_ROWS) {
        const int64_t n = m - at < GEMM_ROWS ? m - at : GEMM_ROWS;
        if (a->make)
            a->make(a->make_arg, row + at, n);
        a->w->bf16->prep(&(struct gemm_prep){.x = a->x + (row + at) * a->ldx,
                                             .ldx = a->ldx,
                                             .n_in = n_in,
                                             .n_row = (int)n,
                                             .xb = xb + at * n_in});
    }
    cpu_gemm_block(&(struct cpu_gemm_block){.w = a->w,
                                            .rows = xb,
                                            .m = m,
                                            .y = a->y + row * a->ldy,
                                            .ldy = a->ldy,
                                            .bias = a->bias,
                                            .to = cpu_gemm_panels(a->w),
                                            .wbuf = j->wbuf + (size_t)worker * j->wbuf_each});
}

/* false: too few rows for that. */
static bool gemm_own(struct cpu_pool *pool, const struct cpu_gemm_args *a,
                     const struct gemm_scratch *s)
{
    const int64_t n_thread = cpu_pool_threads(pool), n_in = a->w->n_in;
    int64_t rows = OWN_BYTES / (n_in * 2) / GEMM_ROWS * GEMM_ROWS;
    int64_t even = a->m / (3 * n_thread) / GEMM_ROWS * GEMM_ROWS;
    rows = rows < even ? rows : even;
    rows = rows < GEMM_ROWS_MAX ? rows : GEMM_ROWS_MAX;
    if (rows < OWN_MIN || cpu_gemm_form(a->w) != CPU_GEMM_BF16 ||
        cpu_gemm_panels(a->w) * gemm__panel_cost(a->w) > OWN_WEIGHTS)
        return false;
    struct own_job j = {a, rows, (uint8_t *)a->scratch + s->wbuf, s->wbuf_each};
    cpu_pool_run(pool, own_task, &j, (int)((a->m + rows - 1) / rows));
    return true;
}

void gemm__prep_all(struct cpu_pool *pool, const struct cpu_gemm_args *a)
{
    struct gemm_job j = {.a = a, .s = gemm__scratch_plan(a->m, a->w->n_in, cpu_pool_threads(pool))};
    const int n = (int)((a->m + GEMM_ROWS - 1) / GEMM_ROWS);
    if (!gemm__wants_prep(a->w) && !a->make)
        return;
    if (n == 1) /* cheaper to convert than to hand over */
        prep_task(&j, 0, 0);
    else
        cpu_pool_run(pool, prep_task, &j, n);
}

void cpu_gemm(struct cpu_pool *pool, const struct cpu_gemm_args *a)
{
    const struct cpu_packed *w = a->w;
    if (a->m <= 0)
        return;
    const int n_thread = cpu_pool_threads(pool);
    struct gemm_job j = {.a = a, .s = gemm__scratch_plan(a->m, w->n_in, n_thread)};
    if (!a->ready && gemm_own(pool, a, &j.s))
        return;
    if (!a->ready)
        gemm__prep_all(pool, a);
    /* A task's activations stay in the second-level cache: of 2 MB with tiles, half of that elsewhere. */
    const int64_t most = w->k->fixed ? 256 : 128;
    j.rows = a->m < most ? (a->m + GEMM_ROWS - 1) / GEMM_ROWS * GEMM_ROWS : most;
    j.n_row_task = (int)((a->m + j.rows - 1) / j.rows);
    gemm__cut(&j.cut, cpu_gemm_panels(w), gemm__least(w, a->m), pool, a->m);
    cpu_pool_run(pool, gemm_task, &j, j.cut.n * j.n_row_task);
}

/* ---- blocks of rows that the caller makes ---- */

enum cpu_gemm_form cpu_gemm_form(const struct cpu_packed *w)
{
    if (w->want_int8 || w->want_fixed || w->want_xs32 || w->want_xs16)
        return CPU_GEMM_OWN;
    bool bf16 = w->want_xb, all = true;
    for (int i = 0; i < w->n_part; i++)
        all = all && w->part[i].layout == GL_BF16;
    return !bf16 ? CPU_GEMM_F32 : all ? CPU_GEMM_BF16 : CPU_GEMM_OWN;
}

void cpu_gemm_bf16_row(const struct cpu_packed *w, const float *x, uint16_t *dst, int64_t n)
{
    w->bf16->prep(&(struct gemm_prep){.x = x, .ldx = n, .n_in = n, .n_row = 1, .xb = dst});
}

int64_t cpu_gemm_panels(const struct cpu_packed *w)
{
    int64_t n = 0;
    for (int i = 0; i < w->n_part; i++)
        n += w->part[i].n_panel;
    return n;
}

int64_t cpu_gemm_col(const struct cpu_packed *w, int64_t panel)
{
    for (int i = 0; i < w->n_part; panel -= w->part[i++].n_panel)
        if (panel < w->part[i].n_panel)
            return w->part[i].col + panel * w->k->lanes;
    return w->n_out;
}

size_t cpu_gemm_wbuf(const struct cpu_packed *w)
{
    return gemm_pad64(gemm_wbuf_bytes(w->n_in));
}

void cpu_gemm_block(const struct cpu_gemm_block *b)
{
    int64_t first = 0; /* panel of the part in all */
    for (int i = 0; i < b->w->n_part; first += b->w->part[i++].n_panel) {
        const struct part *p = &b->w->part[i];
        int64_t from = b->from > first ? b->from - first : 0, to = b->to - first;
        to = to < p->n_panel ? to : p->n_panel;
        if (from >= to)
            continue;
        const int64_t col = from * b->w->k->lanes;
        struct gemm_call c = {.panel = p->panel + (size_t)from * p->panel_bytes,
                              .panel_bytes = p->panel_bytes,
                              .n_panel = (int)(to - from),
                              .n_out = p->n_out - col,
                              .n_in = b->w->n_in,
                              .m = b->m,
                              .x = b->rows,
                              .ldx = b->w->n_in,
                              .xb = b->rows,
                              .y = b->y + p->col + col,
                              .ldy = b->ldy,
                              .bias = b->bias ? b->bias + p->col + col : NULL,
                              .wbuf = b->wbuf};
        p->fn(&c);
    }
}

void cpu_weight_row(const struct weight_desc *w, int64_t row, float *dst)
{
    const struct weight_part *p = w->part;
    for (; row >= p->n_out; p++) {
        row -= p->n_out;
        CHECK(p + 1 < w->part + w->n_part);
    }
    const struct quant_format *f = quant_format_get((uint32_t)p->fmt);
    size_t bytes;
    CHECK(f && row >= 0 && quant_row_bytes(f, w->n_in, &bytes));
    f->decode((const uint8_t *)p->data + (size_t)row * bytes, dst, w->n_in);
}
