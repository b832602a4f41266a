/* Compiling sets of schemas. See schema_impl.h. */
#include <stdlib.h>
#include <string.h>

#include "api/schema_impl.h"
#include "engine/base/hash.h"

gr_expr sc__fail(struct sc *s, int code, const char *keyword, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    if (gr_failed(s->b, NULL))
        return GR_FAIL;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t n = s->path_len < sizeof s->e->where - 1 ? s->path_len : sizeof s->e->where - 1;
    memcpy(s->e->where, s->path, n);
    s->e->where[n] = 0;
    if (keyword && n + 1 < sizeof s->e->where)
        snprintf(s->e->where + n, sizeof s->e->where - n, "%s%s", n ? "." : "", keyword);
    return gr_fail(s->b, code, "%s%s%s%s", keyword ? "'" : "", keyword ? keyword : "",
                   keyword ? "': " : "", text);
}

bool sc__add(struct sc *s, struct list *l, const json_t *v)
{
    if (l->n == l->cap) {
        int cap = l->cap ? l->cap * 2 : 8;
        const json_t **p = arena_array(&s->mem, (size_t)cap, sizeof *p);
        if (!p) {
            sc__fail(s, ERR_LIMIT, NULL, "the schema takes too much memory");
            return false;
        }
        if (l->n)
            memcpy(p, l->v, (size_t)l->n * sizeof *p);
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return true;
}

size_t sc__enter(struct sc *s, const char *key, const char *name)
{
    size_t mark = s->path_len;
    int n = snprintf(s->path + mark, sizeof s->path - mark, "%s%s%s%s", mark ? "." : "", key,
                     name ? "." : "", name ? name : "");
    if (n > 0)
        s->path_len += (size_t)n;
    if (s->path_len >= sizeof s->path)
        s->path_len = sizeof s->path - 1;
    return mark;
}

void sc__leave(struct sc *s, size_t mark)
{
    s->path_len = mark;
    s->path[mark] = 0;
}

/* Between JSON tokens: nothing, a space, or a line break with its indentation. Bounded, since a model that may write
 * white space for ever sometimes does. */
gr_expr sc__ws(struct sc *s)
{
    if (s->ws != GR_FAIL)
        return s->ws;
    if (s->o->compact)
        return s->ws = gr_empty(s->b);
    gr_expr indent = gr_alt2(s->b, gr_repeat(s->b, gr_str(s->b, " "), 0, 40),
                             gr_repeat(s->b, gr_str(s->b, "\t"), 0, 10));
    return s->ws = gr_alt(s->b,
                          (gr_expr[]){gr_empty(s->b), gr_str(s->b, " "),
                                      gr_seq2(s->b, gr_str(s->b, "\n"), indent)},
                          3);
}

gr_expr sc__quoted(struct sc *s, const char *text, size_t n)
{
    struct buf b = {0};
    buf_json(&b, text, n);
    gr_expr e = b.failed ? sc__fail(s, ERR_NOMEM, NULL, "no memory") : gr_lit(s->b, b.p, b.len);
    buf_free(&b);
    return e;
}

/* A number's texts: as jansson writes it; 1.0 also as 1. */
static gr_expr number_value(struct sc *s, const json_t *v)
{
    char text[64];
    double d = json_number_value(v);
    if (json_is_integer(v)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
        return gr_str(s->b, text);
    }
    snprintf(text, sizeof text, "%.17g", d);
    for (int digits = 1; digits < 17; digits++) {
        char shorter[64];
        snprintf(shorter, sizeof shorter, "%.*g", digits, d);
        if (strtod(shorter, NULL) == d) {
            memcpy(text, shorter, sizeof text);
            break;
        }
    }
    gr_expr e = gr_str(s->b, text);
    if (!strpbrk(text, ".e"))
        e = gr_alt2(s->b, e, gr_seq2(s->b, e, gr_str(s->b, ".0")));
    return e;
}

static gr_expr joined(struct sc *s, const char *open, const gr_expr *kid, size_t n,
                      const char *close)
{
    gr_expr e = gr_seq2(s->b, gr_str(s->b, open), sc__ws(s));
    gr_expr sep = gr_seq2(s->b, gr_str(s->b, ","), sc__ws(s));
    for (size_t i = 0; i < n; i++)
        e = gr_seq(s->b, (gr_expr[]){e, i ? sep : gr_empty(s->b), kid[i]}, 3);
    return gr_seq(s->b, (gr_expr[]){e, n ? sc__ws(s) : gr_empty(s->b), gr_str(s->b, close)}, 3);
}

gr_expr sc__value(struct sc *s, const json_t *v)
{
    gr_expr e = GR_FAIL;
    if (json_is_string(v))
        return sc__quoted(s, json_string_value(v), json_string_length(v));
    if (json_is_number(v))
        return number_value(s, v);
    if (!json_is_array(v) && !json_is_object(v))
        return gr_str(s->b, json_is_null(v) ? "null" : json_is_true(v) ? "true" : "false");
    size_t n = json_is_array(v) ? json_array_size(v) : json_object_size(v), i = 0;
    gr_expr *kid = arena_array(&s->mem, n + 1, sizeof *kid);
    if (!kid)
        return sc__fail(s, ERR_LIMIT, NULL, "the schema takes too much memory");
    if (json_is_array(v)) {
        for (; i < n; i++)
            kid[i] = sc__value(s, json_array_get(v, i));
        e = joined(s, "[", kid, n, "]");
    } else {
        const char *key;
        json_t *x;
        json_object_foreach((json_t *)v, key, x)
        {
            gr_expr name = gr_seq(
                s->b, (gr_expr[]){sc__quoted(s, key, strlen(key)), gr_str(s->b, ":"), sc__ws(s)},
                3);
            kid[i++] = gr_seq2(s->b, name, sc__value(s, x));
        }
        e = joined(s, "{", kid, n, "}");
    }
    return e;
}

/* ---- one conjunction ---- */

static gr_expr values(struct sc *s, const struct conj *c)
{
    size_t n = json_array_size(c->values), m = 0;
    gr_expr *kid = arena_array(&s->mem, n + 1, sizeof *kid);
    if (!kid)
        return sc__fail(s, ERR_LIMIT, "enum", "too many values");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(c->values, i);
        int ok = sc__holds_conj(s, c, v, 0);
        if (ok < 0)
            return sc__fail(s, ERR_UNSUPPORTED, "enum",
                            "whether its values fit the other keywords cannot be told");
        if (ok)
            kid[m++] = sc__value(s, v);
    }
    return gr_alt(s->b, kid, m);
}

gr_expr sc__conj(struct sc *s, const struct conj *c)
{
    gr_expr kid[6];
    size_t n = 0;
    if (c->never)
        return gr_never(s->b);
    if (c->key)
        return sc__keyed(s, c);
    if (c->values)
        return values(s, c);
    for (int i = 0; i < c->not_values.n; i++) /* strings are done in sc__string_body */
        for (size_t k = 0; k < json_array_size(c->not_values.v[i]); k++) {
            const json_t *v = json_array_get(c->not_values.v[i], k);
            if (!json_is_string(v) && !json_is_number(v) &&
                sc__type_of(v) & c->types & ~(unsigned)(T_NULL | T_BOOL))
                return sc__fail(s, ERR_UNSUPPORTED, "not", "of an array or an object");
        }
    unsigned types = c->types;
    for (int i = 0; i < c->not_values.n; i++)
        for (size_t k = 0; k < json_array_size(c->not_values.v[i]); k++)
            if (json_is_null(json_array_get(c->not_values.v[i], k)))
                types &= ~(unsigned)T_NULL;
    if (types & T_NULL)
        kid[n++] = gr_str(s->b, "null");
    if (types & T_BOOL) {
        bool yes = true, no = true;
        for (int i = 0; i < c->not_values.n; i++)
            for (size_t k = 0; k < json_array_size(c->not_values.v[i]); k++) {
                yes &= !json_is_true(json_array_get(c->not_values.v[i], k));
                no &= !json_is_false(json_array_get(c->not_values.v[i], k));
            }
        kid[n++] = gr_alt2(s->b, yes ? gr_str(s->b, "true") : gr_never(s->b),
                           no ? gr_str(s->b, "false") : gr_never(s->b));
    }
    if (types & T_NUM)
        kid[n++] = sc__number(s, c);
    if (types & T_STR)
        kid[n++] = sc__string(s, c);
    if (types & T_ARR)
        kid[n++] = sc__array(s, c);
    if (types & T_OBJ)
        kid[n++] = sc__object(s, c);
    return gr_alt(s->b, kid, n);
}

/* ---- choices ---- */

/* What of a negation can be together with `one`. */
static const json_t *without_never(struct sc *s, const json_t *one, const json_t *no)
{
    const json_t *alts = json_object_get(no, KEY_SOME_OF);
    if (!alts)
        return no;
    json_t *left = json_array();
    for (size_t i = 0; i < json_array_size(alts); i++) {
        json_t *alt = json_array_get(alts, i);
        bool never = sc__disjoint(s, one, alt, 0);
        if (gr_failed(s->b, NULL) == ERR_UNSUPPORTED) { /* said where it is built */
            gr_forgive(s->b);
            never = false;
        }
        if (!never)
            json_array_append(left, alt);
    }
    return sc__keep(s, json_array_size(left) ? json_pack("{s:o}", KEY_SOME_OF, left)
                                             : (json_decref(left), json_false()));
}

/* oneOf: where two branches may match at once, each is taken without the others. */
static int make_exclusive(struct sc *s, struct choice *ch)
{
    struct list out = {0};
    for (int i = 0; i < ch->alt.n; i++) {
        const json_t *one = ch->alt.v[i];
        json_t *all = NULL;
        for (int k = 0; k < ch->alt.n; k++) {
            if (k == i || sc__disjoint(s, one, ch->alt.v[k], 0))
                continue;
            const json_t *no = sc__negate(s, ch->alt.v[k], 0);
            if (gr_failed(s->b, NULL))
                return ERR_INVAL;
            if (!no) {
                sc__fail(s, ERR_UNSUPPORTED, "oneOf",
                         "branches %d and %d may match at once, and that cannot be ruled out", i,
                         k);
                return ERR_UNSUPPORTED;
            }
            if (!(no = without_never(s, one, no)))
                return ERR_NOMEM;
            if (!all)
                all = json_pack("[O]", one);
            if (!all || json_array_append(all, (json_t *)no)) {
                json_decref(all);
                sc__fail(s, ERR_NOMEM, NULL, "no memory");
                return ERR_NOMEM;
            }
        }
        if (all)
            one = sc__keep(s, json_pack("{s:o}", "allOf", all));
        if (!one || !sc__add(s, &out, one))
            return ERR_NOMEM;
    }
    ch->alt = out;
    ch->exclusive = false;
    return 0;
}

static bool nothing_else(const struct conj *c)
{
    return c->types == T_ALL && !c->values && !c->not_values.n && !c->has_lo && !c->has_hi &&
           !c->multiple.n && !c->min_len && c->max_len < 0 && !c->pattern.n && !c->not_pattern.n &&
           !c->format.n && !c->array.n && !c->min_items && c->max_items < 0 && !c->unique &&
           !c->contains.n && !c->object.n && !c->required.n && !c->names.n && !c->min_props &&
           c->max_props < 0;
}

/* Nothing can match, as is seen at once: such combinations cost nothing. */
static bool dead(const struct conj *c)
{
    if (c->never || !c->types)
        return true;
    for (int i = 0; c->types == T_OBJ && i < c->required.n; i++)
        for (int k = 0; k < c->object.n; k++)
            if (json_is_false(json_object_get(json_object_get(c->object.v[k], "properties"),
                                              json_string_value(c->required.v[i]))))
                return true;
    return false;
}

/* c without its last choice and with this alternative of it. */
static gr_expr branch(struct sc *s, const struct conj *c, const json_t *alt, bool alone)
{
    if (alone) {
        struct list one = {0};
        return sc__add(s, &one, alt) ? sc__set(s, &one) : GR_FAIL;
    }
    struct conj *with = sc__conj_copy(s, c);
    if (!with)
        return GR_FAIL;
    with->n_choice--;
    if (sc__flatten(s, with, alt))
        return GR_FAIL;
    if (dead(with))
        return gr_never(s->b);
    int most = s->o->max_branches ? s->o->max_branches : 4096;
    if (++s->branches > most)
        return sc__fail(s, ERR_LIMIT, "anyOf", "over %d combinations of branches", most);
    return sc__expand(s, with);
}

gr_expr sc__expand(struct sc *s, struct conj *c)
{
    if (gr_failed(s->b, NULL))
        return GR_FAIL;
    if (c->never)
        return gr_never(s->b);
    if (!c->n_choice)
        return sc__conj(s, c);
    struct choice ch = c->choice[c->n_choice - 1];
    if (ch.exclusive && make_exclusive(s, &ch))
        return GR_FAIL;
    gr_expr *kid = arena_array(&s->mem, (size_t)ch.alt.n + 1, sizeof *kid);
    if (!kid)
        return sc__fail(s, ERR_LIMIT, NULL, "the schema takes too much memory");
    bool alone = c->n_choice == 1 && !c->key && nothing_else(c);
    size_t n = 0;
    struct err why = {0};
    struct schema_err first = {0};
    for (int i = 0; i < ch.alt.n; i++) {
        size_t mark = s->path_len;
        int depth = s->depth;
        gr_expr e = branch(s, c, ch.alt.v[i], alone);
        if (e == GR_FAIL && ch.lenient && gr_failed(s->b, &why) == ERR_UNSUPPORTED) {
            if (!first.err.code)
                first = *s->e, first.err = why;
            gr_forgive(s->b);
            sc__leave(s, mark);
            s->depth = depth;
            continue;
        }
        kid[n++] = e;
    }
    if (!n && first.err.code) {
        *s->e = first;
        return gr_fail(s->b, first.err.code, "%s", first.err.text);
    }
    return gr_alt(s->b, kid, n);
}

/* ---- sets ---- */

static int by_pointer(const void *pa, const void *pb)
{
    const json_t *const *a = pa, *const *b = pb;
    return (*a > *b) - (*a < *b);
}

static struct memo *memo_of(struct sc *s, const struct list *items)
{
    struct list key = {0};
    uint64_t h = 0;
    for (int i = 0; i < items->n; i++)
        if (!json_is_true(items->v[i]) && !sc__add(s, &key, items->v[i]))
            return NULL;
    if (key.n > 1)
        qsort(key.v, (size_t)key.n, sizeof *key.v, by_pointer);
    int n = 0;
    for (int i = 0; i < key.n; i++)
        if (!n || key.v[n - 1] != key.v[i])
            key.v[n++] = key.v[i];
    key.n = n;
    for (int i = 0; i < key.n; i++)
        h = hash_u64(h ^ (uint64_t)(uintptr_t)key.v[i]);
    struct memo **head = &s->memo[h % MEMO_BUCKETS];
    for (struct memo *m = *head; m; m = m->next)
        if (m->key.n == key.n &&
            (!key.n || memcmp(m->key.v, key.v, (size_t)key.n * sizeof *key.v) == 0))
            return m;
    struct memo *m = arena_alloc(&s->mem, sizeof *m);
    if (!m) {
        sc__fail(s, ERR_LIMIT, NULL, "the schema takes too much memory");
        return NULL;
    }
    *m = (struct memo){.next = *head, .key = key, .rule = GR_FAIL};
    *head = m;
    return m;
}

gr_expr sc__set(struct sc *s, const struct list *items)
{
    if (gr_failed(s->b, NULL))
        return GR_FAIL;
    struct memo *m = memo_of(s, items);
    int most = s->o->max_depth ? s->o->max_depth : 128;
    if (!m || m->rule != GR_FAIL)
        return m ? m->rule : GR_FAIL;
    m->rule = gr_rule_new(s->b, s->path_len ? s->path : "schema");
    if (++s->depth > most)
        return sc__fail(s, ERR_LIMIT, NULL, "schemas are nested over %d deep", most);
    struct conj *c = sc__conj_new(s);
    bool ok = c != NULL;
    for (int i = 0; ok && i < m->key.n; i++)
        ok = sc__flatten(s, c, m->key.v[i]) == 0;
    gr_expr e = ok ? sc__expand(s, c) : GR_FAIL;
    s->depth--;
    if (e == GR_FAIL) { /* who comes again shall hear why */
        m->rule = GR_FAIL;
        return GR_FAIL;
    }
    gr_rule_set(s->b, m->rule, e);
    return m->rule;
}

/* ---- the door ---- */

static const struct schema_opts no_opts;

static gr_expr run(struct gr_builder *b, const json_t *schema, const struct schema_opts *o,
                   struct schema_err *e)
{
    struct schema_err own = {0};
    struct sc s = {.b = b, .o = o ? o : &no_opts, .e = e ? e : &own, .root = schema};
    struct list items = {0};
    gr_expr r = GR_FAIL;
    s.ws = s.any = s.any_object = s.string = GR_FAIL;
    s.mem.limit = (size_t)64 << 20;
    *s.e = (struct schema_err){0};
    s.made = json_array();
    if (!s.made)
        gr_fail(b, ERR_NOMEM, "no memory");
    else if (sc__add(&s, &items, schema))
        r = sc__set(&s, &items);
    gr_failed(b, &s.e->err);
    json_decref(s.made);
    arena_free(&s.mem);
    return gr_failed(b, NULL) ? GR_FAIL : r;
}

gr_expr schema_add(struct gr_builder *b, const json_t *schema, const struct schema_opts *o,
                   struct schema_err *e)
{
    return run(b, schema, o, e);
}

gr_expr schema_any(struct gr_builder *b, const struct schema_opts *o)
{
    json_t *any = json_true();
    return run(b, any, o, NULL);
}

gr_expr schema_any_object(struct gr_builder *b, const struct schema_opts *o)
{
    json_t *s = json_pack("{s:s}", "type", "object");
    gr_expr e = s ? run(b, s, o, NULL) : gr_fail(b, ERR_NOMEM, "no memory");
    json_decref(s);
    return e;
}
