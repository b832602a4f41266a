/* Calls between tags, one for each argument:
 *     <tool_call><function=f><parameter=key>value</parameter></function></tool_call>                     Qwen 3 Coder, Qwen 3.5
 *     <tool_call>f<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>                          GLM 4
 *     <minimax:tool_call><invoke name="f"><parameter name="key">value</parameter></invoke></minimax:...>   MiniMax M2
 *     <|open|>call tool="f" index="1"<|sep|><|open|>argument key="key" type="string"<|sep|>value<|close|>argument...   Kimi K3
 * Values are plain text; what they are in JSON follows from the tool's schema. Texts go out letter by letter. */
#include <string.h>

#include "api/stream_impl.h"

enum { X_SECTION, X_NAME, X_ARG, X_KEY, X_MID, X_VALUE, X_JSON };

#define NAME_MAX_LEN 512

static const struct xml_form *form(const struct stream *s)
{
    return s->o.family->form;
}

static bool could_be(const struct stream *s, size_t at, const char *mark)
{
    return mark && st_part(s, at, mark);
}

static bool is_at(const struct stream *s, size_t at, const char *mark)
{
    return mark && st_at(s, at, mark);
}

static enum st_step name(struct stream *s)
{
    struct st_own *w = &s->own;
    int which = 0;
    size_t safe, at, i = w->from;
    if (form(s)->name_end[1]) /* a line break may stand before the name, where one ends it */
        i = st_space(s, i);
    at = st_find(s, w->at > i ? w->at : i, form(s)->name_end, &which, &safe);
    if (at == SIZE_MAX) {
        w->at = safe;
        return safe - w->from > NAME_MAX_LEN ? st_broken(s) : ST_MORE;
    }
    if (at - w->from > NAME_MAX_LEN)
        return st_broken(s);
    const char *end = form(s)->name_end[which];
    size_t n = at - i;
    const char *quote = form(s)->attrs ? memchr(s->p + i, '"', n) : NULL;
    n = quote ? (size_t)(quote - s->p) - i : n;
    while (n && st_in(" \t\r\n", s->p[i + n - 1]))
        n--;
    if (!st_name_ok(s->p + i, n))
        return st_broken(s);
    st_name(s, s->p + i, n);
    st_begin(s);
    st_drop(s, *end == '<' && form(s)->name_end[1] && which < 2 ? at : at + strlen(end));
    w->at = 0;
    w->first = true;
    w->state = X_ARG;
    return ST_AGAIN;
}

static enum st_step call_end(struct stream *s, size_t drop)
{
    const struct xml_form *f = form(s);
    if (!s->own.first)
        st_args(s, "}", 1);
    st_end(s, true);
    st_drop(s, drop);
    s->own.at = 0;
    s->own.state = X_SECTION;
    return f->section ? ST_AGAIN : ST_DONE;
}

static enum st_step arg(struct stream *s)
{
    struct st_own *w = &s->own;
    const struct xml_form *f = form(s);
    size_t i = st_space(s, w->at);
    if (i == s->n || could_be(s, i, f->arg_open) || could_be(s, i, f->call_close) ||
        could_be(s, i, f->close) || could_be(s, i, f->json_open))
        return ST_MORE;
    if (w->first && is_at(s, i, f->json_open)) {
        st_drop(s, i + strlen(f->json_open));
        w->at = 0;
        w->state = X_JSON;
        return ST_AGAIN;
    }
    if (st_at(s, i, f->call_close) || st_cut(s, i, f->call_close))
        return call_end(s, st_at(s, i, f->call_close) ? i + strlen(f->call_close) : s->n);
    if (!st_at(s, i, f->arg_open) || is_at(s, i, f->close)) /* the end mark is missing */
        return call_end(s, is_at(s, i, f->close) ? i : 0);
    st_drop(s, i + strlen(f->arg_open));
    w->at = 0;
    w->state = X_KEY;
    return ST_AGAIN;
}

/* What attributes say: string="true", type="string". 0: nothing. */
static unsigned attr_types(const char *p, size_t n)
{
    static const struct {
        const char *text;
        unsigned types;
    } says[] = {
        {"string=\"true\"", TYPE_STRING}, {"string=\"false\"", TYPE_ANY & ~(unsigned)TYPE_STRING},
        {"type=\"string\"", TYPE_STRING}, {"type=\"number\"", TYPE_NUMBER},
        {"type=\"boolean\"", TYPE_BOOL},  {"type=\"null\"", TYPE_NULL},
        {"type=\"object\"", TYPE_OBJECT}, {"type=\"array\"", TYPE_ARRAY}};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (memmem(p, n, says[i].text, strlen(says[i].text)))
            return says[i].types;
    return 0;
}

static enum st_step key(struct stream *s)
{
    struct st_own *w = &s->own;
    const struct xml_form *f = form(s);
    const char *const marks[] = {f->arg_name_end, NULL};
    int which = 0;
    size_t safe, at = st_find(s, w->at, marks, &which, &safe), n;
    if (at == SIZE_MAX) {
        w->at = safe;
        return safe > NAME_MAX_LEN ? st_broken(s) : ST_MORE;
    }
    if (at > NAME_MAX_LEN)
        return st_broken(s);
    const char *quote = f->attrs ? memchr(s->p, '"', at) : NULL;
    n = quote ? (size_t)(quote - s->p) : at;
    buf_clear(&s->key);
    buf_add(&s->key, s->p, n);
    if (s->key.failed)
        return ST_MORE;
    w->types = f->attrs ? attr_types(s->p + n, at - n) : 0;
    if (!w->types)
        w->types = st_types(s, buf_cstr(&s->key));
    st_put_key(s, s->p, n);
    st_drop(s, at + strlen(f->arg_name_end));
    w->at = 0;
    w->state = X_MID;
    return ST_AGAIN;
}

static enum st_step middle(struct stream *s)
{
    struct st_own *w = &s->own;
    const struct xml_form *f = form(s);
    if (f->arg_mid) {
        size_t i = st_space(s, 0);
        if (i == s->n || st_part(s, i, f->arg_mid))
            return ST_MORE;
        if (!st_at(s, i, f->arg_mid))
            return st_broken(s);
        st_drop(s, i + strlen(f->arg_mid));
    } else if (f->newline) {
        if (!s->n)
            return ST_MORE;
        st_drop(s, *s->p == '\n');
    }
    if (w->types == TYPE_STRING)
        st_args(s, "\"", 1);
    buf_clear(&s->close);
    buf_str(&s->close, f->arg_close);
    if (f->ns) {
        buf_add(&s->close, buf_cstr(&s->key), s->key.len);
        buf_char(&s->close, '>');
    }
    w->at = 0;
    w->key = 0;
    w->state = X_VALUE;
    return ST_AGAIN;
}

/* The mark that ends the value at hand, from w->at on. What is no text may have tags of the same name within. */
static size_t value_end(struct stream *s, size_t *safe)
{
    struct st_own *w = &s->own;
    const struct xml_form *f = form(s);
    int which = 0;
    char open[NAME_MAX_LEN + 32];
    bool nested = f->ns && w->types != TYPE_STRING;
    if (nested)
        snprintf(open, sizeof open, "%s%s>", f->arg_open, buf_cstr(&s->key));
    const char *const marks[] = {buf_cstr(&s->close), nested ? open : NULL, NULL};
    for (;;) {
        size_t at = st_find(s, w->at, marks, &which, safe);
        if (at == SIZE_MAX || (which == 0 && w->key == 0))
            return at;
        w->key += which == 0 ? -1 : 1;
        w->at = at + strlen(marks[which]);
    }
}

static enum st_step value(struct stream *s)
{
    struct st_own *w = &s->own;
    const struct xml_form *f = form(s);
    size_t safe, at = value_end(s, &safe), n = at == SIZE_MAX ? safe : at;
    if (f->newline && n && s->p[n - 1] == '\n')
        n--;
    if (w->types == TYPE_STRING) {
        st_put_text(s, s->p, n);
        if (at == SIZE_MAX) {
            st_drop(s, n);
            w->at = 0;
            return ST_MORE;
        }
        st_args(s, "\"", 1);
    } else if (at == SIZE_MAX) {
        w->at = safe;
        return ST_MORE;
    } else if (f->ns) {
        st_put_nested(s, (struct view){s->p, n}, f->ns, st_schema(s, buf_cstr(&s->key)));
    } else {
        st_put_value(s, s->p, n, w->types);
    }
    st_drop(s, at + s->close.len);
    w->at = 0;
    w->state = X_ARG;
    return ST_AGAIN;
}

/* All arguments as one JSON text. */
static enum st_step json(struct stream *s)
{
    struct st_own *w = &s->own;
    const char *const marks[] = {form(s)->json_close, NULL};
    int which = 0;
    size_t safe, at = st_find(s, w->at, marks, &which, &safe), n, from;
    if (at == SIZE_MAX) {
        w->at = safe;
        return ST_MORE;
    }
    from = st_space(s, 0);
    n = at;
    while (n > from && st_in(" \t\r\n", s->p[n - 1]))
        n--;
    if (from < n && s->p[from] == '{')
        st_args(s, s->p + from, n - from);
    st_drop(s, at + strlen(marks[0]));
    w->at = 0;
    w->state = X_ARG;
    return ST_AGAIN;
}

/* A mark around the answer's text, not of a call. */
static bool is_noise(const struct stream *s)
{
    int n = 0;
    while (s->o.family->open[n])
        n++;
    return s->own.which >= n - form(s)->noise;
}

enum st_step tools_xml_step(struct stream *s)
{
    struct st_own *w = &s->own;
    if (form(s)->noise && is_noise(s)) {
        st_drop(s, w->at);
        return ST_DONE;
    }
    if (!s->o.tools)
        return ST_REJECT;
    if (w->state == X_SECTION && (!form(s)->section || w->which > 0)) {
        if (s->began)
            return ST_DONE;
        w->from = w->at;
        w->state = X_NAME;
    }
    switch (w->state) {
    case X_SECTION:
        return st_section(s, form(s)->call_open, form(s)->close, X_NAME);
    case X_NAME:
        return name(s);
    case X_ARG:
        return arg(s);
    case X_KEY:
        return key(s);
    case X_MID:
        return middle(s);
    case X_JSON:
        return json(s);
    default:
        return value(s);
    }
}
