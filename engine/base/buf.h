/* Growable byte buffer, and views. The buffer keeps a terminating 0 after its `len` bytes, so
 * `b.p` can be handed to code that reads C strings. One owner at a time. Growth doubles, so n appends cost O(n).
 * A failed growth (size chosen by a client) sets `failed` and drops the append; later appends are
 * no-ops, so a writer checks once at the end. */
#ifndef ENGINE_BASE_BUF_H
#define ENGINE_BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct buf {
    char *p; /* NULL while empty and never grown */
    size_t len, cap;
    size_t limit; /* 0 = none; an append past it sets failed */
    bool failed;
};

/* Bytes that somebody else owns. */
struct view {
    const char *p;
    size_t len;
};

#define VIEW_LIT(s) ((struct view){(s), sizeof(s) - 1})
struct view view_str(const char *s); /* NULL gives the empty view */
bool view_eq(struct view a, struct view b);
bool view_is(struct view a, const char *s);
bool view_starts(struct view a, const char *prefix);

void buf_free(struct buf *b);                 /* back to the zero state */
void buf_clear(struct buf *b);                /* len = 0, failed = false; keeps memory and limit */
int buf_reserve(struct buf *b, size_t extra); /* 0 or ERR_NOMEM / ERR_LIMIT */
void buf__add_slow(struct buf *b, const void *p, size_t n);
/* Writers append in many small pieces, once a token: what fits costs no call. */
static inline void buf_add(struct buf *b, const void *p, size_t n)
{
    if (n >= b->cap - b->len || b->limit || b->failed) {
        buf__add_slow(b, p, n);
        return;
    }
    if (n)
        memcpy(b->p + b->len, p, n);
    b->len += n;
    b->p[b->len] = 0;
}
static inline void buf_char(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}
void buf_str(struct buf *b, const char *s);
void buf_fmt(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vfmt(struct buf *b, const char *fmt, va_list ap);
/* Remove n bytes from the front (n <= len). */
void buf_drop(struct buf *b, size_t n);
/* Append `s` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD; control
 * characters are escaped; everything else is copied. */
void buf_json(struct buf *b, const char *s, size_t n);
/* Terminated text of the buffer, "" while empty. Valid until the next change. */
const char *buf_cstr(const struct buf *b);
/* Hand the bytes to the caller (release with free()); the buffer becomes empty. NULL if empty. */
char *buf_take(struct buf *b, size_t *len);

/* Length in bytes (1..4) of the well-formed UTF-8 character at s, 0 if malformed, -1 if the n bytes
 * are a proper prefix of one. Unicode 15.0 table 3-7. n >= 1. */
int utf8_len(const char *s, size_t n);
bool utf8_valid(const char *s, size_t n);

#endif
