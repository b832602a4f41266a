/* Chat templates: filters of one value. Filters over sequences are in template_filter_seq.c. Results
 * that Jinja makes lazily (map, select, ...) are generators here too: no length, no JSON, read once. */
#include "api/template_impl.h"

#include <errno.h>
#include <math.h>
#include <string.h>

typedef const struct tcall call_args;
#define FILTER(fn) static struct tv fn(struct tmpl_run *r, struct tv in, struct tv *a, call_args *c)

static bool given(struct tv v)
{
    return v.t != TV_MISSING && v.t != TV_NONE;
}

/* The method of the same purpose, on str(in). */
static struct tv via_method(struct tmpl_run *r, const char *name, struct tv in, struct tv *a)
{
    return tmpl__str_method(name, strlen(name))->call(r, tmpl__to_str(r, in), a, NULL);
}

FILTER(f_trim)
{
    (void)c;
    return via_method(r, "strip", in, a);
}

FILTER(f_upper)
{
    (void)c;
    return via_method(r, "upper", in, a);
}

FILTER(f_lower)
{
    (void)c;
    return via_method(r, "lower", in, a);
}

FILTER(f_capitalize)
{
    (void)c;
    return via_method(r, "capitalize", in, a);
}

FILTER(f_center)
{
    (void)c;
    struct tv pad[2] = {a[0].t == TV_MISSING ? tmpl__int(80) : a[0], TV(TV_MISSING)};
    return via_method(r, "center", in, pad);
}

/* Words start after white space and ( { [ < -, unlike str.title. */
FILTER(f_title)
{
    (void)a, (void)c;
    struct tv s = tmpl__to_str(r, in);
    struct tsb b = {0};
    const char *p = s.u.s->p;
    for (size_t i = 0, n = s.u.s->n, k; i < n; i += k) {
        size_t sp = tmpl__lspace(p + i, n - i);
        if (sp || strchr("-({[<", p[i])) {
            k = sp ? sp : 1;
            tmpl__sb_add(r, &b, p + i, k);
            continue;
        }
        for (k = 0; i + k < n && !tmpl__lspace(p + i + k, n - i - k) && !strchr("-({[<", p[i + k]);)
            k += tmpl__char(p + i + k, n - i - k);
        size_t head = tmpl__char(p + i, n - i);
        struct tv up = tmpl__case(r, tmpl__ref(r, p + i, head), CASE_UPPER);
        struct tv low = tmpl__case(r, tmpl__ref(r, p + i + head, k - head), CASE_LOWER);
        tmpl__sb_add(r, &b, up.u.s->p, up.u.s->n);
        tmpl__sb_add(r, &b, low.u.s->p, low.u.s->n);
    }
    struct tv v = tmpl__sb_take(r, &b);
    v.safe = s.safe;
    return v;
}

FILTER(f_string)
{
    (void)a, (void)c;
    return tmpl__to_str(r, in);
}

FILTER(f_replace)
{
    (void)c;
    struct tv m[3] = {tmpl__to_str(r, a[0]), tmpl__to_str(r, a[1]), a[2]};
    return via_method(r, "replace", in, m);
}

FILTER(f_length)
{
    (void)a, (void)c;
    return tmpl__int(tmpl__len(r, in));
}

FILTER(f_default)
{
    (void)c;
    bool falsy = a[1].t != TV_MISSING && tmpl__truth(a[1]) && !tmpl__truth(in);
    if (in.t != TV_UNDEF && !falsy)
        return in;
    return a[0].t == TV_MISSING ? tmpl__ref(r, "", 0) : a[0];
}

FILTER(f_safe)
{
    (void)a, (void)c;
    struct tv v = tmpl__to_str(r, in);
    v.safe = true;
    return v;
}

static struct tv escape(struct tmpl_run *r, struct tv s)
{
    struct tsb b = {0};
    tmpl__tick(r, s.u.s->n);
    tmpl__escape(r, &b, s);
    struct tv v = tmpl__sb_take(r, &b);
    v.safe = true;
    return v;
}

FILTER(f_escape)
{
    (void)a, (void)c;
    return escape(r, tmpl__to_str(r, in));
}

FILTER(f_forceescape)
{
    (void)a, (void)c;
    struct tv s = tmpl__to_str(r, in);
    s.safe = false;
    return escape(r, s);
}

/* --- numbers --- */
/* Python's int(text, base) / float(text): blanks around, single underscores between digits. The text
 * without them, terminated; NULL when it cannot be a number. */
static const char *number_text(struct tmpl_run *r, const struct tstr *s)
{
    struct tsb b = {0};
    size_t i = tmpl__lspace(s->p, s->n), n = tmpl__rspace(s->p, s->n);
    for (; i < n; i++) {
        unsigned char ch = (unsigned char)s->p[i];
        bool word = (ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'z');
        if (ch == '_' && b.n && i + 1 < n && s->p[i - 1] != '_')
            continue;
        if (!word && !strchr("+-.", ch))
            return NULL;
        tmpl__sb_add(r, &b, (const char *)&ch, 1);
    }
    tmpl__sb_add(r, &b, "", 1);
    return b.n > 1 && b.n < 400 ? b.p : NULL;
}

static bool text_int(struct tmpl_run *r, const char *t, int base, int64_t *out)
{
    char *end;
    if (!t)
        return false;
    errno = 0;
    long long v = strtoll(t, &end, base);
    if (*end || end == t)
        return false;
    if (errno)
        tmpl__fail(r, ERR_INVAL, "integer overflow");
    *out = v;
    return true;
}

static bool text_float(const char *t, double *out)
{
    char *end;
    if (!t || strpbrk(t, "xXpP")) /* C's hexadecimal floats are none of Python's */
        return false;
    *out = strtod(t, &end);
    return *end == 0 && end != t;
}

FILTER(f_int)
{
    (void)c;
    int64_t i = 0, base = a[1].t == TV_MISSING ? 10 : tmpl__as_int(r, a[1], "int: base");
    double f = 0;
    bool real = in.t == TV_FLOAT;
    if (in.t == TV_UNDEF)
        tmpl__fail(r, ERR_INVAL, "int: value is undefined");
    if (in.t == TV_INT || in.t == TV_BOOL)
        return tmpl__int(tmpl__as_int(r, in, "int"));
    if (in.t == TV_STR) {
        const char *t = number_text(r, in.u.s);
        if (base < 2 || base > 36)
            tmpl__fail(r, ERR_UNSUPPORTED, "int: base");
        if (text_int(r, t, (int)base, &i))
            return tmpl__int(i);
        real = text_float(t, &f);
    } else if (real) {
        f = in.u.f;
    }
    if (real && !isnan(f) && !isinf(f)) {
        if (!(f > -9.2e18 && f < 9.2e18))
            tmpl__fail(r, ERR_INVAL, "integer overflow");
        return tmpl__int((int64_t)f);
    }
    return a[0].t == TV_MISSING ? tmpl__int(0) : a[0];
}

FILTER(f_float)
{
    (void)c;
    double f;
    if (in.t == TV_UNDEF)
        tmpl__fail(r, ERR_INVAL, "float: value is undefined");
    if (in.t == TV_FLOAT)
        return in;
    if (in.t == TV_INT || in.t == TV_BOOL)
        return tmpl__float((double)tmpl__as_int(r, in, "float"));
    if (in.t == TV_STR && text_float(number_text(r, in.u.s), &f))
        return tmpl__float(f);
    return a[0].t == TV_MISSING ? tmpl__float(0) : a[0];
}

static double need_num(struct tmpl_run *r, struct tv v, const char *what)
{
    return v.t == TV_FLOAT ? v.u.f : (double)tmpl__as_int(r, v, what);
}

FILTER(f_abs)
{
    (void)a, (void)c;
    if (in.t == TV_FLOAT)
        return tmpl__float(fabs(in.u.f));
    int64_t i = tmpl__as_int(r, in, "abs: value");
    if (i == INT64_MIN)
        tmpl__fail(r, ERR_INVAL, "integer overflow");
    return tmpl__int(i < 0 ? -i : i);
}

FILTER(f_round)
{
    (void)c;
    int64_t prec = a[0].t == TV_MISSING ? 0 : tmpl__as_int(r, a[0], "round: precision");
    bool up = tmpl__is(a[1], "ceil"), down = tmpl__is(a[1], "floor");
    double f = need_num(r, in, "round: value");
    char t[420];
    if (prec < 0 || prec > 60)
        tmpl__fail(r, ERR_UNSUPPORTED, "round: precision %lld", (long long)prec);
    if (up || down) {
        double k = pow(10, (double)prec);
        return tmpl__float((up ? ceil(f * k) : floor(f * k)) / k);
    }
    if (a[1].t != TV_MISSING && !tmpl__is(a[1], "common"))
        tmpl__fail(r, ERR_INVAL, "round: method must be common, ceil or floor");
    if (in.t != TV_FLOAT)
        return tmpl__int(tmpl__as_int(r, in, "round"));
    snprintf(t, sizeof(t), "%.*f", (int)prec, f); /* exact, ties to even, as Python */
    return tmpl__float(strtod(t, NULL));
}

/* --- lines and words --- */
FILTER(f_indent)
{
    (void)c;
    bool first = a[1].t != TV_MISSING && tmpl__truth(a[1]);
    bool blank = a[2].t != TV_MISSING && tmpl__truth(a[2]);
    struct tsb b = {0}, pad = {0};
    size_t len, skip;
    if (in.t != TV_STR)
        tmpl__fail(r, ERR_INVAL, "indent: value must be a string, not '%s'", tmpl__type(in));
    if (a[0].t == TV_STR)
        tmpl__sb_add(r, &pad, a[0].u.s->p, a[0].u.s->n);
    else
        tmpl__sb_pad(r, &pad, " ", 1, a[0].t == TV_MISSING ? 4 : tmpl__as_int(r, a[0], "width"));
    /* the added newline makes a final newline survive the split */
    struct tv s = tmpl__concat(r, in, tmpl__ref(r, "\n", 1));
    const char *p = s.u.s->p;
    size_t n = s.u.s->n;
    tmpl__tick(r, n * 4);
    for (bool head = true; tmpl__splitline(p, n, &len, &skip); p += skip, n -= skip) {
        if (!head)
            tmpl__sb_str(r, &b, "\n");
        if (head ? first : blank || len)
            tmpl__sb_add(r, &b, pad.p, pad.n);
        tmpl__sb_add(r, &b, p, len);
        head = false;
    }
    struct tv v = tmpl__sb_take(r, &b);
    v.safe = in.safe;
    return v;
}

FILTER(f_wordcount)
{
    (void)a, (void)c;
    struct tv s = tmpl__to_str(r, in);
    int64_t n = 0;
    bool in_word = false;
    for (size_t i = 0; i < s.u.s->n; i++) {
        unsigned char ch = (unsigned char)s.u.s->p[i];
        if (ch >= 0x80)
            tmpl__fail(r, ERR_UNSUPPORTED, "wordcount of text beyond ASCII");
        bool word = (ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'z') || ch == '_';
        n += word && !in_word;
        in_word = word;
    }
    return tmpl__int(n);
}

FILTER(f_truncate)
{
    (void)c;
    struct tv s = in, end = a[2].t == TV_MISSING ? tmpl__ref(r, "...", 3) : a[2];
    int64_t length = a[0].t == TV_MISSING ? 255 : tmpl__as_int(r, a[0], "truncate: length");
    int64_t leeway = given(a[3]) ? tmpl__as_int(r, a[3], "truncate: leeway") : 5;
    int64_t keep = length - tmpl__len(r, end);
    if (end.t != TV_STR || keep < 0 || leeway < 0 || leeway > INT32_MAX)
        tmpl__fail(r, ERR_INVAL, "truncate: bad length, end or leeway");
    if (tmpl__len(r, s) - leeway <= length)
        return s;
    if (s.t != TV_STR)
        tmpl__fail(r, ERR_INVAL, "truncate needs a string, not '%s'", tmpl__type(s));
    s = tmpl__substr(r, s, 0, keep);
    if (a[1].t == TV_MISSING || !tmpl__truth(a[1])) {
        struct tv sep[2] = {tmpl__ref(r, " ", 1), tmpl__int(1)};
        s = via_method(r, "rsplit", s, sep).u.l->v[0];
    }
    return tmpl__concat(r, s, end);
}

FILTER(f_format)
{
    (void)a;
    struct tv s = tmpl__to_str(r, in), arg = tmpl__seq(r, SEQ_TUPLE, 0);
    if (c->n && c->n_kw)
        tmpl__fail(r, ERR_INVAL, "format: positional and keyword arguments together");
    for (int i = 0; i < c->n; i++)
        tmpl__push(r, arg, c->pos[i]);
    if (c->n_kw)
        arg = tmpl__dict(r);
    for (int i = 0; i < c->n_kw; i++)
        tmpl__dict_set(r, arg.u.d, tmpl__ref(r, c->kwn[i]->p, c->kwn[i]->n), c->kwv[i]);
    return tmpl__percent(r, s, arg);
}

FILTER(f_tojson)
{
    for (int i = 0; i < 4; i += 3)
        if (a[i].t == TV_MISSING)
            a[i] = tmpl__bool(false);
    return tmpl__tojson(r, in, a, c);
}

FILTER(f_urlencode)
{
    (void)a, (void)c;
    struct tsb b = {0};
    char t[4];
    if (in.t == TV_DICT || in.t == TV_SEQ)
        tmpl__fail(r, ERR_UNSUPPORTED, "urlencode of pairs");
    struct tv s = tmpl__to_str(r, in);
    for (size_t i = 0; i < s.u.s->n; i++) {
        unsigned char ch = (unsigned char)s.u.s->p[i];
        bool plain = (ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'z');
        if (plain || (ch && strchr("_.-~/", ch)))
            tmpl__sb_add(r, &b, s.u.s->p + i, 1);
        else {
            snprintf(t, sizeof(t), "%%%02X", ch);
            tmpl__sb_str(r, &b, t);
        }
    }
    return tmpl__sb_take(r, &b);
}

static const struct tfn tab[] = {
    {"trim", "chars", f_trim},
    {"upper", "", f_upper},
    {"lower", "", f_lower},
    {"capitalize", "", f_capitalize},
    {"title", "", f_title},
    {"center", "width", f_center},
    {"string", "", f_string},
    {"replace", "!old,!new,count", f_replace},
    {"length", "", f_length},
    {"count", "", f_length},
    {"default", "default_value,boolean", f_default},
    {"d", "default_value,boolean", f_default},
    {"safe", "", f_safe},
    {"escape", "", f_escape},
    {"e", "", f_escape},
    {"forceescape", "", f_forceescape},
    {"int", "default,base", f_int},
    {"float", "default", f_float},
    {"abs", "", f_abs},
    {"round", "precision,method", f_round},
    {"indent", "width,first,blank", f_indent},
    {"wordcount", "", f_wordcount},
    {"truncate", "length,killwords,end,leeway", f_truncate},
    {"format", NULL, f_format},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", f_tojson},
    {"urlencode", "", f_urlencode},
    {0},
};

const struct tfn *tmpl__filter(const char *name, size_t n)
{
    const struct tfn *f = tmpl__fn_find(tab, name, n);
    return f ? f : tmpl__filter_seq(name, n);
}
