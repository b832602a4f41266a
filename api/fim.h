/* Private to api/: prompts with a hole in them, for models that were trained to fill it. Pool threads. */
#ifndef API_FIM_H
#define API_FIM_H

#include "api/gen.h"

/* A file that stands beside the one with the hole. */
struct fim_file {
    struct view name, text;
};

struct fim {
    const struct tok_ids *prefix_ids; /* the text ahead of the hole as tokens; else NULL: */
    struct view prefix;
    struct view suffix;          /* the text behind it */
    const struct fim_file *file; /* [n_file] others, in order */
    size_t n_file;
    struct view start; /* how the hole's text begins */
    bool special;      /* begin as the model wants it */
};

/* Whether the model can fill holes; else ends the call, naming `param`, and returns ERR_INVAL. */
int fim_check(struct api_call *c, const struct gen *g, const char *param);
/* Append the tokens of *f to *out. Texts are texts: what they spell is no control token. Ends the call on error. */
int fim_encode(struct api_call *c, const struct gen *g, const struct fim *f, struct tok_ids *out);
/* The tokens by which such models end a hole become stop tokens. */
void fim_stops(struct gen *g);

#endif
