/* Speed of paged attention by itself, on the CPU.
 *
 *     bench_attn [--isa ISA] [--threads N] [--precision default|f32] [--kv f32|f16|bf16] [--window N]
 *                HEADS KV_HEADS HEAD_DIM CONTEXT ROWS...
 *
 * For each ROWS, the last that many tokens of a sequence of CONTEXT attend to all before them (1: a decode step). One
 * line: microseconds, multiply-adds of visible tokens as GFLOP/s, bytes of K and V as GB/s. The best of several turns. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/backend.h"

static struct {
    const char *isa, *kv;
    int threads, window, n[4], n_num, rows[16], n_rows;
    enum eng_precision precision;
} opt = {.kv = "f16", .threads = 1};

static struct dev *dev;
static const struct backend *const back = &cpu_backend;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static struct tensor new_tensor(int64_t rows, int64_t cols)
{
    size_t n = (size_t)(rows * cols);
    float *x = malloc(n * sizeof *x);
    dev_buf b = 0;
    uint32_t seed = 1;
    if (!x || back->buf_alloc(dev, n * sizeof *x, &b))
        abort();
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-30f;
    }
    back->write(dev, b, 0, x, n * sizeof *x);
    free(x);
    return tensor_2d(DT_F32, b, 0, rows, cols);
}

static int step(struct dev_kv *kv, struct tensor qkv, struct tensor dst, bool fill)
{
    if (fill)
        return back->rope_kv(dev, &(struct op_rope_kv){.qkv = qkv,
                                                       .n_head = opt.n[0],
                                                       .n_kv_head = opt.n[1],
                                                       .head_dim = opt.n[2],
                                                       .style = ROPE_NONE,
                                                       .attn_factor = 1,
                                                       .kv = kv});
    return back->attn(dev, &(struct op_attn){.dst = dst,
                                             .qkv = qkv,
                                             .n_head = opt.n[0],
                                             .n_kv_head = opt.n[1],
                                             .head_dim = opt.n[2],
                                             .scale = 0.1f,
                                             .window = opt.window,
                                             .kv = kv});
}

/* Rows at positions [from, from + n). */
static int run(struct dev_kv *kv, const struct step_meta *m, bool fill)
{
    struct tensor qkv = new_tensor(m->n_row, (int64_t)(opt.n[0] + 2 * opt.n[1]) * opt.n[2]);
    struct tensor dst = new_tensor(m->n_row, (int64_t)opt.n[0] * opt.n[2]);
    int rc = back->step_begin(dev, m);
    double best = 1e30, start = now_us();
    for (int i = 0; !rc && i < 200 && (i < 3 || now_us() - start < 3e5); i++) {
        double t = now_us();
        rc = step(kv, qkv, dst, fill);
        t = now_us() - t;
        best = t < best ? t : best;
    }
    double seen = 0, keys = 0;
    for (int i = 0; i < m->n_row; i++) {
        double n = m->pos[i] + 1;
        n = opt.window > 0 && n > opt.window ? opt.window : n;
        seen += n;
        keys = n > keys ? n : keys;
    }
    double es = opt.kv[0] == 'f' && opt.kv[1] == '3' ? 4 : 2;
    if (!rc && !fill)
        printf("%5d rows: %9.1f us %7.1f GFLOP/s %6.2f GB/s\n", m->n_row, best,
               4e-3 * seen * opt.n[0] * opt.n[2] / best,
               2e-3 * keys * opt.n[1] * opt.n[2] * es / best);
    back->buf_free(dev, qkv.buf);
    back->buf_free(dev, dst.buf);
    return rc;
}

static int bench(void)
{
    struct err e = {0};
    struct backend_opts o = {.n_threads = opt.threads, .isa = opt.isa, .precision = opt.precision};
    const int context = opt.n[3], n_block = (context + 15) / 16;
    struct kv_desc k = {.n_layer = 1,
                        .n_kv_head = opt.n[1],
                        .head_dim = opt.n[2],
                        .n_block = n_block + 1,
                        .dtype = strcmp(opt.kv, "f32") == 0    ? DT_F32
                                 : strcmp(opt.kv, "bf16") == 0 ? DT_BF16
                                                               : DT_F16};
    struct dev_kv *kv;
    if (back->open(&dev, &o, &e) || back->kv_open(dev, &kv, &k, &e)) {
        fprintf(stderr, "bench_attn: %s\n", e.text);
        return 1;
    }
    int32_t *pos = calloc((size_t)context, sizeof *pos),
            *tok = calloc((size_t)context, sizeof *tok);
    int32_t *table = calloc((size_t)n_block, sizeof *table), start[2] = {0, 0};
    if (!pos || !tok || !table)
        abort();
    for (int i = 0; i < n_block; i++)
        table[i] = n_block - i;
    for (int i = 0; i < context; i++)
        pos[i] = i;
    int rc = 0;
    for (int i = -1; !rc && i < opt.n_rows; i++) {
        int n = i < 0 ? context : opt.rows[i] < context ? opt.rows[i] : context;
        start[1] = n;
        struct step_meta m = {.n_row = n,
                              .n_seq = 1,
                              .tok = tok,
                              .pos = pos + context - n,
                              .seq_start = start,
                              .block_table = table,
                              .block_stride = n_block};
        rc = run(kv, &m, i < 0);
    }
    if (rc)
        fprintf(stderr, "bench_attn: an operation failed: %d\n", rc);
    free(pos);
    free(tok);
    free(table);
    back->kv_close(dev, kv);
    back->close(dev);
    return rc ? 1 : 0;
}

/* 0 when it is no number of use. */
static int number(const char *s)
{
    long v = strtol(s, NULL, 10);
    return v < 0 || v > 1 << 20 ? 0 : (int)v;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--isa"))
            opt.isa = next, i++;
        else if (!strcmp(argv[i], "--kv"))
            opt.kv = next, i++;
        else if (!strcmp(argv[i], "--threads"))
            opt.threads = number(next), i++;
        else if (!strcmp(argv[i], "--window"))
            opt.window = number(next), i++;
        else if (!strcmp(argv[i], "--precision"))
            opt.precision = strcmp(next, "f32") == 0 ? PRECISION_F32 : PRECISION_DEFAULT, i++;
        else if (opt.n_num < 4)
            opt.n[opt.n_num++] = number(argv[i]);
        else if (opt.n_rows < 16)
            opt.rows[opt.n_rows++] = number(argv[i]);
    }
    bool bad = opt.n_num < 4 || !opt.n_rows || opt.threads < 1;
    for (int i = 0; i < opt.n_num; i++)
        bad = bad || opt.n[i] < 1;
    for (int i = 0; i < opt.n_rows; i++)
        bad = bad || opt.rows[i] < 1;
    if (bad) {
        fprintf(stderr,
                "usage: bench_attn [--isa ISA] [--threads N] [--precision default|f32] "
                "[--kv f32|f16|bf16] [--window N] HEADS KV_HEADS HEAD_DIM CONTEXT ROWS...\n");
        return 2;
    }
    return bench();
}
