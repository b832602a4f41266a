/* GEMM family: every table that this host can execute x every format x odd shapes, against the reference
 * decoder with double accumulation; bit equality over rows, threads and position; guard bytes. int8:
 * against the same sums of the rounded values, and alike in all tables that have FMA (AMX: in fixed point). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/cpu/gemm_impl.h"

static const enum quant_fmt formats[] = {
    QF_F32,   QF_F16,     QF_BF16,   QF_Q4_0,  QF_Q4_1,    QF_Q5_0,   QF_Q5_1,  QF_Q8_0,   QF_Q2_K,
    QF_Q3_K,  QF_Q4_K,    QF_Q5_K,   QF_Q6_K,  QF_IQ4_NL,  QF_IQ4_XS, QF_I8_32, QF_I8M_32, QF_I4_32,
    QF_F8_32, QF_F4_16,   QF_NF4_32, QF_B4_32, QF_MXFP4,   QF_NVFP4,  QF_IQ1_M, QF_TQ1_0,  QF_TQ2_0,
    QF_IQ1_S, QF_IQ2_XXS, QF_IQ2_XS, QF_IQ2_S, QF_IQ3_XXS, QF_IQ3_S,  QF_Q8_1,  QF_Q8_K,   QF_Q1_0,
};
#define N_ALIKE  9 /* the last ones: of the same panels as others, a few shapes will do */
#define N_FORMAT ((int)(sizeof formats / sizeof formats[0]))

static struct {
    const char *name;
    const struct cpu_gemm_kern *k;
    bool amx; /* both factors in fixed point, or in bf16 */
} tables[6];
static int n_table;

/* The AVX2 and AVX512 tables on processors that have no VNNI: they differ in the int8 kernels only. */
static struct cpu_gemm_kern no_vnni[2];
static struct gemm_int8_kern no_vnni_int8[2];

static bool have_amx(void)
{
#if defined(__x86_64__)
    /* 0x1023: ARCH_REQ_XCOMP_PERM for the tile data (component 18). */
    return __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
    return false;
#endif
}

static void add_table(const char *name, const struct cpu_gemm_kern *k, bool amx)
{
    tables[n_table].name = name;
    tables[n_table].k = k;
    tables[n_table++].amx = amx;
}

static void add_no_vnni(int i, const char *name, const struct cpu_gemm_kern *k)
{
    no_vnni[i] = *k;
    no_vnni_int8[i] = *k->int8;
    memset(no_vnni_int8[i].vnni, 0, sizeof no_vnni_int8[i].vnni);
    no_vnni[i].int8 = &no_vnni_int8[i];
    add_table(name, &no_vnni[i], false);
}

static void find_tables(void)
{
    add_table("scalar", &cpu_gemm_scalar, false);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        add_table("avx2", &cpu_gemm_avx2, false);
        add_no_vnni(0, "avx2-no-vnni", &cpu_gemm_avx2);
    }
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        add_table("avx512", &cpu_gemm_avx512, false);
        add_no_vnni(1, "avx512-no-vnni", &cpu_gemm_avx512);
    }
#endif
    if (have_amx())
        add_table("amx", &cpu_gemm_amx, true);
}

/* ---- data ---- */

static uint64_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 32);
}
/* About normal, variance 1. */
static float rng_normal(void)
{
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += (float)(rng() >> 8) * 0x1p-24f;
    return s - 6;
}

/* Where a format's blocks hold halves; -1: none. */
static void half_at(enum quant_fmt f, int at[2])
{
    at[0] = at[1] = -1;
    switch (f) {
    case QF_Q4_1:
    case QF_Q5_1:
    case QF_Q4_K:
    case QF_Q5_K:
        at[0] = 0, at[1] = 2;
        break;
    case QF_Q2_K:
        at[0] = 80, at[1] = 82;
        break;
    case QF_Q3_K:
        at[0] = 108;
        break;
    case QF_Q6_K:
        at[0] = 208;
        break;
    case QF_TQ1_0:
        at[0] = 52;
        break;
    case QF_TQ2_0:
        at[0] = 64;
        break;
    default:
        at[0] = 0;
    }
}

/* Scales that are no halves at one place. */
static void scales_set(const struct quant_format *f, uint8_t *w, size_t n)
{
    for (size_t b = 0; b < n; b += (size_t)f->block_bytes) {
        float d = 0.001f * rng_normal(), m = 0.01f * rng_normal();
        if (f->id == QF_MXFP4) {
            w[b] = (uint8_t)(117 + rng() % 4);
        } else if (f->id == QF_IQ1_M) { /* the half 0x1?.. in the top bits of four */
            uint16_t h = f32_to_f16(0.001f);
            for (int i = 0; i < 4; i++)
                w[b + 49 + 2 * (size_t)i] =
                    (uint8_t)((w[b + 49 + 2 * (size_t)i] & 15) | (h >> 4 * i & 15) << 4);
        } else if (f->id == QF_NVFP4) {
            for (int i = 0; i < 4; i++) /* 1/2 to 2 */
                w[b + (size_t)i] = (uint8_t)(0x30 + rng() % 16);
        } else {
            memcpy(w + b, &d, 4);
            if (f->id == QF_I8M_32 || f->id == QF_I4_32)
                memcpy(w + b + 4, &m, 4);
        }
    }
}

/* n_out rows of random blocks; every bit of the quantised values is used. */
static uint8_t *random_weight(enum quant_fmt fmt, int64_t n_out, int64_t n_in, size_t *row_bytes)
{
    const struct quant_format *f = quant_format_get((uint32_t)fmt);
    assert_non_null(f);
    assert_true(quant_row_bytes(f, n_in, row_bytes));
    size_t n = (size_t)n_out * *row_bytes;
    uint8_t *w = xmalloc(n);
    if (f->block_len == 1) {
        for (int64_t i = 0; i < n_out * n_in; i++) {
            float v = rng_normal() * 0.05f;
            uint16_t h = fmt == QF_F16 ? f32_to_f16(v) : f32_to_bf16(v);
            memcpy(w + i * f->block_bytes, fmt == QF_F32 ? (void *)&v : &h, (size_t)f->block_bytes);
        }
        return w;
    }
    for (size_t i = 0; i < n; i++) {
        w[i] = (uint8_t)rng();
        if (fmt == QF_F8_32 && (w[i] & 127) == 127)
            w[i] ^= 1; /* no NaN */
    }
    if (fmt >= QF_I8_32 || fmt == QF_Q8_K || fmt == QF_MXFP4 || fmt == QF_NVFP4 ||
        fmt == QF_IQ1_M) {
        scales_set(f, w, n);
        return w;
    }
    int at[2];
    half_at(fmt, at);
    for (size_t b = 0; b < n; b += (size_t)f->block_bytes)
        for (int i = 0; i < 2; i++)
            if (at[i] >= 0) {
                uint16_t h = f32_to_f16((i ? 0.01f : 0.001f) * rng_normal());
                memcpy(w + b + at[i], &h, 2);
            }
    return w;
}

#define GUARD 64
/* Floats with painted guards on both sides. */
static float *guarded(size_t n)
{
    float *p = xmalloc((n + 2 * GUARD) * sizeof *p);
    memset(p, 0x5a, (n + 2 * GUARD) * sizeof *p);
    return p + GUARD;
}
static void guard_check(float *p, size_t n)
{
    const uint8_t *a = (const uint8_t *)(p - GUARD), *b = (const uint8_t *)(p + n);
    for (size_t i = 0; i < GUARD * sizeof *p; i++) {
        assert_int_equal(a[i], 0x5a);
        assert_int_equal(b[i], 0x5a);
    }
    free(p - GUARD);
}

struct problem {
    struct weight_desc desc;
    int64_t m, ldx, ldy, n_out;
    float *x, *bias;
    float *x8;            /* x as 8-bit activations have it */
    double *want, *want8; /* [m, n_out] */
    double power; /* sum of all (w x)^2: unlike the result's square, no sum of few can cancel */
};

/* x in blocks of 32, rounded to multiples of the largest / 2032. */
static float *rounded(const struct problem *p)
{
    float *q = xcalloc((size_t)(p->m * p->ldx + 1), sizeof *q);
    for (int64_t r = 0; r < p->m; r++)
        for (int64_t k = 0; k < p->desc.n_in; k += 32) {
            const float *x = p->x + r * p->ldx + k;
            float top = 0;
            for (int i = 0; i < 32; i++)
                top = fmaxf(top, fabsf(x[i]));
            for (int i = 0; i < 32 && top > 0; i++)
                q[r * p->ldx + k + i] = nearbyintf(x[i] * (2032 / top)) * (top / 2032);
        }
    return q;
}

static void problem_make(struct problem *p, int n_part, const enum quant_fmt *fmt,
                         const int64_t *n_out, int64_t n_in, int64_t m, bool bias)
{
    *p = (struct problem){.m = m, .ldx = n_in + 5};
    p->desc = (struct weight_desc){.name = "blk.0.test", .n_in = n_in, .n_part = n_part};
    float *row = xmalloc((size_t)n_in * sizeof *row);
    p->x = xmalloc((size_t)(m * p->ldx + 1) * sizeof *p->x);
    for (int64_t i = 0; i < m * p->ldx; i++)
        p->x[i] = rng_normal() * (i % 37 ? 1.0f : 8.0f) + 0.1f;
    for (int i = 0; i < n_part; i++)
        p->n_out += n_out[i];
    p->ldy = p->n_out + 3;
    p->want = xcalloc((size_t)(m * p->n_out + 1), sizeof *p->want);
    p->want8 = xcalloc((size_t)(m * p->n_out + 1), sizeof *p->want);
    p->x8 = rounded(p);
    p->bias = bias ? xmalloc((size_t)p->n_out * sizeof *p->bias) : NULL;
    int64_t col = 0;
    for (int i = 0; i < n_part; i++) {
        size_t bytes;
        const bool dense = !cpu_gemm_scalar.int8->fn[gemm__layout(fmt[i])];
        p->desc.part[i] =
            (struct weight_part){fmt[i], random_weight(fmt[i], n_out[i], n_in, &bytes), n_out[i]};
        for (int64_t n = 0; n < n_out[i]; n++, col++) {
            cpu_weight_row(&p->desc, col, row);
            if (bias)
                p->bias[col] = rng_normal();
            for (int64_t r = 0; r < m; r++) {
                const float *x8 = (dense ? p->x : p->x8) + r * p->ldx;
                double s = bias ? (double)p->bias[col] : 0, s8 = s;
                for (int64_t k = 0; k < n_in; k++) {
                    double wx = (double)row[k] * (double)p->x[r * p->ldx + k];
                    s += wx;
                    s8 += (double)row[k] * (double)x8[k];
                    p->power += wx * wx;
                }
                p->want[r * p->n_out + col] = s;
                p->want8[r * p->n_out + col] = s8;
            }
        }
    }
    free(row);
}

static void problem_free(struct problem *p)
{
    for (int i = 0; i < p->desc.n_part; i++)
        free((void *)(uintptr_t)p->desc.part[i].data);
    free(p->x);
    free(p->bias);
    free(p->x8);
    free(p->want);
    free(p->want8);
}

/* y [m, n_out] of rows row.. of the problem, packed rows without padding; caller frees. */
static float *product(struct cpu_pool *pool, const struct cpu_gemm_kern *k,
                      const struct cpu_packed *w, const struct problem *p, int64_t row, int64_t m)
{
    size_t bytes = cpu_gemm_scratch(k, m, p->desc.n_in, cpu_pool_threads(pool));
    uint8_t *scratch = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(scratch);
    memset(scratch, 0xff, (bytes + 127) / 64 * 64); /* NaN: nothing stale may be used */
    size_t n = (size_t)(m * p->ldy);
    float *y = guarded(n), *out = xmalloc((size_t)(m * p->n_out + 1) * sizeof *out);
    cpu_gemm(pool, &(struct cpu_gemm_args){.w = w,
                                           .x = p->x + row * p->ldx,
                                           .ldx = p->ldx,
                                           .y = y,
                                           .ldy = p->ldy,
                                           .m = m,
                                           .bias = p->bias,
                                           .scratch = scratch});
    for (int64_t r = 0; r < m; r++) {
        memcpy(out + r * p->n_out, y + r * p->ldy, (size_t)p->n_out * sizeof *out);
        for (int64_t i = p->n_out; i < p->ldy; i++) { /* between the rows */
            uint32_t u;
            memcpy(&u, &y[r * p->ldy + i], 4);
            assert_int_equal(u, 0x5a5a5a5a);
        }
    }
    assert_int_equal(scratch[bytes], 0xff);
    guard_check(y, n);
    free(scratch);
    return out;
}

static double nmse(const struct problem *p, const float *y, const double *want)
{
    double e = 0;
    for (int64_t i = 0; i < p->m * p->n_out; i++)
        e += (y[i] - want[i]) * (y[i] - want[i]);
    return p->power > 0 ? e / p->power : e;
}

/* One table, precision and problem: error bound, and the same bits for single rows and other splits.
 * Returns the result. */
static float *check(int t, enum eng_precision prec, const struct problem *p,
                    struct cpu_pool **pools, int n_pool)
{
    struct cpu_packed *w = NULL;
    struct err e = {0};
    if (cpu_packed_open(&w, tables[t].k, prec, &p->desc, pools[n_pool - 1], &e))
        fail_msg("%s", e.text);
    assert_int_equal(cpu_packed_n_out(w), p->n_out);
    assert_int_equal(cpu_packed_n_in(w), p->desc.n_in);
    float *y = product(pools[0], tables[t].k, w, p, 0, p->m);
    const bool fixed = prec != PRECISION_F32 && tables[t].amx;
    double err = nmse(p, y, fixed || prec == PRECISION_F32 ? p->want : p->want8);
    double bound = 1e-11;
    for (int i = 0; i < p->desc.n_part; i++) { /* where codes fill their bits; bf16 and others */
        const bool bf16 = prec != PRECISION_F32 && p->desc.part[i].fmt == QF_BF16;
        if (fixed || (bf16 && gemm__bf16(tables[t].k)))
            bound = fmax(bound, p->desc.part[i].fmt <= QF_Q6_K ? 2e-6 : 1e-5);
    }
    if (!(err <= bound))
        fail_msg("%s: precision %d, format %d, m %lld, n_in %lld: NMSE %.3g over %.3g",
                 tables[t].name, (int)prec, (int)p->desc.part[0].fmt, (long long)p->m,
                 (long long)p->desc.n_in, err, bound);
    for (int i = 1; i < n_pool; i++) {
        float *z = product(pools[i], tables[t].k, w, p, 0, p->m);
        assert_memory_equal(y, z, (size_t)(p->m * p->n_out) * sizeof *y);
        free(z);
    }
    static const int64_t some[] = {1, 2, 3, 7, 16, 17};
    for (int64_t row = 0, i = 0; row < p->m; i++) { /* other blocks of rows, at other positions */
        int64_t m = some[i % 6] < p->m - row ? some[i % 6] : p->m - row;
        float *z = product(pools[0], tables[t].k, w, p, row, m);
        assert_memory_equal(y + row * p->n_out, z, (size_t)(m * p->n_out) * sizeof *y);
        free(z);
        row += m;
    }
    cpu_packed_close(w);
    return y;
}

static struct cpu_pool *pools[3];

static void check_all(const struct problem *p, int n_pool)
{
    /* int8, of the first table that has FMA: tables[0] has not; tiles differ, and bf16 may */
    float *first = NULL;
    for (int t = 0; t < n_table; t++) {
        if (tables[t].k != &no_vnni[0] && tables[t].k != &no_vnni[1]) {
            free(check(t, PRECISION_DEFAULT, p, pools, n_pool));
            free(check(t, PRECISION_F32, p, pools, n_pool));
        }
        float *y = check(t, PRECISION_INT8, p, pools, n_pool);
        const bool bf16 = p->desc.part[0].fmt == QF_BF16 && gemm__bf16(tables[t].k);
        if (first && !tables[t].amx && !bf16)
            assert_memory_equal(first, y, (size_t)(p->m * p->n_out) * sizeof *y);
        if (t == 0 || first)
            free(y);
        else
            first = y;
    }
    free(first);
}

static void test_formats(void **st)
{
    (void)st;
    static const int64_t ms[] = {1, 2, 3, 7, 16, 33, 64, 129};
    for (int f = 0; f < N_FORMAT; f++) {
        const int block = quant_format_get((uint32_t)formats[f])->block_len;
        for (size_t i = f < N_FORMAT - N_ALIKE ? 0 : 4; i < sizeof ms / sizeof ms[0]; i++) {
            int64_t n_out = (int64_t[]){1, 16, 37, 50, 23, 31, 64, 17}[i];
            int64_t n_in = block > 32 ? 256 * (1 + (int64_t)i % 3)
                                      : (int64_t[]){32, 64, 96, 320, 576, 256, 288, 352}[i];
            struct problem p;
            problem_make(&p, 1, &formats[f], &n_out, n_in, ms[i], i & 1);
            check_all(&p, 3);
            problem_free(&p);
        }
    }
}

/* Parts of other formats side by side, as in q, k, v; more rows than one task takes. */
static void test_parts(void **st)
{
    (void)st;
    struct problem p;
    problem_make(&p, 3, (enum quant_fmt[]){QF_Q4_K, QF_Q2_K, QF_Q8_0}, (int64_t[]){48, 19, 33}, 512,
                 300, true);
    check_all(&p, 3);
    problem_free(&p);
    problem_make(&p, 3, (enum quant_fmt[]){QF_Q4_1, QF_F32, QF_BF16}, (int64_t[]){576, 192, 191},
                 576, 5, false);
    check_all(&p, 2);
    problem_free(&p);
    problem_make(&p, 2, (enum quant_fmt[]){QF_BF16, QF_BF16}, (int64_t[]){37, 80}, 320, 39, true);
    check_all(&p, 3);
    problem_free(&p);
}

/* Rows as long as workers' buffers and sums of integers must hold, and longer ones. */
static void test_long(void **st)
{
    (void)st;
    struct problem p;
    problem_make(&p, 1, (enum quant_fmt[]){QF_Q4_1}, (int64_t[]){35}, 13696, 17, true);
    check_all(&p, 3);
    problem_free(&p);
    static const int64_t n_in[] = {1 << 16, (1 << 16) + 32};
    for (int i = 0; i < 2; i++) { /* all at the ends of their ranges */
        problem_make(&p, 1, (enum quant_fmt[]){QF_Q8_0}, (int64_t[]){3}, n_in[i], 18, false);
        for (int64_t k = 0; k < p.m * p.ldx; k++)
            p.x[k] = k / p.ldx % 2 ? 1 : -1;
        for (int64_t b = 0; b < 3 * n_in[i] / 32; b++) {
            uint8_t *w = (uint8_t *)(uintptr_t)p.desc.part[0].data + b * 34;
            memcpy(w, (uint8_t[]){0, 0x3c}, 2); /* a scale of 1 */
            memset(w + 2, b < n_in[i] / 32 ? 0x7f : 0x81, 32);
        }
        for (int t = 0; t < n_table; t++) {
            struct cpu_packed *w = NULL;
            assert_int_equal(
                cpu_packed_open(&w, tables[t].k, PRECISION_DEFAULT, &p.desc, pools[0], NULL), 0);
            for (int64_t m = 1; m <= p.m; m += m < 2 ? 1 : 16) {
                float *y = product(pools[0], tables[t].k, w, &p, 0, m);
                for (int64_t r = 0; r < m; r++)
                    for (int n = 0; n < 3; n++) {
                        const double want =
                            127.0 * (double)n_in[i] * ((r % 2) ? 1 : -1) * (n ? -1 : 1);
                        assert_true(fabs(y[r * 3 + n] - want) < 1e-4 * fabs(want));
                    }
                free(y);
            }
            cpu_packed_close(w);
        }
        problem_free(&p);
    }
}

static void test_empty(void **st)
{
    (void)st;
    struct problem p;
    problem_make(&p, 1, (enum quant_fmt[]){QF_Q4_1}, (int64_t[]){16}, 64, 0, false);
    check_all(&p, 1);
    problem_free(&p);
}

static void test_errors(void **st)
{
    (void)st;
    uint8_t data[4096] = {0};
    struct weight_desc d = {.name = "blk.7.ffn", .n_in = 64, .n_part = 1};
    d.part[0] = (struct weight_part){QF_Q4_1, data, 16};
    struct cpu_packed *w = NULL;
    struct err e = {0};
    const struct cpu_gemm_kern *k = &cpu_gemm_scalar;
    assert_true(cpu_packed_bytes(&d, PRECISION_DEFAULT) >= 16 * 40);
    d.n_in = 48;
    assert_int_equal(cpu_packed_open(&w, k, PRECISION_DEFAULT, &d, pools[0], &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "blk.7.ffn"));
    assert_int_equal(cpu_packed_bytes(&d, PRECISION_DEFAULT), 0);
    d.n_in = 64;
    d.part[0].fmt = QF_Q4_K;
    assert_int_equal(cpu_packed_open(&w, k, PRECISION_DEFAULT, &d, pools[0], &e), ERR_INVAL);
    d.part[0].fmt = (enum quant_fmt)99;
    assert_int_equal(cpu_packed_open(&w, k, PRECISION_DEFAULT, &d, pools[0], &e), ERR_UNSUPPORTED);
    d.part[0].fmt = QF_Q4_1;
    d.part[0].n_out = 0;
    assert_int_equal(cpu_packed_open(&w, k, PRECISION_DEFAULT, &d, pools[0], &e), ERR_INVAL);
    d.part[0].n_out = 16;
    d.n_part = 4;
    assert_int_equal(cpu_packed_open(&w, k, PRECISION_DEFAULT, &d, pools[0], &e), ERR_INVAL);
    d.n_part = 1;
    for (int i = 1; i <= 2; i++) {
        mem_fail_after(i, true);
        assert_int_equal(cpu_packed_open(&w, k, PRECISION_DEFAULT, &d, pools[0], &e), ERR_NOMEM);
        mem_fail_after(0, false);
    }
    assert_null(w);
    cpu_packed_close(NULL);
}

/* Activations that integers have no scale for: nothing, next to nothing, Inf, NaN. A row of them does not disturb its
 * neighbours. */
static void test_int8_special(void **st)
{
    (void)st;
    enum { N = 64, M = 20 };
    struct problem p;
    problem_make(&p, 1, (enum quant_fmt[]){QF_Q4_1}, (int64_t[]){N}, 64, M, false);
    static const int rows[] = {0, 5, 17, 19};
    static const float fill[] = {0, 1e-40f, INFINITY, NAN};
    for (int t = 0; t < n_table; t++) {
        struct cpu_packed *w = NULL;
        assert_int_equal(cpu_packed_open(&w, tables[t].k, PRECISION_INT8, &p.desc, pools[0], NULL),
                         0);
        float *clean = product(pools[0], tables[t].k, w, &p, 0, M), *saved = xmalloc(M * 256);
        for (int i = 0; i < 4; i++) {
            float *x = p.x + rows[i] * p.ldx;
            memcpy(saved + i * 64, x, 256);
            for (int k = 0; k < 64; k++)
                x[k] = i < 2 || k == 40 ? fill[i] : x[k];
        }
        float *y = product(pools[0], tables[t].k, w, &p, 0, M);
        for (int r = 0, i = 0; r < M; r++) {
            const float *a = y + (size_t)r * N;
            if (r != rows[i]) {
                assert_memory_equal(a, clean + (size_t)r * N, N * sizeof *a);
                continue;
            }
            for (int n = 0; n < N; n++)
                assert_true(i < 2 ? a[n] == 0 : tables[t].amx ? !isfinite(a[n]) : isnan(a[n]));
            memcpy(p.x + r * p.ldx, saved + i * 64, 256);
            i += i < 3;
        }
        free(saved);
        free(clean);
        free(y);
        cpu_packed_close(w);
    }
    problem_free(&p);
}

/* Sums about the least normal number: however rows are multiplied, the same of them count as nothing. */
static void test_tiny(void **st)
{
    (void)st;
    static const enum quant_fmt fmt[] = {QF_Q4_0, QF_Q5_0, QF_Q6_K, QF_Q8_0, QF_F8_32};
    for (int f = 0; f < 5; f++) {
        struct problem p;
        problem_make(&p, 1, &fmt[f], (int64_t[]){40}, 512, 20, false);
        for (int64_t i = 0; i < p.m * p.ldx; i++)
            p.x[i] *= i % 3 ? 1e-37f : 3e-39f;
        for (int t = 0; t < 2 * n_table; t++) {
            const struct cpu_gemm_kern *const k = tables[t / 2].k;
            const enum eng_precision prec = t % 2 ? PRECISION_INT8 : PRECISION_DEFAULT;
            struct cpu_packed *w = NULL;
            assert_int_equal(cpu_packed_open(&w, k, prec, &p.desc, pools[0], NULL), 0);
            float *all = product(pools[0], k, w, &p, 0, p.m);
            for (int64_t m = 1, row = 0; row + m <= p.m; row += m++) {
                float *y = product(pools[0], k, w, &p, row, m);
                assert_memory_equal(y, all + row * p.n_out, (size_t)(m * p.n_out) * sizeof *y);
                free(y);
            }
            free(all);
            cpu_packed_close(w);
        }
        problem_free(&p);
    }
}

/* No allocation in a product. */
static void test_no_alloc(void **st)
{
    (void)st;
    struct problem p;
    struct cpu_packed *w = NULL;
    problem_make(&p, 1, (enum quant_fmt[]){QF_Q4_1}, (int64_t[]){64}, 64, 40, false);
    assert_int_equal(
        cpu_packed_open(&w, &cpu_gemm_scalar, PRECISION_DEFAULT, &p.desc, pools[1], NULL), 0);
    void *scratch = mem_aligned(64, cpu_gemm_scratch(&cpu_gemm_scalar, 40, 64, 2));
    float *y = xmalloc((size_t)(40 * p.ldy) * sizeof *y);
    uint64_t before = mem_count();
    cpu_gemm(
        pools[1],
        &(struct cpu_gemm_args){
            .w = w, .x = p.x, .ldx = p.ldx, .y = y, .ldy = p.ldy, .m = 40, .scratch = scratch});
    assert_int_equal(mem_count(), before);
    free(y);
    free(scratch);
    cpu_packed_close(w);
    problem_free(&p);
}

static int teardown(void **st)
{
    (void)st;
    for (int i = 0; i < 3; i++)
        cpu_pool_close(pools[i]);
    return 0;
}

int main(void)
{
    rng_state = 42;
    find_tables();
    for (int i = 0; i < 3; i++)
        if (cpu_pool_open(&pools[i], i + 1, false, NULL))
            return 1;
    printf("tables:");
    for (int t = 0; t < n_table; t++)
        printf(" %s", tables[t].name);
    printf("\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),      cmocka_unit_test(test_parts),
        cmocka_unit_test(test_long),         cmocka_unit_test(test_empty),
        cmocka_unit_test(test_errors),       cmocka_unit_test(test_no_alloc),
        cmocka_unit_test(test_int8_special), cmocka_unit_test(test_tiny),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
