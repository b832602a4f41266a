/* What is likely to come, and how much of it is worth computing. See spec.h. */
#include "sched/spec.h"

#include "engine/base/mem.h"
#include "sched/sched_impl.h"

#define LEN_MOST    24   /* longer matches are no better */
#define LEN_RELOOK  8    /* below, a longer match elsewhere is looked for */
#define PRED_WINDOW 512  /* tokens of a prediction searched for the way on */
#define WEIGHT      4.0f /* observations that the first estimate is worth */
#define SCORE_MOST  64.0f
#define MARGIN      1.12 /* tokens a second that drafts have to bring, times those without */
#define P_LEAST     0.05 /* a draft less likely is not thought of */
#define REST        200  /* steps until look-ahead is left for drafts again that did not pay */
#define P_WAIT      0.5  /* the next step is held back for drafts this likely */

/* Of the first guesses, by class: matches of 0-1, 2, 3, 4-5, 6-8, 9-16, more tokens. */
static const float likely[SPEC_CLASSES] = {0.3f, 0.2f, 0.35f, 0.65f, 0.8f, 0.9f, 0.95f};

static int class_of(int32_t len)
{
    return len < 2 ? 0 : len < 3 ? 1 : len < 4 ? 2 : len < 6 ? 3 : len < 9 ? 4 : len < 17 ? 5 : 6;
}

/* ---- guesses ---- */

int sched__spec_open(const struct sched *s, struct seq *q)
{
    const struct request *r = q->req->r;
    if (q->spec || (!s->o.spec_tokens && !r->n_predict) || q->req->max_out < 2)
        return 0;
    struct spec *x = mem_calloc(1, sizeof *x);
    if (!x || ngram_open(&x->text, q->cap)) {
        free(x);
        return ERR_NOMEM;
    }
    ngram_extend(&x->text, q->tok, q->n_known);
    x->at = r->n_predict ? 0 : -1;
    x->foreign = r->n_predict > 0;
    if (x->at < 0)
        x->at = ngram_find(&x->text, q->tok, q->n_known, LEN_MOST, &x->len);
    q->spec = x;
    return 0;
}

void sched__spec_close(struct sched *s, struct seq *q)
{
    sched__model_drop(s, q);
    if (q->spec)
        ngram_close(&q->spec->text);
    free(q->spec);
    q->spec = NULL;
}

/* The way on in the prediction from where it was lost: behind the nearest place that the text's end equals. A single
 * token that differs is taken for exchanged. */
static bool find_foreign(const struct seq *q, bool just_lost)
{
    const struct request *r = q->req->r;
    struct spec *x = q->spec;
    int32_t end = r->n_predict - x->lost < PRED_WINDOW ? r->n_predict : x->lost + PRED_WINDOW;
    for (int32_t at = x->lost > NGRAM_MIN ? x->lost : NGRAM_MIN; at < end; at++) {
        int32_t len = ngram_equal(r->predict, at, q->tok, q->n_known, LEN_MOST);
        if (len < NGRAM_MIN)
            continue;
        x->at = at;
        x->len = len;
        return true;
    }
    x->at = just_lost && x->lost + 1 < r->n_predict ? x->lost + 1 : -1;
    x->len = 0;
    return x->at >= 0;
}

static void find(const struct seq *q, bool just_lost)
{
    struct spec *x = q->spec;
    int32_t len = 0;
    x->foreign = q->req->r->n_predict > 0 && find_foreign(q, just_lost);
    if (x->foreign)
        return;
    int32_t at = ngram_find(&x->text, q->tok, q->n_known, LEN_MOST, &len);
    if (at < 0 || (x->at >= 0 && len <= x->len))
        return;
    x->at = at;
    x->len = len;
}

void sched__spec_judge(struct spec_score *c, bool hit)
{
    c->seen += 1;
    c->hit += hit;
    if (c->seen < SCORE_MOST)
        return;
    c->seen /= 2;
    c->hit /= 2;
}

bool sched__spec_token(struct seq *q)
{
    const struct request *r = q->req->r;
    struct spec *x = q->spec;
    int32_t token = q->tok[q->n_known - 1];
    if (!x)
        return false;
    bool guessed = x->at >= 0, foreign = guessed && x->foreign;
    bool hit = guessed && (foreign ? r->predict : q->tok)[x->at] == token;
    if (guessed)
        sched__spec_judge(&x->score[class_of(x->len)], hit);
    ngram_extend(&x->text, q->tok, q->n_known);
    if (foreign)
        x->lost = x->at; /* or passed, for what is looked for next */
    if (hit) {
        x->at++;
        x->len += x->len < LEN_MOST;
        if (foreign && x->at == r->n_predict)
            x->at = -1;
    } else {
        x->at = -1;
        x->len = 0;
    }
    if (x->at < 0)
        find(q, foreign && !hit);
    else if (!foreign && x->len < LEN_RELOOK)
        find(q, false);
    return hit && foreign;
}

/* ---- how likely, how dear ---- */

double sched__spec_chance(const struct spec *x, int32_t len)
{
    int c = class_of(len);
    const struct spec_score *of = &x->score[c];
    return (double)((of->hit + WEIGHT * likely[c]) / (of->seen + WEIGHT));
}

void sched__spec_pause(struct sched *s)
{
    s->spec.end_us = s->spec.drafted_us = 0;
}

void sched__spec_cost(struct sched *s, const struct plan *p)
{
    struct speculator *c = &s->spec;
    int64_t from = c->end_us, drafted = c->drafted_us;
    c->end_us = s->now;
    c->drafted_us = 0;
    if (!from || !p->decode || p->n_tok > SPEC_ROWS_MAX)
        return;
    double us = (double)(s->now - from - drafted), *at = &c->us[p->n_tok];
    if (*at > 0 && us > 3 * *at) /* something else ran */
        us = 3 * *at;
    /* The first ones at a size are slow more often than fast: memory is touched, work is set up. */
    double part = c->n_seen[p->n_tok] < 4 && us < *at ? 0.7 : 0.1;
    *at = *at > 0 ? (1 - part) * *at + part * us : us;
    c->n_seen[p->n_tok]++;
}

/* Expected length of a step of n rows: between the sizes that are known in proportion, beyond them as the largest
 * known, so that it will be tried. */
double sched__spec_rows_us(const struct speculator *c, int n)
{
    int lo = n, hi = n;
    while (lo > 0 && c->us[lo] <= 0)
        lo--;
    while (hi <= SPEC_ROWS_MAX && c->us[hi] <= 0)
        hi++;
    if (lo == n || hi > SPEC_ROWS_MAX)
        return c->us[lo];
    double part = (double)(n - lo) / (hi - lo);
    return c->us[lo] + part * (c->us[hi] - c->us[lo]);
}

/* Drafts did not pay: what made them look dear is believed a little less, so that they are tried again some day. */
static void doubt(struct speculator *c, int n)
{
    for (int i = n + 1; i <= SPEC_ROWS_MAX; i++)
        if (c->us[i] > c->us[n])
            c->us[i] -= (c->n_seen[i] < 4 ? 0.01 : 0.002) * (c->us[i] - c->us[n]);
}

/* ---- drafts ---- */

int sched__spec_most(const struct sched *s, const struct seq *q)
{
    int most = q->req->max_out - q->n_output - 1; /* the one behind them may be the last */
    if (q->n_coming || sched__thinks(q))
        return 0;
    return most < s->o.spec_tokens ? most : s->o.spec_tokens;
}

/* As far as it may count. A copy that overtakes its source repeats it. */
int sched__spec_write(const struct sched *s, struct seq *q)
{
    const struct request *r = q->req->r;
    struct spec *x = q->spec;
    int all = sched__spec_most(s, q), most = x->at < 0 ? 0 : all, n = 0;
    if (x->foreign && most > r->n_predict - x->at)
        most = r->n_predict - x->at;
    for (; n < most; n++) {
        int32_t token = x->foreign ? r->predict[x->at + n] : q->tok[x->at + n];
        if (sched__is_stop(r, token)) /* it would end there in any case */
            break;
        q->tok[q->n_known + n] = token;
    }
    x->forced = 0;
    return q->gram ? sched__gram_drafts(s, q, n, all, &x->forced) : n;
}

/* Of the next draft, those before it being right. */
static double next_chance(const struct spec *x)
{
    if (x->forced >> x->n_draft & 1)
        return 1;
    return x->model ? sched__model_chance(x) : sched__spec_chance(x, x->len + x->n_draft);
}

/* The likeliest next draft of all; its sequence's number, or -1. */
static int likeliest(const struct sched *s, struct seq *const *list, int n, double *p)
{
    int best = -1;
    *p = s->o.spec_eager ? 0 : P_LEAST;
    for (int i = 0; i < n; i++) {
        const struct spec *x = list[i]->spec;
        if (!x || x->n_draft == x->n_cand)
            continue;
        double c = x->p * next_chance(x);
        if (c <= *p)
            continue;
        *p = c;
        best = i;
    }
    return best;
}

static void add_draft(struct spec *x)
{
    x->p *= next_chance(x);
    x->n_draft++;
}

/* Rows of drafts that list[n] may have, as far as memory and limits go. */
static int room(const struct sched *s, int n)
{
    int most = SPEC_ROWS_MAX - n, logits = s->plan->cap_logit - n;
    int32_t kept = s->o.spec_eager ? 0 : 3 * s->n_run;
    int64_t blocks = ((int64_t)block_pool_free(s->pool) - kept) * s->info.block_len;
    most = most < logits ? most : logits;
    most = most < s->o.step_tokens - n ? most : s->o.step_tokens - n;
    return most < blocks ? most : (int)(blocks > 0 ? blocks : 0);
}

void sched__spec_choose(struct sched *s, struct seq *const *list, int n)
{
    struct speculator *c = &s->spec;
    int order[SPEC_ROWS_MAX], most = room(s, n), best = 0, t = 0;
    for (int i = 0; i < n; i++)
        if (list[i]->spec)
            list[i]->spec->n_draft = list[i]->spec->n_cand = 0;
    if (!s->o.spec_tokens || s->n_open || n < 1 || most < 1)
        return;
    if (!s->o.spec_eager && (!s->plan->decode || c->us[n] <= 0))
        return;
    for (int i = 0; i < n; i++) {
        struct spec *x = list[i]->spec;
        if (!x)
            continue;
        x->model = false;
        x->p = 1;
        x->n_cand = sched__spec_write(s, list[i]);
    }
    sched__model_drafts(s, list, n);
    double tokens = n, p, rate = s->o.spec_eager ? 0 : n / c->us[n] * MARGIN;
    for (; t < most; t++) {
        int i = likeliest(s, list, n, &p);
        if (i < 0)
            break;
        order[t] = i;
        add_draft(list[i]->spec);
        tokens += p;
        double now = tokens / sched__spec_rows_us(c, n + t + 1);
        if (now <= rate && !s->o.spec_eager)
            continue;
        rate = now;
        best = t + 1;
    }
    for (int i = best; i < t; i++)
        list[order[i]]->spec->n_draft--;
    if (t && !best)
        doubt(c, n);
    c->dear = best ? 0 : t ? n : c->dear;
}

bool sched__spec_waits(struct sched *s, const struct seq *q)
{
    struct speculator *c = &s->spec;
    const struct spec *x = q->spec;
    if (!s->o.spec_tokens || !x)
        return false;
    bool model = c->drafter && s->n_run <= DRAFT_SEQS, dear = c->dear && s->n_run >= c->dear;
    if (model && c->pays)
        return true;
    if ((model || dear) && ++c->n_skipped > REST) { /* it may have become otherwise */
        c->pays = true;
        c->n_skipped = c->dear = 0;
    }
    if (dear || x->at < 0)
        return false;
    return s->o.spec_eager ||
           sched__spec_chance(x, x->len) * sched__spec_chance(x, x->len + 1) > P_WAIT;
}

/* ---- what came of them ---- */

int sched__spec_accept(struct sched *s, const struct plan *p, const struct plan_entry *en)
{
    const struct seq *q = en->q;
    const struct sample_out *out = p->out + en->first_logit;
    int n = 0;
    while (n < en->n_draft && !out[n].bad && out[n].token == q->tok[q->n_known + n])
        n++;
    if (q->spec && en->samples)
        sched__model_judge(q->spec, q->n_known, en->n_draft, n);
    if (!en->n_draft)
        return 0;
    s->st.drafts++;
    s->st.draft_tokens += (uint64_t)en->n_draft;
    s->st.draft_accepted += (uint64_t)n;
    for (int i = 0; i < n && i < SPEC_TOKENS_MAX; i++)
        s->st.draft_accepted_at[i]++;
    return n;
}
