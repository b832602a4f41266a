/* Pictures that clients fetch by address (response_format "url"): kept in memory under an id that nobody can guess,
 * until their time is over or newer ones need the room. Any thread. */
#ifndef API_IMAGE_STORE_H
#define API_IMAGE_STORE_H

#include <stdint.h>

#include "engine/base/buf.h"

#define IMAGE_ID_LEN 32 /* hexadecimal digits: 128 bits from the kernel */

struct image_store;
/* bytes_max: of all pictures together; ttl_us: how long each is kept. NULL: no memory. */
struct image_store *image_store_open(size_t bytes_max, int64_t ttl_us);
void image_store_close(struct image_store *s); /* NULL is fine */

/* Keep a picture: takes the bytes over, also on failure. now_us: clock_us(). 0; ERR_LIMIT: larger than the whole store;
 * ERR_NOMEM. type: static storage. */
int image_store_put(struct image_store *s, struct buf *bytes, const char *type, int64_t now_us,
                    char id[IMAGE_ID_LEN + 1]);
/* Append a picture's bytes to *out. ERR_NOTFOUND: no such id, or its time is over; ERR_NOMEM. */
int image_store_get(struct image_store *s, struct view id, int64_t now_us, struct buf *out,
                    const char **type, int64_t *left_us);
size_t image_store_bytes(struct image_store *s); /* held now */

#endif
