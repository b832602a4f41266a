/* Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy
 * as 1, 2, 3; SC 2011). A number is a function of (key, counter) alone, so a sampled token depends neither
 * on the batch nor on what was drawn before. All backends use this. No state; any thread. */
#ifndef ENGINE_BASE_RNG_H
#define ENGINE_BASE_RNG_H

#include <stdint.h>

static inline void rng_philox(uint64_t key, const uint32_t ctr[4], uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t a = ctr[0], b = ctr[1], c = ctr[2], d = ctr[3];
    for (int i = 0; i < 10; i++) {
        uint64_t p = (uint64_t)0xD2511F53u * a, q = (uint64_t)0xCD9E8D57u * c;
        a = (uint32_t)(q >> 32) ^ b ^ k0;
        c = (uint32_t)(p >> 32) ^ d ^ k1;
        b = (uint32_t)q;
        d = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}

/* Uniform in [0, 1), a multiple of 2^-53: the one number of the token at `position`. */
static inline double rng_uniform(uint64_t seed, uint32_t position)
{
    uint32_t r[4];
    rng_philox(seed, (const uint32_t[4]){position, 0, 0, 0}, r);
    return (double)(((uint64_t)r[0] << 32 | r[1]) >> 11) * 0x1p-53;
}

#endif
