/* Checkpoints in single files: one that holds everything, or a folder of one file a component. What a file holds is
 * judged by its tensors' names (parts.c). Beside model.safetensors a folder `model` may lie with what the file lacks:
 * components in files of their own, tokenizer folders, and configurations (unet/config.json, ...) that replace the
 * family's. A folder of single files is its own such folder. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/image/family_impl.h"
#include "engine/load/map.h"

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && strcmp(s + n - t, tail) == 0;
}

static int is_weights(const struct dirent *f)
{
    return f->d_name[0] != '.' &&
           (ends_with(f->d_name, ".safetensors") || ends_with(f->d_name, ".gguf"));
}

static int is_index(const struct dirent *f)
{
    return ends_with(f->d_name, ".safetensors.index.json");
}

/* Shards belong together; without their index each would pass for a model with tensors missing. */
static bool has_index(const char *dir)
{
    struct dirent **list;
    int n = scandir(dir, &list, is_index, NULL);
    for (int i = 0; i < n; i++)
        free(list[i]);
    if (n >= 0)
        free(list);
    return n > 0;
}

static int add_file(struct single *s, const char *path, bool extra, struct err *e)
{
    struct source *src;
    int rc = files__source(s->f, path, &src, e);
    return rc ? rc : parts_find(&s->parts, src, extra, e);
}

/* All weights of one folder, by name; shards as one. */
static int add_folder(struct single *s, const char *dir, bool extra, struct err *e)
{
    struct dirent **list;
    char path[PATH_MAX];
    int rc = 0;
    if (has_index(dir))
        return add_file(s, dir, extra, e);
    int n = scandir(dir, &list, is_weights, alphasort);
    if (n < 0) {
        err_set(e, ERR_IO, "the folder cannot be read");
        return file_map_prefix(e, dir);
    }
    for (int i = 0; i < n; i++) {
        rc = rc ? rc : files__join(path, sizeof path, dir, list[i]->d_name, e);
        if (!rc && !is_dir(path))
            rc = add_file(s, path, extra, e);
        free(list[i]);
    }
    free(list);
    return rc;
}

/* A folder's files, and those of the folders that users of ComfyUI and of diffusers sort them into. */
static int add_tree(struct single *s, const char *dir, bool extra, struct err *e)
{
    static const char *const sub[] = {
        "checkpoints",  "diffusion_models", "unet",           "transformer", "text_encoders",
        "text_encoder", "text_encoder_2",   "text_encoder_3", "clip",        "vae",
    };
    char path[PATH_MAX];
    int rc = add_folder(s, dir, extra, e);
    for (size_t i = 0; !rc && i < sizeof sub / sizeof *sub; i++) {
        rc = files__join(path, sizeof path, dir, sub[i], e);
        if (!rc && is_dir(path))
            rc = add_folder(s, path, extra, e);
    }
    return rc;
}

/* "a/b.safetensors" -> "a/b"; the folder itself of a folder. */
static int companion(struct single *s, struct err *e)
{
    size_t n = strlen(s->path);
    const char *slash = strrchr(s->path, '/'), *dot = strrchr(s->path, '.');
    if (!is_dir(s->path) && dot && (!slash || dot > slash + 1))
        n = (size_t)(dot - s->path);
    if (n >= sizeof s->beside)
        return err_set(e, ERR_LIMIT, "%.150s: path is too long", s->path);
    memcpy(s->beside, s->path, n);
    s->beside[n] = 0;
    return 0;
}

static int collect(struct single *s, struct err *e)
{
    int rc = companion(s, e);
    if (rc)
        return rc;
    if (is_dir(s->path))
        return add_tree(s, s->path, false, e);
    rc = add_file(s, s->path, false, e);
    if (!rc && strcmp(s->beside, s->path) != 0 && is_dir(s->beside))
        rc = add_tree(s, s->beside, true, e);
    return rc;
}

bool files__single_sniff(const char *path)
{
    char config[PATH_MAX];
    struct stat st;
    bool found = false;
    struct single s = {.path = path};
    /* a language model's folder: its shards, of gigabytes, need not be opened to know */
    if (is_dir(path) &&
        (files__join(config, sizeof config, path, "config.json", NULL) || stat(config, &st) == 0))
        return false;
    s.f = files__new();
    if (!s.f)
        return false;
    if (collect(&s, NULL) == 0)
        for (int i = 0; i < s.parts.n; i++)
            found |= (PART_BIT(s.parts.at[i].kind) & PART_DENOISER) != 0;
    img_files_close(s.f);
    return found;
}

/* The files stay open whatever they hold: their tensors are mapped, not read. */
int files__single(struct img_files *f, const char *path, struct err *e)
{
    struct single s = {.f = f, .path = path};
    int rc = config_open_text(&f->index, "{}", 2, path, e);
    rc = rc ? rc : collect(&s, e);
    return rc ? rc : family_open(&s, e);
}
