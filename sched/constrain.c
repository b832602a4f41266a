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
    grammar_state_close(q->gram_ahead);
    free(q->mask);
    free(q->mask_ahead);
    q->gram = q->gram_ahead = NULL;
    q->mask = q->mask_ahead = NULL;
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
static void set_stops(const struct sched *s, const struct request *r, uint32_t *mask, bool may_end)
{
    for (int i = 0; i < r->n_stop_id; i++) {
        int32_t id = r->stop_id[i];
        if (id < 0 || id >= s->info.n_vocab)
            continue;
        uint32_t bit = 1u << (id % 32), *at = &mask[id / 32];
        *at = may_end ? *at | bit : *at & ~bit;
    }
}

/* The mask of what follows `g` in an answer of n_output tokens; as sched__gram_next. */
static int make_mask(const struct sched *s, const struct request *r, struct grammar_state *g,
                     int32_t n_output, uint32_t *mask)
{
    const uint32_t *also = r->samp.mask;
    size_t n = words(s);
    bool whole = grammar_may_end(g), any = false;
    if (grammar_must_end(g) && n_output)
        return 0;
    int rc = grammar_mask(g, mask, n);
    if (rc < 0)
        return rc;
    set_stops(s, r, mask, whole && n_output >= r->min_tokens);
    for (size_t i = 0; i < n; i++) {
        mask[i] &= also ? also[i] : UINT32_MAX;
        any |= mask[i] != 0;
    }
    if (any)
        return 1;
    return whole && n_output ? 0 : ERR_NOTFOUND;
}

int sched__gram_next(const struct sched *s, struct seq *q)
{
    return make_mask(s, q->req->r, q->gram, q->n_output, q->mask);
}

/* The only token of a mask, or -1. */
static int32_t only_one(const uint32_t *mask, size_t n)
{
    int32_t id = -1;
    for (size_t i = 0; i < n; i++) {
        if (!mask[i])
            continue;
        if (id >= 0 || (mask[i] & (mask[i] - 1)))
            return -1;
        id = (int32_t)i * 32 + __builtin_ctz(mask[i]);
    }
    return id;
}

const uint32_t *sched__gram_mask(const struct sched *s, const struct seq *q, int ahead)
{
    return ahead ? q->mask_ahead + (size_t)(ahead - 1) * words(s) : q->mask;
}

/* Where the drafts are tried: a second state, and a mask behind each. */
static int open_ahead(const struct sched *s, struct seq *q)
{
    if (q->gram_ahead)
        return 0;
    if (!q->mask_ahead)
        q->mask_ahead = mem_alloc((size_t)s->o.spec_tokens * words(s) * sizeof *q->mask_ahead);
    return q->mask_ahead ? grammar_state_open(&q->gram_ahead, q->req->r->samp.grammar) : ERR_NOMEM;
}

int sched__gram_drafts(const struct sched *s, struct seq *q, int n, int most, uint32_t *forced)
{
    const struct request *r = q->req->r;
    int32_t *tok = q->tok + q->n_known;
    int i = 0;
    *forced = 0;
    if (most < 1 || (!n && only_one(q->mask, words(s)) < 0) || open_ahead(s, q) ||
        grammar_state_copy(q->gram_ahead, q->gram))
        return 0;
    for (; i < most; i++) {
        const uint32_t *mask = sched__gram_mask(s, q, i);
        int32_t only = only_one(mask, words(s));
        if (only < 0 && (i >= n || !(mask[tok[i] / 32] >> (tok[i] % 32) & 1)))
            break;
        if (only >= 0 && (i >= n || tok[i] != only)) {
            tok[i] = only; /* whatever the guess was: what it says behind is void */
            n = i + 1;
        }
        if (sched__is_stop(r, tok[i]) || grammar_accept(q->gram_ahead, tok[i]) ||
            make_mask(s, r, q->gram_ahead, q->n_output + i + 1,
                      q->mask_ahead + (size_t)i * words(s)) != 1)
            break;
        *forced |= only >= 0 ? 1u << i : 0;
    }
    return i;
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
