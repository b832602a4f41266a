/* Collectives among 1, 2 and 4 ranks, each a thread with its own stream: values, places in memory, types, and what every
 * rank is told when one does not come, leaves, or asks for something else. On a GPU machine every rank needs its
 * own device, so only as many ranks run as there are devices. */
#include "tests/cuda/cuda_test.h"

#include "cuda/ccl.h"
extern "C" {
#include "cuda/nccl_api.h"
#include "engine/base/mem.h"
}

#include <functional>
#include <future>
#include <mutex>
#include <thread>

static std::mutex report; /* ct_fail counts without a lock */
#define OK(cond)                                                                                   \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            std::lock_guard<std::mutex> g(report);                                                 \
            ct_fail("%s:%d: rank %d of %d: %s: %s", __FILE__, __LINE__, R.rank, R.n, #cond,        \
                    R.e.text);                                                                     \
        }                                                                                          \
    } while (0)

struct Rank {
    int rank, n;
    struct cu_ccl *c;
    cudaStream_t st;
    struct err e;
};

/* fn on ranks 0 .. n_run - 1 of n, all at once; the communicator is open, or null with the reason in e. */
static void ranks(int n, int n_run, int timeout_ms, const std::function<void(Rank &)> &fn)
{
    struct err e = {};
    struct cu_ccl_id id;
    if (cu_ccl_id_make(&id, &e)) {
        ct_fail("id: %s", e.text);
        return;
    }
    std::vector<std::thread> t;
    for (int r = 0; r < n_run; r++)
        t.emplace_back([&, r] {
            Rank R = {r, n, nullptr, nullptr, {}};
#ifdef __CUDACC__
            CT_CUDA(cudaSetDevice(r));
#endif
            CT_CUDA(cudaStreamCreateWithFlags(&R.st, cudaStreamNonBlocking));
            R.c = cu_ccl_open(r, n, &id, timeout_ms, &R.e);
            fn(R);
            cu_ccl_close(R.c);
            CT_CUDA(cudaStreamDestroy(R.st));
        });
    for (auto &x : t)
        x.join();
}

static std::vector<int> counts()
{
    std::vector<int> all = {1, 2, 4}, fit;
    int have = 4;
#ifdef __CUDACC__
    CT_CUDA(cudaGetDeviceCount(&have));
#endif
    for (int n : all)
        if (n <= have)
            fit.push_back(n);
        else
            printf("  %d ranks are not run: %d devices\n", n, have);
    return fit;
}

template <class T>
static struct cu_ccl_args args(const T *send, T *recv, size_t n, cudaStream_t st);
#define ARGS(T, TYPE)                                                                              \
    template <> struct cu_ccl_args args(const T *send, T *recv, size_t n, cudaStream_t st)         \
    {                                                                                              \
        return {send, recv, n, TYPE, st};                                                          \
    }
ARGS(float, CU_CCL_F32)
ARGS(double, CU_CCL_F64)
ARGS(__half, CU_CCL_F16)
ARGS(__nv_bfloat16, CU_CCL_BF16)
ARGS(int32_t, CU_CCL_I32)

/* Equal bits in the emulation, which adds in rank order; a library may add in another. */
template <class T>
static bool equal(const std::vector<T> &a, size_t at, const std::vector<T> &b, size_t from,
                  size_t n)
{
#ifdef __CUDACC__
    for (size_t i = 0; i < n; i++)
        if (!(fabs(ct_double(a[at + i]) - ct_double(b[from + i])) <= 0.05))
            return false;
    return true;
#else
    return !memcmp(&a[at], &b[from], n * sizeof(T));
#endif
}

template <class T> static std::vector<T> data(size_t n, int rank)
{
    return ct_random<T>(n, 100 + (uint64_t)rank, 3);
}

/* What n ranks give, element by element in rank order. */
template <class T, class A> static std::vector<T> reduced(size_t n, int n_rank, bool max)
{
    std::vector<T> out(n);
    std::vector<std::vector<T>> in;
    for (int r = 0; r < n_rank; r++)
        in.push_back(data<T>(n, r));
    for (size_t i = 0; i < n; i++) {
        A acc = (A)ct_double(in[0][i]);
        for (int r = 1; r < n_rank; r++) {
            A x = (A)ct_double(in[(size_t)r][i]);
            acc = max ? std::max(acc, x) : acc + x;
        }
        out[i] = sizeof(T) == 2 ? ct_from<T>((float)acc) : (T)acc;
    }
    return out;
}

/* Puts this rank's data on its stream, late: the collective must wait for them. */
template <class T> static void fill(Rank &R, T *dst, std::vector<T> &host)
{
    CT_CUDA(
        cudaMemcpyAsync(dst, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice, R.st));
}

template <class T, class A> static void reduce_ops(Rank &R, size_t n)
{
    size_t k = (size_t)R.n;
    std::vector<T> in = data<T>(n, R.rank), wide = data<T>(n * k, R.rank);
    for (enum cu_ccl_op op : {CU_CCL_SUM, CU_CCL_MAX}) {
        Dev<T> a(n), b(n), w(n * k);
        std::vector<T> want = reduced<T, A>(n, R.n, op == CU_CCL_MAX);
        struct cu_ccl_args x = args<T>(a.p, b.p, n, R.st), in_place = args<T>(a.p, a.p, n, R.st);
        fill(R, a.p, in);
        OK(!cu_ccl_all_reduce(R.c, &x, op, &R.e) && !cu_ccl_wait(R.c, R.st, &R.e));
        OK(equal(b.get(), 0, want, 0, n));
        OK(equal(a.get(), 0, in, 0, n));
        OK(!cu_ccl_all_reduce(R.c, &in_place, op, &R.e) && !cu_ccl_wait(R.c, R.st, &R.e));
        OK(equal(a.get(), 0, want, 0, n));

        std::vector<T> all = reduced<T, A>(n * k, R.n, op == CU_CCL_MAX);
        fill(R, w.p, wide);
        x = args<T>(w.p, b.p, n, R.st);
        OK(!cu_ccl_reduce_scatter(R.c, &x, op, &R.e) && !cu_ccl_wait(R.c, R.st, &R.e));
        OK(equal(b.get(), 0, all, (size_t)R.rank * n, n));
    }
}

template <class T> static void move_ops(Rank &R, size_t n)
{
    size_t k = (size_t)R.n;
    int next = (R.rank + 1) % R.n, prev = (R.rank + R.n - 1) % R.n;
    std::vector<T> in = data<T>(n, R.rank);
    Dev<T> a(n), b(n), w(n * k);
    fill(R, a.p, in);
    struct cu_ccl_args x = args<T>(a.p, w.p, n, R.st);
    OK(!cu_ccl_all_gather(R.c, &x, &R.e) && !cu_ccl_wait(R.c, R.st, &R.e));
    std::vector<T> got = w.get();
    for (int r = 0; r < R.n; r++)
        OK(equal(got, (size_t)r * n, data<T>(n, r), 0, n));

    int root = R.n - 1;
    x = args<T>(a.p, b.p, n, R.st);
    OK(!cu_ccl_broadcast(R.c, &x, root, &R.e) && !cu_ccl_wait(R.c, R.st, &R.e));
    OK(equal(b.get(), 0, data<T>(n, root), 0, n));

    b.poison(); /* a ring in a group */
    OK(!cu_ccl_group_start(R.c, &R.e));
    OK(!cu_ccl_send(R.c, &x, next, &R.e) && !cu_ccl_recv(R.c, &x, prev, &R.e));
    OK(!cu_ccl_group_end(R.c, &R.e) && !cu_ccl_wait(R.c, R.st, &R.e));
    OK(equal(b.get(), 0, data<T>(n, prev), 0, n));

    b.poison(); /* 0 -> 1, alone */
    if (R.n > 1 && R.rank == 0)
        OK(!cu_ccl_send(R.c, &x, 1, &R.e));
    if (R.rank == 1)
        OK(!cu_ccl_recv(R.c, &x, 0, &R.e));
    OK(!cu_ccl_wait(R.c, R.st, &R.e));
    if (R.rank == 1)
        OK(equal(b.get(), 0, data<T>(n, 0), 0, n));
}

static void all_ops(void)
{
    for (int n : counts())
        ranks(n, n, 20000, [](Rank &R) {
            OK(R.c);
            if (!R.c)
                return;
            for (size_t len : {1, 7, 1000}) {
                reduce_ops<float, float>(R, len);
                reduce_ops<__nv_bfloat16, float>(R, len);
                reduce_ops<__half, float>(R, len);
                reduce_ops<double, double>(R, len);
                reduce_ops<int32_t, int32_t>(R, len);
                move_ops<float>(R, len);
                move_ops<__nv_bfloat16>(R, len);
            }
        });
}

static bool says(const struct err &e, const char *part)
{
    return strstr(e.text, part) != nullptr;
}

static void bad_calls(void)
{
    struct err e = {};
    struct cu_ccl_id id;
    struct nccl_api api;
    CT_CHECK(!cu_ccl_id_make(&id, &e));
    CT_CHECK(!cu_ccl_open(2, 2, &id, 10, &e) && e.code == ERR_INVAL &&
             says(e, "rank 2 of 2: open"));
    CT_CHECK(!cu_ccl_open(0, 1, &id, 0, &e) && e.code == ERR_INVAL);
    mem_fail_after(1, false);
    CT_CHECK(!cu_ccl_open(0, 1, &id, 10, &e) && e.code == ERR_NOMEM);
#ifndef __CUDACC__
    for (long k = 2; k <= 3; k++) { /* inside the emulated library */
        mem_fail_after(k, false);
        CT_CHECK(!cu_ccl_open(0, 1, &id, 10, &e) && says(e, "open: system call failed"));
    }
#endif
    mem_fail_after(0, false);
    CT_CHECK(nccl_api_load("libnccl-not-here.so.2", &api, &e) == ERR_NOTFOUND);
    CT_CHECK(says(e, "libnccl-not-here.so.2") && says(e, "No such file"));
    CT_CHECK(nccl_api_load("libm.so.6", &api, &e) == ERR_NOTFOUND && says(e, "ncclGetUniqueId"));
    ranks(1, 1, 5000, [](Rank &R) {
        Dev<float> a(4);
        struct cu_ccl_args x = args<float>(a.p, a.p, 4, R.st);
        OK(cu_ccl_send(R.c, &x, 1, &R.e) == ERR_INVAL && says(R.e, "send: no rank 1"));
        OK(cu_ccl_broadcast(R.c, &x, -1, &R.e) == ERR_INVAL && says(R.e, "no rank -1"));
        OK(!cu_ccl_all_reduce(R.c, &x, CU_CCL_SUM, &R.e)); /* those aborted nothing */
        x.type = (enum cu_ccl_type)77;
        OK(cu_ccl_all_reduce(R.c, &x, CU_CCL_SUM, &R.e) == ERR_INVAL);
        OK(says(R.e, "rank 0 of 1: all_reduce: invalid argument"));
        OK(cu_ccl_all_gather(R.c, &x, &R.e) == ERR_DEVICE && says(R.e, "error in all_reduce"));
    });
}

#ifndef __CUDACC__
/* The last rank never opens: the others are told which. */
static void never_opens(void)
{
    ranks(4, 3, 400, [](Rank &R) {
        OK(!R.c);
        /* one is late first, and takes the others along */
        OK(R.e.code == ERR_TIMEOUT || R.e.code == ERR_DEVICE);
        OK(says(R.e, ": open: "));
        OK(R.e.code != ERR_TIMEOUT || says(R.e, "not done after 400 ms: rank 3 did not come"));
        OK(R.e.code != ERR_DEVICE || says(R.e, "remote error"));
    });
    ranks(2, 1, 30, [](Rank &R) {
        OK(!R.c && R.e.code == ERR_TIMEOUT && says(R.e, "rank 0 of 2: open: ") &&
           says(R.e, "rank 1 did not come"));
    });
}

/* Rank 1 opens and then does nothing until rank 0 gave up with operation `op`. */
static void never_calls_op(int op)
{
    static const char *const names[] = {"all_reduce", "reduce_scatter", "broadcast",
                                        "send",       "recv",           "group"};
    std::promise<void> gave_up;
    ranks(2, 2, 400, [&](Rank &R) {
        Dev<float> a(8);
        struct cu_ccl_args x = args<float>(a.p, a.p, 4, R.st);
        OK(R.c);
        if (R.rank == 1) {
            gave_up.get_future().wait();
            OK(R.c && cu_ccl_all_reduce(R.c, &x, CU_CCL_SUM, &R.e) == ERR_DEVICE);
            OK(says(R.e, "rank 1 of 2: all_reduce: remote error"));
            return;
        }
        int rc = 0;
        if (op == 0)
            rc = cu_ccl_all_reduce(R.c, &x, CU_CCL_SUM, &R.e);
        else if (op == 1)
            rc = cu_ccl_reduce_scatter(R.c, &x, CU_CCL_SUM, &R.e);
        else if (op == 2)
            rc = cu_ccl_broadcast(R.c, &x, 1, &R.e);
        else if (op == 3)
            rc = cu_ccl_send(R.c, &x, 1, &R.e);
        else if (op == 4)
            rc = cu_ccl_recv(R.c, &x, 1, &R.e);
        else if (!cu_ccl_group_start(R.c, &R.e) && !cu_ccl_recv(R.c, &x, 1, &R.e))
            rc = cu_ccl_group_end(R.c, &R.e);
        OK(rc == ERR_TIMEOUT && says(R.e, names[op]) && says(R.e, "rank 0 of 2"));
        OK(says(R.e, "rank 1 did not come"));
        OK(cu_ccl_wait(R.c, R.st, &R.e) == ERR_DEVICE);
        gave_up.set_value();
    });
}

static void never_calls(void)
{
    std::vector<std::thread> t; /* at once: each is a wait */
    for (int op = 0; op < 6; op++)
        t.emplace_back(never_calls_op, op);
    for (auto &x : t)
        x.join();
}

/* Ranks that ask for different things are told, not mixed up. */
static void disagree(void)
{
    ranks(2, 2, 5000, [](Rank &R) {
        Dev<float> a(8);
        struct cu_ccl_args x = args<float>(a.p, a.p, R.rank ? 4 : 8, R.st);
        OK(cu_ccl_all_reduce(R.c, &x, CU_CCL_SUM, &R.e) == ERR_INVAL);
        OK(says(R.e, "all_reduce: invalid argument"));
    });
    ranks(2, 2, 5000, [](Rank &R) {
        Dev<float> a(8);
        struct cu_ccl_args x = args<float>(a.p, a.p, R.rank ? 4 : 8, R.st);
        int rc = R.rank ? cu_ccl_send(R.c, &x, 0, &R.e) : cu_ccl_recv(R.c, &x, 1, &R.e);
        OK(rc == ERR_INVAL);
    });
}
#endif

#ifdef __CUDACC__
CT_MAIN({"all_ops", all_ops}, {"bad_calls", bad_calls})
#else
CT_MAIN({"all_ops", all_ops}, {"bad_calls", bad_calls}, {"never_opens", never_opens},
        {"never_calls", never_calls}, {"disagree", disagree})
#endif
