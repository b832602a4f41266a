/* See multipart.h. */
#include "api/multipart.h"

#include <string.h>
#include <strings.h>

#define TYPE "multipart/form-data"
enum {
    BOUNDARY_MAX = 70 /* characters, RFC 2046 section 5.1.1 */
};

bool multipart_is(const char *content_type)
{
    size_t n = strlen(TYPE);
    return content_type && strncasecmp(content_type, TYPE, n) == 0 &&
           (!content_type[n] || strchr("; \t", content_type[n]));
}

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p;
}

static bool name_is(struct view v, const char *name)
{
    return v.len == strlen(name) && strncasecmp(v.p, name, v.len) == 0;
}

/* The next `; key=value` of a header at *p; a quoted value loses its quotes and keeps its escapes. False at the end; *bad
 * when what follows is no parameter. */
static bool next_param(const char **p, const char *end, struct view *key, struct view *value,
                       bool *bad)
{
    const char *s = skip_space(*p, end);
    if (s == end)
        return false;
    *bad = true;
    if (*s++ != ';')
        return false;
    s = skip_space(s, end);
    if (s == end) { /* a lone semicolon at the end does no harm */
        *bad = false;
        return false;
    }
    key->p = s;
    while (s < end && !strchr("=; \t\"", *s))
        s++;
    key->len = (size_t)(s - key->p);
    s = skip_space(s, end);
    if (s == end || *s++ != '=' || key->len == 0)
        return false;
    s = skip_space(s, end);
    if (s < end && *s == '"') {
        value->p = ++s;
        while (s < end && *s != '"')
            s += s + 1 < end && *s == '\\' ? 2 : 1;
        if (s == end)
            return false;
        value->len = (size_t)(s++ - value->p);
    } else {
        value->p = s;
        while (s < end && !strchr("; \t", *s))
            s++;
        value->len = (size_t)(s - value->p);
    }
    *p = s;
    *bad = false;
    return true;
}

/* "\r\n--" and the boundary of the header's parameter, in `mark`. */
static int read_boundary(const char *type, char *mark, size_t *n, struct err *e)
{
    const char *p = type + strlen(TYPE), *end = type + strlen(type);
    struct view key, value, found = {0};
    bool bad = false;
    while (next_param(&p, end, &key, &value, &bad))
        if (name_is(key, "boundary"))
            found = value;
    if (bad || found.len == 0 || found.len > BOUNDARY_MAX)
        return err_set(e, ERR_PARSE,
                       "Content-Type multipart/form-data needs a boundary of 1 to %d characters",
                       BOUNDARY_MAX);
    memcpy(mark, "\r\n--", 4);
    memcpy(mark + 4, found.p, found.len);
    *n = found.len + 4;
    return 0;
}

static int read_disposition(const char *p, const char *end, struct multipart *m)
{
    size_t n = strlen("form-data");
    struct view key, value;
    bool bad = false;
    if ((size_t)(end - p) < n || strncasecmp(p, "form-data", n) != 0)
        return ERR_PARSE;
    p += n;
    while (next_param(&p, end, &key, &value, &bad)) {
        if (name_is(key, "name"))
            m->name = value;
        else if (name_is(key, "filename"))
            m->filename = value;
    }
    return bad || !m->name.p ? ERR_PARSE : 0;
}

/* One header line [p, end) of a part. */
static int read_line(const char *p, const char *end, struct multipart *m, int at, struct err *e)
{
    const char *colon = memchr(p, ':', (size_t)(end - p));
    if (!colon || colon == p)
        return err_set(e, ERR_PARSE, "part %d: a header line without a name", at);
    struct view name = {p, (size_t)(colon - p)};
    const char *v = skip_space(colon + 1, end);
    while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    struct view value = {v, (size_t)(end - v)};
    if (name_is(name, "Content-Disposition") && read_disposition(v, end, m))
        return err_set(e, ERR_PARSE, "part %d: Content-Disposition is not form-data with a name",
                       at);
    if (name_is(name, "Content-Type"))
        m->type = value;
    if (name_is(name, "Content-Transfer-Encoding") && !name_is(value, "binary") &&
        !name_is(value, "8bit") && !name_is(value, "7bit"))
        return err_set(e, ERR_UNSUPPORTED,
                       "part %d: Content-Transfer-Encoding is not supported; send bytes", at);
    return 0;
}

/* The header lines at p, up to and with the empty line; *next is behind it. */
static int read_head(const char *p, const char *end, struct multipart *m, int at, const char **next,
                     struct err *e)
{
    const char *from = p;
    for (;;) {
        size_t left = (size_t)(end - p);
        size_t room = MULTIPART_HEAD_MAX - (size_t)(p - from);
        const char *nl = memmem(p, left < room ? left : room, "\r\n", 2);
        if (!nl && left >= room)
            return err_set(e, ERR_LIMIT, "part %d: its header is longer than %d bytes", at,
                           MULTIPART_HEAD_MAX);
        if (!nl)
            return err_set(e, ERR_PARSE, "part %d: its header does not end", at);
        if (nl == p)
            break;
        int rc = read_line(p, nl, m, at, e);
        if (rc)
            return rc;
        p = nl + 2;
    }
    if (!m->name.p)
        return err_set(e, ERR_PARSE, "part %d: no Content-Disposition", at);
    *next = p + 2;
    return 0;
}

enum after { AFTER_PART, AFTER_END, AFTER_TEXT };

/* What follows a delimiter that ends at p: a part (*next behind the line), the end of the body, or text that only looks
 * like a delimiter. */
static enum after after_mark(const char *p, const char *end, const char **next)
{
    if (end - p >= 2 && p[0] == '-' && p[1] == '-')
        return AFTER_END;
    p = skip_space(p, end);
    if (end - p < 2 || p[0] != '\r' || p[1] != '\n')
        return AFTER_TEXT;
    *next = p + 2;
    return AFTER_PART;
}

/* The next delimiter from p on. NULL: none. *line behind it when it begins a part. */
static const char *next_mark(const char *p, const char *end, struct view mark, enum after *what,
                             const char **line)
{
    while ((p = memmem(p, (size_t)(end - p), mark.p, mark.len))) {
        *what = after_mark(p + mark.len, end, line);
        if (*what != AFTER_TEXT)
            return p;
        p += mark.len;
    }
    return NULL;
}

int multipart_parse(const char *content_type, struct view body, struct multipart *part, int max,
                    int *n, struct err *e)
{
    char text[BOUNDARY_MAX + 4];
    struct view mark = {text, 0};
    *n = 0;
    if (!multipart_is(content_type))
        return err_set(e, ERR_PARSE, "Content-Type is not multipart/form-data");
    int rc = read_boundary(content_type, text, &mark.len, e);
    if (rc)
        return rc;
    if (body.len == 0)
        return err_set(e, ERR_PARSE, "the body is empty");
    const char *p = body.p, *end = body.p + body.len, *line = p, *at;
    enum after what = AFTER_TEXT;
    /* The first delimiter has no line break before it when it is the body's first line. */
    if (body.len >= mark.len - 2 && memcmp(p, text + 2, mark.len - 2) == 0)
        what = after_mark(p + mark.len - 2, end, &line);
    if (what == AFTER_TEXT && !next_mark(p, end, mark, &what, &line))
        return err_set(e, ERR_PARSE, "the boundary of the Content-Type is not in the body");
    while (what == AFTER_PART) {
        struct multipart m = {0};
        if (*n == max)
            return err_set(e, ERR_LIMIT, "more than %d parts", max);
        rc = read_head(line, end, &m, *n + 1, &p, e);
        if (rc)
            return rc;
        /* The line break of an empty part's delimiter is that of its header's last line. */
        at = next_mark(p - 2, end, mark, &what, &line);
        if (!at)
            return err_set(e, ERR_PARSE, "part %d: the body ends before its closing boundary",
                           *n + 1);
        m.data = (struct view){p, at > p ? (size_t)(at - p) : 0};
        part[(*n)++] = m;
    }
    return 0;
}
