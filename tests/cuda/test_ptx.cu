/* One tile of every instruction wrapper against plain arithmetic. */
#include "cuda/ptx.cuh"

#include "tests/cuda/cuda_test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

template <bool BF> static __global__ void k_mma(const uint16_t *a, const uint16_t *b, float *c)
{
    SHARED(uint16_t, sa, [16 * 16]);
    SHARED(uint16_t, sb, [8 * 16]);
    const int l = (int)threadIdx.x;
    ptx::cp_async16(sa + l * 8, a + l * 8);
    if (l < 16)
        ptx::cp_async16(sb + l * 8, b + l * 8);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncwarp();
    uint32_t fa[4], fb[4], fc[2];
    ptx::ldmatrix_x4(fa, sa + (l & 15) * 16 + (l >> 4) * 8);
    ptx::ldmatrix_x4(fb, sb + (l & 7) * 16 + (l >> 3 & 1) * 8);
    fc[0] = fb[0], fc[1] = fb[1];
    float d[4] = {1, 1, 1, 1};
    if (BF)
        ptx::mma_bf16(d, fa, fc);
    else
        ptx::mma_f16(d, fa, fc);
    for (int i = 0; i < 4; i++)
        c[(l / 4 + (i >> 1) * 8) * 8 + l % 4 * 2 + (i & 1)] = d[i];
}

template <class T, bool BF> static void mma_case()
{
    auto a = ct_random<T>(256, 1), b = ct_random<T>(128, 2);
    Dev<T> da(a), db(b);
    Dev<float> c(128);
    std::vector<double> want(128, 1);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++)
            for (int k = 0; k < 16; k++)
                want[(size_t)m * 8 + n] +=
                    ct_double(a[(size_t)m * 16 + k]) * ct_double(b[(size_t)n * 16 + k]);
    CT_RUN(launch({dim3(1), dim3(32), 0, 0, 0, false, false}, k_mma<BF>, (const uint16_t *)da.p,
                  (const uint16_t *)db.p, c.p));
    ct_near("mma", c.get(), want, 1e-12);
}

static __global__ void k_trans(const uint16_t *a, uint16_t *out)
{
    SHARED(uint16_t, s, [32 * 8]);
    const int l = (int)threadIdx.x;
    *(uint4 *)(s + l * 8) = *(const uint4 *)(a + l * 8);
    __syncwarp();
    uint32_t r[4];
    ptx::ldmatrix_x4_trans(r, s + l * 8);
    for (int m = 0; m < 4; m++) /* lane l holds column l / 4, rows 2 (l % 4) and the next */
        for (int e = 0; e < 2; e++)
            out[m * 64 + l / 4 * 8 + l % 4 * 2 + e] = (uint16_t)(r[m] >> 16 * e);
}

static void trans_case()
{
    std::vector<uint16_t> a(256), want(256);
    for (size_t i = 0; i < 256; i++)
        a[i] = (uint16_t)(i * 7 + 3);
    for (size_t i = 0; i < 256; i++)
        want[i / 64 * 64 + i % 8 * 8 + i % 64 / 8] = a[i];
    Dev<uint16_t> d(a), o(256);
    CT_RUN(launch({dim3(1), dim3(32), 0, 0, 0, false, false}, k_trans, (const uint16_t *)d.p, o.p));
    ct_same("transposed", o.get(), want);
}

/* A ring of one: TMA brings both operands, a warpgroup multiplies; A also from registers. */
struct WgSmem {
    uint16_t a[64 * 64], b[64 * 64];
    uint64_t full;
};
static __global__ void k_wgmma(const __grid_constant__ CUtensorMap ma,
                               const __grid_constant__ CUtensorMap mb, const uint16_t *ga, float *c,
                               int from_regs)
{
    DYN_SHARED(WgSmem, s);
    const int t = (int)threadIdx.x, warp = t / 32, l = t % 32;
    if (t == 0) {
        ptx::mbar_init(&s->full, 1);
        ptx::mbar_fence_init();
    }
    __syncthreads();
    if (t == 0) {
        ptx::mbar_expect_tx(&s->full, 2 * 64 * 64 * 2);
        ptx::tma_load_2d(s->a, &ma, 0, 0, &s->full);
        ptx::tma_load_2d(s->b, &mb, 0, 0, &s->full);
    }
    ptx::mbar_wait(&s->full, 0);
    float d[32];
    for (int i = 0; i < 32; i++)
        d[i] = 0;
    uint32_t ra[4][4];
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++)
            ra[k][i] = *(const uint32_t *)(ga + (warp * 16 + l / 4 + (i & 1) * 8) * 64 + k * 16 +
                                           l % 4 * 2 + (i >> 1) * 8);
    ptx::wgmma_fence();
    for (int k = 0; k < 4; k++) {
        if (from_regs)
            ptx::wgmma_m64n64k16_ra(d, ra[k], ptx::wgmma_desc(s->b) + (uint64_t)k * 2, k > 0);
        else
            ptx::wgmma_m64n64k16(d, ptx::wgmma_desc(s->a) + (uint64_t)k * 2,
                                 ptx::wgmma_desc(s->b) + (uint64_t)k * 2, k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++)
            c[(warp * 16 + l / 4 + (i >> 1) * 8) * 64 + n * 8 + l % 4 * 2 + (i & 1)] = d[n * 4 + i];
}

static void wgmma_case()
{
    int cc = 0;
    CT_CUDA(cudaDeviceGetAttribute(&cc, cudaDevAttrComputeCapabilityMajor, 0));
    if (cc != 9) {
        printf("  wgmma: not on compute capability %d\n", cc);
        return;
    }
    auto a = ct_random<__nv_bfloat16>(4096, 3), b = ct_random<__nv_bfloat16>(4096, 4);
    Dev<__nv_bfloat16> da(a), db(b);
    std::vector<double> want(4096, 0);
    for (size_t m = 0; m < 64; m++)
        for (size_t n = 0; n < 64; n++)
            for (size_t k = 0; k < 64; k++)
                want[m * 64 + n] += ct_double(a[m * 64 + k]) * ct_double(b[n * 64 + k]);
    CUtensorMap ma, mb;
    CT_CUDA(cu_tensormap_2d(&ma, da.p, 64, 64, 128, 64, 64));
    CT_CUDA(cu_tensormap_2d(&mb, db.p, 64, 64, 128, 64, 64));
    for (int regs = 0; regs < 2; regs++) {
        Dev<float> c(4096);
        CT_RUN(launch({dim3(1), dim3(128), sizeof(WgSmem), 0, 0, false, false}, k_wgmma, ma, mb,
                      (const uint16_t *)da.p, c.p, regs));
        ct_near(regs ? "wgmma, A in registers" : "wgmma", c.get(), want, 1e-12);
    }
}

/* 16 bytes a thread: [0, 16) are copied, [16, 32) are filled with zeros. `mode` breaks a rule. */
enum { COPY_RIGHT, COPY_MISALIGNED, COPY_UNAWAITED };
static __global__ void k_copy(const uint16_t *src, uint16_t *early, uint16_t *late, int mode)
{
    DYN_SHARED(uint16_t, s);
    const int t = (int)threadIdx.x;
    ptx::cp_async16(s + t * 8 + (mode == COPY_MISALIGNED ? 4 : 0), t < 16 ? src + t * 8 : nullptr,
                    t < 16);
    ptx::cp_async_commit();
    if (mode == COPY_UNAWAITED)
        return;
    for (int i = 0; i < 8; i++)
        early[t * 8 + i] = s[t * 8 + i];
    ptx::cp_async_wait<0>();
    for (int i = 0; i < 8; i++)
        late[t * 8 + i] = s[t * 8 + i];
}

static int copy_run(const uint16_t *src, uint16_t *early, uint16_t *late, int mode)
{
    return (int)launch({dim3(1), dim3(32), 32 * 16 + 16, 0, 0, false, false}, k_copy, src, early,
                       late, mode);
}

static void copy_case()
{
    std::vector<uint16_t> a(128), want(256, 0), none(256, 0xFFFF);
    for (size_t i = 0; i < 128; i++)
        want[i] = a[i] = (uint16_t)(i * 5 + 1);
    Dev<uint16_t> d(a), early(256), late(256);
    if (!CT_RUN(copy_run(d.p, early.p, late.p, COPY_RIGHT)))
        return;
    ct_same("copied", late.get(), want);
#ifndef __CUDACC__
    ct_same("not there before the wait", early.get(), none);
    for (int mode : {COPY_MISALIGNED, COPY_UNAWAITED}) {
        int status = 0;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) { /* what it prints while it dies is not of interest */
            if (!freopen("/dev/null", "w", stderr))
                _exit(2);
            copy_run(d.p, early.p, late.p, mode);
            cudaDeviceSynchronize();
            _exit(0);
        }
        CT_CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CT_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
#endif
}

CT_MAIN({"mma bf16", mma_case<__nv_bfloat16, true>}, {"mma f16", mma_case<__half, false>},
        {"cp.async", copy_case}, {"ldmatrix.trans", trans_case},
        {"tma, mbarrier, wgmma", wgmma_case})
