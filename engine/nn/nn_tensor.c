/* From a wanted name to one piece of memory: file names, slices, formats that no backend has. See nn_impl.h. */
#include "engine/base/mem.h"
#include "engine/nn/nn_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct found {
    const struct source_tensor *t[SOURCE_SLICES];
    int part[SOURCE_SLICES], n_part[SOURCE_SLICES]; /* n_take pieces from the part-th of n_part */
    int n_take[SOURCE_SLICES];
    int n;
};

static const struct source_tensor *lookup(const struct source_map *m, const char *name)
{
    char full[NN_NAME + 64];
    int len = snprintf(full, sizeof full, "%s%s", m->prefix ? m->prefix : "", name);
    return len > 0 && (size_t)len < sizeof full ? source_find(m->src, full) : NULL;
}

/* ERR_NOTFOUND; ERR_INVAL when the slices do not fit each other. */
static int find(const struct comp *c, const char *name, struct found *f)
{
    const struct source_map *m = &c->map;
    struct source_slice s[SOURCE_SLICES] = {0}; /* who sets no n_take means one piece */
    int n = !m->src ? -1 : m->find ? m->find(m, name, s) : 0;
    if (n < 0 || n > SOURCE_SLICES)
        return ERR_NOTFOUND;
    if (n == 0) {
        *f = (struct found){.t = {lookup(m, name)}, .n_part = {1}, .n_take = {1}, .n = 1};
        return f->t[0] ? 0 : ERR_NOTFOUND;
    }
    f->n = n;
    for (int i = 0; i < n; i++) {
        f->t[i] = lookup(m, s[i].name);
        f->part[i] = s[i].part;
        f->n_part[i] = s[i].n_part;
        f->n_take[i] = s[i].n_take ? s[i].n_take : 1;
        if (!f->t[i])
            return ERR_NOTFOUND;
        const struct source_tensor *t = f->t[i], *a = f->t[0];
        if (s[i].n_part < 1 || s[i].part < 0 || f->n_take[i] < 1 ||
            f->n_take[i] > s[i].n_part - s[i].part || t->n_dim < 1 || t->n_dim != a->n_dim ||
            t->dim[0] % s[i].n_part ||
            memcmp(t->dim + 1, a->dim + 1, sizeof a->dim - sizeof *a->dim) != 0)
            return ERR_INVAL;
    }
    return 0;
}

static void found_shape(const struct found *f, int64_t dim[SOURCE_DIMS], int *n_dim)
{
    const struct source_tensor *a = f->t[0];
    memcpy(dim, a->dim, sizeof a->dim);
    *n_dim = a->n_dim;
    if (a->n_dim < 1 || (f->n == 1 && f->n_part[0] == 1))
        return;
    dim[0] = 0;
    for (int i = 0; i < f->n; i++)
        dim[0] += f->t[i]->dim[0] / f->n_part[i] * f->n_take[i];
}

bool nn__find(const struct comp *c, const char *name, int64_t dim[SOURCE_DIMS], int *n_dim)
{
    struct found f;
    int64_t d[SOURCE_DIMS];
    int n;
    if (find(c, name, &f))
        return false;
    found_shape(&f, d, &n);
    if (dim)
        memcpy(dim, d, sizeof d);
    if (n_dim)
        *n_dim = n;
    return true;
}

int64_t nn__count(const struct nn_view *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->n_dim; i++)
        n *= v->dim[i];
    return n;
}

const char *nn__shape(const int64_t *dim, int n_dim, char *s, size_t n)
{
    size_t at = (size_t)snprintf(s, n, "[");
    for (int i = 0; i < n_dim && at + 24 < n; i++)
        at += (size_t)snprintf(s + at, n - at, "%s%lld", i ? ", " : "", (long long)dim[i]);
    snprintf(s + at, n - at, "]");
    return s;
}

void nn__decode(const struct nn_view *v, float *dst)
{
    quant_format_get((uint32_t)v->fmt)->decode(v->data, dst, nn__count(v));
}

int nn__round(const struct nn_weights *w, struct nn_view *v)
{
    int64_t n = nn__count(v);
    if (!w->round || (v->fmt != QF_F32 && v->fmt != QF_F16))
        return 0;
    uint16_t *h = mem_alloc((size_t)n * sizeof *h);
    if (!h)
        return ERR_NOMEM;
    const float *f = v->data;
    const uint16_t *f16 = v->data;
    if (v->fmt == QF_F32)
        for (int64_t i = 0; i < n; i++)
            h[i] = f32_to_bf16(f[i]);
    else
        for (int64_t i = 0; i < n; i++)
            h[i] = w->round[f16[i]];
    if (v->own)
        free(v->own);
    else if (v->src)
        source_drop(v->src, v->data, v->bytes);
    v->data = v->own = h;
    v->fmt = QF_BF16;
    v->bytes = (size_t)n * sizeof *h;
    return 0;
}

/* Rows of each slice, decoded, behind each other: f32, or bf16 for fp8 (which holds every fp8 value). */
static int view_decoded(const char *name, const struct found *f, struct nn_view *v, struct err *e)
{
    bool f8 = f->t[0]->kind == SOURCE_F8_E4M3 || f->t[0]->kind == SOURCE_F8_E5M2;
    int64_t n = nn__count(v);
    size_t bytes;
    v->fmt = f8 ? QF_BF16 : QF_F32;
    float *tmp = ck_mul((size_t)n, sizeof *tmp, &bytes) ? mem_alloc(bytes) : NULL;
    if (!tmp)
        return err_set(e, ERR_NOMEM, "tensor %s: no memory for %lld values", name, (long long)n);
    int64_t at = 0;
    for (int i = 0; i < f->n; i++) {
        int64_t all = 1;
        for (int k = 0; k < f->t[i]->n_dim; k++)
            all *= f->t[i]->dim[k];
        int64_t part = all / f->n_part[i], take = part * f->n_take[i];
        int rc = source_decode(f->t[i], part * f->part[i], take, tmp + at);
        if (rc) {
            free(tmp);
            return err_set(e, rc, "tensor %s: its format is no weight's", name);
        }
        at += take;
    }
    if (f8) { /* in place: the values only get shorter */
        uint16_t *h = (uint16_t *)(void *)tmp;
        for (int64_t i = 0; i < n; i++) {
            float x = tmp[i];
            h[i] = f32_to_bf16(x);
        }
    }
    v->data = v->own = tmp;
    v->bytes = f8 ? (size_t)n * 2 : bytes;
    return 0;
}

/* One slice that a backend can read where it is, or as an aligned copy. */
static int view_direct(const char *name, const struct source_map *m, const struct found *f,
                       struct nn_view *v, struct err *e)
{
    const struct source_tensor *t = f->t[0];
    v->fmt = t->fmt;
    size_t piece = t->bytes / (size_t)f->n_part[0];
    v->bytes = piece * (size_t)f->n_take[0];
    v->data = (const char *)t->data + piece * (size_t)f->part[0];
    v->src = m->src;
    size_t align = t->fmt == QF_F32 ? 4 : 2;
    if ((uintptr_t)v->data % align == 0)
        return 0;
    v->own = mem_alloc(v->bytes);
    if (!v->own)
        return err_set(e, ERR_NOMEM, "tensor %s: no memory for %zu bytes", name, v->bytes);
    memcpy(v->own, v->data, v->bytes);
    v->data = v->own;
    v->src = NULL;
    return 0;
}

int nn__view(const struct comp *c, const char *name, struct nn_view *out, struct err *e)
{
    struct found f;
    *out = (struct nn_view){0};
    int rc = find(c, name, &f);
    if (rc == ERR_INVAL)
        return err_set(e, ERR_INVAL, "%s: the tensors that make up %s do not fit each other",
                       c->name, name);
    if (rc)
        return rc;
    found_shape(&f, out->dim, &out->n_dim);
    for (int i = 0; i < out->n_dim; i++)
        if (out->dim[i] < 1)
            return err_set(e, ERR_INVAL, "%s: tensor %s is empty", c->name, name);
    return f.n == 1 && f.t[0]->kind == SOURCE_QUANT ? view_direct(name, &c->map, &f, out, e)
                                                    : view_decoded(name, &f, out, e);
}
