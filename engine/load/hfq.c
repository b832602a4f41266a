/* See hfq.h: the list of a folder's quantised matrices. */
#include "engine/load/hfq_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"

static const struct {
    const char *tail; /* of the tensor with the codes */
    hfq_bind_fn *bind;
} firsts[] = {
    {".qweight", hfq__qweight_bind}, {".weight_packed", hfq__packed_bind},
    {".weight", hfq__weight_bind},   {"_blocks", hfq__blocks_bind},
    {"", hfq__weight_bind}, /* experts in one tensor have no ".weight" */
};

/* ---- values ---- */

int64_t hfq__n(const struct source_tensor *t)
{
    int64_t n = 1; /* the file holds them: no overflow */
    for (int i = 0; i < t->n_dim; i++)
        n *= t->dim[i];
    return n;
}

int hfq__int_bytes(const struct source_tensor *t)
{
    int64_t n = hfq__n(t);
    return t->kind == SOURCE_INT && n > 0 ? (int)((int64_t)t->bytes / n) : 0;
}

int64_t hfq__int_at(const struct source_tensor *t, int64_t i)
{
    const uint8_t *p = t->data;
    int64_t v = 0;
    int bytes = hfq__int_bytes(t);
    if (bytes == 1)
        return (int8_t)p[i];
    if (bytes == 4) {
        int32_t w;
        memcpy(&w, p + 4 * i, 4);
        return w;
    }
    if (bytes == 8)
        memcpy(&v, p + 8 * i, 8);
    return v;
}

float hfq__scale_at(const struct source_tensor *t, int64_t i)
{
    float v = 0;
    const uint8_t *p = t->data;
    if (t->kind == SOURCE_QUANT && t->fmt == QF_F32)
        memcpy(&v, p + 4 * i, 4);
    else if (t->kind == SOURCE_QUANT || t->kind == SOURCE_F8_E4M3)
        source_decode(t, i, 1, &v);
    else
        v = ldexpf(1, p[i] - 127);
    return v;
}

/* ---- configuration ---- */

static const char *config_key(const struct hfq *h, const char *key, char dst[160])
{
    static const char *const where[] = {"", "text_config."};
    for (int i = 0; h->c && i < 2; i++) {
        snprintf(dst, 160, "%squantization_config.%s", where[i], key);
        if (config_has(h->c, dst))
            return dst;
    }
    return NULL;
}

int64_t hfq__config_int(struct hfq *h, const char *key, int64_t def)
{
    char path[160];
    return config_key(h, key, path) ? config_int(h->c, path, def, -1, 1 << 20) : def;
}

const char *hfq__config_str(struct hfq *h, const char *key, const char *def)
{
    char path[160];
    return config_key(h, key, path) ? config_str(h->c, path, def) : def;
}

bool hfq__config_bool(struct hfq *h, const char *key, bool def)
{
    char path[160];
    return config_key(h, key, path) ? config_bool(h->c, path, def) : def;
}

/* ---- the list ---- */

const struct source_tensor *hfq__part(struct hfq *h, const char *stem, const char *tail)
{
    char name[256];
    if (snprintf(name, sizeof name, "%s%s", stem, tail) >= (int)sizeof name)
        return NULL;
    const struct source_tensor *t = source_find(h->s, name);
    if (t)
        h->part[t - source_at(h->s, 0)] = true;
    return t;
}

/* The matrix whose codes tensor i may be; nothing is added when it is none. */
static int try_bind(struct hfq *h, size_t i, struct err *e)
{
    const struct source_tensor *t = source_at(h->s, i);
    size_t len = strlen(t->name), tail = 0, f = 0;
    for (; f < sizeof firsts / sizeof *firsts; f++) {
        tail = strlen(firsts[f].tail);
        if (len > tail && strcmp(t->name + len - tail, firsts[f].tail) == 0)
            break;
    }
    if (h->n == h->n_max) {
        size_t n = h->n_max * 2 + 64;
        struct hfq_tensor *q = mem_realloc(h->q, n * sizeof *q);
        if (!q)
            return err_set(e, ERR_NOMEM, "no memory for the list of quantised matrices");
        h->q = q;
        h->n_max = n;
    }
    struct hfq_tensor *q = &h->q[h->n];
    char *stem = arena_copy(&h->arena, t->name, len - tail);
    if (!stem)
        return err_set(e, ERR_NOMEM, "no memory for tensor names");
    *q = (struct hfq_tensor){.code = t, .index = i, .n_expert = 1, .factor = 1, .group = 32};
    int rc = firsts[f].bind(h, q, stem, e);
    if (rc == ERR_NOTFOUND)
        return 0;
    if (rc)
        return rc;
    h->part[i] = true;
    q->t.name =
        *firsts[f].tail == '_' || !*firsts[f].tail ? stem : arena_fmt(&h->arena, "%s.weight", stem);
    if (!q->t.name)
        return err_set(e, ERR_NOMEM, "no memory for tensor names");
    q->t.kind = SOURCE_QUANT;
    q->t.scale = 1;
    q->t.data = t->data;
    q->t.bytes = t->bytes;
    bool stacked = t->n_dim > 2 && q->kind != HFQ_BNB4;
    q->t.n_dim = stacked ? 3 : 2;
    int at = 0;
    if (stacked)
        q->t.dim[at++] = q->n_expert;
    q->t.dim[at++] = q->n_out;
    q->t.dim[at] = q->n_in;
    for (int d = q->t.n_dim; d < SOURCE_DIMS; d++)
        q->t.dim[d] = 1;
    if (q->t.fmt == QF_F16) {
        h->f16_n++;
        h->f16_bytes += (size_t)(q->n_expert * q->n_out * q->n_in) * 2;
    }
    h->n++;
    return 0;
}

/* Factors of activations and of the KV cache: what is computed here is more exact without. */
static const char *const about[] = {".input_scale",      ".output_scale", ".k_scale",
                                    ".v_scale",          ".q_scale",      ".input_global_scale",
                                    ".prob_output_scale"};

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static int by_name(const void *x, const void *y)
{
    const struct hfq_tensor *a = x, *b = y;
    return strcmp(a->t.name, b->t.name);
}

static int fill(struct hfq *h, struct err *e)
{
    h->part = mem_calloc(source_n(h->s) + 1, sizeof *h->part);
    if (!h->part)
        return err_set(e, ERR_NOMEM, "no memory for the list of quantised matrices");
    for (size_t i = 0; i < source_n(h->s); i++) {
        int rc = try_bind(h, i, e);
        for (size_t k = 0; k < sizeof about / sizeof *about; k++)
            h->part[i] = h->part[i] || ends_with(source_at(h->s, i)->name, about[k]);
        if (!rc && h->c)
            rc = config_error(h->c, e);
        if (rc)
            return rc;
    }
    if (h->n)
        qsort(h->q, h->n, sizeof *h->q, by_name);
    if (h->f16_n)
        log_warn("load",
                 "%zu quantised matrices have groups of no multiple of 32 columns, or a table of "
                 "their own: decoded to f16, bytes=%zu",
                 h->f16_n, h->f16_bytes);
    return 0;
}

int hfq_open(struct hfq **out, const struct source *s, struct config *c, struct err *e)
{
    *out = NULL;
    struct hfq *h = mem_calloc(1, sizeof *h);
    if (!h)
        return err_set(e, ERR_NOMEM, "no memory for the list of quantised matrices");
    h->s = s;
    h->c = c;
    int rc = fill(h, e);
    if (rc || h->n == 0) {
        hfq_close(h);
        return rc;
    }
    *out = h;
    return 0;
}

void hfq_close(struct hfq *h)
{
    if (!h)
        return;
    arena_free(&h->arena);
    free(h->q);
    free(h->part);
    free(h);
}

const struct source_tensor *hfq_find(const struct hfq *h, const char *name)
{
    size_t lo = 0, hi = h ? h->n : 0;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int d = strcmp(name, h->q[mid].t.name);
        if (d == 0)
            return &h->q[mid].t;
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const struct hfq_tensor *hfq_of(const struct hfq *h, const struct source_tensor *t)
{
    const char *p = (const char *)t, *from = h ? (const char *)h->q : NULL;
    bool inside = h && p >= from && p < from + h->n * sizeof *h->q;
    return inside ? (const struct hfq_tensor *)(const void *)p : NULL;
}

const int32_t *hfq_col(const struct hfq_tensor *q)
{
    return q->col;
}

size_t hfq_index(const struct hfq_tensor *q)
{
    return q->index;
}

bool hfq_is_part(const struct hfq *h, size_t i)
{
    return h && h->part[i];
}
