/* Chat templates: statements, and compile's entry into the parser. */
#include "api/template_impl.h"

#include <string.h>

static void block_end(struct parser *p)
{
    if (p->tok->type != TOK_BLOCK_END)
        tmpl__unexpected(p, "'%}'");
    p->tok++;
}

/* Body up to one of `ends`, whose name token is then current. */
static struct tnode *body_until(struct parser *p, const char *const *ends)
{
    tmpl__skip_op(p, ':');
    block_end(p);
    return tmpl__body(p, ends);
}

/* Body up to `end`, which is consumed. */
static struct tnode *body_to(struct parser *p, const char *end)
{
    struct tnode *n = body_until(p, (const char *const[]){end, NULL});
    p->tok++;
    return n;
}

/* The same for a body whose text is caught: a break cannot leave it. */
static struct tnode *captured_to(struct parser *p, const char *end)
{
    int loops = p->loops;
    p->loops = 0;
    struct tnode *n = body_to(p, end);
    p->loops = loops;
    return n;
}

/* A name, namespace attribute, or tuple of such: N_NAME, N_ATTR (a = N_NAME, val), N_TUPLE */
static struct tnode *one_target(struct parser *p, bool ns)
{
    tmpl__enter(p);
    struct tnode *n;
    if (tmpl__skip_op(p, '(')) {
        n = tmpl__target(p, ns);
        tmpl__expect_op(p, ')');
        p->nest--;
        return n;
    }
    static const char *const bad[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (tmpl__tok_is(p, bad[i]))
            tmpl__unexpected(p, "a name to assign to");
    n = tmpl__node(p, N_NAME);
    n->val = tmpl__expect_name(p);
    n->x = tmpl__symbol(p, n->val.u.s);
    if (ns && tmpl__skip_op(p, '.')) {
        struct tnode *at = tmpl__node(p, N_ATTR);
        at->a = n;
        at->val = tmpl__expect_name(p);
        n = at;
    }
    p->nest--;
    return tmpl__node_done(p, n);
}

struct tnode *tmpl__target(struct parser *p, bool ns)
{
    struct tnode *n = one_target(p, ns);
    if (!tmpl__tok_op(p, ','))
        return n;
    struct tnode *tup = tmpl__node(p, N_TUPLE);
    tmpl__node_push(p, tup, n);
    while (tmpl__skip_op(p, ',')) {
        if (p->tok->type != TOK_NAME && !tmpl__tok_op(p, '('))
            break;
        if (tmpl__tok_is(p, "in"))
            break;
        tmpl__node_push(p, tup, one_target(p, ns));
    }
    return tmpl__node_done(p, tup);
}

/* N_IF: kids = condition, body, condition, body, ..., and an else body when n is odd */
static struct tnode *if_stmt(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct tnode *n = tmpl__node(p, N_IF);
    do {
        tmpl__node_push(p, n, tmpl__tuple(p, false, NULL));
        tmpl__node_push(p, n, body_until(p, ends));
    } while (tmpl__skip_name(p, "elif"));
    if (tmpl__skip_name(p, "else"))
        tmpl__node_push(p, n, body_to(p, "endif"));
    else
        p->tok++;
    return tmpl__node_done(p, n);
}

static bool binds_loop(const struct tnode *t)
{
    bool yes = t->kind == N_NAME && tmpl__is(t->val, "loop");
    for (int i = 0; i < t->n; i++)
        yes = yes || binds_loop(t->kid[i]);
    return yes;
}

/* N_FOR: a = target, b = iterable, c = filter or NULL, d = body, kid[0] = else body,
 * flag = recursive, x = symbol of `loop` */
static struct tnode *for_stmt(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct tnode *n = tmpl__node(p, N_FOR);
    n->a = tmpl__target(p, false);
    if (binds_loop(n->a))
        tmpl__fail(p->r, ERR_PARSE, "a loop cannot assign to 'loop'");
    if (!tmpl__skip_name(p, "in"))
        tmpl__unexpected(p, "'in'");
    n->b = tmpl__tuple(p, false, "recursive");
    if (tmpl__skip_name(p, "if"))
        n->c = tmpl__expr(p, true);
    n->flag = tmpl__skip_name(p, "recursive");
    static struct tstr loop = {.p = "loop", .n = 4};
    n->x = tmpl__symbol(p, &loop);
    p->loops++;
    n->d = body_until(p, ends);
    p->loops--;
    if (tmpl__skip_name(p, "else"))
        tmpl__node_push(p, n, body_to(p, "endfor"));
    else
        p->tok++;
    return tmpl__node_done(p, n);
}

/* N_SET: a = target, b = value. N_SETBLOCK: a = target, b = filters over N_CAPTURED, d = body */
static struct tnode *set_stmt(struct parser *p)
{
    struct tnode *n = tmpl__node(p, N_SET);
    n->a = tmpl__target(p, true);
    if (tmpl__skip_op(p, '=')) {
        n->b = tmpl__tuple(p, true, NULL);
        return tmpl__node_done(p, n);
    }
    n->kind = N_SETBLOCK;
    n->b = tmpl__filters(p, tmpl__node_done(p, tmpl__node(p, N_CAPTURED)), false);
    n->d = captured_to(p, "endset");
    return tmpl__node_done(p, n);
}

/* Parameters into kids: N_NAME with x = symbol, val = name, a = default or NULL */
static void signature(struct parser *p, struct tnode *m)
{
    tmpl__expect_op(p, '(');
    while (!tmpl__tok_op(p, ')')) {
        if (m->n)
            tmpl__expect_op(p, ',');
        struct tnode *arg = tmpl__node(p, N_NAME);
        arg->val = tmpl__expect_name(p);
        arg->x = tmpl__symbol(p, arg->val.u.s);
        if (tmpl__skip_op(p, '='))
            arg->a = tmpl__expr(p, true);
        else if (m->n && m->kid[m->n - 1]->a)
            tmpl__unexpected(p, "a default value, as the parameter before has one,");
        tmpl__node_push(p, m, tmpl__node_done(p, arg));
        if (m->n > 255)
            tmpl__fail(p->r, ERR_LIMIT, "more than 255 parameters");
    }
    p->tok++;
}

/* N_MACRO: x = symbol, val = name, kids = parameters, d = body, flag = USES_* */
static struct tnode *macro_rest(struct parser *p, struct tnode *m, const char *end)
{
    uint8_t uses = p->uses;
    int loops = p->loops;
    p->uses = 0;
    p->loops = 0; /* break cannot leave a macro */
    m->d = body_to(p, end);
    m->flag = p->uses;
    p->uses = uses;
    p->loops = loops;
    return tmpl__node_done(p, m);
}

static struct tnode *macro_stmt(struct parser *p)
{
    struct tnode *m = tmpl__node(p, N_MACRO);
    m->val = tmpl__expect_name(p);
    m->x = tmpl__symbol(p, m->val.u.s);
    signature(p, m);
    return macro_rest(p, m, "endmacro");
}

/* N_CALLBLOCK: a = call, b = the block as a nameless macro */
static struct tnode *call_stmt(struct parser *p)
{
    struct tnode *n = tmpl__node(p, N_CALLBLOCK), *m = tmpl__node(p, N_MACRO);
    m->val = tmpl__ref(p->r, "caller", 6);
    m->x = -1;
    if (tmpl__tok_op(p, '('))
        signature(p, m);
    n->a = tmpl__expr(p, true);
    if (n->a->kind != N_CALL)
        tmpl__unexpected(p, "a call before this");
    n->b = macro_rest(p, m, "endcall");
    return tmpl__node_done(p, n);
}

/* N_FILTERBLOCK: b = filters over N_CAPTURED, d = body */
static struct tnode *filter_stmt(struct parser *p)
{
    struct tnode *n = tmpl__node(p, N_FILTERBLOCK);
    n->b = tmpl__filters(p, tmpl__node_done(p, tmpl__node(p, N_CAPTURED)), true);
    n->d = captured_to(p, "endfilter");
    return tmpl__node_done(p, n);
}

/* N_WITH: kids = target, value, ...; d = body */
static struct tnode *with_stmt(struct parser *p)
{
    struct tnode *n = tmpl__node(p, N_WITH);
    while (p->tok->type != TOK_BLOCK_END) {
        if (n->n)
            tmpl__expect_op(p, ',');
        struct tnode *target = one_target(p, false);
        tmpl__expect_op(p, '=');
        tmpl__node_push(p, n, target);
        tmpl__node_push(p, n, tmpl__expr(p, true));
    }
    n->d = body_to(p, "endwith");
    return tmpl__node_done(p, n);
}

/* N_SCOPE: d = body; `generation` marks what a model wrote and prints as it is */
static struct tnode *scope_stmt(struct parser *p)
{
    struct tnode *n = tmpl__node(p, N_SCOPE);
    n->d = captured_to(p, "endgeneration");
    return tmpl__node_done(p, n);
}

static struct tnode *print_stmt(struct parser *p)
{
    struct tnode *n = tmpl__node(p, N_PRINT);
    n->a = tmpl__tuple(p, true, NULL);
    return tmpl__node_done(p, n);
}

static struct tnode *jump(struct parser *p, int kind)
{
    if (!p->loops)
        tmpl__fail(p->r, ERR_PARSE, "break or continue outside a loop");
    return tmpl__node_done(p, tmpl__node(p, kind));
}

static struct tnode *statement(struct parser *p)
{
    static const struct {
        const char *name;
        struct tnode *(*parse)(struct parser *p);
    } tab[] = {
        {"if", if_stmt},       {"for", for_stmt},          {"set", set_stmt},
        {"macro", macro_stmt}, {"call", call_stmt},        {"filter", filter_stmt},
        {"with", with_stmt},   {"generation", scope_stmt}, {"print", print_stmt},
    };
    static const char *const refused[] = {"include", "import",     "from",  "extends",  "block",
                                          "do",      "autoescape", "trans", "continue", "break"};
    p->r->line = p->tok->line;
    struct tv name = tmpl__expect_name(p);
    for (size_t i = 0; i < sizeof(tab) / sizeof(tab[0]); i++)
        if (tmpl__is(name, tab[i].name))
            return tab[i].parse(p);
    if (tmpl__is(name, "break"))
        return jump(p, N_BREAK);
    if (tmpl__is(name, "continue"))
        return jump(p, N_CONTINUE);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (tmpl__is(name, refused[i]))
            tmpl__fail(p->r, ERR_UNSUPPORTED, "tag '%s' is not supported", refused[i]);
    p->tok--;
    tmpl__unexpected(p, "a known tag");
}

static bool one_of(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (tmpl__tok_is(p, *ends))
            return true;
    return false;
}

/* N_BODY: kids. N_DATA: val. N_PRINT: a. ends == NULL: the whole template. */
struct tnode *tmpl__body(struct parser *p, const char *const *ends)
{
    struct tnode *body = tmpl__node(p, N_BODY);
    tmpl__enter(p);
    while (p->tok->type != TOK_EOF) {
        struct tnode *n;
        if (p->tok->type == TOK_DATA) {
            n = tmpl__node(p, N_DATA);
            n->val = (p->tok++)->val;
            n = tmpl__node_done(p, n);
        } else if (p->tok->type == TOK_VAR_BEGIN) {
            p->tok++;
            n = print_stmt(p);
            if (p->tok->type != TOK_VAR_END)
                tmpl__unexpected(p, "'}}'");
            p->tok++;
        } else {
            p->tok++;
            if (one_of(p, ends)) {
                p->nest--;
                return tmpl__node_done(p, body);
            }
            n = statement(p);
            block_end(p);
        }
        tmpl__node_push(p, body, n);
    }
    if (ends)
        tmpl__unexpected(p, ends[1] ? "the end of a block" : ends[0]);
    p->nest--;
    return tmpl__node_done(p, body);
}

/* Jinja refuses unknown filters and tests when it compiles, except right inside `if` (soft), where
 * they fail when reached. */
static void check_names(struct parser *p, const struct tnode *n, bool soft)
{
    if (!n)
        return;
    if (!soft && !n->fn && (n->kind == N_FILTER || n->kind == N_TEST)) {
        struct tstr *s = n->val.u.s;
        p->r->line = n->line;
        tmpl__fail(p->r, ERR_UNSUPPORTED, "no %s named '%.*s'",
                   n->kind == N_TEST ? "test" : "filter", (int)(s->n < 60 ? s->n : 60), s->p);
    }
    soft = soft || n->kind == N_IF || n->kind == N_COND;
    check_names(p, n->a, soft);
    check_names(p, n->b, soft);
    check_names(p, n->c, soft);
    check_names(p, n->d, false); /* bodies with a scope of their own */
    for (int i = 0; i < n->n; i++)
        check_names(p, n->kid[i], soft);
    for (int i = 0; n->args && i < n->args->n_pos; i++)
        check_names(p, n->args->pos[i], soft);
    for (int i = 0; n->args && i < n->args->n_kw; i++)
        check_names(p, n->args->kwv[i], soft);
    if (n->args) {
        check_names(p, n->args->dyn, soft);
        check_names(p, n->args->dyn_kw, soft);
    }
}

struct tnode *tmpl__parse(struct parser *p)
{
    struct tnode *n = tmpl__body(p, NULL);
    check_names(p, n, false);
    tmpl__scopes(p, n);
    return n;
}
