/* Layers load themselves: names to shapes checked, matrices and vectors on the device. See nn.h. */
#include "engine/base/mem.h"
#include "engine/nn/nn_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The name before ".weight"; false ends the load. */
static bool name_of(struct nn_load *l, char name[NN_NAME], const char *fmt, va_list ap)
{
    if (l->rc)
        return false;
    int n = vsnprintf(name, NN_NAME - 8, fmt, ap);
    if (n < 0 || n >= NN_NAME - 8)
        l->rc = err_set(l->e, ERR_INTERNAL, "%s: a tensor's name is too long", l->c->name);
    return !l->rc;
}
#define NAME(l, name, fmt)                                                                         \
    va_list ap_;                                                                                   \
    va_start(ap_, fmt);                                                                            \
    bool ok_ = name_of(l, name, fmt, ap_);                                                         \
    va_end(ap_);                                                                                   \
    if (!ok_)                                                                                      \
    return

static void missing(struct nn_load *l, const char *name)
{
    l->rc = err_set(l->e, ERR_NOTFOUND, "%s: tensor %s is missing", l->c->name, name);
}

/* 0: v is there. 1: absent and may be. Else an error is noted. */
static int get(struct nn_load *l, const char *name, unsigned flags, struct nn_view *v)
{
    int rc = nn__view(l->c, name, v, l->e);
    if (rc == ERR_NOTFOUND && (flags & NN_OPTIONAL))
        return 1;
    if (rc == ERR_NOTFOUND)
        missing(l, name);
    else
        l->rc = rc;
    return rc;
}

static void wrong_shape(struct nn_load *l, const char *name, const struct nn_view *v,
                        const int64_t *want, int n_want)
{
    char a[96], b[96];
    l->rc = err_set(l->e, ERR_INVAL, "%s: tensor %s is %s, expected %s", l->c->name, name,
                    nn__shape(v->dim, v->n_dim, a, sizeof a), nn__shape(want, n_want, b, sizeof b));
}

/* The view as a matrix [n_out, n_in]; dimensions of 1 behind the second, or before the last two, are nothing. NN_ANY
 * takes the file's. */
static bool as_matrix(struct nn_load *l, const char *name, const struct nn_view *v, int64_t *n_in,
                      int64_t *n_out)
{
    int n = v->n_dim;
    const int64_t *dim = v->dim;
    while (n > 2 && dim[n - 1] == 1)
        n--;
    for (; n > 2 && dim[0] == 1; n--)
        dim++;
    bool ok =
        n == 2 && (*n_out == NN_ANY || *n_out == dim[0]) && (*n_in == NN_ANY || *n_in == dim[1]);
    if (!ok) {
        wrong_shape(l, name, v, (int64_t[]){*n_out, *n_in}, 2);
        return false;
    }
    *n_out = dim[0];
    *n_in = dim[1];
    size_t row;
    if (!quant_row_bytes(quant_format_get((uint32_t)v->fmt), *n_in, &row)) {
        l->rc = err_set(l->e, ERR_INVAL, "%s: tensor %s: rows of %lld values are no whole blocks",
                        l->c->name, name, (long long)*n_in);
        return false;
    }
    return true;
}

/* Vectors NAME[i] behind each other; with NN_PART_BIAS one that is not there is zeros. */
static void load_vecs(struct nn_load *l, struct tensor *out, const char name[][NN_NAME],
                      const int64_t *n, int n_name, unsigned flags)
{
    int64_t all = 0, at = 0;
    for (int i = 0; i < n_name; i++)
        all += n[i];
    float *v = mem_alloc((size_t)all * sizeof *v);
    if (!v) {
        l->rc = err_set(l->e, ERR_NOMEM, "%s: no memory for %s", l->c->name, name[0]);
        return;
    }
    for (int i = 0; i < n_name && !l->rc; i++) {
        struct nn_view w;
        bool none = (flags & NN_PART_BIAS) && !nn__find(l->c, name[i], NULL, NULL);
        memset(v + at, 0, (size_t)n[i] * sizeof *v);
        if (none) {
            at += n[i];
            continue;
        }
        if (get(l, name[i], 0, &w))
            break;
        if (nn__count(&w) != n[i])
            wrong_shape(l, name[i], &w, &n[i], 1);
        else
            nn__decode(&w, v + at);
        at += n[i];
        free(w.own);
    }
    if (!l->rc && (l->rc = nn__vec(l->w, out, v, all)))
        err_set(l->e, l->rc, "%s: no device memory for %s", l->c->name, name[0]);
    free(v);
}

void nn_load_stack(struct nn_load *l, struct nn_linear *out, const struct nn_stack *s)
{
    struct nn_view v[3] = {{0}};
    char name[3][NN_NAME];
    struct weight_desc d = {.n_part = s->n_name, .rows = s->flags & NN_ROWS};
    int64_t n_in = s->n_in, n_out[3], all = 0;
    int n_bias = 0, got = 0;
    *out = (struct nn_linear){0};
    for (; got < s->n_name && !l->rc; got++) {
        snprintf(name[got], NN_NAME, "%s%s.weight", s->prefix, s->name[got]);
        if (get(l, name[got], s->flags, &v[got]))
            break;
        n_out[got] = s->n_out[got];
        if (!as_matrix(l, name[got], &v[got], &n_in, &n_out[got]))
            break;
        if (!(s->flags & NN_ROWS) && nn__round(l->w, &v[got])) {
            l->rc = err_set(l->e, ERR_NOMEM, "%s: no memory for %s", l->c->name, name[got]);
            break;
        }
        d.part[got] = (struct weight_part){v[got].fmt, v[got].data, n_out[got]};
        all += n_out[got];
    }
    if (l->rc || got < s->n_name) {
        for (int i = 0; i < s->n_name; i++)
            free(v[i].own);
        return;
    }
    char first[NN_NAME];
    snprintf(first, sizeof first, "%s", name[0]);
    d.name = first;
    d.n_in = n_in;
    l->rc = nn__matrix(l->w, &out->w, &d, v, s->n_name, l->e);
    out->n_in = n_in;
    out->n_out = all;
    for (int i = 0; i < s->n_name; i++) {
        snprintf(name[i], NN_NAME, "%s%s.bias", s->prefix, s->name[i]);
        n_bias += nn__find(l->c, name[i], NULL, NULL);
    }
    bool part = n_bias < s->n_name && !(s->flags & NN_PART_BIAS);
    if (!l->rc && n_bias && ((s->flags & NN_NO_BIAS) || part))
        l->rc = err_set(l->e, ERR_UNSUPPORTED, "%s: %s has a bias that this model has no place for",
                        l->c->name, first);
    if (!l->rc && n_bias)
        load_vecs(l, &out->bias, (const char(*)[NN_NAME])name, n_out, s->n_name, s->flags);
}

void nn_load_linear(struct nn_load *l, struct nn_linear *out, int64_t n_in, int64_t n_out,
                    unsigned flags, const char *fmt, ...)
{
    char name[NN_NAME];
    *out = (struct nn_linear){0};
    NAME(l, name, fmt);
    nn_load_stack(l, out,
                  &(struct nn_stack){.prefix = "",
                                     .name = {name},
                                     .n_name = 1,
                                     .n_in = n_in,
                                     .n_out = {n_out},
                                     .flags = flags});
}

void nn_load_table(struct nn_load *l, struct nn_linear *out, int64_t n_in, int64_t rows,
                   const char *fmt, ...)
{
    char name[NN_NAME];
    struct nn_view v;
    *out = (struct nn_linear){0};
    NAME(l, name, fmt);
    if (get(l, name, 0, &v))
        return;
    if (!as_matrix(l, name, &v, &n_in, &rows)) {
        free(v.own);
        return;
    }
    struct weight_desc d = {.name = name,
                            .n_in = n_in,
                            .n_part = 1,
                            .part = {{v.fmt, v.data, rows}},
                            .rows = true,
                            .only_rows = true};
    l->rc = nn__matrix(l->w, &out->w, &d, &v, 1, l->e);
    out->n_in = n_in;
    out->n_out = rows;
}

/* [c_out, c_in, kt, k, k] at moment t, or [c_out, c_in, k, k] (kt 1) -> [c_out, k, k, c_in]; same element size. */
static void permute(const struct nn_view *v, char *dst, int kt, int k, int t)
{
    size_t b = v->fmt == QF_F32 ? 4 : 2;
    int64_t c_out = v->dim[0], c_in = v->dim[1], kk = (int64_t)k * k;
    for (int64_t o = 0; o < c_out; o++)
        for (int64_t s = 0; s < kk; s++)
            for (int64_t i = 0; i < c_in; i++)
                memcpy(dst + (size_t)((o * kk + s) * c_in + i) * b,
                       (const char *)v->data + (size_t)(((o * c_in + i) * kt + t) * kk + s) * b, b);
}

/* A block format's rows can't be permuted: f32 instead. */
static int to_dense(struct nn_view *v)
{
    if (v->fmt == QF_F32 || v->fmt == QF_F16 || v->fmt == QF_BF16)
        return 0;
    float *f = mem_alloc((size_t)nn__count(v) * sizeof *f);
    if (!f)
        return ERR_NOMEM;
    nn__decode(v, f);
    free(v->own);
    v->data = v->own = f;
    v->fmt = QF_F32;
    v->bytes = (size_t)nn__count(v) * sizeof *f;
    return 0;
}

struct conv_want {
    int c_in, c_out, kt, k, t; /* kt 0: two-dimensional */
};

static bool conv_shape(struct nn_load *l, const char *name, struct nn_view *v, struct conv_want *w)
{
    int64_t want[5] = {w->c_out, w->c_in, w->k, w->k, 1};
    int n = 4;
    if (w->kt) {
        memcpy(want, (int64_t[]){w->c_out, w->c_in, NN_ANY, NN_ANY, NN_ANY}, sizeof want);
        n = 5;
    } else {
        if (v->n_dim == 5 && v->dim[2] == 1) { /* [.., 1, k, k] */
            memmove(v->dim + 2, v->dim + 3, 2 * sizeof *v->dim);
            v->n_dim = 4;
        }
        while (v->n_dim < 4)
            v->dim[v->n_dim++] = 1;
    }
    bool ok = v->n_dim == n;
    for (int i = 0; ok && i < n; i++)
        ok = want[i] == NN_ANY || want[i] == v->dim[i];
    if (ok && w->kt)
        ok = v->dim[3] == v->dim[4] && v->dim[3] <= 3 && w->t >= -v->dim[2] && w->t < v->dim[2];
    if (!ok) {
        wrong_shape(l, name, v, want, n);
        return false;
    }
    w->c_out = (int)v->dim[0];
    w->c_in = (int)v->dim[1];
    if (w->kt) {
        w->kt = (int)v->dim[2];
        w->k = (int)v->dim[3];
        w->t = w->t < 0 ? w->t + w->kt : w->t;
    }
    return true;
}

static void load_conv(struct nn_load *l, struct nn_conv *out, char *name, struct conv_want w)
{
    struct nn_view v;
    size_t len = strlen(name), bytes;
    memcpy(name + len, ".weight", 8);
    if (get(l, name, 0, &v))
        return;
    if (!conv_shape(l, name, &v, &w)) {
        free(v.own);
        return;
    }
    int64_t n_in = (int64_t)w.k * w.k * w.c_in;
    size_t b = 0;
    char *p = NULL;
    if (!to_dense(&v) && !nn__round(l->w, &v)) {
        b = v.fmt == QF_F32 ? 4 : 2;
        p = ck_mul((size_t)w.c_out, (size_t)n_in * b, &bytes) ? mem_alloc(bytes) : NULL;
    }
    if (!p) {
        free(v.own);
        l->rc = err_set(l->e, ERR_NOMEM, "%s: no memory for %s", l->c->name, name);
        return;
    }
    permute(&v, p, w.kt ? w.kt : 1, w.k, w.t);
    if (v.src && !v.own)
        source_drop(v.src, v.data, v.bytes);
    free(v.own);
    v = (struct nn_view){
        .fmt = v.fmt, .data = p, .own = p, .bytes = (size_t)w.c_out * (size_t)n_in * b};
    struct weight_desc d = {.name = name, .n_in = n_in, .n_part = 1, .part = {{v.fmt, p, w.c_out}}};
    l->rc = nn__matrix(l->w, &out->w, &d, &v, 1, l->e);
    out->c_in = w.c_in;
    out->c_out = w.c_out;
    out->k = w.k;
    memcpy(name + len, ".bias", 6);
    if (l->rc || !nn__find(l->c, name, NULL, NULL))
        return;
    char one[1][NN_NAME];
    memcpy(one[0], name, NN_NAME);
    load_vecs(l, &out->bias, (const char(*)[NN_NAME])one, (int64_t[]){w.c_out}, 1, 0);
}

/* [c_out, c_in, k] -> [c_out, n, c_in] of the taps t wants, f32. NULL: an error is noted. */
static float *take_taps(struct nn_load *l, const char *name, const struct nn_taps *t)
{
    struct nn_view v;
    if (get(l, name, 0, &v))
        return NULL;
    int64_t want[3] = {t->c_out, t->c_in, t->k};
    size_t rows = (size_t)t->n * (size_t)t->c_in, bytes;
    float *all = NULL, *p = NULL;
    if (v.n_dim != 3 || memcmp(v.dim, want, sizeof want) != 0) {
        wrong_shape(l, name, &v, want, 3);
    } else {
        all = mem_alloc((size_t)nn__count(&v) * sizeof *all);
        p = ck_mul(rows, (size_t)t->c_out * sizeof *p, &bytes) ? mem_alloc(bytes) : NULL;
        if (!all || !p)
            l->rc = err_set(l->e, ERR_NOMEM, "%s: no memory for %s", l->c->name, name);
    }
    if (!l->rc)
        nn__decode(&v, all);
    for (int o = 0; !l->rc && o < t->c_out; o++)
        for (int k = 0; k < t->n; k++)
            for (int i = 0; i < t->c_in; i++)
                p[((size_t)o * (size_t)t->n + (size_t)k) * (size_t)t->c_in + (size_t)i] =
                    all[((size_t)o * (size_t)t->c_in + (size_t)i) * (size_t)t->k +
                        (size_t)(t->from + k)];
    free(all);
    free(v.own);
    if (!l->rc)
        return p;
    free(p);
    return NULL;
}

void nn_load_taps(struct nn_load *l, struct nn_linear *out, const struct nn_taps *t,
                  const char *fmt, ...)
{
    char name[1][NN_NAME];
    *out = (struct nn_linear){0};
    NAME(l, name[0], fmt);
    size_t len = strlen(name[0]);
    memcpy(name[0] + len, ".weight", 8);
    float *p = take_taps(l, name[0], t);
    if (!p)
        return;
    struct nn_view v = {.fmt = QF_F32,
                        .n_dim = 2,
                        .dim = {t->c_out, (int64_t)t->n * t->c_in},
                        .data = p,
                        .own = p,
                        .bytes = (size_t)t->c_out * (size_t)t->n * (size_t)t->c_in * sizeof *p};
    if (nn__round(l->w, &v)) {
        free(v.own);
        l->rc = err_set(l->e, ERR_NOMEM, "%s: no memory for %s", l->c->name, name[0]);
        return;
    }
    struct weight_desc d = {
        .name = name[0], .n_in = v.dim[1], .n_part = 1, .part = {{v.fmt, v.data, t->c_out}}};
    out->n_in = v.dim[1];
    out->n_out = t->c_out;
    l->rc = nn__matrix(l->w, &out->w, &d, &v, 1, l->e);
    memcpy(name[0] + len, ".bias", 6);
    if (!l->rc && t->from == 0 && nn__find(l->c, name[0], NULL, NULL))
        load_vecs(l, &out->bias, (const char(*)[NN_NAME])name, (int64_t[]){t->c_out}, 1, 0);
}

void nn_load_conv(struct nn_load *l, struct nn_conv *out, int c_in, int c_out, int k,
                  const char *fmt, ...)
{
    char name[NN_NAME];
    *out = (struct nn_conv){0};
    NAME(l, name, fmt);
    load_conv(l, out, name, (struct conv_want){c_in, c_out, 0, k, 0});
}

void nn_load_conv_3d(struct nn_load *l, struct nn_conv *out, int c_in, int c_out, int t,
                     const char *fmt, ...)
{
    char name[NN_NAME];
    *out = (struct nn_conv){0};
    NAME(l, name, fmt);
    load_conv(l, out, name, (struct conv_want){c_in, c_out, 1, NN_ANY, t});
}

static void load_vec(struct nn_load *l, struct tensor *out, int64_t n, unsigned flags,
                     const char *name)
{
    int64_t dim[SOURCE_DIMS];
    int n_dim;
    *out = (struct tensor){0};
    if (!nn__find(l->c, name, dim, &n_dim)) {
        if (!(flags & NN_OPTIONAL))
            missing(l, name);
        return;
    }
    int64_t all = 1;
    for (int i = 0; i < n_dim; i++)
        all *= dim[i];
    char one[1][NN_NAME];
    snprintf(one[0], NN_NAME, "%s", name);
    load_vecs(l, out, (const char(*)[NN_NAME])one, n == NN_ANY ? &all : &n, 1, 0);
}

void nn_load_norm(struct nn_load *l, struct nn_norm *out, int64_t n, unsigned flags,
                  const char *fmt, ...)
{
    char name[NN_NAME];
    *out = (struct nn_norm){0};
    NAME(l, name, fmt);
    size_t len = strlen(name);
    memcpy(name + len, ".weight", 8);
    load_vec(l, &out->w, n, flags, name);
    memcpy(name + len, ".bias", 6);
    if (!l->rc && out->w.n_dim)
        load_vec(l, &out->b, out->w.shape[0], NN_OPTIONAL, name);
}

void nn_load_vec(struct nn_load *l, struct tensor *out, int64_t n, unsigned flags, const char *fmt,
                 ...)
{
    char name[NN_NAME];
    *out = (struct tensor){0};
    NAME(l, name, fmt);
    load_vec(l, out, n, flags, name);
}

float *nn_load_host(struct nn_load *l, int64_t *n, const char *fmt, ...)
{
    char name[NN_NAME];
    struct nn_view v;
    *n = 0;
    NAME(l, name, fmt) NULL;
    if (get(l, name, 0, &v))
        return NULL;
    float *p = mem_alloc((size_t)nn__count(&v) * sizeof *p);
    if (p) {
        nn__decode(&v, p);
        *n = nn__count(&v);
    } else {
        l->rc = err_set(l->e, ERR_NOMEM, "%s: no memory for %s", l->c->name, name);
    }
    free(v.own);
    return p;
}

bool nn_load_has(const struct nn_load *l, int64_t dim[SOURCE_DIMS], const char *fmt, ...)
{
    char name[NN_NAME];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return n > 0 && (size_t)n < sizeof name && nn__find(l->c, name, dim, NULL);
}

void *nn_load_room(struct nn_load *l, int n, size_t size)
{
    void *p = l->rc ? NULL : mem_calloc((size_t)n, size);
    if (!p && !l->rc)
        l->rc = err_set(l->e, ERR_NOMEM, "no memory for %d layers", n);
    return p;
}

void nn_load_const(struct nn_load *l, struct tensor *out, const float *v, int64_t n)
{
    *out = (struct tensor){0};
    if (!l->rc && (l->rc = nn__vec(l->w, out, v, n)))
        err_set(l->e, l->rc, "%s: no device memory for %lld constants", l->c->name, (long long)n);
}
