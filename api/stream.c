/* The stream's core: the window of undecided text, reasoning and text around calls, and what families build on. */
#include "api/stream_impl.h"

#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

int stream_open(struct stream **out, const struct stream_opts *o)
{
    struct stream *s = mem_calloc(1, sizeof *s);
    if (!s)
        return ERR_NOMEM;
    s->o = *o;
    if (o->family && o->family->whole)
        s->phase = PHASE_CALL;
    else
        s->phase = o->think_close ? PHASE_START : PHASE_TEXT;
    *out = s;
    return 0;
}

void stream_close(struct stream *s)
{
    if (!s)
        return;
    buf_free(&s->pend);
    buf_free(&s->name);
    buf_free(&s->id);
    buf_free(&s->ids);
    buf_free(&s->key);
    buf_free(&s->value);
    buf_free(&s->close);
    free(s);
}

bool stream_thinking(const struct stream *s)
{
    if (s->o.family && s->o.family->whole)
        return s->own.think;
    return s->phase == PHASE_THINK || (s->phase == PHASE_START && s->o.thinking);
}

static bool is_one_of(const char *const *list, const char *text, size_t n)
{
    for (; list && *list; list++)
        if (strlen(*list) == n && memcmp(*list, text, n) == 0)
            return true;
    return false;
}

bool stream_wants(const struct stream *s, const char *control, size_t n)
{
    const struct stream_opts *o = &s->o;
    const struct tool_family *f = o->family;
    if (o->think_close && ((o->think_open && strncmp(o->think_open, control, n) == 0) ||
                           view_is((struct view){control, n}, o->think_close)))
        return n > 0;
    return f && (is_one_of(f->open, control, n) || is_one_of(f->control, control, n));
}

/* ---- window ---- */

static void st_window(struct stream *s)
{
    s->p = s->pend.p ? s->pend.p + s->head : "";
    s->n = s->pend.len - s->head;
}

void st_drop(struct stream *s, size_t k)
{
    CHECK(k <= s->n);
    s->head += k;
    s->base += k;
    s->skip -= s->skip < k ? s->skip : k;
    st_window(s);
}

bool st_at(const struct stream *s, size_t at, const char *mark)
{
    size_t n = strlen(mark);
    return at <= s->n && s->n - at >= n && memcmp(s->p + at, mark, n) == 0;
}

bool st_part(const struct stream *s, size_t at, const char *mark)
{
    return !s->final && at <= s->n && s->n - at < strlen(mark) &&
           memcmp(s->p + at, mark, s->n - at) == 0;
}

bool st_cut(const struct stream *s, size_t at, const char *mark)
{
    return s->final && at < s->n && s->n - at < strlen(mark) &&
           memcmp(s->p + at, mark, s->n - at) == 0;
}

/* Where the window's end may be the beginning of a mark; n if nowhere. */
static size_t part_at_end(const struct stream *s, size_t from, const char *mark)
{
    size_t k = strlen(mark) - 1;
    if (s->final)
        return s->n;
    if (k > s->n - from)
        k = s->n - from;
    for (; k > 0; k--)
        if (memcmp(s->p + s->n - k, mark, k) == 0)
            break;
    return s->n - k;
}

size_t st_find(const struct stream *s, size_t from, const char *const *marks, int *which,
               size_t *safe)
{
    size_t best = SIZE_MAX;
    *safe = s->n;
    if (from > s->n)
        return SIZE_MAX;
    for (int i = 0; marks[i]; i++) {
        size_t n = strlen(marks[i]), end = part_at_end(s, from, marks[i]);
        const char *at = memmem(s->p + from, s->n - from, marks[i], n);
        /* Of two that begin at one place the longer counts. */
        if (at && ((size_t)(at - s->p) < best ||
                   ((size_t)(at - s->p) == best && n > strlen(marks[*which])))) {
            best = (size_t)(at - s->p);
            *which = i;
        }
        if (end < *safe)
            *safe = end;
    }
    /* A longer mark may still begin before, or where, a shorter one stands whole. */
    return best != SIZE_MAX && *safe <= best ? SIZE_MAX : best;
}

size_t st_space(const struct stream *s, size_t at)
{
    while (at < s->n && st_in(" \t\r\n", s->p[at]))
        at++;
    return at;
}

/* Length of [0, k) without the white space at its end. */
static size_t trimmed(const struct stream *s, size_t k)
{
    while (k && st_in(" \t\r\n", s->p[k - 1]))
        k--;
    return k;
}

int st_value(const struct stream *s, size_t *at, struct st_scan *sc)
{
    size_t i = sc->any ? *at : st_space(s, *at);
    for (; i < s->n; i++) {
        char c = s->p[i];
        if (sc->str) {
            sc->str = sc->esc || c != '"';
            sc->esc = !sc->esc && c == '\\';
            if (!sc->str && sc->depth == 0) {
                *at = i + 1;
                return 1;
            }
            continue;
        }
        if (!sc->any && !st_in("{[\"-0123456789tfnTFN", c))
            break;
        if (sc->any && sc->depth == 0 && st_in(" \t\r\n,]}<", c)) {
            *at = i; /* a word or a number, whole */
            return 1;
        }
        if (c == '<')
            break;
        sc->any = true;
        sc->str = c == '"';
        sc->esc = false;
        sc->depth += c == '{' || c == '[';
        sc->depth -= (c == '}' || c == ']') && sc->depth > 0;
        if ((c == '}' || c == ']') && sc->depth == 0) {
            *at = i + 1;
            return 1;
        }
    }
    *at = i;
    if (i < s->n)
        return -1;
    return s->final && sc->any && sc->depth == 0 && !sc->str;
}

/* ---- events ---- */

static void send(struct stream *s, struct stream_event ev)
{
    if (s->o.event && !s->failed)
        s->o.event(s->o.ctx, &ev);
}

void st_text(struct stream *s, size_t k)
{
    if (!s->any_text && (s->lead || s->after_call)) {
        size_t i = st_space(s, 0);
        i = i < k ? i : k;
        st_drop(s, i);
        k -= i;
    }
    if (!k)
        return;
    s->any_text = true;
    s->lead = s->after_call = false;
    send(s, (struct stream_event){.kind = STREAM_TEXT, .text = {s->p, k}, .from = s->base});
    st_drop(s, k);
}

void st_reasoning(struct stream *s, size_t k)
{
    if (k)
        send(s, (struct stream_event){.kind = STREAM_REASONING, .text = {s->p, k}});
    st_drop(s, k);
}

/* An id of its own for the call that begins: the model's, if it gave one that is new. */
static void make_id(struct stream *s)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    bool brief = s->o.family && s->o.family->brief_id;
    if (s->id.len && s->id.len <= 128 && !memchr(s->id.p, '\n', s->id.len) &&
        !(s->ids.len && memmem(s->ids.p, s->ids.len, s->id.p, s->id.len))) {
        buf_add(&s->ids, s->id.p, s->id.len);
        buf_char(&s->ids, '\n');
        return;
    }
    struct hash_key key = {s->o.id_seed, (uint64_t)s->n_call};
    uint64_t x = 0;
    buf_clear(&s->id);
    buf_str(&s->id, brief ? "" : "call_");
    for (int i = 0; i < (brief ? 9 : 24); i++) {
        if (i % 8 == 0)
            x = hash_bytes(key, &i, sizeof i);
        buf_char(&s->id, digits[x % 62]);
        x /= 62;
    }
}

void st_begin(struct stream *s)
{
    s->in_call = s->began = true;
    s->any_args = false;
    s->mute = s->o.max_calls > 0 && s->n_call >= s->o.max_calls;
    if (s->mute)
        return;
    make_id(s);
    if (s->name.failed || s->id.failed || s->ids.failed) {
        s->failed = true;
        return;
    }
    send(s, (struct stream_event){.kind = STREAM_CALL_BEGIN,
                                  .call = s->n_call,
                                  .name = buf_cstr(&s->name),
                                  .id = buf_cstr(&s->id)});
}

void st_args(struct stream *s, const char *p, size_t n)
{
    if (s->mute || !n)
        return;
    s->any_args = true;
    send(s, (struct stream_event){.kind = STREAM_CALL_ARGS, .call = s->n_call, .text = {p, n}});
}

void st_end(struct stream *s, bool whole)
{
    if (whole && !s->any_args)
        st_args(s, "{}", 2);
    if (!s->mute)
        send(s, (struct stream_event){.kind = STREAM_CALL_END, .call = s->n_call++});
    s->in_call = s->mute = false;
    s->after_call = true;
    buf_clear(&s->name);
    buf_clear(&s->id);
}

bool st_text_of(struct stream *s, const char *p, size_t n, struct buf *out)
{
    json_t *v = NULL;
    int rc = api__json_load(&v, (struct view){p, n}, JSON_DECODE_ANY, NULL);
    bool ok = !rc && json_is_string(v);
    s->failed |= rc == ERR_NOMEM;
    if (ok)
        buf_add(out, json_string_value(v), json_string_length(v));
    json_decref(v);
    return ok;
}

const json_t *st_parameters(const struct stream *s, const char *name, bool *known)
{
    size_t i;
    json_t *t;
    *known = false;
    json_array_foreach((json_t *)s->o.tools, i, t)
    {
        json_t *f = json_object_get(t, "function");
        const char *is = json_string_value(json_object_get(f, "name"));
        if (is && strcmp(is, name) == 0) {
            *known = true;
            return json_object_get(f, "parameters");
        }
    }
    return NULL;
}

/* ---- phases ---- */

/* Reasoning may begin at the answer's beginning only; an end mark there is left out, too. */
static bool at_start(struct stream *s)
{
    size_t i = st_space(s, 0);
    const char *open = s->o.think_open;
    if ((open && st_part(s, i, open)) || st_part(s, i, s->o.think_close))
        return false;
    bool opens = open && st_at(s, i, open);
    s->phase = opens || s->o.thinking ? PHASE_THINK : PHASE_TEXT;
    s->lead = s->phase == PHASE_THINK;
    if (opens) {
        st_drop(s, i + strlen(open));
    } else if (!s->o.thinking && st_at(s, i, s->o.think_close)) {
        st_drop(s, i + strlen(s->o.think_close));
        s->lead = true;
    }
    return true;
}

static bool in_think(struct stream *s)
{
    const char *const marks[] = {s->o.think_close, NULL};
    int which = 0;
    size_t safe, at, k;
    if (s->lead) {
        st_drop(s, st_space(s, 0));
        if (!s->n)
            return false;
        s->lead = false;
    }
    at = st_find(s, 0, marks, &which, &safe);
    k = trimmed(s, at == SIZE_MAX ? safe : at);
    st_reasoning(s, k);
    if (at != SIZE_MAX) {
        st_drop(s, at - k + strlen(marks[0]));
        s->phase = PHASE_TEXT;
        s->lead = true;
        return true;
    }
    if (s->final)
        st_drop(s, s->n);
    return false;
}

static void to_call(struct stream *s, size_t mark, int which)
{
    s->phase = PHASE_CALL;
    s->began = false;
    s->mark = mark;
    s->own = (struct st_own){.which = which};
    s->own.at = mark + (which >= 0 ? strlen(s->o.family->open[which]) : 0);
    buf_clear(&s->name);
    buf_clear(&s->id);
}

static bool in_text(struct stream *s)
{
    const struct tool_family *f = s->o.family;
    size_t safe = s->n, at = SIZE_MAX, k;
    int which = 0;
    const char *bare = f ? f->bare ? f->bare : f->loose : NULL;
    if (bare && !s->any_text && !s->skip) {
        size_t i = st_space(s, 0);
        if (i == s->n && !s->final)
            return false;
        if (i < s->n && st_in(bare, s->p[i])) {
            to_call(s, i, -1);
            return true;
        }
    }
    if (f && f->open)
        at = st_find(s, s->skip, f->open, &which, &safe);
    if (at != SIZE_MAX) {
        k = trimmed(s, at);
        st_text(s, k);
        to_call(s, st_space(s, 0), which);
        return true;
    }
    /* White space waits for what follows, where that decides whether it counts. */
    k = f ? trimmed(s, safe) : safe;
    if (s->final)
        k = s->after_call && !trimmed(s, s->n) ? 0 : s->n;
    st_text(s, k);
    if (s->final)
        st_drop(s, s->n);
    return false;
}

static bool in_calls(struct stream *s)
{
    const struct tool_family *f = s->o.family;
    enum st_step r = f->step(s);
    if (r == ST_MORE && !s->final)
        return false;
    if (r == ST_AGAIN)
        return true;
    if (r == ST_MORE && s->in_call) {
        st_end(s, false);
        st_drop(s, s->n);
    }
    if (f->whole) {
        st_text(s, s->n);
        return false;
    }
    if ((r == ST_REJECT || r == ST_MORE) && !s->began) {
        s->skip = s->mark + (s->own.which >= 0 ? strlen(f->open[s->own.which]) : 1);
        if (s->skip > s->n)
            s->skip = s->n;
    } else if (r == ST_MORE) {
        s->skip = s->n;
    }
    s->phase = PHASE_TEXT;
    s->own = (struct st_own){0};
    return true;
}

static int run(struct stream *s)
{
    bool more = true;
    st_window(s);
    while (more && !s->failed) {
        if (s->phase == PHASE_START)
            more = (s->n || s->final) && at_start(s);
        else if (s->phase == PHASE_THINK)
            more = in_think(s);
        else if (s->phase == PHASE_TEXT)
            more = (s->n || s->final) && in_text(s);
        else
            more = in_calls(s);
        s->failed |=
            s->key.failed || s->value.failed || s->name.failed || s->id.failed || s->close.failed;
    }
    buf_drop(&s->pend, s->head);
    s->head = 0;
    return s->failed ? ERR_NOMEM : 0;
}

int stream_push(struct stream *s, const char *text, size_t n)
{
    buf_add(&s->pend, text, n);
    if (s->pend.failed)
        s->failed = true;
    return s->failed ? ERR_NOMEM : run(s);
}

int stream_finish(struct stream *s)
{
    s->final = true;
    return s->failed ? ERR_NOMEM : run(s);
}
