/* CPU backend: KV pool, rotary embedding with KV write, paged attention. A block of all layers is contiguous
 * ([block][layer][kv head]{K, V}, see kern.h), so copying one is one memcpy. */
#include "engine/cpu/cpu_impl.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Could the pool's values become words? */
static bool may_be_words(const struct kv_desc *k)
{
    return k->dtype == DT_F16 && !k->k_only && k->head_dim % 2 == 0 &&
           k->head_dim <= CPU_ATTN_WORDS_DIM;
}

/* An f16 pool has room for the scales of words in all tables, so that a plan holds whoever runs it. */
static bool kv_sizes(const struct kv_desc *k, struct dev_kv *kv)
{
    size_t hd = (size_t)k->head_dim, v_dim;
    if (!ck_round_up(hd, 16, &v_dim) || v_dim > CPU_KV_DIM_MAX)
        return false;
    kv->desc = *k;
    v_dim = k->k_only ? 0 : v_dim;
    kv->geom =
        (struct cpu_kv_geom){.dtype = k->dtype, .head_dim = k->head_dim, .v_dim = (int)v_dim};
    struct cpu_kv_geom room = kv->geom;
    room.dtype = may_be_words(k) ? DT_I16 : k->dtype;
    kv->head_bytes = cpu_kv_head_bytes(&room);
    return ck_mul(kv->head_bytes, (size_t)k->n_kv_head, &kv->layer_bytes) &&
           ck_mul(kv->layer_bytes, (size_t)k->n_layer, &kv->geom.block_bytes);
}

size_t cpu__kv_block_bytes(const struct kv_desc *k)
{
    struct dev_kv kv;
    return kv_sizes(k, &kv) ? kv.geom.block_bytes : 0;
}

void cpu__kv_close(struct dev *d, struct dev_kv *kv)
{
    if (!kv)
        return;
    if (kv->chore) {
        cpu_pool_chore(kv->chore, NULL, NULL);
        d->kv_touched = NULL;
    }
    free(kv->raw);
    free(kv);
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#define PAGE      ((size_t)2 << 20)
#define AHEAD_MIN (32 * PAGE)
#define AHEAD_MAX (256 * PAGE)

/* A page comes zeroed when it is first written, and where a hypervisor has to find it first, that takes milliseconds. So idle
 * workers of a pool in use touch pages behind the last block written, as much again as is in use within bounds, a page a
 * call; contents stay. */
static bool kv_touch(void *arg)
{
    struct dev_kv *kv = arg;
    const size_t high = atomic_load_explicit(&kv->high, memory_order_relaxed);
    const size_t all = kv->geom.block_bytes * (size_t)kv->desc.n_block;
    if (kv->touched < high)
        kv->touched = high;
    const size_t ahead = high < AHEAD_MIN ? AHEAD_MIN : high < AHEAD_MAX ? high : AHEAD_MAX;
    if (!high || kv->touched + PAGE > all || kv->touched - high >= ahead)
        return false;
    const uintptr_t at = ((uintptr_t)kv->base + kv->touched) & ~(uintptr_t)4095;
    if (madvise((void *)at, PAGE, MADV_POPULATE_WRITE)) {
        kv->touched = all; /* an old kernel, or no memory: whoever writes will see */
        return false;
    }
    kv->touched += PAGE;
    return true;
}

/* Blocks of the step's rows are about to be written. */
static void kv_high(const struct dev *d, struct dev_kv *kv)
{
    const struct step_meta *m = &d->meta;
    const int32_t *seq = d->row_seq.p;
    int32_t last = -1;
    for (int i = 0; i < m->n_row; i++) {
        int32_t b = m->block_table[(int64_t)seq[i] * m->block_stride + m->pos[i] / KV_BLOCK_TOKENS];
        last = b > last ? b : last;
    }
    const size_t high = (size_t)(last + 1) * kv->geom.block_bytes;
    if (high > atomic_load_explicit(&kv->high, memory_order_relaxed))
        atomic_store_explicit(&kv->high, high, memory_order_relaxed);
}

int cpu__kv_open(struct dev *d, struct dev_kv **out, const struct kv_desc *k, struct err *e)
{
    int rc = ops_check_kv(k, e);
    if (rc)
        return rc;
    struct dev_kv *kv = mem_calloc(1, sizeof *kv);
    if (!kv)
        return err_set(e, ERR_NOMEM, "no memory for the KV pool");
    size_t all = 0;
    if (!kv_sizes(k, kv) || !ck_mul(kv->geom.block_bytes, (size_t)k->n_block, &all) ||
        !ck_add(all, 64, &all) ||
        !(kv->raw = mem_calloc(1, all))) { /* pages come as they are used */
        cpu__kv_close(d, kv);
        return err_set(e, ERR_NOMEM, "no memory for a KV pool of %d blocks", (int)k->n_block);
    }
    if (may_be_words(k) && d->isa->words && d->precision != PRECISION_F32 &&
        __builtin_cpu_supports("avx512vnni"))
        kv->geom.dtype = DT_I16;
    mem_huge(kv->raw,
             all); /* blocks of a layer are far apart: small pages would miss the TLB at each */
    kv->base = (char *)kv->raw + (64 - (uintptr_t)kv->raw % 64) % 64;
    if (!d->kv_touched) { /* one pool a device: a second is small */
        d->kv_touched = kv;
        kv->chore = d->pool;
        cpu_pool_chore(d->pool, kv_touch, kv);
    }
    *out = kv;
    return 0;
}

int cpu__kv_copy(struct dev *d, const struct op_kv_copy *a)
{
    (void)d;
    if (!a->kv || ops_check_kv_copy(a, a->kv->desc.n_block))
        return ERR_INVAL;
    size_t n = a->kv->geom.block_bytes;
    for (int i = 0; i < a->n; i++)
        memcpy(a->kv->base + (size_t)a->dst[i] * n, a->kv->base + (size_t)a->src[i] * n, n);
    return 0;
}

/* The block numbers are the same for every layer: look at them once a step. */
static int check_blocks(struct dev *d, const struct dev_kv *kv, int window)
{
    for (int i = 0; i < d->n_seen; i++)
        if (d->seen[i].kv == kv && d->seen[i].window == window)
            return 0;
    int rc = window == CPU_OWN_BLOCKS ? ops_check_blocks(&d->meta, kv->desc.n_block)
                                      : ops_check_attn_blocks(&d->meta, window, kv->desc.n_block);
    if (rc == 0 && d->n_seen < CPU_N_SEEN)
        d->seen[d->n_seen++] = (struct cpu_seen){kv, window};
    return rc;
}

/* ---------------------------------------------------------------- rope_kv */

struct rope_job {
    struct dev *d;
    struct cpu_rope_args args;
    float *qkv;
    int64_t ld;
    const float *cs;
    float *fill; /* cos and sin being made, [n_row][n_rot] */
    const float *inv_freq;
    float attn_factor;
    const struct dev_kv *kv;
    int layer, grain;
};

static void rope_fill(void *arg, int task, int worker)
{
    (void)worker;
    const struct rope_job *j = arg;
    const struct step_meta *m = &j->d->meta;
    int half = j->args.n_rot / 2, end = (task + 1) * j->grain;
    for (int i = task * j->grain; i < end && i < m->n_row; i++) {
        float *c = j->fill + (size_t)i * (size_t)j->args.n_rot;
        for (int k = 0; k < half; k++) {
            double angle = (double)m->pos[i] * (double)j->inv_freq[k];
            c[k] = (float)(cos(angle) * (double)j->attn_factor);
            c[half + k] = (float)(sin(angle) * (double)j->attn_factor);
        }
    }
}

/* cos and sin of all rows, made once a step for each (frequencies, factor). */
static int rope_table(struct rope_job *j, const struct op_rope_kv *a)
{
    struct dev *d = j->d;
    for (int i = 0; i < d->n_rope; i++) {
        const struct cpu_rope_cache *c = &d->rope[i];
        if (c->buf == a->inv_freq.buf && c->off == a->inv_freq.off && c->n_rot == a->n_rot &&
            memcmp(&c->attn_factor, &a->attn_factor, sizeof c->attn_factor) == 0) {
            j->cs = c->cs.p;
            return 0;
        }
    }
    int at = d->n_rope < CPU_N_ROPE ? d->n_rope : CPU_N_ROPE - 1;
    struct cpu_rope_cache *c = &d->rope[at];
    d->n_rope = at; /* not valid while it is made */
    int rc = cpu__grow(&c->cs, (size_t)d->meta.n_row * (size_t)a->n_rot * sizeof(float));
    if (rc)
        return rc;
    c->buf = a->inv_freq.buf;
    c->off = a->inv_freq.off;
    c->n_rot = a->n_rot;
    c->attn_factor = a->attn_factor;
    j->cs = j->fill = c->cs.p;
    double cost = a->n_rot * 25.0;
    j->grain = cpu__grain(cost);
    cpu__run(d, rope_fill, j, (d->meta.n_row + j->grain - 1) / j->grain, cost * d->meta.n_row);
    d->n_rope = at + 1;
    return 0;
}

/* Does row i go on in the block of the row before? */
static bool goes_on(const struct dev *d, int i)
{
    const int32_t *seq = d->row_seq.p, *pos = d->meta.pos;
    return i > 0 && seq[i] == seq[i - 1] && pos[i] == pos[i - 1] + 1 &&
           pos[i] % KV_BLOCK_TOKENS != 0;
}

/* A task has the runs of rows of one block that begin in its part: whole blocks are written at once. */
static void rope_rows(void *arg, int task, int worker)
{
    (void)worker;
    const struct rope_job *j = arg;
    const struct step_meta *m = &j->d->meta;
    const int32_t *seq = j->d->row_seq.p;
    const int n_row = m->n_row, end = (task + 1) * j->grain;
    int i = task * j->grain;
    while (i < n_row && i < end && goes_on(j->d, i))
        i++;
    for (int n; i < n_row && i < end; i += n) {
        for (n = 1; i + n < n_row && goes_on(j->d, i + n);)
            n++;
        int32_t blk =
            m->block_table[(int64_t)seq[i] * m->block_stride + m->pos[i] / KV_BLOCK_TOKENS];
        char *kv = j->kv->base + (size_t)blk * j->kv->geom.block_bytes +
                   (size_t)j->layer * j->kv->layer_bytes;
        const float *cs = j->cs ? j->cs + (size_t)i * (size_t)j->args.n_rot : NULL;
        j->d->isa->norm->rope_kv(&j->args, j->qkv + i * j->ld, j->ld, cs, kv,
                                 m->pos[i] % KV_BLOCK_TOKENS, n);
    }
}

int cpu__rope_kv(struct dev *d, const struct op_rope_kv *a)
{
    if (!d->in_step || !a->kv || ops_check_rope_kv(a, &d->meta, &a->kv->desc) ||
        check_blocks(d, a->kv, CPU_OWN_BLOCKS))
        return ERR_INVAL;
    struct rope_job j = {.d = d, .kv = a->kv, .layer = a->layer, .attn_factor = a->attn_factor};
    j.qkv = cpu__ptr(d, &a->qkv);
    j.ld = a->qkv.stride[0];
    j.args = (struct cpu_rope_args){.n_head = a->n_head,
                                    .n_kv_head = a->n_kv_head,
                                    .n_rot = a->n_rot,
                                    .style = a->style,
                                    .eps = a->norm_eps,
                                    .q_only = a->q_only,
                                    .geom = a->kv->geom,
                                    .head_bytes = a->kv->head_bytes};
    j.args.q_norm = a->q_norm.buf ? cpu__ptr(d, &a->q_norm) : NULL;
    j.args.k_norm = a->k_norm.buf ? cpu__ptr(d, &a->k_norm) : NULL;
    j.args.v_norm = a->v_norm.buf ? cpu__ptr(d, &a->v_norm) : NULL;
    if (!j.qkv || (a->q_norm.buf && !j.args.q_norm) || (a->k_norm.buf && !j.args.k_norm) ||
        (a->v_norm.buf && !j.args.v_norm))
        return ERR_INVAL;
    if (a->style == ROPE_NONE)
        j.args.n_rot = 0;
    else {
        j.inv_freq = cpu__ptr(d, &a->inv_freq);
        if (!j.inv_freq)
            return ERR_INVAL;
        int rc = rope_table(&j, a);
        if (rc)
            return rc;
    }
    if (a->layer == 0 && a->kv == d->kv_touched)
        kv_high(d, a->kv);
    double cost = (double)(a->n_head + 3 * a->n_kv_head) * a->head_dim * 0.6;
    j.grain = cpu__grain(cost);
    if (d->meta.n_row >= 4 * KV_BLOCK_TOKENS && j.grain < KV_BLOCK_TOKENS)
        j.grain = KV_BLOCK_TOKENS;
    cpu__run(d, rope_rows, &j, (d->meta.n_row + j.grain - 1) / j.grain, cost * d->meta.n_row);
    return 0;
}

/* ---------------------------------------------------------------- attention */

struct attn_job {
    struct dev *d;
    const struct cpu_attn_kern *kern;
    bool by_tiles; /* kern is isa->tiles */
    const struct op_attn *a;
    float *dst;
    const float *q, *sinks, *alibi; /* the last two: [n_head] or NULL */
    struct cpu_tile *tiles;
    int n_tile, n_task;
    size_t scratch, state; /* floats: of a worker, of a state */
    double cost;
};

static void tile_of(const struct attn_job *j, const struct cpu_tile *t, int head, int worker,
                    struct cpu_attn_tile *out)
{
    const struct op_attn *a = j->a;
    const struct step_meta *m = &j->d->meta;
    int group = a->n_head / a->n_kv_head;
    int64_t first = (int64_t)head * group * a->head_dim;
    *out = (struct cpu_attn_tile){
        .q = j->q + t->row * a->qkv.stride[0] + first,
        .dst = j->dst + t->row * a->dst.stride[0] + first,
        .ldq = a->qkv.stride[0],
        .ldd = a->dst.stride[0],
        .n_row = t->n,
        .n_group = group,
        .pos = m->pos + t->row,
        .table = m->block_table + (int64_t)t->seq * m->block_stride,
        .kv =
            a->kv->base + (size_t)a->layer * a->kv->layer_bytes + (size_t)head * a->kv->head_bytes,
        .geom = a->kv->geom,
        .scale = a->scale,
        .softcap = a->softcap,
        .window = a->window,
        .sinks = j->sinks ? j->sinks + (int64_t)head * group : NULL,
        .alibi = j->alibi ? j->alibi + (int64_t)head * group : NULL,
        .split_lo = t->split_lo,
        .split_hi = t->split_hi,
        .scratch = (float *)j->d->attn.p + (size_t)worker * j->scratch,
    };
}

/* States of a split tile: [kv head][split][row x group]. */
static float *part_of(const struct attn_job *j, const struct cpu_tile *t, int head, int split)
{
    int group = j->a->n_head / j->a->n_kv_head;
    size_t one = (size_t)(t->n * group) * j->state;
    int n_split = t->split_hi - t->split_lo;
    return t->part + ((size_t)head * (size_t)n_split + (size_t)(split - t->split_lo)) * one;
}

static void attn_task(void *arg, int task, int worker)
{
    const struct attn_job *j = arg;
    int lo = 0, hi = j->n_tile; /* the last tile whose first task is not behind `task` */
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (j->tiles[mid].task <= task)
            lo = mid;
        else
            hi = mid;
    }
    const struct cpu_tile *t = &j->tiles[lo];
    int k = (int)(task - t->task), head = k % j->a->n_kv_head;
    struct cpu_attn_tile x;
    tile_of(j, t, head, worker, &x);
    if (t->part) {
        const int part = k / j->a->n_kv_head, n_split = t->split_hi - t->split_lo;
        x.split_lo = t->split_lo + n_split * part / t->n_part;
        x.split_hi = t->split_lo + n_split * (part + 1) / t->n_part;
        x.part = part_of(j, t, head, x.split_lo);
    }
    j->kern->tile(&x);
}

static void merge_task(void *arg, int task, int worker)
{
    const struct attn_job *j = arg;
    const struct cpu_tile *t = &j->tiles[task / j->a->n_kv_head];
    int head = task % j->a->n_kv_head;
    if (!t->part)
        return;
    struct cpu_attn_tile x;
    tile_of(j, t, head, worker, &x);
    x.part = part_of(j, t, head, t->split_lo);
    j->kern->merge(&x);
}

/* Cut the sequences into tiles, the last rows (the longest) first. */
static void make_tiles(struct attn_job *j, int rows)
{
    const struct step_meta *m = &j->d->meta;
    for (int s = 0; s < m->n_seq; s++)
        for (int end = m->seq_start[s + 1]; end > m->seq_start[s];) {
            int from = end - rows > m->seq_start[s] ? end - rows : m->seq_start[s];
            struct cpu_tile *t = &j->tiles[j->n_tile++];
            *t = (struct cpu_tile){.seq = s, .row = from, .n = end - from};
            int lo = INT32_MAX, hi = 0;
            for (int i = from; i < end; i++) {
                int first = ops_first_seen(m->pos[i], j->a->window);
                lo = first < lo ? first : lo;
                hi = m->pos[i] > hi ? m->pos[i] : hi;
                j->cost += (double)(m->pos[i] - first + 1);
            }
            t->split_lo = lo / CPU_ATTN_SPLIT;
            t->split_hi = hi / CPU_ATTN_SPLIT + 1;
            end = from;
        }
    j->cost *= (double)j->a->n_head * j->a->head_dim * 0.1;
}

/* Number the tasks. When there are too few tiles to keep all threads busy, the splits of a long one become
 * tasks of their own, as far as the room for their states goes. Returns whether any tile is split. */
static bool make_tasks(struct attn_job *j)
{
    size_t left = j->d->part.n / sizeof(float), n_head = (size_t)j->a->n_head;
    bool few = j->d->n_threads > 1 && (int64_t)j->n_tile * j->a->n_kv_head <
                                          (j->by_tiles ? 4 : 8) * (int64_t)j->d->n_threads;
    /* tile products read ahead from split to split */
    const int tasks = 6 * j->d->n_threads / (j->n_tile * j->a->n_kv_head) + 1;
    const int parts = j->by_tiles ? tasks : INT32_MAX;
    float *part = j->d->part.p;
    bool any = false;
    for (int i = 0; i < j->n_tile; i++) {
        struct cpu_tile *t = &j->tiles[i];
        size_t n_split = (size_t)(t->split_hi - t->split_lo);
        size_t need = n_split * (size_t)t->n * n_head * j->state;
        t->task = j->n_task;
        if (few && n_split > 1 && need <= left) {
            t->part = part;
            part += need;
            left -= need;
            any = true;
            t->n_part = (int)n_split < parts ? (int)n_split : parts;
            j->n_task += t->n_part * j->a->n_kv_head;
        } else {
            j->n_task += j->a->n_kv_head;
        }
    }
    return any;
}

#define TILES_VALUES 32768 /* query rows x head_dim of a tile */
#define TILES_LEAST  32    /* query rows */

/* Query rows of a tile. Those of tile products: as many as the second-level cache has room for, as few as give every
 * thread some tiles. */
static int tile_rows(const struct attn_job *j)
{
    const struct op_attn *a = j->a;
    const int group = a->n_head / a->n_kv_head;
    if (!j->by_tiles)
        return group < CPU_ATTN_TILE ? CPU_ATTN_TILE / group : 1;
    const int64_t most = a->head_dim > 85 ? TILES_VALUES / a->head_dim : TILES_VALUES / 85;
    int64_t rows = (int64_t)j->d->meta.n_row * a->n_kv_head / (6 * j->d->n_threads) * group;
    rows = rows > most ? most : rows < TILES_LEAST ? TILES_LEAST : rows;
    return rows > group ? (int)(rows / group) : 1;
}

#define PART_MAX ((size_t)16 << 20) /* bytes of states at most */

/* Sized by the pool (no sequence is longer than it), so that a growing context needs no more later. */
static int attn_scratch(struct attn_job *j, int rows)
{
    const struct op_attn *a = j->a;
    int group = a->n_head / a->n_kv_head;
    j->state = cpu_attn_state(a->kv->geom.v_dim);
    j->scratch = j->by_tiles ? cpu_attn_tiles_scratch(rows * group, a->head_dim)
                             : cpu_attn_scratch(rows * group, a->head_dim, a->kv->geom.v_dim);
    j->scratch = (j->scratch + 15) / 16 * 16;
    int rc = cpu__grow(&j->d->attn, j->scratch * sizeof(float) * (size_t)j->d->n_threads);
    if (rc || j->d->n_threads == 1)
        return rc;
    size_t splits = (size_t)a->kv->desc.n_block * KV_BLOCK_TOKENS / CPU_ATTN_SPLIT + 2;
    size_t want = splits * (size_t)(a->n_head * rows) * j->state * sizeof(float);
    return cpu__grow(&j->d->part, want < PART_MAX ? want : PART_MAX);
}

int cpu__attn(struct dev *d, const struct op_attn *a)
{
    if (!d->in_step || !a->kv || ops_check_attn(a, DT_F32, &d->meta, &a->kv->desc) ||
        check_blocks(d, a->kv, a->window))
        return ERR_INVAL;
    struct attn_job j = {.d = d, .a = a, .tiles = d->tiles.p};
    j.dst = cpu__ptr(d, &a->dst);
    j.q = cpu__ptr(d, &a->qkv);
    j.sinks = a->sinks.buf ? cpu__ptr(d, &a->sinks) : NULL;
    j.alibi = a->alibi.buf ? cpu__ptr(d, &a->alibi) : NULL;
    if (!j.dst || !j.q || (a->sinks.buf && !j.sinks) || (a->alibi.buf && !j.alibi))
        return ERR_INVAL;
    const enum dtype dt = a->kv->desc.dtype;
    j.by_tiles = d->isa->tiles && d->precision != PRECISION_F32 && dt != DT_F32 &&
                 a->head_dim <= CPU_ATTN_TILES_DIM;
    j.kern = j.by_tiles                    ? d->isa->tiles
             : a->kv->geom.dtype == DT_I16 ? d->isa->words
                                           : d->isa->attn;
    int rows = tile_rows(&j);
    int rc = attn_scratch(&j, rows);
    if (rc)
        return rc;
    make_tiles(&j, rows);
    bool split = make_tasks(&j);
    cpu__run(d, attn_task, &j, j.n_task, j.cost);
    if (split)
        cpu__run(d, merge_task, &j, j.n_tile * a->n_kv_head, j.cost / 16);
    return 0;
}
