/* Private to api/: one call to an encoder (embeddings, rerank, score): texts in, vectors or scores out. Prepared on the
 * loop or a pool thread; answers on the loop thread, large ones on the pool. */
#ifndef API_EMBED_H
#define API_EMBED_H

#include "api/api_impl.h"

struct emb;
/* Write the whole answer into b; v [n_row, width] is what the engine made of the rows. Any thread; touches e alone. */
typedef void emb_answer(struct emb *e, float *v, struct buf *b);

struct emb {
    const struct api_model *m;
    emb_answer *answer;
    /* rows so far: tokens behind each other */
    struct tok_ids ids;
    int32_t *start, *second; /* [n_row + 1], [n_row] */
    int n_row, cap_row;
    int32_t before, after;  /* special tokens around a text: id or -1 */
    int32_t n_max;          /* longest row */
    bool truncate, special; /* special: they are added to texts */
    int64_t priority;
    int64_t created;
    char id[96];
    int32_t n_prompt;
    /* of embeddings */
    int32_t dim;
    bool base64, normalise;
    /* of rerank and score: rows are pairs, or the vectors of n_query texts and then of n_doc ones */
    int n_query, n_doc, top_n;
    bool pairs, raw; /* raw: logits are given as they are */
    char **doc;      /* [n_doc] texts to give back, or NULL */
    size_t *doc_len;
};

/* Prepare function of an endpoint: body, model, fields (`known` beside those of all), then `parse`, which adds rows,
 * then the request. */
int emb_run(struct api_call *c, const char *const *known, emb_answer *answer,
            int (*parse)(struct api_call *c, struct emb *e, json_t *o));

/* Add a row; `param` names the text in errors ("input[3]"). 0, or the call is over. */
int emb_add_text(struct api_call *c, struct emb *e, const char *param, struct view text);
int emb_add_pair(struct api_call *c, struct emb *e, const char *param, struct view a,
                 struct view b);
int emb_add_ids(struct api_call *c, struct emb *e, const char *param, json_t *list);
/* Refuse more texts than one request may have. */
int emb_check_count(struct api_call *c, const char *param, size_t n);

/* Scale v [n] to length 1; zeros stay. */
void emb_normalise(float *v, int n);
/* A float as JSON, exact; null when it is not finite. */
void emb_put_float(struct buf *b, float v);

#endif
