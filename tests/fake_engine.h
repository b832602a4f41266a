/* A deterministic engine for scheduler tests, with look-ahead (info.lookahead) or without: the functions of engine/engine.h over token storage per
 * block and slot instead of KV. It reads every earlier token of a sequence back through the block table,
 * so a mixed-up block, a missing copy or a stale cached block changes what it answers, and it compares what
 * it reads with the sequence's history where a row carries one. A step does its work when it is begun, as a
 * device that keeps the order would seem to, but shows nothing before its end: `out` holds rubbish until then.
 * One engine at a time. */
#ifndef TESTS_FAKE_ENGINE_H
#define TESTS_FAKE_ENGINE_H

#include "engine/engine.h"

struct fake_image {       /* of the image functions; 0 = none, no limit */
    int64_t fit_rows;     /* rows of the jobs that fit into one step; one job always does */
    uint32_t nomem_every; /* steps of several jobs whose count is a multiple of it find no memory */
    int decode_jobs;      /* a decoding finds no memory while more jobs than this are open */
    bool decode_alone;    /* nor one of several jobs */
    bool decode_partial;  /* of several the first is decoded, then there is no memory */
    int nomem_width;      /* pictures of this width never find memory to decode */
    int bad_width;        /* pictures of this width can't be opened: ERR_LIMIT */
    int ops;              /* pauses of a step; 0 = 1 */
    int64_t us_step,
        us_row; /* fake time of a denoising step and of each 64 rows; encode and decode take us_step */
};

struct fake_encode {      /* of eng_encode; 0 = no limit */
    int64_t nomem_tokens; /* a batch of more finds no memory */
};

struct fake_audio {   /* of the speech functions; 0 = none, no limit */
    int decode_nomem; /* a decoding step of more jobs finds no memory */
    int open_nomem;   /* a job more than this can't be opened: ERR_NOMEM */
    int bad_language; /* jobs of this language can't be opened: ERR_INVAL */
    int fail_window;  /* the job is AUD_FAILED at the end of this window (1 = first) */
    int ops;          /* pauses of a step; 0 = 1 */
};

struct fake_cfg { /* set before eng_open; all fields */
    struct eng_info info;
    int fail_open;      /* eng_open returns this error */
    uint64_t fail_step; /* this step (1 = first) and all after it fail to begin; 0 = none */
    uint64_t fail_end;  /* this one begins, its end fails; 0 = none */
    uint32_t
        habit; /* all but one of so many tokens follow from the one before alone; 0 = none does */
    bool two;  /* a second engine may be opened, a draft model's */
    int64_t us_draft;    /* fake time of a step of it */
    uint64_t fail_draft; /* this step of it and all after it fail to begin; 0 = none */
    uint32_t bad_every; /* rows whose hash is a multiple of it have logits that are not finite; 0 */
    int64_t us_step, us_row; /* fake time of a step and of each row */
    bool sleep;              /* pass that time for real */
    struct fake_encode encode;
    struct fake_audio audio; /* when info.audio is set: fake_reset_audio */
    struct fake_image image; /* when info.image is set: fake_reset_image */
};
extern struct fake_cfg fake;

/* Fake time: moved by eng_step, and by tests. */
extern int64_t fake_now_us;
int64_t fake_clock(void *arg);

/* Small limits: vocabulary 1000, context 256, blocks of 16 (n_block of them), 8 sequences, 64 rows. */
void fake_reset(int32_t n_block);
/* An image model: sides 64 to 1024, 64 default, 1 to 100 steps, classic guidance (two passes). fake_reset included. */
void fake_reset_image(void);
/* An encoder: vectors of 4, texts of 64 tokens. fake_reset included. */
void fake_reset_encoder(void);
/* A speech model of n_slot slots; windows of 200 frames. fake_reset included. */
void fake_reset_audio(int n_slot);
/* Text of window i of a recording of n_frame frames in this language; tokens that it takes. */
void fake_says(int64_t n_frame, int language, int i, char out[32]);
int fake_window_tokens(int64_t n_frame, int i);
/* The vector that eng_encode makes: a function of its arguments alone. */
void fake_vector(const int32_t *ids, int32_t n, int32_t second, float out[4]);
/* The bytes of the picture that p makes: a function of p alone. Caller frees. */
uint8_t *fake_picture(const struct img_params *p);

/* What the engine chooses after tok[n]: the same function that eng_step uses. */
struct sample_out fake_choose(const int32_t *tok, int32_t n, const struct sample_row *r);
bool fake_is_bad(const int32_t *tok, int32_t n);

/* The content of a block is nobody's any more: reading it is an error from now on. */
void fake_poison(int32_t block);

struct fake_count {
    uint64_t steps, rows, copies, opens,
        closes; /* steps, rows, max_rows: not of the second engine */
    uint64_t draft_steps;
    uint64_t ends, refs; /* steps ended; tokens by reference */
    int32_t max_rows;    /* of one step */
    uint64_t image_steps, image_jobs, image_yields,
        image_nomem; /* calls; sum of their jobs; pauses; failures */
    int jobs_open, jobs_open_max;
    int64_t image_rows_max; /* of one denoising step */
    uint64_t audio_encodes, audio_aligns, audio_decodes, audio_rows,
        audio_nomem; /* steps; jobs in decoding ones */
};
extern struct fake_count fake_count;

#endif
