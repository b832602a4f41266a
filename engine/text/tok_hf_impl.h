/* Between tok_hf.c, tok_hf_steps.c and tok_files.c. */
#ifndef ENGINE_TEXT_TOK_HF_IMPL_H
#define ENGINE_TEXT_TOK_HF_IMPL_H

#include <jansson.h>

#include "engine/text/tok_impl.h"

/* A JSON file that may hold numbers of any length (model_max_length: 1e30 in digits): all are reals then. NULL: *e. */
json_t *hf__load(const char *path, json_error_t *e);
struct view hf__str(const json_t *o, const char *key);              /* "" when absent */
int hf__keep(struct tokenizer *t, struct view v, struct view *out); /* 0 or ERR_NOMEM */
bool hf__uses(const json_t *step, const char *type);                /* itself or in its Sequence */
/* normalizer, pre_tokenizer, decoder and post_processor of the file. */
int hf__steps(struct tokenizer *t, const json_t *root, struct err *e);
/* A tokenizer from the tree of a tokenizer.json and that of a tokenizer_config.json (may be NULL). */
int hf__open(struct tokenizer **out, json_t *root, const json_t *cfg, struct err *e);

#endif
