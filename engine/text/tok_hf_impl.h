/* Between tok_hf.c and tok_hf_steps.c. */
#ifndef ENGINE_TEXT_TOK_HF_IMPL_H
#define ENGINE_TEXT_TOK_HF_IMPL_H

#include <jansson.h>

#include "engine/text/tok_impl.h"

struct view hf__str(const json_t *o, const char *key);              /* "" when absent */
int hf__keep(struct tokenizer *t, struct view v, struct view *out); /* 0 or ERR_NOMEM */
bool hf__uses(const json_t *step, const char *type);                /* itself or in its Sequence */
/* normalizer, pre_tokenizer, decoder and post_processor of the file. */
int hf__steps(struct tokenizer *t, const json_t *root, struct err *e);

#endif
