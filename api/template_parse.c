/* Chat templates: expressions. Recursive descent with a nesting bound, so that no source can exhaust
 * the stack; trees that grow to one side (a+b+c+...) are bounded through tnode.depth, because eval
 * recurses over them. Precedence is Jinja's: `**` binds to the left, and
 * in -x|f the filter takes -x. Statements are in template_stmt.c. */
#include "api/template_impl.h"

#include <string.h>

#define MAX_NEST  150 /* expressions and blocks inside each other */
#define MAX_DEPTH 400 /* of the tree */

void tmpl__enter(struct parser *p)
{
    if (++p->nest > MAX_NEST)
        tmpl__fail(p->r, ERR_LIMIT, "nested too deeply");
}

struct tnode *tmpl__node(struct parser *p, int kind)
{
    struct tnode *n = tmpl__alloc(p->r, 1, sizeof(*n));
    n->kind = (uint8_t)kind;
    n->line = p->tok->line;
    return n;
}

static int deeper(int depth, const struct tnode *n)
{
    return n && n->depth > depth ? n->depth : depth;
}

struct tnode *tmpl__node_done(struct parser *p, struct tnode *n)
{
    int d = deeper(deeper(deeper(deeper(0, n->a), n->b), n->c), n->d);
    for (int i = 0; i < n->n; i++)
        d = deeper(d, n->kid[i]);
    if (n->args) {
        for (int i = 0; i < n->args->n_pos; i++)
            d = deeper(d, n->args->pos[i]);
        for (int i = 0; i < n->args->n_kw; i++)
            d = deeper(d, n->args->kwv[i]);
        d = deeper(deeper(d, n->args->dyn), n->args->dyn_kw);
    }
    if (d >= MAX_DEPTH)
        tmpl__fail(p->r, ERR_LIMIT, "expression or block of more than %d levels", MAX_DEPTH);
    n->depth = (uint16_t)(d + 1);
    return n;
}

static struct tnode *mk(struct parser *p, int kind, struct tnode *a, struct tnode *b)
{
    struct tnode *n = tmpl__node(p, kind);
    n->a = a;
    n->b = b;
    return tmpl__node_done(p, n);
}

static struct tnode *mk_const(struct parser *p, struct tv v)
{
    struct tnode *n = tmpl__node(p, N_CONST);
    n->val = v;
    return tmpl__node_done(p, n);
}

bool tmpl__tok_is(const struct parser *p, const char *name)
{
    return p->tok->type == TOK_NAME && tmpl__is(p->tok->val, name);
}

bool tmpl__tok_op(const struct parser *p, int op)
{
    return p->tok->type == TOK_OP && p->tok->op == op;
}

bool tmpl__skip_op(struct parser *p, int op)
{
    bool yes = tmpl__tok_op(p, op);
    p->tok += yes;
    return yes;
}

bool tmpl__skip_name(struct parser *p, const char *name)
{
    bool yes = tmpl__tok_is(p, name);
    p->tok += yes;
    return yes;
}

void tmpl__unexpected(struct parser *p, const char *want)
{
    const struct ttok *t = p->tok;
    p->r->line = t->line;
    if (t->type == TOK_NAME || t->type == TOK_STR)
        tmpl__fail(p->r, ERR_PARSE, "expected %s, got '%.*s'", want,
                   (int)(t->val.u.s->n < 60 ? t->val.u.s->n : 60), t->val.u.s->p);
    if (t->type == TOK_OP)
        tmpl__fail(p->r, ERR_PARSE, "expected %s, got '%.2s'", want,
                   (t->op >> 8) ? (char[]){(char)(t->op >> 8), (char)t->op, 0}
                                : (char[]){(char)t->op, 0});
    tmpl__fail(p->r, ERR_PARSE, "expected %s, got %s", want,
               t->type == TOK_NUM   ? "a number"
               : t->type == TOK_EOF ? "the end of the template"
                                    : "the end of the tag");
}

void tmpl__expect_op(struct parser *p, int op)
{
    char want[] = {'\'', (char)op, '\'', 0};
    if (!tmpl__skip_op(p, op))
        tmpl__unexpected(p, want);
}

struct tv tmpl__expect_name(struct parser *p)
{
    if (p->tok->type != TOK_NAME)
        tmpl__unexpected(p, "a name");
    return (p->tok++)->val;
}

int32_t tmpl__symbol(struct parser *p, struct tstr *name)
{
    struct api_template *t = p->t;
    for (int i = 0; i < t->n_sym; i++)
        if (t->sym[i]->n == name->n && memcmp(t->sym[i]->p, name->p, name->n) == 0)
            return i;
    if (t->n_sym == 4096)
        tmpl__fail(p->r, ERR_LIMIT, "more than 4096 variable names");
    if (t->n_sym == p->sym_cap) {
        p->sym_cap = p->sym_cap ? p->sym_cap * 2 : 32;
        struct tstr **s = tmpl__alloc(p->r, (size_t)p->sym_cap, sizeof(*s));
        if (t->n_sym)
            memcpy(s, t->sym, (size_t)t->n_sym * sizeof(*s));
        t->sym = s;
    }
    t->sym[t->n_sym] = name;
    return t->n_sym++;
}

/* --- calls, filters, tests --- */
/* list of n pointers, with room for one more; capacity is the next power of two */
static void *grown(struct parser *p, void *list, int n)
{
    if (n & (n - 1))
        return list;
    void **k = tmpl__alloc(p->r, n ? (size_t)n * 2 : 1, sizeof(*k));
    if (n)
        memcpy(k, list, (size_t)n * sizeof(*k));
    return k;
}

void tmpl__node_push(struct parser *p, struct tnode *n, struct tnode *kid)
{
    n->kid = grown(p, n->kid, n->n);
    n->kid[n->n++] = kid;
}

static void args_add(struct parser *p, struct targs *a, struct tnode *v, struct tstr *name)
{
    if (a->n_kw + a->n_pos >= 255)
        tmpl__fail(p->r, ERR_LIMIT, "more than 255 arguments");
    if (!name) {
        a->pos = grown(p, a->pos, a->n_pos);
        a->pos[a->n_pos++] = v;
        return;
    }
    a->kwn = grown(p, a->kwn, a->n_kw);
    a->kwv = grown(p, a->kwv, a->n_kw);
    a->kwn[a->n_kw] = name;
    a->kwv[a->n_kw++] = v;
}

static struct targs *call_args(struct parser *p)
{
    struct targs *a = tmpl__alloc(p->r, 1, sizeof(*a));
    tmpl__expect_op(p, '(');
    tmpl__enter(p);
    for (bool comma = false; !tmpl__tok_op(p, ')'); comma = true) {
        if (comma) {
            tmpl__expect_op(p, ',');
            if (tmpl__tok_op(p, ')'))
                break;
        }
        if (a->dyn_kw)
            tmpl__unexpected(p, "')' after **");
        if (tmpl__skip_op(p, '*')) {
            if (a->dyn)
                tmpl__unexpected(p, "one * argument");
            a->dyn = tmpl__expr(p, true);
        } else if (tmpl__skip_op(p, OP2('*', '*'))) {
            a->dyn_kw = tmpl__expr(p, true);
        } else if (p->tok->type == TOK_NAME && p->tok[1].type == TOK_OP && p->tok[1].op == '=') {
            struct tstr *name = p->tok->val.u.s;
            p->tok += 2;
            args_add(p, a, tmpl__expr(p, true), name);
        } else {
            if (a->dyn || a->n_kw)
                tmpl__unexpected(p, "a keyword argument");
            args_add(p, a, tmpl__expr(p, true), NULL);
        }
    }
    tmpl__expect_op(p, ')');
    p->nest--;
    return a;
}

/* Dotted name of a filter or test, e.g. "tojson". */
static struct tv dotted(struct parser *p)
{
    struct tv name = tmpl__expect_name(p);
    if (tmpl__tok_op(p, '.'))
        tmpl__fail(p->r, ERR_UNSUPPORTED, "filter or test with a dotted name");
    return name;
}

/* N_FILTER: a = input, val = name, fn, args */
struct tnode *tmpl__filters(struct parser *p, struct tnode *in, bool first)
{
    while (first || tmpl__tok_op(p, '|')) {
        if (!first)
            p->tok++;
        first = false;
        struct tnode *n = tmpl__node(p, N_FILTER);
        p->r->line = n->line;
        n->a = in;
        n->val = dotted(p);
        n->fn = tmpl__filter(n->val.u.s->p, n->val.u.s->n);
        if (tmpl__tok_op(p, '('))
            n->args = call_args(p);
        in = tmpl__node_done(p, n);
    }
    return in;
}

static struct tnode *primary(struct parser *p);
static struct tnode *postfix(struct parser *p, struct tnode *n);

/* N_TEST: a = value, val = name, fn, args; wrapped in N_NOT for `is not` */
static struct tnode *test_expr(struct parser *p, struct tnode *in)
{
    p->tok++;
    bool negated = tmpl__skip_name(p, "not");
    struct tnode *n = tmpl__node(p, N_TEST);
    p->r->line = n->line;
    n->a = in;
    n->val = dotted(p);
    n->fn = tmpl__test(n->val.u.s->p, n->val.u.s->n);
    int t = p->tok->type;
    if (tmpl__tok_op(p, '(')) {
        n->args = call_args(p);
    } else if ((t == TOK_NAME && !tmpl__tok_is(p, "else") && !tmpl__tok_is(p, "or") &&
                !tmpl__tok_is(p, "and")) ||
               t == TOK_STR || t == TOK_NUM || tmpl__tok_op(p, '[') || tmpl__tok_op(p, '{')) {
        /* as in Jinja `if` counts as an operand here, so that `a is odd if b` does not parse */
        if (tmpl__tok_is(p, "is"))
            tmpl__unexpected(p, "no chained test");
        n->args = tmpl__alloc(p->r, 1, sizeof(*n->args));
        args_add(p, n->args, postfix(p, primary(p)), NULL);
    }
    n = tmpl__node_done(p, n);
    return negated ? mk(p, N_NOT, n, NULL) : n;
}

/* N_CALL: a = callee, args */
static struct tnode *call_expr(struct parser *p, struct tnode *f)
{
    struct tnode *n = tmpl__node(p, N_CALL);
    n->a = f;
    n->args = call_args(p);
    return tmpl__node_done(p, n);
}

/* One subscript: an expression, or N_SLICE with a = start, b = stop, c = step, each may be NULL. */
static struct tnode *subscript(struct parser *p)
{
    struct tnode *part[3] = {0};
    int i = 0;
    bool slice = false;
    while (!tmpl__tok_op(p, ']') && !tmpl__tok_op(p, ',')) {
        if (tmpl__skip_op(p, ':')) {
            slice = true;
            if (++i > 2)
                tmpl__unexpected(p, "']'");
        } else if (part[i]) {
            tmpl__unexpected(p, "']' or ':'");
        } else {
            part[i] = tmpl__expr(p, true);
        }
    }
    if (!slice)
        return part[0] ? part[0] : (tmpl__unexpected(p, "a subscript"), NULL);
    struct tnode *n = tmpl__node(p, N_SLICE);
    n->a = part[0];
    n->b = part[1];
    n->c = part[2];
    return tmpl__node_done(p, n);
}

/* N_ATTR: a = object, val = name. N_ITEM: a = object, b = key. */
static struct tnode *postfix(struct parser *p, struct tnode *n)
{
    for (;;) {
        if (tmpl__skip_op(p, '.')) {
            struct tnode *at = tmpl__node(p, p->tok->type == TOK_NUM ? N_ITEM : N_ATTR);
            at->a = n;
            if (p->tok->type == TOK_NUM)
                at->b = mk_const(p, (p->tok++)->val);
            else
                at->val = tmpl__expect_name(p);
            n = tmpl__node_done(p, at);
        } else if (tmpl__skip_op(p, '[')) {
            tmpl__enter(p);
            struct tnode *key = subscript(p);
            if (tmpl__tok_op(p, ',')) {
                struct tnode *tup = tmpl__node(p, N_TUPLE);
                tmpl__node_push(p, tup, key);
                while (tmpl__skip_op(p, ','))
                    tmpl__node_push(p, tup, subscript(p));
                key = tmpl__node_done(p, tup);
            }
            tmpl__expect_op(p, ']');
            p->nest--;
            n = mk(p, N_ITEM, n, key);
        } else if (tmpl__tok_op(p, '(')) {
            n = call_expr(p, n);
        } else {
            return n;
        }
    }
}

static struct tnode *list_literal(struct parser *p)
{
    struct tnode *n = tmpl__node(p, N_LIST);
    while (!tmpl__tok_op(p, ']')) {
        if (n->n) {
            tmpl__expect_op(p, ',');
            if (tmpl__tok_op(p, ']'))
                break;
        }
        tmpl__node_push(p, n, tmpl__expr(p, true));
    }
    p->tok++;
    return tmpl__node_done(p, n);
}

/* N_DICT: kids are key, value, key, value, ... */
static struct tnode *dict_literal(struct parser *p)
{
    struct tnode *n = tmpl__node(p, N_DICT);
    while (!tmpl__tok_op(p, '}')) {
        if (n->n) {
            tmpl__expect_op(p, ',');
            if (tmpl__tok_op(p, '}'))
                break;
        }
        tmpl__node_push(p, n, tmpl__expr(p, true));
        tmpl__expect_op(p, ':');
        tmpl__node_push(p, n, tmpl__expr(p, true));
    }
    p->tok++;
    return tmpl__node_done(p, n);
}

/* N_NAME: x = symbol, val = name */
static struct tnode *name_expr(struct parser *p)
{
    struct tv v = tmpl__expect_name(p);
    if (tmpl__is(v, "true") || tmpl__is(v, "True"))
        return mk_const(p, tmpl__bool(true));
    if (tmpl__is(v, "false") || tmpl__is(v, "False"))
        return mk_const(p, tmpl__bool(false));
    if (tmpl__is(v, "none") || tmpl__is(v, "None"))
        return mk_const(p, TV(TV_NONE));
    if (tmpl__is(v, "self"))
        tmpl__fail(p->r, ERR_UNSUPPORTED, "'self' and its blocks are not supported");
    if (tmpl__is(v, "varargs"))
        p->uses |= USES_VARARGS;
    if (tmpl__is(v, "kwargs"))
        p->uses |= USES_KWARGS;
    if (tmpl__is(v, "caller"))
        p->uses |= USES_CALLER;
    struct tnode *n = tmpl__node(p, N_NAME);
    n->val = v;
    n->x = tmpl__symbol(p, v.u.s);
    return tmpl__node_done(p, n);
}

static struct tnode *primary(struct parser *p)
{
    struct tnode *n;
    p->r->line = p->tok->line;
    if (p->tok->type == TOK_NAME)
        return name_expr(p);
    if (p->tok->type == TOK_NUM)
        return mk_const(p, (p->tok++)->val);
    if (p->tok->type == TOK_STR) {
        struct tv v = (p->tok++)->val;
        while (p->tok->type == TOK_STR)
            v = tmpl__concat(p->r, v, (p->tok++)->val);
        v.u.s->grow = NULL; /* renders in many threads read it */
        return mk_const(p, v);
    }
    tmpl__enter(p);
    if (tmpl__skip_op(p, '(')) {
        n = tmpl__tuple(p, true, ")");
        tmpl__expect_op(p, ')');
    } else if (tmpl__skip_op(p, '[')) {
        n = list_literal(p);
    } else if (tmpl__skip_op(p, '{')) {
        n = dict_literal(p);
    } else {
        tmpl__unexpected(p, "an expression");
    }
    p->nest--;
    return n;
}

static struct tnode *unary(struct parser *p, bool with_filter)
{
    struct tnode *n;
    tmpl__enter(p);
    if (tmpl__skip_op(p, '-'))
        n = mk(p, N_NEG, unary(p, false), NULL);
    else if (tmpl__skip_op(p, '+'))
        n = mk(p, N_POS, unary(p, false), NULL);
    else
        n = primary(p);
    p->nest--;
    n = postfix(p, n);
    while (with_filter) {
        if (tmpl__tok_op(p, '|'))
            n = tmpl__filters(p, n, false);
        else if (tmpl__tok_is(p, "is"))
            n = test_expr(p, n);
        else if (tmpl__tok_op(p, '('))
            n = call_expr(p, n);
        else
            break;
    }
    return n;
}

struct tnode *tmpl__unary(struct parser *p)
{
    return unary(p, true);
}

/* N_BIN: x = operator, a, b */
static struct tnode *bin(struct parser *p, int op, struct tnode *a, struct tnode *b)
{
    struct tnode *n = tmpl__node(p, N_BIN);
    n->x = op;
    n->a = a;
    n->b = b;
    return tmpl__node_done(p, n);
}

static struct tnode *power(struct parser *p)
{
    struct tnode *n = unary(p, true);
    while (tmpl__skip_op(p, OP2('*', '*')))
        n = bin(p, OP2('*', '*'), n, unary(p, true));
    return n;
}

static struct tnode *product(struct parser *p)
{
    struct tnode *n = power(p);
    while (p->tok->type == TOK_OP && (p->tok->op == '*' || p->tok->op == '/' || p->tok->op == '%' ||
                                      p->tok->op == OP2('/', '/'))) {
        int op = (p->tok++)->op;
        n = bin(p, op, n, power(p));
    }
    return n;
}

static struct tnode *concat(struct parser *p)
{
    struct tnode *n = product(p);
    if (!tmpl__tok_op(p, '~'))
        return n;
    struct tnode *c = tmpl__node(p, N_CONCAT);
    tmpl__node_push(p, c, n);
    while (tmpl__skip_op(p, '~'))
        tmpl__node_push(p, c, product(p));
    return tmpl__node_done(p, c);
}

static struct tnode *sum(struct parser *p)
{
    struct tnode *n = concat(p);
    while (tmpl__tok_op(p, '+') || tmpl__tok_op(p, '-')) {
        int op = (p->tok++)->op;
        n = bin(p, op, n, concat(p));
    }
    return n;
}

static int compare_op(const struct parser *p)
{
    if (p->tok->type == TOK_OP) {
        int op = p->tok->op;
        bool yes = op == OP2('=', '=') || op == OP2('!', '=') || op == '<' || op == '>' ||
                   op == OP2('<', '=') || op == OP2('>', '=');
        return yes ? op : 0;
    }
    if (tmpl__tok_is(p, "in"))
        return OP_IN;
    const struct ttok *next = p->tok + 1;
    if (tmpl__tok_is(p, "not") && next->type == TOK_NAME && tmpl__is(next->val, "in"))
        return OP_NOT_IN;
    return 0;
}

/* N_CMP: a = first operand, kids = N_BIN wrappers with x = operator, a = next operand */
static struct tnode *compare(struct parser *p)
{
    struct tnode *first = sum(p), *n = NULL;
    for (int op; (op = compare_op(p)) != 0;) {
        p->tok += op == OP_NOT_IN ? 2 : 1;
        if (!n) {
            n = tmpl__node(p, N_CMP);
            n->a = first;
        }
        tmpl__node_push(p, n, bin(p, op, sum(p), NULL));
    }
    return n ? tmpl__node_done(p, n) : first;
}

static struct tnode *not_expr(struct parser *p)
{
    if (!tmpl__skip_name(p, "not"))
        return compare(p);
    tmpl__enter(p);
    struct tnode *n = mk(p, N_NOT, not_expr(p), NULL);
    p->nest--;
    return n;
}

static struct tnode *and_expr(struct parser *p)
{
    struct tnode *n = not_expr(p);
    while (tmpl__skip_name(p, "and"))
        n = mk(p, N_AND, n, not_expr(p));
    return n;
}

static struct tnode *or_expr(struct parser *p)
{
    struct tnode *n = and_expr(p);
    while (tmpl__skip_name(p, "or"))
        n = mk(p, N_OR, n, and_expr(p));
    return n;
}

/* N_COND: a if b else c (c may be NULL) */
struct tnode *tmpl__expr(struct parser *p, bool cond)
{
    tmpl__enter(p);
    struct tnode *n = or_expr(p);
    while (cond && tmpl__skip_name(p, "if")) {
        struct tnode *c = tmpl__node(p, N_COND);
        c->a = n;
        c->b = or_expr(p);
        c->c = tmpl__skip_name(p, "else") ? tmpl__expr(p, true) : NULL;
        n = tmpl__node_done(p, c);
    }
    p->nest--;
    return n;
}

static bool tuple_end(const struct parser *p, const char *stop)
{
    return p->tok->type == TOK_VAR_END || p->tok->type == TOK_BLOCK_END || tmpl__tok_op(p, ')') ||
           (stop && tmpl__tok_is(p, stop));
}

/* An expression, or a tuple when commas follow. stop: ")" in parentheses (then () is a tuple too),
 * else a name that ends it, or NULL. */
struct tnode *tmpl__tuple(struct parser *p, bool cond, const char *stop)
{
    struct tnode *tup = tmpl__node(p, N_TUPLE);
    bool is_tuple = false;
    for (;;) {
        if (tup->n)
            tmpl__expect_op(p, ',');
        if (tuple_end(p, stop))
            break;
        tmpl__node_push(p, tup, tmpl__expr(p, cond));
        if (!tmpl__tok_op(p, ','))
            break;
        is_tuple = true;
    }
    if (!is_tuple && tup->n)
        return tup->kid[0];
    if (!is_tuple && !(stop && stop[0] == ')'))
        tmpl__unexpected(p, "an expression");
    return tmpl__node_done(p, tup);
}
