/* Byte pair encoding of one piece: GPT-2's bytes, or characters with byte fallback (SentencePiece).
 *
 * Short pieces: scan for the best pair, merge, repeat. Long ones (a prompt without a split can be a
 * megabyte): a linked list of symbols and a heap of candidate pairs, O(n log n). Both take the lowest
 * key and, among equals, the leftmost pair. A candidate is stale when one of its symbols has changed;
 * symbols only grow or die, so the sum of both lengths tells. */
#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

#define NO_PAIR UINT32_MAX

/* Room for n elements of `size` at *p. */
static int reserve(void *p, size_t *cap, size_t n, size_t size)
{
    void **slot = p;
    if (n <= *cap)
        return 0;
    size_t want = *cap * 2 > n ? *cap * 2 : n, bytes;
    void *q = ck_mul(want, size, &bytes) ? mem_realloc(*slot, bytes) : NULL;
    if (!q)
        return ERR_NOMEM;
    *slot = q;
    *cap = want;
    return 0;
}

/* Higher scores merge first: order-preserving map of the float, inverted. */
static uint32_t score_key(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return ~(u & 0x80000000u ? ~u : u | 0x80000000u);
}

/* Merge of neighbours a, b of piece s: false when there is none. */
static bool pair_find(const struct tokenizer *t, const char *s, const struct bpe_sym *a,
                      const struct bpe_sym *b, uint32_t *key, int32_t *id)
{
    if (t->order == TOK_BY_MERGES) {
        const struct tok_pair *p =
            a->id < 0 || b->id < 0 ? NULL : tok__pairs_find(&t->pairs, a->id, b->id);
        if (!p)
            return false;
        *key = p->rank;
        *id = p->id;
        return true;
    }
    size_t len = (size_t)a->len + b->len;
    if (len > t->max_entry)
        return false;
    int32_t k = tok__map_find(&t->map, s + a->at, len);
    if (k < 0 ||
        (t->type[k] != TOK_T_NORMAL && t->type[k] != TOK_T_USER && t->type[k] != TOK_T_UNUSED))
        return false;
    *key = t->order == TOK_BY_SCORE ? score_key(t->score[k]) : (uint32_t)k;
    *id = k;
    return true;
}

/* ---- short pieces ---- */

static size_t merge_small(const struct tokenizer *t, const char *s, struct bpe_sym *y, size_t n)
{
    uint32_t key[TOK_SMALL_BPE];
    int32_t id[TOK_SMALL_BPE];
    for (size_t i = 0; i + 1 < n; i++)
        if (!pair_find(t, s, &y[i], &y[i + 1], &key[i], &id[i]))
            key[i] = NO_PAIR;
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (key[i] < key[best])
                best = i;
        if (key[best] == NO_PAIR)
            break;
        y[best].len += y[best + 1].len;
        y[best].id = id[best];
        size_t tail = n - best - 2;
        memmove(&y[best + 1], &y[best + 2], tail * sizeof *y);
        if (tail) {
            memmove(&key[best], &key[best + 1], tail * sizeof *key);
            memmove(&id[best], &id[best + 1], tail * sizeof *id);
        }
        n--;
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++)
            if (!pair_find(t, s, &y[i], &y[i + 1], &key[i], &id[i]))
                key[i] = NO_PAIR;
    }
    return n;
}

/* ---- long pieces ---- */

static bool before(const struct bpe_cand *a, const struct bpe_cand *b)
{
    return a->key != b->key ? a->key < b->key : a->left < b->left;
}

static void sift_down(struct bpe_cand *h, size_t n, size_t i)
{
    struct bpe_cand x = h[i];
    for (size_t k; (k = 2 * i + 1) < n; i = k) {
        if (k + 1 < n && before(&h[k + 1], &h[k]))
            k++;
        if (!before(&h[k], &x))
            break;
        h[i] = h[k];
    }
    h[i] = x;
}

/* Candidate for the pair that starts at `left`, if there is one. `sift` keeps the heap in order;
 * without it the caller builds the heap afterwards in O(n). */
static int cand_push(struct tok_run *r, const char *s, int32_t left, bool sift)
{
    if (left < 0 || r->sym[left].next < 0)
        return 0;
    const struct bpe_sym *a = &r->sym[left], *b = &r->sym[a->next];
    struct bpe_cand c = {.left = left, .len = a->len + b->len};
    if (!pair_find(r->t, s, a, b, &c.key, &c.id))
        return 0;
    if (reserve(&r->heap, &r->cap_heap, r->n_heap + 1, sizeof *r->heap) != 0)
        return ERR_NOMEM;
    size_t i = r->n_heap++;
    for (; sift && i && before(&c, &r->heap[(i - 1) / 2]); i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = c;
    return 0;
}

/* Merge all n symbols of r->sym; dead ones are left with len 0. */
static int merge_large(struct tok_run *r, const char *s, size_t n)
{
    r->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        r->sym[i].prev = (int32_t)i - 1;
        r->sym[i].next = i + 1 < n ? (int32_t)(i + 1) : -1;
    }
    for (size_t i = 0; i < n; i++)
        if (cand_push(r, s, (int32_t)i, false) != 0)
            return ERR_NOMEM;
    for (size_t i = r->n_heap / 2; i-- > 0;)
        sift_down(r->heap, r->n_heap, i);
    while (r->n_heap) {
        struct bpe_cand c = r->heap[0];
        r->heap[0] = r->heap[--r->n_heap];
        if (r->n_heap)
            sift_down(r->heap, r->n_heap, 0);
        struct bpe_sym *a = &r->sym[c.left];
        if (a->len == 0 || a->next < 0 || a->len + r->sym[a->next].len != c.len)
            continue;
        struct bpe_sym *b = &r->sym[a->next];
        a->len = c.len;
        a->id = c.id;
        a->next = b->next;
        b->len = 0; /* dead */
        if (a->next >= 0)
            r->sym[a->next].prev = c.left;
        if (cand_push(r, s, a->prev, true) != 0 || cand_push(r, s, c.left, true) != 0)
            return ERR_NOMEM;
    }
    return 0;
}

/* ---- symbols in, ids out ---- */

static int32_t char_id(const struct tokenizer *t, struct tok_run *r, const char *s, size_t n,
                       bool last)
{
    int32_t id;
    if (last && t->word_end.len) {
        buf_clear(&r->key);
        buf_add(&r->key, s, n);
        buf_add(&r->key, t->word_end.p, t->word_end.len);
        id = r->key.failed ? -1 : tok__map_find(&t->map, r->key.p, r->key.len);
    } else {
        id = tok__map_find(&t->map, s, n);
    }
    bool text = id >= 0 && (t->type[id] == TOK_T_NORMAL || t->type[id] == TOK_T_USER ||
                            t->type[id] == TOK_T_UNUSED);
    return text ? id : -1;
}

/* First symbols of a piece: its bytes, or its characters (a byte that is no UTF-8 counts as one). */
static int symbols_fill(struct tok_run *r, const char *s, size_t n, size_t *out)
{
    const struct tokenizer *t = r->t;
    if (reserve(&r->sym, &r->cap_sym, n, sizeof *r->sym) != 0)
        return ERR_NOMEM;
    size_t k = 0;
    for (size_t i = 0, len; i < n; i += len, k++) {
        len = 1;
        int32_t id;
        if (t->byte_level || t->raw_entries) {
            id = i + 1 == n && t->word_end.len ? t->byte_end_id[(uint8_t)s[i]]
                                               : t->byte_id[(uint8_t)s[i]];
        } else {
            int w = utf8_len(s + i, n - i);
            len = w > 0 ? (size_t)w : 1;
            id = char_id(t, r, s + i, len, i + len == n);
        }
        r->sym[k] = (struct bpe_sym){.id = id, .at = (uint32_t)i, .len = (uint32_t)len};
    }
    *out = k;
    return 0;
}

int tok__emit_unknown(struct tok_run *r, const char *s, size_t n, bool *was_unk)
{
    const struct tokenizer *t = r->t;
    bool all = t->byte_fallback && n > 0;
    for (size_t i = 0; all && i < n; i++)
        all = t->byte_id[(uint8_t)s[i]] >= 0;
    if (all) {
        *was_unk = false;
        for (size_t i = 0; i < n; i++)
            if (tok_ids_add(r->out, t->byte_id[(uint8_t)s[i]]) != 0)
                return ERR_NOMEM;
        return 0;
    }
    bool skip = t->unk < 0 || (*was_unk && t->fuse_unk);
    *was_unk = true;
    return skip ? 0 : tok_ids_add(r->out, t->unk);
}

/* The id of a piece that the vocabulary holds as a whole, or -1. */
static int32_t whole_id(struct tok_run *r, const char *s, size_t n)
{
    const struct tokenizer *t = r->t;
    if (!t->whole_piece) {
        if (!t->whole_newline)
            return -1;
        for (size_t i = 0; i < n; i++)
            if (s[i] != '\n')
                return -1;
    }
    if (!t->byte_level || t->raw_entries)
        return n <= t->max_entry ? char_id(t, r, s, n, true) : -1;
    if (n > t->max_entry)
        return -1;
    buf_clear(&r->key);
    for (size_t i = 0; i < n; i++) {
        char b[4];
        buf_add(&r->key, b, tok__utf8_put(b, tok__byte_letter((uint8_t)s[i])));
    }
    buf_add(&r->key, t->word_end.p, t->word_end.len);
    int32_t id = r->key.failed ? -1 : tok__map_find(&t->map, r->key.p, r->key.len);
    return id >= 0 && t->type[id] == TOK_T_NORMAL ? id : -1;
}

int tok__bpe_piece(struct tok_run *r, const char *s, size_t n)
{
    int32_t whole = whole_id(r, s, n);
    if (whole >= 0)
        return tok_ids_add(r->out, whole);
    size_t k = 0;
    int rc = symbols_fill(r, s, n, &k);
    if (rc != 0)
        return rc;
    if (k <= TOK_SMALL_BPE)
        k = merge_small(r->t, s, r->sym, k);
    else
        rc = merge_large(r, s, k);
    bool was_unk = false;
    for (size_t i = 0; i < k && rc == 0; i++) {
        const struct bpe_sym *y = &r->sym[i];
        if (y->len == 0)
            continue;
        if (y->id >= 0) {
            rc = tok_ids_add(r->out, y->id);
            was_unk = false;
        } else {
            rc = tok__emit_unknown(r, s + y->at, y->len, &was_unk);
        }
    }
    return rc;
}
