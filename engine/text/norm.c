/* The steps of normalisation, and SentencePiece's compiled character map. Each step reads valid UTF-8
 * and appends its result; linear in the text. */
#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

/* ---- SentencePiece's map: darts-clone double array (units as in its public header) ---- */

static uint32_t unit_at(const struct tok_charsmap *m, size_t i)
{
    const uint8_t *p = m->unit + 4 * i;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int tok__charsmap_open(struct tok_charsmap *m, const void *blob, size_t n, struct err *e)
{
    const uint8_t *p = blob;
    *m = (struct tok_charsmap){0};
    if (n == 0)
        return 0;
    size_t size =
        n < 4 ? SIZE_MAX
              : ((size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24);
    if (n < 4 || size > n - 4 || size % 4 != 0 || size == 0)
        return err_set(e, ERR_PARSE, "precompiled_charsmap: trie does not fit its %zu bytes", n);
    m->unit = p + 4;
    m->n_unit = size / 4;
    m->pool = (const char *)p + 4 + size;
    m->n_pool = n - 4 - size;
    if (m->n_pool && (m->pool[m->n_pool - 1] != 0 || !utf8_valid(m->pool, m->n_pool)))
        return err_set(e, ERR_PARSE, "precompiled_charsmap: replacements are no terminated UTF-8");
    return 0;
}

/* Offset field of a unit: 22 bits, shifted by 8 when bit 9 is set. */
static size_t unit_offset(uint32_t u)
{
    return (size_t)(u >> 10) << ((u & (1u << 9)) >> 6);
}

/* Length of the longest source text that s starts with (0 = none) and its replacement. */
static size_t charsmap_match(const struct tok_charsmap *m, const char *s, size_t n,
                             const char **repl)
{
    size_t pos = unit_offset(unit_at(m, 0)), best = 0;
    for (size_t i = 0; i < n && s[i]; i++) {
        pos ^= (uint8_t)s[i];
        if (pos >= m->n_unit)
            break;
        uint32_t u = unit_at(m, pos);
        if ((u & (1u << 31 | 0xFF)) != (uint8_t)s[i])
            break;
        pos ^= unit_offset(u);
        if (!(u >> 8 & 1))
            continue;
        if (pos >= m->n_unit)
            break;
        uint32_t value = unit_at(m, pos) & 0x7FFFFFFF;
        /* A damaged trie must not cut a character in two: later steps rely on whole ones. */
        bool whole = i + 1 == n || ((uint8_t)s[i + 1] & 0xC0) != 0x80;
        if (whole && value < m->n_pool) {
            best = i + 1;
            *repl = m->pool + value;
        }
    }
    return best;
}

/* SentencePiece replaces the longest source text at each place. Hugging Face's Precompiled normalizer
 * (`clusters`) replaces a short grapheme cluster as a whole when its start is in the map, and goes
 * character by character otherwise. */
void tok__charsmap_apply(const struct tok_charsmap *m, bool clusters, const char *s, size_t n,
                         struct buf *out)
{
    if (!m->n_unit) {
        buf_add(out, s, n);
        return;
    }
    for (size_t i = 0; i < n;) {
        const char *repl = NULL;
        size_t g =
            clusters ? tok__grapheme_len(s + i, n - i) : charsmap_match(m, s + i, n - i, &repl);
        if (!clusters) {
            if (repl)
                buf_str(out, repl);
            else
                buf_add(out, s + i, g = (size_t)utf8_len(s + i, n - i));
            i += g;
            continue;
        }
        if (g < 6 && charsmap_match(m, s + i, g, &repl)) {
            buf_str(out, repl);
            i += g;
            continue;
        }
        for (size_t end = i + g, k; i < end; i += k) {
            k = (size_t)utf8_len(s + i, end - i);
            repl = NULL;
            if (charsmap_match(m, s + i, k, &repl))
                buf_str(out, repl);
            else
                buf_add(out, s + i, k);
        }
    }
}

/* ---- the other steps ---- */

static void replace_all(struct view a, struct view b, const char *s, size_t n, struct buf *out)
{
    size_t pos = 0;
    while (a.len && pos < n) {
        const char *hit = memmem(s + pos, n - pos, a.p, a.len);
        if (!hit)
            break;
        buf_add(out, s + pos, (size_t)(hit - s) - pos);
        buf_add(out, b.p, b.len);
        pos = (size_t)(hit - s) + a.len;
    }
    buf_add(out, s + pos, n - pos);
}

/* The same for matches of a pattern; b is literal text. */
static int replace_matches(const struct tok_norm *op, const char *s, size_t n, struct buf *out)
{
    size_t pos = 0, from = 0, a, b;
    while (from <= n) {
        int m = tok__re_next(op->re, s, n, from, &a, &b);
        if (m < 0)
            return m;
        if (m == 0)
            break;
        buf_add(out, s + pos, a - pos);
        buf_add(out, op->b.p, op->b.len);
        pos = b;
        from = b > a ? b : b + (b < n ? (size_t)utf8_len(s + b, n - b) : 1);
    }
    buf_add(out, s + pos, n - pos);
    return 0;
}

/* Drop white space at the left (1), right (2) or both ends. */
static void strip_spaces(unsigned sides, const char *s, size_t n, struct buf *out)
{
    size_t first = SIZE_MAX, last = 0;
    for (size_t i = 0, len; i < n; i += len) {
        if (tok__is_space(tok__utf8_get(s + i, n - i, &len)))
            continue;
        if (first == SIZE_MAX)
            first = i;
        last = i + len;
    }
    if (first == SIZE_MAX) {
        if (!sides)
            buf_add(out, s, n);
        return;
    }
    size_t a = sides & 1 ? first : 0, z = sides & 2 ? last : n;
    buf_add(out, s + a, z - a);
}

/* Spaces to marks, with the mark in front as the flags say. */
static void mark_spaces(const struct tok_norm *op, const char *s, size_t n, bool first,
                        struct buf *out)
{
    if (op->flags & TOK_MARK_SQUEEZE) {
        while (n && *s == ' ')
            s++, n--;
        while (n && s[n - 1] == ' ')
            n--;
    }
    bool front = op->flags & TOK_MARK_ALWAYS || (op->flags & TOK_MARK_FIRST && first);
    if (front && op->flags & TOK_MARK_ONCE)
        front = !(n && (*s == ' ' || (n >= op->a.len && memcmp(s, op->a.p, op->a.len) == 0)));
    if (front && n)
        buf_add(out, op->a.p, op->a.len);
    for (size_t i = 0; i < n;) {
        if (s[i] != ' ') {
            const char *sp = memchr(s + i, ' ', n - i);
            size_t k = sp ? (size_t)(sp - (s + i)) : n - i;
            buf_add(out, s + i, k);
            i += k;
            continue;
        }
        buf_add(out, op->a.p, op->a.len);
        i++;
        while (op->flags & TOK_MARK_SQUEEZE && i < n && s[i] == ' ')
            i++;
    }
}

/* White space goes, each word gets the mark in front. */
static void mark_words(const struct tok_norm *op, const char *s, size_t n, struct buf *out)
{
    bool in_word = false;
    for (size_t i = 0, len; i < n; i += len) {
        if (tok__is_space(tok__utf8_get(s + i, n - i, &len))) {
            in_word = false;
            continue;
        }
        if (!in_word)
            buf_add(out, op->a.p, op->a.len);
        in_word = true;
        buf_add(out, s + i, len);
    }
}

int tok__norm_apply(const struct tok_norm *op, const char *s, size_t n, bool first, struct buf *out)
{
    int rc = 0;
    switch (op->op) {
    case TOK_NORM_NFC:
    case TOK_NORM_NFD:
    case TOK_NORM_NFKC:
    case TOK_NORM_NFKD:
        rc = tok__nf(op->op, s, n, out);
        break;
    case TOK_NORM_LOWER:
        tok__lower(s, n, out);
        break;
    case TOK_NORM_STRIP_MARKS:
        tok__strip_marks(s, n, out);
        break;
    case TOK_NORM_PREPEND:
        if (n)
            buf_add(out, op->a.p, op->a.len);
        buf_add(out, s, n);
        break;
    case TOK_NORM_REPLACE:
        replace_all(op->a, op->b, s, n, out);
        break;
    case TOK_NORM_REGEX:
        rc = replace_matches(op, s, n, out);
        break;
    case TOK_NORM_STRIP:
        strip_spaces(op->flags, s, n, out);
        break;
    case TOK_NORM_CLEAN:
        tok__bert_clean(s, n, out);
        break;
    case TOK_NORM_CJK:
        tok__cjk_spaces(s, n, out);
        break;
    case TOK_NORM_CHARSMAP:
        tok__charsmap_apply(op->map, op->flags & 1, s, n, out);
        break;
    case TOK_NORM_MARK:
        mark_spaces(op, s, n, first, out);
        break;
    case TOK_NORM_WORDS:
        mark_words(op, s, n, out);
        break;
    }
    return rc ? rc : out->failed ? ERR_NOMEM : 0;
}
