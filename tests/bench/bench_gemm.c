/* Speed of matrix products with cold weights, on the CPU tables.
 *
 *     bench_gemm [--cold MB] [ISA|all [PRECISION [FORMAT|all [THREADS [M...]]]]]
 *
 * ISA: avx2, avx512, amx, ...; PRECISION: default, f32, int8. For each format and number of rows M: the median time of a
 * product with one of many equal matrices of 2048 x 1024, together of MB megabytes (96: more than the second-level caches; a
 * shared cache may be larger than that, so take 1024 to see what memory gives), GB/s of packed bytes and GFLOP/s. Weights are made of bytes whose halves are ordinary numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/cpu/dispatch.h"
#include "engine/cpu/gemm.h"
#include "engine/quant/quant.h"

#define N_OUT    2048
#define N_IN     1024
#define COLD_MB  96
#define M_MAX    512
#define RUNS_MAX 4096

static const enum quant_fmt formats[] = {QF_Q4_0, QF_Q4_1, QF_Q5_0, QF_Q8_0,
                                         QF_Q4_K, QF_Q5_K, QF_Q6_K, QF_BF16};

struct bench {
    const struct cpu_isa *isa;
    enum eng_precision precision;
    const char *format;
    struct cpu_pool *pool;
    int n_m, n_thread;
    size_t cold; /* bytes of all matrices */
    int64_t m[16];
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of at least five products, and of as many as fit into 0.15 s. */
static double median_us(const struct bench *b, struct cpu_packed *const *w, int n, int64_t m,
                        const float *x, float *y, void *scratch)
{
    static double us[RUNS_MAX];
    static int at;
    const double until = now_us() + 150e3;
    int runs = 0;
    for (; runs < RUNS_MAX && (runs < 5 || now_us() < until); runs++) {
        const struct cpu_gemm_args a = {.w = w[at++ % n],
                                        .x = x,
                                        .ldx = N_IN,
                                        .y = y,
                                        .ldy = N_OUT,
                                        .m = m,
                                        .scratch = scratch};
        const double from = now_us();
        cpu_gemm(b->pool, &a);
        us[runs] = now_us() - from;
    }
    qsort(us, (size_t)runs, sizeof *us, by_value);
    return us[runs / 2];
}

static void format_bench(const struct bench *b, const struct quant_format *f)
{
    size_t row_bytes = 0;
    quant_row_bytes(f, N_IN, &row_bytes);
    uint8_t *data = xmalloc(row_bytes * N_OUT);
    for (size_t i = 0; i < row_bytes * N_OUT; i++)
        data[i] = (uint8_t)(0x20 + (i * 2654435761u >> 13) % 28);
    const struct weight_desc d = {
        .name = f->name, .n_in = N_IN, .n_part = 1, .part = {{f->id, data, N_OUT}}};
    const size_t bytes = cpu_packed_bytes(&d, b->precision);
    const int n = (int)(b->cold / bytes) + 1;
    struct cpu_packed **w = xcalloc((size_t)n, sizeof(struct cpu_packed *));
    struct cpu_slab *slab = NULL;
    double from = now_us();
    for (int i = 0; i < n; i++)
        if (cpu_packed_open_in(&w[i], b->isa->gemm, b->precision, &d, b->pool, &slab, NULL))
            exit(1);
    printf("%-7s %-5s pack %4.2f GB/s |", b->isa->name, f->name,
           (double)bytes * n / (now_us() - from) * 1e-3);
    float *x = xmalloc(M_MAX * N_IN * sizeof *x), *y = xmalloc(M_MAX * N_OUT * sizeof *y);
    for (int i = 0; i < M_MAX * N_IN; i++)
        x[i] = (float)(i % 37 - 18) * 0.05f;
    void *scratch = mem_aligned(64, cpu_gemm_scratch(b->isa->gemm, M_MAX, N_IN, b->n_thread));
    for (int i = 0; i < b->n_m; i++) {
        const double us = median_us(b, w, n, b->m[i], x, y, scratch);
        printf(" m%lld %.1f us", (long long)b->m[i], us);
        if (b->m[i] <= 16)
            printf(" %.1f GB/s", (double)bytes / us * 1e-3);
        if (b->m[i] >= 4)
            printf(" %.0f GF", 2e-3 * (double)(b->m[i] * N_OUT * N_IN) / us);
        printf(" |");
    }
    printf("\n");
    for (int i = 0; i < n; i++)
        cpu_packed_close(w[i]);
    cpu_slab_free(&slab);
    free(w);
    free(x);
    free(y);
    free(scratch);
    free(data);
}

int main(int argc, char **argv)
{
    size_t cold_mb = COLD_MB;
    if (argc > 2 && !strcmp(argv[1], "--cold")) {
        cold_mb = strtoul(argv[2], NULL, 10);
        argc -= 2;
        argv += 2;
    }
    if (cold_mb < 1 || cold_mb > 1 << 16)
        return 2;
    const char *isa = argc > 1 ? argv[1] : "all", *precision = argc > 2 ? argv[2] : "default";
    struct bench b = {.format = argc > 3 ? argv[3] : "all",
                      .cold = cold_mb << 20,
                      .n_thread = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 2};
    b.precision = !strcmp(precision, "int8")  ? PRECISION_INT8
                  : !strcmp(precision, "f32") ? PRECISION_F32
                                              : PRECISION_DEFAULT;
    for (int i = 5; i < argc && b.n_m < 16; i++) {
        b.m[b.n_m] = strtol(argv[i], NULL, 10);
        if (b.m[b.n_m] < 1 || b.m[b.n_m++] > M_MAX)
            return 2;
    }
    for (int64_t m = 1; !b.n_m || (argc <= 5 && m <= 256); m *= 4)
        b.m[b.n_m++] = m;
    if (cpu_pool_open(&b.pool, b.n_thread, true, NULL))
        return 1;
    for (int i = 0; i < CPU_N_ISA; i++) {
        b.isa = &cpu_isas[i];
        if (!cpu_isa_usable(i) || (strcmp(isa, "all") && strcmp(isa, b.isa->name)))
            continue;
        for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
            const struct quant_format *q = quant_format_get((uint32_t)formats[f]);
            if (!strcmp(b.format, "all") || !strcmp(b.format, q->name))
                format_bench(&b, q);
        }
    }
    cpu_pool_close(b.pool);
    return 0;
}
