/* Blocks taken apart into codes and factors, for backends that pack weights their own way: every quantised format is
 * x = scale * level(code) + min with one scale (and one min) for each 16 or 32 values. Any thread. */
#ifndef ENGINE_QUANT_SPLIT_H
#define ENGINE_QUANT_SPLIT_H

#include "engine/quant/quant.h"

struct quant_shape {
    enum quant_fmt fmt;
    int bits;    /* of a code: 2, 3, 4, 5, 6 or 8; codes are unsigned */
    int group;   /* values that share a scale: 16 or 32 */
    bool min;    /* has offsets */
    int offset;  /* level = code - offset */
    bool levels; /* level = quant_levels[code] (IQ4), or of 8 bits the e4m3 that the code is */
};
/* NULL for a format that is not quantised (f32, f16, bf16) or not known. */
const struct quant_shape *quant_shape_get(enum quant_fmt fmt);
extern const int8_t quant_levels[16];

/* n values from src (a multiple of the format's block): code [n]; scale and min [n / 16], equal for both halves of a
 * group of 32; min is 0 where the format has none. */
void quant_split(enum quant_fmt fmt, const void *src, int64_t n, uint8_t *code, float *scale,
                 float *min);

#endif
