/* Characters: UTF-8, classes, normal forms (utf8proc), GPT-2's byte letters. No state. */
#include <limits.h>
#include <utf8proc.h>

#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

/* Marks in one run after which a normal form is cut: canonical ordering is quadratic in the run, and
 * UAX #15's stream-safe format allows 30. */
#define NF_RUN_MAX 256

size_t tok__utf8_put(char out[4], uint32_t c)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

uint32_t tok__utf8_get(const char *s, size_t n, size_t *len)
{
    utf8proc_int32_t c = 0;
    utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &c);
    CHECK(k > 0);
    *len = (size_t)k;
    return (uint32_t)c;
}

bool tok__is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool tok__is_word(uint32_t c)
{
    if (c < 0x80)
        return c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NO) || k == UTF8PROC_CATEGORY_PC;
}

/* No byte over 0x7F: all normal forms leave such text alone. */
static bool is_ascii(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)s[i] >= 0x80)
            return false;
    return true;
}

/* One chunk of code points through utf8proc: decompose, order, compose, write. */
static int nf_chunk(const char *s, size_t n, utf8proc_option_t opt, struct buf *out)
{
    if (is_ascii(s, n)) {
        buf_add(out, s, n);
        return 0;
    }
    const utf8proc_uint8_t *u = (const utf8proc_uint8_t *)s;
    utf8proc_ssize_t k = utf8proc_decompose(u, (utf8proc_ssize_t)n, NULL, 0, opt);
    if (k < 0)
        return ERR_PARSE;
    size_t bytes;
    utf8proc_int32_t *cp;
    if (!ck_mul((size_t)k + 1, sizeof *cp, &bytes) || !(cp = mem_alloc(bytes)))
        return ERR_NOMEM;
    k = utf8proc_decompose(u, (utf8proc_ssize_t)n, cp, k, opt);
    if (k >= 0)
        k = utf8proc_normalize_utf32(cp, k, opt);
    for (utf8proc_ssize_t i = 0; i < k; i++) {
        char b[4];
        buf_add(out, b, tok__utf8_put(b, (uint32_t)cp[i]));
    }
    free(cp);
    return k < 0 ? ERR_PARSE : 0;
}

int tok__nf(enum tok_norm_op op, const char *s, size_t n, struct buf *out)
{
    unsigned opt = UTF8PROC_STABLE;
    opt |= op == TOK_NORM_NFC || op == TOK_NORM_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (op == TOK_NORM_NFKC || op == TOK_NORM_NFKD)
        opt |= UTF8PROC_COMPAT;
    size_t start = 0, marks = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = tok__utf8_get(s + i, n - i, &len);
        /* ASCII never joins what stands before it: a safe place to cut, so memory stays small. */
        bool cut = c < 0x80 && i - start > 4096;
        marks = c >= 0x300 && utf8proc_get_property((utf8proc_int32_t)c)->combining_class
                    ? marks + 1
                    : 0;
        if (!cut && marks <= NF_RUN_MAX)
            continue;
        int rc = nf_chunk(s + start, i - start, (utf8proc_option_t)opt, out);
        if (rc != 0)
            return rc;
        start = i;
        marks = 0;
    }
    return nf_chunk(s + start, n - start, (utf8proc_option_t)opt, out);
}

void tok__lower(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = tok__utf8_get(s + i, n - i, &len);
        char b[4];
        if (c < 0x80)
            buf_char(out, (char)(c >= 'A' && c <= 'Z' ? c + 32 : c));
        else if (c == 0x130) /* the one character whose full lower case has two */
            buf_str(out, "i\xcc\x87");
        else
            buf_add(out, b, tok__utf8_put(b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c)));
    }
}

/* Non-spacing marks go; the text is decomposed before. */
void tok__strip_marks(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = tok__utf8_get(s + i, n - i, &len);
        if (c < 0x300 || utf8proc_category((utf8proc_int32_t)c) != UTF8PROC_CATEGORY_MN)
            buf_add(out, s + i, len);
    }
}

/* Controls and formats go, white space becomes a plain space. */
void tok__bert_clean(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = tok__utf8_get(s + i, n - i, &len);
        if (tok__is_space(c) && c != 0x85 && c != 0x0B && c != 0x0C) {
            buf_char(out, ' ');
            continue;
        }
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
        if (c != 0 && c != 0xFFFD && k < UTF8PROC_CATEGORY_CC)
            buf_add(out, s + i, len);
    }
}

size_t tok__grapheme_len(const char *s, size_t n)
{
    size_t len, i = 0;
    utf8proc_int32_t state = 0, prev = (utf8proc_int32_t)tok__utf8_get(s, n, &len);
    for (i = len; i < n; i += len) {
        utf8proc_int32_t c = (utf8proc_int32_t)tok__utf8_get(s + i, n - i, &len);
        if ((prev < 0x300 && c < 0x300 && !(prev == '\r' && c == '\n')) ||
            utf8proc_grapheme_break_stateful(prev, c, &state))
            break;
        prev = c;
    }
    return i;
}

/* The blocks that BERT's reference code calls Chinese; one bound differs from Unicode's, as there. */
static bool is_cjk(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void tok__cjk_spaces(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        bool wide = is_cjk(tok__utf8_get(s + i, n - i, &len));
        if (wide)
            buf_char(out, ' ');
        buf_add(out, s + i, len);
        if (wide)
            buf_char(out, ' ');
    }
}

/* GPT-2 writes each byte as one printable letter: printable Latin-1 as itself, the other 68 bytes in
 * order from U+0100 on. */
static bool byte_prints(uint8_t b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

uint32_t tok__byte_letter(uint8_t b)
{
    if (byte_prints(b))
        return b;
    if (b <= 0x20)
        return 0x100u + b;
    return b == 0xAD ? 0x143u : 0x121u + b - 0x7Fu;
}

int tok__letter_byte(uint32_t c)
{
    if (c < 0x100)
        return byte_prints((uint8_t)c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}

bool tok__letters_to_bytes(struct view s, char *out, size_t *n)
{
    size_t k = 0;
    for (size_t i = 0; i < s.len;) {
        uint8_t b = (uint8_t)s.p[i];
        uint32_t c = b;
        size_t len = 1;
        if (b >= 0xC2 && b <= 0xC5 && i + 1 < s.len) { /* all letters are below U+0144 */
            c = (uint32_t)(b & 0x1F) << 6 | ((uint8_t)s.p[i + 1] & 0x3F);
            len = 2;
        } else if (b >= 0x80) {
            return false;
        }
        int v = tok__letter_byte(c);
        if (v < 0)
            return false;
        out[k++] = (char)v;
        i += len;
    }
    *n = k;
    return true;
}
