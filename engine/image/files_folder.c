/* Diffusers folders: model_index.json says which components there are and of which class, each has a folder with its
 * configuration and weights. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/image/files_impl.h"
#include "engine/load/map.h"

#define INDEX "model_index.json"

/* Components that a pipeline here uses; others (safety checker, feature extractor) are left alone. */
static const struct {
    const char *name, *config; /* file of its configuration; NULL: none */
    bool weights;
} known[] = {
    {"text_encoder", "config.json", true},
    {"text_encoder_2", "config.json", true},
    {"text_encoder_3", "config.json", true},
    {"unet", "config.json", true},
    {"transformer", "config.json", true},
    {"vae", "config.json", true},
    {"scheduler", "scheduler_config.json", false},
    {"tokenizer", NULL, false},
    {"tokenizer_2", NULL, false},
    {"tokenizer_3", NULL, false},
};
#define N_KNOWN ((int)(sizeof known / sizeof *known))

bool files__is_folder(const char *path)
{
    char file[PATH_MAX];
    struct stat st;
    return files__join(file, sizeof file, path, INDEX, NULL) == 0 && stat(file, &st) == 0 &&
           S_ISREG(st.st_mode);
}

/* Component k of path's index, of class cls: folder, configuration, weights, each of which must be there. */
static int open_comp(struct img_files *f, int k, const char *path, const char *cls, struct err *e)
{
    char file[PATH_MAX];
    struct stat st;
    struct comp *c = files__add(f, known[k].name, cls, e);
    int rc = c ? files__join(c->dir, sizeof c->dir, path, known[k].name, e) : e->code;
    if (rc)
        return rc;
    if (stat(c->dir, &st) || !S_ISDIR(st.st_mode)) {
        err_set(e, ERR_NOTFOUND, INDEX " has the component '%s' (%s), but there is no folder of it",
                c->name, c->cls);
        return file_map_prefix(e, c->dir);
    }
    if (!known[k].config)
        return config_open_text(&c->cfg, "{}", 2, c->dir, e);
    rc = files__join(file, sizeof file, c->dir, known[k].config, e);
    rc = rc ? rc : config_open(&c->cfg, file, e);
    if (rc || !known[k].weights)
        return rc;
    struct source *s;
    rc = files__source(f, c->dir, &s, e);
    if (!rc)
        c->map.src = s;
    return rc;
}

int files__folder(struct img_files *f, const char *path, struct err *e)
{
    char file[PATH_MAX];
    int n_weights = 0;
    int rc = files__join(file, sizeof file, path, INDEX, e);
    rc = rc ? rc : config_open(&f->index, file, e);
    if (rc)
        return rc;
    const char *cls = config_str(f->index, "_class_name", "");
    snprintf(f->pipeline, sizeof f->pipeline, "%s", cls);
    if (!*cls)
        config_need(f->index, "_class_name");
    for (int k = 0; !rc && k < N_KNOWN; k++) {
        /* [library, class]; both null where the pipeline can have one but this model has not */
        if (!config_has(f->index, known[k].name) || config_null_at(f->index, known[k].name, 1))
            continue;
        const char *of = config_str_at(f->index, known[k].name, 1);
        rc = config_error(f->index, e);
        rc = rc ? rc : open_comp(f, k, path, of, e);
        n_weights += known[k].weights;
    }
    rc = rc ? rc : config_error(f->index, e);
    if (!rc && !n_weights) {
        err_set(e, ERR_INVAL, "it has no component with weights");
        return file_map_prefix(e, file);
    }
    return rc;
}
