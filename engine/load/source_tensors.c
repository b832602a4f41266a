/* The tensors of a source's files in one sorted list, with what other tensors or metadata say about them: shapes that
 * a GGUF file could not hold, factors of fp8 weights. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/load/gguf_impl.h"
#include "engine/load/map.h"
#include "engine/load/source_impl.h"

static enum source_kind kind_of(enum st_dtype t, enum quant_fmt *fmt)
{
    *fmt = QF_F32;
    switch (t) {
    case ST_F32:
        return SOURCE_QUANT;
    case ST_F16:
        *fmt = QF_F16;
        return SOURCE_QUANT;
    case ST_BF16:
        *fmt = QF_BF16;
        return SOURCE_QUANT;
    case ST_F8_E4M3:
        return SOURCE_F8_E4M3;
    case ST_F8_E5M2:
        return SOURCE_F8_E5M2;
    case ST_F64:
        return SOURCE_F64;
    default: /* integers, and the formats of parts of numbers */
        return SOURCE_INT;
    }
}

/* Names are the file's own, which live as long as it is open. */
static int add_st(struct source *s, const struct source_file *f, struct err *e)
{
    size_t n = safetensors_n_tensor(f->st);
    for (size_t i = 0; i < n; i++) {
        const struct st_tensor *t = safetensors_tensor_at(f->st, i);
        struct source_tensor *o = &s->tensor[s->n_tensor++];
        if (t->n_dim > SOURCE_DIMS) {
            err_set(e, ERR_UNSUPPORTED, "tensor '%s': %d dimensions (at most %d are read)",
                    SHOW(t->name), t->n_dim, SOURCE_DIMS);
            return file_map_prefix(e, f->path);
        }
        *o = (struct source_tensor){
            .name = t->name.p, .n_dim = t->n_dim, .data = t->data, .bytes = t->bytes, .scale = 1};
        memcpy(o->dim, t->dim, sizeof o->dim);
        o->kind = kind_of(t->dtype, &o->fmt);
    }
    return 0;
}

/* Convolutions are written as matrices, their true shape beside them (ComfyUI-GGUF): in PyTorch's order already. */
static int true_shape(const struct gguf *g, struct source_tensor *o, struct err *e)
{
    char key[256];
    size_t n = 1, want = 1;
    int len = snprintf(key, sizeof key, "comfy.gguf.orig_shape.%s", o->name);
    const struct gguf_kv *kv = len > 0 && (size_t)len < sizeof key ? gguf_kv_find(g, key) : NULL;
    if (!kv)
        return 0;
    bool ok = kv->type == GGUF_ARRAY && kv->elem < GGUF_BOOL && kv->elem != GGUF_F32 &&
              kv->n >= 1 && kv->n <= SOURCE_DIMS;
    for (int i = 0; i < o->n_dim; i++)
        want *= (size_t)o->dim[i];
    int64_t dim[SOURCE_DIMS] = {0};
    for (uint64_t i = 0; ok && i < kv->n; i++) {
        dim[i] = gguf_arr_int(kv, i);
        ok = dim[i] > 0 && ck_mul(n, (size_t)dim[i], &n);
    }
    if (!ok || n != want)
        return err_set(e, ERR_INVAL, "%.150s is no shape of %zu values", key, want);
    memcpy(o->dim, dim, sizeof dim);
    o->n_dim = (int)kv->n;
    return 0;
}

static int add_gguf(struct source *s, const struct source_file *f, struct err *e)
{
    size_t n = gguf_n_tensor(f->gguf);
    for (size_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(f->gguf, i);
        struct source_tensor *o = &s->tensor[s->n_tensor++];
        *o = (struct source_tensor){.name = arena_copy(&s->arena, t->name.p, t->name.len),
                                    .kind = SOURCE_QUANT,
                                    .fmt = t->fmt,
                                    .n_dim = t->n_dim,
                                    .data = t->data,
                                    .bytes = t->bytes,
                                    .scale = 1};
        if (!o->name)
            return source__nomem(s, e);
        for (int d = 0; d < t->n_dim; d++)
            o->dim[d] = t->dim[t->n_dim - 1 - d];
        if (true_shape(f->gguf, o, e))
            return file_map_prefix(e, f->path);
    }
    return 0;
}

static int add_ct2(struct source *s, const struct source_file *f)
{
    size_t n = ct2_n_tensor(f->ct2);
    for (size_t i = 0; i < n; i++) {
        const struct ct2_tensor *t = ct2_tensor_at(f->ct2, i);
        if (ct2_is_alias(f->ct2, i)) /* the same bytes would count twice */
            continue;
        struct source_tensor *o = &s->tensor[s->n_tensor++];
        *o = (struct source_tensor){
            .name = t->name, .n_dim = t->n_dim, .data = t->data, .bytes = t->bytes, .scale = 1};
        memcpy(o->dim, t->dim, sizeof t->dim);
        o->fmt = t->dtype == CT2_F16 ? QF_F16 : t->dtype == CT2_BF16 ? QF_BF16 : QF_F32;
        o->kind = t->dtype == CT2_I8 || t->dtype == CT2_I16 || t->dtype == CT2_I32 ? SOURCE_INT
                                                                                   : SOURCE_QUANT;
    }
    return 0;
}

/* "x.weight" in fp8 may have "x.scale_weight" (ComfyUI) or "x.weight_scale" beside it: one number. */
static int take_scale(struct source *s, struct source_tensor *t, struct err *e)
{
    static const char *const tail[] = {"scale_weight", "weight_scale"};
    size_t n = strlen(t->name), stem = n >= 6 ? n - 6 : 0;
    if (!stem || strcmp(t->name + stem, "weight") != 0)
        return 0;
    for (size_t i = 0; i < 2; i++) {
        char *name = arena_fmt(&s->arena, "%.*s%s", (int)stem, t->name, tail[i]);
        const struct source_tensor *f = name ? source_find(s, name) : NULL;
        if (!name)
            return source__nomem(s, e);
        if (!f)
            continue;
        size_t count = 1;
        for (int d = 0; d < f->n_dim; d++)
            count *= (size_t)f->dim[d];
        if (count != 1 || f->kind != SOURCE_QUANT || source_decode(f, 0, 1, &t->scale)) {
            err_set(e, ERR_UNSUPPORTED,
                    "tensor '%s': only one factor for a whole fp8 tensor is "
                    "known",
                    SHOW(view_str(name)));
            return file_map_prefix(e, s->path);
        }
        return 0;
    }
    return 0;
}

static int by_name(const void *x, const void *y)
{
    const struct source_tensor *a = x, *b = y;
    return strcmp(a->name, b->name);
}

/* Scales come last: they are looked up in the sorted list. */
int source__tensors(struct source *s, struct err *e)
{
    int rc = 0;
    size_t n = 0;
    for (size_t i = 0; i < s->n_file; i++) {
        const struct source_file *f = &s->file[i];
        n += f->st     ? safetensors_n_tensor(f->st)
             : f->gguf ? gguf_n_tensor(f->gguf)
                       : ct2_n_tensor(f->ct2);
    }
    s->tensor = mem_calloc(n + 1, sizeof *s->tensor);
    if (!s->tensor)
        return source__nomem(s, e);
    for (size_t i = 0; !rc && i < s->n_file; i++)
        rc = s->file[i].st     ? add_st(s, &s->file[i], e)
             : s->file[i].gguf ? add_gguf(s, &s->file[i], e)
                               : add_ct2(s, &s->file[i]);
    if (rc)
        return rc;
    qsort(s->tensor, s->n_tensor, sizeof *s->tensor, by_name);
    for (size_t i = 1; i < s->n_tensor; i++)
        if (strcmp(s->tensor[i - 1].name, s->tensor[i].name) == 0) {
            err_set(e, ERR_INVAL, "tensor '%s' is in two of its files",
                    SHOW(view_str(s->tensor[i].name)));
            return file_map_prefix(e, s->path);
        }
    for (size_t i = 0; !rc && !s->parts && i < s->n_tensor; i++)
        if (s->tensor[i].kind == SOURCE_F8_E4M3 || s->tensor[i].kind == SOURCE_F8_E5M2)
            rc = take_scale(s, &s->tensor[i], e);
    return rc;
}

/* ---- texts ---- */

/* Texts in a GGUF file have no terminator; copies made now keep the source read-only later. */
int source__meta(struct source *s, const struct gguf *g, struct err *e)
{
    size_t n = gguf_n_kv(g);
    s->meta = arena_array(&s->arena, n + 1, sizeof *s->meta);
    if (!s->meta)
        return source__nomem(s, e);
    for (size_t i = 0; i < n; i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        if (kv->type != GGUF_STRING)
            continue;
        struct source_meta *m = &s->meta[s->n_meta];
        struct view v = {0};
        m->key = arena_copy(&s->arena, kv->key.p, kv->key.len);
        if (m->key && gguf_get_str(g, m->key, &v, NULL))
            continue; /* another entry of the same key is what counts */
        m->text = arena_copy(&s->arena, v.p ? v.p : "", v.len);
        if (!m->key || !m->text)
            return source__nomem(s, e);
        s->n_meta++;
    }
    return 0;
}

const char *source_meta(const struct source *s, const char *key)
{
    for (size_t i = 0; i < s->n_file; i++) {
        const char *v = s->file[i].st ? safetensors_meta(s->file[i].st, key) : NULL;
        if (v)
            return v;
    }
    for (size_t i = 0; i < s->n_meta; i++)
        if (strcmp(s->meta[i].key, key) == 0)
            return s->meta[i].text;
    return NULL;
}
