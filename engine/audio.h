/* The speech side of the engine's door (included by engine.h): a job is one recording; its unit of work is one stage
 * step: encoding a window of 30 s, decoding one token (or a prompt), aligning words. The scheduler decides which jobs
 * make a step together. What a job says is the same alone and in any company. Engine thread only, but for what says
 * otherwise. */
#ifndef ENGINE_AUDIO_H
#define ENGINE_AUDIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

struct engine;
struct img_yield; /* image.h */

#define AUD_RATE      16000 /* samples a second */
#define AUD_HOP       160   /* samples a frame */
#define AUD_LANGUAGES 100
#define AUD_HEATS_MAX 8 /* temperatures of one request */

/* Constant facts of an opened speech model. */
struct eng_audio_info {
    int n_mel;        /* bands: 80 or 128 */
    int n_frame;      /* of a window: 3000 */
    int n_slot;       /* jobs that can be open at once */
    int n_tok_prompt; /* of a prompt, the last ones count */
    bool multilingual;
    bool words;                   /* knows which heads align: words can have times */
    bool language[AUD_LANGUAGES]; /* has a token for it */
};

/* Whether the model in `path` transcribes (reads names and its configuration only). Any thread. */
bool eng_path_is_audio(const char *path);

/* ---- languages: static, any thread ---- */

/* By code ("en") or English name ("english"), in any case; -1: unknown. */
int aud_language_find(const char *s, size_t n);
const char *aud_language_code(int i);
const char *aud_language_name(int i);

/* ---- frames: log-mel spectra (Radford et al. 2022), made while samples come in. Any thread, one at a time ---- */

struct aud_mel {
    int n_mel;
    int64_t n_frame;             /* whole frames of the recording */
    int64_t n_sample;            /* of the recording */
    float *v;                    /* [n_row, n_mel], row by row; n_row >= n_frame */
    int64_t n_row, cap;          /* frames behind the end still hear its last samples */
    float silence;               /* every value of frames behind n_row */
    struct aud_mel_maker *maker; /* until finished */
};
/* NULL: no memory, or n_mel is not 1..256. */
struct aud_mel *aud_mel_new(int n_mel);
int aud_mel_add(struct aud_mel *m, const float *pcm, size_t n); /* mono, AUD_RATE. ERR_NOMEM */
int aud_mel_finish(struct aud_mel *m);                          /* ERR_NOMEM */
void aud_mel_free(struct aud_mel *m);                           /* NULL is fine */

/* ---- jobs ---- */

struct aud_params {
    const struct aud_mel *mel; /* finished; stays the caller's, until the job is closed */
    int language;              /* index, or -1: detect */
    bool translate;            /* to English */
    bool words;                /* times of words too */
    bool no_history;           /* a window does not see the text before it */
    const int32_t *prompt;     /* [n_prompt] the caller's until the job is closed; NULL */
    int32_t n_prompt;
    float heat
        [AUD_HEATS_MAX]; /* temperatures tried in turn while a window's text looks bad; 0 = greedy */
    int n_heat;
    float
        compression_max; /* a text that zlib shrinks by more repeats itself: next temperature; 2.4 */
    float logprob_min;   /* mean log-probability below which a text looks bad; -1 */
    float no_speech_min; /* probability of no speech above which such a text is nothing; 0.6 */
    uint64_t seed;
};

struct aud_word {
    double start, end; /* seconds */
    const char *text; /* with its space before it */
};
struct aud_segment {
    int64_t seek; /* first frame of its window */
    double start, end;
    const char *text;   /* UTF-8, with its space before it; never NULL */
    const int32_t *tok; /* [n_tok] with time tokens */
    int n_tok;
    float heat, avg_logprob, compression, no_speech;
    const struct aud_word *word; /* [n_word] */
    int n_word;
};
/* What one window brought; segments may be none. One piece of memory chain: aud_piece_free. */
struct aud_piece {
    int language; /* used or detected */
    int n;
    struct aud_segment *seg;
    void *arena;
};
void aud_piece_free(struct aud_piece *p); /* NULL is fine; any thread */

/* AUD_FAILED: there was no memory for its text; it can only be closed. */
enum aud_stage { AUD_ENCODE, AUD_DECODE, AUD_ALIGN, AUD_DONE, AUD_FAILED };
struct aud_job;
/* ERR_AGAIN: all slots are taken. ERR_INVAL, ERR_UNSUPPORTED name the parameter. */
int aud_job_open(struct engine *g, const struct aud_params *p, struct aud_job **out, struct err *e);
void aud_job_close(struct engine *g, struct aud_job *j); /* NULL is fine */
enum aud_stage aud_job_stage(const struct aud_job *j);
/* The last window's text, once, after the step that ended it; NULL: nothing new. */
struct aud_piece *aud_job_take(struct aud_job *j);
int64_t aud_job_seek(const struct aud_job *j); /* frames that are done with */
/* Attempts at windows after their first, since the last call. */
int aud_job_retries(struct aud_job *j);
void aud_job_tokens(const struct aud_job *j, int32_t *n_prompt, int32_t *n_output);

/* One unit of work for all n jobs, which must be in the same stage (AUD_ENCODE, AUD_ALIGN: n is 1). ERR_NOMEM: a job
 * alone has too little memory for the step, or try fewer; ERR_CANCELLED: y asked for it; jobs are then as they were. ERR_DEVICE is
 * sticky. y may be NULL. */
int eng_audio_step(struct engine *g, struct aud_job *const *jobs, int n, const struct img_yield *y,
                   struct err *e);

#endif
