/* Is a value valid, can two schemas match at once: as far as it can be told while compiling. */
#include <math.h>
#include <string.h>

#include "api/schema_impl.h"

#define DEPTH_MAX 24

/* Worst of two answers: an unknown stays unknown unless something fails for sure. */
static int both(int a, int b)
{
    return a == 0 || b == 0 ? 0 : a < 0 || b < 0 ? -1 : 1;
}

static bool multiple_of(double v, double m)
{
    double q = v / m;
    return fabs(q - nearbyint(q)) < 1e-9 * fmax(1, fabs(q));
}

static int holds_number(const struct conj *c, double d)
{
    int r = 1;
    if (c->has_lo && (d < c->lo || (c->lo_open && d <= c->lo)))
        r = 0;
    if (c->has_hi && (d > c->hi || (c->hi_open && d >= c->hi)))
        r = 0;
    for (int i = 0; i < c->multiple.n; i++)
        if (!multiple_of(d, json_number_value(c->multiple.v[i])))
            r = 0;
    return r;
}

static int holds_string(struct sc *s, const struct conj *c, const json_t *v)
{
    struct conj body = *c;
    struct buf b = {0};
    body.values = NULL;
    gr_expr e = sc__string_body(s, &body);
    if (e == GR_FAIL)
        return -1;
    buf_json(&b, json_string_value(v), json_string_length(v));
    int r = b.failed ? -1 : gr_matches(s->b, e, b.p + 1, b.len - 2);
    buf_free(&b);
    return r < 0 ? -1 : r;
}

static int holds_contains(struct sc *s, const json_t *schema, const json_t *v, int depth)
{
    const json_t *min = json_object_get(schema, "minContains");
    const json_t *max = json_object_get(schema, "maxContains");
    double hits = 0, unknown = 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_object_get(schema, "contains");
        int h = sc__holds(s, one, json_array_get(v, i), depth + 1);
        hits += h == 1;
        unknown += h < 0;
    }
    double lo = json_is_number(min) ? json_number_value(min) : 1;
    double hi = json_is_number(max) ? json_number_value(max) : INFINITY;
    if (hits + unknown < lo || hits > hi)
        return 0;
    return hits >= lo && hits + unknown <= hi ? 1 : -1;
}

static int holds_array(struct sc *s, const struct conj *c, const json_t *v, int depth)
{
    int64_t n = (int64_t)json_array_size(v);
    int r = n >= c->min_items && (c->max_items < 0 || n <= c->max_items);
    for (int i = 0; i < c->contains.n && r; i++)
        r = both(r, holds_contains(s, c->contains.v[i], v, depth));
    for (size_t i = 0; c->unique && i < (size_t)n; i++)
        for (size_t k = 0; k < i; k++)
            if (json_equal(json_array_get(v, i), json_array_get(v, k)))
                r = 0;
    for (int i = 0; i < c->array.n && r; i++) {
        const json_t *a = c->array.v[i], *items = json_object_get(a, "items");
        const json_t *prefix = json_object_get(a, "prefixItems");
        const json_t *rest = items;
        if (json_is_array(items)) {
            prefix = items;
            rest = json_object_get(a, "additionalItems");
        }
        for (size_t k = 0; k < (size_t)n && r; k++) {
            const json_t *one = k < json_array_size(prefix) ? json_array_get(prefix, k) : rest;
            if (one)
                r = both(r, sc__holds(s, one, json_array_get(v, k), depth + 1));
        }
    }
    return r;
}

/* What patternProperties say of a member; *any: one of them speaks of it. */
static int holds_patterns(struct sc *s, const json_t *patterns, const char *key, const json_t *x,
                          int depth, bool *any)
{
    struct buf b = {0};
    const char *re;
    json_t *schema;
    int r = 1;
    buf_json(&b, key, strlen(key));
    json_object_foreach((json_t *)patterns, re, schema)
    {
        gr_expr e = gr_regex(s->b, view_str(re), GR_JSON, GR_SEARCH);
        int hit = b.failed || e == GR_FAIL ? -1 : gr_matches(s->b, e, b.p + 1, b.len - 2);
        *any |= hit == 1;
        if (hit)
            r = both(r, hit < 0 ? -1 : sc__holds(s, schema, x, depth + 1));
    }
    buf_free(&b);
    return r;
}

static int holds_object(struct sc *s, const struct conj *c, const json_t *v, int depth)
{
    int64_t n = (int64_t)json_object_size(v);
    const char *key;
    json_t *x;
    int r = n >= c->min_props && (c->max_props < 0 || n <= c->max_props);
    for (int i = 0; i < c->required.n; i++)
        if (!json_object_get(v, json_string_value(c->required.v[i])))
            r = 0;
    for (int i = 0; i < c->object.n && r; i++) {
        const json_t *o = c->object.v[i], *props = json_object_get(o, "properties");
        const json_t *more = json_object_get(o, "additionalProperties");
        if (!more)
            more = json_object_get(o, "unevaluatedProperties");
        json_object_foreach((json_t *)v, key, x)
        {
            const json_t *one = json_object_get(props, key);
            bool any = one != NULL;
            r = both(
                r, holds_patterns(s, json_object_get(o, "patternProperties"), key, x, depth, &any));
            if (!any)
                one = more;
            if (one && r)
                r = both(r, sc__holds(s, one, x, depth + 1));
        }
    }
    for (int i = 0; i < c->names.n && r; i++)
        json_object_foreach((json_t *)v, key, x)
        {
            json_t *name = json_string(key);
            r = both(r, name ? sc__holds(s, c->names.v[i], name, depth + 1) : -1);
            json_decref(name);
        }
    return r;
}

int sc__holds_conj(struct sc *s, const struct conj *c, const json_t *v, int depth)
{
    int r = 1;
    if (c->never || !(sc__type_of(v) & c->types))
        return 0;
    if (depth > DEPTH_MAX)
        return -1;
    if (c->values && depth) { /* at depth 0 v is one of them */
        r = 0;
        for (size_t i = 0; i < json_array_size(c->values) && !r; i++) {
            const json_t *e = json_array_get(c->values, i);
            r = json_equal(e, v) || (json_is_number(e) && json_is_number(v) &&
                                     json_number_value(e) == json_number_value(v));
        }
    }
    for (int i = 0; i < c->not_values.n; i++)
        for (size_t k = 0; k < json_array_size(c->not_values.v[i]); k++)
            if (json_equal(json_array_get(c->not_values.v[i], k), v))
                r = 0;
    if (!r)
        return 0;
    if (json_is_number(v))
        return both(r, holds_number(c, json_number_value(v)));
    if (json_is_string(v))
        return both(r, holds_string(s, c, v));
    if (json_is_array(v))
        return both(r, holds_array(s, c, v, depth));
    return json_is_object(v) ? both(r, holds_object(s, c, v, depth)) : r;
}

int sc__holds(struct sc *s, const json_t *schema, const json_t *v, int depth)
{
    struct conj *c = sc__conj_new(s);
    if (!c || sc__flatten(s, c, schema))
        return -1;
    int r = sc__holds_conj(s, c, v, depth + 1);
    for (int i = 0; i < c->n_choice && r; i++) {
        int n = 0, unknown = 0;
        for (int k = 0; k < c->choice[i].alt.n; k++) {
            int one = sc__holds(s, c->choice[i].alt.v[k], v, depth + 1);
            n += one == 1;
            unknown += one < 0;
        }
        bool ok = c->choice[i].exclusive ? n == 1 : n > 0;
        r = both(r, ok && !(unknown && c->choice[i].exclusive) ? 1 : unknown ? -1 : 0);
    }
    return r;
}

/* ---- disjoint ---- */

static const json_t *prop_of(const struct conj *c, const char *name)
{
    for (int i = 0; i < c->object.n; i++) {
        const json_t *p = json_object_get(json_object_get(c->object.v[i], "properties"), name);
        if (p)
            return p;
    }
    return NULL;
}

static bool closed_without(const struct conj *c, const char *name)
{
    for (int i = 0; i < c->object.n; i++) {
        const json_t *o = c->object.v[i];
        if (!json_object_get(json_object_get(o, "properties"), name) &&
            !json_object_get(o, "patternProperties") &&
            json_is_false(json_object_get(o, "additionalProperties")))
            return true;
    }
    return json_is_false(prop_of(c, name));
}

static bool requires(const struct conj *c, const char *name)
{
    for (int i = 0; i < c->required.n; i++)
        if (strcmp(json_string_value(c->required.v[i]), name) == 0)
            return true;
    return false;
}

static bool objects_disjoint(struct sc *s, const struct conj *a, const struct conj *b, int depth)
{
    for (int i = 0; i < a->required.n; i++) {
        const char *name = json_string_value(a->required.v[i]);
        if (closed_without(b, name))
            return true;
        const json_t *x = prop_of(a, name), *y = prop_of(b, name);
        if (requires(b, name) && x && y && sc__disjoint(s, x, y, depth + 1))
            return true;
    }
    for (int i = 0; i < b->required.n; i++)
        if (closed_without(a, json_string_value(b->required.v[i])))
            return true;
    return (a->max_props >= 0 && b->min_props > a->max_props) ||
           (b->max_props >= 0 && a->min_props > b->max_props);
}

static bool strings_disjoint(struct sc *s, const struct conj *a, const struct conj *b)
{
    if ((a->max_len >= 0 && b->min_len > a->max_len) ||
        (b->max_len >= 0 && a->min_len > b->max_len))
        return true;
    if (!(a->pattern.n || a->format.n || a->not_pattern.n) ||
        !(b->pattern.n || b->format.n || b->not_pattern.n))
        return false;
    gr_expr x = sc__string_body(s, a), y = sc__string_body(s, b);
    return x != GR_FAIL && y != GR_FAIL && gr_is_never(s->b, gr_and(s->b, x, y)) == 1;
}

static bool numbers_disjoint(const struct conj *a, const struct conj *b)
{
    return (a->has_hi && b->has_lo &&
            (a->hi < b->lo || (a->hi <= b->lo && (a->hi_open || b->lo_open)))) ||
           (b->has_hi && a->has_lo &&
            (b->hi < a->lo || (b->hi <= a->lo && (b->hi_open || a->lo_open))));
}

static bool arrays_disjoint(const struct conj *a, const struct conj *b)
{
    return (a->max_items >= 0 && b->min_items > a->max_items) ||
           (b->max_items >= 0 && a->min_items > b->max_items);
}

/* None of a's values holds in schema y. */
static bool values_out(struct sc *s, const struct conj *a, const json_t *y, int depth)
{
    for (size_t i = 0; i < json_array_size(a->values); i++)
        if (sc__holds(s, y, json_array_get(a->values, i), depth + 1) != 0)
            return false;
    return true;
}

/* A branch that is itself a choice: all of its alternatives must be disjoint from the other. */
static bool choice_disjoint(struct sc *s, const struct conj *a, const json_t *y, int depth)
{
    for (int i = 0; i < a->n_choice; i++) {
        bool all = true;
        for (int k = 0; k < a->choice[i].alt.n && all; k++)
            all = sc__disjoint(s, a->choice[i].alt.v[k], y, depth + 1);
        if (all)
            return true;
    }
    return false;
}

bool sc__disjoint(struct sc *s, const json_t *x, const json_t *y, int depth)
{
    struct conj *a = sc__conj_new(s), *b = sc__conj_new(s);
    if (depth > 6 || !a || !b || sc__flatten(s, a, x) || sc__flatten(s, b, y))
        return false;
    if (a->never || b->never)
        return true;
    if (a->values)
        return values_out(s, a, y, depth);
    if (b->values)
        return values_out(s, b, x, depth);
    unsigned t = a->types & b->types;
    bool r = true;
    if (t & (T_NULL | T_BOOL))
        r = false;
    if (r && t & T_NUM)
        r = numbers_disjoint(a, b);
    if (r && t & T_STR)
        r = strings_disjoint(s, a, b);
    if (r && t & T_ARR)
        r = arrays_disjoint(a, b);
    if (r && t & T_OBJ)
        r = objects_disjoint(s, a, b, depth);
    return r || choice_disjoint(s, a, y, depth) || choice_disjoint(s, b, x, depth);
}
