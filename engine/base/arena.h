/* Bump allocator: many small objects with one lifetime. Chunks grow by doubling; nothing is freed
 * singly. Pointers never leave the arena's owner. One owner at a time; no locks. */
#ifndef ENGINE_BASE_ARENA_H
#define ENGINE_BASE_ARENA_H

#include <stddef.h>

struct arena_chunk;
struct arena {
    struct arena_chunk *head; /* newest chunk; older ones behind it */
    size_t used;              /* bytes handed out, all chunks */
    size_t limit;             /* 0 = none; over it arena_alloc returns NULL */
};

/* Zeroed, 16-aligned; NULL on ERR_NOMEM or over the limit. */
void *arena_alloc(struct arena *a, size_t n);
void *arena_array(struct arena *a, size_t n, size_t size);
/* Copy with a terminating 0; NULL as above. */
char *arena_copy(struct arena *a, const char *s, size_t n);
char *arena_fmt(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Keep the largest chunk, forget all objects. */
void arena_reset(struct arena *a);
void arena_free(struct arena *a);

#endif
