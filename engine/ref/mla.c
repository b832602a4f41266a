/* Reference: latent attention. A token's vector lies as K of a pool with one head. */
#include "engine/ref/ref_impl.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>

/* A token's vector. */
static char *token_at(const struct dev_kv *kv, const struct step_meta *m, int layer, int seq,
                      int pos)
{
    const struct kv_desc *k = &kv->desc;
    int32_t block = m->block_table[(int64_t)seq * m->block_stride + pos / KV_BLOCK_TOKENS];
    size_t token = ((size_t)layer * (size_t)k->n_block + (size_t)block) * KV_BLOCK_TOKENS +
                   (size_t)(pos % KV_BLOCK_TOKENS);
    return kv->p + token * ref__kv_vec_bytes(k);
}

/* n values; `factor` multiplies cos and sin. */
static void rotate(enum rope_style style, int n, double f, float *x, const float *inv_freq, int pos)
{
    int half = n / 2;
    for (int i = 0; i < half; i++) {
        double t = (double)pos * (double)inv_freq[i];
        float *p = style == ROPE_NORM ? x + 2 * i : x + i;
        float *q = style == ROPE_NORM ? x + 2 * i + 1 : x + half + i;
        double u = (double)*p, v = (double)*q;
        *p = (float)((u * cos(t) - v * sin(t)) * f);
        *q = (float)((u * sin(t) + v * cos(t)) * f);
    }
}

static void latent_norm(float *x, const float *w, int n, float eps)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double inv = 1 / sqrt(sum / n + (double)eps);
    for (int i = 0; i < n; i++)
        x[i] = (float)((double)x[i] * inv * (double)w[i]);
}

int ref__mla_kv(struct dev *d, const struct op_mla_kv *a)
{
    const struct step_meta *m = &d->meta;
    if (!d->in_step || !a->kv_pool || ops_check_mla_kv(a, DT_F32, m, &a->kv_pool->desc) ||
        ops_check_blocks(m, a->kv_pool->desc.n_block))
        return ERR_INVAL;
    float *q = ref__ptr(d, &a->q), *kv = ref__ptr(d, &a->kv), *nope = ref__ptr(d, &a->q_nope);
    const float *w = ref__ptr(d, &a->norm), *freq = ref__ptr(d, &a->inv_freq);
    if (!q || !kv || !nope || !w || !freq)
        return ERR_INVAL;
    for (int s = 0; s < m->n_seq; s++)
        for (int i = m->seq_start[s]; i < m->seq_start[s + 1]; i++) {
            float *x = kv + i * a->kv.stride[0];
            latent_norm(x, w, a->rank, a->norm_eps);
            rotate(a->style, a->n_rope, (double)a->attn_factor, x + a->rank, freq, m->pos[i]);
            ref__kv_store(&a->kv_pool->desc, token_at(a->kv_pool, m, a->layer, s, m->pos[i]), x);
            for (int h = 0; h < a->n_head; h++) {
                float *y = q + i * a->q.stride[0] + h * (a->n_nope + a->n_rope);
                rotate(a->style, a->n_rope, (double)a->attn_factor, y + a->n_nope, freq, m->pos[i]);
                for (int k = 0; k < a->n_nope; k++)
                    nope[((int64_t)i * a->n_head + h) * a->n_nope + k] = y[k];
            }
        }
    return 0;
}

/* A row's query of one head; seen: [pos + 1] of the row, or NULL. */
struct query {
    const float *abs, *rope, *seen;
    int seq, pos;
};

/* Scores, softmax, sum; two passes over the tokens. */
static void head_attend(const struct op_mla_attn *a, const struct step_meta *m, struct query y,
                        float *dst)
{
    const struct dev_kv *kv = a->kv_pool;
    double acc[OPS_LATENT_MAX] = {0}, max = -INFINITY, sum = 0, *x = kv->x;
    for (int pass = 0; pass < 2; pass++)
        for (int t = 0; t <= y.pos; t++) {
            double s = 0;
            if (y.seen && y.seen[t] == -INFINITY)
                continue;
            ref__kv_load(&kv->desc, token_at(kv, m, a->layer, y.seq, t), x);
            for (int k = 0; k < a->rank; k++)
                s += (double)y.abs[k] * x[k];
            for (int k = 0; k < a->n_rope; k++)
                s += (double)y.rope[k] * x[a->rank + k];
            s *= (double)a->scale;
            if (pass == 0) {
                max = fmax(max, s);
                continue;
            }
            double p = exp(s - max);
            sum += p;
            for (int k = 0; k < a->rank; k++)
                acc[k] += p * x[k];
        }
    for (int k = 0; k < a->rank; k++)
        dst[k] = (float)(acc[k] / sum);
}

int ref__mla_attn(struct dev *d, const struct op_mla_attn *a)
{
    const struct step_meta *m = &d->meta;
    if (!d->in_step || !a->kv_pool || ops_check_mla_attn(a, DT_F32, m, &a->kv_pool->desc) ||
        ops_check_attn_blocks(m, 0, a->kv_pool->desc.n_block))
        return ERR_INVAL;
    const float *q = ref__ptr(d, &a->q), *q_abs = ref__ptr(d, &a->q_abs);
    const float *seen = a->seen.buf ? ref__ptr(d, &a->seen) : NULL;
    float *dst = ref__ptr(d, &a->dst);
    if (!q || !q_abs || !dst || (a->seen.buf && !seen))
        return ERR_INVAL;
    for (int s = 0; s < m->n_seq; s++)
        for (int i = m->seq_start[s]; i < m->seq_start[s + 1]; i++)
            for (int h = 0; h < a->n_head; h++) {
                int64_t at = ((int64_t)i * a->n_head + h) * a->rank;
                head_attend(
                    a, m,
                    (struct query){q_abs + at,
                                   q + i * a->q.stride[0] + h * (a->n_nope + a->n_rope) + a->n_nope,
                                   seen ? seen + i * a->seen.stride[0] : NULL, s, m->pos[i]},
                    dst + at);
            }
    return 0;
}

static int falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Scores of one row; all but the n_top best become -inf. */
static int index_row(const struct op_index *a, const struct step_meta *m, const int at[2],
                     const float *q, const float *w, float *seen)
{
    const struct dev_kv *kv = a->kv_pool;
    int n = at[1] + 1, n_above = 0;
    if (n <= a->n_top) {
        for (int t = 0; t < n; t++)
            seen[t] = 0;
        return 0;
    }
    double *score = mem_calloc((size_t)n * 2, sizeof *score), *sorted = score + n, *x = kv->x;
    if (!score)
        return ERR_NOMEM;
    for (int t = 0; t < n; t++) {
        ref__kv_load(&kv->desc, token_at(kv, m, a->layer, at[0], t), x);
        for (int h = 0; h < a->n_head; h++) {
            double s = 0;
            for (int k = 0; k < a->dim; k++)
                s += (double)q[h * a->dim + k] * x[k];
            score[t] += (double)w[h] * fmax(0, s * (double)a->scale);
        }
        sorted[t] = score[t] = (double)(float)score[t];
    }
    qsort(sorted, (size_t)n, sizeof *sorted, falling);
    double least = sorted[a->n_top - 1];
    for (int t = 0; t < n; t++)
        n_above += score[t] > least;
    for (int t = 0; t < n; t++) {
        bool in = score[t] > least || (score[t] == least && n_above++ < a->n_top);
        seen[t] = in ? (float)score[t] : -INFINITY;
    }
    free(score);
    return 0;
}

int ref__index(struct dev *d, const struct op_index *a)
{
    const struct step_meta *m = &d->meta;
    if (!d->in_step || !a->kv_pool || ops_check_index(a, m, &a->kv_pool->desc) ||
        ops_check_blocks(m, a->kv_pool->desc.n_block))
        return ERR_INVAL;
    float *q = ref__ptr(d, &a->q), *k = ref__ptr(d, &a->k), *w = ref__ptr(d, &a->weight);
    float *seen = a->seen.buf ? ref__ptr(d, &a->seen) : NULL;
    const float *freq = ref__ptr(d, &a->inv_freq);
    double f = (double)a->attn_factor;
    int rc = 0;
    if (!q || !k || !w || !freq || (a->seen.buf && !seen))
        return ERR_INVAL;
    for (int s = 0; s < m->n_seq; s++)
        for (int i = m->seq_start[s]; i < m->seq_start[s + 1]; i++) {
            for (int h = 0; h < a->n_head; h++)
                rotate(a->style, a->n_rope, f, q + i * a->q.stride[0] + h * a->dim, freq,
                       m->pos[i]);
            rotate(a->style, a->n_rope, f, k + i * a->k.stride[0], freq, m->pos[i]);
            ref__kv_store(&a->kv_pool->desc, token_at(a->kv_pool, m, a->layer, s, m->pos[i]),
                          k + i * a->k.stride[0]);
        }
    for (int s = 0; s < m->n_seq && seen; s++)
        for (int i = m->seq_start[s]; i < m->seq_start[s + 1] && !rc; i++)
            rc = index_row(a, m, (int[2]){s, m->pos[i]}, q + i * a->q.stride[0],
                           w + i * a->weight.stride[0], seen + i * a->seen.stride[0]);
    return rc;
}
