/* Regular expressions to automata: Thompson's construction, then subsets. Anchors are edges that are open only at the
 * start (in the first closure) or at the end (when acceptance is asked about). */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/text/grammar_expr.h"

#define NFA_MAX 600000 /* states */

enum { EPS_FREE, EPS_BOL, EPS_EOL };
struct nfa_edge {
    uint8_t lo, hi, eps; /* eps: EPS_* of an edge without a byte */
    bool byte;
    int32_t to, next;
};
struct nfa {
    struct gr_builder *b;
    int32_t *first; /* [n] first edge of a state, -1 */
    size_t n, cap;
    struct nfa_edge *edge;
    size_t n_edge, cap_edge;
    int depth;
    bool eol;
    uint8_t *open; /* rules being inlined */
};

static int32_t state(struct nfa *a)
{
    if (a->n >= NFA_MAX) {
        gr_fail(a->b, ERR_LIMIT, "too large: a pattern or a repetition of it has too many parts");
        return -1;
    }
    if (!gr__grow(a->b, &a->first, a->n + 1, &a->cap, sizeof *a->first))
        return -1;
    a->first[a->n] = -1;
    return (int32_t)a->n++;
}

static void edge(struct nfa *a, int32_t from, struct nfa_edge e)
{
    if (from < 0 || e.to < 0 ||
        !gr__grow(a->b, &a->edge, a->n_edge + 1, &a->cap_edge, sizeof *a->edge))
        return;
    e.next = a->first[from];
    a->edge[a->n_edge] = e;
    a->first[from] = (int32_t)a->n_edge++;
}

static void eps(struct nfa *a, int32_t from, int32_t to)
{
    edge(a, from, (struct nfa_edge){.to = to});
}

static void bytes(struct nfa *a, int32_t from, int32_t to, uint8_t lo, uint8_t hi)
{
    edge(a, from, (struct nfa_edge){.byte = true, .lo = lo, .hi = hi, .to = to});
}

/* The texts of e lead from `from` to `to`. */
static void build(struct nfa *a, gr_expr e, int32_t from, int32_t to);

static void build_repeat(struct nfa *a, gr_expr e, const int32_t range[2], const int32_t ends[2])
{
    int32_t at = ends[0], to = ends[1];
    for (int32_t i = 0; i < range[0] && !a->b->err.code; i++) {
        int32_t next = state(a);
        build(a, e, at, next);
        at = next;
    }
    if (range[1] == GR_INF) {
        int32_t loop = state(a), back = state(a);
        eps(a, at, loop);
        build(a, e, loop, back);
        eps(a, back, loop);
        eps(a, loop, to);
        return;
    }
    eps(a, at, to);
    for (int32_t i = range[0]; i < range[1] && !a->b->err.code; i++) {
        int32_t next = state(a);
        build(a, e, at, next);
        eps(a, next, to);
        at = next;
    }
}

static void build_dfa(struct nfa *a, gr_expr e, int32_t from, int32_t to)
{
    const struct dfa *d = gr__dfa_of(a->b, e, 0);
    int32_t base = (int32_t)a->n;
    if (!d || !d->n_state)
        return;
    for (int32_t s = 0; s < d->n_state; s++)
        if (state(a) < 0)
            return;
    eps(a, from, base);
    for (int32_t s = 0; s < d->n_state; s++) {
        if (d->accept[s] & DFA_ACCEPT)
            eps(a, base + s, to);
        for (int lo = 0, hi; lo < 256; lo = hi) {
            uint16_t t = dfa_step(d, (uint16_t)s, (uint8_t)lo);
            for (hi = lo + 1; hi < 256 && dfa_step(d, (uint16_t)s, (uint8_t)hi) == t; hi++)
                ;
            if (t != DFA_DEAD)
                bytes(a, base + s, base + t, (uint8_t)lo, (uint8_t)(hi - 1));
        }
    }
}

static void build_multiple(struct nfa *a, int32_t m, int32_t from, int32_t to)
{
    int32_t base = (int32_t)a->n;
    for (int32_t r = 0; r < m; r++)
        if (state(a) < 0)
            return;
    bytes(a, from, to, '0', '0');
    for (int d = 0; d < 10; d++) {
        uint8_t c = (uint8_t)('0' + d);
        if (d)
            bytes(a, from, base + d % m, c, c);
        for (int32_t r = 0; r < m; r++)
            bytes(a, base + r, base + (r * 10 + d) % m, c, c);
    }
    eps(a, base, to);
}

static void build_rule(struct nfa *a, int32_t rule, int32_t from, int32_t to)
{
    struct gr_rule *r = &a->b->rule[rule];
    if (r->body == GR_FAIL || a->open[rule]) {
        gr_fail(a->b, ERR_UNSUPPORTED,
                "rule '%s' is recursive or not defined, and a regular "
                "expression is needed here",
                r->name);
        return;
    }
    a->open[rule] = 1;
    build(a, r->body, from, to);
    a->open[rule] = 0;
}

static void build_kids(struct nfa *a, const struct expr *x, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < x->b && !a->b->err.code; i++) {
        gr_expr kid = a->b->kid[x->a + i];
        int32_t next = to;
        if (x->kind == X_SEQ && i + 1 < x->b)
            next = state(a);
        build(a, kid, from, next);
        if (x->kind == X_SEQ)
            from = next;
    }
}

static void build_lit(struct nfa *a, const struct expr *x, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < x->b; i++) {
        int32_t next = i + 1 < x->b ? state(a) : to;
        uint8_t c = (uint8_t)a->b->lit.p[x->a + i];
        bytes(a, from, next, c, c);
        from = next;
    }
}

/* Inside of another expression nothing is counted: unrolled. */
static void build_bounded(struct nfa *a, const struct expr *x, int32_t from, int32_t to)
{
    gr_expr both = gr_and(a->b, x->a, gr_repeat(a->b, x->b, 0, x->c));
    if (both != GR_FAIL)
        build_dfa(a, both, from, to);
}

static void build(struct nfa *a, gr_expr e, int32_t from, int32_t to)
{
    if (a->b->err.code || from < 0 || to < 0)
        return;
    struct expr x = a->b->x[e];
    if (++a->depth > 2000) {
        gr_fail(a->b, ERR_LIMIT, "nested too deeply");
        return;
    }
    switch (x.kind) {
    case X_EMPTY:
        eps(a, from, to);
        break;
    case X_RANGE:
        bytes(a, from, to, (uint8_t)x.a, (uint8_t)x.b);
        break;
    case X_LIT:
        build_lit(a, &x, from, to);
        break;
    case X_SEQ:
    case X_ALT:
        build_kids(a, &x, from, to);
        break;
    case X_REP:
    case X_COUNTED:
        build_repeat(a, x.a, (int32_t[]){x.b, x.c}, (int32_t[]){from, to});
        break;
    case X_RULE:
        build_rule(a, x.a, from, to);
        break;
    case X_BOUNDED:
        build_bounded(a, &x, from, to);
        break;
    case X_LEX:
    case X_AND:
    case X_NOT:
        build_dfa(a, e, from, to);
        break;
    case X_MULTIPLE:
        build_multiple(a, x.a, from, to);
        break;
    case X_BOL:
        edge(a, from, (struct nfa_edge){.eps = EPS_BOL, .to = to});
        break;
    case X_EOL:
        a->eol = true;
        edge(a, from, (struct nfa_edge){.eps = EPS_EOL, .to = to});
        break;
    case X_SET:
    case X_KEY:
    case X_UNIQUE:
        gr_fail(a->b, ERR_UNSUPPORTED, "a set of members is not a regular expression");
        break;
    default: /* X_NEVER */
        break;
    }
    a->depth--;
}

/* ---- subsets ---- */

struct subset {
    size_t off, n; /* states, in order, in pool */
};
struct arrow {
    int32_t to, next;
};
struct maker {
    struct nfa *a;
    int32_t accept;
    uint8_t lo[256]; /* first byte of each class */
    struct dfa *raw;
    struct subset *set;
    size_t n_set, cap_set, cap_next, cap_accept, max;
    int32_t *pool;
    size_t n_pool, cap_pool;
    uint32_t *slot;
    size_t n_slot;
    uint32_t *mark, stamp; /* [n] of states in the closure being made */
    int32_t *todo;
    int32_t *got; /* closure: the states that matter */
    size_t n_got;
    int32_t head[256];
    struct arrow *arrow;
    size_t n_arrow, cap_arrow;
};

static void find_classes(struct maker *m)
{
    bool cut[257] = {true};
    const struct nfa *a = m->a;
    int n = 0;
    for (size_t i = 0; i < a->n_edge; i++)
        if (a->edge[i].byte)
            cut[a->edge[i].lo] = cut[a->edge[i].hi + 1] = true;
    for (int c = 0; c < 256; c++) {
        if (cut[c])
            m->lo[n++] = (uint8_t)c;
        m->raw->cls[c] = (uint8_t)(n - 1);
    }
    m->raw->n_class = n;
}

/* Follow edges without a byte from what is in todo[0..top); `open`: bits of the EPS_* that are. Keeps states that have byte
 * or end edges, or are the accepting one. */
static void closure(struct maker *m, size_t top, unsigned open)
{
    const struct nfa *a = m->a;
    m->n_got = 0;
    while (top) {
        int32_t s = m->todo[--top];
        bool keep = s == m->accept;
        for (int32_t i = a->first[s]; i >= 0; i = a->edge[i].next) {
            const struct nfa_edge *e = &a->edge[i];
            keep |= e->byte || e->eps == EPS_EOL;
            if (e->byte || !(open >> e->eps & 1) || m->mark[e->to] == m->stamp)
                continue;
            m->mark[e->to] = m->stamp;
            m->todo[top++] = e->to;
        }
        if (keep)
            m->got[m->n_got++] = s;
    }
}

static int by_number(const void *pa, const void *pb)
{
    int32_t a = *(const int32_t *)pa, b = *(const int32_t *)pb;
    return (a > b) - (a < b);
}

static bool accepts(struct maker *m, const int32_t *s, size_t n)
{
    size_t top = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] == m->accept)
            return true;
    if (!m->a->eol)
        return false;
    m->stamp++;
    for (size_t i = 0; i < n; i++) {
        m->mark[s[i]] = m->stamp;
        m->todo[top++] = s[i];
    }
    closure(m, top, 1u << EPS_FREE | 1u << EPS_EOL);
    for (size_t i = 0; i < m->n_got; i++)
        if (m->got[i] == m->accept)
            return true;
    return false;
}

static int resize_slots(struct maker *m)
{
    size_t n = m->n_slot ? m->n_slot * 2 : 256;
    uint32_t *slot = mem_calloc(n, sizeof *slot);
    if (!slot)
        return ERR_NOMEM;
    for (size_t i = 0; i < m->n_set; i++) {
        uint64_t h = 0;
        for (size_t k = 0; k < m->set[i].n; k++)
            h = hash_u64(h ^ (uint32_t)m->pool[m->set[i].off + k]);
        size_t at = h & (n - 1);
        while (slot[at])
            at = (at + 1) & (n - 1);
        slot[at] = (uint32_t)i + 1;
    }
    free(m->slot);
    m->slot = slot;
    m->n_slot = n;
    return 0;
}

/* The DFA state of the set in got. */
static int number(struct maker *m, uint16_t *out)
{
    struct gr_builder *b = m->a->b;
    uint64_t h = 0;
    if (!m->n_got) {
        *out = DFA_DEAD;
        return 0;
    }
    qsort(m->got, m->n_got, sizeof *m->got, by_number);
    for (size_t k = 0; k < m->n_got; k++)
        h = hash_u64(h ^ (uint32_t)m->got[k]);
    if (m->n_set * 2 >= m->n_slot && resize_slots(m))
        return ERR_NOMEM;
    size_t at = h & (m->n_slot - 1), size = m->n_got * sizeof *m->got;
    for (; m->slot[at]; at = (at + 1) & (m->n_slot - 1)) {
        struct subset *s = &m->set[m->slot[at] - 1];
        if (s->n == m->n_got && memcmp(m->pool + s->off, m->got, size) == 0) {
            *out = (uint16_t)(m->slot[at] - 1);
            return 0;
        }
    }
    size_t k = (size_t)m->raw->n_class;
    if (m->n_set >= m->max || m->n_pool > (size_t)64 << 20)
        return ERR_LIMIT;
    if (!gr__grow(b, &m->set, m->n_set + 1, &m->cap_set, sizeof *m->set) ||
        !gr__grow(b, &m->pool, m->n_pool + m->n_got, &m->cap_pool, sizeof *m->pool) ||
        !gr__grow(b, &m->raw->accept, m->n_set + 1, &m->cap_accept, 1) ||
        !gr__grow(b, &m->raw->next, (m->n_set + 1) * k, &m->cap_next, sizeof *m->raw->next))
        return ERR_NOMEM;
    m->set[m->n_set] = (struct subset){m->n_pool, m->n_got};
    memcpy(m->pool + m->n_pool, m->got, size);
    m->n_pool += m->n_got;
    m->slot[at] = (uint32_t)m->n_set + 1;
    *out = (uint16_t)m->n_set++;
    m->raw->accept[*out] = accepts(m, m->pool + m->set[*out].off, m->set[*out].n);
    return 0;
}

/* Where the set goes by each class: arrows from head[c]. */
static int arrows(struct maker *m, const int32_t *s, size_t n)
{
    const struct nfa *a = m->a;
    m->n_arrow = 0;
    memset(m->head, 0xFF, sizeof m->head);
    for (size_t k = 0; k < n; k++)
        for (int32_t i = a->first[s[k]]; i >= 0; i = a->edge[i].next) {
            const struct nfa_edge *e = &a->edge[i];
            if (!e->byte)
                continue;
            int lo = m->raw->cls[e->lo], hi = m->raw->cls[e->hi];
            if (!gr__grow(a->b, &m->arrow, m->n_arrow + (size_t)(hi - lo) + 1, &m->cap_arrow,
                          sizeof *m->arrow))
                return ERR_NOMEM;
            for (int c = lo; c <= hi; c++) {
                m->arrow[m->n_arrow] = (struct arrow){e->to, m->head[c]};
                m->head[c] = (int32_t)m->n_arrow++;
            }
        }
    return 0;
}

static int run(struct maker *m, int32_t start)
{
    uint16_t s;
    m->stamp = 1;
    m->mark[start] = 1;
    m->todo[0] = start;
    closure(m, 1, 1u << EPS_FREE | 1u << EPS_BOL);
    int rc = number(m, &s);
    for (size_t i = 0; !rc && i < m->n_set; i++) {
        if (i % 64 == 0 && !gr_in_time(m->a->b))
            return ERR_LIMIT;
        rc = arrows(m, m->pool + m->set[i].off, m->set[i].n);
        for (int c = 0; !rc && c < m->raw->n_class; c++) {
            size_t top = 0;
            m->stamp++;
            for (int32_t k = m->head[c]; k >= 0; k = m->arrow[k].next) {
                int32_t to = m->arrow[k].to;
                if (m->mark[to] != m->stamp) {
                    m->mark[to] = m->stamp;
                    m->todo[top++] = to;
                }
            }
            closure(m, top, 1u << EPS_FREE);
            rc = number(m, &s);
            if (!rc)
                m->raw->next[i * (size_t)m->raw->n_class + (size_t)c] = s;
        }
    }
    m->raw->n_state = (int32_t)m->n_set;
    return rc;
}

static int subsets(struct nfa *a, const int32_t ends[2], size_t most, struct dfa **out)
{
    struct maker m = {.a = a, .accept = ends[1], .max = most < 65000 ? most : 65000};
    int rc = ERR_NOMEM;
    m.raw = mem_calloc(1, sizeof *m.raw);
    m.mark = mem_calloc(a->n + 1, sizeof *m.mark);
    m.todo = mem_alloc((a->n + 1) * sizeof *m.todo);
    m.got = mem_alloc((a->n + 1) * sizeof *m.got);
    if (m.raw && m.mark && m.todo && m.got) {
        find_classes(&m);
        rc = run(&m, ends[0]);
    }
    free(m.mark);
    free(m.todo);
    free(m.got);
    free(m.set);
    free(m.pool);
    free(m.slot);
    free(m.arrow);
    if (rc) {
        gr__dfa_free(m.raw);
        return rc;
    }
    return gr__dfa_finish(out, m.raw);
}

int gr__nfa_dfa(struct gr_builder *b, gr_expr e, size_t most, struct dfa **out)
{
    struct nfa a = {.b = b};
    int rc = ERR_NOMEM;
    a.open = mem_calloc(b->n_rule + 1, 1);
    if (a.open) {
        int32_t ends[2];
        ends[0] = state(&a);
        ends[1] = state(&a);
        build(&a, e, ends[0], ends[1]);
        rc = b->err.code ? b->err.code : subsets(&a, ends, most, out);
    }
    free(a.first);
    free(a.edge);
    free(a.open);
    return rc;
}
