/* Tokens of a vocabulary as a trie in depth-first order, and the terminals that its grammars share. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/text/grammar_impl.h"

#define KEPT_MAX ((size_t)96 << 20) /* terms that no grammar uses are dropped over this */
#define L1_WORTH 4096               /* trie nodes: masks that cost more are kept */

/* ---- trie ---- */

struct sorter {
    const char *text;
    const uint32_t *off;
};

static int by_bytes(const void *pa, const void *pb, void *arg)
{
    const struct sorter *s = arg;
    int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;
    uint32_t na = s->off[a + 1] - s->off[a], nb = s->off[b + 1] - s->off[b];
    int d = memcmp(s->text + s->off[a], s->text + s->off[b], na < nb ? na : nb);
    if (d)
        return d;
    return na != nb ? (na < nb ? -1 : 1) : (a > b) - (a < b);
}

static int copy_tokens(struct grammar_vocab *v, const struct tokenizer *t)
{
    struct buf b = {0};
    v->off = mem_calloc((size_t)v->n_vocab + 1, sizeof *v->off);
    if (!v->off)
        return ERR_NOMEM;
    int32_t n_tok = tok_n_vocab(t);
    for (int32_t id = 0; id < v->n_vocab; id++) {
        if (id < n_tok && tok_is_control(t, id)) {
            unsigned char c[CONTROL_LEN] = {CONTROL_BYTE, (unsigned char)(id >> 24),
                                            (unsigned char)(id >> 16), (unsigned char)(id >> 8),
                                            (unsigned char)id};
            buf_add(&b, c, sizeof c);
        } else if (id < n_tok) {
            struct view w = tok_bytes(t, id, false);
            /* No text has that byte, and what it begins is a control token: a lone byte's token must not spell one. */
            if (w.len && w.len < TRIE_DEPTH && !memchr(w.p, CONTROL_BYTE, w.len))
                buf_add(&b, w.p, w.len);
        }
        v->off[id + 1] = (uint32_t)b.len;
    }
    if (b.failed || b.len > UINT32_MAX / 2) {
        buf_free(&b);
        return ERR_NOMEM;
    }
    buf_char(&b, 0);
    v->text = buf_take(&b, NULL);
    return v->text ? 0 : ERR_NOMEM;
}

/* Nodes along sorted tokens: what a token shares with the one before is there already. */
static int build_trie(struct grammar_vocab *v)
{
    size_t total = v->off[v->n_vocab], n = 0;
    int32_t *order = mem_alloc((size_t)v->n_vocab * sizeof *order + 1);
    v->node = mem_calloc(total + 1, sizeof *v->node);
    v->trie_tok = order;
    if (!order || !v->node)
        return ERR_NOMEM;
    for (int32_t id = 0; id < v->n_vocab; id++)
        if (v->off[id + 1] > v->off[id])
            order[n++] = id;
    struct sorter so = {v->text, v->off};
    qsort_r(order, n, sizeof *order, by_bytes, &so);
    uint32_t path[TRIE_DEPTH + 1] = {0}, depth = 0;
    v->n_node = 1;
    for (size_t k = 0; k < n; k++) {
        const char *s = v->text + v->off[order[k]];
        uint32_t len = v->off[order[k] + 1] - v->off[order[k]], same = 0;
        while (same < depth && same < len && v->node[path[same + 1]].byte == (uint8_t)s[same])
            same++;
        for (; depth > same; depth--)
            v->node[path[depth]].end = v->n_node;
        for (; depth < len; depth++) {
            path[depth + 1] = v->n_node++;
            struct trie_node *d = &v->node[path[depth + 1]];
            d->byte = (uint8_t)s[depth];
            d->depth = (uint8_t)(depth + 1);
        }
        struct trie_node *d = &v->node[path[len]];
        if (!d->n_tok)
            d->tok = (int32_t)k;
        if (d->n_tok < UINT16_MAX)
            d->n_tok++;
    }
    for (; depth > 0; depth--)
        v->node[path[depth]].end = v->n_node;
    v->node[0].end = v->n_node;
    return 0;
}

int grammar_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, int32_t n_vocab,
                       struct err *e)
{
    struct grammar_vocab *v = n_vocab > 0 ? mem_calloc(1, sizeof *v) : NULL;
    if (!v)
        return err_set(e, n_vocab > 0 ? ERR_NOMEM : ERR_INVAL, "no memory for a vocabulary's trie");
    atomic_init(&v->refs, 1);
    v->n_vocab = n_vocab;
    v->n_word = ((size_t)n_vocab + 31) / 32;
    CHECK(!pthread_mutex_init(&v->lock, NULL));
    int rc = copy_tokens(v, t);
    if (!rc)
        rc = build_trie(v);
    if (rc) {
        grammar_vocab_unref(v);
        return err_set(e, rc, "no memory for a vocabulary's trie");
    }
    *out = v;
    return 0;
}

struct grammar_vocab *grammar_vocab_ref(struct grammar_vocab *v)
{
    if (v)
        atomic_fetch_add(&v->refs, 1);
    return v;
}

static void term_free(struct term *t)
{
    for (int32_t i = 0; t->l1 && i < t->d->n_state; i++)
        gr__lmask_free(t->l1[i]);
    free(t->l1);
    free(t->rest);
    free(t->texts);
    gr__dfa_free(t->d);
    free(t);
}

void grammar_vocab_unref(struct grammar_vocab *v)
{
    if (!v || atomic_fetch_sub(&v->refs, 1) > 1)
        return;
    for (int i = 0; i < TERM_BUCKETS; i++)
        for (struct term *t = v->term[i], *next; t; t = next) {
            next = t->next;
            CHECK(!t->refs);
            term_free(t);
        }
    pthread_mutex_destroy(&v->lock);
    free(v->text);
    free(v->off);
    free(v->node);
    free(v->trie_tok);
    free(v);
}

/* ---- terms ---- */

static bool same_dfa(const struct dfa *a, const struct dfa *b)
{
    return a->hash == b->hash && a->n_state == b->n_state && a->n_class == b->n_class &&
           memcmp(a->cls, b->cls, sizeof a->cls) == 0 &&
           memcmp(a->accept, b->accept, (size_t)a->n_state) == 0 &&
           memcmp(a->next, b->next, (size_t)a->n_state * (size_t)a->n_class * sizeof *a->next) == 0;
}

static void drop_unused(struct grammar_vocab *v)
{
    for (int i = 0; i < TERM_BUCKETS; i++)
        for (struct term **at = &v->term[i]; *at;) {
            struct term *t = *at;
            if (t->refs) {
                at = &t->next;
                continue;
            }
            *at = t->next;
            v->kept -= t->bytes;
            term_free(t);
        }
}

/* rest[s]: characters to go, by relaxing edges until nothing changes; few rounds, since counts are small where it
 * matters and edges go forward. */
static uint16_t *rest_of(const struct dfa *d)
{
    size_t n = (size_t)d->n_state, k = (size_t)d->n_class;
    uint16_t *rest = mem_alloc(n * sizeof *rest + 1);
    if (!rest)
        return NULL;
    for (size_t s = 0; s < n; s++)
        rest[s] = d->accept[s] & DFA_ACCEPT ? 0 : UINT16_MAX;
    for (bool more = true; more;) {
        more = false;
        for (size_t s = n; s-- > 0;)
            for (size_t c = 0; c < k; c++) {
                uint16_t to = d->next[s * k + c];
                if (to == DFA_DEAD || rest[to] == UINT16_MAX)
                    continue;
                unsigned r = rest[to] + (d->accept[to] & DFA_CHAR ? 1u : 0u);
                if (r < rest[s]) {
                    rest[s] = (uint16_t)r;
                    more = true;
                }
            }
    }
    return rest;
}

int32_t gr__term_least(const struct dfa *d)
{
    uint16_t *rest = rest_of(d);
    int32_t r = rest && d->n_state ? rest[0] : INT32_MAX;
    free(rest);
    return r;
}

int gr__term_texts(struct grammar_vocab *v, struct term *t)
{
    pthread_mutex_lock(&v->lock);
    if (!t->texts)
        t->texts = gr__texts(t->d);
    int rc = t->texts ? 0 : ERR_NOMEM;
    pthread_mutex_unlock(&v->lock);
    return rc;
}

struct term *gr__term_get(struct grammar_vocab *v, struct dfa *d, bool counted)
{
    pthread_mutex_lock(&v->lock);
    struct term **head = &v->term[(d->hash ^ counted) % TERM_BUCKETS], *t = *head;
    while (t && !(t->counted == counted && same_dfa(t->d, d)))
        t = t->next;
    if (t) {
        gr__dfa_free(d);
    } else if ((t = mem_calloc(1, sizeof *t)) != NULL) {
        t->d = d;
        t->counted = counted;
        t->l1 = mem_calloc((size_t)d->n_state + 1, sizeof *t->l1);
        if (counted)
            t->rest = rest_of(d);
        if (!t->l1 || (counted && !t->rest)) {
            term_free(t);
            t = NULL;
        } else {
            t->bytes = gr__dfa_bytes(d) + sizeof *t + (size_t)d->n_state * sizeof *t->l1;
            v->kept += t->bytes;
            t->next = *head;
            *head = t;
        }
    } else {
        gr__dfa_free(d);
    }
    if (t)
        t->refs++;
    pthread_mutex_unlock(&v->lock);
    return t;
}

void gr__term_put(struct grammar_vocab *v, struct term *t)
{
    pthread_mutex_lock(&v->lock);
    t->refs--;
    if (v->kept > KEPT_MAX)
        drop_unused(v);
    pthread_mutex_unlock(&v->lock);
}

/* ---- masks of terminals ---- */

void gr__lmask_free(struct lmask *m)
{
    if (!m)
        return;
    free(m->bits);
    free(m->exit);
    free(m->tok);
    free(m);
}

struct filler {
    struct lmask *m;
    size_t cap_exit, cap_tok;
};

static int add_exit(struct filler *f, uint32_t node, int32_t n_char)
{
    struct lmask *m = f->m;
    if (m->n_exit == f->cap_exit) {
        size_t cap = f->cap_exit ? f->cap_exit * 2 : 64;
        void *p = mem_realloc(m->exit, cap * sizeof *m->exit);
        if (!p)
            return ERR_NOMEM;
        m->exit = p;
        f->cap_exit = cap;
    }
    m->exit[m->n_exit++] = (struct lmask_exit){node, n_char};
    return 0;
}

static int add_tokens(struct filler *f, const struct grammar_vocab *v, const struct trie_node *d,
                      bool counted, int32_t n_char)
{
    struct lmask *m = f->m;
    for (int32_t k = d->tok; k < d->tok + d->n_tok; k++) {
        int32_t tok = v->trie_tok[k];
        m->bits[tok / 32] |= 1u << (tok % 32);
        if (!counted)
            continue;
        if (m->n_tok == f->cap_tok) {
            size_t cap = f->cap_tok ? f->cap_tok * 2 : 1024;
            void *p = mem_realloc(m->tok, cap * sizeof *m->tok);
            if (!p)
                return ERR_NOMEM;
            m->tok = p;
            f->cap_tok = cap;
        }
        m->tok[m->n_tok++] = (struct lmask_tok){tok, n_char};
    }
    return 0;
}

static int by_chars(const void *pa, const void *pb)
{
    const struct lmask_tok *a = pa, *b = pb;
    return a->n_char != b->n_char ? (a->n_char > b->n_char ? -1 : 1) : 0;
}

/* Walk the trie from one state. Returns the nodes visited, or ERR_NOMEM. */
static int64_t fill(const struct grammar_vocab *v, const struct term *t, uint16_t from,
                    struct filler *f)
{
    uint16_t state[TRIE_DEPTH + 1];
    int32_t chars[TRIE_DEPTH + 1]; /* finished */
    int64_t visits = 0;
    const struct dfa *d = t->d;
    state[0] = from;
    chars[0] = 0;
    for (uint32_t i = 1; i < v->n_node; visits++) {
        const struct trie_node *at = &v->node[i];
        uint16_t s = dfa_step(d, state[at->depth - 1], at->byte);
        if (s == DFA_DEAD) {
            i = at->end;
            continue;
        }
        uint8_t acc = d->accept[s] & DFA_ACCEPT;
        state[at->depth] = s;
        chars[at->depth] = chars[at->depth - 1] + ((d->accept[s] & DFA_CHAR) != 0);
        if (at->n_tok &&
            add_tokens(f, v, at, t->counted, chars[at->depth] + (t->counted ? t->rest[s] : 0)))
            return ERR_NOMEM;
        if (acc && at->end > i + 1 && add_exit(f, i, chars[at->depth]))
            return ERR_NOMEM;
        i = d->accept[s] & DFA_OUT ? i + 1 : at->end;
    }
    return visits;
}

static size_t lmask_bytes(const struct grammar_vocab *v, const struct lmask *m)
{
    return sizeof *m + v->n_word * 4 + m->n_exit * sizeof *m->exit + m->n_tok * sizeof *m->tok;
}

const struct lmask *gr__lmask(struct grammar_vocab *v, struct term *t, uint16_t state, bool *own,
                              uint64_t *cost)
{
    pthread_mutex_lock(&v->lock);
    struct lmask *m = t->l1[state];
    pthread_mutex_unlock(&v->lock);
    *own = false;
    if (m)
        return m;
    m = mem_calloc(1, sizeof *m);
    struct filler f = {.m = m};
    if (m)
        m->bits = mem_calloc(v->n_word, 4);
    int64_t visits = m && m->bits ? fill(v, t, state, &f) : ERR_NOMEM;
    if (visits < 0) {
        gr__lmask_free(m);
        return NULL;
    }
    if (t->counted)
        qsort(m->tok, m->n_tok, sizeof *m->tok, by_chars);
    *own = true;
    *cost += (uint64_t)visits;
    if (visits < L1_WORTH)
        return m;
    pthread_mutex_lock(&v->lock);
    size_t bytes = lmask_bytes(v, m);
    if (v->kept + bytes > KEPT_MAX)
        drop_unused(v);
    if (!t->l1[state] && v->kept + bytes <= KEPT_MAX) {
        t->l1[state] = m;
        t->bytes += bytes;
        v->kept += bytes;
        *own = false;
    }
    pthread_mutex_unlock(&v->lock);
    return m;
}
