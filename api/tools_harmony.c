/* The harmony format of gpt-oss: an answer is a sequence of messages, each with a header that names its channel and,
 * for a call, whom it is for:
 *     <|channel|>analysis<|message|>Thoughts.<|end|>
 *     <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
 *     <|start|>assistant<|channel|>final<|message|>The answer.<|return|>
 * analysis is reasoning; final, and commentary for nobody, is text. This step reads whole answers. */
#include <string.h>

#include "api/stream_impl.h"

enum { H_START, H_HEAD, H_BODY };
enum { BODY_TEXT, BODY_THOUGHT, BODY_CALL, BODY_PLAIN };

#define MESSAGE  "<|message|>"
#define HEAD_MAX 1024

static const char *const ends[] = {"<|end|>",   "<|call|>",    "<|return|>",
                                   "<|start|>", "<|channel|>", NULL};

static enum st_step start(struct stream *s)
{
    static const char *const heads[] = {"<|channel|>", "<|start|>", "<|message|>", "<|end|>",
                                        "to="};
    size_t i = st_space(s, 0), n = sizeof heads / sizeof *heads;
    if (i == s->n && !s->final)
        return ST_MORE;
    for (size_t k = 0; k < n; k++) {
        if (st_at(s, i, heads[k])) {
            s->own.at = i;
            s->own.state = H_HEAD;
            return ST_AGAIN;
        }
        if (st_part(s, i, heads[k]))
            return ST_MORE;
    }
    if (i == s->n) {
        st_drop(s, i);
        return ST_MORE;
    }
    s->own.key = BODY_PLAIN; /* not in the format at all: an answer */
    s->own.state = H_BODY;
    return ST_AGAIN;
}

static bool has(const char *p, size_t n, const char *word)
{
    return memmem(p, n, word, strlen(word)) != NULL;
}

/* What a header says of its message; a call begins with it. */
static void read_head(struct stream *s, const char *p, size_t n)
{
    static const char to[] = "to=functions.";
    struct st_own *w = &s->own;
    const char *f = memmem(p, n, to, sizeof to - 1);
    size_t len = 0;
    bool analysis = has(p, n, "<|channel|>analysis");
    if (f) {
        f += sizeof to - 1;
        while (f + len < p + n && !st_in(" \t\r\n<", f[len]))
            len++;
    }
    w->key = analysis ? BODY_THOUGHT : BODY_TEXT;
    if (!f && (has(p, n, "to=python") || has(p, n, "to=browser")))
        w->key = BODY_THOUGHT; /* tools of its own */
    if (f && s->o.tools && st_name_ok(f, len)) {
        w->key = BODY_CALL;
        st_name(s, f, len);
        st_begin(s);
        w->scan = (struct st_scan){0};
        w->has_args = false;
    }
    w->think = w->key == BODY_THOUGHT;
}

static enum st_step head(struct stream *s)
{
    struct st_own *w = &s->own;
    const char *const marks[] = {MESSAGE, NULL};
    int which = 0;
    size_t safe, at = st_find(s, w->at, marks, &which, &safe);
    if (at == SIZE_MAX && safe < HEAD_MAX) {
        if (s->final)
            st_drop(s, s->n); /* a header that was broken off says nothing */
        else
            w->at = safe;
        return ST_MORE;
    }
    if (at == SIZE_MAX || at >= HEAD_MAX) {
        w->key = BODY_PLAIN;
        w->state = H_BODY;
        return ST_AGAIN;
    }
    read_head(s, s->p, at);
    st_drop(s, at + strlen(MESSAGE));
    w->state = H_BODY;
    return ST_AGAIN;
}

static enum st_step body(struct stream *s)
{
    struct st_own *w = &s->own;
    const char *const none[] = {NULL};
    int which = 0;
    size_t safe, at = st_find(s, 0, w->key == BODY_PLAIN ? none : ends, &which, &safe);
    size_t k = at == SIZE_MAX ? safe : at;
    if (w->key == BODY_CALL) {
        size_t i = w->has_args ? 0 : st_space(s, 0);
        if (i < k) {
            w->has_args = true;
            st_args(s, s->p + i, k - i);
        }
        st_drop(s, k);
    } else if (w->key == BODY_THOUGHT) {
        st_reasoning(s, k);
    } else {
        st_text(s, k);
    }
    if (at == SIZE_MAX && !s->final)
        return ST_MORE;
    if (w->key == BODY_CALL)
        st_end(s, true);
    w->think = false;
    if (at == SIZE_MAX)
        return ST_MORE;
    /* The marks that begin a header stay. */
    st_drop(s, which < 3 ? strlen(ends[which]) : 0);
    w->state = H_START;
    w->at = 0;
    return ST_AGAIN;
}

enum st_step tools_harmony_step(struct stream *s)
{
    if (s->own.state == H_START)
        return start(s);
    return s->own.state == H_HEAD ? head(s) : body(s);
}
