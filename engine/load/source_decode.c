/* Values of a tensor as f32. */
#include "engine/load/source_impl.h"

#include <string.h>

#define TABLE_FROM 1024 /* values from which a table of all 256 codes pays */

static float f8(enum source_kind k, uint8_t c)
{
    /* e5m2 is the upper byte of an IEEE half */
    return k == SOURCE_F8_E4M3 ? quant_e4m3(c) : f16_to_f32((uint16_t)(c << 8));
}

static void decode_f8(const struct source_tensor *t, int64_t from, int64_t n, float *dst)
{
    const uint8_t *p = (const uint8_t *)t->data + from;
    float table[256];
    if (n < TABLE_FROM) {
        for (int64_t i = 0; i < n; i++)
            dst[i] = f8(t->kind, p[i]) * t->scale;
        return;
    }
    for (int i = 0; i < 256; i++)
        table[i] = f8(t->kind, (uint8_t)i) * t->scale;
    for (int64_t i = 0; i < n; i++)
        dst[i] = table[p[i]];
}

static void decode_f64(const struct source_tensor *t, int64_t from, int64_t n, float *dst)
{
    const uint8_t *p = (const uint8_t *)t->data + 8 * from;
    for (int64_t i = 0; i < n; i++) {
        double d;
        memcpy(&d, p + 8 * i, 8);
        dst[i] = (float)d;
    }
}

static int decode_blocks(const struct source_tensor *t, int64_t from, int64_t n, float *dst)
{
    const struct quant_format *f = quant_format_get((uint32_t)t->fmt);
    if (!f || from % f->block_len || n % f->block_len)
        return ERR_INVAL;
    f->decode((const uint8_t *)t->data + from / f->block_len * f->block_bytes, dst, n);
    return 0;
}

int source_decode(const struct source_tensor *t, int64_t from, int64_t n, float *dst)
{
    int64_t total = 1;
    for (int i = 0; i < t->n_dim; i++)
        total *= t->dim[i]; /* open has checked it against the bytes */
    CHECK(from >= 0 && n >= 0 && from <= total && n <= total - from);
    if (t->kind == SOURCE_QUANT)
        return decode_blocks(t, from, n, dst);
    if (t->kind == SOURCE_INT)
        return ERR_INVAL;
    (t->kind == SOURCE_F64 ? decode_f64 : decode_f8)(t, from, n, dst);
    return 0;
}
