/* Which tokens may come next. Every thread stands in a terminal. What the terminal itself allows from its state is
 * independent of the rest and kept with the terminal (grammar_vocab.c); only tokens in which it ends are followed into
 * what comes after it, from the trie nodes where it may end. Whole masks are kept by the hash of all threads and their
 * stacks, so a list's hundredth element costs a copy. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/text/grammar_impl.h"

#define L2_WORTH  512 /* trie nodes: masks that cost more are kept */
#define MANY_EXIT 16  /* exits from where a table of first bytes pays */

static void or_bits(uint32_t *to, const uint32_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] |= from[i];
}

static void set_tokens(const struct grammar_vocab *v, const struct trie_node *d, uint32_t *bits)
{
    for (int32_t k = d->tok; k < d->tok + d->n_tok; k++) {
        int32_t tok = v->trie_tok[k];
        bits[tok / 32] |= 1u << (tok % 32);
    }
}

/* Tokens below trie node `at` whose further bytes lead on from c. */
static int walk(struct grammar_state *s, uint32_t at, const struct gconfig *c, int level,
                uint32_t *bits)
{
    const struct grammar_vocab *v = s->g->v;
    struct gconfig *to = &s->level[level];
    for (uint32_t i = at + 1; i < v->node[at].end; i = v->node[i].end) {
        const struct trie_node *d = &v->node[i];
        s->visits++;
        s->pos = s->base + level;
        int rc = gr__step(s, c, d->byte, to);
        if (rc)
            return rc;
        if (!to->n && !to->may_end)
            continue;
        set_tokens(v, d, bits);
        if (to->n && d->end > i + 1) {
            rc = walk(s, i, to, level + 1, bits);
            if (rc)
                return rc;
        }
    }
    return 0;
}

/* Bytes that some thread of c can take. */
static void first_bytes(const struct grammar_state *s, const struct gconfig *c, bool first[256])
{
    memset(first, 0, 256 * sizeof *first);
    for (int32_t i = 0; i < c->n; i++) {
        const struct dfa *d = s->g->term[s->g->node[c->t[i].node].a]->d;
        bool ok[256];
        for (int k = 0; k < d->n_class; k++)
            ok[k] = d->next[(size_t)c->t[i].state * (size_t)d->n_class + (size_t)k] != DFA_DEAD;
        for (int b = 0; b < 256; b++)
            first[b] |= ok[d->cls[b]];
    }
}

static bool any_child(const struct grammar_vocab *v, uint32_t at, const bool first[256])
{
    for (uint32_t i = at + 1; i < v->node[at].end; i = v->node[i].end)
        if (first[v->node[i].byte])
            return true;
    return false;
}

/* Characters that the thread may still finish, and those it has to. */
struct room {
    int32_t most, least;
};

static struct room room_of(const struct grammar_state *s, const struct gthread *t)
{
    const struct gnode *n = &s->g->node[t->node];
    struct room r = {GR_INF, 0};
    if (!s->g->term[n->a]->counted)
        return r;
    if (n->max != GR_INF)
        r.most = n->max - t->count;
    if (n->min > t->count)
        r.least = n->min - t->count;
    return r;
}

static void add_own(struct grammar_state *s, const struct lmask *m, int32_t most, uint32_t *bits)
{
    size_t n_word = s->g->v->n_word, n = 0;
    if (!m->n_tok || m->tok[0].n_char <= most) {
        or_bits(bits, m->bits, n_word);
        return;
    }
    size_t lo = 0, hi = m->n_tok; /* the first that fits */
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (m->tok[mid].n_char > most)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo > m->n_tok / 2) { /* most are too long */
        for (n = lo; n < m->n_tok; n++)
            bits[m->tok[n].tok / 32] |= 1u << (m->tok[n].tok % 32);
        return;
    }
    memcpy(s->scratch, m->bits, n_word * 4);
    for (n = 0; n < lo; n++)
        s->scratch[m->tok[n].tok / 32] &= ~(1u << (m->tok[n].tok % 32));
    or_bits(bits, s->scratch, n_word);
}

static int add_exits(struct grammar_state *s, const struct gthread *t, const struct lmask *m,
                     struct room r, uint32_t *bits)
{
    const struct grammar_vocab *v = s->g->v;
    struct gconfig *next = &s->tmp;
    bool first[256], many = m->n_exit > MANY_EXIT;
    if (!m->n_exit)
        return 0;
    gr__config_begin(s, next);
    s->pos = s->base = s->len; /* what the terminal took is of no list */
    int rc = gr__enter(s, next, s->g->node[t->node].next, 0, t->frame);
    if (many)
        first_bytes(s, next, first);
    for (size_t i = 0; i < m->n_exit && !rc && next->n; i++) {
        const struct lmask_exit *e = &m->exit[i];
        s->visits++;
        if (e->n_char > r.most || e->n_char < r.least || (many && !any_child(v, e->node, first)))
            continue;
        rc = walk(s, e->node, next, 0, bits);
    }
    return rc;
}

/* A key goes on as any terminal does, but not to where it would be one that was there; where few texts are left, each byte is tried. */
static int add_key(struct grammar_state *s, const struct gthread *t, uint32_t *bits)
{
    struct grammar_vocab *v = s->g->v;
    const struct gnode *n = &s->g->node[t->node];
    struct term *term = s->g->term[n->a];
    struct gconfig *next = &s->tmp;
    bool first[256], own;
    int rc = 0;
    s->base = s->pos = s->len;
    if (term->texts[t->state] != GR_INF) {
        struct gthread *one = next->t; /* a list of its own, as walk() does not touch tmp */
        if (!next->cap && !(one = mem_alloc(64 * sizeof *one)))
            return ERR_NOMEM;
        next->cap = next->cap ? next->cap : 64;
        next->t = one;
        next->t[0] = *t;
        next->n = 1;
        return walk(s, 0, next, 0, bits);
    }
    const struct lmask *m = gr__lmask(v, term, t->state, &own, &s->visits);
    if (!m)
        return ERR_NOMEM;
    memcpy(s->scratch, m->bits, v->n_word * 4);
    gr__key_forbid(s, t, s->scratch);
    or_bits(bits, s->scratch, v->n_word);
    int32_t frame = gr__key_any(s, t);
    gr__config_begin(s, next);
    rc = frame < 0 ? frame : gr__enter(s, next, n->next, 0, frame);
    first_bytes(s, next, first);
    for (size_t i = 0; i < m->n_exit && !rc; i++) {
        s->visits++;
        if (!any_child(v, m->exit[i].node, first))
            continue;
        s->base = s->pos = s->len + gr__trie_path(s, m->exit[i].node);
        if ((rc = gr__key_end(s, t, &frame)) == ERR_INVAL) {
            rc = 0;
            continue;
        }
        gr__config_begin(s, next);
        if (!rc)
            rc = gr__enter(s, next, n->next, 0, frame);
        if (!rc)
            rc = walk(s, m->exit[i].node, next, 0, bits);
    }
    if (own)
        gr__lmask_free((struct lmask *)m);
    return rc;
}

static int compute(struct grammar_state *s, uint32_t *bits)
{
    int rc = 0;
    int32_t n_frame = s->n_frame;
    s->visits = 0;
    memset(bits, 0, s->g->v->n_word * 4);
    for (int32_t i = 0; i < s->now.n && !rc; i++) {
        const struct gthread *t = &s->now.t[i];
        bool own;
        if (s->g->node[t->node].n) {
            rc = add_key(s, t, bits);
            continue;
        }
        struct room r = room_of(s, t);
        struct term *term = s->g->term[s->g->node[t->node].a];
        const struct lmask *m = gr__lmask(s->g->v, term, t->state, &own, &s->visits);
        if (!m)
            return ERR_NOMEM;
        if (term->counted)
            add_own(s, m, r.most, bits);
        else
            or_bits(bits, m->bits, s->g->v->n_word);
        rc = add_exits(s, t, m, r, bits);
        if (own)
            gr__lmask_free((struct lmask *)m);
    }
    gr__frames_cut(s, n_frame);
    return rc;
}

static uint64_t config_key(const struct grammar_state *s)
{
    uint64_t h = (uint64_t)s->now.n + 1;
    for (int32_t i = 0; i < s->now.n; i++) {
        const struct gthread *t = &s->now.t[i];
        struct room r = room_of(s, t);
        if (r.most > TRIE_DEPTH) /* no token is longer */
            r.most = TRIE_DEPTH + 1;
        if (r.least > TRIE_DEPTH)
            r.least = TRIE_DEPTH + 1;
        h = hash_u64(h ^ (uint64_t)(uint32_t)t->node << 32 ^ (uint64_t)t->state << 16);
        h = hash_u64(h ^ s->frame[t->frame].hash);
        h = hash_u64(h ^ (uint64_t)(uint32_t)r.most << 32 ^ (uint32_t)r.least);
        if (s->g->node[t->node].n)
            h = hash_u64(h ^ gr__key_hash(s, t));
    }
    return h | 1;
}

/* Whether a mask of this key is kept: copied into bits. */
static bool look_up(struct grammar *g, uint64_t key, uint32_t *bits)
{
    bool hit = false;
    pthread_mutex_lock(&g->v->lock);
    struct l2_entry *e = &g->l2[(key >> 1) % L2_SLOTS];
    if (e->bits && e->key == key) {
        memcpy(bits, e->bits, g->v->n_word * 4);
        hit = true;
    }
    pthread_mutex_unlock(&g->v->lock);
    return hit;
}

static void keep(struct grammar *g, uint64_t key, const uint32_t *bits)
{
    pthread_mutex_lock(&g->v->lock);
    struct l2_entry *e = &g->l2[(key >> 1) % L2_SLOTS];
    if (!e->bits)
        e->bits = mem_alloc(g->v->n_word * 4);
    if (e->bits) {
        e->key = key;
        memcpy(e->bits, bits, g->v->n_word * 4);
    }
    pthread_mutex_unlock(&g->v->lock);
}

int grammar_mask(struct grammar_state *s, uint32_t *bits, size_t n_word)
{
    struct grammar *g = s->g;
    size_t own = g->v->n_word;
    bool any = false;
    uint64_t key = config_key(s);
    if (n_word < own) /* the caller's vocabulary is smaller: as much as it has */
        return ERR_INVAL;
    memset(bits + own, 0, (n_word - own) * 4);
    if (!look_up(g, key, bits)) {
        int rc = compute(s, bits);
        if (rc)
            return rc;
        if (s->visits > L2_WORTH)
            keep(g, key, bits);
    }
    for (size_t i = 0; i < own && !any; i++)
        any = bits[i] != 0;
    return any;
}
