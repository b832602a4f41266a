/* Marks of a model's own format within grammars: what its vocabulary has as control tokens must come as those. */
#include <string.h>

#include "api/structured.h"

gr_expr gram_mark(struct gr_builder *b, const struct api_model *m, const char *text)
{
    const struct tokenizer *t = m->text->tok;
    struct tok_ids ids = {0};
    gr_expr out = gr_empty(b);
    bool any = false;
    if (!text || !*text)
        return out;
    if (tok_encode(t, text, strlen(text), TOK_SPECIAL, &ids)) {
        tok_ids_free(&ids);
        return gr_fail(b, ERR_NOMEM, "no memory");
    }
    for (size_t i = 0; i < ids.n; i++)
        any |= tok_is_control(t, ids.id[i]);
    for (size_t i = 0; i < ids.n && any; i++) {
        struct view v = tok_bytes(t, ids.id[i], false);
        bool control = tok_is_control(t, ids.id[i]);
        out = gr_seq2(b, out, control ? gr_token(b, ids.id[i]) : gr_lit(b, v.p, v.len));
    }
    tok_ids_free(&ids);
    return any ? out : gr_str(b, text);
}

bool gram_mark_is_control(const struct api_model *m, const char *text)
{
    for (int i = 0; i < m->n_control; i++)
        if (m->control[i].len && strncmp(text, m->control[i].p, m->control[i].len) == 0)
            return true;
    return false;
}
