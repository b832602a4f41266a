/* CUDA C++ on the CPU: the twin of the language that nvcc compiles. A block's threads are fibers of one OS thread; a
 * barrier switches between them; a warp collective runs once, in the last lane to arrive, over pointers to all lanes'
 * registers. Shared memory is poisoned at block start. AddressSanitizer and ThreadSanitizer are told of the fibers,
 * so out-of-bounds accesses, and missing barriers or fences (as data races, between blocks too), are found exactly.
 * What it cannot show: timing, bank conflicts of plain loads, coalescing, register pressure, wrong PTX text.
 *
 * Kernels include cu.h; this half is for g++ only. Inner parts for ptx_emu.h are at the end. */
#ifndef CUDA_EMU_H
#define CUDA_EMU_H

#include "cuda/emu_types.h"

#include "cuda/emu_rt.h"

#include "cuda/launch.h"

#include <functional>
#include <stdio.h>
#include <stdlib.h>
#include <tuple>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

/* Where a collective was called: default arguments of every one. */
#define EMU_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace emu
{
struct Fiber;
struct Block;
struct Copy { /* a cp.async that is under way: `dst` holds NaN until it is waited for */
    void *dst;
    const void *src;
    unsigned bytes, valid;
};
struct Collective { /* lanes that wait for the rest of a mask */
    unsigned mask, arrived;
    const char *op, *file;
    int line;
    const void *in[32];
    void *out[32];
    Fiber *fiber[32];
};
struct Warp {
    Collective open[4];
    unsigned alive;
};
struct WarpGroup { /* 128 threads */
    unsigned n;
    const char *op;
    void *arg[128];
    Fiber *fiber[128];
    std::vector<std::vector<std::function<void()>>> groups; /* of wgmma; the last is open */
};
struct Fiber {
    void *sp, *tsan;
    char *stack;
    Block *block;
    Warp *warp;
    WarpGroup *wg;
    uint3 tid;
    unsigned lane, linear;
    bool done, last;
    int value; /* of a barrier that reduces */
    const char *what, *file;
    int line;
    std::vector<Copy> copies;
    std::vector<unsigned> groups; /* copies of each committed group */
};
struct Barrier {
    unsigned arrived, need, phase;
    int value, line;
    const char *file;
    std::vector<Fiber *> waiting;
};
struct Block {
    uint3 id;
    unsigned rank, alive;
    char *dyn; /* dynamic shared memory */
    size_t dyn_bytes;
    Barrier bar[16];
    std::vector<Warp> warps;
    std::vector<WarpGroup> wgs;
    std::vector<Fiber *> fibers;
    std::vector<std::pair<const void *, void *>> fixed; /* SHARED arrays by their key */
    uint64_t
        *token; /* what the race detector's order hangs on: one a barrier phase and one a warp */
};

extern Fiber *cur;
extern launch_cfg cfg; /* of the running kernel */
extern emu_stats stats;

struct Quiet { /* the race detector looks away: bookkeeping, registers that lanes exchange */
    Quiet();
    ~Quiet();
};
void *shared(const void *key, size_t bytes);
void yield(EMU_AT);
void fence();
int barrier(unsigned id, unsigned count, int pred, bool wait, const char *file, int line);
[[noreturn]] void die(const char *what, const char *file, int line);
/* The lane joins: true in the one lane that must run the collective's work (all lanes' registers are in *out) and
 * then call leave(); false when that is done. */
Collective *join(unsigned mask, const char *op, const void *in, void *out, const char *file,
                 int line);
void leave(Collective *c);
cudaError_t enqueue_kernel(const launch_cfg &c, std::function<void()> body);

template <class Fn>
inline void collective(unsigned mask, const char *op, const void *in, void *out, const char *file,
                       int line, Fn &&work)
{
    Collective *c = join(mask, op, in, out, file, line);
    if (!c)
        return;
    {
        Quiet q; /* other lanes' registers */
        work(*c);
    }
    leave(c);
}

/* Out[lane] = in[from(lane)]; an absent or out-of-range source gives poison, a negative one leaves the lane's own. */
template <class T, class From>
inline T exchange(unsigned mask, const char *op, T v, const char *file, int line, From from)
{
    T r = v;
    collective(mask, op, &v, &r, file, line, [&](Collective &c) {
        for (int i = 0; i < 32; i++)
            if (c.arrived >> i & 1) {
                int s = from(i);
                if (s >= 0 && s < 32 && (c.arrived >> s & 1))
                    memcpy(c.out[i], c.in[s], sizeof(T));
                else if (s >= 0)
                    memset(c.out[i], 0xFF, sizeof(T));
            }
    });
    return r;
}
template <class T, class Fn>
inline T reduce(unsigned mask, const char *op, T v, const char *file, int line, Fn fn)
{
    T r = v;
    collective(mask, op, &v, &r, file, line, [&](Collective &c) {
        bool first = true;
        T a{};
        for (int i = 0; i < 32; i++)
            if (c.arrived >> i & 1) {
                a = first ? *(const T *)c.in[i] : fn(a, *(const T *)c.in[i]);
                first = false;
            }
        for (int i = 0; i < 32; i++)
            if (c.arrived >> i & 1)
                *(T *)c.out[i] = a;
    });
    return r;
}

/* ---- for ptx_emu.h ---- */

void acquire(void *token);
void release(void *token);
/* Sleep until another fiber calls wake; what and where are for the deadlock report. */
void sleep(const char *what, const char *file, int line);
void wake(Fiber *const *f, unsigned n);
/* An operation of the copy engine: runs at some later time, in any order. */
void later(std::function<void()> run);
/* All 128 threads of a warpgroup; work runs once. */
void group_collective(const char *op, void *arg, const char *file, int line,
                      const std::function<void(WarpGroup &)> &work);
} // namespace emu

#define threadIdx (emu::cur->tid)
#define blockIdx  (emu::cur->block->id)
#define blockDim  (emu::cfg.block)
#define gridDim   (emu::cfg.grid)
static const int warpSize = 32;

#define DYN_SHARED(T, name) T *name = reinterpret_cast<T *>(emu::cur->block->dyn)
#define SHARED(T, name, ...)                                                                       \
    using name##_type = T __VA_ARGS__;                                                             \
    static char name##_key;                                                                        \
    name##_type &name = *(name##_type *)emu::shared(&name##_key, sizeof(name##_type))
#define SPIN_HINT() emu::yield()

template <class... P, class... A>
inline cudaError_t launch(const launch_cfg &c, void (*kernel)(P...), A &&...a)
{
    std::tuple<std::decay_t<P>...> args(static_cast<P>(a)...);
    return emu::enqueue_kernel(c, [=]() { std::apply(kernel, args); });
}

#include "cuda/emu_math.h"
#include "cuda/emu_warp.h"

#endif
