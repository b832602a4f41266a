/* Q8_0: 32 signed bytes with one scale. f16 d, i8 qs[32]: x = d * q, 34 bytes. */
#include "engine/quant/quant_impl.h"

#include <math.h>

enum { LEN = 32, BYTES = 34 };

void quant__q8_0_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += BYTES) {
        float d = quant__half(b);
        for (int i = 0; i < LEN; i++)
            dst[at + i] = (float)(int8_t)b[2 + i] * d;
    }
}

/* Halves round away from zero, as in ggml. A block with a NaN or an infinity has no meaning; it only
 * must not be undefined. */
static int8_t level(float v)
{
    v = roundf(v);
    if (!(v > -127.0f))
        return v != v ? 0 : -127;
    return (int8_t)(v < 127.0f ? v : 127.0f);
}

void quant__q8_0_encode(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += LEN, b += BYTES) {
        float amax = 0.0f;
        for (int i = 0; i < LEN; i++)
            amax = fmaxf(amax, fabsf(src[at + i]));
        float d = amax / 127.0f, inv = d != 0.0f ? 1.0f / d : 0.0f;
        quant__half_put(b, d);
        for (int i = 0; i < LEN; i++)
            b[2 + i] = (uint8_t)level(src[at + i] * inv);
    }
}
