/* The format of Functionary 3.2: an answer is a row of pieces, each for a recipient, whose name ends with its line. The
 * first piece's mark stands in the prompt:
 *     all\nLet me look.>>>get_weather\n{"city": "Bern"}>>>get_weather\n{"city": "Rome"}
 * What is for all is text; what is for one of the request's tools is a call. This step reads whole answers. */
#include <string.h>

#include "api/stream_impl.h"

enum { R_START, R_HEAD, R_TEXT, R_ARGS };

#define MARK     ">>>"
#define NAME_MAX 128

/* The piece at `at`: 1 when a recipient's line stands there, *n the length of its name; 0 when none does, -1 when more of
 * the text is needed to tell. */
static int recipient(struct stream *s, size_t at, size_t *n)
{
    size_t i = at;
    bool known;
    while (i < s->n && i - at < NAME_MAX && st_name_ok(s->p + i, 1))
        i++;
    if (i == s->n && !s->final)
        return -1;
    *n = i - at;
    if (i == s->n || s->p[i] != '\n' || !*n)
        return 0;
    st_name(s, s->p + at, *n);
    if (view_is((struct view){s->p + at, *n}, "all"))
        return 1;
    st_parameters(s, buf_cstr(&s->name), &known);
    return known;
}

static enum st_step head(struct stream *s)
{
    struct st_own *w = &s->own;
    size_t n = 0, mark = st_at(s, 0, MARK) ? strlen(MARK) : 0;
    if (!mark && st_part(s, 0, MARK))
        return ST_MORE;
    int r = recipient(s, mark, &n);
    if (r < 0)
        return ST_MORE;
    w->state = R_TEXT;
    w->at = 0;
    if (r == 0) { /* the mark is text */
        st_text(s, mark);
        return ST_AGAIN;
    }
    bool all = view_is((struct view){s->p + mark, n}, "all");
    st_drop(s, mark + n + 1);
    if (all)
        return ST_AGAIN;
    st_begin(s);
    w->scan = (struct st_scan){0};
    w->has_args = false;
    w->state = R_ARGS;
    return ST_AGAIN;
}

static enum st_step text(struct stream *s)
{
    const char *const marks[] = {MARK, NULL};
    int which = 0;
    size_t safe, at = st_find(s, 0, marks, &which, &safe);
    st_text(s, at == SIZE_MAX ? safe : at);
    if (at == SIZE_MAX)
        return ST_MORE;
    s->own.state = R_HEAD;
    return ST_AGAIN;
}

static enum st_step args(struct stream *s)
{
    struct st_own *w = &s->own;
    if (!w->has_args) {
        st_drop(s, st_space(s, 0));
        if (!s->n)
            return ST_MORE;
        w->has_args = *s->p == '{';
        if (!w->has_args) {
            st_end(s, true); /* no arguments */
            w->state = R_HEAD;
            return ST_AGAIN;
        }
    }
    return st_args_value(s, R_START);
}

enum st_step tools_recipient_step(struct stream *s)
{
    struct st_own *w = &s->own;
    if (w->state == R_ARGS)
        return args(s);
    if (w->state == R_TEXT)
        return text(s);
    if (w->state == R_START && s->after_call) { /* white space after a call is none of an answer */
        st_drop(s, st_space(s, 0));
        if (!s->n)
            return ST_MORE;
        w->state = st_at(s, 0, MARK) ? R_HEAD : st_part(s, 0, MARK) ? R_START : R_TEXT;
        return w->state == R_START ? ST_MORE : ST_AGAIN;
    }
    if (!s->n)
        return ST_MORE;
    return head(s);
}
