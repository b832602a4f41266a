/* TQ1_0, TQ2_0, Q1_0: values -d, 0, d.
 *
 *   TQ1_0   256 values: qs[48], qh[4], f16 d     five digits of base 3 a byte (qh: four)    54 bytes
 *   TQ2_0   256 values: qs[64], f16 d            two bits                                   66
 *   Q1_0    128 values: f16 d, bits[16]          set: d, else -d                            18
 *
 * A byte of TQ1_0 is its number times 256 / 243, rounded up, so that the digits come out at the top of successive products
 * by 3. Digit t of the bytes of a run of 32 (then 16, then 4) are the values t * 32... In TQ2_0 bit pair t of the bytes of
 * a run of 32 likewise. */
#include "engine/quant/quant_impl.h"

#include <math.h>

enum { LEN = 256 };

static void tq_scales(const struct quant__out *o, int n, float d)
{
    for (int i = 0; i < n / 16; i++) {
        o->scale[i] = d;
        o->min[i] = -d;
    }
}

/* Digits of n bytes, `digits` each. */
static uint8_t *tq1_run(uint8_t *code, const uint8_t *qs, int n, int digits)
{
    static const uint8_t pow3[5] = {1, 3, 9, 27, 81};
    for (int t = 0; t < digits; t++)
        for (int i = 0; i < n; i++)
            *code++ = (uint8_t)((uint8_t)(qs[i] * pow3[t]) * 3 >> 8);
    return code;
}

void quant__tq1_0_split(const uint8_t *b, const struct quant__out *o)
{
    tq1_run(tq1_run(tq1_run(o->code, b, 32, 5), b + 32, 16, 5), b + 48, 4, 4);
    tq_scales(o, LEN, quant__half(b + 52));
}

/* The two bits may hold 3 (twice d) in a file that nobody's encoder wrote. */
void quant__tq2_0_split(const uint8_t *b, const struct quant__out *o)
{
    uint8_t *code = o->code;
    for (int run = 0; run < 2; run++)
        for (int t = 0; t < 4; t++)
            for (int i = 0; i < 32; i++)
                *code++ = b[32 * run + i] >> 2 * t & 3;
    tq_scales(o, LEN, quant__half(b + 64));
}

void quant__q1_0_split(const uint8_t *b, const struct quant__out *o)
{
    for (int i = 0; i < 128; i++)
        o->code[i] = (b[2 + i / 8] >> i % 8 & 1) * 2;
    tq_scales(o, 128, quant__half(b));
}

static void decode(quant__split_fn *split, const uint8_t *b, float *y)
{
    uint8_t code[LEN];
    float scale[LEN / 16], min[LEN / 16];
    int n = split == quant__q1_0_split ? 128 : LEN;
    split(b, &(struct quant__out){code, scale, min});
    for (int i = 0; i < n; i++) /* not by min: 0 has d's sign */
        y[i] = scale[i / 16] * (float)(code[i] - 1);
}

void quant__tq1_0_decode(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n / LEN; i++)
        decode(quant__tq1_0_split, (const uint8_t *)src + 54 * i, dst + LEN * i);
}

void quant__tq2_0_decode(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n / LEN; i++)
        decode(quant__tq2_0_split, (const uint8_t *)src + 66 * i, dst + LEN * i);
}

void quant__q1_0_decode(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n / 128; i++)
        decode(quant__q1_0_split, (const uint8_t *)src + 18 * i, dst + 128 * i);
}

/* Codes 0, 1, 2 of a block; returns d. */
static float codes_of(const float *x, uint8_t *code)
{
    float d = 0;
    for (int i = 0; i < LEN; i++)
        d = fmaxf(d, fabsf(x[i]));
    float inv = d != 0 ? 1 / d : 0;
    for (int i = 0; i < LEN; i++)
        code[i] = quant__level(roundf(x[i] * inv) + 1, 2);
    return d;
}

static void tq1_pack(uint8_t *qs, const uint8_t *code, int n, int digits)
{
    for (int i = 0; i < n; i++) {
        int q = 0;
        for (int t = 0; t < 5; t++)
            q = q * 3 + (t < digits ? code[t * n + i] : 0);
        qs[i] = (uint8_t)((q * 256 + 242) / 243);
    }
}

void quant__tq1_0_encode(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst, code[LEN];
    for (int64_t at = 0; at < n; at += LEN, b += 54) {
        quant__half_put(b + 52, codes_of(src + at, code));
        tq1_pack(b, code, 32, 5);
        tq1_pack(b + 32, code + 160, 16, 5);
        tq1_pack(b + 48, code + 240, 4, 4);
    }
}

void quant__tq2_0_encode(const float *src, void *dst, int64_t n)
{
    uint8_t *b = dst, code[LEN];
    for (int64_t at = 0; at < n; at += LEN, b += 66) {
        quant__half_put(b + 64, codes_of(src + at, code));
        for (int i = 0; i < 64; i++) {
            const uint8_t *c = code + 128 * (i / 32) + i % 32;
            b[i] = (uint8_t)(c[0] | c[32] << 2 | c[64] << 4 | c[96] << 6);
        }
    }
}
