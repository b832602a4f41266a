/* Chat templates: "%s" % x and "{}".format(x). Both build every number through one printf of our own
 * making: no format of the template ever reaches libc. */
#include "api/template_impl.h"

#include <string.h>

/* One conversion, of either style. */
struct spec {
    char fill[5], align, sign, type; /* align: < > ^ =, 0 = by type */
    size_t fill_n;
    bool alt, comma;
    int64_t width;
    int prec; /* -1 = none */
};

#define MAX_WIDTH 10000

static void put_padded(struct tmpl_run *r, struct tsb *b, const struct spec *s, struct tv text,
                       size_t n_sign)
{
    const char *p = text.u.s->p;
    size_t n = text.u.s->n;
    int64_t len = tmpl__len(r, text), pad = s->width > len ? s->width - len : 0;
    int64_t left = s->align == '>' ? pad : s->align == '^' ? pad / 2 : 0;
    if (s->align == '=') { /* between sign and digits */
        tmpl__sb_add(r, b, p, n_sign);
        tmpl__sb_pad(r, b, s->fill, s->fill_n, pad);
        tmpl__sb_add(r, b, p + n_sign, n - n_sign);
        return;
    }
    tmpl__sb_pad(r, b, s->fill, s->fill_n, left);
    tmpl__sb_add(r, b, p, n);
    tmpl__sb_pad(r, b, s->fill, s->fill_n, pad - left);
}

/* Digits p[0..n) with a comma before every third from the right of the whole part. */
static void put_grouped(struct tmpl_run *r, struct tsb *b, const char *p, size_t n)
{
    size_t whole = strspn(p, "0123456789");
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && i < whole && (whole - i) % 3 == 0)
            tmpl__sb_str(r, b, ",");
        tmpl__sb_add(r, b, p + i, 1);
    }
}

static void int_digits(struct tmpl_run *r, struct tsb *b, uint64_t u, const struct spec *s)
{
    char t[70], *p = t + sizeof(t);
    unsigned base = s->type == 'b'                     ? 2
                    : s->type == 'o'                   ? 8
                    : s->type == 'x' || s->type == 'X' ? 16
                                                       : 10;
    const char *digit = s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    *--p = 0;
    do
        *--p = digit[u % base];
    while ((u /= base) != 0);
    if (s->alt && base != 10)
        tmpl__sb_add(r, b, (char[]){'0', s->type}, 2);
    if (s->comma)
        put_grouped(r, b, p, strlen(p));
    else
        tmpl__sb_str(r, b, p);
}

static void float_digits(struct tmpl_run *r, struct tsb *b, double f, const struct spec *s)
{
    char t[512], fmt[16];
    int prec = s->prec < 0 ? 6 : s->prec;
    char type = s->type == '%' ? 'f' : s->type;
    if (prec > 100)
        tmpl__fail(r, ERR_LIMIT, "precision over 100");
    if (!type && s->prec < 0) {
        struct tsb num = {0};
        tmpl__float_text(r, &num, f);
        tmpl__sb_add(r, b, num.p, num.n);
        return;
    }
    if (!type)
        tmpl__fail(r, ERR_UNSUPPORTED, "a precision needs a type such as f");
    snprintf(fmt, sizeof(fmt), "%%%s.*%c", s->alt ? "#" : "", type);
    int n = snprintf(t, sizeof(t), fmt, prec, s->type == '%' ? f * 100 : f);
    if (n < 0 || (size_t)n >= sizeof(t))
        tmpl__fail(r, ERR_LIMIT, "number too long");
    if (s->comma)
        put_grouped(r, b, t, (size_t)n);
    else
        tmpl__sb_add(r, b, t, (size_t)n);
    if (s->type == '%')
        tmpl__sb_str(r, b, "%");
}

static bool is_float_type(char t)
{
    return t && strchr("eEfFgG%", t);
}

static void put_number(struct tmpl_run *r, struct tsb *b, struct spec *s, struct tv v)
{
    struct tsb num = {0};
    bool real = v.t == TV_FLOAT || is_float_type(s->type);
    bool neg = v.t == TV_FLOAT ? v.u.f < 0 : v.t == TV_INT && v.u.i < 0;
    int64_t i = v.t == TV_BOOL ? v.u.b : v.u.i;
    if (v.t == TV_FLOAT && s->type && !is_float_type(s->type))
        tmpl__fail(r, ERR_INVAL, "format '%c' needs an integer", s->type);
    if (neg || s->sign == '+' || s->sign == ' ')
        tmpl__sb_add(r, &num, neg ? "-" : &s->sign, 1);
    size_t n_sign = num.n;
    if (real)
        float_digits(r, &num,
                     v.t == TV_FLOAT ? (neg ? -v.u.f : v.u.f)
                     : neg           ? -(double)i
                                     : (double)i,
                     s);
    else
        int_digits(r, &num, neg ? 0 - (uint64_t)i : (uint64_t)i, s);
    if (!s->align)
        s->align = '>';
    put_padded(r, b, s, tmpl__sb_take(r, &num), n_sign);
}

static void put_text(struct tmpl_run *r, struct tsb *b, struct spec *s, struct tv text)
{
    if (s->prec >= 0 && tmpl__len(r, text) > s->prec)
        text = tmpl__substr(r, text, 0, s->prec);
    if (!s->align)
        s->align = '<';
    put_padded(r, b, s, text, 0);
}

/* Digits of a width or precision at p[*i]; -1 when there are none. */
static int64_t number(struct tmpl_run *r, const char *p, size_t n, size_t *i)
{
    int64_t v = -1;
    for (; *i < n && p[*i] >= '0' && p[*i] <= '9'; ++*i) {
        v = (v < 0 ? 0 : v) * 10 + (p[*i] - '0');
        if (v > MAX_WIDTH)
            tmpl__fail(r, ERR_LIMIT, "format width over %d", MAX_WIDTH);
    }
    return v;
}

/* --- printf style --- */
struct percent {
    struct tmpl_run *r;
    const char *p;
    size_t n, i;
    struct tv arg;
    size_t used; /* of the tuple */
};

static struct tv next_arg(struct percent *f)
{
    bool tuple = f->arg.t == TV_SEQ && f->arg.u.l->kind == SEQ_TUPLE;
    size_t n = tuple ? f->arg.u.l->n : 1;
    if (f->used >= n)
        tmpl__fail(f->r, ERR_INVAL, "not enough arguments for format string");
    size_t k = f->used++;
    return tuple ? f->arg.u.l->v[k] : f->arg;
}

/* %(name)s */
static struct tv mapped_arg(struct percent *f)
{
    size_t start = ++f->i;
    while (f->i < f->n && f->p[f->i] != ')')
        f->i++;
    if (f->arg.t != TV_DICT || f->i == f->n)
        tmpl__fail(f->r, ERR_INVAL, "format requires a mapping");
    const struct tv *v =
        tmpl__dict_get(f->r, f->arg.u.d, tmpl__ref(f->r, f->p + start, f->i - start));
    if (!v)
        tmpl__fail(f->r, ERR_INVAL, "format names a key that is not there");
    f->i++;
    f->used = 1;
    return *v;
}

static void conversion(struct percent *f, struct tsb *b)
{
    struct tmpl_run *r = f->r;
    struct spec s = {.fill = " ", .fill_n = 1, .prec = -1};
    struct tv v = TV(TV_MISSING);
    if (f->p[f->i] == '(')
        v = mapped_arg(f);
    for (; f->i < f->n && strchr("-0+ #", f->p[f->i]) && f->p[f->i]; f->i++) {
        char c = f->p[f->i];
        s.align = c == '-' ? '<' : c == '0' && !s.align ? '=' : s.align;
        s.sign = c == '+' || (c == ' ' && !s.sign) ? c : s.sign;
        s.alt = s.alt || c == '#';
    }
    s.fill[0] = s.align == '=' ? '0' : ' ';
    s.width = number(r, f->p, f->n, &f->i);
    if (f->i < f->n && f->p[f->i] == '.') {
        f->i++;
        int64_t prec = number(r, f->p, f->n, &f->i);
        s.prec = prec < 0 ? 0 : (int)prec;
    }
    s.type = f->i < f->n ? f->p[f->i++] : 0;
    if (s.type == '%') {
        tmpl__sb_str(r, b, "%");
        return;
    }
    if (!s.type || !strchr("sdiufFeEgGxXorc", s.type))
        tmpl__fail(r, ERR_UNSUPPORTED, "format character '%c'", s.type > 31 ? s.type : '?');
    if (v.t == TV_MISSING)
        v = next_arg(f);
    if (s.type == 's' || s.type == 'r' || (s.type == 'c' && v.t == TV_STR)) {
        struct tsb text = {0};
        tmpl__print(r, &text, v, s.type == 'r', 0);
        s.fill[0] = ' ';
        s.align = s.align == '<' ? '<' : '>';
        put_text(r, b, &s, tmpl__sb_take(r, &text));
        return;
    }
    if (v.t != TV_INT && v.t != TV_BOOL && v.t != TV_FLOAT)
        tmpl__fail(r, ERR_INVAL, "format %%%c needs a number, not '%s'", s.type, tmpl__type(v));
    if (s.type == 'c' || (s.prec >= 0 && !is_float_type(s.type)))
        tmpl__fail(r, ERR_UNSUPPORTED, "format %%%c of a number with these options", s.type);
    if (v.t == TV_FLOAT && strchr("diu", s.type)) { /* cuts the fraction */
        if (!(v.u.f > -9e18 && v.u.f < 9e18))
            tmpl__fail(r, ERR_INVAL, "number too large for %%d");
        v = tmpl__int((int64_t)v.u.f);
    }
    if (strchr("iu", s.type))
        s.type = 'd';
    put_number(r, b, &s, v);
}

struct tv tmpl__percent(struct tmpl_run *r, struct tv fmt, struct tv arg)
{
    struct percent f = {.r = r, .p = fmt.u.s->p, .n = fmt.u.s->n, .arg = arg};
    struct tsb b = {0};
    tmpl__tick(r, f.n);
    while (f.i < f.n) {
        const char *q = memchr(f.p + f.i, '%', f.n - f.i);
        size_t k = q ? (size_t)(q - f.p) : f.n;
        tmpl__sb_add(r, &b, f.p + f.i, k - f.i);
        f.i = k + 1;
        if (k + 1 == f.n)
            tmpl__fail(r, ERR_INVAL, "incomplete format");
        if (q)
            conversion(&f, &b);
    }
    bool tuple = arg.t == TV_SEQ && arg.u.l->kind == SEQ_TUPLE;
    /* Python lets anything with subscripts pass unused */
    bool loose = arg.t == TV_DICT || (arg.t == TV_SEQ && !tuple && arg.u.l->kind <= SEQ_RANGE);
    if (!loose && f.used < (tuple ? arg.u.l->n : 1))
        tmpl__fail(r, ERR_INVAL, "not all arguments converted during string formatting");
    return tmpl__sb_take(r, &b);
}

/* --- str.format --- */
struct braces {
    struct tmpl_run *r;
    struct tstr *f;
    const struct tcall *c;
    int64_t next; /* automatic numbering; -1 once fields are numbered by hand */
};

static struct tv field_base(struct braces *x, const char *p, size_t n)
{
    struct tmpl_run *r = x->r;
    size_t i = 0;
    int64_t k = number(r, p, n, &i);
    if (n == 0 || (k >= 0 && i == n)) {
        if (n == 0 && x->next >= 0)
            k = x->next++;
        else if (n > 0 && x->next <= 0)
            x->next = -1;
        else
            tmpl__fail(r, ERR_INVAL, "format mixes {} and {0}");
        if (k >= x->c->n)
            tmpl__fail(r, ERR_INVAL, "format: argument %lld is missing", (long long)k);
        return x->c->pos[k];
    }
    for (int j = 0; j < x->c->n_kw; j++)
        if (x->c->kwn[j]->n == n && memcmp(x->c->kwn[j]->p, p, n) == 0)
            return x->c->kwv[j];
    tmpl__fail(r, ERR_INVAL, "format: argument '%.*s' is missing", (int)(n < 60 ? n : 60), p);
}

/* name(.attr | [key])* , read through the sandbox like any other attribute */
static struct tv field(struct braces *x, const char *p, size_t n)
{
    struct tmpl_run *r = x->r;
    size_t i = 0;
    while (i < n && p[i] != '.' && p[i] != '[')
        i++;
    struct tv v = field_base(x, p, i);
    while (i < n) {
        size_t start = ++i;
        if (p[start - 1] == '.') {
            while (i < n && p[i] != '.' && p[i] != '[')
                i++;
            v = tmpl__getattr(r, v, tmpl__ref(r, p + start, i - start));
        } else {
            while (i < n && p[i] != ']')
                i++;
            size_t k = start;
            int64_t num = number(r, p, i, &k);
            v = tmpl__getitem(
                r, v, num >= 0 && k == i ? tmpl__int(num) : tmpl__ref(r, p + start, i - start));
            i++;
        }
    }
    return v;
}

static bool is_align(char c)
{
    return c && strchr("<>^=", c);
}

static struct spec parse_spec(struct tmpl_run *r, const char *p, size_t n)
{
    struct spec s = {.fill = " ", .fill_n = 1, .prec = -1};
    size_t i = 0, k = n ? tmpl__char(p, n) : 0;
    if (n > k && is_align(p[k])) {
        memcpy(s.fill, p, k);
        s.fill_n = k;
        s.align = p[k];
        i = k + 1;
    } else if (n && is_align(p[0])) {
        s.align = p[i++];
    }
    if (i < n && (p[i] == '+' || p[i] == '-' || p[i] == ' '))
        s.sign = p[i++];
    if (i < n && p[i] == '#') {
        s.alt = true;
        i++;
    }
    if (i < n && p[i] == '0') {
        i++;
        if (!s.align) {
            s.align = '=';
            s.fill[0] = '0';
        }
    }
    s.width = number(r, p, n, &i);
    if (i < n && p[i] == ',') {
        s.comma = true;
        i++;
    }
    if (i < n && p[i] == '.') {
        i++;
        s.prec = (int)number(r, p, n, &i);
        if (s.prec < 0)
            tmpl__fail(r, ERR_INVAL, "format specifier without precision");
    }
    if (i < n)
        s.type = p[i++];
    if (i < n || (s.type && !strchr("sdbxXoeEfFgG%", s.type)))
        tmpl__fail(r, ERR_UNSUPPORTED, "format specifier '%.*s'", (int)(n < 40 ? n : 40), p);
    return s;
}

static void put_field(struct tmpl_run *r, struct tsb *b, struct tv v, char conv, const char *p,
                      size_t n)
{
    struct spec s = parse_spec(r, p, n);
    if (conv) {
        struct tsb text = {0};
        tmpl__print(r, &text, v, conv == 'r', 0);
        v = tmpl__sb_take(r, &text);
    }
    bool num = v.t == TV_INT || v.t == TV_FLOAT || (v.t == TV_BOOL && n > 0);
    if (num && s.type != 's' && !(n == 0)) {
        if (s.prec >= 0 && v.t != TV_FLOAT && !is_float_type(s.type))
            tmpl__fail(r, ERR_INVAL, "precision not allowed for integers");
        put_number(r, b, &s, v);
        return;
    }
    if (n > 0 &&
        (v.t != TV_STR || (s.type && s.type != 's') || s.align == '=' || s.sign || s.comma))
        tmpl__fail(r, ERR_INVAL, "format specifier does not fit a '%s'", tmpl__type(v));
    put_text(r, b, &s, tmpl__to_str(r, v));
}

/* The field whose text starts at f[i], behind '{'; returns the position behind its '}'. */
static size_t one_field(struct braces *x, struct tsb *b, size_t i)
{
    const char *p = x->f->p;
    size_t n = x->f->n, start = i, name_end, spec;
    char conv = 0;
    while (i < n && !strchr("!:}{", p[i]))
        i++;
    name_end = i;
    if (i < n && p[i] == '!') {
        conv = i + 1 < n ? p[i + 1] : 0;
        if (conv != 'r' && conv != 's')
            tmpl__fail(x->r, ERR_UNSUPPORTED, "format conversion other than !r and !s");
        i += 2;
    }
    if (i < n && p[i] == ':')
        i++;
    spec = i;
    while (i < n && p[i] != '}') {
        if (p[i] == '{')
            tmpl__fail(x->r, ERR_UNSUPPORTED, "format field inside a format specifier");
        i++;
    }
    if (i >= n)
        tmpl__fail(x->r, ERR_INVAL, "expected '}' before end of string");
    put_field(x->r, b, field(x, p + start, name_end - start), conv, p + spec, i - spec);
    return i + 1;
}

struct tv tmpl__format(struct tmpl_run *r, struct tv fmt, struct tv *a, const struct tcall *c)
{
    (void)a;
    struct braces x = {.r = r, .f = fmt.u.s, .c = c};
    struct tsb b = {0};
    tmpl__tick(r, fmt.u.s->n * 4);
    for (size_t i = 0; i < x.f->n;) {
        char ch = x.f->p[i++];
        bool twice = i < x.f->n && x.f->p[i] == ch;
        if (ch == '{' && !twice) {
            i = one_field(&x, &b, i);
        } else if (ch == '}' && !twice) {
            tmpl__fail(r, ERR_INVAL, "single '}' in a format string");
        } else {
            tmpl__sb_add(r, &b, &ch, 1);
            i += ch == '{' || ch == '}';
        }
    }
    return tmpl__sb_take(r, &b);
}
