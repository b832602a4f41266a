/* See round.h. */
#include "engine/load/round.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/quant/split.h"

enum quant_fmt round_format(const char *to, enum quant_fmt from, int64_t n_in)
{
    bool dense = from == QF_F32 || from == QF_F16 || from == QF_BF16;
    if (!to || !dense || n_in % 32)
        return from;
    if (strcmp(to, "q8") == 0)
        return QF_Q8_0;
    if (strcmp(to, "fp8") == 0)
        return QF_F8_32;
    if (strcmp(to, "q4") == 0)
        return n_in % 256 ? QF_Q4_1 : QF_Q4_K;
    return from;
}

/* The nearest e4m3, ties to even; |x| <= 448. */
static uint8_t e4m3_nearest(float x)
{
    float a = fabsf(x);
    int e;
    uint8_t sign = signbit(x) ? 0x80 : 0;
    if (!(a > 0)) /* NaN too: the codes of NaN stay out of weights */
        return sign;
    frexpf(a, &e);                    /* a in [2^(e-1), 2^e) */
    int unit = (e < -5 ? -5 : e) - 4; /* of the last place: 2^-9 for subnormals */
    int n = (int)nearbyintf(ldexpf(a, -unit));
    /* n is in 0..16; whole steps of the code are steps of n, across powers of two as well. */
    int code = (unit + 9) * 8 + n;
    return (uint8_t)(sign | (code > 0x7e ? 0x7e : code));
}

static void fp8_row(const float *x, uint8_t *code, float *scale, int64_t n_in)
{
    float top = 0;
    for (int64_t k = 0; k < n_in; k++)
        top = fmaxf(top, fabsf(x[k]));
    float s = isfinite(top) ? top / 448 : 0, inv = s > 0 ? 1 / s : 0;
    for (int64_t k = 0; k < n_in; k++)
        code[k] = e4m3_nearest(x[k] * inv);
    for (int64_t k = 0; k < n_in / 16; k++)
        scale[k] = s;
}

int round_rows(enum quant_fmt from, enum quant_fmt to, int64_t n_in, const void *src, int64_t n_row,
               void *dst, struct err *e)
{
    const struct quant_format *f = quant_format_get((uint32_t)from),
                              *t = quant_format_get((uint32_t)to);
    size_t from_row = 0, to_row = 0;
    CHECK(quant_row_bytes(f, n_in, &from_row) && quant_row_bytes(t, n_in, &to_row));
    float *x = mem_calloc((size_t)n_in, sizeof *x),
          *scale = mem_calloc((size_t)n_in / 16 + 1, sizeof *scale);
    uint8_t *code = mem_calloc((size_t)n_in, 1);
    int rc = x && scale && code
                 ? 0
                 : err_set(e, ERR_NOMEM, "no memory for a row of %lld values", (long long)n_in);
    for (int64_t r = 0; r < n_row && !rc; r++) {
        uint8_t *out = (uint8_t *)dst + (size_t)r * to_row;
        f->decode((const uint8_t *)src + (size_t)r * from_row, x, n_in);
        if (to == QF_F8_32) {
            fp8_row(x, code, scale, n_in);
            quant_join(to, code, scale, NULL, n_in, out);
        } else {
            t->encode(x, out, n_in);
        }
    }
    free(x);
    free(scale);
    free(code);
    return rc;
}
