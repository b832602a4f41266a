/* tools_quantize: a GGUF file again with other types. See tools.h. */
#include "engine/tools.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/load/gguf.h"
#include "engine/load/kind.h"
#include "engine/quant/quant.h"

#define ALIGN 32
#define PIECE (1 << 16) /* values converted at a time, about */

/* Types on the command line: what the file's general.file_type calls them, and what a row of no whole blocks takes. */
static const struct {
    enum quant_fmt fmt, other;
    uint32_t file_type;
} types[] = {{QF_F32, QF_F32, 0},     {QF_F16, QF_F16, 1},    {QF_BF16, QF_BF16, 32},
             {QF_Q8_0, QF_F16, 7},    {QF_Q6_K, QF_Q8_0, 18}, {QF_Q5_K, QF_Q5_1, 16},
             {QF_Q4_K, QF_Q5_0, 14},  {QF_Q5_1, QF_F16, 9},   {QF_Q5_0, QF_F16, 8},
             {QF_Q4_1, QF_F16, 3},    {QF_Q4_0, QF_F16, 2},   {QF_MXFP4, QF_F16, 38},
             {QF_TQ1_0, QF_Q4_0, 36}, {QF_TQ2_0, QF_Q4_0, 37}};

struct job {
    struct gguf *in;
    FILE *f;
    const char *path;               /* of f */
    int type;                       /* index into types */
    const struct quant_format **to; /* [tensors] */
    uint64_t *off;                  /* [tensors] */
};

void tools_quantize_types(struct buf *out)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        buf_fmt(out, "%s%s", i ? " " : "", quant_format_get((uint32_t)types[i].fmt)->name);
}

static int type_find(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcasecmp(quant_format_get((uint32_t)types[i].fmt)->name, name) == 0)
            return (int)i;
    return -1;
}

/* ---- what becomes of a tensor ---- */

static bool stays(const struct gguf_tensor *t)
{
    /* Small, or read in ways that no block format serves. */
    static const char *const keep[] = {"_norm.",      "ffn_gate_inp", "position_embd",
                                       "token_types", "ssm_conv1d",   "shortconv.conv",
                                       "attn_rel_b",  "time_mix_"};
    if (t->n_dim < 2 || t->name.len < 7 || memcmp(t->name.p + t->name.len - 7, ".weight", 7) != 0)
        return true;
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++)
        if (memmem(t->name.p, t->name.len, keep[i], strlen(keep[i])))
            return true;
    return false;
}

static const struct quant_format *format_for(const struct gguf_tensor *t, int type)
{
    const struct quant_format *own = quant_format_get((uint32_t)t->fmt),
                              *to = quant_format_get((uint32_t)types[type].fmt);
    if (stays(t))
        return own;
    if (t->dim[0] % to->block_len)
        to = quant_format_get((uint32_t)types[type].other);
    return t->dim[0] % to->block_len ? own : to;
}

static int plan(struct job *j, struct err *e)
{
    size_t n = gguf_n_tensor(j->in);
    uint64_t at = 0;
    j->to = mem_calloc(n + 1, sizeof *j->to);
    j->off = mem_calloc(n + 1, sizeof *j->off);
    if (!j->to || !j->off)
        return err_set(e, ERR_NOMEM, "no memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(j->in, i);
        size_t row, all;
        j->to[i] = format_for(t, j->type);
        if (!quant_row_bytes(j->to[i], t->dim[0], &row) ||
            !ck_mul(row, (size_t)(t->dim[1] * t->dim[2] * t->dim[3]), &all) ||
            !ck_round_up(all, ALIGN, &all))
            return err_set(e, ERR_LIMIT, "tensor %.*s is too large", (int)t->name.len, t->name.p);
        j->off[i] = at;
        at += all;
    }
    return 0;
}

/* ---- writing; errors of f are asked for once, at the end ---- */

static void put(struct job *j, const void *p, size_t n)
{
    fwrite(p, 1, n, j->f);
}
static void put_u32(struct job *j, uint32_t v)
{
    put(j, &v, sizeof v);
}
static void put_u64(struct job *j, uint64_t v)
{
    put(j, &v, sizeof v);
}
static void put_text(struct job *j, const char *p, size_t n)
{
    put_u64(j, n);
    put(j, p, n);
}

static size_t value_bytes(enum gguf_type t)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return bytes[t];
}

static void put_kv(struct job *j, const struct gguf_kv *kv)
{
    enum gguf_type t = kv->type == GGUF_ARRAY ? kv->elem : kv->type;
    put_text(j, kv->key.p, kv->key.len);
    put_u32(j, (uint32_t)kv->type);
    if (kv->type == GGUF_ARRAY) {
        put_u32(j, (uint32_t)kv->elem);
        put_u64(j, kv->n);
    }
    if (t != GGUF_STRING) {
        put(j, kv->data, value_bytes(t) * (size_t)kv->n);
        return;
    }
    if (kv->type == GGUF_STRING) {
        uint64_t len;
        memcpy(&len, kv->data, 8);
        put(j, kv->data, 8 + (size_t)len);
        return;
    }
    for (uint64_t i = 0; i < kv->n; i++) {
        struct view s = gguf_arr_str(kv, i);
        put_text(j, s.p, s.len);
    }
}

/* Values that this file has anew, or, of a model in several files, no more. */
static bool kv_is_ours(struct view key)
{
    static const char *const ours[] = {
        "general.alignment", "general.file_type", "general.quantization_version",
        "split.no",          "split.count",       "split.tensors.count"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (key.len == strlen(ours[i]) && memcmp(key.p, ours[i], key.len) == 0)
            return true;
    return false;
}

static void put_head(struct job *j)
{
    size_t n_kv = gguf_n_kv(j->in), n = gguf_n_tensor(j->in), kept = 0;
    static const char *const names[2] = {"general.file_type", "general.quantization_version"};
    const uint32_t values[2] = {types[j->type].file_type, 2};
    for (size_t i = 0; i < n_kv; i++)
        kept += !kv_is_ours(gguf_kv_at(j->in, i)->key);
    put(j, "GGUF", 4);
    put_u32(j, 3);
    put_u64(j, n);
    put_u64(j, kept + 2);
    for (size_t i = 0; i < n_kv; i++)
        if (!kv_is_ours(gguf_kv_at(j->in, i)->key))
            put_kv(j, gguf_kv_at(j->in, i));
    for (int i = 0; i < 2; i++) {
        put_text(j, names[i], strlen(names[i]));
        put_u32(j, GGUF_U32);
        put_u32(j, values[i]);
    }
    for (size_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(j->in, i);
        put_text(j, t->name.p, t->name.len);
        put_u32(j, (uint32_t)t->n_dim);
        for (int d = 0; d < t->n_dim; d++)
            put_u64(j, (uint64_t)t->dim[d]);
        put_u32(j, (uint32_t)j->to[i]->id);
        put_u64(j, j->off[i]);
    }
}

static void pad(struct job *j)
{
    static const char zero[ALIGN];
    long at = ftell(j->f);
    if (at > 0 && at % ALIGN)
        put(j, zero, ALIGN - (size_t)(at % ALIGN));
}

/* The tensor's values, some blocks of both formats at a time. */
static int put_tensor(struct job *j, size_t i, struct err *e)
{
    const struct gguf_tensor *t = gguf_tensor_at(j->in, i);
    const struct quant_format *from = quant_format_get((uint32_t)t->fmt), *to = j->to[i];
    if (from == to) {
        put(j, t->data, t->bytes);
        pad(j);
        return 0;
    }
    int64_t row = t->dim[0], n_row = t->dim[1] * t->dim[2] * t->dim[3],
            step = PIECE / row > 0 ? PIECE / row : 1;
    size_t from_row, to_row;
    quant_row_bytes(from, row, &from_row);
    quant_row_bytes(to, row, &to_row);
    float *x = mem_alloc((size_t)(step * row) * sizeof *x);
    uint8_t *y = mem_alloc((size_t)step * to_row);
    int rc =
        x && y ? 0 : err_set(e, ERR_NOMEM, "no memory for rows of %lld values", (long long)row);
    for (int64_t r = 0; r < n_row && !rc; r += step) {
        int64_t n = n_row - r < step ? n_row - r : step;
        from->decode((const uint8_t *)t->data + (size_t)r * from_row, x, n * row);
        to->encode(x, y, n * row);
        put(j, y, (size_t)n * to_row);
    }
    free(x);
    free(y);
    pad(j);
    return rc;
}

static int write_all(struct job *j, tools_progress_fn *progress, void *arg, struct err *e)
{
    int n = (int)gguf_n_tensor(j->in);
    put_head(j);
    pad(j);
    for (int i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(j->in, (size_t)i);
        char line[200];
        snprintf(line, sizeof line, "%.*s: %s -> %s", (int)(t->name.len < 120 ? t->name.len : 120),
                 t->name.p, quant_format_get((uint32_t)t->fmt)->name, j->to[i]->name);
        if (progress)
            progress(arg, i + 1, n, line);
        int rc = put_tensor(j, (size_t)i, e);
        if (rc)
            return rc;
    }
    if (fflush(j->f) || ferror(j->f) || fsync(fileno(j->f)))
        return err_set(e, ERR_IO, "%s: can't be written: %m", j->path);
    return gguf_check_file(j->in, e);
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int job_run(struct job *j, const char *in, const char *out, tools_progress_fn *progress,
                   void *arg, struct err *e)
{
    char part[PATH_MAX];
    int rc = gguf_open(&j->in, in, e);
    if (!rc)
        rc = plan(j, e);
    if (rc)
        return rc;
    if (snprintf(part, sizeof part, "%s.part", out) >= (int)sizeof part)
        return err_set(e, ERR_LIMIT, "%.100s...: path is too long", out);
    j->path = part;
    j->f = fopen(part, "wb");
    if (!j->f)
        return err_set(e, ERR_IO, "%s: can't be created: %m", part);
    rc = write_all(j, progress, arg, e);
    if (fclose(j->f) && !rc)
        rc = err_set(e, ERR_IO, "%s: can't be written: %m", part);
    if (!rc && rename(part, out))
        rc = err_set(e, ERR_IO, "%s: can't be renamed to it: %m", out);
    if (rc)
        unlink(part);
    return rc;
}

int tools_quantize(const char *in, const char *out, const char *type, tools_progress_fn *progress,
                   void *arg, struct err *e)
{
    struct job j = {.type = type_find(type)};
    struct stat st;
    if (j.type < 0)
        return err_set(e, ERR_INVAL, "'%.40s' is no type to quantise to", type);
    if (!stat(in, &st) && S_ISDIR(st.st_mode))
        return err_set(e, ERR_UNSUPPORTED, "%s is a folder; a GGUF file is read here", in);
    int rc = model_file_gguf(in, e);
    if (rc)
        return rc;
    if (same_file(in, out))
        return err_set(e, ERR_INVAL, "%s: would be written over itself", out);
    rc = job_run(&j, in, out, progress, arg, e);
    gguf_close(j.in);
    free(j.to);
    free(j.off);
    return rc;
}
