/* See split.h. Layouts are told in the formats' own files. */
#include "engine/quant/split.h"
#include "engine/quant/quant_impl.h"

const int8_t quant_levels_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
const int8_t quant_levels_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
const float quant_levels_nf4[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

const float quant_levels_b4[16] = {0, 0.0625f,  8,  12,  4,  6,  2,  3,
                                   0, -0.0625f, -8, -12, -4, -6, -2, -3};

/* format, bits, group, min, offset, level */
static const struct quant_shape shapes[] = {
    {QF_Q4_0, 4, 32, false, 8, LEVEL_INT},      {QF_Q4_1, 4, 32, true, 0, LEVEL_INT},
    {QF_Q5_0, 5, 32, false, 16, LEVEL_INT},     {QF_Q5_1, 5, 32, true, 0, LEVEL_INT},
    {QF_Q8_0, 8, 32, false, 128, LEVEL_INT},    {QF_Q8_1, 8, 32, false, 128, LEVEL_INT},
    {QF_Q2_K, 2, 16, true, 0, LEVEL_INT},       {QF_Q3_K, 3, 16, false, 4, LEVEL_INT},
    {QF_Q4_K, 4, 32, true, 0, LEVEL_INT},       {QF_Q5_K, 5, 32, true, 0, LEVEL_INT},
    {QF_Q6_K, 6, 16, false, 32, LEVEL_INT},     {QF_Q8_K, 8, 32, false, 128, LEVEL_INT},
    {QF_IQ4_NL, 4, 32, false, 0, LEVEL_IQ4},    {QF_IQ4_XS, 4, 32, false, 0, LEVEL_IQ4},
    {QF_IQ2_XXS, 8, 32, false, 128, LEVEL_INT}, {QF_IQ2_XS, 8, 16, false, 128, LEVEL_INT},
    {QF_IQ2_S, 8, 16, false, 128, LEVEL_INT},   {QF_IQ3_XXS, 8, 32, false, 128, LEVEL_INT},
    {QF_IQ3_S, 8, 32, false, 128, LEVEL_INT},   {QF_IQ1_S, 8, 32, false, 128, LEVEL_INT},
    {QF_IQ1_M, 8, 16, false, 128, LEVEL_INT},   {QF_TQ1_0, 2, 16, true, 0, LEVEL_INT},
    {QF_TQ2_0, 2, 16, true, 0, LEVEL_INT},      {QF_Q1_0, 2, 16, true, 0, LEVEL_INT},
    {QF_MXFP4, 4, 32, false, 0, LEVEL_FP4},     {QF_NVFP4, 4, 16, false, 0, LEVEL_FP4},
    {QF_I8_32, 8, 32, false, 128, LEVEL_INT},   {QF_I8M_32, 8, 32, true, 128, LEVEL_INT},
    {QF_I4_32, 4, 32, true, 0, LEVEL_INT},      {QF_F8_32, 8, 32, false, 0, LEVEL_E4M3},
    {QF_F4_16, 4, 16, false, 0, LEVEL_FP4},     {QF_NF4_32, 4, 32, false, 0, LEVEL_NF4},
    {QF_B4_32, 4, 32, false, 0, LEVEL_B4},
};

float quant_level_value(const struct quant_shape *s, uint8_t code)
{
    switch (s->level) {
    case LEVEL_IQ4:
        return (float)quant_levels_iq4[code & 15];
    case LEVEL_E4M3:
        return quant_e4m3(code);
    case LEVEL_FP4:
        return (float)quant_levels_fp4[code & 15];
    case LEVEL_NF4:
        return quant_levels_nf4[code & 15];
    case LEVEL_B4:
        return quant_levels_b4[code & 15];
    default:
        return (float)(code - s->offset);
    }
}

const struct quant_shape *quant_shape_get(enum quant_fmt fmt)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].fmt == fmt)
            return &shapes[i];
    return NULL;
}

/* Value i in the low, value i + 16 in the high four bits; bit i of high is its fifth bit. */
static void nibbles(uint8_t *code, const uint8_t *qs, uint32_t high)
{
    for (int i = 0; i < 16; i++) {
        code[i] = (uint8_t)((qs[i] & 15) | (high >> i & 1) << 4);
        code[i + 16] = (uint8_t)(qs[i] >> 4 | (high >> (i + 16) & 1) << 4);
    }
}

static void q4_0(const uint8_t *b, const struct quant__out *o)
{
    nibbles(o->code, b + 2, 0);
    quant__both(o, 0, quant__half(b), 0);
}
static void q4_1(const uint8_t *b, const struct quant__out *o)
{
    nibbles(o->code, b + 4, 0);
    quant__both(o, 0, quant__half(b), quant__half(b + 2));
}
static void q5_0(const uint8_t *b, const struct quant__out *o)
{
    nibbles(o->code, b + 6, quant__u32(b + 2));
    quant__both(o, 0, quant__half(b), 0);
}
static void q5_1(const uint8_t *b, const struct quant__out *o)
{
    nibbles(o->code, b + 8, quant__u32(b + 4));
    quant__both(o, 0, quant__half(b), quant__half(b + 2));
}
static void q8_0(const uint8_t *b, const struct quant__out *o)
{
    for (int i = 0; i < 32; i++)
        o->code[i] = (uint8_t)(b[2 + i] ^ 0x80);
    quant__both(o, 0, quant__half(b), 0);
}
static void iq4_xs(const uint8_t *b, const struct quant__out *o)
{
    float d = quant__half(b);
    uint16_t high = quant__u16(b + 2);
    for (int i = 0; i < 8; i++) {
        int s = (b[4 + i / 2] >> 4 * (i % 2) & 15) | (high >> 2 * i & 3) << 4;
        nibbles(o->code + 32 * i, b + 8 + 16 * i, 0);
        quant__both(o, i, d * (float)(s - 32), 0);
    }
}

static void q2_k(const uint8_t *b, const struct quant__out *o)
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
static void q3_k(const uint8_t *b, const struct quant__out *o)
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
static void q45_k(const uint8_t *b, const struct quant__out *o, bool five)
{
    float d = quant__half(b), dmin = quant__half(b + 2);
    const uint8_t *s = b + 4, *qh = b + 16, *qs = b + (five ? 48 : 16);
    for (int j = 0; j < 8; j++) {
        int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        quant__both(o, j, d * (float)scale, -(dmin * (float)min));
        for (int i = 0; i < 32; i++)
            o->code[32 * j + i] = (uint8_t)((qs[32 * (j / 2) + i] >> 4 * (j % 2) & 15) |
                                            (five ? (qh[i] >> j & 1) << 4 : 0));
    }
}
static void q6_k(const uint8_t *b, const struct quant__out *o)
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

static void q8_1(const uint8_t *b, const struct quant__out *o)
{
    for (int i = 0; i < 32; i++)
        o->code[i] = (uint8_t)(b[4 + i] ^ 0x80);
    quant__both(o, 0, quant__half(b), 0);
}
static void q8_k(const uint8_t *b, const struct quant__out *o)
{
    float d;
    memcpy(&d, b, sizeof d);
    for (int i = 0; i < 256; i++)
        o->code[i] = (uint8_t)(b[4 + i] ^ 0x80);
    for (int i = 0; i < 8; i++)
        quant__both(o, i, d, 0);
}
static void q4_k(const uint8_t *b, const struct quant__out *o)
{
    q45_k(b, o, false);
}
static void q5_k(const uint8_t *b, const struct quant__out *o)
{
    q45_k(b, o, true);
}

static quant__split_fn *const splits[] = {
    [QF_Q4_0] = q4_0,
    [QF_Q4_1] = q4_1,
    [QF_Q5_0] = q5_0,
    [QF_Q5_1] = q5_1,
    [QF_Q8_0] = q8_0,
    [QF_Q8_1] = q8_1,
    [QF_Q2_K] = q2_k,
    [QF_Q3_K] = q3_k,
    [QF_Q4_K] = q4_k,
    [QF_Q5_K] = q5_k,
    [QF_Q6_K] = q6_k,
    [QF_Q8_K] = q8_k,
    [QF_IQ4_NL] = q4_0,
    [QF_IQ4_XS] = iq4_xs,
    [QF_IQ2_XXS] = quant__iq2_xxs_split,
    [QF_IQ2_XS] = quant__iq2_xs_split,
    [QF_IQ2_S] = quant__iq2_s_split,
    [QF_IQ3_XXS] = quant__iq3_xxs_split,
    [QF_IQ3_S] = quant__iq3_s_split,
    [QF_IQ1_S] = quant__iq1_s_split,
    [QF_IQ1_M] = quant__iq1_m_split,
    [QF_TQ1_0] = quant__tq1_0_split,
    [QF_TQ2_0] = quant__tq2_0_split,
    [QF_Q1_0] = quant__q1_0_split,
    [QF_MXFP4] = quant__mxfp4_split,
    [QF_NVFP4] = quant__nvfp4_split,
    [QF_I8_32] = quant__i8_32_split,
    [QF_I8M_32] = quant__i8m_32_split,
    [QF_I4_32] = quant__i4_32_split,
    [QF_F8_32] = quant__f8_32_split,
    [QF_F4_16] = quant__f4_16_split,
    [QF_NF4_32] = quant__nf4_32_split,
    [QF_B4_32] = quant__nf4_32_split,
};

void quant_split(enum quant_fmt fmt, const void *src, int64_t n, uint8_t *code, float *scale,
                 float *min)
{
    const struct quant_format *f = quant_format_get((uint32_t)fmt);
    const uint8_t *b = src;
    for (int64_t at = 0; at < n; at += f->block_len, b += f->block_bytes)
        splits[fmt](b, &(struct quant__out){code + at, scale + at / 16, min + at / 16});
}

static void split_decode(enum quant_fmt fmt, const void *src, float *dst, int64_t n)
{
    const struct quant_format *f = quant_format_get((uint32_t)fmt);
    const struct quant_shape *s = quant_shape_get(fmt);
    const uint8_t *b = src;
    uint8_t code[256];
    float scale[16], min[16];
    for (int64_t at = 0; at < n; at += f->block_len, b += f->block_bytes) {
        splits[fmt](b, &(struct quant__out){code, scale, min});
        for (int i = 0; i < f->block_len; i++) {
            float v = scale[i / 16] * quant_level_value(s, code[i]);
            dst[at + i] = s->min ? v + min[i / 16] : v;
        }
    }
}
#define X(name)                                                                                    \
    void quant__decode_##name(const void *src, float *dst, int64_t n)                              \
    {                                                                                              \
        split_decode(QF_##name, src, dst, n);                                                      \
    }
QUANT_SPLIT_DECODED(X)
#undef X
