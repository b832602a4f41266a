/* What a layer of Gemma 3n and 4 (Gemma Team 2025) ends with: a small embedding of the token for every layer, gated by the
 * stream and added to it, then a factor of the layer. A layer's input is the table's row and a product of the model's
 * embedding, normed, in equal parts. */
#include "engine/models/model.h"

#include <math.h>

void model_ple_work(const struct model_hp *hp, struct model_work *w, struct work_plan *p)
{
    const int64_t *d = hp->dim, n = p->n_row;
    if (hp->n_ple == 0)
        return;
    model_work_place(p, &w->ple.all, DT_F32, n, d[DIM_PLES]);
    model_work_place(p, &w->ple.proj, DT_F32, n, d[DIM_PLES]);
    model_work_place(p, &w->ple.gate_up, DT_F32, n, 2 * d[DIM_PLE]);
    model_work_place(p, &w->ple.ff, p->mul, n, d[DIM_PLE]);
    model_work_place(p, &w->ple.last, DT_F32, p->n_logit, d[DIM_PLE]);
}

int model_ple_open(struct model *m, struct err *e)
{
    for (int i = 0; i < m->hp.n_layer; i++) {
        struct model_layer *l = &m->layer[i];
        struct tensor t = l->ple.scale;
        l->ple.by = 1;
        int rc = t.buf ? m->be->read(m->dev, t.buf, t.off, &l->ple.by, sizeof l->ple.by) : 0;
        if (rc)
            return err_set(e, rc, "factor of layer %d: %s", i, err_name(rc));
        if (!isfinite(l->ple.by))
            return err_set(e, ERR_INVAL, "the factor of layer %d is %g", i, (double)l->ple.by);
    }
    return 0;
}

static int copy(struct model *m, struct tensor dst, struct tensor x)
{
    return MODEL_OP(m, act, .dst = dst, .x = x, .act = IMAGE_ACT_NONE);
}

int model_ple_inputs(struct model *m, int n)
{
    const struct model_hp *hp = &m->hp;
    struct tensor h = model_rows(m->work.h, n), all = model_rows(m->work.ple.all, n);
    struct tensor proj = model_rows(m->work.ple.proj, n), none = {0};
    int64_t p = hp->n_ple, rows = (int64_t)n * hp->n_layer;
    if (p == 0)
        return 0;
    int rc = MODEL_OP(m, embed, .dst = all, .w = m->ple_embd, .scale = sqrtf((float)p));
    if (rc || (rc = copy(m, h, model_rows(m->work.x, n))) ||
        (rc = MODEL_OP(m, linear, .dst = proj, .src = h, .w = m->ple_proj)) ||
        (rc = model_scale(m, proj, 1 / sqrtf((float)hp->n_embd))))
        return rc;
    /* Every layer's part is a row of its own. */
    struct tensor each = tensor_2d(DT_F32, proj.buf, proj.off, rows, p);
    if ((rc = MODEL_OP(m, rmsnorm, .dst = each, .x = each, .w = m->ple_norm, .eps = hp->norm_eps)))
        return rc;
    rc = model_norm(m, none, all, proj, none, none);
    return rc ? rc : model_scale(m, all, sqrtf(0.5f));
}

/* d = what the layer's embedding adds to x. */
static int added(struct model *m, int layer, struct tensor x, struct tensor d, bool last)
{
    const struct model_layer *l = &m->layer[layer];
    int64_t p = m->hp.n_ple, n = x.shape[0];
    struct tensor h = model_rows(m->work.h, n), gu = model_rows(m->work.ple.gate_up, n);
    struct tensor ff = model_rows(m->work.ple.ff, n), none = {0};
    struct tensor in = tensor_cols(model_rows(m->work.ple.all, n), layer * p, p);
    int rc = copy(m, h, x);
    if (!rc)
        rc = MODEL_OP(m, linear, .dst = tensor_cols(gu, 0, p), .src = h, .w = l->ple.gate);
    if (!rc && last) {
        struct tensor all = m->work.ple.all;
        int64_t n_row = m->n_row;
        in = model_rows(m->work.ple.last, n);
        rc = MODEL_OP(m, gather, .dst = in,
                      .src = tensor_cols(model_rows(all, n_row), layer * p, p));
    }
    if (rc || (rc = copy(m, tensor_cols(gu, p, p), in)) ||
        (rc = MODEL_OP(m, act_mul, .dst = ff, .gate_up = gu, .act = m->hp.act)) ||
        (rc = MODEL_OP(m, linear, .dst = d, .src = ff, .w = l->ple.proj)))
        return rc;
    return model_norm(m, d, d, none, l->ple.norm, none);
}

int model_ple_end(struct model *m, int layer, struct tensor x, struct tensor d, bool last)
{
    struct tensor none = {0};
    int rc = model_norm(m, none, x, d, none, none);
    if (!rc && m->hp.n_ple > 0) {
        rc = added(m, layer, x, d, last);
        if (!rc)
            rc = model_norm(m, none, x, d, none, none);
    }
    return rc ? rc : model_scale(m, x, m->layer[layer].ple.by);
}
