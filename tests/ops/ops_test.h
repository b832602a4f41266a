/* Shared by the op tests: every backend configuration that this host can run (ref, then each ISA table with
 * one thread, then the best with 2 and 4), seeded data, guard bytes around outputs, error measures. */
#ifndef TESTS_OPS_OPS_TEST_H
#define TESTS_OPS_OPS_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/cpu/dispatch.h"

#define OT_MAX   16
#define OT_GUARD 256 /* bytes of pattern before and behind an output */

struct ot_back {
    const struct backend *b;
    struct dev *d;
    const char *isa;
    int threads;
    char name[80];
};
static struct ot_back ot_backs[OT_MAX];
static int ot_n, ot_emu; /* ot_emu: index of the first emulated one; 0 = none */
static enum eng_precision ot_precision = PRECISION_F32; /* of what ot_add opens */
static bool ot_loose;

static inline void ot_add(const struct backend *b, const char *isa, int threads)
{
    struct ot_back *x = &ot_backs[ot_n++];
    struct err e = {0};
    struct backend_info info;
    struct backend_opts o = {
        .n_threads = threads, .isa = isa, .precision = ot_precision, .loose = ot_loose};
    x->b = b;
    x->isa = isa;
    x->threads = threads;
    if (b->open(&x->d, &o, &e)) {
        fprintf(stderr, "open %s: %s\n", b->name, e.text);
        abort();
    }
    b->info(x->d, &info);
    snprintf(x->name, sizeof x->name, "%s, %d threads", info.name, info.n_threads);
}

/* The kernels of cuda/ by emulation, in four orders of threads; the plug-in is built beside the tests. */
static inline void ot_add_emu(void)
{
    static const char *const order[] = {"/fwd", "/rev", "sm_80/1", "/2"};
    const struct backend *b;
    struct err e = {0};
    if (backend_find("cuda-emu", &b, &e)) {
        print_message("SKIP cuda-emu: %s\n", e.text);
        return;
    }
    for (int i = 0; i < 4; i++) {
        ot_add(b, order[i], 1);
        snprintf(ot_backs[ot_n - 1].name + strlen(ot_backs[ot_n - 1].name), 20, ", %s", order[i]);
    }
    ot_emu = ot_n - 4;
}

/* A real GPU, where the plug-in is built and finds one. */
static inline void ot_add_gpu(void)
{
    const struct backend *b;
    struct dev *d;
    struct err e = {0};
    const struct backend_opts o = {.precision = PRECISION_F32};
    if (backend_find("cuda", &b, &e) || b->open(&d, &o, &e)) {
        print_message("SKIP cuda: %s\n", e.text);
        return;
    }
    b->close(d);
    ot_add(b, NULL, 0);
}

/* Index 0 is ref, then cuda if there is a GPU, cuda-emu if it is built, the CPU tables with 1 thread, the best with 2 and 4. */
static inline int ot_open(void **st)
{
    (void)st;
    const char *best = "scalar";
    ot_add(&ref_backend, NULL, 0);
    ot_add_gpu();
    ot_add_emu();
    for (int i = 0; i < CPU_N_ISA; i++) {
        if (!cpu_isa_usable(i)) {
            print_message("SKIP isa %s: this processor can't run it\n", cpu_isas[i].name);
            continue;
        }
        best = cpu_isas[i].name;
        ot_add(&cpu_backend, best, 1);
    }
    ot_add(&cpu_backend, best, 2);
    ot_add(&cpu_backend, best, 4);
    return 0;
}

static inline int ot_close(void **st)
{
    (void)st;
    for (int i = 0; i < ot_n; i++)
        ot_backs[i].b->close(ot_backs[i].d);
    ot_n = 0;
    return 0;
}

/* xorshift; uniform in [-1, 1) */
static uint64_t ot_state = 88172645463325252u;
static inline uint64_t ot_next(void)
{
    ot_state ^= ot_state << 13;
    ot_state ^= ot_state >> 7;
    return ot_state ^= ot_state << 17;
}
static inline float ot_rand(void)
{
    return (float)(int32_t)(ot_next() >> 32) * 0x1p-31f;
}
static inline void ot_fill(float *p, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        p[i] = ot_rand() * scale;
}

/* Allocate and fill a buffer of n floats; guarded on both sides. The tensor's off is OT_GUARD. */
static inline struct tensor ot_tensor(const struct ot_back *x, int64_t rows, int64_t cols,
                                      const float *data)
{
    size_t n = (size_t)(rows * cols) * sizeof(float), all = n + 2 * OT_GUARD;
    char *raw = malloc(all);
    memset(raw, 0xA5, all);
    if (data)
        memcpy(raw + OT_GUARD, data, n);
    dev_buf b = 0;
    assert_int_equal(x->b->buf_alloc(x->d, all, &b), 0);
    assert_int_equal(x->b->write(x->d, b, 0, raw, all), 0);
    free(raw);
    return tensor_2d(DT_F32, b, OT_GUARD, rows, cols);
}

static inline bool ot_emulated(int b)
{
    return ot_emu && b >= ot_emu && b < ot_emu + 4;
}
/* The emulation is slow: of a long sweep each of its four orders runs every fourth item. */
static inline bool ot_leave_out(int b, size_t item)
{
    return ot_emulated(b) && item % 4 != (size_t)(b - ot_emu);
}

/* Issue and wait. */
static inline int ot_sample(const struct ot_back *x, const struct op_sample *a)
{
    int rc = x->b->sample(x->d, a);
    return rc ? rc : x->b->sample_wait(x->d);
}

/* Read back, check the guards, release. */
static inline void ot_take(const struct ot_back *x, struct tensor t, float *out)
{
    size_t n = (size_t)(t.shape[0] * t.stride[0]) * sizeof(float), all = n + 2 * OT_GUARD;
    unsigned char *raw = malloc(all);
    assert_int_equal(x->b->read(x->d, t.buf, 0, raw, all), 0);
    for (size_t i = 0; i < OT_GUARD; i++)
        if (raw[i] != 0xA5 || raw[all - 1 - i] != 0xA5)
            fail_msg("%s: wrote outside its output", x->name);
    if (out)
        memcpy(out, raw + OT_GUARD, n);
    free(raw);
    x->b->buf_free(x->d, t.buf);
}

/* sum (a - b)^2 / sum b^2 */
static inline double ot_nmse(const float *a, const float *b, size_t n)
{
    double num = 0, den = 1e-30;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        num += d * d;
        den += (double)b[i] * (double)b[i];
    }
    return num / den;
}

static inline void ot_near(const struct ot_back *x, const char *what, const float *a,
                           const float *b, size_t n, double bound)
{
    double e = ot_nmse(a, b, n);
    if (!(e <= bound))
        fail_msg("%s: %s: nmse %g over %g", x->name, what, e, bound);
}

static inline void ot_same(const struct ot_back *x, const char *what, const float *a,
                           const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s: %s: value %zu is %a and %a", x->name, what, i, (double)a[i],
                     (double)b[i]);
}

#endif
