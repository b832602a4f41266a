/* Drafts of a small model, where they are expected to pay. See spec.h, draft.h.
 *
 * They are not free like a place in the text: each costs a step of the small model. So their number is settled
 * first, one for all sequences that ask for them, from how often such drafts were right (of each sequence) and how
 * long the steps of both models took; what of them is computed is then chosen as with any other guess. */
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "sched/sched_impl.h"

#define LIKELY 0.6f /* of a draft, before any was seen, and how many sights that is worth */
#define WEIGHT 4.0f
#define MARGIN 1.1
#define STRONG 0.75 /* a place in the text this likely needs no other opinion */
#define REST   200  /* steps until it is tried again where it did not pay */

int sched__model_open(struct sched *s, struct err *e)
{
    s->spec.pays = true;
    return s->o.draft ? drafter_open(&s->spec.drafter, s->o.draft, s->info.n_vocab, e) : 0;
}

void sched__model_drop(struct sched *s, struct seq *q)
{
    if (q->spec && s->spec.drafter)
        drafter_drop(s->spec.drafter, &q->spec->small);
}

double sched__model_chance(const struct spec *x)
{
    return (double)((x->by_model.hit + WEIGHT * LIKELY) / (x->by_model.seen + WEIGHT));
}

/* Sequences that are better continued by the small model. */
static int collect(const struct sched *s, struct seq *const *list, int n, struct seq **who,
                   struct draft_job *job)
{
    int n_job = 0;
    for (int i = 0; i < n; i++) {
        struct seq *q = list[i];
        struct spec *x = q->spec;
        if (!x || q->gram || sched__spec_most(s, q) < 1 || /* it knows no grammars */

            (x->n_cand && sched__spec_chance(x, x->len) > STRONG))
            continue;
        if (x->small.n_done >=
            q->n_known) /* drafts that no step took; the last token is fed again */
            x->small.n_done = q->n_known - 1;
        who[n_job] = q;
        job[n_job++] =
            (struct draft_job){.x = &x->small, .tok = q->tok, .n_known = q->n_known, .cap = q->cap};
    }
    return n_job;
}

/* How many drafts of each pay best; 0: none. */
static int best_length(const struct sched *s, int n, struct seq *const *who, int n_job)
{
    const struct speculator *c = &s->spec;
    double rate = n / c->us[n] * MARGIN, tokens = n, p[DRAFT_SEQS];
    int best = 0, rows = n;
    for (int i = 0; i < n_job; i++)
        p[i] = 1;
    for (int k = 1; k <= s->o.spec_tokens && rows + n_job <= SPEC_ROWS_MAX; k++) {
        for (int i = 0; i < n_job; i++) {
            p[i] *= sched__model_chance(who[i]->spec);
            tokens += p[i];
        }
        rows += n_job;
        double now = tokens / (sched__spec_rows_us(c, rows) + k * c->us_draft);
        if (now <= rate)
            continue;
        rate = now;
        best = k;
    }
    return s->o.spec_eager ? s->o.spec_tokens : best;
}

/* One draft more for each, and what it took. */
static int one_more(struct sched *s, struct seq *const *who, struct draft_job *job, int n,
                    struct err *e)
{
    struct speculator *c = &s->spec;
    int64_t from = s->o.clock(s->o.arg);
    int rc = drafter_step(c->drafter, job, n, e);
    double us = (double)(s->o.clock(s->o.arg) - from);
    double part = us > c->us_draft ? 0.5 : 0.1; /* what was doubted comes back at once */
    c->us_draft = c->us_draft > 0 ? (1 - part) * c->us_draft + part * us : us;
    for (int i = 0; i < n; i++) {
        struct draft_job *j = &job[i];
        if (!j->ended && sched__is_stop(who[i]->req->r, j->tok[j->n_known + j->n - 1])) {
            j->n--;
            j->ended = true;
        }
        j->ended |= j->n >= sched__spec_most(s, who[i]);
    }
    return rc;
}

static void give_up(struct sched *s, const struct err *e)
{
    log_error("sched", "the draft model failed, answers go on without it: %s", e->text);
    for (struct sreq *r = s->head; r; r = r->next)
        for (int i = 0; i < r->r->n; i++)
            sched__model_drop(s, &r->seq[i]);
    drafter_close(s->spec.drafter);
    s->spec.drafter = NULL;
}

/* Steps without it cost nothing: what was found is believed a little less each time, until it is tried again. */
static void doubt(struct sched *s, struct seq *const *who, int n)
{
    s->spec.us_draft *= 0.999;
    for (int i = 0; i < n; i++) {
        struct spec_score *c = &who[i]->spec->by_model;
        c->hit *= 0.99f;
        c->seen *= 0.99f;
    }
}

void sched__model_drafts(struct sched *s, struct seq *const *list, int n)
{
    struct draft_job job[DRAFT_SEQS];
    struct seq *who[DRAFT_SEQS];
    struct err e = {0};
    if (!s->spec.drafter || n > DRAFT_SEQS)
        return;
    int64_t from = s->o.clock(s->o.arg);
    int n_job = collect(s, list, n, who, job);
    int k = n_job ? best_length(s, n, who, n_job) : 0;
    s->spec.pays = k > 0;
    if (!k) {
        doubt(s, who, n_job);
        return;
    }
    int rc = drafter_catch_up(s->spec.drafter, job, n_job, &e);
    for (int i = 0; !rc && i < k; i++)
        rc = one_more(s, who, job, n_job, &e);
    for (int i = 0; !rc && i < n_job; i++) {
        struct spec *x = who[i]->spec;
        x->model = job[i].n > 0;
        if (x->model)
            x->n_cand = job[i].n;
        else if (x->n_cand) /* its place was written over */
            x->n_cand = sched__spec_write(s, who[i]);
    }
    if (rc) {
        for (int i = 0; i < n_job; i++)
            who[i]->spec->n_cand = 0;
        give_up(s, &e);
    }
    s->spec.drafted_us += s->o.clock(s->o.arg) - from;
}

void sched__model_judge(struct spec *x, int32_t n_known, int n_draft, int n_right)
{
    int32_t done = n_known + n_right;
    if (x->small.n_done > done) /* behind a wrong draft it is KV of another text */
        x->small.n_done = done;
    for (int i = 0; x->model && i < n_draft && i <= n_right; i++)
        sched__spec_judge(&x->by_model, i < n_right);
    x->model = false;
}
