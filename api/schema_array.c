/* Arrays: leading items one by one, then the rest. */
#include <string.h>

#include "api/schema_impl.h"

#define PREFIX_MAX 1000

/* The two parts of one schema's items: drafts before 2020 put leading items into an array under "items". */
void sc__items(const json_t *a, const json_t **prefix, const json_t **rest)
{
    const json_t *items = json_object_get(a, "items");
    *prefix = json_object_get(a, "prefixItems");
    *rest = items;
    if (json_is_array(items)) {
        *prefix = items;
        *rest = json_object_get(a, "additionalItems");
    }
    if (!*rest)
        *rest = json_object_get(a, "unevaluatedItems");
}

/* What item i must be; past all leading ones: what the rest must be. */
gr_expr sc__item(struct sc *s, const struct conj *c, size_t i, const json_t *extra)
{
    struct list set = {0};
    const json_t *prefix, *rest;
    for (int k = 0; k < c->array.n; k++) {
        sc__items(c->array.v[k], &prefix, &rest);
        const json_t *one = i < json_array_size(prefix) ? json_array_get(prefix, i) : rest;
        if (one && !sc__add(s, &set, one))
            return GR_FAIL;
    }
    if (extra && !sc__add(s, &set, extra))
        return GR_FAIL;
    size_t mark = sc__enter(s, "items", NULL);
    gr_expr e = sc__set(s, &set);
    sc__leave(s, mark);
    return e;
}

static bool is_never(struct sc *s, const struct conj *c, size_t i)
{
    const json_t *prefix, *rest;
    (void)s;
    for (int k = 0; k < c->array.n; k++) {
        sc__items(c->array.v[k], &prefix, &rest);
        if (json_is_false(i < json_array_size(prefix) ? json_array_get(prefix, i) : rest))
            return true;
    }
    return false;
}

gr_expr sc__sep(struct sc *s)
{
    return gr_seq2(s->b, gr_str(s->b, ","), sc__ws(s));
}

gr_expr sc__brackets(struct sc *s, gr_expr inside, bool may_be_empty, bool may_be_full)
{
    struct gr_builder *b = s->b;
    gr_expr full =
        gr_seq(b, (gr_expr[]){gr_str(b, "["), sc__ws(s), inside, sc__ws(s), gr_str(b, "]")}, 5);
    gr_expr empty = gr_seq(b, (gr_expr[]){gr_str(b, "["), sc__ws(s), gr_str(b, "]")}, 3);
    return may_be_full && may_be_empty ? gr_alt2(b, empty, full)
           : may_be_full               ? full
           : may_be_empty              ? empty
                                       : gr_never(b);
}

/* At least k items that are what `contains` says, any others between them. */
static gr_expr contains(struct sc *s, const struct conj *c)
{
    const json_t *a = c->contains.v[0], *min = json_object_get(a, "minContains");
    int64_t k = json_is_number(min) ? (int64_t)json_number_value(min) : 1;
    if (c->contains.n > 1 || json_object_get(a, "maxContains") || k > 16 || c->max_items >= 0 ||
        c->min_items > k || c->unique)
        return sc__fail(s, ERR_UNSUPPORTED, "contains",
                        "beside maxContains, maxItems, minItems, uniqueItems or another contains "
                        "is not supported");
    const json_t *prefix, *rest;
    for (int i = 0; i < c->array.n; i++) {
        sc__items(c->array.v[i], &prefix, &rest);
        if (json_array_size(prefix))
            return sc__fail(s, ERR_UNSUPPORTED, "contains", "beside prefixItems is not supported");
    }
    gr_expr any = sc__item(s, c, SIZE_MAX, NULL),
            hit = sc__item(s, c, SIZE_MAX, json_object_get(a, "contains"));
    gr_expr lead = gr_repeat(s->b, gr_seq2(s->b, any, sc__sep(s)), 0, GR_INF), e = gr_empty(s->b);
    gr_expr tail = gr_repeat(s->b, gr_seq2(s->b, sc__sep(s), any), 0, GR_INF);
    for (int64_t i = 0; i < k; i++)
        e = gr_seq(s->b, (gr_expr[]){e, i ? sc__sep(s) : gr_empty(s->b), lead, hit}, 4);
    return sc__brackets(s, gr_seq2(s->b, e, tail), k == 0, true);
}

gr_expr sc__array(struct sc *s, const struct conj *c)
{
    struct gr_builder *b = s->b;
    const json_t *prefix, *rest;
    size_t n = 0;
    int64_t max = c->max_items, min = c->min_items;
    for (int k = 0; k < c->array.n; k++) {
        sc__items(c->array.v[k], &prefix, &rest);
        if (prefix && !json_is_array(prefix))
            return sc__fail(s, ERR_INVAL, "prefixItems", "expected an array of schemas");
        if (json_array_size(prefix) > n)
            n = json_array_size(prefix);
    }
    if (n > PREFIX_MAX)
        return sc__fail(s, ERR_LIMIT, "prefixItems", "over %d schemas", PREFIX_MAX);
    if (c->contains.n && c->types & T_ARR)
        return contains(s, c);
    for (size_t i = 0; i <= n; i++) /* an item that cannot be ends the array before it */
        if (is_never(s, c, i)) {
            if (max < 0 || max > (int64_t)i)
                max = (int64_t)i;
            break;
        }
    if (max >= 0 && min > max)
        return gr_never(b);
    if (max == 0)
        return sc__brackets(s, gr_empty(b), true, false);
    if (c->unique && max != 1)
        return sc__unique(s, c);
    /* from the last leading item back to the first */
    gr_expr e = gr_empty(b);
    if (max < 0 || max > (int64_t)n) {
        gr_expr one = sc__item(s, c, n, NULL);
        int64_t at = (int64_t)n;
        int32_t lo = min > at ? (int32_t)(min - at) : 0,
                hi = max < 0 ? GR_INF : (int32_t)(max - at);
        if (n == 0) {
            hi = hi == GR_INF ? hi : hi - 1;
            e = gr_seq2(b, one, gr_repeat(b, gr_seq2(b, sc__sep(s), one), lo > 1 ? lo - 1 : 0, hi));
        } else {
            e = gr_repeat(b, gr_seq2(b, sc__sep(s), one), lo, hi);
        }
    }
    size_t last = max >= 0 && max < (int64_t)n ? (size_t)max : n;
    for (size_t i = last; i-- > 0;) {
        gr_expr one = sc__item(s, c, i, NULL);
        if (i + 1 < last && (int64_t)i + 1 >= min)
            e = gr_opt(b, e);
        e = gr_seq(b, (gr_expr[]){i ? sc__sep(s) : gr_empty(b), one, e}, 3);
    }
    return sc__brackets(s, e, min == 0, true);
}
