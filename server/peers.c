/* Connections counted by remote address: chained hash table under a random key. */
#include "server/peers.h"

#include <netinet/in.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"

#define BUCKETS 1024

struct peer {
    uint8_t addr[16];
    int n;
    struct peer *next;
};

struct peers {
    int limit;
    struct hash_key key;
    struct peer *bucket[BUCKETS];
};

struct peers *peers_new(int limit)
{
    struct peers *p = xcalloc(1, sizeof(*p));
    p->limit = limit;
    p->key = hash_key_random();
    return p;
}

void peers_free(struct peers *p)
{
    for (int i = 0; p && i < BUCKETS; i++)
        for (struct peer *q = p->bucket[i], *next; q; q = next) {
            next = q->next;
            free(q);
        }
    free(p);
}

/* false for addresses that are not counted. An IPv6 address counts by its /64: one host has the whole of it. */
static bool key_of(const struct sockaddr *a, uint8_t out[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    memset(out, 0, 16);
    if (a && a->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)a;
        memcpy(out, mapped, 12);
        memcpy(out + 12, &v4->sin_addr, 4);
        return out[12] != 127;
    }
    if (a && a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)a;
        memcpy(out, &v6->sin6_addr, 16);
        if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
            return out[12] != 127;
        if (IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr))
            return false;
        memset(out + 8, 0, 8);
        return true;
    }
    return false;
}

static struct peer **find(const struct peers *p, const uint8_t addr[16])
{
    struct peer **at = (struct peer **)&p->bucket[hash_bytes(p->key, addr, 16) % BUCKETS];
    while (*at && memcmp((*at)->addr, addr, 16) != 0)
        at = &(*at)->next;
    return at;
}

bool peers_allow(const struct peers *p, const struct sockaddr *a)
{
    uint8_t k[16];
    if (!p->limit || !key_of(a, k))
        return true;
    const struct peer *q = *find(p, k);
    return !q || q->n < p->limit;
}

void peers_add(struct peers *p, const struct sockaddr *a, struct peer_key *k)
{
    k->counted = p->limit && key_of(a, k->addr);
    if (!k->counted)
        return;
    struct peer **at = find(p, k->addr);
    if (!*at) {
        *at = mem_calloc(1, sizeof(**at));
        if (!*at) {
            k->counted = false;
            return;
        }
        memcpy((*at)->addr, k->addr, 16);
    }
    (*at)->n++;
}

void peers_del(struct peers *p, struct peer_key *k)
{
    if (!k->counted)
        return;
    k->counted = false;
    struct peer **at = find(p, k->addr), *q = *at;
    if (q && --q->n == 0) {
        *at = q->next;
        free(q);
    }
}
