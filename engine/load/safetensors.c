/* See safetensors.h. Layout, all little-endian:
 *
 *   u64 n │ n bytes of JSON, '{' first, spaces may pad its end │ data
 *   {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets": [begin, end)}, ...}
 *
 * Offsets count from the data's start. Other members of a tensor's object are ignored, as the
 * format's own library does. */
#include "engine/load/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/load/gguf_impl.h"
#include "engine/load/json_impl.h"
#include "engine/load/map.h"

enum {
    LEN_BYTES = 8,
    HEADER_MAX = 100000000,
    DEPTH_MAX = 8, /* the format needs 3 */
};

struct safetensors {
    struct file_map map;
    size_t start; /* of the data, in the file */
    json_t *root; /* owns the names */
    struct st_tensor *tensor;
    size_t n_tensor;
};

static const struct {
    const char *name;
    int bits;
} dtypes[ST_N_DTYPE] = {
    [ST_BOOL] = {"BOOL", 8},       [ST_F4] = {"F4", 4},           [ST_F6_E2M3] = {"F6_E2M3", 6},
    [ST_F6_E3M2] = {"F6_E3M2", 6}, [ST_U8] = {"U8", 8},           [ST_I8] = {"I8", 8},
    [ST_F8_E5M2] = {"F8_E5M2", 8}, [ST_F8_E4M3] = {"F8_E4M3", 8}, [ST_F8_E8M0] = {"F8_E8M0", 8},
    [ST_I16] = {"I16", 16},        [ST_U16] = {"U16", 16},        [ST_F16] = {"F16", 16},
    [ST_BF16] = {"BF16", 16},      [ST_I32] = {"I32", 32},        [ST_U32] = {"U32", 32},
    [ST_F32] = {"F32", 32},        [ST_C64] = {"C64", 64},        [ST_F64] = {"F64", 64},
    [ST_I64] = {"I64", 64},        [ST_U64] = {"U64", 64},
};

const char *st_dtype_name(enum st_dtype t)
{
    CHECK(t < ST_N_DTYPE);
    return dtypes[t].name;
}

int st_dtype_bits(enum st_dtype t)
{
    CHECK(t < ST_N_DTYPE);
    return dtypes[t].bits;
}

bool safetensors_sniff(const uint8_t *p, size_t n)
{
    return n > LEN_BYTES && p[LEN_BYTES] == '{' && gguf__u64(p) <= HEADER_MAX;
}

/* ---- one tensor ---- */

#define BAD(code, ...) err_set(e, code, "tensor '%s': " __VA_ARGS__)
#define NAME           SHOW(t->name)

static int parse_dtype(struct st_tensor *t, const json_t *o, struct err *e)
{
    const json_t *v = json_object_get(o, "dtype");
    if (!json_is_string(v))
        return BAD(ERR_PARSE, "dtype is missing or no text", NAME);
    for (int i = 0; i < ST_N_DTYPE; i++)
        if (strcmp(dtypes[i].name, json_string_value(v)) == 0) {
            t->dtype = (enum st_dtype)i;
            return 0;
        }
    return BAD(ERR_UNSUPPORTED, "unknown dtype '%s'", NAME, SHOW(view_str(json_string_value(v))));
}

/* A count: a whole number >= 0. */
static bool take_count(const json_t *v, int64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *out = json_integer_value(v);
    return true;
}

/* Dimensions, and in t->bytes what they take in this dtype. */
static int parse_shape(struct st_tensor *t, const json_t *o, struct err *e)
{
    const json_t *v = json_object_get(o, "shape");
    size_t n = json_array_size(v), bits = (size_t)dtypes[t->dtype].bits;
    if (!json_is_array(v))
        return BAD(ERR_PARSE, "shape is missing or no list", NAME);
    if (n > ST_DIMS_MAX)
        return BAD(ERR_UNSUPPORTED, "%zu dimensions (at most %d are read)", NAME, n, ST_DIMS_MAX);
    t->n_dim = (int)n;
    for (size_t i = 0; i < n; i++) {
        if (!take_count(json_array_get(v, i), &t->dim[i]))
            return BAD(ERR_PARSE, "dimension %zu is no whole number >= 0", NAME, i);
        if (!ck_mul(bits, (size_t)t->dim[i], &bits))
            return BAD(ERR_PARSE, "its shape takes more bytes than can be addressed", NAME);
    }
    if (bits % 8)
        return BAD(ERR_PARSE, "%zu bits are no whole number of bytes", NAME, bits);
    t->bytes = bits / 8;
    return 0;
}

static int parse_range(struct safetensors *s, struct st_tensor *t, const json_t *o, struct err *e)
{
    const json_t *v = json_object_get(o, "data_offsets");
    size_t data = s->map.size - s->start;
    int64_t begin, end;
    if (!json_is_array(v) || json_array_size(v) != 2 || !take_count(json_array_get(v, 0), &begin) ||
        !take_count(json_array_get(v, 1), &end))
        return BAD(ERR_PARSE, "data_offsets is no pair of whole numbers >= 0", NAME);
    if (begin > end)
        return BAD(ERR_PARSE, "data_offsets end (%lld) before they begin (%lld)", NAME,
                   (long long)end, (long long)begin);
    if ((uint64_t)end > data)
        return BAD(ERR_PARSE, "its data ends at byte %lld, but the file holds only %zu", NAME,
                   (long long)end, data);
    if ((size_t)(end - begin) != t->bytes)
        return BAD(ERR_PARSE, "%lld bytes of data, but its shape takes %zu in %s", NAME,
                   (long long)(end - begin), t->bytes, dtypes[t->dtype].name);
    t->data = s->map.p + s->start + begin;
    return 0;
}

static int parse_tensor(struct safetensors *s, struct st_tensor *t, const json_t *o, struct err *e)
{
    if (!json_is_object(o))
        return BAD(ERR_PARSE, "its entry is no object", NAME);
    int rc = parse_dtype(t, o, e);
    rc = rc ? rc : parse_shape(t, o, e);
    return rc ? rc : parse_range(s, t, o, e);
}

static int parse_meta(const json_t *o, struct err *e)
{
    const char *key;
    const json_t *v;
    if (!json_is_object(o))
        return err_set(e, ERR_PARSE, "__metadata__ is no object");
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        if (!json_is_string(v))
            return err_set(e, ERR_PARSE, "__metadata__: '%s' is no text", SHOW(view_str(key)));
    }
    return 0;
}

/* ---- all of them ---- */

static int parse_header(struct safetensors *s, struct err *e)
{
    json_error_t je;
    size_t size = s->map.size;
    if (size < LEN_BYTES)
        return err_set(e, ERR_PARSE, "%zu bytes are too few for a safetensors file", size);
    uint64_t n = gguf__u64(s->map.p);
    if (n > HEADER_MAX)
        return err_set(e, ERR_LIMIT, "header of %llu bytes (at most %d are read)",
                       (unsigned long long)n, HEADER_MAX);
    if (n > size - LEN_BYTES)
        return err_set(e, ERR_PARSE, "header of %llu bytes goes beyond the file's end (%zu bytes)",
                       (unsigned long long)n, size);
    const char *text = (const char *)s->map.p + LEN_BYTES;
    if (!n || text[0] != '{')
        return err_set(e, ERR_PARSE, "header does not start with '{'");
    if (load__json_depth(text, (size_t)n, DEPTH_MAX, e))
        return err_prefix(e, "header");
    s->start = LEN_BYTES + (size_t)n;
    s->root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &je);
    if (s->root)
        return 0;
    if (!je.text[0] || json_error_code(&je) == json_error_out_of_memory)
        return err_set(e, ERR_NOMEM, "no memory for a header of %llu bytes", (unsigned long long)n);
    return err_set(e, ERR_PARSE, "header: %s (byte %d)", SHOW(view_str(je.text)), je.position);
}

static int by_data(const void *x, const void *y)
{
    const struct st_tensor *a = x, *b = y;
    if (a->data != b->data)
        return a->data < b->data ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes; /* an empty one goes before its twin */
}

static int by_name(const void *x, const void *y)
{
    const struct st_tensor *a = x, *b = y;
    return strcmp(a->name.p, b->name.p);
}

/* Data is used up from its first byte to its last, each byte once. Sorts by position. */
static int check_cover(struct safetensors *s, struct err *e)
{
    const uint8_t *at = s->map.p + s->start, *end = s->map.p + s->map.size;
    if (s->n_tensor)
        qsort(s->tensor, s->n_tensor, sizeof *s->tensor, by_data);
    for (size_t i = 0; i < s->n_tensor; i++) {
        const struct st_tensor *t = &s->tensor[i];
        if (t->data < at)
            return BAD(ERR_PARSE, "its data overlaps that of '%s'", NAME, SHOW(t[-1].name));
        if (t->data > at)
            return BAD(ERR_PARSE, "%zu bytes before its data belong to no tensor", NAME,
                       (size_t)(t->data - at));
        at += t->bytes;
    }
    if (at != end)
        return err_set(e, ERR_PARSE, "%zu bytes at the file's end belong to no tensor",
                       (size_t)(end - at));
    return 0;
}

static int parse(struct safetensors *s, struct err *e)
{
    const char *key;
    json_t *v;
    int rc = parse_header(s, e);
    if (rc)
        return rc;
    s->tensor = mem_calloc(json_object_size(s->root), sizeof *s->tensor);
    if (!s->tensor)
        return err_set(e, ERR_NOMEM, "no memory for %zu tensors", json_object_size(s->root));
    json_object_foreach(s->root, key, v)
    {
        struct st_tensor *t = &s->tensor[s->n_tensor];
        bool meta = strcmp(key, "__metadata__") == 0;
        t->name = view_str(key);
        rc = meta ? parse_meta(v, e) : parse_tensor(s, t, v, e);
        if (rc)
            return rc;
        s->n_tensor += !meta;
    }
    rc = check_cover(s, e);
    if (!rc && s->n_tensor)
        qsort(s->tensor, s->n_tensor, sizeof *s->tensor, by_name);
    return rc;
}

int safetensors_open(struct safetensors **out, const char *path, struct err *e)
{
    struct err local;
    if (!e)
        e = &local;
    struct safetensors *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "%s: no memory", path);
    int rc = file_map_open(&s->map, path, e);
    rc = rc ? rc : parse(s, e);
    rc = rc ? rc : file_map_check(&s->map, e);
    if (rc) {
        file_map_prefix(e, path);
        safetensors_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void safetensors_close(struct safetensors *s)
{
    if (!s)
        return;
    free(s->tensor);
    json_decref(s->root);
    file_map_close(&s->map);
    free(s);
}

/* ---- access ---- */

size_t safetensors_n_tensor(const struct safetensors *s)
{
    return s->n_tensor;
}

const struct st_tensor *safetensors_tensor_at(const struct safetensors *s, size_t i)
{
    CHECK(i < s->n_tensor);
    return &s->tensor[i];
}

const struct st_tensor *safetensors_tensor_find(const struct safetensors *s, const char *name)
{
    struct st_tensor key = {.name = view_str(name)};
    return s->n_tensor ? bsearch(&key, s->tensor, s->n_tensor, sizeof key, by_name) : NULL;
}

const char *safetensors_meta(const struct safetensors *s, const char *key)
{
    return json_string_value(json_object_get(json_object_get(s->root, "__metadata__"), key));
}

size_t safetensors_file_bytes(const struct safetensors *s)
{
    return s->map.size;
}

int safetensors_check_file(const struct safetensors *s, struct err *e)
{
    return file_map_check(&s->map, e);
}
