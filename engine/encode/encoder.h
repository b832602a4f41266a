/* What a family of encoders gives: opening over nn.h, its facts, and a run over a batch. Engine thread only. */
#ifndef ENGINE_ENCODE_ENCODER_H
#define ENGINE_ENCODE_ENCODER_H

#include "engine/encode.h"
#include "engine/nn/nn.h"

/* A batch as the run wants it: texts behind each other. */
struct encoder_batch {
    int n;
    const int32_t *ids, *pos, *type; /* [start[n]] */
    const int32_t *start;            /* [n + 1] */
};

struct encoder_ops {
    const char *const *types; /* config.json's "model_type"; NULL ends */
    /* Such a model is an encoder only where a pooling is said (N_Pooling, pooling_type): else it is something else's. */
    bool needs_pooling;
    /* c: the model's tensors and its config.json. A classifier is loaded when the architecture is a
     * "...ForSequenceClassification". ERR_UNSUPPORTED names what is not known. */
    int (*open)(void **out, struct nn_weights *w, struct comp *c, struct err *e);
    void (*close)(void *m); /* NULL is fine; the weights are nn_weights' */
    /* dim, n_label, n_tok_max, n_type, double_sep, raw_scores are filled; also the rows of the vocabulary and the width of
     * hidden states. */
    void (*facts)(const void *m, struct eng_encoder_info *out, int32_t *n_vocab, int *width);
    /* Rows of the position table (or positions) for a text's n tokens. */
    void (*positions)(const void *m, const int32_t *ids, int32_t n, int32_t *pos);
    /* Hidden states of the last layer [start[n], width] into states (host), or, of a classifier, scores [n, n_label]. The
     * other one is NULL. */
    void (*run)(void *m, struct nn *n, const struct encoder_batch *b, float *states, float *scores);
};
extern const struct encoder_ops encoder_bert, encoder_modernbert, encoder_lm, encoder_t5;

/* ---- pieces that families share (encoder.c) ---- */

/* hidden_act and the like. ERR_UNSUPPORTED. */
int encoder_act(const char *name, enum image_act *out, struct err *e);
/* A size that must be there. */
int encoder_need(struct config *c, const char *key, int max);
/* Labels of a classifier: num_labels, or the entries of id2label, or transformers' default; 0: no classifier. */
int encoder_labels(struct config *c);
/* Whether sentence-transformers takes a classifier's scores as they are. */
bool encoder_raw_scores(struct config *c);
/* Values of the host as a temporary. */
struct tensor encoder_put(struct nn *n, enum dtype d, int64_t rows, int64_t cols, const void *v);
/* x += *y, which is freed. */
void encoder_add(struct nn *n, struct tensor x, struct tensor *y);
/* Tables of the rotation of heads of 2 * half values, as float32 code of the reference computes them: cs[0] cosines,
 * cs[1] sines, [rows, half]. */
void encoder_rotation(struct nn *n, const struct encoder_batch *b, int half, float theta,
                      struct tensor cs[2]);

#endif
