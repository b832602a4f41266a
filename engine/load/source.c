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

static int open_as(struct source **out, const char *path, bool parts, struct err *e)
{
    struct err local;
    e = e ? e : &local;
    struct source *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "%.200s: no memory", path);
    s->parts = parts;
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

int source_open(struct source **out, const char *path, struct err *e)
{
    return open_as(out, path, false, e);
}

int source_open_parts(struct source **out, const char *path, struct err *e)
{
    return open_as(out, path, true, e);
}

void source_close(struct source *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_file; i++) {
        safetensors_close(s->file[i].st);
        gguf_close(s->file[i].gguf);
        ct2_close(s->file[i].ct2);
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
        if (f->st     ? safetensors_check_file(f->st, e)
            : f->gguf ? gguf_check_file(f->gguf, e)
                      : ct2_check_file(f->ct2, e))
            return file_map_prefix(e, f->path);
    }
    return 0;
}

/* Whole pages only; a page that another tensor shares stays. */
void source_drop(const struct source *s, const void *data, size_t bytes)
{
    (void)s; /* all its data is mapped */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)data + bytes) / page * page;
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}
