/* Steps that the formats of several families have alike. See stream_impl.h. */
#include <string.h>

#include "api/stream_impl.h"

enum st_step st_broken(struct stream *s)
{
    if (s->in_call)
        st_end(s, false);
    return s->began ? ST_DONE : ST_REJECT;
}

void st_name(struct stream *s, const char *p, size_t n)
{
    buf_clear(&s->name);
    buf_clear(&s->id);
    buf_add(&s->name, p, n);
}

bool st_pass(struct stream *s, size_t at, const char *mark)
{
    bool whole = st_at(s, at, mark);
    if (!whole && !st_cut(s, at, mark))
        return false;
    st_drop(s, whole ? at + strlen(mark) : s->n);
    return true;
}

enum st_step st_section(struct stream *s, const char *open, const char *close, int then)
{
    struct st_own *w = &s->own;
    w->at = st_space(s, w->at);
    if (w->at == s->n || st_part(s, w->at, open) || (close && st_part(s, w->at, close)))
        return ST_MORE;
    if (st_at(s, w->at, open)) {
        w->at += strlen(open);
        w->from = w->at;
        w->state = then;
        return ST_AGAIN;
    }
    if (s->began && !(close && st_pass(s, w->at, close)))
        st_pass(s, w->at, open);
    return st_broken(s);
}

int st_args_more(struct stream *s)
{
    struct st_own *w = &s->own;
    int r = st_value(s, &w->at, &w->scan);
    st_args(s, s->p, w->at);
    st_drop(s, w->at);
    w->at = 0;
    return r;
}

enum st_step st_args_value(struct stream *s, int then)
{
    int r = st_args_more(s);
    if (r == 0)
        return ST_MORE;
    st_end(s, r > 0);
    s->own.state = then;
    return ST_AGAIN;
}

enum st_step st_close(struct stream *s, const char *close)
{
    size_t i = st_space(s, 0);
    if ((i == s->n && !s->final) || st_part(s, i, close))
        return ST_MORE;
    st_pass(s, i, close);
    return ST_DONE;
}
