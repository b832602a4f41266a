/* Automata: trimming, merging of equal states, products, complement. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/text/grammar_impl.h"

#define MERGE_ROUNDS 48 /* long chains need one round a state: those stay as they are */
#define MERGE_STATES 12000

void gr__dfa_free(struct dfa *d)
{
    if (!d)
        return;
    free(d->next);
    free(d->accept);
    free(d);
}

size_t gr__dfa_bytes(const struct dfa *d)
{
    return sizeof *d + (size_t)d->n_state * ((size_t)d->n_class * sizeof *d->next + 1);
}

bool gr__dfa_has(const struct dfa *d, const void *text, size_t n)
{
    const uint8_t *p = text;
    uint16_t s = 0;
    if (!d->n_state)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((s = dfa_step(d, s, p[i])) == DFA_DEAD)
            return false;
    return d->accept[s] & DFA_ACCEPT;
}

static struct dfa *dfa_new(int32_t n_state, int32_t n_class)
{
    struct dfa *d = mem_calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->n_state = n_state;
    d->n_class = n_class;
    d->next = mem_alloc((size_t)n_state * (size_t)n_class * sizeof *d->next + 1);
    d->accept = mem_calloc((size_t)n_state + 1, 1);
    if (!d->next || !d->accept) {
        gr__dfa_free(d);
        return NULL;
    }
    return d;
}

/* alive[s]: s reaches an accepting state. Backwards along reversed edges. */
static int find_alive(const struct dfa *d, uint8_t *alive)
{
    size_t n = (size_t)d->n_state, k = (size_t)d->n_class, n_edge = 0, top = 0;
    uint32_t *first = mem_calloc(n + 1, sizeof *first);
    uint16_t *from = mem_alloc(n * k * sizeof *from + 1), *todo = mem_alloc(n * sizeof *todo + 1);
    int rc = first && from && todo ? 0 : ERR_NOMEM;
    if (rc)
        goto out;
    for (size_t i = 0; i < n * k; i++)
        if (d->next[i] != DFA_DEAD)
            first[d->next[i] + 1]++;
    for (size_t s = 0; s < n; s++)
        first[s + 1] += first[s];
    n_edge = first[n];
    (void)n_edge;
    for (size_t i = n * k; i-- > 0;)
        if (d->next[i] != DFA_DEAD)
            from[--first[d->next[i] + 1]] = (uint16_t)(i / k);
    /* first[s + 1] is now where the edges into s begin */
    for (size_t s = 0; s < n; s++)
        if (d->accept[s] & DFA_ACCEPT) {
            alive[s] = 1;
            todo[top++] = (uint16_t)s;
        }
    while (top) {
        size_t s = todo[--top];
        size_t end = s + 2 <= n ? first[s + 2] : n_edge;
        for (size_t i = first[s + 1]; i < end; i++)
            if (!alive[from[i]]) {
                alive[from[i]] = 1;
                todo[top++] = from[i];
            }
    }
out:
    free(first);
    free(from);
    free(todo);
    return rc;
}

/* Moore's refinement: part[s] = block of s, *n_part blocks. Gives up (each state its own block) when it takes long. */
struct sig {
    uint64_t h;
    uint16_t s;
};
static int by_sig(const void *pa, const void *pb)
{
    const struct sig *a = pa, *b = pb;
    return a->h != b->h ? (a->h < b->h ? -1 : 1) : (a->s > b->s) - (a->s < b->s);
}

static uint64_t signature(const struct dfa *d, const uint16_t *part, size_t s)
{
    uint64_t h = part[s] + 1u;
    for (int32_t c = 0; c < d->n_class; c++) {
        uint16_t to = d->next[s * (size_t)d->n_class + (size_t)c];
        h = hash_u64(h ^ (to == DFA_DEAD ? 0xFFFFFFu : part[to]) ^ (h << 7));
    }
    return h;
}

static bool equal_rows(const struct dfa *d, const uint16_t *part, size_t x, size_t y)
{
    size_t k = (size_t)d->n_class;
    if (part[x] != part[y])
        return false;
    for (size_t c = 0; c < k; c++) {
        uint16_t a = d->next[x * k + c], b = d->next[y * k + c];
        if ((a == DFA_DEAD) != (b == DFA_DEAD) || (a != DFA_DEAD && part[a] != part[b]))
            return false;
    }
    return true;
}

static int merge(const struct dfa *d, uint16_t *part, size_t *n_part)
{
    size_t n = (size_t)d->n_state;
    struct sig *sig = mem_alloc(n * sizeof *sig + 1);
    uint16_t *fresh = mem_alloc(n * sizeof *fresh + 1);
    if (!sig || !fresh) {
        free(sig);
        free(fresh);
        return ERR_NOMEM;
    }
    size_t count = 0;
    bool done = false;
    for (size_t s = 0; s < n; s++)
        part[s] = d->accept[s] & (DFA_ACCEPT | DFA_CHAR);
    for (int round = 0; round < MERGE_ROUNDS && n <= MERGE_STATES && !done; round++) {
        for (size_t s = 0; s < n; s++)
            sig[s] = (struct sig){signature(d, part, s), (uint16_t)s};
        qsort(sig, n, sizeof *sig, by_sig);
        size_t blocks = 0;
        for (size_t i = 0; i < n; i++) {
            /* equal hashes of unequal rows split: that costs a merge, never the language */
            bool same =
                i && sig[i].h == sig[i - 1].h && equal_rows(d, part, sig[i].s, sig[i - 1].s);
            blocks += !same;
            fresh[sig[i].s] = (uint16_t)(blocks - 1);
        }
        done = blocks == count;
        count = blocks;
        memcpy(part, fresh, n * sizeof *part);
    }
    if (!done)
        for (size_t s = 0; s < n; s++)
            part[s] = (uint16_t)s;
    *n_part = done ? count : n;
    free(sig);
    free(fresh);
    return 0;
}

static uint64_t content_hash(const struct dfa *d)
{
    uint64_t h = (uint64_t)d->n_state * 31 + (uint64_t)d->n_class;
    for (int i = 0; i < 256; i++)
        h = hash_u64(h ^ d->cls[i]);
    for (size_t i = 0; i < (size_t)d->n_state * (size_t)d->n_class; i++)
        h = hash_u64(h ^ d->next[i]);
    for (int32_t i = 0; i < d->n_state; i++)
        h = hash_u64(h ^ d->accept[i]);
    return h;
}

struct order {        /* blocks in breadth-first order from the start */
    uint16_t *number; /* of a block, 0xFFFF = not reached */
    uint16_t *member; /* a state of block number i */
    size_t n;
};

static void walk_blocks(const struct dfa *raw, const uint16_t *part, size_t n_part, struct order *o)
{
    size_t k = (size_t)raw->n_class;
    memset(o->number, 0xFF, n_part * sizeof *o->number);
    if (raw->n_state) {
        o->number[part[0]] = 0;
        o->member[o->n++] = 0;
    }
    for (size_t i = 0; i < o->n; i++)
        for (size_t c = 0; c < k; c++) {
            uint16_t to = raw->next[o->member[i] * k + c];
            if (to == DFA_DEAD || o->number[part[to]] != 0xFFFF)
                continue;
            o->number[part[to]] = (uint16_t)o->n;
            o->member[o->n++] = to;
        }
}

static bool same_column(const struct dfa *raw, const uint16_t *part, const struct order *o,
                        size_t x, size_t y)
{
    size_t k = (size_t)raw->n_class;
    for (size_t i = 0; i < o->n; i++) {
        uint16_t a = raw->next[o->member[i] * k + x], b = raw->next[o->member[i] * k + y];
        if ((a == DFA_DEAD) != (b == DFA_DEAD) || (a != DFA_DEAD && part[a] != part[b]))
            return false;
    }
    return true;
}

/* The automaton of the blocks, with equal byte classes merged. */
static int rebuild(struct dfa **out, const struct dfa *raw, const uint16_t *part, size_t n_part)
{
    size_t k = (size_t)raw->n_class, rep[256], n_col = 0;
    uint8_t map[256];
    struct order o = {.number = mem_alloc(n_part * sizeof *o.number + 1),
                      .member = mem_alloc(n_part * sizeof *o.member + 1)};
    struct dfa *d = NULL;
    if (!o.number || !o.member)
        goto out;
    walk_blocks(raw, part, n_part, &o);
    for (size_t c = 0; c < k; c++) {
        size_t r = 0;
        while (r < n_col && !same_column(raw, part, &o, c, rep[r]))
            r++;
        if (r == n_col)
            rep[n_col++] = c;
        map[c] = (uint8_t)r;
    }
    d = dfa_new((int32_t)o.n, (int32_t)n_col);
    if (!d)
        goto out;
    for (int b = 0; b < 256; b++)
        d->cls[b] = map[raw->cls[b]];
    for (size_t i = 0; i < o.n; i++) {
        d->accept[i] = raw->accept[o.member[i]] & (DFA_ACCEPT | DFA_CHAR);
        for (size_t c = 0; c < n_col; c++) {
            uint16_t to = raw->next[o.member[i] * k + rep[c]];
            d->next[i * n_col + c] = to == DFA_DEAD ? (uint16_t)DFA_DEAD : o.number[part[to]];
            if (to != DFA_DEAD)
                d->accept[i] |= DFA_OUT;
        }
    }
    d->hash = content_hash(d);
    *out = d;
out:
    free(o.number);
    free(o.member);
    return d ? 0 : ERR_NOMEM;
}

int gr__dfa_finish(struct dfa **out, struct dfa *raw)
{
    size_t n = (size_t)raw->n_state, k = (size_t)raw->n_class, n_part = n;
    uint8_t *alive = mem_calloc(n + 1, 1);
    uint16_t *part = mem_alloc(n * sizeof *part + 1);
    int rc = alive && part ? find_alive(raw, alive) : ERR_NOMEM;
    if (!rc && n && !alive[0])
        raw->n_state = 0;
    for (size_t i = 0; !rc && i < n * k; i++)
        if (raw->next[i] != DFA_DEAD && !alive[raw->next[i]])
            raw->next[i] = DFA_DEAD;
    if (!rc)
        rc = merge(raw, part, &n_part);
    if (!rc)
        rc = rebuild(out, raw, part, n_part);
    free(alive);
    free(part);
    gr__dfa_free(raw);
    return rc;
}

/* ---- products ---- */

/* States are pairs; y's may be DFA_DEAD when `neg` (then y says nothing against x). */
struct product {
    const struct dfa *x, *y;
    struct dfa *raw;
    uint32_t *pair;           /* [n] x state << 16 | y state */
    uint32_t *slot, n_slot;   /* hash of pairs: index + 1 */
    uint8_t cx[256], cy[256]; /* classes of x and y behind a class of the product */
    size_t n, max;
    bool mark;
};

static int pair_state(struct product *p, uint32_t pair, uint16_t *out)
{
    uint32_t at = (uint32_t)hash_u64(pair) & (p->n_slot - 1);
    for (; p->slot[at]; at = (at + 1) & (p->n_slot - 1))
        if (p->pair[p->slot[at] - 1] == pair) {
            *out = (uint16_t)(p->slot[at] - 1);
            return 0;
        }
    if (p->n == p->max)
        return ERR_LIMIT;
    p->pair[p->n] = pair;
    p->slot[at] = (uint32_t)++p->n;
    *out = (uint16_t)(p->n - 1);
    return 0;
}

static void product_classes(struct product *p)
{
    int n = 0;
    for (int b = 0; b < 256; b++) {
        int c = 0;
        while (c < n && !(p->cx[c] == p->x->cls[b] && p->cy[c] == p->y->cls[b]))
            c++;
        if (c == n) {
            p->cx[n] = p->x->cls[b];
            p->cy[n++] = p->y->cls[b];
        }
        p->raw->cls[b] = (uint8_t)c;
    }
    p->raw->n_class = n;
}

static int product_run(struct product *p, bool neg)
{
    size_t k = (size_t)p->raw->n_class;
    uint16_t s;
    int rc = pair_state(p, (p->y->n_state ? 0 : DFA_DEAD), &s);
    for (size_t i = 0; !rc && i < p->n; i++) {
        uint16_t sx = (uint16_t)(p->pair[i] >> 16), sy = (uint16_t)p->pair[i];
        bool ax = p->x->accept[sx] & DFA_ACCEPT;
        bool ay = sy != DFA_DEAD && p->y->accept[sy] & DFA_ACCEPT;
        p->raw->accept[i] = ax && (neg ? !ay : ay) ? DFA_ACCEPT : 0;
        if (p->mark && ay)
            p->raw->accept[i] |= DFA_CHAR;
        for (size_t c = 0; !rc && c < k; c++) {
            uint16_t *to = &p->raw->next[i * k + c];
            uint16_t tx = p->x->next[(size_t)sx * (size_t)p->x->n_class + p->cx[c]];
            uint16_t ty = DFA_DEAD;
            if (sy != DFA_DEAD)
                ty = p->y->next[(size_t)sy * (size_t)p->y->n_class + p->cy[c]];
            *to = DFA_DEAD;
            if (tx != DFA_DEAD && (neg || ty != DFA_DEAD))
                rc = pair_state(p, (uint32_t)tx << 16 | ty, to);
        }
    }
    return rc;
}

enum { AND, NOT, MARK };
static int product(struct dfa **out, const struct dfa *x, const struct dfa *y, size_t max, int how)
{
    bool neg = how == NOT;
    if (max > 65000)
        max = 65000;
    size_t most = (size_t)x->n_state * ((size_t)y->n_state + 1) + 1;
    struct product p = {
        .x = x, .y = y, .max = most < max ? most : max, .n_slot = 16, .mark = how == MARK};
    int rc = ERR_NOMEM;
    while (p.n_slot < 2 * p.max)
        p.n_slot *= 2;
    p.raw = mem_calloc(1, sizeof *p.raw);
    p.pair = mem_alloc(p.max * sizeof *p.pair);
    p.slot = mem_calloc(p.n_slot, sizeof *p.slot);
    if (p.raw)
        product_classes(&p);
    if (p.raw) {
        p.raw->next = mem_alloc(p.max * (size_t)p.raw->n_class * sizeof *p.raw->next);
        p.raw->accept = mem_calloc(p.max, 1);
    }
    if (p.raw && p.pair && p.slot && p.raw->next && p.raw->accept) {
        rc = 0;
        if (x->n_state && (neg || y->n_state))
            rc = product_run(&p, neg);
        p.raw->n_state = (int32_t)p.n;
    }
    free(p.pair);
    free(p.slot);
    if (rc) {
        gr__dfa_free(p.raw);
        return rc;
    }
    return gr__dfa_finish(out, p.raw);
}

int gr__dfa_and(struct dfa **out, const struct dfa *x, const struct dfa *y, size_t max_state)
{
    return product(out, x, y, max_state, AND);
}

int gr__dfa_mark(struct dfa **out, const struct dfa *x, const struct dfa *y, size_t max_state)
{
    return product(out, x, y, max_state, MARK);
}

int gr__dfa_not(struct dfa **out, const struct dfa *x, size_t max_state)
{
    struct dfa all = {.n_state = 1, .n_class = 1};
    uint16_t next[1] = {0};
    uint8_t accept[1] = {DFA_ACCEPT | DFA_OUT};
    all.next = next;
    all.accept = accept;
    return product(out, &all, x, max_state, NOT);
}
