/* The reverse of split.c, for the formats that a loader writes (group.c). */
#include "engine/quant/quant_impl.h"
#include "engine/quant/split.h"

#include "engine/base/err.h"

static void nibbles(uint8_t *qs, const uint8_t *code, int half)
{
    for (int i = 0; i < half; i++)
        qs[i] = (uint8_t)((code[i] & 15) | code[i + half] << 4);
}

void quant_join(enum quant_fmt fmt, const uint8_t *code, const float *scale, const float *min,
                int64_t n, void *dst)
{
    const struct quant_format *f = quant_format_get((uint32_t)fmt);
    uint8_t *b = dst;
    bool has_min = fmt == QF_I8M_32 || fmt == QF_I4_32;
    for (int64_t at = 0; at < n; at += f->block_len, code += f->block_len, b += f->block_bytes) {
        uint8_t *qs = b + (has_min ? 8 : 4);
        memcpy(b, &scale[at / 16], 4);
        if (has_min)
            memcpy(b + 4, &min[at / 16], 4);
        switch (fmt) {
        case QF_I8_32:
        case QF_I8M_32:
            for (int i = 0; i < 32; i++)
                qs[i] = (uint8_t)(code[i] ^ 0x80);
            break;
        case QF_F8_32:
            memcpy(qs, code, 32);
            break;
        default:
            CHECK(fmt == QF_I4_32 || fmt == QF_NF4_32 || fmt == QF_B4_32 || fmt == QF_F4_16);
            nibbles(qs, code, f->block_len / 2);
        }
    }
}
