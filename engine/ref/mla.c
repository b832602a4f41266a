/* Reference: latent attention. A token's vector lies as K of a pool with one head. */
#include "engine/ref/ref_impl.h"

#include <math.h>

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

static void rotate(const struct op_mla_kv *a, float *x, const float *inv_freq, int pos)
{
    int half = a->n_rope / 2;
    for (int i = 0; i < half; i++) {
        double t = (double)pos * (double)inv_freq[i], f = (double)a->attn_factor;
        float *p = a->style == ROPE_NORM ? x + 2 * i : x + i;
        float *q = a->style == ROPE_NORM ? x + 2 * i + 1 : x + half + i;
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
            rotate(a, x + a->rank, freq, m->pos[i]);
            ref__kv_store(&a->kv_pool->desc, token_at(a->kv_pool, m, a->layer, s, m->pos[i]), x);
            for (int h = 0; h < a->n_head; h++) {
                float *y = q + i * a->q.stride[0] + h * (a->n_nope + a->n_rope);
                rotate(a, y + a->n_nope, freq, m->pos[i]);
                for (int k = 0; k < a->n_nope; k++)
                    nope[((int64_t)i * a->n_head + h) * a->n_nope + k] = y[k];
            }
        }
    return 0;
}

/* One row of one head: scores, softmax, sum; two passes over the tokens. */
static void head_attend(const struct op_mla_attn *a, const struct step_meta *m, int seq, int pos,
                        const float *q_abs, const float *q_rope, float *dst)
{
    const struct dev_kv *kv = a->kv_pool;
    double acc[OPS_LATENT_MAX] = {0}, max = -INFINITY, sum = 0, *x = kv->x;
    for (int pass = 0; pass < 2; pass++)
        for (int t = 0; t <= pos; t++) {
            double s = 0;
            ref__kv_load(&kv->desc, token_at(kv, m, a->layer, seq, t), x);
            for (int k = 0; k < a->rank; k++)
                s += (double)q_abs[k] * x[k];
            for (int k = 0; k < a->n_rope; k++)
                s += (double)q_rope[k] * x[a->rank + k];
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
    float *dst = ref__ptr(d, &a->dst);
    if (!q || !q_abs || !dst)
        return ERR_INVAL;
    for (int s = 0; s < m->n_seq; s++)
        for (int i = m->seq_start[s]; i < m->seq_start[s + 1]; i++)
            for (int h = 0; h < a->n_head; h++) {
                int64_t at = ((int64_t)i * a->n_head + h) * a->rank;
                head_attend(a, m, s, m->pos[i], q_abs + at,
                            q + i * a->q.stride[0] + h * (a->n_nope + a->n_rope) + a->n_nope,
                            dst + at);
            }
    return 0;
}
