/* Vector scans of a row of logits: maximum, sums of exponentials, the k largest, rank. See kern.h. Sums go
 * in blocks of CPU_SUM_BLOCK values (16 f32 lanes each), blocks are added in double, in order. */
#include "engine/cpu/kern.h"
#include "engine/cpu/vec.h"

#include <math.h>

VI int lanes(int64_t left)
{
    return left < VL ? (int)left : VL;
}

static bool row_max(const float *x, int64_t n, float *max, int32_t *id)
{
    struct vf top = vset1(-INFINITY);
    uint32_t bad = 0;
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        struct vf v = vload(x + i);
        bad |= vbits_nan(v);
        top = vmax(v, top);
    }
    float m = vhmax(top);
    for (; i < n; i++) {
        bad |= x[i] != x[i];
        m = x[i] > m ? x[i] : m;
    }
    if (bad || m == -INFINITY || m == INFINITY)
        return false;
    *max = m;
    for (i = 0; i + VL <= n; i += VL) {
        uint32_t b = vbits_eq(vload(x + i), vset1(m));
        if (b) {
            *id = (int32_t)i + __builtin_ctz(b);
            return true;
        }
    }
    while (x[i] != m)
        i++;
    *id = (int32_t)i;
    return true;
}

static double sum(const float *x, int64_t n, double *sums)
{
    double all = 0;
    for (int64_t b = 0; b < n; b += CPU_SUM_BLOCK) {
        int64_t end = b + CPU_SUM_BLOCK < n ? b + CPU_SUM_BLOCK : n;
        struct vf s = vset1(0);
        for (int64_t i = b; i < end; i += VL)
            s = vadd(s, vloadn(x + i, lanes(end - i)));
        double one = (double)vhsum(s);
        if (sums)
            sums[b / CPU_SUM_BLOCK] = one;
        all += one;
    }
    return all;
}

static double exp_sum(float *e, const float *x, int64_t n, float max, float inv_t)
{
    double all = 0;
    for (int64_t b = 0; b < n; b += CPU_SUM_BLOCK) {
        int64_t end = b + CPU_SUM_BLOCK < n ? b + CPU_SUM_BLOCK : n;
        struct vf s = vset1(0);
        for (int64_t i = b; i < end; i += VL) {
            int m = lanes(end - i);
            struct vf v = vexp(vmul(vsub(vloadn(x + i, m), vset1(max)), vset1(inv_t)));
            vstoren(e + i, v, m);
            s = vadd(s, vkeep(v, 0, m, vset1(0)));
        }
        all += (double)vhsum(s);
    }
    return all;
}

static double lse(const float *x, int64_t n, float max)
{
    double all = 0;
    for (int64_t b = 0; b < n; b += CPU_SUM_BLOCK) {
        int64_t end = b + CPU_SUM_BLOCK < n ? b + CPU_SUM_BLOCK : n;
        struct vf s = vset1(0);
        for (int64_t i = b; i < end; i += VL) {
            int m = lanes(end - i);
            struct vf v = vexp(vsub(vloadn(x + i, m), vset1(max)));
            s = vadd(s, vkeep(v, 0, m, vset1(0)));
        }
        all += (double)vhsum(s);
    }
    return log(all) + (double)max;
}

/* Does a stand behind b? */
static bool worse(struct cpu_top a, struct cpu_top b)
{
    return a.x < b.x || (a.x == b.x && a.id > b.id);
}

/* Heap whose root is the worst of the kept ones. */
static void sift(struct cpu_top *h, int n, int i)
{
    struct cpu_top v = h[i];
    for (;;) {
        int c = 2 * i + 1;
        if (c >= n)
            break;
        if (c + 1 < n && worse(h[c + 1], h[c]))
            c++;
        if (!worse(h[c], v))
            break;
        h[i] = h[c];
        i = c;
    }
    h[i] = v;
}

static int top(const float *x, int64_t n, int k, struct cpu_top *h)
{
    int have = (int64_t)k < n ? k : (int)n;
    for (int i = 0; i < have; i++)
        h[i] = (struct cpu_top){x[i], i};
    for (int i = have / 2 - 1; i >= 0; i--)
        sift(h, have, i);
    /* Ids rise, so a value equal to the worst never displaces it: ties keep the lower id. */
    int64_t i = have;
    for (; i < n; i += VL) {
        int m = lanes(n - i);
        uint32_t b = vbits_gt(vloadn(x + i, m), vset1(h[0].x)) & ((1u << m) - 1);
        for (; b; b &= b - 1) {
            int64_t at = i + __builtin_ctz(b);
            if (x[at] > h[0].x) {
                h[0] = (struct cpu_top){x[at], (int32_t)at};
                sift(h, have, 0);
            }
        }
    }
    for (int end = have - 1; end > 0; end--) { /* heap sort: the worst goes last */
        struct cpu_top w = h[0];
        h[0] = h[end];
        h[end] = w;
        sift(h, end, 0);
    }
    return have;
}

static int64_t rank(const float *x, int64_t n, float v, int64_t at)
{
    int64_t above = 0;
    for (int64_t i = 0; i < n; i += VL) {
        int m = lanes(n - i);
        struct vf w = vloadn(x + i, m);
        uint32_t b = vbits_gt(w, vset1(v));
        if (i < at) {
            uint32_t before = at - i >= VL ? 0xffffu : (1u << (at - i)) - 1;
            b |= vbits_eq(w, vset1(v)) & before;
        }
        above += __builtin_popcount(b & ((1u << m) - 1));
    }
    return above;
}

static int64_t keep(const float *x, const int32_t *id, int64_t n, float least, struct cpu_kept out)
{
    int64_t have = 0;
    for (int64_t i = 0; i < n; i += VL) {
        int m = lanes(n - i);
        struct vf v = vloadn(x + i, m);
        uint32_t b = (vbits_gt(v, vset1(least)) | vbits_eq(v, vset1(least))) & ((1u << m) - 1);
        for (; b; b &= b - 1) { /* almost always empty */
            int64_t at = i + __builtin_ctz(b);
            float kept = x[at];
            out.id[have] = id ? id[at] : (int32_t)at;
            out.x[have++] = kept;
        }
    }
    return have;
}

#define TABLE_(isa)                                                                                \
    const struct cpu_sample_kern cpu_sample_##isa = {.max = row_max,                               \
                                                     .lse = lse,                                   \
                                                     .exp_sum = exp_sum,                           \
                                                     .sum = sum,                                   \
                                                     .top = top,                                   \
                                                     .rank = rank,                                 \
                                                     .keep = keep}
#define TABLE(isa) TABLE_(isa)
TABLE(CPU_ISA);
