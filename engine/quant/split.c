/* See split.h. Layouts are told in the formats' own files. */
#include "engine/quant/split.h"
#include "engine/quant/quant_impl.h"

const int8_t quant_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};

static const struct quant_shape shapes[] = {
    {QF_Q4_0, 4, 32, false, 8, false},     {QF_Q4_1, 4, 32, true, 0, false},
    {QF_Q5_0, 5, 32, false, 16, false},    {QF_Q5_1, 5, 32, true, 0, false},
    {QF_Q8_0, 8, 32, false, 128, false},   {QF_Q2_K, 2, 16, true, 0, false},
    {QF_Q3_K, 3, 16, false, 4, false},     {QF_Q4_K, 4, 32, true, 0, false},
    {QF_Q5_K, 5, 32, true, 0, false},      {QF_Q6_K, 6, 16, false, 32, false},
    {QF_IQ4_NL, 4, 32, false, 0, true},    {QF_IQ4_XS, 4, 32, false, 0, true},
    {QF_I8_128, 8, 32, false, 128, false}, {QF_I4_128, 4, 32, true, 0, false},
    {QF_F8_128, 8, 32, false, 0, true},
};

const struct quant_shape *quant_shape_get(enum quant_fmt fmt)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].fmt == fmt)
            return &shapes[i];
    return NULL;
}

/* One block's outputs; scale and min count runs of 16. */
struct out {
    uint8_t *code;
    float *scale, *min;
};

static void both(const struct out *o, int group32, float scale, float min)
{
    o->scale[2 * group32] = o->scale[2 * group32 + 1] = scale;
    o->min[2 * group32] = o->min[2 * group32 + 1] = min;
}

/* Value i in the low, value i + 16 in the high four bits; bit i of high is its fifth bit. */
static void nibbles(uint8_t *code, const uint8_t *qs, uint32_t high)
{
    for (int i = 0; i < 16; i++) {
        code[i] = (uint8_t)((qs[i] & 15) | (high >> i & 1) << 4);
        code[i + 16] = (uint8_t)(qs[i] >> 4 | (high >> (i + 16) & 1) << 4);
    }
}

static void q4_0(const uint8_t *b, const struct out *o)
{
    nibbles(o->code, b + 2, 0);
    both(o, 0, quant__half(b), 0);
}
static void q4_1(const uint8_t *b, const struct out *o)
{
    nibbles(o->code, b + 4, 0);
    both(o, 0, quant__half(b), quant__half(b + 2));
}
static void q5_0(const uint8_t *b, const struct out *o)
{
    nibbles(o->code, b + 6, quant__u32(b + 2));
    both(o, 0, quant__half(b), 0);
}
static void q5_1(const uint8_t *b, const struct out *o)
{
    nibbles(o->code, b + 8, quant__u32(b + 4));
    both(o, 0, quant__half(b), quant__half(b + 2));
}
static void q8_0(const uint8_t *b, const struct out *o)
{
    for (int i = 0; i < 32; i++)
        o->code[i] = (uint8_t)(b[2 + i] ^ 0x80);
    both(o, 0, quant__half(b), 0);
}
static void iq4_xs(const uint8_t *b, const struct out *o)
{
    float d = quant__half(b);
    uint16_t high = quant__u16(b + 2);
    for (int i = 0; i < 8; i++) {
        int s = (b[4 + i / 2] >> 4 * (i % 2) & 15) | (high >> 2 * i & 3) << 4;
        nibbles(o->code + 32 * i, b + 8 + 16 * i, 0);
        both(o, i, d * (float)(s - 32), 0);
    }
}

static void q2_k(const uint8_t *b, const struct out *o)
{
    float d = quant__half(b + 80), dmin = quant__half(b + 82);
    for (int run = 0; run < 16; run++) {
        const uint8_t *q = b + 16 + 32 * (run / 8) + 16 * (run % 2);
        o->scale[run] = d * (float)(b[run] & 15);
        o->min[run] = -(dmin * (float)(b[run] >> 4));
        for (int i = 0; i < 16; i++)
            o->code[16 * run + i] = q[i] >> 2 * (run / 2 % 4) & 3;
    }
}
static void q3_k(const uint8_t *b, const struct out *o)
{
    float d = quant__half(b + 108);
    const uint8_t *s = b + 96;
    for (int run = 0; run < 16; run++) {
        const uint8_t *q = b + 32 + 32 * (run / 8) + 16 * (run % 2), *h = b + 16 * (run % 2);
        int low = run < 8 ? s[run] & 15 : s[run - 8] >> 4;
        o->scale[run] = d * (float)((low | (s[8 + run % 4] >> 2 * (run / 4) & 3) << 4) - 32);
        o->min[run] = 0;
        for (int i = 0; i < 16; i++)
            o->code[16 * run + i] =
                (uint8_t)((q[i] >> 2 * (run / 2 % 4) & 3) | (h[i] >> run / 2 & 1) << 2);
    }
}
/* Q4_K (five = false) and Q5_K. */
static void q45_k(const uint8_t *b, const struct out *o, bool five)
{
    float d = quant__half(b), dmin = quant__half(b + 2);
    const uint8_t *s = b + 4, *qh = b + 16, *qs = b + (five ? 48 : 16);
    for (int j = 0; j < 8; j++) {
        int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        both(o, j, d * (float)scale, -(dmin * (float)min));
        for (int i = 0; i < 32; i++)
            o->code[32 * j + i] = (uint8_t)((qs[32 * (j / 2) + i] >> 4 * (j % 2) & 15) |
                                            (five ? (qh[i] >> j & 1) << 4 : 0));
    }
}
static void q6_k(const uint8_t *b, const struct out *o)
{
    float d = quant__half(b + 208);
    for (int run = 0; run < 16; run++) {
        int half = run / 8, quarter = run / 2 % 4, at16 = 16 * (run % 2);
        const uint8_t *l = b + 64 * half + 32 * (quarter % 2) + at16,
                      *h = b + 128 + 32 * half + at16;
        o->scale[run] = d * (float)(int8_t)b[192 + run];
        o->min[run] = 0;
        for (int i = 0; i < 16; i++)
            o->code[16 * run + i] =
                (uint8_t)((l[i] >> 4 * (quarter / 2) & 15) | (h[i] >> 2 * quarter & 3) << 4);
    }
}

/* Groups of 128: one scale, told four times. */
static void group128(enum quant_fmt fmt, const uint8_t *b, const struct out *o)
{
    float scale;
    memcpy(&scale, b, sizeof scale);
    for (int i = 0; i < 4; i++)
        both(o, i, fmt == QF_I4_128 ? quant__half(b) : scale,
             fmt == QF_I4_128 ? quant__half(b + 2) : 0);
    for (int i = 0; i < 128; i++) {
        if (fmt == QF_I4_128)
            o->code[i] = (uint8_t)(b[4 + i / 2] >> 4 * (i % 2) & 15);
        else
            o->code[i] = (uint8_t)(fmt == QF_I8_128 ? b[4 + i] ^ 0x80 : b[4 + i]);
    }
}

static void block_split(enum quant_fmt fmt, const uint8_t *b, const struct out *o)
{
    switch (fmt) {
    case QF_Q4_0:
    case QF_IQ4_NL:
        q4_0(b, o);
        break;
    case QF_Q4_1:
        q4_1(b, o);
        break;
    case QF_Q5_0:
        q5_0(b, o);
        break;
    case QF_Q5_1:
        q5_1(b, o);
        break;
    case QF_Q8_0:
        q8_0(b, o);
        break;
    case QF_Q2_K:
        q2_k(b, o);
        break;
    case QF_Q3_K:
        q3_k(b, o);
        break;
    case QF_Q4_K:
    case QF_Q5_K:
        q45_k(b, o, fmt == QF_Q5_K);
        break;
    case QF_Q6_K:
        q6_k(b, o);
        break;
    case QF_I8_128:
    case QF_I4_128:
    case QF_F8_128:
        group128(fmt, b, o);
        break;
    default:
        iq4_xs(b, o);
    }
}

void quant_split(enum quant_fmt fmt, const void *src, int64_t n, uint8_t *code, float *scale,
                 float *min)
{
    const struct quant_format *f = quant_format_get((uint32_t)fmt);
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += f->block_len, b += f->block_bytes)
        block_split(fmt, b, &(struct out){code + at, scale + at / 16, min + at / 16});
}
