/* See mem.h. */
#include "engine/base/mem.h"
#include "engine/base/err.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_long fail_at; /* 0 = off; counts down */
static atomic_bool fail_sticky;
static atomic_uint_fast64_t n_alloc;

void mem_fail_after(long k, bool sticky)
{
    atomic_store(&fail_sticky, sticky);
    atomic_store(&fail_at, k);
}

uint64_t mem_count(void)
{
    return atomic_load_explicit(&n_alloc, memory_order_relaxed);
}

#ifdef NDEBUG
static void fault_tell(void)
{
}
#else
/* Failing allocations of a running program: with FAULT_ALLOC=k in the environment the k-th call fails
 * (0: none yet), and a queued signal SIGRTMIN + 1 with value k arms the next one. Each failure is told
 * on stderr, so that a test knows whether its k was reached. */
static atomic_bool fault_on;

static void fault_tell(void)
{
    static const char text[] = "fault: an allocation failed on request\n";
    if (atomic_load(&fault_on) && write(STDERR_FILENO, text, sizeof text - 1) < 0)
        return; /* nobody listens */
}

static void on_fault_signal(int sig, siginfo_t *info, void *ctx)
{
    (void)sig;
    (void)ctx;
    mem_fail_after(info->si_value.sival_int, false);
}

static void __attribute__((constructor)) fault_open(void)
{
    const char *k = getenv("FAULT_ALLOC");
    struct sigaction sa = {.sa_sigaction = on_fault_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    if (!k || sigaction(SIGRTMIN + 1, &sa, NULL))
        return;
    atomic_store(&fault_on, true);
    mem_fail_after(strtol(k, NULL, 10), false);
}
#endif

static bool must_fail(void)
{
    atomic_fetch_add_explicit(&n_alloc, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fail_at, memory_order_relaxed) == 0)
        return false;
    long left = atomic_fetch_sub(&fail_at, 1);
    if (left != 1)
        return false;
    fault_tell();
    /* The counter has just become 0 (off); put it back to 1 when every later call must fail too. */
    if (atomic_load(&fail_sticky))
        atomic_store(&fail_at, 1);
    return true;
}

void *mem_alloc(size_t n)
{
    if (must_fail() || n > PTRDIFF_MAX)
        return NULL;
    return malloc(n ? n : 1);
}

void *mem_calloc(size_t n, size_t size)
{
    size_t total;
    if (must_fail() || !ck_mul(n, size, &total) || total > PTRDIFF_MAX)
        return NULL;
    return calloc(1, total ? total : 1);
}

void *mem_realloc(void *p, size_t n)
{
    if (must_fail() || n > PTRDIFF_MAX)
        return NULL;
    return realloc(p, n ? n : 1);
}

#define HUGE_PAGE ((size_t)2 << 20)

void mem_huge(void *p, size_t n)
{
    uintptr_t from = ((uintptr_t)p + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1),
              to = ((uintptr_t)p + n) & ~(HUGE_PAGE - 1);
    if (n >= 4 * HUGE_PAGE && from < to)
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
}

void *mem_aligned(size_t align, size_t n)
{
    size_t total;
    if (must_fail() || !ck_round_up(n ? n : 1, align, &total) || total > PTRDIFF_MAX)
        return NULL;
    void *p = aligned_alloc(align, total);
    if (p) {
        mem_huge(p, total);
        memset(p, 0, total);
    }
    return p;
}

static void *or_die(void *p)
{
    CHECK(p && "out of memory");
    return p;
}

void *xmalloc(size_t n)
{
    atomic_fetch_add_explicit(&n_alloc, 1, memory_order_relaxed);
    return or_die(malloc(n ? n : 1));
}

void *xcalloc(size_t n, size_t size)
{
    atomic_fetch_add_explicit(&n_alloc, 1, memory_order_relaxed);
    return or_die(calloc(n ? n : 1, size ? size : 1));
}

void *xrealloc(void *p, size_t n)
{
    atomic_fetch_add_explicit(&n_alloc, 1, memory_order_relaxed);
    return or_die(realloc(p, n ? n : 1));
}

char *xstrdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(xmalloc(n), s, n);
}
