/* Answers of /v1/responses that clients come back to (store): kept in memory, each readable by the key that made it alone,
 * until its time is over or newer ones need the room. Any thread. */
#ifndef API_RESPONSE_STORE_H
#define API_RESPONSE_STORE_H

#include <stdint.h>

#include "engine/base/buf.h"

#define RESPONSE_ID_MAX 64

struct response_store;
/* bytes_max: of all together; ttl_us: how long each is kept. NULL: no memory. */
struct response_store *response_store_open(size_t bytes_max, int64_t ttl_us);
void response_store_close(struct response_store *s); /* NULL is fine */

/* A stored answer: the response object, and the array of items that it answers (history first), as JSON. */
struct response_kept {
    struct buf response, items;
};
void response_kept_free(struct response_kept *k);

/* Keep it under `id`: takes the bytes over, also on failure. 0; ERR_LIMIT: larger than the whole store; ERR_NOMEM. */
int response_store_put(struct response_store *s, const char *id, uint64_t owner,
                       struct response_kept *k, int64_t now_us);
/* Copies into *out (empty before). ERR_NOTFOUND: no such id of this owner, or its time is over; ERR_NOMEM. */
int response_store_get(struct response_store *s, struct view id, uint64_t owner, int64_t now_us,
                       struct response_kept *out);
/* The newest answer of the owner that speaks of an item of this id: as response_store_get. */
int response_store_item(struct response_store *s, struct view item, uint64_t owner, int64_t now_us,
                        struct response_kept *out);
int response_store_drop(struct response_store *s, struct view id, uint64_t owner, int64_t now_us);
size_t response_store_bytes(struct response_store *s); /* held now */

#endif
