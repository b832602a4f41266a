/* Private to whisper*.c. */
#ifndef ENGINE_AUDIO_WHISPER_IMPL_H
#define ENGINE_AUDIO_WHISPER_IMPL_H

#include "engine/audio/whisper.h"

struct wh_layer {
    struct nn_norm norm, norm_cross, norm_ff;
    struct nn_linear qkv, out;               /* self-attention: q, k, v stacked */
    struct nn_linear q_cross, kv, out_cross; /* of the decoder: kv reads the encoder's states */
    struct nn_linear fc1, fc2;
};

struct whisper {
    struct whisper_dims dim;
    struct nn_linear conv1, conv2_before, conv2; /* see encode.c */
    struct tensor pos_sound;                     /* f32 [n_sound, d] */
    struct wh_layer *enc, *dec;
    struct nn_norm enc_norm, dec_norm;
    struct nn_linear tok, pos, head; /* head.w is tok.w where they are tied */

    const struct backend *be;
    struct dev *dev;
    struct dev_kv *kv;
    int n_slot, blk_text, blk_sound; /* blocks of a slot */
    /* Two descriptions of a step's rows, one for each kind of attention; valid until the next step. */
    struct step_meta self, cross;
    int32_t *ints;      /* what they point to */
    int32_t *zero;      /* [WHISPER_ROWS] */
    const char *failed; /* of the load */
};

/* x += y; y is freed. */
void wh__add(struct nn *n, struct tensor x, struct tensor *y);
/* x += fc2(act(fc1(norm(x)))) */
void wh__feed_forward(struct nn *n, const struct whisper *m, const struct wh_layer *y,
                      struct tensor x);
#define WH_EPS 1e-5f

#endif
