/* The BERT family over nn.h: BERT (Devlin et al. 2019), RoBERTa and XLM-R (positions counted from the padding id on),
 * Nomic BERT (rotation, gated feed-forward). Post-norm blocks without causality; weights under transformers' names.
 * Engine thread only. */
#ifndef ENGINE_ENCODE_BERT_H
#define ENGINE_ENCODE_BERT_H

#include "engine/encode.h"
#include "engine/image/nn.h"

struct bert;

/* c: the model's tensors and its config.json. A classifier is loaded when the architecture is a
 * "...ForSequenceClassification". ERR_UNSUPPORTED names what is not known. */
int bert_open(struct bert **out, struct nn_weights *w, struct comp *c, struct err *e);
void bert_close(struct bert *m); /* NULL is fine; the weights are nn_weights' */
/* dim, n_label, n_tok_max, n_type, double_sep are filled. */
void bert_facts(const struct bert *m, struct eng_encoder_info *out);

int32_t bert_vocab(const struct bert *m);
int bert_width(const struct bert *m); /* of hidden states: dim above */

/* A batch as the run wants it: texts behind each other. */
struct bert_batch {
    int n;
    const int32_t *ids, *pos, *type; /* [start[n]] */
    const int32_t *start;            /* [n + 1] */
};
/* Hidden states of the last layer [start[n], width] into states (host), or, of a classifier, scores [n, n_label]. The
 * other one is NULL. */
void bert_run(struct bert *m, struct nn *n, const struct bert_batch *b, float *states,
              float *scores);
/* Rows of the position table for a text's n tokens. */
void bert_positions(const struct bert *m, const int32_t *ids, int32_t n, int32_t *pos);

#endif
