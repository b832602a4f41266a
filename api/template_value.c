/* Chat templates: values. Constructors, dicts, order and equality as Python has them, JSON input. */
#include "api/template_impl.h"

#include <math.h>
#include <string.h>

struct tv tmpl__bool(bool b)
{
    return (struct tv){.t = TV_BOOL, .u.b = b};
}

struct tv tmpl__int(int64_t i)
{
    return (struct tv){.t = TV_INT, .u.i = i};
}

struct tv tmpl__float(double f)
{
    return (struct tv){.t = TV_FLOAT, .u.f = f};
}

struct tv tmpl__ref(struct tmpl_run *r, const char *p, size_t n)
{
    struct tstr *s = tmpl__alloc(r, 1, sizeof(*s));
    *s = (struct tstr){.p = p, .n = n};
    return (struct tv){.t = TV_STR, .u.s = s};
}

struct tv tmpl__str(struct tmpl_run *r, const char *p, size_t n)
{
    char *copy = tmpl__alloc(r, n + 1, 1);
    if (n)
        memcpy(copy, p, n);
    return tmpl__ref(r, copy, n);
}

struct tv tmpl__undef(struct tmpl_run *r, const char *name, size_t n)
{
    return (struct tv){.t = TV_UNDEF, .u.s = name ? tmpl__ref(r, name, n).u.s : NULL};
}

struct tv tmpl__concat(struct tmpl_run *r, struct tv a, struct tv b)
{
    struct tstr *x = a.u.s, *y = b.u.s;
    struct tsb sb = {0};
    tmpl__tick(r, y->n);
    if (x->grow && x->p == x->grow->p && x->n == x->grow->used &&
        y->n <= x->grow->cap - x->grow->used) {
        if (x->n + y->n > r->lim.max_output && r->lim.max_output)
            tmpl__fail(r, ERR_LIMIT, "string of more than %zu bytes", r->lim.max_output);
        if (y->n)
            memcpy(x->grow->p + x->n, y->p, y->n);
        x->grow->used += y->n;
        struct tv v = tmpl__ref(r, x->p, x->n + y->n);
        v.u.s->grow = x->grow;
        return v;
    }
    tmpl__tick(r, x->n);
    tmpl__sb_add(r, &sb, x->p, x->n);
    tmpl__sb_add(r, &sb, y->p, y->n);
    struct tgrow *g = tmpl__alloc(r, 1, sizeof(*g));
    *g = (struct tgrow){.p = sb.p, .used = sb.n, .cap = sb.cap};
    struct tv v = tmpl__sb_take(r, &sb);
    v.u.s->grow = g;
    return v;
}

/* --- sequences --- */
struct tv tmpl__seq(struct tmpl_run *r, int kind, size_t cap)
{
    struct tseq *l = tmpl__alloc(r, 1, sizeof(*l));
    l->kind = (uint8_t)kind;
    if (cap)
        l->v = tmpl__alloc(r, cap, sizeof(*l->v));
    l->cap = cap;
    return (struct tv){.t = TV_SEQ, .u.l = l};
}

void tmpl__push(struct tmpl_run *r, struct tv seq, struct tv v)
{
    struct tseq *l = seq.u.l;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct tv *p = tmpl__alloc(r, cap, sizeof(*p));
        if (l->n)
            memcpy(p, l->v, l->n * sizeof(*p));
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

struct tv tmpl__pair(struct tmpl_run *r, struct tv a, struct tv b)
{
    struct tv p = tmpl__seq(r, SEQ_TUPLE, 2);
    tmpl__push(r, p, a);
    tmpl__push(r, p, b);
    return p;
}

static struct tseq *chars(struct tmpl_run *r, const struct tstr *s)
{
    struct tv l = tmpl__seq(r, SEQ_LIST, 0);
    tmpl__tick(r, s->n * 16);
    for (size_t i = 0, k; i < s->n; i += k) {
        k = tmpl__char(s->p + i, s->n - i);
        tmpl__push(r, l, tmpl__ref(r, s->p + i, k));
    }
    return l.u.l;
}

struct tseq *tmpl__iter(struct tmpl_run *r, struct tv v)
{
    if (v.t == TV_STR)
        return chars(r, v.u.s);
    if (v.t == TV_UNDEF)
        return tmpl__seq(r, SEQ_LIST, 0).u.l;
    if (v.t == TV_DICT) {
        struct tv l = tmpl__seq(r, SEQ_LIST, v.u.d->n);
        for (size_t i = 0; i < v.u.d->n; i++)
            tmpl__push(r, l, v.u.d->e[i].k);
        return l.u.l;
    }
    if (v.t != TV_SEQ)
        tmpl__fail(r, ERR_INVAL, "'%s' object is not iterable", tmpl__type(v));
    if (v.u.l->kind != SEQ_GEN)
        return v.u.l;
    struct tseq *rest = tmpl__alloc(r, 1, sizeof(*rest));
    rest->v = v.u.l->v + v.u.l->pos;
    rest->n = rest->cap = v.u.l->n - v.u.l->pos;
    v.u.l->pos = v.u.l->n;
    return rest;
}

/* --- dicts --- */
struct tv tmpl__dict(struct tmpl_run *r)
{
    return (struct tv){.t = TV_DICT, .u.d = tmpl__alloc(r, 1, sizeof(struct tdict))};
}

/* Equal values of any numeric type hash alike, as in Python. */
static uint64_t hash_of(struct tmpl_run *r, struct tv k)
{
    double f = 0;
    switch (k.t) {
    case TV_STR:
        return hash_bytes(r->key, k.u.s->p, k.u.s->n);
    case TV_NONE:
    case TV_UNDEF:
        return k.t;
    case TV_BOOL:
        f = k.u.b;
        break;
    case TV_INT:
        f = (double)k.u.i;
        break;
    case TV_FLOAT:
        f = k.u.f;
        break;
    case TV_SEQ:
        if (k.u.l->kind == SEQ_TUPLE)
            return k.u.l->n;
        /* fall through */
    default:
        tmpl__fail(r, ERR_INVAL, "unhashable type: '%s'", tmpl__type(k));
    }
    if (f == 0)
        f = 0; /* -0.0 == 0.0 */
    return hash_bytes(r->key, &f, sizeof(f));
}

static struct tentry *find(struct tmpl_run *r, const struct tdict *d, struct tv k, uint64_t h)
{
    if (!d->slot) {
        for (size_t i = 0; i < d->n; i++)
            if (d->e[i].h == h && tmpl__eq(r, d->e[i].k, k, 0))
                return &d->e[i];
        return NULL;
    }
    for (size_t at = h & (d->n_slot - 1); d->slot[at]; at = (at + 1) & (d->n_slot - 1)) {
        struct tentry *e = &d->e[d->slot[at] - 1];
        if (e->h == h && tmpl__eq(r, e->k, k, 0))
            return e;
    }
    return NULL;
}

const struct tv *tmpl__dict_get(struct tmpl_run *r, const struct tdict *d, struct tv k)
{
    struct tentry *e = find(r, d, k, hash_of(r, k));
    return e ? &e->v : NULL;
}

static void put_slot(struct tdict *d, size_t entry)
{
    size_t at = d->e[entry].h & (d->n_slot - 1);
    while (d->slot[at])
        at = (at + 1) & (d->n_slot - 1);
    d->slot[at] = (uint32_t)entry + 1;
}

void tmpl__dict_set(struct tmpl_run *r, struct tdict *d, struct tv k, struct tv v)
{
    uint64_t h = hash_of(r, k);
    struct tentry *e = find(r, d, k, h);
    if (e) {
        e->v = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        struct tentry *p = tmpl__alloc(r, cap, sizeof(*p));
        if (d->n)
            memcpy(p, d->e, d->n * sizeof(*p));
        d->e = p;
        d->cap = cap;
        if (cap > 8) { /* at most half full */
            d->n_slot = cap * 2;
            d->slot = tmpl__alloc(r, d->n_slot, sizeof(*d->slot));
            for (size_t i = 0; i < d->n; i++)
                put_slot(d, i);
        }
    }
    d->e[d->n] = (struct tentry){.k = k, .v = v, .h = h};
    if (d->slot)
        put_slot(d, d->n);
    d->n++;
}

struct tv tmpl__from_json(struct tmpl_run *r, const json_t *j, int depth)
{
    struct tv v;
    const char *key;
    json_t *item, *src = (json_t *)(uintptr_t)j; /* jansson's iterators want it mutable */
    size_t i, n;
    if (depth > r->lim.max_depth)
        tmpl__fail(r, ERR_LIMIT, "data nested more than %d deep", r->lim.max_depth);
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        v = tmpl__dict(r);
        json_object_keylen_foreach(src, key, n, item)
            tmpl__dict_set(r, v.u.d, tmpl__ref(r, key, n), tmpl__from_json(r, item, depth + 1));
        return v;
    case JSON_ARRAY:
        v = tmpl__seq(r, SEQ_LIST, json_array_size(j));
        json_array_foreach(src, i, item) tmpl__push(r, v, tmpl__from_json(r, item, depth + 1));
        return v;
    case JSON_STRING:
        return tmpl__ref(r, json_string_value(j), json_string_length(j));
    case JSON_INTEGER:
        return tmpl__int(json_integer_value(j));
    case JSON_REAL:
        return tmpl__float(json_real_value(j));
    case JSON_TRUE:
    case JSON_FALSE:
        return tmpl__bool(json_is_true(j));
    default:
        return TV(TV_NONE);
    }
}

/* --- what values are --- */
bool tmpl__is(struct tv v, const char *s)
{
    size_t n = strlen(s);
    return v.t == TV_STR && v.u.s->n == n && memcmp(v.u.s->p, s, n) == 0;
}

const char *tmpl__type(struct tv v)
{
    static const char *const seq[] = {"list",      "tuple",       "range",     "generator",
                                      "dict_keys", "dict_values", "dict_items"};
    switch (v.t) {
    case TV_UNDEF:
        return "Undefined";
    case TV_NONE:
        return "NoneType";
    case TV_BOOL:
        return "bool";
    case TV_INT:
        return "int";
    case TV_FLOAT:
        return "float";
    case TV_STR:
        return v.safe ? "Markup" : "str";
    case TV_SEQ:
        return seq[v.u.l->kind];
    case TV_DICT:
        return "dict";
    case TV_NS:
        return "Namespace";
    case TV_MACRO:
        return "Macro";
    case TV_LOOP:
        return "LoopContext";
    default:
        return "function";
    }
}

bool tmpl__truth(struct tv v)
{
    switch (v.t) {
    case TV_UNDEF:
    case TV_NONE:
    case TV_MISSING:
        return false;
    case TV_BOOL:
        return v.u.b;
    case TV_INT:
        return v.u.i != 0;
    case TV_FLOAT:
        return v.u.f != 0;
    case TV_STR:
        return v.u.s->n > 0;
    case TV_SEQ:
        return v.u.l->kind == SEQ_GEN || v.u.l->n > 0;
    case TV_DICT:
        return v.u.d->n > 0;
    default:
        return true;
    }
}

static bool is_num(struct tv v)
{
    return v.t == TV_BOOL || v.t == TV_INT || v.t == TV_FLOAT;
}

static int64_t whole(struct tv v)
{
    return v.t == TV_BOOL ? v.u.b : v.u.i;
}

/* -1, 0, 1; 2 when one is not a number */
static int num_cmp(struct tv a, struct tv b)
{
    if (a.t != TV_FLOAT && b.t != TV_FLOAT)
        return (whole(a) > whole(b)) - (whole(a) < whole(b));
    /* 64 bits of mantissa hold every int64 exactly */
    long double x = a.t == TV_FLOAT ? (long double)a.u.f : (long double)whole(a);
    long double y = b.t == TV_FLOAT ? (long double)b.u.f : (long double)whole(b);
    return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
}

static void deep(struct tmpl_run *r, int depth)
{
    tmpl__tick(r, 0);
    if (r->lim.max_depth && depth > r->lim.max_depth)
        tmpl__fail(r, ERR_LIMIT, "data nested more than %d deep", r->lim.max_depth);
}

static bool seq_eq(struct tmpl_run *r, struct tseq *a, struct tseq *b, int depth)
{
    if (a == b)
        return true;
    if (a->kind != b->kind || a->kind == SEQ_GEN || a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!tmpl__eq(r, a->v[i], b->v[i], depth + 1))
            return false;
    return true;
}

bool tmpl__eq(struct tmpl_run *r, struct tv a, struct tv b, int depth)
{
    deep(r, depth);
    if (is_num(a) && is_num(b))
        return num_cmp(a, b) == 0;
    if (a.t != b.t)
        return false;
    switch (a.t) {
    case TV_UNDEF:
    case TV_NONE:
        return true;
    case TV_STR:
        return a.u.s->n == b.u.s->n && memcmp(a.u.s->p, b.u.s->p, a.u.s->n) == 0;
    case TV_SEQ:
        return seq_eq(r, a.u.l, b.u.l, depth);
    case TV_DICT:
        if (a.u.d->n != b.u.d->n)
            return false;
        for (size_t i = 0; i < a.u.d->n; i++) {
            const struct tv *v = tmpl__dict_get(r, b.u.d, a.u.d->e[i].k);
            if (!v || !tmpl__eq(r, a.u.d->e[i].v, *v, depth + 1))
                return false;
        }
        return true;
    default:
        return a.u.d == b.u.d; /* identity */
    }
}

int tmpl__cmp(struct tmpl_run *r, struct tv a, struct tv b, int depth)
{
    deep(r, depth);
    if (is_num(a) && is_num(b))
        return num_cmp(a, b);
    if (a.t == TV_STR && b.t == TV_STR) {
        /* byte order of UTF-8 is code point order */
        size_t n = a.u.s->n < b.u.s->n ? a.u.s->n : b.u.s->n;
        int c = n ? memcmp(a.u.s->p, b.u.s->p, n) : 0;
        return c ? (c > 0) - (c < 0) : (a.u.s->n > b.u.s->n) - (a.u.s->n < b.u.s->n);
    }
    if (a.t == TV_SEQ && b.t == TV_SEQ && a.u.l->kind == b.u.l->kind && a.u.l->kind <= SEQ_TUPLE) {
        struct tseq *x = a.u.l, *y = b.u.l;
        for (size_t i = 0; i < x->n && i < y->n; i++)
            if (!tmpl__eq(r, x->v[i], y->v[i], depth + 1))
                return tmpl__cmp(r, x->v[i], y->v[i], depth + 1);
        return (x->n > y->n) - (x->n < y->n);
    }
    tmpl__fail(r, ERR_INVAL, "'%s' and '%s' have no order", tmpl__type(a), tmpl__type(b));
}

int64_t tmpl__len(struct tmpl_run *r, struct tv v)
{
    if (v.t == TV_UNDEF)
        return 0;
    if (v.t == TV_DICT)
        return (int64_t)v.u.d->n;
    if (v.t == TV_SEQ && v.u.l->kind != SEQ_GEN)
        return (int64_t)v.u.l->n;
    if (v.t != TV_STR)
        tmpl__fail(r, ERR_INVAL, "object of type '%s' has no len()", tmpl__type(v));
    struct tstr *s = v.u.s;
    int64_t n = 0;
    tmpl__tick(r, s->n);
    for (size_t i = 0; i < s->n; i += tmpl__char(s->p + i, s->n - i))
        n++;
    return n;
}

int64_t tmpl__as_int(struct tmpl_run *r, struct tv v, const char *what)
{
    if (v.t != TV_INT && v.t != TV_BOOL)
        tmpl__fail(r, ERR_INVAL, "%s must be an integer, not '%s'", what, tmpl__type(v));
    return whole(v);
}

/* Stable merge sort of vals by keys, bottom up; returns the sorted values. */
struct tseq *tmpl__sorted(struct tmpl_run *r, struct tseq *keys, struct tseq *vals, bool reverse)
{
    size_t n = keys->n;
    size_t *a = tmpl__alloc(r, n + 1, sizeof(*a)), *b = tmpl__alloc(r, n + 1, sizeof(*b)), *t;
    for (size_t i = 0; i < n; i++)
        a[i] = i;
    for (size_t w = 1; w < n; w *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * w) {
            size_t mid = lo + w < n ? lo + w : n, hi = lo + 2 * w < n ? lo + 2 * w : n;
            for (size_t i = lo, j = mid, k = lo; k < hi; k++) {
                /* the right one goes first only when it is strictly before: equal ones keep order */
                bool right = i == mid;
                if (i < mid && j < hi) {
                    int c = tmpl__cmp(r, keys->v[a[j]], keys->v[a[i]], 0);
                    right = reverse ? c == 1 : c == -1;
                }
                b[k] = right ? a[j++] : a[i++];
            }
        }
        t = a;
        a = b;
        b = t;
    }
    struct tv out = tmpl__seq(r, SEQ_LIST, n);
    for (size_t i = 0; i < n; i++)
        tmpl__push(r, out, vals->v[a[i]]);
    return out.u.l;
}
