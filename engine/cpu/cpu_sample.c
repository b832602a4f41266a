/* CPU backend: choose a token of each row. Rows run in parallel, each with a worker's scratch; a row's result
 * depends on its logits and its sample_row alone. The candidates stay in id order throughout and the token is
 * the inverse of their cumulative sum at one uniform number. top_k and top_p cut by selection, never by a
 * sort of the vocabulary. */
#include "engine/base/rng.h"
#include "engine/cpu/cpu_impl.h"

#include <math.h>
#include <string.h>

/* A worker's scratch for rows of n_vocab. cnt is all zero between rows. */
struct scratch {
    float *x, *e;
    int32_t *id;
    uint32_t *cnt;
    double *sums;
};

struct sample_job {
    const struct cpu_sample_kern *k;
    const struct op_sample *a;
    const float *logits;
    int64_t n_vocab;
    char *scratch;
    size_t scratch_bytes;
};

/* Candidates: values (logits, later weights) and their ids, ascending. */
struct cand {
    const float *x;
    const int32_t *id; /* NULL: index is the id */
    int64_t n;
};

static struct scratch scratch_of(const struct sample_job *j, int worker)
{
    size_t n = (size_t)j->n_vocab;
    char *p = j->scratch + (size_t)worker * j->scratch_bytes;
    struct scratch s;
    s.sums = (void *)p;
    s.x = (void *)(s.sums + (n / CPU_SUM_BLOCK + 2));
    s.e = s.x + n;
    s.id = (void *)(s.e + n);
    s.cnt = (void *)(s.id + n);
    return s;
}

/* ---------------------------------------------------------------- edits of the logits */

#define SEEN 0x80000000u

static bool penalised(const struct sample_row *r)
{
    return (r->repetition_penalty > 0 &&
            (r->repetition_penalty < 1 || r->repetition_penalty > 1)) ||
           r->presence_penalty < 0 || r->presence_penalty > 0 || r->frequency_penalty < 0 ||
           r->frequency_penalty > 0;
}

/* Count each known token once, then visit it once and put its count back to zero. */
static void penalise(float *x, int64_t n, const struct sample_row *r, uint32_t *cnt)
{
    float rep = r->repetition_penalty > 0 ? r->repetition_penalty : 1;
    for (int i = 0; i < r->n_hist; i++) {
        int32_t t = r->hist[i];
        if (t >= 0 && t < n)
            cnt[t] = (cnt[t] | SEEN) + (i >= r->n_prompt);
    }
    for (int i = 0; i < r->n_hist; i++) {
        int32_t t = r->hist[i];
        if (t < 0 || t >= n || cnt[t] == 0)
            continue;
        uint32_t out = cnt[t] & ~SEEN;
        cnt[t] = 0;
        x[t] = x[t] > 0 ? x[t] / rep : x[t] * rep;
        if (out)
            x[t] -= r->presence_penalty + r->frequency_penalty * (float)out;
    }
}

static void edit(float *x, int64_t n, const struct sample_row *r, uint32_t *cnt)
{
    for (int64_t i = 0; r->mask && i < n; i++)
        if (!(r->mask[i / 32] >> (i % 32) & 1))
            x[i] = -INFINITY;
    for (int i = 0; i < r->n_ban; i++)
        if (r->ban[i] >= 0 && r->ban[i] < n)
            x[r->ban[i]] = -INFINITY;
    for (int i = 0; i < r->n_bias; i++)
        if (r->bias[i].token >= 0 && r->bias[i].token < n)
            x[r->bias[i].token] += r->bias[i].bias;
    if (penalised(r))
        penalise(x, n, r, cnt);
}

/* ---------------------------------------------------------------- selection */

/* Where a selection ends: everything above `key`, and the first `n_equal` of those equal to it. */
struct cut {
    uint32_t key;
    int64_t n_equal;
};

/* Order of floats as order of unsigned numbers; -0 and 0 are one. */
static uint32_t sort_key(float f)
{
    uint32_t u;
    f += 0.0f;
    memcpy(&u, &f, 4);
    return u & SEEN ? ~u : u | SEEN;
}

/* The largest values whose weights (the values themselves, or 1 each) first reach `target`, at least one.
 * Radix selection, most significant bits first: three scans and no sort. */
static struct cut cut_find(const struct cand *c, double target, bool by_mass)
{
    static const int shift[] = {21, 10, 0}, bits[] = {11, 11, 10};
    uint32_t prefix = 0;
    double above = 0, weight[2048];
    for (int level = 0; level < 3; level++) {
        uint32_t n_bin = 1u << bits[level], bin = 0;
        memset(weight, 0, sizeof weight);
        for (int64_t i = 0; i < c->n; i++) {
            uint32_t key = sort_key(c->x[i]);
            if (level == 0 || key >> (shift[level] + bits[level]) == prefix)
                weight[key >> shift[level] & (n_bin - 1)] += by_mass ? (double)c->x[i] : 1.0;
        }
        /* Down to the bin that reaches the target; should rounding keep it out of reach, the lowest. */
        double before = above;
        for (uint32_t b = n_bin; b-- > 0;) {
            if (!(weight[b] > 0))
                continue;
            bin = b;
            before = above;
            above += weight[b];
            if (above >= target)
                break;
        }
        above = before;
        prefix = prefix << bits[level] | bin;
    }
    struct cut r = {prefix, 1};
    uint32_t u = prefix & SEEN ? prefix & ~SEEN : ~prefix;
    float v;
    memcpy(&v, &u, 4);
    double need = (target - above) / (by_mass ? (double)v : 1.0);
    if (need > 1)
        r.n_equal = need < (double)c->n ? (int64_t)ceil(need) : c->n;
    return r;
}

/* Keep what the cut says; x and id may be c's own arrays. */
static struct cand cut_apply(const struct cand *c, struct cut cut, float *x, int32_t *id)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->n; i++) {
        uint32_t key = sort_key(c->x[i]);
        if (key < cut.key || (key == cut.key && cut.n_equal-- <= 0))
            continue;
        id[n] = c->id ? c->id[i] : (int32_t)i;
        x[n++] = c->x[i];
    }
    return (struct cand){x, id, n};
}

/* The k largest logits, in id order. */
static struct cand top_k(const struct sample_job *j, const struct cand *c, int k,
                         const struct scratch *s)
{
    if (k > CPU_TOP_MAX)
        return cut_apply(c, cut_find(c, k, false), s->x, s->id);
    struct cpu_top t[CPU_TOP_MAX];
    int n = j->k->top(c->x, c->n, k, t);
    for (int i = 0; i < n; i++) { /* insertion sort by id */
        struct cpu_top v = t[i];
        int at = i;
        for (; at > 0 && s->id[at - 1] > v.id; at--) {
            s->id[at] = s->id[at - 1];
            s->e[at] = s->e[at - 1];
        }
        s->id[at] = v.id;
        s->e[at] = v.x;
    }
    memcpy(s->x, s->e, (size_t)n * sizeof *s->x);
    return (struct cand){s->x, s->id, n};
}

/* Index of the first weight at which the running sum passes u times the sum of all. */
static int64_t draw(const struct sample_job *j, const struct cand *c, double u, double *sums)
{
    double target = u * j->k->sum(c->x, c->n, sums), run = 0;
    int64_t n_sum = (c->n + CPU_SUM_BLOCK - 1) / CPU_SUM_BLOCK, b = 0, last = 0;
    while (b < n_sum - 1 && run + sums[b] <= target)
        run += sums[b++];
    for (int64_t i = b * CPU_SUM_BLOCK; i < c->n && i < (b + 1) * CPU_SUM_BLOCK; i++) {
        if (!(c->x[i] > 0))
            continue;
        last = i;
        run += (double)c->x[i];
        if (run > target)
            return i;
    }
    /* Rounding left the target just behind the block: its last possible token. */
    for (; last == 0 && b >= 0; b--)
        for (int64_t i = b * CPU_SUM_BLOCK; i < c->n && i < (b + 1) * CPU_SUM_BLOCK; i++)
            last = c->x[i] > 0 ? i : last;
    return last;
}

/* Drop weights below `least`; c->x is s->e. */
static void keep(const struct sample_job *j, struct cand *c, float least, const struct scratch *s)
{
    c->n = j->k->keep(c->x, c->id, c->n, least, (struct cpu_kept){s->e, s->id});
    c->id = s->id;
}

static int32_t choose_random(const struct sample_job *j, const float *x, float max,
                             const struct sample_row *r, const struct scratch *s)
{
    struct cand c = {x, NULL, j->n_vocab};
    if (r->top_k > 0 && r->top_k < c.n)
        c = top_k(j, &c, r->top_k, s);
    float inv_t = 1 / r->temperature;
    double all = j->k->exp_sum(s->e, c.x, c.n, max, inv_t < 1e30f ? inv_t : 1e30f);
    c.x = s->e; /* weights relative to the most likely one, which is 1 */
    if (r->min_p > 0) {
        keep(j, &c, r->min_p < 1 ? r->min_p : 1, s);
        all = j->k->sum(s->e, c.n, NULL);
    }
    if (r->top_p < 1) {
        double p = r->top_p > 0 ? (double)r->top_p : 0;
        /* Weights below `least` are (1 - p) / 2 of the sum together: none of them can be needed. */
        double least = 0.5 * (1 - p) * all / (double)c.n;
        keep(j, &c, (float)least, s);
        c = cut_apply(&c, cut_find(&c, p * all, true), s->e, s->id);
    }
    int64_t i = draw(j, &c, rng_uniform(r->seed, r->position), s->sums);
    return c.id ? c.id[i] : (int32_t)i;
}

/* false: nothing can be chosen. */
static bool choose(const struct sample_job *j, const float *x, float max, int32_t best,
                   const struct sample_row *r, const struct scratch *s, int32_t *out)
{
    if (r->mask || r->n_ban || r->n_bias || penalised(r)) {
        memcpy(s->x, x, (size_t)j->n_vocab * sizeof *x);
        edit(s->x, j->n_vocab, r, s->cnt);
        x = s->x;
        if (!j->k->max(x, j->n_vocab, &max, &best))
            return false;
    }
    *out = r->temperature > 0 ? choose_random(j, x, max, r, s) : best;
    return true;
}

static void sample_row(void *arg, int task, int worker)
{
    const struct sample_job *j = arg;
    const struct sample_row *r = &j->a->rows[task];
    struct sample_out *o = &j->a->out[task];
    const float *x = j->logits + task * j->a->logits.stride[0];
    struct scratch s = scratch_of(j, worker);
    float max;
    int32_t best;
    memset(o, 0, sizeof *o);
    if (!j->k->max(x, j->n_vocab, &max, &best)) {
        o->bad = true;
        return;
    }
    if (r->target >= 0)
        o->token = r->target;
    else if (!choose(j, x, max, best, r, &s, &o->token))
        o->bad = true;
    if (o->bad || r->n_top < 0)
        return;
    double lse = j->k->lse(x, j->n_vocab, max);
    o->logprob = (float)((double)x[o->token] - lse);
    o->rank = (int32_t)j->k->rank(x, j->n_vocab, x[o->token], o->token) + 1;
    if (r->n_top == 0)
        return;
    struct cpu_top t[SAMPLE_TOP_MAX];
    o->n_top = j->k->top(x, j->n_vocab, r->n_top, t);
    for (int i = 0; i < o->n_top; i++) {
        o->top_id[i] = t[i].id;
        o->top_logprob[i] = (float)((double)t[i].x - lse);
    }
}

int cpu__sample(struct dev *d, const struct op_sample *a)
{
    if (ops_check_sample(a))
        return ERR_INVAL;
    struct sample_job j = {.k = d->isa->sample, .a = a, .n_vocab = a->logits.shape[1]};
    j.logits = cpu__ptr(d, &a->logits);
    if (!j.logits)
        return ERR_INVAL;
    size_t n = (size_t)j.n_vocab;
    j.scratch_bytes = (n / CPU_SUM_BLOCK + 2) * sizeof(double) + 4 * n * sizeof(float);
    j.scratch_bytes = (j.scratch_bytes + 63) / 64 * 64;
    size_t had = d->sample.n;
    int rc = cpu__grow(&d->sample, j.scratch_bytes * (size_t)d->n_threads);
    if (rc)
        return rc;
    j.scratch = d->sample.p;
    /* Another vocabulary lays the counts out elsewhere: they start at zero again. */
    if (d->sample_vocab != j.n_vocab && had == d->sample.n)
        memset(d->sample.p, 0, d->sample.n);
    d->sample_vocab = j.n_vocab;
    int64_t rows = a->logits.shape[0];
    cpu__run(d, sample_row, &j, (int)rows, (double)rows * (double)n);
    return 0;
}
