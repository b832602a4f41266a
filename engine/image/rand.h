/* Noise that equals torch's for the same seed, so that a picture can be reproduced elsewhere. Pure; any thread. */
#ifndef ENGINE_IMAGE_RAND_H
#define ENGINE_IMAGE_RAND_H

#include <stddef.h>
#include <stdint.h>

/* torch.Generator("cpu").manual_seed(seed): Mersenne Twister (Matsumoto and Nishimura 1998), seeded with the low 32
 * bits. */
struct torch_mt {
    uint32_t s[624];
    int at;
    double next_normal; /* of the scalar path: the second value of a pair */
    int has_next;
};
void torch_mt_seed(struct torch_mt *g, uint64_t seed);
uint32_t torch_mt_next(struct torch_mt *g);
/* torch.randn(n, generator=g): n >= 16 draws 24-bit uniforms and turns blocks of 16 by Box-Muller (the last 16 are
 * redrawn when n is no multiple of 16); fewer take the scalar double path. */
void torch_mt_randn(struct torch_mt *g, float *dst, size_t n);

/* torch.randn(n, generator on CUDA): Philox4x32-10 (Salmon et al. 2011). Element i is thread i's first normal, which is
 * what PyTorch does up to its grid limit (some 100,000 elements on a large GPU); offset counts calls. */
struct torch_philox {
    uint64_t seed, offset;
};
void torch_philox_randn(struct torch_philox *g, float *dst, size_t n);

#endif
