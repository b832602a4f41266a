/* State ops: check, translate, record; and the pool. */
#include "cuda/backend_impl.h"

#include "engine/base/mem.h"

#include <stdlib.h>

_Static_assert((int)GATE_SILU == CU_GATE_SILU && (int)GATE_SIGMOID == CU_GATE_SIGMOID, "gates");
_Static_assert(STATE_CONV_MAX == CU_CONV_MAX && STATE_KEY_MAX == CU_KEY_MAX, "limits");

struct dev_state {
    struct state_desc desc;
    float *p; /* [slot][layer][n] */
};

int cu__state_open(struct dev *d, struct dev_state **out, const struct state_desc *s, struct err *e)
{
    size_t n;
    int rc = ops_check_state_pool(s, e);
    if (rc)
        return rc;
    struct dev_state *st = mem_calloc(1, sizeof *st);
    if (!st || !ck_mul((size_t)s->n, (size_t)s->n_layer, &n) || !ck_mul(n, (size_t)s->n_slot, &n) ||
        !ck_mul(n, sizeof(float), &n)) {
        free(st);
        return err_set(e, ERR_NOMEM, "no memory for %d recurrent states", (int)s->n_slot);
    }
    st->desc = *s;
    if (cudaMalloc((void **)&st->p, n) != cudaSuccess) {
        cudaGetLastError();
        free(st);
        return err_set(e, ERR_NOMEM,
                       "%zu bytes of recurrent states do not fit into the GPU's memory", n);
    }
    rc = cu__check(d, cudaMemsetAsync(st->p, 0, n, d->stream), "states");
    if (rc) {
        cu__state_close(d, st);
        return err_set(e, rc, "recurrent states: the GPU failed");
    }
    *out = st;
    return 0;
}

void cu__state_close(struct dev *d, struct dev_state *s)
{
    if (!s)
        return;
    cudaStreamSynchronize(d->stream);
    cudaFree(s->p);
    free(s);
}

static bool at_of(const struct dev *d, const struct state_at *at, int64_t n,
                  struct cu_state_at *out)
{
    if (!at->pool || ops_check_state_at(at, &at->pool->desc, n, &d->meta))
        return false;
    const struct state_desc *s = &at->pool->desc;
    out->p = at->pool->p + at->layer * s->n + at->off;
    out->ld = s->n * s->n_layer;
    return true;
}

static int keep(struct dev *d, bool ok)
{
    if (ok)
        return 0;
    d->n_rec--;
    return ERR_INVAL;
}

static int32_t len_of(const struct tensor *t)
{
    return (int32_t)(t->n_dim == 1 ? t->shape[0] : t->shape[1]);
}

int cu__state_conv(struct dev *d, const struct op_state_conv *a)
{
    if (!d->in_step || ops_check_state_conv(a, cu__mul(d), &d->meta))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_STATE_CONV);
    if (!r)
        return ERR_NOMEM;
    struct cu_state_conv *o = &r->u.state_conv;
    o->k = a->k;
    o->silu = a->silu;
    return keep(d, at_of(d, &a->at, a->x.shape[1] * (a->k - 1), &o->at) &&
                       cu__mat(d, &a->dst, &o->dst) && cu__mat(d, &a->mul, &o->mul) &&
                       cu__mat(d, &a->x, &o->x) && cu__mat(d, &a->in_gate, &o->in) &&
                       cu__mat(d, &a->out_gate, &o->out) && cu__vec(d, &a->w, &o->w) &&
                       cu__vec(d, &a->bias, &o->bias));
}

int cu__state_shift(struct dev *d, const struct op_state_shift *a)
{
    if (!d->in_step || ops_check_state_shift(a, cu__mul(d), &d->meta))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_STATE_SHIFT);
    if (!r)
        return ERR_NOMEM;
    struct cu_state_shift *o = &r->u.state_shift;
    o->n_mix = a->n_mix;
    return keep(d, at_of(d, &a->at, a->x.shape[1], &o->at) && cu__mat(d, &a->dst, &o->dst) &&
                       cu__mat(d, &a->x, &o->x) && cu__vec(d, &a->mix, &o->mix));
}

int cu__state_wkv(struct dev *d, const struct op_state_wkv *a)
{
    if (!d->in_step || ops_check_state_wkv(a, cu__mul(d), &d->meta))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_STATE_WKV);
    if (!r)
        return ERR_NOMEM;
    struct cu_state_wkv *o = &r->u.state_wkv;
    return keep(d, at_of(d, &a->at, 3 * a->k.shape[1], &o->at) && cu__mat(d, &a->dst, &o->dst) &&
                       cu__mat(d, &a->r, &o->r) && cu__mat(d, &a->k, &o->k) &&
                       cu__mat(d, &a->v, &o->v) && cu__vec(d, &a->decay, &o->decay) &&
                       cu__vec(d, &a->first, &o->first));
}

int cu__state_scan(struct dev *d, const struct op_state_scan *a)
{
    if (!d->in_step || ops_check_state_scan(a, &d->meta))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_STATE_SCAN);
    if (!r)
        return ERR_NOMEM;
    struct cu_state_scan *o = &r->u.state_scan;
    o->n_head = a->n_head;
    o->head_dim = a->head_dim;
    o->per_group = a->n_head / a->n_group;
    o->n_state = a->n_state;
    o->wide = len_of(&a->a) != a->n_head;
    o->dt_min = a->dt_min;
    o->dt_max = a->dt_max;
    int64_t n = (int64_t)a->n_head * a->head_dim * a->n_state;
    return keep(d, at_of(d, &a->at, n, &o->at) && cu__mat(d, &a->dst, &o->dst) &&
                       cu__mat(d, &a->x, &o->x) && cu__mat(d, &a->dt, &o->dt) &&
                       cu__mat(d, &a->b, &o->b) && cu__mat(d, &a->c, &o->c) &&
                       cu__vec(d, &a->a, &o->a) && cu__vec(d, &a->dt_bias, &o->dt_bias) &&
                       cu__vec(d, &a->skip, &o->skip));
}

int cu__state_delta(struct dev *d, const struct op_state_delta *a)
{
    if (!d->in_step || ops_check_state_delta(a, &d->meta))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_STATE_DELTA);
    if (!r)
        return ERR_NOMEM;
    struct cu_state_delta *o = &r->u.state_delta;
    o->n_head = a->n_head;
    o->n_key_head = a->n_key_head;
    o->dk = a->dk;
    o->dv = a->dv;
    o->cycle = a->cycle;
    o->wide = a->g.shape[1] != a->n_head;
    o->scale = a->scale;
    o->eps = a->eps;
    int64_t n = (int64_t)a->n_head * a->dk * a->dv;
    return keep(d, at_of(d, &a->at, n, &o->at) && cu__mat(d, &a->dst, &o->dst) &&
                       cu__mat(d, &a->q, &o->q) && cu__mat(d, &a->k, &o->k) &&
                       cu__mat(d, &a->v, &o->v) && cu__mat(d, &a->g, &o->g) &&
                       cu__mat(d, &a->beta, &o->beta) && cu__vec(d, &a->g_bias, &o->g_bias) &&
                       cu__vec(d, &a->a, &o->a));
}

int cu__gated_norm(struct dev *d, const struct op_gated_norm *a)
{
    if (ops_check_gated_norm(a, cu__mul(d)))
        return ERR_INVAL;
    if (a->x.shape[0] == 0)
        return 0;
    struct rec *r = cu__record(d, REC_GATED_NORM);
    if (!r)
        return ERR_NOMEM;
    struct cu_gated_norm *o = &r->u.gated_norm;
    o->group = a->group ? a->group : a->x.shape[1];
    o->bare = a->group == 0;
    o->act = (int32_t)a->act;
    o->each = a->w.buf && len_of(&a->w) == a->x.shape[1];
    o->gate_first = a->gate_first;
    o->eps = a->eps;
    o->rows = cu__rows_of(d, a->x.shape[0], &r->lone);
    return keep(d, cu__mat(d, &a->dst, &o->dst) && cu__mat(d, &a->x, &o->x) &&
                       cu__mat(d, &a->gate, &o->gate) && cu__vec(d, &a->w, &o->w));
}
