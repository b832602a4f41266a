/* The stand-in for the CUDA runtime. See emu_rt.h. Entries of a stream run when something waits for them (or, under a
 * seed, some of them at once); among streams in a random order then. One lock; callbacks and kernels run inside it on
 * the waiting thread, so a callback must not call the runtime (NVIDIA forbids it too). */
#include "cuda/emu.h"

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace emu
{
bool order_random();
uint64_t order_next();
bool config_ok(const launch_cfg &c);
void run(const launch_cfg &c, const std::function<void()> &fn);
} // namespace emu

struct emu_event {
    uint64_t wanted = 0, done = 0; /* records asked for, and reached */
    std::chrono::steady_clock::time_point at;
};
struct Entry {
    std::function<cudaError_t()> run;
    emu_event *wait = nullptr; /* not before this event has reached `ticket` */
    uint64_t ticket = 0;
};
struct emu_graph {
    std::vector<Entry> nodes;
    bool relaxed = false, broken = false; /* broken: a call that must not be captured was made */
};
struct emu_graph_exec {
    std::vector<Entry> nodes;
};
struct emu_stream {
    std::deque<Entry> queue;
    emu_graph *capture = nullptr;
};

namespace
{
struct Fail {
    const char *kind;
    long left; /* the call that fails; 0 = none */
};
struct Runtime {
    std::recursive_mutex lock;
    emu_stream legacy; /* stream 0 */
    std::vector<emu_stream *> streams{&legacy};
    std::map<void *, size_t> device, host;
    size_t device_bytes = 0, events = 0, graphs = 0;
    cudaError_t sticky = cudaSuccess, last = cudaSuccess;
    bool async_due = false;
    Fail fail[4] = {{"alloc", 0}, {"launch", 0}, {"copy", 0}, {"async", 0}};
    Runtime()
    {
        const char *order = getenv("STEPD_EMU_ORDER"), *f = getenv("STEPD_EMU_FAIL");
        if (order)
            emu_set_order(order);
        bool known = !f;
        for (Fail &k : fail) {
            const size_t n = strlen(k.kind);
            if (f && !strncmp(f, k.kind, n) && f[n] == ':') {
                k.left = strtol(f + n + 1, nullptr, 10);
                known = k.left > 0;
            }
        }
        if (!known) {
            fprintf(stderr,
                    "emu: STEPD_EMU_FAIL=%s: want alloc, launch, copy or async, a colon "
                    "and a number from 1\n",
                    f);
            abort();
        }
    }
};
Runtime &rt()
{
    static Runtime *r = new Runtime; /* never destroyed: used at exit */
    return *r;
}
#define LOCK std::lock_guard<std::recursive_mutex> guard(rt().lock)

enum { FAIL_ALLOC, FAIL_LAUNCH, FAIL_COPY, FAIL_ASYNC };
bool fails(int kind)
{
    long &left = rt().fail[kind].left;
    return left > 0 && --left == 0;
}

cudaError_t result(cudaError_t e)
{
    if (e != cudaSuccess)
        rt().last = e;
    return e;
}

bool entry_ready(const Entry &e)
{
    return !e.wait || e.wait->done >= e.ticket;
}

/* Runs the front entry of s, if it may run. */
bool step(emu_stream *s)
{
    if (s->queue.empty() || !entry_ready(s->queue.front()))
        return false;
    Entry e = std::move(s->queue.front());
    s->queue.pop_front();
    cudaError_t rc = rt().sticky == cudaSuccess && e.run ? e.run() : rt().sticky;
    if (rc != cudaSuccess && rt().sticky == cudaSuccess)
        rt().sticky = rc;
    return true;
}

/* Any entry of any stream; false when nothing can run. */
bool step_any()
{
    auto &v = rt().streams;
    size_t at = emu::order_random() ? emu::order_next() % v.size() : 0;
    for (size_t i = 0; i < v.size(); i++)
        if (step(v[(at + i) % v.size()]))
            return true;
    return false;
}

[[noreturn]] void stuck(const char *what)
{
    fprintf(stderr, "emu: %s waits for an event that nothing records\n", what);
    abort();
}

void drain(emu_stream *s, const char *what)
{
    while (!s->queue.empty())
        if (!step_any())
            stuck(what);
}

void drain_all(const char *what)
{
    for (emu_stream *s : rt().streams)
        drain(s, what);
}

cudaError_t waited()
{
    if (rt().async_due && rt().sticky == cudaSuccess)
        rt().sticky = cudaErrorLaunchFailure;
    return result(rt().sticky);
}

emu_stream *stream_of(cudaStream_t s)
{
    return s ? s : &rt().legacy;
}

/* A call that allocates or waits, while a stream is captured: the capture is lost and the call fails. */
bool capturing()
{
    bool any = false;
    for (emu_stream *s : rt().streams)
        if (s->capture && !s->capture->relaxed)
            any = s->capture->broken = true;
    if (any)
        result(cudaErrorStreamCaptureUnsupported);
    return any;
}

cudaError_t push(cudaStream_t st, Entry e)
{
    emu_stream *s = stream_of(st);
    if (s->capture) {
        s->capture->nodes.push_back(std::move(e));
        return cudaSuccess;
    }
    if (rt().sticky != cudaSuccess)
        return result(rt().sticky);
    s->queue.push_back(std::move(e));
    while (emu::order_random() && emu::order_next() % 4 == 0 && step_any())
        ;
    return cudaSuccess;
}

uint64_t n_sync, n_malloc, n_free, n_copy, n_graph;

cudaError_t alloc(void **p, size_t n, std::map<void *, size_t> &map)
{
    *p = nullptr;
    n_malloc++;
    if (capturing())
        return cudaErrorStreamCaptureUnsupported;
    if (rt().sticky != cudaSuccess)
        return result(rt().sticky);
    if (fails(FAIL_ALLOC) || posix_memalign(p, 256, n ? n : 1))
        return result(cudaErrorMemoryAllocation);
    memset(*p, 0xFF, n);
    map[*p] = n;
    return cudaSuccess;
}

cudaError_t release(void *p, std::map<void *, size_t> &map, size_t *bytes)
{
    auto at = map.find(p);
    if (!p)
        return cudaSuccess;
    if (at == map.end())
        return result(cudaErrorInvalidValue);
    drain_all("cudaFree"); /* frees wait, as the real ones do */
    n_free++;
    if (bytes)
        *bytes -= at->second;
    map.erase(at);
    free(p);
    return cudaSuccess;
}

bool in_map(const void *p, const std::map<void *, size_t> &map)
{
    auto at = map.upper_bound(const_cast<void *>(p));
    if (at == map.begin())
        return false;
    --at;
    return (const char *)p < (const char *)at->first + at->second;
}

/* Pageable host memory is read before the call returns, as the real runtime stages it; pinned memory is read late. */
Entry copy_entry(void *dst, const void *src, size_t n, bool from_pageable)
{
    if (!from_pageable)
        return {[=] { return memcpy(dst, src, n), cudaSuccess; }};
    auto keep = std::make_shared<std::vector<char>>((const char *)src, (const char *)src + n);
    return {[=] { return memcpy(dst, keep->data(), n), cudaSuccess; }};
}
} // namespace

namespace emu
{
cudaError_t enqueue_kernel(const launch_cfg &c, std::function<void()> body)
{
    LOCK;
    if (rt().sticky != cudaSuccess && !stream_of(c.stream)->capture)
        return result(rt().sticky);
    if (!config_ok(c))
        return result(cudaErrorInvalidConfiguration);
    if (fails(FAIL_LAUNCH))
        return result(cudaErrorLaunchFailure);
    if (fails(FAIL_ASYNC))
        rt().async_due = true;
    return push(c.stream, {[c, body = std::move(body)] { return run(c, body), cudaSuccess; }});
}
} // namespace emu

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int i)
{
    return i == 0 ? cudaSuccess : result(cudaErrorInvalidValue);
}
cudaError_t cudaGetDevice(int *i)
{
    *i = 0;
    return cudaSuccess;
}

static int capability()
{
    const char *v = getenv("STEPD_EMU_CC");
    int cc = v ? atoi(v) : 90;
    return cc == 80 || cc == 90 || cc == 100 ? cc : 90;
}
static size_t device_total()
{
    const char *v = getenv("STEPD_EMU_MEM");
    return (v ? (size_t)strtoull(v, nullptr, 10) : 8192) << 20;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated device");
    p->totalGlobalMem = device_total();
    p->major = capability() / 10;
    p->minor = capability() % 10;
    p->multiProcessorCount = 4;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int)
{
    *v = a == cudaDevAttrMultiProcessorCount      ? 4
         : a == cudaDevAttrComputeCapabilityMajor ? capability() / 10
                                                  : capability() % 10;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    LOCK;
    *total = device_total();
    *free = *total - (rt().device_bytes < *total ? rt().device_bytes : *total);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t n)
{
    LOCK;
    if (n > device_total() || rt().device_bytes > device_total() - n) {
        *p = nullptr;
        return result(cudaErrorMemoryAllocation);
    }
    cudaError_t e = alloc(p, n, rt().device);
    if (e == cudaSuccess)
        rt().device_bytes += n;
    return e;
}
cudaError_t cudaFree(void *p)
{
    LOCK;
    return release(p, rt().device, &rt().device_bytes);
}
cudaError_t cudaMallocHost(void **p, size_t n)
{
    LOCK;
    return alloc(p, n, rt().host);
}
cudaError_t cudaFreeHost(void *p)
{
    LOCK;
    return release(p, rt().host, nullptr);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind k,
                            cudaStream_t s)
{
    LOCK;
    n_copy++;
    if (fails(FAIL_COPY))
        return result(cudaErrorInvalidValue);
    if (k == cudaMemcpyDeviceToHost && !in_map(dst, rt().host)) { /* into pageable memory: waits */
        cudaError_t e = push(s, copy_entry(dst, src, n, false));
        if (e == cudaSuccess && !stream_of(s)->capture)
            drain(stream_of(s), "cudaMemcpyAsync");
        return e == cudaSuccess ? waited() : e;
    }
    return push(s, copy_entry(dst, src, n, k == cudaMemcpyHostToDevice && !in_map(src, rt().host)));
}
cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind k)
{
    LOCK;
    n_sync++;
    if (capturing())
        return cudaErrorStreamCaptureUnsupported;
    drain_all("cudaMemcpy");
    cudaError_t e = cudaMemcpyAsync(dst, src, n, k, nullptr);
    drain_all("cudaMemcpy");
    return e == cudaSuccess ? waited() : e;
}
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s)
{
    LOCK;
    return push(s, {[=] { return memset(p, v, n), cudaSuccess; }});
}
cudaError_t cudaMemset(void *p, int v, size_t n)
{
    LOCK;
    n_sync++;
    if (capturing())
        return cudaErrorStreamCaptureUnsupported;
    drain_all("cudaMemset");
    cudaError_t e = cudaMemsetAsync(p, v, n, nullptr);
    drain_all("cudaMemset");
    return e == cudaSuccess ? waited() : e;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    LOCK;
    if (rt().sticky != cudaSuccess)
        return result(rt().sticky);
    *s = new emu_stream;
    rt().streams.push_back(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    LOCK;
    if (!s)
        return result(cudaErrorInvalidResourceHandle);
    drain(s, "cudaStreamDestroy");
    auto &v = rt().streams;
    for (size_t i = 0; i < v.size(); i++)
        if (v[i] == s)
            v.erase(v.begin() + (long)i);
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    LOCK;
    n_sync++;
    if (stream_of(s)->capture && capturing())
        return cudaErrorStreamCaptureUnsupported;
    drain(stream_of(s), "cudaStreamSynchronize");
    return waited();
}
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    LOCK;
    step_any();
    return stream_of(s)->queue.empty() ? waited() : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize(void)
{
    LOCK;
    n_sync++;
    if (capturing())
        return cudaErrorStreamCaptureUnsupported;
    drain_all("cudaDeviceSynchronize");
    return waited();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    LOCK;
    *e = new emu_event;
    rt().events++;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    LOCK;
    if (!e)
        return result(cudaErrorInvalidResourceHandle);
    drain_all("cudaEventDestroy");
    delete e;
    rt().events--;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    LOCK;
    uint64_t ticket = ++e->wanted;
    return push(s, {[=] {
                    e->done = ticket;
                    e->at = std::chrono::steady_clock::now();
                    return cudaSuccess;
                }});
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    LOCK;
    return push(s, {nullptr, e, e->wanted});
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    LOCK;
    n_sync++;
    while (e->done < e->wanted && rt().sticky == cudaSuccess)
        if (!step_any())
            stuck("cudaEventSynchronize");
    return waited();
}
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    LOCK;
    step_any();
    return e->done >= e->wanted ? waited() : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    LOCK;
    if (from->done < from->wanted || to->done < to->wanted)
        return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
    LOCK;
    return push(s, {[=] { return fn(arg), cudaSuccess; }});
}

/* ---- graphs: a recorded list ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    LOCK;
    if (!s || s->capture)
        return result(cudaErrorStreamCaptureUnsupported);
    s->capture = new emu_graph;
    s->capture->relaxed = mode == cudaStreamCaptureModeRelaxed;
    rt().graphs++;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    LOCK;
    *g = s ? s->capture : nullptr;
    if (!*g)
        return result(cudaErrorStreamCaptureInvalidated);
    s->capture = nullptr;
    if ((*g)->broken) {
        delete *g;
        *g = nullptr;
        rt().graphs--;
        return result(cudaErrorStreamCaptureInvalidated);
    }
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    LOCK;
    *x = nullptr;
    if (fails(FAIL_ALLOC))
        return result(cudaErrorMemoryAllocation);
    *x = new emu_graph_exec{g->nodes};
    rt().graphs++;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    LOCK;
    n_graph++;
    if (fails(FAIL_LAUNCH))
        return result(cudaErrorLaunchFailure);
    if (fails(FAIL_ASYNC))
        rt().async_due = true;
    for (const Entry &e : x->nodes) {
        cudaError_t rc = push(s, e);
        if (rc != cudaSuccess)
            return rc;
    }
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    LOCK;
    rt().graphs -= g != nullptr;
    delete g;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    LOCK;
    drain_all("cudaGraphExecDestroy");
    rt().graphs -= x != nullptr;
    delete x;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    LOCK;
    cudaError_t e = rt().last;
    rt().last = rt().sticky;
    return e;
}
cudaError_t cudaPeekAtLastError(void)
{
    LOCK;
    return rt().last;
}

static const struct {
    cudaError_t e;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};
const char *cudaGetErrorName(cudaError_t e)
{
    for (auto &r : errors)
        if (r.e == e)
            return r.name;
    return "cudaErrorUnknown";
}
const char *cudaGetErrorString(cudaError_t e)
{
    for (auto &r : errors)
        if (r.e == e)
            return r.text;
    return "unknown error";
}

/* ---- hooks of tests ---- */

int emu_rt_fail(const char *kind, long k)
{
    LOCK;
    for (Fail &f : rt().fail)
        if (!strcmp(f.kind, kind)) {
            f.left = k > 0 ? k : 0;
            if (k <= 0) {
                rt().sticky = rt().last = cudaSuccess;
                rt().async_due = false;
            }
            return 0;
        }
    return -1;
}
void emu_rt_stats(struct emu_stats *out)
{
    LOCK;
    *out = emu::stats;
    out->mallocs = n_malloc;
    out->frees = n_free;
    out->copies = n_copy;
    out->syncs = n_sync;
    out->graph_launches = n_graph;
}
size_t emu_rt_live(void)
{
    LOCK;
    return rt().device.size() + rt().host.size() + rt().events + rt().graphs + rt().streams.size() -
           1;
}
