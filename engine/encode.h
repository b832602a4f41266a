/* The encoder side of the engine's door (included by engine.h): texts to vectors, or to the scores of a classifier. A
 * row's bytes are the same alone and in any company. Engine thread only, but for eng_path_is_encoder. */
#ifndef ENGINE_ENCODE_H
#define ENGINE_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"

#define ENG_ENCODE_ROWS 64 /* texts of one batch at most */

struct engine;

enum eng_pooling {
    ENG_POOL_MEAN, /* of all tokens, special ones included */
    ENG_POOL_CLS,  /* the first token */
    ENG_POOL_LAST, /* the last token */
    ENG_POOL_MAX,  /* of each component */
};

/* Constant facts of an opened encoder model. */
struct eng_encoder_info {
    int32_t dim;       /* of a vector; of a classifier: 0 */
    int32_t n_label;   /* scores of a text (pair); 0: no classifier */
    int32_t n_tok_max; /* longest text, special tokens included */
    enum eng_pooling pooling;
    int32_t n_type;   /* kinds of tokens; 1: a pair's second text is not told from the first */
    bool double_sep;  /* two separators between the texts of a pair (RoBERTa), else one */
    bool raw_scores;  /* scores are meant as they are, not through the logistic function */
    char prompt[128]; /* put before every text by default; "" = nothing */
};

/* Whether the model in `path` is an encoder (reads its configuration only). Any thread. */
bool eng_path_is_encoder(const char *path);

struct eng_encode_row {
    const int32_t *ids; /* [n] */
    int32_t n;          /* 1 .. n_tok_max */
    int32_t second;     /* where a pair's second text begins; n (or more): no pair */
    float *out; /* [dim] the pooled vector, not normalised; or [n_label] raw scores (logits) */
};
/* One batch of 1..ENG_ENCODE_ROWS texts. ERR_NOMEM: try fewer. ERR_INVAL: a row breaks a limit (our bug).
 * ERR_DEVICE is sticky. */
int eng_encode(struct engine *g, const struct eng_encode_row *rows, int n, struct err *e);

#endif
