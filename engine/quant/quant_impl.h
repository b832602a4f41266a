/* Private to engine/quant: decoders and encoders of formats.def, and unaligned loads of block fields. */
#ifndef ENGINE_QUANT_QUANT_IMPL_H
#define ENGINE_QUANT_QUANT_IMPL_H

#include "engine/quant/quant.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks are little-endian");

typedef void quant__decode_fn(const void *src, float *dst, int64_t n);
typedef void quant__encode_fn(const float *src, void *dst, int64_t n);

quant__decode_fn quant__f32_decode, quant__f16_decode, quant__bf16_decode;
quant__decode_fn quant__q4_0_decode, quant__q4_1_decode, quant__q5_0_decode, quant__q5_1_decode;
quant__decode_fn quant__q8_0_decode;
quant__decode_fn quant__q2_k_decode, quant__q3_k_decode, quant__q4_k_decode, quant__q5_k_decode;
quant__decode_fn quant__q6_k_decode;
quant__decode_fn quant__iq4_nl_decode, quant__iq4_xs_decode;
quant__decode_fn quant__i8_128_decode, quant__i4_128_decode, quant__f8_128_decode;

quant__encode_fn quant__f32_encode, quant__f16_encode, quant__bf16_encode;
quant__encode_fn quant__q4_0_encode, quant__q4_1_encode, quant__q5_0_encode, quant__q5_1_encode;
quant__encode_fn quant__q8_0_encode;

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
