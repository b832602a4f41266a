/* Calls that have their name outside of their arguments:
 *     [TOOL_CALLS]f[ARGS]{...}                                                           Mistral from 2025 on
 *     <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>                           DeepSeek V3.1
 *     <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{...}\n```<｜tool▁call▁end｜>   DeepSeek V3, R1
 *     <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>  Kimi K2
 *     <function=f>{...}</function>                                                       Functionary 3.1 */
#include <string.h>

#include "api/stream_impl.h"

enum { N_SECTION, N_HEAD, N_BLOCK, N_ARGS, N_TAIL };

#define HEAD_MAX 512

static const struct named_form *form(const struct stream *s)
{
    const struct json_form *j = s->o.family->form;
    return s->own.step ? j->other_form : s->o.family->form;
}

static void set(struct buf *b, const char *p, size_t n)
{
    while (n && st_in(" \t\r\n", *p))
        p++, n--;
    while (n && st_in(" \t\r\n", p[n - 1]))
        n--;
    buf_clear(b);
    buf_add(b, p, n);
}

/* functions.NAME:0 */
static void name_of_id(struct stream *s)
{
    const char *p = buf_cstr(&s->id), *end = p + s->id.len, *colon = memrchr(p, ':', s->id.len);
    const char *dot = memchr(p, '.', s->id.len);
    if (colon && colon > p && colon + strspn(colon + 1, "0123456789") + 1 == end)
        end = colon;
    else
        colon = NULL;
    bool prefixed = dot && dot < end && (size_t)(dot - p) == strlen("functions") &&
                    memcmp(p, "functions", strlen("functions")) == 0;
    set(&s->name, prefixed ? dot + 1 : p, (size_t)(end - (prefixed ? dot + 1 : p)));
    if (!prefixed && !colon)
        buf_clear(&s->id); /* a bare name */
}

static void read_head(struct stream *s, const char *p, size_t n)
{
    const struct named_form *f = form(s);
    const char *mid = f->mid ? memmem(p, n, f->mid, strlen(f->mid)) : NULL;
    buf_clear(&s->id);
    if (mid) {
        const char *last = mid + strlen(f->mid);
        size_t n_last = (size_t)(p + n - last), n_first = (size_t)(mid - p);
        set(f->id_last ? &s->name : &s->id, p, n_first);
        set(f->id_last ? &s->id : &s->name, last, n_last);
    } else if (f->id_head) {
        set(&s->id, p, n);
        name_of_id(s);
    } else {
        set(&s->name, p, n);
    }
}

/* The first of the marks, where a head from own.from on ends: ST_AGAIN, *at and *which; else what to return. */
static enum st_step head_end(struct stream *s, const char *const *marks, int *which, size_t *at)
{
    struct st_own *w = &s->own;
    size_t safe;
    *at = st_find(s, w->at, marks, which, &safe);
    if (*at == SIZE_MAX) {
        w->at = safe;
        return safe - w->from > HEAD_MAX ? st_broken(s) : ST_MORE;
    }
    return *at - w->from > HEAD_MAX ? st_broken(s) : ST_AGAIN;
}

static enum st_step head(struct stream *s)
{
    struct st_own *w = &s->own;
    const struct named_form *f = form(s);
    const char *const marks[] = {f->separator, f->brace ? "{" : NULL, NULL};
    int which = 0;
    size_t at;
    enum st_step found = head_end(s, marks, &which, &at);
    if (found != ST_AGAIN)
        return found;
    size_t next = which ? at : at + strlen(f->separator);
    if (f->fenced) { /* what comes next tells which of two forms this is */
        size_t i = st_space(s, next);
        if (i == s->n)
            return ST_MORE;
        if (s->p[i] != '{') {
            w->at = w->from = next;
            w->state = N_BLOCK;
            return ST_AGAIN;
        }
    }
    read_head(s, s->p + w->from, at - w->from);
    w->at = next;
    w->state = N_ARGS;
    return st_name_ok(buf_cstr(&s->name), s->name.len) ? ST_AGAIN : st_broken(s);
}

/* NAME\n```json\n{...} */
static enum st_step block(struct stream *s)
{
    struct st_own *w = &s->own;
    const char *const marks[] = {"{", form(s)->call_close, NULL};
    int which = 0;
    size_t at;
    enum st_step found = head_end(s, marks, &which, &at);
    if (found != ST_AGAIN)
        return found;
    const char *p = s->p + w->from, *end = memchr(p, '\n', at - w->from);
    const char *fence = memmem(p, at - w->from, "```", 3);
    if (!end || (fence && fence < end))
        end = fence;
    if (!end)
        end = s->p + at;
    buf_clear(&s->id);
    set(&s->name, p, (size_t)(end - p));
    w->at = at;
    w->state = N_ARGS;
    return st_name_ok(buf_cstr(&s->name), s->name.len) ? ST_AGAIN : st_broken(s);
}

static enum st_step args(struct stream *s)
{
    struct st_own *w = &s->own;
    const struct named_form *f = form(s);
    if (!s->in_call) {
        w->at = st_space(s, w->at);
        bool none = f->call_close && st_at(s, w->at, f->call_close);
        if (w->at == s->n || (f->call_close && st_part(s, w->at, f->call_close)))
            return ST_MORE;
        if (!none && s->p[w->at] != '{')
            return st_broken(s);
        st_begin(s);
        st_drop(s, w->at);
        w->at = 0;
        w->scan = (struct st_scan){0};
        if (none) {
            st_end(s, true);
            w->state = N_TAIL;
            return ST_AGAIN;
        }
    }
    return st_args_value(s, N_TAIL);
}

static enum st_step tail(struct stream *s)
{
    struct st_own *w = &s->own;
    const struct named_form *f = form(s);
    size_t i = st_space(s, 0);
    if (f->fenced) {
        if (st_part(s, i, "```") && i < s->n)
            return ST_MORE;
        i = st_at(s, i, "```") ? st_space(s, i + 3) : i;
    }
    if (f->call_close) {
        if (i == s->n || st_part(s, i, f->call_close))
            return ST_MORE;
        st_pass(s, i, f->call_close);
    }
    w->at = 0;
    w->state = N_SECTION;
    return f->call_open && s->own.which == 0 ? ST_AGAIN : ST_DONE;
}

enum st_step tools_named_step(struct stream *s)
{
    struct st_own *w = &s->own;
    if (w->state == N_SECTION && (!form(s)->call_open || w->which > 0)) {
        w->from = w->at;
        w->state = N_HEAD;
    }
    switch (w->state) {
    case N_SECTION:
        return st_section(s, form(s)->call_open, form(s)->close, N_HEAD);
    case N_HEAD:
        return head(s);
    case N_BLOCK:
        return block(s);
    case N_ARGS:
        return args(s);
    default:
        return tail(s);
    }
}
