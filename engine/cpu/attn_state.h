/* States of online softmax: v_dim weighted sums, the largest score and the sum of weights; how those of splits become a row's
 * result. Included by kern_attn*.c alone, which are compiled once per ISA. */
#ifndef ENGINE_CPU_ATTN_STATE_H
#define ENGINE_CPU_ATTN_STATE_H

#include "engine/cpu/kern.h"
#include "engine/cpu/vec.h"

#include <math.h>

/* Does row m see a token of this split? */
static bool in_split(const struct cpu_attn_tile *t, int m, int split)
{
    int pos = t->pos[m / t->n_group];
    return cpu_attn_row_first(t, m) < (split + 1) * CPU_ATTN_SPLIT && pos >= split * CPU_ATTN_SPLIT;
}

static void state_clear(float *o, int v_dim)
{
    memset(o, 0, sizeof(float) * cpu_attn_state(v_dim));
    o[v_dim] = -INFINITY;
}

/* to = to and `part` together; to's maximum of -inf with weight 0 is "nothing yet". */
static void state_merge(float *to, const float *part, int v_dim)
{
    float *mt = to + v_dim;
    const float *mp = part + v_dim;
    if (mt[0] == -INFINITY && mt[1] == 0) {
        memcpy(to, part, sizeof(float) * cpu_attn_state(v_dim));
        return;
    }
    float now = mt[0] > mp[0] ? mt[0] : mp[0];
    float a = vexp1(mt[0] - now), b = vexp1(mp[0] - now);
    for (int d = 0; d < v_dim; d += VL)
        vstore(to + d, vadd(vmul(vload(to + d), vset1(a)), vmul(vload(part + d), vset1(b))));
    mt[0] = now;
    mt[1] = mt[1] * a + mp[1] * b;
}

static void write_row(const struct cpu_attn_tile *t, int m, const float *o)
{
    int hd = t->geom.head_dim;
    float *dst = t->dst + (m / t->n_group) * t->ldd + (int64_t)(m % t->n_group) * hd;
    float max = o[t->geom.v_dim], sum = o[t->geom.v_dim + 1], a = 1;
    if (t->sinks) { /* joins last, so that splits need not know of it */
        float sink = t->sinks[m % t->n_group], now = max > sink ? max : sink;
        a = vexp1(max - now);
        sum = sum * a + vexp1(sink - now);
    }
    struct vf w = vset1(a / sum);
    for (int d = 0; d < hd; d += VL)
        vstoren(dst + d, vmul(vload(o + d), w), hd - d < VL ? hd - d : VL);
}

/* The tile's splits: fn leaves m states of each, which go to t->part or are merged and written. buf: room for 2 m states. */
typedef void split_fn(void *arg, int split, float *states);
static void tile_splits(const struct cpu_attn_tile *t, float *buf, split_fn *fn, void *arg)
{
    const int v_dim = t->geom.v_dim, m_all = t->n_row * t->n_group;
    const size_t ldo = cpu_attn_state(v_dim), each = (size_t)m_all * ldo;
    for (int m = 0; m < m_all; m++)
        state_clear(buf + (size_t)m * ldo, v_dim);
    for (int sp = t->split_lo; sp < t->split_hi; sp++) {
        float *o = t->part ? t->part + (size_t)(sp - t->split_lo) * each : buf + each;
        for (int m = 0; m < m_all; m++)
            state_clear(o + (size_t)m * ldo, v_dim);
        fn(arg, sp, o);
        for (int m = 0; !t->part && m < m_all; m++)
            if (in_split(t, m, sp))
                state_merge(buf + (size_t)m * ldo, o + (size_t)m * ldo, v_dim);
    }
    for (int m = 0; !t->part && m < m_all; m++)
        write_row(t, m, buf + (size_t)m * ldo);
}

/* dst rows of t from the states of its splits. */
static void states_merge(const struct cpu_attn_tile *t)
{
    int v_dim = t->geom.v_dim, m_all = t->n_row * t->n_group;
    size_t ldo = cpu_attn_state(v_dim);
    for (int m = 0; m < m_all; m++) {
        float *all = t->scratch;
        state_clear(all, v_dim);
        for (int sp = t->split_lo; sp < t->split_hi; sp++)
            if (in_split(t, m, sp))
                state_merge(
                    all, t->part + ((size_t)(sp - t->split_lo) * (size_t)m_all + (size_t)m) * ldo,
                    v_dim);
        write_row(t, m, all);
    }
}

#endif
