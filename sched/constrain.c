/* Choices under a grammar: the mask of their next token. It is made when the one before is known, on the engine thread;
 * rows of such choices wait for their token (see plan.c). Memory is taken when a choice is admitted. */
#include <string.h>

#include "engine/base/mem.h"
#include "sched/sched_impl.h"

static size_t words(const struct sched *s)
{
    return ((size_t)s->info.n_vocab + 31) / 32;
}

int sched__gram_open(const struct sched *s, struct seq *q)
{
    const struct request *r = q->req->r;
    if (q->mask || (!r->samp.grammar && !r->think) || !q->req->max_out)
        return 0;
    q->mask = mem_alloc(words(s) * sizeof *q->mask);
    int rc = q->mask ? 0 : ERR_NOMEM;
    if (!rc && r->samp.grammar)
        rc = grammar_state_open(&q->gram, r->samp.grammar);
    if (!rc && r->samp.grammar)
        rc = sched__gram_next(s, q);
    if (rc >= 0)
        sched__think_next(s, q, -1);
    return rc < 0 ? rc : 0;
}

void sched__gram_close(struct seq *q)
{
    grammar_state_close(q->gram);
    free(q->mask);
    q->gram = NULL;
    q->mask = NULL;
}

/* The output ends in these tokens. */
static bool ends_in(const struct seq *q, const int32_t *mark, int n)
{
    return n > 0 && q->n_output >= n &&
           memcmp(q->tok + q->n_known - n, mark, (size_t)n * sizeof *mark) == 0;
}

void sched__think_next(const struct sched *s, struct seq *q, int32_t token)
{
    const struct req_think *t = q->req->r->think;
    struct seq_think *k = &q->think;
    if (!t || k->over)
        return;
    if (token < 0) {
        *k = (struct seq_think){.inside = t->inside, .force = -1};
    } else if (k->force >= 0) {
        k->over = ++k->force == t->n_force;
    } else if (k->inside) {
        k->n++;
        k->over = ends_in(q, t->close, t->n_close);
    } else {
        k->inside = ends_in(q, t->open, t->n_open);
    }
    if (k->over)
        k->force = -1;
    else if (k->inside && k->force < 0 && k->n >= t->budget)
        k->force = 0;
    if (k->force < 0)
        return;
    int32_t id = t->force[k->force];
    memset(q->mask, 0, words(s) * sizeof *q->mask);
    q->mask[id / 32] |= 1u << (id % 32);
}

/* Tokens that end the choice may come where the text is whole, and only there. */
static void set_stops(const struct sched *s, struct seq *q, bool whole)
{
    const struct request *r = q->req->r;
    for (int i = 0; i < r->n_stop_id; i++) {
        int32_t id = r->stop_id[i];
        if (id < 0 || id >= s->info.n_vocab)
            continue;
        uint32_t bit = 1u << (id % 32), *at = &q->mask[id / 32];
        *at = whole && q->n_output >= r->min_tokens ? *at | bit : *at & ~bit;
    }
}

int sched__gram_next(const struct sched *s, struct seq *q)
{
    const uint32_t *also = q->req->r->samp.mask;
    size_t n = words(s);
    bool whole = grammar_may_end(q->gram), any = false;
    if (grammar_must_end(q->gram) && q->n_output)
        return 0;
    int rc = grammar_mask(q->gram, q->mask, n);
    if (rc < 0)
        return rc;
    set_stops(s, q, whole);
    for (size_t i = 0; i < n; i++) {
        q->mask[i] &= also ? also[i] : UINT32_MAX;
        any |= q->mask[i] != 0;
    }
    if (any)
        return 1;
    return whole && q->n_output ? 0 : ERR_NOTFOUND;
}

int sched__gram_accept(const struct sched *s, struct seq *q, int32_t token)
{
    int rc = grammar_accept(q->gram, token);
    return rc ? rc : sched__gram_next(s, q);
}

const char *sched__gram_error(int rc)
{
    return rc == ERR_NOTFOUND ? "no allowed token goes on from here in the grammar"
           : rc == ERR_LIMIT  ? "the grammar is too ambiguous to be followed"
           : rc == ERR_NOMEM  ? "no memory for the grammar"
                              : "the grammar and its tokens disagree";
}
