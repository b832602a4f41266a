/* See hash.h. */
#include "engine/base/hash.h"
#include "engine/base/err.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

void random_bytes(void *p, size_t n)
{
    char *at = p;
    while (n) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        CHECK(got > 0);
        at += got;
        n -= (size_t)got;
    }
}

struct hash_key hash_key_random(void)
{
    struct hash_key k;
    random_bytes(&k, sizeof k);
    return k;
}

static inline uint64_t rotl(uint64_t x, int b)
{
    return (x << b) | (x >> (64 - b));
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

uint64_t hash_bytes(struct hash_key k, const void *p, size_t n)
{
    const unsigned char *s = p;
    uint64_t v[4] = {0x736f6d6570736575u ^ k.k0, 0x646f72616e646f6du ^ k.k1,
                     0x6c7967656e657261u ^ k.k0, 0x7465646279746573u ^ k.k1};
    size_t left = n;
    for (; left >= 8; left -= 8, s += 8) {
        uint64_t m;
        memcpy(&m, s, 8);
        v[3] ^= m;
        sip_round(v);
        sip_round(v);
        v[0] ^= m;
    }
    uint64_t last = (uint64_t)n << 56;
    for (size_t i = 0; i < left; i++)
        last |= (uint64_t)s[i] << (8 * i);
    v[3] ^= last;
    sip_round(v);
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
