/* An opened encoder model: files, weights, pooling. Private to engine/; engine thread only. */
#ifndef ENGINE_ENCODE_ENCODE_H
#define ENGINE_ENCODE_ENCODE_H

#include <stddef.h>

#include "engine/encode.h"
#include "engine/load/source.h"

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

#define ENCODE_MODULES_MAX 9 /* numbers in front of a module's folder */

struct config;
/* The family of the configuration's "model_type" in a folder (or file), or NULL: also of a decoder that nothing there
 * makes an encoder. */
const struct encoder_ops *encode__family(struct config *c, const char *path);
/* The folder's config.json; e may be NULL. */
int encode__config_open(struct config **out, const char *dir, struct err *e);
/* That, or what stands for it in a GGUF file. */
int encode__model_config(struct config **out, const char *path, struct err *e);

/* Pooling, longest text (0: not said), prompt. c: the model's configuration. ERR_UNSUPPORTED names a module that changes
 * vectors in a way that is not known here. */
int encode__files_read(const char *dir, struct config *c, struct eng_encoder_info *out,
                       struct err *e);

/* ---- dense.c: dense layers after the pooling, on the host ---- */

#define ENCODE_DENSE_MAX 4
struct encode_dense {
    int n_in, n_out;
    bool tanh;
    float *w, *b; /* [n_out, n_in]; [n_out] or NULL */
};
/* The N_Dense folders of dir, in order; the first takes dim values. Close the list also after an error. */
int encode__dense_open(struct encode_dense list[ENCODE_DENSE_MAX], int *n, const char *dir, int dim,
                       struct err *e);
void encode__dense_close(struct encode_dense *list, int n);
void encode__dense_run(const struct encode_dense *d, const float *x, float *y);

/* ---- gguf_enc.c ---- */

/* The configuration of an encoder's GGUF file, as config.json would have it; "pooling_mode" where the file says it.
 * ERR_UNSUPPORTED: of no encoder. */
int encode__gguf_config(struct config **out, const char *path, struct err *e);
/* source_map.find: transformers' names in such a file. */
int encode__gguf_find(const struct source_map *m, const char *want,
                      struct source_slice slice[SOURCE_SLICES]);

#endif
