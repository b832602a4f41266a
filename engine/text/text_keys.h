/* A folder's tokenizer and chat template as the keys of a GGUF file. */
#ifndef ENGINE_TEXT_TEXT_KEYS_H
#define ENGINE_TEXT_TEXT_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"

struct gguf_kvs;

/* Appends tokenizer.ggml.*, tokenizer.chat_template and general.name; n_vocab: rows of the embedding, up to which places
 * without a token are filled. *have false: the folder has no tokenizer, nothing is appended. ERR_UNSUPPORTED names a
 * tokenizer that such keys can't say. */
int text_keys_write(struct gguf_kvs *k, const char *dir, int64_t n_vocab, bool *have,
                    struct err *e);
/* Whether the file's tokenizer makes of texts what the folder's makes, and ends answers where that does. 0, or
 * ERR_UNSUPPORTED with the difference. */
int text_keys_check(const char *dir, const char *file, struct err *e);

#endif
