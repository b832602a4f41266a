/* Prompts in a chat template. See lm_prompt.h. */
#include "engine/image/lm_prompt.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Ids of all texts behind each other, each cut at its limit. The text may name special tokens: the reference hands
 * template and prompt to its tokenizer as one string. */
static int ids_make(const struct lm_prompt *p, const char *const *text, int n_text,
                    struct tok_ids *ids, int32_t *start, struct err *e)
{
    struct buf b = {0};
    int rc = 0;
    start[0] = 0;
    for (int i = 0; i < n_text && !rc; i++) {
        buf_clear(&b);
        buf_str(&b, p->before);
        buf_str(&b, text[i]);
        buf_str(&b, p->after);
        rc = b.failed ? ERR_NOMEM : tok_encode(p->tok, b.p, b.len, TOK_SPECIAL, ids);
        size_t most = (size_t)start[i] + (size_t)p->drop + (size_t)p->tokens_max;
        if (ids->n > most)
            ids->n = most;
        start[i + 1] = (int32_t)ids->n;
        if (rc)
            err_set(e, rc, "the prompt can't be tokenized: %s", err_name(rc));
        else if (start[i + 1] - start[i] <= p->drop)
            rc = err_set(e, ERR_INVAL, "the prompt's template has %d tokens, expected over %d",
                         start[i + 1] - start[i], p->drop);
    }
    buf_free(&b);
    return rc;
}

int lm_prompt_run(const struct lm_prompt *p, struct nn *n, const char *const *text, int n_text,
                  struct lm_states *out, struct err *e)
{
    struct tok_ids ids = {0};
    int32_t start[ENC_TEXTS + 1];
    size_t dim = (size_t)lm_enc_dim(p->lm), bytes;
    *out = (struct lm_states){0};
    CHECK(n_text > 0 && n_text <= ENC_TEXTS);
    int rc = ids_make(p, text, n_text, &ids, start, e);
    if (!rc && ck_mul(ids.n, dim * sizeof(float), &bytes))
        out->states = mem_alloc(bytes);
    if (!rc && !out->states)
        rc = err_set(e, ERR_NOMEM, "no memory for %zu states of prompts", ids.n);
    if (!rc) {
        struct enc_batch b = {.n = n_text, .ids = ids.id, .start = start};
        lm_enc_run(p->lm, n, &b, p->skip, out->states);
    }
    for (int i = 0; i < n_text && !rc; i++) { /* close the gaps of what is dropped */
        size_t from = (size_t)start[i] + (size_t)p->drop, keep = (size_t)start[i + 1] - from;
        out->start[i + 1] = out->start[i] + (int32_t)keep;
        if (!n->dry && !n->rc)
            memmove(out->states + (size_t)out->start[i] * dim, out->states + from * dim,
                    keep * dim * sizeof(float));
    }
    tok_ids_free(&ids);
    if (rc)
        lm_prompt_free(out);
    return rc;
}

void lm_prompt_free(struct lm_states *s)
{
    free(s->states);
    s->states = NULL;
}
