/* Grammar texts: GBNF and its EBNF relatives ("root ::= ..."), and Lark ("start: ...", terminals in capitals, %import common,
 * %ignore). One reader for both; the style is what the first definition says. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/grammar_class.h"

#define RULES_MAX 20000

struct name {
    const char *p;
    size_t n;
    gr_expr rule;
    bool set, terminal;
};

struct text {
    struct gr_builder *b;
    struct view s;
    size_t at;
    bool lark, in_terminal; /* in_terminal: within a Lark terminal, where nothing is ignored */
    int depth, group;
    struct name *name;
    size_t n_name, cap_name;
    gr_expr ignore; /* what may stand between Lark's terminals, or GR_FAIL */
};

static gr_expr alternatives(struct text *t);

static gr_expr wrong(struct text *t, int code, const char *what)
{
    size_t line = 1;
    for (size_t i = 0; i < t->at && i < t->s.len; i++)
        line += t->s.p[i] == '\n';
    return gr_fail(t->b, code, "grammar, line %zu: %s", line, what);
}

static char peek(const struct text *t, size_t k)
{
    return t->at + k < t->s.len ? t->s.p[t->at + k] : 0;
}

static bool starts(const struct text *t, const char *w)
{
    size_t n = strlen(w);
    return t->s.len - t->at >= n && memcmp(t->s.p + t->at, w, n) == 0;
}

static bool eat(struct text *t, const char *w)
{
    if (!starts(t, w))
        return false;
    t->at += strlen(w);
    return true;
}

/* Blanks and comments; line breaks too when `lines`. */
static void skip(struct text *t, bool lines)
{
    for (;;) {
        char c = peek(t, 0);
        if (c && (strchr(" \t\r", c) || (lines && c == '\n')))
            t->at++;
        else if ((!t->lark && c == '#') || (t->lark && starts(t, "//")))
            while (peek(t, 0) && peek(t, 0) != '\n')
                t->at++;
        else
            return;
    }
}

static size_t name_len(const struct text *t)
{
    size_t n = 0;
    for (char c = peek(t, 0);
         (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         (n && c >= '0' && c <= '9') || (!t->lark && (c == '-' || (c >= '0' && c <= '9')));
         c = peek(t, n))
        n++;
    return n;
}

/* Whether a definition begins here: a name and "::=", or Lark's ":". */
static bool definition(struct text *t)
{
    size_t back = t->at;
    bool r = false;
    if (t->lark && (peek(t, 0) == '?' || peek(t, 0) == '!'))
        t->at++;
    size_t n = name_len(t);
    if (n) {
        t->at += n;
        if (t->lark && eat(t, "."))
            while (peek(t, 0) >= '0' && peek(t, 0) <= '9')
                t->at++;
        skip(t, false);
        r = t->lark ? peek(t, 0) == ':' : starts(t, "::=");
    }
    t->at = back;
    return r || (t->lark && peek(t, 0) == '%');
}

static struct name *name_get(struct text *t, const char *p, size_t n)
{
    char text[64];
    for (size_t i = 0; i < t->n_name; i++)
        if (t->name[i].n == n && memcmp(t->name[i].p, p, n) == 0)
            return &t->name[i];
    if (t->n_name >= RULES_MAX) {
        wrong(t, ERR_LIMIT, "too many rules");
        return NULL;
    }
    if (!gr__grow(t->b, &t->name, t->n_name + 1, &t->cap_name, sizeof *t->name))
        return NULL;
    snprintf(text, sizeof text, "%.*s", (int)(n < 60 ? n : 60), p);
    t->name[t->n_name] = (struct name){.p = p, .n = n, .rule = gr_rule_new(t->b, text)};
    t->name[t->n_name].terminal = t->lark && (p[0] == '_' && n > 1 ? p[1] : p[0]) >= 'A' &&
                                  (p[0] == '_' && n > 1 ? p[1] : p[0]) <= 'Z';
    return &t->name[t->n_name++];
}

/* ---- items ---- */

static int hex(struct text *t, int n, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < n; i++, t->at++) {
        char c = peek(t, 0);
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0) {
            wrong(t, ERR_PARSE, "a broken escape");
            return ERR_PARSE;
        }
        *out = *out << 4 | (uint32_t)d;
    }
    return 0;
}

/* One character of a literal or a class, escapes resolved. */
static int one_char(struct text *t, uint32_t *out)
{
    static const char from[] = "nrtfvb0", to[] = "\n\r\t\f\v\b\0";
    if (!eat(t, "\\")) {
        *out = gr__next_char(t->s, &t->at);
        return 0;
    }
    char c = peek(t, 0);
    const char *at = c ? strchr(from, c) : NULL;
    if (c == 'x' || c == 'u' || c == 'U') {
        t->at++;
        return hex(t, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    }
    if (at) {
        t->at++;
        *out = (uint8_t)to[at - from];
        return 0;
    }
    *out = gr__next_char(t->s, &t->at);
    return 0;
}

static gr_expr chars(struct text *t, uint32_t lo, uint32_t hi, bool icase)
{
    struct gr_class c = {0};
    gr_expr e = GR_FAIL;
    if (!gr__class_add(t->b, &c, lo, hi) && !(icase && gr__class_fold(t->b, &c)))
        e = gr__class_expr(t->b, &c, GR_UTF8);
    gr__class_free(&c);
    return e;
}

/* After the opening quote. Lark: "x"i, and "a".."z". */
static gr_expr literal(struct text *t)
{
    uint32_t c[4096], hi;
    size_t n = 0;
    while (peek(t, 0) && peek(t, 0) != '"' && n < 4096)
        if (one_char(t, &c[n++]))
            return GR_FAIL;
    if (!eat(t, "\""))
        return wrong(t, ERR_PARSE,
                     n == 4096 ? "a literal of over 4096 characters"
                               : "a literal without its closing quote");
    if (t->lark && n == 1 && eat(t, "..\"")) {
        if (one_char(t, &hi) || !eat(t, "\""))
            return wrong(t, ERR_PARSE, "a broken range");
        return chars(t, c[0], hi, false);
    }
    bool icase = t->lark && peek(t, 0) == 'i' && ++t->at;
    gr_expr e = gr_empty(t->b);
    for (size_t i = 0; i < n && e != GR_FAIL; i++)
        e = gr_seq2(t->b, e, chars(t, c[i], c[i], icase));
    return e;
}

/* After "[" in GBNF. */
static gr_expr char_class(struct text *t)
{
    struct gr_class c = {0};
    bool negate = eat(t, "^");
    gr_expr e = GR_FAIL;
    int rc = 0;
    while (!rc && peek(t, 0) && peek(t, 0) != ']') {
        uint32_t lo, hi;
        rc = one_char(t, &lo);
        hi = lo;
        if (!rc && peek(t, 0) == '-' && peek(t, 1) && peek(t, 1) != ']') {
            t->at++;
            rc = one_char(t, &hi);
        }
        if (!rc && hi < lo)
            rc = (wrong(t, ERR_PARSE, "a range out of order"), ERR_PARSE);
        if (!rc)
            rc = gr__class_add(t->b, &c, lo, hi);
    }
    if (!rc && !eat(t, "]"))
        rc = (wrong(t, ERR_PARSE, "a class without its ]"), ERR_PARSE);
    if (!rc && negate)
        rc = gr__class_negate(t->b, &c);
    if (!rc)
        e = gr__class_expr(t->b, &c, GR_UTF8);
    gr__class_free(&c);
    return e;
}

/* After "/" in Lark. */
static gr_expr regex(struct text *t)
{
    struct buf b = {0};
    unsigned flags = 0;
    bool in_class = false;
    for (char c = peek(t, 0); c && (c != '/' || in_class) && c != '\n'; c = peek(t, 0)) {
        if (c == '\\' && peek(t, 1) == '/')
            t->at++;
        else if (c == '\\')
            buf_char(&b, t->s.p[t->at++]);
        else if (c == '[' || c == ']')
            in_class = c == '[';
        if (t->at < t->s.len)
            buf_char(&b, t->s.p[t->at++]);
    }
    if (!eat(t, "/")) {
        buf_free(&b);
        return wrong(t, ERR_PARSE, "a regular expression without its closing /");
    }
    for (; strchr("imslux", peek(t, 0)) && peek(t, 0); t->at++)
        if (peek(t, 0) == 'i')
            flags |= GR_ICASE;
    gr_expr e = b.failed ? wrong(t, ERR_NOMEM, "no memory")
                         : gr_regex(t->b, (struct view){buf_cstr(&b), b.len}, GR_UTF8, flags);
    buf_free(&b);
    return e;
}

static gr_expr with_ignored(struct text *t, gr_expr e)
{
    return t->ignore == GR_FAIL || t->in_terminal ? e : gr_seq2(t->b, e, t->ignore);
}

static gr_expr grouped(struct text *t, const char *close)
{
    t->group++;
    gr_expr e = alternatives(t);
    t->group--;
    skip(t, true);
    if (e != GR_FAIL && !eat(t, close))
        return wrong(t, ERR_PARSE, "a group that is not closed");
    return e;
}

static gr_expr reference(struct text *t)
{
    size_t n = name_len(t);
    struct name *k = n ? name_get(t, t->s.p + t->at, n) : NULL;
    if (!k)
        return gr_failed(t->b, NULL) ? GR_FAIL
                                     : wrong(t, ERR_PARSE, "something that is no part of a rule");
    t->at += n;
    return k->terminal ? with_ignored(t, k->rule) : k->rule;
}

static gr_expr item(struct text *t)
{
    if (eat(t, "\""))
        return with_ignored(t, literal(t));
    if (eat(t, "("))
        return grouped(t, ")");
    if (t->lark && eat(t, "["))
        return gr_opt(t->b, grouped(t, "]"));
    if (!t->lark && eat(t, "["))
        return char_class(t);
    if (t->lark && eat(t, "/"))
        return with_ignored(t, regex(t));
    if (!t->lark && eat(t, "."))
        return gr_any(t->b, GR_UTF8);
    return reference(t);
}

static bool number(struct text *t, int32_t *out)
{
    size_t from = t->at;
    int64_t v = 0;
    for (; peek(t, 0) >= '0' && peek(t, 0) <= '9' && t->at - from < 9; t->at++)
        v = v * 10 + peek(t, 0) - '0';
    *out = (int32_t)v;
    return t->at > from;
}

/* {m}, {m,}, {,n}, {m,n} of GBNF; ~ m and ~ m..n of Lark. */
static gr_expr counted(struct text *t, gr_expr e)
{
    int32_t min = 0, max;
    skip(t, false);
    bool low = number(t, &min);
    max = min;
    skip(t, false);
    if (eat(t, t->lark ? ".." : ",")) {
        skip(t, false);
        if (!number(t, &max))
            max = GR_INF;
    } else if (!low) {
        return wrong(t, ERR_PARSE, "a repetition without a number");
    }
    skip(t, false);
    if (!t->lark && !eat(t, "}"))
        return wrong(t, ERR_PARSE, "a repetition without its }");
    if (max < min)
        return wrong(t, ERR_PARSE, "a repetition out of order");
    return gr_repeat(t->b, e, min, max);
}

static gr_expr sequence(struct text *t)
{
    gr_expr e = gr_empty(t->b);
    for (;;) {
        skip(t, t->group > 0);
        char c = peek(t, 0);
        if (!c || strchr("|)]\n%", c) || starts(t, "->") || definition(t))
            break;
        gr_expr one = item(t);
        if (!t->lark || t->group || peek(t, 0) != '\n')
            skip(t, false);
        for (; one != GR_FAIL; skip(t, false)) {
            if (eat(t, "*"))
                one = gr_repeat(t->b, one, 0, GR_INF);
            else if (eat(t, "+"))
                one = gr_repeat(t->b, one, 1, GR_INF);
            else if (peek(t, 0) == '?' && !definition(t) && eat(t, "?"))
                one = gr_opt(t->b, one);
            else if (eat(t, t->lark ? "~" : "{"))
                one = counted(t, one);
            else
                break;
        }
        e = gr_seq2(t->b, e, one);
        if (e == GR_FAIL)
            return e;
    }
    if (t->lark && eat(t, "->")) {
        skip(t, false);
        t->at += name_len(t);
    }
    return e;
}

static gr_expr alternatives(struct text *t)
{
    if (++t->depth > t->b->o.max_depth)
        return wrong(t, ERR_LIMIT, "nested too deeply");
    gr_expr e = sequence(t);
    for (;;) {
        size_t back = t->at;
        skip(t, true); /* an alternative may begin a line */
        if (e == GR_FAIL || !eat(t, "|")) {
            t->at = back;
            break;
        }
        skip(t, true);
        e = gr_alt2(t->b, e, sequence(t));
    }
    t->depth--;
    return e;
}

/* ---- Lark's directives ---- */

static const struct {
    const char *name, *re;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[a-zA-Z_][a-zA-Z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"}};

static int import_one(struct text *t)
{
    skip(t, false);
    size_t n = name_len(t);
    const char *p = t->s.p + t->at, *as = p;
    size_t n_as = n;
    t->at += n;
    skip(t, false);
    if (eat(t, "->")) {
        skip(t, false);
        n_as = name_len(t);
        as = t->s.p + t->at;
        t->at += n_as;
    }
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (strlen(common[i].name) == n && memcmp(common[i].name, p, n) == 0 && n_as) {
            struct name *k = name_get(t, as, n_as);
            if (!k)
                return ERR_NOMEM;
            k->set = true;
            gr_rule_set(t->b, k->rule, gr_regex(t->b, view_str(common[i].re), GR_UTF8, 0));
            return 0;
        }
    wrong(t, ERR_UNSUPPORTED, "%import of something that is not in 'common'");
    return ERR_UNSUPPORTED;
}

static int directive(struct text *t)
{
    int rc = 0;
    if (eat(t, "%import")) {
        skip(t, false);
        if (!eat(t, "common")) {
            wrong(t, ERR_UNSUPPORTED, "%import of something that is not 'common'");
            return ERR_UNSUPPORTED;
        }
        skip(t, false);
        if (eat(t, "."))
            return import_one(t);
        if (eat(t, "("))
            do
                rc = import_one(t);
            while (!rc && (skip(t, true), eat(t, ",")));
        if (!rc && !eat(t, ")"))
            rc = (wrong(t, ERR_PARSE, "a list of imports that is not closed"), ERR_PARSE);
        return rc;
    }
    if (eat(t, "%ignore")) { /* was read in a first pass */
        bool was = t->in_terminal;
        skip(t, false);
        t->in_terminal = true;
        gr_expr e = alternatives(t);
        t->in_terminal = was;
        return e == GR_FAIL ? ERR_PARSE : 0;
    }
    wrong(t, ERR_UNSUPPORTED, "this directive (% and a word) is not supported");
    return ERR_UNSUPPORTED;
}

/* What %ignore names, before the rules that it goes into are read. */
static void find_ignored(struct text *t)
{
    gr_expr all = GR_FAIL;
    for (t->at = 0; t->at < t->s.len && !gr_failed(t->b, NULL);) {
        skip(t, true);
        if (eat(t, "%ignore")) {
            skip(t, false);
            t->in_terminal = true;
            gr_expr e = alternatives(t);
            t->in_terminal = false;
            all = all == GR_FAIL ? e : gr_alt2(t->b, all, e);
        }
        while (peek(t, 0) && peek(t, 0) != '\n')
            t->at++;
    }
    t->at = 0;
    if (all != GR_FAIL)
        t->ignore = gr_repeat(t->b, all, 0, GR_INF);
}

static int rule(struct text *t)
{
    if (t->lark && (peek(t, 0) == '?' || peek(t, 0) == '!'))
        t->at++;
    size_t n = name_len(t);
    const char *p = t->s.p + t->at;
    if (!n || !definition(t)) {
        wrong(t, ERR_PARSE, "expected a rule");
        return ERR_PARSE;
    }
    t->at += n;
    if (t->lark && eat(t, "."))
        while (peek(t, 0) >= '0' && peek(t, 0) <= '9')
            t->at++;
    skip(t, false);
    eat(t, t->lark ? ":" : "::=");
    struct name *k = name_get(t, p, n);
    if (!k)
        return ERR_NOMEM;
    if (k->set) {
        wrong(t, ERR_INVAL, "a rule is defined twice");
        return ERR_INVAL;
    }
    k->set = true;
    gr_expr own = k->rule;
    bool terminal = k->terminal;
    skip(t, true);
    t->in_terminal = terminal;
    gr_expr e = alternatives(t);
    t->in_terminal = false;
    if (e == GR_FAIL)
        return ERR_PARSE;
    gr_rule_set(t->b, own, terminal ? gr_lex(t->b, e) : e);
    return 0;
}

static gr_expr whole(struct text *t)
{
    const char *first = t->lark ? "start" : "root";
    int rc = 0;
    if (t->lark)
        find_ignored(t);
    for (skip(t, true); !rc && peek(t, 0) && !gr_failed(t->b, NULL); skip(t, true))
        rc = t->lark && peek(t, 0) == '%' ? directive(t) : rule(t);
    if (rc || gr_failed(t->b, NULL))
        return gr_failed(t->b, NULL) ? GR_FAIL : wrong(t, rc, "not understood");
    gr_expr root = GR_FAIL;
    for (size_t i = 0; i < t->n_name; i++) {
        struct name *k = &t->name[i];
        if (!k->set)
            return gr_fail(t->b, ERR_INVAL, "grammar: rule '%.*s' is used but not defined",
                           (int)(k->n < 60 ? k->n : 60), k->p);
        if (k->n == strlen(first) && memcmp(k->p, first, k->n) == 0)
            root = k->rule;
    }
    if (root == GR_FAIL)
        return gr_fail(t->b, ERR_INVAL, "grammar: there is no rule '%s' to begin with", first);
    return t->ignore == GR_FAIL ? root : gr_seq2(t->b, t->ignore, root);
}

gr_expr gr_grammar_text(struct gr_builder *b, struct view text)
{
    struct text t = {.b = b, .s = text, .ignore = GR_FAIL};
    if (!utf8_valid(text.p, text.len) || memchr(text.p, 0, text.len))
        return gr_fail(b, ERR_PARSE, "grammar: not UTF-8 text");
    t.lark = !memmem(text.p, text.len, "::=", 3);
    gr_expr e = whole(&t);
    free(t.name);
    return e;
}
