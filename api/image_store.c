/* See image_store.h.
 *
 *   first ──► picture ──► picture ──► ... ──► last      in order of arrival, which is the order of expiry
 *
 * Few pictures fit (each is some hundred kilobytes), so ids are looked for along the list. */
#include "api/image_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

struct kept {
    struct kept *next;
    char id[IMAGE_ID_LEN + 1];
    const char *type;
    int64_t until_us;
    size_t n;
    char *bytes;
};

struct image_store {
    pthread_mutex_t lock;
    struct kept *first, *last;
    size_t bytes, bytes_max;
    int64_t ttl_us;
};

struct image_store *image_store_open(size_t bytes_max, int64_t ttl_us)
{
    struct image_store *s = mem_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->bytes_max = bytes_max;
    s->ttl_us = ttl_us;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

static void drop_first(struct image_store *s)
{
    struct kept *k = s->first;
    s->first = k->next;
    if (!s->first)
        s->last = NULL;
    s->bytes -= k->n;
    free(k->bytes);
    free(k);
}

void image_store_close(struct image_store *s)
{
    if (!s)
        return;
    while (s->first)
        drop_first(s);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void expire(struct image_store *s, int64_t now_us)
{
    while (s->first && s->first->until_us <= now_us)
        drop_first(s);
}

int image_store_put(struct image_store *s, struct buf *bytes, const char *type, int64_t now_us,
                    char id[IMAGE_ID_LEN + 1])
{
    uint64_t r[2];
    struct kept *k = bytes->len <= s->bytes_max ? mem_calloc(1, sizeof *k) : NULL;
    if (!k) {
        int rc = bytes->len <= s->bytes_max ? ERR_NOMEM : ERR_LIMIT;
        buf_free(bytes);
        return rc;
    }
    random_bytes(r, sizeof r);
    snprintf(k->id, sizeof k->id, "%016llx%016llx", (unsigned long long)r[0],
             (unsigned long long)r[1]);
    memcpy(id, k->id, sizeof k->id);
    k->type = type;
    k->until_us = now_us + s->ttl_us;
    k->bytes = buf_take(bytes, &k->n);
    pthread_mutex_lock(&s->lock);
    expire(s, now_us);
    while (s->first && s->bytes > s->bytes_max - k->n)
        drop_first(s);
    if (s->last)
        s->last->next = k;
    else
        s->first = k;
    s->last = k;
    s->bytes += k->n;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int image_store_get(struct image_store *s, struct view id, int64_t now_us, struct buf *out,
                    const char **type, int64_t *left_us)
{
    int rc = ERR_NOTFOUND;
    pthread_mutex_lock(&s->lock);
    expire(s, now_us);
    for (struct kept *k = s->first; k && rc == ERR_NOTFOUND; k = k->next) {
        if (!view_is(id, k->id))
            continue;
        *type = k->type;
        *left_us = k->until_us - now_us;
        buf_add(out, k->bytes, k->n);
        rc = out->failed ? ERR_NOMEM : 0;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

size_t image_store_bytes(struct image_store *s)
{
    pthread_mutex_lock(&s->lock);
    size_t n = s->bytes;
    pthread_mutex_unlock(&s->lock);
    return n;
}
