/* The bodies of ptx_emu.h. */
#include "cuda/ptx.cuh"

#include <algorithm>

using emu::cur;

namespace ptx
{
/* ---- cp.async ---- */

void cp_async(void *dst, const void *src, unsigned bytes, bool valid, const char *file, int line)
{
    if ((uintptr_t)dst % bytes || (valid && (uintptr_t)src % bytes))
        emu::die("cp.async is not aligned to its size", file, line);
    if (valid) { /* an out-of-bounds source shows here, at the line that asked for it */
        char probe[16];
        memcpy(probe, src, bytes);
        asm volatile("" ::"r"(probe) : "memory");
    }
    memset(dst, 0xFF, bytes);
    emu::Quiet q;
    cur->copies.push_back({dst, src, bytes, valid ? bytes : 0});
}

void cp_async_finish(unsigned left)
{
    size_t n = 0;
    auto &g = cur->groups;
    while (g.size() > left) {
        for (unsigned i = 0; i < g[0]; i++, n++) {
            emu::Copy &c = cur->copies[n];
            memset(c.dst, 0, c.bytes);
            memcpy(c.dst, c.src, c.valid);
        }
        g.erase(g.begin());
    }
    cur->copies.erase(cur->copies.begin(), cur->copies.begin() + (long)n);
}

/* ---- ldmatrix, mma ---- */

void ldmatrix4(uint32_t *r, const void *row, bool trans, const char *file, int line)
{
    struct In {
        uint16_t v[8];
        uintptr_t at;
    } in;
    if ((uintptr_t)row % 16)
        emu::die("an ldmatrix row is not 16-byte aligned", file, line);
    memcpy(in.v, row, 16); /* each lane reads its own row */
    in.at = (uintptr_t)row;
    emu::collective(
        ~0u, trans ? "ldmatrix.trans" : "ldmatrix", &in, r, file, line, [=](emu::Collective &c) {
            if (c.arrived != ~0u)
                emu::die("ldmatrix needs 32 lanes", file, line);
            for (int m = 0; m < 4; m++) {
                unsigned banks = 0; /* eight groups of four banks; equal rows are one access */
                for (int i = 0; i < 8; i++) {
                    uintptr_t p = ((const In *)c.in[8 * m + i])->at;
                    bool again = false;
                    for (int j = 0; j < i; j++)
                        again = again || ((const In *)c.in[8 * m + j])->at == p;
                    unsigned bit = 1u << (p / 16 % 8);
                    emu::stats.conflicts += !again && (banks & bit);
                    banks |= bit;
                }
                for (int l = 0; l < 32; l++) {
                    const uint16_t *a = ((const In *)c.in[8 * m + (trans ? l % 4 * 2 : l / 4)])->v;
                    const uint16_t *b =
                        ((const In *)c.in[8 * m + (trans ? l % 4 * 2 + 1 : l / 4)])->v;
                    uint32_t lo = trans ? a[l / 4] : a[l % 4 * 2],
                             hi = trans ? b[l / 4] : b[l % 4 * 2 + 1];
                    ((uint32_t *)c.out[l])[m] = lo | hi << 16;
                }
            }
        });
}

/* acc[16][8] += a[16][16] b[16][8], k in order: one product and one sum a step, so the result is one for every compiler. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define FAST __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define FAST /* the race detector would watch the clones' resolver, before it is set up */
#endif
FAST static void tile_product(float (*__restrict acc)[8], const float (*__restrict a)[16],
                              const float (*__restrict b)[8])
{
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++)
                acc[m][n] += a[m][k] * b[k][n];
}

void mma16(float *d, const uint32_t *a, const uint32_t *b, bool bf, const char *file, int line)
{
    struct In {
        float *d;
        const uint32_t *a, *b;
    } in{d, a, b};
    auto work = [=](emu::Collective &c) {
        if (c.arrived != ~0u)
            emu::die("mma needs 32 lanes", file, line);
        emu::stats.mma++;
        float A[16][16], B[16][8], acc[16][8];
        auto value = [=](uint32_t w, int hi) {
            uint16_t h = (uint16_t)(hi ? w >> 16 : w);
            return bf ? emu::bf16_to_float(h) : emu::half_to_float(h);
        };
        for (int l = 0; l < 32; l++) {
            const In &x = *(const In *)c.in[l];
            int g = l / 4, t = l % 4 * 2;
            for (int i = 0; i < 4; i++)
                for (int e = 0; e < 2; e++)
                    A[g + (i & 1) * 8][t + e + (i >> 1) * 8] = value(x.a[i], e);
            for (int i = 0; i < 2; i++)
                for (int e = 0; e < 2; e++)
                    B[t + e + i * 8][g] = value(x.b[i], e);
            for (int i = 0; i < 4; i++)
                acc[g + (i >> 1) * 8][t + (i & 1)] = x.d[i];
        }
        tile_product(acc, A, B);
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++)
                ((const In *)c.in[l])->d[i] = acc[l / 4 + (i >> 1) * 8][l % 4 * 2 + (i & 1)];
    };
    emu::collective(~0u, bf ? "mma.m16n8k16.bf16" : "mma.m16n8k16.f16", &in, nullptr, file, line,
                    work);
}

/* ---- mbarrier ---- */

struct MBar { /* what lies in the 64 bits */
    uint16_t expected, pending;
    int32_t bytes : 31;
    uint32_t phase : 1;
};
static_assert(sizeof(MBar) == 8, "an mbarrier is 64 bits");
struct Waiter {
    emu::Fiber *f;
    uint64_t *bar;
    unsigned parity;
};
static std::vector<Waiter> waiters;

void mbar_init(uint64_t *b, unsigned n)
{
    emu::Quiet q;
    MBar m{(uint16_t)n, (uint16_t)n, 0, 0};
    memcpy(b, &m, sizeof m);
}

void mbar_step(uint64_t *b, int arrivals, int bytes, const char *file, int line)
{
    emu::release(b);
    emu::Quiet q;
    MBar m;
    memcpy(&m, b, sizeof m);
    if (arrivals > m.pending)
        emu::die("an mbarrier got more arrivals than its count", file, line);
    m.pending = (uint16_t)(m.pending - arrivals);
    m.bytes = m.bytes + bytes;
    bool flip = !m.pending && !m.bytes;
    if (flip) {
        m.phase = !m.phase;
        m.pending = m.expected;
    }
    memcpy(b, &m, sizeof m);
    for (size_t i = 0; flip && i < waiters.size();) {
        if (waiters[i].bar == b && waiters[i].parity != m.phase) {
            emu::wake(&waiters[i].f, 1);
            waiters[i] = waiters.back();
            waiters.pop_back();
        } else {
            i++;
        }
    }
}

void mbar_wait(uint64_t *b, unsigned parity, const char *file, int line)
{
    {
        emu::Quiet q;
        MBar m;
        memcpy(&m, b, sizeof m);
        if (m.phase == (parity & 1)) {
            waiters.push_back({cur, b, parity & 1});
            emu::sleep("an mbarrier wait", file, line);
        }
    }
    emu::acquire(b);
}

/* ---- TMA ---- */

static void box_fill(char *dst, const CUtensorMap &m, int x, int y)
{
    unsigned row = m.bw * m.elem;
    for (unsigned r = 0; r < m.bh; r++)
        for (unsigned c = 0; c < row; c += 16) {
            unsigned at = r * row + c;
            if (m.swizzle)
                at ^= (at >> 7 & 7) << 4;
            for (unsigned e = 0; e < 16; e += m.elem) {
                int64_t gx = x + (int64_t)(c + e) / m.elem, gy = (int64_t)y + r;
                if (gx >= 0 && gy >= 0 && gx < (int64_t)m.w && gy < (int64_t)m.h)
                    memcpy(dst + at + e, m.base + (uint64_t)gy * m.pitch + (uint64_t)gx * m.elem,
                           m.elem);
                else
                    memset(dst + at + e, 0, m.elem);
            }
        }
}

void tma_load_2d(void *dst, const CUtensorMap *map, int x, int y, uint64_t *b, const char *file,
                 int line)
{
    CUtensorMap m = *map;
    size_t bytes = (size_t)m.bw * m.elem * m.bh;
    if ((uintptr_t)dst % (m.swizzle ? 1024 : 128))
        emu::die("a TMA destination is not aligned", file, line);
    memset(dst, 0xFF, bytes);
    emu::later([=] {
        box_fill((char *)dst, m, x, y);
        mbar_step(b, 0, -(int)bytes, file, line);
    });
}

/* ---- wgmma ---- */

void wgmma_fence(const char *file, int line)
{
    emu::group_collective("wgmma.fence", nullptr, file, line, [](emu::WarpGroup &) {});
}

void wgmma_commit(const char *file, int line)
{
    emu::group_collective("wgmma.commit", nullptr, file, line,
                          [](emu::WarpGroup &w) { w.groups.emplace_back(); });
}

void wgmma_finish(unsigned left, const char *file, int line)
{
    emu::group_collective("wgmma.wait", nullptr, file, line, [=](emu::WarpGroup &w) {
        while (w.groups.size() > left + 1) { /* the last is the open one */
            for (auto &f : w.groups[0])
                f();
            w.groups.erase(w.groups.begin());
        }
    });
}

/* Value k of row r of an operand with a 128-byte swizzle: K-major A[r][k], B[k][r]; MN-major B[r][k]. */
static float operand(const char *base, uint64_t desc, int r, int k)
{
    uint32_t at = (uint32_t)(desc & 0x3fff) << 4;
    at += (uint32_t)(r / 8) * ((uint32_t)(desc >> 32 & 0x3fff) << 4) + (uint32_t)(r % 8) * 128 +
          (uint32_t)k * 2;
    at ^= (at >> 7 & 7) << 4;
    uint16_t v;
    memcpy(&v, base + at, 2);
    return emu::bf16_to_float(v);
}

struct WgArgs {
    float *d;
    const uint32_t *a;
};

static void wgmma_run(const std::vector<float *> &d, const std::vector<uint32_t> &ra,
                      const char *base, uint64_t da, uint64_t db, int scale_d, bool b_rows)
{
    static float A[64][16], B[16][64];
    for (int m = 0; m < 64; m++)
        for (int k = 0; k < 16; k++) {
            int lane = m / 16 * 32 + m % 8 * 4 + k % 8 / 2, reg = (m % 16 / 8) + k / 8 * 2;
            A[m][k] = ra.empty()
                          ? operand(base, da, m, k)
                          : emu::bf16_to_float(
                                (uint16_t)(ra[(size_t)lane * 4 + (size_t)reg] >> (k & 1) * 16));
            B[k][m] = b_rows ? operand(base, db, k, m) : operand(base, db, m, k);
        }
    for (int m = 0; m < 64; m++) {
        float acc[64];
        auto reg = [&](int n) -> float & {
            return d[(size_t)(m / 16 * 32 + m % 8 * 4 + n % 8 / 2)]
                    [n / 8 * 4 + m % 16 / 8 * 2 + n % 2];
        };
        for (int n = 0; n < 64; n++)
            acc[n] = scale_d ? reg(n) : 0;
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 64; n++)
                acc[n] += A[m][k] * B[k][n];
        for (int n = 0; n < 64; n++)
            reg(n) = acc[n];
    }
    emu::stats.mma++;
}

void wgmma64(float *d, const uint32_t *a, uint64_t da, uint64_t db, int scale_d, const char *file,
             int line, bool b_rows)
{
    WgArgs in{d, a};
    char *base = cur->block->dyn;
    if (db >> 62 != 1 || (!a && da >> 62 != 1))
        emu::die("a wgmma descriptor is not of the 128-byte swizzle", file, line);
    emu::group_collective("wgmma.m64n64k16", &in, file, line, [=](emu::WarpGroup &w) {
        if (w.groups.empty())
            w.groups.emplace_back();
        std::vector<float *> regs(128);
        std::vector<uint32_t> ra;
        for (size_t i = 0; i < 128; i++) {
            const WgArgs *x = (const WgArgs *)w.arg[i];
            regs[i] = x->d;
            if (x->a)
                ra.insert(ra.end(), x->a, x->a + 4);
        }
        w.groups.back().push_back([=] { wgmma_run(regs, ra, base, da, db, scale_d, b_rows); });
    });
}
} // namespace ptx

cudaError_t cu_tensormap_2d(CUtensorMap *m, const void *base, uint64_t w, uint64_t h,
                            uint64_t pitch, uint32_t bw, uint32_t bh)
{
    if ((uintptr_t)base % 16 || pitch % 16 || bw * 2 != 128 || bh > 256)
        return cudaErrorInvalidValue;
    *m = {(const char *)base, w, h, pitch, bw, bh, 2, 128};
    return cudaSuccess;
}
