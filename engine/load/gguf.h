/* GGUF files, versions 2 and 3 (ggml docs/gguf.md), mapped read-only. Owns the mapping; refuses any
 * file whose counts, lengths, types or offsets do not fit inside it, naming the key or tensor.
 * Every value handed out points into the mapping or the gguf's arena and lives as long as it.
 * Read-only after open: any thread.
 *
 * The mapping is MAP_PRIVATE: a later write to the file by somebody else may or may not show through,
 * and a later truncation turns the lost pages into SIGBUS on access. open refuses a file that changed
 * while it was parsed; gguf_check_file tells a caller that has just copied the weights out whether
 * what it copied can be trusted. What to do on SIGBUS is the process's choice, not this module's.
 * Replacing a model by rename(2) is always safe: the mapping keeps the old file alive. */
#ifndef ENGINE_LOAD_GGUF_H
#define ENGINE_LOAD_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/quant/quant.h"

struct gguf;

enum gguf_type { /* value types of the file format */
                 GGUF_U8 = 0,
                 GGUF_I8 = 1,
                 GGUF_U16 = 2,
                 GGUF_I16 = 3,
                 GGUF_U32 = 4,
                 GGUF_I32 = 5,
                 GGUF_F32 = 6,
                 GGUF_BOOL = 7,
                 GGUF_STRING = 8,
                 GGUF_ARRAY = 9,
                 GGUF_U64 = 10,
                 GGUF_I64 = 11,
                 GGUF_F64 = 12,
};

struct gguf_kv {
    struct view key;
    enum gguf_type type; /* GGUF_ARRAY: see elem */
    enum gguf_type
        elem;   /* element type of an array (never GGUF_ARRAY: nested arrays are refused) */
    uint64_t n; /* elements of an array, else 1 */
    const uint8_t *data; /* little-endian bytes, unaligned; strings as u64 length + bytes */
    const uint64_t *str; /* string arrays: offset of each element's length field from `data` */
};

struct gguf_tensor {
    struct view name;
    enum quant_fmt fmt;
    int n_dim;        /* 1..4 */
    int64_t dim[4];   /* dim[0] is the row length (contiguous); each >= 1; unused are 1 */
    const void *data; /* 8-aligned or better (the file's alignment) */
    size_t bytes;     /* of the whole tensor */
};

/* A model that llama.cpp's gguf-split has cut up is opened by its first file, ...-00001-of-0000N.gguf, the others beside
 * it; all tensors are then here. */
int gguf_open(struct gguf **out, const char *path, struct err *e);
void gguf_close(struct gguf *g); /* NULL is fine */

uint32_t gguf_version(const struct gguf *g);
size_t gguf_n_kv(const struct gguf *g);
const struct gguf_kv *gguf_kv_at(const struct gguf *g, size_t i);
const struct gguf_kv *gguf_kv_find(const struct gguf *g, const char *key); /* NULL if absent */
size_t gguf_n_tensor(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);
size_t gguf_file_bytes(const struct gguf *g);
/* 0, or ERR_IO when the file's size or modification time is no longer what it was at open. */
int gguf_check_file(const struct gguf *g, struct err *e);

/* Typed getters: 0, ERR_NOTFOUND (absent; *out untouched), or ERR_INVAL when the value has another
 * type or does not fit (text names the key). Any integer type converts when the value fits; f32 also
 * takes F64, and refuses NaN and infinities. */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e);
int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct err *e);
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *e);
int gguf_get_str(const struct gguf *g, const char *key, struct view *out, struct err *e);

/* Elements of an array value; i < kv->n. The caller has checked kv->elem: str needs GGUF_STRING, int
 * any integer type or GGUF_BOOL (a u64 over INT64_MAX gives INT64_MAX), f32 any number. */
struct view gguf_arr_str(const struct gguf_kv *kv, uint64_t i);
int64_t gguf_arr_int(const struct gguf_kv *kv, uint64_t i);
float gguf_arr_f32(const struct gguf_kv *kv, uint64_t i);

#endif
