/* Requests in the engines: id -> exchange. An id is serial number and slot index in one word. */
#include "server/slots.h"

#include "engine/base/err.h"
#include "engine/base/mem.h"

#define INDEX_BITS 20
#define INDEX_MASK ((1u << INDEX_BITS) - 1)

static int grow(struct slots *t)
{
    uint32_t cap = t->cap ? t->cap * 2 : 64;
    if (cap > INDEX_MASK)
        return ERR_FULL;
    struct slot **v = mem_realloc(t->v, cap * sizeof(*v));
    if (!v)
        return ERR_NOMEM;
    t->v = v;
    for (uint32_t i = t->cap; i < cap; i++) {
        v[i] = mem_calloc(1, sizeof(**v));
        if (!v[i])
            return ERR_NOMEM;
        /* free_head counts from 1, so that the zeroed table is an empty one */
        v[i]->next_free = t->free_head;
        t->free_head = i + 1;
        t->cap = i + 1;
    }
    return 0;
}

struct slot *slots_take(struct slots *t, int n_choices)
{
    if (!t->free_head && grow(t) && !t->free_head)
        return NULL;
    uint32_t i = t->free_head - 1;
    struct slot *s = t->v[i];
    int64_t *last = mem_calloc((size_t)n_choices, sizeof(*last));
    if (!last)
        return NULL;
    t->free_head = s->next_free;
    *s = (struct slot){.id = ++t->serial << INDEX_BITS | i, .last_us = last, .n_last = n_choices};
    t->n_used++;
    return s;
}

struct slot *slots_find(const struct slots *t, uint64_t id)
{
    uint32_t i = (uint32_t)(id & INDEX_MASK);
    return i < t->cap && id && t->v[i]->id == id ? t->v[i] : NULL;
}

void slots_drop(struct slots *t, struct slot *s)
{
    uint32_t i = (uint32_t)(s->id & INDEX_MASK);
    CHECK(s->id && t->v[i] == s);
    free(s->last_us);
    *s = (struct slot){.next_free = t->free_head};
    t->free_head = i + 1;
    t->n_used--;
}

void slots_free(struct slots *t)
{
    for (uint32_t i = 0; i < t->cap; i++) {
        free(t->v[i]->last_us);
        free(t->v[i]);
    }
    free(t->v);
    *t = (struct slots){0};
}
