/* Eight-bit KV: the values of one token and KV head, K (normalised and rotated) and V apart, are codes and one f32 scale.
 *   int8   scale = amax / 127, code = x / scale to the nearest, ties to even
 *   e4m3   scale = amax / 448, code = the nearest OCP fp8 E4M3 of x / scale, ties to even; no NaN codes
 * All zero (or too small for a scale): scale and codes 0. A value that is not finite: scale NaN, codes 0, so that it
 * shows in whatever reads the token. The same bits on every backend, given the same values. Branch-free loops, which the
 * compiler makes vectors of. Any thread. */
#ifndef ENGINE_QUANT_KV8_H
#define ENGINE_QUANT_KV8_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define KV8_MAX_I8 127.0f
#define KV8_MAX_F8 448.0f
#define KV8_MAGIC  12582912.0f /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */

static inline int32_t kv8_bits(float f)
{
    int32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* max: KV8_MAX_*. */
static inline float kv8_scale(const float *x, int n, float max)
{
    int32_t top = 0;
    for (int i = 0; i < n;
         i++) { /* magnitudes are in the order of their bits; Inf and NaN above all */
        int32_t u = kv8_bits(x[i]) & 0x7fffffff;
        top = u > top ? u : top;
    }
    float amax;
    memcpy(&amax, &top, sizeof amax);
    return top < 0x7f800000 ? amax / max : NAN;
}

static inline int8_t kv8_i8(float y)
{
    y = y > KV8_MAX_I8 ? KV8_MAX_I8 : y;
    y = y < -KV8_MAX_I8 ? -KV8_MAX_I8 : y;
    return (int8_t)(uint8_t)(kv8_bits(y + KV8_MAGIC) & 0xff);
}

static inline uint8_t kv8_f8(float y)
{
    float a = fabsf(y);
    a = a > KV8_MAX_F8 ? KV8_MAX_F8 : a;
    int32_t u = kv8_bits(a), step = kv8_bits(a * 512 + KV8_MAGIC) & 15; /* in 2^-9: subnormals */
    int32_t r = ((u + 0x7ffff + ((u >> 20) & 1)) >> 20) - (120 << 3);
    r = a < 0x1p-6f ? step : r;
    return (uint8_t)(r | ((kv8_bits(y) >> 24) & 0x80));
}

/* Codes of n values, one a byte; returns their scale. */
static inline float kv8_pack_i8(uint8_t *code, const float *x, int n)
{
    const float s = kv8_scale(x, n, KV8_MAX_I8);
    if (!(s > 0))
        memset(code, 0, (size_t)n);
    else
        for (int i = 0; i < n; i++)
            code[i] = (uint8_t)kv8_i8(x[i] / s);
    return s;
}
static inline float kv8_pack_f8(uint8_t *code, const float *x, int n)
{
    const float s = kv8_scale(x, n, KV8_MAX_F8);
    if (!(s > 0))
        memset(code, 0, (size_t)n);
    else
        for (int i = 0; i < n; i++)
            code[i] = kv8_f8(x[i] / s);
    return s;
}

#endif
