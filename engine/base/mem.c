/* See mem.h. */
#include "engine/base/mem.h"
#include "engine/base/err.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

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

static bool must_fail(void)
{
    atomic_fetch_add_explicit(&n_alloc, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fail_at, memory_order_relaxed) == 0)
        return false;
    long left = atomic_fetch_sub(&fail_at, 1);
    if (left != 1)
        return false;
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

void *mem_aligned(size_t align, size_t n)
{
    size_t total;
    if (must_fail() || !ck_round_up(n ? n : 1, align, &total) || total > PTRDIFF_MAX)
        return NULL;
    void *p = aligned_alloc(align, total);
    if (p)
        memset(p, 0, total);
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
