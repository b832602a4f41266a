/* See source.h. Opening and asking; which files a path stands for is source_files.c's, what tensors they hold
 * source_tensors.c's. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/load/gguf_impl.h"
#include "engine/load/map.h"
#include "engine/load/source_impl.h"

int source__nomem(const struct source *s, struct err *e)
{
    struct err local;
    e = e ? e : &local;
    err_set(e, ERR_NOMEM, "no memory for a list of its tensors");
    return file_map_prefix(e, s->path ? s->path : "model");
}

int source_open(struct source **out, const char *path, struct err *e)
{
    struct err local;
    e = e ? e : &local;
    struct source *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "%.200s: no memory", path);
    s->path = arena_copy(&s->arena, path, strlen(path));
    int rc = s->path ? source__files(s, e) : source__nomem(s, e);
    rc = rc ? rc : source__tensors(s, e);
    if (rc) {
        source_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_file; i++) {
        safetensors_close(s->file[i].st);
        gguf_close(s->file[i].gguf);
    }
    while (s->made) {
        struct source_made *m = s->made;
        s->made = m->next;
        free(m->data);
        free(m);
    }
    free(s->file);
    free(s->tensor);
    arena_free(&s->arena);
    free(s);
}

const char *source_path(const struct source *s)
{
    return s->path;
}

size_t source_n(const struct source *s)
{
    return s->n_tensor;
}

const struct source_tensor *source_at(const struct source *s, size_t i)
{
    CHECK(i < s->n_tensor);
    return &s->tensor[i];
}

/* Index of the first tensor whose name is not below `name`. */
static size_t lower_bound(const struct source *s, const char *name)
{
    size_t lo = 0, hi = s->n_tensor;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(s->tensor[mid].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const struct source_tensor *source_find(const struct source *s, const char *name)
{
    size_t i = lower_bound(s, name);
    return i < s->n_tensor && strcmp(s->tensor[i].name, name) == 0 ? &s->tensor[i] : NULL;
}

bool source_has_prefix(const struct source *s, const char *prefix)
{
    size_t i = lower_bound(s, prefix);
    return i < s->n_tensor && strncmp(s->tensor[i].name, prefix, strlen(prefix)) == 0;
}

const struct gguf *source_gguf(const struct source *s)
{
    return s->file[0].gguf;
}

size_t source_bytes(const struct source *s)
{
    size_t sum = 0; /* of mapped bytes: cannot overflow */
    for (size_t i = 0; i < s->n_tensor; i++)
        sum += s->tensor[i].bytes;
    return sum;
}

int source_check_files(const struct source *s, struct err *e)
{
    struct err local;
    e = e ? e : &local;
    for (size_t i = 0; i < s->n_file; i++) {
        const struct source_file *f = &s->file[i];
        if (f->st ? safetensors_check_file(f->st, e) : gguf_check_file(f->gguf, e))
            return file_map_prefix(e, f->path);
    }
    return 0;
}

/* Tensors of our own making lie in no file: their pages would come back as zeros. */
static bool is_made(const struct source *s, const void *data)
{
    for (size_t i = 0; i < s->n_tensor; i++) {
        const struct source_tensor *t = &s->tensor[i];
        const uint8_t *from = t->data, *at = data;
        if (at >= from && at < from + t->bytes)
            for (const struct source_made *m = s->made; m; m = m->next)
                if (t->data == m->data)
                    return true;
    }
    return false;
}

void source_drop(const struct source *s, const void *data, size_t bytes)
{
    if (s->made && is_made(s, data))
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)data + bytes) / page * page;
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

/* ---- tensors of our own making ---- */

/* Rows of src [rows, cols] become columns of dst. */
static int transpose(const struct source_tensor *t, float *dst, float *row)
{
    for (int64_t y = 0; y < t->dim[0]; y++) {
        int rc = source_decode(t, y * t->dim[1], t->dim[1], row);
        if (rc)
            return rc;
        for (int64_t x = 0; x < t->dim[1]; x++)
            dst[x * t->dim[0] + y] = row[x];
    }
    return 0;
}

static int insert(struct source *s, const struct source_tensor *t, struct err *e)
{
    if (s->n_tensor == s->cap) {
        struct source_tensor *p = mem_realloc(s->tensor, (s->cap + 8) * sizeof *p);
        if (!p)
            return source__nomem(s, e);
        s->tensor = p;
        s->cap += 8;
    }
    size_t i = lower_bound(s, t->name);
    memmove(s->tensor + i + 1, s->tensor + i, (s->n_tensor - i) * sizeof *t);
    s->tensor[i] = *t;
    s->n_tensor++;
    return 0;
}

int source_add_transposed(struct source *s, const char *name, const char *as, struct err *e)
{
    const struct source_tensor *t = source_find(s, name);
    size_t n, bytes;
    if (!t)
        return err_set(e, ERR_NOTFOUND, "tensor '%s' is missing", name);
    if (t->n_dim != 2 || t->kind == SOURCE_INT || source_find(s, as))
        return err_set(e, ERR_INVAL, "tensor '%s' is no matrix that can be transposed to '%s'",
                       name, as);
    if (!ck_mul((size_t)t->dim[0], (size_t)t->dim[1], &n) || !ck_mul(n, sizeof(float), &bytes))
        return err_set(e, ERR_INVAL, "tensor '%s' is too large", name);
    struct source_made *m = mem_calloc(1, sizeof *m);
    float *dst = mem_alloc(bytes + 1), *row = mem_alloc((size_t)t->dim[1] * sizeof *row + 1);
    struct source_tensor new = {.name = arena_copy(&s->arena, as, strlen(as)),
                                .kind = SOURCE_QUANT,
                                .fmt = QF_F32,
                                .n_dim = 2,
                                .dim = {t->dim[1], t->dim[0]},
                                .data = dst,
                                .bytes = bytes,
                                .scale = 1};
    int rc = m && dst && row && new.name ? 0 : source__nomem(s, e);
    if (!rc && transpose(t, dst, row))
        rc = err_set(e, ERR_INVAL, "tensor '%s' cannot be read by row", name);
    rc = rc ? rc : insert(s, &new, e);
    free(row);
    if (rc) {
        free(dst);
        free(m);
        return rc;
    }
    *m = (struct source_made){dst, s->made};
    s->made = m;
    return 0;
}
