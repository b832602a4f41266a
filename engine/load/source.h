/* Named tensors, whatever files they lie in: one safetensors file, the shards of a folder, a GGUF file, CTranslate2's
 * model.bin. Owns the
 * mappings. Names are as in the files; who wants other names asks through a source_map. Read-only after open: any
 * thread. */
#ifndef ENGINE_LOAD_SOURCE_H
#define ENGINE_LOAD_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/quant/quant.h"

struct gguf;

#define SOURCE_DIMS 5

enum source_kind {
    SOURCE_QUANT, /* `fmt` says how: f32, f16, bf16 and ggml's block formats */
    SOURCE_F8_E4M3,
    SOURCE_F8_E5M2,
    SOURCE_F64,
    SOURCE_INT, /* integers: no weight */
};
struct source_tensor {
    const char *name; /* in the file; NUL-terminated */
    enum source_kind kind;
    enum quant_fmt fmt;
    int n_dim;                /* 0..5 */
    int64_t dim[SOURCE_DIMS]; /* outermost first, as PyTorch has it (GGUF's order turned round) */
    const void *data;         /* any alignment */
    size_t bytes;
    float
        scale; /* of SOURCE_F8_*: a value is code times this (a "scale_weight" beside it); else 1 */
};

struct source;
/* path: a .safetensors or .gguf file (judged by content), or a folder: its model.safetensors.index.json /
 * diffusion_pytorch_model.safetensors.index.json with all the shards it names, else its one .safetensors file
 * (model.safetensors, diffusion_pytorch_model.safetensors preferred; a ".fp16." variant where there is no other), else
 * its one .gguf, else its model.bin if that is CTranslate2's. ERR_NOTFOUND, ERR_PARSE, ERR_INVAL name file and tensor (a tensor in two shards; one that the index
 * puts where it is not). */
int source_open(struct source **out, const char *path, struct err *e);
/* The same for who puts quantised matrices together (hfq.h): factors of fp8 weights are tensors like the others. */
int source_open_parts(struct source **out, const char *path, struct err *e);
void source_close(struct source *s); /* NULL is fine */
const char *source_path(const struct source *s);
size_t source_n(const struct source *s);
const struct source_tensor *source_at(const struct source *s, size_t i); /* by name's bytes */
const struct source_tensor *source_find(const struct source *s, const char *name); /* or NULL */
/* Any tensor whose name begins so. */
bool source_has_prefix(const struct source *s, const char *prefix);
/* The GGUF file behind it: its typed metadata; NULL for safetensors. */
const struct gguf *source_gguf(const struct source *s);
/* A text of the file's metadata (safetensors' __metadata__, GGUF string keys); NULL if absent. */
const char *source_meta(const struct source *s, const char *key);
size_t source_bytes(const struct source *s); /* of all tensors */
/* 0, or ERR_IO when a file is no longer what it was at open. */
int source_check_files(const struct source *s, struct err *e);
/* The pages of [data, data + bytes) are not needed any more (they come back from the file when touched). */
void source_drop(const struct source *s, const void *data, size_t bytes);

/* n values of a tensor from element `from` (both multiples of the block in a block format) as f32. */
int source_decode(const struct source_tensor *t, int64_t from, int64_t n, float *dst);

/* ---- other names for a file's tensors ---- */

#define SOURCE_SLICES 4
/* A wanted tensor as rows of file tensors, one behind the other along dimension 0. */
struct source_slice {
    char name[160];
    int part,
        n_part; /* from the part-th of n_part equal pieces of dimension 0; n_part 1: all of it */
    int n_take; /* as many of them; 0 counts as 1 */
};
struct source_map {
    /* The slices that make up the tensor `want`: their number, 0 for "no other name: look it up as it is", -1 when the
     * files have no such tensor. arg: of the map. */
    int (*find)(const struct source_map *m, const char *want,
                struct source_slice slice[SOURCE_SLICES]);
    const struct source *src;
    const char *prefix; /* put before every name ("model.diffusion_model."); NULL = "" */
    const void *arg;
};

#endif
