/* See slab.h. */
#include "engine/cpu/slab.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "engine/base/mem.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define MAP_BYTES ((size_t)32 << 20)

struct cpu_slab {
    struct cpu_slab *next; /* older, full */
    void *map;
    size_t map_bytes;
    uint8_t *at; /* next free byte, 64-aligned */
    size_t left;
};

static struct cpu_slab *slab_open(size_t bytes)
{
    size_t want;
    struct cpu_slab *s = mem_calloc(1, sizeof *s);
    if (!s || !ck_add(bytes, HUGE_PAGE, &want) || !ck_round_up(want, HUGE_PAGE, &want)) {
        free(s);
        return NULL;
    }
    s->map = mmap(NULL, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                  -1, 0);
    if (s->map == MAP_FAILED) {
        free(s);
        return NULL;
    }
    s->map_bytes = want;
    uintptr_t from = ((uintptr_t)s->map + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
    s->at = (uint8_t *)from;
    s->left = (size_t)((uintptr_t)s->map + want - from);
    (void)madvise(s->at, s->left, MADV_HUGEPAGE); /* only a hint */
    return s;
}

void *cpu_slab_take(struct cpu_slab **s, size_t bytes)
{
    size_t need;
    if (!ck_round_up(bytes ? bytes : 1, 64, &need))
        return NULL;
    if (!*s || (*s)->left < need) {
        struct cpu_slab *n = slab_open(need > MAP_BYTES ? need : MAP_BYTES);
        if (!n)
            return NULL;
        n->next = *s;
        *s = n;
    }
    void *p = (*s)->at;
    (*s)->at += need;
    (*s)->left -= need;
    return p;
}

void cpu_slab_free(struct cpu_slab **s)
{
    while (*s) {
        struct cpu_slab *next = (*s)->next;
        munmap((*s)->map, (*s)->map_bytes);
        free(*s);
        *s = next;
    }
}
