/* See ct2.h. */
#include "engine/load/ct2.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/load/map.h"

#define TENSORS_MAX 65536
#define KIND_MAX    64

struct ct2 {
    struct file_map map;
    const char *kind;
    struct ct2_tensor *tensor; /* [n] */
    size_t n, n_own;           /* those after n_own are aliases */
};

struct reader {
    const uint8_t *p;
    size_t n, at;
    bool bad; /* beyond the end, or a name without its NUL */
};

static const void *take(struct reader *r, size_t n)
{
    if (r->bad || n > r->n - r->at) {
        r->bad = true;
        return NULL;
    }
    r->at += n;
    return r->p + r->at - n;
}

static uint32_t number(struct reader *r, size_t bytes)
{
    const uint8_t *b = take(r, bytes);
    uint32_t v = 0;
    for (size_t i = 0; b && i < bytes; i++)
        v |= (uint32_t)b[i] << (8 * i);
    return v;
}

/* In the file, with its NUL; "" when it is bad. */
static const char *name(struct reader *r)
{
    size_t n = number(r, 2);
    const char *s = take(r, n);
    if (!s || !n || memchr(s, 0, n) != s + n - 1) {
        r->bad = true;
        return "";
    }
    return s;
}

static int read_tensor(struct reader *r, struct ct2_tensor *t, struct err *e)
{
    static const size_t size[] = {4, 1, 2, 4, 2, 2};
    t->name = name(r);
    t->n_dim = (int)number(r, 1);
    if (!r->bad && t->n_dim > CT2_DIMS)
        return err_set(e, ERR_UNSUPPORTED, "tensor '%.80s': %d dimensions (at most %d are read)",
                       t->name, t->n_dim, CT2_DIMS);
    size_t count = 1;
    for (int i = 0; i < t->n_dim && !r->bad; i++) {
        t->dim[i] = number(r, 4);
        if (!ck_mul(count, (size_t)t->dim[i], &count))
            return err_set(e, ERR_LIMIT, "tensor '%.80s': its size does not fit", t->name);
    }
    uint32_t type = number(r, 1);
    t->bytes = number(r, 4);
    if (r->bad)
        return 0;
    if (type > CT2_BF16)
        return err_set(e, ERR_UNSUPPORTED, "tensor '%.80s': type %u is not known", t->name, type);
    t->dtype = (enum ct2_dtype)type;
    size_t want;
    if (!ck_mul(count, size[type], &want) || want != t->bytes)
        return err_set(e, ERR_PARSE, "tensor '%.80s': %zu bytes do not hold %zu values", t->name,
                       t->bytes, count);
    t->data = take(r, t->bytes);
    return 0;
}

/* A list of n entries that take at least `least` bytes each. */
static int check_count(const struct reader *r, size_t n, size_t least, struct err *e)
{
    if (r->bad || (n <= TENSORS_MAX && n <= (r->n - r->at) / least))
        return 0;
    return err_set(e, ERR_PARSE, "%zu tensors are more than the file can hold", n);
}

static int read_aliases(struct ct2 *c, struct reader *r, struct err *e)
{
    size_t n = r->at < r->n ? number(r, 4) : 0;
    int rc = check_count(r, n, 4, e);
    struct ct2_tensor *more =
        rc ? NULL : mem_realloc(c->tensor, (c->n + n + 1) * sizeof *c->tensor);
    if (!rc && !more)
        return err_set(e, ERR_NOMEM, "no memory for a list of its tensors");
    c->tensor = more ? more : c->tensor;
    for (size_t i = 0; i < n && !rc && !r->bad; i++) {
        const char *alias = name(r);
        const struct ct2_tensor *t = ct2_tensor_find(c, name(r));
        if (!t || r->bad)
            continue; /* of a variable that was left out */
        c->tensor[c->n] = *t;
        c->tensor[c->n++].name = alias;
    }
    return rc;
}

static int read_all(struct ct2 *c, struct err *e)
{
    struct reader r = {.p = c->map.p, .n = c->map.size};
    uint32_t version = number(&r, 4);
    c->kind = name(&r);
    number(&r, 4);
    size_t n = number(&r, 4);
    if (!r.bad && (version < 5 || version > 6))
        return err_set(e, ERR_UNSUPPORTED, "version %u of CTranslate2's format; 5 and 6 are known",
                       version);
    int rc = check_count(&r, n, 8, e);
    c->tensor = rc ? NULL : mem_calloc(n + 1, sizeof *c->tensor);
    if (!rc && !c->tensor)
        return err_set(e, ERR_NOMEM, "no memory for a list of its tensors");
    for (size_t i = 0; i < n && !rc && !r.bad; i++) {
        rc = read_tensor(&r, &c->tensor[i], e);
        c->n += !rc && !r.bad;
    }
    c->n_own = c->n;
    if (!rc && !r.bad)
        rc = read_aliases(c, &r, e);
    if (!rc && r.bad)
        rc = err_set(e, ERR_PARSE, "the file ends inside tensor %zu of %zu, or a name is broken",
                     c->n, n);
    return rc;
}

bool ct2_sniff(const char *path, char *kind, size_t n)
{
    struct file_map m;
    struct err e;
    if (file_map_open(&m, path, &e))
        return false;
    struct reader r = {.p = m.p, .n = m.size};
    uint32_t version = number(&r, 4);
    const char *s = name(&r);
    size_t len = strlen(s);
    bool is = !r.bad && version >= 1 && version <= 64 && len > 4 && len < KIND_MAX &&
              strcmp(s + len - 4, "Spec") == 0;
    if (is && kind)
        snprintf(kind, n, "%s", s);
    file_map_close(&m);
    return is;
}

int ct2_open(struct ct2 **out, const char *path, struct err *e)
{
    struct err local;
    e = e ? e : &local;
    struct ct2 *c = mem_calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return err_set(e, ERR_NOMEM, "%.200s: no memory", path);
    int rc = file_map_open(&c->map, path, e);
    rc = rc ? rc : read_all(c, e);
    if (rc) {
        ct2_close(c);
        return file_map_prefix(e, path);
    }
    *out = c;
    return 0;
}

void ct2_close(struct ct2 *c)
{
    if (!c)
        return;
    file_map_close(&c->map);
    free(c->tensor);
    free(c);
}

const char *ct2_kind(const struct ct2 *c)
{
    return c->kind;
}

size_t ct2_n_tensor(const struct ct2 *c)
{
    return c->n;
}

const struct ct2_tensor *ct2_tensor_at(const struct ct2 *c, size_t i)
{
    CHECK(i < c->n);
    return &c->tensor[i];
}

bool ct2_is_alias(const struct ct2 *c, size_t i)
{
    return i >= c->n_own;
}

const struct ct2_tensor *ct2_tensor_find(const struct ct2 *c, const char *want)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->tensor[i].name, want) == 0)
            return &c->tensor[i];
    return NULL;
}

int ct2_check_file(const struct ct2 *c, struct err *e)
{
    return file_map_check(&c->map, e);
}
