/* Ops: check as every backend does, translate tensors to device pointers, record. */
#include "cuda/backend_impl.h"

#include <string.h>

bool cu__mat(const struct dev *d, const struct tensor *t, struct cu_mat *m)
{
    if (!t->buf)
        return true;
    m->p = cu__ptr(d, t);
    m->ld = t->stride[0] ? t->stride[0] : t->shape[1];
    m->dt = (int32_t)t->dtype;
    m->cols = (int32_t)t->shape[1];
    return m->p != NULL;
}

bool cu__vec(const struct dev *d, const struct tensor *t, const float **out)
{
    *out = t->buf ? cu__ptr(d, t) : NULL;
    return !t->buf || *out;
}

enum cu_rows cu__rows_of(const struct dev *d, int64_t n, int32_t *lone)
{
    *lone = d->in_step && (n == d->meta.n_row || n == d->meta.n_logit) ? 0 : (int32_t)n;
    return *lone || n == d->meta.n_row ? CU_ROWS_ALL : CU_ROWS_LOGIT;
}

static int undo(struct dev *d, int rc)
{
    if (rc)
        d->n_rec--;
    return rc;
}

int cu__embed(struct dev *d, const struct op_embed *a)
{
    if (!d->in_step || !a->w || !ops_is_2d(&a->dst, DT_F32, d->meta.n_row, a->w->w.n_in))
        return ERR_INVAL;
    if (a->pos && (a->pos->w.n_in != a->w->w.n_in || a->pos->w.n_part != 1))
        return ERR_INVAL;
    for (int i = 0; a->pos && i < d->meta.n_row; i++)
        if (d->meta.pos[i] >= a->pos->w.n_out)
            return ERR_INVAL;
    for (int i = 0; i < d->meta.n_row; i++) /* TOK_SAMPLED: of a row that has been sampled */
        if (d->meta.tok[i] >= a->w->w.n_out || d->meta.tok[i] < -(int64_t)d->n_sampled)
            return ERR_INVAL;
    struct rec *r = cu__record(d, REC_EMBED);
    if (!r)
        return ERR_NOMEM;
    r->u.embed.w = &a->w->w;
    r->u.embed.pos = a->pos ? &a->pos->w : NULL;
    r->u.embed.scale = a->scale;
    return undo(d, cu__mat(d, &a->dst, &r->u.embed.dst) ? 0 : ERR_INVAL);
}

int cu__rmsnorm(struct dev *d, const struct op_rmsnorm *a)
{
    if (ops_check_rmsnorm(a, cu__mul(d)))
        return ERR_INVAL;
    if (a->x.shape[0] == 0)
        return 0;
    struct rec *r = cu__record(d, REC_RMSNORM);
    if (!r)
        return ERR_NOMEM;
    r->u.rmsnorm.eps = a->eps;
    r->u.rmsnorm.center = a->center;
    r->u.rmsnorm.rows = cu__rows_of(d, a->x.shape[0], &r->lone);
    bool ok = cu__mat(d, &a->dst, &r->u.rmsnorm.dst) && cu__mat(d, &a->x, &r->u.rmsnorm.x) &&
              cu__mat(d, &a->add, &r->u.rmsnorm.add) && cu__vec(d, &a->w, &r->u.rmsnorm.w) &&
              cu__vec(d, &a->b, &r->u.rmsnorm.b);
    return undo(d, ok ? 0 : ERR_INVAL);
}

int cu__linear(struct dev *d, const struct op_linear *a)
{
    if (!a->w || ops_check_linear(a, cu__mul(d), a->w->w.n_in, a->w->w.n_out))
        return ERR_INVAL;
    if (a->src.shape[0] == 0)
        return 0;
    struct rec *r = cu__record(d, REC_LINEAR);
    if (!r)
        return ERR_NOMEM;
    r->u.linear.w = &a->w->w;
    r->u.linear.steady = !d->in_step; /* an image step's */
    r->u.linear.wgmma = d->cc == 90 && (d->loose || !d->in_step);
    r->u.linear.exact = !d->loose;
    r->u.linear.lt = d->lt;
    r->u.linear.rows = cu__rows_of(d, a->src.shape[0], &r->lone);
    bool ok = cu__mat(d, &a->dst, &r->u.linear.dst) && cu__mat(d, &a->src, &r->u.linear.src) &&
              cu__vec(d, &a->bias, &r->u.linear.bias);
    return undo(d, ok ? 0 : ERR_INVAL);
}

int cu__rope_kv(struct dev *d, const struct op_rope_kv *a)
{
    if (!d->in_step || !a->kv || ops_check_rope_kv(a, &d->meta, &a->kv->desc) ||
        ops_check_blocks(&d->meta, a->kv->desc.n_block))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_ROPE_KV);
    if (!r)
        return ERR_NOMEM;
    struct cu_rope_kv *o = &r->u.rope_kv;
    o->n_head = a->n_head;
    o->n_rot = a->n_rot;
    o->style = (int32_t)a->style;
    o->attn_factor = a->attn_factor;
    o->norm_eps = a->norm_eps;
    o->q_only = a->q_only;
    o->kv = &a->kv->kv;
    o->layer = a->layer;
    bool ok = cu__mat(d, &a->qkv, &o->qkv) && cu__vec(d, &a->q_norm, &o->q_norm) &&
              cu__vec(d, &a->k_norm, &o->k_norm) && cu__vec(d, &a->v_norm, &o->v_norm) &&
              (a->style == ROPE_NONE || cu__vec(d, &a->inv_freq, &o->inv_freq));
    return undo(d, ok ? 0 : ERR_INVAL);
}

int cu__attn(struct dev *d, const struct op_attn *a)
{
    if (!d->in_step || !a->kv || ops_check_attn(a, cu__mul(d), &d->meta, &a->kv->desc) ||
        ops_check_attn_blocks(&d->meta, a->window, a->kv->desc.n_block))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_ATTN);
    if (!r)
        return ERR_NOMEM;
    struct cu_attn *o = &r->u.attn;
    o->n_head = a->n_head;
    o->scale = a->scale;
    o->softcap = a->softcap;
    o->window = a->window;
    o->kv = &a->kv->kv;
    o->layer = a->layer;
    o->exact = !d->loose;
    o->wgmma = d->loose && d->cc == 90;
    bool ok = cu__mat(d, &a->dst, &o->dst) && cu__mat(d, &a->qkv, &o->qkv) &&
              cu__vec(d, &a->sinks, &o->sinks) && cu__vec(d, &a->alibi, &o->alibi);
    return undo(d, ok ? 0 : ERR_INVAL);
}

int cu__act_mul(struct dev *d, const struct op_act_mul *a)
{
    if (ops_check_act_mul(a, cu__mul(d)))
        return ERR_INVAL;
    if (a->dst.shape[0] == 0)
        return 0;
    struct rec *r = cu__record(d, REC_ACT_MUL);
    if (!r)
        return ERR_NOMEM;
    r->u.act_mul.act = (int32_t)a->act;
    r->u.act_mul.single = a->single;
    r->u.act_mul.limit = a->limit;
    r->u.act_mul.rows = cu__rows_of(d, a->dst.shape[0], &r->lone);
    return undo(d, cu__mat(d, &a->dst, &r->u.act_mul.dst) &&
                           cu__mat(d, &a->gate_up, &r->u.act_mul.gate_up)
                       ? 0
                       : ERR_INVAL);
}

int cu__gather(struct dev *d, const struct op_gather *a)
{
    if (!d->in_step || ops_check_gather(a, cu__mul(d), &d->meta))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_GATHER);
    if (!r)
        return ERR_NOMEM;
    return undo(d, cu__mat(d, &a->dst, &r->u.gather.dst) && cu__mat(d, &a->src, &r->u.gather.src)
                       ? 0
                       : ERR_INVAL);
}

int cu__scale(struct dev *d, const struct op_scale *a)
{
    if (ops_check_scale(a, d->in_step ? &d->meta : NULL))
        return ERR_INVAL;
    if (a->x.shape[0] == 0)
        return 0;
    struct rec *r = cu__record(d, REC_SCALE);
    if (!r)
        return ERR_NOMEM;
    r->u.scale.scale = a->scale;
    r->u.scale.softcap = a->softcap;
    r->u.scale.clip = a->clip;
    r->u.scale.temper = a->temper;
    r->u.scale.temper_every = a->temper_every;
    r->u.scale.temper_from = a->temper_from;
    r->u.scale.rows = cu__rows_of(d, a->x.shape[0], &r->lone);
    return undo(d, cu__mat(d, &a->x, &r->u.scale.x) ? 0 : ERR_INVAL);
}

/* Small and rare: launched at once; the arrays are staged by the runtime. */
int cu__kv_copy(struct dev *d, const struct op_kv_copy *a)
{
    if (!a->kv || ops_check_kv_copy(a, a->kv->desc.n_block))
        return ERR_INVAL;
    int rc = cu__flush(d);
    size_t n = (size_t)a->n * sizeof(int32_t);
    if (rc || a->n == 0 || (rc = cu__grow(d, &d->dev_sample, 2 * n, false)))
        return rc;
    int32_t *src = d->dev_sample.p, *dst = src + a->n;
    rc =
        cu__check(d, cudaMemcpyAsync(src, a->src, n, cudaMemcpyHostToDevice, d->stream), "kv_copy");
    if (!rc)
        rc = cu__check(d, cudaMemcpyAsync(dst, a->dst, n, cudaMemcpyHostToDevice, d->stream),
                       "kv_copy");
    return rc ? rc : cu__launched(d, cu_kv_copy(&a->kv->kv, src, dst, a->n, d->stream), "kv_copy");
}
