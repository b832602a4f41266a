/* What every kernel file includes: the CUDA language by nvcc, or its twin by g++ (emu.h), and one way to launch.
 * Rules for kernels, so that both compile the same source (the emulation enforces most of them):
 *  - launch only by launch(cfg, kernel, args...); shared memory only by DYN_SHARED(T, p) and SHARED(T, x, [N]);
 *  - inline PTX only in ptx.cuh; collectives with full masks in converged code: predicate the data, not the call;
 *  - 16-byte accesses through an aligned vector type; predicate addresses, never form wild ones;
 *  - flags and counters by atomics on every access, with __threadfence() on both sides; SPIN_HINT() in a spin loop;
 *  - no cooperative_groups, CUB, cuda/std, nor __device__ lambdas. */
#ifndef CUDA_CU_H
#define CUDA_CU_H

#ifdef __CUDACC__
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "cuda/launch.h"
#else
#include "cuda/emu.h"
#endif

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define DYN_SHARED(T, name)                                                                        \
    extern __shared__ __align__(1024) unsigned char cu_dyn_shared[];                               \
    T *name = reinterpret_cast<T *>(cu_dyn_shared)
#define SHARED(T, name, ...) __shared__ T name __VA_ARGS__
#define SPIN_HINT()          __nanosleep(32)

template <class... P, class... A>
inline cudaError_t launch(const launch_cfg &c, void (*kernel)(P...), A &&...args)
{
    if (c.smem > 48 * 1024) {
        cudaError_t e = cudaFuncSetAttribute(
            (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c.smem);
        if (e != cudaSuccess)
            return e;
    }
    cudaLaunchAttribute at[3];
    unsigned n = 0;
    if (c.cluster > 1) {
        at[n].id = cudaLaunchAttributeClusterDimension;
        at[n].val.clusterDim.x = (unsigned)c.cluster;
        at[n].val.clusterDim.y = at[n].val.clusterDim.z = 1;
        n++;
    }
    if (c.cooperative) {
        at[n].id = cudaLaunchAttributeCooperative;
        at[n++].val.cooperative = 1;
    }
    if (c.pdl) {
        at[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        at[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = c.grid;
    cfg.blockDim = c.block;
    cfg.dynamicSmemBytes = c.smem;
    cfg.stream = c.stream;
    cfg.attrs = at;
    cfg.numAttrs = n;
    return cudaLaunchKernelEx(&cfg, kernel, static_cast<P>(args)...);
}
#endif

#endif
