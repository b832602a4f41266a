/* Whisper's two networks (Radford et al. 2022) over nn.h and the paged attention of ops.h. The encoder of one window
 * leaves the keys and values that the decoder looks at in the window's slot; the decoder runs rows of several slots in
 * one step. Weights under transformers' names. Engine thread only.
 *
 *   KV pool, layers of the decoder:  slot 0 {text blocks, sound blocks} | slot 1 {...} | ...   (block 0 is the null one) */
#ifndef ENGINE_AUDIO_WHISPER_H
#define ENGINE_AUDIO_WHISPER_H

#include "engine/nn/nn.h"

#define WHISPER_ROWS 2048 /* decoder rows of a step */

struct whisper_dims {
    int d, n_mel, n_vocab;
    int n_sound, n_text; /* positions of encoder and decoder */
    int enc_layer, enc_head, enc_ff;
    int dec_layer, dec_head, dec_ff;
    enum image_act act;
};

struct whisper;
int whisper_open(struct whisper **out, struct nn_weights *w, struct comp *c, struct err *e);
void whisper_close(struct whisper *m); /* NULL is fine; before the device closes */
const struct whisper_dims *whisper_dims(const struct whisper *m);

/* The pool of n_slot slots. dev NULL: nothing is opened. */
size_t whisper_slot_bytes(const struct whisper *m, const struct backend *be, enum dtype d);
int whisper_slots_open(struct whisper *m, const struct nn *n, enum dtype d, int n_slot,
                       struct err *e);

/* mel [2 * n_sound, n_mel] (host). states: NULL, or [n_sound, d] of the last layer (host). In a dry run pointers may be
 * NULL. */
void whisper_encode(struct whisper *m, struct nn *n, const float *mel, int slot, float *states);

struct whisper_row {
    int slot;
    const int32_t *tok; /* [n_tok] at positions pos .. */
    int n_tok, pos;
    int n_logit; /* the last rows' logits are wanted */
};
/* Queries of cross-attention, for alignment: q[layer] is NULL or gets [rows of the step, d] (host). */
struct whisper_tap {
    float *const *q; /* [dec_layer] */
};
/* logits [sum of n_logit, n_vocab] (host). At most WHISPER_ROWS rows in all. */
void whisper_decode(struct whisper *m, struct nn *n, const struct whisper_row *row, int n_row,
                    float *logits, const struct whisper_tap *tap);
/* Keys of cross-attention of one layer again, from the encoder's states: k [n_sound, d] (host). */
void whisper_keys(struct whisper *m, struct nn *n, const float *states, int layer, float *k);

#endif
