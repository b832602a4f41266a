/* Expressions to a network: which parts become automata, which rules, and whether every part leads to an end. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/grammar_expr.h"

/* Parts of at most this many positions become automata unasked: enough for words and numbers, too few for a subset
 * construction to explode. */
#define AUTO_SIZE   400
#define AUTO_STATE  1500
#define DEPTH_MAX   4000
#define INLINE_SIZE 24

struct info {                  /* of an expression */
    bool known, regular, kept; /* kept: has a part that is an automaton of its own */
    uint32_t size;
};
enum { LIVE_UNKNOWN, LIVE_YES };

struct compiler {
    struct gr_builder *b;
    struct grammar *g;
    struct info *info; /* [n_x] */
    uint8_t *live;     /* [n_x] has a text */
    uint8_t *nullable; /* [n_x] has the empty text */
    uint8_t *open;     /* [n_rule] */
    int32_t *entry;    /* [n_rule] node or -1 */
    gr_expr *body;     /* [n_rule] without left recursion */
    size_t cap_node, cap_kid, cap_term;
    int32_t ret;
    int depth;
};

/* ---- facts ---- */

static uint32_t sat(uint64_t v)
{
    return v > 1000000 ? 1000000 : (uint32_t)v;
}

static struct info facts(struct compiler *c, gr_expr e);

static struct info fold(struct compiler *c, const struct expr *x)
{
    struct info r = {.known = true, .regular = true, .size = 1}, k;
    uint64_t size = 0;
    switch (x->kind) {
    case X_LIT:
        r.size = sat((uint64_t)x->b);
        break;
    case X_SEQ:
    case X_ALT:
        for (int32_t i = 0; i < x->b; i++) {
            k = facts(c, c->b->kid[x->a + i]);
            r.regular &= k.regular;
            r.kept |= k.kept;
            size += k.size;
        }
        r.size = sat(size);
        break;
    case X_REP:
        k = facts(c, x->a);
        r = k;
        r.size = sat((uint64_t)k.size * (uint64_t)(x->c == GR_INF ? x->b + 1 : x->c));
        break;
    case X_RULE:
        if (c->open[x->a] || c->body[x->a] == GR_FAIL) {
            r.regular = false;
            break;
        }
        c->open[x->a] = 1;
        r = facts(c, c->body[x->a]);
        c->open[x->a] = 0;
        break;
    case X_LEX:
    case X_AND:
    case X_NOT:
    case X_COUNTED:
    case X_BOUNDED:
    case X_MULTIPLE:
        r.kept = true;
        break;
    case X_SET:
    case X_KEY:
    case X_UNIQUE:
        r.regular = false;
        break;
    default:
        break;
    }
    return r;
}

static struct info facts(struct compiler *c, gr_expr e)
{
    if (c->info[e].known)
        return c->info[e];
    struct expr x = c->b->x[e];
    struct info r = {.known = true};
    if (++c->depth > DEPTH_MAX)
        gr_fail(c->b, ERR_LIMIT, "nested too deeply");
    else
        r = fold(c, &x);
    c->depth--;
    /* A part seen from inside a rule that is being looked at may only look irregular because of it: that is right,
     * since the rule then is recursive. */
    c->info[e] = r;
    return r;
}

/* One round of "has a text" and "has the empty text" over all expressions, rules included, until nothing changes. */
static bool live_of(const struct compiler *c, const struct expr *x, const uint8_t *f)
{
    const struct gr_builder *b = c->b;
    bool any = x->kind != X_ALT;
    switch (x->kind) {
    case X_NEVER:
        return false;
    case X_SEQ:
    case X_ALT:
        for (int32_t i = 0; i < x->b; i++) {
            bool k = f[b->kid[x->a + i]];
            any = x->kind == X_SEQ ? any && k : any || k;
        }
        return any;
    case X_REP:
        return x->b == 0 || f[x->a];
    case X_RULE:
        return c->body[x->a] != GR_FAIL && f[c->body[x->a]];
    default:
        return true;
    }
}

static bool nullable_of(struct compiler *c, const struct expr *x, gr_expr e)
{
    const struct gr_builder *b = c->b;
    const struct dfa *d;
    switch (x->kind) {
    case X_LIT:
    case X_RANGE:
    case X_NEVER:
    case X_MULTIPLE:
    case X_KEY:
    case X_UNIQUE:
        return false;
    case X_COUNTED:
        return x->b == 0;
    case X_BOUNDED:
        d = gr__dfa_of(c->b, x->a, 0);
        return d && d->n_state && d->accept[0] & DFA_ACCEPT;
    case X_LEX:
    case X_AND:
    case X_NOT:
        d = gr__dfa_of(c->b, e, 0);
        return d && d->n_state && d->accept[0] & DFA_ACCEPT;
    case X_SET: {
        const struct set_spec *s = &b->set[x->c];
        return !s->must && s->min <= 0;
    }
    case X_EMPTY:
    case X_BOL:
    case X_EOL:
        return true;
    default:
        return live_of(c, x, c->nullable);
    }
}

static bool set_live(const struct compiler *c, const struct expr *x)
{
    const struct set_spec *s = &c->b->set[x->c];
    int32_t n = 0;
    for (int32_t i = 0; i < x->b; i++) {
        bool ok = c->live[c->b->kid[x->a + 2 * i]] && c->live[c->b->kid[x->a + 2 * i + 1]];
        n += ok;
        if (!ok && s->must >> i & 1)
            return false;
    }
    return n >= s->min && __builtin_popcountll(s->must) <= s->max && s->min <= s->max;
}

/* The automaton of a counted expression, owned by the caller; NULL on failure. */
static struct dfa *marked(struct compiler *c, const struct expr *x)
{
    gr_expr chr = x->kind == X_COUNTED ? x->a : x->b;
    gr_expr all = gr_repeat(c->b, chr, 0, GR_INF);
    const struct dfa *chars = gr__dfa_of(c->b, all, 0);
    const struct dfa *d = x->kind == X_COUNTED ? chars : gr__dfa_of(c->b, x->a, 0);
    struct dfa *m = NULL;
    int rc = d && chars ? gr__dfa_mark(&m, d, chars, c->b->o.max_state) : ERR_INTERNAL;
    if (rc)
        gr_fail(c->b, rc,
                rc == ERR_LIMIT ? "too large: an automaton of it has too many states"
                                : "no memory");
    return rc ? NULL : m;
}

static bool one_live(struct compiler *c, gr_expr e)
{
    struct expr x = c->b->x[e];
    const struct dfa *d;
    if (x.kind == X_SET)
        return set_live(c, &x);
    if (x.kind == X_UNIQUE) {
        const struct set_spec *s = &c->b->set[x.c];
        return s->min <= s->max && c->live[c->b->kid[x.a]] &&
               (s->min <= 1 || c->live[c->b->kid[x.a + 1]]);
    }
    if (x.kind == X_KEY) {
        d = gr__dfa_of(c->b, x.a, 0);
        return d && d->n_state;
    }
    if (x.kind == X_LEX || x.kind == X_AND || x.kind == X_NOT) {
        d = gr__dfa_of(c->b, e, 0);
        return d && d->n_state;
    }
    if (x.kind == X_BOUNDED) {
        struct dfa *m = marked(c, &x);
        bool ok = m && m->n_state && gr__term_least(m) <= x.c;
        gr__dfa_free(m);
        return ok;
    }
    return live_of(c, &x, c->live);
}

/* Only what the root reaches is looked at: a builder may hold failed tries. */
static void reach(struct compiler *c, gr_expr root, gr_expr *list, size_t *n, uint8_t *seen)
{
    seen[root] = 1;
    list[(*n)++] = root;
    for (size_t i = 0; i < *n; i++) {
        struct expr x = c->b->x[list[i]];
        int32_t from = x.a, count = x.b;
        gr_expr one;
        const gr_expr *kid = NULL;
        if (x.kind == X_SEQ || x.kind == X_ALT || x.kind == X_SET || x.kind == X_UNIQUE) {
            kid = c->b->kid + from;
            count *= x.kind == X_SET ? 2 : 1;
        } else if (x.kind == X_REP) {
            one = x.a;
            kid = &one;
            count = 1;
        } else if (x.kind == X_RULE && c->body[x.a] != GR_FAIL) {
            one = c->body[x.a];
            kid = &one;
            count = 1;
        }
        for (int32_t k = 0; kid && k < count; k++)
            if (!seen[kid[k]]) {
                seen[kid[k]] = 1;
                list[(*n)++] = kid[k];
            }
    }
}

static void fixpoint(struct compiler *c, gr_expr root)
{
    size_t n = 0, n_x = c->b->n_x;
    gr_expr *list = mem_alloc(n_x * sizeof *list);
    uint8_t *seen = mem_calloc(n_x, 1);
    if (!list || !seen) {
        gr_fail(c->b, ERR_NOMEM, "no memory");
    } else {
        reach(c, root, list, &n, seen);
        for (bool more = true; more && !c->b->err.code;) {
            more = false;
            for (size_t i = n; i-- > 0;) {
                gr_expr e = list[i];
                struct expr x = c->b->x[e];
                if (!c->live[e] && one_live(c, e))
                    c->live[e] = more = true;
                if (!c->nullable[e] && nullable_of(c, &x, e))
                    c->nullable[e] = more = true;
            }
            if (!gr_in_time(c->b))
                break;
        }
    }
    free(list);
    free(seen);
}

/* ---- left recursion ---- */

/* rule: rule tail | other  becomes  other tail*; what is hidden deeper is refused in left_walk. */
static void unleft(struct gr_builder *b, gr_expr *body, int32_t rule)
{
    struct expr x = b->x[*body];
    gr_expr tails = gr_never(b), others = gr_never(b);
    bool found = false;
    int32_t n = x.kind == X_ALT ? x.b : 1;
    for (int32_t i = 0; i < n && !b->err.code; i++) {
        gr_expr e = x.kind == X_ALT ? b->kid[x.a + i] : *body;
        struct expr k = b->x[e];
        struct expr head = k.kind == X_SEQ ? b->x[b->kid[k.a]] : k;
        if (head.kind != X_RULE || head.a != rule) {
            others = gr_alt2(b, others, e);
            continue;
        }
        found = true;
        if (k.kind == X_SEQ) {
            gr_expr *rest = mem_alloc((size_t)k.b * sizeof *rest);
            if (!rest) {
                gr_fail(b, ERR_NOMEM, "no memory");
                return;
            }
            memcpy(rest, b->kid + k.a + 1, (size_t)(k.b - 1) * sizeof *rest);
            tails = gr_alt2(b, tails, gr_seq(b, rest, (size_t)k.b - 1));
            free(rest);
        }
    }
    if (found)
        *body = gr_seq2(b, others, gr_repeat(b, tails, 0, GR_INF));
}

/* Rules that e may enter before any byte. */
static void left_walk(struct compiler *c, gr_expr e)
{
    struct gr_builder *b = c->b;
    struct expr x = b->x[e];
    if (b->err.code)
        return;
    if (++c->depth > DEPTH_MAX) {
        gr_fail(b, ERR_LIMIT, "nested too deeply");
        return;
    }
    if (x.kind == X_REP) {
        left_walk(c, x.a);
    } else if (x.kind == X_SEQ || x.kind == X_ALT || x.kind == X_SET || x.kind == X_UNIQUE) {
        int32_t n = x.kind == X_SET ? 2 * x.b : x.b;
        for (int32_t i = 0; i < n; i++) {
            gr_expr kid = b->kid[x.a + i];
            left_walk(c, kid);
            if (x.kind == X_SEQ && !c->nullable[kid])
                break;
        }
    } else if (x.kind == X_RULE && c->body[x.a] != GR_FAIL && c->open[x.a] != 2) {
        if (c->open[x.a] == 1) {
            gr_fail(b, ERR_UNSUPPORTED,
                    "rule '%s' begins with itself through other rules (left recursion)",
                    b->rule[x.a].name);
            return;
        }
        c->open[x.a] = 1;
        left_walk(c, c->body[x.a]);
        c->open[x.a] = 2;
    }
    c->depth--;
}

/* ---- nodes ---- */

static int32_t node(struct compiler *c, struct gnode n)
{
    struct grammar *g = c->g;
    if (!gr__grow(c->b, &g->node, (size_t)g->n_node + 1, &c->cap_node, sizeof *g->node))
        return 0;
    if ((size_t)g->n_node * sizeof *g->node + g->bytes > c->b->o.max_bytes) {
        gr_fail(c->b, ERR_LIMIT, "too large when compiled: over %zu MiB", c->b->o.max_bytes >> 20);
        return 0;
    }
    g->node[g->n_node] = n;
    return g->n_node++;
}

static int32_t kids(struct compiler *c, const int32_t *k, int32_t n)
{
    struct grammar *g = c->g;
    if (!gr__grow(c->b, &g->kid, (size_t)(g->n_kid + n) + 1, &c->cap_kid, sizeof *g->kid))
        return 0;
    memcpy(g->kid + g->n_kid, k, (size_t)n * sizeof *k);
    g->n_kid += n;
    return g->n_kid - n;
}

static int32_t dead_node(struct compiler *c)
{
    return node(c, (struct gnode){.kind = N_ALT});
}

static struct dfa *copy_dfa(const struct dfa *d)
{
    size_t n = (size_t)d->n_state, k = (size_t)d->n_class;
    struct dfa *r = mem_alloc(sizeof *r);
    if (!r)
        return NULL;
    *r = *d;
    r->next = mem_alloc(n * k * sizeof *r->next + 1);
    r->accept = mem_alloc(n + 1);
    if (!r->next || !r->accept) {
        gr__dfa_free(r);
        return NULL;
    }
    memcpy(r->next, d->next, n * k * sizeof *r->next);
    memcpy(r->accept, d->accept, n);
    return r;
}

static int32_t term_node(struct compiler *c, const struct dfa *d, const int32_t *range,
                         int32_t next)
{
    struct grammar *g = c->g;
    if (!d)
        return 0;
    if (!d->n_state)
        return dead_node(c);
    struct dfa *own = copy_dfa(d);
    struct term *t = own ? gr__term_get(g->v, own, range != NULL) : NULL;
    if (!t) {
        gr_fail(c->b, ERR_NOMEM, "no memory");
        return 0;
    }
    int32_t at = 0;
    while (at < g->n_term && at < 64 && g->term[at] != t)
        at++;
    if (at < g->n_term && g->term[at] == t) {
        gr__term_put(g->v, t);
    } else if (gr__grow(c->b, &g->term, (size_t)g->n_term + 1, &c->cap_term, sizeof(void *))) {
        at = g->n_term;
        g->term[g->n_term++] = t;
        g->bytes += gr__dfa_bytes(d);
    } else {
        gr__term_put(g->v, t);
        return 0;
    }
    struct gnode n = {.kind = N_TERM, .a = at, .next = next, .max = GR_INF};
    if (range) {
        n.min = range[0];
        n.max = range[1];
    }
    return node(c, n);
}

static int32_t emit(struct compiler *c, gr_expr e, int32_t next);

/* The kids from `at` on as one expression; a copy, since the array moves when it grows. */
static gr_expr run_of(struct compiler *c, int32_t at, size_t n)
{
    gr_expr *k = mem_alloc(n * sizeof *k);
    if (!k)
        return gr_fail(c->b, ERR_NOMEM, "no memory");
    memcpy(k, c->b->kid + at, n * sizeof *k);
    gr_expr e = gr_seq(c->b, k, n);
    free(k);
    return e;
}

static int32_t emit_seq(struct compiler *c, const struct expr *x, int32_t next)
{
    for (int32_t i = x->b; i-- > 0 && !c->b->err.code;) {
        /* A run of small parts is one automaton. */
        int32_t from = i;
        uint64_t size = 0;
        for (; from >= 0; from--) {
            struct info k = facts(c, c->b->kid[x->a + from]);
            size += k.size;
            if (!k.regular || k.kept || size > AUTO_SIZE)
                break;
        }
        from++;
        if (from < i) {
            gr_expr run = run_of(c, x->a + from, (size_t)(i - from + 1));
            const struct dfa *d = run == GR_FAIL ? NULL : gr__dfa_of(c->b, run, AUTO_STATE);
            if (d) {
                next = term_node(c, d, NULL, next);
                i = from;
                continue;
            }
            if (c->b->err.code != ERR_LIMIT || !gr_in_time(c->b))
                return 0;
            gr_forgive(c->b);
        }
        next = emit(c, c->b->kid[x->a + i], next);
    }
    return next;
}

static int32_t emit_kids(struct compiler *c, const struct expr *x, int32_t next)
{
    int32_t n = x->kind == X_SET ? 2 * x->b : x->b, m = 0;
    int32_t *k = mem_alloc((size_t)n * sizeof *k + 1);
    if (!k) {
        gr_fail(c->b, ERR_NOMEM, "no memory");
        return 0;
    }
    for (int32_t i = 0; i < n && !c->b->err.code; i++) {
        gr_expr kid = c->b->kid[x->a + i];
        if (c->live[kid])
            k[m++] = emit(c, kid, x->kind == X_SET ? c->ret : next);
        else if (x->kind == X_SET)
            k[m++] = dead_node(c);
    }
    struct gnode r = {.kind = N_ALT, .n = m, .next = next};
    if (x->kind == X_SET) {
        const struct set_spec *s = &c->b->set[x->c];
        r = (struct gnode){
            .kind = N_SET, .n = x->b, .next = next, .min = s->min, .max = s->max, .must = s->must};
    }
    r.a = kids(c, k, m);
    free(k);
    return node(c, r);
}

static int32_t emit_unique(struct compiler *c, const struct expr *x, int32_t next)
{
    const struct set_spec *s = &c->b->set[x->c];
    struct gnode r = {.kind = N_UNIQUE, .n = 2, .next = next, .min = s->min, .max = s->max};
    int32_t first = c->b->kid[x->a], later = c->b->kid[x->a + 1];
    int32_t k[2] = {emit(c, first, c->ret), c->live[later] ? emit(c, later, c->ret) : dead_node(c)};
    r.a = kids(c, k, 2);
    c->g->unique = true;
    return node(c, r);
}

/* A terminal that knows how many texts are left from each of its states. */
static int32_t emit_key(struct compiler *c, const struct expr *x, int32_t next)
{
    int32_t r = term_node(c, gr__dfa_of(c->b, x->a, 0), NULL, next);
    struct gnode *n = &c->g->node[r];
    if (c->b->err.code || n->kind != N_TERM)
        return r;
    n->n = 1;
    if (gr__term_texts(c->g->v, c->g->term[n->a]))
        gr_fail(c->b, ERR_NOMEM, "no memory");
    return r;
}

static int32_t emit_repeat(struct compiler *c, const struct expr *x, int32_t next)
{
    struct gnode r = {.kind = N_COUNT, .next = next, .min = x->b, .max = x->c};
    if (!c->live[x->a])
        return next;
    if (c->nullable[x->a]) {
        r.min = 0;
        if (r.max != GR_INF && r.max > 256) {
            gr_fail(c->b, ERR_LIMIT, "a part that may be empty is repeated over 256 times");
            return 0;
        }
    }
    if (x->b == 0 && x->c == 1) { /* optional */
        int32_t k[2] = {emit(c, x->a, next), next};
        return node(c, (struct gnode){.kind = N_ALT, .a = kids(c, k, 2), .n = 2});
    }
    int32_t body = emit(c, x->a, c->ret);
    r.a = body;
    return node(c, r);
}

static int32_t emit_rule(struct compiler *c, int32_t rule, int32_t next)
{
    struct info f = facts(c, c->body[rule]);
    if (f.regular && f.size <= INLINE_SIZE) /* a call would cost more: as if written here */
        return emit(c, c->body[rule], next);
    if (c->entry[rule] < 0) {
        /* calls go by a node of one kid, so that a rule can be called before it is there */
        int32_t zero = 0, k = kids(c, &zero, 1);
        c->entry[rule] = node(c, (struct gnode){.kind = N_ALT, .a = k, .n = 1});
        int32_t at = emit(c, c->body[rule], c->ret);
        c->g->kid[k] = at;
    }
    return node(c, (struct gnode){.kind = N_CALL, .a = c->entry[rule], .next = next});
}

/* Node where the texts of e begin, that goes on at next. */
static int32_t emit(struct compiler *c, gr_expr e, int32_t next)
{
    struct gr_builder *b = c->b;
    if (b->err.code)
        return 0;
    struct expr x = b->x[e];
    if (!c->live[e])
        return dead_node(c);
    if (x.kind == X_EMPTY)
        return next;
    if (++c->depth > DEPTH_MAX) {
        gr_fail(b, ERR_LIMIT, "nested too deeply");
        return 0;
    }
    int32_t r = -1;
    struct info f = facts(c, e);
    if (x.kind == X_COUNTED || x.kind == X_BOUNDED) {
        struct dfa *m = marked(c, &x);
        r = term_node(c, m, (int32_t[]){x.kind == X_COUNTED ? x.b : 0, x.c}, next);
        gr__dfa_free(m);
    } else if (x.kind == X_LEX || x.kind == X_AND || x.kind == X_NOT || x.kind == X_MULTIPLE) {
        r = term_node(c, gr__dfa_of(b, e, 0), NULL, next);
    } else if (x.kind == X_KEY) {
        r = emit_key(c, &x, next);
    } else if (x.kind == X_UNIQUE) {
        r = emit_unique(c, &x, next);
    } else if (f.regular && !f.kept && (f.size <= AUTO_SIZE || x.kind == X_LIT)) {
        const struct dfa *d = gr__dfa_of(b, e, x.kind == X_LIT ? 0 : AUTO_STATE);
        if (d) {
            r = term_node(c, d, NULL, next);
        } else if (b->err.code == ERR_LIMIT && gr_in_time(b)) {
            gr_forgive(b);
        }
    }
    if (r < 0 && !b->err.code)
        r = x.kind == X_SEQ                      ? emit_seq(c, &x, next)
            : x.kind == X_REP                    ? emit_repeat(c, &x, next)
            : x.kind == X_RULE                   ? emit_rule(c, x.a, next)
            : x.kind == X_ALT || x.kind == X_SET ? emit_kids(c, &x, next)
                                                 : term_node(c, gr__dfa_of(b, e, 0), NULL, next);
    c->depth--;
    return r < 0 ? 0 : r;
}

/* ---- the whole ---- */

#define PRIME_STATES 64    /* of a terminal */
#define PRIME_US     30000 /* of a build */

/* Masks of terminals are dear where they allow much (inside strings): have them before the first request waits. */
static void prime(struct compiler *c)
{
    struct grammar *g = c->g;
    int64_t until = gr__cpu_us() + PRIME_US;
    for (int32_t i = 0; i < g->n_term; i++) {
        struct term *t = g->term[i];
        for (int32_t s = 0; t->d->n_state <= PRIME_STATES && s < t->d->n_state; s++) {
            bool own = false;
            uint64_t visits = 0;
            int wide = 0;
            for (int k = 'a'; k <= 'z'; k++)
                wide += dfa_step(t->d, (uint16_t)s, (uint8_t)k) != DFA_DEAD;
            if (wide < 8)
                continue;
            const struct lmask *m = gr__lmask(g->v, t, (uint16_t)s, &own, &visits);
            if (own)
                gr__lmask_free((struct lmask *)m);
            if (gr__cpu_us() > until)
                return;
        }
    }
}

static void analyse(struct compiler *c, gr_expr root)
{
    struct gr_builder *b = c->b;
    for (size_t i = 0; i < b->n_rule && !b->err.code; i++) {
        c->body[i] = b->rule[i].body;
        if (c->body[i] != GR_FAIL)
            unleft(b, &c->body[i], (int32_t)i);
    }
    /* emitting makes runs of parts: their expressions come on top */
    size_t n = b->n_x * 2 + 1024;
    c->info = mem_calloc(n, sizeof *c->info);
    c->live = mem_calloc(n, 1);
    c->nullable = mem_calloc(n, 1);
    if (!c->info || !c->live || !c->nullable) {
        gr_fail(b, ERR_NOMEM, "no memory");
        return;
    }
    fixpoint(c, root);
    if (b->err.code)
        return;
    c->depth = 0;
    left_walk(c, root);
    for (size_t i = 0; i < b->n_rule; i++)
        c->open[i] = 0;
    c->depth = 0;
    if (!b->err.code && !c->live[root])
        gr_fail(b, ERR_INVAL, "no text fits it");
}

int gr_compile(struct gr_builder *b, gr_expr root, struct grammar **out, struct err *e)
{
    struct compiler c = {.b = b};
    struct grammar *g = NULL;
    if (root != GR_FAIL && !b->err.code) {
        g = c.g = mem_calloc(1, sizeof *g);
        c.open = mem_calloc(b->n_rule + 1, 1);
        c.entry = mem_alloc((b->n_rule + 1) * sizeof *c.entry);
        c.body = mem_alloc((b->n_rule + 1) * sizeof *c.body);
        if (!g || !c.open || !c.entry || !c.body)
            gr_fail(b, ERR_NOMEM, "no memory");
    }
    if (root == GR_FAIL)
        gr_fail(b, ERR_INTERNAL, "nothing to compile");
    if (!b->err.code) {
        memset(c.entry, 0xFF, (b->n_rule + 1) * sizeof *c.entry);
        atomic_init(&g->refs, 1);
        g->v = grammar_vocab_ref(b->v);
        analyse(&c, root);
        c.ret = node(&c, (struct gnode){.kind = N_RET});
        g->entry = emit(&c, root, c.ret);
        g->bytes += sizeof *g + (size_t)g->n_node * sizeof *g->node;
        if (!b->err.code)
            prime(&c);
    }
    free(c.info);
    free(c.live);
    free(c.nullable);
    free(c.open);
    free(c.entry);
    free(c.body);
    if (b->err.code) {
        grammar_unref(g);
        return gr_failed(b, e);
    }
    *out = g;
    return 0;
}

struct grammar *grammar_ref(struct grammar *g)
{
    if (g)
        atomic_fetch_add(&g->refs, 1);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) > 1)
        return;
    for (int32_t i = 0; i < g->n_term; i++)
        gr__term_put(g->v, g->term[i]);
    for (int i = 0; i < L2_SLOTS; i++)
        free(g->l2[i].bits);
    free(g->node);
    free(g->kid);
    free(g->term);
    grammar_vocab_unref(g->v);
    free(g);
}

size_t grammar_bytes(const struct grammar *g)
{
    return g->bytes + L2_SLOTS / 4 * g->v->n_word * 4;
}
