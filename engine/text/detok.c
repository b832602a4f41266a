/* Ids to text: one id at a time (detok_*) and all at once (tok_decode); the second is the first in a
 * loop, so they cannot differ. */
#include "engine/text/detok.h"

#include "engine/text/tok_impl.h"

void detok_init(struct detok *d, const struct tokenizer *t, bool special)
{
    *d = (struct detok){.tok = t, .special = special};
}

/* U+FFFD for n bytes that are no text, under the vocabulary's own rule. */
static void put_bad(const struct detok *d, int n, struct buf *out)
{
    for (int i = 0; i < (d->tok->fffd_per_byte ? n : 1) && n > 0; i++)
        buf_str(out, "\xef\xbf\xbd");
}

/* One byte more; whole characters leave, a byte that cannot continue them sends U+FFFD ahead. */
static void put_byte(struct detok *d, uint8_t b, struct buf *out)
{
    d->hold[d->n_hold++] = b;
    int k = utf8_len((const char *)d->hold, (size_t)d->n_hold);
    if (k == 0 && d->n_hold > 1) {
        put_bad(d, d->n_hold - 1, out);
        d->hold[0] = b;
        d->n_hold = 1;
        k = utf8_len((const char *)d->hold, 1);
    }
    if (k < 0)
        return;
    if (k == 0)
        put_bad(d, 1, out);
    else
        buf_add(out, d->hold, (size_t)d->n_hold);
    d->n_hold = 0;
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    struct view v = tok_bytes(d->tok, id, d->special);
    if (v.len == 0)
        return;
    if (!d->started && d->tok->strip_first && v.p[0] == ' ' && d->tok->type[id] != TOK_T_UNKNOWN) {
        v.p++;
        v.len--;
    }
    d->started = true;
    if (d->n_hold == 0 && utf8_valid(v.p, v.len)) {
        buf_add(out, v.p, v.len);
        return;
    }
    for (size_t i = 0; i < v.len; i++)
        put_byte(d, (uint8_t)v.p[i], out);
}

void detok_flush(struct detok *d, struct buf *out)
{
    put_bad(d, d->n_hold, out);
    d->n_hold = 0;
}

int tok_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool special,
               struct buf *out)
{
    struct detok d;
    detok_init(&d, t, special);
    for (size_t i = 0; i < n; i++)
        detok_push(&d, ids[i], out);
    detok_flush(&d, out);
    return out->failed ? out->limit ? ERR_LIMIT : ERR_NOMEM : 0;
}
