/* Keyed hashing and random bytes. SipHash-2-4 (Aumasson and Bernstein, 2012), because keys and
 * prompts come from clients: an unkeyed hash can be flooded or collided on purpose. Any thread. */
#ifndef ENGINE_BASE_HASH_H
#define ENGINE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct hash_key {
    uint64_t k0, k1;
};

/* A fresh key from the kernel. */
struct hash_key hash_key_random(void);
uint64_t hash_bytes(struct hash_key k, const void *p, size_t n);

/* n random bytes from the kernel (getrandom); aborts when there are none. */
void random_bytes(void *p, size_t n);

/* Mix of a 64-bit value (SplitMix64 finaliser); for tables whose keys no client chooses. */
static inline uint64_t hash_u64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

#endif
