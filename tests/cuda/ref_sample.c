/* See ref_sample.h. */
#include "tests/cuda/ref_sample.h"

#include "engine/backend.h"
#include "engine/base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(call)                                                                                 \
    do {                                                                                           \
        if (call) {                                                                                \
            fprintf(stderr, "ref_sample: %s\n", #call);                                            \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

double ref_uniform(uint64_t seed, uint32_t position)
{
    return rng_uniform(seed, position);
}

static void row_fill(struct sample_row *s, const struct cu_sample *a, const struct cu_sample_row *r,
                     struct token_bias *bias)
{
    s->temperature = r->temperature;
    s->top_p = r->top_p;
    s->min_p = r->min_p;
    s->top_k = r->top_k;
    s->repetition_penalty = r->repetition_penalty;
    s->presence_penalty = r->presence_penalty;
    s->frequency_penalty = r->frequency_penalty;
    s->hist = a->ints + r->hist;
    s->n_prompt = r->n_prompt;
    s->n_hist = r->n_hist;
    for (int i = 0; i < r->n_bias; i++)
        bias[i] = (struct token_bias){a->bias_id[r->bias + i], a->bias_val[r->bias + i]};
    s->bias = bias;
    s->n_bias = r->n_bias;
    s->ban = a->ints + r->ban;
    s->n_ban = r->n_ban;
    s->mask = r->mask >= 0 ? (const uint32_t *)(a->ints + r->mask) : NULL;
    s->target = r->target;
    s->n_top = r->n_top;
}

void ref_sample_row(const float *x, int n, const struct cu_sample *a, const struct cu_sample_row *r,
                    uint64_t seed, uint32_t position, struct cu_sample_out *out)
{
    static struct dev *d;
    struct err e = {0};
    struct backend_opts o = {.precision = PRECISION_F32};
    struct token_bias bias[64];
    struct sample_row row = {.seed = seed, .position = position};
    struct sample_out got;
    dev_buf b = 0;
    if (!d)
        NEED(ref_backend.open(&d, &o, &e));
    NEED(r->n_bias > 64);
    row_fill(&row, a, r, bias);
    NEED(ref_backend.buf_alloc(d, (size_t)n * sizeof *x, &b));
    NEED(ref_backend.write(d, b, 0, x, (size_t)n * sizeof *x));
    struct op_sample op = {.logits = tensor_2d(DT_F32, b, 0, 1, n), .rows = &row, .out = &got};
    NEED(ref_backend.sample(d, &op));
    ref_backend.buf_free(d, b);
    out->token = got.token;
    out->logprob = got.logprob;
    out->rank = got.rank;
    out->n_top = got.n_top;
    memcpy(out->top_id, got.top_id, sizeof out->top_id);
    memcpy(out->top_logprob, got.top_logprob, sizeof out->top_logprob);
    out->bad = got.bad;
}
