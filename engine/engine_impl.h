/* Inside of the engine, shared by engine.c, layout.c and null.c. Engine thread only. */
#ifndef ENGINE_ENGINE_IMPL_H
#define ENGINE_ENGINE_IMPL_H

#include "engine/backend.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/models/model.h"

struct audio_model;
struct encode_model;
struct image_model;
struct null_device; /* scripted tokens instead of a model */

/* Everything that follows from options and file before a device is opened.
 *
 *   file --> model.hp --> weight_plan (points into file; slots in model)
 *                     \-> kv_desc, limits, memory                         */
struct layout {
    struct ckpt *file;
    struct model model; /* hp, arch, be, layer slots */
    struct weight_plan *weights;
    struct weight_table table;      /* that it was made from */
    struct kv_desc kv[MODEL_POOLS]; /* n_layer 0: no such pool */
    struct state_desc state;        /* n_slot 0: no recurrent states */
    struct eng_info info;
    struct eng_memory mem;
};

struct engine {
    struct layout l;
    struct weight_set *weights;
    struct batch
        batch[2]; /* ring: [turn] is the next step's, the other one that of the step before */
    int turn, n_open;
    float *logits; /* [max_logit_rows, n_vocab] copy with keep_logits, else NULL */
    int n_logit;   /* of the last step */
    struct null_device *null;
    struct image_model *image;   /* an image model: everything above but l.info is empty */
    struct encode_model *encode; /* an encoder: the same */
    struct audio_model *audio;   /* a speech model: the same */
    struct err failed;           /* code != 0: the device failed; sticky */
};

/* On failure l is empty. device "null" is refused: it has no layout. */
int eng__layout_open(struct layout *l, const struct eng_opts *o, struct err *e);
/* The file's model alone: hp, weight plan; no backend, no limits. notes: see ckpt.h; may be NULL. */
int eng__layout_describe(struct layout *l, const char *path, struct ckpt_notes *notes,
                         struct err *e);
void eng__layout_close(struct layout *l);
/* Limits of a step from options; ERR_INVAL names the option. */
int eng__limits_set(struct eng_info *info, const struct eng_opts *o, struct err *e);
/* Open the file or folder at o->path. */
int eng__file_open(struct ckpt **out, const struct eng_opts *o, struct err *e);

/* Opens the file for its vocabulary, fills info and mem, closes it. */
int eng__null_open(struct null_device **out, struct eng_info *info, struct eng_memory *mem,
                   const struct eng_opts *o, struct err *e);
void eng__null_close(struct null_device *n);
/* Answer every logit row of the batch. With a time for steps each is over at its eng__null_wait, oldest first. */
void eng__null_step(struct null_device *n, struct batch *b, int n_logit);
void eng__null_wait(struct null_device *n);

#endif
