/* See err.h. */
#include "engine/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cut back to the start of a character when vsnprintf stopped inside one. */
static void trim_utf8(char *s)
{
    size_t n = strlen(s), i = n;
    while (i > 0 && ((unsigned char)s[i - 1] & 0xC0) == 0x80)
        i--;
    if (i == 0)
        return;
    unsigned char lead = (unsigned char)s[i - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (n - (i - 1) < want)
        s[i - 1] = 0;
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (!e)
        return code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    trim_utf8(e->text);
    e->code = code;
    return code;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return ERR_INTERNAL;
    char head[120], all[sizeof head + sizeof e->text + 2];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    snprintf(all, sizeof all, "%s: %s", head, e->text);
    snprintf(e->text, sizeof e->text, "%.*s", (int)sizeof e->text - 1, all);
    trim_utf8(e->text);
    return e->code;
}

const char *err_name(int code)
{
    static const char *const names[] = {
        "ok",        "again",   "nomem",     "inval",    "parse",     "io",     "notfound",
        "unsupported", "limit", "full",      "timeout",  "cancelled", "draining", "device",
        "auth",      "method",  "too_large", "media",    "context",   "internal",
    };
    int i = -code;
    return i >= 0 && i < (int)(sizeof names / sizeof *names) ? names[i] : "internal";
}

void check_failed(const char *file, int line, const char *cond)
{
    fprintf(stderr, "stepd: bug: %s:%d: %s\n", file, line, cond);
    abort();
}
