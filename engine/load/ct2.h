/* The weights file of CTranslate2 (model.bin, versions 5 and 6; little endian): u32 version, the name of the model's kind, u32
 * revision, u32 n; n variables of name, u8 rank, u32 dims[rank], u8 type, u32 bytes, data; u32 n; n pairs of another name and
 * a variable's name. A name is u16 length, its final NUL counted, and the bytes. Every count and size is checked before use.
 * Read-only after open: any thread. */
#ifndef ENGINE_LOAD_CT2_H
#define ENGINE_LOAD_CT2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

#define CT2_DIMS 5

enum ct2_dtype { CT2_F32, CT2_I8, CT2_I16, CT2_I32, CT2_F16, CT2_BF16 };
struct ct2_tensor {
    const char *name; /* in the file */
    int n_dim;
    int64_t dim[CT2_DIMS];
    enum ct2_dtype dtype;
    const void *data; /* any alignment */
    size_t bytes;
};

struct ct2;
/* Whether the file begins like one; its kind ("WhisperSpec") into kind [n] unless NULL. */
bool ct2_sniff(const char *path, char *kind, size_t n);
/* ERR_NOTFOUND, ERR_IO, ERR_PARSE, ERR_LIMIT, ERR_UNSUPPORTED (version, type): the text has the path. */
int ct2_open(struct ct2 **out, const char *path, struct err *e);
void ct2_close(struct ct2 *c); /* NULL is fine */
const char *ct2_kind(const struct ct2 *c);
size_t ct2_n_tensor(const struct ct2 *c); /* aliases included */
const struct ct2_tensor *ct2_tensor_at(const struct ct2 *c, size_t i);
bool ct2_is_alias(const struct ct2 *c, size_t i); /* another name of an earlier one */
const struct ct2_tensor *ct2_tensor_find(const struct ct2 *c, const char *name); /* or NULL */
/* 0, or ERR_IO when the file is no longer what it was at open. */
int ct2_check_file(const struct ct2 *c, struct err *e);

#endif
