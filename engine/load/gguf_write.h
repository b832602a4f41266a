/* Keys and values of a GGUF file that is to be written, in the file's own form. Errors are the buffer's: asked for once,
 * at the end (b.failed). */
#ifndef ENGINE_LOAD_GGUF_WRITE_H
#define ENGINE_LOAD_GGUF_WRITE_H

#include "engine/base/buf.h"
#include "engine/load/gguf.h"

struct gguf_kvs {
    struct buf b;
    uint64_t n;
};

void gguf_kvs_free(struct gguf_kvs *k); /* back to the zero state */
void gguf_put_u32(struct gguf_kvs *k, const char *key, uint32_t v);
void gguf_put_f32(struct gguf_kvs *k, const char *key, float v);
void gguf_put_bool(struct gguf_kvs *k, const char *key, bool v);
void gguf_put_str(struct gguf_kvs *k, const char *key, struct view v);
/* A list's head; its n elements are the caller's to append to k->b: gguf_put_text for strings. */
void gguf_put_list(struct gguf_kvs *k, const char *key, enum gguf_type elem, uint64_t n);
void gguf_put_text(struct buf *b, struct view v);
/* As another file has it. */
void gguf_put_copy(struct gguf_kvs *k, const struct gguf_kv *kv);

#endif
