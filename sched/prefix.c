/* See prefix.h. */
#include "sched/prefix.h"

#include "engine/base/mem.h"

struct link {
    uint64_t uid, parent; /* uid 0 = not indexed; parent 0 = at the start of a sequence */
    uint64_t salt, hash;
    block_id next; /* same bucket */
};

struct prefix {
    struct block_pool *pool;
    struct prefix_opts o;
    struct link *link; /* [n_block] */
    int32_t *tok;      /* [n_block, block_len] */
    block_id *bucket;  /* [n_bucket] */
    size_t n_bucket;   /* a power of two */
    int32_t n_block;
    uint64_t last_uid;
    uint64_t *msg; /* scratch of hashing: parent, salt, layout, tokens */
    size_t msg_len;
};

static void unlink_block(struct prefix *x, block_id id)
{
    struct link *l = &x->link[id];
    block_id *at = &x->bucket[l->hash & (x->n_bucket - 1)];
    while (*at != id) {
        CHECK(*at);
        at = &x->link[*at].next;
    }
    *at = l->next;
    *l = (struct link){0};
    if (x->o.gone)
        x->o.gone(x->o.arg, id);
}

static void on_evict(void *arg, block_id id)
{
    unlink_block(arg, id);
}

int prefix_open(struct prefix **out, struct block_pool *pool, const struct prefix_opts *o,
                struct err *e)
{
    struct prefix *x = mem_calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "prefix index: no memory");
    x->pool = pool;
    x->o = *o;
    x->n_block = block_pool_total(pool) + 1;
    x->n_bucket = 16;
    while (x->n_bucket < 2 * (size_t)x->n_block)
        x->n_bucket *= 2;
    size_t n_tok;
    x->msg_len = 3 * sizeof(uint64_t) + (size_t)o->block_len * sizeof(int32_t);
    x->link = mem_calloc((size_t)x->n_block, sizeof *x->link);
    x->tok = ck_mul((size_t)x->n_block, (size_t)o->block_len, &n_tok)
                 ? mem_calloc(n_tok, sizeof *x->tok)
                 : NULL;
    x->bucket = mem_calloc(x->n_bucket, sizeof *x->bucket);
    x->msg = mem_calloc(1, x->msg_len);
    if (!x->link || !x->tok || !x->bucket || !x->msg) {
        prefix_close(x);
        return err_set(e, ERR_NOMEM, "prefix index: no memory for %d blocks",
                       block_pool_total(pool));
    }
    block_pool_on_evict(pool, on_evict, x);
    *out = x;
    return 0;
}

void prefix_close(struct prefix *x)
{
    if (!x)
        return;
    block_pool_on_evict(x->pool, NULL, NULL);
    free(x->link);
    free(x->tok);
    free(x->bucket);
    free(x->msg);
    free(x);
}

static uint64_t link_hash(const struct prefix *x, uint64_t parent, uint64_t salt,
                          const int32_t *tok)
{
    x->msg[0] = parent;
    x->msg[1] = salt;
    x->msg[2] = x->o.layout_id;
    memcpy(x->msg + 3, tok, (size_t)x->o.block_len * sizeof *tok);
    uint64_t h = hash_bytes(x->o.key, x->msg, x->msg_len);
    return x->o.hash_mask ? h & x->o.hash_mask : h;
}

static block_id find(const struct prefix *x, uint64_t hash, uint64_t parent, uint64_t salt,
                     const int32_t *tok)
{
    size_t bytes = (size_t)x->o.block_len * sizeof *tok;
    for (block_id id = x->bucket[hash & (x->n_bucket - 1)]; id; id = x->link[id].next) {
        const struct link *l = &x->link[id];
        if (l->hash == hash && l->parent == parent && l->salt == salt &&
            !memcmp(x->tok + (size_t)id * (size_t)x->o.block_len, tok, bytes))
            return id;
    }
    return 0;
}

int32_t prefix_match(const struct prefix *x, uint64_t salt, const int32_t *tok, int32_t n_max,
                     block_id *out)
{
    uint64_t parent = 0;
    int32_t n = 0;
    for (; n < n_max; n++, tok += x->o.block_len) {
        block_id id = find(x, link_hash(x, parent, salt, tok), parent, salt, tok);
        if (!id)
            break;
        out[n] = id;
        parent = x->link[id].uid;
    }
    return n;
}

block_id prefix_insert(struct prefix *x, block_id parent, block_id id, uint64_t salt,
                       const int32_t *tok)
{
    uint64_t up = 0;
    if (parent) {
        up = x->link[parent].uid;
        if (!up)
            return 0;
    }
    if (x->link[id].uid)
        return id;
    uint64_t hash = link_hash(x, up, salt, tok);
    block_id old = find(x, hash, up, salt, tok);
    if (old)
        return old;
    block_id *bucket = &x->bucket[hash & (x->n_bucket - 1)];
    x->link[id] = (struct link){
        .uid = ++x->last_uid, .parent = up, .salt = salt, .hash = hash, .next = *bucket};
    *bucket = id;
    memcpy(x->tok + (size_t)id * (size_t)x->o.block_len, tok, (size_t)x->o.block_len * sizeof *tok);
    block_mark_indexed(x->pool, id, true);
    return id;
}

void prefix_forget(struct prefix *x, block_id id)
{
    if (!x->link[id].uid)
        return;
    unlink_block(x, id);
    block_mark_indexed(x->pool, id, false);
}

int prefix_check(const struct prefix *x, struct err *e)
{
    int32_t linked = 0, reached = 0;
    for (block_id id = 1; id < x->n_block; id++) {
        linked += x->link[id].uid != 0;
        if ((x->link[id].uid != 0) != block_indexed(x->pool, id))
            return err_set(e, ERR_INTERNAL, "prefix index: mark of block %d is wrong", id);
    }
    for (size_t b = 0; b < x->n_bucket; b++)
        for (block_id id = x->bucket[b]; id && reached <= x->n_block; id = x->link[id].next)
            reached++;
    if (linked != reached)
        return err_set(e, ERR_INTERNAL, "prefix index: %d links, %d reached", linked, reached);
    return 0;
}
