/* EXIF, as much as pictures need: the orientation in, a user comment out. A TIFF block is: byte order, 42, offset of a
 * directory; a directory is a count and entries of 12 bytes (tag, type, count, value or offset); TIFF 6.0, EXIF 2.32. */
#include "api/picture_impl.h"

#include <string.h>

enum {
    TAG_ORIENTATION = 0x0112,
    TAG_EXIF_DIRECTORY = 0x8769,
    TAG_USER_COMMENT = 0x9286,
    TYPE_SHORT = 3,
    TYPE_LONG = 4,
    TYPE_UNDEFINED = 7,
    ENTRY = 12,
    DIRECTORY = 8,                       /* where the first one starts */
    ONE_ENTRY = 2 + ENTRY + 4,           /* bytes of a directory with one entry */
    COMMENT = DIRECTORY + 2 * ONE_ENTRY, /* where the comment starts */
    CHARSET = 8,                         /* bytes before it: its character set */
};

/* ---- reading ---- */

struct tiff {
    const uint8_t *p;
    size_t n;
    bool big; /* byte order */
};

/* 0 outside of the block. */
static uint32_t get(const struct tiff *t, size_t at, int bytes)
{
    uint32_t v = 0;
    if (at > t->n || (size_t)bytes > t->n - at)
        return 0;
    for (int i = 0; i < bytes; i++)
        v = v << 8 | t->p[at + (size_t)(t->big ? i : bytes - 1 - i)];
    return v;
}

int picture__exif_orientation(const uint8_t *p, size_t n)
{
    struct tiff t = {p, n, false};
    if (n >= 6 && memcmp(p, "Exif\0\0", 6) == 0)
        t = (struct tiff){p + 6, n - 6, false};
    if (t.n < 8 || (memcmp(t.p, "II*\0", 4) != 0 && memcmp(t.p, "MM\0*", 4) != 0))
        return 1;
    t.big = t.p[0] == 'M';
    size_t dir = get(&t, 4, 4), count = get(&t, dir, 2);
    for (size_t i = 0; i < count; i++) {
        size_t at = dir + 2 + i * ENTRY;
        if (at > t.n)
            break;
        uint32_t type = get(&t, at + 2, 2);
        if (get(&t, at, 2) != TAG_ORIENTATION || get(&t, at + 4, 4) != 1)
            continue;
        uint32_t v = type == TYPE_SHORT  ? get(&t, at + 8, 2)
                     : type == TYPE_LONG ? get(&t, at + 8, 4)
                                         : 1;
        return v >= 1 && v <= 8 ? (int)v : 1;
    }
    return 1;
}

/* ---- writing ---- */

static void put(struct buf *b, uint32_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--)
        buf_char(b, (char)(v >> (8 * i)));
}

static void put_directory(struct buf *b, uint32_t tag, uint32_t type, uint32_t count,
                          uint32_t value)
{
    put(b, 1, 2);
    put(b, tag, 2);
    put(b, type, 2);
    put(b, count, 4);
    put(b, value, 4);
    put(b, 0, 4); /* no next one */
}

/* One character of valid UTF-8; *s moves behind it. */
static uint32_t next_char(const char **s)
{
    const unsigned char *p = (const unsigned char *)*s;
    int more = p[0] < 0x80 ? 0 : p[0] < 0xE0 ? 1 : p[0] < 0xF0 ? 2 : 3;
    static const unsigned char mask[] = {0x7F, 0x1F, 0x0F, 0x07};
    uint32_t c = p[0] & mask[more];
    for (int i = 1; i <= more; i++)
        c = c << 6 | (p[i] & 0x3F);
    *s += more + 1;
    return c;
}

static size_t utf16_units(const char *s)
{
    size_t n = 0;
    while (*s)
        n += next_char(&s) > 0xFFFF ? 2 : 1;
    return n;
}

static bool is_ascii(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s >= 0x80)
            return false;
    return true;
}

static void put_utf16(struct buf *b, const char *s)
{
    while (*s) {
        uint32_t c = next_char(&s);
        if (c > 0xFFFF) {
            put(b, 0xD800 + ((c - 0x10000) >> 10), 2);
            c = 0xDC00 + ((c - 0x10000) & 0x3FF);
        }
        put(b, c, 2);
    }
}

int picture__exif_comment(struct buf *out, const char *text, size_t max)
{
    size_t room = max - (COMMENT + CHARSET), bytes = utf16_units(text) * 2;
    bool wide = bytes <= room;
    if (!wide) {
        bytes = strlen(text);
        if (bytes > room || !is_ascii(text))
            return ERR_LIMIT;
    }
    buf_add(out, "MM\0*", 4);
    put(out, DIRECTORY, 4);
    put_directory(out, TAG_EXIF_DIRECTORY, TYPE_LONG, 1, DIRECTORY + ONE_ENTRY);
    put_directory(out, TAG_USER_COMMENT, TYPE_UNDEFINED, (uint32_t)(CHARSET + bytes), COMMENT);
    if (wide) {
        buf_add(out, "UNICODE\0", CHARSET);
        put_utf16(out, text);
    } else {
        buf_add(out, "ASCII\0\0\0", CHARSET);
        buf_str(out, text);
    }
    return out->failed ? ERR_NOMEM : 0;
}
