/* The cache of encoded prompts: see model.h. A list by age; a lookup walks it, which for the some hundred prompts that
 * fit is nothing beside an encoding. */
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/image/model.h"

#include <stdlib.h>
#include <string.h>

struct item {
    struct item *next;
    int pipe;
    uint64_t hash;
    size_t bytes;
    struct img_cond *v;
    char text[];
};
struct cond_cache {
    struct item *head; /* newest first */
    size_t cap, used;
};

struct img_cond *img_cond_new(int n_tok, int dim, int n_pooled)
{
    size_t a, b;
    if (n_tok < 0 || dim < 0 || n_pooled < 0 || !ck_mul((size_t)n_tok, (size_t)dim, &a) ||
        !ck_add(a, (size_t)n_pooled, &b) || !ck_mul(b, sizeof(float), &b))
        return NULL;
    struct img_cond *c = mem_calloc(1, sizeof *c);
    float *p = mem_calloc(1, b + sizeof *p);
    if (!c || !p) {
        free(c);
        free(p);
        return NULL;
    }
    *c = (struct img_cond){
        .refs = 1, .n_tok = n_tok, .dim = dim, .states = p, .n_pooled = n_pooled, .pooled = p + a};
    return c;
}

void img_cond_drop(struct img_cond *c)
{
    if (!c || --c->refs)
        return;
    free(c->states);
    free(c);
}

struct cond_cache *cond_cache_new(size_t cap)
{
    struct cond_cache *c = mem_calloc(1, sizeof *c);
    if (c)
        c->cap = cap;
    return c;
}

static void item_free(struct cond_cache *c, struct item *i)
{
    c->used -= i->bytes;
    img_cond_drop(i->v);
    free(i);
}

void cond_cache_free(struct cond_cache *c)
{
    while (c && c->head) {
        struct item *i = c->head;
        c->head = i->next;
        item_free(c, i);
    }
    free(c);
}

static uint64_t text_hash(int pipe, const char *text)
{
    uint64_t h = hash_u64((uint64_t)pipe + 1);
    for (const char *p = text; *p; p++)
        h = hash_u64(h ^ (uint8_t)*p);
    return h;
}

struct img_cond *cond_cache_get(struct cond_cache *c, int pipe, const char *text)
{
    uint64_t h = text_hash(pipe, text);
    for (struct item **p = &c->head; *p; p = &(*p)->next) {
        struct item *i = *p;
        if (i->hash != h || i->pipe != pipe || strcmp(i->text, text) != 0)
            continue;
        *p = i->next;
        i->next = c->head;
        c->head = i;
        i->v->refs++;
        return i->v;
    }
    return NULL;
}

void cond_cache_put(struct cond_cache *c, int pipe, const char *text, struct img_cond *v)
{
    size_t len = strlen(text) + 1;
    size_t bytes = ((size_t)v->n_tok * (size_t)v->dim + (size_t)v->n_pooled) * sizeof(float) + len +
                   sizeof(struct item) + sizeof *v;
    if (bytes > c->cap)
        return;
    struct item *i = mem_alloc(sizeof *i + len);
    if (!i)
        return;
    while (c->used + bytes > c->cap) {
        struct item **p = &c->head;
        while ((*p)->next)
            p = &(*p)->next;
        struct item *old = *p;
        *p = NULL;
        item_free(c, old);
    }
    *i = (struct item){
        .next = c->head, .pipe = pipe, .hash = text_hash(pipe, text), .bytes = bytes, .v = v};
    memcpy(i->text, text, len);
    v->refs++;
    c->head = i;
    c->used += bytes;
}
