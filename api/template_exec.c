/* Chat templates: statements, macros, loops. A scope holds the names set in one loop body, macro or
 * block; the chain is lexical, and its end is the root table indexed by symbol. */
#include "api/template_impl.h"

#include <string.h>

static struct tscope *scope_new(struct tmpl_run *r, struct tscope *up)
{
    struct tscope *s = tmpl__alloc(r, 1, sizeof(*s));
    s->up = up;
    return s;
}

/* Set in the innermost scope; outer names of the same symbol stay as they are. */
void tmpl__set(struct tmpl_run *r, int32_t sym, struct tv v)
{
    struct tscope *s = r->scope;
    if (!s) {
        r->root[sym] = v;
        return;
    }
    for (int i = 0; i < s->n; i++)
        if (s->sym[i] == sym) {
            s->v[i] = v;
            return;
        }
    if (s->n == s->cap) {
        int cap = s->cap ? s->cap * 2 : 4;
        int32_t *sym2 = tmpl__alloc(r, (size_t)cap, sizeof(*sym2));
        struct tv *v2 = tmpl__alloc(r, (size_t)cap, sizeof(*v2));
        if (s->n) {
            memcpy(sym2, s->sym, (size_t)s->n * sizeof(*sym2));
            memcpy(v2, s->v, (size_t)s->n * sizeof(*v2));
        }
        s->sym = sym2;
        s->v = v2;
        s->cap = cap;
    }
    s->sym[s->n] = sym;
    s->v[s->n++] = v;
}

/* Assign to a name, a namespace attribute, or a tuple of targets. */
static void assign(struct tmpl_run *r, const struct tnode *t, struct tv v)
{
    if (t->kind == N_NAME) {
        tmpl__set(r, t->x, v);
    } else if (t->kind == N_ATTR) {
        struct tv ns = tmpl__eval(r, t->a);
        if (ns.t != TV_NS)
            tmpl__fail(r, ERR_INVAL, "cannot assign attribute on a '%s', only on a namespace",
                       tmpl__type(ns));
        tmpl__dict_set(r, ns.u.d, t->val, v);
    } else {
        struct tseq *l = tmpl__iter(r, v);
        if (l->n != (size_t)t->n)
            tmpl__fail(r, ERR_INVAL, "%zu values to unpack into %d names", l->n, t->n);
        for (int i = 0; i < t->n; i++)
            assign(r, t->kid[i], l->v[i]);
    }
}

/* Run a body in a scope of its own and return what it printed. */
static struct tv capture(struct tmpl_run *r, const struct tnode *body, struct tscope *scope)
{
    struct tsb text = {0}, *out = r->out;
    struct tscope *old = r->scope;
    r->out = &text;
    r->scope = scope;
    tmpl__exec(r, body);
    r->out = out;
    r->scope = old;
    return tmpl__sb_take(r, &text);
}

/* Filters of a block over its text, which they find as N_CAPTURED. */
static struct tv filtered(struct tmpl_run *r, const struct tnode *filters, struct tv text)
{
    struct tv old = r->captured;
    r->captured = text;
    struct tv v = tmpl__eval(r, filters);
    r->captured = old;
    return v;
}

static void enter_call(struct tmpl_run *r)
{
    if (++r->calls > r->lim.max_depth)
        tmpl__fail(r, ERR_LIMIT, "calls nested more than %d deep", r->lim.max_depth);
}

/* --- macros --- */
static bool kw_is(const struct tcall *c, int i, const char *p, size_t n)
{
    return c->kwn[i]->n == n && memcmp(c->kwn[i]->p, p, n) == 0;
}

/* The special names varargs, kwargs and caller, as far as the macro uses them. */
static void bind_special(struct tmpl_run *r, const struct tnode *m, const struct tcall *c,
                         const bool *used)
{
    static const char *const name[] = {"varargs", "kwargs", "caller"};
    struct tv val[3] = {tmpl__seq(r, SEQ_TUPLE, 0), tmpl__dict(r), TV(TV_MISSING)};
    for (int i = m->n; i < c->n; i++)
        tmpl__push(r, val[0], c->pos[i]);
    for (int i = 0; i < c->n_kw; i++) {
        if ((m->flag & USES_CALLER) && kw_is(c, i, "caller", 6))
            val[2] = c->kwv[i];
        else if (!used[i])
            tmpl__dict_set(r, val[1].u.d, tmpl__ref(r, c->kwn[i]->p, c->kwn[i]->n), c->kwv[i]);
    }
    if (val[0].u.l->n && !(m->flag & USES_VARARGS))
        tmpl__fail(r, ERR_INVAL, "macro takes not more than %d arguments", m->n);
    if (val[1].u.d->n && !(m->flag & USES_KWARGS))
        tmpl__fail(r, ERR_INVAL, "macro takes no keyword argument '%.*s'",
                   (int)val[1].u.d->e[0].k.u.s->n, val[1].u.d->e[0].k.u.s->p);
    for (int k = 0; k < 3; k++)
        for (int i = 0; (m->flag & (1 << k)) && i < r->t->n_sym; i++)
            if (r->t->sym[i]->n == strlen(name[k]) &&
                memcmp(r->t->sym[i]->p, name[k], r->t->sym[i]->n) == 0)
                tmpl__set(r, i, val[k].t == TV_MISSING ? tmpl__undef(r, "caller", 6) : val[k]);
}

/* Positional, then keyword arguments, then defaults; the macro's text is the value. */
struct tv tmpl__call_macro(struct tmpl_run *r, const struct tmacro *macro, const struct tcall *c)
{
    const struct tnode *m = macro->node;
    struct tscope *old = r->scope, *s = scope_new(r, macro->scope);
    bool *used = tmpl__alloc(r, (size_t)c->n_kw + 1, 1);
    enter_call(r);
    struct tv *arg = tmpl__alloc(r, (size_t)m->n + 1, sizeof(*arg));
    for (int i = 0; i < m->n; i++) {
        const struct tstr *name = m->kid[i]->val.u.s;
        arg[i] = i < c->n ? c->pos[i] : TV(TV_MISSING);
        for (int k = 0; i >= c->n && k < c->n_kw; k++)
            if (kw_is(c, k, name->p, name->n)) {
                arg[i] = c->kwv[k];
                used[k] = true;
            }
    }
    r->scope = s;
    bind_special(r, m, c, used);
    for (int i = 0; i < m->n; i++) {
        const struct tnode *p = m->kid[i];
        if (arg[i].t == TV_MISSING) /* a default may use the parameters before it */
            arg[i] = p->a ? tmpl__eval(r, p->a) : tmpl__undef(r, p->val.u.s->p, p->val.u.s->n);
        tmpl__set(r, p->x, arg[i]);
    }
    struct tv v = capture(r, m->d, s);
    r->scope = old;
    r->calls--;
    return v;
}

static struct tv macro_value(struct tmpl_run *r, const struct tnode *n)
{
    struct tmacro *m = tmpl__alloc(r, 1, sizeof(*m));
    *m = (struct tmacro){.node = n, .scope = r->scope};
    return (struct tv){.t = TV_MACRO, .u.m = m};
}

/* A call with the block as its keyword argument `caller`. */
static void call_block(struct tmpl_run *r, const struct tnode *n)
{
    static struct tstr name = {.p = "caller", .n = 6};
    struct tnode call = *n->a, block = {.kind = N_CONST, .line = n->line};
    struct targs args = call.args ? *call.args : (struct targs){0};
    block.val = macro_value(r, n->b);
    size_t n_kw = (size_t)args.n_kw;
    struct tnode **v = tmpl__alloc(r, n_kw + 1, sizeof(*v));
    struct tstr **k = tmpl__alloc(r, n_kw + 1, sizeof(*k));
    for (size_t i = 0; i < n_kw; i++) {
        v[i] = args.kwv[i];
        k[i] = args.kwn[i];
    }
    v[n_kw] = &block;
    k[n_kw] = &name;
    args.kwv = v;
    args.kwn = k;
    args.n_kw++;
    call.args = &args;
    tmpl__print(r, r->out, tmpl__eval(r, &call), false, 0);
}

/* --- loops --- */
/* Items that pass the loop's own `if`, each seen with the target bound. */
static struct tseq *select_items(struct tmpl_run *r, const struct tnode *n, struct tseq *items)
{
    struct tscope *old = r->scope;
    struct tv out = tmpl__seq(r, SEQ_LIST, items->n);
    r->scope = scope_new(r, old);
    for (size_t i = 0; i < items->n; i++) {
        r->scope->n = 0;
        assign(r, n->a, items->v[i]);
        if (tmpl__truth(tmpl__eval(r, n->c)))
            tmpl__push(r, out, items->v[i]);
    }
    r->scope = old;
    return out.u.l;
}

/* One loop over `over`: each round in a fresh scope that holds the target and `loop`. */
static void run_loop(struct tmpl_run *r, const struct tnode *n, struct tv over, int depth)
{
    struct tseq *items = tmpl__iter(r, over);
    struct tscope *old = r->scope;
    if ((int64_t)items->n > r->lim.max_loop)
        tmpl__fail(r, ERR_LIMIT, "loop over %zu items, the limit is %lld", items->n,
                   (long long)r->lim.max_loop);
    if (n->c)
        items = select_items(r, n, items);
    struct tloop *loop = tmpl__alloc(r, 1, sizeof(*loop));
    *loop = (struct tloop){.node = n, .items = items, .depth = depth, .changed = TV(TV_MISSING)};
    loop->scope = old;
    r->scope = scope_new(r, old);
    for (size_t i = 0; i < items->n; i++) {
        r->scope->n = 0; /* each round starts without the names of the last */
        loop->i = i;
        assign(r, n->a, items->v[i]);
        tmpl__set(r, n->x, (struct tv){.t = TV_LOOP, .u.loop = loop});
        if (tmpl__exec(r, n->d) == FLOW_BREAK)
            break;
    }
    if (items->n == 0 && n->n) {
        r->scope->n = 0;
        tmpl__exec(r, n->kid[0]);
    }
    r->scope = old;
}

/* loop(items) in a recursive loop: the same body over other items, its text as the value. */
struct tv tmpl__call_loop(struct tmpl_run *r, struct tloop *l, const struct tcall *c)
{
    struct tsb text = {0}, *out = r->out;
    struct tscope *old = r->scope;
    if (!l->node->flag)
        tmpl__fail(r, ERR_INVAL, "only a recursive loop can be called");
    if (c->n != 1 || c->n_kw)
        tmpl__fail(r, ERR_INVAL, "loop() takes one iterable");
    enter_call(r);
    r->out = &text;
    r->scope = l->scope;
    run_loop(r, l->node, c->pos[0], l->depth + 1);
    r->out = out;
    r->scope = old;
    r->calls--;
    return tmpl__sb_take(r, &text);
}

/* --- statements --- */
static int exec_body(struct tmpl_run *r, const struct tnode *n)
{
    for (int i = 0; i < n->n_own; i++) {
        const struct tstr *name = r->t->sym[n->own[i]];
        tmpl__set(r, n->own[i], tmpl__undef(r, name->p, name->n));
    }
    for (int i = 0; i < n->n; i++) {
        int flow = tmpl__exec(r, n->kid[i]);
        if (flow != FLOW_NEXT)
            return flow;
    }
    return FLOW_NEXT;
}

static int exec_if(struct tmpl_run *r, const struct tnode *n)
{
    int i = 0;
    for (; i + 1 < n->n; i += 2)
        if (tmpl__truth(tmpl__eval(r, n->kid[i])))
            return tmpl__exec(r, n->kid[i + 1]);
    return i < n->n ? tmpl__exec(r, n->kid[i]) : FLOW_NEXT;
}

/* with: values are evaluated outside, then the body runs in a new scope that holds them */
static int exec_with(struct tmpl_run *r, const struct tnode *n)
{
    struct tscope *old = r->scope, *s = scope_new(r, old);
    for (int i = 0; i < n->n; i += 2) {
        r->scope = old;
        struct tv v = tmpl__eval(r, n->kid[i + 1]);
        r->scope = s;
        assign(r, n->kid[i], v);
    }
    r->scope = s;
    int flow = tmpl__exec(r, n->d);
    r->scope = old;
    return flow;
}

/* The filters must give a string: Jinja joins it into the output without str(). */
static void filter_block(struct tmpl_run *r, const struct tnode *n)
{
    struct tv v = filtered(r, n->b, capture(r, n->d, scope_new(r, r->scope)));
    if (v.t != TV_STR)
        tmpl__fail(r, ERR_INVAL, "filter block gives a '%s', not a string", tmpl__type(v));
    tmpl__print(r, r->out, v, false, 0);
}

static int exec_node(struct tmpl_run *r, const struct tnode *n)
{
    switch (n->kind) {
    case N_BODY:
        return exec_body(r, n);
    case N_DATA:
        tmpl__tick(r, n->val.u.s->n);
        tmpl__sb_add(r, r->out, n->val.u.s->p, n->val.u.s->n);
        return FLOW_NEXT;
    case N_PRINT:
        tmpl__print(r, r->out, tmpl__eval(r, n->a), false, 0);
        return FLOW_NEXT;
    case N_IF:
        return exec_if(r, n);
    case N_FOR:
        run_loop(r, n, tmpl__eval(r, n->b), 0);
        return FLOW_NEXT;
    case N_SET:
        assign(r, n->a, tmpl__eval(r, n->b));
        return FLOW_NEXT;
    case N_SETBLOCK:
        assign(r, n->a, filtered(r, n->b, capture(r, n->d, scope_new(r, r->scope))));
        return FLOW_NEXT;
    case N_MACRO:
        tmpl__set(r, n->x, macro_value(r, n));
        return FLOW_NEXT;
    case N_CALLBLOCK:
        call_block(r, n);
        return FLOW_NEXT;
    case N_FILTERBLOCK:
        filter_block(r, n);
        return FLOW_NEXT;
    case N_WITH:
        return exec_with(r, n);
    case N_SCOPE: {
        struct tscope *old = r->scope;
        r->scope = scope_new(r, old);
        tmpl__exec(r, n->d);
        r->scope = old;
        return FLOW_NEXT;
    }
    case N_BREAK:
        return FLOW_BREAK;
    default:
        return FLOW_CONTINUE;
    }
}

int tmpl__exec(struct tmpl_run *r, const struct tnode *n)
{
    tmpl__tick(r, 0);
    if (++r->nest > TMPL_MAX_NEST)
        tmpl__fail(r, ERR_LIMIT, "calls nested too deeply");
    r->line = n->line;
    int flow = exec_node(r, n);
    r->nest--;
    return flow;
}
