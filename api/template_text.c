/* Chat templates: text of values (str, repr, JSON as Python writes them) and work on characters.
 * Positions and lengths that a template sees count code points. */
#include "api/template_impl.h"
#include "engine/base/buf.h"

#include <math.h>
#include <string.h>
#include <utf8proc.h>

size_t tmpl__char(const char *p, size_t n)
{
    int k = utf8_len(p, n);
    return k > 0 ? (size_t)k : 1;
}

int32_t tmpl__cp_get(const char *p, size_t n, size_t *len)
{
    utf8proc_int32_t cp = -1;
    *len = tmpl__char(p, n);
    if (*len == 1)
        return (unsigned char)p[0];
    utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)*len, &cp);
    return cp;
}

void tmpl__cp_put(struct tmpl_run *r, struct tsb *b, int32_t cp)
{
    utf8proc_uint8_t u[4];
    tmpl__sb_add(r, b, (const char *)u, (size_t)utf8proc_encode_char(cp, u));
}

/* str.isspace of Python: more than C's, less than every separator. */
static bool is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t tmpl__lspace(const char *p, size_t n)
{
    size_t i = 0, k;
    while (i < n && is_space(tmpl__cp_get(p + i, n - i, &k)))
        i += k;
    return i;
}

size_t tmpl__rspace(const char *p, size_t n)
{
    while (n > 0) {
        size_t i = n - 1, k;
        while (i > 0 && ((unsigned char)p[i] & 0xC0) == 0x80)
            i--;
        if (!is_space(tmpl__cp_get(p + i, n - i, &k)))
            break;
        n = i;
    }
    return n;
}

bool tmpl__splitline(const char *p, size_t n, size_t *len, size_t *skip)
{
    for (size_t i = 0, k; i < n; i += k) {
        int32_t c = tmpl__cp_get(p + i, n - i, &k);
        if ((c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
            c == 0x2029) {
            *len = i;
            *skip = i + k + (c == '\r' && i + 1 < n && p[i + 1] == '\n');
            return true;
        }
    }
    *len = *skip = n;
    return n > 0;
}

const char *tmpl__find(const char *p, size_t n, const char *q, size_t m)
{
    return m == 0 ? p : n < m ? NULL : memmem(p, n, q, m);
}

struct tv tmpl__substr(struct tmpl_run *r, struct tv s, int64_t from, int64_t to)
{
    const char *p = s.u.s->p;
    size_t n = s.u.s->n, a = 0, i = 0;
    tmpl__tick(r, n);
    for (int64_t c = 0; c < to && i < n; c++) {
        if (c < from)
            a = i + tmpl__char(p + i, n - i);
        i += tmpl__char(p + i, n - i);
    }
    struct tv v = tmpl__ref(r, p + a, from < to ? i - a : 0);
    v.safe = s.safe;
    return v;
}

void tmpl__escape(struct tmpl_run *r, struct tsb *b, struct tv s)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    for (size_t i = 0; i < s.u.s->n; i++) {
        char c = s.u.s->p[i];
        const char *f = c && !s.safe ? strchr(from, c) : NULL;
        if (f)
            tmpl__sb_str(r, b, to[f - from]);
        else
            tmpl__sb_add(r, b, &c, 1);
    }
}

struct tv tmpl__case(struct tmpl_run *r, struct tv s, int how)
{
    struct tsb b = {0};
    bool word = true; /* at the start of a word (title), or of all (capital) */
    tmpl__tick(r, s.u.s->n * 4);
    for (size_t i = 0, k; i < s.u.s->n; i += k) {
        int32_t c = tmpl__cp_get(s.u.s->p + i, s.u.s->n - i, &k), lo = utf8proc_tolower(c);
        bool cased = c != utf8proc_toupper(c) || c != lo || c == 0xDF;
        bool up = how == CASE_UPPER || ((how == CASE_TITLE || how == CASE_CAPITAL) && word) ||
                  (how == CASE_SWAP && c == lo);
        if (c == 0xDF && up) /* sharp s grows */
            tmpl__sb_str(r, &b, how == CASE_UPPER || how == CASE_SWAP ? "SS" : "Ss");
        else
            tmpl__cp_put(r, &b,
                         !up                 ? lo
                         : how == CASE_UPPER ? utf8proc_toupper(c)
                                             : utf8proc_totitle(c));
        word = how == CASE_TITLE ? !cased : false;
    }
    struct tv v = tmpl__sb_take(r, &b);
    v.safe = s.safe;
    return v;
}

/* --- str and repr --- */
void tmpl__float_text(struct tmpl_run *r, struct tsb *b, double f)
{
    char t[40];
    if (isnan(f) || isinf(f)) {
        tmpl__sb_str(r, b, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    int prec = 0; /* shortest digits that read back as the same number */
    do
        snprintf(t, sizeof(t), "%.*e", prec, f);
    while (++prec < 18 && strtod(t, NULL) != f);
    const char *e = strchr(t, 'e');
    long exp = strtol(e + 1, NULL, 10);
    if (exp < -4 || exp >= 16) {
        snprintf(t + (e - t), sizeof(t) - (size_t)(e - t), "e%c%02ld", exp < 0 ? '-' : '+',
                 exp < 0 ? -exp : exp);
    } else {
        long dec = prec - 1 - exp; /* digits behind the point */
        snprintf(t, sizeof(t), "%.*f", (int)(dec < 1 ? 1 : dec), f);
    }
    tmpl__sb_str(r, b, t);
}

static bool printable(int32_t c)
{
    if (c < 0x7F)
        return c >= 0x20;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static void repr_str(struct tmpl_run *r, struct tsb *b, const struct tstr *s)
{
    char q = s->n && memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'', t[16];
    tmpl__sb_add(r, b, &q, 1);
    for (size_t i = 0, k; i < s->n; i += k) {
        int32_t c = tmpl__cp_get(s->p + i, s->n - i, &k);
        if (c == q || c == '\\')
            snprintf(t, sizeof(t), "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(t, sizeof(t), "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!printable(c))
            snprintf(t, sizeof(t),
                     c < 0x100     ? "\\x%02x"
                     : c < 0x10000 ? "\\u%04x"
                                   : "\\U%08x",
                     (unsigned)c);
        else {
            tmpl__sb_add(r, b, s->p + i, k);
            continue;
        }
        tmpl__sb_str(r, b, t);
    }
    tmpl__sb_add(r, b, &q, 1);
}

static void print_items(struct tmpl_run *r, struct tsb *b, const struct tseq *l, int depth)
{
    static const char *const open[] = {"[",           "(", "", "", "dict_keys([", "dict_values([",
                                       "dict_items(["};
    static const char *const close[] = {"]", ")", "", "", "])", "])", "])"};
    tmpl__sb_str(r, b, open[l->kind]);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            tmpl__sb_str(r, b, ", ");
        tmpl__print(r, b, l->v[i], true, depth + 1);
    }
    if (l->kind == SEQ_TUPLE && l->n == 1)
        tmpl__sb_str(r, b, ",");
    tmpl__sb_str(r, b, close[l->kind]);
}

static void print_dict(struct tmpl_run *r, struct tsb *b, const struct tdict *d, int depth)
{
    tmpl__sb_str(r, b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            tmpl__sb_str(r, b, ", ");
        tmpl__print(r, b, d->e[i].k, true, depth + 1);
        tmpl__sb_str(r, b, ": ");
        tmpl__print(r, b, d->e[i].v, true, depth + 1);
    }
    tmpl__sb_str(r, b, "}");
}

/* Only what range() made and counts up by one: of others the bound is not kept. */
static void print_range(struct tmpl_run *r, struct tsb *b, const struct tseq *l)
{
    char t[80];
    long long from = l->n ? l->v[0].u.i : 0;
    if (l->group || (l->n > 1 && l->v[1].u.i != from + 1))
        tmpl__fail(r, ERR_UNSUPPORTED, "text of a range with a step; use |list");
    snprintf(t, sizeof(t), "range(%lld, %lld)", from, from + (long long)l->n);
    tmpl__sb_str(r, b, t);
}

static void print_object(struct tmpl_run *r, struct tsb *b, struct tv v, int depth)
{
    char t[80];
    switch (v.t) {
    case TV_NS:
        tmpl__sb_str(r, b, "<Namespace ");
        print_dict(r, b, v.u.d, depth);
        tmpl__sb_str(r, b, ">");
        return;
    case TV_MACRO:
        tmpl__sb_str(r, b, "<Macro ");
        repr_str(r, b, v.u.m->node->val.u.s);
        tmpl__sb_str(r, b, ">");
        return;
    case TV_LOOP:
        snprintf(t, sizeof(t), "<LoopContext %zu/%zu>", v.u.loop->i + 1, v.u.loop->items->n);
        tmpl__sb_str(r, b, t);
        return;
    default: /* Python would print a memory address */
        tmpl__fail(r, ERR_INVAL, "a %s has no text", tmpl__type(v));
    }
}

void tmpl__print(struct tmpl_run *r, struct tsb *b, struct tv v, bool repr, int depth)
{
    char t[32];
    tmpl__tick(r, v.t == TV_STR ? v.u.s->n : 0);
    if (depth > r->lim.max_depth)
        tmpl__fail(r, ERR_LIMIT, "data nested more than %d deep", r->lim.max_depth);
    switch (v.t) {
    case TV_UNDEF:
        tmpl__sb_str(r, b, repr ? "Undefined" : "");
        return;
    case TV_NONE:
        tmpl__sb_str(r, b, "None");
        return;
    case TV_BOOL:
        tmpl__sb_str(r, b, v.u.b ? "True" : "False");
        return;
    case TV_INT:
        snprintf(t, sizeof(t), "%lld", (long long)v.u.i);
        tmpl__sb_str(r, b, t);
        return;
    case TV_FLOAT:
        tmpl__float_text(r, b, v.u.f);
        return;
    case TV_STR:
        if (repr && v.safe)
            tmpl__sb_str(r, b, "Markup(");
        if (repr)
            repr_str(r, b, v.u.s);
        else
            tmpl__sb_add(r, b, v.u.s->p, v.u.s->n);
        if (repr && v.safe)
            tmpl__sb_str(r, b, ")");
        return;
    case TV_SEQ:
        if (v.u.l->kind == SEQ_RANGE)
            print_range(r, b, v.u.l);
        else if (v.u.l->kind == SEQ_GEN)
            tmpl__fail(r, ERR_INVAL, "a generator has no text; use |list");
        else
            print_items(r, b, v.u.l, depth);
        return;
    case TV_DICT:
        print_dict(r, b, v.u.d, depth);
        return;
    default:
        print_object(r, b, v, depth);
    }
}

struct tv tmpl__to_str(struct tmpl_run *r, struct tv v)
{
    struct tsb b = {0};
    if (v.t == TV_STR)
        return v;
    tmpl__print(r, &b, v, false, 0);
    return tmpl__sb_take(r, &b);
}

/* --- JSON as json.dumps writes it --- */
struct dump {
    struct tmpl_run *r;
    struct tsb *b;
    bool ascii, sort, pretty;
    struct tstr indent, item, key; /* separators */
};

static void dump_str(struct dump *d, const struct tstr *s)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    char t[16];
    tmpl__sb_str(d->r, d->b, "\"");
    for (size_t i = 0, k; i < s->n; i += k) {
        int32_t c = tmpl__cp_get(s->p + i, s->n - i, &k);
        const char *f = c && c < 0x80 ? strchr(from, c) : NULL;
        if (f)
            snprintf(t, sizeof(t), "\\%c", to[f - from]);
        else if (c < 0x20 || (d->ascii && c > 0x7F && c < 0x10000))
            snprintf(t, sizeof(t), "\\u%04x", (unsigned)c);
        else if (d->ascii && c >= 0x10000)
            snprintf(t, sizeof(t), "\\u%04x\\u%04x", (unsigned)(0xD7C0 + (c >> 10)),
                     (unsigned)(0xDC00 + (c & 0x3FF)));
        else {
            tmpl__sb_add(d->r, d->b, s->p + i, k);
            continue;
        }
        tmpl__sb_str(d->r, d->b, t);
    }
    tmpl__sb_str(d->r, d->b, "\"");
}

static void dump_line(struct dump *d, int depth)
{
    if (!d->pretty)
        return;
    tmpl__sb_str(d->r, d->b, "\n");
    tmpl__sb_pad(d->r, d->b, d->indent.p, d->indent.n, depth);
}

static void dump_value(struct dump *d, struct tv v, int depth);

static void dump_scalar(struct dump *d, struct tv v)
{
    struct tmpl_run *r = d->r;
    switch (v.t) {
    case TV_NONE:
        tmpl__sb_str(r, d->b, "null");
        return;
    case TV_BOOL:
        tmpl__sb_str(r, d->b, v.u.b ? "true" : "false");
        return;
    case TV_STR:
        dump_str(d, v.u.s);
        return;
    case TV_INT:
        tmpl__print(r, d->b, v, false, 0);
        return;
    case TV_FLOAT:
        if (isnan(v.u.f) || isinf(v.u.f))
            tmpl__sb_str(r, d->b, isnan(v.u.f) ? "NaN" : v.u.f > 0 ? "Infinity" : "-Infinity");
        else
            tmpl__float_text(r, d->b, v.u.f);
        return;
    default:
        tmpl__fail(r, ERR_INVAL, "Object of type %s is not JSON serializable", tmpl__type(v));
    }
}

static void dump_key(struct dump *d, struct tv k)
{
    struct tsb key = {0}, *b = d->b;
    if (k.t != TV_STR) { /* numbers and null become strings */
        d->b = &key;
        dump_scalar(d, k);
        d->b = b;
        k = tmpl__sb_take(d->r, &key);
    }
    dump_str(d, k.u.s);
}

static void dump_dict(struct dump *d, struct tdict *t, int depth)
{
    struct tseq *order = NULL; /* sorted keys, or as they stand */
    if (d->sort) {
        order = tmpl__iter(d->r, (struct tv){.t = TV_DICT, .u.d = t});
        order = tmpl__sorted(d->r, order, order, false);
    }
    tmpl__sb_str(d->r, d->b, "{");
    for (size_t i = 0; i < t->n; i++) {
        struct tv k = order ? order->v[i] : t->e[i].k;
        if (i)
            tmpl__sb_add(d->r, d->b, d->item.p, d->item.n);
        dump_line(d, depth + 1);
        dump_key(d, k);
        tmpl__sb_add(d->r, d->b, d->key.p, d->key.n);
        dump_value(d, order ? *tmpl__dict_get(d->r, t, k) : t->e[i].v, depth + 1);
    }
    if (t->n)
        dump_line(d, depth);
    tmpl__sb_str(d->r, d->b, "}");
}

static void dump_value(struct dump *d, struct tv v, int depth)
{
    tmpl__tick(d->r, v.t == TV_STR ? v.u.s->n : 0);
    if (depth > d->r->lim.max_depth)
        tmpl__fail(d->r, ERR_LIMIT, "data nested more than %d deep", d->r->lim.max_depth);
    if (v.t == TV_DICT) {
        dump_dict(d, v.u.d, depth);
    } else if (v.t == TV_SEQ && v.u.l->kind <= SEQ_TUPLE) {
        tmpl__sb_str(d->r, d->b, "[");
        for (size_t i = 0; i < v.u.l->n; i++) {
            if (i)
                tmpl__sb_add(d->r, d->b, d->item.p, d->item.n);
            dump_line(d, depth + 1);
            dump_value(d, v.u.l->v[i], depth + 1);
        }
        if (v.u.l->n)
            dump_line(d, depth);
        tmpl__sb_str(d->r, d->b, "]");
    } else {
        dump_scalar(d, v);
    }
}

/* a: ensure_ascii, indent, separators, sort_keys */
struct tv tmpl__tojson(struct tmpl_run *r, struct tv in, struct tv *a, const struct tcall *c)
{
    (void)c;
    struct tsb b = {0}, pad = {0};
    struct dump d = {.r = r, .b = &b, .ascii = tmpl__truth(a[0]), .sort = tmpl__truth(a[3])};
    d.key = (struct tstr){.p = ": ", .n = 2};
    d.item = (struct tstr){.p = ", ", .n = 2};
    if (a[1].t != TV_MISSING && a[1].t != TV_NONE) {
        d.pretty = true;
        d.item.n = 1;
        if (a[1].t == TV_STR)
            d.indent = *a[1].u.s;
        else
            tmpl__sb_pad(r, &pad, " ", 1, tmpl__as_int(r, a[1], "indent"));
        if (a[1].t != TV_STR)
            d.indent = (struct tstr){.p = pad.p, .n = pad.n};
    }
    if (a[2].t != TV_MISSING && a[2].t != TV_NONE) {
        struct tseq *s = tmpl__iter(r, a[2]);
        if (s->n != 2 || s->v[0].t != TV_STR || s->v[1].t != TV_STR)
            tmpl__fail(r, ERR_INVAL, "tojson: separators must be two strings");
        d.item = *s->v[0].u.s;
        d.key = *s->v[1].u.s;
    }
    struct tv whole =
        in; /* tools|map(...)|tojson: a list, though Python's json takes no generator */
    if (in.t == TV_SEQ && in.u.l->kind == SEQ_GEN) {
        whole = tmpl__seq(r, SEQ_LIST, 0);
        *whole.u.l = *tmpl__iter(r, in);
    }
    dump_value(&d, whole, 0);
    return tmpl__sb_take(r, &b);
}
