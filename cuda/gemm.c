/* cu_linear: which product computes which part of a weight. */
#include "cuda/gemm.h"
#include "cuda/lt_api.h"

#include <stdbool.h>

static size_t part_ws(const struct cu_weight *w, const struct cu_part *p, int n_row)
{
    int splits = cu_splits(w->n_in_pad, p->n_out);
    if (p->bits == 32 || splits == 1)
        return 0;
    return CU_GEMM_HEAD_BYTES +
           (size_t)splits * (size_t)((n_row + 63) / 64 * 64) * (size_t)p->n_out * sizeof(float);
}

size_t cu_linear_ws(const struct cu_weight *w, int n_row)
{
    size_t most = 0;
    for (int i = 0; i < w->n_part; i++) {
        size_t n = part_ws(w, &w->part[i], n_row);
        most = n > most ? n : most;
    }
    return most;
}

static bool after_ok(const struct cu_linear *a, const struct cu_mat *m)
{
    return !m->p || (m->dt == CU_F32 && m->cols == a->dst.cols && m->ld >= m->cols);
}

static bool shape_ok(const struct cu_linear *a)
{
    const struct cu_after *m = &a->after;
    if (!after_ok(a, &m->vec) || !after_ok(a, &m->add) || (m->vec.p && (!m->start || m->n_seg < 1)))
        return false;
    return a->w && a->dst.p && a->src.p && a->dst.dt == CU_F32 && a->dst.cols == a->w->n_out &&
           a->src.cols == a->w->n_in && a->dst.ld >= a->dst.cols && a->src.ld >= a->src.cols &&
           a->w->n_out <= INT32_MAX && a->w->n_in <= INT32_MAX;
}

#define LT_ROWS 64 /* fewer leave most of the library's tiles empty */

static bool lt_takes(const struct cu_linear *a, const struct cu_part *p, int n_row)
{
    return a->lt && !a->exact && p->rows && n_row >= LT_ROWS && !a->after.vec.p && !a->after.add.p;
}

/* The part by cuBLASLt. Its work space comes behind the counters, which must stay zero. */
static int part_lt(const struct cu_linear *a, const struct cu_part *p, int64_t col, int n_row,
                   cu_stream st)
{
    const bool space = a->ws && !((uintptr_t)a->ws % 256) && a->ws_bytes > CU_GEMM_HEAD_BYTES;
    return cu_lt_matmul(a->lt, &(struct cu_lt_args){
                                   .x = a->src.p,
                                   .w = p->rows,
                                   .d = (float *)a->dst.p + col,
                                   .bias = a->bias ? a->bias + col : NULL,
                                   .ldx = a->src.ld,
                                   .ldd = a->dst.ld,
                                   .n = n_row,
                                   .n_in = (int32_t)a->w->n_in,
                                   .n_out = (int32_t)p->n_out,
                                   .ws = space ? (char *)a->ws + CU_GEMM_HEAD_BYTES : NULL,
                                   .ws_bytes = space ? a->ws_bytes - CU_GEMM_HEAD_BYTES : 0,
                                   .st = st,
                               });
}

/* The part by a kernel of ours. */
static int part_own(const struct cu_linear *a, int i, int64_t col, const struct cu_step *s,
                    cu_stream st)
{
    const int n_row = a->rows == CU_ROWS_LOGIT ? s->logit_max : s->row_max;
    if (a->w->part[i].bits == 32)
        return cu_gemm_f32(a, i, col, s, st);
    return cu_gemm_wgmma_takes(a, i, n_row) ? cu_gemm_wgmma(a, i, col, s, st)
                                            : cu_gemm_quant(a, i, col, s, st);
}

int cu_linear(const struct cu_linear *a, const struct cu_step *s, cu_stream st)
{
    int64_t col = 0;
    if (!shape_ok(a))
        return CU_BAD;
    const int n_row = a->rows == CU_ROWS_LOGIT ? s->logit_max : s->row_max;
    if (n_row <= 0)
        return 0;
    for (int i = 0; i < a->w->n_part; i++) {
        const struct cu_part *p = &a->w->part[i];
        if (a->src.dt != (p->bits == 32 ? CU_F32 : CU_BF16))
            return CU_BAD;
        int rc = lt_takes(a, p, n_row) ? part_lt(a, p, col, n_row, st) : CU_LT_NOT_SUPPORTED;
        if (rc == CU_LT_NOT_SUPPORTED) /* no algorithm for the shape, or not asked for */
            rc = part_own(a, i, col, s, st);
        if (rc)
            return rc;
        col += p->n_out;
    }
    return 0;
}
