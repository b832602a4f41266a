/* Private to hfq*.c. */
#ifndef ENGINE_LOAD_HFQ_IMPL_H
#define ENGINE_LOAD_HFQ_IMPL_H

#include "engine/base/arena.h"
#include "engine/load/hfq.h"

enum hfq_kind {
    HFQ_GPTQ,            /* codes [n_in * bits / 32, n_out] i32 */
    HFQ_AWQ,             /* codes [n_in, n_out / 8] i32, in the order 0 2 4 6 1 3 5 7 */
    HFQ_PACKED,          /* codes [n_out, n_in * bits / 32] i32, biased by half their range */
    HFQ_INT8,            /* codes [n_out, n_in] i8 */
    HFQ_FP8,             /* [n_expert, n_out, n_in] e4m3 */
    HFQ_NVFP4,           /* codes [n_out, n_in / 2] u8, even columns low */
    HFQ_MXFP4,           /* the same, [n_expert, n_out, n_in / 32, 16] */
#define HFQ_FP4_TIMES 12 /* bitsandbytes' FP4 table times this is LEVEL_B4 */
    HFQ_BNB4,            /* codes [n_out * n_in / 2] u8, even columns high */
};

struct hfq_tensor {
    struct source_tensor t; /* what it stands for */
    enum hfq_kind kind;
    int64_t n_expert, n_out, n_in; /* n_expert: 1 when it has no such dimension */
    const struct source_tensor *code, *scale, *zero, *g_idx, *map;
    const int32_t *col; /* see hfq_col */
    int bits;
    int64_t group;     /* columns a scale */
    int64_t scale_row; /* fp8: rows a scale; 0: one for all */
    int zero_add;      /* added to a stored zero: 1 in GPTQ's first layout */
    float factor;      /* of all scales */
    /* bitsandbytes: absmax in 8 bits: map[scale[i]] * nested[i / nested_block] + offset */
    const struct source_tensor *nested;
    int64_t nested_block;
    float nested_offset;
    size_t index;
};

struct hfq {
    struct arena arena; /* names */
    const struct source *s;
    struct config *c;
    struct hfq_tensor *q; /* by name, [n] */
    size_t n, n_max;
    bool *part;   /* [source_n] */
    size_t f16_n; /* matrices that become f16, and their bytes */
    size_t f16_bytes;
};

/* hfq_rows.c: an element, whatever its kind; NaN only where fp8's code is. */
float hfq__value(const struct hfq_tensor *q, int64_t row, int64_t k);
/* The scale of an element; not of kinds with two codes a byte. */
float hfq__scale(const struct hfq_tensor *q, int64_t row, int64_t k);

/* hfq_bind.c: fills q from the parts whose first is `code` when it is the codes of a matrix: its stem is the name
 * before `tail`. */
typedef int hfq_bind_fn(struct hfq *h, struct hfq_tensor *q, const char *stem, struct err *e);
hfq_bind_fn hfq__qweight_bind, hfq__packed_bind, hfq__weight_bind, hfq__blocks_bind;
/* stem + tail, or NULL when there is none; marks it as a part. */
const struct source_tensor *hfq__part(struct hfq *h, const char *stem, const char *tail);
/* A value of quantization_config, at the top or in text_config; `key` without that. */
int64_t hfq__config_int(struct hfq *h, const char *key, int64_t def);
const char *hfq__config_str(struct hfq *h, const char *key, const char *def);
bool hfq__config_bool(struct hfq *h, const char *key, bool def);

/* Bytes of an element of an integer tensor: 1, 4, 8; 0 for what is none. */
int hfq__int_bytes(const struct source_tensor *t);
int64_t hfq__n(const struct source_tensor *t); /* elements */
int64_t hfq__int_at(const struct source_tensor *t, int64_t i);
/* A scale: f32, f16, bf16, e4m3, or in one byte the exponent of 2. */
float hfq__scale_at(const struct source_tensor *t, int64_t i);

#endif
