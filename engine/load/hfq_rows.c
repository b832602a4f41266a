/* Rows of quantised matrices into blocks of engine/quant. A row's codes, scales and offsets are gathered as split.h has
 * them (a scale for each 16 columns), then joined; what has no block format is multiplied out. */
#include "engine/load/hfq_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/quant/split.h"

/* Some rows at a time: in GPTQ's and AWQ's layouts neighbouring rows share words. */
#define ROWS 16

struct rows {
    const struct hfq_tensor *q;
    int64_t from;
    int n;
    int16_t *code; /* [ROWS][n_in]: as stored, or less its zero where it is f16 that is wanted */
    float *scale, *min; /* [ROWS][n_in / 16] */
    float *value;       /* [n_in] of f16 rows */
    uint8_t *byte;      /* [n_in] */
};

static uint32_t word_at(const struct source_tensor *t, int64_t i)
{
    uint32_t w;
    memcpy(&w, (const uint8_t *)t->data + 4 * i, 4);
    return w;
}

/* Element i of a run of words, `stride` words apart: a stream of `bits` bits each, lowest first. */
static int bits_at(const struct source_tensor *t, int64_t first, int64_t stride, int64_t i,
                   int bits)
{
    int64_t bit = i * bits, w = first + bit / 32 * stride;
    int at = (int)(bit % 32);
    uint32_t v = word_at(t, w) >> at;
    if (at + bits > 32) /* only 3 bits cross a word */
        v |= word_at(t, w + stride) << (32 - at);
    return (int)(v & ((1u << bits) - 1));
}

static int awq_at(const struct source_tensor *t, int64_t row, int64_t col)
{
    static const int place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return (int)(word_at(t, row * t->dim[1] + col / 8) >> 4 * place[col % 8] & 15);
}

static int code_at(const struct hfq_tensor *q, int64_t row, int64_t k)
{
    const struct source_tensor *c = q->code;
    switch (q->kind) {
    case HFQ_GPTQ:
        return bits_at(c, row, c->dim[1], k, q->bits);
    case HFQ_AWQ:
        return awq_at(c, k, row);
    case HFQ_PACKED:
        return bits_at(c, row * c->dim[1], 1, k, q->bits);
    case HFQ_INT8:
        return ((const int8_t *)c->data)[row * q->n_in + k];
    default:
        break;
    }
    return ((const uint8_t *)c->data)[row * q->n_in + k]; /* fp8 */
}

static int zero_at(const struct hfq_tensor *q, int64_t row, int64_t g)
{
    const struct source_tensor *z = q->zero;
    int top = 1 << q->bits;
    switch (q->kind) {
    case HFQ_GPTQ:
        return (bits_at(z, g * z->dim[1], 1, row, q->bits) + q->zero_add) & (top - 1);
    case HFQ_AWQ:
        return awq_at(z, g, row);
    case HFQ_PACKED:
        if (!z)
            return top / 2;
        if (hfq__int_bytes(z) == 1)
            return (int)hfq__int_at(z, row * z->dim[1] + g) + top / 2;
        return bits_at(z, g, z->dim[1], row, q->bits);
    default:
        break;
    }
    return z ? (int)hfq__int_at(z, q->scale_row ? row / q->scale_row : 0) : 0;
}

static float scale_at(const struct hfq_tensor *q, int64_t row, int64_t g)
{
    int64_t n_group = (q->n_in + q->group - 1) / q->group;
    if (q->kind == HFQ_GPTQ || q->kind == HFQ_AWQ)
        return hfq__scale_at(q->scale, g * q->n_out + row);
    if (q->kind == HFQ_PACKED)
        return hfq__scale_at(q->scale, row * n_group + g);
    if (!q->scale)
        return 1;
    /* Blocks do not cross experts. */
    int64_t per = q->scale_row ? (q->n_out + q->scale_row - 1) / q->scale_row : 0;
    int64_t at = q->scale_row ? row / q->n_out * per + row % q->n_out / q->scale_row : 0;
    return hfq__scale_at(q->scale, at * n_group + g) * q->factor;
}

static int64_t group_of(const struct hfq_tensor *q, int64_t k)
{
    return q->g_idx ? hfq__int_at(q->g_idx, k) : k / q->group;
}

float hfq__scale(const struct hfq_tensor *q, int64_t row, int64_t k)
{
    return scale_at(q, row, group_of(q, k));
}

/* Codes, scales and offsets of one row, codes as the block format has them. */
static void row_plain(const struct rows *r, int i)
{
    const struct hfq_tensor *q = r->q;
    int64_t row = r->from + i, n16 = q->n_in / 16;
    int16_t *code = r->code + i * q->n_in;
    int bias = q->t.fmt == QF_I8_32 || q->t.fmt == QF_I8M_32 ? q->kind == HFQ_INT8 ? 128 : 0 : 0;
    for (int64_t k = 0; k < q->n_in; k++)
        code[k] = (int16_t)(code_at(q, row, q->col ? q->col[k] : k) + bias);
    for (int64_t k = 0; k < q->n_in; k += 32) {
        int64_t g = group_of(q, q->col ? q->col[k] : k), at = i * n16 + k / 16;
        float s = scale_at(q, row, g), m = 0;
        if (q->t.fmt == QF_I4_32)
            m = -s * (float)zero_at(q, row, g);
        else if (q->t.fmt == QF_I8M_32)
            m = s * (float)((q->kind == HFQ_INT8 ? 0 : 128) - zero_at(q, row, g));
        r->scale[at] = r->scale[at + 1] = s;
        r->min[at] = r->min[at + 1] = m;
    }
}

static float bnb_absmax(const struct hfq_tensor *q, int64_t block)
{
    if (!q->nested)
        return hfq__scale_at(q->scale, block);
    uint8_t c = ((const uint8_t *)q->scale->data)[block];
    return hfq__scale_at(q->zero, c) * hfq__scale_at(q->nested, block / q->nested_block) +
           q->nested_offset;
}

/* Pairs of codes in bytes. */
static void row_nibbles(const struct rows *r, int i)
{
    const struct hfq_tensor *q = r->q;
    int64_t row = r->from + i, n16 = q->n_in / 16;
    bool high_first = q->kind == HFQ_BNB4;
    const uint8_t *src = (const uint8_t *)q->code->data + row * (q->n_in / 2);
    int16_t *code = r->code + i * q->n_in;
    for (int64_t k = 0; k < q->n_in; k++)
        code[k] = (int16_t)(src[k / 2] >> 4 * ((k & 1) ^ (high_first ? 1 : 0)) & 15);
    bool fp4 = q->t.fmt == QF_B4_32;
    for (int64_t k = 0; k < q->n_in; k += 16) {
        float *s = &r->scale[i * n16 + k / 16];
        r->min[i * n16 + k / 16] = 0;
        if (q->kind == HFQ_BNB4)
            *s = bnb_absmax(q, (row * q->n_in + k) / q->group) / (fp4 ? HFQ_FP4_TIMES : 1);
        else /* levels are doubled */
            *s = 0.5f * q->factor * hfq__scale_at(q->scale, (row * q->n_in + k) / q->group);
    }
}

/* What one code stands for, in one multiplication (two where a factor of all scales is there). */
float hfq__value(const struct hfq_tensor *q, int64_t row, int64_t k)
{
    int64_t at = row * q->n_in + k;
    if (q->kind == HFQ_BNB4 || q->kind == HFQ_NVFP4 || q->kind == HFQ_MXFP4) {
        int high = (int)(k & 1) ^ (q->kind == HFQ_BNB4 ? 1 : 0);
        int c = ((const uint8_t *)q->code->data)[at / 2] >> 4 * high & 15;
        if (q->kind == HFQ_BNB4)
            return bnb_absmax(q, at / q->group) * hfq__scale_at(q->map, c);
        float s = 0.5f * q->factor * hfq__scale_at(q->scale, at / q->group);
        return s * (float)quant_levels_fp4[c];
    }
    int c = code_at(q, row, k);
    int64_t g = group_of(q, k);
    if (q->kind == HFQ_FP8)
        return scale_at(q, row, g) * quant_e4m3((uint8_t)c);
    return scale_at(q, row, g) * (float)(c - zero_at(q, row, g));
}

static void row_dense(const struct rows *r, int i, const struct quant_format *f, uint8_t *dst)
{
    for (int64_t k = 0; k < r->q->n_in; k++)
        r->value[k] = hfq__value(r->q, r->from + i, k);
    f->encode(r->value, dst, r->q->n_in);
}

/* A block of MXFP4 as it is, its nibbles in the other order. */
static void row_mxfp4(const struct hfq_tensor *q, int64_t row, uint8_t *dst)
{
    const uint8_t *s = (const uint8_t *)q->scale->data + row * (q->n_in / 32);
    const uint8_t *src = (const uint8_t *)q->code->data + row * (q->n_in / 2);
    for (int64_t b = 0; b < q->n_in / 32; b++, src += 16, dst += 17) {
        dst[0] = s[b];
        for (int i = 0; i < 16; i++) {
            int lo = src[i / 2] >> 4 * (i % 2) & 15, hi = src[8 + i / 2] >> 4 * (i % 2) & 15;
            dst[1 + i] = (uint8_t)(lo | hi << 4);
        }
    }
}

static int rows_make(const struct rows *r, uint8_t *dst, size_t row_bytes, struct err *e)
{
    const struct hfq_tensor *q = r->q;
    for (int i = 0; i < r->n; i++, dst += row_bytes) {
        if (q->kind == HFQ_MXFP4) {
            row_mxfp4(q, r->from + i, dst);
            continue;
        }
        if (q->t.fmt == QF_F16) {
            row_dense(r, i, quant_format_get(QF_F16), dst);
            continue;
        }
        if (q->kind == HFQ_NVFP4 || q->kind == HFQ_BNB4)
            row_nibbles(r, i);
        else
            row_plain(r, i);
        for (int64_t k = 0; k < q->n_in; k++) {
            r->byte[k] = (uint8_t)r->code[i * q->n_in + k];
            if (q->kind == HFQ_FP8 && (r->byte[k] & 127) == 127)
                return err_set(e, ERR_INVAL, "tensor %.96s: a weight is not a number",
                               q->code->name);
        }
        quant_join(q->t.fmt, r->byte, r->scale + i * (q->n_in / 16), r->min + i * (q->n_in / 16),
                   q->n_in, dst);
    }
    return 0;
}

int hfq_rows_dense(const struct hfq_tensor *q, enum quant_fmt fmt, int64_t from, int64_t n,
                   void *dst, struct err *e)
{
    const struct quant_format *f = quant_format_get((uint32_t)fmt);
    CHECK(from >= 0 && n >= 0 && from + n <= q->n_expert * q->n_out);
    float *value = mem_calloc((size_t)q->n_in, sizeof *value);
    if (!value)
        return err_set(e, ERR_NOMEM, "tensor %.96s: no memory for its rows", q->code->name);
    struct rows r = {.q = q, .from = from, .value = value};
    for (int64_t i = 0; i < n; i++)
        row_dense(&r, (int)i, f, (uint8_t *)dst + (size_t)(i * q->n_in * f->block_bytes));
    free(value);
    return 0;
}

int hfq_rows(const struct hfq_tensor *q, int64_t from, int64_t n, void *dst, struct err *e)
{
    size_t row_bytes = 0, n_in = (size_t)q->n_in;
    CHECK(from >= 0 && n >= 0 && from + n <= q->n_expert * q->n_out);
    CHECK(quant_row_bytes(quant_format_get((uint32_t)q->t.fmt), q->n_in, &row_bytes));
    struct rows r = {.q = q,
                     .code = mem_calloc(n_in * ROWS, sizeof *r.code),
                     .scale = mem_calloc(n_in, sizeof *r.scale),
                     .min = mem_calloc(n_in, sizeof *r.min),
                     .value = mem_calloc(n_in, sizeof *r.value),
                     .byte = mem_calloc(n_in, 1)};
    int rc = 0;
    if (!r.code || !r.scale || !r.min || !r.value || !r.byte)
        rc = err_set(e, ERR_NOMEM, "tensor %.96s: no memory for its rows", q->code->name);
    for (int64_t i = 0; i < n && !rc; i += ROWS) {
        r.from = from + i;
        r.n = n - i < ROWS ? (int)(n - i) : ROWS;
        rc = rows_make(&r, (uint8_t *)dst + (size_t)i * row_bytes, row_bytes, e);
    }
    free(r.code);
    free(r.scale);
    free(r.min);
    free(r.value);
    free(r.byte);
    return rc;
}
