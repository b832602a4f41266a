/* See config.h. */
#include "engine/load/config.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/load/json_impl.h"
#include "engine/load/map.h"

#define BYTES_MAX ((size_t)16 << 20)

struct config {
    json_t *root;
    char *name;       /* path, or what stands for it */
    struct err first; /* code 0: no complaint so far */
};

/* Takes root, whatever happens. */
static int make(struct config **out, json_t *root, const char *name, struct err *e)
{
    size_t n = strlen(name) + 1;
    struct config *c = mem_calloc(1, sizeof *c);
    if (c)
        c->name = mem_alloc(n);
    if (!c || !c->name) {
        free(c);
        json_decref(root);
        err_set(e, ERR_NOMEM, "no memory for a configuration");
        return e ? file_map_prefix(e, name) : ERR_NOMEM;
    }
    memcpy(c->name, name, n);
    c->root = root;
    *out = c;
    return 0;
}

int config_open(struct config **out, const char *path, struct err *e)
{
    json_t *root;
    int rc = load__json_file(&root, path, BYTES_MAX, e);
    return rc ? rc : make(out, root, path, e);
}

int config_open_text(struct config **out, const char *text, size_t n, const char *name,
                     struct err *e)
{
    json_t *root;
    struct err local;
    if (!e)
        e = &local;
    int rc = n > BYTES_MAX ? err_set(e, ERR_LIMIT, "%zu bytes (at most %zu are read)", n, BYTES_MAX)
                           : load__json_object(&root, text, n, e);
    return rc ? file_map_prefix(e, name) : make(out, root, name, e);
}

void config_close(struct config *c)
{
    if (!c)
        return;
    json_decref(c->root);
    free(c->name);
    free(c);
}

/* ---- look-up ---- */

/* A member of an object, or, by number, of an array. */
static const json_t *member(const json_t *o, const char *key, size_t n)
{
    char *end;
    if (!json_is_array(o))
        return json_object_getn(o, key, n);
    unsigned long i = *key >= '0' && *key <= '9' ? strtoul(key, &end, 10) : ULONG_MAX;
    return i < ULONG_MAX && end == key + n ? json_array_get(o, i) : NULL;
}

/* The value, NULL when absent or null. A key with a dot in it is tried as it stands first. */
static const json_t *find(const struct config *c, const char *key)
{
    const json_t *o = c->root, *v = json_object_get(o, key);
    const char *at = key, *dot;
    while (!v && (dot = strchr(at, '.')) != NULL) {
        o = member(o, at, (size_t)(dot - at));
        at = dot + 1;
        v = member(o, at, strlen(at));
    }
    return json_is_null(v) ? NULL : v;
}

/* ---- what is wrong ----
 *
 * A reader asks for a dozen values and checks once. Only the first complaint is kept: later ones often follow from it. */
#define COMPLAIN(c, ...)                                                                           \
    do {                                                                                           \
        if (!(c)->first.code) {                                                                    \
            err_set(&(c)->first, ERR_INVAL, __VA_ARGS__);                                          \
            file_map_prefix(&(c)->first, (c)->name);                                               \
        }                                                                                          \
    } while (0)

bool config_has(const struct config *c, const char *key)
{
    return find(c, key) != NULL;
}

/* A whole number, also one written as 2.0. */
static bool whole(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    double d = json_real_value(v);
    if (!json_is_real(v) || d != floor(d) || fabs(d) > 0x1p53)
        return false;
    *out = (int64_t)d;
    return true;
}

/* Element i of the array at key; a bare number is an array of one. NULL: noted. */
static const json_t *element(struct config *c, const char *key, int i)
{
    const json_t *v = find(c, key);
    if (json_is_number(v) && i == 0)
        return v;
    const json_t *x = i < 0 ? NULL : json_array_get(v, (size_t)i);
    if (!x)
        COMPLAIN(c, "'%s' has no element %d", key, i);
    return x;
}

int64_t config_int(struct config *c, const char *key, int64_t def, int64_t min, int64_t max)
{
    const json_t *v = find(c, key);
    int64_t x;
    if (!v)
        return def;
    if (whole(v, &x) && x >= min && x <= max)
        return x;
    COMPLAIN(c, "'%s' must be a whole number from %lld to %lld", key, (long long)min,
             (long long)max);
    return def;
}

double config_num(struct config *c, const char *key, double def, double min, double max)
{
    const json_t *v = find(c, key);
    if (!v)
        return def;
    double x = json_number_value(v);
    if (json_is_number(v) && x >= min && x <= max)
        return x;
    COMPLAIN(c, "'%s' must be a number from %g to %g", key, min, max);
    return def;
}

bool config_bool(struct config *c, const char *key, bool def)
{
    const json_t *v = find(c, key);
    if (!v)
        return def;
    if (json_is_boolean(v))
        return json_is_true(v);
    COMPLAIN(c, "'%s' must be true or false", key);
    return def;
}

const char *config_str(struct config *c, const char *key, const char *def)
{
    const json_t *v = find(c, key);
    if (!v)
        return def;
    if (json_is_string(v))
        return json_string_value(v);
    COMPLAIN(c, "'%s' must be a text", key);
    return def;
}

int config_len(struct config *c, const char *key)
{
    const json_t *v = find(c, key);
    if (!v)
        return 0;
    if (json_is_number(v))
        return 1;
    if (!json_is_array(v))
        COMPLAIN(c, "'%s' must be a list", key);
    return (int)json_array_size(v); /* the file's limit keeps it far below INT_MAX */
}

int64_t config_int_at(struct config *c, const char *key, int i, int64_t min, int64_t max)
{
    const json_t *v = element(c, key, i);
    int64_t x;
    if (!v)
        return min;
    if (whole(v, &x) && x >= min && x <= max)
        return x;
    COMPLAIN(c, "'%s' element %d must be a whole number from %lld to %lld", key, i, (long long)min,
             (long long)max);
    return min;
}

double config_num_at(struct config *c, const char *key, int i)
{
    const json_t *v = element(c, key, i);
    if (v && !json_is_number(v))
        COMPLAIN(c, "'%s' element %d must be a number", key, i);
    return json_number_value(v);
}

const char *config_str_at(struct config *c, const char *key, int i)
{
    const json_t *v = element(c, key, i);
    if (v && !json_is_string(v))
        COMPLAIN(c, "'%s' element %d must be a text", key, i);
    return json_is_string(v) ? json_string_value(v) : "";
}

bool config_null_at(const struct config *c, const char *key, int i)
{
    return i >= 0 && json_is_null(json_array_get(find(c, key), (size_t)i));
}

bool config_is_num(const struct config *c, const char *key, int i)
{
    const json_t *v = find(c, key);
    return json_is_number(i < 0 ? v : json_array_get(v, (size_t)i));
}

int config_n_key(const struct config *c)
{
    return (int)json_object_size(c->root);
}

const char *config_key_at(const struct config *c, int i)
{
    CHECK(i >= 0 && i < config_n_key(c));
    void *at = json_object_iter(c->root);
    while (i--)
        at = json_object_iter_next(c->root, at);
    return json_object_iter_key(at);
}

void config_need(struct config *c, const char *key)
{
    if (!config_has(c, key))
        COMPLAIN(c, "'%s' is missing", key);
}

int config_error(const struct config *c, struct err *e)
{
    if (!c->first.code)
        return 0;
    return err_set(e, c->first.code, "%s", c->first.text);
}
