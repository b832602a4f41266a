/* Chat templates: filters over sequences. */
#include "api/template_impl.h"

#include <string.h>

typedef const struct tcall call_args;
#define FILTER(fn) static struct tv fn(struct tmpl_run *r, struct tv in, struct tv *a, call_args *c)

static bool flag(struct tv v)
{
    return v.t != TV_MISSING && tmpl__truth(v);
}

/* --- attribute getters: "a.b.0" or a number, read as items --- */
static struct tv get_path(struct tmpl_run *r, struct tv item, struct tv path, struct tv dflt)
{
    if (path.t == TV_MISSING || path.t == TV_NONE)
        return item;
    struct tv part = path;
    const char *p = path.t == TV_STR ? path.u.s->p : NULL;
    size_t n = p ? path.u.s->n : 0, i = 0;
    do {
        if (p) {
            size_t start = i, digits = 0;
            for (; i < n && p[i] != '.'; i++)
                digits += p[i] >= '0' && p[i] <= '9';
            part = tmpl__ref(r, p + start, i - start);
            if (digits && digits == i - start && digits < 10) {
                int64_t k = 0;
                for (size_t d = start; d < i; d++)
                    k = k * 10 + (p[d] - '0');
                part = tmpl__int(k);
            }
            i++;
        }
        item = tmpl__getitem(r, item, part);
        if (item.t == TV_UNDEF && dflt.t != TV_MISSING && dflt.t != TV_NONE)
            item = dflt;
    } while (p && i <= n);
    return item;
}

/* Sort key: as it is, or in lower case when it is a string. */
static struct tv fold(struct tmpl_run *r, struct tv v, bool case_sensitive)
{
    return v.t == TV_STR && !case_sensitive ? tmpl__case(r, v, CASE_LOWER) : v;
}

/* Keys of all items by a comma-separated list of attributes; several make a list each. */
static struct tseq *keys_of(struct tmpl_run *r, struct tseq *l, struct tv attr, bool case_sensitive)
{
    struct tv keys = tmpl__seq(r, SEQ_LIST, l->n);
    for (size_t i = 0; i < l->n; i++) {
        struct tv key = tmpl__seq(r, SEQ_LIST, 1);
        const char *p = attr.t == TV_STR ? attr.u.s->p : NULL;
        size_t n = p ? attr.u.s->n : 0, at = 0;
        tmpl__tick(r, n * 16);
        do {
            const char *comma = p ? memchr(p + at, ',', n - at) : NULL;
            size_t k = comma ? (size_t)(comma - p) - at : n - at;
            struct tv part = p ? tmpl__ref(r, p + at, k) : attr;
            tmpl__push(r, key, fold(r, get_path(r, l->v[i], part, TV(TV_MISSING)), case_sensitive));
            at += k + 1;
        } while (p && at <= n);
        tmpl__push(r, keys, key.u.l->n == 1 ? key.u.l->v[0] : key);
    }
    return keys.u.l;
}

/* --- map, select --- */
static struct tcall rest(const struct tcall *c, int skip)
{
    struct tcall d = *c;
    d.pos = c->n > skip ? c->pos + skip : NULL;
    d.n = c->n > skip ? c->n - skip : 0;
    return d;
}

static struct tv need_name(struct tmpl_run *r, struct tv v, const char *what)
{
    if (v.t != TV_STR)
        tmpl__fail(r, ERR_INVAL, "%s must be named by a string", what);
    return v;
}

FILTER(f_map)
{
    (void)a;
    struct tv out = tmpl__seq(r, SEQ_GEN, 0), attr = TV(TV_MISSING), dflt = TV(TV_MISSING);
    const struct tfn *f = NULL;
    struct tcall more = rest(c, 1);
    if (!tmpl__truth(in))
        return out;
    if (c->n == 0) {
        for (int i = 0; i < c->n_kw; i++) {
            bool is_attr = c->kwn[i]->n == 9 && memcmp(c->kwn[i]->p, "attribute", 9) == 0;
            bool is_dflt = c->kwn[i]->n == 7 && memcmp(c->kwn[i]->p, "default", 7) == 0;
            if (!is_attr && !is_dflt)
                tmpl__fail(r, ERR_INVAL, "map: unexpected keyword argument");
            *(is_attr ? &attr : &dflt) = c->kwv[i];
        }
        if (attr.t == TV_MISSING)
            tmpl__fail(r, ERR_INVAL, "map requires a filter argument");
    } else {
        struct tstr *name = need_name(r, c->pos[0], "map: filter").u.s;
        f = tmpl__filter(name->p, name->n);
        if (!f)
            tmpl__fail(r, ERR_UNSUPPORTED, "no filter named '%.*s'",
                       (int)(name->n < 60 ? name->n : 60), name->p);
    }
    struct tseq *l = tmpl__iter(r, in);
    for (size_t i = 0; i < l->n; i++)
        tmpl__push(r, out,
                   f ? tmpl__call_fn(r, f, l->v[i], &more) : get_path(r, l->v[i], attr, dflt));
    return out;
}

static struct tv select_items(struct tmpl_run *r, struct tv in, call_args *c, bool by_attr,
                              bool want)
{
    struct tv out = tmpl__seq(r, SEQ_GEN, 0);
    int skip = by_attr ? 1 : 0;
    const struct tfn *test = NULL;
    struct tcall more = rest(c, skip + 1);
    if (!tmpl__truth(in))
        return out;
    if (c->n < skip)
        tmpl__fail(r, ERR_INVAL, "missing parameter for attribute name");
    if (c->n > skip) {
        struct tstr *name = need_name(r, c->pos[skip], "test").u.s;
        test = tmpl__test(name->p, name->n);
        if (!test)
            tmpl__fail(r, ERR_UNSUPPORTED, "no test named '%.*s'",
                       (int)(name->n < 60 ? name->n : 60), name->p);
    }
    struct tseq *l = tmpl__iter(r, in);
    for (size_t i = 0; i < l->n; i++) {
        tmpl__tick(r, 0);
        struct tv v = by_attr ? get_path(r, l->v[i], c->pos[0], TV(TV_MISSING)) : l->v[i];
        if (tmpl__truth(test ? tmpl__call_fn(r, test, v, &more) : v) == want)
            tmpl__push(r, out, l->v[i]);
    }
    return out;
}

FILTER(f_select)
{
    (void)a;
    return select_items(r, in, c, false, true);
}

FILTER(f_reject)
{
    (void)a;
    return select_items(r, in, c, false, false);
}

FILTER(f_selectattr)
{
    (void)a;
    return select_items(r, in, c, true, true);
}

FILTER(f_rejectattr)
{
    (void)a;
    return select_items(r, in, c, true, false);
}

/* --- order --- */
FILTER(f_sort)
{
    (void)c;
    struct tseq *l = tmpl__iter(r, in);
    l = tmpl__sorted(r, keys_of(r, l, a[2], flag(a[1])), l, flag(a[0]));
    return (struct tv){.t = TV_SEQ, .u.l = l};
}

FILTER(f_dictsort)
{
    (void)c;
    if (in.t != TV_DICT)
        tmpl__fail(r, ERR_INVAL, "dictsort needs a mapping, not '%s'", tmpl__type(in));
    bool by_value = tmpl__is(a[1], "value");
    if (a[1].t != TV_MISSING && !by_value && !tmpl__is(a[1], "key"))
        tmpl__fail(r, ERR_INVAL, "dictsort: by must be 'key' or 'value'");
    struct tv keys = tmpl__seq(r, SEQ_LIST, in.u.d->n), vals = tmpl__seq(r, SEQ_LIST, in.u.d->n);
    for (size_t i = 0; i < in.u.d->n; i++) {
        const struct tentry *e = &in.u.d->e[i];
        tmpl__push(r, keys, fold(r, by_value ? e->v : e->k, flag(a[0])));
        tmpl__push(r, vals, tmpl__pair(r, e->k, e->v));
    }
    return (struct tv){.t = TV_SEQ, .u.l = tmpl__sorted(r, keys.u.l, vals.u.l, flag(a[2]))};
}

FILTER(f_reverse)
{
    (void)a, (void)c;
    struct tseq *l = tmpl__iter(r, in);
    struct tsb b = {0};
    bool gen = in.t == TV_SEQ && in.u.l->kind == SEQ_GEN; /* Jinja makes a list of these */
    struct tv out = tmpl__seq(r, gen ? SEQ_LIST : SEQ_GEN, l->n);
    for (size_t i = l->n; i-- > 0;) {
        if (in.t == TV_STR)
            tmpl__sb_add(r, &b, l->v[i].u.s->p, l->v[i].u.s->n);
        else
            tmpl__push(r, out, l->v[i]);
    }
    return in.t == TV_STR ? tmpl__sb_take(r, &b) : out;
}

FILTER(f_unique)
{
    (void)c;
    struct tseq *l = tmpl__iter(r, in);
    struct tv out = tmpl__seq(r, SEQ_GEN, 0), seen = tmpl__dict(r);
    for (size_t i = 0; i < l->n; i++) {
        struct tv key = fold(r, get_path(r, l->v[i], a[1], TV(TV_MISSING)), flag(a[0]));
        if (tmpl__dict_get(r, seen.u.d, key))
            continue;
        tmpl__dict_set(r, seen.u.d, key, key);
        tmpl__push(r, out, l->v[i]);
    }
    return out;
}

FILTER(f_groupby)
{
    (void)c;
    struct tseq *l = tmpl__iter(r, in);
    struct tv keys = tmpl__seq(r, SEQ_LIST, l->n), out = tmpl__seq(r, SEQ_LIST, 0);
    for (size_t i = 0; i < l->n; i++)
        tmpl__push(r, keys, fold(r, get_path(r, l->v[i], a[0], a[1]), flag(a[2])));
    l = tmpl__sorted(r, keys.u.l, l, false);
    struct tv last = TV(TV_MISSING), group = last;
    for (size_t i = 0; i < l->n; i++) {
        struct tv real = get_path(r, l->v[i], a[0], a[1]), key = fold(r, real, flag(a[2]));
        if (last.t == TV_MISSING || !tmpl__eq(r, last, key, 0)) {
            group = tmpl__seq(r, SEQ_LIST, 0);
            struct tv pair = tmpl__pair(r, real, group);
            pair.u.l->group = true;
            tmpl__push(r, out, pair);
            last = key;
        }
        tmpl__push(r, group, l->v[i]);
    }
    return out;
}

static struct tv extreme(struct tmpl_run *r, struct tv in, struct tv *a, int sign)
{
    struct tseq *l = tmpl__iter(r, in);
    size_t best = 0;
    if (!l->n)
        return tmpl__undef(r, "no aggregated item, sequence was empty", 38);
    struct tv keys = tmpl__seq(r, SEQ_LIST, l->n);
    for (size_t i = 0; i < l->n; i++) {
        tmpl__push(r, keys, fold(r, get_path(r, l->v[i], a[1], TV(TV_MISSING)), flag(a[0])));
        if (i && tmpl__cmp(r, keys.u.l->v[i], keys.u.l->v[best], 0) == sign)
            best = i;
    }
    return l->v[best];
}

FILTER(f_min)
{
    (void)c;
    return extreme(r, in, a, -1);
}

FILTER(f_max)
{
    (void)c;
    return extreme(r, in, a, 1);
}

FILTER(f_sum)
{
    (void)c;
    struct tseq *l = tmpl__iter(r, in);
    struct tv v = a[1].t == TV_MISSING ? tmpl__int(0) : a[1];
    if (v.t == TV_STR)
        tmpl__fail(r, ERR_INVAL, "sum cannot add strings");
    for (size_t i = 0; i < l->n; i++)
        v = tmpl__add(r, v, get_path(r, l->v[i], a[0], TV(TV_MISSING)));
    return v;
}

/* --- parts --- */
FILTER(f_first)
{
    (void)a, (void)c;
    if (in.t == TV_SEQ && in.u.l->kind == SEQ_GEN) /* takes one, leaves the rest */
        return in.u.l->pos < in.u.l->n ? in.u.l->v[in.u.l->pos++]
                                       : tmpl__undef(r, "no first item, sequence was empty", 33);
    if (in.t == TV_STR)
        return in.u.s->n ? tmpl__substr(r, in, 0, 1)
                         : tmpl__undef(r, "no first item, sequence was empty", 33);
    struct tseq *l = tmpl__iter(r, in);
    return l->n ? l->v[0] : tmpl__undef(r, "no first item, sequence was empty", 33);
}

FILTER(f_last)
{
    (void)a, (void)c;
    if (in.t == TV_SEQ && in.u.l->kind == SEQ_GEN)
        tmpl__fail(r, ERR_INVAL, "'generator' object is not reversible");
    struct tseq *l = tmpl__iter(r, in);
    return l->n ? l->v[l->n - 1] : tmpl__undef(r, "no last item, sequence was empty", 32);
}

static struct tv list_of(struct tmpl_run *r, const struct tseq *l, size_t from, size_t to)
{
    struct tv out = tmpl__seq(r, SEQ_LIST, to - from);
    tmpl__tick(r, (to - from) * 16);
    for (size_t i = from; i < to; i++)
        tmpl__push(r, out, l->v[i]);
    return out;
}

FILTER(f_list)
{
    (void)a, (void)c;
    struct tseq *l = tmpl__iter(r, in);
    return list_of(r, l, 0, l->n);
}

FILTER(f_items)
{
    (void)a, (void)c;
    struct tv out = tmpl__seq(r, SEQ_GEN, 0);
    if (in.t == TV_UNDEF)
        return out;
    if (in.t != TV_DICT)
        tmpl__fail(r, ERR_INVAL, "Can only get item pairs from a mapping.");
    for (size_t i = 0; i < in.u.d->n; i++)
        tmpl__push(r, out, tmpl__pair(r, in.u.d->e[i].k, in.u.d->e[i].v));
    return out;
}

FILTER(f_join)
{
    (void)c;
    struct tseq *l = tmpl__iter(r, in);
    struct tsb b = {0};
    struct tv sep = a[0].t == TV_MISSING ? tmpl__ref(r, "", 0) : tmpl__to_str(r, a[0]);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            tmpl__sb_add(r, &b, sep.u.s->p, sep.u.s->n);
        tmpl__print(r, &b, get_path(r, l->v[i], a[1], TV(TV_MISSING)), false, 0);
    }
    return tmpl__sb_take(r, &b);
}

static void fill_to(struct tmpl_run *r, struct tv part, struct tv fill, int64_t n)
{
    while (fill.t != TV_MISSING && fill.t != TV_NONE && (int64_t)part.u.l->n < n) {
        tmpl__tick(r, 0);
        tmpl__push(r, part, fill);
    }
}

FILTER(f_batch)
{
    (void)c;
    struct tseq *l = tmpl__iter(r, in);
    struct tv out = tmpl__seq(r, SEQ_GEN, 0);
    int64_t size = tmpl__as_int(r, a[0], "batch: linecount");
    if (size < 1)
        tmpl__fail(r, ERR_INVAL, "batch: linecount must be positive");
    for (size_t i = 0; i < l->n; i += (size_t)size) {
        size_t end = (uint64_t)size < l->n - i ? i + (size_t)size : l->n;
        struct tv part = list_of(r, l, i, end);
        fill_to(r, part, a[1], size);
        tmpl__push(r, out, part);
        if (end == l->n)
            break;
    }
    return out;
}

FILTER(f_slice)
{
    (void)c;
    struct tseq *l = tmpl__iter(r, in);
    struct tv out = tmpl__seq(r, SEQ_GEN, 0);
    int64_t k = tmpl__as_int(r, a[0], "slice: slices");
    if (k < 1 || k > 100000)
        tmpl__fail(r, ERR_INVAL, "slice: slices must be 1 to 100000");
    size_t each = l->n / (size_t)k, extra = l->n % (size_t)k, at = 0;
    for (size_t i = 0; i < (size_t)k; i++) {
        size_t n = each + (i < extra);
        struct tv part = list_of(r, l, at, at + n);
        if (i >= extra)
            fill_to(r, part, a[1], (int64_t)n + 1);
        tmpl__push(r, out, part);
        at += n;
    }
    return out;
}

static const struct tfn tab[] = {
    {"map", NULL, f_map},
    {"select", NULL, f_select},
    {"reject", NULL, f_reject},
    {"selectattr", NULL, f_selectattr},
    {"rejectattr", NULL, f_rejectattr},
    {"sort", "reverse,case_sensitive,attribute", f_sort},
    {"dictsort", "case_sensitive,by,reverse", f_dictsort},
    {"reverse", "", f_reverse},
    {"unique", "case_sensitive,attribute", f_unique},
    {"groupby", "!attribute,default,case_sensitive", f_groupby},
    {"min", "case_sensitive,attribute", f_min},
    {"max", "case_sensitive,attribute", f_max},
    {"sum", "attribute,start", f_sum},
    {"first", "", f_first},
    {"last", "", f_last},
    {"list", "", f_list},
    {"items", "", f_items},
    {"join", "d,attribute", f_join},
    {"batch", "!linecount,fill_with", f_batch},
    {"slice", "!slices,fill_with", f_slice},
    {0},
};

const struct tfn *tmpl__filter_seq(const char *name, size_t n)
{
    return tmpl__fn_find(tab, name, n);
}
