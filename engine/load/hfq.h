/* Quantised matrices of Hugging Face folders: GPTQ, AWQ, compressed-tensors (packed int4 and int8, int8, fp8, NVFP4,
 * MXFP4), fp8 with a scale a tensor, channel or block, MXFP4 experts of gpt-oss, bitsandbytes int8 and 4-bit, modelopt.
 * A matrix lies there in several tensors; this module finds them, checks their shapes when the folder is opened, shows
 * each matrix under the name that a plain folder has for it ("....weight"), and brings its rows into a block format of
 * engine/quant when they are loaded; columns in activation order are sorted by group for that. What has no such format (a
 * table of one's own) becomes f16. Read-only after
 * open: any thread. */
#ifndef ENGINE_LOAD_HFQ_H
#define ENGINE_LOAD_HFQ_H

#include "engine/load/config.h"
#include "engine/load/source.h"

struct hfq;
struct hfq_tensor;

/* *out is NULL when nothing in the folder is quantised. ERR_UNSUPPORTED, ERR_INVAL name the tensor or key. */
int hfq_open(struct hfq **out, const struct source *s, struct config *c, struct err *e);
void hfq_close(struct hfq *h); /* NULL is fine */

/* The matrix as the plain tensor it stands for: name, fmt, dims (experts outermost where it holds all of them); data and
 * bytes are of its largest part. NULL: no quantised matrix of that name. h may be NULL. */
const struct source_tensor *hfq_find(const struct hfq *h, const char *name);
/* The matrix behind a tensor that hfq_find gave; NULL for any other. */
const struct hfq_tensor *hfq_of(const struct hfq *h, const struct source_tensor *t);
size_t hfq_index(const struct hfq_tensor *q); /* of its largest part among source_at's */
/* Whether the source's i-th tensor is part of a quantised matrix, or tells about one. */
bool hfq_is_part(const struct hfq *h, size_t i);

/* NULL, or [columns]: what hfq_rows puts k-th is column col[k]. */
const int32_t *hfq_col(const struct hfq_tensor *q);
/* Rows [from, from + n) (experts one behind the other) in the tensor's fmt to dst. ERR_NOMEM; ERR_INVAL: a code that is no
 * number (fp8's NaN). */
int hfq_rows(const struct hfq_tensor *q, int64_t from, int64_t n, void *dst, struct err *e);
/* The same in QF_F16 or QF_F32, columns in the matrix's own order. */
int hfq_rows_dense(const struct hfq_tensor *q, enum quant_fmt fmt, int64_t from, int64_t n,
                   void *dst, struct err *e);

/* Rows [from, from + n) turned: what is a column of theirs becomes a row of n values, in this format. It is the tensor's
 * own where scales allow (fp8 by blocks or the tensor), else f32. */
enum quant_fmt hfq_turned_fmt(const struct hfq_tensor *q, int64_t from, int64_t n);
/* Columns [col, col + n_col), a row each, to dst. Errors as hfq_rows. */
int hfq_turned(const struct hfq_tensor *q, int64_t from, int64_t n, int64_t col, int64_t n_col,
               void *dst, struct err *e);

#endif
