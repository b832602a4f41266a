/* cu_tensormap_2d (ptx.cuh) for GPUs, by the driver's encoder, which the runtime finds: nothing links against libcuda. The
 * emulation has its own in ptx_emu.cc. */
#include "cuda/ptx.cuh"

#ifdef __CUDACC__
cudaError_t cu_tensormap_2d(CUtensorMap *m, const void *base, uint64_t w, uint64_t h,
                            uint64_t pitch, uint32_t bw, uint32_t bh)
{
    void *fn = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000,
                                                           cudaEnableDefault, &found);
    if (e != cudaSuccess || found != cudaDriverEntryPointSuccess || !fn)
        return e != cudaSuccess ? e : cudaErrorNotSupported;
    const cuuint64_t dim[2] = {w, h}, stride[1] = {pitch};
    const cuuint32_t box[2] = {bw, bh}, step[2] = {1, 1};
    const CUresult r = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(fn)(
        m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void *>(base), dim, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
#endif
