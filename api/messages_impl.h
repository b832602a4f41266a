/* Private to api/messages*.c: one call of POST /v1/messages. */
#ifndef API_MESSAGES_IMPL_H
#define API_MESSAGES_IMPL_H

#include "api/talk.h"

struct msg {
    struct talk t; /* first: it is g->own */
    bool counting; /* count_tokens: max_tokens is not needed */
};

/* messages_input.c: the request's fields -> the chat request. Ends the call on error. */
int msg_input(struct api_call *c, struct gen *g, json_t *o);
extern const char *const msg_fields[];

#endif
