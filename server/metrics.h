/* Counters and histograms, and the Prometheus text. Names and buckets are vLLM's where it has the same thing, so that
 * dashboards, autoscalers and gateways work unconfigured; what it has not is called stepd:. Loop thread. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <stdint.h>

#include "engine/base/buf.h"
#include "sched/request.h"
#include "server/slots.h"

#define METRICS_MODELS  16
#define METRICS_BUCKETS 24

enum metrics_hist {
    HIST_TTFT,
    HIST_ITL,
    HIST_TPOT,
    HIST_E2E,
    HIST_QUEUE,
    HIST_PREFILL,
    HIST_DECODE,
    HIST_INFERENCE,
    HIST_PROMPT,
    HIST_GENERATION,
    HIST_PARAM_N,
    HIST_PARAM_MAX,
    HIST_COUNT
};

struct hist {
    uint64_t count[METRICS_BUCKETS + 1]; /* not cumulative; the last is +Inf */
    double sum;
};

struct metrics_model {
    struct hist h[HIST_COUNT];
    uint64_t finished[5]; /* stop, length, abort, error, (unused) */
    uint64_t cached_tokens;
};

struct metrics {
    struct metrics_model m[METRICS_MODELS];
    struct {
        const char *path; /* static storage: of the route table */
        int status;
        uint64_t n;
    } http[256];
    int n_http;
    uint64_t aborted, stalled_readers, refused_connections, timed_out_connections;
    int64_t open_requests;
};

void metrics_event(struct metrics *m, struct slot *t, const struct event *ev, int64_t now_us);
/* A choice that the server ended (a stop string). */
void metrics_finish(struct metrics *m, int model, enum finish_reason why);
void metrics_http(struct metrics *m, const char *path, int status);

struct srv;
void metrics_write(struct srv *s, struct buf *out);

#endif
