/* Which files a path stands for: itself, or those of a folder. */
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/load/gguf_impl.h"
#include "engine/load/json_impl.h"
#include "engine/load/map.h"
#include "engine/load/source_impl.h"

#define INDEX_BYTES ((size_t)64 << 20)
#define SHARDS_MAX  4096

static int join(char *out, size_t size, const char *dir, const char *name, struct err *e)
{
    int n = snprintf(out, size, "%s/%s", dir, name);
    return n > 0 && (size_t)n < size ? 0 : err_set(e, ERR_LIMIT, "%.150s: path is too long", dir);
}

static bool have(const char *dir, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    return join(path, sizeof path, dir, name, NULL) == 0 && stat(path, &st) == 0 &&
           S_ISREG(st.st_mode);
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && strcmp(s + n - t, tail) == 0;
}

/* Room for n files. */
static int reserve(struct source *s, size_t n, struct err *e)
{
    s->file = mem_calloc(n, sizeof *s->file);
    return s->file ? 0 : source__nomem(s, e);
}

/* Judged by its first bytes: a name says nothing about what was downloaded. */
static bool is_gguf(const char *path)
{
    struct file_map m;
    if (file_map_open(&m, path, NULL))
        return false;
    bool yes = m.size >= 4 && memcmp(m.p, "GGUF", 4) == 0;
    file_map_close(&m);
    return yes;
}

int source__file(struct source *s, const char *path, struct err *e)
{
    struct source_file *f = &s->file[s->n_file];
    f->path = arena_copy(&s->arena, path, strlen(path));
    if (!f->path)
        return source__nomem(s, e);
    if (!is_gguf(path)) {
        int rc = ct2_sniff(path, NULL, 0) ? ct2_open(&f->ct2, path, e)
                                          : safetensors_open(&f->st, path, e);
        s->n_file += rc == 0;
        return rc;
    }
    int rc = gguf_open(&f->gguf, path, e);
    if (rc)
        return rc;
    s->n_file++;
    return source__meta(s, f->gguf, e);
}

static int one(struct source *s, const char *dir, const char *name, struct err *e)
{
    char path[PATH_MAX];
    int rc = dir ? join(path, sizeof path, dir, name, e) : 0;
    rc = rc ? rc : reserve(s, 1, e);
    return rc ? rc : source__file(s, dir ? path : name, e);
}

/* ---- shards ---- */

struct shards {
    const char *dir, *index; /* folder, and the index's path */
    const json_t *map;       /* tensor -> file */
    const char **name;       /* files, each once; [n], texts are the map's */
    size_t n;
};

/* The files that the map names, in order of their first tensor. A name that leads out of the folder is refused: the
 * index came from somewhere else. */
static int take_shards(struct shards *h, struct err *e)
{
    const char *tensor;
    const json_t *v;
    size_t last = 0; /* tensors of one shard mostly follow each other */
    json_object_foreach((json_t *)(uintptr_t)h->map, tensor, v)
    {
        const char *f = json_string_value(v);
        size_t i;
        if (!f || !*f || *f == '.' || strchr(f, '/'))
            return err_set(e, ERR_INVAL, "'%s' is put into what is no file of this folder",
                           SHOW(view_str(tensor)));
        if (h->n && strcmp(h->name[last], f) == 0)
            continue;
        for (i = 0; i < h->n && strcmp(h->name[i], f) != 0; i++) {
        }
        last = i;
        if (i == SHARDS_MAX)
            return err_set(e, ERR_LIMIT, "it names over %d files", SHARDS_MAX);
        h->name[i] = f;
        h->n += i == h->n;
    }
    return h->n ? 0 : err_set(e, ERR_INVAL, "it names no tensor");
}

static int open_shards(struct source *s, const struct shards *h, struct err *e)
{
    int rc = reserve(s, h->n, e);
    for (size_t i = 0; !rc && i < h->n; i++) {
        char path[PATH_MAX];
        struct stat st;
        rc = join(path, sizeof path, h->dir, h->name[i], e);
        if (!rc && stat(path, &st)) {
            err_set(e, ERR_NOTFOUND, "the shard '%.80s' that it names is missing", h->name[i]);
            return file_map_prefix(e, h->index);
        }
        rc = rc ? rc : source__file(s, path, e);
    }
    return rc;
}

/* Every tensor of the index lies where it says. */
static int check_index(const struct source *s, const struct shards *h, struct err *e)
{
    const char *tensor;
    const json_t *v;
    size_t i = 0;
    json_object_foreach((json_t *)(uintptr_t)h->map, tensor, v)
    {
        while (strcmp(h->name[i], json_string_value(v)) != 0)
            i = (i + 1) % h->n;
        const struct source_file *f = &s->file[i];
        if (f->st     ? safetensors_tensor_find(f->st, tensor) != NULL
            : f->gguf ? gguf_tensor_find(f->gguf, tensor) != NULL
                      : ct2_tensor_find(f->ct2, tensor) != NULL)
            continue;
        err_set(e, ERR_INVAL, "tensor '%s' is not in '%.80s', where it says",
                SHOW(view_str(tensor)), h->name[i]);
        return file_map_prefix(e, h->index);
    }
    return 0;
}

static int sharded(struct source *s, const char *dir, const char *name, struct err *e)
{
    char path[PATH_MAX];
    json_t *root;
    int rc = join(path, sizeof path, dir, name, e);
    rc = rc ? rc : load__json_file(&root, path, INDEX_BYTES, e);
    if (rc)
        return rc;
    struct shards h = {dir, path, json_object_get(root, "weight_map"), NULL, 0};
    h.name = mem_calloc(SHARDS_MAX + 1, sizeof *h.name);
    if (!h.name)
        rc = source__nomem(s, e);
    else if (!json_is_object(h.map))
        rc = err_set(e, ERR_INVAL, "weight_map is missing or no object");
    else
        rc = take_shards(&h, e);
    if (rc && rc != ERR_NOMEM)
        file_map_prefix(e, path);
    rc = rc ? rc : open_shards(s, &h, e);
    rc = rc ? rc : check_index(s, &h, e);
    free(h.name);
    json_decref(root);
    return rc;
}

/* ---- folders ---- */

/* What a folder holds: how many files of a kind, and one of them. */
struct listing {
    int n_st, n_gguf;
    char st[NAME_MAX + 1], gguf[NAME_MAX + 1];
};

static int list(struct listing *l, const char *dir, struct err *e)
{
    DIR *d = opendir(dir);
    const struct dirent *f;
    *l = (struct listing){0};
    if (!d) {
        err_set(e, ERR_IO, "the folder cannot be read");
        return file_map_prefix(e, dir);
    }
    while ((f = readdir(d)) != NULL) {
        bool st = ends_with(f->d_name, ".safetensors"), gg = ends_with(f->d_name, ".gguf");
        if (f->d_name[0] == '.' || (!st && !gg) || !have(dir, f->d_name))
            continue;
        snprintf(st ? l->st : l->gguf, NAME_MAX + 1, "%s", f->d_name);
        l->n_st += st;
        l->n_gguf += gg;
    }
    closedir(d);
    return 0;
}

/* In order of preference; the fp16 variant is what a folder is left with when only that was downloaded. */
static const char *const indexes[] = {
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
};
static const char *const singles[] = {"model.safetensors", "diffusion_pytorch_model.safetensors"};
static const char *const variants[] = {
    "model.fp16.safetensors",
    "diffusion_pytorch_model.fp16.safetensors",
};
static const char *const variant_indexes[] = {
    "model.safetensors.index.fp16.json",
    "diffusion_pytorch_model.safetensors.index.fp16.json",
    "model.fp16.safetensors.index.json",
    "diffusion_pytorch_model.fp16.safetensors.index.json",
};
#define FIRST(dir, list) first_of(dir, list, sizeof(list) / sizeof *(list))

static const char *first_of(const char *dir, const char *const *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (have(dir, name[i]))
            return name[i];
    return NULL;
}

static bool is_ct2(const char *dir)
{
    char path[PATH_MAX];
    return have(dir, "model.bin") && join(path, sizeof path, dir, "model.bin", NULL) == 0 &&
           ct2_sniff(path, NULL, 0);
}

/* An index before a single file: with both, the single file is a leftover of another download. */
static int folder(struct source *s, const char *dir, struct err *e)
{
    struct listing l;
    const char *f;
    int rc = 0;
    if ((f = FIRST(dir, indexes)) != NULL)
        return sharded(s, dir, f, e);
    if ((f = FIRST(dir, singles)) != NULL)
        return one(s, dir, f, e);
    if ((f = FIRST(dir, variant_indexes)) != NULL)
        return sharded(s, dir, f, e);
    if ((f = FIRST(dir, variants)) != NULL)
        return one(s, dir, f, e);
    rc = list(&l, dir, e);
    if (rc)
        return rc;
    if (!l.n_st && !l.n_gguf && is_ct2(dir))
        return one(s, dir, "model.bin", e);
    if (l.n_st == 1 || (!l.n_st && l.n_gguf == 1))
        return one(s, dir, l.n_st ? l.st : l.gguf, e);
    if (!l.n_st && !l.n_gguf)
        err_set(e, ERR_NOTFOUND,
                "no .safetensors or .gguf file in this folder (pickled .bin and "
                ".ckpt files are not read)");
    else
        err_set(e, ERR_INVAL,
                "%d .safetensors and %d .gguf files, and no index that says how they "
                "belong together",
                l.n_st, l.n_gguf);
    return file_map_prefix(e, dir);
}

int source__files(struct source *s, struct err *e)
{
    struct stat st;
    bool dir = stat(s->path, &st) == 0 && S_ISDIR(st.st_mode);
    return dir ? folder(s, s->path, e) : one(s, NULL, s->path, e);
}
