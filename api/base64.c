/* See base64.h. */
#include "api/base64.h"

#include "engine/base/err.h"
#include "engine/base/mem.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Three bytes to four digits. */
static void put_group(char q[4], const uint8_t *s)
{
    uint32_t v = (uint32_t)s[0] << 16 | (uint32_t)s[1] << 8 | s[2];
    for (int k = 0; k < 4; k++)
        q[k] = digits[v >> (18 - 6 * k) & 63];
}

void base64_write(struct buf *b, const void *p, size_t n)
{
    const uint8_t *s = p;
    char part[1024]; /* an append for every four digits would cost more than the digits */
    size_t len, used = 0;
    if (!ck_mul(n / 3 + 1, 4, &len) || buf_reserve(b, len))
        return;
    for (; n >= 3; s += 3, n -= 3) {
        put_group(part + used, s);
        if ((used += 4) == sizeof part) {
            buf_add(b, part, used);
            used = 0;
        }
    }
    buf_add(b, part, used);
    if (n) {
        const uint8_t rest[3] = {s[0], n > 1 ? s[1] : 0, 0};
        put_group(part, rest);
        part[3] = '=';
        if (n == 1)
            part[2] = '=';
        buf_add(b, part, 4);
    }
}

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int base64_read(struct buf *b, struct view text)
{
    uint32_t v = 0;
    int k = 0, pad = 0;
    char part[1023];
    size_t used = 0;
    if (buf_reserve(b, text.len / 4 * 3 + 3))
        return ERR_NOMEM;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.p[i];
        if (c == ' ' || c == '\n' || c == '\r' || c == '\t')
            continue;
        if (c == '=') {
            pad++;
            continue;
        }
        int d = value_of(c);
        if (d < 0 || pad)
            return ERR_PARSE;
        v = v << 6 | (uint32_t)d;
        if (++k == 4) {
            part[used++] = (char)(v >> 16);
            part[used++] = (char)(v >> 8);
            part[used++] = (char)v;
            v = 0;
            k = 0;
        }
        if (used == sizeof part) {
            buf_add(b, part, used);
            used = 0;
        }
    }
    buf_add(b, part, used);
    if (k == 1 || (pad && (k == 0 || k + pad != 4)))
        return ERR_PARSE;
    if (k) {
        v <<= 6 * (4 - k);
        const char q[2] = {(char)(v >> 16), (char)(v >> 8)};
        buf_add(b, q, (size_t)k - 1);
    }
    return b->failed ? ERR_NOMEM : 0;
}
