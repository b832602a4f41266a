/* Log-probabilities of a prompt's tokens: before the answer's (echo), or as a list of their own. Loop thread. */
#include <stdlib.h>
#include <string.h>

#include "api/gen.h"
#include "engine/base/mem.h"

int gen_prompt_mark(struct gen *g, int i, const struct sample_out *tok, bool first)
{
    struct gen_choice *ch = &g->choice[i];
    const struct tokenizer *t = g->m->text->tok;
    size_t before = ch->text.len;
    const char *echo = g->prompt[i / g->n].echo;
    struct view bos = tok_bytes(t, tok_bos(t), true);
    /* Markers that the client wrote are repeated; a bos that we added is not. */
    bool ours = first && tok->token == tok_bos(t) &&
                !(echo && bos.len && strncmp(echo, bos.p, bos.len) == 0);
    bool shown = ch->detok.special;
    ch->detok.special = !ours;
    detok_push(&ch->detok, tok->token, &ch->text);
    ch->detok.special = shown;
    ch->stop_from = ch->text.len;
    struct gen_mark m = {.start = before, .end = ch->text.len, .tok = *tok, .no_logprob = first};
    return ch->text.failed ? ERR_NOMEM : gen_mark_add(ch, m);
}

int gen_prompt_keep(struct gen_prompt *p, const struct sample_out *tok)
{
    if (!p->lp) { /* one for each token but the first */
        p->lp = mem_calloc((size_t)p->n_prompt, sizeof *p->lp);
        if (!p->lp)
            return ERR_NOMEM;
    }
    CHECK(p->n_lp + 1 < p->n_prompt);
    p->lp[p->n_lp++] = *tok;
    return 0;
}

static void put_one(struct buf *b, const struct gen *g, int32_t id, float lp, int32_t rank)
{
    struct view v = tok_bytes(g->m->text->tok, id, true);
    buf_fmt(b, "\"%d\":{\"logprob\":", id);
    gen_logprob(b, lp);
    buf_fmt(b, ",\"rank\":%d,\"decoded_token\":", rank);
    buf_json(b, v.p, v.len);
    buf_char(b, '}');
}

void gen_prompt_logprobs(struct buf *b, const struct gen *g, int i)
{
    const struct gen_prompt *p = &g->prompt[i];
    if (g->show_prompt < 0)
        return;
    GEN_PUT(b, ",\"prompt_logprobs\":[null");
    for (int32_t k = 0; k < p->n_lp; k++) {
        const struct sample_out *t = &p->lp[k];
        GEN_PUT(b, ",{");
        put_one(b, g, t->token, t->logprob, t->rank);
        for (int j = 0; j < t->n_top && j < g->show_prompt; j++) {
            if (t->top_id[j] == t->token)
                continue;
            buf_char(b, ',');
            put_one(b, g, t->top_id[j], t->top_logprob[j], j + 1);
        }
        buf_char(b, '}');
    }
    buf_char(b, ']');
}
