/* The PTX instructions that our kernels use: inline assembly for nvcc here, the same per-lane meaning for g++ in
 * ptx_emu.h. Fragment layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16" and its siblings. Nothing else in the tree
 * holds inline assembly. */
#ifndef CUDA_PTX_CUH
#define CUDA_PTX_CUH

#include "cuda/cu.h"

#ifndef __CUDACC__
#include "cuda/ptx_emu.h"
#else
#define PTX __device__ __forceinline__
namespace ptx
{
PTX uint32_t smem(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from global to shared memory, late: zeros when !valid (src is not read). Both 16-aligned. */
PTX void cp_async16(void *dst, const void *src, bool valid = true)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem(dst)), "l"(src),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
PTX void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> PTX void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Four 8x8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8. */
PTX void ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem(row))
                 : "memory");
}
PTX void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem(row))
                 : "memory");
}

/* D[16,8] += A[16,16] B[16,8] */
PTX void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
PTX void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PTX90(...) asm volatile(__VA_ARGS__)
#else
#define PTX90(...) __trap()
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PTX90A(...) asm volatile(__VA_ARGS__)
#else
#define PTX90A(...) __trap()
#endif

/* ---- mbarrier, TMA, wgmma: compute capability 9.0 ---- */
PTX void mbar_init(uint64_t *b, unsigned n)
{
    PTX90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem(b)), "r"(n) : "memory");
}
PTX void mbar_fence_init()
{
    PTX90("fence.mbarrier_init.release.cluster;" ::: "memory");
}
PTX void mbar_arrive(uint64_t *b)
{
    PTX90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem(b)) : "memory");
}
PTX void mbar_expect_tx(uint64_t *b, unsigned bytes)
{
    PTX90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(b)), "r"(bytes)
          : "memory");
}
/* Until the phase of that parity is complete. */
PTX void mbar_wait(uint64_t *b, unsigned parity)
{
    PTX90("{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra "
          "D;\nbra W;\nD:\n}" ::"r"(smem(b)),
          "r"(parity)
          : "memory");
}
/* A box of the tensor map at (x, y) to shared memory; completes bytes on b. */
PTX void tma_load_2d(void *dst, const CUtensorMap *m, int x, int y, uint64_t *b)
{
    PTX90("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
          "{%3, %4}], [%2];" ::"r"(smem(dst)),
          "l"(m), "r"(smem(b)), "r"(x), "r"(y)
          : "memory");
}
PTX void wgmma_fence()
{
    PTX90A("wgmma.fence.sync.aligned;" ::: "memory");
}
PTX void wgmma_commit()
{
    PTX90A("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> PTX void wgmma_wait()
{
    PTX90A("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* This thread's finished writes to shared memory become visible to wgmma and TMA (before the barrier that hands them on). */
PTX void fence_async()
{
    PTX90("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Holds the order of the accumulators' other uses against a wgmma_fence or wgmma_wait beside it. */
PTX void wgmma_hold(float (&d)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> PTX void setmaxnreg_inc()
{
    PTX90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> PTX void setmaxnreg_dec()
{
    PTX90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
#define PTX_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
/* D[64,64] (+)= A[64,16] B[64,16]^T, both in shared memory by descriptor; scale_d 0 starts from nothing. */
PTX void wgmma_m64n64k16(float (&d)[32], uint64_t da, uint64_t db, int scale_d)
{
    PTX90A("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
           "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
           "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
           "%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, "
           "1, 0, 0;\n}"
           : PTX_F4(0), PTX_F4(4), PTX_F4(8), PTX_F4(12), PTX_F4(16), PTX_F4(20), PTX_F4(24),
             PTX_F4(28)
           : "l"(da), "l"(db), "r"(scale_d));
}
/* The same with A in registers: each warp's 16 rows as an mma.m16n8k16 A fragment. */
PTX void wgmma_m64n64k16_ra(float (&d)[32], const uint32_t (&a)[4], uint64_t db, int scale_d)
{
    PTX90A("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
           "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
           "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
           "%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
           "{%32,%33,%34,%35}, %36, p, 1, 1, 0;"
           "\n}"
           : PTX_F4(0), PTX_F4(4), PTX_F4(8), PTX_F4(12), PTX_F4(16), PTX_F4(20), PTX_F4(24),
             PTX_F4(28)
           : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db), "r"(scale_d));
}
/* And with B[16,64] as it is, rows of 64 values (MN-major): wgmma_desc of its first row. */
PTX void wgmma_m64n64k16_ra_bt(float (&d)[32], const uint32_t (&a)[4], uint64_t db, int scale_d)
{
    PTX90A("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
           "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
           "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
           "%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
           "{%32,%33,%34,%35}, %36, p, 1, 1, 1;"
           "\n}"
           : PTX_F4(0), PTX_F4(4), PTX_F4(8), PTX_F4(12), PTX_F4(16), PTX_F4(20), PTX_F4(24),
             PTX_F4(28)
           : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db), "r"(scale_d));
}
#undef PTX_F4

/* Programmatic dependent launch: wait for the kernels before; let the next one start. */
PTX void pdl_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
PTX void pdl_launch()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
} // namespace ptx
#endif

namespace ptx
{
/* wgmma operand in shared memory, K-major, 128-byte swizzle, rows of 64 16-bit values, 1024 bytes between groups of 8
 * rows (PTX ISA, "Matrix Descriptor Format"). */
PTX uint64_t wgmma_desc(const void *p)
{
    return (uint64_t)(smem(p) >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
} // namespace ptx

/* A map of row-major 16-bit values [h, w], `pitch` bytes from row to row, read in boxes [bh, bw] with a 128-byte
 * swizzle; out of bounds reads as zero. Host. */
cudaError_t cu_tensormap_2d(CUtensorMap *m, const void *base, uint64_t w, uint64_t h,
                            uint64_t pitch, uint32_t bw, uint32_t bh);

#endif
