/* Ops of mixtures of experts: checked, translated, recorded; and the device's tables of experts' weights. */
#include "cuda/backend_impl.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

static enum cu_rows rows_of(const struct dev *d, int64_t n, int32_t *lone)
{
    *lone = d->in_step && (n == d->meta.n_row || n == d->meta.n_logit) ? 0 : (int32_t)n;
    return *lone || n == d->meta.n_row ? CU_ROWS_ALL : CU_ROWS_LOGIT;
}

static int undo(struct dev *d, bool ok)
{
    if (!ok)
        d->n_rec--;
    return ok ? 0 : ERR_INVAL;
}

int cu__route(struct dev *d, const struct op_route *a)
{
    if (ops_check_route(a))
        return ERR_INVAL;
    if (a->logits.shape[0] == 0)
        return 0;
    struct rec *r = cu__record(d, REC_ROUTE);
    if (!r)
        return ERR_NOMEM;
    struct cu_route *o = &r->u.route;
    o->score = (int32_t)a->score;
    o->n_group = a->n_group;
    o->n_group_used = a->n_group_used;
    o->group_top2 = a->group_top2;
    o->renorm = a->renorm;
    o->scale = a->scale;
    o->rows = rows_of(d, a->logits.shape[0], &r->lone);
    return undo(d, cu__mat(d, &a->logits, &o->logits) && cu__mat(d, &a->id, &o->id) &&
                       cu__mat(d, &a->weight, &o->weight) &&
                       cu__vec(d, &a->select_bias, &o->select_bias) &&
                       cu__vec(d, &a->expert_scale, &o->expert_scale));
}

int cu__experts_sum(struct dev *d, const struct op_experts_sum *a)
{
    if (ops_check_experts_sum(a))
        return ERR_INVAL;
    if (a->dst.shape[0] == 0)
        return 0;
    struct rec *r = cu__record(d, REC_EXPERTS_SUM);
    if (!r)
        return ERR_NOMEM;
    struct cu_experts_sum *o = &r->u.experts_sum;
    o->n_used = (int32_t)(a->src.shape[0] / a->dst.shape[0]);
    o->add = a->add;
    o->rows = rows_of(d, a->dst.shape[0], &r->lone);
    return undo(d, cu__mat(d, &a->dst, &o->dst) && cu__mat(d, &a->src, &o->src) &&
                       cu__mat(d, &a->weight, &o->weight));
}

int cu__sigmoid_mul(struct dev *d, const struct op_sigmoid_mul *a)
{
    if (ops_check_sigmoid_mul(a, cu__mul(d)))
        return ERR_INVAL;
    if (a->dst.shape[0] == 0)
        return 0;
    struct rec *r = cu__record(d, REC_SIGMOID_MUL);
    if (!r)
        return ERR_NOMEM;
    struct cu_sigmoid_mul *o = &r->u.sigmoid_mul;
    o->rows = rows_of(d, a->dst.shape[0], &r->lone);
    return undo(d, cu__mat(d, &a->dst, &o->dst) && cu__mat(d, &a->x, &o->x) &&
                       cu__mat(d, &a->gate, &o->gate));
}

/* ---- tables: the device's copy of an array of weights, made when an op first brings that array ---- */

struct cu_table {
    struct dev_weight **key; /* [n_expert] */
    int n_expert;
    void *dev; /* struct cu_expert [n_part][n_expert] */
};

void cu__tables_drop(struct dev *d)
{
    for (int i = 0; i < d->n_table; i++) {
        cudaFree(d->table[i].dev);
        free(d->table[i].key);
    }
    free(d->table);
    d->table = NULL;
    d->n_table = 0;
}

/* All alike: one kernel reads them. */
static bool same_shape(const struct cu_weight *a, const struct cu_weight *b)
{
    bool same = a->n_in == b->n_in && a->n_out == b->n_out && a->n_part == b->n_part;
    for (int i = 0; same && i < a->n_part; i++) {
        const struct cu_part *p = &a->part[i], *q = &b->part[i];
        same = p->bits == q->bits && p->group == q->group && p->min == q->min &&
               p->offset == q->offset && p->levels == q->levels && p->n_out == q->n_out &&
               !p->row_scale == !q->row_scale;
    }
    return same && !a->col == !b->col;
}

static int table_fill(struct dev *d, struct cu_table *t, struct dev_weight *const *w, int n)
{
    const int n_part = w[0]->w.n_part;
    const size_t bytes = (size_t)(n * n_part) * sizeof(struct cu_expert);
    struct cu_expert *host = mem_calloc((size_t)(n * n_part), sizeof *host);
    t->n_expert = n;
    t->key = mem_calloc((size_t)n, sizeof(struct dev_weight *));
    int rc = host && t->key ? 0 : ERR_NOMEM;
    for (int x = 0; x < n && !rc; x++) {
        t->key[x] = w[x];
        for (int i = 0; i < n_part; i++)
            host[i * n + x] =
                (struct cu_expert){w[x]->w.part[i].data, w[x]->w.part[i].row_scale, w[x]->w.col};
    }
    if (!rc && cudaMalloc(&t->dev, bytes) != cudaSuccess) {
        cudaGetLastError();
        rc = ERR_NOMEM;
    }
    if (!rc)
        rc = cu__check(d, cudaMemcpyAsync(t->dev, host, bytes, cudaMemcpyHostToDevice, d->stream),
                       "experts");
    if (!rc) /* the host's copy goes */
        rc = cu__check(d, cudaStreamSynchronize(d->stream), "experts");
    free(host);
    return rc;
}

static int table_find(struct dev *d, struct dev_weight *const *w, int n, const void **out)
{
    const size_t bytes = (size_t)n * sizeof(struct dev_weight *);
    for (int i = 0; i < d->n_table; i++)
        if (d->table[i].n_expert == n && !memcmp(d->table[i].key, w, bytes)) {
            *out = d->table[i].dev;
            return 0;
        }
    for (int x = 0; x < n; x++)
        if (!w[x] || !same_shape(&w[0]->w, &w[x]->w))
            return ERR_INVAL;
    struct cu_table t = {0}, *all = mem_realloc(d->table, ((size_t)d->n_table + 1) * sizeof *all);
    if (!all)
        return ERR_NOMEM;
    d->table = all;
    int rc = table_fill(d, &t, w, n);
    if (rc) {
        cudaFree(t.dev);
        free(t.key);
        return rc;
    }
    d->table[d->n_table++] = t;
    *out = t.dev;
    return 0;
}

int cu__linear_experts(struct dev *d, const struct op_linear_experts *a)
{
    const void *table = NULL;
    if (!a->w || !a->w[0] ||
        ops_check_linear_experts(a, cu__mul(d), a->w[0]->w.n_in, a->w[0]->w.n_out))
        return ERR_INVAL;
    if (a->dst.shape[0] == 0)
        return 0;
    int rc = table_find(d, a->w, a->n_expert, &table);
    if (rc)
        return rc;
    struct rec *r = cu__record(d, REC_EXPERTS);
    if (!r)
        return ERR_NOMEM;
    struct cu_experts *o = &r->u.experts;
    o->w = &a->w[0]->w;
    o->table = table;
    o->n_expert = a->n_expert;
    o->steady = !d->in_step;
    o->n_used = (int32_t)a->id.shape[1];
    o->each = a->src.shape[0] != a->id.shape[0];
    o->rows = rows_of(d, a->id.shape[0], &r->lone);
    return undo(d, cu__mat(d, &a->dst, &o->dst) && cu__mat(d, &a->src, &o->src) &&
                       cu__mat(d, &a->id, &o->id) && cu__mat(d, &a->in_scale, &o->in_scale) &&
                       cu__vec(d, &a->bias, &o->bias));
}

/* ---- latent attention ---- */

int cu__mla_kv(struct dev *d, const struct op_mla_kv *a)
{
    if (!d->in_step || !a->kv_pool ||
        ops_check_mla_kv(a, cu__mul(d), &d->meta, &a->kv_pool->desc) ||
        ops_check_blocks(&d->meta, a->kv_pool->desc.n_block))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_MLA_KV);
    if (!r)
        return ERR_NOMEM;
    struct cu_mla_kv *o = &r->u.mla_kv;
    o->norm_eps = a->norm_eps;
    o->attn_factor = a->attn_factor;
    o->n_head = a->n_head;
    o->n_nope = a->n_nope;
    o->n_rope = a->n_rope;
    o->rank = a->rank;
    o->style = (int32_t)a->style;
    o->pool = &a->kv_pool->kv;
    o->layer = a->layer;
    return undo(d, cu__mat(d, &a->q, &o->q) && cu__mat(d, &a->q_nope, &o->q_nope) &&
                       cu__mat(d, &a->kv, &o->kv) && cu__vec(d, &a->norm, &o->norm) &&
                       cu__vec(d, &a->inv_freq, &o->inv_freq));
}

int cu__mla_attn(struct dev *d, const struct op_mla_attn *a)
{
    if (!d->in_step || !a->kv_pool ||
        ops_check_mla_attn(a, cu__mul(d), &d->meta, &a->kv_pool->desc) ||
        ops_check_attn_blocks(&d->meta, 0, a->kv_pool->desc.n_block))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_MLA_ATTN);
    if (!r)
        return ERR_NOMEM;
    struct cu_mla_attn *o = &r->u.mla_attn;
    o->n_head = a->n_head;
    o->n_nope = a->n_nope;
    o->n_rope = a->n_rope;
    o->rank = a->rank;
    o->scale = a->scale;
    o->pool = &a->kv_pool->kv;
    o->layer = a->layer;
    return undo(d, cu__mat(d, &a->dst, &o->dst) && cu__mat(d, &a->q_abs, &o->q_abs) &&
                       cu__mat(d, &a->q, &o->q) && cu__mat(d, &a->seen, &o->seen));
}

int cu__index(struct dev *d, const struct op_index *a)
{
    if (!d->in_step || !a->kv_pool || ops_check_index(a, &d->meta, &a->kv_pool->desc) ||
        ops_check_blocks(&d->meta, a->kv_pool->desc.n_block))
        return ERR_INVAL;
    struct rec *r = cu__record(d, REC_INDEX);
    if (!r)
        return ERR_NOMEM;
    struct cu_index *o = &r->u.index;
    o->n_head = a->n_head;
    o->dim = a->dim;
    o->n_rope = a->n_rope;
    o->n_top = a->n_top;
    o->style = (int32_t)a->style;
    o->scale = a->scale;
    o->attn_factor = a->attn_factor;
    o->pool = &a->kv_pool->kv;
    o->layer = a->layer;
    return undo(d, cu__mat(d, &a->q, &o->q) && cu__mat(d, &a->k, &o->k) &&
                       cu__mat(d, &a->weight, &o->weight) && cu__mat(d, &a->seen, &o->seen) &&
                       cu__vec(d, &a->inv_freq, &o->inv_freq));
}
