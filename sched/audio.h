/* The speech lane: which recordings make a step together. Like sched.h it has no thread, no lock and no clock of its
 * own: it is driven by worker.c, or by a test with a fake engine and clock.
 *
 * A request has one recording, a job of the engine (engine/audio.h) from admission to its end; as many are open as the
 * engine has slots, the most urgent and oldest first. A step encodes one window, aligns the words of one, or decodes: one
 * row of every job that has a window encoded. Windows come first, so that their rows join the next decoding steps, which
 * cost hardly more for many than for one. None of that changes what a recording says. What a window says comes in one
 * event at its end. Engine thread only. */
#ifndef SCHED_AUDIO_H
#define SCHED_AUDIO_H

#include "sched/worker.h"

struct audio_lane;
struct audio_opts {                                  /* zero = default */
    int64_t (*clock)(void *arg);                     /* NULL = clock_us */
    void (*emit)(void *arg, const struct event *ev); /* every event, in order; must not call back */
    /* Between operations of a long step: may give the device to others, beat the heart, and call submit, cancel and
     * interrupt; microseconds that it took; NULL. */
    int64_t (*pause)(void *arg);
    void *arg; /* of the three */
};

/* `g` is used, not owned. ERR_NOMEM, ERR_INVAL (no speech model). */
int audio_lane_open(struct audio_lane **out, struct engine *g, const struct audio_opts *o,
                    struct err *e);
/* Requests still inside are freed without events. NULL is fine. */
void audio_lane_close(struct audio_lane *l);

/* Takes r in any case; what is wrong with it comes as its EV_ERROR. */
void audio_lane_submit(struct audio_lane *l, struct request *r);
/* EV_DONE follows at once, from within a pause after the step; a step that only cancelled requests are in ends early.
 * An unknown id is ignored. */
void audio_lane_cancel(struct audio_lane *l, uint64_t req);
/* From within a pause: the step is to end at once. */
void audio_lane_interrupt(struct audio_lane *l);
/* EV_ERROR for every request. Not from within a pause. */
void audio_lane_fail_all(struct audio_lane *l, int code, const char *text);

/* Expire, admit, run one step, post what it brought. 1: something was done; 0: nothing to do; negative: the engine
 * failed (e says why), every request got its EV_ERROR. */
int audio_lane_step(struct audio_lane *l, struct err *e);

bool audio_lane_idle(const struct audio_lane *l); /* no request inside */
int audio_lane_live(const struct audio_lane *l);  /* requests inside */
/* Most events of one step, with `extra` requests ended beside it. */
size_t audio_lane_events_max(const struct audio_lane *l, size_t extra);
void audio_lane_stats_get(const struct audio_lane *l, struct sched_stats *out);

/* Every invariant that holds between steps; ERR_INTERNAL names the first that does not. */
int audio_lane_check(const struct audio_lane *l, struct err *e);

#endif
