/* WordPiece (BERT): greedy longest entries of a word; the first carries the word-start prefix, the
 * others the continuation prefix ("##", or the other way round in GGUF files). A word with a part that
 * no entry covers, or longer than max_word characters, is one unknown token. */
#include "engine/text/tok_impl.h"

int tok__wordpiece_piece(struct tok_run *r, const char *s, size_t n)
{
    const struct tokenizer *t = r->t;
    size_t n0 = r->out->n;
    int chars = 0;
    for (size_t i = 0; i < n && chars <= t->max_word; i++)
        chars += ((uint8_t)s[i] & 0xC0) != 0x80;
    bool bad = chars > t->max_word;
    for (size_t i = 0; i < n && !bad;) {
        uint32_t node = i == 0 ? t->node_start : t->node_cont;
        size_t best = 0;
        int32_t id = -1;
        for (size_t j = i; j < n && node != UINT32_MAX; j++) {
            node = tok__trie_step(&t->trie, node, (uint8_t)s[j]);
            if (!node)
                break;
            if (t->trie.id[node] >= 0) {
                best = j + 1 - i;
                id = t->trie.id[node];
            }
        }
        bad = best == 0;
        if (!bad && tok_ids_add(r->out, id) != 0)
            return ERR_NOMEM;
        i += best;
    }
    if (!bad)
        return 0;
    r->out->n = n0;
    return t->unk >= 0 ? tok_ids_add(r->out, t->unk) : 0;
}
