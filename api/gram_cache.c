/* Compiled grammars by what they were made of: one list, least recently used last. See structured.h. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "api/structured.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

struct kept {
    struct kept *next;
    const struct api_model *m;
    uint64_t hash;
    size_t key_len, bytes;
    struct grammar *g;
    char key[];
};

struct gram_cache {
    pthread_mutex_t lock; /* of the list, and of making a model's vocabulary */
    struct hash_key k;
    struct kept *head;
    size_t used, most;
};

struct gram_cache *gram_cache_open(size_t most)
{
    struct gram_cache *k = mem_calloc(1, sizeof *k);
    if (!k)
        return NULL;
    CHECK(!pthread_mutex_init(&k->lock, NULL));
    k->k = hash_key_random();
    k->most = most;
    return k;
}

static void drop(struct gram_cache *k, struct kept **at)
{
    struct kept *e = *at;
    *at = e->next;
    k->used -= e->bytes;
    grammar_unref(e->g);
    free(e);
}

void gram_cache_close(struct gram_cache *k)
{
    if (!k)
        return;
    while (k->head)
        drop(k, &k->head);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

static struct grammar *find(struct gram_cache *k, const struct api_model *m, struct view key)
{
    struct grammar *g = NULL;
    uint64_t h = hash_bytes(k->k, key.p, key.len);
    pthread_mutex_lock(&k->lock);
    for (struct kept **at = &k->head; *at; at = &(*at)->next) {
        struct kept *e = *at;
        if (e->hash != h || e->m != m || e->key_len != key.len ||
            memcmp(e->key, key.p, key.len) != 0)
            continue;
        *at = e->next; /* to the front */
        e->next = k->head;
        k->head = e;
        g = grammar_ref(e->g);
        break;
    }
    pthread_mutex_unlock(&k->lock);
    return g;
}

static void add(struct gram_cache *k, const struct api_model *m, struct view key, struct grammar *g)
{
    struct kept *e = mem_alloc(sizeof *e + key.len);
    if (!e) /* then it is made again */
        return;
    *e = (struct kept){.m = m, .hash = hash_bytes(k->k, key.p, key.len), .key_len = key.len};
    e->bytes = sizeof *e + key.len + grammar_bytes(g);
    e->g = grammar_ref(g);
    memcpy(e->key, key.p, key.len);
    pthread_mutex_lock(&k->lock);
    e->next = k->head;
    k->head = e;
    k->used += e->bytes;
    while (k->used > k->most && k->head) {
        struct kept **last = &k->head;
        while ((*last)->next)
            last = &(*last)->next;
        drop(k, last);
    }
    pthread_mutex_unlock(&k->lock);
}

/* The model's vocabulary as grammars need it: made once, by who comes first. */
static struct grammar_vocab *vocab_of(struct gram_cache *k, struct api_model *m, struct err *e)
{
    pthread_mutex_lock(&k->lock);
    if (!m->vocab)
        grammar_vocab_open(&m->vocab, m->text->tok, m->n_vocab, e);
    struct grammar_vocab *v = m->vocab;
    pthread_mutex_unlock(&k->lock);
    return v;
}

static int compile(const struct gram_job *job, struct grammar_vocab *v, struct grammar **out,
                   struct schema_err *e)
{
    struct gr_builder *b;
    if (gr_builder_open(&b, v, NULL))
        return err_set(&e->err, ERR_NOMEM, "no memory");
    gr_expr root = job->build(b, job->arg, e);
    int rc = gr_compile(b, root, out, &e->err);
    gr_builder_close(b);
    struct grammar_state *s = NULL;
    int first = rc ? 0 : grammar_state_open(&s, *out); /* whether it can be followed at all */
    grammar_state_close(s);
    if (!first)
        return rc;
    grammar_unref(*out);
    *out = NULL;
    return err_set(&e->err, first, "too many ways to begin an answer are open at once");
}

static const char *code_of(int rc)
{
    return rc == ERR_UNSUPPORTED ? "unsupported_value"
           : rc == ERR_LIMIT     ? "schema_too_complex"
                                 : "invalid_value";
}

int gram_make(struct api_call *c, struct api_model *m, const struct gram_job *job,
              struct grammar **out)
{
    struct gram_cache *k = c->api->grammars;
    struct schema_err e = {0};
    char param[256];
    if (job->key.len && (*out = find(k, m, job->key)))
        return 0;
    struct grammar_vocab *v = vocab_of(k, m, &e.err);
    int rc = v ? compile(job, v, out, &e) : ERR_NOMEM;
    if (rc == ERR_NOMEM)
        return api__nomem(c);
    snprintf(param, sizeof param, "%s%s%s", job->param, *e.where ? "." : "", e.where);
    if (rc)
        return api__bad(c, param, code_of(rc), "Invalid '%s': %s.", param, e.err.text);
    if (job->key.len)
        add(k, m, job->key, *out);
    return 0;
}
