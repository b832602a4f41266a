/* Counting: events of requests into histograms. */
#include "server/metrics.h"

#include "engine/base/thread.h"
#include "server/metrics_impl.h"

static const double ttft[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                              1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double itl[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                             .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double latency[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double tokens[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
static const double params_n[] = {1, 2, 5, 10, 20};

#define BOUNDS(b) b, sizeof(b) / sizeof((b)[0])
const struct metrics_hist_def metrics__hist[HIST_COUNT] = {
    [HIST_TTFT] = {"vllm:time_to_first_token_seconds", "Time to the first token.", BOUNDS(ttft)},
    [HIST_ITL] = {"vllm:inter_token_latency_seconds", "Time between tokens.", BOUNDS(itl)},
    [HIST_TPOT] = {"vllm:request_time_per_output_token_seconds",
                   "Mean time per output token of a request.", BOUNDS(itl)},
    [HIST_E2E] = {"vllm:e2e_request_latency_seconds", "Time of a whole request.", BOUNDS(latency)},
    [HIST_QUEUE] = {"vllm:request_queue_time_seconds", "Time in the queue.", BOUNDS(latency)},
    [HIST_PREFILL] = {"vllm:request_prefill_time_seconds", "Time from scheduling to first token.",
                      BOUNDS(latency)},
    [HIST_DECODE] = {"vllm:request_decode_time_seconds", "Time from first to last token.",
                     BOUNDS(latency)},
    [HIST_INFERENCE] = {"vllm:request_inference_time_seconds", "Time from scheduling to the end.",
                        BOUNDS(latency)},
    [HIST_PROMPT] = {"vllm:request_prompt_tokens", "Prompt tokens of a request.", BOUNDS(tokens)},
    [HIST_GENERATION] = {"vllm:request_generation_tokens", "Output tokens of a request.",
                         BOUNDS(tokens)},
    [HIST_PARAM_N] = {"vllm:request_params_n", "Choices asked for.", BOUNDS(params_n)},
    [HIST_PARAM_MAX] = {"vllm:request_params_max_tokens", "max_tokens asked for.", BOUNDS(tokens)},
};

static void observe(struct metrics_model *m, enum metrics_hist h, double v)
{
    const struct metrics_hist_def *d = &metrics__hist[h];
    size_t i = 0;
    while (i < d->n && v > d->bound[i])
        i++;
    m->h[h].count[i == d->n ? METRICS_BUCKETS : i]++;
    m->h[h].sum += v;
}

static void observe_span(struct metrics_model *m, enum metrics_hist h, int64_t from, int64_t to)
{
    if (from > 0 && to >= from)
        observe(m, h, (double)(to - from) / 1e6);
}

void metrics_finish(struct metrics *m, int model, enum finish_reason why)
{
    struct metrics_model *x = &m->m[model];
    if (why == FINISH_STOP)
        x->finished[METRICS_STOP]++;
    else if (why == FINISH_LENGTH)
        x->finished[METRICS_LENGTH]++;
    else
        x->finished[METRICS_ERROR]++;
}

static void on_token(struct metrics_model *m, struct slot *t, const struct event *ev, int64_t now)
{
    if (ev->choice >= 0 && ev->choice < t->n_last) {
        observe_span(m, HIST_ITL, t->last_us[ev->choice], now);
        t->last_us[ev->choice] = now;
    }
    if (!t->first_us)
        t->first_us = now;
}

static void on_end(struct metrics_model *m, const struct slot *t, const struct event *ev)
{
    if (ev->kind == EV_ERROR) {
        m->finished[METRICS_ERROR]++;
        return;
    }
    if (!t->x) {
        m->finished[METRICS_ABORT]++;
        return;
    }
    observe_span(m, HIST_E2E, ev->arrival_us, ev->done_us);
    observe_span(m, HIST_QUEUE, ev->arrival_us, ev->scheduled_us);
    if (t->encode) { /* nothing is generated */
        observe_span(m, HIST_INFERENCE, ev->scheduled_us, ev->done_us);
        observe(m, HIST_PROMPT, ev->n_prompt);
        return;
    }
    if (t->audio) {
        m->finished[METRICS_STOP]++;
        observe_span(m, HIST_TTFT, ev->arrival_us, ev->first_token_us);
        observe_span(m, HIST_INFERENCE, ev->scheduled_us, ev->done_us);
        observe(m, HIST_PROMPT, ev->n_prompt);
        observe(m, HIST_GENERATION, ev->n_output);
        return;
    }
    if (t->image) { /* the rest is about tokens */
        observe_span(m, HIST_INFERENCE, ev->scheduled_us, ev->done_us);
        observe(m, HIST_PARAM_N, t->n);
        return;
    }
    observe_span(m, HIST_TTFT, ev->arrival_us, ev->first_token_us);
    observe_span(m, HIST_PREFILL, ev->scheduled_us, ev->first_token_us);
    observe_span(m, HIST_DECODE, ev->first_token_us, ev->done_us);
    observe_span(m, HIST_INFERENCE, ev->scheduled_us, ev->done_us);
    if (ev->n_output > t->n && ev->first_token_us > 0)
        observe(m, HIST_TPOT,
                (double)(ev->done_us - ev->first_token_us) / 1e6 * t->n / (ev->n_output - t->n));
    observe(m, HIST_PROMPT, ev->n_prompt);
    observe(m, HIST_GENERATION, ev->n_output);
    observe(m, HIST_PARAM_N, t->n);
    observe(m, HIST_PARAM_MAX, t->max_tokens);
    m->cached_tokens += (uint64_t)ev->n_cached;
}

void metrics_event(struct metrics *m, struct slot *t, const struct event *ev, int64_t now_us)
{
    struct metrics_model *x = &m->m[t->model];
    switch (ev->kind) {
    case EV_TOKEN:
        on_token(x, t, ev, now_us);
        break;
    case EV_FINISH:
        metrics_finish(m, t->model, ev->finish);
        break;
    case EV_DONE:
    case EV_ERROR:
        on_end(x, t, ev);
        break;
    case EV_IMAGE:
        metrics_finish(m, t->model, FINISH_STOP);
        break;
    case EV_AUDIO:
        break; /* a request counts once, at its end */
    case EV_EMBED:
        metrics_finish(m, t->model, FINISH_STOP);
        break;
    case EV_PROMPT:
    case EV_IMAGE_STEP:
        break;
    }
}

void metrics_http(struct metrics *m, const char *path, int status)
{
    for (int i = 0; i < m->n_http; i++)
        if (m->http[i].path == path && m->http[i].status == status) {
            m->http[i].n++;
            return;
        }
    if (m->n_http == (int)(sizeof(m->http) / sizeof(m->http[0])))
        return;
    m->http[m->n_http].path = path;
    m->http[m->n_http].status = status;
    m->http[m->n_http++].n = 1;
}
