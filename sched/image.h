/* The image lane: which pictures make a step together. Like sched.h it has no thread, no lock and no clock of its own:
 * it is driven by worker.c, or by a test with a fake engine and clock.
 *
 * A request has n pictures; each is a job of the engine (engine/image.h) that goes through encode, denoise, decode. A
 * lane step is one stage for several jobs: finished latents are decoded first, then new prompts encoded, else one
 * denoising step runs, for jobs of any size, step number and sampler: as many as fit into the memory, up to the rows
 * from which on company makes nothing faster. There a request with little left goes before one with much, so that small
 * pictures pass a huge one and equal ones end one after the other instead of all at the end; who has waited for eight
 * times its own step gets one whatever it has left. None of that may change a picture: its bytes depend on its
 * parameters alone.
 *
 * A lack of memory is first met with fewer jobs in the step, then with one alone, then by waiting for the others to
 * finish; a request fails by it only when nothing else holds memory. Engine thread only. */
#ifndef SCHED_IMAGE_H
#define SCHED_IMAGE_H

#include "sched/worker.h"

struct image_lane;
struct image_opts {  /* zero = default */
    int max_running; /* pictures at work at once; 0 = 8 */
    int64_t
        step_rows; /* latent rows of a denoising step beyond which no job is added; 0 = 2048 on a CPU, else 16384 */
    int64_t age_us; /* shortest time without a step after which a request goes first; 0 = 1 s */
    int64_t (*clock)(void *arg);                     /* NULL = clock_us */
    void (*emit)(void *arg, const struct event *ev); /* every event, in order; must not call back */
    /* Between operations of a long step: may give the device to others, beat the heart, and call submit, cancel and
     * interrupt; microseconds that it took; NULL. */
    int64_t (*pause)(void *arg);
    void *arg; /* of the three */
};

/* `g` is used, not owned. ERR_NOMEM, ERR_INVAL (not an image model). */
int image_lane_open(struct image_lane **out, struct engine *g, const struct image_opts *o,
                    struct err *e);
/* Requests still inside are freed without events. NULL is fine. */
void image_lane_close(struct image_lane *l);

/* Takes r in any case; what is wrong with it comes as its EV_ERROR. */
void image_lane_submit(struct image_lane *l, struct request *r);
/* EV_DONE follows at once, from within a pause after the step; a step that only cancelled requests are in ends early.
 * An unknown id is ignored. */
void image_lane_cancel(struct image_lane *l, uint64_t req);
/* From within a pause: the step is to end at once. */
void image_lane_interrupt(struct image_lane *l);
/* EV_ERROR for every request. Not from within a pause. */
void image_lane_fail_all(struct image_lane *l, int code, const char *text);

/* Expire, admit, run one stage of some jobs, post what it brought. 1: something was done; 0: nothing to do; negative:
 * the engine failed (e says why), every request got its EV_ERROR. */
int image_lane_step(struct image_lane *l, struct err *e);

bool image_lane_idle(const struct image_lane *l); /* no request inside */
int image_lane_live(const struct image_lane *l);  /* requests inside */
/* Most events of one step, with `extra` requests ended beside it. */
size_t image_lane_events_max(const struct image_lane *l, size_t extra);
/* running, waiting, steps, step_us_total, cancelled, requests_per_s and image are filled. */
void image_lane_stats_get(const struct image_lane *l, struct sched_stats *out);

/* Every invariant that holds between steps; ERR_INTERNAL names the first that does not. */
int image_lane_check(const struct image_lane *l, struct err *e);

#endif
