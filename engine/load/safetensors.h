/* Safetensors files (format of the safetensors library, version 0.6), mapped read-only: u64 length,
 * JSON header, data. Refuses any file whose header does not describe its data exactly: every tensor's
 * bytes are its shape times its dtype, ranges neither overlap nor leave holes, and they end where the
 * file ends. Errors name the tensor. Values handed out live as long as the file is open. Read-only
 * after open: any thread.
 *
 * What a later change of the file by somebody else means is told in map.h. */
#ifndef ENGINE_LOAD_SAFETENSORS_H
#define ENGINE_LOAD_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

#define ST_DIMS_MAX 8

struct safetensors;

/* In the order of the table in safetensors.c. */
enum st_dtype {
    ST_BOOL,
    ST_F4,
    ST_F6_E2M3,
    ST_F6_E3M2,
    ST_U8,
    ST_I8,
    ST_F8_E5M2,
    ST_F8_E4M3,
    ST_F8_E8M0,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_C64,
    ST_F64,
    ST_I64,
    ST_U64,
    ST_N_DTYPE
};

struct st_tensor {
    struct view name; /* may be empty; UTF-8, no NUL; terminated */
    enum st_dtype dtype;
    int n_dim;                /* 0 (one element) to ST_DIMS_MAX */
    int64_t dim[ST_DIMS_MAX]; /* outermost first, dim[n_dim - 1] is contiguous; 0 is allowed */
    const uint8_t *data;      /* as aligned as the file left it: read with memcpy */
    size_t bytes;             /* 0 when a dimension is 0 */
};

/* Also ERR_UNSUPPORTED for a dtype, or more dimensions, than this build knows; ERR_LIMIT for a header
 * over 100,000,000 bytes, the limit of the format's own library. */
int safetensors_open(struct safetensors **out, const char *path, struct err *e);
void safetensors_close(struct safetensors *s); /* NULL is fine */

size_t safetensors_n_tensor(const struct safetensors *s);
/* In order of their names' bytes. */
const struct st_tensor *safetensors_tensor_at(const struct safetensors *s, size_t i);
const struct st_tensor *safetensors_tensor_find(const struct safetensors *s, const char *name);
/* A text of __metadata__; NULL if absent. */
const char *safetensors_meta(const struct safetensors *s, const char *key);
size_t safetensors_file_bytes(const struct safetensors *s);
/* 0, or ERR_IO when the file is no longer what it was at open. */
int safetensors_check_file(const struct safetensors *s, struct err *e);

const char *st_dtype_name(enum st_dtype t); /* "BF16" */
int st_dtype_bits(enum st_dtype t);         /* of one element */

/* Whether n bytes from a file's start can be a safetensors file: a length, then '{'. */
bool safetensors_sniff(const uint8_t *p, size_t n);

#endif
