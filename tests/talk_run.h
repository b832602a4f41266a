/* Drives endpoints that speak chat in other words (responses, messages): a model "t" of one token a byte, whose template
 * shows tools and thoughts in the way of Hermes. Test programs only. */
#ifndef TESTS_TALK_RUN_H
#define TESTS_TALK_RUN_H

#include "tests/api_run.h"

struct talk_run {
    struct api *api;
    int32_t n_vocab;
    int32_t byte_id[256]; /* the token of each byte */
};
void talk_run_open(struct talk_run *r);
void talk_run_close(struct talk_run *r);
/* The tiny model once more as `name`, with this template. */
void talk_run_serve(struct talk_run *r, const char *name, const char *text);
/* The model writes this. */
void talk_run_text(struct talk_run *r, struct api_call *c, const char *text);
/* A POST of this body, answered with this text and end: the answer, see api_run_answer. */
json_t *talk_run_ask(struct talk_run *r, const char *path, const char *body, const char *text,
                     enum finish_reason why);
/* Both requests come to the same prompt, token for token. */
void talk_run_same_prompt(struct talk_run *r, const char *path_a, const char *body_a,
                          const char *path_b, const char *body_b);
/* Each allocation of such an exchange fails once: it ends with an answer or an error of the server. */
void talk_run_no_memory(struct talk_run *r, const char *path, const char *body, const char *text);

#endif
