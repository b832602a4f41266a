/* See kv.h. */
#include "engine/kv.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <string.h>

#define MIB(x)      ((x) >> 20)
#define BLOCKS_BARE (1 << 17) /* of a model without KV: numbers of texts whose states are kept */

static bool file_read(const char *root, const char *path, char *dst, size_t size)
{
    char full[1024];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full)
        return false;
    FILE *f = fopen(full, "re");
    if (!f)
        return false;
    size_t n = fread(dst, 1, size - 1, f);
    dst[n] = 0;
    fclose(f);
    return n > 0;
}

/* Number after `key` at the start of a line; false when there is none ("max" is none). */
static bool line_number(const char *text, const char *key, size_t *out)
{
    size_t n = strlen(key);
    for (const char *p = text; p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
        if (strncmp(p, key, n))
            continue;
        char *end;
        unsigned long long v = strtoull(p + n, &end, 10);
        if (end != p + n)
            *out = (size_t)v;
        return end != p + n;
    }
    return false;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Room under one group's limit, SIZE_MAX without one. Files differ in name between versions 1 and 2. */
static size_t group_room(const char *root, const char *dir, bool v2)
{
    char path[900], text[8192];
    size_t limit, used, cache = 0, part;
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    if (!file_read(root, path, text, sizeof text) || !line_number(text, "", &limit))
        return SIZE_MAX;
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (!file_read(root, path, text, sizeof text) || !line_number(text, "", &used))
        return limit;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (file_read(root, path, text, sizeof text)) {
        if (line_number(text, v2 ? "inactive_file " : "total_inactive_file ", &part))
            cache += part;
        if (line_number(text, v2 ? "active_file " : "total_active_file ", &part))
            cache += part;
    }
    used -= min_size(used, cache);
    return limit - min_size(limit, used);
}

/* The group at `base` + `group` and all above it. */
static size_t tree_room(const char *root, const char *base, const char *group, bool v2)
{
    char dir[800];
    size_t room = SIZE_MAX;
    if (snprintf(dir, sizeof dir, "%s%s", base, group) >= (int)sizeof dir)
        return room;
    size_t stop = strlen(base);
    for (;;) {
        room = min_size(room, group_room(root, dir, v2));
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < stop)
            return room;
        *slash = 0;
    }
}

size_t eng_memory_available(const char *root)
{
    char text[8192];
    size_t room = SIZE_MAX, v;
    if (file_read(root, "/proc/meminfo", text, sizeof text) &&
        line_number(text, "MemAvailable:", &v) && v < SIZE_MAX / 1024)
        room = v * 1024;
    if (!file_read(root, "/proc/self/cgroup", text, sizeof text))
        return room;
    char *save = NULL;
    for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        char *path = strrchr(l, ':'); /* id:controllers:/path */
        if (!path)
            continue;
        *path++ = 0;
        if (!strcmp(path, "/"))
            path[0] = 0;
        if (!strncmp(l, "0:", 2))
            room = min_size(room, tree_room(root, "/sys/fs/cgroup", path, true));
        else if (strstr(l, ":memory"))
            room = min_size(room, tree_room(root, "/sys/fs/cgroup/memory", path, false));
    }
    return room;
}

int eng_kv_dtype(const char *name, enum eng_precision p, enum dtype *out, struct err *e)
{
    if (!name || !strcmp(name, "auto"))
        *out = p == PRECISION_F32 ? DT_F32 : DT_F16;
    else if (!strcmp(name, "f32"))
        *out = DT_F32;
    else if (!strcmp(name, "f16"))
        *out = DT_F16;
    else if (!strcmp(name, "bf16"))
        *out = DT_BF16;
    else if (!strcmp(name, "int8"))
        *out = DT_I8;
    else if (!strcmp(name, "fp8") || !strcmp(name, "fp8_e4m3"))
        *out = DT_F8;
    else
        return err_set(e, ERR_INVAL,
                       "kv_dtype is \"%.32s\"; known: auto, f32, f16, bf16, int8, fp8, fp8_e4m3",
                       name);
    return 0;
}

static size_t blocks_for(size_t n_tok)
{
    return (n_tok + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

/* Blocks that memory allows, the null block included. */
static int blocks_allowed(size_t *out, const struct kv_request *r, size_t block_bytes,
                          struct err *e)
{
    size_t usable = r->available - r->available / 10; /* a tenth stays for everything else */
    if (usable <= r->fixed || (usable - r->fixed) / block_bytes < 2)
        return err_set(
            e, ERR_NOMEM,
            "weights and work space need %zu MiB, a KV block %zu bytes; %zu MiB of memory "
            "are available",
            MIB(r->fixed), block_bytes, MIB(r->available));
    *out = (usable - r->fixed) / block_bytes;
    if (!r->kv_bytes)
        return 0;
    if (r->kv_bytes > usable - r->fixed)
        return err_set(e, ERR_NOMEM,
                       "kv_bytes is %zu MiB; beside %zu MiB for weights and work space only %zu of "
                       "%zu MiB are free",
                       MIB(r->kv_bytes), MIB(r->fixed), MIB(usable - r->fixed), MIB(r->available));
    *out = r->kv_bytes / block_bytes;
    if (*out < 2)
        return err_set(e, ERR_LIMIT, "kv_bytes is %zu; two blocks take %zu", r->kv_bytes,
                       2 * block_bytes);
    return 0;
}

/* Bytes of a block in all pools. */
static int block_size(size_t *out, const struct kv_desc *k, int n, const struct backend *be,
                      struct err *e)
{
    *out = 0;
    for (int i = 0; i < n; i++) {
        size_t one = k[i].n_layer ? be->kv_block_bytes(&k[i]) : 0;
        if ((k[i].n_layer && one == 0) || !ck_add(*out, one, out))
            return err_set(e, ERR_LIMIT, "a KV block of %d layers does not fit in memory",
                           k[i].n_layer);
    }
    return 0;
}

int eng_kv_plan(struct kv_plan *out, struct kv_desc *k, int n, const struct kv_request *r,
                const struct backend *be, struct err *e)
{
    if (r->n_ctx < 0 || r->n_ctx > r->n_ctx_model)
        return err_set(e, ERR_LIMIT,
                       "a context of %d tokens is asked for; the model was made for %d", r->n_ctx,
                       r->n_ctx_model);
    size_t block, allowed = BLOCKS_BARE, want;
    int rc = block_size(&block, k, n, be, e);
    if (!rc && block)
        rc = blocks_allowed(&allowed, r, block, e);
    if (rc)
        return rc;
    int32_t ctx = r->n_ctx ? r->n_ctx : r->n_ctx_model;
    if (!block && allowed <= blocks_for((size_t)ctx))
        allowed = blocks_for((size_t)ctx) + 1;
    size_t full = blocks_for((size_t)ctx), seqs = (size_t)(r->max_seqs > 4 ? r->max_seqs / 4 : 1);
    if (!ck_mul(full, seqs, &want) || (r->kv_bytes && block))
        want = SIZE_MAX - 1;
    want = min_size(min_size(want + 1, allowed), INT32_MAX);
    if (r->n_ctx && full > want - 1)
        return err_set(e, ERR_NOMEM,
                       "a context of %d tokens takes %zu MiB of KV; the pool has %zu MiB (of %zu "
                       "MiB available)",
                       r->n_ctx, MIB(full * block), MIB(want * block), MIB(r->available));
    if (full > want - 1)
        ctx = (int32_t)((want - 1) * KV_BLOCK_TOKENS);
    for (int i = 0; i < n; i++)
        k[i].n_block = (int32_t)want;
    *out = (struct kv_plan){
        .n_block = (int32_t)want, .n_ctx = ctx, .block_bytes = block, .bytes = want * block};
    return 0;
}
