/* Objects: declared members in their order, optional ones left out or not, then further ones. */
#include <string.h>

#include "api/schema_impl.h"

#define MEMBERS_MAX  4000
#define PATTERNS_MAX 32
#define CLASSES_MAX  64    /* of keys by the patterns that they match */
#define COUNT_MAX    20000 /* states of counting members */

struct member {
    const char *name;
    size_t len;
    gr_expr e; /* key, colon, value */
    bool required, never;
};

struct obj {
    struct sc *s;
    const struct conj *c;
    struct member *m;
    int n, cap;
    const char *pattern[PATTERNS_MAX];
    gr_expr pattern_e[PATTERNS_MAX]; /* keys that match, without quotes */
    int n_pattern;
    gr_expr more;  /* any further member, or GR_FAIL if none */
    gr_expr names; /* propertyNames: what keys may be, or GR_FAIL */
};

static const json_t *additional(const json_t *o)
{
    const json_t *a = json_object_get(o, "additionalProperties");
    return a ? a : json_object_get(o, "unevaluatedProperties");
}

static gr_expr escaped(struct sc *s, const char *name, size_t n)
{
    struct buf b = {0};
    buf_json(&b, name, n);
    gr_expr e =
        b.failed ? sc__fail(s, ERR_NOMEM, NULL, "no memory") : gr_lit(s->b, b.p + 1, b.len - 2);
    buf_free(&b);
    return e;
}

static int find(const struct obj *o, const char *name)
{
    for (int i = 0; i < o->n; i++)
        if (strcmp(o->m[i].name, name) == 0)
            return i;
    return -1;
}

static int add_member(struct obj *o, const char *name)
{
    if (find(o, name) >= 0)
        return 0;
    if (o->n == MEMBERS_MAX) {
        sc__fail(o->s, ERR_LIMIT, "properties", "over %d", MEMBERS_MAX);
        return ERR_LIMIT;
    }
    if (o->n == o->cap) {
        int cap = o->cap ? o->cap * 2 : 16;
        struct member *m = arena_array(&o->s->mem, (size_t)cap, sizeof *m);
        if (!m) {
            sc__fail(o->s, ERR_LIMIT, NULL, "the schema takes too much memory");
            return ERR_LIMIT;
        }
        if (o->n)
            memcpy(m, o->m, (size_t)o->n * sizeof *m);
        o->m = m;
        o->cap = cap;
    }
    o->m[o->n++] = (struct member){.name = name, .len = strlen(name)};
    return 0;
}

static int collect(struct obj *o)
{
    const struct conj *c = o->c;
    const char *key;
    json_t *v;
    for (int i = 0; i < c->object.n; i++) {
        json_object_foreach(json_object_get(c->object.v[i], "properties"), key, v)
        {
            if (add_member(o, key))
                return ERR_LIMIT;
            if (json_is_true(json_object_get(v, "required"))) /* draft 3 */
                o->m[find(o, key)].required = true;
        }
    }
    for (int i = 0; i < c->required.n; i++) {
        const char *name = json_string_value(c->required.v[i]);
        if (add_member(o, name))
            return ERR_LIMIT;
        o->m[find(o, name)].required = true;
    }
    for (int i = 0; i < c->object.n; i++) {
        json_object_foreach(json_object_get(c->object.v[i], "patternProperties"), key, v)
        {
            int k = 0;
            while (k < o->n_pattern && strcmp(o->pattern[k], key) != 0)
                k++;
            if (k < o->n_pattern)
                continue;
            if (k == PATTERNS_MAX) {
                sc__fail(o->s, ERR_UNSUPPORTED, "patternProperties",
                         "over %d patterns are not supported", PATTERNS_MAX);
                return ERR_UNSUPPORTED;
            }
            gr_expr e = gr_regex(o->s->b, view_str(key), GR_JSON, GR_SEARCH);
            if (e == GR_FAIL || gr_is_never(o->s->b, e) < 0) {
                struct err why;
                int code = gr_failed(o->s->b, &why);
                gr_forgive(o->s->b);
                sc__fail(o->s, code, "patternProperties", "%s", why.text);
                return code;
            }
            o->pattern[k] = key;
            o->pattern_e[k] = e;
            o->n_pattern++;
        }
    }
    return 0;
}

/* Schemas of a member: by its name, or (name NULL) of a further member whose key matches the patterns of `match`. */
static int schemas_of(struct obj *o, const char *name, unsigned match, struct list *set)
{
    for (int i = 0; i < o->c->object.n; i++) {
        const json_t *at = o->c->object.v[i];
        const json_t *own = name ? json_object_get(json_object_get(at, "properties"), name) : NULL;
        bool any = own != NULL;
        if (own && !sc__add(o->s, set, own))
            return ERR_LIMIT;
        for (int k = 0; k < o->n_pattern; k++) {
            const json_t *p =
                match >> k & 1
                    ? json_object_get(json_object_get(at, "patternProperties"), o->pattern[k])
                    : NULL;
            any |= p != NULL;
            if (p && !sc__add(o->s, set, p))
                return ERR_LIMIT;
        }
        if (!any && additional(at) && !sc__add(o->s, set, additional(at)))
            return ERR_LIMIT;
    }
    return 0;
}

static bool set_never(const struct list *set)
{
    for (int i = 0; i < set->n; i++)
        if (json_is_false(set->v[i]))
            return true;
    return false;
}

static int build_member(struct obj *o, struct member *m)
{
    struct sc *s = o->s;
    struct list set = {0};
    unsigned match = 0;
    struct buf key = {0};
    buf_json(&key, m->name, m->len);
    for (int k = 0; k < o->n_pattern && !key.failed; k++)
        match |= (gr_matches(s->b, o->pattern_e[k], key.p + 1, key.len - 2) == 1 ? 1u : 0u) << k;
    if (o->names != GR_FAIL && !key.failed)
        m->never = gr_matches(s->b, o->names, key.p + 1, key.len - 2) == 0;
    buf_free(&key);
    if (schemas_of(o, m->name, match, &set))
        return ERR_LIMIT;
    m->never |= set_never(&set);
    if (m->never)
        return 0;
    size_t mark = sc__enter(s, "properties", m->name);
    bool differs = o->c->key && strcmp(o->c->key, m->name) == 0;
    gr_expr value = differs ? sc__key(s, &set) : sc__set(s, &set);
    sc__leave(s, mark);
    m->e = gr_seq(
        s->b, (gr_expr[]){sc__quoted(s, m->name, m->len), gr_str(s->b, ":"), sc__ws(s), value}, 4);
    return m->e == GR_FAIL ? ERR_INVAL : 0;
}

/* Keys that match just the patterns of `match`, without quotes. */
struct key_class {
    unsigned match;
    gr_expr keys;
};

/* Keys that are no member's. */
static gr_expr other_keys(struct obj *o)
{
    struct gr_builder *b = o->s->b;
    gr_expr all = gr_repeat(b, gr_any(b, GR_JSON), 0, GR_INF), not = gr_never(b);
    gr_expr e = o->names == GR_FAIL ? all : o->names;
    for (int i = 0; i < o->n; i++)
        not = gr_alt2(b, not, escaped(o->s, o->m[i].name, o->m[i].len));
    return o->n ? gr_and(b, e, gr_not(b, not )) : e;
}

/* Each pattern splits the classes that are there in two; what is empty is dropped. < 0: failed. */
static int classes_of(struct obj *o, struct key_class *k)
{
    struct gr_builder *b = o->s->b;
    int n = 1;
    k[0] = (struct key_class){0, other_keys(o)};
    for (int p = 0; p < o->n_pattern; p++)
        for (int i = 0, had = n; i < had; i++) {
            gr_expr in = gr_and(b, k[i].keys, o->pattern_e[p]);
            if (gr_is_never(b, in) != 0)
                continue;
            if (n == CLASSES_MAX) {
                sc__fail(o->s, ERR_UNSUPPORTED, "patternProperties",
                         "with over %d ways to match at once is not supported", CLASSES_MAX);
                return -1;
            }
            k[n++] = (struct key_class){k[i].match | 1u << p, in};
            k[i].keys = gr_and(b, k[i].keys, gr_not(b, o->pattern_e[p]));
        }
    return gr_failed(b, NULL) ? -1 : n;
}

static gr_expr quoted_keys(struct obj *o, gr_expr keys)
{
    struct gr_builder *b = o->s->b;
    gr_expr quote = gr_str(b, "\"");
    if (!o->n && !o->n_pattern && o->names == GR_FAIL) /* any key, in any spelling */
        keys = gr_repeat(b, gr_any(b, GR_JSON_ALL), 0, GR_INF);
    else if (gr_is_never(b, keys) != 0)
        return gr_failed(b, NULL) ? GR_FAIL : gr_never(b);
    return gr_lex(b, gr_seq(b, (gr_expr[]){quote, keys, quote}, 3));
}

static int build_more(struct obj *o)
{
    struct sc *s = o->s;
    gr_expr all = gr_never(s->b);
    struct key_class k[CLASSES_MAX];
    bool any = false;
    int n = classes_of(o, k);
    if (n < 0)
        return ERR_INVAL;
    for (int i = 0; i < n; i++) {
        struct list set = {0};
        if (schemas_of(o, NULL, k[i].match, &set))
            return ERR_LIMIT;
        if (set_never(&set))
            continue;
        gr_expr key = quoted_keys(o, k[i].keys);
        if (key == GR_FAIL)
            return ERR_INVAL;
        size_t mark = sc__enter(s, k[i].match ? "patternProperties" : "additionalProperties", NULL);
        gr_expr value = sc__set(s, &set);
        sc__leave(s, mark);
        gr_expr one = gr_seq(s->b, (gr_expr[]){key, gr_str(s->b, ":"), sc__ws(s), value}, 4);
        if (one == GR_FAIL)
            return ERR_INVAL;
        all = gr_alt2(s->b, all, one);
        any = true;
    }
    o->more = any ? all : GR_FAIL;
    return 0;
}

/* ---- order ---- */

struct
    tails { /* what follows after i members were passed and `count` written (counted up to top) */
    struct obj *o;
    gr_expr *e; /* [n + 1, top + 1], GR_FAIL - 1 = not made */
    int top;
    int64_t min, max;
    gr_expr sep;
};
#define NOT_MADE (-2)

/* Further members once `count` are written. Keys may be written twice, which counts once: no more than one of them
 * is relied on to reach the minimum. */
static gr_expr rest(struct tails *t, int64_t count)
{
    struct gr_builder *b = t->o->s->b;
    gr_expr more = t->o->more;
    if (more == GR_FAIL || (t->max >= 0 && count >= t->max))
        return count >= t->min ? gr_empty(b) : gr_never(b);
    if (count + 1 < t->min)
        return gr_never(b);
    int32_t lo = count < t->min ? 1 : 0, hi = t->max < 0 ? GR_INF : (int32_t)(t->max - count);
    gr_expr again = gr_seq2(b, t->sep, more);
    if (count > 0)
        return gr_repeat(b, again, lo, hi);
    gr_expr full = gr_seq2(b, more, gr_repeat(b, again, 0, hi == GR_INF ? hi : hi - 1));
    return lo ? full : gr_opt(b, full);
}

static gr_expr tail(struct tails *t, int i, int64_t count)
{
    struct obj *o = t->o;
    struct gr_builder *b = o->s->b;
    int64_t seen = count < t->top ? count : t->top;
    gr_expr *at = &t->e[(size_t)i * (size_t)(t->top + 1) + (size_t)seen];
    if (gr_failed(b, NULL) || *at != NOT_MADE)
        return *at == NOT_MADE ? GR_FAIL : *at;
    gr_expr r;
    if (i == o->n) {
        r = rest(t, seen);
    } else {
        const struct member *m = &o->m[i];
        gr_expr with = gr_never(b), without = gr_never(b);
        if (!m->never && (t->max < 0 || count < t->max))
            with = gr_seq(
                b, (gr_expr[]){count ? t->sep : gr_empty(b), m->e, tail(t, i + 1, count + 1)}, 3);
        if (!m->required)
            without = tail(t, i + 1, count);
        r = gr_alt2(b, with, without);
    }
    /* used from two sides: a rule, so that it is laid out once */
    gr_expr rule = gr_rule_new(b, "members");
    gr_rule_set(b, rule, r);
    return *at = r == GR_FAIL ? r : rule;
}

static gr_expr order(struct obj *o)
{
    struct sc *s = o->s;
    struct gr_builder *b = s->b;
    struct tails t = {.o = o, .min = o->c->min_props, .max = o->c->max_props};
    int n_required = 0;
    for (int i = 0; i < o->n; i++) {
        n_required += o->m[i].required;
        if (o->m[i].required && o->m[i].never)
            return gr_never(b);
    }
    if (t.min <= n_required && t.min > 1)
        t.min = n_required; /* they come anyway */
    if (t.max >= o->n && o->more == GR_FAIL)
        t.max = -1;
    bool counts = t.min > n_required || t.max >= 0;
    int64_t top = counts ? o->n + 1 : 1;
    if (!counts)
        t.min = 0;
    if ((int64_t)(o->n + 1) * (top + 1) > COUNT_MAX)
        return sc__fail(s, ERR_LIMIT, o->c->max_props >= 0 ? "maxProperties" : "minProperties",
                        "beside this many properties is not supported");
    t.top = (int)top;
    t.sep = gr_seq2(b, gr_str(b, ","), sc__ws(s));
    size_t cells = (size_t)(o->n + 1) * (size_t)(t.top + 1);
    t.e = arena_array(&s->mem, cells, sizeof *t.e);
    if (!t.e)
        return sc__fail(s, ERR_LIMIT, NULL, "the schema takes too much memory");
    for (size_t i = 0; i < cells; i++)
        t.e[i] = NOT_MADE;
    /* from the last to the first, so that nothing recurses deeply */
    for (int i = o->n; i > 0; i--)
        for (int k = 0; k <= t.top && k <= i; k++)
            tail(&t, i, k);
    gr_expr inside = tail(&t, 0, 0);
    if (counts && o->c->min_props > o->n + 1 && o->more != GR_FAIL)
        return sc__fail(s, ERR_UNSUPPORTED, "minProperties",
                        "beyond the declared properties is not supported");
    return gr_seq(b, (gr_expr[]){gr_str(b, "{"), sc__ws(s), inside, sc__ws(s), gr_str(b, "}")}, 5);
}

gr_expr sc__object(struct sc *s, const struct conj *c)
{
    struct obj o = {.s = s, .c = c, .more = GR_FAIL, .names = GR_FAIL};
    if (c->names.n) {
        struct conj *k = sc__conj_new(s);
        for (int i = 0; k && i < c->names.n; i++)
            if (sc__flatten(s, k, c->names.v[i]))
                return GR_FAIL;
        if (!k)
            return GR_FAIL;
        if (k->n_choice)
            return sc__fail(s, ERR_UNSUPPORTED, "propertyNames", "with a choice is not supported");
        o.names = k->never || !(k->types & T_STR) ? gr_never(s->b) : sc__string_body(s, k);
        for (size_t i = 0; k->values && i < json_array_size(k->values); i++) {
            const json_t *v = json_array_get(k->values, i);
            gr_expr one = json_is_string(v)
                              ? escaped(s, json_string_value(v), json_string_length(v))
                              : gr_never(s->b);
            o.pattern_e[0] = i ? gr_alt2(s->b, o.pattern_e[0], one) : one;
            if (i + 1 == json_array_size(k->values))
                o.names = gr_and(s->b, o.names, o.pattern_e[0]);
        }
        if (o.names == GR_FAIL)
            return GR_FAIL;
    }
    if (collect(&o))
        return GR_FAIL;
    for (int i = 0; i < o.n; i++)
        if (build_member(&o, &o.m[i]))
            return GR_FAIL;
    if (build_more(&o))
        return GR_FAIL;
    return order(&o);
}
