/* Packing. See weight.h. */
#include "cuda/weight.h"

#include "engine/backend.h"
#include "engine/base/mem.h"
#include "engine/quant/split.h"

#include <math.h>
#include <string.h>

#define ALIGN 256

static void part_plan(struct cu_part *p, const struct weight_part *src, int f32)
{
    const struct quant_shape *q = quant_shape_get(src->fmt);
    *p = (struct cu_part){.bits = f32 ? 32 : 16, .n_out = src->n_out};
    if (q && !f32) {
        p->bits = q->bits;
        p->group = q->group;
        p->min = q->min;
        p->offset = q->offset;
        p->levels = (int)q->level;
        if (q->level == LEVEL_B4) { /* no kernels of its own: its levels are e4m3 numbers */
            p->bits = 8;
            p->levels = LEVEL_E4M3;
        }
        p->unit_bytes = p->bits * CU_PANEL * CU_STAGE / 8 +
                        CU_STAGE / p->group * CU_PANEL * 2 * (p->min ? 2 : 1);
    } else {
        p->unit_bytes = CU_PANEL * CU_STAGE * 2;
    }
}

/* A part's pieces, in this order; each a multiple of ALIGN. */
struct pieces {
    size_t data, scales, rows, all;
};

static bool array_bytes(int64_t n_out, int64_t n_in, size_t each, size_t *bytes)
{
    size_t n;
    return ck_mul((size_t)n_out, (size_t)n_in, &n) && ck_mul(n, each, &n) &&
           ck_round_up(n, ALIGN, bytes);
}

static bool part_bytes(const struct cu_weight *w, const struct cu_part *p, struct pieces *b)
{
    size_t panels = ((size_t)p->n_out + CU_PANEL - 1) / CU_PANEL, n;
    *b = (struct pieces){0};
    if (p->bits == 32)
        return array_bytes(p->n_out, w->n_in, 4, &b->data) && ck_add(b->data, 0, &b->all);
    if (p->bits < 16 && !array_bytes(p->n_out, 1, 4, &b->scales))
        return false;
    if (p->bits == 16 && w->lt && !array_bytes(p->n_out, w->n_in, 2, &b->rows))
        return false;
    return ck_mul(panels, (size_t)(w->n_in_pad / CU_STAGE), &n) &&
           ck_mul(n, (size_t)p->unit_bytes, &n) && ck_round_up(n, ALIGN, &b->data) &&
           ck_add(b->data, b->scales, &b->all) && ck_add(b->all, b->rows, &b->all);
}

static int plan(struct cu_weight *out, const struct weight_desc *w, int f32, size_t *bytes,
                struct err *e)
{
    out->n_in_pad = (w->n_in + CU_STAGE - 1) / CU_STAGE * CU_STAGE;
    *bytes = 0;
    for (int i = 0; i < w->n_part; i++) {
        struct pieces b;
        part_plan(&out->part[i], &w->part[i], f32);
        out->n_out += w->part[i].n_out;
        if (!part_bytes(out, &out->part[i], &b) || !ck_add(*bytes, b.all, bytes))
            return err_set(e, ERR_NOMEM, "%s: too large", w->name);
    }
    return 0;
}

int cu_weight_plan(struct cu_weight *out, const struct weight_desc *w, int f32, size_t *bytes,
                   struct err *e)
{
    *out = (struct cu_weight){.n_in = w->n_in, .n_part = w->n_part};
    return plan(out, w, f32, bytes, e);
}

int cu_weight_plan_lt(struct cu_weight *out, const struct weight_desc *w, size_t *bytes,
                      struct err *e)
{
    *out = (struct cu_weight){.n_in = w->n_in, .n_part = w->n_part, .lt = 1};
    return plan(out, w, 0, bytes, e);
}

void cu_weight_bind(struct cu_weight *p, void *base)
{
    char *at = base;
    for (int i = 0; i < p->n_part; i++) {
        struct pieces b;
        part_bytes(p, &p->part[i], &b);
        p->part[i].data = at;
        p->part[i].row_scale = b.scales ? (const float *)(const void *)(at + b.data) : NULL;
        p->part[i].rows = b.rows ? at + b.data + b.scales : NULL;
        at += b.all;
    }
}

/* Where value (row r of 32, column c of 32) of a half goes: lane, tile, value number. */
static void place(int r, int c, int *lane, int *tile, int *e)
{
    *tile = r / 8;
    *lane = r % 8 * 4 + c % 8 / 2;
    *e = c / 16 * 4 + c % 16 / 8 * 2 + c % 2;
}

/* One code of a half whose planes start at `half`. */
static void code_put(uint8_t *half, int bits, int r, int c, int code)
{
    int lane, tile, e;
    uint8_t *p = half;
    place(r, c, &lane, &tile, &e);
    if (bits == 8) {
        half[((tile / 2 * 32 + lane) * 2 + tile % 2) * 8 + e] = (uint8_t)code;
        return;
    }
    if (bits >= 4) {
        half[(lane * 4 + tile) * 4 + e / 2] |= (uint8_t)((code & 15) << 4 * (e % 2));
        code >>= 4;
        bits -= 4;
        p += 512;
    }
    if (bits >= 2) {
        p[(lane * 4 + tile) * 2 + e / 4] |= (uint8_t)((code & 3) << 2 * (e % 4));
        code >>= 2;
        bits -= 2;
        p += 256;
    }
    if (bits)
        p[lane * 4 + tile] |= (uint8_t)((code & 1) << e);
}

struct pack {
    const struct cu_weight *w;
    const struct cu_part *p;
    uint8_t *units;
    float *row_scale;
    uint16_t *rows;     /* NULL, or [n_out][n_in] */
    uint8_t *code;      /* [n_in] of a row */
    float *scale, *min; /* [n_in / 16] */
};

static void half_store(uint8_t *p, float v)
{
    uint16_t h = f32_to_f16(v);
    memcpy(p, &h, 2);
}

static void row_pack(const struct pack *k, int64_t row)
{
    const struct cu_part *p = k->p;
    int64_t n16 = k->w->n_in / 16, stages = k->w->n_in_pad / CU_STAGE, per = p->group / 16;
    int r = (int)(row % CU_PANEL), exp = 0;
    float top = 0;
    for (int64_t i = 0; i < n16; i++)
        top = fmaxf(top, fmaxf(fabsf(k->scale[i]), fabsf(k->min[i])));
    if (top > 0 && isfinite(top))
        frexpf(top, &exp);
    k->row_scale[row] = ldexpf(1, exp);
    for (int64_t s = 0; s < stages; s++) {
        uint8_t *unit = k->units + (row / CU_PANEL * stages + s) * p->unit_bytes;
        uint8_t *scales = unit + p->bits * CU_PANEL * CU_STAGE / 8,
                *mins = scales + CU_STAGE / p->group * CU_PANEL * 2;
        for (int c = 0; c < CU_STAGE && s * CU_STAGE + c < k->w->n_in; c++)
            code_put(unit + c / 32 * (p->bits * CU_PANEL * 32 / 8), p->bits, r, c % 32,
                     k->code[s * CU_STAGE + c]);
        for (int g = 0; g < CU_STAGE / p->group; g++) {
            int64_t at = (s * CU_STAGE / 16) + g * per;
            size_t off = (size_t)((g * 8 + r % 8) * 4 + r / 8) * 2;
            if (at >= n16)
                break;
            half_store(scales + off, ldexpf(k->scale[at], -exp));
            if (p->min)
                half_store(mins + off, ldexpf(k->min[at], -exp));
        }
    }
}

static void row_pack_dense(const struct pack *k, int64_t row, const float *x)
{
    int64_t stages = k->w->n_in_pad / CU_STAGE;
    for (int64_t c = 0; c < k->w->n_in; c++) {
        int lane, tile, e;
        uint8_t *unit = k->units + (row / CU_PANEL * stages + c / CU_STAGE) * k->p->unit_bytes +
                        c % CU_STAGE / 32 * 2048;
        uint16_t h = f32_to_bf16(x[c]);
        place((int)(row % CU_PANEL), (int)(c % 32), &lane, &tile, &e);
        memcpy(unit + ((tile * 32 + lane) * 8 + e) * 2, &h, 2);
        if (k->rows)
            k->rows[row * k->w->n_in + c] = h;
    }
}

static int part_pack(struct pack *k, const struct weight_part *src)
{
    const struct quant_format *f = quant_format_get((uint32_t)src->fmt);
    int64_t n = k->w->n_in;
    size_t row_bytes = 0;
    float *x = mem_calloc((size_t)n, sizeof *x);
    k->code = mem_calloc((size_t)n, 1);
    k->scale = mem_calloc((size_t)n / 16 + 1, sizeof *k->scale);
    k->min = mem_calloc((size_t)n / 16 + 1, sizeof *k->min);
    int rc = x && k->code && k->scale && k->min ? 0 : ERR_NOMEM;
    quant_row_bytes(f, n, &row_bytes);
    for (int64_t r = 0; r < src->n_out && !rc; r++) {
        const char *row = (const char *)src->data + (size_t)r * row_bytes;
        if (k->p->bits == 32) {
            f->decode(row, (float *)(void *)k->units + r * n, n);
        } else if (k->p->bits == 16) {
            f->decode(row, x, n);
            row_pack_dense(k, r, x);
        } else {
            static const uint8_t b4[16] = {0,    0x18, 0x50, 0x54, 0x48, 0x4c, 0x40, 0x44,
                                           0x00, 0x98, 0xd0, 0xd4, 0xc8, 0xcc, 0xc0, 0xc4};
            quant_split(src->fmt, row, n, k->code, k->scale, k->min);
            for (int64_t c = 0; src->fmt == QF_B4_32 && c < n; c++)
                k->code[c] = b4[k->code[c] & 15];
            row_pack(k, r);
        }
    }
    free(x);
    free(k->code);
    free(k->scale);
    free(k->min);
    return rc;
}

int cu_weight_pack(const struct cu_weight *p, const struct weight_desc *w, void *dst)
{
    char *at = dst;
    for (int i = 0; i < p->n_part; i++) {
        struct pieces b;
        part_bytes(p, &p->part[i], &b);
        memset(at, 0, b.all);
        struct pack k = {.w = p,
                         .p = &p->part[i],
                         .units = (uint8_t *)at,
                         .row_scale = (float *)(void *)(at + b.data),
                         .rows = b.rows ? (uint16_t *)(void *)(at + b.data + b.scales) : NULL};
        int rc = part_pack(&k, &w->part[i]);
        if (rc)
            return rc;
        at += b.all;
    }
    return 0;
}
