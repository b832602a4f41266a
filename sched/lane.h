/* Private to the lanes of pictures, speech and vectors: who is inside, in which order, and how a request ends. A lane's own
 * structs begin with these, so that a pointer to one is a pointer to the other. Engine thread only.
 *
 *   lane -- list of lane_req (by priority, then arrival); the ended ones of a step are freed at its end (`dead`), as its
 *   lists still name them */
#ifndef SCHED_LANE_H
#define SCHED_LANE_H

#include "sched/worker.h"

struct lane_req {
    struct lane_req *prev, *next;
    struct request *r;
    uint64_t order;        /* of arrival */
    int64_t scheduled_us;  /* 0: waits */
    bool ended, cancelled; /* cancelled: in a pause of its step, ends when the step does */
};

struct lane {
    int64_t (*clock)(void *arg);
    void (*emit)(void *arg, const struct event *ev);
    void *arg; /* of the two */
    /* Of this kind of lane: q leaves the list and gives up what it holds of the engine; what its last event says of work
     * done; its own memory is freed. leave and drop may be NULL. */
    void (*leave)(struct lane *l, struct lane_req *q);
    void (*report)(const struct lane_req *q, struct event *ev);
    void (*drop)(struct lane_req *q);
    struct lane_req *head, *tail, *dead;
    int n_req, n_cancelled;
    uint64_t n_arrived;
    int n_step;       /* jobs in the engine now; 0: no step runs */
    bool interrupted; /* the step is to end at once */
    int64_t now;
    struct sched_stats st;
};

/* now = the clock's time; clock NULL: clock_us. */
void lane_tick(struct lane *l);
/* q enters, with r. */
void lane_add(struct lane *l, struct lane_req *q, struct request *r);
/* r is refused before it was anything: its EV_ERROR, and it is freed. */
void lane_refuse(struct lane *l, struct request *r, int code, const char *text);
/* The last event (code 0: EV_DONE) and out of the list; freed by lane_bury. */
void lane_end(struct lane *l, struct lane_req *q, int code, const char *text);
void lane_bury(struct lane *l);
/* While a step runs, its jobs are the engine's: the request ends with the step (lane_end_cancelled). Unknown ids are
 * ignored. */
void lane_cancel(struct lane *l, uint64_t req);
void lane_end_cancelled(struct lane *l);
void lane_fail_all(struct lane *l, int code, const char *text);
/* Requests past their deadlines end. Few are inside, and steps take milliseconds: no list by deadline. */
void lane_expire(struct lane *l);
/* Everyone out, without events. */
void lane_clear(struct lane *l);
/* ERR_INTERNAL: the list is not what it should be. */
int lane_check(const struct lane *l, struct err *e);

#endif
