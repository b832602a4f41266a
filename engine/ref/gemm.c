/* Reference: weights, linear, embed. One row of the weight is decoded at a time. */
#include "engine/ref/ref_impl.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

void ref__weight_close(struct dev *d, struct dev_weight *w)
{
    (void)d;
    if (!w)
        return;
    free(w->row);
    free(w->stored);
    free(w->col);
    free(w);
}

int ref__weight_open(struct dev *d, struct dev_weight **out, const struct weight_desc *desc,
                     struct err *e)
{
    int rc = ops_check_weight(desc, e);
    if (rc)
        return rc;
    struct dev_weight *w = mem_calloc(1, sizeof *w);
    if (w) {
        w->desc = *desc;
        w->desc.col = NULL;
        for (int i = 0; i < desc->n_part; i++)
            w->n_out += desc->part[i].n_out;
        w->row = mem_calloc((size_t)desc->n_in, sizeof *w->row);
        w->stored = desc->col ? mem_calloc((size_t)desc->n_in, sizeof *w->stored) : NULL;
        w->col = desc->col ? mem_calloc((size_t)desc->n_in, sizeof *w->col) : NULL;
        if (w->col)
            memcpy(w->col, desc->col, (size_t)desc->n_in * sizeof *w->col);
    }
    if (!w || !w->row || (desc->col && (!w->col || !w->stored))) {
        ref__weight_close(d, w);
        return err_set(e, ERR_NOMEM, "%s: no memory", desc->name ? desc->name : "weight");
    }
    *out = w;
    return 0;
}

const float *ref__weight_row(const struct dev_weight *w, int64_t row)
{
    int i = 0;
    while (row >= w->desc.part[i].n_out)
        row -= w->desc.part[i++].n_out;
    const struct weight_part *p = &w->desc.part[i];
    const struct quant_format *f = quant_format_get((uint32_t)p->fmt);
    size_t bytes = 0;
    quant_row_bytes(f, w->desc.n_in, &bytes);
    f->decode((const char *)p->data + (size_t)row * bytes, w->col ? w->stored : w->row,
              w->desc.n_in);
    for (int64_t k = 0; w->col && k < w->desc.n_in; k++)
        w->row[w->col[k]] = w->stored[k];
    return w->row;
}

int ref__linear(struct dev *d, const struct op_linear *a)
{
    if (!a->w || ops_check_linear(a, DT_F32, a->w->desc.n_in, a->w->n_out))
        return ERR_INVAL;
    float *dst = ref__ptr(d, &a->dst);
    const float *src = ref__ptr(d, &a->src);
    const float *bias = a->bias.buf ? ref__ptr(d, &a->bias) : NULL;
    if (!dst || !src || (a->bias.buf && !bias))
        return ERR_INVAL;
    for (int64_t o = 0; o < a->w->n_out; o++) {
        const float *w = ref__weight_row(a->w, o);
        for (int64_t i = 0; i < a->src.shape[0]; i++) {
            const float *x = src + i * a->src.stride[0];
            double sum = bias ? (double)bias[o] : 0;
            for (int64_t k = 0; k < a->w->desc.n_in; k++)
                sum += (double)x[k] * (double)w[k];
            dst[i * a->dst.stride[0] + o] = (float)sum;
        }
    }
    return 0;
}

int ref__embed(struct dev *d, const struct op_embed *a)
{
    if (!d->in_step || !a->w || !a->w->desc.rows ||
        ops_check_embed(a, &d->meta, a->w->desc.n_in, a->w->n_out) ||
        (a->pos && ops_check_embed_pos(&d->meta, a->w->desc.n_in, &a->pos->desc)))
        return ERR_INVAL;
    float *dst = ref__ptr(d, &a->dst);
    if (!dst)
        return ERR_INVAL;
    for (int i = 0; i < d->meta.n_row; i++) {
        const float *w = ref__weight_row(a->w, d->meta.tok[i]);
        for (int64_t k = 0; k < a->w->desc.n_in; k++)
            dst[i * a->dst.stride[0] + k] = w[k] * a->scale;
        const float *p = a->pos ? ref__weight_row(a->pos, d->meta.pos[i]) : NULL;
        for (int64_t k = 0; p && k < a->dst.shape[1]; k++)
            dst[i * a->dst.stride[0] + k] += p[k];
    }
    return 0;
}
