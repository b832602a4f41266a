/* The runtime under the backend: streams, events, graphs, errors. On a GPU the first half shows that NVIDIA's runtime
 * does what the stand-in claims; the rest is what the stand-in adds: it runs things late and in any legal order, and
 * calls fail on request. */
#include "tests/cuda/cuda_test.h"

/* *dst = 10 * *src + digit: what has run, in which order, can be read from the digits. */
static __global__ void k_digit(int *dst, const int *src, int digit)
{
    *dst = 10 * *src + digit;
}
static cudaError_t digit(cudaStream_t s, int *dst, const int *src, int d)
{
    return launch({dim3(1), dim3(1), 0, s, 0, false, false}, k_digit, dst, src, d);
}

struct Stream {
    cudaStream_t s = nullptr;
    Stream()
    {
        CT_CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    }
    ~Stream()
    {
        cudaStreamDestroy(s);
    }
    operator cudaStream_t() const
    {
        return s;
    }
};
struct Event {
    cudaEvent_t e = nullptr;
    Event()
    {
        CT_CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    }
    ~Event()
    {
        cudaEventDestroy(e);
    }
    operator cudaEvent_t() const
    {
        return e;
    }
};
struct Pinned {
    int *p = nullptr;
    explicit Pinned(int v)
    {
        CT_CUDA(cudaMallocHost((void **)&p, sizeof *p));
        *p = v;
    }
    ~Pinned()
    {
        cudaFreeHost(p);
    }
};

static void stream_case()
{
    Stream s;
    Dev<int> d(std::vector<int>{0});
    Pinned in(4), out(0);
    CT_CUDA(cudaMemcpyAsync(d.p, in.p, sizeof(int), cudaMemcpyHostToDevice, s));
    for (int i = 1; i <= 5; i++)
        CT_CUDA(digit(s, d.p, d.p, i));
    CT_CUDA(cudaMemcpyAsync(out.p, d.p, sizeof(int), cudaMemcpyDeviceToHost, s));
    CT_CUDA(cudaStreamSynchronize(s));
    CT_CHECK(*out.p == 412345);
    CT_CHECK(cudaStreamQuery(s) == cudaSuccess);
    CT_CUDA(cudaMemsetAsync(d.p, 1, sizeof(int), s));
    int pageable = 0; /* is there when the call returns */
    CT_CUDA(cudaMemcpyAsync(&pageable, d.p, sizeof(int), cudaMemcpyDeviceToHost, s));
    CT_CHECK(pageable == 0x01010101);
    pageable = 7; /* read before the call returns */
    CT_CUDA(cudaMemcpyAsync(d.p, &pageable, sizeof(int), cudaMemcpyHostToDevice, s));
    pageable = 8;
    CT_CUDA(cudaStreamSynchronize(s));
    CT_CHECK(d.get()[0] == 7);
}

static void note(void *arg)
{
    int *v = (int *)arg;
    v[1] = v[0];
}
static void event_case()
{
    Stream a, b;
    Event e, never;
    Dev<int> x(std::vector<int>{0}), y(std::vector<int>{0});
    CT_CUDA(cudaStreamWaitEvent(b, never, 0)); /* never recorded: no wait */
    CT_CHECK(cudaEventQuery(never) == cudaSuccess);
    for (int i = 1; i <= 4; i++) { /* to and fro, one event again and again */
        CT_CUDA(digit(a, x.p, y.p, i));
        CT_CUDA(cudaEventRecord(e, a));
        CT_CUDA(cudaStreamWaitEvent(b, e, 0));
        CT_CUDA(digit(b, y.p, x.p, 0));
        CT_CUDA(cudaEventRecord(e, b));
        CT_CUDA(cudaStreamWaitEvent(a, e, 0));
    }
    CT_CUDA(cudaEventSynchronize(e));
    CT_CHECK(y.get()[0] == 10203040);
    int said[2] = {5, 0};
    CT_CUDA(cudaLaunchHostFunc(a, note, said));
    CT_CUDA(cudaEventRecord(e, a));
    cudaError_t q = cudaErrorNotReady;
    for (int i = 0; i < 1000000 && q == cudaErrorNotReady; i++)
        q = cudaEventQuery(e);
    CT_CHECK(q == cudaSuccess && said[1] == 5);
}

static void graph_case()
{
    Stream s;
    Dev<int> d(std::vector<int>{0}), by(std::vector<int>{1});
    cudaGraph_t g = nullptr;
    cudaGraphExec_t x = nullptr;
    CT_CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CT_CUDA(digit(s, d.p, d.p, 1));
    CT_CUDA(cudaMemcpyAsync(by.p, d.p, sizeof(int), cudaMemcpyDeviceToDevice, s));
    CT_CUDA(digit(s, d.p, by.p, 2));
    CT_CUDA(cudaStreamEndCapture(s, &g));
    CT_CHECK(d.get()[0] == 0); /* recorded, not run */
    CT_CUDA(cudaGraphInstantiate(&x, g, 0));
    CT_CUDA(cudaGraphDestroy(g)); /* the executable one lives on */
    for (int i = 0; i < 3; i++)
        CT_CUDA(cudaGraphLaunch(x, s));
    CT_CUDA(cudaStreamSynchronize(s));
    CT_CHECK(d.get()[0] == 121212 && by.get()[0] == 12121);
    CT_CUDA(cudaGraphExecDestroy(x));

    void *p = nullptr; /* what must not be captured ends the capture */
    CT_CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    CT_CHECK(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported);
    CT_CHECK(cudaStreamEndCapture(s, &g) == cudaErrorStreamCaptureInvalidated && !g);
    CT_CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    CT_CHECK(cudaMalloc(&p, 16) == cudaErrorStreamCaptureUnsupported);
    CT_CHECK(cudaStreamEndCapture(s, &g) == cudaErrorStreamCaptureInvalidated && !g);
    cudaGetLastError();
    CT_CUDA(digit(s, d.p, by.p, 3)); /* the stream goes on */
    CT_CUDA(cudaStreamSynchronize(s));
    CT_CHECK(d.get()[0] == 121213);
}

static void misuse_case()
{
    void *p = (void *)1;
    cudaGetLastError();
    CT_CHECK(launch({dim3(1), dim3(2000), 0, 0, 0, false, false}, k_digit, (int *)p, (const int *)p,
                    0) == cudaErrorInvalidConfiguration);
    CT_CHECK(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
    CT_CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CT_CHECK(cudaGetLastError() == cudaSuccess); /* not sticky */
    CT_CHECK(
        !strcmp(cudaGetErrorName(cudaErrorInvalidConfiguration), "cudaErrorInvalidConfiguration"));
    CT_CHECK(cudaMalloc(&p, (size_t)1 << 60) == cudaErrorMemoryAllocation);
    cudaGetLastError();
    CT_CHECK(cudaFree(nullptr) == cudaSuccess);
    size_t before, left, total;
    CT_CUDA(cudaMemGetInfo(&before, &total));
    CT_CUDA(cudaMalloc(&p, 32 << 20));
    CT_CUDA(cudaMemGetInfo(&left, &total));
    CT_CHECK(left + (32 << 20) <= before && before <= total);
    CT_CUDA(cudaFree(p));
}

#ifndef __CUDACC__
/* ---- what the stand-in adds ---- */

/* Pinned memory is read when the copy runs, and some orders run it late. */
static void late_case()
{
    int late = 0, early = 0;
    for (int seed = 0; seed < 20; seed++) {
        emu_set_order(std::to_string(seed).c_str());
        Stream s;
        Dev<int> d(std::vector<int>{0});
        Pinned in(1);
        CT_CUDA(cudaMemcpyAsync(d.p, in.p, sizeof(int), cudaMemcpyHostToDevice, s));
        *in.p = 2;
        CT_CUDA(cudaStreamSynchronize(s));
        (d.get()[0] == 2 ? late : early)++;
    }
    CT_CHECK(late > 0 && early > 0);
}

/* One stream writes what another reads: right under every seed with an event between, wrong under some without. */
static int wrong_orders(bool with_event)
{
    int wrong = 0;
    for (int seed = 0; seed < 20; seed++) {
        emu_set_order(std::to_string(seed).c_str());
        Stream a, b;
        Event e;
        Dev<int> x(std::vector<int>{0}), y(std::vector<int>{0});
        for (int i = 1; i < 4; i++)
            CT_CUDA(digit(a, x.p, x.p, i));
        CT_CUDA(cudaEventRecord(e, a));
        if (with_event)
            CT_CUDA(cudaStreamWaitEvent(b, e, 0));
        CT_CUDA(digit(b, y.p, x.p, 9));
        CT_CUDA(cudaDeviceSynchronize());
        wrong += y.get()[0] != 1239;
    }
    return wrong;
}
static void race_case()
{
    CT_CHECK(wrong_orders(true) == 0);
    CT_CHECK(wrong_orders(false) > 0);
}

static void fail_case()
{
    void *p = nullptr, *q = nullptr;
    Stream s;
    Dev<int> d(std::vector<int>{0});
    CT_CHECK(emu_rt_fail("weather", 1) == -1);
    emu_rt_fail("alloc", 2);
    CT_CHECK(cudaMalloc(&p, 8) == cudaSuccess && cudaMalloc(&q, 8) == cudaErrorMemoryAllocation);
    CT_CHECK(!q && cudaGetLastError() == cudaErrorMemoryAllocation);
    CT_CHECK(cudaMalloc(&q, 8) == cudaSuccess); /* once */
    CT_CHECK(cudaFree(p) == cudaSuccess && cudaFree(q) == cudaSuccess);
    emu_rt_fail("launch", 3);
    CT_CHECK(digit(s, d.p, d.p, 1) == cudaSuccess && digit(s, d.p, d.p, 2) == cudaSuccess);
    CT_CHECK(digit(s, d.p, d.p, 3) == cudaErrorLaunchFailure);
    CT_CHECK(cudaStreamSynchronize(s) == cudaSuccess && d.get()[0] == 12);
    emu_rt_fail("copy", 1);
    CT_CHECK(cudaMemcpyAsync(d.p, d.p, 4, cudaMemcpyDeviceToDevice, s) != cudaSuccess);
    cudaGetLastError();

    emu_rt_fail("async", 1);
    CT_CHECK(digit(s, d.p, d.p, 4) == cudaSuccess); /* it is the wait that tells */
    CT_CHECK(cudaStreamSynchronize(s) == cudaErrorLaunchFailure);
    CT_CHECK(digit(s, d.p, d.p, 5) == cudaErrorLaunchFailure); /* and everything after */
    CT_CHECK(cudaMalloc(&p, 8) == cudaErrorLaunchFailure && !p);
    CT_CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
    CT_CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    CT_CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    emu_rt_fail("async", 0);
    CT_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
}

static void count_case()
{
    struct emu_stats a, b;
    const size_t live = emu_rt_live();
    emu_rt_stats(&a);
    {
        Stream s;
        Event e;
        Pinned h(0);
        void *p;
        CT_CUDA(cudaMalloc(&p, 64));
        CT_CHECK(*(unsigned *)p == ~0u); /* poison */
        CT_CUDA(cudaMemsetAsync(p, 0, 64, s));
        CT_CUDA(digit(s, (int *)p, (int *)p, 1));
        CT_CUDA(cudaMemcpyAsync(h.p, p, 4, cudaMemcpyDeviceToHost, s));
        CT_CUDA(cudaStreamSynchronize(s));
        CT_CHECK(emu_rt_live() == live + 4);
        CT_CHECK(cudaFree((char *)p + 8) == cudaErrorInvalidValue); /* not what malloc gave */
        CT_CUDA(cudaFree(p));
        CT_CHECK(cudaFree(p) == cudaErrorInvalidValue);
        cudaGetLastError();
    }
    emu_rt_stats(&b);
    CT_CHECK(emu_rt_live() == live);
    CT_CHECK(b.launches - a.launches == 1 && b.copies - a.copies == 1 && b.syncs - a.syncs == 1);
    CT_CHECK(b.mallocs - a.mallocs == 2 && b.frees - a.frees == 2);
}
CT_MAIN({"streams", stream_case}, {"events", event_case}, {"graphs", graph_case},
        {"misuse", misuse_case}, {"late copies", late_case}, {"missing event wait", race_case},
        {"failures", fail_case}, {"counters", count_case})
#else
CT_MAIN({"streams", stream_case}, {"events", event_case}, {"graphs", graph_case},
        {"misuse", misuse_case})
#endif
