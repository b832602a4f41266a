/* See response_store.h.
 *
 *   first ──► answer ──► answer ──► ... ──► last      in order of arrival, which is the order of expiry
 *     └─ bucket[hash of id] ──► answer ──► answer     chains through `same` */
#include "api/response_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

#define BUCKETS 4096 /* chains stay short up to some ten thousand answers */

struct kept {
    struct kept *next, *before, *same;
    char id[RESPONSE_ID_MAX];
    uint64_t owner;
    int64_t until_us;
    size_t bytes;
    struct response_kept k;
};

struct response_store {
    pthread_mutex_t lock;
    struct hash_key key; /* chains cannot be made long on purpose */
    struct kept *bucket[BUCKETS];
    struct kept *first, *last;
    size_t bytes, bytes_max;
    int64_t ttl_us;
};

struct response_store *response_store_open(size_t bytes_max, int64_t ttl_us)
{
    struct response_store *s = mem_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    random_bytes(&s->key, sizeof s->key);
    s->bytes_max = bytes_max;
    s->ttl_us = ttl_us;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void response_kept_free(struct response_kept *k)
{
    buf_free(&k->response);
    buf_free(&k->items);
}

static struct kept **chain(struct response_store *s, struct view id)
{
    return &s->bucket[hash_bytes(s->key, id.p, id.len) % BUCKETS];
}

static void drop(struct response_store *s, struct kept *k)
{
    struct kept **at = chain(s, (struct view){k->id, strlen(k->id)});
    while (*at != k)
        at = &(*at)->same;
    *at = k->same;
    *(k->before ? &k->before->next : &s->first) = k->next;
    *(k->next ? &k->next->before : &s->last) = k->before;
    s->bytes -= k->bytes;
    response_kept_free(&k->k);
    free(k);
}

void response_store_close(struct response_store *s)
{
    if (!s)
        return;
    while (s->first)
        drop(s, s->first);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void expire(struct response_store *s, int64_t now_us)
{
    while (s->first && s->first->until_us <= now_us)
        drop(s, s->first);
}

int response_store_put(struct response_store *s, const char *id, uint64_t owner,
                       struct response_kept *in, int64_t now_us)
{
    size_t bytes = in->response.len + in->items.len + sizeof(struct kept);
    struct kept *k = bytes <= s->bytes_max ? mem_calloc(1, sizeof *k) : NULL;
    if (!k) {
        response_kept_free(in);
        return bytes <= s->bytes_max ? ERR_NOMEM : ERR_LIMIT;
    }
    snprintf(k->id, sizeof k->id, "%s", id);
    k->owner = owner;
    k->until_us = now_us + s->ttl_us;
    k->bytes = bytes;
    k->k = *in;
    *in = (struct response_kept){0};
    pthread_mutex_lock(&s->lock);
    expire(s, now_us);
    while (s->first && s->bytes > s->bytes_max - bytes)
        drop(s, s->first);
    k->before = s->last;
    *(s->last ? &s->last->next : &s->first) = k;
    s->last = k;
    struct kept **at = chain(s, (struct view){k->id, strlen(k->id)});
    k->same = *at;
    *at = k;
    s->bytes += bytes;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

static struct kept *find(struct response_store *s, struct view id, uint64_t owner)
{
    struct kept *k = *chain(s, id);
    while (k && !(k->owner == owner && view_is(id, k->id)))
        k = k->same;
    return k;
}

static int copy_out(const struct kept *k, struct response_kept *out)
{
    if (!k)
        return ERR_NOTFOUND;
    buf_add(&out->response, k->k.response.p, k->k.response.len);
    buf_add(&out->items, k->k.items.p, k->k.items.len);
    return out->response.failed || out->items.failed ? ERR_NOMEM : 0;
}

int response_store_get(struct response_store *s, struct view id, uint64_t owner, int64_t now_us,
                       struct response_kept *out)
{
    pthread_mutex_lock(&s->lock);
    expire(s, now_us);
    int rc = copy_out(find(s, id, owner), out);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static bool speaks_of(const struct buf *text, struct view item)
{
    const char *p = text->p, *end = text->p ? text->p + text->len : NULL;
    for (; p && (p = memmem(p, (size_t)(end - p), item.p, item.len)); p++)
        if (p > text->p && p[-1] == '"' && p + item.len < end && p[item.len] == '"')
            return true;
    return false;
}

int response_store_item(struct response_store *s, struct view item, uint64_t owner, int64_t now_us,
                        struct response_kept *out)
{
    pthread_mutex_lock(&s->lock);
    expire(s, now_us);
    struct kept *k = s->last;
    while (k && !(k->owner == owner &&
                  (speaks_of(&k->k.response, item) || speaks_of(&k->k.items, item))))
        k = k->before;
    int rc = copy_out(k, out);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int response_store_drop(struct response_store *s, struct view id, uint64_t owner, int64_t now_us)
{
    pthread_mutex_lock(&s->lock);
    expire(s, now_us);
    struct kept *k = find(s, id, owner);
    if (k)
        drop(s, k);
    pthread_mutex_unlock(&s->lock);
    return k ? 0 : ERR_NOTFOUND;
}

size_t response_store_bytes(struct response_store *s)
{
    pthread_mutex_lock(&s->lock);
    size_t n = s->bytes;
    pthread_mutex_unlock(&s->lock);
    return n;
}
