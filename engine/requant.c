/* tools_quantize: a GGUF file again with other types, or a folder as a GGUF file. See tools.h. */
#include "engine/tools.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/export.h"
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
    struct gguf *in;       /* a file, or ... */
    struct export *folder; /* ... a folder */
    int n;                 /* tensors */
    struct gguf_kvs kv;
    FILE *f;
    const char *path;               /* of f */
    int type;                       /* index into types */
    const struct quant_format **to; /* [tensors] */
    uint64_t *off;                  /* [tensors] */
    uint64_t bytes;                 /* of all tensors */
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

static const struct gguf_tensor *tensor_at(const struct job *j, int i)
{
    return j->folder ? export_tensor_at(j->folder, i) : gguf_tensor_at(j->in, (size_t)i);
}

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

static const struct quant_format *format_for(const struct job *j, int i)
{
    const struct gguf_tensor *t = tensor_at(j, i);
    const struct quant_format *own = quant_format_get((uint32_t)t->fmt),
                              *to = quant_format_get((uint32_t)types[j->type].fmt);
    bool packed = own->block_len > 1;
    /* What a folder has in a format of GGUF files is quantised already; formats of our own are not for files. */
    if (j->folder && (export_is_vector(j->folder, i) || export_is_looked_up(j->folder, i)))
        return own;
    if (j->folder && packed && (uint32_t)t->fmt < QF_GGUF_END)
        return own;
    if (stays(t))
        return (uint32_t)t->fmt >= QF_GGUF_END ? quant_format_get(QF_F16) : own;
    if (t->dim[0] % to->block_len)
        to = quant_format_get((uint32_t)types[j->type].other);
    if (t->dim[0] % to->block_len == 0)
        return to;
    return (uint32_t)t->fmt < QF_GGUF_END ? own : quant_format_get(QF_F16);
}

static int plan(struct job *j, struct err *e)
{
    size_t n = (size_t)j->n;
    uint64_t at = 0;
    j->to = mem_calloc(n + 1, sizeof *j->to);
    j->off = mem_calloc(n + 1, sizeof *j->off);
    if (!j->to || !j->off)
        return err_set(e, ERR_NOMEM, "no memory for %zu tensors", n);
    for (int i = 0; i < j->n; i++) {
        const struct gguf_tensor *t = tensor_at(j, i);
        size_t row, all;
        j->to[i] = format_for(j, i);
        if (!quant_row_bytes(j->to[i], t->dim[0], &row) ||
            !ck_mul(row, (size_t)(t->dim[1] * t->dim[2] * t->dim[3]), &all) ||
            !ck_round_up(all, ALIGN, &all))
            return err_set(e, ERR_LIMIT, "tensor %.*s is too large", (int)t->name.len, t->name.p);
        j->off[i] = at;
        at += all;
    }
    j->bytes = at;
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

static int keys_fill(struct job *j, struct err *e)
{
    struct gguf_kvs *k = j->folder ? export_keys(j->folder) : &j->kv;
    for (size_t i = 0; j->in && i < gguf_n_kv(j->in); i++)
        if (!kv_is_ours(gguf_kv_at(j->in, i)->key))
            gguf_put_copy(k, gguf_kv_at(j->in, i));
    gguf_put_u32(k, "general.file_type", types[j->type].file_type);
    gguf_put_u32(k, "general.quantization_version", 2);
    return k->b.failed ? err_set(e, ERR_NOMEM, "no memory for the metadata") : 0;
}

static void put_head(struct job *j)
{
    const struct gguf_kvs *k = j->folder ? export_keys(j->folder) : &j->kv;
    put(j, "GGUF", 4);
    put_u32(j, 3);
    put_u64(j, (uint64_t)j->n);
    put_u64(j, k->n);
    put(j, k->b.p, k->b.len);
    for (int i = 0; i < j->n; i++) {
        const struct gguf_tensor *t = tensor_at(j, i);
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

/* Rows [r, r + n) in the input's format: *out is where they lie, or `own`. */
static int rows_at(struct job *j, int i, int64_t r, int64_t n, uint8_t *own, const void **out,
                   struct err *e)
{
    const struct gguf_tensor *t = tensor_at(j, i);
    size_t row;
    quant_row_bytes(quant_format_get((uint32_t)t->fmt), t->dim[0], &row);
    *out = own;
    if (!j->folder)
        *out = (const uint8_t *)t->data + (size_t)r * row;
    for (int64_t k = 0; j->folder && k < n; k++) {
        int rc = export_row(j->folder, i, r + k, own + (size_t)k * row, e);
        if (rc)
            return rc;
    }
    return 0;
}

/* The tensor's values, some blocks of both formats at a time; a folder's vector all at once. */
static int put_tensor(struct job *j, int i, struct err *e)
{
    const struct gguf_tensor *t = tensor_at(j, i);
    const struct quant_format *from = quant_format_get((uint32_t)t->fmt), *to = j->to[i];
    int64_t row = t->dim[0], n_row = t->dim[1] * t->dim[2] * t->dim[3];
    if (j->folder && export_is_vector(j->folder, i)) {
        row *= n_row;
        n_row = 1;
    }
    int64_t step = PIECE / row > 0 ? PIECE / row : 1;
    size_t from_row, to_row;
    quant_row_bytes(from, row, &from_row);
    quant_row_bytes(to, row, &to_row);
    float *x = mem_alloc((size_t)(step * row) * sizeof *x);
    uint8_t *y = mem_alloc((size_t)step * to_row), *own = mem_alloc((size_t)step * from_row);
    int rc = x && y && own
                 ? 0
                 : err_set(e, ERR_NOMEM, "no memory for rows of %lld values", (long long)row);
    for (int64_t r = 0; r < n_row && !rc; r += step) {
        int64_t n = n_row - r < step ? n_row - r : step;
        const void *src;
        rc = rows_at(j, i, r, n, own, &src, e);
        if (!rc && from != to) {
            from->decode(src, x, n * row);
            to->encode(x, y, n * row);
            src = y;
        }
        if (!rc)
            put(j, src, (size_t)n * to_row);
    }
    free(x);
    free(y);
    free(own);
    pad(j);
    return rc;
}

/* A folder's model is read back from the file, of which there is nothing yet but the head. */
static int head_check(struct job *j, struct err *e)
{
    long at = ftell(j->f);
    if (!j->folder)
        return 0;
    if (fflush(j->f) || at < 0 || ftruncate(fileno(j->f), at + (off_t)j->bytes))
        return err_set(e, ERR_IO, "%s: can't be written: %m", j->path);
    return export_check(j->folder, j->path, e);
}

static int write_all(struct job *j, tools_progress_fn *progress, void *arg, struct err *e)
{
    put_head(j);
    pad(j);
    int rc = head_check(j, e);
    for (int i = 0; i < j->n && !rc; i++) {
        const struct gguf_tensor *t = tensor_at(j, i);
        char line[200];
        snprintf(line, sizeof line, "%.*s: %s -> %s", (int)(t->name.len < 120 ? t->name.len : 120),
                 t->name.p, quant_format_get((uint32_t)t->fmt)->name, j->to[i]->name);
        if (progress)
            progress(arg, i + 1, j->n, line);
        rc = put_tensor(j, i, e);
    }
    if (rc)
        return rc;
    if (fflush(j->f) || ferror(j->f) || fsync(fileno(j->f)))
        return err_set(e, ERR_IO, "%s: can't be written: %m", j->path);
    return j->folder ? export_files_check(j->folder, e) : gguf_check_file(j->in, e);
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int input_open(struct job *j, const char *in, struct err *e)
{
    struct stat st;
    bool folder = !stat(in, &st) && S_ISDIR(st.st_mode);
    int rc = folder ? export_open(&j->folder, in, e) : model_file_gguf(in, e);
    if (!folder && !rc)
        rc = gguf_open(&j->in, in, e);
    if (rc)
        return rc;
    j->n = folder ? export_n_tensor(j->folder) : (int)gguf_n_tensor(j->in);
    return keys_fill(j, e);
}

static int job_run(struct job *j, const char *in, const char *out, tools_progress_fn *progress,
                   void *arg, struct err *e)
{
    char part[PATH_MAX];
    int rc = input_open(j, in, e);
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
    if (j.type < 0)
        return err_set(e, ERR_INVAL, "'%.40s' is no type to quantise to", type);
    if (same_file(in, out))
        return err_set(e, ERR_INVAL, "%s: would be written over itself", out);
    int rc = job_run(&j, in, out, progress, arg, e);
    gguf_close(j.in);
    export_close(j.folder);
    gguf_kvs_free(&j.kv);
    free(j.to);
    free(j.off);
    return rc;
}
