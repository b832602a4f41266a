/* Drives the API without a server: one call at a time, its engine events written by hand. Test programs only. */
#ifndef TESTS_API_RUN_H
#define TESTS_API_RUN_H

#include <jansson.h>
#include <stdint.h>

#include "api/route.h"

#define RUN_CTX 2048 /* context length that the model is said to have */

/* An API that serves the model file (.xz is unpacked) as "m"; fails the running test on an error. *tok, when asked
 * for, is its tokenizer, owned by the API. */
struct tokenizer;
struct api *api_run_open(const char *file, int32_t n_ctx, struct tokenizer **tok);

/* Facts of a Stable Diffusion and of a flow model, small. */
extern const struct eng_image_info api_run_sd, api_run_flow;
/* Add an image model to it, with these facts. */
void api_run_image_model(struct api *a, const char *name, const struct eng_image_info *info);

/* Group fixtures of tests of images: *state is an API that serves a text model as "m", these two as "sd" and "flow". */
int api_run_images_open(void **state);
int api_run_images_close(void **state);

/* api_prepare of a POST with this body. `body` outlives the call; api_call_free ends it. */
void api_run_start(struct api *a, struct api_call *c, const char *path, const char *body);
/* The same with a body of any bytes and type. */
void api_run_send(struct api *a, struct api_call *c, const char *path, struct view body,
                  const char *content_type);
/* Run the pool jobs that the call started and hand them back: in their order, or the last first. */
void api_run_jobs(struct api_call *c, bool last_first);
/* Events. token_lp: logprob and top alternatives are made up from the token, the same each time. */
void api_run_token(struct api_call *c, int req, int choice, int32_t token);
void api_run_prompt(struct api_call *c, int req, int32_t index, int32_t token);
void api_run_finish(struct api_call *c, int req, int choice, enum finish_reason why);
void api_run_done(struct api_call *c, int req, int32_t n_cached);
/* A picture of w x h filled with one colour: a preview after step `index` of 4 (w 0: none), or the finished one. */
void api_run_step(struct api_call *c, int choice, int index, int w, int h, const uint8_t rgb[3]);
void api_run_picture(struct api_call *c, int choice, int w, int h, const uint8_t rgb[3]);
/* The end of an image request of n pictures: 7 prompt tokens, 16 latent tokens each. */
void api_run_pictures_done(struct api_call *c, int n);

/* The answer as JSON (the caller decrefs); of a stream, an array of its frames without the final [DONE], which must
 * be there unless the stream ended in an error frame. Streams of pictures have no [DONE]; the event line of each of
 * their frames must say its type. Fails the test when a byte of it is no JSON or no frame. */
json_t *api_run_answer(const struct api_call *c);
/* Members of an object; api_run_int fails the test when it is no integer. */
const char *api_run_str(json_t *o, const char *key);
long long api_run_int(json_t *o, const char *key);
/* usage of an answer about pictures: tokens of text, of pictures, and of what was made. */
void api_run_image_usage(json_t *v, int in, int image, int out);
/* The call has ended with this status; its param and code are these ("" = null; code NULL: any). */
void api_run_error(struct api_call *c, int status, const char *param, const char *code);
/* All of choice i's text in an answer of either kind and endpoint; the caller frees it. */
char *api_run_text(json_t *answer, int i);
/* All of choice i's log-probability entries in an answer of either kind: an array of [token, logprob]. */
json_t *api_run_logprobs(json_t *answer, int i);
const char *api_run_finish_reason(json_t *answer, int i);

#endif
