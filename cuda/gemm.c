/* cu_linear: which product computes which part of a weight. */
#include "cuda/gemm.h"

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

static bool shape_ok(const struct cu_linear *a)
{
    return a->w && a->dst.p && a->src.p && a->dst.dt == CU_F32 && a->dst.cols == a->w->n_out &&
           a->src.cols == a->w->n_in && a->dst.ld >= a->dst.cols && a->src.ld >= a->src.cols &&
           a->w->n_out <= INT32_MAX && a->w->n_in <= INT32_MAX;
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
        int rc = p->bits == 32                      ? cu_gemm_f32(a, i, col, s, st)
                 : cu_gemm_wgmma_takes(a, i, n_row) ? cu_gemm_wgmma(a, i, col, s, st)
                                                    : cu_gemm_quant(a, i, col, s, st);
        if (rc)
            return rc;
        col += p->n_out;
    }
    return 0;
}
