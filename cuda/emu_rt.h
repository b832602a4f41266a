/* The part of the CUDA runtime API that we use, for builds without the toolkit: NVIDIA's names and meanings, our own
 * declarations. C17 and C++17. emu_rt.cc implements it: device memory is poisoned host memory, a stream is a queue
 * whose entries run late and, under a seed, in a random order that streams and events allow.
 * Stricter than NVIDIA's: no stream waits for stream 0 by itself, whatever its flags. While a stream is captured, in
 * any but relaxed mode, calls that allocate or wait fail and end the capture.
 *
 * Test hooks (exported by the emulated plug-in, absent from the real one):
 *   emu_set_order      thread, block and stream order: "fwd", "rev" or a number (seed); also $STEPD_EMU_ORDER
 *   emu_rt_fail        the k-th call from now on of "alloc", "launch", "copy" or "async" fails ("async": the error
 *                      shows at a later synchronisation and is sticky); also $STEPD_EMU_FAIL = "launch:3".
 *                      k <= 0 takes it back and clears a sticky error, which no real call does
 *   emu_rt_stats       counters since the start
 *   emu_rt_live        what is not yet freed; 0 = everything is
 * $STEPD_EMU_CC = 80 | 90 | 100: the compute capability that is told; 90. $STEPD_EMU_MEM = MiB of device memory. */
#ifndef CUDA_EMU_RT_H
#define CUDA_EMU_RT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#define EMU_API __attribute__((visibility("default")))

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
} cudaError_t;
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_graph_exec *cudaGraphExec_t;
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount;
};
#define cudaStreamNonBlocking  0x01
#define cudaEventDisableTiming 0x02
typedef void (*cudaHostFn_t)(void *arg);

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int i);
cudaError_t cudaGetDevice(int *i);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int i);
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int i);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **p, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **p, size_t n);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind k);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind k,
                            cudaStream_t s);
cudaError_t cudaMemset(void *p, int v, size_t n);
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode m);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);

struct emu_stats {
    uint64_t mallocs, frees, launches, graph_launches, copies, syncs; /* syncs: calls that wait */
    uint64_t switches, collectives, barriers, mma,
        conflicts; /* conflicts: of ldmatrix rows in banks */
};
EMU_API void emu_set_order(const char *order);
EMU_API int emu_rt_fail(const char *kind, long k); /* -1 for an unknown kind */
EMU_API void emu_rt_stats(struct emu_stats *out);
EMU_API size_t emu_rt_live(void);

#ifdef __cplusplus
}
#endif
#endif
