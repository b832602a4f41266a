/* Drives an engine the way a scheduler does, for tests of the engine: sequences with known and computed
 * tokens, hand-written plans, a digest of everything that came out. Test programs only. */
#ifndef TESTS_ENGINE_RUN_H
#define TESTS_ENGINE_RUN_H

#include "engine/engine.h"

#define RUN_TOK_MAX   2048
#define RUN_BLOCK_MAX (RUN_TOK_MAX / 16)
#define RUN_SEQ_MAX   256

struct run_seq {
    int32_t tok[RUN_TOK_MAX];
    int32_t n_tok, n_prompt; /* known */
    int32_t n_done;          /* computed */
    int32_t block[RUN_BLOCK_MAX];
    int32_t from; /* 1 + the slot that its next step reads, once; 0: `slot` */
    int32_t slot; /* of its recurrent state: the number of its first block, within the engine's */
    struct sample_row row; /* sampling; position and history are set for each step */
    struct sample_out out;
    uint64_t digest; /* of the logits' bits and chosen tokens, in order; needs keep_logits */
};

/* Known tokens `ids`, greedy, blocks first, first+1, ... */
void run_seq_init(struct run_seq *s, const int32_t *ids, int32_t n, int32_t first_block);
/* One step: the next n[i] tokens of each sequence; one that reaches its last known token samples the next,
 * which becomes known. Fails the running cmocka test on an error. */
void run_step(struct engine *g, struct run_seq *const *seq, const int32_t *n, int n_seq);
/* Prefill in chunks, then decode until n_new tokens were sampled. */
void run_generate(struct engine *g, struct run_seq *s, int32_t chunk, int32_t n_new);
/* One chunk whose every row's logits go to dst [n, n_vocab]; needs keep_logits and room for n logit rows. */
void run_logits(struct engine *g, const int32_t *ids, int32_t n, int32_t first_block, float *dst);
/* Open or fail the test; NULL when the device or table is not one of this machine (ERR_UNSUPPORTED or
 * ERR_NOTFOUND): the caller says so. */
struct engine *run_open(const struct eng_opts *o);

/* Each allocation of opening fails once: an ERR_NOMEM that says what, or a model all the same. Fails the test of `name`.
 * Under the asan variant a leak on any of these paths fails the run. */
void run_open_no_memory(const struct eng_opts *o, const char *name);

/* File of the default chat model: $STEPD_TEST_MODEL, or smollm2-135m.gguf in $STEPD_MODELS or models/.
 * NULL, with a line that says so and counts `n_test` skipped tests, when there is none: exit with 77. */
const char *run_model_path(int n_test);

#endif
