/* Regular expressions (ECMA 262, and what Python and Rust write alike) as grammar expressions. Look-ahead is read as an
 * intersection of what follows, so it may stand anywhere but inside a group that something follows. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar_class.h"

struct reader {
    struct gr_builder *b;
    struct view s;
    size_t at;
    enum gr_encoding enc;
    bool icase;
    int depth, group; /* group: depth of groups that need not be the end of the text */
    gr_expr tail;     /* what may follow the whole expression */
};

static gr_expr alternatives(struct reader *r, gr_expr head);

static gr_expr wrong(struct reader *r, int code, const char *what)
{
    return gr_fail(r->b, code, "regular expression, at byte %zu: %s", r->at, what);
}

static bool more(const struct reader *r)
{
    return r->at < r->s.len;
}

static char peek(const struct reader *r, size_t k)
{
    return r->at + k < r->s.len ? r->s.p[r->at + k] : 0;
}

static bool eat(struct reader *r, const char *text)
{
    size_t n = strlen(text);
    if (r->s.len - r->at < n || memcmp(r->s.p + r->at, text, n) != 0)
        return false;
    r->at += n;
    return true;
}

uint32_t gr__next_char(struct view text, size_t *at)
{
    if (*at >= text.len) /* behind a last backslash, say: whoever asked misses what must follow */
        return 0xFFFD;
    const unsigned char *p = (const unsigned char *)text.p + *at;
    int n = utf8_len(text.p + *at, text.len - *at);
    if (n <= 0) {
        *at += 1;
        return 0xFFFD;
    }
    *at += (size_t)n;
    uint32_t c = n == 1 ? p[0] : p[0] & (0x7Fu >> n);
    for (int i = 1; i < n; i++)
        c = c << 6 | (p[i] & 0x3Fu);
    return c;
}

static int hex(struct reader *r, int n, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) {
        char c = peek(r, 0);
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return ERR_PARSE;
        v = v << 4 | (uint32_t)d;
        r->at++;
    }
    *out = v;
    return 0;
}

/* \u{1F600}, \u0041 (also as a surrogate pair), \x41 after the letter. */
static int unicode_escape(struct reader *r, char letter, uint32_t *out)
{
    if (letter != 'x' && eat(r, "{")) {
        uint32_t v = 0, d;
        int n = 0;
        for (; peek(r, 0) != '}' && n < 7; n++) {
            if (hex(r, 1, &d))
                return ERR_PARSE;
            v = v << 4 | d;
        }
        *out = v;
        return n && v <= 0x10FFFF && eat(r, "}") ? 0 : ERR_PARSE;
    }
    if (hex(r, letter == 'x' ? 2 : letter == 'U' ? 8 : 4, out))
        return ERR_PARSE;
    size_t back = r->at;
    uint32_t low;
    if (*out >= 0xD800 && *out < 0xDC00 && eat(r, "\\u") && !hex(r, 4, &low) && low >= 0xDC00 &&
        low < 0xE000)
        *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
    else
        r->at = back;
    return 0;
}

/* After a backslash: one character in *cp (1), a class added to c (0), or < 0. */
static int escape(struct reader *r, struct gr_class *c, bool in_class, uint32_t *cp)
{
    static const char from[] = "nrtfva", to[] = "\n\r\t\f\v\a";
    char k = peek(r, 0);
    if (!more(r))
        return wrong(r, ERR_PARSE, "a backslash at the end"), ERR_PARSE;
    if (strchr("dDwWsS", k)) {
        r->at++;
        return gr__class_escape(r->b, c, k);
    }
    const char *simple = strchr(from, k);
    *cp = 0;
    if ((k == 'p' || k == 'P') && peek(r, 1) == '{') {
        r->at += 2;
        size_t n = 0;
        while (peek(r, n) && peek(r, n) != '}')
            n++;
        struct gr_class p = {0};
        int rc = gr__class_property(r->b, &p, (struct view){r->s.p + r->at, n});
        if (!rc && k == 'P')
            rc = gr__class_negate(r->b, &p);
        for (size_t i = 0; i < p.n && !rc; i++)
            rc = gr__class_add(r->b, c, p.r[i].lo, p.r[i].hi);
        gr__class_free(&p);
        r->at += n + 1;
        return rc ? (wrong(r, ERR_UNSUPPORTED, "this \\p{...} is not known"), rc) : 0;
    }
    if (k == 'b' && in_class) {
        r->at++;
        *cp = '\b';
    } else if (k == '0' && !(peek(r, 1) >= '0' && peek(r, 1) <= '9')) {
        r->at++;
    } else if (k == 'x' || k == 'u' || k == 'U') {
        r->at++;
        if (unicode_escape(r, k, cp))
            return wrong(r, ERR_PARSE, "a broken escape"), ERR_PARSE;
    } else if (k == 'c') {
        char l = (char)(peek(r, 1) | 32);
        if (l < 'a' || l > 'z')
            return wrong(r, ERR_PARSE, "a broken \\c"), ERR_PARSE;
        r->at += 2;
        *cp = (uint32_t)(l - 'a' + 1);
    } else if (simple) {
        r->at++;
        *cp = (uint32_t)to[simple - from];
    } else if ((k >= '1' && k <= '9') || k == 'k') {
        return wrong(r, ERR_UNSUPPORTED, "a back-reference"), ERR_UNSUPPORTED;
    } else if (k == 'b' || k == 'B') {
        return wrong(r, ERR_UNSUPPORTED, "a word boundary (\\b)"), ERR_UNSUPPORTED;
    } else if ((k >= 'a' && k <= 'z') || (k >= 'A' && k <= 'Z')) {
        return wrong(r, ERR_PARSE, "an unknown escape"), ERR_PARSE;
    } else {
        *cp = gr__next_char(r->s, &r->at);
    }
    return 1;
}

static gr_expr finish_class(struct reader *r, struct gr_class *c, bool negate)
{
    gr_expr e = GR_FAIL;
    int rc = r->icase ? gr__class_fold(r->b, c) : 0;
    if (!rc && negate)
        rc = gr__class_negate(r->b, c);
    if (!rc)
        e = gr__class_expr(r->b, c, r->enc);
    gr__class_free(c);
    return e;
}

/* After "[". */
static gr_expr char_class(struct reader *r)
{
    struct gr_class c = {0};
    bool negate = eat(r, "^");
    while (more(r) && peek(r, 0) != ']') {
        uint32_t lo, hi;
        int one = 1;
        if (eat(r, "\\"))
            one = escape(r, &c, true, &lo);
        else
            lo = gr__next_char(r->s, &r->at);
        if (one < 0)
            break;
        if (one && peek(r, 0) == '-' && peek(r, 1) && peek(r, 1) != ']') {
            r->at++;
            struct gr_class set = {0};
            int rc = 1;
            if (eat(r, "\\"))
                rc = escape(r, &set, true, &hi);
            else
                hi = gr__next_char(r->s, &r->at);
            if (rc == 0) { /* [a-\d]: the three of them */
                hi = lo;
                rc = gr__class_add(r->b, &c, '-', '-');
                for (size_t i = 0; i < set.n && !rc; i++)
                    rc = gr__class_add(r->b, &c, set.r[i].lo, set.r[i].hi);
            }
            gr__class_free(&set);
            if (rc < 0)
                break;
            if (hi < lo) {
                wrong(r, ERR_PARSE, "a range out of order in a class");
                break;
            }
            one = gr__class_add(r->b, &c, lo, hi) ? -1 : 0;
        } else if (one) {
            one = gr__class_add(r->b, &c, lo, lo) ? -1 : 0;
        }
        if (one < 0)
            break;
    }
    if (!gr_failed(r->b, NULL) && !eat(r, "]"))
        wrong(r, ERR_PARSE, "a class without its ]");
    return finish_class(r, &c, negate);
}

static gr_expr one_char(struct reader *r, uint32_t cp)
{
    struct gr_class c = {0};
    if (gr__class_add(r->b, &c, cp, cp))
        return GR_FAIL;
    return finish_class(r, &c, false);
}

static gr_expr dot(struct reader *r)
{
    return gr_chars(r->b, r->enc,
                    (struct gr_range[]){{0, 9}, {0xB, 0xC}, {0xE, 0x2027}, {0x202A, 0x10FFFF}}, 4);
}

/* After "(" of a group that is no look-ahead. */
static gr_expr group(struct reader *r)
{
    bool icase = r->icase;
    if (eat(r, "?")) {
        if (eat(r, "P<") ||
            (peek(r, 0) == '<' && peek(r, 1) != '=' && peek(r, 1) != '!' && eat(r, "<"))) {
            while (more(r) && peek(r, 0) != '>')
                r->at++;
            if (!eat(r, ">"))
                return wrong(r, ERR_PARSE, "a group's name without its >");
        } else if (eat(r, "i:")) {
            r->icase = true;
        } else if (!eat(r, ":")) {
            return wrong(r, ERR_UNSUPPORTED,
                         peek(r, 0) == '<' ? "look-behind" : "this kind of group");
        }
    }
    r->group++;
    gr_expr e = alternatives(r, gr_empty(r->b));
    r->group--;
    r->icase = icase;
    if (e != GR_FAIL && !eat(r, ")"))
        return wrong(r, ERR_PARSE, "a group without its )");
    return e;
}

static gr_expr atom(struct reader *r)
{
    if (eat(r, "["))
        return char_class(r);
    if (eat(r, "("))
        return group(r);
    if (eat(r, "."))
        return dot(r);
    if (eat(r, "^"))
        return gr__add(r->b, X_BOL, 0, 0, 0);
    if (eat(r, "$"))
        return gr__add(r->b, X_EOL, 0, 0, 0);
    if (eat(r, "\\")) {
        struct gr_class c = {0};
        uint32_t cp;
        if (eat(r, "A"))
            return gr__add(r->b, X_BOL, 0, 0, 0);
        if (eat(r, "z") || eat(r, "Z"))
            return gr__add(r->b, X_EOL, 0, 0, 0);
        int one = escape(r, &c, false, &cp);
        if (one < 0) {
            gr__class_free(&c);
            return GR_FAIL;
        }
        return one ? one_char(r, cp) : finish_class(r, &c, false);
    }
    if (strchr("*+?", peek(r, 0)))
        return wrong(r, ERR_PARSE, "nothing to repeat");
    return one_char(r, gr__next_char(r->s, &r->at));
}

static bool number(struct reader *r, int32_t *out)
{
    int64_t v = 0;
    size_t from = r->at;
    for (; peek(r, 0) >= '0' && peek(r, 0) <= '9' && r->at - from < 9; r->at++)
        v = v * 10 + (peek(r, 0) - '0');
    *out = (int32_t)v;
    return r->at > from;
}

/* {n}, {n,}, {n,m}; false leaves the brace as a character. */
static bool braces(struct reader *r, int32_t *min, int32_t *max)
{
    size_t back = r->at;
    if (eat(r, "{") && number(r, min)) {
        *max = *min;
        if (eat(r, ",") && !number(r, max))
            *max = GR_INF;
        if (eat(r, "}"))
            return true;
    }
    r->at = back;
    return false;
}

static gr_expr quantified(struct reader *r)
{
    gr_expr e = atom(r);
    int32_t min, max;
    while (e != GR_FAIL && more(r)) {
        if (eat(r, "*")) {
            min = 0;
            max = GR_INF;
        } else if (eat(r, "+")) {
            min = 1;
            max = GR_INF;
        } else if (eat(r, "?")) {
            min = 0;
            max = 1;
        } else if (!braces(r, &min, &max)) {
            break;
        }
        if (max < min)
            return wrong(r, ERR_PARSE, "a repetition out of order");
        e = gr_repeat(r->b, e, min, max);
        if (!eat(r, "?"))
            eat(r, "+");
    }
    return e;
}

/* One alternative, from where `head` (what came before it) ends to its end; the tail is added outside of groups. */
static gr_expr sequence(struct reader *r, gr_expr head)
{
    gr_expr e = head;
    while (e != GR_FAIL && more(r) && peek(r, 0) != '|' && peek(r, 0) != ')') {
        bool no = false;
        if (eat(r, "(?=") || (no = eat(r, "(?!"))) {
            if (r->group)
                return wrong(r, ERR_UNSUPPORTED, "look-ahead inside a group");
            gr_expr any = gr_repeat(r->b, gr_any(r->b, r->enc), 0, GR_INF);
            r->group++;
            gr_expr look = gr_seq2(r->b, alternatives(r, gr_empty(r->b)), any);
            r->group--;
            if (look == GR_FAIL || !eat(r, ")"))
                return wrong(r, ERR_PARSE, "look-ahead without its )");
            gr_expr rest = sequence(r, gr_empty(r->b)); /* with its tail */
            return gr_seq2(r->b, e, gr_and(r->b, rest, no ? gr_not(r->b, look) : look));
        }
        e = gr_seq2(r->b, e, quantified(r));
    }
    return r->group ? e : gr_seq2(r->b, e, r->tail);
}

static gr_expr alternatives(struct reader *r, gr_expr head)
{
    gr_expr e = GR_FAIL;
    if (++r->depth > r->b->o.max_depth)
        return wrong(r, ERR_LIMIT, "nested too deeply");
    e = sequence(r, head);
    while (e != GR_FAIL && eat(r, "|"))
        e = gr_alt2(r->b, e, sequence(r, head));
    r->depth--;
    return e;
}

gr_expr gr_regex(struct gr_builder *b, struct view re, enum gr_encoding enc, unsigned flags)
{
    struct reader r = {.b = b, .s = re, .enc = enc, .icase = flags & GR_ICASE};
    gr_expr any = gr_repeat(b, gr_any(b, enc), 0, GR_INF), head = gr_empty(b);
    if (!utf8_valid(re.p, re.len))
        return wrong(&r, ERR_PARSE, "not UTF-8");
    if (eat(&r, "(?i)"))
        r.icase = true;
    r.tail = flags & GR_SEARCH ? any : gr_empty(b);
    if (flags & GR_SEARCH)
        head = any;
    gr_expr e = alternatives(&r, head);
    if (e != GR_FAIL && more(&r))
        return wrong(&r, ERR_PARSE, "a ) without its group");
    return e == GR_FAIL ? e : gr_lex(b, e);
}
