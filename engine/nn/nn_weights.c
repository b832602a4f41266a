/* Opened weights of an image model: matrices, vectors, the host copies that backends read in place. See nn.h. */
#include "engine/base/mem.h"
#include "engine/nn/nn_impl.h"

#include <stdlib.h>
#include <string.h>

#define SLAB_BYTES (256u << 10)
#define VEC_ALIGN  64

/* A billion values are rounded: looking them up takes half the time. */
static int round_open(struct nn_weights *w)
{
    w->round = mem_alloc(65536 * sizeof *w->round);
    for (uint32_t i = 0; w->round && i < 65536; i++)
        w->round[i] = f32_to_bf16(f16_to_f32((uint16_t)i));
    return w->round ? 0 : ERR_NOMEM;
}

int nn_weights_open(struct nn_weights **out, const struct backend *be, struct dev *dev,
                    enum eng_precision precision, struct err *e)
{
    struct nn_weights *w = mem_calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for the weight list");
    w->be = be;
    w->dev = dev;
    w->precision = precision;
    if (dev) {
        struct backend_info bi = {0};
        be->info(dev, &bi);
        if (bi.bf16 && round_open(w)) {
            free(w);
            return err_set(e, ERR_NOMEM, "no memory for the weight list");
        }
    }
    *out = w;
    return 0;
}

void nn_weights_close(struct nn_weights *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n; i++)
        w->be->weight_close(w->dev, w->w[i]);
    for (int i = 0; i < w->n_buf; i++)
        w->be->buf_free(w->dev, w->buf[i]);
    for (int i = 0; i < w->n_own; i++)
        free(w->own[i]);
    free(w->w);
    free(w->buf);
    free(w->own);
    free(w->round);
    free(w);
}

size_t nn_weights_bytes(const struct nn_weights *w)
{
    return w->bytes;
}

/* Room for one more element in a list. */
static int grow(void *list, int n, int *cap, size_t size)
{
    void **p = list;
    if (n < *cap)
        return 0;
    int more = *cap ? *cap * 2 : 64;
    void *q = mem_realloc(*p, (size_t)more * size);
    if (!q)
        return ERR_NOMEM;
    *p = q;
    *cap = more;
    return 0;
}

static int slab_open(struct nn_weights *w, size_t bytes)
{
    size_t cap = bytes > SLAB_BYTES ? bytes : SLAB_BYTES;
    if (grow(&w->buf, w->n_buf, &w->cap_buf, sizeof *w->buf) ||
        w->be->buf_alloc(w->dev, cap, &w->buf[w->n_buf]))
        return ERR_NOMEM;
    w->n_buf++;
    w->buf_used = 0;
    w->buf_cap = cap;
    return 0;
}

int nn__vec(struct nn_weights *w, struct tensor *out, const float *v, int64_t n)
{
    size_t bytes;
    if (!ck_mul((size_t)n, sizeof *v, &bytes) || !ck_round_up(bytes, VEC_ALIGN, &bytes))
        return ERR_NOMEM;
    w->bytes += bytes;
    *out = (struct tensor){.dtype = DT_F32, .n_dim = 1, .shape = {n}, .stride = {1}};
    if (!w->dev)
        return 0;
    if (w->buf_used + bytes > w->buf_cap && slab_open(w, bytes))
        return ERR_NOMEM;
    out->buf = w->buf[w->n_buf - 1];
    out->off = w->buf_used;
    w->buf_used += bytes;
    return w->be->write(w->dev, out->buf, out->off, v, (size_t)n * sizeof *v);
}

static void drop(struct nn_view *v, int n)
{
    for (int i = 0; i < n; i++) {
        if (v[i].own)
            free(v[i].own);
        else if (v[i].src)
            source_drop(v[i].src, v[i].data, v[i].bytes);
        v[i].own = NULL;
    }
}

int nn__matrix(struct nn_weights *w, struct dev_weight **out, const struct weight_desc *d,
               struct nn_view *v, int n_v, struct err *e)
{
    size_t packed = w->be->weight_bytes(d, w->precision), held = packed;
    bool in_place = packed == 0 || d->rows; /* the backend goes on reading the host's bytes */
    for (int i = 0; in_place && i < n_v; i++)
        held += v[i].own ? v[i].bytes : 0;
    w->bytes += held;
    int rc = 0;
    if (!w->dev) {
        *out = NULL;
        goto out;
    }
    for (int i = 0; in_place && i < n_v && !rc; i++)
        rc = grow(&w->own, w->n_own + n_v, &w->cap_own, sizeof *w->own);
    if (rc || grow(&w->w, w->n, &w->cap, sizeof *w->w)) {
        rc = err_set(e, ERR_NOMEM, "%s: no memory", d->name);
        goto out;
    }
    rc = w->be->weight_open(w->dev, out, d, e);
    if (rc)
        goto out;
    w->w[w->n++] = *out;
    if (in_place) {
        for (int i = 0; i < n_v; i++)
            if (v[i].own)
                w->own[w->n_own++] = v[i].own;
        return 0;
    }
out:
    drop(v, n_v);
    return rc;
}
