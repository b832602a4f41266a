/* SentencePiece unigram: the segmentation of a piece with the highest sum of scores (Viterbi over
 * characters; Kudo 2018). A character that no entry covers costs unk_score; neighbours of that kind
 * become one unknown token, or their bytes where the vocabulary has byte tokens. */
#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

struct row { /* best way to end at this byte */
    double score;
    uint32_t from; /* start of the last token; UINT32_MAX = not reached */
    int32_t id;    /* -1 = unknown */
};

/* Earlier starts win ties, as in the reference. */
static void relax(struct row *to, double score, size_t from, int32_t id)
{
    if (to->from != UINT32_MAX && score <= to->score)
        return;
    *to = (struct row){score, (uint32_t)from, id};
}

/* From each character start, every entry that begins there. */
static void forward(const struct tokenizer *t, const char *s, size_t n, struct row *row)
{
    for (size_t i = 0, len; i < n; i += len) {
        int w = utf8_len(s + i, n - i);
        len = w > 0 ? (size_t)w : 1;
        bool covered = false;
        uint32_t node = 0;
        for (size_t j = i; j < n; j++) {
            node = tok__trie_step(&t->trie, node, (uint8_t)s[j]);
            if (!node)
                break;
            int32_t id = t->trie.id[node];
            if (id < 0)
                continue;
            relax(&row[j + 1], row[i].score + (double)t->score[id], i, id);
            covered |= j + 1 - i == len;
        }
        if (!covered)
            relax(&row[i + len], row[i].score + t->unk_score, i, -1);
    }
}

/* Follow the rows back from n, leaving in row[].from the way forward: start -> end. */
static void reverse(struct row *row, size_t n)
{
    size_t end = n;
    uint32_t from = row[n].from;
    int32_t id = row[n].id;
    while (end > 0) {
        uint32_t next_from = row[from].from;
        int32_t next_id = row[from].id;
        row[from].from = (uint32_t)end;
        row[from].id = id;
        end = from;
        from = next_from;
        id = next_id;
    }
}

int tok__unigram_piece(struct tok_run *r, const char *s, size_t n)
{
    if (n + 1 > r->cap_best) {
        size_t bytes;
        void *p =
            ck_mul(n + 1, 2 * sizeof(struct row), &bytes) ? mem_realloc(r->best, bytes) : NULL;
        if (!p)
            return ERR_NOMEM;
        r->best = p;
        r->cap_best = 2 * (n + 1);
    }
    struct row *row = r->best;
    for (size_t i = 0; i <= n; i++)
        row[i] = (struct row){0, UINT32_MAX, -1};
    row[0].from = 0;
    forward(r->t, s, n, row);
    reverse(row, n);
    bool was_unk = false;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0;) {
        size_t end = row[i].from;
        if (row[i].id >= 0) {
            rc = tok_ids_add(r->out, row[i].id);
            was_unk = false;
        } else {
            rc = tok__emit_unknown(r, s + i, end - i, &was_unk);
        }
        i = end;
    }
    return rc;
}
