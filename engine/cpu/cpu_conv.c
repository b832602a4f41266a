/* CPU backend: convolution. A task makes the windows of some output rows in the form that the product's kernel reads, in a
 * cache's worth of scratch, multiplies them with some panels of the weight and adds what is to be added: windows never
 * go to memory. Where only cpu_gemm can make that form (quantised weights, channels that are no whole chunks), windows
 * of a chunk of rows are floats and the product comes after. A row's sums have one order in both. */
#include "engine/cpu/cpu_impl.h"

#include <string.h>

#define BLOCK_BYTES                                                                                \
    ((int64_t)768 << 10) /* of windows in a task: they stay in the second-level cache */
#define BLOCK_MIN  32
#define BLOCK_MAX  256                /* rows */
#define COLS_BYTES ((int64_t)4 << 20) /* of windows as floats at a time */

struct conv {
    struct dev *d;
    const struct op_conv *a;
    const struct image_layout *in, *out;
    const struct cpu_packed *w;
    const float *x, *bias, *vec, *add;
    float *dst;
    int64_t n, n_in; /* output rows; values of a window, filled up */
    bool bf16;
    /* blocks */
    int64_t rows, panels, n_row_task;
    size_t o_keep, o_wbuf, each; /* a worker's scratch: windows, kept residual, the kernel's own */
    /* chunks */
    int64_t from, grain;
    float *kept;
};

/* Source row of tap t of output row `row`; -1: outside the map. */
static int64_t tap_row(const struct conv *c, int s, int r, int t)
{
    const struct op_conv *a = c->a;
    int up = a->up ? 2 : 1, h = a->up ? c->out->h[s] : c->in->h[s],
        w = a->up ? c->out->w[s] : c->in->w[s];
    int y = r / c->out->w[s] * a->stride + t / a->k - a->pad,
        x = r % c->out->w[s] * a->stride + t % a->k - a->pad;
    if (y < 0 || x < 0 || y >= h || x >= w)
        return -1;
    return c->in->start[s] + (int64_t)(y / up) * c->in->w[s] + x / up;
}

static void window_f32(const struct conv *c, int64_t row, float *dst)
{
    int s = cpu__seg_of(c->out, row), r = (int)(row - c->out->start[s]);
    int64_t ch = c->a->src.shape[1], taps = (int64_t)c->a->k * c->a->k;
    for (int t = 0; t < taps; t++, dst += ch) {
        int64_t from = tap_row(c, s, r, t);
        if (from < 0)
            memset(dst, 0, (size_t)ch * sizeof *dst);
        else
            memcpy(dst, c->x + from * c->a->src.stride[0], (size_t)ch * sizeof *dst);
    }
    memset(dst, 0, (size_t)(c->n_in - ch * taps) * sizeof *dst);
}

/* A window into its place in a block of n rows: 32 values of each row side by side. */
static void window_bf16(const struct conv *c, int64_t row, uint16_t *dst, int n)
{
    int s = cpu__seg_of(c->out, row), r = (int)(row - c->out->start[s]);
    int64_t ch = c->a->src.shape[1];
    const uint16_t *map = c->d->map.p;
    for (int t = 0; t < c->a->k * c->a->k; t++, dst += ch * n) {
        int64_t from = tap_row(c, s, r, t);
        c->d->isa->image->spread(dst, (size_t)n * 64, from < 0 ? NULL : map + from * ch, ch / 32);
    }
}

static void windows(const struct conv *c, int64_t row, int64_t m, void *dst)
{
    if (!c->bf16) {
        for (int64_t i = 0; i < m; i++)
            window_f32(c, row + i, (float *)dst + i * c->n_in);
        return;
    }
    for (int64_t b = 0; b < m; b += 16) {
        int n = m - b < 16 ? (int)(m - b) : 16;
        for (int i = 0; i < n; i++)
            window_bf16(c, row + b + i, (uint16_t *)dst + b * c->n_in + i * 32, n);
    }
}

/* + vec[segment] + add for columns [from, to) of m rows; add is at its own place, or kept [m, to - from]. */
static void finish(const struct conv *c, int64_t row, int64_t m, int64_t from, int64_t to,
                   const float *kept)
{
    const struct cpu_image_kern *k = c->d->isa->image;
    for (int64_t i = 0; i < m; i++) {
        float *dst = c->dst + (row + i) * c->a->dst.stride[0] + from;
        if (c->vec)
            k->gate_add(dst, c->vec + cpu__seg_of(c->out, row + i) * c->a->vec.stride[0] + from,
                        NULL, to - from, 1);
        if (kept)
            k->gate_add(dst, kept + i * (to - from), NULL, to - from, 1);
        else if (c->add)
            k->gate_add(dst, c->add + (row + i) * c->a->add.stride[0] + from, NULL, to - from, 1);
    }
}

static void block_task(void *arg, int task, int worker)
{
    const struct conv *c = arg;
    char *scratch = (char *)c->d->im2col.p + (size_t)worker * c->each;
    int64_t row = task % c->n_row_task * c->rows, p = task / c->n_row_task * c->panels;
    int64_t m = c->n - row < c->rows ? c->n - row : c->rows, end = p + c->panels;
    int64_t all = cpu_gemm_panels(c->w);
    end = end < all ? end : all;
    int64_t from = cpu_gemm_col(c->w, p), to = cpu_gemm_col(c->w, end);
    float *kept = NULL;
    if (c->add == c->dst && c->add) { /* the product lands on it */
        kept = (float *)(void *)(scratch + c->o_keep);
        for (int64_t i = 0; i < m; i++)
            memcpy(kept + i * (to - from), c->add + (row + i) * c->a->add.stride[0] + from,
                   (size_t)(to - from) * sizeof *kept);
    }
    windows(c, row, m, scratch);
    cpu_gemm_block(&(struct cpu_gemm_block){.w = c->w,
                                            .rows = scratch,
                                            .m = m,
                                            .y = c->dst + row * c->a->dst.stride[0],
                                            .ldy = c->a->dst.stride[0],
                                            .bias = c->bias,
                                            .from = p,
                                            .to = end,
                                            .wbuf = scratch + c->o_wbuf});
    if (c->vec || c->add)
        finish(c, row, m, from, to, kept);
}

static void map_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct conv *c = arg;
    int64_t ch = c->a->src.shape[1], all = c->in->start[c->in->n_seg];
    int64_t end = ((int64_t)task + 1) * c->grain;
    end = end < all ? end : all;
    for (int64_t i = task * c->grain; i < end; i++)
        cpu_gemm_bf16_row(c->w, c->x + i * c->a->src.stride[0], (uint16_t *)c->d->map.p + i * ch,
                          ch);
}

/* The input in bf16, once: every row is part of up to nine windows. */
static int map_make(struct conv *c)
{
    int64_t ch = c->a->src.shape[1], rows = c->in->start[c->in->n_seg];
    int rc = cpu__grow(&c->d->map, (size_t)(rows * ch) * sizeof(uint16_t));
    if (rc)
        return rc;
    c->grain = cpu__grain((double)ch * 0.1);
    cpu__run(c->d, map_task, c, (int)((rows + c->grain - 1) / c->grain), (double)(rows * ch) * 0.1);
    return 0;
}

static int64_t at_least(int64_t v, int64_t least)
{
    return v < least ? least : v;
}

static int conv_blocks(struct conv *c)
{
    int64_t bytes = c->n_in * (c->bf16 ? 2 : 4), want = 3 * (int64_t)c->d->n_threads,
            all = cpu_gemm_panels(c->w), n_out = cpu_packed_n_out(c->w);
    c->rows = BLOCK_BYTES / bytes / 16 * 16;
    c->rows = c->rows > BLOCK_MAX ? BLOCK_MAX : at_least(c->rows, BLOCK_MIN);
    int64_t even = at_least((c->n / want + 15) / 16 * 16, BLOCK_MIN); /* a few tasks each */
    c->rows = even < c->rows ? even : c->rows;
    c->n_row_task = (c->n + c->rows - 1) / c->rows;
    /* Few rows: several tasks share them, each with its panels; windows are made again in each. */
    int64_t groups = (want + c->n_row_task - 1) / c->n_row_task, most = at_least(all / 8, 1);
    groups = groups < most ? groups : most;
    c->panels = (all + groups - 1) / groups;
    groups = (all + c->panels - 1) / c->panels;
    c->o_keep = ((size_t)(c->rows * bytes) + 63) / 64 * 64;
    c->o_wbuf = c->o_keep;
    if (c->add == c->dst && c->add)
        c->o_wbuf += ((size_t)(c->rows * n_out) * sizeof(float) + 63) / 64 * 64;
    c->each = c->o_wbuf + cpu_gemm_wbuf(c->w);
    int rc = cpu__grow(&c->d->im2col, c->each * (size_t)c->d->n_threads);
    if (!rc && c->bf16)
        rc = map_make(c);
    if (!rc)
        cpu__run(c->d, block_task, c, (int)(c->n_row_task * groups),
                 (double)c->n * (double)c->n_in * (double)n_out * 0.01);
    return rc;
}

/* ---- windows first, then the product ---- */

static void cols_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct conv *c = arg;
    int64_t end = ((int64_t)task + 1) * c->grain;
    end = end < c->rows ? end : c->rows;
    for (int64_t i = task * c->grain; i < end; i++)
        window_f32(c, c->from + i, (float *)c->d->im2col.p + i * c->n_in);
}

static void finish_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct conv *c = arg;
    int64_t row = task * c->grain, left = c->rows - row, m = left < c->grain ? left : c->grain;
    int64_t n_out = c->a->dst.shape[1];
    finish(c, c->from + row, m, 0, n_out, c->kept ? c->kept + row * n_out : NULL);
}

/* The product may not be written over a residual that is still to be added: a chunk of it is put aside. */
static int keep_add(struct conv *c, int64_t m)
{
    int64_t n_out = c->a->dst.shape[1];
    c->kept = NULL;
    if (!c->add || c->add != c->dst)
        return 0;
    int rc = cpu__grow(&c->d->seg, (size_t)(m * n_out) * sizeof(float));
    c->kept = c->d->seg.p;
    for (int64_t i = 0; !rc && i < m; i++)
        memcpy(c->kept + i * n_out, c->add + (c->from + i) * c->a->add.stride[0],
               (size_t)n_out * sizeof(float));
    return rc;
}

static int conv_chunks(struct conv *c, bool direct)
{
    int64_t chunk = at_least(COLS_BYTES / (c->n_in * 4), 64);
    chunk = chunk > c->n ? c->n : chunk;
    int rc =
        cpu__grow(&c->d->gemm, cpu_gemm_scratch(c->d->isa->gemm, chunk, c->n_in, c->d->n_threads));
    if (!rc && !direct)
        rc = cpu__grow(&c->d->im2col, (size_t)(chunk * c->n_in) * sizeof(float));
    for (c->from = 0; c->from < c->n && !rc; c->from += chunk) {
        c->rows = c->n - c->from < chunk ? c->n - c->from : chunk;
        if ((rc = keep_add(c, c->rows)))
            break;
        struct cpu_gemm_args g = {.w = c->w,
                                  .bias = c->bias,
                                  .scratch = c->d->gemm.p,
                                  .m = c->rows,
                                  .x = c->x + c->from * c->a->src.stride[0],
                                  .ldx = c->a->src.stride[0],
                                  .y = c->dst + c->from * c->a->dst.stride[0],
                                  .ldy = c->a->dst.stride[0]};
        if (!direct) {
            c->grain = cpu__grain((double)c->n_in * 0.1);
            cpu__run(c->d, cols_task, c, (int)((g.m + c->grain - 1) / c->grain),
                     (double)(g.m * c->n_in) * 0.1);
            g.x = c->d->im2col.p;
            g.ldx = c->n_in;
        }
        cpu_gemm(c->d->pool, &g);
        if (!c->vec && !c->add)
            continue;
        c->grain = cpu__grain((double)c->a->dst.shape[1] * 0.3);
        cpu__run(c->d, finish_task, c, (int)((g.m + c->grain - 1) / c->grain),
                 (double)(g.m * c->a->dst.shape[1]) * 0.3);
    }
    return rc;
}

int cpu__conv(struct dev *d, const struct op_conv *a)
{
    if (!a->w || a->w->col ||
        ops_check_conv(a, DT_F32, &d->image, a->w->desc.n_in, cpu_packed_n_out(a->w->packed)))
        return ERR_INVAL;
    bool bad = false;
    struct conv c = {.d = d,
                     .a = a,
                     .in = &d->image.layout[a->in],
                     .out = &d->image.layout[a->out],
                     .w = a->w->packed,
                     .n = a->dst.shape[0],
                     .n_in = a->w->n_in_pad};
    c.dst = cpu__opt_ptr(d, &a->dst, &bad);
    c.x = cpu__opt_ptr(d, &a->src, &bad);
    c.bias = cpu__opt_ptr(d, &a->bias, &bad);
    c.vec = cpu__opt_ptr(d, &a->vec, &bad);
    c.add = cpu__opt_ptr(d, &a->add, &bad);
    if (bad)
        return ERR_INVAL;
    if (c.n == 0)
        return 0;
    bool direct = a->k == 1 && a->stride == 1 && !a->up && a->pad == 0 && c.n_in == a->w->desc.n_in;
    enum cpu_gemm_form form = cpu_gemm_form(c.w);
    c.bf16 = form == CPU_GEMM_BF16 && a->src.shape[1] % 32 == 0;
    if (!direct && (c.bf16 || form == CPU_GEMM_F32))
        return conv_blocks(&c);
    return conv_chunks(&c, direct);
}
