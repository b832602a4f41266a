/* Private to sched/audio*.c.   lane -- list of sreq, each with a job of the engine while it is at work */
#ifndef SCHED_AUDIO_IMPL_H
#define SCHED_AUDIO_IMPL_H

#include "sched/audio.h"
#include "sched/lane.h"

struct sreq {
    struct lane_req base;
    struct aud_job *job;        /* NULL: waits */
    int32_t n_prompt, n_output; /* tokens */
    int64_t seek;               /* frames done */
    int64_t encode_us, decode_us;
    int64_t first_us;
};

struct audio_lane {
    struct lane base;
    struct engine *g;
    const struct eng_audio_info *info;
    struct audio_opts o;
    int n_job;
    struct sreq **list; /* [n_slot] of the step being made */
    struct aud_job **handle;
    int n_list; /* base.n_step: as many of list are in the engine now */
    int64_t paused_us;
    double sound_per_req; /* seconds of sound, smoothed */
};

static inline struct sreq *sreq(struct lane_req *q)
{
    return (struct sreq *)q;
}

/* audio_step.c: one step of some of the jobs. 1, 0 = no job, or a device error. */
int audio__step(struct audio_lane *l, struct err *e);

#endif
