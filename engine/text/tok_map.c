/* Hash tables of the tokenizer: entry texts, merge pairs, byte tries. The keys of all three come from
 * the model's file and are fixed after open, so a client can only look up, never insert: an unkeyed
 * mix is enough. Sizes are powers of two, load at most 1/2. */
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/text/tok_impl.h"

/* Eight bytes a step; the tail and the length go into the last mix. */
static uint32_t text_hash(const char *p, size_t n)
{
    uint64_t h = n * 0x9E3779B97F4A7C15u;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xBF58476D1CE4E5B9u;
        h ^= h >> 29;
    }
    uint64_t tail = 0;
    for (size_t i = 0; i < n; i++)
        tail |= (uint64_t)(uint8_t)p[i] << (8 * i);
    return (uint32_t)hash_u64(h ^ tail);
}

/* Slots for n keys, or 0 when that is no size. */
static size_t table_size(size_t n)
{
    size_t s = 16;
    while (s / 2 < n) {
        if (s > SIZE_MAX / 64)
            return 0;
        s *= 2;
    }
    return s;
}

int tok__map_init(struct tok_map *m, const struct view *key, size_t n)
{
    size_t size = table_size(n), bytes;
    *m = (struct tok_map){0};
    if (!size || !ck_mul(size, sizeof *m->slot, &bytes) || !(m->slot = mem_alloc(bytes)))
        return ERR_NOMEM;
    memset(m->slot, 0xFF, bytes); /* id -1 everywhere */
    m->mask = size - 1;
    m->key = key;
    return 0;
}

void tok__map_free(struct tok_map *m)
{
    free(m->slot);
    *m = (struct tok_map){0};
}

void tok__map_add(struct tok_map *m, int32_t id)
{
    struct view k = m->key[id];
    uint32_t h = text_hash(k.p, k.len);
    size_t i = h & m->mask;
    for (; m->slot[i].id >= 0; i = (i + 1) & m->mask)
        if (m->slot[i].hash == h && view_eq(m->key[m->slot[i].id], k))
            return;
    m->slot[i] = (struct tok_slot){h, id};
}

int32_t tok__map_find(const struct tok_map *m, const char *p, size_t n)
{
    if (!m->slot)
        return -1;
    uint32_t h = text_hash(p, n);
    for (size_t i = h & m->mask; m->slot[i].id >= 0; i = (i + 1) & m->mask) {
        if (m->slot[i].hash != h)
            continue;
        struct view k = m->key[m->slot[i].id];
        if (k.len == n && memcmp(k.p, p, n) == 0)
            return m->slot[i].id;
    }
    return -1;
}

int tok__pairs_init(struct tok_pairs *p, size_t n)
{
    size_t size = table_size(n);
    *p = (struct tok_pairs){0};
    if (!size || !(p->slot = mem_calloc(size, sizeof *p->slot)))
        return ERR_NOMEM;
    p->mask = size - 1;
    return 0;
}

void tok__pairs_free(struct tok_pairs *p)
{
    free(p->slot);
    *p = (struct tok_pairs){0};
}

/* Never 0, which marks a free slot. */
static uint64_t pair_key(int32_t l, int32_t r)
{
    return ((uint64_t)(uint32_t)l << 32 | (uint32_t)r) + 1;
}

void tok__pairs_add(struct tok_pairs *p, int32_t l, int32_t r, uint32_t rank, int32_t id)
{
    uint64_t key = pair_key(l, r);
    size_t i = hash_u64(key) & p->mask;
    for (; p->slot[i].key; i = (i + 1) & p->mask)
        if (p->slot[i].key == key)
            return; /* the earlier merge has the better rank */
    p->slot[i] = (struct tok_pair){key, rank, id};
}

const struct tok_pair *tok__pairs_find(const struct tok_pairs *p, int32_t l, int32_t r)
{
    if (!p->slot)
        return NULL;
    uint64_t key = pair_key(l, r);
    for (size_t i = hash_u64(key) & p->mask; p->slot[i].key; i = (i + 1) & p->mask)
        if (p->slot[i].key == key)
            return &p->slot[i];
    return NULL;
}

/* Room for one more edge and one more node. */
static int trie_grow(struct tok_trie *t)
{
    if (t->n_node + 1 >= t->cap_node) {
        uint32_t cap = t->cap_node ? t->cap_node * 2 : 256;
        size_t bytes;
        int32_t *id;
        if (cap >= 1u << 28 || !ck_mul(cap, sizeof *id, &bytes) ||
            !(id = mem_realloc(t->id, bytes)))
            return ERR_NOMEM;
        t->id = id;
        t->cap_node = cap;
        if (t->n_node == 0)
            t->id[t->n_node++] = -1;
    }
    if (t->edge && t->n_edge * 2 < t->mask)
        return 0;
    size_t size = t->edge ? (t->mask + 1) * 2 : 256;
    uint64_t *edge = mem_calloc(size, sizeof *edge);
    if (!edge)
        return ERR_NOMEM;
    for (size_t i = 0; t->edge && i <= t->mask; i++) {
        if (!t->edge[i])
            continue;
        size_t k = hash_u64(t->edge[i] >> 28) & (size - 1);
        while (edge[k])
            k = (k + 1) & (size - 1);
        edge[k] = t->edge[i];
    }
    free(t->edge);
    t->edge = edge;
    t->mask = size - 1;
    return 0;
}

uint32_t tok__trie_step(const struct tok_trie *t, uint32_t node, uint8_t byte)
{
    if (!t->edge)
        return 0;
    uint64_t key = (uint64_t)node << 8 | byte;
    for (size_t i = hash_u64(key) & t->mask; t->edge[i]; i = (i + 1) & t->mask)
        if (t->edge[i] >> 28 == key)
            return (uint32_t)(t->edge[i] & ((1u << 28) - 1));
    return 0;
}

int tok__trie_add(struct tok_trie *t, const char *p, size_t n, int32_t id)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)p[i];
        uint32_t next = tok__trie_step(t, node, b);
        if (!next) {
            if (trie_grow(t) != 0)
                return ERR_NOMEM;
            next = t->n_node++;
            t->id[next] = -1;
            uint64_t key = (uint64_t)node << 8 | b;
            size_t k = hash_u64(key) & t->mask;
            while (t->edge[k])
                k = (k + 1) & t->mask;
            t->edge[k] = key << 28 | next;
            t->n_edge++;
            if (node == 0)
                t->first[b] = true;
        }
        node = next;
    }
    if (node && t->id[node] < 0)
        t->id[node] = id;
    return 0;
}

void tok__trie_free(struct tok_trie *t)
{
    free(t->edge);
    free(t->id);
    *t = (struct tok_trie){0};
}

uint32_t tok__trie_walk(const struct tok_trie *t, const char *p, size_t n)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++)
        if (!(node = tok__trie_step(t, node, (uint8_t)p[i])))
            return UINT32_MAX;
    return node;
}
