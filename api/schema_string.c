/* Strings: patterns, formats and lengths as one automaton over what stands between the quotes. */
#include <string.h>

#include "api/schema_impl.h"

#define PRODUCT_MAX                                                                                \
    2000 /* characters: longer bounds beside a pattern are drawn in until the automaton fits */

static gr_expr pattern(struct sc *s, const json_t *v, const char *key)
{
    struct view re = {json_string_value(v), json_string_length(v)};
    gr_expr e = gr_regex(s->b, re, GR_JSON, GR_SEARCH);
    if (e == GR_FAIL || gr_is_never(s->b, e) < 0) {
        struct err why;
        int code = gr_failed(s->b, &why);
        gr_forgive(s->b);
        return sc__fail(s, code == ERR_INTERNAL ? ERR_UNSUPPORTED : code, key, "%s", why.text);
    }
    return e;
}

/* min..max characters of `e`, as one automaton; max < 0: no bound. */
static gr_expr with_length(struct sc *s, gr_expr e, int64_t min, int64_t max)
{
    gr_expr any = gr_any(s->b, GR_JSON);
    int64_t lo = min, hi = max;
    if (lo > PRODUCT_MAX)
        return sc__fail(s, ERR_LIMIT, "minLength", "over %d beside a pattern or format",
                        PRODUCT_MAX);
    if (hi > PRODUCT_MAX)
        hi = PRODUCT_MAX;
    for (;;) {
        gr_expr r =
            gr_and(s->b, e, gr_repeat(s->b, any, (int32_t)lo, hi < 0 ? GR_INF : (int32_t)hi));
        if (gr_is_never(s->b, r) >= 0)
            return r;
        if (gr_failed(s->b, NULL) != ERR_LIMIT || hi < 8 || hi / 2 < lo)
            return GR_FAIL;
        gr_forgive(s->b); /* shorter texts are valid too */
        hi /= 2;
    }
}

static gr_expr not_values(struct sc *s, const struct conj *c, gr_expr e)
{
    for (int i = 0; i < c->not_values.n; i++)
        for (size_t k = 0; k < json_array_size(c->not_values.v[i]); k++) {
            const json_t *v = json_array_get(c->not_values.v[i], k);
            struct buf b = {0};
            if (!json_is_string(v))
                continue;
            buf_json(&b, json_string_value(v), json_string_length(v));
            if (b.failed)
                return sc__fail(s, ERR_NOMEM, NULL, "no memory");
            e = gr_and(s->b, e, gr_not(s->b, gr_lit(s->b, b.p + 1, b.len - 2)));
            buf_free(&b);
        }
    return e;
}

static bool has_not_strings(const struct conj *c)
{
    for (int i = 0; i < c->not_values.n; i++)
        for (size_t k = 0; k < json_array_size(c->not_values.v[i]); k++)
            if (json_is_string(json_array_get(c->not_values.v[i], k)))
                return true;
    return false;
}

gr_expr sc__string_body(struct sc *s, const struct conj *c)
{
    gr_expr all = gr_repeat(s->b, gr_any(s->b, GR_JSON), 0, GR_INF), e = all;
    for (int i = 0; i < c->pattern.n; i++)
        e = e == all ? pattern(s, c->pattern.v[i], "pattern")
                     : gr_and(s->b, e, pattern(s, c->pattern.v[i], "pattern"));
    for (int i = 0; i < c->format.n; i++) {
        const char *re = sc__format(json_string_value(c->format.v[i]));
        if (!re)
            continue;
        gr_expr f = gr_regex(s->b, view_str(re), GR_JSON, 0);
        e = e == all ? f : gr_and(s->b, e, f);
    }
    for (int i = 0; i < c->not_pattern.n; i++)
        for (size_t k = 0;
             k < (json_is_array(c->not_pattern.v[i]) ? json_array_size(c->not_pattern.v[i]) : 1);
             k++) {
            const json_t *v = json_is_array(c->not_pattern.v[i])
                                  ? json_array_get(c->not_pattern.v[i], k)
                                  : c->not_pattern.v[i];
            e = gr_and(s->b, e, gr_not(s->b, pattern(s, v, "pattern")));
        }
    e = not_values(s, c, e);
    if ((c->min_len || c->max_len >= 0) && !gr_failed(s->b, NULL))
        e = with_length(s, e, c->min_len, c->max_len);
    return e;
}

static bool any_format(const struct conj *c)
{
    for (int i = 0; i < c->format.n; i++)
        if (sc__format(json_string_value(c->format.v[i])))
            return true;
    return false;
}

gr_expr sc__string(struct sc *s, const struct conj *c)
{
    struct gr_builder *b = s->b;
    gr_expr quote = gr_str(b, "\"");
    if (c->max_len >= 0 && c->min_len > c->max_len)
        return gr_never(b);
    if (c->pattern.n || c->not_pattern.n || any_format(c) || has_not_strings(c)) {
        struct conj most = *c;
        bool bound =
            c->max_len > 16; /* long bounds are counted, short ones part of the automaton */
        most.max_len = bound ? -1 : c->max_len;
        gr_expr body = sc__string_body(s, &most);
        if (bound && body != GR_FAIL)
            return gr_seq(b,
                          (gr_expr[]){quote,
                                      gr_bounded(b, body, gr_any(b, GR_JSON), (int32_t)c->max_len),
                                      quote},
                          3);
        if (gr_failed(b, NULL) == ERR_LIMIT) {
            struct err why;
            gr_failed(b, &why);
            gr_forgive(b);
            return sc__fail(s, ERR_LIMIT, c->pattern.n ? "pattern" : "format", "%s", why.text);
        }
        return gr_lex(b, gr_seq(b, (gr_expr[]){quote, body, quote}, 3));
    }
    gr_expr any = gr_any(b, GR_JSON_ALL);
    if (!c->min_len && c->max_len < 0)
        return gr_lex(b, gr_seq(b, (gr_expr[]){quote, gr_repeat(b, any, 0, GR_INF), quote}, 3));
    gr_expr body =
        gr_counted(b, any, (int32_t)c->min_len, c->max_len < 0 ? GR_INF : (int32_t)c->max_len);
    return gr_seq(b, (gr_expr[]){quote, body, quote}, 3);
}
