/* Prompts in a chat template, encoded by a language model: what Qwen-Image and Z-Image do alike. Engine thread only. */
#ifndef ENGINE_IMAGE_LM_PROMPT_H
#define ENGINE_IMAGE_LM_PROMPT_H

#include "engine/image/encoders.h"

struct lm_prompt {
    const struct tokenizer *tok;
    struct lm_enc *lm;
    const char *before, *after; /* around the prompt's text */
    int skip;                   /* hidden layer, from the end */
    int drop;                   /* states of the template's first tokens that are left out */
    int tokens_max;             /* that are kept behind them; the rest is cut off */
};
/* Encoded texts; release with lm_prompt_free. */
struct lm_states {
    int32_t start[ENC_TEXTS + 1]; /* first state of every text */
    float *states;                /* [start[n], dim]; undefined after a dry run */
};
/* n_text prompts (1..ENC_TEXTS) in one run of the encoder. ERR_NOMEM; ERR_INVAL: a template of fewer tokens than are
 * dropped (another tokenizer than the model's). */
int lm_prompt_run(const struct lm_prompt *p, struct nn *n, const char *const *text, int n_text,
                  struct lm_states *out, struct err *e);
void lm_prompt_free(struct lm_states *s);

#endif
