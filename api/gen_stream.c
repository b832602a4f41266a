/* Choices of chat-like endpoints: token text goes through a stream, whose events become the answer's text (stop strings
 * are looked for in it alone), reasoning and calls. Loop thread. */
#include "api/gen.h"

/* Bring marks that lie in the text [from, from + n) of the stream to where it stands in the answer. Marks before it
 * that are still open were no text. */
static void place_marks(struct gen_choice *ch, size_t from, size_t n, size_t at)
{
    for (size_t k = ch->mark_open; k < ch->n_mark; k++) {
        struct gen_mark *m = &ch->mark[k];
        if (m->raw_start >= from + n)
            break;
        if (m->raw_end < from || (m->raw_end == from && m->raw_start < from)) {
            m->hidden = m->start == SIZE_MAX;
            if (m->hidden)
                m->start = m->end = at;
            ch->mark_open = k + 1;
            continue;
        }
        if (m->start == SIZE_MAX)
            m->start = at + (m->raw_start > from ? m->raw_start - from : 0);
        m->end = at + (m->raw_end < from + n ? m->raw_end - from : n);
        if (m->raw_end <= from + n)
            ch->mark_open = k + 1;
    }
}

static void on_text(struct gen *g, struct gen_choice *ch, const struct stream_event *ev)
{
    size_t before = ch->text.len;
    buf_add(&ch->text, ev->text.p, ev->text.len);
    if (ch->text.failed) {
        ch->sink.nomem = true;
        return;
    }
    place_marks(ch, ev->from, ev->text.len, before);
    if (ch->n_out <= g->min_tokens)
        ch->stop_from = ch->text.len;
    else
        ch->sink.stopped = gen_stopped(g, ch, before);
}

static void on_event(void *ctx, const struct stream_event *ev)
{
    struct gen_sink *k = ctx;
    struct gen_choice *ch = &k->g->choice[k->i];
    if (k->stopped || k->nomem)
        return;
    if (ev->kind == STREAM_TEXT) {
        on_text(k->g, ch, ev);
        return;
    }
    if (stream_fold_add(&ch->fold, ev)) {
        k->nomem = true;
        return;
    }
    /* Text before it comes out first; no stop string lies across it. */
    ch->stop_from = ch->text.len;
    gen_emit(k->c, k->g, k->i, ch->text.len, false);
    if (k->g->live)
        k->g->w->event(k->c, k->g, k->i, ev);
}

int gen_stream_open(struct api_call *c, struct gen *g, int i)
{
    struct gen_choice *ch = &g->choice[i];
    struct stream_opts o = g->parse;
    ch->sink = (struct gen_sink){.c = c, .g = g, .i = i};
    o.event = on_event;
    o.ctx = &ch->sink;
    o.id_seed += (uint64_t)i;
    return stream_open(&ch->stream, &o);
}

int gen_stream_token(struct gen *g, struct gen_choice *ch, const struct sample_out *tok)
{
    const struct tokenizer *t = g->m->text->tok;
    bool thinking = stream_thinking(ch->stream);
    struct buf *piece = &g->piece;
    buf_clear(piece);
    if (g->skip_special && tok_is_control(t, tok->token)) {
        struct view v = tok_bytes(t, tok->token, true);
        ch->detok.special = stream_wants(ch->stream, v.p, v.len);
    } else {
        ch->detok.special = !g->skip_special;
    }
    detok_push(&ch->detok, tok->token, piece);
    int rc = piece->failed ? ERR_NOMEM : 0;
    if (g->n_top >= 0 && gen_mark_add(ch, (struct gen_mark){.start = SIZE_MAX,
                                                            .end = SIZE_MAX,
                                                            .raw_start = ch->raw,
                                                            .raw_end = ch->raw + piece->len,
                                                            .tok = *tok}))
        rc = ERR_NOMEM;
    ch->raw += piece->len;
    if (!rc && piece->len)
        rc = stream_push(ch->stream, piece->p, piece->len);
    ch->n_reasoning += thinking;
    return rc || ch->sink.nomem ? ERR_NOMEM : 0;
}

int gen_stream_finish(struct gen *g, struct gen_choice *ch)
{
    struct buf piece = {0};
    (void)g;
    detok_flush(&ch->detok, &piece);
    int rc = piece.failed ? ERR_NOMEM : 0;
    if (ch->n_mark && ch->mark[ch->n_mark - 1].start == SIZE_MAX)
        ch->mark[ch->n_mark - 1].raw_end += piece.len;
    if (!rc && piece.len)
        rc = stream_push(ch->stream, piece.p, piece.len);
    if (!rc)
        rc = stream_finish(ch->stream);
    for (size_t k = ch->mark_open; k < ch->n_mark; k++) {
        struct gen_mark *m = &ch->mark[k];
        m->hidden = m->start == SIZE_MAX && m->raw_start < m->raw_end;
        if (m->start == SIZE_MAX)
            m->start = m->end = ch->text.len;
    }
    buf_free(&piece);
    return rc || ch->sink.nomem ? ERR_NOMEM : 0;
}
