/* The scheduler: which tokens of which requests are computed in the next step. No thread, no lock, no
 * socket, no clock of its own: it is driven by worker.c, or by a test with a fake engine and clock.
 *
 * A request has n choices; a choice is a sequence of `known` tokens (prompt, then output) of which the
 * first `computed` have their KV in blocks. There is no prefill and no decode mode: a step computes some
 * more tokens of some sequences; where computed catches up with known, the engine chooses a token.
 * Chunking, prefix hits, forks and recompute after preemption are all that one rule, and none of
 * them may change what a request answers.
 *
 * Engine thread only. After warm-up, sched_step allocates only when it admits a sequence. */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include "engine/base/hash.h"
#include "sched/worker.h"

struct sched;
struct sched_opts { /* zero = default */
    enum sched_policy policy;
    int max_running;     /* sequences; 0 = the engine's max_seqs */
    int32_t step_tokens; /* 0 = the engine's max_rows */
    int32_t
        fill_rows; /* rows that keep the device busy: with as many, a step ends behind a whole prompt, so that it does
                        * not wait for the ones after it; 0 = any number */
    int64_t step_us; /* aimed length of a step with decode rows in it; 0 = any */
    int64_t age_us;  /* a request that waited longer goes first whatever the policy; 0 = 10 s */
    bool no_prefix_cache;
    int spec_tokens; /* drafts of a sequence in a step, at most SPEC_TOKENS_MAX; 0 = none. With recurrent states none. */
    struct engine
        *draft; /* a small model with the same tokens, for more drafts; used, not owned; NULL */
    bool spec_eager;    /* tests: every guess becomes a draft, likely or not, dear or not */
    uint64_t hash_mask; /* tests: force equal prefix hashes */
    int64_t (*clock)(void *arg);                     /* NULL = clock_us */
    void (*emit)(void *arg, const struct event *ev); /* every event, in order; must not call back */
    void *arg;                                       /* of clock and emit */
};

/* `g` is used, not owned. ERR_NOMEM, ERR_INVAL (the engine reports impossible limits). */
int sched_open(struct sched **out, struct engine *g, const struct sched_opts *o, struct err *e);
/* Requests still inside are freed without events. NULL is fine. */
void sched_close(struct sched *s);

/* Takes r in any case; what is wrong with it comes as its EV_ERROR. */
void sched_submit(struct sched *s, struct request *r);
/* EV_DONE follows at once; an unknown id is ignored. */
void sched_cancel(struct sched *s, uint64_t req);
/* End one choice without EV_FINISH; `keep` of its output tokens count. Unknown ones are ignored. */
void sched_finish_choice(struct sched *s, uint64_t req, int choice, int32_t keep);
/* EV_ERROR for every request. */
void sched_fail_all(struct sched *s, int code, const char *text);

/* Expire, admit, plan, run, harvest. 1: a step ran; 0: nothing to run; negative: the engine failed (e says
 * why), every request got its EV_ERROR. With an engine that looks ahead, the step after the one that is harvested
 * has begun when this returns: what is called in between takes effect in the step after that one. */
int sched_step(struct sched *s, struct err *e);

bool sched_idle(const struct sched *s); /* no request inside */
/* Counters except the worker's heartbeat. */
void sched_stats_get(const struct sched *s, struct sched_stats *out);
int sched_live(const struct sched *s);               /* requests inside */
int32_t sched_waiting_tokens(const struct sched *s); /* prompts that have not started */

/* Every invariant that holds between steps; ERR_INTERNAL names the first that does not. Slow. */
int sched_check(const struct sched *s, struct err *e);

#endif
