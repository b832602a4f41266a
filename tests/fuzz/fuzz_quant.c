/* Formats: any bytes decode without a fault; any floats encode, and what they decode to encodes again to something
 * that decodes. The first byte chooses the format. */
#include "tests/fuzz/fuzz.h"

#include "engine/base/mem.h"
#include "engine/quant/quant.h"

const char *const fuzz_seeds[] = {"tests/data/gguf-tiny/bad-offset-*.gguf",
                                  "tests/data/quants/ggml-quants.bin.xz", NULL};

static void decode_bytes(const struct quant_format *f, const uint8_t *data, size_t n)
{
    size_t blocks = n / (size_t)f->block_bytes, count = blocks * (size_t)f->block_len;
    float *out = xmalloc(count * sizeof *out);
    f->decode(data, out, (int64_t)count);
    free(out);
}

static void encode_floats(const struct quant_format *f, const uint8_t *data, size_t n)
{
    size_t blocks = n / sizeof(float) / (size_t)f->block_len, bytes = 0;
    int64_t count = (int64_t)blocks * f->block_len;
    float *x = xmalloc((size_t)count * sizeof *x);
    if (count)
        memcpy(x, data, (size_t)count * sizeof *x);
    if (quant_row_bytes(f, count, &bytes)) {
        uint8_t *q = xmalloc(bytes);
        f->encode(x, q, count);
        f->decode(q, x, count);
        f->encode(x, q, count);
        free(q);
    }
    free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct quant_format *f = n ? quant_format_get(data[0] % 128) : NULL;
    if (!f || n > 4096)
        n = n > 4096 ? 4096 : n; /* blocks are alike: more of them show nothing new */
    if (!f)
        return 0;
    decode_bytes(f, data + 1, n - 1);
    if (f->encode)
        encode_floats(f, data + 1, n - 1);
    return 0;
}
