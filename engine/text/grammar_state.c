/* Where a choice stands in its grammar: threads, their stacks, and one byte's step. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/text/grammar_impl.h"

#define COMPACT_AT 4096 /* frames: look for unused ones from here on */

static bool grow(void *arrayp, int32_t n, int32_t *cap, size_t size)
{
    void **array = arrayp;
    if (n <= *cap)
        return true;
    int32_t want = *cap ? *cap * 2 : 64;
    while (want < n)
        want *= 2;
    void *p = mem_realloc(*array, (size_t)want * size);
    if (!p)
        return false;
    *array = p;
    *cap = want;
    return true;
}

/* ---- frames ---- */

static uint64_t frame_hash(int32_t node, uint64_t val, uint64_t below)
{
    return hash_u64(hash_u64(below ^ (uint32_t)node) ^ val);
}

static int rebucket(struct grammar_state *s)
{
    int32_t n = s->n_bucket ? s->n_bucket : 256;
    while (n < 2 * s->n_frame)
        n *= 2;
    if (n > s->n_bucket) {
        int32_t *p = mem_realloc(s->bucket, (size_t)n * sizeof *p);
        if (!p)
            return ERR_NOMEM;
        s->bucket = p;
        s->n_bucket = n;
    }
    memset(s->bucket, 0, (size_t)s->n_bucket * sizeof *s->bucket);
    for (int32_t i = 1; i < s->n_frame; i++) { /* later ones stand before earlier ones */
        int32_t *head = &s->bucket[s->frame[i].hash & (uint64_t)(s->n_bucket - 1)];
        s->frame[i].chain = *head;
        *head = i;
    }
    return 0;
}

/* Frames of lists are told apart by what their keys are, not by where they stand. */
static uint64_t val_hash(const struct grammar_state *s, int32_t node, uint64_t val)
{
    return s->g->unique && s->g->node[node].kind == N_UNIQUE ? s->frame[val].hash : val;
}

int32_t gr__frame_get(struct grammar_state *s, int32_t node, uint64_t val, int32_t parent)
{
    return gr__frame(s, node, val, parent,
                     frame_hash(node, val_hash(s, node, val), s->frame[parent].hash));
}

int32_t gr__frame(struct grammar_state *s, int32_t node, uint64_t val, int32_t parent, uint64_t h)
{
    int32_t *head = &s->bucket[h & (uint64_t)(s->n_bucket - 1)];
    for (int32_t i = *head; i; i = s->frame[i].chain) {
        const struct gframe *f = &s->frame[i];
        if (f->hash == h && f->node == node && f->val == val && f->parent == parent)
            return i;
    }
    if (s->n_frame >= GR_MAX_FRAME)
        return ERR_LIMIT;
    if (!grow(&s->frame, s->n_frame + 1, &s->cap_frame, sizeof *s->frame))
        return ERR_NOMEM;
    if (s->n_frame * 2 > s->n_bucket) {
        if (rebucket(s))
            return ERR_NOMEM;
        head = &s->bucket[h & (uint64_t)(s->n_bucket - 1)];
    }
    s->frame[s->n_frame] =
        (struct gframe){.node = node, .parent = parent, .val = val, .chain = *head, .hash = h};
    *head = s->n_frame;
    return s->n_frame++;
}

void gr__frames_cut(struct grammar_state *s, int32_t n_frame)
{
    while (s->n_frame > n_frame) {
        const struct gframe *f = &s->frame[--s->n_frame];
        s->bucket[f->hash & (uint64_t)(s->n_bucket - 1)] = f->chain;
    }
}

static bool is_list(const struct grammar_state *s, const struct gframe *f)
{
    return f->node >= 0 && s->g->unique && s->g->node[f->node].kind == N_UNIQUE;
}

/* Drop frames that no thread of `now` stands on. Parents come before children, so one pass each way does. */
static int compact(struct grammar_state *s)
{
    int32_t *to = mem_calloc((size_t)s->n_frame, sizeof *to), n = 1;
    if (!to)
        return ERR_NOMEM;
    for (int32_t i = 0; i < s->now.n; i++)
        to[s->now.t[i].frame] = 1;
    for (int32_t i = s->n_frame - 1; i > 0; i--)
        if (to[i]) {
            to[s->frame[i].parent] = 1;
            if (is_list(s, &s->frame[i]))
                to[s->frame[i].val] = 1;
        }
    to[0] = 0;
    for (int32_t i = 1; i < s->n_frame; i++)
        if (to[i]) {
            struct gframe f = s->frame[i];
            f.parent = to[f.parent];
            if (is_list(s, &f))
                f.val = (uint64_t)to[f.val];
            to[i] = n;
            s->frame[n++] = f;
        }
    for (int32_t i = 0; i < s->now.n; i++)
        s->now.t[i].frame = to[s->now.t[i].frame];
    s->n_frame = n;
    free(to);
    return rebucket(s);
}

/* ---- what was seen ---- */

static int grow_seen(struct grammar_state *s)
{
    uint32_t n = s->n_seen * 2;
    struct gr_seen *p = mem_calloc(n, sizeof *p);
    if (!p)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < s->n_seen; i++) {
        const struct gr_seen *e = &s->seen[i];
        if (e->stamp != s->stamp)
            continue;
        uint64_t h = frame_hash(e->node, e->val, (uint64_t)e->frame << 32);
        uint32_t at = (uint32_t)h & (n - 1);
        while (p[at].stamp == s->stamp)
            at = (at + 1) & (n - 1);
        p[at] = *e;
    }
    free(s->seen);
    s->seen = p;
    s->n_seen = n;
    return 0;
}

/* 1: new, noted; 0: seen before; < 0 on failure. */
static int note(struct grammar_state *s, int32_t node, uint64_t val, int32_t frame)
{
    uint32_t at = (uint32_t)frame_hash(node, val, (uint64_t)frame << 32) & (s->n_seen - 1);
    for (; s->seen[at].stamp == s->stamp; at = (at + 1) & (s->n_seen - 1)) {
        const struct gr_seen *e = &s->seen[at];
        if (e->node == node && e->val == val && e->frame == frame)
            return 0;
    }
    s->seen[at] = (struct gr_seen){node, frame, val, s->stamp};
    if (++s->seen_used * 2 > s->n_seen && grow_seen(s))
        return ERR_NOMEM;
    return 1;
}

void gr__config_begin(struct grammar_state *s, struct gconfig *c)
{
    c->n = 0;
    c->may_end = false;
    s->seen_used = 0;
    if (++s->stamp == 0) { /* wrapped: old stamps would look new */
        memset(s->seen, 0, s->n_seen * sizeof *s->seen);
        s->stamp = 1;
    }
}

/* ---- closure ---- */

static int add_thread(struct grammar_state *s, struct gconfig *c, struct gthread t)
{
    uint64_t val = 1ull << 63 | (uint64_t)t.state << 32 | (uint32_t)t.count;
    int fresh = note(s, t.node, val, t.frame);
    if (fresh <= 0)
        return fresh;
    if (c->n >= GR_MAX_THREAD)
        return ERR_LIMIT;
    if (!grow(&c->t, c->n + 1, &c->cap, sizeof *c->t))
        return ERR_NOMEM;
    c->t[c->n++] = t;
    return 0;
}

static int push(struct grammar_state *s, int32_t node, uint64_t val, int32_t frame)
{
    if (frame < 0)
        return frame;
    if (!grow(&s->todo, s->n_todo + 1, &s->cap_todo, sizeof *s->todo))
        return ERR_NOMEM;
    s->todo[s->n_todo++] = (struct gr_seen){.node = node, .frame = frame, .val = val};
    return 0;
}

static int enter_count(struct grammar_state *s, const struct gnode *n, const struct gr_seen *at)
{
    int rc = 0;
    uint64_t min = (uint64_t)n->min, next = at->val + 1;
    if (at->val >= min)
        rc = push(s, n->next, 0, at->frame);
    if (n->max == GR_INF && next > min) /* from here on all counts are alike */
        next = min;
    if (!rc && (n->max == GR_INF || at->val < (uint64_t)n->max))
        rc = push(s, n->a, 0, gr__frame_get(s, at->node, next, at->frame));
    return rc;
}

static int enter_set(struct grammar_state *s, const struct gnode *n, const struct gr_seen *at)
{
    int rc = 0, used = __builtin_popcountll(at->val);
    int wanted = __builtin_popcountll(n->must & ~at->val);
    if (used >= n->min && !wanted)
        rc = push(s, n->next, 0, at->frame);
    for (int i = 0; i < n->n && !rc && used < n->max; i++) {
        uint64_t bit = 1ull << i;
        if (at->val & bit || (!(n->must & bit) && used + wanted >= n->max))
            continue;
        int32_t kid = s->g->kid[n->a + 2 * i + (used > 0)];
        rc = push(s, kid, 0, gr__frame_get(s, at->node, at->val | bit, at->frame));
    }
    return rc;
}

static int enter_unique(struct grammar_state *s, const struct gnode *n, const struct gr_seen *at)
{
    int32_t have = gr__keys(s, at->val);
    int rc = have >= n->min ? push(s, n->next, 0, at->frame) : 0;
    if (!rc && have < n->max)
        rc = push(s, s->g->kid[n->a + (have > 0)], 0,
                  gr__frame_get(s, at->node, at->val, at->frame));
    return rc;
}

static int enter_term(struct grammar_state *s, struct gconfig *c, const struct gr_seen *at)
{
    const struct gnode *n = &s->g->node[at->node];
    const struct term *t = s->g->term[n->a];
    int rc = 0;
    if (t->d->accept[0] & DFA_ACCEPT && n->min == 0)
        rc = push(s, n->next, 0, at->frame);
    struct gthread th = {.node = at->node, .frame = at->frame, .count = n->n ? s->pos : 0};
    if (!rc && t->d->accept[0] & DFA_OUT && (!n->n || gr__key_alive(s, &th)))
        rc = add_thread(s, c, th);
    return rc;
}

static int enter_one(struct grammar_state *s, struct gconfig *c, const struct gr_seen *at)
{
    const struct gnode *n = &s->g->node[at->node];
    const struct gframe *f;
    int rc = 0;
    switch (n->kind) {
    case N_TERM:
        return enter_term(s, c, at);
    case N_CALL: /* a call at a rule's end returns to where the rule does */
        if (s->g->node[n->next].kind == N_RET)
            return push(s, n->a, 0, at->frame);
        return push(s, n->a, 0, gr__frame_get(s, n->next, 0, at->frame));
    case N_ALT:
        for (int32_t i = n->n; i-- > 0 && !rc;)
            rc = push(s, s->g->kid[n->a + i], 0, at->frame);
        return rc;
    case N_COUNT:
        return enter_count(s, n, at);
    case N_SET:
        return enter_set(s, n, at);
    case N_UNIQUE:
        return enter_unique(s, n, at);
    default:
        if (!at->frame) {
            c->may_end = true;
            return 0;
        }
        f = &s->frame[at->frame];
        return push(s, f->node, f->val, f->parent);
    }
}

int gr__enter(struct grammar_state *s, struct gconfig *c, int32_t node, uint64_t val, int32_t frame)
{
    s->n_todo = 0;
    int rc = push(s, node, val, frame);
    while (!rc && s->n_todo) {
        struct gr_seen at = s->todo[--s->n_todo];
        int fresh = note(s, at.node, at.val, at.frame);
        rc = fresh > 0 ? enter_one(s, c, &at) : fresh;
    }
    return rc;
}

int gr__step(struct grammar_state *s, const struct gconfig *c, uint8_t byte, struct gconfig *out)
{
    int rc = 0;
    gr__config_begin(s, out);
    if (s->g->unique)
        s->text[s->pos++] = (char)byte;
    for (int32_t i = 0; i < c->n && !rc; i++) {
        struct gthread t = c->t[i];
        const struct gnode *n = &s->g->node[t.node];
        const struct term *m = s->g->term[n->a];
        uint16_t to = dfa_step(m->d, t.state, byte);
        if (to == DFA_DEAD)
            continue;
        uint8_t acc = m->d->accept[to];
        bool more = acc & DFA_OUT, end = acc & DFA_ACCEPT;
        if (m->counted) {
            if (acc & DFA_CHAR && (n->max != GR_INF || t.count < n->min))
                t.count++;
            if (n->max != GR_INF && t.count > n->max - m->rest[to])
                continue;
            end = end && t.count >= n->min;
            more = more && !(n->max != GR_INF && acc & DFA_CHAR && t.count >= n->max);
        }
        t.state = to;
        int32_t frame = t.frame;
        if (end && n->n && (rc = gr__key_end(s, &t, &frame)) == ERR_INVAL) {
            end = false;
            rc = 0;
        }
        if (end && !rc)
            rc = gr__enter(s, out, n->next, 0, frame);
        more = more && (!n->n || gr__key_alive(s, &t));
        if (more && !rc)
            rc = add_thread(s, out, t);
    }
    return rc;
}

/* ---- the door ---- */

int grammar_state_open(struct grammar_state **out, struct grammar *g)
{
    struct grammar_state *s = mem_calloc(1, sizeof *s);
    if (!s)
        return ERR_NOMEM;
    s->g = grammar_ref(g);
    s->n_seen = 256;
    s->seen = mem_calloc(s->n_seen, sizeof *s->seen);
    s->scratch = mem_alloc(g->v->n_word * 4 + 1);
    int rc = s->seen && s->scratch && !gr__text_room(s, 0) &&
                     grow(&s->frame, 1, &s->cap_frame, sizeof *s->frame)
                 ? 0
                 : ERR_NOMEM;
    if (!rc) {
        s->frame[0] = (struct gframe){.hash = 0x9E3779B97F4A7C15u};
        s->n_frame = 1;
        rc = rebucket(s);
    }
    if (!rc) {
        gr__config_begin(s, &s->now);
        rc = gr__enter(s, &s->now, g->entry, 0, 0);
    }
    if (rc) {
        grammar_state_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void grammar_state_close(struct grammar_state *s)
{
    if (!s)
        return;
    for (int i = 0; i <= TRIE_DEPTH; i++)
        free(s->level[i].t);
    free(s->now.t);
    free(s->tmp.t);
    free(s->frame);
    free(s->bucket);
    free(s->seen);
    free(s->todo);
    free(s->scratch);
    free(s->text);
    grammar_unref(s->g);
    free(s);
}

int grammar_state_copy(struct grammar_state *dst, const struct grammar_state *src)
{
    CHECK(dst->g == src->g);
    if (!grow(&dst->frame, src->n_frame, &dst->cap_frame, sizeof *dst->frame) ||
        !grow(&dst->now.t, src->now.n, &dst->now.cap, sizeof *dst->now.t))
        return ERR_NOMEM;
    memcpy(dst->frame, src->frame, (size_t)src->n_frame * sizeof *dst->frame);
    dst->n_frame = src->n_frame;
    if (src->now.n)
        memcpy(dst->now.t, src->now.t, (size_t)src->now.n * sizeof *dst->now.t);
    dst->now.n = src->now.n;
    dst->now.may_end = src->now.may_end;
    dst->len = src->len;
    int rc = gr__text_room(dst, 0);
    if (rc)
        return rc;
    if (src->len)
        memcpy(dst->text, src->text, (size_t)src->len);
    return rebucket(dst);
}

int grammar_accept(struct grammar_state *s, int32_t token)
{
    const struct grammar_vocab *v = s->g->v;
    if (token < 0 || token >= v->n_vocab || v->off[token] == v->off[token + 1])
        return ERR_INVAL;
    const char *p = v->text + v->off[token];
    uint32_t n = v->off[token + 1] - v->off[token];
    int32_t n_frame = s->n_frame;
    const struct gconfig *from = &s->now;
    int rc = gr__text_room(s, n);
    if (rc)
        return rc;
    s->pos = s->len;
    for (uint32_t i = 0; i < n; i++) {
        struct gconfig *to = &s->level[i % 2];
        rc = gr__step(s, from, (uint8_t)p[i], to);
        if (!rc && !to->n && !(to->may_end && i + 1 == n))
            rc = ERR_INVAL;
        if (rc) {
            gr__frames_cut(s, n_frame);
            return rc;
        }
        from = to;
    }
    struct gconfig last = s->level[(n - 1) % 2];
    s->level[(n - 1) % 2] = s->now;
    s->now = last;
    s->len += s->g->unique ? (int32_t)n : 0;
    return s->n_frame > COMPACT_AT ? compact(s) : 0;
}

bool grammar_may_end(const struct grammar_state *s)
{
    return s->now.may_end;
}

bool grammar_must_end(const struct grammar_state *s)
{
    return s->now.may_end && !s->now.n;
}
