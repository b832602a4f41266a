/* Paged attention of one query tile against one KV head: flash-style online softmax (Dao et al. 2022) over
 * the blocks where they lie; codes are multiplied as they are, their scales with a score and with a weight. Order of every sum is fixed by absolute positions; see kern.h. Several query
 * rows and the heads of a GQA group share each load of K and V. */
#include "engine/cpu/attn_state.h"
#include "engine/cpu/vec_kv.h"

#include <math.h>

#define BT      KV_BLOCK_TOKENS
#define N_BLK   (CPU_ATTN_CHUNK / BT)
#define ACC_MAX 16 /* accumulators of the widest micro-kernel */

/* Blocks of one chunk and what the micro-kernels need of the tile. */
struct chunk {
    const struct cpu_attn_tile *t;
    const char *blk[N_BLK];   /* K of each block; NULL past the last used */
    const char *ahead[N_BLK]; /* the same of the next chunk, to fetch while this one is at work */
    int base;                 /* position of the first token */
    float *q;                 /* [m, head_dim], scaled */
    float *s;                 /* [m, CPU_ATTN_CHUNK] scores, then weights */
    float *o;                 /* [m] states of the split */
    size_t ldo;               /* floats of a state */
    int m;
};

VI struct vf load(const void *p, size_t i, enum dtype dt)
{
    if (dt == DT_F16)
        return vload_f16((const uint16_t *)p + i);
    if (dt == DT_BF16)
        return vload_bf16((const uint16_t *)p + i);
    if (dt == DT_I8)
        return vload_i8((const int8_t *)p + i);
    if (dt == DT_F8)
        return vload_f8((const uint8_t *)p + i);
    return vload((const float *)p + i);
}

/* The line of value i on its way to the cache; once a line. */
VI void fetch(const char *p, size_t i, enum dtype dt)
{
    const size_t at = i * dtype_bytes(dt);
    if (at % 64 == 0)
        __builtin_prefetch(p + at, 0, 3);
}

/* What the codes of K, or V, of block b's tokens are multiplied with. */
VI struct vf scales(const struct chunk *c, int b, bool v)
{
    const struct cpu_kv_geom *g = &c->t->geom;
    const char *p = c->blk[b] + (v ? cpu_kv_v_scales_at(g) : cpu_kv_k_bytes(g));
    const struct vf s = vload((const float *)(const void *)p);
    return g->dtype == DT_F8 ? vmul(s, vset1(F8_UNIT)) : s;
}

/* Scores of `rows` query rows against `nb` blocks of 16 tokens: one chain over head_dim a lane. */
VI void qk(const struct chunk *c, int row, int blk, int rows, int nb, enum dtype dt)
{
    int hd = c->t->geom.head_dim;
    const float *q = c->q + (size_t)row * (size_t)hd;
    struct vf acc[ACC_MAX];
    for (int i = 0; i < rows * nb; i++)
        acc[i] = vset1(0);
    for (int d = 0; d < hd; d++)
        for (int b = 0; b < nb; b++) {
            struct vf k = load(c->blk[blk + b], (size_t)d * BT, dt);
            fetch(c->ahead[blk + b], (size_t)d * BT, dt);
            for (int i = 0; i < rows; i++)
                acc[i * nb + b] = vfma(vset1(q[i * hd + d]), k, acc[i * nb + b]);
        }
    for (int b = 0; b < nb; b++) {
        const struct vf k = dtype_is_code(dt) ? scales(c, blk + b, false) : vset1(1);
        for (int i = 0; i < rows; i++) {
            struct vf v = acc[i * nb + b];
            v = dtype_is_code(dt) ? vmul(v, k) : v;
            vstore(c->s + (row + i) * CPU_ATTN_CHUNK + (blk + b) * BT, v);
        }
    }
}

/* Rows of the widest kernels, and how many registers' worth of blocks or columns go with fewer rows. The
 * choice moves work between registers only: each lane's chain is the same. */
#if defined(CPU_ISA_avx512) || defined(CPU_ISA_amx)
#define QK_WIDE 8
#define WITH_8  2
#define WITH_4  2
#define WITH_3  4
#define PV_COLS 4
#else
#define QK_WIDE 4
#define WITH_8  1
#define WITH_4  1
#define WITH_3  1
#define PV_COLS 1
#endif

/* Blocks [b0, b1), nb at a time. */
VI void qk_blocks(const struct chunk *c, int row, const int *blk, int rows, int nb, enum dtype dt)
{
    int b = blk[0];
    for (; b + nb <= blk[1]; b += nb)
        qk(c, row, b, rows, nb, dt);
    for (; b < blk[1]; b++)
        qk(c, row, b, rows, 1, dt);
}

VI void qk_all(const struct chunk *c, const int *blk, enum dtype dt)
{
    int row = 0;
    for (; row + QK_WIDE <= c->m; row += QK_WIDE)
        qk_blocks(c, row, blk, QK_WIDE, WITH_8, dt);
    if (row + 4 <= c->m) {
        qk_blocks(c, row, blk, 4, WITH_4, dt);
        row += 4;
    }
    if (c->m - row == 3)
        qk_blocks(c, row, blk, 3, WITH_3, dt);
    else if (c->m - row == 2)
        qk_blocks(c, row, blk, 2, 2, dt);
    else if (c->m - row == 1)
        qk_blocks(c, row, blk, 1, 4, dt);
}

/* o[row.., col..] += sum over tokens [lo, hi) of the chunk of s * V: one chain over tokens a lane. */
VI void pv(const struct chunk *c, int row, int col, int rows, int cols, const int *range,
           enum dtype dt)
{
    const struct cpu_kv_geom *g = &c->t->geom;
    const size_t v_at = cpu_kv_v_at(g);
    float *o = c->o + (size_t)row * c->ldo + col;
    const float *s = c->s + row * CPU_ATTN_CHUNK;
    struct vf acc[ACC_MAX];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            acc[i * cols + j] = vload(o + (size_t)i * c->ldo + j * VL);
    for (int t = range[0]; t < range[1]; t++) {
        const size_t at = (size_t)(t % BT) * (size_t)g->v_dim + (size_t)col;
        for (int j = 0; j < cols; j++) {
            struct vf v = load(c->blk[t / BT] + v_at, at + (size_t)j * VL, dt);
            fetch(c->ahead[t / BT] + v_at, at + (size_t)j * VL, dt);
            for (int i = 0; i < rows; i++)
                acc[i * cols + j] = vfma(vset1(s[i * CPU_ATTN_CHUNK + t]), v, acc[i * cols + j]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            vstore(o + (size_t)i * c->ldo + j * VL, acc[i * cols + j]);
}

/* All columns, `cols` vectors at a time. */
VI void pv_cols(const struct chunk *c, int row, int rows, int cols, const int *range, enum dtype dt)
{
    int col = 0, v_dim = c->t->geom.v_dim;
    for (; col + cols * VL <= v_dim; col += cols * VL)
        pv(c, row, col, rows, cols, range, dt);
    if (cols > 3 && v_dim - col == 3 * VL) { /* heads of 40, as Stable Diffusion's */
        pv(c, row, col, rows, 3, range, dt);
        return;
    }
    if (cols > 2 && v_dim - col == 2 * VL) {
        pv(c, row, col, rows, 2, range, dt);
        return;
    }
    for (; col < v_dim; col += VL)
        pv(c, row, col, rows, 1, range, dt);
}

/* Rows [row, row + n), which see the same tokens of the chunk. */
VI void pv_rows(const struct chunk *c, int row, int n, const int *range, enum dtype dt)
{
    for (; n >= 4; n -= 4, row += 4)
        pv_cols(c, row, 4, PV_COLS, range, dt);
    if (n == 3)
        pv_cols(c, row, 3, PV_COLS, range, dt);
    else if (n == 2)
        pv_cols(c, row, 2, 2, range, dt);
    else if (n == 1)
        pv_cols(c, row, 1, 4, range, dt);
}

/* Tokens of the chunk that a row sees, [range[0], range[1]) from the chunk's first. */
static bool row_range(const struct chunk *c, int m, int *range)
{
    int pos = c->t->pos[m / c->t->n_group];
    int lo = cpu_attn_row_first(c->t, m) - c->base, hi = pos + 1 - c->base;
    range[0] = lo < 0 ? 0 : lo;
    range[1] = hi > CPU_ATTN_CHUNK ? CPU_ATTN_CHUNK : hi;
    return range[0] < range[1];
}

/* Scores of block b by how far behind row m its tokens are. */
VI struct vf alibi_add(const struct chunk *c, int m, int b, struct vf v)
{
    static const float lane[BT] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const struct cpu_attn_tile *t = c->t;
    float first = (float)(c->base + b * BT - t->pos[m / t->n_group]);
    return vfma(vset1(t->alibi[m % t->n_group]), vadd(vload(lane), vset1(first)), v);
}

/* Scores to weights relative to the new maximum; the state is rescaled to it. Weights outside the range
 * are never read by pv. */
static void softmax_row(const struct chunk *c, int m, const int *range)
{
    float *s = c->s + m * CPU_ATTN_CHUNK, *o = c->o + (size_t)m * c->ldo;
    float *mx = o + c->t->geom.v_dim, *sum = mx + 1;
    const struct vf none = vset1(-INFINITY);
    float cap = c->t->softcap;
    const bool code = dtype_is_code(c->t->geom.dtype);
    struct vf v[N_BLK], top = none, add = vset1(0);
    for (int b = 0; b < N_BLK; b++) {
        int lo = range[0] - b * BT, hi = range[1] - b * BT;
        lo = lo < 0 ? 0 : lo > BT ? BT : lo;
        hi = hi < 0 ? 0 : hi > BT ? BT : hi;
        if (lo >= hi) {
            v[b] = none;
            continue;
        }
        v[b] = vload(s + b * BT);
        if (cap > 0)
            v[b] = vmul(vset1(cap), vtanh(vdiv(v[b], vset1(cap))));
        if (c->t->alibi)
            v[b] = alibi_add(c, m, b, v[b]);
        v[b] = vkeep(v[b], lo, hi, none);
        top = vmax(top, v[b]);
    }
    float old = *mx, now = vhmax(top);
    now = old > now ? old : now;
    for (int b = 0; b < N_BLK; b++) {
        struct vf p = vexp(vsub(v[b], vset1(now)));
        add = vadd(add, p);
        if (code && range[0] < (b + 1) * BT && range[1] > b * BT)
            p = vmul(p, scales(c, b, true));
        vstore(s + b * BT, p);
    }
    float alpha = vexp1(old - now);
    *mx = now;
    *sum = *sum * alpha + vhsum(add);
    for (int d = 0; d < c->t->geom.v_dim; d += VL)
        vstore(o + d, vmul(vload(o + d), vset1(alpha)));
}

VI void chunk_run(const struct chunk *c, const int *blk, enum dtype dt)
{
    qk_all(c, blk, dt);
    int range[2], next[2];
    for (int m = 0; m < c->m;) {
        if (!row_range(c, m, range)) {
            m++;
            continue;
        }
        int n = 1;
        softmax_row(c, m, range);
        while (m + n < c->m && row_range(c, m + n, next) && next[0] == range[0] &&
               next[1] == range[1]) {
            softmax_row(c, m + n, range);
            n++;
        }
        pv_rows(c, m, n, range, dt);
        m += n;
    }
}

/* One chunk: find its blocks, then the loop of the pool's dtype. */
static void chunk_do(struct chunk *c, int base)
{
    const struct cpu_attn_tile *t = c->t;
    int b0 = N_BLK, b1 = 0, range[2];
    c->base = base;
    for (int m = 0; m < c->m; m += t->n_group)
        if (row_range(c, m, range)) {
            b0 = range[0] / BT < b0 ? range[0] / BT : b0;
            b1 = (range[1] + BT - 1) / BT > b1 ? (range[1] + BT - 1) / BT : b1;
        }
    const int last = t->pos[t->n_row - 1] / BT;
    for (int b = b0; b < b1; b++) {
        const int next = base / BT + N_BLK + b;
        c->blk[b] = t->kv + (size_t)t->table[base / BT + b] * t->geom.block_bytes;
        c->ahead[b] =
            next > last ? c->blk[b] : t->kv + (size_t)t->table[next] * t->geom.block_bytes;
    }
    if (b0 >= b1)
        return;
    if (t->geom.dtype == DT_F16)
        chunk_run(c, (int[]){b0, b1}, DT_F16);
    else if (t->geom.dtype == DT_BF16)
        chunk_run(c, (int[]){b0, b1}, DT_BF16);
    else if (t->geom.dtype == DT_I8)
        chunk_run(c, (int[]){b0, b1}, DT_I8);
    else if (t->geom.dtype == DT_F8)
        chunk_run(c, (int[]){b0, b1}, DT_F8);
    else
        chunk_run(c, (int[]){b0, b1}, DT_F32);
}

/* One split, from nothing: m states to `states`. */
static void split_do(void *arg, int split, float *states)
{
    struct chunk *c = arg;
    c->o = states;
    for (int i = 0; i < CPU_ATTN_SPLIT; i += CPU_ATTN_CHUNK)
        chunk_do(c, split * CPU_ATTN_SPLIT + i);
}

static void tile(const struct cpu_attn_tile *t)
{
    int hd = t->geom.head_dim, m_all = t->n_row * t->n_group;
    struct chunk c = {.t = t, .m = m_all, .ldo = cpu_attn_state(t->geom.v_dim), .q = t->scratch};
    c.s = c.q + (size_t)m_all * (size_t)hd;
    for (int m = 0; m < m_all; m++) {
        const float *q = t->q + (m / t->n_group) * t->ldq + (int64_t)(m % t->n_group) * hd;
        for (int d = 0; d < hd; d++)
            c.q[m * hd + d] = q[d] * t->scale;
    }
    tile_splits(t, c.s + (size_t)m_all * CPU_ATTN_CHUNK, split_do, &c);
}

#define TABLE_(isa)                                                                                \
    const struct cpu_attn_kern cpu_attn_##isa = {.tile = tile, .merge = states_merge}
#define TABLE(isa) TABLE_(isa)
TABLE(CPU_ISA);
