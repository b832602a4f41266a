/* Harness of the kernel tests: the same file is built by g++ against the emulation and by nvcc for a GPU.
 *
 * A test is a list of cases, `CT_MAIN({"name", fn}, ...)`. In the emulation every case runs once in each thread order
 * (forward, reverse, two seeds), on a GPU once. It launches cu_* on Dev<T> memory, which is guarded and holds NaN until
 * something is written, and compares with a double reference made on the host.
 *
 *     test_x [--only CASE] [--order fwd|rev|SEED] [--bench]
 *
 * CUDA_TEST_SHORT in the environment: a sanitizer build runs one order instead of four.
 * Prints each failure with its case and order, then "N passed, N failed" (tests/run.py reads it); exit status 1 on any
 * failure. Host code only; one thread. */
#ifndef TESTS_CUDA_CUDA_TEST_H
#define TESTS_CUDA_CUDA_TEST_H

#include "cuda/cu.h"
#include "cuda/kernels.h"
#include "cuda/rt.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__) && !defined(__CUDACC__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CT_SANITIZED true
#else
#define CT_SANITIZED false
#endif

struct ct_state {
    const char *name = "", *order = "";
    bool bench = false;
    bool quiet = false; /* failures are counted, not printed: tests of the harness */
    int failures = 0;   /* of the case that runs */
    std::map<std::string, std::vector<unsigned char>> first; /* see ct_repeat */
};
static ct_state ct;

/* ---- reports ---- */

__attribute__((format(printf, 1, 2))) static inline void ct_fail(const char *fmt, ...)
{
    if (++ct.failures > 10 || ct.quiet)
        return;
    va_list ap;
    va_start(ap, fmt);
    printf("  FAILED %s (order %s): ", ct.name, ct.order);
    vprintf(fmt, ap);
    printf("%s\n", ct.failures == 10 ? "; no more of this case is shown" : "");
    va_end(ap);
}

#define CT_CHECK(cond)                                                                             \
    do {                                                                                           \
        if (!(cond))                                                                               \
            ct_fail("%s:%d: %s", __FILE__, __LINE__, #cond);                                       \
    } while (0)

/* A CUDA call that the test itself needs: nothing sensible can follow when it fails. */
#define CT_CUDA(call)                                                                              \
    do {                                                                                           \
        cudaError_t ct_e = (call);                                                                 \
        if (ct_e != cudaSuccess) {                                                                 \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(ct_e));        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* A launcher that must succeed, with everything it started; false (and reported) when it did not. */
#define CT_RUN(call) ct_run((call), #call, __FILE__, __LINE__)
static inline bool ct_run(int rc, const char *what, const char *file, int line)
{
    cudaError_t e = cudaDeviceSynchronize();
    if (rc || e != cudaSuccess)
        ct_fail("%s:%d: %s = %d, then %s", file, line, what, rc, cudaGetErrorString(e));
    return !rc && e == cudaSuccess;
}

/* ---- device memory ---- */

#define CT_GUARD 256 /* bytes before and after, so that the data stay aligned as cudaMalloc's */

/* n elements on the device between guard bytes. Contents: the given vector, or 0xFF bytes, which is NaN in every
 * float type and -1 in integers. A write outside is reported by get() and at the end of its life; the address
 * sanitizer also sees reads outside. */
template <class T> struct Dev {
    T *p = nullptr;
    size_t n;

    explicit Dev(size_t count) : n(count)
    {
        size_t body = n * sizeof(T);
        CT_CUDA(cudaMalloc((void **)&base, body + 2 * CT_GUARD));
        std::vector<unsigned char> all(body + 2 * CT_GUARD, 0xA5);
        std::fill(all.begin() + CT_GUARD, all.end() - CT_GUARD, 0xFF);
        CT_CUDA(cudaMemcpy(base, all.data(), all.size(), cudaMemcpyHostToDevice));
        p = reinterpret_cast<T *>(base + CT_GUARD);
        ASAN_POISON_MEMORY_REGION(base, CT_GUARD);
        ASAN_POISON_MEMORY_REGION(base + CT_GUARD + body, CT_GUARD);
    }
    explicit Dev(const std::vector<T> &v) : Dev(v.size())
    {
        set(v);
    }
    Dev(const Dev &) = delete;
    Dev &operator=(const Dev &) = delete;
    ~Dev()
    {
        if (!seen)
            guards();
        open();
        cudaFree(base);
    }
    void set(const std::vector<T> &v)
    {
        CT_CHECK(v.size() <= n);
        CT_CUDA(cudaMemcpy(p, v.data(), std::min(n, v.size()) * sizeof(T), cudaMemcpyHostToDevice));
    }
    void poison()
    {
        CT_CUDA(cudaMemset(p, 0xFF, n * sizeof(T)));
    }
    /* Waits for the device. */
    std::vector<T> get()
    {
        std::vector<T> v(n);
        CT_CUDA(cudaDeviceSynchronize());
        CT_CUDA(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        guards();
        return v;
    }

  private:
    unsigned char *base = nullptr;
    bool seen = false; /* a broken guard is reported once */
    void open()
    {
        ASAN_UNPOISON_MEMORY_REGION(base, n * sizeof(T) + 2 * CT_GUARD);
    }
    void guards()
    {
        unsigned char g[2 * CT_GUARD];
        open();
        cudaMemcpy(g, base, CT_GUARD, cudaMemcpyDeviceToHost);
        cudaMemcpy(g + CT_GUARD, base + CT_GUARD + n * sizeof(T), CT_GUARD, cudaMemcpyDeviceToHost);
        ASAN_POISON_MEMORY_REGION(base, CT_GUARD);
        ASAN_POISON_MEMORY_REGION(base + CT_GUARD + n * sizeof(T), CT_GUARD);
        for (int i = 0; i < 2 * CT_GUARD && !seen; i++)
            if (g[i] != 0xA5) {
                seen = true;
                ct_fail("wrote outside an array of %zu x %zu bytes, %d bytes %s", n, sizeof(T),
                        i < CT_GUARD ? CT_GUARD - i : i - CT_GUARD,
                        i < CT_GUARD ? "before its start" : "past its end");
            }
    }
};

#include "tests/cuda/cuda_num.h"

/* ---- cases ---- */

struct ct_case {
    const char *name;
    void (*fn)();
};

/* Runs one case in one order; true if it passed. */
static bool ct_case_run(const ct_case &c, const char *order)
{
    ct.name = c.name;
    ct.order = order;
    ct.failures = 0;
#ifndef __CUDACC__
    emu_set_order(order);
#endif
    c.fn();
    return ct.failures == 0;
}

static int ct_main(int argc, char **argv, const std::vector<ct_case> &cases)
{
    std::vector<const char *> orders = {"fwd", "rev", "1", "2"};
    const char *only = nullptr;
#ifdef __CUDACC__
    orders = {"device"};
#endif
    if (getenv("CUDA_TEST_SHORT") && CT_SANITIZED)
        orders = {"3"};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--only") && i + 1 < argc)
            only = argv[++i];
        else if (!strcmp(argv[i], "--order") && i + 1 < argc)
            orders = {argv[++i]};
        else if (!strcmp(argv[i], "--bench"))
            ct.bench = true;
    }
    int passed = 0, failed = 0;
    for (const ct_case &c : cases) {
        bool ok = true;
        if (only && strcmp(only, c.name))
            continue;
        for (const char *o : orders)
            ok = ct_case_run(c, o) && ok;
        printf("%s %s\n", ok ? "ok  " : "FAIL", c.name);
        (ok ? passed : failed)++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}

#define CT_MAIN(...)                                                                               \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return ct_main(argc, argv, {__VA_ARGS__});                                                 \
    }

#endif
