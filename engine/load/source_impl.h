/* Private to source*.c. */
#ifndef ENGINE_LOAD_SOURCE_IMPL_H
#define ENGINE_LOAD_SOURCE_IMPL_H

#include "engine/base/arena.h"
#include "engine/load/ct2.h"
#include "engine/load/gguf.h"
#include "engine/load/safetensors.h"
#include "engine/load/source.h"

/* One opened file: exactly one of st, gguf and ct2 is set. */
struct source_file {
    char *path; /* of the arena */
    struct safetensors *st;
    struct gguf *gguf;
    struct ct2 *ct2;
};

struct source_meta { /* a text of a GGUF file's metadata, with the terminator that the file lacks */
    const char *key, *text;
};

struct source {
    struct arena arena; /* texts */
    char *path;         /* as given to source_open */
    bool parts;         /* source_open_parts */
    struct source_file *file;
    size_t n_file;
    struct source_tensor *tensor; /* by name */
    size_t n_tensor;
    struct source_meta *meta; /* of the arena */
    size_t n_meta;
};

/* The files that stand for path, opened into s (source_files.c). */
int source__files(struct source *s, struct err *e);
/* Open one more file into s; `s->file` has room. */
int source__file(struct source *s, const char *path, struct err *e);
/* Copy the texts of a GGUF file's metadata. */
int source__meta(struct source *s, const struct gguf *g, struct err *e);
/* The tensors of all files into s->tensor, sorted (source_tensors.c). */
int source__tensors(struct source *s, struct err *e);
/* Set e to "no memory". */
int source__nomem(const struct source *s, struct err *e);

#endif
