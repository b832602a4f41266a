/* The reference backend: device and buffers. Activations are f32 between ops. Engine thread. */
#include "engine/ref/ref_impl.h"

#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

float *ref__ptr(const struct dev *d, const struct tensor *t)
{
    size_t n, end;
    if (t->buf == 0 || t->buf > (dev_buf)d->n_buf || !d->bufs[t->buf - 1].p || !ops_extent(t, &n) ||
        !ck_add(n, t->off, &end) || end > d->bufs[t->buf - 1].n || t->off % 4 != 0)
        return NULL;
    return (float *)(void *)(d->bufs[t->buf - 1].p + t->off);
}

static void dev_close(struct dev *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_buf; i++)
        free(d->bufs[i].p);
    free(d->bufs);
    free(d);
}

static int dev_open(struct dev **out, const struct backend_opts *o, struct err *e)
{
    if (o->isa)
        return err_set(e, ERR_INVAL, "isa '%s': the reference backend has none", o->isa);
    struct dev *d = mem_calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ERR_NOMEM, "no memory for the reference backend");
    *out = d;
    return 0;
}

static void dev_info(const struct dev *d, struct backend_info *out)
{
    (void)d;
    *out = (struct backend_info){.name = "ref", .mul_dtype = DT_F32, .n_threads = 1};
}

static int buf_alloc(struct dev *d, size_t bytes, dev_buf *out)
{
    int i = 0;
    while (i < d->n_buf && d->bufs[i].p)
        i++;
    if (i == d->n_buf) {
        struct ref_buf *all = mem_realloc(d->bufs, ((size_t)d->n_buf + 1) * sizeof *all);
        if (!all)
            return ERR_NOMEM;
        d->bufs = all;
        d->bufs[d->n_buf++] = (struct ref_buf){0};
    }
    char *p = mem_calloc(1, bytes);
    if (!p)
        return ERR_NOMEM;
    d->bufs[i] = (struct ref_buf){p, bytes};
    *out = (dev_buf)i + 1;
    return 0;
}

static struct ref_buf *buf_find(struct dev *d, dev_buf b, size_t off, size_t n)
{
    size_t end;
    if (b == 0 || b > (dev_buf)d->n_buf || !d->bufs[b - 1].p || !ck_add(off, n, &end) ||
        end > d->bufs[b - 1].n)
        return NULL;
    return &d->bufs[b - 1];
}

static void buf_free(struct dev *d, dev_buf b)
{
    struct ref_buf *p = buf_find(d, b, 0, 0);
    if (!p)
        return;
    free(p->p);
    *p = (struct ref_buf){0};
}

static int buf_write(struct dev *d, dev_buf b, size_t off, const void *src, size_t n)
{
    struct ref_buf *p = buf_find(d, b, off, n);
    if (!p)
        return ERR_INVAL;
    if (n)
        memcpy(p->p + off, src, n);
    return 0;
}

static int buf_read(struct dev *d, dev_buf b, size_t off, void *dst, size_t n)
{
    struct ref_buf *p = buf_find(d, b, off, n);
    if (!p)
        return ERR_INVAL;
    if (n)
        memcpy(dst, p->p + off, n);
    return 0;
}

/* Weights are decoded from where they lie, a row at a time: no packing, so the file's bytes must stay. */
static size_t weight_bytes(const struct weight_desc *w, enum eng_precision p)
{
    (void)w;
    (void)p;
    return 0;
}

static int step_begin(struct dev *d, const struct step_meta *m)
{
    d->in_step = false;
    int rc = ops_check_step(m);
    if (rc)
        return rc;
    d->meta = *m;
    d->in_step = true;
    return 0;
}

static int dev_sync(struct dev *d)
{
    (void)d;
    return 0;
}

#define REF_FIELD(name) .name = ref__##name,
const struct backend ref_backend = {.abi = BACKEND_ABI,
                                    .name = "ref",
                                    .open = dev_open,
                                    .close = dev_close,
                                    .info = dev_info,
                                    .buf_alloc = buf_alloc,
                                    .buf_free = buf_free,
                                    .write = buf_write,
                                    .read = buf_read,
                                    .weight_open = ref__weight_open,
                                    .weight_close = ref__weight_close,
                                    .weight_bytes = weight_bytes,
                                    .kv_open = ref__kv_open,
                                    .kv_close = ref__kv_close,
                                    .weights_in_place = true,
                                    .kv_block_bytes = ref__kv_block_bytes,
                                    .step_begin = step_begin,
                                    .sync = dev_sync,
                                    .sample_wait = dev_sync,
                                    .image_begin = ref__image_begin,
                                    .state_open = ref__state_open,
                                    .state_close = ref__state_close,
                                    OPS_LIST(REF_FIELD) OPS_IMAGE_LIST(REF_FIELD)
                                        OPS_STATE_LIST(REF_FIELD) OPS_MOE_LIST(REF_FIELD)
                                            OPS_MLA_LIST(REF_FIELD)};
