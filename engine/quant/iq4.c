/* IQ4_NL, IQ4_XS: four-bit indices into a fixed table of 16 unevenly spaced levels.
 *
 *   IQ4_NL  32 values:  f16 d, qs[16]                                x = d * level[q]             18 bytes
 *   IQ4_XS  256 values: f16 d, u16 scales_h, scales_l[4], qs[8][16]  x = d * (s - 32) * level[q]  136
 *
 * In IQ4_XS each 32 values have a six-bit scale s: four bits in scales_l (low nibble first), two in
 * scales_h. qs as in Q4_0: value i low, value i + 16 high. */
#include "engine/quant/quant_impl.h"

enum { LEN = 32, HALF = 16 };

static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

static void decode_32(const uint8_t *qs, float d, float *y)
{
    for (int i = 0; i < HALF; i++) {
        y[i] = d * (float)levels[qs[i] & 15];
        y[i + HALF] = d * (float)levels[qs[i] >> 4];
    }
}

void quant__iq4_nl_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += 18)
        decode_32(b + 2, quant__half(b), dst + at);
}

void quant__iq4_xs_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += 256, b += 136) {
        float d = quant__half(b);
        uint16_t high = quant__u16(b + 2);
        for (int i = 0; i < 8; i++) {
            int s = (b[4 + i / 2] >> 4 * (i % 2) & 15) | (high >> 2 * i & 3) << 4;
            decode_32(b + 8 + HALF * i, d * (float)(s - 32), dst + at + LEN * i);
        }
    }
}
