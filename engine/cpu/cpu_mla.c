/* CPU backend: latent attention. A pool of k_only holds a token's vector as one row of head_dim values, [block][layer]
 * [token], and the scales of 16 tokens behind codes; see kern_mla.c. */
#include "engine/cpu/cpu_impl.h"

#include "engine/quant/kv8.h"

#include <math.h>
#include <string.h>

struct mla_job {
    struct dev *d;
    const void *op;
    float *q, *kv, *nope, *dst;
    const float *q_abs, *norm, *freq, *seen;
    int pad, rank_pad, groups; /* groups of heads */
    size_t each;               /* a worker's floats */
};

static int pad_to(int n)
{
    return (n + 15) / 16 * 16;
}

/* The row's block, at the layer. */
static char *block_at(const struct dev *d, const struct dev_kv *kv, int layer, int row)
{
    const struct step_meta *m = &d->meta;
    const int seq = ((const int32_t *)d->row_seq.p)[row], pos = m->pos[row];
    const int32_t block = m->block_table[(int64_t)seq * m->block_stride + pos / KV_BLOCK_TOKENS];
    return kv->base + (size_t)block * kv->geom.block_bytes + (size_t)layer * kv->layer_bytes;
}

/* cos and sin of a row's n / 2 angles. */
static void angles(const struct mla_job *j, int row, int n, float factor, float *cs)
{
    for (int k = 0; k < n / 2; k++) {
        const double t = (double)j->d->meta.pos[row] * (double)j->freq[k];
        cs[k] = (float)(cos(t) * (double)factor);
        cs[n / 2 + k] = (float)(sin(t) * (double)factor);
    }
}

static void rotate(enum rope_style style, int n, float *x, const float *cs)
{
    const int half = n / 2;
    for (int i = 0; i < half; i++) {
        float *p = style == ROPE_NORM ? x + 2 * i : x + i;
        float *q = style == ROPE_NORM ? x + 2 * i + 1 : x + half + i;
        const float u = *p, v = *q;
        *p = u * cs[i] - v * cs[half + i];
        *q = u * cs[half + i] + v * cs[i];
    }
}

static void values_store(const struct cpu_kv_geom *g, char *block, int slot, const float *x)
{
    const int n = g->head_dim;
    void *dst = block + (size_t)(slot * n) * dtype_bytes(g->dtype);
    float *scale = (float *)(void *)(block + cpu_kv_k_bytes(g)) + slot;
    if (g->dtype == DT_I8)
        *scale = kv8_pack_i8(dst, x, n);
    else if (g->dtype == DT_F8)
        *scale = kv8_pack_f8(dst, x, n);
    else if (g->dtype == DT_F32)
        memcpy(dst, x, (size_t)n * sizeof *x);
    else
        for (int i = 0; i < n; i++)
            ((uint16_t *)dst)[i] = g->dtype == DT_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
}

static void kv_row(void *arg, int i, int worker)
{
    (void)worker;
    const struct mla_job *j = arg;
    const struct op_mla_kv *a = j->op;
    const int width = a->n_nope + a->n_rope;
    float cs[OPS_LATENT_MAX], *x = j->kv + i * a->kv.stride[0];
    angles(j, i, a->n_rope, a->attn_factor, cs);
    double sum = 0;
    for (int k = 0; k < a->rank; k++)
        sum += (double)x[k] * (double)x[k];
    const float inv = (float)(1 / sqrt(sum / a->rank + (double)a->norm_eps));
    for (int k = 0; k < a->rank; k++)
        x[k] = x[k] * inv * j->norm[k];
    rotate(a->style, a->n_rope, x + a->rank, cs);
    values_store(&a->kv_pool->geom, block_at(j->d, a->kv_pool, a->layer, i),
                 j->d->meta.pos[i] % KV_BLOCK_TOKENS, x);
    for (int h = 0; h < a->n_head; h++) {
        float *q = j->q + i * a->q.stride[0] + h * width;
        rotate(a->style, a->n_rope, q + a->n_nope, cs);
        memcpy(j->nope + ((int64_t)i * a->n_head + h) * a->n_nope, q,
               (size_t)a->n_nope * sizeof *q);
    }
}

int cpu__mla_kv(struct dev *d, const struct op_mla_kv *a)
{
    const struct step_meta *m = &d->meta;
    if (!d->in_step || !a->kv_pool || ops_check_mla_kv(a, DT_F32, m, &a->kv_pool->desc) ||
        ops_check_blocks(m, a->kv_pool->desc.n_block))
        return ERR_INVAL;
    struct mla_job j = {.d = d,
                        .op = a,
                        .q = cpu__ptr(d, &a->q),
                        .kv = cpu__ptr(d, &a->kv),
                        .nope = cpu__ptr(d, &a->q_nope),
                        .norm = cpu__ptr(d, &a->norm),
                        .freq = cpu__ptr(d, &a->inv_freq)};
    if (!j.q || !j.kv || !j.nope || !j.norm || !j.freq)
        return ERR_INVAL;
    cpu__run(d, kv_row, &j, m->n_row, m->n_row * (2000.0 + a->n_head * (double)a->n_nope * 0.2));
    return 0;
}

static void attn_task(void *arg, int task, int worker)
{
    const struct mla_job *j = arg;
    const struct op_mla_attn *a = j->op;
    const struct step_meta *m = &j->d->meta;
    const struct dev_kv *kv = a->kv_pool;
    const int i = task / j->groups, h0 = task % j->groups * CPU_MLA_HEADS;
    const int n = a->n_head - h0 < CPU_MLA_HEADS ? a->n_head - h0 : CPU_MLA_HEADS;
    float *q = (float *)j->d->attn.p + (size_t)worker * j->each;
    for (int h = 0; h < n; h++) {
        float *to = q + h * j->pad;
        const float *abs = j->q_abs + ((int64_t)i * a->n_head + h0 + h) * a->rank;
        const float *rot =
            j->q + i * a->q.stride[0] + (h0 + h) * (a->n_nope + a->n_rope) + a->n_nope;
        for (int k = 0; k < a->rank; k++)
            to[k] = abs[k] * a->scale;
        for (int k = 0; k < a->n_rope; k++)
            to[a->rank + k] = rot[k] * a->scale;
        memset(to + a->rank + a->n_rope, 0, (size_t)(j->pad - a->rank - a->n_rope) * sizeof *to);
    }
    const int seq = ((const int32_t *)j->d->row_seq.p)[i];
    j->d->isa->mla->row(&(struct cpu_mla_row){
        .q = q,
        .dst = j->dst + ((int64_t)i * a->n_head + h0) * a->rank,
        .n_head = n,
        .dim = a->rank + a->n_rope,
        .pad = j->pad,
        .rank = a->rank,
        .rank_pad = j->rank_pad,
        .pos = m->pos[i],
        .table = m->block_table + (int64_t)seq * m->block_stride,
        .kv = kv->base + (size_t)a->layer * kv->layer_bytes,
        .block_bytes = kv->geom.block_bytes,
        .dtype = kv->desc.dtype,
        .seen = j->seen ? j->seen + i * a->seen.stride[0] : NULL,
        .scratch = q + (size_t)CPU_MLA_HEADS * (size_t)j->pad,
    });
}

int cpu__mla_attn(struct dev *d, const struct op_mla_attn *a)
{
    const struct step_meta *m = &d->meta;
    if (!d->in_step || !a->kv_pool || ops_check_mla_attn(a, DT_F32, m, &a->kv_pool->desc) ||
        ops_check_attn_blocks(m, 0, a->kv_pool->desc.n_block))
        return ERR_INVAL;
    struct mla_job j = {.d = d,
                        .op = a,
                        .q = cpu__ptr(d, &a->q),
                        .q_abs = cpu__ptr(d, &a->q_abs),
                        .dst = cpu__ptr(d, &a->dst),
                        .seen = a->seen.buf ? cpu__ptr(d, &a->seen) : NULL,
                        .pad = pad_to(a->rank + a->n_rope),
                        .rank_pad = pad_to(a->rank),
                        .groups = (a->n_head + CPU_MLA_HEADS - 1) / CPU_MLA_HEADS};
    if (!j.q || !j.q_abs || !j.dst || (a->seen.buf && !j.seen))
        return ERR_INVAL;
    j.each = (size_t)(CPU_MLA_HEADS + KV_BLOCK_TOKENS) * (size_t)j.pad +
             CPU_MLA_HEADS * (size_t)j.rank_pad;
    int rc = cpu__grow(&d->attn, j.each * (size_t)d->n_threads * sizeof(float));
    double cost = 0;
    for (int i = 0; i < m->n_row; i++)
        cost += (double)m->pos[i] * a->n_head * j.pad * 0.1;
    if (!rc)
        cpu__run(d, attn_task, &j, m->n_row * j.groups, cost + 1000.0 * m->n_row);
    return rc;
}

/* ---- the index of sparse attention ---- */

static void index_kv_row(void *arg, int i, int worker)
{
    (void)worker;
    const struct mla_job *j = arg;
    const struct op_index *a = j->op;
    float cs[OPS_LATENT_MAX], *k = j->kv + i * a->k.stride[0];
    angles(j, i, a->n_rope, a->attn_factor, cs);
    for (int h = 0; h < a->n_head; h++)
        rotate(a->style, a->n_rope, j->q + i * a->q.stride[0] + h * a->dim, cs);
    rotate(a->style, a->n_rope, k, cs);
    values_store(&a->kv_pool->geom, block_at(j->d, a->kv_pool, a->layer, i),
                 j->d->meta.pos[i] % KV_BLOCK_TOKENS, k);
}

/* The k-th largest of n values (k from 1), which are moved about. */
static float largest(float *x, int64_t n, int64_t k)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const float pivot = x[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (x[j] < pivot)
                j--;
            if (i <= j) {
                const float t = x[i];
                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            break;
    }
    return x[k - 1];
}

static void index_row(void *arg, int i, int worker)
{
    const struct mla_job *j = arg;
    const struct op_index *a = j->op;
    const struct step_meta *m = &j->d->meta;
    const struct dev_kv *kv = a->kv_pool;
    const int n = m->pos[i] + 1, seq = ((const int32_t *)j->d->row_seq.p)[i];
    float *score = j->dst + i * a->seen.stride[0];
    float *q = (float *)j->d->attn.p + (size_t)worker * j->each, *rest = q + a->n_head * j->pad;
    if (n <= a->n_top) {
        memset(score, 0, (size_t)n * sizeof *score);
        return;
    }
    for (int h = 0; h < a->n_head; h++)
        for (int k = 0; k < j->pad; k++)
            q[h * j->pad + k] =
                k < a->dim ? j->q[i * a->q.stride[0] + h * a->dim + k] * a->scale : 0;
    j->d->isa->mla->index(&(struct cpu_index_row){
        .q = q,
        .weight = j->norm + i * a->weight.stride[0],
        .score = score,
        .n_head = a->n_head,
        .dim = a->dim,
        .pad = j->pad,
        .pos = m->pos[i],
        .table = m->block_table + (int64_t)seq * m->block_stride,
        .kv = kv->base + (size_t)a->layer * kv->layer_bytes,
        .block_bytes = kv->geom.block_bytes,
        .dtype = kv->desc.dtype,
        .scratch = rest,
    });
    memcpy(rest, score, (size_t)n * sizeof *score);
    const float least = largest(rest, n, a->n_top);
    int left = a->n_top;
    for (int t = 0; t < n; t++)
        left -= score[t] > least;
    for (int t = 0; t < n; t++)
        if (!(score[t] > least) && !(score[t] == least && left-- > 0))
            score[t] = -INFINITY;
}

int cpu__index(struct dev *d, const struct op_index *a)
{
    const struct step_meta *m = &d->meta;
    if (!d->in_step || !a->kv_pool || ops_check_index(a, m, &a->kv_pool->desc) ||
        ops_check_blocks(m, a->kv_pool->desc.n_block))
        return ERR_INVAL;
    struct mla_job j = {.d = d,
                        .op = a,
                        .q = cpu__ptr(d, &a->q),
                        .kv = cpu__ptr(d, &a->k),
                        .norm = cpu__ptr(d, &a->weight),
                        .freq = cpu__ptr(d, &a->inv_freq),
                        .dst = a->seen.buf ? cpu__ptr(d, &a->seen) : NULL,
                        .pad = pad_to(a->dim)};
    double cost = 0;
    size_t longest = KV_BLOCK_TOKENS * (size_t)j.pad;
    if (!j.q || !j.kv || !j.norm || !j.freq || (a->seen.buf && !j.dst))
        return ERR_INVAL;
    cpu__run(d, index_kv_row, &j, m->n_row, m->n_row * (2000.0 + a->n_head * (double)a->n_rope));
    if (!j.dst)
        return 0;
    if (longest < (size_t)a->seen.shape[1])
        longest = (size_t)a->seen.shape[1];
    j.each = ((size_t)a->n_head * (size_t)j.pad + longest + 15) / 16 * 16;
    int rc = cpu__grow(&d->attn, j.each * (size_t)d->n_threads * sizeof(float));
    for (int i = 0; i < m->n_row; i++)
        cost += (double)m->pos[i] * a->n_head * j.pad * 0.06;
    if (!rc)
        cpu__run(d, index_row, &j, m->n_row, cost + 1000.0 * m->n_row);
    return rc;
}
