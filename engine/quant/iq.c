/* IQ1, IQ2, IQ3: runs of eight (four) levels looked up in a code book (iq_grid.c), with signs beside them.
 *
 *   IQ2_XXS  f16 d, u32 q[8][2]                                d * (s + 1/2) / 4 * level, s for 32 values     66 bytes
 *            q[0]: four indices of 8 bits; q[1]: four signs of 7 bits, s in the top 4
 *   IQ2_XS   f16 d, u16 q[32], s[8]                            s for 16 values; q: index of 9 bits, 7 of signs 74
 *   IQ2_S    f16 d, q[32], signs[32], qh[8], s[8]              index of 10 bits                               82
 *   IQ3_XXS  f16 d, q[64], u32 t[8]                            d * (s + 1/2) / 2 * level; t as IQ2_XXS's q[1]  98
 *   IQ3_S    f16 d, q[64], qh[8], signs[32], s[4]              d * (2 s + 1) * level, s for 32 values        110
 *   IQ1_S    f16 d, q[32], u16 qh[8]                           d * (2 s + 1) * (level +- 1/8), 32 values      50
 *   IQ1_M    q[32], qh[16], u16 s[4]                           s for 16 values; d in the top bits of s        56
 *
 * Seven signs tell the eighth: their number is even. All levels come out as whole numbers in a byte: those of IQ1 times 8,
 * with d / 8. */
#include "engine/quant/quant_impl.h"

enum { ZERO = 128 }; /* code of level 0 */

static const int8_t levels2[4] = {8, 25, 43, 0};
static const int8_t levels3_xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const int8_t levels3_s[8] = {1, 3, 5, 7, 9, 11, 13, 15};

static unsigned signs_of(unsigned seven)
{
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

static void run8(uint8_t *code, unsigned grid, unsigned signs)
{
    for (int i = 0; i < 8; i++) {
        int v = levels2[grid >> 2 * i & 3];
        code[i] = (uint8_t)(ZERO + (signs >> i & 1 ? -v : v));
    }
}

static void run4(uint8_t *code, const int8_t *level, unsigned grid, unsigned signs)
{
    for (int i = 0; i < 4; i++) {
        int v = level[grid >> 3 * i & 7];
        code[i] = (uint8_t)(ZERO + (signs >> i & 1 ? -v : v));
    }
}

static void one(const struct quant__out *o, int run16, float scale)
{
    o->scale[run16] = scale;
    o->min[run16] = 0;
}

void quant__iq2_xxs_split(const uint8_t *b, const struct quant__out *o)
{
    float d = quant__half(b);
    for (int i = 0; i < 8; i++) {
        const uint8_t *q = b + 2 + 8 * i;
        uint32_t t = quant__u32(q + 4);
        quant__both(o, i, d * (0.5f + (float)(t >> 28)) * 0.25f, 0);
        for (int k = 0; k < 4; k++)
            run8(o->code + 32 * i + 8 * k, quant__iq2_xxs_grid[q[k]], signs_of(t >> 7 * k & 127));
    }
}

void quant__iq2_xs_split(const uint8_t *b, const struct quant__out *o)
{
    float d = quant__half(b);
    for (int i = 0; i < 32; i++) {
        unsigned q = quant__u16(b + 2 + 2 * i);
        run8(o->code + 8 * i, quant__iq2_xs_grid[q & 511], signs_of(q >> 9));
    }
    for (int i = 0; i < 16; i++)
        one(o, i, d * (0.5f + (float)(b[66 + i / 2] >> 4 * (i % 2) & 15)) * 0.25f);
}

void quant__iq2_s_split(const uint8_t *b, const struct quant__out *o)
{
    float d = quant__half(b);
    const uint8_t *q = b + 2, *signs = b + 34, *qh = b + 66, *s = b + 74;
    for (int i = 0; i < 32; i++)
        run8(o->code + 8 * i, quant__iq2_s_grid[q[i] | (qh[i / 4] >> 2 * (i % 4) & 3) << 8],
             signs[i]);
    for (int i = 0; i < 16; i++)
        one(o, i, d * (0.5f + (float)(s[i / 2] >> 4 * (i % 2) & 15)) * 0.25f);
}

void quant__iq3_xxs_split(const uint8_t *b, const struct quant__out *o)
{
    float d = quant__half(b);
    for (int i = 0; i < 8; i++) {
        uint32_t t = quant__u32(b + 66 + 4 * i);
        quant__both(o, i, d * (0.5f + (float)(t >> 28)) * 0.5f, 0);
        for (int k = 0; k < 8; k++)
            run4(o->code + 32 * i + 4 * k, levels3_xxs, quant__iq3_xxs_grid[b[2 + 8 * i + k]],
                 signs_of(t >> 7 * (k / 2) & 127) >> 4 * (k % 2));
    }
}

void quant__iq3_s_split(const uint8_t *b, const struct quant__out *o)
{
    float d = quant__half(b);
    const uint8_t *q = b + 2, *qh = b + 66, *signs = b + 74, *s = b + 106;
    for (int i = 0; i < 64; i++)
        run4(o->code + 4 * i, levels3_s, quant__iq3_s_grid[q[i] | (qh[i / 8] >> i % 8 & 1) << 8],
             (unsigned)signs[i / 2] >> 4 * (i % 2));
    for (int i = 0; i < 8; i++)
        quant__both(o, i, d * (float)(1 + 2 * (s[i / 2] >> 4 * (i % 2) & 15)), 0);
}

/* Eight levels -1, 0, 1, all plus or minus an eighth. */
static void run1(uint8_t *code, unsigned grid, bool minus)
{
    for (int i = 0; i < 8; i++)
        code[i] = (uint8_t)(ZERO + 8 * ((int)(grid >> 2 * i & 3) - 1) + (minus ? -1 : 1));
}

void quant__iq1_s_split(const uint8_t *b, const struct quant__out *o)
{
    float d = quant__half(b) * 0.125f;
    for (int i = 0; i < 8; i++) {
        unsigned h = quant__u16(b + 34 + 2 * i);
        quant__both(o, i, d * (float)(2 * (h >> 12 & 7) + 1), 0);
        for (int k = 0; k < 4; k++)
            run1(o->code + 32 * i + 8 * k,
                 quant__iq1_grid[b[2 + 4 * i + k] | (h >> 3 * k & 7) << 8], h >> 15);
    }
}

void quant__iq1_m_split(const uint8_t *b, const struct quant__out *o)
{
    const uint8_t *qh = b + 32, *s = b + 48;
    unsigned h = 0;
    for (int i = 0; i < 4; i++)
        h |= (unsigned)quant__u16(s + 2 * i) >> 12 << 4 * i;
    float d = f16_to_f32((uint16_t)h) * 0.125f;
    for (int i = 0; i < 16; i++)
        one(o, i, d * (float)(2 * ((unsigned)quant__u16(s + i / 4 * 2) >> 3 * (i % 4) & 7) + 1));
    for (int i = 0; i < 32; i++) {
        unsigned n = (unsigned)qh[i / 2] >> 4 * (i % 2) & 15;
        run1(o->code + 8 * i, quant__iq1_grid[b[i] | (n & 7) << 8], n >> 3);
    }
}
