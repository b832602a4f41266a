/* Chat templates: which names a scope hides before it sets them. Jinja decides where a name comes from
 * when it compiles: a name that a scope first *sets* (outside `if`) is that scope's own from its start,
 * so a macro or loop inside that reads it earlier finds it undefined, even where the caller passed a
 * variable of that name. A name first *read*, or first set inside an `if`, starts with the outer value. */
#include "api/template_impl.h"

#include <string.h>

enum { REF_NONE, REF_OUTER, REF_OWN };

struct frame {
    struct parser *p;
    const struct frame *up;
    uint8_t *ref; /* by symbol */
};

static struct frame frame_new(struct parser *p, const struct frame *up)
{
    return (struct frame){.p = p, .up = up, .ref = tmpl__alloc(p->r, (size_t)p->t->n_sym + 1, 1)};
}

static bool known(const struct frame *f, int32_t sym)
{
    for (; f; f = f->up)
        if (f->ref[sym])
            return true;
    return false;
}

static void load(struct frame *f, int32_t sym)
{
    if (!known(f, sym))
        f->ref[sym] = REF_OUTER;
}

/* Assignment to a target; `own`: it would make the name this frame's from the start. */
static void store(struct frame *f, const struct tnode *t, bool own)
{
    if (t->kind == N_ATTR)
        load(f, t->a->x);
    else if (t->kind == N_NAME && !f->ref[t->x])
        f->ref[t->x] = own && !known(f->up, t->x) ? REF_OWN : REF_OUTER;
    for (int i = 0; i < t->n; i++)
        store(f, t->kid[i], own);
}

static void visit_expr(struct frame *f, const struct tnode *n)
{
    if (!n)
        return;
    if (n->kind == N_NAME)
        load(f, n->x);
    visit_expr(f, n->a);
    visit_expr(f, n->b);
    visit_expr(f, n->c);
    for (int i = 0; i < n->n; i++)
        visit_expr(f, n->kid[i]);
    if (!n->args)
        return;
    for (int i = 0; i < n->args->n_pos; i++)
        visit_expr(f, n->args->pos[i]);
    for (int i = 0; i < n->args->n_kw; i++)
        visit_expr(f, n->args->kwv[i]);
    visit_expr(f, n->args->dyn);
    visit_expr(f, n->args->dyn_kw);
}

/* Loads and stores of this frame itself, in the order of the text; not of frames inside. */
static void visit(struct frame *f, const struct tnode *n, bool in_if)
{
    switch (n->kind) {
    case N_BODY:
        for (int i = 0; i < n->n; i++)
            visit(f, n->kid[i], in_if);
        break;
    case N_IF:
        for (int i = 0; i < n->n; i++) {
            if (n->kid[i]->kind == N_BODY)
                visit(f, n->kid[i], true);
            else
                visit_expr(f, n->kid[i]);
        }
        break;
    case N_SET:
        visit_expr(f, n->b);
        store(f, n->a, !in_if);
        break;
    case N_SETBLOCK:
        store(f, n->a, !in_if);
        break;
    case N_MACRO:
        if (!f->ref[n->x])
            f->ref[n->x] = !in_if && !known(f->up, n->x) ? REF_OWN : REF_OUTER;
        break;
    case N_CALLBLOCK:
    case N_PRINT:
        visit_expr(f, n->a);
        break;
    case N_FOR:
    case N_FILTERBLOCK:
        visit_expr(f, n->b);
        break;
    case N_WITH:
        for (int i = 1; i < n->n; i += 2)
            visit_expr(f, n->kid[i]);
        break;
    default:
        break;
    }
}

static void inner(struct frame *f, struct tnode *n);

/* Analyse `body` as the frame f, whose parameters are marked already, then the frames inside. */
static void frame_body(struct frame *f, struct tnode *body)
{
    visit(f, body, false);
    for (int32_t i = 0; i < f->p->t->n_sym; i++)
        body->n_own += f->ref[i] == REF_OWN;
    body->own = tmpl__alloc(f->p->r, (size_t)body->n_own + 1, sizeof(*body->own));
    for (int32_t i = 0, k = 0; i < f->p->t->n_sym; i++)
        if (f->ref[i] == REF_OWN)
            body->own[k++] = i;
    inner(f, body);
}

static void macro_frame(const struct frame *up, struct tnode *m)
{
    static const char *const special[] = {"varargs", "kwargs", "caller"};
    struct frame f = frame_new(up->p, up);
    const struct api_template *t = up->p->t;
    for (int i = 0; i < t->n_sym; i++)
        for (int k = 0; k < 3; k++)
            if (t->sym[i]->n == strlen(special[k]) &&
                memcmp(t->sym[i]->p, special[k], t->sym[i]->n) == 0)
                f.ref[i] = REF_OUTER;
    for (int i = 0; i < m->n; i++) {
        f.ref[m->kid[i]->x] = REF_OUTER;
        visit_expr(&f, m->kid[i]->a);
    }
    frame_body(&f, m->d);
}

static void plain_frame(const struct frame *up, const struct tnode *target, struct tnode *body)
{
    struct frame f = frame_new(up->p, up);
    if (target)
        store(&f, target, false);
    frame_body(&f, body);
}

/* Frames that start directly inside the statements of f. */
static void inner(struct frame *f, struct tnode *n)
{
    struct frame w;
    switch (n->kind) {
    case N_BODY:
    case N_IF:
        for (int i = 0; i < n->n; i++)
            inner(f, n->kid[i]);
        break;
    case N_FOR:
        w = frame_new(f->p, f);
        store(&w, n->a, false);
        w.ref[n->x] = REF_OUTER; /* loop */
        frame_body(&w, n->d);
        if (n->n)
            plain_frame(f, NULL, n->kid[0]);
        break;
    case N_MACRO:
        macro_frame(f, n);
        break;
    case N_CALLBLOCK:
        macro_frame(f, n->b);
        break;
    case N_SETBLOCK:
    case N_FILTERBLOCK:
    case N_SCOPE:
        plain_frame(f, NULL, n->d);
        break;
    case N_WITH:
        w = frame_new(f->p, f);
        for (int i = 0; i < n->n; i += 2)
            store(&w, n->kid[i], false);
        frame_body(&w, n->d);
        break;
    default:
        break;
    }
}

void tmpl__scopes(struct parser *p, struct tnode *root)
{
    struct frame f = frame_new(p, NULL);
    frame_body(&f, root);
}
