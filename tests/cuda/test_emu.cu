/* The CUDA language itself: what kernels rely on, held to plain arithmetic. On a GPU this shows that the hardware does
 * what the emulation claims; in the emulation also poison, thread orders, and that misuse ends with a message that says
 * where (each in a child process, whose last words are read). */
#include "tests/cuda/cuda_test.h"

#ifndef __CUDACC__
#include <sys/wait.h>
#include <unistd.h>
#endif

static launch_cfg shape(unsigned grid, unsigned block, size_t smem = 0, bool cooperative = false)
{
    return {dim3(grid), dim3(block), smem, 0, 0, cooperative, false};
}

/* ---- barriers and shared memory ---- */

/* out[b] = sum of the block's threads by a tree; votes[4 b..] = what the voting barriers gave. */
static __global__ void k_tree(int *out, int *votes)
{
    DYN_SHARED(int, s);
    const int t = (int)threadIdx.x, b = (int)blockIdx.x;
    s[t] = t * t + b;
    __syncthreads();
    for (int step = (int)blockDim.x / 2; step; step /= 2) {
        if (t < step)
            s[t] += s[t + step];
        __syncthreads();
    }
    const int count = __syncthreads_count(t % 3 == 0), any = __syncthreads_or(t == 77);
    const int all = __syncthreads_and(t >= 0), not_all = __syncthreads_and(t != 5);
    if (t == 0) {
        out[b] = s[0];
        votes[4 * b] = count, votes[4 * b + 1] = any;
        votes[4 * b + 2] = all, votes[4 * b + 3] = not_all;
    }
}
static void barrier_case()
{
    const int B = 5, T = 128;
    Dev<int> out(B), votes(4 * B);
    std::vector<int> want(B), want_votes;
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++)
            want[(size_t)b] += t * t + b;
        want_votes.insert(want_votes.end(), {43, 1, 1, 0});
    }
    CT_RUN(launch(shape(B, T, T * sizeof(int)), k_tree, out.p, votes.p));
    ct_same("sums", out.get(), want);
    for (int b = 0; b < B; b++) { /* any non-zero value is true */
        std::vector<int> v = votes.get();
        CT_CHECK(v[4 * (size_t)b] == want_votes[4 * (size_t)b]);
        for (size_t i = 1; i < 4; i++)
            CT_CHECK((v[4 * (size_t)b + i] != 0) == (want_votes[4 * (size_t)b + i] != 0));
    }
}

/* ---- warps ---- */

static __global__ void k_warp(int *out)
{
    const int l = (int)threadIdx.x, n = 32;
    if (l >= 48) /* the second warp has 16 lanes left, and they meet alone */
        return;
    const unsigned m = l < 32 ? 0xffffffffu : 0x0000ffffu;
    int *o = out + l;
    o[0 * n * 2] = __shfl_sync(m, l, 7 - l % 8, 8);
    o[1 * n * 2] = __shfl_xor_sync(m, l, 5);
    o[2 * n * 2] = __shfl_down_sync(m, l, 3, 8);
    o[3 * n * 2] = __shfl_up_sync(m, l, 2, 16);
    o[4 * n * 2] = (int)__ballot_sync(m, l % 3 == 0);
    o[5 * n * 2] = (__any_sync(m, l == 9) ? 1 : 0) + (__all_sync(m, l < 40) ? 2 : 0);
    o[6 * n * 2] = (int)__reduce_add_sync(m, (unsigned)l);
    o[7 * n * 2] = __reduce_max_sync(m, -l) * 1000 + __reduce_min_sync(m, l % 32 - 4);
    const float f = __shfl_sync(m, (float)l + 0.5f, 3);
    o[8 * n * 2] = (int)(2 * f);
    const double d = __shfl_xor_sync(m, (double)l + 0.25, 1);
    o[9 * n * 2] = (int)(4 * d);
    if (l < 8) /* halves of a warp in divergent code, each with its own mask */
        o[10 * n * 2] = __shfl_sync(0x000000ffu, l, 1);
    else if (l < 32)
        o[10 * n * 2] = __shfl_sync(0xffffff00u, l, 30);
    else
        o[10 * n * 2] = 0;
}
static int warp_want(int row, int l)
{
    const int w = l / 32 * 32, i = l % 32, lanes = l < 32 ? 32 : 16;
    int v = 0;
    switch (row) {
    case 0:
        return w + i / 8 * 8 + 7 - i % 8;
    case 1:
        return w + (i ^ 5);
    case 2:
        return i % 8 + 3 >= 8 ? l : l + 3;
    case 3:
        return i % 16 < 2 ? l : l - 2;
    case 4:
        for (int k = 0; k < lanes; k++)
            v |= (w + k) % 3 == 0 ? (int)(1u << k) : 0;
        return v;
    case 5:
        return l < 32 ? 3 : 0;
    case 6:
        for (int k = 0; k < lanes; k++)
            v += w + k;
        return v;
    case 7:
        return -w * 1000 - 4;
    case 8:
        return 2 * (w + 3) + 1;
    case 9:
        return 4 * (w + (i ^ 1)) + 1;
    default:
        return l < 8 ? 1 : l < 32 ? 30 : 0;
    }
}
static void warp_case()
{
    Dev<int> out(11 * 64);
    if (!CT_RUN(launch(shape(1, 64), k_warp, out.p)))
        return;
    std::vector<int> v = out.get();
    for (int row = 0; row < 11; row++)
        for (int l = 0; l < 48; l++) {
            const int got = v[(size_t)(row * 64 + l)], want = warp_want(row, l);
            if (got != want)
                ct_fail("exchange %d, thread %d: %d, not %d", row, l, got, want);
        }
}

/* ---- atomics, and what follows a fence ---- */

struct totals {
    int sum, top, low, bits, mask, swapped, claimed;
    unsigned long long wide;
    float real;
    __half2 h;
    __nv_bfloat162 b;
};
static __global__ void k_atomics(totals *t)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(&t->sum, i);
    atomicMax(&t->top, i);
    atomicMin(&t->low, -i);
    atomicOr(&t->bits, 1 << i % 7);
    atomicAnd(&t->mask, ~(1 << i % 5));
    atomicExch(&t->swapped, 3);
    if (atomicCAS(&t->claimed, 0, 1) == 0) /* exactly one wins */
        atomicAdd(&t->sum, 1000000);
    atomicAdd(&t->wide, 1ull << 33);
    atomicAdd(&t->real, 0.5f);
    atomicAdd(&t->h, __floats2half2_rn(1.0f, 0.25f));
    atomicAdd(&t->b, __floats2bfloat162_rn(1.0f, -0.5f));
}
static void atomic_case()
{
    totals z = {0, 0, 0, 0, 255, 0, 0, 0, 0, __floats2half2_rn(0, 0), __floats2bfloat162_rn(0, 0)};
    Dev<totals> d(std::vector<totals>{z});
    if (!CT_RUN(launch(shape(4, 50), k_atomics, d.p)))
        return;
    totals r = d.get()[0];
    CT_CHECK(r.sum == 199 * 200 / 2 + 1000000 && r.top == 199 && r.low == -199);
    CT_CHECK(r.bits == 127 && r.mask == 224 && r.swapped == 3 && r.claimed == 1);
    CT_CHECK(r.wide == 200ull << 33 && r.real == 100.0f);
    float2 h = __half22float2(r.h), b = __bfloat1622float2(r.b);
    CT_CHECK(h.x == 200 && h.y == 50 && b.x == 200 && b.y == -100);
}

/* The last block to finish adds up what all wrote. */
static __global__ void k_last(int *part, int *count, int *total)
{
    SHARED(int, last);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = (int)blockIdx.x + 1;
        __threadfence();
        last = atomicAdd(count, 1) == (int)gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last || threadIdx.x)
        return;
    int s = 0;
    for (unsigned i = 0; i < gridDim.x; i++)
        s += part[i];
    *total = s;
    atomicExch(count, 0);
}
static __global__ void k_grid_wait(int *arrived, int *part, int *out)
{
    const int n = (int)gridDim.x;
    if (threadIdx.x == 0) {
        part[blockIdx.x] = (int)blockIdx.x;
        __threadfence();
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < n)
            SPIN_HINT();
        __threadfence();
        out[blockIdx.x] = part[((int)blockIdx.x + 1) % n];
    }
}
static void fence_case()
{
    Dev<int> part(40), count(std::vector<int>{0}), total(1);
    for (int again = 0; again < 2; again++) { /* the counter is as it was */
        total.poison();
        CT_RUN(launch(shape(40, 64), k_last, part.p, count.p, total.p));
        CT_CHECK(total.get()[0] == 820 && count.get()[0] == 0);
    }
    Dev<int> out(6);
    CT_RUN(launch(shape(6, 32, 0, true), k_grid_wait, count.p, part.p, out.p));
    ct_same("grid-wide wait", out.get(), std::vector<int>{1, 2, 3, 4, 5, 0});
}

/* ---- numbers ---- */

extern "C" float f16_to_f32(uint16_t h);
extern "C" uint16_t f32_to_f16(float f);

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static bool same_number(float a, float b)
{
    return a != a ? b != b : memcmp(&a, &b, 4) == 0;
}
/* Every pattern, and the floats around the point half-way to the next one. */
static void half_case()
{
    for (uint32_t i = 0; i < 65536; i++) {
        const float f = __half2float(__ushort_as_half((unsigned short)i));
        CT_CHECK(same_number(f, f16_to_f32((uint16_t)i)));
        CT_CHECK(same_number(__bfloat162float(__ushort_as_bfloat16((unsigned short)i)),
                             of_bits(i << 16)));
        const float next = f16_to_f32((uint16_t)(i + 1)), mid = f + (next - f) / 2;
        for (float x : {f, mid, nextafterf(mid, f), nextafterf(mid, next), f * 1.0001f}) {
            const uint16_t h = __half_as_ushort(__float2half_rn(x)), w = f32_to_f16(x);
            CT_CHECK(x != x ? (h & 0x7fffu) > 0x7c00u : h == w);
        }
        for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            const float x = of_bits(i << 16 | low);
            const uint32_t b = __bfloat16_as_ushort(__float2bfloat16_rn(x));
            const uint32_t up = low > 0x8000u || (low == 0x8000u && (i & 1u));
            CT_CHECK(x != x ? (b & 0x7fffu) > 0x7f80u : b == i + up);
        }
    }
}

/* The nearest code to x by trying all finite ones; ties to the even code; beyond the largest, saturated. */
static int fp8_nearest(float x, const std::vector<double> &value)
{
    const double a = std::min(fabs((double)x), 1e6); /* all beyond are as far from every code */
    int best = 0;
    for (int c = 1; c < (int)value.size(); c++) {
        const double d = fabs(a - value[(size_t)c]);
        const double e = fabs(a - value[(size_t)best]);
        if (d < e || (d == e && c % 2 == 0))
            best = c;
    }
    return best;
}
static void fp8_kind(__nv_fp8_interpretation_t kind, int mantissa, int bias, int n_finite)
{
    std::vector<double> value;
    for (int c = 0; c < 256; c++) {
        const int v = c & 127, e = v >> mantissa, m = v & ((1 << mantissa) - 1);
        const double d =
            e ? ldexp(1 + ldexp(m, -mantissa), e - bias) : ldexp(m, 1 - bias - mantissa);
        if (c < n_finite)
            value.push_back(d);
        const float got = __half2float(__half(__nv_cvt_fp8_to_halfraw((unsigned char)c, kind)));
        if (v < n_finite)
            CT_CHECK(got == (c < 128 ? d : -d) && signbit(got) == (c >= 128));
        else if (kind == __NV_E5M2 && v == 0x7c)
            CT_CHECK(isinf(got) && signbit(got) == (c >= 128));
        else
            CT_CHECK(got != got);
    }
    for (uint32_t i = 0; i < 65536; i += CT_SANITIZED ? 7 : 1)
        for (uint32_t low : {0u, 1u, 0xffffu}) {
            const float x = of_bits(i << 16 | low);
            const unsigned c = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind);
            if (x != x)
                CT_CHECK((c & 127u) > (kind == __NV_E4M3 ? 0x7eu : 0x7cu));
            else
                CT_CHECK(c == ((unsigned)fp8_nearest(x, value) | (i >> 8 & 128u)));
        }
}
static void fp8_case()
{
    fp8_kind(__NV_E4M3, 3, 7, 0x7f);
    fp8_kind(__NV_E5M2, 2, 15, 0x7c);
    CT_CHECK(__nv_cvt_float_to_fp8(500, __NV_NOSAT, __NV_E4M3) == 0x7f);
    CT_CHECK(__nv_cvt_float_to_fp8(-1e6f, __NV_NOSAT, __NV_E5M2) == 0xfc);
}

static __global__ void k_scalars(unsigned *o, float *f)
{
    o[0] = (unsigned)__popc(0xf0f01u), o[1] = (unsigned)__clz(1 << 20), o[2] = (unsigned)__ffs(96);
    o[3] = (unsigned)__clz(0), o[4] = (unsigned)__ffs(0), o[5] = __umulhi(0x80000001u, 6);
    o[6] = __byte_perm(0x33221100u, 0x77665584u, 0x7250), o[7] = __byte_perm(0x80u, 0, 0x0008);
    o[8] = (unsigned)__dp4a(0x01ff7f80, 0x02030405, 10);
    o[9] = (unsigned)__float2int_rn(2.5f), o[10] = (unsigned)__float2int_rn(-3.5f);
    o[11] = (unsigned)min(-3, 2), o[12] = max(3u, 4000000000u), o[13] = __float_as_uint(-2.0f);
    f[0] = __fmaf_rn(1 + 0x1p-12f, 1 + 0x1p-12f, -1), f[1] = __fmul_rn(1 + 0x1p-12f, 1 + 0x1p-12f);
    f[2] = __saturatef(-1), f[3] = __saturatef(2), f[4] = rsqrtf(4),
    f[5] = __int_as_float(0x40490fdb);
    /* one rounding: what is left of the square of 1 + 2^-10 */
    __half2 h = __hfma2(__floats2half2_rn(1 + 0x1p-10f, 3), __floats2half2_rn(1 + 0x1p-10f, 5),
                        __floats2half2_rn(-1 - 0x1p-9f, 0x1p-12f));
    f[6] = __half2float(__low2half(h)), f[7] = __half2float(__high2half(h));
}
static void scalar_case()
{
    Dev<unsigned> o(14);
    Dev<float> f(8);
    CT_RUN(launch(shape(1, 1), k_scalars, o.p, f.p));
    const int dp = -128 * 5 + 127 * 4 - 3 + 2 + 10;
    ct_same("integers", o.get(),
            std::vector<unsigned>{9, 11, 6, 32, 0, 3, 0x77225500u, 0x808080ffu, (unsigned)dp, 2,
                                  (unsigned)-4, (unsigned)-3, 4000000000u, 0xc0000000u});
    ct_same("floats", f.get(),
            std::vector<float>{0x1p-11f + 0x1p-24f, 1 + 0x1p-11f, 0, 1, 0.5f, 3.14159274f, 0x1p-20f,
                               15});
}

#ifndef __CUDACC__
/* ---- only the emulation: poison, orders, misuse ---- */

static __global__ void k_poison(unsigned *dirty)
{
    DYN_SHARED(unsigned, d);
    SHARED(unsigned, s, [8]);
    if (d[threadIdx.x] != ~0u || s[threadIdx.x] != ~0u)
        atomicAdd(dirty, 1u);
    d[threadIdx.x] = s[threadIdx.x] = 0; /* must not reach the next block */
}
static __global__ void k_order(int *next, int *at)
{
    at[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1);
}
static std::vector<int> order_of(const char *order)
{
    Dev<int> next(std::vector<int>{0}), at(24);
    emu_set_order(order);
    CT_RUN(launch(shape(3, 8), k_order, next.p, at.p));
    emu_set_order(ct.order);
    return at.get();
}
static void order_case()
{
    Dev<unsigned> dirty(std::vector<unsigned>{0});
    CT_RUN(launch(shape(20, 8, 32), k_poison, dirty.p));
    CT_CHECK(dirty.get()[0] == 0);
    std::vector<int> up(24), down(24);
    for (int i = 0; i < 24; i++)
        up[(size_t)i] = i, down[(size_t)i] = 23 - i;
    ct_same("fwd", order_of("fwd"), up);
    ct_same("rev", order_of("rev"), down);
    CT_CHECK(order_of("1") == order_of("1") && order_of("1") != order_of("2"));
    CT_CHECK(order_of("1") != up && order_of("1") != down);
    for (launch_cfg bad : {shape(0, 32), shape(1, 0), shape(1, 1025), shape(1, 32, 300000)})
        CT_CHECK(launch(bad, k_order, (int *)nullptr, (int *)nullptr) ==
                 cudaErrorInvalidConfiguration);
    CT_CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
}

enum misuse {
    RIGHT,
    DIVERGENT_BARRIER,
    DIVERGENT_SHUFFLE,
    TWO_SHUFFLES,
    NOT_IN_MASK,
    NAMED_COUNT,
    NEVER_MET,
    SPINS,
    PAST_DYNAMIC,
    PAST_FIXED,
    NO_BARRIER,
    NO_FENCE,
    PLAIN_RESET,
    NO_FENCE_AFTER_SPIN
};
#define MARK(n) constexpr int line_##n = __LINE__
MARK(base);
static __global__ void k_misuse(int kind, int *g)
{
    DYN_SHARED(int, d);
    SHARED(int, s, [64]);
    const int t = (int)threadIdx.x, b = (int)blockIdx.x;
    if (kind == DIVERGENT_BARRIER && t < 32)
        __syncthreads();
    if (kind == DIVERGENT_BARRIER)
        __syncthreads();
    if (kind == DIVERGENT_SHUFFLE)
        g[t] = t % 2 ? __shfl_sync(~0u, t, 0) : (int)__ballot_sync(~0u, 1);
    if (kind == TWO_SHUFFLES && t % 2)
        g[t] = __shfl_sync(~0u, t, 0);
    else if (kind == TWO_SHUFFLES)
        g[t] = __shfl_sync(~0u, t, 1);
    if (kind == NOT_IN_MASK)
        g[t] = __shfl_sync(0xffffu, t, 0);
    if (kind == NAMED_COUNT)
        emu::barrier(1, t ? 64 : 32, 0, true, __FILE__, __LINE__);
    if (kind == NEVER_MET && t < 40)
        emu::barrier(2, 64, 0, true, __FILE__, __LINE__);
    while (kind == SPINS && atomicAdd(g, 0) != 5)
        SPIN_HINT();
    if (kind == PAST_DYNAMIC)
        g[t] = d[t + 1];
    if (kind == PAST_FIXED)
        s[t + (b ? 1 : 0)] = t;
    if (kind == NO_BARRIER || kind == RIGHT) {
        d[t] = t;
        if (kind == RIGHT)
            __syncthreads();
        g[t + 64 * b] = d[63 - t];
    }
    if (kind >= NO_FENCE && t == 0) { /* g[0] counts, g[2 + b] are parts; see k_last */
        g[2 + b] = b;
        if (kind != NO_FENCE)
            __threadfence();
        const bool last = atomicAdd(g, 1) == 1;
        if (last)
            __threadfence();
        while (kind == NO_FENCE_AFTER_SPIN && b == 0 && atomicAdd(g, 0) < 2)
            SPIN_HINT();
        if (last)
            g[8] = g[2] + g[3];
        else if (kind == NO_FENCE_AFTER_SPIN)
            g[10] = g[3];
        if (last && kind == PLAIN_RESET)
            g[0] = 0;
    }
}

/* The whole life of a child: a fresh program, since the race detector does not survive a fork of its fibers. */
static int misuse_main(int kind, const char *order)
{
    emu_set_order(order);
    Dev<int> g(std::vector<int>(130, 0));
    const launch_cfg c = shape(2, 64, 64 * sizeof(int), kind == NO_FENCE_AFTER_SPIN);
    return launch(c, k_misuse, kind, g.p) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess;
}

/* Runs one in a child and returns what it says; all but the right one must end badly. */
static std::string last_words(int kind)
{
    int fd[2], status = 0;
    std::string said, number = std::to_string(kind);
    fflush(stdout);
    if (pipe(fd))
        return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
        dup2(fd[1], 2);
        setenv("TSAN_OPTIONS", "atexit_sleep_ms=0", 1);
        execl("/proc/self/exe", "test_emu", "--misuse", number.c_str(), ct.order, (char *)nullptr);
        _exit(127);
    }
    close(fd[1]);
    char part[4096];
    for (ssize_t n; (n = read(fd[0], part, sizeof part)) > 0;)
        said.append(part, (size_t)n);
    close(fd[0]);
    CT_CHECK(child > 0 && waitpid(child, &status, 0) == child);
    const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (well != (kind == RIGHT))
        ct_fail("misuse %d ends with status %x: %.900s", kind, status, said.c_str());
    return said;
}
static void says(const char *name, int kind, std::vector<std::string> words)
{
    const std::string said = last_words(kind);
    for (const std::string &w : words)
        if (said.find(w) == std::string::npos)
            ct_fail("%s: \"%s\" is not in: %.600s", name, w.c_str(), said.c_str());
}
static std::string line(int after_base)
{
    return "test_emu.cu:" + std::to_string(line_base + after_base);
}
static void misuse_case()
{
    says("right", RIGHT, {});
    says("divergent barrier", DIVERGENT_BARRIER,
         {"different barriers", line(7), line(9), "block ("});
    says("divergent collectives", DIVERGENT_SHUFFLE,
         {"lanes diverged", "__shfl_sync", "__ballot_sync", line(11)});
    says("two shuffles", TWO_SHUFFLES, {"lanes diverged", line(13), line(15)});
    says("not in the mask", NOT_IN_MASK, {"not in the mask", line(17), "thread"});
    says("two counts", NAMED_COUNT, {"two counts", line(19)});
    says("never met", NEVER_MET, {"deadlock", "40 threads from 0 wait in bar.sync", line(21)});
    says("spins for ever", SPINS, {"deadlock", "a spin loop"});
}
static void sanitizer_case()
{
#if defined(__SANITIZE_ADDRESS__)
    says("past dynamic", PAST_DYNAMIC, {"AddressSanitizer: heap-buffer-overflow", line(25)});
    says("past fixed", PAST_FIXED, {"index 64 out of bounds", line(27)});
#elif defined(__SANITIZE_THREAD__)
    says("no barrier", NO_BARRIER, {"ThreadSanitizer: data race"});
    says("no fence", NO_FENCE, {"ThreadSanitizer: data race"});
    says("plain reset", PLAIN_RESET, {"ThreadSanitizer: data race"});
    if (!strcmp(ct.order, "fwd")) /* the block that waits comes first */
        says("no fence after a spin loop", NO_FENCE_AFTER_SPIN, {"ThreadSanitizer: data race"});
#endif
}
#endif

int main(int argc, char **argv)
{
    std::vector<ct_case> cases = {{"barriers", barrier_case},    {"warps", warp_case},
                                  {"atomics", atomic_case},      {"fences", fence_case},
                                  {"half, bfloat16", half_case}, {"fp8", fp8_case},
                                  {"scalars", scalar_case}};
#ifndef __CUDACC__
    if (argc == 4 && !strcmp(argv[1], "--misuse"))
        return misuse_main(atoi(argv[2]), argv[3]);
    cases.push_back({"poison, orders", order_case});
    cases.push_back({"misuse", misuse_case});
    if (CT_SANITIZED)
        cases.push_back({"sanitizers", sanitizer_case});
#endif
    return ct_main(argc, argv, cases);
}
