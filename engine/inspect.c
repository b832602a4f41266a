/* tools_inspect: what is in a model's files. See tools.h. */
#include "engine/tools.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/load/config.h"
#include "engine/load/gguf.h"
#include "engine/load/source.h"

#define ELEMS_SHOWN 6
#define TEXT_SHOWN  120

struct view_of {
    struct buf *out;
    bool json;
    bool first; /* of a list */
};

static void key_put(struct view_of *v, const char *key, size_t n)
{
    if (v->json) {
        if (!v->first)
            buf_char(v->out, ',');
        buf_json(v->out, key, n);
        buf_char(v->out, ':');
    } else {
        buf_fmt(v->out, "  %.*s = ", (int)n, key);
    }
    v->first = false;
}

static void text_put(struct view_of *v, struct view s)
{
    if (v->json) {
        buf_json(v->out, s.p, s.len);
        return;
    }
    struct view cut = {s.p, s.len < TEXT_SHOWN ? s.len : TEXT_SHOWN};
    while (cut.len < s.len && cut.len > 0 && (s.p[cut.len] & 0xc0) == 0x80)
        cut.len--;
    buf_json(v->out, cut.p, cut.len); /* line ends and the like as escapes */
    if (cut.len < s.len)
        buf_fmt(v->out, "... (%zu bytes)", s.len);
}

static void elem_put(struct view_of *v, const struct gguf_kv *kv, uint64_t i)
{
    if (kv->elem == GGUF_STRING)
        text_put(v, gguf_arr_str(kv, i));
    else if (kv->elem == GGUF_F32 || kv->elem == GGUF_F64)
        buf_fmt(v->out, "%.9g", (double)gguf_arr_f32(kv, i));
    else
        buf_fmt(v->out, "%lld", (long long)gguf_arr_int(kv, i));
}

static void value_put(struct view_of *v, const struct gguf_kv *kv)
{
    if (kv->type == GGUF_ARRAY) {
        uint64_t n = kv->n < ELEMS_SHOWN ? kv->n : ELEMS_SHOWN;
        buf_fmt(v->out, v->json ? "{\"n\":%llu,\"first\":[" : "[%llu] ", (unsigned long long)kv->n);
        for (uint64_t i = 0; i < n; i++) {
            if (i)
                buf_char(v->out, ',');
            elem_put(v, kv, i);
        }
        buf_str(v->out, v->json ? "]}" : n < kv->n ? ", ..." : "");
        return;
    }
    struct gguf_kv one = *kv; /* a value is its own list */
    one.type = GGUF_ARRAY;
    one.elem = kv->type;
    if (kv->type == GGUF_STRING) {
        uint64_t len;
        memcpy(&len, kv->data, 8);
        text_put(v, (struct view){(const char *)kv->data + 8, (size_t)len});
    } else if (kv->type == GGUF_BOOL) {
        buf_str(v->out, gguf_arr_int(&one, 0) ? "true" : "false");
    } else {
        elem_put(v, &one, 0);
    }
}

/* ---- tensors ---- */

struct sum {
    const char *type;
    size_t n, bytes;
};
struct sums {
    struct sum s[64];
    int n;
};

static void sum_add(struct sums *s, const char *type, size_t bytes)
{
    int i = 0;
    while (i < s->n && strcmp(s->s[i].type, type) != 0)
        i++;
    if (i == (int)(sizeof s->s / sizeof *s->s))
        return;
    if (i == s->n)
        s->s[s->n++].type = type;
    s->s[i].n++;
    s->s[i].bytes += bytes;
}

static void tensor_put(struct view_of *v, struct view name, const char *type, const int64_t *dim,
                       int n_dim, size_t bytes)
{
    if (v->json) {
        buf_str(v->out, v->first ? "{\"name\":" : ",{\"name\":");
        buf_json(v->out, name.p, name.len);
        buf_fmt(v->out, ",\"type\":\"%s\",\"shape\":[", type);
    } else {
        buf_fmt(v->out, "  %-9s %12zu  %.*s [", type, bytes, (int)name.len, name.p);
    }
    for (int d = 0; d < n_dim; d++)
        buf_fmt(v->out, d ? ", %lld" : "%lld", (long long)dim[d]);
    if (v->json)
        buf_fmt(v->out, "],\"bytes\":%zu}", bytes);
    else
        buf_str(v->out, "]\n");
    v->first = false;
}

static void sums_put(struct view_of *v, const struct sums *s)
{
    buf_str(v->out, v->json ? "],\"types\":{" : "types:\n");
    for (int i = 0; i < s->n; i++)
        if (v->json)
            buf_fmt(v->out, "%s\"%s\":{\"tensors\":%zu,\"bytes\":%zu}", i ? "," : "", s->s[i].type,
                    s->s[i].n, s->s[i].bytes);
        else
            buf_fmt(v->out, "  %-9s %6zu tensors %12zu bytes\n", s->s[i].type, s->s[i].n,
                    s->s[i].bytes);
    if (v->json)
        buf_char(v->out, '}');
}

static void head_put(struct view_of *v, const char *path, const char *kind)
{
    if (v->json) {
        buf_str(v->out, "{\"file\":");
        buf_json(v->out, path, strlen(path));
        buf_fmt(v->out, ",\"kind\":\"%s\",\"metadata\":{", kind);
    } else {
        buf_fmt(v->out, "%s: %s\nmetadata:\n", path, kind);
    }
    v->first = true;
}

static void tensors_head(struct view_of *v, size_t n)
{
    if (v->json)
        buf_str(v->out, "},\"tensors\":[");
    else
        buf_fmt(v->out,
                "tensors: %zu (type, bytes, name, shape with the outermost dimension first)\n", n);
    v->first = true;
}

static void gguf_put(struct view_of *v, const char *path, const struct gguf *g)
{
    struct sums sums = {0};
    char kind[24];
    snprintf(kind, sizeof kind, "GGUF version %u", gguf_version(g));
    head_put(v, path, kind);
    for (size_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        key_put(v, kv->key.p, kv->key.len);
        value_put(v, kv);
        if (!v->json)
            buf_char(v->out, '\n');
    }
    tensors_head(v, gguf_n_tensor(g));
    for (size_t i = 0; i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const char *type = quant_format_get((uint32_t)t->fmt)->name;
        int64_t dim[4];
        for (int d = 0; d < t->n_dim; d++)
            dim[d] = t->dim[t->n_dim - 1 - d];
        tensor_put(v, t->name, type, dim, t->n_dim, t->bytes);
        sum_add(&sums, type, t->bytes);
    }
    sums_put(v, &sums);
}

static const char *source_type(const struct source_tensor *t)
{
    static const char *const name[] = {[SOURCE_F8_E4M3] = "F8_E4M3",
                                       [SOURCE_F8_E5M2] = "F8_E5M2",
                                       [SOURCE_F64] = "F64",
                                       [SOURCE_INT] = "INT"};
    return t->kind == SOURCE_QUANT ? quant_format_get((uint32_t)t->fmt)->name : name[t->kind];
}

static void config_put(struct view_of *v, struct config *c)
{
    static const char *const keys[] = {"architectures", "model_type", "torch_dtype", "dtype",
                                       "quantization_config.quant_method"};
    for (size_t i = 0; c && i < sizeof keys / sizeof *keys; i++) {
        const char *s = i == 0 ? config_len(c, keys[0]) > 0 ? config_str_at(c, keys[0], 0) : NULL
                               : config_str(c, keys[i], NULL);
        if (!s || config_error(c, NULL))
            continue;
        key_put(v, keys[i], strlen(keys[i]));
        text_put(v, view_str(s));
        if (!v->json)
            buf_char(v->out, '\n');
    }
}

static int source_put(struct view_of *v, const char *path, struct err *e)
{
    char file[4096];
    struct source *s = NULL;
    struct config *c = NULL;
    struct stat st;
    int rc = source_open_parts(&s, path, e);
    snprintf(file, sizeof file, "%s/config.json", path);
    if (!rc && !stat(file, &st))
        rc = config_open(&c, file, e);
    if (!rc) {
        struct sums sums = {0};
        head_put(v, path, "safetensors");
        config_put(v, c);
        tensors_head(v, source_n(s));
        for (size_t i = 0; i < source_n(s); i++) {
            const struct source_tensor *t = source_at(s, i);
            tensor_put(v, view_str(t->name), source_type(t), t->dim, t->n_dim, t->bytes);
            sum_add(&sums, source_type(t), t->bytes);
        }
        sums_put(v, &sums);
    }
    config_close(c);
    source_close(s);
    return rc;
}

int tools_inspect(const char *path, bool json, struct buf *out, struct err *e)
{
    struct view_of v = {out, json, true};
    struct stat st;
    char magic[4] = "";
    if (stat(path, &st))
        return err_set(e, ERR_NOTFOUND, "%s: %m", path);
    FILE *f = S_ISDIR(st.st_mode) ? NULL : fopen(path, "rb");
    size_t n = f ? fread(magic, 1, 4, f) : 0;
    if (f)
        fclose(f);
    int rc;
    if (n == 4 && memcmp(magic, "GGUF", 4) == 0) {
        struct gguf *g = NULL;
        rc = gguf_open(&g, path, e);
        if (!rc)
            gguf_put(&v, path, g);
        gguf_close(g);
    } else {
        rc = source_put(&v, path, e);
    }
    if (!rc && json)
        buf_char(out, '}');
    return rc || !out->failed ? rc : err_set(e, ERR_NOMEM, "%s: no memory for the list", path);
}
