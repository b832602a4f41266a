/* The builder: expressions, kept once each. See grammar_build.h. */
#include "engine/text/grammar_expr.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"

#define MANY_TEXTS 64 /* of a choice: over these they become a tree */

int64_t gr__cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int gr_builder_open(struct gr_builder **out, struct grammar_vocab *v, const struct gr_limits *o)
{
    struct gr_builder *b = mem_calloc(1, sizeof *b);
    if (!b)
        return ERR_NOMEM;
    b->v = grammar_vocab_ref(v);
    if (o)
        b->o = *o;
    if (!b->o.max_us)
        b->o.max_us = 2000000;
    if (!b->o.max_expr)
        b->o.max_expr = 2000000;
    if (!b->o.max_state)
        b->o.max_state = 32768;
    if (!b->o.max_bytes)
        b->o.max_bytes = (size_t)64 << 20;
    if (!b->o.max_depth)
        b->o.max_depth = 200;
    b->deadline_us = gr__cpu_us() + b->o.max_us;
    b->lit.limit = (size_t)64 << 20;
    gr__add(b, X_EMPTY, 0, 0, 0); /* expression 0 */
    gr__add(b, X_NEVER, 0, 0, 0); /* expression 1 */
    if (b->err.code) {
        gr_builder_close(b);
        return ERR_NOMEM;
    }
    *out = b;
    return 0;
}

void gr_builder_close(struct gr_builder *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < b->n_dfa; i++)
        gr__dfa_free(b->dfa[i]);
    free(b->dfa);
    free(b->x);
    free(b->slot);
    free(b->kid);
    free(b->rule);
    free(b->set);
    buf_free(&b->lit);
    grammar_vocab_unref(b->v);
    free(b);
}

int gr_failed(const struct gr_builder *b, struct err *e)
{
    if (b->err.code && e)
        *e = b->err;
    return b->err.code;
}

gr_expr gr_fail(struct gr_builder *b, int code, const char *fmt, ...)
{
    if (!b->err.code) {
        char text[sizeof b->err.text];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        err_set(&b->err, code, "%s", text);
    }
    return GR_FAIL;
}

void gr_forgive(struct gr_builder *b)
{
    b->err = (struct err){0};
}

bool gr_in_time(struct gr_builder *b)
{
    if (gr__cpu_us() <= b->deadline_us)
        return true;
    gr_fail(b, ERR_LIMIT, "compiling took longer than %lld ms", (long long)(b->o.max_us / 1000));
    return false;
}

bool gr__grow(struct gr_builder *b, void *arrayp, size_t n, size_t *cap, size_t size)
{
    void **array = arrayp;
    if (n <= *cap)
        return true;
    size_t want = *cap ? *cap * 2 : 256, bytes;
    while (want < n)
        want *= 2;
    void *p = ck_mul(want, size, &bytes) ? mem_realloc(*array, bytes) : NULL;
    if (!p) {
        gr_fail(b, ERR_NOMEM, "no memory");
        return false;
    }
    *array = p;
    *cap = want;
    return true;
}

/* ---- one of each ---- */

static uint64_t expr_hash(const struct gr_builder *b, const struct expr *x)
{
    uint64_t h =
        hash_u64((uint64_t)x->kind << 56 ^ (uint64_t)(uint32_t)x->b << 24 ^ (uint32_t)x->c);
    if (x->kind == X_LIT) {
        for (int32_t i = 0; i < x->b; i++)
            h = hash_u64(h ^ (uint8_t)b->lit.p[x->a + i]);
    } else if (x->kind == X_SEQ || x->kind == X_ALT) {
        for (int32_t i = 0; i < x->b; i++)
            h = hash_u64(h ^ (uint32_t)b->kid[x->a + i]);
    } else {
        h = hash_u64(h ^ (uint32_t)x->a);
    }
    return h;
}

static bool expr_same(const struct gr_builder *b, const struct expr *x, const struct expr *y)
{
    if (x->kind != y->kind || x->b != y->b || x->c != y->c || x->kind == X_SET)
        return false;
    if (x->kind == X_LIT)
        return memcmp(b->lit.p + x->a, b->lit.p + y->a, (size_t)x->b) == 0;
    if (x->kind == X_SEQ || x->kind == X_ALT)
        return memcmp(b->kid + x->a, b->kid + y->a, (size_t)x->b * sizeof *b->kid) == 0;
    return x->a == y->a;
}

static bool rehash(struct gr_builder *b)
{
    size_t n = b->n_slot ? b->n_slot * 2 : 1024;
    int32_t *slot = mem_calloc(n, sizeof *slot);
    if (!slot) {
        gr_fail(b, ERR_NOMEM, "no memory");
        return false;
    }
    for (size_t i = 0; i < b->n_x; i++) {
        size_t at = expr_hash(b, &b->x[i]) & (n - 1);
        while (slot[at])
            at = (at + 1) & (n - 1);
        slot[at] = (int32_t)i + 1;
    }
    free(b->slot);
    b->slot = slot;
    b->n_slot = n;
    return true;
}

gr_expr gr__add(struct gr_builder *b, enum expr_kind kind, int32_t x, int32_t y, int32_t z)
{
    struct expr e = {(uint8_t)kind, x, y, z};
    if (b->err.code)
        return GR_FAIL;
    if (b->n_x * 2 >= b->n_slot && !rehash(b))
        return GR_FAIL;
    size_t at = expr_hash(b, &e) & (b->n_slot - 1);
    for (; b->slot[at]; at = (at + 1) & (b->n_slot - 1))
        if (expr_same(b, &b->x[b->slot[at] - 1], &e))
            return b->slot[at] - 1;
    if (b->n_x >= b->o.max_expr)
        return gr_fail(b, ERR_LIMIT, "too large: over %zu expressions", b->o.max_expr);
    if (!gr__grow(b, &b->x, b->n_x + 1, &b->cap_x, sizeof *b->x))
        return GR_FAIL;
    b->x[b->n_x] = e;
    b->slot[at] = (int32_t)++b->n_x;
    return b->slot[at] - 1;
}

gr_expr gr_empty(struct gr_builder *b)
{
    return b->err.code ? GR_FAIL : 0;
}

gr_expr gr_never(struct gr_builder *b)
{
    return b->err.code ? GR_FAIL : 1;
}

gr_expr gr__range(struct gr_builder *b, int lo, int hi)
{
    return lo > hi ? gr_never(b) : gr__add(b, X_RANGE, lo, hi, 0);
}

gr_expr gr_lit(struct gr_builder *b, const void *bytes, size_t n)
{
    size_t at = b->lit.len;
    if (!n || b->err.code)
        return gr_empty(b);
    if (n > b->lit.limit - at)
        return gr_fail(b, ERR_LIMIT, "too large: its literal texts have too many bytes");
    buf_add(&b->lit, bytes, n);
    if (b->lit.failed)
        return gr_fail(b, ERR_NOMEM, "no memory");
    gr_expr e = gr__add(b, X_LIT, (int32_t)at, (int32_t)n, 0);
    if (e != GR_FAIL && (size_t)b->x[e].a != at)
        b->lit.len = at; /* it was there before */
    return e;
}

gr_expr gr_str(struct gr_builder *b, const char *s)
{
    return gr_lit(b, s, strlen(s));
}

/* Kids from `from` on become an expression. */
static gr_expr close_kids(struct gr_builder *b, enum expr_kind kind, size_t from)
{
    size_t n = b->n_kid - from;
    if (b->err.code)
        return GR_FAIL;
    if (n < 2) {
        gr_expr only = n ? b->kid[from] : kind == X_SEQ ? 0 : 1;
        b->n_kid = from;
        return only;
    }
    gr_expr e = gr__add(b, kind, (int32_t)from, (int32_t)n, 0);
    if (e != GR_FAIL && (size_t)b->x[e].a != from)
        b->n_kid = from;
    return e;
}

static void add_kid(struct gr_builder *b, gr_expr e)
{
    if (gr__grow(b, &b->kid, b->n_kid + 1, &b->cap_kid, sizeof *b->kid))
        b->kid[b->n_kid++] = e;
}

static void add_seq_kid(struct gr_builder *b, size_t from, gr_expr e)
{
    struct expr x = b->x[e];
    if (x.kind == X_EMPTY)
        return;
    if (x.kind == X_SEQ) {
        for (int32_t i = 0; i < x.b; i++)
            add_seq_kid(b, from, b->kid[x.a + i]);
        return;
    }
    if (x.kind == X_LIT && b->n_kid > from && b->x[b->kid[b->n_kid - 1]].kind == X_LIT) {
        struct expr y = b->x[b->kid[b->n_kid - 1]];
        char *both = mem_alloc((size_t)x.b + (size_t)y.b);
        if (!both) {
            gr_fail(b, ERR_NOMEM, "no memory");
            return;
        }
        memcpy(both, b->lit.p + y.a, (size_t)y.b);
        memcpy(both + y.b, b->lit.p + x.a, (size_t)x.b);
        b->kid[b->n_kid - 1] = gr_lit(b, both, (size_t)x.b + (size_t)y.b);
        free(both);
        return;
    }
    add_kid(b, e);
}

gr_expr gr_seq(struct gr_builder *b, const gr_expr *e, size_t n)
{
    size_t from = b->n_kid;
    for (size_t i = 0; i < n; i++)
        if (b->err.code || e[i] == GR_FAIL)
            return gr_fail(b, ERR_INTERNAL, "a failed part");
    for (size_t i = 0; i < n; i++)
        if (b->x[e[i]].kind == X_NEVER)
            return e[i];
    for (size_t i = 0; i < n && !b->err.code; i++)
        add_seq_kid(b, from, e[i]);
    return close_kids(b, X_SEQ, from);
}

gr_expr gr_seq2(struct gr_builder *b, gr_expr x, gr_expr y)
{
    return gr_seq(b, (gr_expr[]){x, y}, 2);
}

gr_expr gr__alt_flat(struct gr_builder *b, const gr_expr *e, size_t n)
{
    size_t from = b->n_kid;
    for (size_t i = 0; i < n; i++)
        if (b->err.code || e[i] == GR_FAIL)
            return gr_fail(b, ERR_INTERNAL, "a failed part");
    for (size_t i = 0; i < n && !b->err.code; i++) {
        bool twice = n <= 16 && b->x[e[i]].kind == X_NEVER;
        for (size_t k = from; n <= 16 && k < b->n_kid; k++)
            twice |= b->kid[k] == e[i];
        if (!twice && b->x[e[i]].kind != X_NEVER)
            add_kid(b, e[i]);
    }
    return close_kids(b, X_ALT, from);
}

gr_expr gr_alt(struct gr_builder *b, const gr_expr *e, size_t n)
{
    size_t n_text = 0, m = 0;
    for (size_t i = 0; n > MANY_TEXTS && i < n; i++)
        n_text += e[i] != GR_FAIL && b->x[e[i]].kind == X_LIT;
    if (n_text <= MANY_TEXTS || b->err.code)
        return gr__alt_flat(b, e, n);
    gr_expr *kid = mem_alloc(n * sizeof *kid); /* the others from the front, texts from the back */
    if (!kid)
        return gr_fail(b, ERR_NOMEM, "no memory");
    for (size_t i = 0, k = n; i < n; i++) {
        if (e[i] != GR_FAIL && b->x[e[i]].kind == X_LIT)
            kid[--k] = e[i];
        else
            kid[m++] = e[i];
    }
    kid[m] = gr__alt_texts(b, kid + m, n - m);
    gr_expr r = gr__alt_flat(b, kid, m + 1);
    free(kid);
    return r;
}

gr_expr gr_alt2(struct gr_builder *b, gr_expr x, gr_expr y)
{
    return gr_alt(b, (gr_expr[]){x, y}, 2);
}

gr_expr gr_repeat(struct gr_builder *b, gr_expr e, int32_t min, int32_t max)
{
    if (b->err.code || e == GR_FAIL)
        return gr_fail(b, ERR_INTERNAL, "a failed part");
    if (min < 0 || max < min)
        return gr_never(b);
    if (max == 0 || b->x[e].kind == X_EMPTY)
        return gr_empty(b);
    if (min == 1 && max == 1)
        return e;
    if (b->x[e].kind == X_NEVER)
        return min ? e : gr_empty(b);
    return gr__add(b, X_REP, e, min, max);
}

gr_expr gr_opt(struct gr_builder *b, gr_expr e)
{
    return gr_repeat(b, e, 0, 1);
}

gr_expr gr_rule_new(struct gr_builder *b, const char *name)
{
    if (b->err.code || !gr__grow(b, &b->rule, b->n_rule + 1, &b->cap_rule, sizeof *b->rule))
        return GR_FAIL;
    struct gr_rule *r = &b->rule[b->n_rule];
    *r = (struct gr_rule){.body = GR_FAIL};
    snprintf(r->name, sizeof r->name, "%s", name);
    return gr__add(b, X_RULE, (int32_t)b->n_rule++, 0, 0);
}

void gr_rule_set(struct gr_builder *b, gr_expr rule, gr_expr body)
{
    if (b->err.code)
        return;
    CHECK(rule != GR_FAIL && b->x[rule].kind == X_RULE);
    b->rule[b->x[rule].a].body = body;
}

gr_expr gr_lex(struct gr_builder *b, gr_expr e)
{
    return e == GR_FAIL || b->x[e].kind == X_LEX ? e : gr__add(b, X_LEX, e, 0, 0);
}

gr_expr gr_and(struct gr_builder *b, gr_expr x, gr_expr y)
{
    if (x == GR_FAIL || y == GR_FAIL)
        return GR_FAIL;
    return x == y ? x : gr__add(b, X_AND, x, y, 0);
}

gr_expr gr_not(struct gr_builder *b, gr_expr e)
{
    return e == GR_FAIL ? e : gr__add(b, X_NOT, e, 0, 0);
}

gr_expr gr_counted(struct gr_builder *b, gr_expr chr, int32_t min, int32_t max)
{
    if (chr == GR_FAIL || b->err.code)
        return GR_FAIL;
    if (min < 0 || max < min)
        return gr_never(b);
    return max == 0 ? gr_empty(b) : gr__add(b, X_COUNTED, chr, min, max);
}

gr_expr gr_bounded(struct gr_builder *b, gr_expr e, gr_expr chr, int32_t max)
{
    if (e == GR_FAIL || chr == GR_FAIL || b->err.code)
        return GR_FAIL;
    return max < 0 ? gr_never(b) : gr__add(b, X_BOUNDED, e, chr, max);
}

gr_expr gr_multiple(struct gr_builder *b, int32_t m)
{
    if (m < 1 || m > 10000)
        return gr_fail(b, ERR_LIMIT, "a multiple of %d: from 1 to 10000", m);
    return gr__add(b, X_MULTIPLE, m, 0, 0);
}

gr_expr gr_set(struct gr_builder *b, const gr_expr *first, const gr_expr *later, size_t n,
               uint64_t must, const int32_t range[2])
{
    size_t from = b->n_kid;
    CHECK(n <= 64);
    for (size_t i = 0; i < n; i++) {
        if (b->err.code || first[i] == GR_FAIL || later[i] == GR_FAIL)
            return gr_fail(b, ERR_INTERNAL, "a failed part");
        add_kid(b, first[i]);
        add_kid(b, later[i]);
    }
    if (b->err.code || !gr__grow(b, &b->set, b->n_set + 1, &b->cap_set, sizeof *b->set))
        return GR_FAIL;
    b->set[b->n_set] = (struct set_spec){must, range[0], range[1]};
    return gr__add(b, X_SET, (int32_t)from, (int32_t)n, (int32_t)b->n_set++);
}

gr_expr gr_unique(struct gr_builder *b, gr_expr first, gr_expr later, int32_t min, int32_t max)
{
    size_t from = b->n_kid;
    if (first == GR_FAIL || later == GR_FAIL || b->err.code)
        return GR_FAIL;
    add_kid(b, first);
    add_kid(b, later);
    if (b->err.code || !gr__grow(b, &b->set, b->n_set + 1, &b->cap_set, sizeof *b->set))
        return GR_FAIL;
    b->set[b->n_set] = (struct set_spec){0, min, max};
    return gr__add(b, X_UNIQUE, (int32_t)from, 2, (int32_t)b->n_set++);
}

gr_expr gr_key(struct gr_builder *b, gr_expr e)
{
    return e == GR_FAIL ? e : gr__add(b, X_KEY, e, 0, 0);
}

int32_t gr_count(struct gr_builder *b, gr_expr e)
{
    const struct dfa *d = gr__dfa_of(b, e, 0);
    if (!d)
        return b->err.code ? b->err.code : ERR_INTERNAL;
    int32_t *texts = gr__texts(d), n = texts && d->n_state ? texts[0] : 0;
    if (!texts)
        gr_fail(b, ERR_NOMEM, "no memory");
    free(texts);
    return texts ? n : ERR_NOMEM;
}

gr_expr gr_token(struct gr_builder *b, int32_t id)
{
    if (id < 0 || id >= b->v->n_vocab)
        return gr_fail(b, ERR_INVAL, "there is no token %d", (int)id);
    unsigned char c[CONTROL_LEN] = {CONTROL_BYTE, (unsigned char)(id >> 24),
                                    (unsigned char)(id >> 16), (unsigned char)(id >> 8),
                                    (unsigned char)id};
    return gr_lit(b, c, sizeof c);
}

/* ---- automata of expressions ---- */

const struct dfa *gr__dfa_of(struct gr_builder *b, gr_expr e, size_t most)
{
    if (e == GR_FAIL || b->err.code)
        return NULL;
    if ((size_t)e >= b->n_dfa) {
        size_t cap = b->n_dfa;
        if (!gr__grow(b, &b->dfa, b->n_x, &cap, sizeof *b->dfa))
            return NULL;
        memset(b->dfa + b->n_dfa, 0, (cap - b->n_dfa) * sizeof *b->dfa);
        b->n_dfa = cap;
    }
    if (b->dfa[e])
        return b->dfa[e];
    struct expr x = b->x[e];
    size_t max = most && most < b->o.max_state ? most : b->o.max_state;
    struct dfa *d = NULL;
    const struct dfa *p, *q = NULL;
    int rc = ERR_INTERNAL;
    if (x.kind == X_LEX)
        return gr__dfa_of(b, x.a, most);
    if (x.kind == X_AND || x.kind == X_NOT) {
        p = gr__dfa_of(b, x.a, 0);
        if (p && x.kind == X_AND)
            q = gr__dfa_of(b, x.b, 0);
        if (b->err.code)
            return NULL;
        rc = x.kind == X_NOT ? gr__dfa_not(&d, p, max) : gr__dfa_and(&d, p, q, max);
    } else {
        rc = gr__nfa_dfa(b, e, max, &d);
    }
    if (rc) {
        if (rc == ERR_LIMIT)
            gr_fail(b, rc, "too large: an automaton of it has over %zu states", max);
        else
            gr_fail(b, rc, rc == ERR_NOMEM ? "no memory" : "not a regular expression");
        return NULL;
    }
    if (!gr_in_time(b)) {
        gr__dfa_free(d);
        return NULL;
    }
    /* gr__dfa_of of a part may have moved the array: look again */
    return b->dfa[e] = d;
}

int gr_is_never(struct gr_builder *b, gr_expr e)
{
    const struct dfa *d = gr__dfa_of(b, e, 0);
    return d ? d->n_state == 0 : b->err.code ? b->err.code : ERR_INTERNAL;
}

int gr_matches(struct gr_builder *b, gr_expr e, const void *text, size_t n)
{
    const struct dfa *d = gr__dfa_of(b, e, 0);
    return d ? gr__dfa_has(d, text, n) : b->err.code ? b->err.code : ERR_INTERNAL;
}
