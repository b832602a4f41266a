/* See rand.h. */
#include "engine/image/rand.h"

#include <math.h>

/* ---- Mersenne Twister ---- */

void torch_mt_seed(struct torch_mt *g, uint64_t seed)
{
    g->s[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < 624; i++)
        g->s[i] = 1812433253u * (g->s[i - 1] ^ (g->s[i - 1] >> 30)) + i;
    g->at = 624;
    g->has_next = 0;
    g->next_normal = 0;
}

static void mt_refill(struct torch_mt *g)
{
    for (int i = 0; i < 624; i++) {
        uint32_t y = (g->s[i] & 0x80000000u) | (g->s[(i + 1) % 624] & 0x7fffffffu);
        g->s[i] = g->s[(i + 397) % 624] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    g->at = 0;
}

uint32_t torch_mt_next(struct torch_mt *g)
{
    if (g->at >= 624)
        mt_refill(g);
    uint32_t y = g->s[g->at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

static float uniform24(struct torch_mt *g)
{
    return (float)(torch_mt_next(g) & 0xffffffu) * 0x1p-24f;
}

static double uniform53(struct torch_mt *g)
{
    uint64_t hi = torch_mt_next(g), lo = torch_mt_next(g);
    return (double)((hi << 32 | lo) & ((1ull << 53) - 1)) * 0x1p-53;
}

/* 16 uniforms to 16 normals: value j pairs with value j + 8. */
static void box_muller16(float *x)
{
    for (int j = 0; j < 8; j++) {
        float radius = sqrtf(-2 * logf(1 - x[j])), theta = 2 * (float)M_PI * x[j + 8];
        x[j] = radius * cosf(theta);
        x[j + 8] = radius * sinf(theta);
    }
}

static float normal_scalar(struct torch_mt *g)
{
    if (g->has_next) {
        g->has_next = 0;
        return (float)g->next_normal;
    }
    double u1 = uniform53(g), u2 = uniform53(g);
    double r = sqrt(-2 * log1p(-u2)), theta = 2 * M_PI * u1;
    g->next_normal = r * sin(theta);
    g->has_next = 1;
    return (float)(r * cos(theta));
}

void torch_mt_randn(struct torch_mt *g, float *dst, size_t n)
{
    if (n < 16) {
        for (size_t i = 0; i < n; i++)
            dst[i] = normal_scalar(g);
        return;
    }
    for (size_t i = 0; i < n; i++)
        dst[i] = uniform24(g);
    for (size_t i = 0; i + 16 <= n; i += 16)
        box_muller16(dst + i);
    if (n % 16) {
        float *tail = dst + n - 16;
        for (int i = 0; i < 16; i++)
            tail[i] = uniform24(g);
        box_muller16(tail);
    }
}

/* ---- Philox4x32-10 ---- */

static void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int r = 0; r < 10; r++) {
        uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[0] = n0;
        c[1] = (uint32_t)b;
        c[2] = n2;
        c[3] = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

/* Thread i of the kernel makes element i from its first pair of numbers. */
void torch_philox_randn(struct torch_philox *g, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t c[4] = {(uint32_t)g->offset, (uint32_t)(g->offset >> 32), (uint32_t)i,
                         (uint32_t)((uint64_t)i >> 32)};
        philox(c, (uint32_t)g->seed, (uint32_t)(g->seed >> 32));
        float u = (float)c[0] * 0x1p-32f + 0x1p-33f;
        float v = (float)c[1] * (float)(2 * M_PI * 0x1p-32) + (float)(2 * M_PI * 0x1p-33);
        dst[i] = sqrtf(-2 * logf(u)) * sinf(v);
    }
    g->offset++;
}
