/* The scheduler of the emulation: blocks of fibers, barriers, collectives, poison. See emu.h. One kernel runs at a time,
 * on the thread that drives the stream it was launched on. */
#include "cuda/emu.h"

#include <algorithm>
#include <sys/mman.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
void AnnotateIgnoreReadsBegin(const char *, int);
void AnnotateIgnoreReadsEnd(const char *, int);
void AnnotateIgnoreWritesBegin(const char *, int);
void AnnotateIgnoreWritesEnd(const char *, int);
}
#endif

/* Saves the callee-saved registers on the stack, exchanges stacks, restores. */
extern "C" void emu_swap(void **save, void *load);
#if defined(__x86_64__)
asm(".text\n.type emu_swap,@function\nemu_swap:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
    ".size emu_swap,.-emu_swap\n");
#define SWAP_WORDS 6
#elif defined(__aarch64__)
asm(".text\n.type emu_swap,%function\nemu_swap:\n"
    " sub sp,sp,#160\n stp x19,x20,[sp]\n stp x21,x22,[sp,#16]\n stp x23,x24,[sp,#32]\n stp "
    "x25,x26,[sp,#48]\n"
    " stp x27,x28,[sp,#64]\n stp x29,x30,[sp,#80]\n stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n"
    " stp d12,d13,[sp,#128]\n stp d14,d15,[sp,#144]\n mov x9,sp\n str x9,[x0]\n mov sp,x1\n"
    " ldp x19,x20,[sp]\n ldp x21,x22,[sp,#16]\n ldp x23,x24,[sp,#32]\n ldp x25,x26,[sp,#48]\n"
    " ldp x27,x28,[sp,#64]\n ldp x29,x30,[sp,#80]\n ldp d8,d9,[sp,#96]\n ldp d10,d11,[sp,#112]\n"
    " ldp d12,d13,[sp,#128]\n ldp d14,d15,[sp,#144]\n add sp,sp,#160\n ret\n"
    ".size emu_swap,.-emu_swap\n");
#define SWAP_WORDS 20
#else
#error "the emulation switches fibers on x86-64 and aarch64 only"
#endif

#if defined(__SANITIZE_ADDRESS__)
#define STACK_BYTES (256u << 10)
#elif defined(__SANITIZE_THREAD__)
#define STACK_BYTES (128u << 10)
#define CAN_RACE    true
#else
#define STACK_BYTES (64u << 10)
#endif
#ifndef CAN_RACE
#define CAN_RACE false
#endif
#define GUARD_BYTES      4096u
#define DETECTOR_THREADS 1024u  /* fibers that the race detector tells apart */
#define IDLE_ROUNDS      20000u /* in which every thread only spins: nothing will come any more */

namespace emu
{
static Fiber root;
Fiber *cur = &root;
launch_cfg cfg;
emu_stats stats;

static std::vector<Fiber *> &pool =
    *new std::vector<Fiber *>; /* kept for the life of the process */
static std::vector<Fiber *> ready, yielded;
static std::vector<Block> blocks;   /* resident now */
static std::vector<void *> garbage; /* of the resident blocks */
static std::function<void()> body;
struct Later {
    std::function<void()> run;
    uint64_t token;
};
static std::vector<Later *> pending;
#if defined(__SANITIZE_THREAD__)
static Fiber *copier; /* the copy engine */
#endif
static unsigned live;
static uint64_t idle;
static uint64_t token_start, token_end, token_fence;

enum Order { FORWARD, REVERSE, RANDOM };
static Order order = FORWARD;
static uint64_t seed = 1;

bool order_random()
{
    return order == RANDOM;
}
uint64_t order_next()
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed >> 11;
}

#if defined(__SANITIZE_THREAD__)
Quiet::Quiet()
{
    AnnotateIgnoreReadsBegin("", 0);
    AnnotateIgnoreWritesBegin("", 0);
}
Quiet::~Quiet()
{
    AnnotateIgnoreWritesEnd("", 0);
    AnnotateIgnoreReadsEnd("", 0);
}
void acquire(void *p)
{
    __tsan_acquire(p);
}
void release(void *p)
{
    __tsan_release(p);
}
#else
Quiet::Quiet()
{
}
Quiet::~Quiet()
{
}
void acquire(void *)
{
}
void release(void *)
{
}
#endif

void die(const char *what, const char *file, int line)
{
    uint3 b = cur->block ? cur->block->id : uint3{0, 0, 0};
    fprintf(stderr, "emu: %s at %s:%d, block (%u,%u,%u) thread %u\n", what, file, line, b.x, b.y,
            b.z, cur->linear);
    fflush(stderr);
    abort();
}

[[noreturn]] static void deadlock()
{
    fprintf(stderr, "emu: deadlock, %u threads left and none can run:\n", live);
    for (Block &b : blocks) {
        Fiber *first = nullptr;
        unsigned n = 0;
        auto tell = [&] {
            if (first)
                fprintf(stderr, "  block (%u,%u,%u): %u threads from %u wait in %s at %s:%d\n",
                        b.id.x, b.id.y, b.id.z, n, first->linear, first->what, first->file,
                        first->line);
        };
        for (Fiber *f : b.fibers) {
            if (f->done)
                continue;
            if (first && f->what == first->what && f->line == first->line) {
                n++;
                continue;
            }
            tell();
            first = f;
            n = 1;
        }
        tell();
    }
    fflush(stderr);
    abort();
}

/* ---- switching ---- */

#if defined(__SANITIZE_ADDRESS__)
static Fiber *came_from;
static size_t root_bytes; /* of the stack of the thread that runs the kernel */
#endif

/* On the new stack. The launching thread may be another one each time, so its stack is noted whenever it is left. */
static void switch_done(void *fake_stack)
{
#if defined(__SANITIZE_ADDRESS__)
    const void *low;
    size_t n;
    __sanitizer_finish_switch_fiber(fake_stack, &low, &n);
    if (came_from == &root) {
        root.stack = (char *)low;
        root_bytes = n;
    }
#else
    (void)fake_stack;
#endif
}

static __attribute__((noinline)) void switch_to(Fiber *to)
{
    Fiber *from = cur;
    void *fake_stack = nullptr;
    if (to == from)
        return;
    cur = to;
    stats.switches++;
#if defined(__SANITIZE_ADDRESS__)
    came_from = from;
    __sanitizer_start_switch_fiber(&fake_stack, to->stack, to == &root ? root_bytes : STACK_BYTES);
#elif defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to->tsan, 1);
#endif
    emu_swap(&from->sp, to->sp);
    switch_done(fake_stack);
}

static void run_later(size_t i)
{
    Later *l = pending[i];
    idle = 0;
    pending.erase(pending.begin() + (long)i);
#if defined(__SANITIZE_THREAD__)
    void *me = cur->tsan;
    __tsan_switch_to_fiber(copier->tsan, 1);
    acquire(&l->token);
    l->run();
    __tsan_switch_to_fiber(me, 1);
#else
    l->run();
#endif
    delete l;
}

/* Who runs next: a ready thread by the order, else the copy engine, else those that spin. */
static Fiber *pick()
{
    for (;;) {
        if (order == RANDOM && !pending.empty() && order_next() % 8 == 0)
            run_later(order_next() % pending.size());
        if (!ready.empty()) {
            size_t i = order == RANDOM ? order_next() % ready.size() : ready.size() - 1;
            Fiber *f = ready[i];
            ready[i] = ready.back();
            ready.pop_back();
            return f;
        }
        if (!pending.empty()) {
            run_later(order == RANDOM ? order_next() % pending.size() : 0);
            continue;
        }
        if (!yielded.empty()) {
            if (++idle > IDLE_ROUNDS)
                deadlock();
            ready.swap(yielded);
            if (order == FORWARD)
                std::reverse(ready.begin(), ready.end());
            continue;
        }
        if (!live)
            return &root;
        deadlock();
    }
}

/* Forward: the lowest thread runs first; `ready` is a stack. */
void wake(Fiber *const *f, unsigned n)
{
    idle = 0;
    if (order == REVERSE) {
        for (unsigned i = 0; i < n; i++)
            if (f[i])
                ready.push_back(f[i]);
    } else {
        for (unsigned i = n; i-- > 0;)
            if (f[i])
                ready.push_back(f[i]);
    }
}

void sleep(const char *what, const char *file, int line)
{
    cur->what = what;
    cur->file = file;
    cur->line = line;
    switch_to(pick());
}

/* Orders nothing: what was waited for may be read only after a fence. */
void yield(const char *file, int line)
{
    Quiet q;
    yielded.push_back(cur);
    sleep("a spin loop", file, line);
}

void fence()
{
    release(&token_fence);
    acquire(&token_fence);
}

void later(std::function<void()> run)
{
    Quiet q;
    Later *l = new Later{std::move(run), 0};
    release(&l->token);
    pending.push_back(l);
}

/* ---- shared memory, barriers, collectives ---- */

/* One allocation a block and array, of exact size for the address sanitizer. */
void *shared(const void *key, size_t bytes)
{
    Quiet q;
    for (auto &p : cur->block->fixed)
        if (p.first == key)
            return p.second;
    void *m = nullptr;
    if (posix_memalign(&m, 128, bytes))
        die("no memory for shared arrays", __FILE__, __LINE__);
    memset(m, 0xFF, bytes);
    cur->block->fixed.push_back({key, m});
    garbage.push_back(m);
    return m;
}

static void barrier_open(Barrier &b)
{
    std::vector<Fiber *> q;
    q.swap(b.waiting);
    for (Fiber *f : q)
        f->value = b.value;
    std::sort(q.begin(), q.end(), [](Fiber *x, Fiber *y) { return x->linear < y->linear; });
    b.arrived = b.need = 0;
    b.value = 0;
    b.phase++;
    stats.barriers++;
    wake(q.data(), (unsigned)q.size());
    q.clear();
    b.waiting.swap(q); /* keeps its memory */
}

int barrier(unsigned id, unsigned count, int pred, bool wait, const char *file, int line)
{
    Fiber *me = cur;
    Barrier &b = me->block->bar[id];
    uint64_t *token;
    {
        Quiet q;
        token = me->block->token + 2 * id + (b.phase & 1);
    }
    release(token);
    {
        Quiet q;
        unsigned need = count ? count : me->block->alive;
        if (b.arrived && count && b.need != count)
            die("a named barrier is used with two counts", file, line);
        if (b.arrived && !count && (b.line != line || strcmp(b.file, file)) && b.file) {
            fprintf(stderr, "emu: threads of a block meet at different barriers: %s:%d and ",
                    b.file, b.line);
            die("__syncthreads", file, line);
        }
        b.need = count;
        b.file = file;
        b.line = line;
        b.arrived++;
        b.value += pred;
        if (wait)
            b.waiting.push_back(me);
        if (b.arrived == need)
            barrier_open(b);
        if (wait)
            sleep(id ? "bar.sync" : "__syncthreads", file, line);
    }
    if (wait)
        acquire(token);
    Quiet q;
    return me->value;
}

Collective *join(unsigned mask, const char *op, const void *in, void *out, const char *file,
                 int line)
{
    Quiet q;
    Fiber *me = cur;
    Warp *w = me->warp;
    Collective *c = nullptr, *empty = nullptr;
    if (!(mask >> me->lane & 1))
        die("the calling lane is not in the mask", file, line);
    for (Collective &o : w->open) {
        if (o.arrived && (o.mask & mask))
            c = &o;
        else if (!o.arrived && !empty)
            empty = &o;
    }
    if (c && (c->mask != mask || c->line != line || (c->op != op && strcmp(c->op, op)) ||
              (c->file != file && strcmp(c->file, file)))) {
        fprintf(stderr, "emu: lanes diverged: %s mask %08x at %s:%d meets ", c->op, c->mask,
                c->file, c->line);
        die(op, file, line);
    }
    if (!c) {
        c = empty;
        if (!c)
            die("too many divergent collectives", file, line);
        c->mask = mask;
        c->op = op;
        c->file = file;
        c->line = line;
        memset(c->fiber, 0, sizeof c->fiber);
    }
    c->in[me->lane] = in;
    c->out[me->lane] = out;
    c->fiber[me->lane] = me;
    c->arrived |= 1u << me->lane;
    stats.collectives++;
    if (c->arrived == (mask & w->alive))
        return c;
    sleep(op, file, line);
    if (!me->last)
        return nullptr;
    me->last = false; /* the lanes that were missing have exited */
    return c;
}

void leave(Collective *c)
{
    Quiet q;
    Fiber *f[32], *me = cur;
    memcpy(f, c->fiber, sizeof f);
    c->arrived = 0;
    if (order == FORWARD) {
        f[me->lane] = nullptr; /* the last to arrive runs on */
        wake(f, 32);
        return;
    }
    const char *op = c->op, *file = c->file;
    int line = c->line;
    wake(f, 32);
    sleep(op, file, line);
}

void group_collective(const char *op, void *arg, const char *file, int line,
                      const std::function<void(WarpGroup &)> &work)
{
    Quiet q;
    Fiber *me = cur;
    WarpGroup *w = me->wg;
    if (w->n && strcmp(w->op, op)) {
        fprintf(stderr, "emu: a warpgroup diverged: %s meets ", w->op);
        die(op, file, line);
    }
    w->op = op;
    w->arg[me->linear % 128] = arg;
    w->fiber[me->linear % 128] = me;
    if (++w->n < 128) {
        sleep(op, file, line);
        return;
    }
    work(*w);
    w->n = 0;
    Fiber *f[128];
    memcpy(f, w->fiber, sizeof f);
    wake(f, 128);
    sleep(op, file, line);
}

/* ---- life of a fiber ---- */

/* Returns when the fiber is given to another thread. */
static void fiber_end()
{
    Quiet q;
    Fiber *me = cur;
    Block *b = me->block;
    Warp *w = me->warp;
    idle = 0;
    me->done = true;
    live--;
    b->alive--;
    w->alive &= ~(1u << me->lane);
    if (!me->copies.empty())
        die("a thread exits with cp.async still in flight", __FILE__, __LINE__);
    for (Collective &c : w->open)
        if (c.arrived && c.arrived == (c.mask & w->alive))
            for (Fiber *f : c.fiber)
                if (f) {
                    f->last = true;
                    ready.push_back(f);
                    break;
                }
    Barrier &s = b->bar[0];
    if (s.arrived && !s.need && s.arrived == b->alive)
        barrier_open(s);
    switch_to(pick());
}

/* A fiber's stack is entered once and never left: the detectors keep a call stack of it that would grow otherwise. */
[[noreturn]] static void fiber_main()
{
    switch_done(nullptr);
    for (;;) {
        acquire(&token_start);
        body();
        release(&token_end);
        fiber_end();
    }
}

static Fiber *fiber_get(size_t i)
{
    while (pool.size() <= i) {
        Fiber *f = new Fiber{};
        char *m = (char *)mmap(nullptr, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED || mprotect(m, GUARD_BYTES, PROT_NONE))
            die("no memory for stacks", __FILE__, __LINE__);
        f->stack = m + GUARD_BYTES;
#if defined(__SANITIZE_THREAD__)
        f->tsan = __tsan_create_fiber(0);
#endif
        /* Tops of stacks that are a power of two apart would all share a few lines of the cache. */
        void **top = (void **)(f->stack + STACK_BYTES - pool.size() % 16 * 320) - 2;
        top[1] = nullptr;
        top[0] = (void *)fiber_main;
        f->sp = top - SWAP_WORDS;
#if defined(__aarch64__)
        ((void **)f->sp)[11] = (void *)fiber_main; /* x30 */
#endif
        pool.push_back(f);
    }
    return pool[i];
}

/* ---- a launch ---- */

static void block_set(Block &b, uint64_t id, unsigned rank, unsigned n_thread, char *dyn,
                      size_t first_fiber)
{
    b.rank = rank;
    b.alive = n_thread;
    b.token = (uint64_t *)calloc(32 + (n_thread + 31) / 32, sizeof *b.token);
    garbage.push_back(b.token);
    b.id = uint3{(unsigned)(id % cfg.grid.x), (unsigned)(id / cfg.grid.x % cfg.grid.y),
                 (unsigned)(id / cfg.grid.x / cfg.grid.y)};
    b.dyn = dyn;
    b.dyn_bytes = cfg.smem;
    b.warps.assign((n_thread + 31) / 32, Warp{});
    b.wgs.assign((n_thread + 127) / 128, WarpGroup{});
    b.fibers.clear();
    b.fixed.clear();
    for (Barrier &r : b.bar)
        r = Barrier{};
    for (unsigned t = 0; t < n_thread; t++) {
        Fiber *f = fiber_get(first_fiber + t);
        f->block = &b;
        f->warp = &b.warps[t / 32];
        f->wg = &b.wgs[t / 128];
        f->lane = t % 32;
        f->linear = t;
        f->done = f->last = false;
        f->copies.clear();
        f->groups.clear();
        f->warp->alive |= 1u << f->lane;
        f->tid =
            uint3{t % cfg.block.x, t / cfg.block.x % cfg.block.y, t / (cfg.block.x * cfg.block.y)};
        b.fibers.push_back(f);
    }
}

/* `resident` blocks at once, from block `first` on. */
static void run_blocks(uint64_t first, unsigned resident, unsigned n_thread,
                       std::vector<char *> &dyn, size_t fiber)
{
    Quiet q; /* also makes the race detector forget who used what is allocated here */
    if (blocks.size() != resident)
        blocks = std::vector<Block>(resident);
    static std::vector<Fiber *> all;
    all.clear();
    for (unsigned r = 0; r < resident; r++) {
        if (CAN_RACE || !dyn[r]) {
            free(dyn[r]);
            if (posix_memalign((void **)&dyn[r], 1024, cfg.smem ? cfg.smem : 1))
                die("no memory for shared memory", __FILE__, __LINE__);
        }
        if (cfg.smem)
            memset(dyn[r], 0xFF, cfg.smem); /* NaN */
        block_set(blocks[r], first + r, r, n_thread, dyn[r], fiber + (size_t)r * n_thread);
        all.insert(all.end(), blocks[r].fibers.begin(), blocks[r].fibers.end());
    }
    live = (unsigned)all.size();
    wake(all.data(), live);
    idle = 0;
    root.what = "launch";
    switch_to(pick());
    if (!pending.empty()) {
        fprintf(stderr, "emu: a block ended with %zu bulk copies in flight\n", pending.size());
        abort();
    }
    for (void *p : garbage)
        free(p);
    garbage.clear();
}

bool config_ok(const launch_cfg &c)
{
    uint64_t nt = (uint64_t)c.block.x * c.block.y * c.block.z,
             nb = (uint64_t)c.grid.x * c.grid.y * c.grid.z;
    return nt && nt <= 1024 && nb && c.grid.y <= 65535 && c.grid.z <= 65535 && c.smem <= 232448 &&
           (c.cluster <= 1 || c.grid.x % (unsigned)c.cluster == 0);
}

/* Runs a whole grid, block by block. Neighbouring blocks run on different fibers, as far as the detector can tell them
 * apart, so that races between blocks show. */
void run(const launch_cfg &c, const std::function<void()> &fn)
{
    unsigned nt = c.block.x * c.block.y * c.block.z;
    uint64_t nb = (uint64_t)c.grid.x * c.grid.y * c.grid.z;
    unsigned resident = c.cooperative ? (unsigned)nb : c.cluster > 1 ? (unsigned)c.cluster : 1;
    size_t lives = 1;
#if defined(__SANITIZE_THREAD__)
    root.tsan = __tsan_get_current_fiber();
    if (!copier) {
        copier = new Fiber{};
        copier->tsan = __tsan_create_fiber(0);
    }
    lives = std::max<size_t>(1, DETECTOR_THREADS / ((size_t)resident * nt));
#endif
    std::vector<char *> dyn(resident);
    cfg = c;
    body = fn;
    stats.launches++;
    release(&token_start);
    std::vector<uint64_t> seq(nb / resident);
    for (size_t i = 0; i < seq.size(); i++)
        seq[i] = order == REVERSE ? seq.size() - 1 - i : i;
    for (size_t i = seq.size(); order == RANDOM && i > 1; i--)
        std::swap(seq[i - 1], seq[order_next() % i]);
    for (uint64_t g : seq)
        run_blocks(g * resident, resident, nt, dyn, g % lives * resident * nt);
    acquire(&token_end);
    for (char *d : dyn)
        free(d);
    body = nullptr;
}
} // namespace emu

void __syncwarp(unsigned mask, const char *file, int line)
{
    uint64_t *token = emu::cur->block->token + 32 + emu::cur->linear / 32;
    emu::release(token);
    emu::collective(mask, "__syncwarp", nullptr, nullptr, file, line, [](emu::Collective &) {});
    emu::acquire(token);
}

void emu_set_order(const char *s)
{
    using namespace emu;
    order = !s || !*s || !strcmp(s, "fwd") ? FORWARD : !strcmp(s, "rev") ? REVERSE : RANDOM;
    if (order == RANDOM)
        seed = strtoull(s, nullptr, 10) * 2654435761u + 88172645463325252ull;
}
