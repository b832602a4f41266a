/* Character classes of regular expressions: sets of code points as sorted ranges. Where ECMA 262 and Python read a class
 * differently (\W, \D, \S beyond ASCII), the set is what both mean, so that either finds the text valid. */
#include "engine/text/grammar_class.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define CP_MAX 0x10FFFFu

int gr__class_add(struct gr_builder *b, struct gr_class *c, uint32_t lo, uint32_t hi)
{
    if (!gr__grow(b, &c->r, c->n + 1, &c->cap, sizeof *c->r))
        return ERR_NOMEM;
    c->r[c->n++] = (struct gr_range){lo, hi};
    return 0;
}

void gr__class_free(struct gr_class *c)
{
    free(c->r);
    *c = (struct gr_class){0};
}

static int by_lo(const void *pa, const void *pb)
{
    const struct gr_range *a = pa, *b = pb;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

static void normalise(struct gr_class *c)
{
    size_t n = 0;
    if (c->n)
        qsort(c->r, c->n, sizeof *c->r, by_lo);
    for (size_t i = 0; i < c->n; i++) {
        if (n && c->r[i].lo <= c->r[n - 1].hi + 1) {
            if (c->r[i].hi > c->r[n - 1].hi)
                c->r[n - 1].hi = c->r[i].hi;
        } else {
            c->r[n++] = c->r[i];
        }
    }
    c->n = n;
}

int gr__class_negate(struct gr_builder *b, struct gr_class *c)
{
    struct gr_class out = {0};
    uint32_t from = 0;
    int rc = 0;
    normalise(c);
    for (size_t i = 0; i < c->n && !rc; i++) {
        if (c->r[i].lo > from)
            rc = gr__class_add(b, &out, from, c->r[i].lo - 1);
        from = c->r[i].hi + 1;
    }
    if (!rc && from <= CP_MAX)
        rc = gr__class_add(b, &out, from, CP_MAX);
    gr__class_free(c);
    *c = out;
    return rc;
}

int gr__class_fold(struct gr_builder *b, struct gr_class *c)
{
    size_t n = c->n;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        uint32_t lo = c->r[i].lo > 'A' ? c->r[i].lo : 'A', hi = c->r[i].hi < 'Z' ? c->r[i].hi : 'Z';
        if (lo <= hi)
            rc = gr__class_add(b, c, lo + 32, hi + 32);
        lo = c->r[i].lo > 'a' ? c->r[i].lo : 'a';
        hi = c->r[i].hi < 'z' ? c->r[i].hi : 'z';
        if (!rc && lo <= hi)
            rc = gr__class_add(b, c, lo - 32, hi - 32);
    }
    return rc;
}

gr_expr gr__class_expr(struct gr_builder *b, struct gr_class *c, enum gr_encoding enc)
{
    normalise(c);
    return gr_chars(b, enc, c->r, c->n);
}

/* Code points whose general category passes. */
static int add_categories(struct gr_builder *b, struct gr_class *c,
                          bool (*pass)(int cat, uint32_t cp, const char *arg), const char *arg,
                          uint32_t from)
{
    uint32_t start = 0;
    bool in = false;
    int rc = 0;
    for (uint32_t cp = from; cp <= CP_MAX + 1 && !rc; cp++) {
        bool ok = cp <= CP_MAX && !(cp >= 0xD800 && cp <= 0xDFFF) &&
                  pass(utf8proc_category((utf8proc_int32_t)cp), cp, arg);
        if (ok && !in)
            start = cp;
        if (!ok && in)
            rc = gr__class_add(b, c, start, cp - 1);
        in = ok;
    }
    return rc;
}

static bool not_digit(int cat, uint32_t cp, const char *arg)
{
    (void)cp;
    (void)arg;
    return cat != UTF8PROC_CATEGORY_ND;
}

static bool in_category(int cat, uint32_t cp, const char *arg)
{
    (void)cp;
    const char *name = utf8proc_category_string((utf8proc_int32_t)cp);
    (void)cat;
    return strncmp(name, arg, strlen(arg)) == 0;
}

static int add_list(struct gr_builder *b, struct gr_class *c, const uint32_t *r, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i + 1 < n && !rc; i += 2)
        rc = gr__class_add(b, c, r[i], r[i + 1]);
    return rc;
}
#define LIST(...) ((const uint32_t[]){__VA_ARGS__}), sizeof((const uint32_t[]){__VA_ARGS__}) / 4

int gr__class_escape(struct gr_builder *b, struct gr_class *c, char name)
{
    switch (name) {
    case 'd':
        return gr__class_add(b, c, '0', '9');
    case 'w':
        return add_list(b, c, LIST('0', '9', 'A', 'Z', '_', '_', 'a', 'z'));
    case 's':
        return add_list(b, c, LIST('\t', '\r', ' ', ' '));
    case 'W':
        return add_list(b, c, LIST(0, '/', ':', '@', '[', '^', '`', '`', '{', 0x7F));
    case 'S': /* neither ECMA's nor Python's white space */
        return add_list(b, c,
                        LIST(0, 8, 0x0E, 0x1B, 0x21, 0x84, 0x86, 0x9F, 0xA1, 0x167F, 0x1681, 0x1FFF,
                             0x200B, 0x2027, 0x202A, 0x202E, 0x2030, 0x205E, 0x2060, 0x2FFF, 0x3001,
                             0xFEFE, 0xFF00, CP_MAX));
    default: /* 'D' */
        if (add_list(b, c, LIST(0, '/', ':', 0x7F)))
            return ERR_NOMEM;
        return add_categories(b, c, not_digit, NULL, 0x80);
    }
}

int gr__class_property(struct gr_builder *b, struct gr_class *c, struct view name)
{
    static const struct {
        const char *full, *abbr;
    } names[] = {{"Letter", "L"},
                 {"Alphabetic", "L"},
                 {"Number", "N"},
                 {"Punctuation", "P"},
                 {"Symbol", "S"},
                 {"Separator", "Z"},
                 {"Mark", "M"},
                 {"Uppercase_Letter", "Lu"},
                 {"Lowercase_Letter", "Ll"},
                 {"Decimal_Number", "Nd"},
                 {"Other", "C"}};
    char text[40];
    for (int i = 0; i < 2; i++) { /* General_Category=Lu, gc=Lu */
        const char *prefix = i ? "gc=" : "General_Category=";
        if (view_starts(name, prefix)) {
            name.p += strlen(prefix);
            name.len -= strlen(prefix);
        }
    }
    if (name.len == 0 || name.len >= sizeof text)
        return ERR_UNSUPPORTED;
    memcpy(text, name.p, name.len);
    text[name.len] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i].full) == 0)
            snprintf(text, sizeof text, "%s", names[i].abbr);
    if (strlen(text) > 2 || !strchr("LNPSZMC", text[0]))
        return ERR_UNSUPPORTED;
    return add_categories(b, c, in_category, text, 0);
}
