/* Hash tables of a tokenizer: entry texts, merge pairs, byte tries. Read-only after open. */
#ifndef ENGINE_TEXT_TOK_TABLES_H
#define ENGINE_TEXT_TOK_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

/* Entry text -> id, open addressing; the texts stay with the tokenizer. */
struct tok_map {
    struct tok_slot {
        uint32_t hash;
        int32_t id; /* -1 = free */
    } * slot;
    size_t mask;
    const struct view *key; /* [n_vocab], by id */
};
int tok__map_init(struct tok_map *m, const struct view *key, size_t n); /* 0 or ERR_NOMEM */
void tok__map_free(struct tok_map *m);
/* The first id added for equal texts wins. */
void tok__map_add(struct tok_map *m, int32_t id);
int32_t tok__map_find(const struct tok_map *m, const char *p, size_t n);

/* (left id, right id) -> merge rank and merged id. */
struct tok_pairs {
    struct tok_pair {
        uint64_t key; /* left << 32 | right, plus 1; 0 = free */
        uint32_t rank;
        int32_t id;
    } * slot;
    size_t mask;
};
int tok__pairs_init(struct tok_pairs *p, size_t n);
void tok__pairs_free(struct tok_pairs *p);
void tok__pairs_add(struct tok_pairs *p, int32_t l, int32_t r, uint32_t rank, int32_t id);
const struct tok_pair *tok__pairs_find(const struct tok_pairs *p, int32_t l, int32_t r);

/* Byte trie; edges in one hash table: node << 36 | byte << 28 | child, 0 = free. Node 0 is the root. */
struct tok_trie {
    uint64_t *edge;
    size_t mask, n_edge;
    int32_t *id; /* [n_node] entry that ends at the node, or -1 */
    uint32_t n_node, cap_node;
    bool first[256]; /* bytes that leave the root */
};
int tok__trie_add(struct tok_trie *t, const char *p, size_t n, int32_t id); /* 0 or ERR_NOMEM */
void tok__trie_free(struct tok_trie *t);
uint32_t tok__trie_step(const struct tok_trie *t, uint32_t node, uint8_t byte); /* 0 = no edge */
/* Node at the end of the text, or UINT32_MAX. */
uint32_t tok__trie_walk(const struct tok_trie *t, const char *p, size_t n);

#endif
