/* Chat templates: source text to tokens. Whitespace rules are those of trim_blocks and lstrip_blocks:
 * one newline after a block or comment is dropped, blanks between line start and a block too; `-`
 * strips all white space on its side, `+` switches the automatic stripping off. */
#include "api/template_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
    struct tmpl_run *r;
    const char *s;
    size_t n, pos;
    bool line_start; /* the last match ended with a newline */
    struct ttok *tok;
    size_t n_tok, cap;
};

static struct ttok *emit(struct lexer *x, int type)
{
    if (x->n_tok == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 64;
        struct ttok *t = tmpl__alloc(x->r, cap, sizeof(*t));
        if (x->n_tok)
            memcpy(t, x->tok, x->n_tok * sizeof(*t));
        x->tok = t;
        x->cap = cap;
    }
    struct ttok *t = &x->tok[x->n_tok++];
    *t = (struct ttok){.type = (uint8_t)type, .line = x->r->line};
    return t;
}

/* Move on by n bytes, counting lines. */
static void advance(struct lexer *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x->r->line += x->s[x->pos + i] == '\n';
    x->pos += n;
    if (n)
        x->line_start = x->s[x->pos - 1] == '\n';
}

static bool at(const struct lexer *x, size_t pos, const char *lit)
{
    size_t m = strlen(lit);
    return pos + m <= x->n && memcmp(x->s + pos, lit, m) == 0;
}

/* Text [pos, end) before a tag whose sign is `sign`. */
static void emit_data(struct lexer *x, size_t end, char sign, bool variable)
{
    size_t n = end - x->pos;
    const char *p = x->s + x->pos;
    if (sign == '-') {
        n = tmpl__rspace(p, n);
    } else if (sign != '+' && !variable) {
        size_t bol = n;
        while (bol > 0 && p[bol - 1] != '\n')
            bol--;
        if ((bol > 0 || x->line_start) && tmpl__lspace(p + bol, n - bol) == n - bol)
            n = bol;
    }
    if (n)
        emit(x, TOK_DATA)->val = tmpl__ref(x->r, p, n);
    advance(x, end - x->pos);
}

static char sign_at(const struct lexer *x, size_t pos)
{
    return pos < x->n && (x->s[pos] == '-' || x->s[pos] == '+') ? x->s[pos] : 0;
}

/* Length of a closing delimiter at pos with its white space, 0 if there is none. */
static size_t close_len(const struct lexer *x, size_t pos, const char *end, bool block)
{
    if (pos < x->n && x->s[pos] == '-' && at(x, pos + 1, end))
        return 3 + tmpl__lspace(x->s + pos + 3, x->n - pos - 3);
    if (block && pos < x->n && x->s[pos] == '+' && at(x, pos + 1, end))
        return 3;
    if (!at(x, pos, end))
        return 0;
    return block && at(x, pos + 2, "\n") ? 3 : 2;
}

static size_t skip_space(const struct lexer *x, size_t pos)
{
    return pos + tmpl__lspace(x->s + pos, x->n - pos);
}

/* At "{%": when this is a tag of just `word`, the position after `word` and blanks, else 0. */
static size_t word_tag(const struct lexer *x, size_t pos, const char *word)
{
    pos += 2;
    pos = skip_space(x, pos + (sign_at(x, pos) != 0));
    return at(x, pos, word) ? skip_space(x, pos + strlen(word)) : 0;
}

/* At "{% raw %}": emits everything to endraw as data. */
static bool lex_raw(struct lexer *x)
{
    size_t p = word_tag(x, x->pos, "raw");
    /* raw's own end drops no newline, unlike other blocks */
    size_t len = p ? close_len(x, p, "%}", false) : 0;
    if (!len)
        return false;
    advance(x, p + len - x->pos);
    for (size_t q = x->pos; q + 1 < x->n; q++) {
        if (!at(x, q, "{%"))
            continue;
        size_t e = word_tag(x, q, "endraw");
        len = e ? close_len(x, e, "%}", true) : 0;
        if (!len)
            continue;
        emit_data(x, q, sign_at(x, q + 2), false);
        advance(x, e + len - x->pos);
        return true;
    }
    tmpl__fail(x->r, ERR_PARSE, "raw block without endraw");
}

static void lex_comment(struct lexer *x)
{
    for (size_t p = x->pos + 2; p + 1 < x->n; p++) {
        size_t len =
            x->s[p] == '#' || x->s[p] == '-' || x->s[p] == '+' ? close_len(x, p, "#}", true) : 0;
        if (len) {
            advance(x, p + len - x->pos);
            return;
        }
    }
    tmpl__fail(x->r, ERR_PARSE, "comment without end");
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Escape at s[i] == '\\' (i + 1 < n): appends its character, returns its length. */
static size_t unescape(struct lexer *x, struct tsb *b, const char *s, size_t i, size_t n)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char c = s[i + 1];
    const char *f = c ? strchr(from, c) : NULL;
    if (f) {
        tmpl__sb_add(x->r, b, &to[f - from], 1);
        return 2;
    }
    if (c == '\n')
        return 2;
    size_t want = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int32_t cp = 0;
    if (want) {
        for (size_t k = 0; k < want; k++) {
            int h = i + 2 + k < n ? hex_value(s[i + 2 + k]) : -1;
            if (h < 0 || cp > 0x10FFFF)
                tmpl__fail(x->r, ERR_PARSE, "bad \\%c escape in a string", c);
            cp = cp * 16 + h;
        }
        if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
            tmpl__fail(x->r, ERR_PARSE, "\\%c escape is no character", c);
        tmpl__cp_put(x->r, b, cp);
        return 2 + want;
    }
    if (c >= '0' && c <= '7') {
        size_t k = 1;
        for (; k < 4 && i + k < n && s[i + k] >= '0' && s[i + k] <= '7'; k++)
            cp = cp * 8 + (s[i + k] - '0');
        tmpl__cp_put(x->r, b, cp);
        return k;
    }
    if (c == 'N')
        tmpl__fail(x->r, ERR_UNSUPPORTED, "\\N escape in a string");
    tmpl__sb_add(x->r, b, "\\", 1); /* unknown escapes stay as they are */
    return 1;
}

static void lex_string(struct lexer *x)
{
    char q = x->s[x->pos];
    size_t start = x->pos + 1, end = start;
    while (end < x->n && x->s[end] != q)
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        tmpl__fail(x->r, ERR_PARSE, "string without closing quote");
    struct tsb b = {0};
    const char *s = x->s + start;
    size_t n = end - start, i = 0;
    while (i < n) {
        const char *esc = memchr(s + i, '\\', n - i);
        size_t plain = esc ? (size_t)(esc - s) - i : n - i;
        tmpl__sb_add(x->r, &b, s + i, plain);
        i += plain;
        if (i < n)
            i += unescape(x, &b, s, i, n);
    }
    emit(x, TOK_STR)->val = tmpl__sb_take(x->r, &b);
    advance(x, n + 2);
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them, appended to b without the underscores. */
static size_t digits(struct lexer *x, size_t p, struct tsb *b)
{
    size_t start = p;
    while (p < x->n && (digit(x->s[p]) ||
                        (x->s[p] == '_' && p > start && p + 1 < x->n && digit(x->s[p + 1])))) {
        if (x->s[p] != '_')
            tmpl__sb_add(x->r, b, x->s + p, 1);
        p++;
    }
    return p;
}

static void lex_number(struct lexer *x)
{
    struct tsb b = {0};
    size_t p = x->pos;
    bool real = false;
    int base = 10;
    if (x->s[p] == '0' && p + 2 < x->n && strchr("xXoObB", x->s[p + 1])) {
        char k = (char)(x->s[p + 1] | 32);
        base = k == 'x' ? 16 : k == 'o' ? 8 : 2;
        for (p += 2;
             p < x->n && (x->s[p] == '_' || (hex_value(x->s[p]) >= 0 && hex_value(x->s[p]) < base));
             p++)
            if (x->s[p] != '_')
                tmpl__sb_add(x->r, &b, x->s + p, 1);
    } else {
        p = digits(x, p, &b);
        bool after_dot = x->pos > 0 && x->s[x->pos - 1] == '.';
        if (!after_dot && p + 1 < x->n && x->s[p] == '.' && digit(x->s[p + 1])) {
            tmpl__sb_add(x->r, &b, ".", 1);
            p = digits(x, p + 1, &b);
            real = true;
        }
        size_t e = p + 1;
        if (!after_dot && p < x->n && (x->s[p] | 32) == 'e') {
            bool sign = e < x->n && (x->s[e] == '+' || x->s[e] == '-');
            if (e + sign < x->n && digit(x->s[e + sign])) {
                tmpl__sb_add(x->r, &b, x->s + p, 1 + (size_t)sign);
                p = digits(x, e + sign, &b);
                real = true;
            }
        }
    }
    tmpl__sb_add(x->r, &b, "", 1);
    struct ttok *t = emit(x, TOK_NUM);
    errno = 0;
    t->val = real ? tmpl__float(strtod(b.p, NULL)) : tmpl__int(strtoll(b.p, NULL, base));
    if (!real && errno)
        tmpl__fail(x->r, ERR_UNSUPPORTED, "integer %.40s is too large", b.p);
    advance(x, p - x->pos);
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || digit(c) ||
           (unsigned char)c >= 0x80;
}

static void lex_operator(struct lexer *x, char *open, int *n_open)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = x->s[x->pos];
    for (size_t i = 0; i < sizeof(two) / sizeof(two[0]); i++)
        if (at(x, x->pos, two[i])) {
            emit(x, TOK_OP)->op = OP2(two[i][0], two[i][1]);
            advance(x, 2);
            return;
        }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        tmpl__fail(x->r, ERR_PARSE, "unexpected character '%c'", c >= 32 && c < 127 ? c : '?');
    if (strchr("([{", c)) {
        if (*n_open == 200)
            tmpl__fail(x->r, ERR_LIMIT, "brackets nested too deeply");
        open[(*n_open)++] = (char)(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (strchr(")]}", c)) {
        if (*n_open == 0 || open[*n_open - 1] != c)
            tmpl__fail(x->r, ERR_PARSE, "unexpected '%c'", c);
        --*n_open;
    }
    emit(x, TOK_OP)->op = c;
    advance(x, 1);
}

/* Inside {{ }} or {% %}, after the opening delimiter. */
static void lex_code(struct lexer *x, bool block)
{
    char open[200];
    int n_open = 0;
    while (x->pos < x->n) {
        size_t len = n_open ? 0 : close_len(x, x->pos, block ? "%}" : "}}", block);
        if (len) {
            emit(x, block ? TOK_BLOCK_END : TOK_VAR_END);
            advance(x, len);
            return;
        }
        size_t sp = tmpl__lspace(x->s + x->pos, x->n - x->pos);
        char c = x->s[x->pos];
        if (sp) {
            advance(x, sp);
        } else if (digit(c)) {
            lex_number(x);
        } else if (name_char(c)) {
            size_t p = x->pos;
            while (p < x->n && name_char(x->s[p]))
                p++;
            emit(x, TOK_NAME)->val = tmpl__ref(x->r, x->s + x->pos, p - x->pos);
            advance(x, p - x->pos);
        } else if (c == '\'' || c == '"') {
            lex_string(x);
        } else {
            lex_operator(x, open, &n_open);
        }
    }
    tmpl__fail(x->r, ERR_PARSE, "end of template inside a tag");
}

/* Copy of the source with CR LF and CR as LF, without one final newline. */
static const char *normalise(struct tmpl_run *r, const char *src, size_t *n)
{
    char *s = tmpl__alloc(r, *n + 1, 1);
    size_t k = 0;
    for (size_t i = 0; i < *n; i++) {
        if (src[i] == '\r') {
            s[k++] = '\n';
            i += i + 1 < *n && src[i + 1] == '\n';
        } else {
            s[k++] = src[i];
        }
    }
    *n = k > 0 && s[k - 1] == '\n' ? k - 1 : k;
    return s;
}

struct ttok *tmpl__lex(struct tmpl_run *r, const char *src, size_t n)
{
    struct lexer x = {.r = r, .n = n, .line_start = true};
    x.s = normalise(r, src, &x.n);
    r->line = 1;
    while (x.pos < x.n) {
        size_t p = x.pos;
        while (p + 1 < x.n &&
               !(x.s[p] == '{' && (x.s[p + 1] == '{' || x.s[p + 1] == '%' || x.s[p + 1] == '#')))
            p++;
        if (p + 1 >= x.n) {
            emit(&x, TOK_DATA)->val = tmpl__ref(r, x.s + x.pos, x.n - x.pos);
            break;
        }
        char kind = x.s[p + 1], sign = sign_at(&x, p + 2);
        emit_data(&x, p, sign, kind == '{');
        if (kind == '#') {
            lex_comment(&x);
        } else if (kind == '{' || !lex_raw(&x)) {
            emit(&x, kind == '{' ? TOK_VAR_BEGIN : TOK_BLOCK_BEGIN);
            advance(&x, 2 + (sign != 0));
            lex_code(&x, kind == '%');
        }
    }
    emit(&x, TOK_EOF);
    return x.tok;
}
