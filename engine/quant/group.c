/* Formats of our own for weights that other tools quantise (GPTQ, AWQ, compressed-tensors, fp8, NVFP4, bitsandbytes): a
 * loader brings them into these blocks, whatever their groups were. Not in GGUF files. Scales are f32, so that what
 * f16, bf16 or a product of two scales holds is kept.
 *
 *   I8_32   f32 scale, i8 q[32]             x = scale * q                 36 bytes
 *   I8M_32  f32 scale, f32 min, i8 q[32]    x = scale * q + min           40    min is -zero * scale
 *   I4_32   f32 scale, f32 min, qs[16]      x = scale * q + min           24
 *   F8_32   f32 scale, e4m3 q[32]           x = scale * q                 36
 *   F4_16   f32 scale / 2, qs[8]            x = scale * e2m1(q)           12 for 16 values
 *   NF4_32  f32 scale, qs[16]               x = scale * table[q]          20
 *   B4_32   f32 scale / 12, qs[16]          x = scale * table[q]          20    bitsandbytes' own FP4
 *
 * qs as in Q4_0: value i low, value i + half the block high. */
#include "engine/quant/quant_impl.h"

#include <math.h>

static float float_at(const uint8_t *b)
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

static void nibbles(uint8_t *code, const uint8_t *qs, int half)
{
    for (int i = 0; i < half; i++) {
        code[i] = qs[i] & 15;
        code[i + half] = qs[i] >> 4;
    }
}

void quant__i8_32_split(const uint8_t *b, const struct quant__out *o)
{
    for (int i = 0; i < 32; i++)
        o->code[i] = (uint8_t)(b[4 + i] ^ 0x80);
    quant__both(o, 0, float_at(b), 0);
}

void quant__i8m_32_split(const uint8_t *b, const struct quant__out *o)
{
    for (int i = 0; i < 32; i++)
        o->code[i] = (uint8_t)(b[8 + i] ^ 0x80);
    quant__both(o, 0, float_at(b), float_at(b + 4));
}

void quant__i4_32_split(const uint8_t *b, const struct quant__out *o)
{
    nibbles(o->code, b + 8, 16);
    quant__both(o, 0, float_at(b), float_at(b + 4));
}

void quant__f8_32_split(const uint8_t *b, const struct quant__out *o)
{
    memcpy(o->code, b + 4, 32);
    quant__both(o, 0, float_at(b), 0);
}

void quant__f4_16_split(const uint8_t *b, const struct quant__out *o)
{
    nibbles(o->code, b + 4, 8);
    o->scale[0] = float_at(b);
    o->min[0] = 0;
}

void quant__nf4_32_split(const uint8_t *b, const struct quant__out *o)
{
    nibbles(o->code, b + 4, 16);
    quant__both(o, 0, float_at(b), 0);
}
