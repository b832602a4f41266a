/* Calls as JSON objects after an opening mark, or bare at the answer's beginning: one object, several, or an array.
 *     <tool_call>{"name": "f", "arguments": {...}}</tool_call>        Hermes, Qwen 2.5 and 3, Granite 4, ...
 *     {"name": "f", "parameters": {...}}                              Llama 3
 *     [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]            Mistral before 2025
 * Arguments that are an object go out as they come, letter by letter; in a string they are unpacked when whole. */
#include <string.h>

#include "api/stream_impl.h"

enum { J_OPEN, J_ITEM, J_KEY, J_COLON, J_VALUE, J_ARGS, J_CLOSE };
enum { KEY_OTHER, KEY_NAME, KEY_ARGS, KEY_ID };

static const struct json_form *form(const struct stream *s)
{
    return s->o.family->form;
}

static const char *closing(const struct stream *s)
{
    return s->own.which >= 0 ? form(s)->close[s->own.which] : NULL;
}

static enum st_step open(struct stream *s)
{
    struct st_own *w = &s->own;
    w->at = st_space(s, w->at);
    if (w->at == s->n)
        return ST_MORE;
    if (s->p[w->at] == '[' || s->p[w->at] == '{') {
        w->array = s->p[w->at] == '[';
        w->at += w->array;
        w->state = J_ITEM;
        return ST_AGAIN;
    }
    if (!form(s)->other)
        return ST_REJECT;
    w->step = form(s)->other;
    return ST_AGAIN;
}

static enum st_step item(struct stream *s)
{
    struct st_own *w = &s->own;
    const char *close = closing(s);
    while (w->at < s->n && st_in(" \t\r\n,;", s->p[w->at]))
        w->at++;
    if (close && (st_at(s, w->at, close) || st_cut(s, w->at, close))) {
        w->state = J_CLOSE;
        return ST_AGAIN;
    }
    if (w->at == s->n || (close && st_part(s, w->at, close)))
        return ST_MORE;
    if (w->array && s->p[w->at] == ']') {
        w->at++;
        w->state = J_CLOSE;
        if (!s->began && s->own.which < 0)
            return ST_REJECT; /* a bare [] is an answer */
        return ST_AGAIN;
    }
    if (s->p[w->at] != '{')
        return st_broken(s);
    w->at++;
    w->state = J_KEY;
    w->has_name = w->has_args = false;
    return ST_AGAIN;
}

/* An object is over: with a name it was a call. */
static enum st_step object_end(struct stream *s)
{
    struct st_own *w = &s->own;
    if (!s->in_call) {
        if (!w->has_name)
            return st_broken(s);
        st_begin(s);
    }
    st_end(s, true);
    st_drop(s, w->at + 1);
    w->at = 0;
    w->state = J_ITEM;
    return ST_AGAIN;
}

static bool is_key(const char *key, struct view k)
{
    return key && view_is(k, key);
}

static int key_kind(const struct json_form *f, struct view k)
{
    if (is_key(f->name, k) || is_key(f->name2, k))
        return KEY_NAME;
    if (is_key(f->args, k) || is_key(f->args2, k))
        return KEY_ARGS;
    return is_key("id", k) ? KEY_ID : KEY_OTHER;
}

static enum st_step key(struct stream *s)
{
    struct st_own *w = &s->own;
    struct st_scan sc = {0};
    size_t end;
    while (w->at < s->n && st_in(" \t\r\n,", s->p[w->at]))
        w->at++;
    if (w->at == s->n)
        return ST_MORE;
    if (s->p[w->at] == '}')
        return object_end(s);
    if (s->p[w->at] != '"') {
        if (!s->in_call)
            return st_broken(s);
        st_end(s, true); /* a call whose last brackets are missing */
        w->state = J_CLOSE;
        return ST_AGAIN;
    }
    end = w->at;
    if (st_value(s, &end, &sc) != 1)
        return ST_MORE;
    struct view k = {s->p + w->at + 1, end - w->at - 2};
    w->key = key_kind(form(s), k);
    if (form(s)->keyed && !s->in_call) {
        w->has_name = k.len > 0;
        buf_clear(&s->name);
        buf_add(&s->name, k.p, k.len);
        w->key = KEY_ARGS;
    }
    /* A bare object whose first key is of no call is an answer in JSON. */
    if (w->which < 0 && !s->in_call && !w->has_name && w->key == KEY_OTHER && !view_is(k, "type"))
        return st_broken(s);
    w->at = end;
    w->state = J_COLON;
    return ST_AGAIN;
}

static enum st_step colon(struct stream *s)
{
    struct st_own *w = &s->own;
    w->at = st_space(s, w->at);
    if (w->at == s->n)
        return ST_MORE;
    if (s->p[w->at] != ':')
        return st_broken(s);
    w->at++;
    w->from = SIZE_MAX;
    w->state = J_VALUE;
    return ST_AGAIN;
}

/* Arguments that stand whole in the window: an object as it is, a text unpacked, nothing as no arguments. */
static void put_args(struct stream *s, const char *p, size_t n)
{
    if (n && *p == '"') {
        buf_clear(&s->value);
        if (st_text_of(s, p, n, &s->value)) {
            st_args(s, s->value.p, s->value.len);
            return;
        }
    }
    if (!(n == 4 && memcmp(p, "null", 4) == 0))
        st_args(s, p, n);
}

/* Begin the call whose name and arguments are known. */
static void begin_whole(struct stream *s)
{
    struct st_own *w = &s->own;
    st_begin(s);
    put_args(s, s->p + w->args, w->args_end - w->args);
    st_drop(s, w->at);
    w->at = 0;
}

static enum st_step value_end(struct stream *s)
{
    struct st_own *w = &s->own;
    const char *p = s->p + w->from;
    size_t n = w->at - w->from;
    bool known;
    w->state = J_KEY;
    if (s->in_call)
        return ST_AGAIN;
    if (w->key == KEY_NAME) {
        buf_clear(&s->name);
        if (!st_text_of(s, p, n, &s->name) || !s->name.len || s->name.len > 256)
            return s->failed ? ST_MORE : st_broken(s);
        st_parameters(s, buf_cstr(&s->name), &known);
        if (w->which < 0 && !known)
            return st_broken(s);
        w->has_name = true;
    } else if (w->key == KEY_ARGS) {
        w->args = w->from;
        w->args_end = w->at;
        w->has_args = true;
    } else if (w->key == KEY_ID && *p == '"') {
        buf_clear(&s->id);
        st_text_of(s, p, n, &s->id);
    }
    if (w->has_name && w->has_args)
        begin_whole(s);
    return ST_AGAIN;
}

static enum st_step value(struct stream *s)
{
    struct st_own *w = &s->own;
    if (w->from == SIZE_MAX) {
        w->at = st_space(s, w->at);
        if (w->at == s->n)
            return ST_MORE;
        w->from = w->at;
        w->scan = (struct st_scan){0};
        if (w->key == KEY_ARGS && w->has_name && !s->in_call && s->p[w->at] == '{') {
            st_begin(s);
            st_drop(s, w->at);
            w->at = 0;
            w->state = J_ARGS;
            return ST_AGAIN;
        }
    }
    int r = st_value(s, &w->at, &w->scan);
    if (r == 0)
        return ST_MORE;
    return r < 0 ? st_broken(s) : value_end(s);
}

static enum st_step args(struct stream *s)
{
    struct st_own *w = &s->own;
    int r = st_args_more(s);
    if (r == 0)
        return ST_MORE;
    w->state = J_KEY;
    if (r < 0) {
        st_end(s, false);
        w->state = J_CLOSE;
    }
    return ST_AGAIN;
}

static enum st_step close_mark(struct stream *s)
{
    struct st_own *w = &s->own;
    const char *close = closing(s);
    size_t i = w->at;
    while (i < s->n && st_in(" \t\r\n]}", s->p[i]))
        i++;
    if (close && i == s->n && !s->final)
        return ST_MORE;
    if (close && st_part(s, i, close))
        return ST_MORE;
    if (!close || !st_pass(s, i, close))
        st_drop(s, w->at);
    return s->began ? ST_DONE : ST_REJECT;
}

enum st_step tools_json_step(struct stream *s)
{
    if (s->own.step)
        return s->own.step(s);
    switch (s->own.state) {
    case J_OPEN:
        return open(s);
    case J_ITEM:
        return item(s);
    case J_KEY:
        return key(s);
    case J_COLON:
        return colon(s);
    case J_VALUE:
        return value(s);
    case J_ARGS:
        return args(s);
    default:
        return close_mark(s);
    }
}
