/* The harness itself: guards, poison, error measures and orders report what they should. */
#include "tests/cuda/cuda_test.h"

static __global__ void put(float *p, int i, float x)
{
    if (threadIdx.x == 0)
        p[i] = x;
}

static int put_at(float *p, int i, float x)
{
    launch_cfg c = {};
    c.grid = dim3(1);
    c.block = dim3(32);
    return launch(c, put, p, i, x);
}

/* Runs fn, which must report exactly `n` failures; they are taken back. */
template <class F> static void reports(const char *what, int n, F fn)
{
    int before = ct.failures;
    ct.quiet = true;
    fn();
    ct.quiet = false;
    int got = ct.failures - before;
    ct.failures = before;
    if (got != n)
        ct_fail("%s: %d failures were reported, expected %d", what, got, n);
}

static void poison(void)
{
    Dev<float> d(5);
    for (float x : d.get())
        CT_CHECK(x != x);
    CT_RUN(put_at(d.p, 4, 2));
    CT_CHECK(d.get()[4] == 2);
    d.poison();
    CT_CHECK(d.get()[4] != 2);
}

static void guards(void)
{
    if (CT_SANITIZED)
        return; /* such a write ends the program there */
    reports("write behind the end", 1, [] {
        Dev<float> d(5);
        put_at(d.p, 5, 1);
        d.get();
    });
    reports("write before the start", 1, [] {
        Dev<float> d(5);
        put_at(d.p, -1, 1);
        cudaDeviceSynchronize();
    });
    reports("writes inside", 0, [] {
        Dev<float> d(5);
        put_at(d.p, 0, 1);
        put_at(d.p, 4, 1);
    });
}

static void measures(void)
{
    std::vector<float> got = {1, 2, 4};
    reports("equal", 0, [&] { ct_near("", got, {1, 2, 4}, 0, 0); });
    reports("far", 1, [&] { ct_near("", got, {1, 2, 3}, 1e-3); });
    reports("one far value", 1, [&] { ct_near("", got, {1, 2, 3.5}, 1, 0.4); });
    reports("too few", 1, [&] { ct_near("", got, {1, 2, 4, 0}, 1); });
    got[1] = NAN;
    reports("NaN", 1, [&] { ct_near("", got, {1, 2, 4}, 1e30); });
    reports("bits", 1, [&] { ct_same("", std::vector<float>{0.f}, std::vector<float>{-0.f}); });
    reports("equal bits", 0, [&] { ct_same("", got, got); });
    reports("another result in a later order", 1, [&] {
        ct_repeat("twice", std::vector<int>{1, 2});
        ct_repeat("twice", std::vector<int>{1, 3});
    });
    ct.first.clear();
}

static void random_data(void)
{
    std::vector<float> v = ct_random<float>(10000, 7, 2);
    double sum = 0, sq = 0;
    for (float x : v)
        sum += x, sq += (double)x * x;
    CT_CHECK(fabs(sum / 10000) < 0.1);
    CT_CHECK(fabs(sq / 10000 - 4) < 0.3);
    ct_repeat("seeded", v);
}

CT_MAIN({"poison", poison}, {"guards", guards}, {"measures", measures}, {"random", random_data})
