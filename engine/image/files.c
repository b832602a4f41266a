/* See files.h. Diffusers folders are read by files_folder.c, everything else by files_single.c. */
#include "engine/image/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/image.h"
#include "engine/image/files_impl.h"
#include "engine/load/map.h"

struct img_files *files__new(void)
{
    return mem_calloc(1, sizeof(struct img_files));
}

int files__join(char *out, size_t size, const char *dir, const char *name, struct err *e)
{
    int n = snprintf(out, size, "%s/%s", dir, name);
    return n > 0 && (size_t)n < size ? 0 : err_set(e, ERR_LIMIT, "%.150s: path is too long", dir);
}

struct comp *files__add(struct img_files *f, const char *name, const char *cls, struct err *e)
{
    if (f->n_comp == COMP_MAX) {
        err_set(e, ERR_LIMIT, "over %d components", COMP_MAX);
        return NULL;
    }
    struct comp *c = &f->comp[f->n_comp++];
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->cls, sizeof c->cls, "%s", cls);
    return c;
}

int files__source(struct img_files *f, const char *path, struct source **out, struct err *e)
{
    if (f->n_src == COMP_MAX)
        return err_set(e, ERR_LIMIT, "over %d files", COMP_MAX);
    int rc = source_open(&f->src[f->n_src], path, e);
    if (!rc)
        *out = f->src[f->n_src++];
    return rc;
}

bool img_files_sniff(const char *path)
{
    return files__is_folder(path) || files__single_sniff(path);
}

bool eng_path_is_image(const char *path)
{
    return img_files_sniff(path);
}

int img_files_open(struct img_files **out, const char *path, struct err *e)
{
    struct err local;
    e = e ? e : &local;
    struct img_files *f = files__new();
    if (!f)
        return err_set(e, ERR_NOMEM, "%.200s: no memory", path);
    int rc = files__is_folder(path) ? files__folder(f, path, e) : files__single(f, path, e);
    if (rc) {
        img_files_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

void img_files_close(struct img_files *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->n_comp; i++)
        config_close(f->comp[i].cfg);
    for (int i = 0; i < f->n_src; i++)
        source_close(f->src[i]);
    config_close(f->index);
    free(f);
}

struct comp *img_files_comp(struct img_files *f, const char *name)
{
    for (int i = 0; i < f->n_comp; i++)
        if (strcmp(f->comp[i].name, name) == 0)
            return &f->comp[i];
    return NULL;
}
