/* Inside of the scheduler, shared by the files of this folder only. */
#ifndef SCHED_SCHED_IMPL_H
#define SCHED_SCHED_IMPL_H

#include "sched/block.h"
#include "sched/plan.h"
#include "sched/prefix.h"
#include "sched/sched.h"
#include "sched/spec.h"
#include "sched/state.h"

/* Legal moves are the table in seq.c. */
enum seq_state {
    SEQ_WAITING,   /* never ran */
    SEQ_RUNNING,   /* holds a slot and blocks */
    SEQ_PREEMPTED, /* ran, gave everything back, keeps its tokens */
    SEQ_DONE
};
#define SEQ_STATES 4

/* One choice. Its tokens, while a step that it has rows in runs:
 *
 *   0 ........ n_final ........ n_computed              (n_computed moves when a step begins, n_final when
 *   | KV is there | being computed |                     it is over; equal while it has no row in flight)
 *   0 .................... n_known .. n_known + n_coming (n_coming: chosen by steps in flight, id not known yet)
 *
 * Steps run in the order they begin, so planning takes what is being computed for done. Between calls:
 * n_block == blocks(n_computed), n_computed <= n_known + n_coming <= cap. */
struct seq {
    struct sreq *req;
    int choice;
    enum seq_state state;
    int32_t *tok;            /* [cap] prompt, then output; NULL until admitted */
    struct block_ref *block; /* [cap_block] position p lives in block[p / block_len] */
    int32_t cap, cap_block;
    int32_t n_known, n_computed, n_block;
    int32_t n_final, n_coming;
    int n_flight;                     /* open steps with rows of it */
    int32_t ref;                      /* STEP_SAMPLED of the row that chose its latest token */
    int32_t n_indexed;                /* leading blocks already offered to the prefix index */
    int32_t n_scored;                 /* prompt rows whose log-probability was sent */
    int32_t n_output;                 /* tokens sent (or kept, once ended by sched_finish_choice) */
    uint64_t last_step;               /* number of the last plan with a row of it */
    struct grammar_state *gram;       /* where it stands in its grammar; NULL: free */
    struct grammar_state *gram_ahead; /* the same behind drafts; NULL: none were tried */
    uint32_t *mask_ahead;             /* [spec_tokens, n_vocab bits] of what follows each draft */
    uint32_t *mask;    /* [n_vocab bits] of its next token, with gram or a bound on reasoning */
    struct seq_think { /* with a bound on reasoning */
        bool inside, over;
        int32_t n;     /* reasoning tokens so far */
        int32_t force; /* the next one of r->think->force, or -1 */
    } think;
    struct seq_recurrent { /* of a model with recurrent states; seq_state.c */
        int32_t slot, src; /* the next step's; -1 */
        int32_t kept;      /* a slot that becomes the snapshot of block number kept_at; -1 */
        int32_t kept_at;
        bool kept_rolling;
        block_id rolling; /* whose snapshot its next one replaces; 0 */
    } rec;
    struct spec *spec;   /* NULL: no guesses are made */
    int32_t avail_tried; /* blocks to be had when its last admission failed; -1 = not tried */
};

/* One request inside the scheduler; listed in arrival order. */
struct sreq {
    struct sreq *prev, *next;
    struct request *r;
    uint64_t order;     /* arrival number */
    int64_t entered_us; /* sched_submit */
    int32_t max_out;    /* max_tokens bounded by the context */
    int n_live;         /* choices not DONE */
    int n_ready;        /* choices WAITING or PREEMPTED */
    bool ended;         /* its last event is out; freed at the end of the call */
    int32_t n_cached;   /* -1 until the first choice was admitted */
    int32_t n_output;   /* of choices that are DONE */
    int n_preempted;
    int64_t scheduled_us, first_token_us;
    struct seq seq[]; /* [r->n] */
};

struct sched {
    struct engine *g;
    struct eng_info info;
    struct sched_opts o;
    int32_t n_ctx; /* longest sequence: the context, or the pool if that is smaller */
    struct block_pool *pool;
    struct prefix *prefix;     /* NULL with no_prefix_cache */
    struct state_pool *states; /* NULL: the model has no recurrent states */
    struct plan ring[2];       /* [first] is that of the oldest open step */
    int first, n_open;         /* open steps, at most 2 within sched_step, 1 between calls */
    struct plan *plan;         /* the one being made, or made last */
    uint64_t n_plan;
    int64_t end_us;    /* when the last step ended, 0 = not busy since */
    struct seq **run;  /* [n_run] by (priority,) arrival, choice; run[0] is never preempted */
    struct seq **list; /* [max_running] scratch of planning */
    int n_run;
    struct sreq *head, *tail, *dead;
    int n_req;
    int32_t n_unstarted_tok; /* prompt tokens of requests that were never scheduled */
    uint64_t n_arrived;
    int64_t now;           /* of the current call */
    int64_t next_deadline; /* the earliest one inside; INT64_MAX = none */
    double us_per_row;     /* measured; 0 = not yet */
    struct speculator spec;
    struct sched_stats st;
    int64_t rate_from_us; /* start of the current rate window; its counts follow */
    uint64_t rate_tokens, rate_requests;
};

/* Blocks that hold n tokens. */
static inline int32_t sched__blocks(const struct sched *s, int32_t n)
{
    return (int32_t)(((int64_t)n + s->info.block_len - 1) / s->info.block_len);
}

/* It ends a choice of r. */
static inline bool sched__is_stop(const struct request *r, int32_t token)
{
    for (int i = 0; i < r->n_stop_id; i++)
        if (r->stop_id[i] == token)
            return true;
    return false;
}

/* seq.c */
void sched__seq_move(struct seq *q, enum seq_state to);
int32_t sched__seq_goal(const struct seq *q);                /* tokens to compute */
int sched__seq_memory(const struct sched *s, struct seq *q); /* tokens and block table; ERR_NOMEM */
void sched__seq_trim(struct sched *s, struct seq *q,
                     int32_t n);                       /* its last n tokens are not computed */
void sched__seq_start(struct sched *s, struct seq *q); /* into a free slot */
void sched__seq_preempt(struct sched *s, struct seq *q);
void sched__seq_end(struct sched *s, struct seq *q);      /* from any state but DONE; no event */
void sched__seq_index(struct sched *s, struct seq *q);    /* offer newly full blocks */
void sched__seq_distrust(struct sched *s, struct seq *q); /* forget its blocks' content */

/* seq_state.c: without states all of it does nothing */
void sched__state_init(struct seq *q);
/* Of n tokens, so many that a chunk ends where a snapshot is to be taken. */
int32_t sched__state_chunk(const struct sched *s, const struct seq *q, int32_t n);
/* A slot for q, which begins from a snapshot or, -1, from nothing. ERR_FULL. */
int sched__state_start(struct sched *s, struct seq *q, int32_t snapshot);
void sched__state_plan(struct sched *s, struct seq *q, struct step_seq *at); /* q is in the plan */
void sched__state_begun(struct sched *s, struct seq *q);
void sched__state_indexed(struct sched *s, struct seq *q); /* n_indexed has grown */
void sched__state_leave(struct sched *s, struct seq *q);   /* before its blocks go */
/* Of n matched blocks (in q->block), those up to the last one with a snapshot. */
int32_t sched__state_match(const struct sched *s, const struct seq *q, int32_t n,
                           int32_t *snapshot);

/* sched.c */
void sched__emit_finish(struct sched *s, struct seq *q, enum finish_reason why, int32_t stop);
/* End the whole request: EV_DONE, or EV_ERROR when code is not 0. */
void sched__req_end(struct sched *s, struct sreq *r, int code, const char *text);
void sched__req_bury(struct sched *s); /* free what ended */

/* constrain.c: choices under a grammar */
int sched__gram_open(const struct sched *s, struct seq *q); /* with its first mask; 0 or ERR_* */
void sched__gram_close(struct seq *q);
/* Make the mask of the next token: 1, 0 (the text is whole and nothing can follow), or ERR_*; ERR_NOTFOUND: the
 * grammar and allowed tokens leave nothing. */
int sched__gram_next(const struct sched *s, struct seq *q);
int sched__gram_accept(const struct sched *s, struct seq *q, int32_t token); /* and make it */
/* Drafts that the grammar allows, of n that stand behind q's tokens, and those that are the only ones to go on with
 * (their bits in *forced); at most `most`. None of them ends the choice. */
int sched__gram_drafts(const struct sched *s, struct seq *q, int n, int most, uint32_t *forced);
const uint32_t *sched__gram_mask(const struct sched *s, const struct seq *q,
                                 int ahead); /* behind so many drafts */
const char *sched__gram_error(int rc);
/* The bound on reasoning: after a token, and at the beginning (token -1). The mask says what comes next while
 * q->think.force >= 0. */
void sched__think_next(const struct sched *s, struct seq *q, int32_t token);
/* Its next token may depend on the one before. */
static inline bool sched__thinks(const struct seq *q)
{
    return q->req->r->think && !q->think.over;
}

/* admit.c: start what fits, in the order of the policy. */
void sched__admit(struct sched *s);
bool sched__req_before(const struct sched *s, const struct sreq *a, const struct sreq *b,
                       int32_t rest_a, int32_t rest_b);

/* plan.c: fill s->plan. */
void sched__plan(struct sched *s);
/* The same while a step is in flight; admits too. false: better to wait for that step, nothing is planned. */
bool sched__plan_ahead(struct sched *s);
/* q ended: what open steps bring for it is dropped. */
void sched__plan_forget(struct sched *s, struct seq *q);

/* harvest.c: what the step of p brought. */
void sched__harvest(struct sched *s, struct plan *p);

/* spec.c: guesses and drafts */
int sched__spec_open(const struct sched *s, struct seq *q); /* with its tokens; ERR_NOMEM */
void sched__spec_close(struct sched *s, struct seq *q);
/* The token that q has taken last: judge the guess and make the next one. Whether the request's prediction named it. */
bool sched__spec_token(struct seq *q);
/* Sets spec->n_draft of each of list[n], the decode rows of the step being planned. */
void sched__spec_choose(struct sched *s, struct seq *const *list, int n);
/* Look-ahead: q's next row is better planned when its token is known, with drafts behind it. */
bool sched__spec_waits(struct sched *s, const struct seq *q);
/* Right drafts of an entry whose step is over. */
int sched__spec_accept(struct sched *s, const struct plan *p, const struct plan_entry *en);
void sched__spec_cost(struct sched *s, const struct plan *p); /* a step is over */
void sched__spec_pause(struct sched *s);                      /* there is nothing to run */

int sched__spec_most(const struct sched *s, const struct seq *q); /* drafts that q may have now */
int sched__spec_write(const struct sched *s,
                      struct seq *q); /* its guess behind its tokens; how many */
double sched__spec_chance(const struct spec *x, int32_t len); /* of a guess by so long a match */
double sched__spec_rows_us(const struct speculator *c, int n);
void sched__spec_judge(struct spec_score *c, bool hit);
/* spec_model.c: those of a small model, if there is one */
int sched__model_open(struct sched *s, struct err *e);
void sched__model_drop(struct sched *s, struct seq *q); /* forget q */
void sched__model_drafts(struct sched *s, struct seq *const *list, int n);
double sched__model_chance(const struct spec *x);
/* A step of q, with n_known tokens at its beginning, is over. */
void sched__model_judge(struct spec *x, int32_t n_known, int n_draft, int n_right);

/* stats.c */
void sched__stats_step(struct sched *s, int rows, int64_t us);
void sched__stats_tick(struct sched *s);

#endif
