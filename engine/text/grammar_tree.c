/* A choice of many texts as a tree of what they begin with: at any byte only one branch is left to be followed. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/grammar_build.h"
#include "engine/text/grammar_expr.h"

#define DEPTH_MAX 32 /* branches above each other; below stand the texts side by side */
#define FEW       4  /* texts that need no tree */

struct tree {
    struct gr_builder *b;
    struct view *text; /* sorted, without doubles; a copy, as the builder's bytes move */
};

static int compare(const void *xp, const void *yp)
{
    const struct view *x = xp, *y = yp;
    int c = memcmp(x->p, y->p, x->len < y->len ? x->len : y->len);
    return c ? c : (x->len > y->len) - (x->len < y->len);
}

static gr_expr rest_of(const struct tree *t, size_t i, size_t at)
{
    return gr_lit(t->b, t->text[i].p + at, t->text[i].len - at);
}

/* The texts lo .. hi - 1, which are alike up to `at`, from there on. */
static gr_expr branch(const struct tree *t, size_t lo, size_t hi, size_t at, int depth)
{
    const struct view *first = &t->text[lo], *last = &t->text[hi - 1];
    gr_expr kid[257];
    size_t n = 0, from = at;
    if (hi - lo == 1)
        return rest_of(t, lo, at);
    while (at < first->len && first->p[at] == last->p[at]) /* sorted: the outer two tell of all */
        at++;
    gr_expr head = gr_lit(t->b, first->p + from, at - from);
    if (first->len == at) {
        kid[n++] = gr_empty(t->b);
        lo++;
    }
    if (hi - lo > FEW && depth == DEPTH_MAX) {
        gr_expr *flat = mem_alloc((hi - lo) * sizeof *flat);
        if (!flat)
            return gr_fail(t->b, ERR_NOMEM, "no memory");
        for (size_t i = lo; i < hi; i++)
            flat[i - lo] = rest_of(t, i, at);
        kid[n++] = gr__alt_flat(t->b, flat, hi - lo);
        free(flat);
        lo = hi;
    }
    while (lo < hi) {
        size_t to = lo + 1;
        while (to < hi && t->text[to].p[at] == t->text[lo].p[at])
            to++;
        kid[n++] = branch(t, lo, to, at, depth + 1);
        lo = to;
    }
    return gr_seq2(t->b, head, gr__alt_flat(t->b, kid, n));
}

gr_expr gr__alt_texts(struct gr_builder *b, const gr_expr *e, size_t n)
{
    size_t bytes = 0, m = 0;
    for (size_t i = 0; i < n; i++)
        bytes += (size_t)b->x[e[i]].b;
    char *copy = mem_alloc(bytes + 1);
    struct tree t = {b, mem_alloc(n * sizeof *t.text)};
    if (!copy || !t.text) {
        free(copy);
        free(t.text);
        return gr_fail(b, ERR_NOMEM, "no memory");
    }
    bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const struct expr *x = &b->x[e[i]];
        t.text[i] = (struct view){copy + bytes, (size_t)x->b};
        memcpy(copy + bytes, b->lit.p + x->a, (size_t)x->b);
        bytes += (size_t)x->b;
    }
    qsort(t.text, n, sizeof *t.text, compare);
    for (size_t i = 0; i < n; i++)
        if (!m || compare(&t.text[m - 1], &t.text[i]) != 0)
            t.text[m++] = t.text[i];
    gr_expr r = branch(&t, 0, m, 0, 0);
    free(copy);
    free(t.text);
    return r;
}
