/* Gemma's calls: call:NAME{key:VALUE,...} between marks, with marks of their own around texts. Arguments go out one at a
 * time.
 *     <start_function_call>call:f{city:<escape>Paris<escape>}<end_function_call>    FunctionGemma
 *     <|tool_call>call:f{city:<|"|>Paris<|"|>,k:3}<tool_call|>                      Gemma 4 */
#include <string.h>

#include "api/stream_impl.h"

enum { G_OPEN, G_NAME, G_ARG, G_VALUE, G_CLOSE };

static const struct other_form *form(const struct stream *s)
{
    return s->o.family->form;
}

static enum st_step open(struct stream *s)
{
    struct st_own *w = &s->own;
    size_t i = st_space(s, w->at);
    if (i == s->n || st_part(s, i, "call:"))
        return ST_MORE;
    w->from = st_at(s, i, "call:") ? i + strlen("call:") : i;
    w->state = G_NAME;
    return ST_AGAIN;
}

static enum st_step name(struct stream *s)
{
    struct st_own *w = &s->own;
    size_t from = st_space(s, w->from), i = from;
    while (i < s->n && st_name_ok(s->p + i, 1) && i - from < 256)
        i++;
    if (i == s->n)
        return ST_MORE;
    if (s->p[i] != '{' || i == from)
        return st_broken(s);
    st_name(s, s->p + from, i - from);
    st_begin(s);
    st_drop(s, i + 1);
    w->first = true;
    w->state = G_ARG;
    return ST_AGAIN;
}

static enum st_step arg(struct stream *s)
{
    struct st_own *w = &s->own;
    size_t i = st_space(s, 0);
    if (i < s->n && s->p[i] == ',' && !w->first)
        i = st_space(s, i + 1);
    if (i == s->n)
        return ST_MORE;
    if (s->p[i] == '}') {
        if (!w->first)
            st_args(s, "}", 1);
        st_end(s, true);
        st_drop(s, i + 1);
        w->state = G_CLOSE;
        return ST_AGAIN;
    }
    size_t end = st_literal_end(s, i, ":", form(s)->quote), n = strlen(form(s)->quote);
    if ((end == SIZE_MAX ? s->n : end) - i > 512)
        return st_broken(s);
    if (end == SIZE_MAX)
        return ST_MORE;
    const char *p = s->p + i;
    size_t len = end - i;
    if (st_at(s, i, form(s)->quote) && len >= 2 * n) {
        p += n;
        len -= 2 * n;
    }
    buf_clear(&s->key);
    buf_add(&s->key, p, len);
    if (s->key.failed)
        return ST_MORE;
    if (!len)
        return st_broken(s);
    w->from = end + 1;
    w->state = G_VALUE;
    return ST_AGAIN;
}

static enum st_step value(struct stream *s)
{
    struct st_own *w = &s->own;
    const char *quote = form(s)->quote;
    size_t end = st_literal_end(s, w->from, ",}", quote), n = strlen(quote);
    if (end == SIZE_MAX)
        return ST_MORE;
    size_t from = st_space(s, w->from);
    unsigned types = st_types(s, buf_cstr(&s->key));
    st_put_key(s, buf_cstr(&s->key), s->key.len);
    if (st_at(s, from, quote) && !(types & TYPE_STRING) && end - from >= 2 * n)
        st_put_value(s, s->p + from + n, end - from - 2 * n, types);
    else
        st_put_literal(s, s->p + from, end - from, quote);
    st_drop(s, end);
    w->state = G_ARG;
    return ST_AGAIN;
}

enum st_step tools_gemma_step(struct stream *s)
{
    switch (s->own.state) {
    case G_OPEN:
        return open(s);
    case G_NAME:
        return name(s);
    case G_ARG:
        return arg(s);
    case G_VALUE:
        return value(s);
    default:
        return st_close(s, form(s)->close);
    }
}
