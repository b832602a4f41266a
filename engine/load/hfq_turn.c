/* Quantised matrices turned. Their scales run along the columns of the stored rows; turned, each row meets many of them.
 * Only fp8 has one scale for 32 values both ways (DeepSeek's blocks of 128 x 128), and keeps its codes. */
#include "engine/load/hfq_impl.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/quant/split.h"

#define BLOCK 32 /* values a scale of QF_F8_32 */

enum quant_fmt hfq_turned_fmt(const struct hfq_tensor *q, int64_t from, int64_t n)
{
    /* A block of 32 rows stays inside one of scales; experts begin anew. */
    bool aligned = q->scale_row == 0 || (q->scale_row % BLOCK == 0 && from % q->n_out % BLOCK == 0);
    bool one = from / q->n_out == (from + n - 1) / q->n_out;
    return q->kind == HFQ_FP8 && n % BLOCK == 0 && aligned && one ? QF_F8_32 : QF_F32;
}

/* One column: codes, and the scale of each 32. */
static int column_fp8(const struct hfq_tensor *q, int64_t from, int64_t n, int64_t k, uint8_t *code,
                      float *scale)
{
    const uint8_t *all = q->code->data;
    for (int64_t i = 0; i < n; i++) {
        code[i] = all[(from + i) * q->n_in + k];
        if ((code[i] & 127) == 127)
            return ERR_INVAL;
        if (i % BLOCK == 0)
            scale[i / 16] = scale[i / 16 + 1] = hfq__scale(q, from + i, k);
    }
    return 0;
}

int hfq_turned(const struct hfq_tensor *q, int64_t from, int64_t n, int64_t col, int64_t n_col,
               void *dst, struct err *e)
{
    enum quant_fmt fmt = hfq_turned_fmt(q, from, n);
    size_t row = 0;
    CHECK(from >= 0 && n > 0 && from + n <= q->n_expert * q->n_out);
    CHECK(col >= 0 && n_col >= 0 && col + n_col <= q->n_in);
    CHECK(quant_row_bytes(quant_format_get((uint32_t)fmt), n, &row));
    uint8_t *code = mem_calloc((size_t)n, 1), *out = dst;
    float *value = mem_calloc((size_t)n, sizeof *value);
    int rc = code && value
                 ? 0
                 : err_set(e, ERR_NOMEM, "tensor %.96s: no memory for its columns", q->code->name);
    for (int64_t k = col; k < col + n_col && !rc; k++, out += row) {
        if (fmt == QF_F8_32) {
            rc = column_fp8(q, from, n, k, code, value);
            quant_join(fmt, code, value, NULL, n, out);
        } else {
            for (int64_t i = 0; i < n; i++) {
                value[i] = hfq__value(q, from + i, k);
                rc = isnan(value[i]) ? ERR_INVAL : rc;
            }
            quant_format_get(QF_F32)->encode(value, out, n);
        }
        if (rc)
            err_set(e, rc, "tensor %.96s: a weight is not a number", q->code->name);
    }
    free(code);
    free(value);
    return rc;
}
