/* Paged attention in words of 16 bits (kv_words.h) by VPDPWSSD, which multiplies 32 pairs in the time of 16 of f32: scores are
 * sums of integers times both scales; weights of a chunk, each times its token's scale of V, become words with one scale a row
 * again, so small that no sum of theirs leaves 31 bits. All else, and every order of f32 sums, is as in kern_attn.c. Of the
 * AVX512 table; empty in the other ISAs' objects. */
#include "engine/cpu/kern.h"

#ifdef CPU_ISA_avx512
#include "engine/cpu/attn_state.h"
#include "engine/cpu/fold16.h"
#include "engine/cpu/kv_words.h"

#define BT    KV_BLOCK_TOKENS
#define N_BLK (CPU_ATTN_CHUNK / BT)
#define BATCH 16 /* rows whose maxima and sums share vectors */
/* Of a row's weights as words: times 32767 within 31 bits, rounded up, too. */
#define SUM_MAX  65500.0f
#define UNIT_MIN 1e-35f

typedef int32_t vi __attribute__((vector_size(64)));

/* One chunk and the rows, up to BATCH, that see some of it. */
struct words {
    const struct cpu_attn_tile *t;
    const char *blk[N_BLK];   /* of this chunk, any where it has none */
    const char *ahead[N_BLK]; /* of the next one */
    int b0, b1, base;         /* blocks in use; position of the first token */
    const uint32_t *q;        /* [m][head_dim / 2] pairs */
    const float *q_scale;     /* [m] */
    float *o;                 /* [m] states of the split */
    size_t ldo;
    int n, row[BATCH];
    uint64_t seen[BATCH];                        /* tokens of the chunk that a row sees */
    _Alignas(64) float s[BATCH][CPU_ATTN_CHUNK]; /* scores, then weights times scales */
    int16_t p[BATCH][CPU_ATTN_CHUNK];            /* those as words */
    float alpha[BATCH], unit[BATCH]; /* what sums so far are multiplied with, and words */
};

/* sum += the two products of every lane of a and b. By name: the table is for processors without it, too. */
VI vi dot(vi sum, vi a, vi b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

VI vi load_words(const char *p)
{
    return (vi)_mm512_loadu_si512(p);
}

/* A pair in every lane, straight from memory. */
VI vi pair_all(const void *p)
{
    vi v;
    __asm__("vpbroadcastd %1, %0" : "=v"(v) : "m"(*(const char(*)[4])p));
    return v;
}

VI struct vf to_float(vi v)
{
    return (struct vf){_mm512_cvtepi32_ps((__m512i)v)};
}

/* ---- scores ---- */

/* Rows i to i + rows of the batch against blocks blk to blk + nb. */
VI void scores(struct words *c, int i, int rows, int blk, int nb)
{
    const struct cpu_kv_geom *g = &c->t->geom;
    const int half = g->head_dim / 2;
    const uint32_t *q[4];
    vi sum[16];
    for (int r = 0; r < rows; r++)
        q[r] = c->q + (size_t)c->row[i + r] * (size_t)half;
    for (int k = 0; k < rows * nb; k++)
        sum[k] = (vi){0};
    for (int d = 0; d < half; d++) {
        vi k[N_BLK];
        for (int b = 0; b < nb; b++) {
            k[b] = load_words(c->blk[blk + b] + (size_t)d * 64);
            __builtin_prefetch(c->ahead[blk + b] + (size_t)d * 64, 0, 3);
        }
        for (int r = 0; r < rows; r++) {
            const vi x = pair_all(q[r] + d);
            for (int b = 0; b < nb; b++)
                sum[r * nb + b] = dot(sum[r * nb + b], k[b], x);
        }
    }
    for (int b = 0; b < nb; b++) {
        const char *at = c->blk[blk + b] + cpu_kv_k_bytes(g);
        const struct vf k = vload((const float *)(const void *)at);
        for (int r = 0; r < rows; r++)
            vstore(c->s[i + r] + (blk + b) * BT,
                   vmul(to_float(sum[r * nb + b]), vmul(k, vset1(c->q_scale[c->row[i + r]]))));
    }
}

VI void scores_rows(struct words *c, int i, int rows)
{
    int b = c->b0;
    for (; b + 4 <= c->b1; b += 4)
        scores(c, i, rows, b, 4);
    for (; b + 2 <= c->b1; b += 2)
        scores(c, i, rows, b, 2);
    for (; b < c->b1; b++)
        scores(c, i, rows, b, 1);
}

/* ---- softmax: rows are lanes where they can be ---- */

VI struct vf pick(struct vf x, struct vf y, fold_lanes from)
{
    return (struct vf){_mm512_permutex2var_ps(x.v, (__m512i)from, y.v)};
}

VI struct vf sum_rows(struct vf *v, const int n)
{
    FOLD_ROWS(struct vf, v, n, vadd, pick);
    return v[0];
}

VI struct vf max_rows(struct vf *v, const int n)
{
    FOLD_ROWS(struct vf, v, n, vmax, pick);
    return v[0];
}

VI struct vf only(uint64_t seen, int b, struct vf v, struct vf other)
{
    return (struct vf){_mm512_mask_blend_ps((__mmask16)(seen >> b * BT), other.v, v.v)};
}

/* The largest score of row i in every lane, -inf where it sees none; capped and biased scores go back. */
VI struct vf scores_top(struct words *c, int i)
{
    static const float lane[BT] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const struct cpu_attn_tile *t = c->t;
    const int m = c->row[i], pos = t->pos[m / t->n_group];
    const struct vf none = vset1(-INFINITY), cap = vset1(t->softcap);
    struct vf v[N_BLK];
    for (int b = 0; b < N_BLK; b++)
        v[b] = vload(c->s[i] + b * BT);
    for (int b = 0; t->softcap > 0 && b < N_BLK; b++)
        v[b] = vmul(cap, vtanh(vdiv(v[b], cap)));
    for (int b = 0; t->alibi && b < N_BLK; b++)
        v[b] = vfma(vset1(t->alibi[m % t->n_group]),
                    vadd(vload(lane), vset1((float)(c->base + b * BT - pos))), v[b]);
    for (int b = 0; (t->softcap > 0 || t->alibi) && b < N_BLK; b++)
        vstore(c->s[i] + b * BT, v[b]);
    for (int b = 0; b < N_BLK; b++)
        v[b] = only(c->seen[i], b, v[b], none);
    return vmax(vmax(v[0], v[1]), vmax(v[2], v[3]));
}

/* Scores of row i to weights times scales of V; sums of weights, of those, and the largest of those. Scores and scales of tokens
 * that are not seen may be anything. */
VI void weights(struct words *c, int i, float max, struct vf *sum, struct vf *sum_v,
                struct vf *top_v)
{
    const size_t at = cpu_kv_v_scales_at(&c->t->geom);
    struct vf p[N_BLK], w[N_BLK];
    for (int b = 0; b < N_BLK; b++) {
        const struct vf scale = vload((const float *)(const void *)(c->blk[b] + at));
        p[b] = vexp(vsub(vload(c->s[i] + b * BT), vset1(max)));
        p[b] = only(c->seen[i], b, p[b], vset1(0));
        w[b] = only(c->seen[i], b, vmul(p[b], scale), vset1(0));
        vstore(c->s[i] + b * BT, w[b]);
    }
    *sum = vadd(vadd(p[0], p[1]), vadd(p[2], p[3]));
    *sum_v = vadd(vadd(w[0], w[1]), vadd(w[2], w[3]));
    *top_v = vmax(vmax(w[0], w[1]), vmax(w[2], w[3]));
}

/* All rows of the batch, n of them in lanes: 4 or 16. */
VI void softmax(struct words *c, const int n)
{
    const int v_dim = c->t->geom.v_dim;
    struct vf a[BATCH], b[BATCH], d[BATCH];
    float old[BATCH], safe[BATCH], sums[BATCH];
    for (int i = 0; i < n; i++) {
        a[i] = i < c->n ? scores_top(c, i) : vset1(-INFINITY);
        old[i] = i < c->n ? c->o[(size_t)c->row[i] * c->ldo + (size_t)v_dim] : -INFINITY;
    }
    for (int i = n; i < BATCH; i++)
        old[i] = -INFINITY;
    const struct vf now = vmax(vload(old), max_rows(a, n));
    const struct vf zero = vsel_lt(now, vset1(-3e38f), vset1(0), now); /* nothing but -inf */
    vstore(safe, zero);
    vstore(c->alpha, vexp(vsub(vload(old), zero)));
    vstore(old, now);
    for (int i = 0; i < n; i++) {
        a[i] = b[i] = d[i] = vset1(0);
        if (i < c->n)
            weights(c, i, safe[i], &a[i], &b[i], &d[i]);
    }
    vstore(sums, sum_rows(a, n));
    const struct vf by_sum = vmul(sum_rows(b, n), vset1(1 / SUM_MAX));
    const struct vf unit = vmax(vmul(max_rows(d, n), vset1(1 / WORD_MAX)), by_sum);
    vstore(c->unit, unit); /* NaN where a weight is */
    float inv[BATCH];
    vstore(inv, vsel_lt(vset1(UNIT_MIN), unit, vdiv(vset1(1), unit), vset1(0)));
    for (int i = 0; i < c->n; i++) {
        float *mx = c->o + (size_t)c->row[i] * c->ldo + v_dim;
        mx[0] = old[i];
        mx[1] = mx[1] * c->alpha[i] + sums[i];
        for (int k = 0; k < N_BLK; k++) {
            const struct vf w = vmul(vload(c->s[i] + k * BT), vset1(inv[i]));
            _mm256_storeu_si256((void *)(c->p[i] + k * BT),
                                _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(w.v)));
        }
    }
}

/* ---- values ---- */

/* Rows i to i + rows of the batch, `cols` vectors from column col on: o = o * alpha + unit * sum of words. */
VI void values(const struct words *c, int i, int rows, int col, int cols)
{
    const struct cpu_kv_geom *g = &c->t->geom;
    const size_t v_at = cpu_kv_v_at(g) + (size_t)col * 4, step = (size_t)g->v_dim * 4;
    vi sum[16];
    for (int k = 0; k < rows * cols; k++)
        sum[k] = (vi){0};
    for (int b = c->b0; b < c->b1; b++) {
        const char *v = c->blk[b] + v_at, *ahead = c->ahead[b] + v_at;
        for (int t = 0; t < BT / 2; t++, v += step, ahead += step) {
            vi x[4];
            for (int k = 0; k < cols; k++) {
                x[k] = load_words(v + (size_t)k * 64);
                __builtin_prefetch(ahead + (size_t)k * 64, 0, 3);
            }
            for (int r = 0; r < rows; r++) {
                const vi p = pair_all(c->p[i + r] + b * BT + 2 * t);
                for (int k = 0; k < cols; k++)
                    sum[r * cols + k] = dot(sum[r * cols + k], x[k], p);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        float *o = c->o + (size_t)c->row[i + r] * c->ldo + col;
        const struct vf alpha = vset1(c->alpha[i + r]), unit = vset1(c->unit[i + r]);
        for (int k = 0; k < cols; k++)
            vstore(o + k * VL,
                   vfma(to_float(sum[r * cols + k]), unit, vmul(vload(o + k * VL), alpha)));
    }
}

VI void values_rows(const struct words *c, int i, int rows)
{
    const int v_dim = c->t->geom.v_dim;
    int col = 0;
    for (; col + 4 * VL <= v_dim; col += 4 * VL)
        values(c, i, rows, col, 4);
    for (; col + 2 * VL <= v_dim; col += 2 * VL)
        values(c, i, rows, col, 2);
    for (; col < v_dim; col += VL)
        values(c, i, rows, col, 1);
}

/* ---- chunks ---- */

#define BY_ROWS(call)                                                                              \
    do {                                                                                           \
        int i = 0;                                                                                 \
        for (; i + 4 <= c->n; i += 4)                                                              \
            call(c, i, 4);                                                                         \
        for (; i + 2 <= c->n; i += 2)                                                              \
            call(c, i, 2);                                                                         \
        for (; i < c->n; i++)                                                                      \
            call(c, i, 1);                                                                         \
    } while (0)

/* Functions of their own: in one, gcc spills the sums of the inner loops. */
static __attribute__((noinline)) void all_scores(struct words *c)
{
    BY_ROWS(scores_rows);
}
static __attribute__((noinline)) void all_values(const struct words *c)
{
    BY_ROWS(values_rows);
}
static __attribute__((noinline)) void softmax_4(struct words *c)
{
    softmax(c, 4);
}
static __attribute__((noinline)) void softmax_16(struct words *c)
{
    softmax(c, BATCH);
}

/* The blocks that the batch's rows see, and the next chunk's. */
static void find_blocks(struct words *c)
{
    const struct cpu_attn_tile *t = c->t;
    const int last = t->pos[t->n_row - 1] / BT;
    uint64_t any = 0;
    for (int i = 0; i < c->n; i++)
        any |= c->seen[i];
    c->b0 = __builtin_ctzll(any) / BT;
    c->b1 = N_BLK - __builtin_clzll(any) / BT;
    for (int b = 0; b < N_BLK; b++) {
        const int in = b < c->b0 ? c->b0 : b < c->b1 ? b : c->b1 - 1;
        const int at = c->base / BT + in, next = at + N_BLK;
        c->blk[b] = t->kv + (size_t)t->table[at] * t->geom.block_bytes;
        c->ahead[b] =
            next > last ? c->blk[b] : t->kv + (size_t)t->table[next] * t->geom.block_bytes;
    }
}

/* Tokens [lo, hi) of a chunk as bits. */
static uint64_t bits(int lo, int hi)
{
    if (lo >= hi || hi <= 0 || lo >= CPU_ATTN_CHUNK)
        return 0;
    const uint64_t below = hi >= CPU_ATTN_CHUNK ? ~(uint64_t)0 : ((uint64_t)1 << hi) - 1;
    return lo <= 0 ? below : below & ~(((uint64_t)1 << lo) - 1);
}

static void chunk_do(struct words *c, int base)
{
    const struct cpu_attn_tile *t = c->t;
    const int m_all = t->n_row * t->n_group;
    c->base = base;
    for (int m = 0; m < m_all;) {
        for (c->n = 0; m < m_all && c->n < BATCH; m++) {
            c->seen[c->n] =
                bits(cpu_attn_row_first(t, m) - base, t->pos[m / t->n_group] + 1 - base);
            c->row[c->n] = m;
            c->n += c->seen[c->n] != 0;
        }
        if (c->n == 0)
            continue;
        find_blocks(c);
        all_scores(c);
        if (c->n <= 4)
            softmax_4(c);
        else
            softmax_16(c);
        all_values(c);
    }
}

static void split_do(void *arg, int split, float *states)
{
    struct words *c = arg;
    c->o = states;
    for (int i = 0; i < CPU_ATTN_SPLIT; i += CPU_ATTN_CHUNK)
        chunk_do(c, split * CPU_ATTN_SPLIT + i);
}

static void tile(const struct cpu_attn_tile *t)
{
    const int hd = t->geom.head_dim, m_all = t->n_row * t->n_group;
    float *scale = t->scratch + (size_t)m_all * (size_t)hd; /* the scores' room of kern_attn.c */
    uint32_t *to = (uint32_t *)(void *)t->scratch;
    struct words c = {.t = t, .ldo = cpu_attn_state(t->geom.v_dim), .q = to, .q_scale = scale};
    for (int m = 0; m < m_all; m++, to += hd / 2) {
        const float *q = t->q + (m / t->n_group) * t->ldq + (int64_t)(m % t->n_group) * hd;
        uint32_t pairs[CPU_ATTN_WORDS_DIM / 2 + VL];
        scale[m] = words_pack(pairs, q, hd, true) * t->scale;
        memcpy(to, pairs, sizeof *to * (size_t)(hd / 2));
    }
    tile_splits(t, scale + (size_t)m_all * CPU_ATTN_CHUNK, split_do, &c);
}

const struct cpu_attn_kern cpu_attn_words_avx512 = {.tile = tile, .merge = states_merge};

#endif
