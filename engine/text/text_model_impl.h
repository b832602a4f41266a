/* Between text_model.c and text_model_hf.c. */
#ifndef ENGINE_TEXT_TEXT_MODEL_IMPL_H
#define ENGINE_TEXT_TEXT_MODEL_IMPL_H

#include "engine/text/text_model.h"

/* Replace *out by a terminated copy. 0 or ERR_NOMEM. */
int text__copy(char **out, struct view v);
/* bos_token .. pad_token from the tokenizer's ids (pad: -1 = none). 0 or ERR_NOMEM. */
int text__token_texts(struct text_model *m, int32_t pad);
struct gguf;
/* m->fim from the keys of a GGUF file (NULL: none) and from names that entries of the vocabulary have. An id outside of the
 * vocabulary is an error. */
int text__find_fim(struct text_model *m, const struct gguf *g, struct err *e);
/* Fill m from a Hugging Face folder; on failure the caller closes m. */
int text__open_hf(struct text_model *m, const char *dir, struct err *e);

#endif
