/* An opened speech model: files, weights, tokens, slots, jobs. Private to engine/; engine thread only. */
#ifndef ENGINE_AUDIO_MODEL_H
#define ENGINE_AUDIO_MODEL_H

#include "engine/audio/whisper.h"
#include "engine/engine.h"
#include "engine/load/ct2.h"
#include "engine/text/tokenizer.h"

#define AUD_SLOTS_MAX 64
#define AUD_ALIGN_MAX 64 /* heads that align */

/* Ids of the tokens that mean something; -1: the vocabulary has none. */
struct aud_tokens {
    int32_t sot, eot, prev, transcribe, translate, no_speech, no_times;
    int32_t first_time; /* 0.00 s; each further one is 0.02 s later */
    int32_t n_vocab;
    int32_t lang[AUD_LANGUAGES];
    int first_time_max; /* the first time token is at most so many steps in */
    bool multilingual;
    uint8_t *ban; /* [n_vocab] AUD_BAN_* */
    int n_align;
    struct {
        int layer, head;
    } align[AUD_ALIGN_MAX];
};
#define AUD_BAN_ALWAYS 1
#define AUD_BAN_FIRST  2

/* From the tokenizer, and what generation_config.json or config.json of the folder add. */
int aud_tokens_open(struct aud_tokens *t, const struct tokenizer *tok, const char *dir,
                    const struct whisper_dims *d, struct err *e);
void aud_tokens_close(struct aud_tokens *t);

struct audio_model {
    struct comp comp;
    struct source *src;
    const struct backend *be;
    enum eng_precision precision;
    struct nn_weights *weights;
    struct nn nn;
    struct whisper *net;
    struct tokenizer *tok;
    struct aud_tokens t;
    struct eng_audio_info info;
    size_t kv_bytes;
    bool used[AUD_SLOTS_MAX];
    float *logits; /* [n_logits, n_vocab] */
    int n_logits;
    float *mel;        /* [n_frame, n_mel] of the window being encoded */
    struct err failed; /* code != 0: the device failed; sticky */
};

int audio_model_open(struct audio_model **out, const struct eng_opts *o, struct eng_info *info,
                     struct err *e);
void audio_model_close(struct audio_model *m); /* NULL is fine */
int audio_model_plan(const struct eng_opts *o, struct eng_memory *out, struct err *e);
int audio_model_step(struct audio_model *m, struct aud_job *const *jobs, int n,
                     const struct img_yield *y, struct err *e);

/* ---- ct2_names.c: folders as CTranslate2 makes them ---- */

bool aud_is_ct2(const char *dir);
/* Names and configuration for m->src, which is such a file. */
int aud_ct2_map(struct audio_model *m, const char *path, struct err *e);

/* ---- rules.c: which token comes next ---- */

struct aud_pick {
    int32_t token;
    float logprob; /* after the rules */
};
/* z [n_vocab]: logits, changed. seq [n]: what this window has so far. u: uniform in [0, 1) */
struct aud_pick aud_pick_next(const struct aud_tokens *t, float *z, const int32_t *seq, int n,
                              float heat, double u);
float aud_prob(const float *z, int n, int32_t token); /* softmax of one */
int aud_pick_language(const struct aud_tokens *t, const float *z);

/* ---- job.c ---- */

struct aud_job {
    struct audio_model *m;
    struct aud_params p;
    enum aud_stage stage;
    int slot, language;
    int64_t seek;      /* first frame of the window */
    int64_t n_content; /* frames of it that are recording */
    /* The attempt: prefix [n_prefix] of which sot_at is the start, then what was picked. */
    int32_t *seq; /* [n_text] */
    int n_prefix, n_seq, sot_at;
    bool detect, begun; /* detect: the language comes first; begun: the prefix is in the cache */
    int heat;           /* index of the temperature */
    double sum_logprob;
    float no_speech;
    int32_t n_drawn;        /* random numbers used */
    struct tok_ids history; /* all text tokens so far, with time tokens; the prompt before them */
    size_t history_from;    /* of it the next window sees what is after this */
    float *states;          /* [n_sound, d] of the window, when words are wanted */
    struct aud_piece *made, *piece; /* waiting for its words; waiting to be taken */
    int64_t next_seek;              /* after the piece */
    bool single_end;                /* its last token is a time alone */
    int32_t n_prompt, n_output;
    int n_retry;
};

/* The window at j->seek comes next, or the end. */
int aud_window_next(struct aud_job *j);
/* The attempt is over: accept it, or start the next one. ERR_NOMEM. */
int aud_window_end(struct aud_job *j);
/* The window's segments are final (words included): hand them over and go on. ERR_NOMEM. */
int aud_window_done(struct aud_job *j);

/* ---- piece.c ---- */

struct arena;
struct aud_piece *aud_piece_new(int cap); /* NULL: no memory */
struct arena *aud_piece_arena(struct aud_piece *p);
/* A segment of tokens; text is decoded from them. ERR_NOMEM. */
int aud_piece_add(struct aud_piece *p, const struct aud_job *j, double start, double end,
                  const int32_t *tok, int n_tok);
/* Text of tokens below eot into b. */
int aud_text(const struct audio_model *m, const int32_t *tok, int n, struct buf *b);
/* Bytes of the text over bytes that zlib makes of it. */
float aud_compression(const char *s, size_t n);

/* ---- words.c ---- */

/* Times of words for j->made, by the cross-attention of the heads that align. ERR_NOMEM, ERR_CANCELLED, ERR_DEVICE. */
int aud_words(struct aud_job *j, const struct img_yield *y, struct err *e);
/* Run fn twice: counted, then for real (model.c). */
int audio__run(struct audio_model *m, const struct img_yield *y,
               void (*fn)(struct nn *n, void *arg), void *arg, struct err *e);

#endif
