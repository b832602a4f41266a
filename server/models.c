/* See models.h. */
#include "server/models.h"

#include "server/catalogue.h"

#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

int srv_path_fmt(char *out, size_t n, struct err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(out, n, fmt, ap);
    va_end(ap);
    if (len < 0 || (size_t)len >= n)
        return err_set(e, ERR_LIMIT, "path too long: %.100s...", out);
    return 0;
}

#ifndef STEPD_DATADIR
#define STEPD_DATADIR "/usr/local/share/stepd"
#endif

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

int srv_models_dir(const char *given, char *out, size_t n, struct err *e)
{
    const char *v = given && *given ? given : env("STEPD_MODELS");
    if (v)
        return srv_path_fmt(out, n, e, "%s", v);
    if ((v = env("XDG_DATA_HOME")))
        return srv_path_fmt(out, n, e, "%s/stepd/models", v);
    if (!(v = env("HOME"))) {
        const struct passwd *pw = getpwuid(getuid()); /* start-up only: not thread-safe elsewhere */
        v = pw ? pw->pw_dir : NULL;
    }
    if (!v)
        return err_set(e, ERR_INVAL, "no home directory: name a models folder (STEPD_MODELS)");
    return srv_path_fmt(out, n, e, "%s/.local/share/stepd/models", v);
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
}

/* Below the models folder: "hf:ORG/REPO[:FILE]" or "ORG/REPO[/FILE]" or "FILE". */
static bool below(const char *arg, const char *dir, char *path, size_t n)
{
    if (strncmp(arg, "hf:", 3) == 0)
        arg += 3;
    if (!*arg || *arg == '/' || strstr(arg, ".."))
        return false;
    if (srv_path_fmt(path, n, NULL, "%s/%s", dir, arg))
        return false;
    char *colon = strchr(path + strlen(dir), ':');
    if (colon)
        *colon = '/';
    return exists(path);
}

/* ORG/REPO, as the hub has it, and no path's beginning. */
static bool hub_name(const char *s)
{
    const char *slash = strchr(s, '/');
    return slash && slash != s && slash[1] && !strchr(slash + 1, '/') && *s != '.' && *s != '~' &&
           strncmp(s, "hf:", 3) != 0;
}

int srv_model_resolve(const char *arg, const char *models_dir, char *path, size_t n, struct err *e)
{
    char dir[PATH_MAX];
    struct srv_catalogue *c = NULL;
    if (!*arg)
        return err_set(e, ERR_INVAL, "empty model name");
    if (exists(arg))
        return srv_path_fmt(path, n, e, "%s", arg);
    int rc = srv_models_dir(models_dir, dir, sizeof dir, e);
    if (!rc)
        rc = srv_catalogue_load(&c, e);
    if (rc)
        return rc;
    const struct srv_model_row *row = srv_catalogue_find(c, arg);
    if (row) {
        if (!srv_catalogue_folder(row, dir, path, n))
            rc = srv_path_fmt(path, n, e, "%s/%s", dir, row->file);
        if (!rc && !exists(path))
            rc = err_set(e, ERR_NOTFOUND, "model '%s' is not here yet: run `stepd pull %s`", arg,
                         arg);
    } else if (!below(arg, dir, path, n) && !below(arg, STEPD_DATADIR "/models", path, n)) {
        size_t len = strlen(arg);
        bool file = len > 5 && strcmp(arg + len - 5, ".gguf") == 0;
        if (!file && hub_name(arg))
            rc = err_set(e, ERR_NOTFOUND,
                         "no such file or folder: %.100s; a model of the hub by that name is "
                         "fetched by `stepd pull hf:%.100s`",
                         arg, arg);
        else if ((file || strchr(arg, '/')) && strncmp(arg, "hf:", 3) != 0)
            rc = err_set(e, ERR_NOTFOUND, "no such file or folder: %.180s", arg);
        else if (strchr(arg, '/'))
            rc = err_set(e, ERR_NOTFOUND, "not here yet: run `stepd pull %.180s`", arg);
        else
            rc = srv_catalogue_unknown(c, arg, e);
    }
    srv_catalogue_free(c);
    return rc;
}
