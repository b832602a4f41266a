/* What the command line asks about model files, and does to them, without serving: see server/inspect.c, quantize.c. Any
 * thread. */
#ifndef ENGINE_TOOLS_H
#define ENGINE_TOOLS_H

#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

/* What is in a GGUF file, a safetensors file or a folder of them: metadata, tensors with shapes, types and bytes, sums by
 * type; as text or as one JSON object. Errors of opening name the file. */
int tools_inspect(const char *path, bool json, struct buf *out, struct err *e);

/* Names of the types that tools_quantize takes, in one line. */
void tools_quantize_types(struct buf *out);
/* One line a tensor; may be NULL. */
typedef void tools_progress_fn(void *arg, int i, int n, const char *line);
/* Writes `out` (over an older one, when all is well) as `in`, a GGUF file or a language model's folder, with its matrices in
 * another type. Vectors, routers and the like stay as they are; a matrix whose rows are no whole blocks takes the next
 * larger type that fits. ERR_INVAL: no such type, or in and out are one file; ERR_UNSUPPORTED: neither, or a folder that a
 * GGUF file can't say (by name); ERR_IO. */
int tools_quantize(const char *in, const char *out, const char *type, tools_progress_fn *progress,
                   void *arg, struct err *e);

#endif
