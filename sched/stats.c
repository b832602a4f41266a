/* Counters and measured rates. See worker.h, struct sched_stats. */
#include "sched/sched_impl.h"

#define RATE_WINDOW_US 500000

void sched__stats_step(struct sched *s, int rows, int64_t us)
{
    int b = 0;
    while (b < 15 && rows > 1 << b)
        b++;
    s->st.step_tokens_hist[b]++;
    s->st.step_tokens_sum += rows;
    s->st.steps++;
    s->st.step_us_total += us;
    /* Cost of a row for the time budget. Only steps with a chunk tell it: in a small step the
     * constant part hides it. It changes chunk sizes, never results. */
    if (rows >= 16 && us > 0) {
        double now = (double)us / rows;
        s->us_per_row = s->us_per_row > 0 ? 0.8 * s->us_per_row + 0.2 * now : now;
    }
}

void sched__stats_tick(struct sched *s)
{
    int64_t us = s->now - s->rate_from_us;
    if (us < RATE_WINDOW_US)
        return;
    double sec = (double)us / 1e6;
    double tok = (double)(s->st.generated_tokens - s->rate_tokens) / sec;
    double req = (double)s->rate_requests / sec;
    /* An idle window says nothing about how fast the service is. */
    if (s->rate_requests || s->st.generated_tokens != s->rate_tokens) {
        bool first = s->st.tokens_per_s <= 0 && s->st.requests_per_s <= 0;
        s->st.tokens_per_s = first ? tok : 0.7 * s->st.tokens_per_s + 0.3 * tok;
        s->st.requests_per_s = first ? req : 0.7 * s->st.requests_per_s + 0.3 * req;
    }
    s->rate_from_us = s->now;
    s->rate_tokens = s->st.generated_tokens;
    s->rate_requests = 0;
}

void sched_stats_get(const struct sched *s, struct sched_stats *out)
{
    *out = s->st;
    out->running = out->waiting = 0;
    for (const struct sreq *r = s->head; r; r = r->next) {
        bool any = r->n_live > r->n_ready;
        out->running += any;
        out->waiting += !any;
    }
    out->running_seqs = s->n_run;
    out->blocks_total = block_pool_total(s->pool);
    out->blocks_used = out->blocks_total - block_pool_free(s->pool);
    out->blocks_cached = block_pool_cached(s->pool);
    if (!s->states)
        return;
    out->states_total = state_pool_total(s->states);
    out->states_cached = state_pool_cached(s->states);
}
