/* Private to api/responses*.c: one call of POST /v1/responses. */
#ifndef API_RESPONSES_IMPL_H
#define API_RESPONSES_IMPL_H

#include "api/response_store.h"
#include "api/talk.h"

struct resp {
    struct talk t;   /* first: it is g->own */
    json_t *items;   /* all that is answered, history first, each as input_items shows it */
    struct buf head; /* the response object up to "status": the same in every event */
    int64_t seq;     /* of the next event */
    bool store, summary /* thoughts are shown as a summary */, shorten /* truncation: auto */;
    int n_id; /* ids made for input items */
};

/* responses_input.c: "instructions", "input" and "previous_response_id" -> items and chat messages. */
int resp_input(struct api_call *c, struct gen *g, json_t *o);
/* responses_params.c: every other field -> the chat request, and what is remembered of it. */
int resp_params(struct api_call *c, struct gen *g, json_t *o);
/* The head of the response object, once the chat request is parsed. 0 or ERR_NOMEM. */
int resp_head(struct api_call *c, struct gen *g, json_t *o);
extern const char *const resp_fields[];

/* The random part of the call's id, which ids of its items share. */
const char *resp_id(const struct gen *g);

#endif
