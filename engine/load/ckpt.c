/* See ckpt.h. */
#include "engine/load/ckpt.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/load/config.h"
#include "engine/load/gguf.h"
#include "engine/load/hfq.h"
#include "engine/load/kind.h"
#include "engine/load/source.h"

#define KEY_MAX 160

struct ckpt {
    struct gguf *gguf; /* a file, or ... */
    struct source *source;
    struct config *config;    /* ... a folder */
    struct hfq *hfq;          /* its quantised matrices; NULL: none */
    const char *prefix;       /* of GGUF keys */
    struct ckpt_notes *notes; /* NULL: none are kept */
    char **name;              /* GGUF: names with terminators, [n_tensor] in one block */
};

/* ---- open ---- */

/* GGUF names have no terminator in the file. */
static int names_copy(struct ckpt *c, struct err *e)
{
    size_t n = gguf_n_tensor(c->gguf), bytes = (n + 1) * sizeof(char *);
    for (size_t i = 0; i < n; i++)
        bytes += gguf_tensor_at(c->gguf, i)->name.len + 1;
    c->name = mem_alloc(bytes);
    if (!c->name)
        return err_set(e, ERR_NOMEM, "no memory for %zu tensor names", n);
    char *p = (char *)(c->name + n + 1);
    for (size_t i = 0; i < n; i++) {
        struct view v = gguf_tensor_at(c->gguf, i)->name;
        memcpy(p, v.p, v.len);
        p[v.len] = 0;
        c->name[i] = p;
        p += v.len + 1;
    }
    return 0;
}

static int folder_open(struct ckpt *c, const char *path, struct err *e)
{
    char file[PATH_MAX];
    if (snprintf(file, sizeof file, "%s/config.json", path) >= (int)sizeof file)
        return err_set(e, ERR_LIMIT, "%s: path is too long", path);
    if (access(file, R_OK))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s is a folder without config.json: no model of the Hugging Face layout",
                       path);
    int rc = config_open(&c->config, file, e);
    if (!rc)
        rc = source_open_parts(&c->source, path, e);
    return rc ? rc : hfq_open(&c->hfq, c->source, c->config, e);
}

int ckpt_open(struct ckpt **out, const char *path, struct err *e)
{
    struct stat st;
    *out = NULL;
    struct ckpt *c = mem_calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "no memory for a checkpoint");
    int rc = 0;
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) {
        rc = folder_open(c, path, e);
    } else if (!(rc = model_file_gguf(path, e)) && !(rc = gguf_open(&c->gguf, path, e))) {
        rc = names_copy(c, e);
    }
    if (rc) {
        ckpt_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

void ckpt_close(struct ckpt *c)
{
    if (!c)
        return;
    gguf_close(c->gguf);
    hfq_close(c->hfq);
    source_close(c->source);
    config_close(c->config);
    free(c->name);
    free(c);
}

const struct gguf *ckpt_gguf(const struct ckpt *c)
{
    return c->gguf;
}

struct config *ckpt_config(const struct ckpt *c)
{
    return c->config;
}

void ckpt_prefix_set(struct ckpt *c, const char *arch)
{
    c->prefix = arch;
}

int ckpt_arch(struct ckpt *c, struct view *out, struct err *e)
{
    if (c->config) {
        int n = config_len(c->config, "architectures");
        const char *s = n > 0 ? config_str_at(c->config, "architectures", 0) : NULL;
        int rc = config_error(c->config, e);
        if (rc)
            return rc;
        if (!s)
            return err_set(e, ERR_NOTFOUND, "config.json: 'architectures' is missing");
        *out = view_str(s);
        return 0;
    }
    int rc = gguf_get_str(c->gguf, "general.architecture", out, e);
    return rc == ERR_NOTFOUND ? err_set(e, rc, "key general.architecture is missing") : rc;
}

/* ---- values ---- */

/* "PREFIX.key". */
static const char *full_key(const struct ckpt *c, const char *key, char dst[KEY_MAX])
{
    snprintf(dst, KEY_MAX, "%s.%s", c->prefix, key);
    return dst;
}

/* The first path of the list that is there, at the top or in text_config. */
static bool json_find(const struct ckpt *c, const char *list, char dst[KEY_MAX])
{
    static const char *const where[] = {"", "text_config.", "llm_config."};
    for (const char *p = list; p; p = strchr(p, '|'), p = p ? p + 1 : NULL) {
        int n = (int)strcspn(p, "|");
        for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
            snprintf(dst, KEY_MAX, "%s%.*s", where[i], n, p);
            if (config_has(c->config, dst))
                return true;
        }
    }
    return false;
}

const char *ckpt_key_text(const struct ckpt *c, const char *key, const char *json, char *dst,
                          size_t n)
{
    char path[KEY_MAX];
    if (!c->config)
        snprintf(dst, n, "key %s.%s", c->prefix, key ? key : "?");
    else if (json && json_find(c, json, path))
        snprintf(dst, n, "config.json: %s", path);
    else
        snprintf(dst, n, "config.json: %.*s", json ? (int)strcspn(json, "|") : 1,
                 json ? json : "?");
    return dst;
}

void ckpt_notes_set(struct ckpt *c, struct ckpt_notes *notes)
{
    c->notes = notes;
}

static void note(struct ckpt *c, const struct ckpt_note *x)
{
    struct ckpt_notes *s = c->notes;
    if (!s || !x->key || !c->config)
        return;
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->at[i].key, x->key)) {
            if (s->at[i].row && !x->row && !s->at[i].given) {
                s->at[i].given = true;
                s->at[i].v = x->v;
            }
            return;
        }
    CHECK(s->n < CKPT_NOTES_MAX);
    s->at[s->n++] = *x;
}

void ckpt_note_row(struct ckpt *c, const char *key, const void *row)
{
    note(c, &(struct ckpt_note){.key = key, .type = CKPT_NOTE_ROW, .row = row});
}

/* Where a value is: *path for a folder, *full for a file; ERR_NOTFOUND. */
static int locate(const struct ckpt *c, const char *key, const char *json, char at[KEY_MAX])
{
    if (c->config)
        return json && json_find(c, json, at) ? 0 : ERR_NOTFOUND;
    return key && gguf_kv_find(c->gguf, full_key(c, key, at)) ? 0 : ERR_NOTFOUND;
}

int ckpt_num(struct ckpt *c, const char *key, const char *json, double *out, struct err *e)
{
    char at[KEY_MAX];
    int rc = locate(c, key, json, at);
    if (rc)
        return rc;
    if (c->config) {
        double v = config_num(c->config, at, 0, -1e300, 1e300);
        note(c, &(struct ckpt_note){.key = key, .type = CKPT_NOTE_NUM, .v = v});
        rc = config_error(c->config, e);
        *out = rc ? *out : v;
        return rc;
    }
    float f;
    rc = gguf_get_f32(c->gguf, at, &f, e);
    *out = rc ? *out : (double)f;
    return rc;
}

int ckpt_int(struct ckpt *c, const char *key, const char *json, int64_t *out, struct err *e)
{
    char at[KEY_MAX];
    int rc = locate(c, key, json, at);
    if (rc)
        return rc;
    if (c->config) {
        int64_t v = config_int(c->config, at, 0, INT64_MIN, INT64_MAX);
        note(c, &(struct ckpt_note){.key = key, .type = CKPT_NOTE_INT, .v = (double)v});
        rc = config_error(c->config, e);
        *out = rc ? *out : v;
        return rc;
    }
    uint32_t u;
    rc = gguf_get_u32(c->gguf, at, &u, e);
    *out = rc ? *out : (int64_t)u;
    return rc;
}

int ckpt_bool(struct ckpt *c, const char *key, const char *json, bool *out, struct err *e)
{
    char at[KEY_MAX];
    int rc = locate(c, key, json, at);
    if (rc)
        return rc;
    if (!c->config)
        return gguf_get_bool(c->gguf, at, out, e);
    bool v = config_bool(c->config, at, false);
    note(c, &(struct ckpt_note){.key = key, .type = CKPT_NOTE_BOOL, .v = v});
    rc = config_error(c->config, e);
    *out = rc ? *out : v;
    return rc;
}

int ckpt_str(struct ckpt *c, const char *key, const char *json, struct view *out, struct err *e)
{
    char at[KEY_MAX];
    int rc = locate(c, key, json, at);
    if (rc)
        return rc;
    if (!c->config)
        return gguf_get_str(c->gguf, at, out, e);
    const char *v = config_str(c->config, at, "");
    rc = config_error(c->config, e);
    if (!rc)
        *out = view_str(v);
    return rc;
}

int ckpt_len(struct ckpt *c, const char *key, const char *json)
{
    char at[KEY_MAX];
    if (locate(c, key, json, at))
        return 0;
    if (c->config)
        return config_len(c->config, at);
    const struct gguf_kv *kv = gguf_kv_find(c->gguf, at);
    return kv->n > INT_MAX ? INT_MAX : (int)kv->n;
}

int ckpt_num_at(struct ckpt *c, const char *key, const char *json, int i, double *out,
                struct err *e)
{
    char at[KEY_MAX];
    int rc = locate(c, key, json, at);
    if (rc)
        return rc;
    if (c->config) {
        double v = config_num_at(c->config, at, i);
        rc = config_error(c->config, e);
        *out = rc ? *out : v;
        return rc;
    }
    const struct gguf_kv *kv = gguf_kv_find(c->gguf, at);
    if (kv->type != GGUF_ARRAY)
        return i ? err_set(e, ERR_INVAL, "key %s has no element %d", at, i)
                 : ckpt_num(c, key, json, out, e);
    if (i < 0 || (uint64_t)i >= kv->n || kv->elem == GGUF_STRING)
        return err_set(e, ERR_INVAL, "key %s has no number %d", at, i);
    bool real = kv->elem == GGUF_F32 || kv->elem == GGUF_F64;
    *out = real ? (double)gguf_arr_f32(kv, (uint64_t)i) : (double)gguf_arr_int(kv, (uint64_t)i);
    return 0;
}

bool ckpt_is_num(const struct ckpt *c, const char *json, int i)
{
    char at[KEY_MAX];
    return c->config && !locate(c, NULL, json, at) && config_is_num(c->config, at, i);
}

int ckpt_str_at(struct ckpt *c, const char *json, int i, struct view *out, struct err *e)
{
    char at[KEY_MAX];
    int rc = c->config ? locate(c, NULL, json, at) : ERR_NOTFOUND;
    if (rc)
        return rc;
    const char *v = config_str_at(c->config, at, i);
    rc = config_error(c->config, e);
    if (!rc)
        *out = view_str(v ? v : "");
    return rc;
}

/* ---- tensors ---- */

static const struct source_tensor *one_find(const struct ckpt *c, const char *name)
{
    const struct source_tensor *t = hfq_find(c->hfq, name);
    return t ? t : source_find(c->source, name);
}

/* A folder's tensor under the other names that a text model has inside a larger one. */
static const struct source_tensor *wrapped_find(const struct ckpt *c, const char *name)
{
    static const char *const inside[] = {"model.language_model.", "language_model.model.",
                                         "model.text_model.", "transformer.", ""};
    char other[256];
    const struct source_tensor *t = one_find(c, name);
    if (!t && !strncmp(name, "model.", 6))
        for (size_t i = 0; !t && i < sizeof inside / sizeof *inside; i++) {
            snprintf(other, sizeof other, "%s%s", inside[i], name + 6);
            t = one_find(c, other);
        }
    if (!t) {
        const char *dot = strchr(name, '.');
        snprintf(other, sizeof other, "language_model.%s", name);
        t = one_find(c, other);
        if (!t && dot) /* a base model saved without its head's wrapper */
            t = one_find(c, dot + 1);
    }
    return t;
}

static int from_source(const struct ckpt *c, const struct source_tensor *t, struct ckpt_tensor *out,
                       struct err *e)
{
    if (t->kind != SOURCE_QUANT || t->n_dim > 4)
        return err_set(
            e, ERR_UNSUPPORTED,
            "tensor %s: neither a weight of F32, F16 or BF16 nor of a known quantisation", t->name);
    const struct hfq_tensor *q = hfq_of(c->hfq, t);
    *out = (struct ckpt_tensor){.name = t->name,
                                .fmt = t->fmt,
                                .n_dim = t->n_dim,
                                .dim = {1, 1, 1, 1},
                                .data = t->data,
                                .bytes = t->bytes,
                                .index = q ? hfq_index(q) : (size_t)(t - source_at(c->source, 0)),
                                .hfq = q};
    for (int i = 0; i < t->n_dim; i++)
        out->dim[i] = t->dim[i];
    return 0;
}

int ckpt_tensor(const struct ckpt *c, const char *name, struct ckpt_tensor *out, struct err *e)
{
    if (c->source) {
        const struct source_tensor *t = wrapped_find(c, name);
        return t ? from_source(c, t, out, e)
                 : err_set(e, ERR_NOTFOUND, "tensor %s is missing", name);
    }
    const struct gguf_tensor *t = gguf_tensor_find(c->gguf, name);
    if (!t)
        return err_set(e, ERR_NOTFOUND, "tensor %s is missing", name);
    size_t index = (size_t)(t - gguf_tensor_at(c->gguf, 0));
    *out = (struct ckpt_tensor){.name = c->name[index],
                                .fmt = t->fmt,
                                .n_dim = t->n_dim,
                                .dim = {1, 1, 1, 1},
                                .data = t->data,
                                .bytes = t->bytes,
                                .index = index};
    for (int i = 0; i < t->n_dim; i++)
        out->dim[i] = t->dim[t->n_dim - 1 - i];
    return 0;
}

bool ckpt_has(const struct ckpt *c, const char *name)
{
    return c->source ? wrapped_find(c, name) != NULL : gguf_tensor_find(c->gguf, name) != NULL;
}

bool ckpt_is_part(const struct ckpt *c, size_t i)
{
    return hfq_is_part(c->hfq, i);
}

size_t ckpt_n_tensor(const struct ckpt *c)
{
    return c->source ? source_n(c->source) : gguf_n_tensor(c->gguf);
}

const char *ckpt_tensor_name(const struct ckpt *c, size_t i, size_t *len)
{
    const char *s = c->source ? source_at(c->source, i)->name : c->name[i];
    if (len)
        *len = strlen(s);
    return s;
}

size_t ckpt_file_bytes(const struct ckpt *c)
{
    return c->source ? source_bytes(c->source) : gguf_file_bytes(c->gguf);
}

int ckpt_check_files(const struct ckpt *c, struct err *e)
{
    return c->source ? source_check_files(c->source, e) : gguf_check_file(c->gguf, e);
}
