/* Private to engine/quant: decoders and encoders of formats.def, and unaligned loads of block fields. */
#ifndef ENGINE_QUANT_QUANT_IMPL_H
#define ENGINE_QUANT_QUANT_IMPL_H

#include "engine/quant/quant.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks are little-endian");

/* Formats that are decoded from their parts (split.c): scale * level + min is the definition. */
#define QUANT_SPLIT_DECODED(X)                                                                     \
    X(Q8_1)                                                                                        \
    X(Q8_K)                                                                                        \
    X(IQ2_XXS)                                                                                     \
    X(IQ2_XS)                                                                                      \
    X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M) X(MXFP4) X(NVFP4) X(I8_32) X(I8M_32) X(I4_32)   \
        X(F8_32) X(F4_16) X(NF4_32) X(B4_32)

typedef void quant__decode_fn(const void *src, float *dst, int64_t n);
typedef void quant__encode_fn(const float *src, void *dst, int64_t n);

quant__decode_fn quant__f32_decode, quant__f16_decode, quant__bf16_decode;
quant__decode_fn quant__q4_0_decode, quant__q4_1_decode, quant__q5_0_decode, quant__q5_1_decode;
quant__decode_fn quant__q8_0_decode;
quant__decode_fn quant__q2_k_decode, quant__q3_k_decode, quant__q4_k_decode, quant__q5_k_decode;
quant__decode_fn quant__q6_k_decode;
quant__decode_fn quant__iq4_nl_decode, quant__iq4_xs_decode;
#define X(name) quant__decode_fn quant__decode_##name;
QUANT_SPLIT_DECODED(X)
#undef X

quant__decode_fn quant__tq1_0_decode, quant__tq2_0_decode, quant__q1_0_decode;

/* Where a block's parts go (split.h); scale and min count runs of 16. */
struct quant__out {
    uint8_t *code;
    float *scale, *min;
};
static inline void quant__both(const struct quant__out *o, int group32, float scale, float min)
{
    o->scale[2 * group32] = o->scale[2 * group32 + 1] = scale;
    o->min[2 * group32] = o->min[2 * group32 + 1] = min;
}
typedef void quant__split_fn(const uint8_t *block, const struct quant__out *o);
/* iq.c */
quant__split_fn quant__iq2_xxs_split, quant__iq2_xs_split, quant__iq2_s_split;
quant__split_fn quant__iq3_xxs_split, quant__iq3_s_split, quant__iq1_s_split, quant__iq1_m_split;
extern const uint16_t quant__iq2_xxs_grid[256], quant__iq2_xs_grid[512], quant__iq2_s_grid[1024];
extern const uint16_t quant__iq3_xxs_grid[256], quant__iq3_s_grid[512], quant__iq1_grid[2048];
/* ternary.c: codes 0, 1, 2 of values -scale, 0, scale; the offset is in min */
quant__split_fn quant__tq1_0_split, quant__tq2_0_split, quant__q1_0_split;
/* fp4.c, group.c */
quant__split_fn quant__mxfp4_split, quant__nvfp4_split;
quant__split_fn quant__i8_32_split, quant__i8m_32_split, quant__i4_32_split;
quant__split_fn quant__f8_32_split, quant__f4_16_split, quant__nf4_32_split;

quant__encode_fn quant__q4_k_encode, quant__q5_k_encode, quant__q6_k_encode;
quant__encode_fn quant__f32_encode, quant__f16_encode, quant__bf16_encode;
quant__encode_fn quant__q4_0_encode, quant__q4_1_encode, quant__q5_0_encode, quant__q5_1_encode;
quant__encode_fn quant__q8_0_encode, quant__mxfp4_encode, quant__tq1_0_encode, quant__tq2_0_encode;

static inline uint16_t quant__u16(const uint8_t *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline uint32_t quant__u32(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
/* A half at p. */
static inline float quant__half(const uint8_t *p)
{
    return f16_to_f32(quant__u16(p));
}
static inline void quant__half_put(uint8_t *p, float f)
{
    uint16_t h = f32_to_f16(f);
    memcpy(p, &h, sizeof h);
}
/* Truncate to 0..max. NaN gives 0: a plain cast would be undefined. */
static inline uint8_t quant__level(float v, int max)
{
    if (!(v > 0.0f))
        return 0;
    return (uint8_t)(v < (float)max ? (int)v : max);
}

#endif
