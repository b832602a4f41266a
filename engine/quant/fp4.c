/* MXFP4 and NVFP4: four-bit floating point e2m1 (OCP Microscaling Formats 1.0) with a small scale.
 *
 *   MXFP4   32 values: e8m0 e, qs[16]               x = 2^(e - 127) * e2m1(q)     17 bytes
 *   NVFP4   64 values: ue4m3 d[4], qs[4][8]         x = d * e2m1(q)               36
 *
 * Levels are taken doubled, as whole numbers, and scales halved. qs: value i of a group low, value i + half the group
 * high. */
#include "engine/quant/quant_impl.h"

#include <math.h>

/* Half of 2^(e - 127); small e give subnormal numbers. */
static float e8m0_half(uint8_t e)
{
    return ldexpf(1.0f, (int)e - 128);
}

void quant__mxfp4_split(const uint8_t *b, const struct quant__out *o)
{
    for (int i = 0; i < 16; i++) {
        o->code[i] = b[1 + i] & 15;
        o->code[i + 16] = b[1 + i] >> 4;
    }
    quant__both(o, 0, e8m0_half(b[0]), 0);
}

/* Half the value of an e4m3 whose sign bit has no meaning; 0x7f counts as 0. */
static float ue4m3_half(uint8_t c)
{
    int e = c >> 3 & 15, m = c & 7;
    if (c == 0x7f)
        return 0;
    return e ? ldexpf((float)(8 + m), e - 11) : ldexpf((float)m, -10);
}

void quant__nvfp4_split(const uint8_t *b, const struct quant__out *o)
{
    for (int g = 0; g < 4; g++) {
        for (int i = 0; i < 8; i++) {
            o->code[16 * g + i] = b[4 + 8 * g + i] & 15;
            o->code[16 * g + i + 8] = b[4 + 8 * g + i] >> 4;
        }
        o->scale[g] = ue4m3_half(b[g]);
        o->min[g] = 0;
    }
}

/* The first of the nearest levels. */
static uint8_t fp4_nearest(float x, float d)
{
    static const float level[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf(d * level[i] - x) < fabsf(d * level[best] - x))
            best = i;
    return (uint8_t)best;
}

void quant__mxfp4_encode(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst;
    for (int64_t at = 0; at < n; at += 32, b += 17) {
        float top = 0;
        for (int i = 0; i < 32; i++)
            top = fmaxf(top, fabsf(src[at + i]));
        int e = 0;
        if (top > 0 && isfinite(top)) {
            e = (int)floorf(log2f(top)) - 2 + 127;
            e = e < 0 ? 0 : e > 254 ? 254 : e;
        }
        b[0] = (uint8_t)e;
        float d = e8m0_half(b[0]);
        for (int i = 0; i < 16; i++)
            b[1 + i] =
                (uint8_t)(fp4_nearest(src[at + i], d) | fp4_nearest(src[at + i + 16], d) << 4);
    }
}
