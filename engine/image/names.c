/* See names_impl.h. */
#include "engine/image/names_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DIGITS_MAX 6 /* of a block number */

bool names_match(const char *pattern, const char *want, struct names_cap *c)
{
    int k = 0;
    c->rest = "";
    for (; *pattern; pattern++) {
        if (*pattern == '*') { /* may stand for nothing */
            c->rest = want;
            return true;
        }
        if (*pattern != '#') {
            if (*pattern != *want++)
                return false;
            continue;
        }
        int v = 0, n = 0;
        for (; *want >= '0' && *want <= '9' && n < DIGITS_MAX; n++)
            v = 10 * v + (*want++ - '0');
        if (!n || k == NAMES_CAPS)
            return false;
        c->n[k++] = v;
    }
    return !*want;
}

/* The file's name from its pattern; false when it does not fit. */
static bool expand(char *out, size_t size, const char *at, const char *pattern,
                   const struct names_cap *c)
{
    int k = 0, n = snprintf(out, size, "%s", at);
    for (; n >= 0 && (size_t)n < size && *pattern; pattern++) {
        size_t room = size - (size_t)n;
        int add = *pattern == '#'   ? snprintf(out + n, room, "%d", c->n[k++])
                  : *pattern == '*' ? snprintf(out + n, room, "%s", c->rest)
                                    : snprintf(out + n, room, "%c", *pattern);
        n += add;
    }
    return n >= 0 && (size_t)n < size;
}

int names_rows(const struct names_row *row, size_t n, const char *want, const char *at,
               struct source_slice *slice)
{
    struct names_cap c;
    size_t i = 0;
    int k = 0;
    while (i < n && !names_match(row[i].want, want, &c))
        i++;
    /* rows that want the same follow each other: the slices of one tensor */
    for (size_t first = i; i < n && strcmp(row[i].want, row[first].want) == 0; i++, k++) {
        if (k == SOURCE_SLICES || !expand(slice[k].name, sizeof slice->name, at, row[i].file, &c))
            return -1;
        slice[k].part = row[i].part;
        slice[k].n_part = row[i].n_part ? row[i].n_part : 1;
        slice[k].n_take = row[i].n_take;
    }
    return k;
}

int names_one(struct source_slice *slice, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(slice->name, sizeof slice->name, fmt, ap);
    va_end(ap);
    slice->part = 0;
    slice->n_part = 1;
    slice->n_take = 1;
    return n >= 0 && (size_t)n < sizeof slice->name ? 1 : -1;
}

static const struct source_tensor *look(const struct source_map *m, const char *name)
{
    char full[512];
    int n = snprintf(full, sizeof full, "%s%s", m->prefix ? m->prefix : "", name);
    return n >= 0 && (size_t)n < sizeof full ? source_find(m->src, full) : NULL;
}

/* Whether the tensor is there, all its slices; its shape. */
static bool has(const struct source_map *m, int64_t dim[SOURCE_DIMS], const char *want)
{
    struct source_slice s[SOURCE_SLICES] = {0};
    int n = m->find ? m->find(m, want, s) : 0;
    int64_t rows = 0;
    const struct source_tensor *t = n ? NULL : look(m, want);
    for (int i = 0; i < n; i++) {
        t = look(m, s[i].name);
        if (!t)
            return false;
        rows +=
            s[i].n_part > 1 ? t->dim[0] / s[i].n_part * (s[i].n_take ? s[i].n_take : 1) : t->dim[0];
    }
    if (!t)
        return false;
    for (int i = 0; dim && i < SOURCE_DIMS; i++)
        dim[i] = i >= t->n_dim ? 0 : i || !n ? t->dim[i] : rows;
    return true;
}

bool names_has(const struct source_map *m, int64_t dim[SOURCE_DIMS], const char *fmt, ...)
{
    char name[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return n >= 0 && (size_t)n < sizeof name && has(m, dim, name);
}

int names_count(const struct source_map *m, int max, const char *fmt, ...)
{
    char pattern[256];
    va_list ap;
    int k = 0;
    va_start(ap, fmt);
    int n = vsnprintf(pattern, sizeof pattern, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof pattern)
        return 0;
    for (; k < max; k++) {
        char name[288];
        struct names_cap c = {{k, 0, 0}, ""};
        if (!expand(name, sizeof name, "", pattern, &c) || !has(m, NULL, name))
            break;
    }
    return k;
}
