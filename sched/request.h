/* Plain data that crosses the mailboxes: requests down (loop -> engine thread), events up. The receiver
 * owns a message. No behaviour here. */
#ifndef SCHED_REQUEST_H
#define SCHED_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/engine.h"

#define REQ_ID_MAX   72
#define REQ_N_MAX    128
#define REQ_STOP_MAX 16

/* Sampling parameters as the client gave them; sched turns them into sample_row for each row. */
struct req_sampling {
    float temperature, top_p, min_p; /* no zero defaults: api fills 1, 1, 0 */
    int32_t top_k;
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0 */
    uint64_t seed; /* always set: api draws one when the client gave none; choice i uses seed + i */
    int n_top;     /* -1 no log-probabilities, else 0..20 */
    struct token_bias *bias; /* [n_bias] */
    int n_bias;
    struct grammar *
        grammar; /* what may be written; one reference, or NULL. Its vocabulary has n_vocab tokens. */
    uint32_t
        *mask; /* allowed tokens (allowed_token_ids), bitmap [ (n_vocab + 31) / 32 ], or NULL */
};

/* A picture on its way up: malloc'ed with its pixels by whoever makes it, freed by the receiver (img_pixels_free). */
struct img_pixels {
    int width, height;
    uint8_t rgb[]; /* [height, width, 3] */
};
struct img_pixels *img_pixels_new(int width, int height); /* NULL: no memory */
void img_pixels_free(struct img_pixels *p);               /* NULL is fine */

/* What an image request adds to `struct request`: n pictures, seeds p.seed + i. Texts and pixels are owned here. */
struct req_image {
    struct img_params p; /* prompt, negative, init and mask malloc'ed */
    int previews;        /* partial pictures wanted of each, spread over its steps; 0..8 */
    bool progress;       /* EV_IMAGE_STEP after every step, not only with a preview */
};

/* What a request to an encoder adds: its prompt is n_row texts (or pairs of them) behind each other. */
struct req_encode {
    int n_row;
    int32_t *start; /* [n_row + 1] in tokens; start[0] == 0, start[n_row] == n_prompt */
    int32_t
        *second; /* [n_row] where a pair's second text begins, counted in its row; NULL: no pairs */
};

/* What a request to a speech model adds: frames and prompt are owned here, and p points to them. */
struct req_audio {
    struct aud_params p;
    struct aud_mel *mel;
    int32_t *prompt; /* p.n_prompt tokens, or NULL */
};

#define REQ_MARK_MAX 16

/* A bound on reasoning, in each choice: after `budget` tokens of it `force` is what comes next, whatever the model would
 * say. Reasoning begins after the tokens `open` (with `inside`: with the first token) and ends with `close`. */
struct req_think {
    int32_t budget;
    bool inside;
    int32_t open[REQ_MARK_MAX], close[REQ_MARK_MAX], force[REQ_MARK_MAX];
    int n_open, n_close, n_force; /* close and force: >= 1 */
};

/* One prompt and its n choices. Made by api with request_new, moved to the engine thread by
 * sched_worker_submit, freed there. */
struct request {
    uint64_t id;           /* given by sched_worker_submit's caller; unique in the process */
    char name[REQ_ID_MAX]; /* x-request-id, for the log */
    int32_t *prompt;       /* [n_prompt], >= 1 token */
    int32_t n_prompt;
    int n;              /* choices, 1..128 */
    int32_t max_tokens; /* >= 0: 0 = score the prompt only (echo) */
    int32_t min_tokens; /* stop tokens and eos banned before */
    int32_t stop_id
        [REQ_STOP_MAX]; /* tokens that end a choice: the model's own (unless ignore_eos) + stop_token_ids */
    int n_stop_id;
    int prompt_logprobs; /* -1 none; else top n for every prompt token: EV_PROMPT events come first */
    struct req_sampling samp;
    int32_t *
        predict; /* [n_predict] what the client thinks the answer will be: it may come sooner then; or NULL */
    int32_t n_predict;
    struct req_think *think; /* malloc'ed, or NULL: no bound */
    int priority;            /* lower runs first; 0 */
    int64_t deadline_us;     /* clock_us() time after which it ends with ERR_TIMEOUT; 0 = none */
    int64_t
        queue_deadline_us; /* must have started by then, else ERR_TIMEOUT before the first token; 0 */
    uint64_t cache_salt;   /* part of the prefix hash; 0 = shared by all without a salt */
    int64_t arrival_us;    /* clock_us() when the server had the whole body */
    struct req_image
        *image; /* of an image model: prompt, max_tokens and samp are not used then; else NULL */
    struct req_encode *encode; /* of an encoder: max_tokens and samp are not used then; else NULL */
    struct req_audio *audio;   /* of a speech model: the same */
};
struct req_image *req_image_new(void); /* zeroed; NULL on ERR_NOMEM */
/* Room for n_row rows, with `second` for pairs; NULL on ERR_NOMEM. */
struct req_encode *req_encode_new(int n_row, bool pairs);

struct req_audio *req_audio_new(void); /* zeroed; NULL on ERR_NOMEM */

struct request *request_new(void);    /* zeroed; NULL on ERR_NOMEM */
void request_free(struct request *r); /* with prompt, bias, mask, grammar; NULL is fine */

enum finish_reason {
    FINISH_NONE,
    FINISH_STOP /* stop or eos token */,
    FINISH_LENGTH,
    FINISH_ERROR
};

enum event_kind {
    EV_PROMPT, /* log-probability of one prompt token: index = its position, 1 .. n_prompt - 1 in
                * order, all before the first EV_TOKEN of choice 0 (token 0 has none) */
    EV_TOKEN,  /* one output token of one choice */
    EV_FINISH, /* a choice ended; after it no EV_TOKEN for that choice */
    EV_IMAGE_STEP, /* picture `choice` made step `index` of `total`; px: a preview, or NULL */
    EV_IMAGE, /* picture `choice` is finished: px; after it nothing more of this choice. n_prompt and n_output are
               * this picture's: prompt tokens, latent tokens */
    EV_EMBED, /* vec: the vectors (or scores) of all rows of a request to an encoder; EV_DONE follows */
    EV_AUDIO, /* audio: what the next window of a recording says */
    EV_DONE,  /* the request ended (all choices, or cancelled): last event, usage is final */
    EV_ERROR, /* the request ended by an error before or during output: last event */
};

struct event {
    enum event_kind kind;
    uint64_t req;
    int choice;                /* 0 .. n-1 */
    int32_t index;             /* EV_TOKEN: output position; EV_PROMPT: prompt position */
    bool predicted;            /* EV_TOKEN: request.predict named it */
    enum finish_reason finish; /* EV_FINISH */
    int32_t stop_token;    /* EV_FINISH by a stop token: its id (not sent as EV_TOKEN), else -1 */
    struct img_pixels *px; /* EV_IMAGE_STEP, EV_IMAGE: moves with the event */
    float *vec;            /* EV_EMBED: [n_row, dim or n_label], malloc'ed; moves with the event */
    struct aud_piece *audio; /* EV_AUDIO: moves with the event */
    struct sample_out tok;   /* EV_TOKEN, EV_PROMPT; logprob fields only when asked for */
    /* What follows does not travel with EV_TOKEN and EV_PROMPT, nor does tok beyond its n_top: event_copy */
    struct err err; /* EV_ERROR */
    int total;      /* EV_IMAGE_STEP: steps of this picture */
    int64_t eta_us; /* EV_IMAGE_STEP: expected time to its end */
    /* EV_DONE, EV_ERROR: totals and times (clock_us, 0 = never) for usage and metrics */
    int32_t n_prompt, n_cached,
        n_output; /* tokens; n_cached counts the first choice's prefix hit; n_output the EV_TOKENs of
                   * all choices (or what worker_finish_choice kept), no stop tokens */
    int n_preempted;
    /* EV_DONE of an image request: n_prompt = prompt tokens encoded (all pictures share them), n_output = latent
     * tokens of the finished pictures; times spent in each stage */
    int64_t encode_us, denoise_us, decode_us; /* of an audio request: encode and decode */
    int64_t arrival_us, scheduled_us, first_token_us, done_us;
};
/* Of the most frequent kinds only what they carry: a few cache lines instead of the whole struct. */
void event_copy(struct event *dst, const struct event *src);
/* Free what moves with an event, for those who don't use it. */
void event_drop(const struct event *ev);

#endif
