/* See gguf.h. Layout: header, key-values, tensor records, padding to the alignment, tensor data.
 *
 *   "GGUF" u32 version, u64 n_tensor, u64 n_kv
 *   kv:     string key, u32 type, value          string: u64 length, bytes
 *   tensor: string name, u32 n_dim, u64 dim[n_dim], u32 type, u64 offset from the data section
 *
 * Memory use follows what was really parsed, never a count that the header claims: records are grown by
 * doubling, and offsets of string arrays are allocated after their strings were walked. */
#include "engine/load/gguf_impl.h"

#include <limits.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/load/map.h"

enum {
    HEADER_BYTES = 24,
    KV_MIN = 8 + 1 + 4 + 1,             /* bytes that a key-value takes at least */
    TENSOR_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* the same for a tensor record */
    NAME_MAX_BYTES = 65535,             /* keys and tensor names */
    ITEMS_MAX = 1 << 24,                /* keys, or tensors */
    ALIGN_DEFAULT = 32,
    ALIGN_MAX = 1 << 30,
};

struct gguf {
    struct file_map map;
    uint32_t version;
    struct gguf_kv *kv;
    struct gguf_tensor *tensor;
    size_t n_kv, n_tensor;
    uint32_t *kv_slot, *tensor_slot; /* open addressing: index + 1, 0 = free */
    size_t kv_mask, tensor_mask;
    struct hash_key hash;
    struct gguf **part; /* [n_part] further files of the model */
    size_t n_part;
};

/* Cursor over the mapping: pos <= size always holds. */
struct reader {
    const uint8_t *p;
    size_t pos, size;
    struct err *e;
};

static size_t left(const struct reader *r)
{
    return r->size - r->pos;
}

static bool take_u32(struct reader *r, uint32_t *out)
{
    if (left(r) < 4)
        return false;
    *out = gguf__u32(r->p + r->pos);
    r->pos += 4;
    return true;
}

static bool take_u64(struct reader *r, uint64_t *out)
{
    if (left(r) < 8)
        return false;
    *out = gguf__u64(r->p + r->pos);
    r->pos += 8;
    return true;
}

/* A string's bytes; on false *out holds the length that was claimed, with p NULL. */
static bool take_str(struct reader *r, struct view *out)
{
    uint64_t n;
    *out = (struct view){0};
    if (!take_u64(r, &n))
        return false;
    out->len = n;
    if (n > left(r))
        return false;
    out->p = (const char *)r->p + r->pos;
    r->pos += n;
    return true;
}

/* ggml's names for tensor types that this build does not decode, so that the refusal says what it is. */
static const char *tensor_type_name(uint32_t t)
{
    static const struct {
        uint32_t id;
        const char *name;
    } known[] = {{24, "I8"}, {25, "I16"}, {26, "I32"}, {27, "I64"}, {28, "F64"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].id == t)
            return known[i].name;
    return "unknown";
}

/* Make room for one more record of `size` bytes in *p, which holds n (a power of two means full). */
static int grow(void *p, size_t n, size_t size)
{
    void *old, *fresh;
    size_t cap = n ? 2 * n : 16, bytes;
    if (n && (n < 16 || (n & (n - 1))))
        return 0;
    memcpy(&old, p, sizeof old);
    if (!ck_mul(cap, size, &bytes) || !(fresh = mem_realloc(old, bytes)))
        return ERR_NOMEM;
    memcpy(p, &fresh, sizeof fresh);
    return 0;
}

/* ---- parsing ---- */

static int parse_header(struct gguf *g, struct reader *r, uint64_t *n_tensor, uint64_t *n_kv)
{
    if (g->map.size >= 4 && memcmp(r->p, "GGUF", 4) != 0) {
        if (memcmp(r->p, "FUGG", 4) == 0)
            return err_set(r->e, ERR_UNSUPPORTED,
                           "big-endian GGUF file; only little-endian is read");
        return err_set(r->e, ERR_PARSE, "not a GGUF file: it starts with %02x %02x %02x %02x",
                       r->p[0], r->p[1], r->p[2], r->p[3]);
    }
    if (g->map.size < HEADER_BYTES)
        return err_set(r->e, ERR_PARSE, "%zu bytes are too few for a GGUF header (%d)", g->map.size,
                       HEADER_BYTES);
    r->pos = 4;
    take_u32(r, &g->version);
    if (g->version && !(g->version & 0xffff))
        return err_set(r->e, ERR_UNSUPPORTED, "big-endian GGUF file; only little-endian is read");
    if (g->version != 2 && g->version != 3)
        return err_set(r->e, ERR_UNSUPPORTED, "GGUF version %u; versions 2 and 3 are read",
                       g->version);
    take_u64(r, n_tensor);
    take_u64(r, n_kv);
    if (*n_kv > left(r) / KV_MIN || *n_kv > ITEMS_MAX)
        return err_set(r->e, ERR_PARSE, "key count %llu is more than %zu bytes can hold",
                       (unsigned long long)*n_kv, g->map.size);
    if (*n_tensor > left(r) / TENSOR_MIN || *n_tensor > ITEMS_MAX)
        return err_set(r->e, ERR_PARSE, "tensor count %llu is more than %zu bytes can hold",
                       (unsigned long long)*n_tensor, g->map.size);
    return 0;
}

static int truncated(struct reader *r, const char *what, struct view name)
{
    return err_set(r->e, ERR_PARSE, "%s '%s' goes beyond the file's end (%zu bytes)", what,
                   SHOW(name), r->size);
}

static int bad_bool(struct reader *r, const struct gguf_kv *kv)
{
    for (uint64_t i = 0; i < kv->n; i++)
        if (kv->data[i] > 1)
            return err_set(r->e, ERR_PARSE, "key '%s': %u is no bool", SHOW(kv->key), kv->data[i]);
    return 0;
}

/* The strings of an array: walk them once to check, then note where each begins. */
static int parse_strings(struct reader *r, struct gguf_kv *kv)
{
    size_t start = r->pos, bytes;
    struct view s;
    if (kv->n > left(r) / 8)
        return err_set(r->e, ERR_PARSE, "key '%s': %llu strings are more than the file can hold",
                       SHOW(kv->key), (unsigned long long)kv->n);
    for (uint64_t i = 0; i < kv->n; i++)
        if (!take_str(r, &s))
            return err_set(r->e, ERR_PARSE, "key '%s': string %llu goes beyond the file's end",
                           SHOW(kv->key), (unsigned long long)i);
    uint64_t *off = ck_mul(kv->n, sizeof *off, &bytes) ? mem_alloc(bytes) : NULL;
    if (!off)
        return err_set(r->e, ERR_NOMEM, "key '%s': no memory for %llu strings", SHOW(kv->key),
                       (unsigned long long)kv->n);
    size_t at = 0;
    for (uint64_t i = 0; i < kv->n; i++) {
        off[i] = at;
        at += 8 + gguf__u64(r->p + start + at);
    }
    kv->str = off;
    return 0;
}

static int parse_array(struct reader *r, struct gguf_kv *kv)
{
    uint32_t elem;
    size_t bytes;
    if (!take_u32(r, &elem) || !take_u64(r, &kv->n))
        return truncated(r, "array of key", kv->key);
    kv->elem = (enum gguf_type)elem;
    kv->data = r->p + r->pos;
    if (elem == GGUF_ARRAY)
        return err_set(r->e, ERR_UNSUPPORTED, "key '%s': an array of arrays", SHOW(kv->key));
    if (elem == GGUF_STRING)
        return parse_strings(r, kv);
    if (!gguf__type_bytes(elem))
        return err_set(r->e, ERR_PARSE, "key '%s': unknown element type %u", SHOW(kv->key), elem);
    if (!ck_mul(kv->n, gguf__type_bytes(elem), &bytes) || bytes > left(r))
        return err_set(r->e, ERR_PARSE, "key '%s': array of %llu %s goes beyond the file's end",
                       SHOW(kv->key), (unsigned long long)kv->n, gguf__type_name(elem));
    r->pos += bytes;
    return elem == GGUF_BOOL ? bad_bool(r, kv) : 0;
}

static int parse_kv(struct reader *r, struct gguf_kv *kv, size_t i)
{
    uint32_t type;
    struct view s;
    if (!take_str(r, &kv->key))
        return err_set(r->e, ERR_PARSE, "key %zu: its name (%zu bytes) goes beyond the file's end",
                       i, kv->key.len);
    if (!kv->key.len || kv->key.len > NAME_MAX_BYTES)
        return err_set(r->e, ERR_PARSE, "key %zu: a name of %zu bytes (1 to %d are allowed)", i,
                       kv->key.len, NAME_MAX_BYTES);
    if (!take_u32(r, &type))
        return truncated(r, "type of key", kv->key);
    kv->type = (enum gguf_type)type;
    kv->n = 1;
    kv->data = r->p + r->pos;
    if (type == GGUF_ARRAY)
        return parse_array(r, kv);
    if (type == GGUF_STRING)
        return take_str(r, &s) ? 0 : truncated(r, "string of key", kv->key);
    if (!gguf__type_bytes(type))
        return err_set(r->e, ERR_PARSE, "key '%s': unknown value type %u", SHOW(kv->key), type);
    if (gguf__type_bytes(type) > left(r))
        return truncated(r, "value of key", kv->key);
    r->pos += gguf__type_bytes(type);
    return type == GGUF_BOOL ? bad_bool(r, kv) : 0;
}

/* Dimensions and byte size. The product of dimensions fits int64_t, so callers may multiply freely. */
static int parse_shape(struct reader *r, struct gguf_tensor *t)
{
    uint32_t n_dim;
    int64_t total = 1;
    if (!take_u32(r, &n_dim))
        return truncated(r, "record of tensor", t->name);
    if (n_dim < 1 || n_dim > 4)
        return err_set(r->e, ERR_PARSE, "tensor '%s': %u dimensions (1 to 4 are allowed)",
                       SHOW(t->name), n_dim);
    t->n_dim = (int)n_dim;
    for (int d = 0; d < 4; d++) {
        uint64_t n = 1;
        if (d < t->n_dim && !take_u64(r, &n))
            return truncated(r, "record of tensor", t->name);
        if (!n || n > INT64_MAX || __builtin_mul_overflow(total, (int64_t)n, &total))
            return err_set(r->e, ERR_PARSE, "tensor '%s': dimension %d is %llu: zero or too large",
                           SHOW(t->name), d, (unsigned long long)n);
        t->dim[d] = (int64_t)n;
    }
    return 0;
}

/* One tensor record; its offset is kept in *offset until the data section's start is known. */
static int parse_tensor(struct reader *r, struct gguf_tensor *t, size_t i, uint64_t *offset)
{
    uint32_t type;
    size_t row, rows;
    if (!take_str(r, &t->name))
        return err_set(r->e, ERR_PARSE,
                       "tensor %zu: its name (%zu bytes) goes beyond the file's end", i,
                       t->name.len);
    if (!t->name.len || t->name.len > NAME_MAX_BYTES)
        return err_set(r->e, ERR_PARSE, "tensor %zu: a name of %zu bytes (1 to %d are allowed)", i,
                       t->name.len, NAME_MAX_BYTES);
    int rc = parse_shape(r, t);
    if (rc)
        return rc;
    if (!take_u32(r, &type) || !take_u64(r, offset))
        return truncated(r, "record of tensor", t->name);
    const struct quant_format *f = type < QF_GGUF_END ? quant_format_get(type) : NULL;
    if (!f)
        return err_set(r->e, ERR_UNSUPPORTED, "tensor '%s': type %u (%s) is not supported",
                       SHOW(t->name), type, tensor_type_name(type));
    t->fmt = f->id;
    if (t->dim[0] % f->block_len)
        return err_set(r->e, ERR_PARSE,
                       "tensor '%s': rows of %lld are no multiple of %s's block (%d)",
                       SHOW(t->name), (long long)t->dim[0], f->name, f->block_len);
    rows = (size_t)(t->dim[1] * t->dim[2] * t->dim[3]);
    if (!quant_row_bytes(f, t->dim[0], &row) || !ck_mul(row, rows, &t->bytes))
        return err_set(r->e, ERR_PARSE, "tensor '%s': its size overflows", SHOW(t->name));
    return 0;
}

/* Resolve an offset against the data section, which begins at `start` and ends with the file. */
static int place_tensor(struct gguf *g, struct gguf_tensor *t, uint64_t offset, size_t start,
                        size_t align, struct err *e)
{
    size_t at, end;
    if (offset % align)
        return err_set(e, ERR_PARSE, "tensor '%s': offset %llu is no multiple of the alignment %zu",
                       SHOW(t->name), (unsigned long long)offset, align);
    if (!ck_add(start, offset, &at) || !ck_add(at, t->bytes, &end) || end > g->map.size)
        return err_set(
            e, ERR_PARSE,
            "tensor '%s': %zu bytes at %zu + %llu lie beyond the file's end (%zu bytes); "
            "an incomplete download?",
            SHOW(t->name), t->bytes, start, (unsigned long long)offset, g->map.size);
    t->data = g->map.p + at;
    return 0;
}

/* ---- look-up ---- */

/* Slots for n names (at least twice as many), all free. */
static uint32_t *slots_new(size_t n, size_t *mask)
{
    size_t cap = 16;
    while (cap < 2 * n) /* n <= ITEMS_MAX */
        cap *= 2;
    *mask = cap - 1;
    return mem_calloc(cap, sizeof(uint32_t));
}

static int index_kv(struct gguf *g, struct err *e)
{
    g->kv_slot = slots_new(g->n_kv, &g->kv_mask);
    if (!g->kv_slot)
        return err_set(e, ERR_NOMEM, "no memory for %zu keys", g->n_kv);
    for (size_t i = 0; i < g->n_kv; i++) {
        struct view k = g->kv[i].key;
        size_t s = hash_bytes(g->hash, k.p, k.len) & g->kv_mask;
        for (; g->kv_slot[s]; s = (s + 1) & g->kv_mask)
            if (view_eq(g->kv[g->kv_slot[s] - 1].key, k))
                return err_set(e, ERR_PARSE, "key '%s' is there twice", SHOW(k));
        g->kv_slot[s] = (uint32_t)i + 1;
    }
    return 0;
}

static int index_tensors(struct gguf *g, struct err *e)
{
    g->tensor_slot = slots_new(g->n_tensor, &g->tensor_mask);
    if (!g->tensor_slot)
        return err_set(e, ERR_NOMEM, "no memory for %zu tensors", g->n_tensor);
    for (size_t i = 0; i < g->n_tensor; i++) {
        struct view k = g->tensor[i].name;
        size_t s = hash_bytes(g->hash, k.p, k.len) & g->tensor_mask;
        for (; g->tensor_slot[s]; s = (s + 1) & g->tensor_mask)
            if (view_eq(g->tensor[g->tensor_slot[s] - 1].name, k))
                return err_set(e, ERR_PARSE, "tensor '%s' is there twice", SHOW(k));
        g->tensor_slot[s] = (uint32_t)i + 1;
    }
    return 0;
}

const struct gguf_kv *gguf_kv_find(const struct gguf *g, const char *key)
{
    struct view k = view_str(key);
    size_t s = hash_bytes(g->hash, k.p, k.len) & g->kv_mask;
    for (; g->kv_slot[s]; s = (s + 1) & g->kv_mask)
        if (view_eq(g->kv[g->kv_slot[s] - 1].key, k))
            return &g->kv[g->kv_slot[s] - 1];
    return NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    struct view k = view_str(name);
    size_t s = hash_bytes(g->hash, k.p, k.len) & g->tensor_mask;
    for (; g->tensor_slot[s]; s = (s + 1) & g->tensor_mask)
        if (view_eq(g->tensor[g->tensor_slot[s] - 1].name, k))
            return &g->tensor[g->tensor_slot[s] - 1];
    return NULL;
}

/* ---- open and close ---- */

static int alignment_get(const struct gguf *g, size_t *align, struct err *e)
{
    uint32_t a = ALIGN_DEFAULT;
    int rc = gguf_get_u32(g, "general.alignment", &a, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    /* The specification asks for a multiple of 8, which also makes every tensor safe to read in place. */
    if (a < 8 || a > ALIGN_MAX || (a & (a - 1)))
        return err_set(e, ERR_PARSE, "key 'general.alignment': %u is no power of two from 8 to %d",
                       a, ALIGN_MAX);
    *align = a;
    return 0;
}

static int parse_tensors(struct gguf *g, struct reader *r, uint64_t n)
{
    uint64_t *offset = NULL;
    size_t align = 0, start = 0;
    int rc = alignment_get(g, &align, r->e);
    for (; !rc && g->n_tensor < n; g->n_tensor += !rc) {
        size_t i = g->n_tensor;
        if (grow(&g->tensor, i, sizeof *g->tensor) || grow(&offset, i, sizeof *offset)) {
            rc = err_set(r->e, ERR_NOMEM, "no memory for %zu tensors", i + 1);
            break;
        }
        g->tensor[i] = (struct gguf_tensor){0};
        rc = parse_tensor(r, &g->tensor[i], i, &offset[i]);
    }
    if (!rc)
        rc = index_tensors(g, r->e);
    if (!rc && !ck_round_up(r->pos, align, &start))
        rc = err_set(r->e, ERR_PARSE, "the header ends beyond what can be addressed");
    for (size_t i = 0; !rc && i < g->n_tensor; i++)
        rc = place_tensor(g, &g->tensor[i], offset[i], start, align, r->e);
    free(offset);
    return rc;
}

static int parse(struct gguf *g, struct err *e)
{
    struct reader r = {g->map.p, 0, g->map.size, e};
    uint64_t n_tensor = 0, n_kv = 0;
    int rc = parse_header(g, &r, &n_tensor, &n_kv);
    while (!rc && g->n_kv < n_kv) {
        if (grow(&g->kv, g->n_kv, sizeof *g->kv))
            return err_set(e, ERR_NOMEM, "no memory for %zu keys", g->n_kv + 1);
        struct gguf_kv *kv = &g->kv[g->n_kv];
        *kv = (struct gguf_kv){0};
        rc = parse_kv(&r, kv, g->n_kv++); /* counted at once: close frees what it allocated */
    }
    if (!rc)
        rc = index_kv(g, e);
    return rc ? rc : parse_tensors(g, &r, n_tensor);
}

/* One file of a model. */
static int open_one(struct gguf **out, const char *path, struct err *e)
{
    struct gguf *g = mem_calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "%s: no memory", path);
    g->hash = hash_key_random();
    int rc = file_map_open(&g->map, path, e);
    if (!rc)
        rc = parse(g, e);
    if (!rc)
        rc = gguf_check_file(g, e);
    if (rc) {
        file_map_prefix(e, path);
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

/* ---- models in several files (llama.cpp's gguf-split): NAME-00001-of-00003.gguf, ... ---- */

#define PARTS_MAX   1000
#define PART_SUFFIX (sizeof "-00001-of-00003.gguf" - 1)

static int part_add(struct gguf *g, struct gguf *p, uint32_t i, uint32_t n, struct err *e)
{
    uint32_t no = UINT32_MAX, count = 0;
    int rc = gguf_get_u32(p, "split.no", &no, e);
    rc = rc ? rc : gguf_get_u32(p, "split.count", &count, e);
    if (rc)
        return rc;
    if (no != i || count != n)
        return err_set(e, ERR_PARSE, "it is part %u of %u, expected part %u of %u", no + 1, count,
                       i + 1, n);
    if (p->n_tensor > ITEMS_MAX - g->n_tensor)
        return err_set(e, ERR_LIMIT, "more than %d tensors in all", ITEMS_MAX);
    for (size_t k = 0; k < p->n_tensor; k++) {
        if (grow(&g->tensor, g->n_tensor, sizeof *g->tensor))
            return err_set(e, ERR_NOMEM, "no memory for %zu tensors", g->n_tensor + 1);
        g->tensor[g->n_tensor++] = p->tensor[k];
    }
    return 0;
}

/* The files beside the first one, whose tensors become its own. */
static int parts_add(struct gguf *g, const char *path, uint32_t n, struct err *e)
{
    char name[PATH_MAX], want[PART_SUFFIX + 12];
    size_t len = strlen(path);
    snprintf(want, sizeof want, "-00001-of-%05u.gguf", n);
    if (len < PART_SUFFIX || len >= sizeof name || strcmp(path + len - PART_SUFFIX, want) != 0)
        return err_set(e, ERR_INVAL, "the first of %u files, whose name must end in %s", n, want);
    g->part = mem_calloc(n, sizeof(struct gguf *));
    if (!g->part)
        return err_set(e, ERR_NOMEM, "no memory for %u parts", n);
    for (uint32_t i = 1; i < n; i++) {
        snprintf(name, sizeof name, "%.*s-%05u-of-%05u.gguf", (int)(len - PART_SUFFIX), path, i + 1,
                 n);
        struct gguf **p = &g->part[g->n_part];
        int rc = open_one(p, name, e);
        if (rc)
            return rc;
        g->n_part++;
        if ((rc = part_add(g, *p, i, n, e)))
            return file_map_prefix(e, name);
    }
    free(g->tensor_slot);
    g->tensor_slot = NULL;
    int rc = index_tensors(g, e);
    uint32_t all = (uint32_t)g->n_tensor;
    if (!rc && (rc = gguf_get_u32(g, "split.tensors.count", &all, e)) == ERR_NOTFOUND)
        rc = 0;
    if (!rc && all != g->n_tensor)
        rc = err_set(e, ERR_PARSE, "its %u files hold %zu tensors, split.tensors.count says %u", n,
                     g->n_tensor, all);
    return rc ? file_map_prefix(e, path) : 0;
}

static int parts_open(struct gguf *g, const char *path, struct err *e)
{
    uint32_t n = 1, no = 0;
    int rc = gguf_get_u32(g, "split.count", &n, e);
    if (!rc)
        rc = gguf_get_u32(g, "split.no", &no, e);
    if (rc == ERR_NOTFOUND)
        return 0;
    if (rc || n <= 1)
        return rc;
    if (no > 0)
        rc = err_set(e, ERR_INVAL, "part %u of %u of a model: give the first one", no + 1, n);
    else if (n > PARTS_MAX)
        rc = err_set(e, ERR_LIMIT, "split.count is %u, at most %d", n, PARTS_MAX);
    return rc ? file_map_prefix(e, path) : parts_add(g, path, n, e);
}

int gguf_open(struct gguf **out, const char *path, struct err *e)
{
    struct err local;
    struct gguf *g = NULL;
    if (!e)
        e = &local;
    int rc = open_one(&g, path, e);
    rc = rc ? rc : parts_open(g, path, e);
    if (rc)
        gguf_close(g);
    else
        *out = g;
    return rc;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_kv; i++) {
        uint64_t *own;
        memcpy(&own, &g->kv[i].str, sizeof own); /* handed out const, ours to free */
        free(own);
    }
    free(g->kv);
    free(g->tensor);
    free(g->kv_slot);
    free(g->tensor_slot);
    for (size_t i = 0; i < g->n_part; i++)
        gguf_close(g->part[i]);
    free(g->part);
    file_map_close(&g->map);
    free(g);
}

int gguf_check_file(const struct gguf *g, struct err *e)
{
    int rc = file_map_check(&g->map, e);
    for (size_t i = 0; i < g->n_part && !rc; i++)
        rc = file_map_check(&g->part[i]->map, e);
    return rc;
}

/* ---- access ---- */

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

size_t gguf_n_kv(const struct gguf *g)
{
    return g->n_kv;
}

const struct gguf_kv *gguf_kv_at(const struct gguf *g, size_t i)
{
    CHECK(i < g->n_kv);
    return &g->kv[i];
}

size_t gguf_n_tensor(const struct gguf *g)
{
    return g->n_tensor;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    CHECK(i < g->n_tensor);
    return &g->tensor[i];
}

size_t gguf_file_bytes(const struct gguf *g)
{
    size_t sum = g->map.size;
    for (size_t i = 0; i < g->n_part; i++)
        sum += g->part[i]->map.size; /* of mappings: fits in what can be addressed */
    return sum;
}
