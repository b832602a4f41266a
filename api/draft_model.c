/* Whether a draft model speaks the tokens of a served one. Main thread, at the start. */
#include <string.h>

#include "api/api_impl.h"

static bool same(struct view a, struct view b)
{
    return a.len == b.len && (!a.len || memcmp(a.p, b.p, a.len) == 0);
}

int api_model_same_tokens(struct api *a, int model, const char *path, struct err *e)
{
    struct text_model *small = NULL;
    int rc = text_model_open(&small, path, e);
    if (rc)
        return rc;
    const struct tokenizer *t = small->tok,
                           *u = a->model[model].text ? a->model[model].text->tok : NULL;
    if (!t || !u)
        rc = err_set(e, ERR_INVAL, "draft-model: the model '%s' has no tokens to draft",
                     a->model[model].name);
    /* Vocabularies of one family differ in how far they are padded. */
    int32_t n = rc ? 0 : tok_n_vocab(t) < tok_n_vocab(u) ? tok_n_vocab(t) : tok_n_vocab(u);
    for (int32_t i = 0; !rc && i < n; i++)
        if (!same(tok_bytes(t, i, true), tok_bytes(u, i, true)))
            rc = err_set(e, ERR_INVAL,
                         "draft-model: it has other tokens than '%s': number %d differs",
                         a->model[model].name, i);
    text_model_close(small);
    return rc;
}
