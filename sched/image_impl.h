/* Private to sched/image*.c: requests and jobs of the image lane.
 *
 *   lane -- list of ireq (arrival order) --< ijob [n] -- img_job of the engine while it is live
 *        `- live[]: the jobs that have one
 */
#ifndef SCHED_IMAGE_IMPL_H
#define SCHED_IMAGE_IMPL_H

#include "sched/image.h"
#include "sched/lane.h"

struct ireq;
struct ijob {
    struct ireq *req;
    int index;
    struct img_job *job; /* NULL before admission and after the end */
    int64_t rows;        /* of one step */
    int64_t device_us;   /* its part of the steps that it took part in */
    int64_t step_end_us; /* of its last denoising step; 0 = none */
    double interval_us;  /* between two of them, smoothed: other requests' steps are in it */
    bool stuck;          /* alone in a step it had too little memory: waits until a job ends */
    bool seen;           /* asked already for the step being made */
};

struct ireq {
    struct lane_req base;
    int n_opened, n_live, n_done;
    int64_t rows, steps; /* of each of its pictures, once one was admitted */
    int64_t turn_us,
        last_us; /* its last denoising step's end (or first admission); how long that took */
    bool overdue;
    double left; /* rows that it still has to make, all pictures */
    int32_t n_prompt, n_output;
    int64_t stage_us[IMG_DONE];
    int64_t first_us;
    bool counted; /* its time in this step is */
    struct ijob job[];
};

struct image_lane {
    struct lane base;
    struct engine *g;
    const struct eng_image_info *info;
    struct image_opts o;
    struct ijob **live; /* [max_running] */
    int n_live;
    struct ijob **list;      /* [max_running] of the step being made */
    struct img_job **handle; /* same, as the engine wants them */
    int n_list;              /* base.n_step: as many of list are in the engine now */
    bool blocked; /* the next job did not fit beside the live ones: ask again when one has ended */
    int64_t paused_us;
    double decode_us_px; /* smoothed */
};

static inline struct ireq *ireq(struct lane_req *q)
{
    return (struct ireq *)q;
}

/* image.c */
void image__job_close(struct image_lane *l, struct ijob *j);
bool image__before(const struct ireq *a, const struct ireq *b); /* by priority, then arrival */

/* image_step.c: one stage for some of the live jobs. 1, 0 = no live job, or a device error. */
int image__run(struct image_lane *l, struct err *e);

/* image_event.c: what a finished stage brings to the job's client. */
void image__emit_step(struct image_lane *l, struct ijob *j);
/* The picture is finished: ends the job, and the request with its last one. */
void image__emit_picture(struct image_lane *l, struct ijob *j);

#endif
