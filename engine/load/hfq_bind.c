/* Which tensors make up a quantised matrix, by the names and shapes that each tool writes. Everything that hfq_rows.c reads
 * is checked here. */
#include "engine/load/hfq_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/quant/split.h"

#define WRONG(what, t) err_set(e, ERR_INVAL, "tensor %.96s: " what, (t)->name)

/* A tensor of n elements (any shape) that scales can be read from. */
static bool is_scales(const struct source_tensor *t, int64_t n)
{
    bool number =
        t->kind == SOURCE_F8_E4M3 || hfq__int_bytes(t) == 1 ||
        (t->kind == SOURCE_QUANT && (t->fmt == QF_F32 || t->fmt == QF_F16 || t->fmt == QF_BF16));
    return number && hfq__n(t) == n;
}

static bool is_ints(const struct source_tensor *t, int bytes, int64_t rows, int64_t cols)
{
    return hfq__int_bytes(t) == bytes && t->n_dim == 2 && t->dim[0] == rows && t->dim[1] == cols;
}

/* Groups of columns: how many, from the number of scales a row; their length. */
static int group_set(struct hfq_tensor *q, int64_t n_group, struct err *e)
{
    if (n_group < 1 || q->n_in % n_group)
        return err_set(e, ERR_INVAL, "tensor %.96s: %lld groups of %lld columns", q->code->name,
                       (long long)n_group, (long long)q->n_in);
    q->group = q->n_in / n_group;
    return 0;
}

/* Whether every run of 32 columns has one scale. A g_idx must stay inside the groups. */
static int order_check(const struct hfq_tensor *q, bool *plain, struct err *e)
{
    int64_t n_group = q->n_in / q->group;
    *plain = q->group % 32 == 0;
    if (!q->g_idx)
        return 0;
    if (hfq__int_bytes(q->g_idx) != 4 || hfq__n(q->g_idx) != q->n_in)
        return WRONG("not one 32-bit number a column", q->g_idx);
    *plain = true;
    for (int64_t k = 0; k < q->n_in; k++) {
        int64_t g = hfq__int_at(q->g_idx, k);
        if (g < 0 || g >= n_group)
            return err_set(e, ERR_INVAL,
                           "tensor %.96s: group %lld of column %lld is not below %lld",
                           q->g_idx->name, (long long)g, (long long)k, (long long)n_group);
        *plain = *plain && g == hfq__int_at(q->g_idx, k / 32 * 32);
    }
    return 0;
}

/* Columns in activation order, sorted by group: q->col. Left NULL when not every group has its whole number of blocks. */
static int order_sort(struct hfq *h, struct hfq_tensor *q, struct err *e)
{
    int64_t n_group = q->n_in / q->group;
    if (!q->g_idx || q->group % 32)
        return 0;
    int32_t *col = arena_alloc(&h->arena, (size_t)q->n_in * sizeof *col),
            *next = mem_calloc((size_t)n_group, sizeof *next);
    if (!col || !next) {
        free(next);
        return err_set(e, ERR_NOMEM, "tensor %.96s: no memory for its order of columns",
                       q->code->name);
    }
    bool even = true;
    for (int64_t k = 0; k < q->n_in && even; k++) {
        int64_t g = hfq__int_at(q->g_idx, k);
        even = next[g] < q->group;
        if (even)
            col[g * q->group + next[g]++] = (int32_t)k;
    }
    free(next);
    q->col = even ? col : NULL;
    return 0;
}

/* The format of codes of `bits` bits with a scale and a zero a group. */
static int fmt_set(struct hfq *h, struct hfq_tensor *q, struct err *e)
{
    bool plain;
    int rc = order_check(q, &plain, e);
    if (rc)
        return rc;
    if (q->n_in % 32)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.96s: %lld columns are no multiple of 32",
                       q->code->name, (long long)q->n_in);
    if (!plain && (rc = order_sort(h, q, e)))
        return rc;
    bool blocks = plain || q->col;
    q->t.fmt = !blocks ? QF_F16 : q->bits == 8 ? (q->zero ? QF_I8M_32 : QF_I8_32) : QF_I4_32;
    return 0;
}

/* X.qweight, X.qzeros, X.scales, X.g_idx: GPTQ and AWQ. */
int hfq__qweight_bind(struct hfq *h, struct hfq_tensor *q, const char *stem, struct err *e)
{
    const char *method = hfq__config_str(h, "quant_method", "gptq");
    bool awq = strcmp(method, "awq") == 0;
    const char *version =
        hfq__config_str(h, awq ? "version" : "checkpoint_format", awq ? "gemm" : "gptq");
    const struct source_tensor *c = q->code;
    q->bits = (int)hfq__config_int(h, "bits", 4);
    q->zero = hfq__part(h, stem, ".qzeros");
    q->scale = hfq__part(h, stem, ".scales");
    q->g_idx = awq ? NULL : hfq__part(h, stem, ".g_idx");
    if (!q->scale || !q->zero)
        return WRONG("no .scales or no .qzeros beside it", c);
    if (q->bits != 2 && q->bits != 3 && q->bits != 4 && q->bits != 8)
        return err_set(e, ERR_UNSUPPORTED,
                       "config.json: quantization_config.bits is %d, not 2, 3, 4 or 8", q->bits);
    if (awq && (q->bits != 4 || (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)))
        return err_set(e, ERR_UNSUPPORTED,
                       "config.json: quantization_config: AWQ of version %.32s in %d bits (gemm in "
                       "4 is read)",
                       version, q->bits);
    if (!awq && strcmp(version, "gptq") != 0 && strcmp(version, "gptq_v2") != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "config.json: quantization_config.checkpoint_format %.32s is not gptq or "
                       "gptq_v2",
                       version);
    if (hfq__int_bytes(c) != 4 || c->n_dim != 2 || q->scale->n_dim != 2 || q->zero->n_dim != 2)
        return WRONG("not a matrix of 32-bit numbers with matrices of scales and zeros", c);
    q->kind = awq ? HFQ_AWQ : HFQ_GPTQ;
    q->zero_add = !awq && strcmp(version, "gptq") == 0;
    q->n_in = awq ? c->dim[0] : c->dim[0] * 32 / q->bits;
    q->n_out = awq ? c->dim[1] * 8 : c->dim[1];
    int64_t n_group = q->scale->dim[0];
    int rc = group_set(q, n_group, e);
    if (rc)
        return rc;
    if (!is_scales(q->scale, n_group * q->n_out) || q->scale->dim[1] != q->n_out)
        return WRONG("not a scale a group and output", q->scale);
    if (q->n_out * q->bits % 32 || c->dim[0] * 32 % q->bits ||
        !is_ints(q->zero, 4, n_group, q->n_out * q->bits / 32))
        return WRONG("not a zero a group and output", q->zero);
    return fmt_set(h, q, e);
}

/* Four-bit floating point: X.weight_packed (or X.weight) u8, X.weight_scale, and a factor of all. */
static int fp4_bind(struct hfq *h, struct hfq_tensor *q, const char *stem, struct err *e)
{
    const struct source_tensor *by = hfq__part(h, stem, ".weight_global_scale"),
                               *times = hfq__part(h, stem, ".weight_scale_2"), *c = q->code;
    hfq__part(h, stem, ".input_global_scale");
    hfq__part(h, stem, ".input_scale");
    if (hfq__int_bytes(c) != 1 || c->n_dim != 2)
        return WRONG("not a matrix of bytes", c);
    q->kind = HFQ_NVFP4;
    q->n_out = c->dim[0];
    q->n_in = c->dim[1] * 2;
    if ((by && !is_scales(by, 1)) || (times && !is_scales(times, 1)))
        return WRONG("its global scale is not one number", c);
    if (by && !(hfq__scale_at(by, 0) != 0))
        return WRONG("its global scale is 0", c);
    q->factor = by ? 1 / hfq__scale_at(by, 0) : times ? hfq__scale_at(times, 0) : 1;
    q->group = by || times ? 16 : 32;
    if (q->n_in % 32 || !is_scales(q->scale, q->n_out * (q->n_in / q->group)))
        return WRONG("not a scale for each 16 (NVFP4) or 32 (MXFP4) columns", q->scale);
    q->t.fmt = QF_F4_16;
    return 0;
}

/* X.weight_packed, X.weight_scale, X.weight_zero_point, X.weight_g_idx, X.weight_shape: compressed-tensors. */
int hfq__packed_bind(struct hfq *h, struct hfq_tensor *q, const char *stem, struct err *e)
{
    const struct source_tensor *c = q->code, *shape = hfq__part(h, stem, ".weight_shape");
    q->scale = hfq__part(h, stem, ".weight_scale");
    if (!q->scale)
        return WRONG("no .weight_scale beside it", c);
    if (hfq__int_bytes(c) == 1)
        return fp4_bind(h, q, stem, e);
    q->zero = hfq__part(h, stem, ".weight_zero_point");
    q->g_idx = hfq__part(h, stem, ".weight_g_idx");
    if (hfq__int_bytes(c) != 4 || c->n_dim != 2 || !shape || hfq__n(shape) != 2 ||
        !hfq__int_bytes(shape))
        return WRONG("not a matrix of 32-bit numbers with a .weight_shape beside it", c);
    q->kind = HFQ_PACKED;
    q->n_out = hfq__int_at(shape, 0);
    q->n_in = hfq__int_at(shape, 1);
    if (q->n_out != c->dim[0] || q->n_in < 32 || q->n_in > 1 << 26 || c->dim[1] * 32 % q->n_in ||
        (c->dim[1] * 32 / q->n_in != 4 && c->dim[1] * 32 / q->n_in != 8))
        return WRONG("its .weight_shape does not fit codes of 4 or 8 bits", c);
    q->bits = (int)(c->dim[1] * 32 / q->n_in);
    int64_t n_group = q->scale->n_dim == 2 ? q->scale->dim[1] : 1;
    int rc = group_set(q, n_group, e);
    if (rc)
        return rc;
    if (!is_scales(q->scale, q->n_out * n_group))
        return WRONG("not a scale a group and output", q->scale);
    if (q->zero &&
        (q->n_out * q->bits % 32 || !is_ints(q->zero, 4, q->n_out * q->bits / 32, n_group)) &&
        !is_ints(q->zero, 1, q->n_out, n_group))
        return WRONG("not a zero a group and output", q->zero);
    return fmt_set(h, q, e);
}

/* Scales of an fp8 or int8 matrix (or of experts): one, one a row, or one a block. */
static int scale_shape(struct hfq_tensor *q, struct err *e)
{
    const struct source_tensor *s = q->scale;
    int64_t n = hfq__n(s), rows = q->n_expert * q->n_out;
    q->group = q->n_in;
    q->scale_row = n == 1 ? 0 : 1;
    if (!is_scales(s, n))
        return WRONG("not scales", s);
    if (n == 1 || (n == rows && (s->n_dim == 1 || s->dim[s->n_dim - 1] == 1)))
        return 0;
    if (n == q->n_expert) {
        q->scale_row = q->n_out;
        return 0;
    }
    int64_t a = s->n_dim >= 2 ? s->dim[s->n_dim - 2] : 0,
            b = s->n_dim >= 2 ? s->dim[s->n_dim - 1] : 0;
    if (a < 1 || b < 1 || a > q->n_out || b > q->n_in || n != q->n_expert * a * b)
        return WRONG("not one scale, nor one a row or block", s);
    /* Blocks are powers of two; the last may be cut. */
    for (q->scale_row = 1; (q->n_out + q->scale_row - 1) / q->scale_row > a;)
        q->scale_row *= 2;
    for (q->group = 1; (q->n_in + q->group - 1) / q->group > b;)
        q->group *= 2;
    if ((q->n_out + q->scale_row - 1) / q->scale_row != a ||
        (q->n_in + q->group - 1) / q->group != b || q->group % 32)
        return WRONG("its blocks are no powers of two of at least 32 columns", s);
    return 0;
}

static int bytes_bind(struct hfq_tensor *q, struct err *e)
{
    const struct source_tensor *c = q->code;
    if (c->n_dim != 2 && c->n_dim != 3)
        return WRONG("quantised, and neither a matrix nor a stack of them", c);
    q->n_expert = c->n_dim == 3 ? c->dim[0] : 1;
    q->n_out = c->dim[c->n_dim - 2];
    q->n_in = c->dim[c->n_dim - 1];
    q->bits = 8;
    if (q->n_in % 32)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.96s: %lld columns are no multiple of 32",
                       c->name, (long long)q->n_in);
    return q->scale ? scale_shape(q, e) : 0;
}

/* Whether the table of codes is bitsandbytes' FP4. */
static bool is_fp4(const struct hfq_tensor *q)
{
    for (int i = 0; i < 16; i++) {
        float want = quant_levels_b4[i] / HFQ_FP4_TIMES;
        if (!(fabsf(hfq__scale_at(q->map, i) - want) <= 1e-6f * fabsf(want)))
            return false;
    }
    return true;
}

/* X.weight u8, X.weight.absmax, X.weight.quant_map, X.weight.quant_state.bitsandbytes__nf4: bitsandbytes in four bits. */
static int bnb4_bind(struct hfq *h, struct hfq_tensor *q, const char *stem, struct err *e)
{
    const struct source_tensor *c = q->code,
                               *state = hfq__part(h, stem, ".weight.quant_state.bitsandbytes__nf4"),
                               *nmap = hfq__part(h, stem, ".weight.nested_quant_map");
    q->map = hfq__part(h, stem, ".weight.quant_map");
    q->nested = hfq__part(h, stem, ".weight.nested_absmax");
    if (!state)
        state = hfq__part(h, stem, ".weight.quant_state.bitsandbytes__fp4");
    if (!state || hfq__int_bytes(state) != 1 || !q->map || !is_scales(q->map, 16))
        return WRONG("no quant_state or no quant_map of 16 beside it", c);
    struct config *s;
    int rc = config_open_text(&s, state->data, state->bytes, state->name, e);
    if (rc)
        return rc;
    q->n_out = config_int_at(s, "shape", 0, 1, INT32_MAX);
    q->n_in = config_int_at(s, "shape", 1, 1, INT32_MAX);
    q->group = config_int(s, "blocksize", 64, 32, 1 << 20);
    q->nested_block = config_int(s, "nested_blocksize", 256, 1, 1 << 20);
    q->nested_offset = (float)config_num(s, "nested_offset", 0, -1e30, 1e30);
    rc = config_error(s, e);
    config_close(s);
    if (rc)
        return rc;
    int64_t n = q->n_out * q->n_in, blocks = (n + q->group - 1) / q->group;
    q->kind = HFQ_BNB4;
    if (q->n_in % 32 || q->group % 32 || hfq__int_bytes(c) != 1 || hfq__n(c) * 2 != n)
        return WRONG("its codes do not fit its quant_state", c);
    if (!is_scales(q->scale, blocks))
        return WRONG("not a scale a block", q->scale);
    if (q->nested && (hfq__int_bytes(q->scale) != 1 || !nmap || !is_scales(nmap, 256) ||
                      !is_scales(q->nested, (blocks + q->nested_block - 1) / q->nested_block)))
        return WRONG("its double quantisation is not complete", q->scale);
    if (!q->nested && q->scale->kind != SOURCE_QUANT)
        return WRONG("8-bit scales without nested_absmax", q->scale);
    q->zero = nmap;
    q->t.fmt = QF_NF4_32;
    for (int i = 0; i < 16; i++)
        if (hfq__scale_at(q->map, i) != quant_levels_nf4[i])
            q->t.fmt = is_fp4(q) ? QF_B4_32 : QF_F16;
    return 0;
}

/* X.weight in fp8 or int8, with scales beside it; or bitsandbytes', or modelopt's NVFP4. */
int hfq__weight_bind(struct hfq *h, struct hfq_tensor *q, const char *stem, struct err *e)
{
    static const char *const tails[] = {
        ".weight_scale_inv", ".weight_scale", ".scale_weight", ".SCB", "_scale_inv", "_scale"};
    const struct source_tensor *c = q->code;
    bool fp8 = c->kind == SOURCE_F8_E4M3, byte = hfq__int_bytes(c) == 1;
    if (!fp8 && !byte)
        return ERR_NOTFOUND;
    if (c->kind == SOURCE_F8_E4M3 && c->n_dim < 2) /* scales */
        return ERR_NOTFOUND;
    q->scale = byte ? hfq__part(h, stem, ".weight.absmax") : NULL;
    if (q->scale)
        return bnb4_bind(h, q, stem, e);
    for (size_t i = 0; i < sizeof tails / sizeof *tails && !q->scale; i++) {
        q->scale = hfq__part(h, stem, tails[i]);
        if (q->scale && strcmp(tails[i], ".SCB") == 0)
            q->factor = 1.0f / 127;
    }
    if (!q->scale && (byte || strcmp(stem, c->name) == 0))
        return ERR_NOTFOUND;
    hfq__part(h, stem, ".input_scale");
    hfq__part(h, stem, ".weight_format");
    if (byte && q->scale->kind == SOURCE_F8_E4M3)
        return fp4_bind(h, q, stem, e);
    q->kind = fp8 ? HFQ_FP8 : HFQ_INT8;
    q->t.fmt = fp8 ? QF_F8_32 : QF_I8_32;
    q->zero = byte ? hfq__part(h, stem, ".weight_zero_point") : NULL;
    int rc = bytes_bind(q, e);
    if (!rc && q->zero) {
        q->t.fmt = QF_I8M_32;
        if (hfq__int_bytes(q->zero) != 1 || hfq__n(q->zero) != hfq__n(q->scale))
            return WRONG("not a zero a scale", q->zero);
    }
    return rc;
}

/* X_blocks, X_scales: MXFP4 experts of gpt-oss. */
int hfq__blocks_bind(struct hfq *h, struct hfq_tensor *q, const char *stem, struct err *e)
{
    const struct source_tensor *c = q->code;
    if (hfq__int_bytes(c) != 1 || c->n_dim != 4 || c->dim[3] != 16)
        return ERR_NOTFOUND;
    q->scale = hfq__part(h, stem, "_scales");
    q->kind = HFQ_MXFP4;
    q->n_expert = c->dim[0];
    q->n_out = c->dim[1];
    q->n_in = c->dim[2] * 32;
    if (!q->scale || hfq__int_bytes(q->scale) != 1 || hfq__n(q->scale) != hfq__n(c) / 16)
        return WRONG("no scale for each 32 columns beside it", c);
    q->t.fmt = QF_MXFP4;
    return 0;
}
