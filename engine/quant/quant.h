/* Weight storage formats: block layouts as in GGUF files. One row of a tensor is a whole number of
 * blocks. Each format's file documents its layout, holds the reference decoder (the truth for every
 * backend) and, where one exists, the encoder. Any thread; no state. */
#ifndef ENGINE_QUANT_QUANT_H
#define ENGINE_QUANT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values are ggml type numbers, so that a file's number converts by a table look-up. */
enum quant_fmt {
    QF_F32 = 0,
    QF_F16 = 1,
    QF_Q4_0 = 2,
    QF_Q4_1 = 3,
    QF_Q5_0 = 6,
    QF_Q5_1 = 7,
    QF_Q8_0 = 8,
    QF_Q8_1 = 9,
    QF_Q2_K = 10,
    QF_Q3_K = 11,
    QF_Q4_K = 12,
    QF_Q5_K = 13,
    QF_Q6_K = 14,
    QF_Q8_K = 15,
    QF_IQ2_XXS = 16,
    QF_IQ2_XS = 17,
    QF_IQ3_XXS = 18,
    QF_IQ1_S = 19,
    QF_IQ4_NL = 20,
    QF_IQ3_S = 21,
    QF_IQ2_S = 22,
    QF_IQ4_XS = 23,
    QF_IQ1_M = 29,
    QF_BF16 = 30,
    QF_TQ1_0 = 34,
    QF_TQ2_0 = 35,
    QF_MXFP4 = 39,
    QF_NVFP4 = 40,
    QF_Q1_0 = 41,
    /* Formats of our own, not in GGUF files: see group.c. */
    QF_I8_32 = 120,
    QF_I8M_32 = 121,
    QF_I4_32 = 122,
    QF_F8_32 = 123,
    QF_F4_16 = 124,
    QF_NF4_32 = 125,
    QF_B4_32 = 126,
};

#define QF_GGUF_END 100u /* file numbers are below */

struct quant_format {
    const char *name; /* "Q4_1" */
    enum quant_fmt id;
    int block_len;   /* values a block */
    int block_bytes; /* bytes a block */
    /* n values (a multiple of block_len) from src to dst. */
    void (*decode)(const void *src, float *dst, int64_t n);
    /* n values from src to dst; NULL where this program never encodes. Bit-equal to ggml's reference, but for the
     * searches of Q4_K, Q5_K and Q6_K, whose error is no larger. */
    void (*encode)(const float *src, void *dst, int64_t n);
};

/* NULL for a number that is no format of this build. */
const struct quant_format *quant_format_get(uint32_t id);
const struct quant_format *quant_format_by_name(const char *name);
/* Bytes of a row of n values; false when n is no multiple of the block or the result overflows. */
bool quant_row_bytes(const struct quant_format *f, int64_t n, size_t *out);

float quant_e4m3(uint8_t c); /* OCP fp8 E4M3 */

/* IEEE half and bfloat16, round to nearest even. */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
static inline float bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
static inline uint16_t f32_to_bf16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    if ((v.u & 0x7fffffffu) > 0x7f800000u) /* NaN stays NaN */
        return (uint16_t)((v.u >> 16) | 64);
    return (uint16_t)((v.u + (0x7fffu + ((v.u >> 16) & 1))) >> 16);
}

#endif
