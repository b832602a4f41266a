/* Requests in the engines: id -> exchange. A slot outlives its exchange when the client leaves: it is freed by the
 * request's last event. Loop thread. */
#ifndef SERVER_SLOTS_H
#define SERVER_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

struct xchg;
struct slot {
    uint64_t id;      /* 0 = free */
    struct xchg *x;   /* NULL: nobody waits any more */
    int model, index; /* index in call->req */
    int n, n_last;    /* choices; length of last_us */
    bool image;       /* asks for pictures */
    bool encode;      /* asks for vectors */
    bool audio;       /* of a speech model */
    int32_t max_tokens;
    int64_t first_us; /* of the first token of any choice */
    int64_t *last_us; /* [n_last] of each choice's newest token */
    uint32_t next_free;
};

struct slots {
    struct slot **v; /* [cap]: slots do not move */
    uint32_t cap, free_head;
    uint64_t serial;
    int n_used;
};

/* NULL when out of memory. The id is never used again in this process. */
struct slot *slots_take(struct slots *t, int n_choices);
struct slot *slots_find(const struct slots *t, uint64_t id); /* NULL: unknown */
void slots_drop(struct slots *t, struct slot *s);
void slots_free(struct slots *t);

#endif
