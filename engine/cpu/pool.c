/* See pool.h. A job is published as one 64-bit ticket (job number << 32 | next task); taking a task is a
 * compare-and-swap on it, so a worker that wakes late can never take a task of a job it did not read. There is
 * a ticket for each node of memory; a worker turns to another node's when its own has no task left. The
 * engine thread waits only for tasks, not for workers: a parked worker costs nothing. */
#include "engine/cpu/pool.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/cpu/topo.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Longer than the gaps between the ops of a decode step, shorter than anyone notices on an idle box. */
#define SPIN_US    60
#define CHORE_US   2000 /* without a job: longer than between the steps of running requests */
#define THREAD_MAX 1024

typedef void (*task_fn)(void *arg, int task, int worker);

struct worker {
    struct cpu_pool *pool;
    pthread_t thread;
    int id, lane;
};

/* A node's part of a job: tasks n_task * from / n_thread to n_task * to / n_thread. */
struct lane {
    _Alignas(64) _Atomic uint64_t ticket; /* hammered by all */
    int from, to, node;                   /* workers */
};

struct cpu_pool {
    int n_thread;
    bool pinned; /* the opener's affinity was narrowed: restore it at close */
    cpu_set_t opener_mask;
    struct worker *worker; /* [n_thread]; 0 is the caller and has no thread */
    int n_started;
    uint32_t job; /* engine thread only: number of the current job */
    /* Job description: written while no job is open. */
    _Atomic(task_fn) fn;
    _Atomic(void *) arg;
    atomic_int n_task;
    int n_lane;
    struct lane *lane;                  /* [n_lane] */
    _Alignas(64) _Atomic uint32_t done; /* tasks finished; futex of the engine thread */
    _Atomic uint32_t engine_waits;
    _Alignas(64) _Atomic uint32_t wake; /* low bits of the job number: futex of the workers */
    _Atomic uint32_t n_parked;
    atomic_bool quit;
    atomic_bool chore_taken; /* guards the chore */
    bool (*chore)(void *arg);
    void *chore_arg;
};

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* us 0: no limit. Returns false when the time is over. */
static bool futex_wait(_Atomic uint32_t *word, uint32_t seen, long us)
{
    const struct timespec t = {.tv_nsec = us * 1000};
    return !syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, us ? &t : NULL, NULL, 0) ||
           errno != ETIMEDOUT;
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static uint32_t lane_at(const struct cpu_pool *p, int worker, int n_task)
{
    return (uint32_t)((int64_t)n_task * worker / p->n_thread);
}

/* Take and run tasks of job `job` until the lane has none. */
static void lane_work(struct cpu_pool *p, struct lane *l, uint32_t job, int worker)
{
    uint64_t t = atomic_load_explicit(&l->ticket, memory_order_acquire);
    for (;;) {
        task_fn fn = atomic_load_explicit(&p->fn, memory_order_acquire);
        void *arg = atomic_load_explicit(&p->arg, memory_order_acquire);
        int n = atomic_load_explicit(&p->n_task, memory_order_acquire);
        if ((uint32_t)(t >> 32) != job || (t & UINT32_MAX) >= lane_at(p, l->to, n))
            return;
        /* Success proves that the job was open all the time since the ticket was read. */
        if (!atomic_compare_exchange_weak_explicit(&l->ticket, &t, t + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(arg, (int)(t & UINT32_MAX), worker);
        uint32_t done = atomic_fetch_add(&p->done, 1) + 1;
        if (done == (uint32_t)n && atomic_load(&p->engine_waits))
            futex_wake(&p->done, 1);
        t = atomic_load_explicit(&l->ticket, memory_order_acquire);
    }
}

static void pool_work(struct cpu_pool *p, uint32_t job, const struct worker *w)
{
    for (int i = 0; i < p->n_lane; i++)
        lane_work(p, &p->lane[(w->lane + i) % p->n_lane], job, w->id);
}

void cpu_pool_chore(struct cpu_pool *p, bool (*fn)(void *arg), void *arg)
{
    while (atomic_exchange(&p->chore_taken, true))
        sched_yield();
    p->chore = fn;
    p->chore_arg = arg;
    atomic_store(&p->chore_taken, false);
}

static bool chore_do(struct cpu_pool *p)
{
    if (atomic_exchange(&p->chore_taken, true))
        return false;
    bool more = p->chore && p->chore(p->chore_arg);
    atomic_store(&p->chore_taken, false);
    return more;
}

/* Next job number after `seen`: spins, then parks. */
static uint32_t pool_next_job(struct cpu_pool *p, uint32_t seen)
{
    int64_t until = clock_us() + SPIN_US;
    for (unsigned i = 1;; i++) {
        uint32_t job = atomic_load_explicit(&p->wake, memory_order_acquire);
        if (job != seen || atomic_load_explicit(&p->quit, memory_order_acquire))
            return job;
        cpu_relax();
        if (i % 64 == 0 && clock_us() > until)
            break;
    }
    uint32_t job;
    for (long us = CHORE_US;; us = chore_do(p) ? CHORE_US : 0) {
        bool in_time = true;
        atomic_fetch_add(&p->n_parked, 1);
        while ((job = atomic_load(&p->wake)) == seen && !atomic_load(&p->quit) && in_time)
            in_time = futex_wait(&p->wake, seen, us);
        atomic_fetch_sub(&p->n_parked, 1);
        if (in_time)
            return job;
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    uint32_t seen = 0;
    for (;;) {
        seen = pool_next_job(w->pool, seen);
        if (atomic_load_explicit(&w->pool->quit, memory_order_acquire))
            return NULL;
        pool_work(w->pool, seen, w);
    }
}

void cpu_pool_run(struct cpu_pool *p, void (*fn)(void *arg, int task, int worker), void *arg,
                  int n_task)
{
    if (p->n_thread == 1 || n_task <= 1) {
        for (int i = 0; i < n_task; i++)
            fn(arg, i, 0);
        return;
    }
    uint32_t job = ++p->job;
    /* Closed first: a late worker that still holds the last ticket of the old job and reads the new
     * description must fail its exchange (it acquires what these stores release). Only the last store waits for
     * its cache line; those of the others come meanwhile. */
    for (int i = 0; i < p->n_lane; i++)
        atomic_store_explicit(&p->lane[i].ticket, (uint64_t)job << 32 | UINT32_MAX,
                              memory_order_release);
    atomic_store_explicit(&p->fn, fn, memory_order_release);
    atomic_store_explicit(&p->arg, arg, memory_order_release);
    atomic_store_explicit(&p->n_task, n_task, memory_order_release);
    atomic_store_explicit(&p->done, 0, memory_order_release);
    for (int i = 0; i < p->n_lane; i++)
        atomic_store_explicit(&p->lane[i].ticket,
                              (uint64_t)job << 32 | lane_at(p, p->lane[i].from, n_task),
                              memory_order_release);
    atomic_store(&p->wake, job);
    if (atomic_load(&p->n_parked))
        futex_wake(&p->wake, INT_MAX);
    pool_work(p, job, &p->worker[0]);

    int64_t until = clock_us() + SPIN_US;
    uint32_t done;
    for (unsigned i = 1; (done = atomic_load(&p->done)) != (uint32_t)n_task; i++) {
        cpu_relax();
        if (i % 64 || clock_us() <= until)
            continue;
        /* A worker lost its processor in the middle of a task. */
        atomic_store(&p->engine_waits, 1);
        while ((done = atomic_load(&p->done)) != (uint32_t)n_task)
            futex_wait(&p->done, done, 0);
        atomic_store(&p->engine_waits, 0);
        break;
    }
}

/* First number (or a negative one for "max") and second of a small file; false when it can't be read. */
static bool read_pair(const char *path, long long *a, long long *b)
{
    char text[128];
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char *end = text;
    *a = strncmp(text, "max", 3) ? strtoll(text, &end, 10) : -1;
    if (*a < 0)
        end = text + (n < 3 ? n : 3);
    *b = strtoll(end, NULL, 10);
    return n > 0;
}

static int quota_threads(long long quota, long long period, int limit)
{
    if (quota <= 0 || period <= 0)
        return limit;
    long long n = (quota + period - 1) / period;
    return n < limit ? (int)n : limit;
}

/* Tightest cpu.max from our cgroup up to the root (v2), or the v1 quota. */
static int cgroup_threads(int limit)
{
    char line[512], path[640], file[700];
    path[0] = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "0::", 3))
            snprintf(path, sizeof path, "/sys/fs/cgroup%s", line + 3);
    }
    if (f)
        fclose(f);
    long long quota = -1, period = -1;
    for (size_t n = strlen(path); n >= strlen("/sys/fs/cgroup") && n > 0;) {
        snprintf(file, sizeof file, "%s/cpu.max", path);
        if (read_pair(file, &quota, &period))
            limit = quota_threads(quota, period, limit);
        char *slash = strrchr(path, '/');
        *slash = 0;
        n = strlen(path);
    }
    long long none;
    if (read_pair("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", &quota, &none) &&
        read_pair("/sys/fs/cgroup/cpu/cpu.cfs_period_us", &period, &none))
        limit = quota_threads(quota, period, limit);
    return limit;
}

/* A processor for each worker, a node's next to each other; lanes of workers that share a node. */
static void lanes_plan(struct cpu_pool *p, bool pin, const char *sys, int *cpu)
{
    int16_t node[TOPO_CPU_MAX];
    const int n_node = pin ? cpu_topo_read(sys, node) : 1;
    int n = 0;
    for (int k = 0; pin && k < n_node; k++)
        for (int c = 0; c < TOPO_CPU_MAX && n < p->n_thread; c++)
            if (node[c] == k && CPU_ISSET((size_t)c, &p->opener_mask)) {
                if (!p->n_lane || p->lane[p->n_lane - 1].node != k)
                    p->lane[p->n_lane++] = (struct lane){.from = n, .node = k};
                p->worker[n].lane = p->n_lane - 1;
                p->lane[p->n_lane - 1].to = n + 1;
                cpu[n++] = c;
            }
    if (!pin || n < p->n_thread) { /* not pinned, or more processors than are looked at */
        p->n_lane = 1;
        p->lane[0] = (struct lane){.to = p->n_thread};
        for (int i = 0; i < p->n_thread; i++) {
            p->worker[i].lane = 0;
            cpu[i] = -1;
        }
    }
}

static int pool_start(struct cpu_pool *p, const int *cpu, struct err *e)
{
    for (int i = 0; i < p->n_thread; i++) {
        struct worker *w = &p->worker[i];
        w->pool = p;
        w->id = i;
        if (i > 0) {
            char name[16];
            snprintf(name, sizeof name, "cpu-%d", i);
            if (thread_start(&w->thread, name, worker_main, w))
                return err_set(e, ERR_NOMEM, "CPU worker %d can't be started", i);
            p->n_started = i;
        }
        if (cpu[i] < 0)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)cpu[i], &one);
        /* Best effort: a processor may have gone away since the mask was read. */
        int rc = pthread_setaffinity_np(i ? w->thread : pthread_self(), sizeof one, &one);
        p->pinned = p->pinned || (i == 0 && rc == 0);
    }
    return 0;
}

int cpu_pool_open(struct cpu_pool **out, int n_threads, bool pin, struct err *e)
{
    return cpu_pool_open_on(out, n_threads, pin, TOPO_SYS, e);
}

int cpu_pool_open_on(struct cpu_pool **out, int n_threads, bool pin, const char *sys, struct err *e)
{
    if (n_threads < 0 || n_threads > THREAD_MAX)
        return err_set(e, ERR_INVAL, "threads: %d is not in 0..%d", n_threads, THREAD_MAX);
    struct cpu_pool *p = mem_aligned(64, sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "CPU pool: out of memory");
    bool have_mask =
        !pthread_getaffinity_np(pthread_self(), sizeof p->opener_mask, &p->opener_mask);
    int n_cpu = have_mask ? CPU_COUNT(&p->opener_mask) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (n_cpu < 1)
        n_cpu = 1;
    int n_quota = cgroup_threads(n_cpu);
    p->n_thread = n_threads ? n_threads : n_quota;
    /* Under a quota the processors are shared with others that would pin to the same first ones. */
    pin = pin && have_mask && n_quota == n_cpu && p->n_thread <= n_cpu;
    const size_t n = (size_t)p->n_thread;
    int *cpu = mem_calloc(n, sizeof *cpu);
    p->worker = mem_calloc(n, sizeof *p->worker);
    p->lane = mem_aligned(64, n * sizeof *p->lane);
    int rc = 0;
    if (cpu && p->worker && p->lane)
        lanes_plan(p, pin, sys, cpu);
    else
        rc = err_set(e, ERR_NOMEM, "CPU pool: out of memory");
    if (!rc)
        rc = pool_start(p, cpu, e);
    free(cpu);
    if (rc) {
        cpu_pool_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void cpu_pool_close(struct cpu_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->quit, true);
    /* Changes the futex word too: a worker between its check and its wait must not sleep. */
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake, INT_MAX);
    for (int i = 1; i <= p->n_started; i++)
        pthread_join(p->worker[i].thread, NULL);
    if (p->pinned)
        pthread_setaffinity_np(pthread_self(), sizeof p->opener_mask, &p->opener_mask);
    free(p->worker);
    free(p->lane);
    free(p);
}

int cpu_pool_threads(const struct cpu_pool *p)
{
    return p->n_thread;
}

int cpu_pool_node(const struct cpu_pool *p, int worker)
{
    return p->lane[p->worker[worker].lane].node;
}
