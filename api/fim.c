/* See fim.h. */
#include "api/fim.h"

#include <string.h>

int fim_check(struct api_call *c, const struct gen *g, const char *param)
{
    if (g->m->text->fim.prefix >= 0)
        return 0;
    return api__bad(c, param, "unsupported_value",
                    "'%s' is not supported: the model '%s' has no tokens to fill a hole in a text.",
                    param, g->m->name);
}

static int add_text(const struct gen *g, struct view v, struct tok_ids *out)
{
    return tok_encode(g->m->text->tok, v.p ? v.p : "", v.len, 0, out);
}

/* A text in the middle of a line: vocabularies that put a space before every text have to leave it out here. They spell a
 * line break as a token that joins with nothing, so the text is what follows such a one. */
static int add_middle(const struct gen *g, struct view v, struct tok_ids *out)
{
    const struct tokenizer *t = g->m->text->tok;
    struct tok_ids plain = {0}, head = {0}, both = {0};
    struct buf b = {0};
    int rc = add_text(g, v, &plain);
    const struct tok_ids *use = &plain;
    size_t from = 0, len = 0;
    for (size_t i = 0; i < plain.n; i++)
        len += tok_bytes(t, plain.id[i], false).len;
    if (!rc && v.len && len == v.len + 1) {
        buf_char(&b, '\n');
        buf_add(&b, v.p, v.len);
        rc = b.failed ? ERR_NOMEM : add_text(g, (struct view){b.p, 1}, &head);
        rc = rc ? rc : add_text(g, (struct view){b.p, b.len}, &both);
        if (!rc && both.n > head.n && !memcmp(both.id, head.id, head.n * sizeof *head.id)) {
            use = &both;
            from = head.n;
        }
    }
    for (size_t i = from; !rc && i < use->n; i++)
        rc = tok_ids_add(out, use->id[i]);
    buf_free(&b);
    tok_ids_free(&plain);
    tok_ids_free(&head);
    tok_ids_free(&both);
    return rc;
}

/* Other files first, as such models saw repositories; without tokens for it, as plain text. */
static int add_files(const struct gen *g, const struct fim *f, struct tok_ids *out)
{
    const struct text_fim *t = &g->m->text->fim;
    bool named = t->repo >= 0 && t->file >= 0;
    int rc = 0;
    if (f->n_file && named) {
        rc = tok_ids_add(out, t->repo);
        rc = rc ? rc : add_text(g, view_str("repository\n"), out);
    }
    for (size_t i = 0; !rc && i < f->n_file; i++) {
        struct buf b = {0};
        if (named) {
            rc = tok_ids_add(out, t->file);
            buf_add(&b, f->file[i].name.p, f->file[i].name.len);
            buf_char(&b, '\n');
        }
        buf_add(&b, f->file[i].text.p, f->file[i].text.len);
        rc = rc ? rc : b.failed ? ERR_NOMEM : add_text(g, (struct view){b.p, b.len}, out);
        buf_free(&b);
    }
    if (!rc && f->n_file && named) {
        rc = tok_ids_add(out, t->file);
        rc = rc ? rc : add_text(g, view_str("filename\n"), out);
    }
    return rc;
}

static int add_prefix(const struct gen *g, const struct fim *f, struct tok_ids *out)
{
    const struct tok_ids *ids = f->prefix_ids;
    int rc = tok_ids_add(out, g->m->text->fim.prefix);
    if (!ids)
        return rc ? rc : add_text(g, f->prefix, out);
    int32_t bos = tok_bos(g->m->text->tok);
    for (size_t i = 0; !rc && i < ids->n; i++)
        if (i || bos < 0 || ids->id[0] != bos) /* it stands before all */
            rc = tok_ids_add(out, ids->id[i]);
    return rc;
}

static int add_suffix(const struct gen *g, const struct fim *f, struct tok_ids *out)
{
    int rc = tok_ids_add(out, g->m->text->fim.suffix);
    return rc ? rc : add_middle(g, f->suffix, out);
}

int fim_encode(struct api_call *c, const struct gen *g, const struct fim *f, struct tok_ids *out)
{
    const struct text_fim *t = &g->m->text->fim;
    const struct tokenizer *tok = g->m->text->tok;
    const struct tok_ids *ids = f->prefix_ids;
    int32_t bos = tok_bos(tok);
    bool begin = ids ? ids->n && bos >= 0 && ids->id[0] == bos : f->special && tok_adds_bos(tok);
    int rc = begin ? tok_ids_add(out, bos) : 0;
    rc = rc ? rc : add_files(g, f, out);
    rc = rc ? rc : t->suffix_first ? add_suffix(g, f, out) : add_prefix(g, f, out);
    rc = rc ? rc : t->suffix_first ? add_prefix(g, f, out) : add_suffix(g, f, out);
    if (!rc && t->middle >= 0)
        rc = tok_ids_add(out, t->middle);
    if (!rc && f->start.len)
        rc = add_middle(g, f->start, out);
    if (rc == ERR_NOMEM)
        return api__nomem(c);
    return rc ? api__bad(c, g->prompt_param, "invalid_value",
                         "Invalid '%s': it could not be tokenised.", g->prompt_param)
              : 0;
}

void fim_stops(struct gen *g)
{
    const struct text_fim *t = &g->m->text->fim;
    const struct tokenizer *tok = g->m->text->tok;
    const int32_t ids[] = {t->pad,
                           t->repo,
                           t->file,
                           t->prefix,
                           t->suffix,
                           t->middle,
                           tok_find(tok, "\xe2\x96\x81<EOT>", 8), /* CodeLlama's */
                           tok_find(tok, "<|file_separator|>", 18) /* CodeGemma's */};
    for (size_t i = 0; !g->ignore_eos && i < sizeof ids / sizeof *ids; i++)
        if (ids[i] >= 0 && g->n_stop_id < REQ_STOP_MAX)
            g->stop_id[g->n_stop_id++] = ids[i];
}
