/* The CPU backend: device, buffers, weights, step. Activations are f32. Ops run to their end before they
 * return, so sync has nothing to wait for. Engine thread. */
#include "engine/cpu/cpu_impl.h"

#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cpu__grow(struct cpu_grow *g, size_t bytes)
{
    if (bytes <= g->n)
        return 0;
    size_t want = bytes + bytes / 4; /* a slightly larger step later costs nothing */
    if (want < bytes)
        return ERR_NOMEM;
    void *p = mem_aligned(64, want);
    if (!p)
        return ERR_NOMEM;
    free(g->p);
    g->p = p;
    g->n = want;
    return 0;
}

static void grow_free(struct cpu_grow *g)
{
    free(g->p);
    *g = (struct cpu_grow){0};
}

void *cpu__ptr(const struct dev *d, const struct tensor *t)
{
    size_t n, end;
    if (t->buf == 0 || t->buf > (dev_buf)d->n_buf || !d->bufs[t->buf - 1].p)
        return NULL;
    if (!ops_extent(t, &n) || !ck_add(n, t->off, &end) || end > d->bufs[t->buf - 1].n ||
        t->off % 4 != 0)
        return NULL;
    return d->bufs[t->buf - 1].p + t->off;
}

#define TASK_NS 4000.0 /* a task's least work; waking a parked worker costs about as much */

int cpu__grain(double row_cost)
{
    double n = TASK_NS / (row_cost > 1 ? row_cost : 1);
    return n < 1 ? 1 : n > 4096 ? 4096 : (int)n;
}

void cpu__run(struct dev *d, void (*fn)(void *, int, int), void *arg, int n_task, double cost)
{
    if (n_task > 1 && cost >= 2 * TASK_NS && d->n_threads > 1) {
        cpu_pool_run(d->pool, fn, arg, n_task);
        return;
    }
    for (int i = 0; i < n_task; i++)
        fn(arg, i, 0);
}

static void dev_close(struct dev *d)
{
    if (!d)
        return;
    cpu_pool_close(d->pool);
    for (int i = 0; i < d->n_buf; i++)
        free(d->bufs[i].p);
    free(d->bufs);
    cpu_slab_free(&d->slab);
    for (int i = 0; i < CPU_N_ROPE; i++)
        grow_free(&d->rope[i].cs);
    struct cpu_grow *all[] = {&d->row_seq, &d->gemm,       &d->tiles, &d->attn,    &d->part,
                              &d->sample,  &d->im2col,     &d->seg,   &d->packs,   &d->map,
                              &d->group,   &d->group_rows, &d->mlp,   &d->mlp_rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        grow_free(all[i]);
    free(d);
}

static int dev_open(struct dev **out, const struct backend_opts *o, struct err *e)
{
    int rc;
    struct dev *d = mem_calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ERR_NOMEM, "no memory for the CPU backend");
    if (o->n_threads < 0) {
        rc = err_set(e, ERR_INVAL, "threads: %d is negative", o->n_threads);
        goto out;
    }
    if ((rc = cpu_isa_pick(&d->isa, o->isa, e)) ||
        (rc = cpu_pool_open(&d->pool, o->n_threads, o->pin, e)))
        goto out;
    d->precision = o->precision;
    d->n_threads = cpu_pool_threads(d->pool);
    *out = d;
    return 0;
out:
    dev_close(d);
    return rc;
}

static void dev_info(const struct dev *d, struct backend_info *out)
{
    static const char *const names[] = {"", " f32", " int8"};
    *out = (struct backend_info){.mul_dtype = DT_F32, .n_threads = d->n_threads};
    out->bf16 = d->precision == PRECISION_DEFAULT && cpu_gemm_prefers_bf16(d->isa->gemm);
    snprintf(out->name, sizeof out->name, "cpu %s%s", d->isa->name, names[d->precision]);
}

static int buf_alloc(struct dev *d, size_t bytes, dev_buf *out)
{
    int i = 0;
    while (i < d->n_buf && d->bufs[i].p)
        i++;
    if (i == d->n_buf_max) {
        int n = d->n_buf_max ? 2 * d->n_buf_max : 16;
        struct cpu_buf *p = mem_realloc(d->bufs, (size_t)n * sizeof *p);
        if (!p)
            return ERR_NOMEM;
        d->bufs = p;
        d->n_buf_max = n;
    }
    size_t all;
    char *raw =
        ck_add(bytes, 64, &all) ? mem_calloc(1, all) : NULL; /* pages come as they are used */
    if (!raw)
        return ERR_NOMEM;
    mem_huge(raw, all);
    d->bufs[i] = (struct cpu_buf){raw + (64 - (uintptr_t)raw % 64) % 64, raw, bytes};
    if (i == d->n_buf)
        d->n_buf++;
    *out = (dev_buf)i + 1;
    return 0;
}

static struct cpu_buf *buf_find(struct dev *d, dev_buf b, size_t off, size_t n)
{
    size_t end;
    if (b == 0 || b > (dev_buf)d->n_buf || !d->bufs[b - 1].p || !ck_add(off, n, &end) ||
        end > d->bufs[b - 1].n)
        return NULL;
    return &d->bufs[b - 1];
}

static void buf_free(struct dev *d, dev_buf b)
{
    struct cpu_buf *p = buf_find(d, b, 0, 0);
    cpu__norm_settle(d);
    if (!p)
        return;
    free(p->raw);
    *p = (struct cpu_buf){0};
}

static int buf_write(struct dev *d, dev_buf b, size_t off, const void *src, size_t n)
{
    struct cpu_buf *p = buf_find(d, b, off, n);
    if (!p)
        return ERR_INVAL;
    cpu__norm_settle(d);
    if (n)
        memcpy(p->p + off, src, n);
    return 0;
}

static int buf_read(struct dev *d, dev_buf b, size_t off, void *dst, size_t n)
{
    struct cpu_buf *p = buf_find(d, b, off, n);
    if (!p)
        return ERR_INVAL;
    cpu__norm_settle(d);
    if (n)
        memcpy(dst, p->p + off, n);
    return 0;
}

static void weight_close(struct dev *d, struct dev_weight *w)
{
    (void)d;
    if (!w)
        return;
    cpu_packed_close(w->packed);
    free(w->col);
    free(w);
}

#define PAD_TO 32

static bool is_dense(enum quant_fmt f)
{
    return f == QF_F32 || f == QF_F16 || f == QF_BF16;
}

/* What n_in becomes in the panels; dense rows only can be filled up. */
static int64_t padded_n_in(const struct weight_desc *w)
{
    for (int i = 0; i < w->n_part; i++)
        if (!is_dense(w->part[i].fmt))
            return w->n_in;
    return (w->n_in + PAD_TO - 1) / PAD_TO * PAD_TO;
}

/* A copy of one part with zeros behind each row; NULL on ERR_NOMEM. */
static char *part_padded(const struct weight_part *p, int64_t n_in, int64_t pad)
{
    size_t row = 0, wide = 0, all;
    quant_row_bytes(quant_format_get((uint32_t)p->fmt), n_in, &row);
    quant_row_bytes(quant_format_get((uint32_t)p->fmt), pad, &wide);
    char *dst = ck_mul(wide, (size_t)p->n_out, &all) ? mem_calloc(1, all) : NULL;
    for (int64_t i = 0; dst && i < p->n_out; i++)
        memcpy(dst + (size_t)i * wide, (const char *)p->data + (size_t)i * row, row);
    return dst;
}

static int weight_pack(struct dev *d, struct dev_weight *w, struct err *e)
{
    struct weight_desc desc = w->desc;
    char *own[3] = {NULL, NULL, NULL};
    int rc = 0;
    w->n_in_pad = desc.n_in = padded_n_in(&w->desc);
    for (int i = 0; i < desc.n_part && w->n_in_pad != w->desc.n_in && !rc; i++) {
        desc.part[i].data = own[i] = part_padded(&w->desc.part[i], w->desc.n_in, w->n_in_pad);
        if (!own[i])
            rc = err_set(e, ERR_NOMEM, "%s: no memory", w->name);
    }
    if (!rc)
        rc =
            cpu_packed_open_in(&w->packed, d->isa->gemm, d->precision, &desc, d->pool, &d->slab, e);
    for (int i = 0; i < 3; i++)
        free(own[i]);
    return rc;
}

static int weight_open(struct dev *d, struct dev_weight **out, const struct weight_desc *desc,
                       struct err *e)
{
    int rc = ops_check_weight(desc, e);
    if (rc)
        return rc;
    struct dev_weight *w = mem_calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "%s: no memory", desc->name);
    w->desc = *desc;
    snprintf(w->name, sizeof w->name, "%s", desc->name ? desc->name : "weight");
    w->desc.name = w->name;
    w->col = desc->col ? mem_calloc((size_t)desc->n_in, sizeof *w->col) : NULL;
    if (w->col)
        memcpy(w->col, desc->col, (size_t)desc->n_in * sizeof *w->col);
    w->desc.col = w->col;
    rc = desc->col && !w->col ? err_set(e, ERR_NOMEM, "%s: no memory", w->name)
                              : weight_pack(d, w, e);
    if (rc) {
        w->packed = NULL;
        weight_close(d, w);
        return rc;
    }
    *out = w;
    return 0;
}

static size_t weight_bytes(const struct weight_desc *w, enum eng_precision p)
{
    struct weight_desc wide = *w;
    wide.n_in = padded_n_in(w);
    return cpu_packed_bytes(&wide, p);
}

void cpu__weight_row_in(const struct dev_weight *w, const float *src, float *dst)
{
    const int64_t n = w->desc.n_in;
    for (int64_t k = 0; w->col && k < n; k++)
        dst[k] = src[w->col[k]];
    if (!w->col)
        memcpy(dst, src, (size_t)n * sizeof *dst);
    memset(dst + n, 0, (size_t)(w->n_in_pad - n) * sizeof *dst);
}

static int step_begin(struct dev *d, const struct step_meta *m)
{
    cpu__norm_settle(d);
    d->in_step = false;
    int rc = ops_check_step(m);
    if (rc || (rc = cpu__grow(&d->row_seq, (size_t)m->n_row * sizeof(int32_t))) ||
        (rc = cpu__grow(&d->tiles, (size_t)m->n_row * sizeof(struct cpu_tile))))
        return rc;
    int32_t *seq = d->row_seq.p;
    for (int s = 0; s < m->n_seq && m->n_row; s++)
        for (int i = m->seq_start[s]; i < m->seq_start[s + 1]; i++)
            seq[i] = s;
    d->meta = *m;
    d->n_rope = d->n_seen = 0;
    d->in_step = true;
    return 0;
}

static int dev_sync(struct dev *d)
{
    cpu__norm_settle(d);
    return 0;
}

/* All ops but those that can take a norm that waits. */
#define CPU_SETTLED(name)                                                                          \
    static int settled_##name(struct dev *d, const struct op_##name *a)                            \
    {                                                                                              \
        cpu__norm_settle(d);                                                                       \
        return cpu__##name(d, a);                                                                  \
    }
#define CPU_SETTLED_LIST(X)                                                                        \
    X(embed)                                                                                       \
    X(rmsnorm) X(rope_kv) X(attn) X(act_mul) X(gather) X(scale) X(sample) X(kv_copy)               \
        OPS_IMAGE_LIST(X) OPS_STATE_LIST(X) OPS_MOE_LIST(X) OPS_MLA_LIST(X)
CPU_SETTLED_LIST(CPU_SETTLED)

const struct backend cpu_backend = {.abi = BACKEND_ABI,
                                    .name = "cpu",
                                    .open = dev_open,
                                    .close = dev_close,
                                    .info = dev_info,
                                    .buf_alloc = buf_alloc,
                                    .buf_free = buf_free,
                                    .write = buf_write,
                                    .read = buf_read,
                                    .weight_open = weight_open,
                                    .weight_close = weight_close,
                                    .weight_bytes = weight_bytes,
                                    .kv_open = cpu__kv_open,
                                    .kv_close = cpu__kv_close,
                                    .kv_block_bytes = cpu__kv_block_bytes,
                                    .step_begin = step_begin,
                                    .sync = dev_sync,
                                    .sample_wait = dev_sync,
                                    .image_begin = cpu__image_begin,
                                    .linear = cpu__linear,
                                    .mlp = cpu__mlp,
#define CPU_FIELD(name) .name = settled_##name,
                                    .state_open = cpu__state_open,
                                    .state_close = cpu__state_close,
                                    CPU_SETTLED_LIST(CPU_FIELD)};
