/* See gguf_write.h. */
#include "engine/load/gguf_write.h"

#include "engine/load/gguf_impl.h"

static void put_u32(struct buf *b, uint32_t v)
{
    buf_add(b, &v, sizeof v);
}

static void put_u64(struct buf *b, uint64_t v)
{
    buf_add(b, &v, sizeof v);
}

void gguf_kvs_free(struct gguf_kvs *k)
{
    buf_free(&k->b);
    k->n = 0;
}

void gguf_put_text(struct buf *b, struct view v)
{
    put_u64(b, v.len);
    buf_add(b, v.p, v.len);
}

static void put_key(struct gguf_kvs *k, struct view key, enum gguf_type t)
{
    gguf_put_text(&k->b, key);
    put_u32(&k->b, (uint32_t)t);
    k->n++;
}

void gguf_put_u32(struct gguf_kvs *k, const char *key, uint32_t v)
{
    put_key(k, view_str(key), GGUF_U32);
    put_u32(&k->b, v);
}

void gguf_put_f32(struct gguf_kvs *k, const char *key, float v)
{
    put_key(k, view_str(key), GGUF_F32);
    buf_add(&k->b, &v, sizeof v);
}

void gguf_put_bool(struct gguf_kvs *k, const char *key, bool v)
{
    put_key(k, view_str(key), GGUF_BOOL);
    buf_char(&k->b, v ? 1 : 0);
}

void gguf_put_str(struct gguf_kvs *k, const char *key, struct view v)
{
    put_key(k, view_str(key), GGUF_STRING);
    gguf_put_text(&k->b, v);
}

void gguf_put_list(struct gguf_kvs *k, const char *key, enum gguf_type elem, uint64_t n)
{
    put_key(k, view_str(key), GGUF_ARRAY);
    put_u32(&k->b, (uint32_t)elem);
    put_u64(&k->b, n);
}

void gguf_put_copy(struct gguf_kvs *k, const struct gguf_kv *kv)
{
    bool list = kv->type == GGUF_ARRAY;
    enum gguf_type t = list ? kv->elem : kv->type;
    put_key(k, kv->key, kv->type);
    if (list) {
        put_u32(&k->b, (uint32_t)kv->elem);
        put_u64(&k->b, kv->n);
    }
    if (t != GGUF_STRING)
        buf_add(&k->b, kv->data, gguf__type_bytes((uint32_t)t) * (size_t)kv->n);
    else if (!list)
        buf_add(&k->b, kv->data, 8 + (size_t)gguf__u64(kv->data));
    else
        for (uint64_t i = 0; i < kv->n; i++)
            gguf_put_text(&k->b, gguf_arr_str(kv, i));
}
