/* See buf.h. */
#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct view view_str(const char *s)
{
    return s ? (struct view){s, strlen(s)} : (struct view){"", 0};
}

bool view_eq(struct view a, struct view b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.p, b.p, a.len) == 0);
}

bool view_is(struct view a, const char *s)
{
    return view_eq(a, view_str(s));
}

bool view_starts(struct view a, const char *prefix)
{
    size_t n = strlen(prefix);
    return a.len >= n && memcmp(a.p, prefix, n) == 0;
}

void buf_free(struct buf *b)
{
    free(b->p);
    *b = (struct buf){0};
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->p)
        b->p[0] = 0;
}

int buf_reserve(struct buf *b, size_t extra)
{
    size_t need, with0;
    if (b->failed)
        return ERR_LIMIT;
    if (!ck_add(b->len, extra, &need) || !ck_add(need, 1, &with0))
        goto nomem;
    if (b->limit && need > b->limit) {
        b->failed = true;
        return ERR_LIMIT;
    }
    if (with0 <= b->cap)
        return 0;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < with0 && cap <= SIZE_MAX / 2)
        cap *= 2;
    char *p = cap < with0 ? NULL : mem_realloc(b->p, cap);
    if (!p)
        goto nomem;
    b->p = p;
    b->cap = cap;
    return 0;
nomem:
    b->failed = true;
    return ERR_NOMEM;
}

void buf__add_slow(struct buf *b, const void *p, size_t n)
{
    if (buf_reserve(b, n))
        return;
    if (n)
        memcpy(b->p + b->len, p, n);
    b->len += n;
    b->p[b->len] = 0;
}

void buf_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_vfmt(struct buf *b, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n >= 0 && buf_reserve(b, (size_t)n) == 0) {
        vsnprintf(b->p + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void buf_fmt(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_vfmt(b, fmt, ap);
    va_end(ap);
}

void buf_drop(struct buf *b, size_t n)
{
    CHECK(n <= b->len);
    if (n == 0)
        return;
    memmove(b->p, b->p + n, b->len - n);
    b->len -= n;
    b->p[b->len] = 0;
}

const char *buf_cstr(const struct buf *b)
{
    return b->p ? b->p : "";
}

char *buf_take(struct buf *b, size_t *len)
{
    char *p = b->p;
    if (len)
        *len = b->len;
    size_t limit = b->limit;
    *b = (struct buf){.limit = limit};
    return p;
}

int utf8_len(const char *str, size_t n)
{
    const unsigned char *s = (const unsigned char *)str;
    unsigned char c = s[0], lo = 0x80, hi = 0xBF;
    int want;
    if (c < 0x80)
        return 1;
    if (c >= 0xC2 && c <= 0xDF) {
        want = 2;
    } else if (c >= 0xE0 && c <= 0xEF) {
        want = 3;
        lo = c == 0xE0 ? 0xA0 : 0x80;
        hi = c == 0xED ? 0x9F : 0xBF;
    } else if (c >= 0xF0 && c <= 0xF4) {
        want = 4;
        lo = c == 0xF0 ? 0x90 : 0x80;
        hi = c == 0xF4 ? 0x8F : 0xBF;
    } else {
        return 0;
    }
    for (int i = 1; i < want; i++) {
        if ((size_t)i >= n)
            return -1;
        if (s[i] < lo || s[i] > hi)
            return 0;
        lo = 0x80;
        hi = 0xBF;
    }
    return want;
}

bool utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint64_t eight;
        if (n - i >= sizeof eight) { /* ASCII, eight at a time */
            memcpy(&eight, s + i, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                i += sizeof eight;
                continue;
            }
        }
        int k = utf8_len(s + i, n - i);
        if (k <= 0)
            return false;
        i += (size_t)k;
    }
    return true;
}

/* Append one character that JSON wants escaped. */
static void json_escape(struct buf *b, unsigned char c)
{
    static const char short_for[32] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    if (c == '"' || c == '\\' || (c < 32 && short_for[c])) {
        char two[2] = {'\\', c < 32 ? short_for[c] : (char)c};
        buf_add(b, two, 2);
    } else {
        buf_fmt(b, "\\u%04x", c);
    }
}

void buf_json(struct buf *b, const char *s, size_t n)
{
    size_t start = 0, i = 0;
    buf_char(b, '"');
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x80 && c >= 0x20 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        int k = utf8_len(s + i, n - i);
        if (k > 1) {
            i += (size_t)k;
            continue;
        }
        buf_add(b, s + start, i - start);
        if (k == 1)
            json_escape(b, c);
        else
            buf_str(b, "\xEF\xBF\xBD");
        start = ++i;
    }
    buf_add(b, s + start, n - start);
    buf_char(b, '"');
}
