/* Arrays whose items differ. A few listed values are each written once at most. Else the items' values are spelled in one way and kept
 * apart while they are written: values that are no arrays or objects as a whole, objects by one member that all of them have. What
 * that leaves out is valid too, but seldom meant. */
#include <math.h>
#include <string.h>

#include "api/schema_impl.h"

#define KEY_LENGTH 256 /* characters of strings that must differ, where they are bounded at all */
/* Decimals in one spelling. */
#define ONE_NUMBER "0|-?[1-9][0-9]*(\\.[0-9]*[1-9])?|-?0\\.[0-9]*[1-9]"

/* Values that the items can have, when they are listed: an array of at most 64; NULL if not. */
static const json_t *listed(struct sc *s, const struct conj *c)
{
    struct conj *all = sc__conj_new(s);
    const json_t *prefix, *rest;
    for (int k = 0; all && k < c->array.n; k++) {
        sc__items(c->array.v[k], &prefix, &rest);
        if (json_array_size(prefix) || (rest && sc__flatten(s, all, rest)))
            return NULL;
    }
    if (!all || all->n_choice)
        return NULL;
    if (all->values)
        return json_array_size(all->values) <= 64 ? all->values : NULL;
    if (all->types & ~(unsigned)(T_NULL | T_BOOL))
        return NULL;
    json_t *v = json_array();
    if (all->types & T_NULL)
        json_array_append_new(v, json_null());
    if (all->types & T_BOOL) {
        json_array_append_new(v, json_true());
        json_array_append_new(v, json_false());
    }
    return sc__keep(s, v);
}

/* Each listed value once at most. */
static gr_expr of_list(struct sc *s, const struct conj *c, const json_t *v)
{
    const json_t *kept[64];
    gr_expr first[64], later[64];
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        struct list set = {0};
        const json_t *one = json_array_get(v, i),
                     *only = sc__keep(s, json_pack("{s:[O]}", "enum", one));
        bool twice = false;
        for (size_t k = 0; k < n; k++)
            twice |= json_equal(kept[k], (json_t *)one);
        if (twice)
            continue;
        kept[n] = one;
        if (!only || !sc__add(s, &set, only))
            return GR_FAIL;
        first[n] = sc__item(s, c, SIZE_MAX, only);
        later[n] = gr_seq2(s->b, sc__sep(s), first[n]);
        n++;
    }
    int32_t max =
        c->max_items < 0 || c->max_items > (int64_t)n ? (int32_t)n : (int32_t)c->max_items;
    int32_t min = c->min_items > 1 ? (int32_t)c->min_items : 1;
    return sc__brackets(s, gr_set(s->b, first, later, n, 0, (int32_t[]){min, max}),
                        c->min_items == 0, max >= min);
}

/* ---- keys ---- */

static gr_expr key_values(struct sc *s, const struct conj *c)
{
    gr_expr e = gr_never(s->b);
    for (size_t i = 0; i < json_array_size(c->values); i++) {
        const json_t *v = json_array_get(c->values, i);
        if (json_is_array(v) || json_is_object(v) || sc__holds_conj(s, c, v, 0) != 1)
            continue;
        double d = json_number_value(v);
        if (json_is_real(v) && d == floor(d) && fabs(d) < 1e15) /* as the integer is spelled */
            v = sc__keep(s, json_integer((json_int_t)d));
        if (!v)
            return GR_FAIL;
        e = gr_alt2(s->b, e, sc__value(s, v));
    }
    return e;
}

/* The values of c but arrays and objects, in one spelling, as one automaton. */
static gr_expr key_of(struct sc *s, const struct conj *c)
{
    struct gr_builder *b = s->b;
    struct conj one = *c;
    one.key = NULL;
    if (c->never)
        return gr_never(b);
    if (c->n_choice)
        return sc__fail(s, ERR_UNSUPPORTED, "uniqueItems", "of items that differ in a choice");
    if (c->values)
        return gr_lex(b, key_values(s, &one));
    one.types = c->types & (T_NULL | T_BOOL);
    gr_expr e = one.types ? sc__conj(s, &one) : gr_never(b);
    one.types = c->types & T_NUM;
    if (one.types) {
        gr_expr n = sc__number(s, &one);
        if (one.types & T_REAL)
            n = gr_and(b, n, gr_regex(b, VIEW_LIT(ONE_NUMBER), GR_UTF8, 0));
        e = gr_alt2(b, e, n);
    }
    if (c->types & T_STR && (c->max_len < 0 || c->min_len <= c->max_len)) {
        if (one.max_len > KEY_LENGTH && one.min_len < KEY_LENGTH)
            one.max_len = KEY_LENGTH;
        gr_expr quote = gr_str(b, "\"");
        e = gr_alt2(b, e, gr_seq(b, (gr_expr[]){quote, sc__string_body(s, &one), quote}, 3));
    }
    return gr_lex(b, e);
}

static gr_expr key(struct sc *s, const struct conj *c)
{
    gr_expr e = key_of(s, c);
    int32_t n = e == GR_FAIL ? ERR_INTERNAL : gr_count(s->b, e);
    if (n < 0)
        return GR_FAIL;
    if (n > s->key_count)
        s->key_count = n;
    return n ? gr_key(s->b, e) : gr_never(s->b);
}

gr_expr sc__key(struct sc *s, const struct list *set)
{
    struct conj *c = sc__conj_new(s);
    for (int i = 0; c && i < set->n; i++)
        if (sc__flatten(s, c, set->v[i]))
            return GR_FAIL;
    return c ? key(s, c) : GR_FAIL;
}

static bool required(const struct conj *c, const char *name)
{
    for (int i = 0; i < c->required.n; i++)
        if (strcmp(json_string_value(c->required.v[i]), name) == 0)
            return true;
    return false;
}

gr_expr sc__keyed(struct sc *s, const struct conj *c)
{
    if (!*c->key)
        return key(s, c);
    if (!(c->types & T_OBJ) || c->values || !required(c, c->key))
        return gr_never(s->b);
    return sc__object(s, c);
}

/* How well items are told apart by this member: texts that it has, 0 if it does not do. */
static int32_t worth(struct sc *s, const struct conj *c, const char *name)
{
    struct conj *v = sc__conj_new(s);
    bool any = false;
    for (int i = 0; v && i < c->object.n; i++) {
        const json_t *p = json_object_get(json_object_get(c->object.v[i], "properties"), name);
        any |= p != NULL;
        if (p && sc__flatten(s, v, p))
            return 0;
    }
    if (!v || v->n_choice || !any || (!v->values && v->types & (T_ARR | T_OBJ)))
        return 0;
    gr_expr e = key_of(s, v);
    return e == GR_FAIL ? 0 : gr_count(s->b, e);
}

/* Where items differ; NULL: nowhere that can be said. */
static const char *pick_key(struct sc *s, const struct conj *item)
{
    struct conj *c = sc__conj_copy(s, item);
    const char *best = NULL;
    int32_t most = 1;
    if (!c || !(c->types & T_OBJ))
        return "";
    while (c->n_choice) { /* what the first alternatives have */
        struct choice ch = c->choice[--c->n_choice];
        if (sc__flatten(s, c, ch.alt.v[0]))
            return NULL;
    }
    if (!(c->types & T_OBJ))
        return "";
    for (int i = 0; i < c->required.n && most < GR_INF; i++) {
        const char *name = json_string_value(c->required.v[i]);
        int32_t n = worth(s, c, name);
        if (n > most) {
            most = n;
            best = name;
        }
    }
    return best || c->types == T_OBJ || c->object.n ? best : "";
}

static gr_expr keyed_list(struct sc *s, const struct conj *c)
{
    struct gr_builder *b = s->b;
    struct conj *it = sc__conj_new(s);
    const json_t *prefix, *rest;
    for (int k = 0; it && k < c->array.n; k++) {
        sc__items(c->array.v[k], &prefix, &rest);
        if (json_array_size(prefix))
            return sc__fail(s, ERR_UNSUPPORTED, "uniqueItems",
                            "beside prefixItems is not supported");
        if (rest && sc__flatten(s, it, rest))
            return GR_FAIL;
    }
    if (!it || !(it->key = pick_key(s, it)))
        return gr_failed(b, NULL) ? GR_FAIL
                                  : sc__fail(s, ERR_UNSUPPORTED, "uniqueItems",
                                             "of objects is supported where a required member is "
                                             "no array or object and tells them apart");
    int32_t outer = s->key_count;
    s->key_count = 0;
    gr_expr rule = gr_rule_new(b, "item"), e = sc__expand(s, it);
    int32_t count = s->key_count, max = count;
    s->key_count = outer;
    if (e == GR_FAIL)
        return GR_FAIL;
    gr_rule_set(b, rule, e);
    if (c->max_items >= 0 && c->max_items < max)
        max = (int32_t)c->max_items;
    int32_t min = c->min_items > 1 ? (int32_t)c->min_items : 1;
    if (max < min)
        return sc__brackets(s, gr_empty(b), c->min_items == 0, false);
    return sc__brackets(s, gr_unique(b, rule, gr_seq2(b, sc__sep(s), rule), min, max),
                        c->min_items == 0, true);
}

gr_expr sc__unique(struct sc *s, const struct conj *c)
{
    const json_t *v = listed(s, c);
    if (gr_failed(s->b, NULL))
        return GR_FAIL;
    return v ? of_list(s, c, v) : keyed_list(s, c);
}
