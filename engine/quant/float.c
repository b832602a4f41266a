/* Plain float formats: F32, F16 (IEEE 754 binary16), BF16 (upper half of binary32). */
#include "engine/quant/quant_impl.h"

union bits {
    float f;
    uint32_t u;
};

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff;
    union bits v;
    if (exp == 0) { /* zero and subnormals: man * 2^-24 is exact */
        v.f = (float)man * 0x1p-24f;
        v.u |= sign;
    } else if (exp == 31) { /* a signalling NaN becomes quiet, as the hardware's conversion does */
        v.u = sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0);
    } else {
        v.u = sign | (exp + 112) << 23 | man << 13;
    }
    return v.f;
}

uint16_t f32_to_f16(float f)
{
    union bits v = {f};
    uint32_t sign = v.u >> 16 & 0x8000, mag = v.u & 0x7fffffff;
    if (mag > 0x7f800000) /* NaN: quiet, upper payload kept */
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (mag < 0x38800000) { /* below 2^-14: adding 0.5 makes the FPU round at a unit of 2^-24 */
        union bits t = {.u = mag};
        t.f += 0.5f;
        return (uint16_t)(sign | (t.u - 0x3f000000));
    }
    uint32_t odd = mag >> 13 & 1;
    return (uint16_t)(sign | ((mag + 0xfff + odd - (112u << 23)) >> 13));
}

void quant__f32_decode(const void *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof(float));
}

void quant__f32_encode(const float *src, void *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof(float));
}

void quant__f16_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = quant__half(p + 2 * i);
}

void quant__f16_encode(const float *src, void *dst, int64_t n)
{
    uint8_t *p = dst;
    for (int64_t i = 0; i < n; i++)
        quant__half_put(p + 2 * i, src[i]);
}

void quant__bf16_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = bf16_to_f32(quant__u16(p + 2 * i));
}

void quant__bf16_encode(const float *src, void *dst, int64_t n)
{
    uint8_t *p = dst;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = f32_to_bf16(src[i]);
        memcpy(p + 2 * i, &h, sizeof h);
    }
}
