/* The only door to the engine: open a model, run a step plan, read results. Knows bytes and tokens,
 * never requests. Engine thread only (eng_memory_plan: any thread).
 * tests/fake_engine.c implements the same functions for scheduler tests. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/audio.h"
#include "engine/base/err.h"
#include "engine/encode.h"
#include "engine/grammar.h"
#include "engine/image.h"
#include "engine/ops.h" /* struct sample_row, struct sample_out, enum eng_precision */

struct engine;

struct eng_opts {         /* zero = default */
    const char *path;     /* model file or folder */
    const char *device;   /* "auto" (NULL), "cpu", "ref", "cuda", "cuda-emu", "null" */
    int64_t null_step_us; /* device "null": time of a step; 0 = none */
    enum eng_precision precision;
    const char *isa; /* CPU: force a kernel table */
    bool loose;      /* see backend_opts */
    int n_threads;   /* CPU workers; 0 = all allowed */
    bool no_pin;
    int32_t n_ctx;   /* context length in tokens; 0 = the model's, at most what memory allows */
    size_t kv_bytes; /* KV pool; 0 = enough for max_seqs/4 full contexts, within available memory */
    const char *kv_dtype; /* "auto" (NULL), "f32", "f16", "bf16", "int8", "fp8" ("fp8_e4m3") */
    const char *quantize; /* dense matrices become "q8", "q4", "fp8" at load; NULL: they stay */
    int max_seqs;         /* sequences in one step; 0 = 64 */
    int max_rows;         /* tokens in one step; 0 = 512 */
    int n_state;          /* slots for recurrent states; 0 = max_seqs + 64, or what memory allows */
    int max_logit_rows;   /* sampled or scored rows in one step; 0 = max_seqs + 64 */
    bool keep_logits;     /* eng_logits works after a step (tests, oracles) */
    /* image models */
    const char *refiner; /* a second model that finishes pictures (SDXL); NULL = none */
    size_t
        work_bytes; /* most work memory of a step; 0 = half of what is available after the load */
    size_t cond_bytes; /* cache of encoded prompts; 0 = 64 MiB */
    int max_audio;     /* speech models: recordings at work at once; 0 = 4 */
};

struct eng_info {     /* of an open engine; constant */
    char backend[64]; /* "cpu amx bf16" */
    char arch[32];
    int32_t n_ctx; /* longest sequence, tokens */
    int32_t n_vocab;
    int32_t block_len; /* tokens a KV block */
    int32_t n_block;   /* blocks in the pool, block 0 (null) included */
    int32_t n_state;   /* slots for recurrent states, 0.. ; 0: the model has none */
    int max_seqs, max_rows, max_logit_rows;
    size_t weight_bytes, kv_bytes, work_bytes, state_bytes;
    uint64_t layout_id;                     /* dtype + layout version: part of every prefix hash */
    bool lookahead;                         /* a step may begin while the one before is not over */
    const struct eng_image_info *image;     /* of an image model (eng_image_*) */
    const struct eng_encoder_info *encoder; /* of an encoder (eng_encode) */
    const struct eng_audio_info
        *audio; /* of a speech model (eng_audio_*); all three NULL: a language model (eng_step_*) */
};

/* In step_seq.tok: the token that logit row i (plan order) of the step begun before this one chose, whether
 * that step is over or not. Its KV and position are those of an ordinary token. */
#define STEP_SAMPLED(i) (-1 - (i))

/* One sequence's share of a step: tokens [pos, pos + n_tok) of it are computed. */
struct step_seq {
    const int32_t *tok; /* [n_tok] ids, or STEP_SAMPLED */
    int32_t n_tok, pos;
    const int32_t *block; /* [n_block] block table covering positions 0 .. pos + n_tok - 1 */
    int32_t n_block;
    /* With eng_info.n_state: the slot that holds the state after position pos - 1 (-1 at pos 0), and the one that gets
     * the state after the chunk. They may be equal. A slot is written by one sequence of a step, and then read by no
     * other one. */
    int32_t state_src, state_dst;
    /* Rows whose logits are wanted: the last n_logit rows of the chunk. rows[i] says what to do with each
     * (sampling, or scoring of a known next token by `target`); out[i] receives it when the step is over.
     * n_logit == 0: none. The history of a row whose tokens are not all known ends with the last known one,
     * so penalties can't be exact there: such rows must wait for their token. */
    int32_t n_logit;
    const struct sample_row *rows;
    struct sample_out *out;
};

struct step_copy { /* copy-on-write, done before the step's rows */
    int32_t src, dst;
};

struct step_plan {
    int n_seq, n_copy;
    const struct step_seq *seq;
    const struct step_copy *copy;
};

/* Load. On failure nothing is left behind and e names the tensor, key or size. */
int eng_open(struct engine **out, const struct eng_opts *o, struct err *e);
void eng_close(struct engine *g); /* NULL is fine */
const struct eng_info *eng_info(const struct engine *g);

/* Issue a step. At most one step may be open before (ERR_INVAL), none without eng_info.lookahead, where the
 * step is over when this returns. Steps run in the order they were begun, each as if the ones before were over: a
 * block may be given another use as soon as the last step that reads it has begun. p, p->seq and the `out`
 * arrays stay the caller's and unchanged until the step's eng_step_end; all else is copied.
 * ERR_DEVICE is sticky: every later call fails with it, no step is open then. ERR_INVAL: the plan breaks a limit
 * of eng_info (our bug). No allocation after the first full-sized step. */
int eng_step_begin(struct engine *g, const struct step_plan *p, struct err *e);
/* Wait for the oldest open step and fill its plan's `out` arrays. ERR_INVAL: none is open. */
int eng_step_end(struct engine *g, struct err *e);
/* Both. */
int eng_step(struct engine *g, const struct step_plan *p, struct err *e);

/* Logits of logit row i of the last step (plan order) as f32 [n_vocab]; with keep_logits only, which rules
 * look-ahead out. */
int eng_logits(struct engine *g, int i, float *dst);

/* What eng_open would need, without loading. */
struct eng_memory {
    size_t file, weights, kv, work, state, total; /* bytes */
    size_t kv_per_token;                          /* bytes */
    int32_t n_ctx, n_block;
    size_t available; /* of the machine or its cgroup */
    /* image models: work memory of one picture of the default size */
    size_t image_encode, image_denoise, image_decode, image_decode_tiled; /* 0 for text */
    int image_size;                                                       /* a side, pixels */
};
int eng_memory_plan(const struct eng_opts *o, struct eng_memory *out, struct err *e);

#endif
