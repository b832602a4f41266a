/* Private to sched/audio*.c.   lane -- list of sreq (by priority, then arrival), each with a job of the engine while it
 * is at work; the ended ones of a step are freed at its end, as its list still names them. */
#ifndef SCHED_AUDIO_IMPL_H
#define SCHED_AUDIO_IMPL_H

#include "sched/audio.h"

struct sreq {
    struct sreq *prev, *next;
    struct request *r;
    uint64_t order;
    struct aud_job *job; /* NULL: waits */
    bool ended, cancelled;
    int32_t n_prompt, n_output; /* tokens */
    int64_t seek;               /* frames done */
    int64_t encode_us, decode_us;
    int64_t scheduled_us, first_us;
};

struct audio_lane {
    struct engine *g;
    const struct eng_audio_info *info;
    struct audio_opts o;
    struct sreq *head, *tail, *dead;
    int n_req, n_job;
    uint64_t n_arrived;
    struct sreq **list; /* [n_slot] of the step being made */
    struct aud_job **handle;
    int n_list, n_step; /* n_step: as many of list are in the engine now; 0: no step runs */
    bool interrupted;
    int n_cancelled;
    int64_t now, paused_us;
    double sound_per_req; /* seconds of sound, smoothed */
    struct sched_stats st;
};

/* audio.c */
void audio__end(struct audio_lane *l, struct sreq *q, int code, const char *text);
/* audio_step.c: one step of some of the jobs. 1, 0 = no job, or a device error. */
int audio__step(struct audio_lane *l, struct err *e);

#endif
