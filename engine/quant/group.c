/* Formats of our own for weights that other tools quantise in groups of 128 (GPTQ, AWQ, compressed-tensors, block fp8): a
 * loader brings them into these blocks. Not in GGUF files.
 *
 *   I8_128   f32 scale, i8 q[128]                     x = scale * q          132 bytes
 *   I4_128   f16 scale, f16 min, qs[64]               x = scale * q + min     68    min is -zero * scale
 *   F8_128   f32 scale, e4m3 q[128]                   x = scale * q          132
 *
 * qs[i] holds value 2 i in its low and value 2 i + 1 in its high four bits. */
#include "engine/quant/quant_impl.h"

#include <math.h>

enum { LEN = 128, I8_BYTES = 132, I4_BYTES = 68 };

static float scale_at(const uint8_t *b)
{
    float f;
    memcpy(&f, b, sizeof f);
    return f;
}

/* OCP 8-bit floating point E4M3: no infinities, 0x7f and 0xff are NaN. */
float quant_e4m3(uint8_t c)
{
    int e = c >> 3 & 15, m = c & 7;
    float v = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    if ((c & 0x7f) == 0x7f)
        v = NAN;
    return c & 0x80 ? -v : v;
}

void quant__i8_128_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += I8_BYTES)
        for (int i = 0; i < LEN; i++)
            dst[at + i] = scale_at(b) * (float)(int8_t)b[4 + i];
}

void quant__i4_128_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += I4_BYTES)
        for (int i = 0; i < LEN; i++)
            dst[at + i] =
                quant__half(b) * (float)(b[4 + i / 2] >> 4 * (i % 2) & 15) + quant__half(b + 2);
}

void quant__f8_128_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += I8_BYTES)
        for (int i = 0; i < LEN; i++)
            dst[at + i] = scale_at(b) * quant_e4m3(b[4 + i]);
}
