/* See catalogue.h. */
#include "server/catalogue.h"

#include "engine/base/arena.h"
#include "engine/base/buf.h"
#include "engine/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <limits.h>
#include <unistd.h>

#ifndef STEPD_DATADIR
#define STEPD_DATADIR "/usr/local/share/stepd"
#endif

enum { ROWS_MAX = 1000, SOURCES_MAX = 200, FILE_MAX = 1 << 20 };

/* The catalogue as text, put into this object by the assembler (paths are relative to the source
 * tree's root, where the compiler runs). */
__asm__(".pushsection .rodata\n"
        ".global srv__catalogue_text\n"
        "srv__catalogue_text:\n"
        ".incbin \"conf/models.ini\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char srv__catalogue_text[];

struct srv_catalogue {
    struct arena mem;
    struct srv_model_row row[ROWS_MAX];
    int n;
    struct err e; /* first fault met by the handler */
};

/* ---- ranges: "part{1..3}-{00..02}" is three names ---- */

/* A range at s ("{a..b}"): its end, bounds and width, or NULL. */
static const char *range_read(const char *s, long *a, long *b, int *width)
{
    char *end;
    if (*s != '{')
        return NULL;
    *a = strtol(s + 1, &end, 10);
    *width = (int)(end - (s + 1));
    if (end == s + 1 || end[0] != '.' || end[1] != '.')
        return NULL;
    const char *second = end + 2;
    *b = strtol(second, &end, 10);
    if (end == second || *end != '}' || *a < 0 || *b < *a || *b - *a >= SOURCES_MAX)
        return NULL;
    return end + 1;
}

/* How many names s stands for: 1 without a range, -1 if malformed or of unequal ranges. */
static int range_count(const char *s)
{
    long n = 1, a, b;
    int width;
    bool seen = false;
    for (; *s; s++) {
        if (*s != '{')
            continue;
        const char *end = range_read(s, &a, &b, &width);
        if (!end || (seen && b - a + 1 != n))
            return -1;
        n = b - a + 1;
        seen = true;
        s = end - 1;
    }
    return (int)n;
}

static const char *range_expand(struct arena *m, const char *s, int i)
{
    struct buf out = {0};
    long a, b;
    int width;
    while (*s) {
        const char *end = range_read(s, &a, &b, &width);
        if (end) {
            buf_fmt(&out, "%0*ld", width, a + i);
            s = end;
        } else {
            buf_char(&out, *s++);
        }
    }
    const char *copy = out.failed ? NULL : arena_copy(m, buf_cstr(&out), out.len);
    buf_free(&out);
    return copy;
}

/* ---- rows ---- */

static bool name_ok(const char *s)
{
    return *s && s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789._-")] == 0 && *s != '.' &&
           *s != '-';
}

static bool file_ok(const char *s)
{
    return *s && *s != '/' && *s != '.' && !strstr(s, "..") && s[strcspn(s, "\\\n\t")] == 0;
}

static int add_sources(struct srv_catalogue *c, struct srv_model_row *r, const char *value)
{
    int n = range_count(value);
    bool pypi = strncmp(value, "pypi:", 5) == 0;
    if (n < 1 || r->n_source + n > SOURCES_MAX)
        return err_set(&c->e, ERR_PARSE, "[%s] source: malformed or too long range", r->name);
    if (!pypi && strncmp(value, "hf:", 3) && strncmp(value, "http://", 7) &&
        strncmp(value, "https://", 8))
        return err_set(&c->e, ERR_PARSE,
                       "[%s] source: '%s' is none of pypi: hf: http: https:", r->name, value);
    if (r->n_source + n > 1 && (!pypi || (r->n_source && strncmp(r->source[0], "pypi:", 5))))
        return err_set(&c->e, ERR_PARSE, "[%s] source: only pypi sources can be several", r->name);
    const char **all = arena_array(&c->mem, (size_t)(r->n_source + n), sizeof *all);
    if (!all)
        return err_set(&c->e, ERR_NOMEM, "no memory");
    for (int i = 0; i < r->n_source; i++)
        all[i] = r->source[i];
    for (int i = 0; i < n; i++)
        if (!(all[r->n_source + i] = range_expand(&c->mem, value, i)))
            return err_set(&c->e, ERR_NOMEM, "no memory");
    r->source = all;
    r->n_source += n;
    return 0;
}

static int set_size(struct srv_catalogue *c, struct srv_model_row *r, const char *value)
{
    char *end;
    errno = 0;
    long long v = strtoll(value, &end, 10);
    if (errno || *end || end == value || v <= 0)
        return err_set(&c->e, ERR_PARSE, "[%s] size: '%s' is no count of bytes", r->name, value);
    r->size = v;
    return 0;
}

static int set_field(struct srv_catalogue *c, struct srv_model_row *r, const char *key,
                     const char *value)
{
    const char **text = strcmp(key, "about") == 0     ? &r->about
                        : strcmp(key, "licence") == 0 ? &r->licence
                        : strcmp(key, "file") == 0    ? &r->file
                        : strcmp(key, "sha256") == 0  ? &r->sha256
                                                      : NULL;
    if (strcmp(key, "source") == 0)
        return add_sources(c, r, value);
    if (strcmp(key, "size") == 0)
        return set_size(c, r, value);
    if (!text)
        return err_set(&c->e, ERR_PARSE, "[%s] unknown key '%s'", r->name, key);
    if (text == &r->file && !file_ok(value))
        return err_set(&c->e, ERR_PARSE, "[%s] file: '%s' is no plain relative path", r->name,
                       value);
    if (text == &r->sha256 && (strlen(value) != 64 || value[strspn(value, "0123456789abcdef")]))
        return err_set(&c->e, ERR_PARSE, "[%s] sha256: not 64 lower-case hex digits", r->name);
    *text = arena_copy(&c->mem, value, strlen(value));
    return *text ? 0 : err_set(&c->e, ERR_NOMEM, "no memory");
}

/* inih's handler: 1 to go on. */
static int on_line(void *user, const char *section, const char *key, const char *value)
{
    struct srv_catalogue *c = user;
    if (!name_ok(section)) {
        err_set(&c->e, ERR_PARSE, "[%s] is no model name", section);
        return 0;
    }
    if (!c->n || strcmp(c->row[c->n - 1].name, section) != 0) {
        const char *name = arena_copy(&c->mem, section, strlen(section));
        if (srv_catalogue_find(c, section) || c->n == ROWS_MAX || !name) {
            err_set(&c->e, ERR_PARSE, "[%s] is there twice, or one too many", section);
            return 0;
        }
        c->row[c->n++] = (struct srv_model_row){.name = name, .about = "", .licence = ""};
    }
    return set_field(c, &c->row[c->n - 1], key, value) == 0;
}

int srv_catalogue_parse(struct srv_catalogue **out, const char *text, const char *origin,
                        struct err *e)
{
    struct srv_catalogue *c = mem_calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "%s: no memory", origin);
    int line = ini_parse_string(text, on_line, c);
    int rc = line ? ERR_PARSE : 0;
    if (line && c->e.code)
        rc = err_set(e, c->e.code, "%s: line %d: %s", origin, line, c->e.text);
    else if (line)
        rc = err_set(e, ERR_PARSE, "%s: line %d: no INI line", origin, line);
    for (int i = 0; !rc && i < c->n; i++) {
        const struct srv_model_row *r = &c->row[i];
        if (!r->file || !r->sha256 || !r->size || !r->n_source)
            rc = err_set(e, ERR_PARSE, "%s: [%s] lacks file, size, sha256 or source", origin,
                         r->name);
    }
    if (rc) {
        srv_catalogue_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

/* ---- files ---- */

static int load_file(struct srv_catalogue **out, const char *path, struct err *e)
{
    struct buf b = {.limit = FILE_MAX};
    char chunk[4096];
    ssize_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    if (fd < 0)
        return err_set(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "%s: %s", path, strerror(errno));
    while ((n = read(fd, chunk, sizeof chunk)) > 0)
        buf_add(&b, chunk, (size_t)n);
    if (n < 0)
        rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    else if (b.failed)
        rc = err_set(e, ERR_LIMIT, "%s: over %d bytes", path, FILE_MAX);
    else
        rc = srv_catalogue_parse(out, buf_cstr(&b), path, e);
    close(fd);
    buf_free(&b);
    return rc;
}

/* conf/models.ini of the source tree, when this program is TREE/build/VARIANT/NAME. */
static bool tree_file(char *out, size_t size)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return false;
    exe[n] = 0;
    for (int up = 0; up < 2; up++) { /* drop NAME and VARIANT */
        char *slash = strrchr(exe, '/');
        if (!slash)
            return false;
        *slash = 0;
    }
    char *slash = strrchr(exe, '/');
    if (!slash || strcmp(slash, "/build") != 0)
        return false;
    *slash = 0;
    int len = snprintf(out, size, "%s/conf/models.ini", exe);
    return len > 0 && (size_t)len < size;
}

int srv_catalogue_load(struct srv_catalogue **out, struct err *e)
{
    char path[PATH_MAX + 32];
    const char *env = getenv("STEPD_CATALOGUE");
    if (env && *env)
        return load_file(out, env, e);
    int rc = tree_file(path, sizeof path) ? load_file(out, path, e) : ERR_NOTFOUND;
    if (rc == ERR_NOTFOUND)
        rc = load_file(out, STEPD_DATADIR "/models.ini", e);
    if (rc == ERR_NOTFOUND)
        rc = srv_catalogue_parse(out, srv__catalogue_text, "built-in catalogue", e);
    return rc;
}

void srv_catalogue_free(struct srv_catalogue *c)
{
    if (!c)
        return;
    arena_free(&c->mem);
    free(c);
}

int srv_catalogue_count(const struct srv_catalogue *c)
{
    return c->n;
}

const struct srv_model_row *srv_catalogue_at(const struct srv_catalogue *c, int i)
{
    CHECK(i >= 0 && i < c->n);
    return &c->row[i];
}

const struct srv_model_row *srv_catalogue_find(const struct srv_catalogue *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->row[i].name, name) == 0)
            return &c->row[i];
    return NULL;
}

bool srv_catalogue_folder(const struct srv_model_row *r, const char *dir, char *out, size_t n)
{
    size_t len = strlen(r->file);
    if (len < 5 || strcmp(r->file + len - 4, ".tar") != 0)
        return false;
    int k = snprintf(out, n, "%s/%.*s", dir, (int)len - 4, r->file);
    return k > 0 && (size_t)k < n;
}

int srv_catalogue_unknown(const struct srv_catalogue *c, const char *name, struct err *e)
{
    struct buf b = {0};
    for (int i = 0; i < c->n; i++)
        buf_fmt(&b, "%s%s", i ? ", " : "", c->row[i].name);
    int rc = err_set(e, ERR_NOTFOUND, "'%.80s' is no model of the catalogue (known: %s)", name,
                     buf_cstr(&b));
    buf_free(&b);
    return rc;
}
