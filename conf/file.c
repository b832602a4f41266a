/* The configuration file: INI through inih. Sections only group; a key has one meaning wherever it stands. */
#include <errno.h>
#include <ini.h>

#include "conf/conf_impl.h"

struct reader {
    FILE *f;
    struct conf *c;
    const char *path;
    struct err *e;
    int line;
    int rc;
};

/* Counts lines, and refuses what the parser would cut in two: its line buffer has a fixed size. */
static char *read_line(char *dst, int n, void *arg)
{
    struct reader *r = arg;
    if (r->rc || !fgets(dst, n, r->f))
        return NULL;
    r->line++;
    size_t len = strlen(dst);
    if (len + 1 >= (size_t)n && dst[len - 1] != '\n')
        r->rc =
            err_set(r->e, ERR_PARSE, "%s:%d: line longer than %d bytes", r->path, r->line, n - 2);
    return r->rc ? NULL : dst;
}

static bool group_known(const char *section)
{
    if (!*section)
        return true;
    for (int i = 0; i < conf__n_options; i++)
        if (conf__options[i].group && strcmp(conf__options[i].group, section) == 0)
            return true;
    return false;
}

static int take(void *arg, const char *section, const char *name, const char *value)
{
    struct reader *r = arg;
    char where[320], near[64];
    if (r->rc)
        return 0;
    size_t len = strlen(name);
    int i = conf__find(name, len);
    if (!group_known(section))
        r->rc =
            err_set(r->e, ERR_INVAL, "%s:%d: unknown section [%.40s]", r->path, r->line, section);
    else if (i < 0 && conf__nearest(name, len, near, sizeof(near)))
        r->rc = err_set(r->e, ERR_INVAL, "%s:%d: unknown key '%.40s'; did you mean '%s'?", r->path,
                        r->line, name, near);
    else if (i < 0)
        r->rc = err_set(r->e, ERR_INVAL, "%s:%d: unknown key '%.40s'", r->path, r->line, name);
    if (!r->rc) {
        snprintf(where, sizeof(where), "%s:%d: %s", r->path, r->line, name);
        r->rc = conf__set(r->c, i, value, CONF_FILE, where, r->e);
    }
    return r->rc == 0;
}

int conf__file(struct conf *c, const char *path, struct err *e)
{
    struct reader r = {.c = c, .path = path, .e = e};
    r.f = fopen(path, "re");
    if (!r.f)
        return err_set(e, ERR_IO, "config %s: %s", path, strerror(errno));
    int line = ini_parse_stream(read_line, &r, take, &r);
    if (!r.rc && ferror(r.f))
        r.rc = err_set(e, ERR_IO, "config %s: %s", path, strerror(errno));
    else if (!r.rc && line)
        r.rc =
            err_set(e, ERR_PARSE, "%s:%d: not 'key = value', [section] or a comment", path, line);
    fclose(r.f);
    return r.rc;
}
