/* Allocation and checked arithmetic. Sizes that we chose: xmalloc and friends abort. Sizes that a
 * client or a file chose: mem_alloc and friends return NULL, which becomes ERR_NOMEM. Every size
 * computed from outside data goes through ck_add / ck_mul. Any thread. */
#ifndef ENGINE_BASE_MEM_H
#define ENGINE_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *xmalloc(size_t n);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n);
char *xstrdup(const char *s);

/* NULL when n is over what can be had, or when a test asked for failure (mem_fail_after). n == 0
 * gives a unique pointer. Release with free(). */
void *mem_alloc(size_t n);
void *mem_calloc(size_t n, size_t size);
void *mem_realloc(void *p, size_t n);

/* Zeroed, aligned to `align` (a power of two); NULL as above. Release with free(). */
void *mem_aligned(size_t align, size_t n);
/* Asks for huge pages for memory of some megabytes that is not yet touched: maps are walked in columns, and with small
 * pages much of the time goes into finding pages. Only a hint. mem_aligned does it itself. */
void mem_huge(void *p, size_t n);

/* Fault injection: the k-th mem_* call from now (1 = the next) fails, and all after it when
 * `sticky`. k = 0 switches it off. Tests only; process-wide. */
void mem_fail_after(long k, bool sticky);

/* Number of allocations through this header since start (all threads). */
uint64_t mem_count(void);

/* false when the exact result does not fit; *out is then untouched. */
static inline bool ck_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}
static inline bool ck_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}
/* Round up to a multiple of `align` (> 0). */
static inline bool ck_round_up(size_t n, size_t align, size_t *out)
{
    size_t r = n % align;
    return ck_add(n, r ? align - r : 0, out);
}

#endif
