/* Registry of weight formats. See quant.h; a new format is one file and one line in formats.def. */
#include "engine/quant/quant_impl.h"

#include "engine/base/mem.h"

#include <strings.h>

static const struct quant_format formats[] = {
#define QUANT_FORMAT(name, len, bytes, decode, encode)                                             \
    [QF_##name] = {#name, QF_##name, len, bytes, decode, encode},
#include "engine/quant/formats.def"
#undef QUANT_FORMAT
};

const struct quant_format *quant_format_get(uint32_t id)
{
    if (id >= sizeof formats / sizeof *formats || !formats[id].name)
        return NULL;
    return &formats[id];
}

const struct quant_format *quant_format_by_name(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].name && strcasecmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

bool quant_row_bytes(const struct quant_format *f, int64_t n, size_t *out)
{
    if (n < 0 || n % f->block_len)
        return false;
    return ck_mul((size_t)(n / f->block_len), (size_t)f->block_bytes, out);
}
