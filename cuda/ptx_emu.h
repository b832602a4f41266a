/* The twins of ptx.cuh's instructions, for g++. Each does per lane what the instruction does, as late as the
 * architecture allows: a copy's destination holds NaN until its wait, wgmma runs at its wait, TMA at any time. */
#ifndef CUDA_PTX_EMU_H
#define CUDA_PTX_EMU_H

#include "cuda/cu.h"

#define PTX inline

struct CUtensorMap { /* what the real one encodes */
    const char *base;
    uint64_t w, h, pitch;
    uint32_t bw, bh, elem, swizzle;
};

namespace ptx
{
inline uint32_t smem(const void *p)
{
    return (uint32_t)((const char *)p - emu::cur->block->dyn);
}

/* ---- cp.async ---- */
void cp_async(void *dst, const void *src, unsigned bytes, bool valid, const char *file, int line);
inline void cp_async16(void *dst, const void *src, bool valid = true, EMU_AT)
{
    cp_async(dst, src, 16, valid, file, line);
}
inline void cp_async_commit()
{
    unsigned n = (unsigned)emu::cur->copies.size();
    for (unsigned g : emu::cur->groups)
        n -= g;
    emu::Quiet q;
    emu::cur->groups.push_back(n);
}
void cp_async_finish(unsigned left);
template <int N> inline void cp_async_wait()
{
    cp_async_finish(N);
}

/* ---- ldmatrix, mma ---- */
void ldmatrix4(uint32_t *r, const void *row, bool trans, const char *file, int line);
inline void ldmatrix_x4(uint32_t (&r)[4], const void *row, EMU_AT)
{
    ldmatrix4(r, row, false, file, line);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, EMU_AT)
{
    ldmatrix4(r, row, true, file, line);
}
void mma16(float *d, const uint32_t *a, const uint32_t *b, bool bf, const char *file, int line);
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], EMU_AT)
{
    mma16(d, a, b, true, file, line);
}
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], EMU_AT)
{
    mma16(d, a, b, false, file, line);
}

/* ---- mbarrier, TMA, wgmma ---- */
void mbar_init(uint64_t *b, unsigned n);
inline void mbar_fence_init()
{
}
void mbar_step(uint64_t *b, int arrivals, int bytes, const char *file, int line);
inline void mbar_arrive(uint64_t *b, EMU_AT)
{
    mbar_step(b, 1, 0, file, line);
}
inline void mbar_expect_tx(uint64_t *b, unsigned bytes, EMU_AT)
{
    mbar_step(b, 1, (int)bytes, file, line);
}
void mbar_wait(uint64_t *b, unsigned parity, EMU_AT);
void tma_load_2d(void *dst, const CUtensorMap *m, int x, int y, uint64_t *b, EMU_AT);
void wgmma_fence(EMU_AT);
void wgmma_commit(EMU_AT);
void wgmma_finish(unsigned left, const char *file, int line);
template <int N> inline void wgmma_wait(EMU_AT)
{
    wgmma_finish(N, file, line);
}
inline void wgmma_hold(float (&)[32])
{
}
inline void fence_async()
{
}
void wgmma64(float *d, const uint32_t *a, uint64_t da, uint64_t db, int scale_d, const char *file,
             int line, bool b_rows = false);
inline void wgmma_m64n64k16(float (&d)[32], uint64_t da, uint64_t db, int scale_d, EMU_AT)
{
    wgmma64(d, nullptr, da, db, scale_d, file, line);
}
inline void wgmma_m64n64k16_ra(float (&d)[32], const uint32_t (&a)[4], uint64_t db, int scale_d,
                               EMU_AT)
{
    wgmma64(d, a, 0, db, scale_d, file, line);
}
inline void wgmma_m64n64k16_ra_bt(float (&d)[32], const uint32_t (&a)[4], uint64_t db, int scale_d,
                                  EMU_AT)
{
    wgmma64(d, a, 0, db, scale_d, file, line, true);
}
template <int N> inline void setmaxnreg_inc()
{
}
template <int N> inline void setmaxnreg_dec()
{
}
inline void pdl_wait()
{
}
inline void pdl_launch()
{
}
} // namespace ptx

#endif
