/* Log-probabilities of tokens as chat writes them. See gen.h. */
#include "api/gen.h"

/* A token's members, without the closing brace. */
static void put_token(struct buf *b, const struct gen *g, int32_t id, float lp, bool bytes)
{
    struct view raw = tok_bytes(g->m->text->tok, id, true);
    buf_str(b, "{\"token\":");
    buf_json(b, raw.p, raw.len);
    buf_str(b, ",\"logprob\":");
    gen_logprob(b, lp);
    if (!bytes)
        return;
    buf_str(b, ",\"bytes\":[");
    for (size_t i = 0; i < raw.len; i++) {
        if (i)
            buf_char(b, ',');
        gen_int(b, (unsigned char)raw.p[i]);
    }
    buf_char(b, ']');
}

void gen_logprobs(struct buf *b, const struct gen *g, const struct gen_choice *ch, size_t from,
                  size_t to, bool bytes)
{
    bool first = true;
    buf_char(b, '[');
    for (size_t k = from; g->n_top >= 0 && k < to; k++) {
        const struct sample_out *t = &ch->mark[k].tok;
        if (ch->mark[k].hidden)
            continue;
        if (!first)
            buf_char(b, ',');
        first = false;
        put_token(b, g, t->token, t->logprob, bytes);
        buf_str(b, ",\"top_logprobs\":[");
        for (int j = 0; j < t->n_top && j < g->n_top; j++) {
            if (j)
                buf_char(b, ',');
            put_token(b, g, t->top_id[j], t->top_logprob[j], bytes);
            buf_char(b, '}');
        }
        buf_str(b, "]}");
    }
    buf_char(b, ']');
}
