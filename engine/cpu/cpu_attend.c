/* CPU backend: attention between row segments, and rotation by tables. K and V of a segment and head are packed into
 * the block form of the KV pool (kern.h), once, and the tiles of the paged kernel do the rest: the same arithmetic,
 * the same fixed splits. Where the processor has matrix tiles, whole segments are attended in bf16 instead. */
#include "engine/cpu/cpu_impl.h"

#include <math.h>
#include <string.h>

#define TILE CPU_ATTN_TILE

struct attend_job {
    struct dev *d;
    const struct op_attend *a;
    const struct image_layout *q, *kv;
    const float *qp, *kp, *vp, *bias;
    float *dst;
    struct cpu_kv_geom geom;
    char *packs;                  /* [kv head][block of the longest segment] of this segment */
    size_t head_bytes;            /* from kv head to kv head in packs */
    int32_t *table, *pos, *first; /* of the segment: blocks; what a row sees */
    char *scratch;
    size_t scratch_bytes; /* a worker */
    int seg, n_blk, n_tile;
};

/* One block of 16 keys: K transposed, V in rows; zeros behind the segment's end. */
static void pack_task(void *arg, int task, int worker)
{
    (void)worker;
    struct attend_job *j = arg;
    const struct op_attend *a = j->a;
    int head = task / j->n_blk, blk = task % j->n_blk, hd = a->head_dim, vd = j->geom.v_dim;
    int64_t first = j->kv->start[j->seg] + (int64_t)blk * KV_BLOCK_TOKENS,
            end = j->kv->start[j->seg + 1];
    float *k = (float *)(void *)(j->packs + (size_t)head * j->head_bytes +
                                 (size_t)blk * j->geom.block_bytes);
    float *v = k + hd * KV_BLOCK_TOKENS;
    memset(k, 0, j->geom.block_bytes);
    for (int t = 0; t < KV_BLOCK_TOKENS && first + t < end; t++) {
        const float *kr = j->kp + (first + t) * a->k.stride[0] + (int64_t)head * hd;
        for (int i = 0; i < hd; i++)
            k[i * KV_BLOCK_TOKENS + t] = kr[i];
        memcpy(v + t * vd, j->vp + (first + t) * a->v.stride[0] + (int64_t)head * hd,
               (size_t)hd * sizeof *v);
    }
}

static void tile_task(void *arg, int task, int worker)
{
    struct attend_job *j = arg;
    const struct op_attend *a = j->a;
    int tile = task / a->n_head, head = task % a->n_head, group = a->n_head / a->n_kv_head;
    int64_t first = j->q->start[j->seg] + (int64_t)tile * TILE,
            left = j->q->start[j->seg + 1] - first;
    int n_kv = j->kv->start[j->seg + 1] - j->kv->start[j->seg],
        n_row = left < TILE ? (int)left : TILE;
    bool by_row = a->causal || a->window;
    const int32_t *pos = j->pos + (by_row ? tile * TILE : 0);
    int last = by_row ? pos[n_row - 1] : n_kv - 1;
    struct cpu_attn_tile t = {
        .q = j->qp + first * a->q.stride[0] + (int64_t)head * a->head_dim,
        .dst = j->dst + first * a->dst.stride[0] + (int64_t)head * a->head_dim,
        .ldq = a->q.stride[0],
        .ldd = a->dst.stride[0],
        .n_row = n_row,
        .n_group = 1,
        .pos = pos,
        .first = a->window ? j->first + tile * TILE : NULL,
        .table = j->table,
        .kv = j->packs + (size_t)(head / group) * j->head_bytes,
        .geom = j->geom,
        .scale = a->scale,
        .split_lo = a->window ? j->first[tile * TILE] / CPU_ATTN_SPLIT : 0,
        .split_hi = last / CPU_ATTN_SPLIT + 1,
        .scratch = (float *)(void *)(j->scratch + (size_t)worker * j->scratch_bytes),
    };
    j->d->isa->attn->tile(&t);
}

static int attend_room(struct attend_job *j)
{
    const struct op_attend *a = j->a;
    int longest = 0;
    for (int s = 0; s < j->kv->n_seg; s++) {
        int n = j->kv->start[s + 1] - j->kv->start[s];
        longest = n > longest ? n : longest;
    }
    size_t n_blk = ((size_t)longest + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS,
           pos = n_blk * KV_BLOCK_TOKENS + TILE;
    j->geom = (struct cpu_kv_geom){
        .dtype = DT_F32, .head_dim = a->head_dim, .v_dim = (a->head_dim + 15) / 16 * 16};
    j->geom.block_bytes = sizeof(float) * KV_BLOCK_TOKENS * (size_t)(a->head_dim + j->geom.v_dim);
    j->geom.block_bytes = (j->geom.block_bytes + 63) / 64 * 64;
    j->head_bytes = n_blk * j->geom.block_bytes;
    j->scratch_bytes =
        (cpu_attn_scratch(TILE, a->head_dim, j->geom.v_dim) * sizeof(float) + 63) / 64 * 64;
    size_t ints = ((n_blk + 2 * pos) * sizeof(int32_t) + 63) / 64 * 64,
           packs = (size_t)a->n_kv_head * j->head_bytes;
    int rc = cpu__grow(&j->d->packs, packs + ints + j->scratch_bytes * (size_t)j->d->n_threads);
    if (rc)
        return rc;
    j->packs = j->d->packs.p;
    j->table = (int32_t *)(void *)(j->packs + packs);
    j->pos = j->table + n_blk;
    j->first = j->pos + pos;
    j->scratch = j->packs + packs + ints;
    for (size_t i = 0; i < n_blk; i++)
        j->table[i] = (int32_t)i;
    return 0;
}

/* A softmax over a bias: small encoders only (T5), so plain rows. */
static void bias_task(void *arg, int task, int worker)
{
    struct attend_job *j = arg;
    const struct op_attend *a = j->a;
    int row = task / a->n_head, head = task % a->n_head, hk = head / (a->n_head / a->n_kv_head);
    int64_t kv0 = j->kv->start[j->seg], n = a->causal ? row + 1 : j->kv->start[j->seg + 1] - kv0;
    int64_t at = j->q->start[j->seg] + row;
    const float *q = j->qp + at * a->q.stride[0] + (int64_t)head * a->head_dim;
    const float *b = j->bias + head * a->bias.stride[0] + (int64_t)row * a->bias_cols;
    float *dst = j->dst + at * a->dst.stride[0] + (int64_t)head * a->head_dim;
    float *p = (float *)(void *)(j->scratch + (size_t)worker * j->scratch_bytes), max = -INFINITY;
    double sum = 0;
    for (int64_t k = 0; k < n; k++) {
        const float *kr = j->kp + (kv0 + k) * a->k.stride[0] + (int64_t)hk * a->head_dim;
        double s = 0;
        for (int i = 0; i < a->head_dim; i++)
            s += (double)q[i] * (double)kr[i];
        p[k] = (float)(s * (double)a->scale) + b[k];
        max = p[k] > max ? p[k] : max;
    }
    for (int64_t k = 0; k < n; k++)
        sum += (double)(p[k] = expf(p[k] - max));
    memset(dst, 0, (size_t)a->head_dim * sizeof *dst);
    for (int64_t k = 0; k < n; k++) {
        const float *v = j->vp + (kv0 + k) * a->v.stride[0] + (int64_t)hk * a->head_dim;
        j->d->isa->image->gate_add(dst, v, NULL, a->head_dim, (float)((double)p[k] / sum));
    }
}

static int attend_bias(struct attend_job *j)
{
    const struct op_attend *a = j->a;
    j->scratch_bytes = ((size_t)j->kv->start[j->kv->n_seg] * sizeof(float) + 63) / 64 * 64 + 64;
    int rc = cpu__grow(&j->d->packs, j->scratch_bytes * (size_t)j->d->n_threads);
    if (rc)
        return rc;
    j->scratch = j->d->packs.p;
    for (j->seg = 0; j->seg < j->q->n_seg; j->seg++) {
        int n = j->q->start[j->seg + 1] - j->q->start[j->seg],
            nk = j->kv->start[j->seg + 1] - j->kv->start[j->seg];
        cpu__run(j->d, bias_task, j, n * a->n_head, (double)n * nk * a->n_head * a->head_dim);
    }
    return 0;
}

/* ---- in bf16 ---- */

#define KEY_BLOCK 32
#define PACK_TILE 1024

/* Bytes of the packed keys and of the values of n keys of a head. */
static size_t packed_k(const struct op_attend *a, int n)
{
    return (size_t)((n + KEY_BLOCK - 1) / KEY_BLOCK) * 2 * (size_t)((a->head_dim + 31) / 32) *
           PACK_TILE;
}
static size_t packed_v(const struct op_attend *a, int n)
{
    return (size_t)((n + KEY_BLOCK - 1) / KEY_BLOCK) * (size_t)((a->head_dim + 15) / 16) *
           PACK_TILE;
}

/* 32 keys of a head: packs are [kv head]{k, v}. */
static void bf16_pack_task(void *arg, int task, int worker)
{
    (void)worker;
    struct attend_job *j = arg;
    const struct op_attend *a = j->a;
    const struct cpu_attend_kern *k = j->d->isa->attend;
    int head = task / j->n_blk, blk = task % j->n_blk;
    int64_t first = j->kv->start[j->seg] + (int64_t)blk * KEY_BLOCK,
            left = j->kv->start[j->seg + 1] - first, col = (int64_t)head * a->head_dim;
    int n = left < KEY_BLOCK ? (int)left : KEY_BLOCK;
    size_t k_block = packed_k(a, 1) / 2, v_block = packed_v(a, 1);
    char *to = j->packs + (size_t)head * j->head_bytes;
    const float *kr = j->kp + first * a->k.stride[0] + col;
    k->pack_k(to + (size_t)blk * 2 * k_block, kr, a->k.stride[0], n < 16 ? n : 16, a->head_dim);
    k->pack_k(to + ((size_t)blk * 2 + 1) * k_block, kr + 16 * a->k.stride[0], a->k.stride[0],
              n < 16 ? 0 : n - 16, a->head_dim);
    k->pack_v(to + (size_t)j->n_blk * 2 * k_block + (size_t)blk * v_block,
              j->vp + first * a->v.stride[0] + col, a->v.stride[0], n, a->head_dim);
}

static void bf16_tile_task(void *arg, int task, int worker)
{
    struct attend_job *j = arg;
    const struct op_attend *a = j->a;
    /* head by head: its K and V stay in the second-level cache */
    int head = task / j->n_tile, tile = task % j->n_tile, group = a->n_head / a->n_kv_head;
    int64_t first = j->q->start[j->seg] + (int64_t)tile * CPU_ATTEND_ROWS,
            left = j->q->start[j->seg + 1] - first, col = (int64_t)head * a->head_dim;
    const char *pack = j->packs + (size_t)(head / group) * j->head_bytes;
    int n_key = j->kv->start[j->seg + 1] - j->kv->start[j->seg];
    j->d->isa->attend->tile(&(struct cpu_attend_tile){
        .q = j->qp + first * a->q.stride[0] + col,
        .dst = j->dst + first * a->dst.stride[0] + col,
        .ldq = a->q.stride[0],
        .ldd = a->dst.stride[0],
        .n_row = left < CPU_ATTEND_ROWS ? (int)left : CPU_ATTEND_ROWS,
        .n_key = n_key,
        .head_dim = a->head_dim,
        .scale = a->scale,
        .k = pack,
        .v = pack + packed_k(a, n_key),
        .scratch = j->scratch + (size_t)worker * j->scratch_bytes,
    });
}

static int attend_bf16(struct attend_job *j)
{
    const struct op_attend *a = j->a;
    int longest = 0;
    for (int s = 0; s < j->kv->n_seg; s++) {
        int n = j->kv->start[s + 1] - j->kv->start[s];
        longest = n > longest ? n : longest;
    }
    j->head_bytes = packed_k(a, longest) + packed_v(a, longest);
    j->scratch_bytes = (cpu_attend_scratch(a->head_dim) + 63) / 64 * 64;
    size_t packs = j->head_bytes * (size_t)a->n_kv_head;
    int rc = cpu__grow(&j->d->packs, packs + j->scratch_bytes * (size_t)j->d->n_threads);
    if (rc)
        return rc;
    j->packs = j->d->packs.p;
    j->scratch = j->packs + packs;
    for (j->seg = 0; j->seg < j->q->n_seg; j->seg++) {
        int n = j->q->start[j->seg + 1] - j->q->start[j->seg],
            nk = j->kv->start[j->seg + 1] - j->kv->start[j->seg];
        if (n == 0)
            continue;
        j->n_blk = (nk + KEY_BLOCK - 1) / KEY_BLOCK;
        j->n_tile = (n + CPU_ATTEND_ROWS - 1) / CPU_ATTEND_ROWS;
        cpu__run(j->d, bf16_pack_task, j, j->n_blk * a->n_kv_head,
                 (double)nk * a->n_kv_head * a->head_dim);
        cpu__run(j->d, bf16_tile_task, j, j->n_tile * a->n_head,
                 (double)n * nk * a->n_head * a->head_dim * 0.01);
    }
    return 0;
}

/* The keys that the rows of a segment see. */
static void seen_fill(struct attend_job *j, int n, int nk)
{
    int w = j->a->window;
    for (int i = 0; i < (j->a->causal || w ? n : TILE); i++) {
        j->pos[i] = j->a->causal ? i : w && i + w < nk ? i + w : nk - 1;
        j->first[i] = i > w ? i - w : 0; /* read with a window only */
    }
}

/* Whole segments only: a causal row of a text encoder is short, and its sums are those of a language model's. */
static bool takes_bf16(const struct dev *d, const struct op_attend *a)
{
    return d->precision == PRECISION_DEFAULT && d->isa->attend && !a->causal && !a->window &&
           a->head_dim <= 512;
}

int cpu__attend(struct dev *d, const struct op_attend *a)
{
    if (ops_check_attend(a, DT_F32, &d->image))
        return ERR_INVAL;
    struct attend_job j = {.d = d, .a = a};
    j.q = &d->image.layout[a->q_layout];
    j.kv = &d->image.layout[a->kv_layout];
    j.dst = cpu__ptr(d, &a->dst);
    j.qp = cpu__ptr(d, &a->q);
    j.kp = cpu__ptr(d, &a->k);
    j.vp = cpu__ptr(d, &a->v);
    j.bias = a->bias.buf ? cpu__ptr(d, &a->bias) : NULL;
    if (!j.dst || !j.qp || !j.kp || !j.vp || (a->bias.buf && !j.bias))
        return ERR_INVAL;
    if (j.bias)
        return attend_bias(&j);
    if (takes_bf16(d, a))
        return attend_bf16(&j);
    int rc = attend_room(&j);
    for (j.seg = 0; !rc && j.seg < j.q->n_seg; j.seg++) {
        int n = j.q->start[j.seg + 1] - j.q->start[j.seg],
            nk = j.kv->start[j.seg + 1] - j.kv->start[j.seg];
        if (n == 0)
            continue;
        j.n_blk = (nk + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
        j.n_tile = (n + TILE - 1) / TILE;
        seen_fill(&j, n, nk);
        cpu__run(d, pack_task, &j, j.n_blk * a->n_kv_head,
                 (double)nk * a->n_kv_head * a->head_dim * 2);
        cpu__run(d, tile_task, &j, j.n_tile * a->n_head,
                 (double)n * nk * a->n_head * a->head_dim * 0.1);
    }
    return rc;
}

/* ---- rotation ---- */

static void rotate_task(void *arg, int task, int worker)
{
    (void)worker;
    struct attend_job *j = arg;
    const struct op_rotate *a = (const void *)j->a;
    int hd = a->head_dim, half = hd / 2;
    float *row = j->dst + (int64_t)task * a->x.stride[0];
    const float *c = j->qp ? j->qp + (int64_t)task * a->cos.stride[0] : NULL;
    const float *s = j->kp ? j->kp + (int64_t)task * a->sin.stride[0] : NULL;
    const float *const w[4] = {j->vp, NULL, NULL, NULL};
    for (int h = 0; h < a->n_head; h++) {
        float *x = row + h * hd;
        if (j->vp)
            j->d->isa->image->layer_norm(x, x, w, hd, a->eps, true);
        for (int i = 0; c && i < half; i++) {
            int p = a->style == ROPE_NORM ? 2 * i : i,
                q = a->style == ROPE_NORM ? 2 * i + 1 : half + i;
            float u = x[p], v = x[q];
            x[p] = u * c[i] - v * s[i];
            x[q] = u * s[i] + v * c[i];
        }
    }
}

int cpu__rotate(struct dev *d, const struct op_rotate *a)
{
    if (ops_check_rotate(a))
        return ERR_INVAL;
    struct attend_job j = {.d = d, .a = (const void *)a};
    j.dst = cpu__ptr(d, &a->x);
    j.vp = a->norm.buf ? cpu__ptr(d, &a->norm) : NULL;
    j.qp = a->cos.buf ? cpu__ptr(d, &a->cos) : NULL;
    j.kp = a->sin.buf ? cpu__ptr(d, &a->sin) : NULL;
    if (!j.dst || (a->norm.buf && !j.vp) || (a->cos.buf && (!j.qp || !j.kp)))
        return ERR_INVAL;
    cpu__run(d, rotate_task, &j, (int)a->x.shape[0], (double)(a->x.shape[0] * a->x.shape[1]) * 2);
    return 0;
}
