/* Q4_0, Q4_1, Q5_0, Q5_1: blocks of 32 values with one scale, and one offset in the _1 formats.
 *
 *   Q4_0  f16 d, qs[16]                    x = d * (q - 8)       18 bytes
 *   Q4_1  f16 d, f16 m, qs[16]             x = d * q + m         20
 *   Q5_0  f16 d, u32 qh, qs[16]            x = d * (q - 16)      22
 *   Q5_1  f16 d, f16 m, u32 qh, qs[16]     x = d * q + m         24
 *
 * qs[i] holds value i in its low and value i + 16 in its high four bits; bit i of qh is the fifth bit
 * of value i. */
#include "engine/quant/quant_impl.h"

#include <math.h>

enum { LEN = 32, HALF = 16 };

void quant__q4_0_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += 18) {
        float d = quant__half(b), *y = dst + at;
        for (int i = 0; i < HALF; i++) {
            y[i] = (float)((b[2 + i] & 15) - 8) * d;
            y[i + HALF] = (float)((b[2 + i] >> 4) - 8) * d;
        }
    }
}

void quant__q4_1_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += 20) {
        float d = quant__half(b), m = quant__half(b + 2), *y = dst + at;
        for (int i = 0; i < HALF; i++) {
            y[i] = (float)(b[4 + i] & 15) * d + m;
            y[i + HALF] = (float)(b[4 + i] >> 4) * d + m;
        }
    }
}

/* Five-bit values i and i + 16 of a block. */
static inline int lo5(const uint8_t *qs, uint32_t qh, int i)
{
    return (qs[i] & 15) | (int)(qh >> i & 1) << 4;
}
static inline int hi5(const uint8_t *qs, uint32_t qh, int i)
{
    return qs[i] >> 4 | (int)(qh >> (i + HALF) & 1) << 4;
}

void quant__q5_0_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += 22) {
        float d = quant__half(b), *y = dst + at;
        uint32_t qh = quant__u32(b + 2);
        for (int i = 0; i < HALF; i++) {
            y[i] = (float)(lo5(b + 6, qh, i) - 16) * d;
            y[i + HALF] = (float)(hi5(b + 6, qh, i) - 16) * d;
        }
    }
}

void quant__q5_1_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += LEN, b += 24) {
        float d = quant__half(b), m = quant__half(b + 2), *y = dst + at;
        uint32_t qh = quant__u32(b + 4);
        for (int i = 0; i < HALF; i++) {
            y[i] = (float)lo5(b + 8, qh, i) * d + m;
            y[i + HALF] = (float)hi5(b + 8, qh, i) * d + m;
        }
    }
}

/* ---- encoders: the scale maps the value of largest magnitude to the lowest level (_0), or the range
 * of the block to all levels (_1). Levels are computed with the scale before it is rounded to f16. ---- */

struct range {
    float extreme; /* the first value of largest magnitude, with its sign */
    float min, max;
};

static struct range range_of(const float *x)
{
    struct range r = {0.0f, x[0], x[0]};
    float amax = 0.0f;
    for (int i = 0; i < LEN; i++) {
        if (fabsf(x[i]) > amax) {
            amax = fabsf(x[i]);
            r.extreme = x[i];
        }
        if (x[i] < r.min)
            r.min = x[i];
        if (x[i] > r.max)
            r.max = x[i];
    }
    return r;
}

/* Pack 32 levels: low nibbles to qs, fifth bits (if qh) to qh. */
static void pack(const uint8_t *q, uint8_t *qs, uint8_t *qh)
{
    uint32_t high = 0;
    for (int i = 0; i < HALF; i++)
        qs[i] = (uint8_t)((q[i] & 15) | (q[i + HALF] & 15) << 4);
    for (int i = 0; qh && i < LEN; i++)
        high |= (uint32_t)(q[i] >> 4) << i;
    if (qh)
        memcpy(qh, &high, sizeof high);
}

/* _0 formats: `mid` is 8 or 16; qh at byte 2 when five bits. */
static void encode_0(const float *src, uint8_t *b, int64_t n, int mid, int bytes)
{
    uint8_t q[LEN];
    for (int64_t at = 0; at < n; at += LEN, b += bytes) {
        const float *x = src + at;
        float d = range_of(x).extreme / (float)-mid, inv = d != 0.0f ? 1.0f / d : 0.0f;
        for (int i = 0; i < LEN; i++)
            q[i] = quant__level(x[i] * inv + ((float)mid + 0.5f), 2 * mid - 1);
        quant__half_put(b, d);
        pack(q, b + bytes - HALF, mid == 16 ? b + 2 : NULL);
    }
}

/* _1 formats: `top` is 15 or 31; qh at byte 4 when five bits. */
static void encode_1(const float *src, uint8_t *b, int64_t n, int top, int bytes)
{
    uint8_t q[LEN];
    for (int64_t at = 0; at < n; at += LEN, b += bytes) {
        const float *x = src + at;
        struct range r = range_of(x);
        float d = (r.max - r.min) / (float)top, inv = d != 0.0f ? 1.0f / d : 0.0f;
        for (int i = 0; i < LEN; i++)
            q[i] = quant__level((x[i] - r.min) * inv + 0.5f, top);
        quant__half_put(b, d);
        quant__half_put(b + 2, r.min);
        pack(q, b + bytes - HALF, top == 31 ? b + 4 : NULL);
    }
}

void quant__q4_0_encode(const float *src, void *dst, int64_t n)
{
    encode_0(src, dst, n, 8, 18);
}

void quant__q4_1_encode(const float *src, void *dst, int64_t n)
{
    encode_1(src, dst, n, 15, 20);
}

void quant__q5_0_encode(const float *src, void *dst, int64_t n)
{
    encode_0(src, dst, n, 16, 22);
}

void quant__q5_1_encode(const float *src, void *dst, int64_t n)
{
    encode_1(src, dst, n, 31, 24);
}
