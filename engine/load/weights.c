/* See weights.h. */
#include "engine/load/weights.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAME_MAX_LEN 96
#define VEC_ALIGN    64 /* bytes; vectors start on cache lines */

/* One slot with its tensors. */
struct bind {
    char name[NAME_MAX_LEN]; /* of the first part */
    const struct gguf_tensor *part[3];
    int n_part;
    unsigned flags;
    int64_t n_in;
    int64_t n_out;
    bool multiplied; /* false: only read by row */
    size_t vec_off;  /* bytes in the vector buffer */
    void *slot;
};

struct weight_plan {
    struct bind *item;
    int n;
    size_t vec_bytes;
    int64_t vec_max; /* longest vector, elements */
    bool *claimed;   /* [gguf tensors] while the plan is made */
};

struct weight_set {
    const struct backend *be;
    struct dev *dev;
    struct dev_weight **w;
    int n;
    dev_buf vec;
};

static void shape_text(char *dst, size_t n, const struct gguf_tensor *t)
{
    size_t at = 0;
    dst[0] = 0;
    for (int i = t->n_dim - 1; i >= 0 && at < n; i--) {
        int r = snprintf(dst + at, n - at, "%s%lld", at ? ", " : "", (long long)t->dim[i]);
        at += r > 0 ? (size_t)r : 0;
    }
}

static int shape_check(const struct gguf_tensor *t, bool vector, int64_t n_out, int64_t n_in,
                       struct err *e)
{
    char have[96];
    shape_text(have, sizeof have, t);
    int w = (int)(t->name.len > 64 ? 64 : t->name.len);
    if (vector) {
        if (t->n_dim != 1 || t->dim[0] != n_out)
            return err_set(e, ERR_INVAL, "tensor %.*s has shape [%s], expected [%lld]", w,
                           t->name.p, have, (long long)n_out);
        if (t->fmt != QF_F32 && t->fmt != QF_F16 && t->fmt != QF_BF16)
            return err_set(e, ERR_INVAL, "tensor %.*s: a vector must be F32, F16 or BF16, not %s",
                           w, t->name.p, quant_format_get(t->fmt)->name);
        return 0;
    }
    if (t->n_dim != 2 || t->dim[0] != n_in || t->dim[1] != n_out)
        return err_set(e, ERR_INVAL, "tensor %.*s has shape [%s], expected [%lld, %lld]", w,
                       t->name.p, have, (long long)n_out, (long long)n_in);
    return 0;
}

static const struct gguf_tensor *tensor_claim(struct weight_plan *p, const struct gguf *g,
                                              const char *name)
{
    const struct gguf_tensor *t = gguf_tensor_find(g, name);
    if (t)
        p->claimed[t - gguf_tensor_at(g, 0)] = true;
    return t;
}

static void part_name(char *dst, const struct weight_row *r, int layer, int part)
{
    if (r->flags & WEIGHT_GLOBAL)
        snprintf(dst, NAME_MAX_LEN, "%s", r->name[part]);
    else
        snprintf(dst, NAME_MAX_LEN, "blk.%d.%s", layer, r->name[part]);
}

/* Find and check the parts of one row; *found is false when an optional one is absent. */
static int bind_row(struct weight_plan *p, const struct gguf *g, const struct weight_table *t,
                    const struct weight_row *r, int layer, struct err *e)
{
    struct bind b = {.flags = r->flags, .multiplied = true};
    bool vector = r->flags & WEIGHT_VECTOR;
    int n_want = 0, n_have = 0;
    char missing[NAME_MAX_LEN] = "";
    b.n_in = vector ? 0 : t->dim[r->n_in];
    for (int i = 0; i < 3 && r->name[i]; i++, n_want++) {
        char name[NAME_MAX_LEN];
        part_name(name, r, layer, i);
        if (i == 0)
            memcpy(b.name, name, sizeof name);
        const struct gguf_tensor *x = tensor_claim(p, g, name);
        if (!x) {
            memcpy(missing, name, sizeof name);
            continue;
        }
        int rc = shape_check(x, vector, t->dim[r->n_out[i]], b.n_in, e);
        if (rc)
            return rc;
        b.part[n_have++] = x;
        b.n_out += t->dim[r->n_out[i]];
    }
    if (n_have == 0 && (r->flags & WEIGHT_OPTIONAL))
        return 0;
    if (n_have < n_want)
        return err_set(e, ERR_NOTFOUND, "tensor %s is missing", missing);
    b.n_part = n_have;
    if (r->flags & WEIGHT_ROWS)
        b.multiplied =
            (r->flags & WEIGHT_ROWS_TIED) && !(r->tied_by && gguf_tensor_find(g, r->tied_by));
    b.slot =
        (char *)((r->flags & WEIGHT_GLOBAL) ? t->global
                                            : (char *)t->layer + (size_t)layer * t->layer_bytes) +
        r->slot;
    if (vector) {
        size_t bytes = (size_t)b.n_out * sizeof(float); /* the file holds them: no overflow */
        b.vec_off = p->vec_bytes;
        if (!ck_round_up(bytes, VEC_ALIGN, &bytes) || !ck_add(p->vec_bytes, bytes, &p->vec_bytes))
            return err_set(e, ERR_INVAL, "tensor %s is too long", b.name);
        p->vec_max = b.n_out > p->vec_max ? b.n_out : p->vec_max;
    }
    p->item[p->n++] = b;
    return 0;
}

/* A tensor that no row names would be a term left out of the sum: refuse it. */
static int unclaimed_check(const struct weight_plan *p, const struct gguf *g, struct err *e)
{
    for (size_t i = 0; i < gguf_n_tensor(g); i++) {
        struct view n = gguf_tensor_at(g, i)->name;
        if (p->claimed[i] || memmem(n.p, n.len, "rotary_emb.inv_freq", 19) ||
            memmem(n.p, n.len, "attn_rot_embd", 13)) /* tables that follow from the metadata */
            continue;
        return err_set(e, ERR_UNSUPPORTED, "tensor %.*s is not known to this architecture",
                       (int)(n.len > 96 ? 96 : n.len), n.p);
    }
    return 0;
}

static int plan_fill(struct weight_plan *p, const struct gguf *g, const struct weight_table *t,
                     struct err *e)
{
    size_t n = 0, n_layer = (size_t)t->n_layer;
    for (int i = 0; i < t->n_row; i++)
        n += (t->row[i].flags & WEIGHT_GLOBAL) ? 1 : n_layer;
    p->item = mem_calloc(n, sizeof *p->item);
    p->claimed = mem_calloc(gguf_n_tensor(g) + 1, sizeof *p->claimed);
    if (!p->item || !p->claimed)
        return err_set(e, ERR_NOMEM, "no memory for the weight plan");
    for (int i = 0; i < t->n_row; i++) {
        int times = (t->row[i].flags & WEIGHT_GLOBAL) ? 1 : t->n_layer;
        for (int l = 0; l < times; l++) {
            int rc = bind_row(p, g, t, &t->row[i], l, e);
            if (rc)
                return rc;
        }
    }
    return unclaimed_check(p, g, e);
}

int weights_plan_open(struct weight_plan **out, const struct gguf *g, const struct weight_table *t,
                      struct err *e)
{
    *out = NULL;
    struct weight_plan *p = mem_calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for the weight plan");
    int rc = plan_fill(p, g, t, e);
    free(p->claimed);
    p->claimed = NULL;
    if (rc) {
        weights_plan_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void weights_plan_close(struct weight_plan *p)
{
    if (!p)
        return;
    free(p->item);
    free(p->claimed);
    free(p);
}

static struct weight_desc bind_desc(const struct bind *b)
{
    struct weight_desc d = {.name = b->name,
                            .n_in = b->n_in,
                            .n_part = b->n_part,
                            .rows = b->flags & WEIGHT_ROWS,
                            .only_rows = !b->multiplied};
    for (int i = 0; i < b->n_part; i++)
        d.part[i] = (struct weight_part){
            .fmt = b->part[i]->fmt, .data = b->part[i]->data, .n_out = b->part[i]->dim[1]};
    return d;
}

size_t weights_plan_bytes(const struct weight_plan *p, const struct backend *be,
                          enum eng_precision precision)
{
    size_t sum = p->vec_bytes;
    for (int i = 0; i < p->n; i++) {
        if (p->item[i].flags & WEIGHT_VECTOR)
            continue;
        struct weight_desc d = bind_desc(&p->item[i]);
        if (!ck_add(sum, be->weight_bytes(&d, precision), &sum))
            return SIZE_MAX;
    }
    return sum;
}

/* Whole pages inside [data, data + n) leave the resident set; they are read again from the file if the
 * backend uses them in place. The mapping is read-only, so nothing can be lost. */
static void pages_release(const void *data, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)data + n) / page * page;
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

static int vector_load(struct weight_set *s, const struct bind *b, float *tmp, struct err *e)
{
    int64_t at = 0;
    for (int i = 0; i < b->n_part; i++) {
        quant_format_get(b->part[i]->fmt)->decode(b->part[i]->data, tmp + at, b->part[i]->dim[0]);
        at += b->part[i]->dim[0];
    }
    int rc = s->be->write(s->dev, s->vec, b->vec_off, tmp, (size_t)at * sizeof *tmp);
    if (rc)
        return err_set(e, rc, "tensor %s: %s", b->name, err_name(rc));
    *(struct tensor *)b->slot = (struct tensor){.dtype = DT_F32,
                                                .n_dim = 1,
                                                .shape = {at},
                                                .stride = {1},
                                                .buf = s->vec,
                                                .off = b->vec_off};
    return 0;
}

static int matrix_load(struct weight_set *s, const struct bind *b, struct err *e)
{
    struct weight_desc d = bind_desc(b);
    int rc = s->be->weight_open(s->dev, &s->w[s->n], &d, e);
    if (rc)
        return rc;
    *(struct dev_weight **)b->slot = s->w[s->n++];
    for (int i = 0; i < b->n_part; i++)
        pages_release(b->part[i]->data, b->part[i]->bytes);
    return 0;
}

static int set_fill(struct weight_set *s, const struct weight_plan *p, float **tmp, struct err *e)
{
    s->w = mem_calloc((size_t)p->n + 1, sizeof *s->w);
    *tmp = mem_calloc((size_t)p->vec_max + 1, sizeof **tmp);
    if (!s->w || !*tmp)
        return err_set(e, ERR_NOMEM, "no memory for the weight list");
    if (p->vec_bytes && s->be->buf_alloc(s->dev, p->vec_bytes, &s->vec))
        return err_set(e, ERR_NOMEM, "no device memory for %zu bytes of norms and biases",
                       p->vec_bytes);
    for (int i = 0; i < p->n; i++) {
        const struct bind *b = &p->item[i];
        int rc = (b->flags & WEIGHT_VECTOR) ? vector_load(s, b, *tmp, e) : matrix_load(s, b, e);
        if (rc)
            return rc;
    }
    return 0;
}

int weights_open(struct weight_set **out, const struct weight_plan *p, const struct backend *be,
                 struct dev *dev, struct err *e)
{
    *out = NULL;
    struct weight_set *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for the weight list");
    s->be = be;
    s->dev = dev;
    float *tmp = NULL;
    int rc = set_fill(s, p, &tmp, e);
    free(tmp);
    if (rc) {
        weights_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void weights_close(struct weight_set *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n; i++)
        s->be->weight_close(s->dev, s->w[i]);
    if (s->vec)
        s->be->buf_free(s->dev, s->vec);
    free(s->w);
    free(s);
}
