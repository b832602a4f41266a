/* Choices under a grammar: the mask of their next token. It is made when the one before is known, on the engine thread;
 * rows of such choices wait for their token (see plan.c). Memory is taken when a choice is admitted. */
#include "engine/base/mem.h"
#include "sched/sched_impl.h"

static size_t words(const struct sched *s)
{
    return ((size_t)s->info.n_vocab + 31) / 32;
}

int sched__gram_open(const struct sched *s, struct seq *q)
{
    const struct request *r = q->req->r;
    if (q->gram || !r->samp.grammar || !q->req->max_out)
        return 0;
    q->mask = mem_alloc(words(s) * sizeof *q->mask);
    int rc = q->mask ? grammar_state_open(&q->gram, r->samp.grammar) : ERR_NOMEM;
    if (!rc)
        rc = sched__gram_next(s, q);
    return rc < 0 ? rc : 0;
}

void sched__gram_close(struct seq *q)
{
    grammar_state_close(q->gram);
    free(q->mask);
    q->gram = NULL;
    q->mask = NULL;
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
