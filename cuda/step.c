/* The step's rows on the device: one pinned buffer, one copy a step. Layout of the device arrays is fixed by capacities, so
 * that captured graphs keep their pointers. See struct cu_step. */
#include "cuda/backend_impl.h"

#include "engine/base/mem.h"

#include <string.h>

struct sizes { /* in int32 from the start */
    size_t count, tok, pos, row_seq, logit, dec, tile, start, src, dst, table, all;
};

static struct sizes sizes_of(const struct dev *d)
{
    size_t r = (size_t)d->cap_row;
    struct sizes s = {.count = 0, .tok = sizeof(struct cu_count) / 4};
    s.pos = s.tok + r;
    s.row_seq = s.pos + r;
    s.logit = s.row_seq + r;
    s.dec = s.logit + r;
    s.tile = s.dec + r;
    s.start = s.tile + 3 * r;
    s.src = s.start + (size_t)d->cap_seq + 1;
    s.dst = s.src + (size_t)d->cap_seq;
    s.table = s.dst + (size_t)d->cap_seq;
    s.all = s.table + (size_t)d->cap_seq * (size_t)d->stride;
    return s;
}

static int round_up(int v, int to)
{
    return (v + to - 1) / to * to;
}

static int room(struct dev *d, const struct step_meta *m)
{
    bool more = m->n_row > d->cap_row || m->n_seq > d->cap_seq || m->block_stride > d->stride;
    if (more) {
        d->cap_row = m->n_row > d->cap_row ? round_up(m->n_row, 64) : d->cap_row;
        d->cap_seq = m->n_seq > d->cap_seq ? round_up(m->n_seq, 16) : d->cap_seq;
        d->stride = m->block_stride > d->stride ? round_up(m->block_stride, 64) : d->stride;
        cu__graphs_drop(d);
    }
    size_t bytes = sizes_of(d).all * sizeof(int32_t);
    int rc = cu__grow(d, &d->dev_meta, bytes, false);
    return rc ? rc : cu__pinned(d, &d->slot[d->at_slot].meta, bytes);
}

/* Rows alone in their sequence go to dec, the others to tiles. */
static void rows_split(const struct step_meta *m, int32_t *row_seq, int32_t *dec,
                       struct cu_tile *tile, struct cu_count *c)
{
    for (int s = 0; s < m->n_seq; s++) {
        int from = m->seq_start[s], to = m->seq_start[s + 1];
        for (int i = from; i < to; i++) {
            row_seq[i] = s;
            c->max_pos = m->pos[i] > c->max_pos ? m->pos[i] : c->max_pos;
        }
        if (to - from == 1)
            dec[c->n_dec++] = from;
        for (int i = from; to - from > 1 && i < to; i += CU_TILE_ROWS)
            tile[c->n_tile++] =
                (struct cu_tile){s, i, to - i < CU_TILE_ROWS ? to - i : CU_TILE_ROWS};
    }
}

static const int buckets[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};

static int bucket_of(int n)
{
    for (size_t i = 0; i < sizeof buckets / sizeof *buckets; i++)
        if (n <= buckets[i])
            return buckets[i];
    return n;
}

static int pow2_of(int n)
{
    int p = 1;
    while (p < n)
        p *= 2;
    return p;
}

static void step_fill(struct dev *d, const struct step_meta *m, const struct cu_count *c)
{
    struct sizes s = sizes_of(d);
    const int32_t *p = d->dev_meta.p;
    int splits = c->max_pos / CU_SPLIT_TOKENS + 1;
    d->decode_only = c->n_tile == 0 && m->n_logit == m->n_row && m->n_row <= 256;
    int rows = d->decode_only ? bucket_of(m->n_row) : m->n_row;
    memset(&d->step, 0, sizeof d->step);
    d->step.count = (const struct cu_count *)(const void *)(p + s.count);
    d->step.tok = p + s.tok;
    d->step.sampled = d->sampled;
    d->step.pos = p + s.pos;
    d->step.row_seq = p + s.row_seq;
    d->step.block_table = p + s.table;
    d->step.logit_row = p + s.logit;
    d->step.dec = p + s.dec;
    d->step.tile = (const struct cu_tile *)(const void *)(p + s.tile);
    d->step.seq_start = p + s.start;
    d->step.state_src = p + s.src;
    d->step.state_dst = p + s.dst;
    d->step.seq_max = d->decode_only ? rows : m->n_seq;
    d->step.block_stride = d->stride;
    d->step.row_max = rows;
    d->step.logit_max = d->decode_only ? rows : m->n_logit;
    d->step.dec_max = d->decode_only ? rows : c->n_dec;
    d->step.tile_max = c->n_tile;
    d->step.split_max = d->decode_only ? pow2_of(splits) : splits;
}

static void ints(int32_t *dst, const int32_t *src, int n)
{
    if (n > 0)
        memcpy(dst, src, (size_t)n * sizeof *dst);
}

int cu__step_begin(struct dev *d, const struct step_meta *m)
{
    d->in_step = false;
    int rc = ops_check_step(m);
    if (rc || (rc = cu__flush(d)))
        return rc;
    d->at_slot = (d->at_slot + 1) % N_SLOT;
    rc = cu__check(d, cudaEventSynchronize(d->slot[d->at_slot].done),
                   "step"); /* long passed, but for a host far ahead */
    if (rc || (rc = room(d, m)))
        return rc;
    struct sizes s = sizes_of(d);
    int32_t *p = d->slot[d->at_slot].meta.p;
    struct cu_count c = {.n_row = m->n_row, .n_seq = m->n_seq, .n_logit = m->n_logit};
    ints(p + s.tok, m->tok, m->n_row);
    ints(p + s.pos, m->pos, m->n_row);
    ints(p + s.logit, m->logit_row, m->n_logit);
    rows_split(m, p + s.row_seq, p + s.dec, (struct cu_tile *)(void *)(p + s.tile), &c);
    memcpy(p + s.count, &c, sizeof c);
    ints(p + s.start, m->seq_start, m->n_seq ? m->n_seq + 1 : 0);
    for (int i = 0; i < m->n_seq; i++) {
        p[s.src + (size_t)i] = m->state_src ? m->state_src[i] : -1;
        p[s.dst + (size_t)i] = m->state_dst ? m->state_dst[i] : -1;
    }
    for (int i = 0; i < m->n_seq; i++)
        ints(p + s.table + (size_t)i * (size_t)d->stride,
             m->block_table + (size_t)i * (size_t)m->block_stride, m->block_stride);
    size_t bytes = (s.table + (size_t)m->n_seq * (size_t)d->stride) * sizeof *p;
    rc = cu__check(d, cudaMemcpyAsync(d->dev_meta.p, p, bytes, cudaMemcpyHostToDevice, d->stream),
                   "step");
    if (!rc)
        rc = cu__check(d, cudaEventRecord(d->slot[d->at_slot].done, d->stream), "step");
    if (rc)
        return rc;
    d->meta = *m;
    step_fill(d, m, &c);
    d->in_step = true;
    return 0;
}
