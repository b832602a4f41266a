/* Sampling parameters to the device, results back. Rows and their lists lie in one pinned buffer a step; results come
 * into the step's slot and are handed out by sample_wait. */
#include "cuda/backend_impl.h"

#include "engine/base/mem.h"
#include "engine/base/rng.h"

#include <string.h>

struct lists { /* counts over all rows */
    size_t ints, bias;
};

static bool penalised(const struct sample_row *r)
{
    return r->repetition_penalty < 1 || r->repetition_penalty > 1 || r->presence_penalty < 0 ||
           r->presence_penalty > 0 || r->frequency_penalty < 0 || r->frequency_penalty > 0;
}

static struct lists lists_of(const struct op_sample *a, int n_vocab)
{
    struct lists l = {0};
    for (int64_t i = 0; i < a->logits.shape[0]; i++) {
        const struct sample_row *r = &a->rows[i];
        l.ints += (penalised(r) ? (size_t)r->n_hist : 0) + (size_t)r->n_ban +
                  (r->mask ? ((size_t)n_vocab + 31) / 32 : 0);
        l.bias += (size_t)r->n_bias;
    }
    return l;
}

static int32_t list_put(int32_t *ints, size_t *at, const void *src, size_t n)
{
    size_t here = *at;
    if (n)
        memcpy(ints + here, src, n * sizeof *ints);
    *at += n;
    return (int32_t)here;
}

struct arrays {
    struct cu_sample_row *row;
    int32_t *ints, *bias_id;
    float *bias_val;
    size_t bytes;
};

static struct arrays arrays_at(char *base, size_t n_row, const struct lists *l)
{
    struct arrays a = {.row = (void *)base};
    a.ints = (void *)(base + n_row * sizeof *a.row);
    a.bias_id = a.ints + l->ints;
    a.bias_val = (float *)(void *)(a.bias_id + l->bias);
    a.bytes = n_row * sizeof *a.row + (l->ints + 2 * l->bias) * 4;
    return a;
}

static void rows_fill(const struct op_sample *a, const struct arrays *to, int n_vocab)
{
    size_t ints = 0, bias = 0;
    for (int64_t i = 0; i < a->logits.shape[0]; i++) {
        const struct sample_row *r = &a->rows[i];
        bool penalty = penalised(r);
        struct cu_sample_row *o = &to->row[i];
        *o = (struct cu_sample_row){.temperature = r->temperature,
                                    .top_p = r->top_p,
                                    .min_p = r->min_p,
                                    .top_k = r->top_k,
                                    .repetition_penalty =
                                        r->repetition_penalty > 0 ? r->repetition_penalty : 1,
                                    .presence_penalty = r->presence_penalty,
                                    .frequency_penalty = r->frequency_penalty,
                                    .uniform = rng_uniform(r->seed, r->position),
                                    .n_prompt = r->n_prompt,
                                    .n_hist = penalty ? r->n_hist : 0,
                                    .n_bias = r->n_bias,
                                    .n_ban = r->n_ban,
                                    .mask = -1,
                                    .target = r->target,
                                    .n_top = r->n_top};
        o->hist = list_put(to->ints, &ints, r->hist, (size_t)o->n_hist);
        o->ban = list_put(to->ints, &ints, r->ban, (size_t)r->n_ban);
        if (r->mask)
            o->mask = list_put(to->ints, &ints, r->mask, ((size_t)n_vocab + 31) / 32);
        o->bias = (int32_t)bias;
        for (int k = 0; k < r->n_bias; k++, bias++) {
            to->bias_id[bias] = r->bias[k].token;
            to->bias_val[bias] = r->bias[k].bias;
        }
    }
}

/* Room for n chosen tokens. Those of the sample before stay: a step that is recorded but not yet launched may name them.
 * The others read as token 0. */
static int sampled_grow(struct dev *d, size_t n)
{
    void *p = NULL;
    int rc = cu__check(d, cudaStreamSynchronize(d->stream), "sample");
    if (rc)
        return rc;
    if (cudaMalloc(&p, n * sizeof(int32_t)) != cudaSuccess) {
        cudaGetLastError();
        return ERR_NOMEM;
    }
    rc = cu__check(d, cudaMemsetAsync(p, 0, n * sizeof(int32_t), d->stream), "sample");
    if (!rc && d->n_sampled)
        rc = cu__check(d,
                       cudaMemcpyAsync(p, d->sampled, d->n_sampled * sizeof(int32_t),
                                       cudaMemcpyDeviceToDevice, d->stream),
                       "sample");
    if (!rc)
        rc = cu__check(d, cudaStreamSynchronize(d->stream), "sample");
    if (rc) {
        cudaFree(p);
        return rc;
    }
    cudaFree(d->sampled);
    d->sampled = p;
    d->n_sampled = n;
    d->step.sampled = p;
    return 0;
}

/* Everything a sample of n rows needs; growing device arrays changes graph keys by itself. */
static int sample_room(struct dev *d, struct slot *s, size_t n, size_t bytes, int n_vocab)
{
    size_t bound = d->in_step && (int)n == d->meta.n_logit ? (size_t)d->step.logit_max : n;
    int rc = cu__pinned(d, &s->sample, bytes);
    if (!rc)
        rc = cu__pinned(d, &s->out, n * sizeof(struct cu_sample_out));
    if (!rc)
        rc = cu__grow(d, &d->dev_sample, bytes, false);
    if (!rc)
        rc = cu__grow(d, &d->dev_out, bound * sizeof(struct cu_sample_out), false);
    if (!rc)
        rc = cu__grow(d, &d->dev_seen, cu_sample_ws((int)bound, n_vocab), false);
    return rc || bound <= d->n_sampled ? rc : sampled_grow(d, bound * 2);
}

static int sample_record(struct dev *d, const struct op_sample *a, const struct arrays *dev,
                         bool lone)
{
    struct rec *r = cu__record(d, REC_SAMPLE);
    if (!r)
        return ERR_NOMEM;
    struct cu_sample *o = &r->u.sample;
    r->lone = lone ? (int32_t)a->logits.shape[0] : 0;
    o->logits = (struct cu_mat){.p = cu__ptr(d, &a->logits),
                                .ld = a->logits.stride[0],
                                .cols = (int32_t)a->logits.shape[1]};
    o->rows = dev->row;
    o->ints = dev->ints;
    o->bias_id = dev->bias_id;
    o->bias_val = dev->bias_val;
    o->out = d->dev_out.p;
    o->sampled = d->sampled;
    o->ws = d->dev_seen.p;
    o->ws_bytes = d->dev_seen.n;
    if (!o->logits.p)
        d->n_rec--;
    return o->logits.p ? 0 : ERR_INVAL;
}

int cu__sample(struct dev *d, const struct op_sample *a)
{
    size_t n = (size_t)a->logits.shape[0];
    bool lone = !d->in_step || (int)n != d->meta.n_logit;
    if (ops_check_sample(a) || d->n_open == 2)
        return ERR_INVAL;
    if (n == 0 || d->failed)
        return d->failed;
    if (lone && !d->in_step)
        d->at_slot = (d->at_slot + 1) % N_SLOT;
    struct slot *s = &d->slot[d->at_slot];
    int n_vocab = (int)a->logits.shape[1];
    struct lists l = lists_of(a, n_vocab);
    size_t bytes = arrays_at(NULL, n, &l).bytes;
    /* With lists the arrays' places differ from step to step: such a step is not worth a graph of its own. */
    d->decode_only = d->decode_only && l.ints == 0 && l.bias == 0 && !lone;
    /* step_begin waited for this slot's last step; now its event stands behind the steps in flight, so waiting for it again
     * would end look-ahead. */
    bool taken = lone;
    for (int i = 0; i < d->n_open; i++)
        taken = taken || d->open[i].slot == d->at_slot;
    int rc = taken ? cu__check(d, cudaEventSynchronize(s->done), "sample") : 0;
    if (!rc)
        rc = sample_room(d, s, n, bytes, n_vocab);
    if (rc)
        return rc;
    struct arrays host = arrays_at(s->sample.p, n, &l), dev = arrays_at(d->dev_sample.p, n, &l);
    rows_fill(a, &host, n_vocab);
    if (d->decode_only) /* places that do not depend on n */
        dev.ints = dev.bias_id = NULL, dev.bias_val = NULL;
    rc = cu__check(
        d, cudaMemcpyAsync(d->dev_sample.p, s->sample.p, bytes, cudaMemcpyHostToDevice, d->stream),
        "sample");
    if (rc || (rc = sample_record(d, a, &dev, lone)) || (rc = cu__flush(d)))
        return rc;
    rc = cu__check(d,
                   cudaMemcpyAsync(s->out.p, d->dev_out.p, n * sizeof(struct cu_sample_out),
                                   cudaMemcpyDeviceToHost, d->stream),
                   "sample");
    if (!rc)
        rc = cu__check(d, cudaEventRecord(s->done, d->stream), "sample");
    if (!rc)
        d->open[d->n_open++] = (struct open_sample){d->at_slot, (int)n, a->out};
    return rc;
}

void cu__sample_fill(struct dev *d)
{
    const struct open_sample *o = &d->open[0];
    for (int i = 0; i < o->n; i++) {
        const struct cu_sample_out *x = (const struct cu_sample_out *)d->slot[o->slot].out.p + i;
        struct sample_out *y = &o->out[i];
        *y = (struct sample_out){.token = x->token,
                                 .logprob = x->logprob,
                                 .rank = x->rank,
                                 .n_top = x->n_top,
                                 .bad = x->bad};
        memcpy(y->top_id, x->top_id, (size_t)x->n_top * sizeof *x->top_id);
        memcpy(y->top_logprob, x->top_logprob, (size_t)x->n_top * sizeof *x->top_logprob);
    }
    d->open[0] = d->open[1];
    d->n_open--;
}

int cu__sample_wait(struct dev *d)
{
    int rc = d->failed;
    if (rc || d->n_open == 0)
        return rc;
    rc = cu__check(d, cudaEventSynchronize(d->slot[d->open[0].slot].done), "sample");
    if (!rc)
        cu__sample_fill(d);
    return rc;
}
