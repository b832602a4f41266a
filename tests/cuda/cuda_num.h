/* Numbers of the kernel tests: seeded data, error measures, bit equality. Part of cuda_test.h. */
#ifndef TESTS_CUDA_CUDA_NUM_H
#define TESTS_CUDA_CUDA_NUM_H

/* ---- numbers ---- */

/* SplitMix64 (Steele et al. 2014): the same numbers on every machine. */
struct Rng {
    uint64_t s;
    explicit Rng(uint64_t seed) : s(seed)
    {
    }
    uint64_t next()
    {
        uint64_t z = (s += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    double uniform() /* [0, 1) */
    {
        return (double)(next() >> 11) * 0x1p-53;
    }
    float normal()
    {
        return (float)(sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()));
    }
    int below(int n) /* [0, n) */
    {
        return (int)(next() % (uint64_t)n);
    }
};

static inline double ct_double(double x)
{
    return x;
}
static inline double ct_double(__nv_bfloat16 x)
{
    return (double)__bfloat162float(x);
}
static inline double ct_double(__half x)
{
    return (double)__half2float(x);
}
template <class T> static inline T ct_from(float x)
{
    return (T)x;
}
template <> inline __nv_bfloat16 ct_from(float x)
{
    return __float2bfloat16(x);
}
template <> inline __half ct_from(float x)
{
    return __float2half(x);
}

/* Normal numbers times scale. */
template <class T> static std::vector<T> ct_random(size_t n, uint64_t seed, float scale = 1)
{
    Rng r(seed);
    std::vector<T> v(n);
    for (auto &x : v)
        x = ct_from<T>(scale * r.normal());
    return v;
}

struct ct_err {
    double nmse,
        max_abs; /* sum of squared errors over sum of squares; NaN or infinity anywhere makes both infinite */
    size_t worst; /* where max_abs is */
};
template <class T>
static ct_err ct_error(const std::vector<T> &got, const std::vector<double> &want)
{
    double num = 0, den = 0;
    ct_err e = {0, 0, 0};
    for (size_t i = 0; i < want.size() && i < got.size(); i++) {
        double d = fabs(ct_double(got[i]) - want[i]);
        if (!(d <= 1e300))
            return {INFINITY, INFINITY, i};
        num += d * d, den += want[i] * want[i];
        if (d > e.max_abs)
            e.max_abs = d, e.worst = i;
    }
    e.nmse = den > 0 ? num / den : num;
    return e;
}
/* got[0, want.size()) is near want: normalised mean square error and greatest error within bounds. */
template <class T>
static bool ct_near(const char *what, const std::vector<T> &got, const std::vector<double> &want,
                    double nmse, double max_abs = INFINITY)
{
    ct_err e = ct_error(got, want);
    bool ok = got.size() >= want.size() && e.nmse <= nmse && e.max_abs <= max_abs;
    if (!ok)
        ct_fail(
            "%s: NMSE %.3g (at most %.3g), greatest error %.3g at %zu of %zu: %.9g, expected %.9g",
            what, e.nmse, nmse, e.max_abs, e.worst, want.size(),
            got.empty() ? 0 : ct_double(got[std::min(e.worst, got.size() - 1)]),
            want.empty() ? 0 : want[e.worst]);
    return ok;
}

static inline bool ct_same_bytes(const char *what, const void *a, const void *b, size_t n,
                                 size_t elem)
{
    for (size_t i = 0; i < n * elem; i++)
        if (((const unsigned char *)a)[i] != ((const unsigned char *)b)[i]) {
            ct_fail("%s: bits differ at element %zu of %zu", what, i / elem, n);
            return false;
        }
    return true;
}
/* The same bits. */
template <class T>
static bool ct_same(const char *what, const std::vector<T> &a, const std::vector<T> &b)
{
    CT_CHECK(a.size() == b.size());
    return ct_same_bytes(what, a.data(), b.data(), std::min(a.size(), b.size()), sizeof(T));
}
/* The same bits in every thread order: `what` names the result within its case. */
template <class T> static bool ct_repeat(const char *what, const std::vector<T> &v)
{
    const unsigned char *b = reinterpret_cast<const unsigned char *>(v.data());
    std::vector<unsigned char> bytes(b, b + v.size() * sizeof(T));
    auto at = ct.first.emplace(std::string(ct.name) + "/" + what, bytes);
    return at.second ||
           (at.first->second.size() == bytes.size() &&
            ct_same_bytes(what, at.first->second.data(), bytes.data(), v.size(), sizeof(T)));
}

/* ---- time ---- */

/* Median time in microseconds of one fn(i), i counting up so that fn can rotate buffers. A GPU is asked by events around
 * groups of calls, the emulation runs fn once by the clock. */
template <class F> static double ct_time(F fn)
{
#ifdef __CUDACC__
    const int groups = 11, each = 20;
    std::vector<double> us;
    cudaEvent_t a, b;
    CT_CUDA(cudaEventCreate(&a));
    CT_CUDA(cudaEventCreate(&b));
    for (int g = 0; g < groups; g++) {
        CT_CUDA(cudaEventRecord(a, 0));
        for (int i = 0; i < each; i++)
            fn(g * each + i);
        CT_CUDA(cudaEventRecord(b, 0));
        CT_CUDA(cudaEventSynchronize(b));
        float ms = 0;
        CT_CUDA(cudaEventElapsedTime(&ms, a, b));
        if (g) /* the first group warms up */
            us.push_back(ms * 1e3 / each);
    }
    CT_CUDA(cudaEventDestroy(a));
    CT_CUDA(cudaEventDestroy(b));
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
#else
    auto t = std::chrono::steady_clock::now();
    fn(0);
    CT_CUDA(cudaDeviceSynchronize());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count() * 1e6;
#endif
}
/* With --bench: times fn, prints microseconds, GB/s and TFLOP/s of the bytes and operations that one call must move and
 * make. */
template <class F> static void ct_bench(const char *what, double bytes, double flops, F fn)
{
    if (!ct.bench)
        return;
    double us = ct_time(fn);
    printf("  %-44s %10.1f us %8.1f GB/s %8.2f TFLOP/s\n", what, us, bytes / us * 1e-3,
           flops / us * 1e-6);
}

#endif
