/* The engine thread and its two mailboxes. The server owns one worker per served model: it opens the
 * engine on its own thread, then loops: take submits and cancels, plan, step, harvest, post events. The model decides
 * who plans: the token scheduler (sched.h), the image lane (image.h), the encoder lane (encode.h) or the speech lane (audio.h). All functions may be called from the loop
 * thread; `notify` is called on the engine thread. */
#ifndef SCHED_WORKER_H
#define SCHED_WORKER_H

#include "sched/request.h"
#include "sched/turn.h"

struct worker;

enum sched_policy { SCHED_FCFS, SCHED_PRIORITY, SCHED_SHORTEST };

struct worker_opts { /* zero = default */
    struct eng_opts eng;
    enum sched_policy policy;
    int max_running;          /* sequences admitted at once; 0 = eng max_seqs */
    int max_queue;            /* waiting requests; 0 = 512: over it submit gives ERR_FULL */
    int32_t max_queue_tokens; /* waiting prompt tokens; 0 = no limit */
    int32_t step_tokens;      /* token budget of a step; 0 = eng max_rows */
    int64_t
        step_us; /* time budget of a step with decode rows in it: prefill chunks shrink to keep it; 0 = none */
    bool no_prefix_cache;
    const char *
        draft_path; /* a small model with the same tokens, for drafts beside those found in the text; NULL */
    int spec_tokens; /* tokens of a sequence that a step tries beside the one that is due; 0 = none */
    int max_running_images;  /* pictures of an image model at work at once; 0 = 8 */
    int max_queue_images;    /* waiting requests of an image model; 0 = 64 */
    int64_t image_step_rows; /* of a denoising step; 0 = 2048 on a CPU, else 16384 */
    int max_queue_audio;     /* waiting requests of a speech model; 0 = 64 */
    struct turn
        *turn; /* of the device that the process's engines share; NULL: a device of one's own */
    void (*notify)(
        void *arg); /* events are waiting; coalesced by the worker: once until the next poll */
    void *notify_arg;
};

/* Start the thread; returns at once. Opening the engine goes on behind: see worker_state. */
int worker_start(struct worker **out, const struct worker_opts *o, struct err *e);

enum worker_phase { WORKER_LOADING, WORKER_READY, WORKER_DRAINING, WORKER_FAILED, WORKER_STOPPED };
/* e (may be NULL) gets the reason when failed. notify is called when the phase changes. */
enum worker_phase worker_state(struct worker *w, struct err *e);
/* Valid from WORKER_READY on; NULL before. */
const struct eng_info *worker_engine(struct worker *w);

/* Hand a request over (r is moved on success, else still the caller's). ERR_FULL (queue bound),
 * ERR_DRAINING, ERR_DEVICE (failed), ERR_AGAIN (still loading). */
int worker_submit(struct worker *w, struct request *r);
/* Cancel within one step. An EV_DONE follows (or has been posted). Unknown ids are ignored. */
void worker_cancel(struct worker *w, uint64_t req);
/* End one choice of a request (a stop string matched); EV_FINISH is not posted for it. `keep` output
 * tokens count in the usage. Not of an image request: ignored. */
void worker_finish_choice(struct worker *w, uint64_t req, int choice, int32_t keep);

/* Move up to n waiting events out; returns how many. The caller owns them. What is left is notified
 * again. Poll soon: with about a thousand events waiting the engine thread makes no more steps. */
int worker_poll(struct worker *w, struct event *ev, int n);

struct image_stats { /* of an image model */
    int jobs;        /* pictures at work: what is between the first step and the finished pixels */
    int waiting;     /* pictures of all requests that have not started */
    uint64_t images; /* finished pictures */
    uint64_t steps, job_steps;   /* denoising steps of the device, and of pictures in them */
    int64_t stage_us[IMG_DONE];  /* device time by stage, pauses not counted */
    uint64_t step_rows_hist[16]; /* latent rows a denoising step: <= 64 128 256 ... 1048576, +Inf */
    double step_rows_sum;
    double us_per_image; /* recent device time of a picture; 0 = not known yet */
};

struct audio_stats {                        /* of a speech model */
    int jobs;                               /* recordings at work */
    uint64_t recordings, windows;           /* finished; encoded */
    uint64_t retries;                       /* attempts at a window after its first */
    double seconds;                         /* of sound that is done with */
    int64_t encode_us, decode_us, align_us; /* device time */
    uint64_t decode_steps, decode_rows;
    double us_per_second; /* recent device time of a second of sound; 0 = not known yet */
};

#define SPEC_TOKENS_MAX 16

struct sched_stats {      /* a consistent snapshot */
    int running, waiting; /* requests */
    int running_seqs;
    int32_t blocks_total, blocks_used,
        blocks_cached; /* used: held by live sequences; cached: prefix reuse only */
    uint64_t prompt_tokens, generated_tokens;
    uint64_t prefix_queries, prefix_hits; /* tokens */
    int32_t states_total, states_cached;  /* slots for recurrent states; of those, snapshots */
    uint64_t preemptions, steps, cancelled;
    uint64_t step_tokens_hist[16]; /* rows per step: counts for <= 1 2 4 8 ... 16384, +Inf */
    double step_tokens_sum;
    int64_t heartbeat_us;  /* clock_us of the last loop turn */
    int64_t step_us_total; /* steps were running */
    int64_t gap_us_total;  /* from a step's end to the next one's begin, while there was work */
    uint64_t steps_ahead;  /* begun while the step before ran: no gap */
    uint64_t drafts, draft_tokens,
        draft_accepted; /* sequences' shares of a step with drafts; drafts; right ones */
    uint64_t draft_accepted_at[SPEC_TOKENS_MAX]; /* by place */
    double tokens_per_s;                         /* recent service rate, for Retry-After */
    double requests_per_s;
    struct image_stats image;
    struct audio_stats audio;
};
void worker_stats(struct worker *w, struct sched_stats *out);

/* No new work; running and waiting requests finish, then the thread ends (WORKER_STOPPED). At
 * `deadline_us` (clock_us) what is left ends with ERR_DRAINING. */
void worker_drain(struct worker *w, int64_t deadline_us);
/* Cancel everything, join the thread, free. NULL is fine. */
void worker_stop(struct worker *w);

#endif
