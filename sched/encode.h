/* The encoder lane: which texts make a batch together. Like sched.h it has no thread, no lock and no clock of its own:
 * it is driven by worker.c, or by a test with a fake engine and clock.
 *
 * A request has one or more rows (texts, or pairs of texts). A step takes one row of each request in turn, the most
 * urgent and oldest first, until its token budget is used up, so that a request of one text passes one of thousands. A
 * row's bytes do not depend on any of that. A request's vectors come in one event, when the last is there. Engine thread
 * only. */
#ifndef SCHED_ENCODE_H
#define SCHED_ENCODE_H

#include "sched/worker.h"

struct encode_lane;
struct encode_opts {             /* zero = default */
    int32_t step_tokens;         /* of a batch; one row always goes. 0 = eng_info.max_rows */
    int64_t (*clock)(void *arg); /* NULL = clock_us */
    void (*emit)(void *arg, const struct event *ev); /* every event, in order; must not call back */
    void *arg;                                       /* of the two */
};

/* `g` is used, not owned. ERR_NOMEM, ERR_INVAL (no encoder). */
int encode_lane_open(struct encode_lane **out, struct engine *g, const struct encode_opts *o,
                     struct err *e);
/* Requests still inside are freed without events. NULL is fine. */
void encode_lane_close(struct encode_lane *l);

/* Takes r in any case; what is wrong with it comes as its EV_ERROR. */
void encode_lane_submit(struct encode_lane *l, struct request *r);
/* EV_DONE follows at once. An unknown id is ignored. */
void encode_lane_cancel(struct encode_lane *l, uint64_t req);
/* EV_ERROR for every request. */
void encode_lane_fail_all(struct encode_lane *l, int code, const char *text);

/* Expire, run one batch, post what it finished. 1: something was done; 0: nothing to do; negative: the engine failed (e
 * says why), every request got its EV_ERROR. */
int encode_lane_step(struct encode_lane *l, struct err *e);

bool encode_lane_idle(const struct encode_lane *l);              /* no request inside */
int encode_lane_live(const struct encode_lane *l);               /* requests inside */
int64_t encode_lane_waiting_tokens(const struct encode_lane *l); /* not encoded yet */
/* Most events of one step, with `extra` requests ended beside it. */
size_t encode_lane_events_max(const struct encode_lane *l, size_t extra);
/* Counters of text models as far as they mean something here. */
void encode_lane_stats_get(const struct encode_lane *l, struct sched_stats *out);

/* Every invariant that holds between steps; ERR_INTERNAL names the first that does not. */
int encode_lane_check(const struct encode_lane *l, struct err *e);

#endif
