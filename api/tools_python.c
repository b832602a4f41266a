/* Calls in Python's notation: [f(city="Paris", k=3), g()] as a whole answer (Llama 3.2 and 4, ToolACE) or between marks (LFM2),
 * and name.call(key="value") after Llama 3.1's tag. Arguments go out one at a time. */
#include <string.h>

#include "api/stream_impl.h"

enum { P_OPEN, P_NAME, P_ARG, P_VALUE, P_NEXT, P_CLOSE };

static const struct other_form *form(const struct stream *s)
{
    static const struct other_form none = {0};
    return s->own.step ? &none : s->o.family->form;
}

static enum st_step open(struct stream *s)
{
    struct st_own *w = &s->own;
    w->at = st_space(s, w->at);
    if (w->at == s->n)
        return ST_MORE;
    w->array = s->p[w->at] == '[';
    if (w->which < 0 && !w->array)
        return ST_REJECT;
    w->at += w->array;
    w->from = w->at;
    w->state = P_NAME;
    return ST_AGAIN;
}

static enum st_step name(struct stream *s)
{
    struct st_own *w = &s->own;
    size_t from = st_space(s, w->from), i = from;
    bool known;
    while (i < s->n && st_name_ok(s->p + i, 1) && i - from < 256)
        i++;
    if (i == s->n)
        return ST_MORE;
    size_t n = i - from;
    if (s->p[i] != '(' || !n)
        return st_broken(s);
    if (n > 5 && memcmp(s->p + i - 5, ".call", 5) == 0)
        n -= 5;
    st_name(s, s->p + from, n);
    st_parameters(s, buf_cstr(&s->name), &known);
    if (!known && (w->which < 0 || w->step)) /* Python code, or an answer in brackets */
        return st_broken(s);
    st_begin(s);
    st_drop(s, i + 1);
    w->first = true;
    w->state = P_ARG;
    return ST_AGAIN;
}

static enum st_step arg(struct stream *s)
{
    struct st_own *w = &s->own;
    size_t i = st_space(s, 0), k;
    if (i < s->n && s->p[i] == ',' && !w->first)
        i = st_space(s, i + 1);
    if (i == s->n)
        return ST_MORE;
    if (s->p[i] == ')') {
        if (!w->first)
            st_args(s, "}", 1);
        st_end(s, true);
        st_drop(s, i + 1);
        w->state = P_NEXT;
        return ST_AGAIN;
    }
    for (k = i; k < s->n && st_name_ok(s->p + k, 1); k++)
        ;
    size_t eq = st_space(s, k);
    if (k - i > 256)
        return st_broken(s);
    if (eq == s->n)
        return ST_MORE;
    if (s->p[eq] != '=' || k == i)
        return st_broken(s);
    buf_clear(&s->key);
    buf_add(&s->key, s->p + i, k - i);
    if (s->key.failed)
        return ST_MORE;
    w->from = eq + 1;
    w->state = P_VALUE;
    return ST_AGAIN;
}

static enum st_step value(struct stream *s)
{
    struct st_own *w = &s->own;
    size_t end = st_literal_end(s, w->from, ",)", NULL);
    if (end == SIZE_MAX)
        return ST_MORE;
    size_t from = st_space(s, w->from);
    st_put_key(s, buf_cstr(&s->key), s->key.len);
    st_put_literal(s, s->p + from, end - from, NULL);
    st_drop(s, end);
    w->state = P_ARG;
    return ST_AGAIN;
}

static enum st_step next(struct stream *s)
{
    struct st_own *w = &s->own;
    size_t i = st_space(s, 0);
    if (i == s->n)
        return ST_MORE;
    if (w->array && s->p[i] == ',') {
        w->from = i + 1;
        w->state = P_NAME;
        return ST_AGAIN;
    }
    if (w->array && s->p[i] == ']')
        st_drop(s, i + 1);
    w->state = P_CLOSE;
    return ST_AGAIN;
}

static enum st_step close_mark(struct stream *s)
{
    const char *close = s->own.which >= 0 ? form(s)->close : NULL;
    return close ? st_close(s, close) : ST_DONE;
}

enum st_step tools_python_step(struct stream *s)
{
    switch (s->own.state) {
    case P_OPEN:
        return open(s);
    case P_NAME:
        return name(s);
    case P_ARG:
        return arg(s);
    case P_VALUE:
        return value(s);
    case P_NEXT:
        return next(s);
    default:
        return close_mark(s);
    }
}
