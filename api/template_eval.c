/* Chat templates: evaluation of expressions. Attribute access is the sandbox's: data and the listed
 * methods, nothing else; what would change a list or a dict is hidden. */
#include "api/template_impl.h"

#include <math.h>
#include <string.h>

static void undef_fail(struct tmpl_run *r, struct tv v)
{
    if (v.u.s)
        tmpl__fail(r, ERR_INVAL, "'%.*s' is undefined", (int)(v.u.s->n < 80 ? v.u.s->n : 80),
                   v.u.s->p);
    tmpl__fail(r, ERR_INVAL, "value is undefined");
}

/* --- attributes and items --- */
static struct tv loop_attr(struct tmpl_run *r, struct tloop *l, struct tv name)
{
    int64_t i = (int64_t)l->i, n = (int64_t)l->items->n;
    if (tmpl__is(name, "index"))
        return tmpl__int(i + 1);
    if (tmpl__is(name, "index0"))
        return tmpl__int(i);
    if (tmpl__is(name, "revindex"))
        return tmpl__int(n - i);
    if (tmpl__is(name, "revindex0"))
        return tmpl__int(n - i - 1);
    if (tmpl__is(name, "first"))
        return tmpl__bool(i == 0);
    if (tmpl__is(name, "last"))
        return tmpl__bool(i == n - 1);
    if (tmpl__is(name, "length"))
        return tmpl__int(n);
    if (tmpl__is(name, "depth"))
        return tmpl__int(l->depth + 1);
    if (tmpl__is(name, "depth0"))
        return tmpl__int(l->depth);
    if (tmpl__is(name, "previtem"))
        return i > 0 ? l->items->v[i - 1] : tmpl__undef(r, "there is no previous item", 25);
    if (tmpl__is(name, "nextitem"))
        return i + 1 < n ? l->items->v[i + 1] : tmpl__undef(r, "there is no next item", 21);
    return TV(TV_MISSING);
}

/* A method as a value, with what it is a method of. */
static struct tv bound(struct tmpl_run *r, struct tv self, const struct tfn *fn)
{
    struct tmethod *m = tmpl__alloc(r, 1, sizeof(*m));
    *m = (struct tmethod){.self = self, .fn = fn};
    return (struct tv){.t = TV_METHOD, .u.meth = m};
}

/* Attribute that the type itself has; TV_MISSING when there is none. */
static struct tv own_attr(struct tmpl_run *r, struct tv o, struct tv name)
{
    const struct tstr *s = name.u.s;
    struct tv v = TV(TV_MISSING);
    if (o.t == TV_LOOP)
        v = loop_attr(r, o.u.loop, name);
    else if (o.t == TV_NS) {
        const struct tv *p = tmpl__dict_get(r, o.u.d, name);
        return p ? *p : v;
    } else if (o.t == TV_MACRO && tmpl__is(name, "name"))
        return o.u.m->node->val;
    else if (o.t == TV_SEQ && o.u.l->group && tmpl__is(name, "grouper"))
        return o.u.l->v[0];
    else if (o.t == TV_SEQ && o.u.l->group && tmpl__is(name, "list"))
        return o.u.l->v[1];
    else if (o.t == TV_CYCLER && tmpl__is(name, "current"))
        return o.u.cyc->items->v[o.u.cyc->pos];
    if (v.t != TV_MISSING)
        return v;
    bool blocked = false;
    const struct tfn *fn = tmpl__method(o, s->p, s->n, &blocked);
    if (fn)
        return bound(r, o, fn);
    if (blocked)
        return tmpl__undef(r, s->p, s->n);
    return v;
}

/* o.name: what the type has comes before the keys of a dict; item access has it the other way. */
struct tv tmpl__getattr(struct tmpl_run *r, struct tv o, struct tv name)
{
    if (o.t == TV_UNDEF)
        undef_fail(r, o);
    struct tv v = own_attr(r, o, name);
    if (v.t != TV_MISSING)
        return v;
    if (o.t == TV_DICT) {
        const struct tv *p = tmpl__dict_get(r, o.u.d, name);
        if (p)
            return *p;
    }
    return tmpl__undef(r, name.u.s->p, name.u.s->n);
}

static bool hashable(struct tv k)
{
    return k.t <= TV_STR || (k.t == TV_SEQ && k.u.l->kind == SEQ_TUPLE);
}

struct tv tmpl__getitem(struct tmpl_run *r, struct tv o, struct tv key)
{
    if (o.t == TV_UNDEF)
        undef_fail(r, o);
    if (o.t == TV_DICT && hashable(key)) {
        const struct tv *p = tmpl__dict_get(r, o.u.d, key);
        if (p)
            return *p;
    }
    bool indexed = (o.t == TV_SEQ && o.u.l->kind <= SEQ_RANGE) || o.t == TV_STR;
    if (indexed && (key.t == TV_INT || key.t == TV_BOOL)) {
        int64_t n = tmpl__len(r, o), i = tmpl__as_int(r, key, "index");
        i += i < 0 ? n : 0;
        if (i < 0 || i >= n)
            return tmpl__undef(r, "element", 7);
        return o.t == TV_STR ? tmpl__substr(r, o, i, i + 1) : o.u.l->v[i];
    }
    if (key.t != TV_STR)
        return tmpl__undef(r, "element", 7);
    struct tv v = own_attr(r, o, key);
    return v.t == TV_MISSING ? tmpl__undef(r, key.u.s->p, key.u.s->n) : v;
}

/* Slice bound: negative counts from the end, then into [lo, hi]. */
static int64_t clamp(int64_t i, int64_t n, int64_t lo, int64_t hi)
{
    i = i < 0 ? i + n : i;
    return i < lo ? lo : i > hi ? hi : i;
}

static int64_t slice_part(struct tmpl_run *r, const struct tnode *n, int64_t none, bool *given)
{
    struct tv v = n ? tmpl__eval(r, n) : TV(TV_NONE);
    *given = v.t != TV_NONE;
    return *given ? tmpl__as_int(r, v, "slice index") : none;
}

static struct tv slice(struct tmpl_run *r, struct tv o, const struct tnode *s)
{
    bool has_from, has_to, has_step;
    if (o.t == TV_UNDEF)
        undef_fail(r, o);
    if (o.t != TV_STR && !(o.t == TV_SEQ && o.u.l->kind <= SEQ_RANGE))
        tmpl__fail(r, ERR_INVAL, "'%s' object cannot be sliced", tmpl__type(o));
    int64_t n = tmpl__len(r, o), from = slice_part(r, s->a, 0, &has_from),
            to = slice_part(r, s->b, 0, &has_to), step = slice_part(r, s->c, 1, &has_step);
    if (step == 0)
        tmpl__fail(r, ERR_INVAL, "slice step cannot be zero");
    if (step > n + 1 || step < -n - 1)
        step = step > 0 ? n + 1 : -n - 1; /* same items, and from + step cannot overflow */
    if (step > 0) {
        from = has_from ? clamp(from, n, 0, n) : 0;
        to = has_to ? clamp(to, n, 0, n) : n;
    } else {
        from = has_from ? clamp(from, n, -1, n - 1) : n - 1;
        to = has_to ? clamp(to, n, -1, n - 1) : -1;
    }
    if (o.t == TV_STR && step == 1)
        return tmpl__substr(r, o, from, to);
    struct tseq *l = tmpl__iter(r, o);
    struct tv out = tmpl__seq(r, o.t == TV_SEQ ? l->kind : SEQ_LIST, 0);
    out.u.l->group = l->kind == SEQ_RANGE;
    struct tsb b = {0};
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        tmpl__tick(r, 0);
        if (o.t == TV_STR)
            tmpl__sb_add(r, &b, l->v[i].u.s->p, l->v[i].u.s->n);
        else
            tmpl__push(r, out, l->v[i]);
    }
    if (o.t != TV_STR)
        return out;
    out = tmpl__sb_take(r, &b);
    out.safe = o.safe;
    return out;
}

/* --- operators: Python's, on integers of 64 bits with overflow an error --- */
static bool is_int(struct tv v)
{
    return v.t == TV_INT || v.t == TV_BOOL;
}

static bool is_num(struct tv v)
{
    return is_int(v) || v.t == TV_FLOAT;
}

static double as_float(struct tv v)
{
    return v.t == TV_FLOAT ? v.u.f : v.t == TV_BOOL ? (double)v.u.b : (double)v.u.i;
}

/* TypeError of an operator; names the undefined one where there is one. */
static struct tv bad_operands(struct tmpl_run *r, const char *op, struct tv a, struct tv b)
{
    if (a.t == TV_UNDEF)
        undef_fail(r, a);
    if (b.t == TV_UNDEF)
        undef_fail(r, b);
    tmpl__fail(r, ERR_INVAL, "unsupported operand types for %s: '%s' and '%s'", op, tmpl__type(a),
               tmpl__type(b));
}

static struct tv list_add(struct tmpl_run *r, struct tseq *x, struct tseq *y)
{
    struct tv out = tmpl__seq(r, x->kind, 0);
    struct tseq *l = out.u.l;
    *l = *x;
    l->group = false;
    tmpl__tick(r, y->n * 16);
    /* in place when x is the newest user of its slots, so that `a = a + [b]` in a loop is linear */
    if (!x->used || *x->used != x->n || y->n > x->cap - x->n) {
        tmpl__tick(r, x->n * 16);
        l->cap = (x->n + y->n) * 2;
        l->v = tmpl__alloc(r, l->cap + 1, sizeof(*l->v));
        if (x->n)
            memcpy(l->v, x->v, x->n * sizeof(*l->v));
        l->used = tmpl__alloc(r, 1, sizeof(*l->used));
    }
    if (y->n)
        memcpy(l->v + x->n, y->v, y->n * sizeof(*l->v));
    l->n = x->n + y->n;
    *l->used = l->n;
    return out;
}

static struct tv escaped(struct tmpl_run *r, struct tv s)
{
    struct tsb b = {0};
    if (s.safe)
        return s;
    tmpl__escape(r, &b, s);
    return tmpl__sb_take(r, &b);
}

struct tv tmpl__add(struct tmpl_run *r, struct tv a, struct tv b)
{
    int64_t i;
    if (is_int(a) && is_int(b)) {
        if (__builtin_add_overflow(tmpl__as_int(r, a, "+"), tmpl__as_int(r, b, "+"), &i))
            tmpl__fail(r, ERR_INVAL, "integer overflow");
        return tmpl__int(i);
    }
    if (is_num(a) && is_num(b))
        return tmpl__float(as_float(a) + as_float(b));
    if (a.t == TV_STR && b.t == TV_STR) {
        bool safe = a.safe || b.safe;
        struct tv v = safe ? tmpl__concat(r, escaped(r, a), escaped(r, b)) : tmpl__concat(r, a, b);
        v.safe = safe;
        return v;
    }
    if (a.t == TV_SEQ && b.t == TV_SEQ && a.u.l->kind == b.u.l->kind && a.u.l->kind <= SEQ_TUPLE)
        return list_add(r, a.u.l, b.u.l);
    return bad_operands(r, "+", a, b);
}

static struct tv repeat(struct tmpl_run *r, struct tv s, int64_t times)
{
    if (s.t == TV_STR) {
        struct tsb b = {0};
        tmpl__sb_pad(r, &b, s.u.s->p, s.u.s->n, times);
        struct tv v = tmpl__sb_take(r, &b);
        v.safe = s.safe;
        return v;
    }
    struct tv out = tmpl__seq(r, s.u.l->kind, 0);
    for (int64_t i = 0; i < times && s.u.l->n; i++)
        for (size_t k = 0; k < s.u.l->n; k++) {
            tmpl__tick(r, 0);
            tmpl__push(r, out, s.u.l->v[k]);
        }
    return out;
}

static struct tv int_pow(struct tmpl_run *r, int64_t a, int64_t b)
{
    int64_t v = 1;
    if (a == 0 || a == 1 || a == -1) /* any exponent, without counting to it */
        return tmpl__int(b == 0 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : a);
    for (int64_t i = 0; i < b; i++)
        if (__builtin_mul_overflow(v, a, &v))
            tmpl__fail(r, ERR_INVAL, "integer overflow");
    return tmpl__int(v);
}

static struct tv int_op(struct tmpl_run *r, int op, int64_t a, int64_t b)
{
    int64_t v;
    bool bad = false;
    if ((op == OP2('/', '/') || op == '%') && b == 0)
        tmpl__fail(r, ERR_INVAL, "division by zero");
    if (op == '-')
        bad = __builtin_sub_overflow(a, b, &v);
    else if (op == '*')
        bad = __builtin_mul_overflow(a, b, &v);
    else if (b == -1) /* INT64_MIN / -1 traps */
        bad = op == '%' ? (v = 0, false) : __builtin_sub_overflow((int64_t)0, a, &v);
    else if (op == '%')
        v = a % b + ((a % b != 0 && (a % b < 0) != (b < 0)) ? b : 0);
    else
        v = a / b - (a % b != 0 && (a < 0) != (b < 0));
    if (bad)
        tmpl__fail(r, ERR_INVAL, "integer overflow");
    return tmpl__int(v);
}

static struct tv float_op(struct tmpl_run *r, int op, double a, double b)
{
    if (op == '-')
        return tmpl__float(a - b);
    if (op == '*')
        return tmpl__float(a * b);
    if (op == OP2('*', '*')) {
        double v = pow(a, b);
        if (isnan(v) || isinf(v))
            tmpl__fail(r, ERR_INVAL, "result of ** is no number");
        return tmpl__float(v);
    }
    if (b == 0)
        tmpl__fail(r, ERR_INVAL, "division by zero");
    if (op == '/')
        return tmpl__float(a / b);
    double m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0))
        m += b;
    return tmpl__float(op == '%' ? m : floor((a - m) / b + 0.5));
}

static struct tv binary(struct tmpl_run *r, int op, struct tv a, struct tv b)
{
    char name[3] = {op >> 8 ? (char)(op >> 8) : (char)op, op >> 8 ? (char)op : 0, 0};
    if (op == '+')
        return tmpl__add(r, a, b);
    if (op == '%' && a.t == TV_STR)
        return tmpl__percent(r, a, b);
    bool a_rep = a.t == TV_STR || (a.t == TV_SEQ && a.u.l->kind <= SEQ_TUPLE);
    bool b_rep = b.t == TV_STR || (b.t == TV_SEQ && b.u.l->kind <= SEQ_TUPLE);
    if (op == '*' && a_rep && is_int(b))
        return repeat(r, a, tmpl__as_int(r, b, "*"));
    if (op == '*' && b_rep && is_int(a))
        return repeat(r, b, tmpl__as_int(r, a, "*"));
    if (!is_num(a) || !is_num(b))
        return bad_operands(r, name, a, b);
    if (is_int(a) && is_int(b) && op == OP2('*', '*') && tmpl__as_int(r, b, name) >= 0)
        return int_pow(r, tmpl__as_int(r, a, name), tmpl__as_int(r, b, name));
    if (is_int(a) && is_int(b) && op != '/' && op != OP2('*', '*'))
        return int_op(r, op, tmpl__as_int(r, a, name), tmpl__as_int(r, b, name));
    return float_op(r, op, as_float(a), as_float(b));
}

bool tmpl__contains(struct tmpl_run *r, struct tv item, struct tv box)
{
    if (box.t == TV_STR) {
        if (item.t == TV_UNDEF)
            undef_fail(r, item);
        if (item.t != TV_STR)
            tmpl__fail(r, ERR_INVAL, "'in <string>' needs a string on its left, not '%s'",
                       tmpl__type(item));
        tmpl__tick(r, box.u.s->n);
        return tmpl__find(box.u.s->p, box.u.s->n, item.u.s->p, item.u.s->n) != NULL;
    }
    if (box.t == TV_DICT)
        return tmpl__dict_get(r, box.u.d, item) != NULL;
    struct tseq *l = tmpl__iter(r, box);
    for (size_t i = 0; i < l->n; i++)
        if (tmpl__eq(r, l->v[i], item, 0))
            return true;
    return false;
}

static bool compare(struct tmpl_run *r, int op, struct tv a, struct tv b)
{
    if (op == OP2('=', '='))
        return tmpl__eq(r, a, b, 0);
    if (op == OP2('!', '='))
        return !tmpl__eq(r, a, b, 0);
    if (op == OP_IN)
        return tmpl__contains(r, a, b);
    if (op == OP_NOT_IN)
        return !tmpl__contains(r, a, b);
    if (a.t == TV_UNDEF || b.t == TV_UNDEF)
        bad_operands(r, "comparison", a, b);
    int c = tmpl__cmp(r, a, b, 0);
    if (c == 2) /* not a number */
        return false;
    return op == '<' ? c < 0 : op == '>' ? c > 0 : op == OP2('<', '=') ? c <= 0 : c >= 0;
}

static struct tv compare_chain(struct tmpl_run *r, const struct tnode *n)
{
    struct tv left = tmpl__eval(r, n->a);
    for (int i = 0; i < n->n; i++) {
        struct tv right = tmpl__eval(r, n->kid[i]->a);
        if (!compare(r, n->kid[i]->x, left, right))
            return tmpl__bool(false);
        left = right;
    }
    return tmpl__bool(true);
}

/* --- calls --- */
/* Evaluate the arguments, with * and ** spread, into arrays of the arena. */
static void eval_args(struct tmpl_run *r, const struct targs *a, struct tcall *c)
{
    if (!a)
        return;
    struct tseq *dyn = a->dyn ? tmpl__iter(r, tmpl__eval(r, a->dyn)) : NULL;
    struct tv kw = a->dyn_kw ? tmpl__eval(r, a->dyn_kw) : TV(TV_MISSING);
    if (kw.t != TV_MISSING && kw.t != TV_DICT)
        tmpl__fail(r, ERR_INVAL, "argument after ** must be a mapping, not '%s'", tmpl__type(kw));
    size_t n_pos = (size_t)a->n_pos + (dyn ? dyn->n : 0);
    size_t n_kw = (size_t)a->n_kw + (kw.t == TV_DICT ? kw.u.d->n : 0);
    if (n_pos + n_kw > 10000)
        tmpl__fail(r, ERR_LIMIT, "more than 10000 arguments");
    c->pos = tmpl__alloc(r, n_pos + 1, sizeof(*c->pos));
    c->kwv = tmpl__alloc(r, n_kw + 1, sizeof(*c->kwv));
    c->kwn = tmpl__alloc(r, n_kw + 1, sizeof(*c->kwn));
    for (int i = 0; i < a->n_pos; i++)
        c->pos[c->n++] = tmpl__eval(r, a->pos[i]);
    for (size_t i = 0; dyn && i < dyn->n; i++)
        c->pos[c->n++] = dyn->v[i];
    for (int i = 0; i < a->n_kw; i++) {
        c->kwn[c->n_kw] = a->kwn[i];
        c->kwv[c->n_kw++] = tmpl__eval(r, a->kwv[i]);
    }
    for (size_t i = 0; kw.t == TV_DICT && i < kw.u.d->n; i++) {
        if (kw.u.d->e[i].k.t != TV_STR)
            tmpl__fail(r, ERR_INVAL, "keywords must be strings");
        c->kwn[c->n_kw] = kw.u.d->e[i].k.u.s;
        c->kwv[c->n_kw++] = kw.u.d->e[i].v;
    }
}

#define MAX_SIG 6

/* Bind the call to the names of f->sig; '!' before a name: required. */
struct tv tmpl__call_fn(struct tmpl_run *r, const struct tfn *f, struct tv self,
                        const struct tcall *c)
{
    struct tv a[MAX_SIG];
    int n = 0, used_kw = 0;
    for (int i = 0; i < MAX_SIG; i++)
        a[i] = TV(TV_MISSING);
    if (!f->sig)
        return f->call(r, self, a, c);
    for (const char *s = f->sig; *s; n++) {
        bool need = *s == '!';
        s += need;
        size_t len = strcspn(s, ",");
        if (n < c->n)
            a[n] = c->pos[n];
        for (int k = 0; k < c->n_kw; k++) {
            if (c->kwn[k]->n != len || memcmp(c->kwn[k]->p, s, len) != 0)
                continue;
            if (a[n].t != TV_MISSING)
                tmpl__fail(r, ERR_INVAL, "%s: two values for '%.*s'", f->name, (int)len, s);
            a[n] = c->kwv[k];
            used_kw++;
        }
        if (need && a[n].t == TV_MISSING)
            tmpl__fail(r, ERR_INVAL, "%s: argument '%.*s' is missing", f->name, (int)len, s);
        s += len + (s[len] == ',');
    }
    if (c->n > n || used_kw < c->n_kw)
        tmpl__fail(r, ERR_INVAL, "%s: too many or unknown arguments", f->name);
    return f->call(r, self, a, c);
}

struct tv tmpl__call(struct tmpl_run *r, struct tv f, const struct tcall *c)
{
    switch (f.t) {
    case TV_MACRO:
        return tmpl__call_macro(r, f.u.m, c);
    case TV_FN:
        return tmpl__call_fn(r, f.u.fn, TV(TV_NONE), c);
    case TV_METHOD:
        return tmpl__call_fn(r, f.u.meth->fn, f.u.meth->self, c);
    case TV_LOOP:
        return tmpl__call_loop(r, f.u.loop, c);
    case TV_JOINER:
        return f.u.cyc->pos++ ? f.u.cyc->items->v[0] : tmpl__ref(r, "", 0);
    case TV_UNDEF:
        undef_fail(r, f);
        /* fall through */
    default:
        tmpl__fail(r, ERR_INVAL, "'%s' object is not callable", tmpl__type(f));
    }
}

/* --- nodes --- */
static struct tv lookup(struct tmpl_run *r, const struct tnode *n)
{
    for (struct tscope *s = r->scope; s; s = s->up)
        for (int i = 0; i < s->n; i++)
            if (s->sym[i] == n->x)
                return s->v[i];
    struct tv v = r->root[n->x];
    return v.t == TV_MISSING ? tmpl__undef(r, n->val.u.s->p, n->val.u.s->n) : v;
}

static struct tv named(struct tmpl_run *r, const struct tnode *n)
{
    struct tcall c = {0};
    struct tv in = tmpl__eval(r, n->a);
    eval_args(r, n->args, &c);
    r->line = n->line;
    if (!n->fn)
        tmpl__fail(r, ERR_UNSUPPORTED, "no %s named '%.*s'", n->kind == N_TEST ? "test" : "filter",
                   (int)(n->val.u.s->n < 60 ? n->val.u.s->n : 60), n->val.u.s->p);
    return tmpl__call_fn(r, n->fn, in, &c);
}

static struct tv literal(struct tmpl_run *r, const struct tnode *n)
{
    struct tv v = n->kind == N_DICT
                      ? tmpl__dict(r)
                      : tmpl__seq(r, n->kind == N_LIST ? SEQ_LIST : SEQ_TUPLE, (size_t)n->n);
    for (int i = 0; i < n->n; i++) {
        struct tv item = tmpl__eval(r, n->kid[i]);
        if (n->kind == N_DICT)
            tmpl__dict_set(r, v.u.d, item, tmpl__eval(r, n->kid[++i]));
        else
            tmpl__push(r, v, item);
    }
    return v;
}

static struct tv sign(struct tmpl_run *r, const struct tnode *n)
{
    struct tv v = tmpl__eval(r, n->a);
    if (!is_num(v))
        return bad_operands(r, n->kind == N_NEG ? "unary -" : "unary +", v, v);
    if (v.t == TV_FLOAT)
        return tmpl__float(n->kind == N_NEG ? -v.u.f : v.u.f);
    int64_t i = tmpl__as_int(r, v, "operand");
    return n->kind == N_NEG ? int_op(r, '-', 0, i) : tmpl__int(i);
}

static struct tv concat(struct tmpl_run *r, const struct tnode *n)
{
    struct tv v = tmpl__to_str(r, tmpl__eval(r, n->kid[0]));
    for (int i = 1; i < n->n; i++)
        v = tmpl__concat(r, v, tmpl__to_str(r, tmpl__eval(r, n->kid[i])));
    v.safe = false;
    return v;
}

static struct tv call_node(struct tmpl_run *r, const struct tnode *n)
{
    struct tcall c = {0};
    struct tv f = tmpl__eval(r, n->a);
    eval_args(r, n->args, &c);
    r->line = n->line;
    return tmpl__call(r, f, &c);
}

static struct tv item_node(struct tmpl_run *r, const struct tnode *n)
{
    struct tv o = tmpl__eval(r, n->a);
    return n->b->kind == N_SLICE ? slice(r, o, n->b) : tmpl__getitem(r, o, tmpl__eval(r, n->b));
}

static struct tv eval_node(struct tmpl_run *r, const struct tnode *n)
{
    struct tv v;
    switch (n->kind) {
    case N_CONST:
        return n->val;
    case N_NAME:
        return lookup(r, n);
    case N_LIST:
    case N_TUPLE:
    case N_DICT:
        return literal(r, n);
    case N_ATTR:
        return tmpl__getattr(r, tmpl__eval(r, n->a), n->val);
    case N_ITEM:
        return item_node(r, n);
    case N_CALL:
        return call_node(r, n);
    case N_FILTER:
    case N_TEST:
        return named(r, n);
    case N_NEG:
    case N_POS:
        return sign(r, n);
    case N_BIN:
        v = tmpl__eval(r, n->a);
        return binary(r, n->x, v, tmpl__eval(r, n->b));
    case N_CMP:
        return compare_chain(r, n);
    case N_AND:
        v = tmpl__eval(r, n->a);
        return tmpl__truth(v) ? tmpl__eval(r, n->b) : v;
    case N_OR:
        v = tmpl__eval(r, n->a);
        return tmpl__truth(v) ? v : tmpl__eval(r, n->b);
    case N_NOT:
        return tmpl__bool(!tmpl__truth(tmpl__eval(r, n->a)));
    case N_COND:
        if (tmpl__truth(tmpl__eval(r, n->b)))
            return tmpl__eval(r, n->a);
        return n->c ? tmpl__eval(r, n->c) : tmpl__undef(r, "inline if without else", 22);
    case N_CONCAT:
        return concat(r, n);
    case N_CAPTURED:
        return r->captured;
    default:
        tmpl__fail(r, ERR_INVAL, "a slice outside brackets");
    }
}

struct tv tmpl__eval(struct tmpl_run *r, const struct tnode *n)
{
    tmpl__tick(r, 0);
    if (++r->nest > TMPL_MAX_NEST)
        tmpl__fail(r, ERR_LIMIT, "calls nested too deeply");
    r->line = n->line;
    struct tv v = eval_node(r, n);
    r->nest--;
    return v;
}
