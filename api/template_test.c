/* Chat templates: tests (`is ...`) and the global functions. */
#include "api/template_impl.h"

#include <string.h>

typedef const struct tcall call_args;
#define TEST(fn, expr)                                                                             \
    static struct tv fn(struct tmpl_run *r, struct tv v, struct tv *a, call_args *c)               \
    {                                                                                              \
        (void)r, (void)v, (void)a, (void)c;                                                        \
        return tmpl__bool(expr);                                                                   \
    }

static bool is_list(struct tv v)
{
    return v.t == TV_SEQ && v.u.l->kind <= SEQ_RANGE;
}

static bool callable(struct tv v)
{
    return v.t == TV_MACRO || v.t == TV_FN || v.t == TV_METHOD || v.t == TV_LOOP ||
           v.t == TV_JOINER || v.t == TV_UNDEF; /* Undefined has __call__, which fails */
}

static bool same(struct tv a, struct tv b)
{
    if (a.t != b.t)
        return false;
    switch (a.t) {
    case TV_NONE:
        return true;
    case TV_BOOL:
        return a.u.b == b.u.b;
    case TV_INT:
        return a.u.i == b.u.i;
    case TV_FLOAT:
        return false;
    case TV_STR: /* equal short strings are one object in Python as often as not */
        return a.u.s->p == b.u.s->p && a.u.s->n == b.u.s->n;
    default:
        return a.u.d == b.u.d;
    }
}

static int order(struct tmpl_run *r, struct tv a, struct tv b)
{
    if (a.t == TV_UNDEF || b.t == TV_UNDEF)
        tmpl__fail(r, ERR_INVAL, "comparison with an undefined value");
    return tmpl__cmp(r, a, b, 0);
}

static int64_t modulo(struct tmpl_run *r, struct tv v, int64_t by)
{
    int64_t i = tmpl__as_int(r, v, "tested value");
    if (by == 0)
        tmpl__fail(r, ERR_INVAL, "division by zero");
    return by == -1 ? 0 : i % by;
}

static bool is_cased(struct tmpl_run *r, struct tv v, const char *method)
{
    const struct tfn *f = tmpl__str_method(method, 7);
    return f->call(r, tmpl__to_str(r, v), NULL, NULL).u.b;
}

TEST(t_defined, v.t != TV_UNDEF)
TEST(t_undefined, v.t == TV_UNDEF)
TEST(t_none, v.t == TV_NONE)
TEST(t_boolean, v.t == TV_BOOL)
TEST(t_true, v.t == TV_BOOL && v.u.b)
TEST(t_false, v.t == TV_BOOL && !v.u.b)
TEST(t_integer, v.t == TV_INT)
TEST(t_float, v.t == TV_FLOAT)
TEST(t_number, v.t == TV_INT || v.t == TV_FLOAT || v.t == TV_BOOL)
TEST(t_string, v.t == TV_STR)
TEST(t_mapping, v.t == TV_DICT)
TEST(t_sequence, is_list(v) || v.t == TV_STR || v.t == TV_DICT || v.t == TV_UNDEF)
TEST(t_iterable, v.t == TV_SEQ || v.t == TV_STR || v.t == TV_DICT || v.t == TV_UNDEF)
TEST(t_callable, callable(v))
TEST(t_escaped, v.t == TV_STR && v.safe)
TEST(t_sameas, same(v, a[0]))
TEST(t_eq, tmpl__eq(r, v, a[0], 0))
TEST(t_ne, !tmpl__eq(r, v, a[0], 0))
TEST(t_lt, order(r, v, a[0]) == -1)
TEST(t_gt, order(r, v, a[0]) == 1)
TEST(t_le, order(r, v, a[0]) == -1 || order(r, v, a[0]) == 0)
TEST(t_ge, order(r, v, a[0]) == 1 || order(r, v, a[0]) == 0)
TEST(t_in, tmpl__contains(r, v, a[0]))
TEST(t_odd, modulo(r, v, 2) != 0)
TEST(t_even, modulo(r, v, 2) == 0)
TEST(t_divisibleby, modulo(r, v, tmpl__as_int(r, a[0], "divisibleby")) == 0)
TEST(t_lower, is_cased(r, v, "islower"))
TEST(t_upper, is_cased(r, v, "isupper"))
TEST(t_filter, v.t == TV_STR && tmpl__filter(v.u.s->p, v.u.s->n))
TEST(t_test, v.t == TV_STR && tmpl__test(v.u.s->p, v.u.s->n))

static const struct tfn tests[] = {
    {"defined", "", t_defined},
    {"undefined", "", t_undefined},
    {"none", "", t_none},
    {"boolean", "", t_boolean},
    {"true", "", t_true},
    {"false", "", t_false},
    {"integer", "", t_integer},
    {"float", "", t_float},
    {"number", "", t_number},
    {"string", "", t_string},
    {"mapping", "", t_mapping},
    {"sequence", "", t_sequence},
    {"iterable", "", t_iterable},
    {"callable", "", t_callable},
    {"escaped", "", t_escaped},
    {"sameas", "!other", t_sameas},
    {"eq", "!other", t_eq},
    {"equalto", "!other", t_eq},
    {"==", "!other", t_eq},
    {"ne", "!other", t_ne},
    {"!=", "!other", t_ne},
    {"lt", "!other", t_lt},
    {"lessthan", "!other", t_lt},
    {"<", "!other", t_lt},
    {"gt", "!other", t_gt},
    {"greaterthan", "!other", t_gt},
    {">", "!other", t_gt},
    {"le", "!other", t_le},
    {"<=", "!other", t_le},
    {"ge", "!other", t_ge},
    {">=", "!other", t_ge},
    {"in", "!seq", t_in},
    {"odd", "", t_odd},
    {"even", "", t_even},
    {"divisibleby", "!num", t_divisibleby},
    {"lower", "", t_lower},
    {"upper", "", t_upper},
    {"filter", "", t_filter},
    {"test", "", t_test},
    {0},
};

const struct tfn *tmpl__test(const char *name, size_t n)
{
    return tmpl__fn_find(tests, name, n);
}

/* --- global functions --- */
#define GLOBAL(fn)                                                                                 \
    static struct tv fn(struct tmpl_run *r, struct tv self, struct tv *a, call_args *c)

#define MAX_RANGE 100000 /* the sandbox's */

GLOBAL(g_range)
{
    (void)self, (void)c;
    bool one = a[1].t == TV_MISSING;
    int64_t from = one ? 0 : tmpl__as_int(r, a[0], "range: start");
    int64_t to = tmpl__as_int(r, one ? a[0] : a[1], "range: stop");
    int64_t step = a[2].t == TV_MISSING ? 1 : tmpl__as_int(r, a[2], "range: step");
    struct tv out = tmpl__seq(r, SEQ_RANGE, 0);
    if (step == 0)
        tmpl__fail(r, ERR_INVAL, "range() step must not be zero");
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        tmpl__tick(r, 16);
        if (out.u.l->n == MAX_RANGE)
            tmpl__fail(r, ERR_LIMIT, "range() of more than %d numbers", MAX_RANGE);
        tmpl__push(r, out, tmpl__int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return out;
}

/* dict(...) and namespace(...): a mapping or pairs, then keywords */
static struct tdict *make_dict(struct tmpl_run *r, call_args *c)
{
    struct tdict *d = tmpl__dict(r).u.d;
    if (c->n > 1)
        tmpl__fail(r, ERR_INVAL, "dict() takes one positional argument");
    if (c->n && c->pos[0].t == TV_DICT) {
        const struct tdict *src = c->pos[0].u.d;
        for (size_t i = 0; i < src->n; i++)
            tmpl__dict_set(r, d, src->e[i].k, src->e[i].v);
    } else if (c->n) {
        struct tseq *l = tmpl__iter(r, c->pos[0]);
        for (size_t i = 0; i < l->n; i++) {
            struct tseq *pair = tmpl__iter(r, l->v[i]);
            if (pair->n != 2)
                tmpl__fail(r, ERR_INVAL, "dict() needs pairs");
            tmpl__dict_set(r, d, pair->v[0], pair->v[1]);
        }
    }
    for (int i = 0; i < c->n_kw; i++)
        tmpl__dict_set(r, d, tmpl__ref(r, c->kwn[i]->p, c->kwn[i]->n), c->kwv[i]);
    return d;
}

GLOBAL(g_dict)
{
    (void)self, (void)a;
    return (struct tv){.t = TV_DICT, .u.d = make_dict(r, c)};
}

GLOBAL(g_namespace)
{
    (void)self, (void)a;
    return (struct tv){.t = TV_NS, .u.d = make_dict(r, c)};
}

GLOBAL(g_raise)
{
    (void)self, (void)c;
    struct tv s = tmpl__to_str(r, a[0]);
    r->line = 0; /* the template's own words only */
    tmpl__fail(r, ERR_INVAL, "%.*s", (int)(s.u.s->n < 199 ? s.u.s->n : 199), s.u.s->p);
}

GLOBAL(g_strftime)
{
    (void)self, (void)c;
    char fmt[256], text[1024];
    if (a[0].t != TV_STR || a[0].u.s->n > sizeof(fmt) - 2)
        tmpl__fail(r, ERR_INVAL, "strftime_now needs a format of at most 254 bytes");
    if (!r->now)
        tmpl__fail(r, ERR_INVAL, "strftime_now: no time is known here");
    size_t n = a[0].u.s->n;
    memcpy(fmt, a[0].u.s->p, n);
    memcpy(fmt + n, "|", 2); /* so that an empty result differs from no room */
    for (const char *p = fmt; (p = strchr(p, '%')) != NULL; p += p[1] ? 2 : 1)
        if (p[1] >= '0' && p[1] <= '9') /* glibc's widths make any length */
            tmpl__fail(r, ERR_UNSUPPORTED, "strftime_now with a width");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t len = strftime(text, sizeof(text), fmt, r->now);
#pragma GCC diagnostic pop
    if (!len)
        tmpl__fail(r, ERR_LIMIT, "strftime_now: text too long");
    return tmpl__str(r, text, len - 1);
}

GLOBAL(g_cycler)
{
    (void)self, (void)a;
    struct tcycler *y = tmpl__alloc(r, 1, sizeof(*y));
    struct tv l = tmpl__seq(r, SEQ_LIST, 0);
    if (!c->n)
        tmpl__fail(r, ERR_INVAL, "at least one item has to be provided");
    for (int i = 0; i < c->n; i++)
        tmpl__push(r, l, c->pos[i]);
    y->items = l.u.l;
    return (struct tv){.t = TV_CYCLER, .u.cyc = y};
}

GLOBAL(g_joiner)
{
    (void)self, (void)c;
    struct tcycler *y = tmpl__alloc(r, 1, sizeof(*y));
    struct tv l = tmpl__seq(r, SEQ_LIST, 1);
    tmpl__push(r, l, a[0].t == TV_MISSING ? tmpl__ref(r, ", ", 2) : a[0]);
    y->items = l.u.l;
    return (struct tv){.t = TV_JOINER, .u.cyc = y};
}

static const struct tfn globals[] = {
    {"range", "!start,stop,step", g_range},
    {"dict", NULL, g_dict},
    {"namespace", NULL, g_namespace},
    {"raise_exception", "!message", g_raise},
    {"strftime_now", "!format", g_strftime},
    {"cycler", NULL, g_cycler},
    {"joiner", "sep", g_joiner},
    {0},
};

const struct tfn *tmpl__global(const char *name, size_t n)
{
    return tmpl__fn_find(globals, name, n);
}
