/* Work tensors: one buffer for all activations of a step, laid out once at open. */
#include "engine/base/mem.h"
#include "engine/models/model.h"

#define WORK_ALIGN 128 /* bytes */

void model_work_place(struct work_plan *p, struct tensor *t, enum dtype d, int64_t rows,
                      int64_t cols)
{
    size_t bytes;
    *t = tensor_2d(d, 0, p->at, rows, cols);
    if (p->n == (int)(sizeof p->t / sizeof *p->t) || !ck_mul((size_t)rows, (size_t)cols, &bytes) ||
        !ck_mul(bytes, dtype_bytes(d), &bytes) || !ck_round_up(bytes, WORK_ALIGN, &bytes) ||
        !ck_add(p->at, bytes, &p->at))
        p->bad = true;
    else
        p->t[p->n++] = t;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of the widest mixer. */
static int64_t att_width(const struct model *m)
{
    int64_t w = 1;
    for (int i = 0; i < m->hp.n_layer; i++)
        w = most(model_mix_width(m, i), w);
    return w;
}

static void common_place(struct work_plan *p, struct model *m)
{
    struct model_work *w = &m->work;
    const struct model_hp *hp = &m->hp;
    const int64_t *dim = hp->dim, n = p->n_row, l = p->n_logit, att = att_width(m);
    int64_t qkv = most(dim[DIM_QKV], dim[DIM_Q_OTHER] + 2 * dim[DIM_KV_OTHER]);
    int64_t ff = most(dim[DIM_FF], dim[DIM_FF_OTHER]);
    model_work_place(p, &w->x, DT_F32, n, dim[DIM_EMBD]);
    model_work_place(p, &w->h, p->mul, n, dim[DIM_EMBD]);
    model_work_place(p, &w->d, DT_F32, n, dim[DIM_EMBD]);
    model_work_place(p, &w->qkv, DT_F32, n, qkv + hp->attn_gate * dim[DIM_Q]);
    model_work_place(p, &w->att, p->mul, n, att);
    model_work_place(p, &w->gate_up, DT_F32, n, 2 * ff);
    model_work_place(p, &w->ff, p->mul, n, ff);
    model_work_place(p, &w->xl, DT_F32, l, dim[DIM_EMBD]);
    model_work_place(p, &w->al, p->mul, l, att);
    model_work_place(p, &w->logits, DT_F32, l, dim[DIM_VOCAB]);
    if (hp->parallel || hp->layer[hp->n_layer - 1].mixer == MIX_NONE)
        model_work_place(p, &w->hl, p->mul, l, dim[DIM_EMBD]);
    bool beside = hp->layer[0].beside != MIX_NONE;
    if (beside) {
        model_work_place(p, &w->att2, p->mul, n, dim[DIM_S_INNER]);
        model_work_place(p, &w->al2, p->mul, l, dim[DIM_S_INNER]);
    }
    if (hp->parallel || beside || hp->layer[0].ffn == FFN_BOTH) {
        model_work_place(p, &w->d2, DT_F32, n, dim[DIM_EMBD]);
        model_work_place(p, &w->h2, p->mul, n, dim[DIM_EMBD]);
    }
    model_moe_work(hp, w, p);
    model_state_work(hp, w, p);
    model_mla_work(hp, w, p);
    model_ple_work(hp, w, p);
}

int model_work_open(struct model *m, enum dtype mul, int max_rows, int max_logit_rows,
                    struct err *e)
{
    struct model_work *w = &m->work;
    struct work_plan p = {.mul = mul, .n_row = max_rows, .n_logit = max_logit_rows};
    common_place(&p, m);
    if (p.bad)
        return err_set(e, ERR_LIMIT, "activations of %d rows do not fit in memory", max_rows);
    w->bytes = p.at;
    if (!m->dev)
        return 0;
    if (m->be->buf_alloc(m->dev, p.at, &w->buf))
        return err_set(e, ERR_NOMEM, "no device memory for %zu bytes of activations", p.at);
    for (int i = 0; i < p.n; i++)
        p.t[i]->buf = w->buf;
    return model_mla_open(m, e);
}

void model_work_close(struct model *m)
{
    if (m->work.buf)
        m->be->buf_free(m->dev, m->work.buf);
    m->work.buf = 0;
}
