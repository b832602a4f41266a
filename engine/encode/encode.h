/* An opened encoder model: files, weights, pooling. Private to engine/; engine thread only. */
#ifndef ENGINE_ENCODE_ENCODE_H
#define ENGINE_ENCODE_ENCODE_H

#include <stddef.h>

#include "engine/encode.h"

struct encode_model;
struct eng_opts;
struct eng_info;
struct eng_memory;

/* info gets what an engine tells of itself (backend, weights, encoder). */
int encode_model_open(struct encode_model **out, const struct eng_opts *o, struct eng_info *info,
                      struct err *e);
void encode_model_close(struct encode_model *m); /* NULL is fine */
int encode_model_plan(const struct eng_opts *o, struct eng_memory *out, struct err *e);
int encode_model_run(struct encode_model *m, const struct eng_encode_row *rows, int n,
                     struct err *e);

/* ---- files.c: kinds of models, what sentence-transformers keeps beside a model ---- */

/* The family of a config.json's "model_type", or NULL. */
const struct encoder_ops *encode__family(const char *model_type);
/* The folder's config.json; e may be NULL. */
struct config;
int encode__config_open(struct config **out, const char *dir, struct err *e);

/* Pooling, longest text (0: not said), prompt. ERR_UNSUPPORTED names a module that changes vectors in a way
 * that is not known here. */
int encode__files_read(const char *dir, struct eng_encoder_info *out, struct err *e);

#endif
