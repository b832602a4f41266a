/* Which reader a model file needs, judged before one opens it. Any thread. */
#ifndef ENGINE_LOAD_KIND_H
#define ENGINE_LOAD_KIND_H

#include "engine/base/err.h"

/* 0 when the path is for gguf_open, which also reports paths that cannot be opened. A safetensors
 * file (by its first bytes, or its name when they are not GGUF's) is read to its last header entry:
 * what is wrong with it, or ERR_UNSUPPORTED: image models, which may be one, are not opened here. */
int model_file_gguf(const char *path, struct err *e);

#endif
