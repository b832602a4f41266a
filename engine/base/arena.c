/* See arena.h. */
#include "engine/base/arena.h"
#include "engine/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arena_chunk {
    struct arena_chunk *next;
    size_t cap, len;
    _Alignas(16) char data[];
};

static struct arena_chunk *grow(struct arena *a, size_t n)
{
    size_t cap = a->head ? a->head->cap : 2048, bytes;
    if (cap < ((size_t)1 << 20))
        cap *= 2;
    if (cap < n)
        cap = n;
    if (!ck_add(cap, sizeof(struct arena_chunk), &bytes))
        return NULL;
    struct arena_chunk *c = mem_alloc(bytes);
    if (!c)
        return NULL;
    *c = (struct arena_chunk){.next = a->head, .cap = cap};
    a->head = c;
    return c;
}

void *arena_alloc(struct arena *a, size_t n)
{
    size_t need, used;
    if (!ck_round_up(n ? n : 1, 16, &need) || !ck_add(a->used, need, &used))
        return NULL;
    if (a->limit && used > a->limit)
        return NULL;
    struct arena_chunk *c = a->head;
    if (!c || c->cap - c->len < need)
        c = grow(a, need);
    if (!c)
        return NULL;
    void *p = c->data + c->len;
    c->len += need;
    a->used = used;
    return memset(p, 0, need);
}

void *arena_array(struct arena *a, size_t n, size_t size)
{
    size_t total;
    return ck_mul(n, size, &total) ? arena_alloc(a, total) : NULL;
}

char *arena_copy(struct arena *a, const char *s, size_t n)
{
    size_t total;
    char *p = ck_add(n, 1, &total) ? arena_alloc(a, total) : NULL;
    if (p && n)
        memcpy(p, s, n);
    return p;
}

char *arena_fmt(struct arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *p = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return p;
}

void arena_reset(struct arena *a)
{
    struct arena_chunk *best = NULL, *next;
    for (struct arena_chunk *c = a->head; c; c = next) {
        next = c->next;
        if (!best || c->cap > best->cap) {
            free(best);
            best = c;
        } else {
            free(c);
        }
    }
    if (best) {
        best->next = NULL;
        best->len = 0;
    }
    a->head = best;
    a->used = 0;
}

void arena_free(struct arena *a)
{
    for (struct arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *a = (struct arena){.limit = a->limit};
}
