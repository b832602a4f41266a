/* The tokenizer's public face: encode drives the pipeline of tok_impl.h, the rest are look-ups. */
#include "engine/text/tokenizer.h"

#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

int tok_ids_add(struct tok_ids *v, int32_t id)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 64, bytes;
        int32_t *p = ck_mul(cap, sizeof *p, &bytes) ? mem_realloc(v->id, bytes) : NULL;
        if (!p)
            return ERR_NOMEM;
        v->id = p;
        v->cap = cap;
    }
    v->id[v->n++] = id;
    return 0;
}

void tok_ids_free(struct tok_ids *v)
{
    free(v->id);
    *v = (struct tok_ids){0};
}

/* Normalise and cut one run of valid UTF-8. */
static int encode_valid(struct tok_run *r, const char *s, size_t n)
{
    const struct tokenizer *t = r->t;
    for (int i = 0; i < t->n_norm; i++) {
        struct buf *b = &r->text[i & 1];
        buf_clear(b);
        int rc = tok__norm_apply(&t->norm[i], s, n, r->first, b);
        if (rc != 0)
            return rc;
        s = buf_cstr(b);
        n = b->len;
    }
    return tok__split_text(r, 0, s, n);
}

/* The bytes of s that are no UTF-8 at its start: at least one. */
static size_t invalid_len(const char *s, size_t n)
{
    size_t k = 1;
    while (k < n && utf8_len(s + k, n - k) <= 0)
        k++;
    return k;
}

/* Bytes of well-formed UTF-8 at the start. */
static size_t valid_len(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        if ((uint8_t)s[i] < 0x80) {
            i++;
            continue;
        }
        int k = utf8_len(s + i, n - i);
        if (k <= 0)
            break;
        i += (size_t)k;
    }
    return i;
}

/* Text between special tokens. Runs of bytes that are no UTF-8 skip normalisation and splitting;
 * vocabularies without byte tokens see U+FFFD in their place. */
static int encode_text(struct tok_run *r, const char *s, size_t n)
{
    const struct tokenizer *t = r->t;
    bool bytes = t->kind == TOK_KIND_BPE || t->byte_fallback;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0;) {
        size_t k = valid_len(s + i, n - i);
        if (k) {
            rc = encode_valid(r, s + i, k);
        } else {
            k = invalid_len(s + i, n - i);
            if (!bytes)
                rc = encode_valid(r, "\xef\xbf\xbd", 3);
            else
                rc = t->kind == TOK_KIND_BPE ? tok__bpe_piece(r, s + i, k)
                                             : tok__unigram_piece(r, s + i, k);
        }
        i += k;
        r->first = false;
    }
    return rc;
}

/* Whether a letter or digit touches s[at..at+len): such a place is no match for single_word tokens. */
static bool word_neighbour(const char *s, size_t n, size_t at, size_t len)
{
    size_t k, i = at;
    while (i > 0 && i + 4 > at && ((uint8_t)s[--i] & 0xC0) == 0x80)
        ;
    if (at > 0 && utf8_len(s + i, n - i) > 0 && tok__is_word(tok__utf8_get(s + i, n - i, &k)))
        return true;
    i = at + len;
    return i < n && utf8_len(s + i, n - i) > 0 && tok__is_word(tok__utf8_get(s + i, n - i, &k));
}

/* Longest special token that starts at s[at] and ends at s[end] at most, or -1. User-defined entries are visible text and always
 * found; control tokens only with TOK_SPECIAL. The walk is bounded by the longest special token. */
static int32_t special_at(const struct tokenizer *t, struct view text, size_t at, size_t end,
                          unsigned flags, size_t *len)
{
    int32_t best = -1;
    uint32_t node = 0;
    for (size_t i = at; i < end; i++) {
        node = tok__trie_step(&t->special, node, (uint8_t)text.p[i]);
        if (!node)
            break;
        int32_t id = t->special.id[node];
        if (id < 0 || (t->type[id] != TOK_T_USER && !(flags & TOK_SPECIAL)))
            continue;
        if (t->strip && t->strip[id] & TOK_STRIP_WORD &&
            word_neighbour(text.p, text.len, at, i + 1 - at))
            continue;
        best = id;
        *len = i + 1 - at;
    }
    return best;
}

static bool ascii_space(char c)
{
    return tok__is_space((uint8_t)c) && (uint8_t)c < 0x80;
}

/* Cut the text at special tokens, leftmost first, and encode what lies between. */
static int encode_specials(struct tok_run *r, struct view text, unsigned flags,
                           struct tok_cuts cuts)
{
    const struct tokenizer *t = r->t;
    const char *s = text.p;
    size_t pos = 0, len = 0, n = text.len, cut = 0;
    for (size_t i = 0; i < n;) {
        while (cut < cuts.n && cuts.at[cut] <= i)
            cut++;
        size_t most = cut < cuts.n && cuts.at[cut] < n ? cuts.at[cut] : n;
        int32_t id =
            t->special.first[(uint8_t)s[i]] ? special_at(t, text, i, most, flags, &len) : -1;
        if (id < 0) {
            i++;
            continue;
        }
        size_t end = i, next = i + len;
        unsigned strip = t->strip ? t->strip[id] : 0;
        while (strip & TOK_STRIP_LEFT && end > pos && ascii_space(s[end - 1]))
            end--;
        while (strip & TOK_STRIP_RIGHT && next < n && ascii_space(s[next]))
            next++;
        int rc = encode_text(r, s + pos, end - pos);
        if (rc == 0)
            rc = tok_ids_add(r->out, id);
        if (rc != 0)
            return rc;
        r->first = t->control_restarts && t->type[id] == TOK_T_CONTROL;
        pos = i = next;
    }
    return encode_text(r, s + pos, n - pos);
}

int tok_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
               struct tok_ids *out)
{
    return tok_encode_cuts(t, (struct view){text, n}, flags, (struct tok_cuts){0}, out);
}

int tok_encode_cuts(const struct tokenizer *t, struct view text, unsigned flags,
                    struct tok_cuts cuts, struct tok_ids *out)
{
    size_t n = text.len;
    if (n > INT32_MAX / 4) /* symbol offsets are 32 bits, and normalisation may grow the text */
        return ERR_LIMIT;
    struct tok_run r = {.t = t, .out = out, .first = true};
    /* A character map may lengthen text without a bound of its own. */
    r.text[0].limit = r.text[1].limit = INT32_MAX;
    size_t n0 = out->n;
    int rc = 0;
    for (int i = 0; rc == 0 && flags & TOK_BOS_EOS && i < t->n_before; i++)
        rc = tok_ids_add(out, t->before[i]);
    if (rc == 0)
        rc = encode_specials(&r, text, flags, cuts);
    for (int i = 0; rc == 0 && flags & TOK_BOS_EOS && i < t->n_after; i++)
        rc = tok_ids_add(out, t->after[i]);
    if (rc != 0)
        out->n = n0;
    buf_free(&r.text[0]);
    buf_free(&r.text[1]);
    buf_free(&r.key);
    free(r.sym);
    free(r.heap);
    free(r.best);
    return rc;
}

int tok__pieces(const struct tokenizer *t, struct view text, struct buf *out)
{
    struct tok_run r = {.t = t, .pieces = out, .first = true};
    int rc = encode_text(&r, text.p, text.len);
    buf_free(&r.text[0]);
    buf_free(&r.text[1]);
    return rc ? rc : out->failed ? ERR_NOMEM : 0;
}

int32_t tok_n_vocab(const struct tokenizer *t)
{
    return t->n_vocab;
}

bool tok_is_control(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab &&
           (t->type[id] == TOK_T_CONTROL || t->type[id] == TOK_T_UNKNOWN);
}

struct view tok_bytes(const struct tokenizer *t, int32_t id, bool special)
{
    if (id < 0 || id >= t->n_vocab)
        return (struct view){"", 0};
    if (!special && tok_is_control(t, id) && !(t->show_unk && t->type[id] == TOK_T_UNKNOWN))
        return (struct view){"", 0};
    return t->piece[id];
}

struct view tok_entry(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab ? t->entry[id] : (struct view){"", 0};
}

int32_t tok_find(const struct tokenizer *t, const char *entry, size_t n)
{
    return tok__map_find(&t->map, entry, n);
}

int32_t tok_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tok_eos(const struct tokenizer *t)
{
    return t->eos;
}

int32_t tok_unk(const struct tokenizer *t)
{
    return t->unk;
}

bool tok_adds_bos(const struct tokenizer *t)
{
    return t->adds_bos;
}

const int32_t *tok_stop_ids(const struct tokenizer *t, int *n)
{
    *n = t->n_stop;
    return t->stop;
}
