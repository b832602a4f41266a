/* Blocks taken apart into codes and factors, for backends that pack weights their own way: every quantised format is
 * x = scale * level(code) + min with one scale (and one min) for each 16 or 32 values. Any thread. */
#ifndef ENGINE_QUANT_SPLIT_H
#define ENGINE_QUANT_SPLIT_H

#include "engine/quant/quant.h"

/* What a code stands for. */
enum quant_level {
    LEVEL_INT,  /* code - offset */
    LEVEL_IQ4,  /* a table of 16 whole numbers */
    LEVEL_E4M3, /* the fp8 that it is */
    LEVEL_FP4,  /* twice the e2m1 that it is: whole numbers up to 12 */
    LEVEL_NF4,  /* quantiles of the normal distribution (Dettmers et al. 2023) */
    LEVEL_B4, /* bitsandbytes' FP4, twelve times: e2m1's, but for 1/16 and their order; all bf16 and e4m3 numbers */
};

struct quant_shape {
    enum quant_fmt fmt;
    int bits;   /* of a code: 2, 3, 4, 5, 6 or 8; codes are unsigned */
    int group;  /* values that share a scale: 16 or 32 */
    bool min;   /* has offsets */
    int offset; /* level = code - offset */
    enum quant_level level;
};
/* NULL for a format that is not quantised (f32, f16, bf16) or not known. */
const struct quant_shape *quant_shape_get(enum quant_fmt fmt);
extern const int8_t quant_levels_iq4[16], quant_levels_fp4[16];
extern const float quant_levels_nf4[16], quant_levels_b4[16];
float quant_level_value(const struct quant_shape *s, uint8_t code);

/* n values from src (a multiple of the format's block): code [n]; scale and min [n / 16], equal for both halves of a
 * group of 32; min is 0 where the format has none. */
void quant_split(enum quant_fmt fmt, const void *src, int64_t n, uint8_t *code, float *scale,
                 float *min);
/* The reverse, for formats of our own (QF_I8_32 and behind). */
void quant_join(enum quant_fmt fmt, const uint8_t *code, const float *scale, const float *min,
                int64_t n, void *dst);

#endif
