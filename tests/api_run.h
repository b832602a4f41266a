/* Drives the API without a server: one call at a time, its engine events written by hand. Test programs only. */
#ifndef TESTS_API_RUN_H
#define TESTS_API_RUN_H

#include <jansson.h>

#include "api/route.h"

#define RUN_CTX 2048 /* context length that the model is said to have */

/* An API that serves the model file (.xz is unpacked) as "m"; fails the running test on an error. *tok, when asked
 * for, is its tokenizer, owned by the API. */
struct tokenizer;
struct api *api_run_open(const char *file, int32_t n_ctx, struct tokenizer **tok);

/* api_prepare of a POST with this body. `body` outlives the call; api_call_free ends it. */
void api_run_start(struct api *a, struct api_call *c, const char *path, const char *body);
/* Events. token_lp: logprob and top alternatives are made up from the token, the same each time. */
void api_run_token(struct api_call *c, int req, int choice, int32_t token);
void api_run_prompt(struct api_call *c, int req, int32_t index, int32_t token);
void api_run_finish(struct api_call *c, int req, int choice, enum finish_reason why);
void api_run_done(struct api_call *c, int req, int32_t n_cached);

/* The answer as JSON (the caller decrefs); of a stream, an array of its frames without the final [DONE], which must
 * be there unless the stream ended in an error frame. Fails the test when a byte of it is no JSON or no frame. */
json_t *api_run_answer(const struct api_call *c);
/* All of choice i's text in an answer of either kind and endpoint; the caller frees it. */
char *api_run_text(json_t *answer, int i);
/* All of choice i's log-probability entries in an answer of either kind: an array of [token, logprob]. */
json_t *api_run_logprobs(json_t *answer, int i);
const char *api_run_finish_reason(json_t *answer, int i);

#endif
