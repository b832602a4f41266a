/* Items that differ: each has a key, a terminal whose texts must be different within one list. The keys that were written are a chain
 * of frames of their own, so that they are shared, cut and compacted with the stacks:
 *
 *   frame { node N_UNIQUE, val: newest key } ... key { node -1 - n, val: where its text stands, parent: the key before }
 *
 * What a key's text is stands in the state's own copy of what was written. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/text/grammar_impl.h"

#define SCOPE_DEPTH 64 /* frames between a key and its list */

/* ---- how many texts ---- */

/* Into[s] += texts that begin with one more byte; saturates. */
static int32_t more(int32_t have, int64_t n, int32_t each)
{
    if (each == GR_INF || have == GR_INF)
        return GR_INF;
    int64_t r = have + n * each;
    return r >= GR_INF ? GR_INF : (int32_t)r;
}

/* Sources of edges by their target, as lists: head[n_state], link[n_state * n_class]. */
static void link_edges(const struct dfa *d, int32_t *head, int32_t *link, int32_t *out)
{
    int32_t n = d->n_state, k = d->n_class;
    memset(head, 0xFF, (size_t)n * sizeof *head);
    for (int32_t s = 0; s < n; s++) {
        out[s] = 0;
        for (int32_t c = 0; c < k; c++) {
            uint16_t to = d->next[s * k + c];
            if (to == DFA_DEAD)
                continue;
            out[s]++;
            link[s * k + c] = head[to];
            head[to] = s * k + c;
        }
    }
}

/* From the ends backwards; what is never reached so leads into a loop and has texts without end. */
static void count_back(const struct dfa *d, const int32_t *head, const int32_t *link, int32_t *out,
                       int32_t *todo, int32_t *texts)
{
    int64_t width[256] = {0};
    int32_t n_todo = 0;
    for (int b = 0; b < 256; b++)
        width[d->cls[b]]++;
    for (int32_t s = 0; s < d->n_state; s++) {
        texts[s] = GR_INF;
        if (!out[s])
            todo[n_todo++] = s;
    }
    while (n_todo) {
        int32_t s = todo[--n_todo], sum = d->accept[s] & DFA_ACCEPT ? 1 : 0;
        for (int32_t c = 0; c < d->n_class; c++) {
            uint16_t to = d->next[s * d->n_class + c];
            if (to != DFA_DEAD)
                sum = more(sum, width[c], texts[to]);
        }
        texts[s] = sum;
        for (int32_t e = head[s]; e >= 0; e = link[e])
            if (--out[e / d->n_class] == 0)
                todo[n_todo++] = e / d->n_class;
    }
}

int32_t *gr__texts(const struct dfa *d)
{
    size_t n = (size_t)d->n_state, k = (size_t)d->n_class;
    int32_t *texts = mem_alloc(n * sizeof *texts + 1);
    int32_t *work = mem_alloc((3 * n + n * k + 1) * sizeof *work);
    if (texts && work) {
        link_edges(d, work, work + 3 * n, work + n);
        count_back(d, work, work + 3 * n, work + n, work + 2 * n, texts);
    } else {
        free(texts);
        texts = NULL;
    }
    free(work);
    return texts;
}

/* ---- keys ---- */

static uint32_t key_start(const struct gframe *f)
{
    return (uint32_t)(f->val >> 32);
}
static uint32_t key_len(const struct gframe *f)
{
    return (uint32_t)f->val;
}

int32_t gr__keys(const struct grammar_state *s, uint64_t newest)
{
    return newest ? -1 - s->frame[newest].node : 0;
}

/* The frame of the list that a key above `frame` belongs to; 0: none. */
static int32_t scope_of(const struct grammar_state *s, int32_t frame)
{
    while (frame && s->g->node[s->frame[frame].node].kind != N_UNIQUE)
        frame = s->frame[frame].parent;
    return frame;
}

static bool used(const struct grammar_state *s, int32_t newest, const char *text, size_t n)
{
    for (int32_t k = newest; k; k = s->frame[k].parent) {
        const struct gframe *f = &s->frame[k];
        if (key_len(f) == n && memcmp(s->text + key_start(f), text, n) == 0)
            return true;
    }
    return false;
}

/* Whether a key of the terminal m that begins with the n bytes at `start`, which lead to state, can be a new one. */
static bool alive(const struct grammar_state *s, const struct term *m, int32_t newest,
                  const char *start, size_t n, uint16_t state)
{
    int32_t left = m->texts[state];
    if (left == GR_INF)
        return true;
    for (int32_t k = newest; k && left > 0; k = s->frame[k].parent) {
        const struct gframe *f = &s->frame[k];
        uint16_t at = state;
        if (key_len(f) < n || memcmp(s->text + key_start(f), start, n) != 0)
            continue;
        for (size_t i = n; i < key_len(f) && at != DFA_DEAD; i++)
            at = dfa_step(m->d, at, (uint8_t)s->text[key_start(f) + i]);
        left -= at != DFA_DEAD && m->d->accept[at] & DFA_ACCEPT;
    }
    return left > 0;
}

bool gr__key_alive(const struct grammar_state *s, const struct gthread *t)
{
    const struct term *m = s->g->term[s->g->node[t->node].a];
    int32_t scope = m->texts[t->state] == GR_INF ? 0 : scope_of(s, t->frame);
    return !scope || alive(s, m, (int32_t)s->frame[scope].val, s->text + t->count,
                           (size_t)(s->pos - t->count), t->state);
}

/* The key start .. start + len into the list of the scope; the frame that the thread stands on then. */
static int32_t with_key(struct grammar_state *s, int32_t frame, int32_t start, int32_t len)
{
    int32_t above[SCOPE_DEPTH], n = 0, scope = scope_of(s, frame);
    if (!scope)
        return frame;
    for (; frame != scope; frame = s->frame[frame].parent) {
        if (n == SCOPE_DEPTH)
            return ERR_LIMIT;
        above[n++] = frame;
    }
    struct gframe list = s->frame[scope];
    uint64_t h = hash_u64(s->frame[list.val].hash ^ 0x756E6971u);
    for (int32_t i = 0; i < len; i++)
        h = hash_u64(h ^ (uint8_t)s->text[start + i]);
    int32_t key = gr__frame(s, -2 - gr__keys(s, list.val), (uint64_t)start << 32 | (uint32_t)len,
                            (int32_t)list.val, h);
    int32_t to = key < 0 ? key : gr__frame_get(s, list.node, (uint64_t)key, list.parent);
    while (to > 0 && n) {
        struct gframe f = s->frame[above[--n]];
        to = gr__frame_get(s, f.node, f.val, to);
    }
    return to;
}

int gr__key_end(struct grammar_state *s, const struct gthread *t, int32_t *frame)
{
    int32_t scope = scope_of(s, t->frame);
    int32_t n = s->pos - t->count;
    *frame = 0;
    if (scope && used(s, (int32_t)s->frame[scope].val, s->text + t->count, (size_t)n))
        return ERR_INVAL;
    int32_t to = with_key(s, t->frame, t->count, n);
    if (to < 0)
        return to;
    *frame = to;
    return 0;
}

int32_t gr__key_any(struct grammar_state *s, const struct gthread *t)
{
    return with_key(s, t->frame, s->len, 0);
}

uint64_t gr__key_hash(const struct grammar_state *s, const struct gthread *t)
{
    uint64_t h = 1;
    if (!gr__keys(s, s->frame[scope_of(s, t->frame)].val)) /* nothing to differ from */
        return h;
    for (int32_t i = t->count; i < s->len; i++)
        h = hash_u64(h ^ (uint8_t)s->text[i]);
    return h;
}

/* The trie node of these bytes; 0: none. */
static uint32_t trie_find(const struct grammar_vocab *v, const char *p, size_t n)
{
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t k = at + 1, end = v->node[at].end;
        while (k < end && v->node[k].byte != (uint8_t)p[i])
            k = v->node[k].end;
        if (k >= end)
            return 0;
        at = k;
    }
    return at;
}

/* Tokens below a trie node, and its own. */
static void clear_below(const struct grammar_vocab *v, uint32_t at, uint32_t *bits)
{
    for (uint32_t i = at; at && i < v->node[at].end; i++)
        for (int32_t k = v->node[i].tok; k < v->node[i].tok + v->node[i].n_tok; k++)
            bits[v->trie_tok[k] / 32] &= ~(1u << (v->trie_tok[k] % 32));
}

void gr__key_forbid(const struct grammar_state *s, const struct gthread *t, uint32_t *bits)
{
    const struct grammar_vocab *v = s->g->v;
    const struct term *m = s->g->term[s->g->node[t->node].a];
    int32_t scope = scope_of(s, t->frame), newest = scope ? (int32_t)s->frame[scope].val : 0;
    size_t n = (size_t)(s->len - t->count);
    for (int32_t k = newest; k; k = s->frame[k].parent) {
        const struct gframe *f = &s->frame[k];
        const char *key = s->text + key_start(f);
        uint16_t at = t->state;
        if (key_len(f) <= n || memcmp(key, s->text + t->count, n) != 0)
            continue;
        /* where nothing but keys that were there is left, no token leads on */
        for (size_t i = n; i < key_len(f) && i < n + TRIE_DEPTH; i++) {
            if ((at = dfa_step(m->d, at, (uint8_t)key[i])) == DFA_DEAD)
                break;
            if (!alive(s, m, newest, key, i + 1, at)) {
                clear_below(v, trie_find(v, key + n, i + 1 - n), bits);
                break;
            }
        }
    }
}

int32_t gr__trie_path(struct grammar_state *s, uint32_t node)
{
    const struct grammar_vocab *v = s->g->v;
    int32_t n = 0;
    for (uint32_t at = 0; at != node && n < TRIE_DEPTH; n++) {
        uint32_t k = at + 1;
        while (v->node[k].end <= node)
            k = v->node[k].end;
        s->text[s->len + n] = (char)v->node[k].byte;
        at = k;
    }
    return n;
}

int gr__text_room(struct grammar_state *s, size_t n)
{
    size_t want = (size_t)s->len + n + 2 * TRIE_DEPTH + 16;
    if (!s->g->unique || want <= s->cap_text)
        return 0;
    if (want > INT32_MAX / 2)
        return ERR_LIMIT;
    char *p = mem_realloc(s->text, 2 * want);
    if (!p)
        return ERR_NOMEM;
    s->text = p;
    s->cap_text = 2 * want;
    return 0;
}
