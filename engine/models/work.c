/* Work tensors: one buffer for all activations of a step, laid out once at open. */
#include "engine/base/mem.h"
#include "engine/models/model.h"

#define WORK_ALIGN 128 /* bytes */

/* Append [rows, cols]; false on overflow. */
static bool place(struct tensor *t, size_t *at, enum dtype d, int64_t rows, int64_t cols)
{
    size_t bytes;
    *t = tensor_2d(d, 0, *at, rows, cols);
    return ck_mul((size_t)rows, (size_t)cols, &bytes) && ck_mul(bytes, dtype_bytes(d), &bytes) &&
           ck_round_up(bytes, WORK_ALIGN, &bytes) && ck_add(*at, bytes, at);
}

int model_work_open(struct model *m, enum dtype mul, int max_rows, int max_logit_rows,
                    struct err *e)
{
    struct model_work *w = &m->work;
    const int64_t *dim = m->hp.dim;
    int64_t n = max_rows, l = max_logit_rows;
    size_t at = 0;
    bool ok =
        place(&w->x, &at, DT_F32, n, dim[DIM_EMBD]) && place(&w->h, &at, mul, n, dim[DIM_EMBD]) &&
        place(&w->d, &at, DT_F32, n, dim[DIM_EMBD]) &&
        place(&w->qkv, &at, DT_F32, n, dim[DIM_Q] + 2 * dim[DIM_KV]) &&
        place(&w->att, &at, mul, n, dim[DIM_Q]) &&
        place(&w->gate_up, &at, DT_F32, n, 2 * dim[DIM_FF]) &&
        place(&w->ff, &at, mul, n, dim[DIM_FF]) && place(&w->xl, &at, DT_F32, l, dim[DIM_EMBD]) &&
        place(&w->al, &at, mul, l, dim[DIM_Q]) && place(&w->logits, &at, DT_F32, l, dim[DIM_VOCAB]);
    if (!ok)
        return err_set(e, ERR_LIMIT, "activations of %d rows do not fit in memory", max_rows);
    w->bytes = at;
    if (!m->dev)
        return 0;
    if (m->be->buf_alloc(m->dev, at, &w->buf))
        return err_set(e, ERR_NOMEM, "no device memory for %zu bytes of activations", at);
    struct tensor *all[] = {&w->x,       &w->h,  &w->d,  &w->qkv, &w->att,
                            &w->gate_up, &w->ff, &w->xl, &w->al,  &w->logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        all[i]->buf = w->buf;
    return 0;
}

void model_work_close(struct model *m)
{
    if (m->work.buf)
        m->be->buf_free(m->dev, m->work.buf);
    m->work.buf = 0;
}
