/* Reference: KV pool, rotary embedding with KV write, attention by the textbook softmax. */
#include "engine/ref/ref_impl.h"

#include "engine/base/mem.h"
#include "engine/quant/kv8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t ref__kv_vec_bytes(const struct kv_desc *k)
{
    return (size_t)k->head_dim * dtype_bytes(k->dtype) +
           (dtype_is_code(k->dtype) ? sizeof(float) : 0);
}

static bool layer_bytes(const struct kv_desc *k, size_t *block, size_t *layer)
{
    size_t n = (k->k_only ? 1u : 2u) * KV_BLOCK_TOKENS;
    return ck_mul(n, ref__kv_vec_bytes(k), &n) && ck_mul(n, (size_t)k->n_kv_head, block) &&
           ck_mul(*block, (size_t)k->n_block, layer);
}

size_t ref__kv_block_bytes(const struct kv_desc *k)
{
    size_t block, layer;
    return layer_bytes(k, &block, &layer) ? block * (size_t)k->n_layer : 0;
}

void ref__kv_close(struct dev *d, struct dev_kv *kv)
{
    (void)d;
    if (!kv)
        return;
    free(kv->acc);
    free(kv->p);
    free(kv);
}

int ref__kv_open(struct dev *d, struct dev_kv **out, const struct kv_desc *k, struct err *e)
{
    size_t block, layer;
    int rc = ops_check_kv(k, e);
    if (rc)
        return rc;
    struct dev_kv *kv = mem_calloc(1, sizeof *kv);
    if (kv) {
        kv->desc = *k;
        kv->p = layer_bytes(k, &block, &layer) ? mem_calloc(layer, (size_t)k->n_layer) : NULL;
        kv->acc = mem_calloc((size_t)k->head_dim, 2 * sizeof *kv->acc);
        kv->x = kv->acc ? kv->acc + k->head_dim : NULL;
    }
    if (!kv || !kv->p || !kv->acc) {
        ref__kv_close(d, kv);
        return err_set(e, ERR_NOMEM, "no memory for a KV pool of %d blocks", (int)k->n_block);
    }
    *out = kv;
    return 0;
}

int ref__kv_copy(struct dev *d, const struct op_kv_copy *a)
{
    (void)d;
    size_t block, layer;
    if (!a->kv || ops_check_kv_copy(a, a->kv->desc.n_block) ||
        !layer_bytes(&a->kv->desc, &block, &layer))
        return ERR_INVAL;
    for (int l = 0; l < a->kv->desc.n_layer; l++)
        for (int i = 0; i < a->n; i++) {
            char *p = a->kv->p + (size_t)l * layer;
            memcpy(p + (size_t)a->dst[i] * block, p + (size_t)a->src[i] * block, block);
        }
    return 0;
}

/* K (v = 0) or V (1) of one token and head. */
static char *kv_at(const struct dev_kv *kv, int layer, int64_t slot, int head, int v)
{
    const struct kv_desc *k = &kv->desc;
    size_t token = (size_t)layer * (size_t)k->n_block * KV_BLOCK_TOKENS + (size_t)slot;
    size_t n = (token * (size_t)k->n_kv_head + (size_t)head) * 2 + (size_t)v;
    return kv->p + n * ref__kv_vec_bytes(k);
}

void ref__kv_load(const struct kv_desc *k, const char *p, double *x)
{
    const void *v = p;
    float scale = 1;
    if (dtype_is_code(k->dtype))
        memcpy(&scale, p + k->head_dim, sizeof scale);
    for (int i = 0; i < k->head_dim; i++) {
        if (k->dtype == DT_F32)
            x[i] = (double)((const float *)v)[i];
        else if (k->dtype == DT_F16)
            x[i] = (double)f16_to_f32(((const uint16_t *)v)[i]);
        else if (k->dtype == DT_BF16)
            x[i] = (double)bf16_to_f32(((const uint16_t *)v)[i]);
        else if (k->dtype == DT_I8)
            x[i] = (double)((const int8_t *)v)[i] * (double)scale;
        else
            x[i] = (double)quant_e4m3(((const uint8_t *)v)[i]) * (double)scale;
    }
}

void ref__kv_store(const struct kv_desc *k, char *p, const float *x)
{
    void *v = p;
    float scale;
    if (dtype_is_code(k->dtype)) {
        scale = k->dtype == DT_I8 ? kv8_pack_i8(v, x, k->head_dim) : kv8_pack_f8(v, x, k->head_dim);
        memcpy(p + k->head_dim, &scale, sizeof scale);
    } else if (k->dtype == DT_F32) {
        memcpy(p, x, (size_t)k->head_dim * sizeof *x);
    } else {
        for (int i = 0; i < k->head_dim; i++)
            ((uint16_t *)v)[i] = k->dtype == DT_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
    }
}

/* Where the token at `pos` of sequence `seq` lies, in tokens. */
static int64_t slot_of(const struct step_meta *m, int seq, int pos)
{
    int32_t b = m->block_table[(int64_t)seq * m->block_stride + pos / KV_BLOCK_TOKENS];
    return (int64_t)b * KV_BLOCK_TOKENS + pos % KV_BLOCK_TOKENS;
}

static void head_norm(float *x, const float *w, int n, float eps)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double inv = 1 / sqrt(sum / n + (double)eps);
    for (int i = 0; i < n; i++)
        x[i] = (float)((double)x[i] * inv * (double)w[i]);
}

static void head_rope(float *x, const struct op_rope_kv *a, const float *inv_freq, int pos)
{
    int half = a->n_rot / 2;
    for (int i = 0; i < half && a->style != ROPE_NONE; i++) {
        double t = (double)pos * (double)inv_freq[i], f = (double)a->attn_factor;
        float *p = a->style == ROPE_NORM ? x + 2 * i : x + i;
        float *q = a->style == ROPE_NORM ? x + 2 * i + 1 : x + half + i;
        double u = (double)*p, v = (double)*q;
        *p = (float)((u * cos(t) - v * sin(t)) * f);
        *q = (float)((u * sin(t) + v * cos(t)) * f);
    }
}

int ref__rope_kv(struct dev *d, const struct op_rope_kv *a)
{
    const struct step_meta *m = &d->meta;
    if (!d->in_step || !a->kv || ops_check_rope_kv(a, m, &a->kv->desc) ||
        ops_check_blocks(m, a->kv->desc.n_block))
        return ERR_INVAL;
    float *qkv = ref__ptr(d, &a->qkv);
    const float *freq = a->style == ROPE_NONE ? NULL : ref__ptr(d, &a->inv_freq);
    const float *qn = a->q_norm.buf ? ref__ptr(d, &a->q_norm) : NULL;
    const float *kn = a->k_norm.buf ? ref__ptr(d, &a->k_norm) : NULL;
    const float *vn = a->v_norm.buf ? ref__ptr(d, &a->v_norm) : NULL;
    if (!qkv || (a->style != ROPE_NONE && !freq) || (a->q_norm.buf && !qn) ||
        (a->k_norm.buf && !kn) || (a->v_norm.buf && !vn))
        return ERR_INVAL;
    int hd = a->head_dim, n_kv = a->q_only ? 0 : a->n_kv_head, n_qk = a->n_head + n_kv;
    for (int s = 0; s < m->n_seq; s++)
        for (int i = m->seq_start[s]; i < m->seq_start[s + 1]; i++) {
            float *x = qkv + i * a->qkv.stride[0];
            for (int h = 0; h < n_qk; h++) {
                const float *w = h < a->n_head ? qn : kn;
                if (w)
                    head_norm(x + h * hd, w, hd, a->norm_eps);
                head_rope(x + h * hd, a, freq, m->pos[i]);
            }
            for (int h = n_qk; vn && h < n_qk + n_kv; h++)
                head_norm(x + h * hd, vn, hd, a->norm_eps);
            int64_t slot = slot_of(m, s, m->pos[i]);
            for (int h = 0; h < n_kv; h++) {
                const float *kx = x + (a->n_head + h) * hd, *vx = kx + a->n_kv_head * hd;
                ref__kv_store(&a->kv->desc, kv_at(a->kv, a->layer, slot, h, 0), kx);
                ref__kv_store(&a->kv->desc, kv_at(a->kv, a->layer, slot, h, 1), vx);
            }
        }
    return 0;
}

/* What a head has of its own: `sink` is -inf where there is none, `slope` 0. */
struct head_terms {
    double sink, slope;
};

/* One query head of one row, two passes: the maximum, then weights and sums. */
static void attend(const struct dev *d, const struct op_attn *a, const int at[3],
                   struct head_terms own, const float *q, float *dst)
{
    double sink = own.sink;
    int seq = at[0], pos = at[1], head = at[2] / (a->n_head / a->n_kv_head), hd = a->head_dim;
    int from = ops_first_seen(pos, a->window);
    double max = sink, sum = 0, *acc = a->kv->acc, *x = a->kv->x;
    memset(acc, 0, (size_t)hd * sizeof *acc);
    for (int pass = 0; pass < 2; pass++)
        for (int t = from; t <= pos; t++) {
            int64_t slot = slot_of(&d->meta, seq, t);
            double s = 0, cap = (double)a->softcap;
            ref__kv_load(&a->kv->desc, kv_at(a->kv, a->layer, slot, head, 0), x);
            for (int i = 0; i < hd; i++)
                s += (double)q[i] * x[i];
            s *= (double)a->scale;
            if (cap > 0)
                s = cap * tanh(s / cap);
            s += own.slope * (t - pos);
            if (pass == 0) {
                max = s > max ? s : max;
                continue;
            }
            double p = exp(s - max);
            sum += p;
            ref__kv_load(&a->kv->desc, kv_at(a->kv, a->layer, slot, head, 1), x);
            for (int i = 0; i < hd; i++)
                acc[i] += p * x[i];
        }
    sum += exp(sink - max);
    for (int i = 0; i < hd; i++)
        dst[i] = (float)(acc[i] / sum);
}

int ref__attn(struct dev *d, const struct op_attn *a)
{
    const struct step_meta *m = &d->meta;
    if (!d->in_step || !a->kv || ops_check_attn(a, DT_F32, m, &a->kv->desc) ||
        ops_check_attn_blocks(m, a->window, a->kv->desc.n_block))
        return ERR_INVAL;
    float *dst = ref__ptr(d, &a->dst);
    const float *q = ref__ptr(d, &a->qkv);
    const float *sinks = a->sinks.buf ? ref__ptr(d, &a->sinks) : NULL;
    const float *alibi = a->alibi.buf ? ref__ptr(d, &a->alibi) : NULL;
    if (!dst || !q || (a->sinks.buf && !sinks) || (a->alibi.buf && !alibi))
        return ERR_INVAL;
    for (int s = 0; s < m->n_seq; s++)
        for (int i = m->seq_start[s]; i < m->seq_start[s + 1]; i++)
            for (int h = 0; h < a->n_head; h++) {
                float *o = dst + i * a->dst.stride[0] + h * a->head_dim;
                struct head_terms own = {.sink = sinks ? (double)sinks[h] : -INFINITY,
                                         .slope = alibi ? (double)alibi[h] : 0};
                attend(d, a, (int[3]){s, m->pos[i], h}, own,
                       q + i * a->qkv.stride[0] + h * a->head_dim, o);
            }
    return 0;
}
