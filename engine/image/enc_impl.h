/* What the text encoders share; engine/image/{enc,clip,t5,lm_enc}.c only. */
#ifndef ENGINE_IMAGE_ENC_IMPL_H
#define ENGINE_IMAGE_ENC_IMPL_H

#include "engine/image/encoders.h"

#define ENC_LAYERS_MAX 256

/* A configuration whose keys may lie in an object of it ("text_config."). */
struct enc_cfg {
    struct config *c;
    const char *at; /* "" or the object's name with a dot */
};
/* Keys are looked for in `object` where that has `probe`, else at the top. */
struct enc_cfg enc__cfg(struct config *c, const char *object, const char *probe);
/* As config_*; a key without default (`need`) must be there. */
int enc__cfg_need(struct enc_cfg g, const char *key, int min, int max);
int enc__cfg_int(struct enc_cfg g, const char *key, int def, int min, int max);
double enc__cfg_num(struct enc_cfg g, const char *key, double def, double min, double max);
const char *enc__cfg_str(struct enc_cfg g, const char *key, const char *def);
bool enc__cfg_bool(struct enc_cfg g, const char *key, bool def);

/* The first of the prefixes with which the component has the tensor `name`; the last of them, if none. */
const char *enc__prefix(const struct nn_load *l, const char *const *prefix, int n,
                        const char *name);
/* "hidden activation of transformers" by its name; ERR_UNSUPPORTED names the key's value. */
int enc__act(const char *name, enum image_act *out, struct err *e);

/* The end of opening the component: rc, with the component's name before the error's text. */
int enc__opened(const struct comp *c, int rc, struct err *e);

/* ---- runs ---- */

/* The run's error, if it has none yet. `what` is static text. */
void enc__fail(struct nn *n, int rc, const char *what);
/* Whether b is well formed: 1..ENC_TEXTS prompts of 1..len_max ids in [0, n_vocab); else the run has failed. In a dry
 * run ids may be NULL. Then the layout 0 is the prompts' rows; b->start stays in use until the run ends. */
bool enc__begin(struct nn *n, const struct enc_batch *b, int64_t n_vocab, int len_max);
static inline int64_t enc__rows(const struct enc_batch *b)
{
    return b->start[b->n];
}
/* Ids of the longest prompt. */
int enc__longest(const struct enc_batch *b);
/* x [rows, n_in] of the table's rows; with `pos` also that table's row of each position. */
struct tensor enc__embed(struct nn *n, const struct enc_batch *b, const struct nn_linear *tok,
                         const struct nn_linear *pos);
/* New f32 [rows, d] = rms norm of x += *add; frees *add. */
struct tensor enc__rms(struct nn *n, struct tensor x, struct tensor *add, struct tensor w,
                       float eps, enum dtype to);
/* x += *y; frees *y. */
void enc__add(struct nn *n, struct tensor x, struct tensor *y);

/* T5's bucket of the distance key - query. Half of the buckets are for keys behind the query, half for those before it;
 * of each half the first half holds one distance each, the rest grow logarithmically up to max_distance (Raffel et al.
 * 2020, 2.1). n_bucket is a multiple of 4. */
int enc__t5_bucket(int n_bucket, int max_distance, int distance);

#endif
