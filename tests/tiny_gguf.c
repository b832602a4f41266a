/* See tiny_gguf.h. */
#include "tests/tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/hash.h"

#define ALIGN 32

enum { T_U32 = 4, T_F32 = 6, T_STRING = 8, T_ARRAY = 9 };

struct writer {
    const struct tiny_edit *edit;
    const char *arch;
    struct buf kv, info, data;
    uint64_t n_kv, n_tensor;
};

static void put_u32(struct buf *b, uint32_t v)
{
    buf_add(b, &v, sizeof v);
}

static void put_u64(struct buf *b, uint64_t v)
{
    buf_add(b, &v, sizeof v);
}

static void put_str(struct buf *b, const char *s)
{
    put_u64(b, strlen(s));
    buf_str(b, s);
}

static bool is_dropped(const struct writer *w, const char *name)
{
    return w->edit->drop && !strcmp(w->edit->drop, name);
}

/* Key "ARCH.name", or `name` alone when it starts with general or tokenizer; false when left out. */
static bool key_begin(struct writer *w, const char *name, uint32_t type)
{
    char key[96];
    bool bare = !strncmp(name, "general.", 8) || !strncmp(name, "tokenizer.", 10);
    if (is_dropped(w, name))
        return false;
    snprintf(key, sizeof key, "%s%s%s", bare ? "" : w->arch, bare ? "" : ".", name);
    put_str(&w->kv, key);
    put_u32(&w->kv, type);
    w->n_kv++;
    return true;
}

static void key_u32(struct writer *w, const char *name, uint32_t v)
{
    if (w->edit->key && !strcmp(w->edit->key, name))
        v = w->edit->value;
    if (key_begin(w, name, T_U32))
        put_u32(&w->kv, v);
}

static void keys_write(struct writer *w)
{
    float eps = 1e-5f;
    if (key_begin(w, "general.architecture", T_STRING))
        put_str(&w->kv, w->arch);
    key_u32(w, "block_count", 1);
    key_u32(w, "context_length", TINY_CTX);
    key_u32(w, "embedding_length", TINY_EMBD);
    key_u32(w, "feed_forward_length", TINY_FF);
    key_u32(w, "attention.head_count", 2);
    key_u32(w, "attention.head_count_kv", 1);
    if (key_begin(w, "attention.layer_norm_rms_epsilon", T_F32))
        buf_add(&w->kv, &eps, sizeof eps);
    if (w->edit->scaling && key_begin(w, "rope.scaling.type", T_STRING))
        put_str(&w->kv, w->edit->scaling);
    static const char *const sometimes[] = {"attention.key_length", "attention.value_length",
                                            "rope.dimension_count", "expert_count"};
    for (size_t i = 0; i < sizeof sometimes / sizeof *sometimes; i++)
        if (w->edit->key && !strcmp(w->edit->key, sometimes[i]))
            key_u32(w, sometimes[i], 0);
    if (key_begin(w, "tokenizer.ggml.tokens", T_ARRAY)) {
        put_u32(&w->kv, T_STRING);
        put_u64(&w->kv, TINY_VOCAB);
        for (int i = 0; i < TINY_VOCAB; i++) {
            char t[8];
            snprintf(t, sizeof t, "w%c%c", 'a' + i / 26, 'a' + i % 26);
            put_str(&w->kv, t);
        }
    }
}

static void values_write(struct writer *w, enum quant_fmt fmt, int64_t n, float constant)
{
    const struct quant_format *f = quant_format_get(fmt);
    float block[256];
    char packed[2048];
    for (int64_t at = 0; at < n; at += f->block_len) {
        for (int i = 0; i < f->block_len; i++) {
            uint64_t h = hash_u64(w->n_tensor * 1000003u + (uint64_t)(at + i));
            block[i] = constant != 0 ? constant : (float)(h >> 40) / (float)(1 << 24) - 0.5f;
        }
        if (fmt == QF_F32)
            memcpy(packed, block, sizeof *block);
        else
            f->encode(block, packed, f->block_len);
        buf_add(&w->data, packed, (size_t)f->block_bytes);
    }
    while (w->data.len % ALIGN)
        buf_char(&w->data, 0);
}

/* dim1 0: one dimension. */
static void tensor_write(struct writer *w, const char *name, int64_t dim0, int64_t dim1,
                         float constant)
{
    enum quant_fmt fmt = QF_F32;
    if (is_dropped(w, name))
        return;
    if (w->edit->tensor && !strcmp(w->edit->tensor, name)) {
        fmt = w->edit->fmt;
        dim0 = w->edit->dim[0] ? w->edit->dim[0] : dim0;
        dim1 = w->edit->dim[0] ? w->edit->dim[1] : dim1;
    }
    put_str(&w->info, name);
    put_u32(&w->info, dim1 ? 2 : 1);
    put_u64(&w->info, (uint64_t)dim0);
    if (dim1)
        put_u64(&w->info, (uint64_t)dim1);
    put_u32(&w->info, (uint32_t)fmt);
    put_u64(&w->info, w->data.len);
    w->n_tensor++;
    values_write(w, fmt, dim0 * (dim1 ? dim1 : 1), constant);
}

static void tensors_write(struct writer *w)
{
    tensor_write(w, "token_embd.weight", TINY_EMBD, TINY_VOCAB, 0);
    tensor_write(w, "output_norm.weight", TINY_EMBD, 0, 0);
    tensor_write(w, "output.weight", TINY_EMBD, TINY_VOCAB, 0);
    tensor_write(w, "blk.0.attn_norm.weight", TINY_EMBD, 0, 0);
    tensor_write(w, "blk.0.attn_q.weight", TINY_EMBD, 32, 0);
    tensor_write(w, "blk.0.attn_k.weight", TINY_EMBD, 16, 0);
    tensor_write(w, "blk.0.attn_v.weight", TINY_EMBD, 16, 0);
    tensor_write(w, "blk.0.attn_output.weight", 32, TINY_EMBD, 0);
    tensor_write(w, "blk.0.ffn_norm.weight", TINY_EMBD, 0, 0);
    tensor_write(w, "blk.0.ffn_gate.weight", TINY_EMBD, TINY_FF, 0);
    tensor_write(w, "blk.0.ffn_up.weight", TINY_EMBD, TINY_FF, 0);
    tensor_write(w, "blk.0.ffn_down.weight", TINY_FF, TINY_EMBD, 0);
    if (w->edit->extra)
        tensor_write(w, w->edit->extra, 16, 0, w->edit->extra_value);
}

static int file_write(const struct writer *w, char *path, size_t size)
{
    struct buf head = {0};
    buf_str(&head, "GGUF");
    put_u32(&head, 3);
    put_u64(&head, w->n_tensor);
    put_u64(&head, w->n_kv);
    buf_add(&head, w->kv.p, w->kv.len);
    buf_add(&head, w->info.p, w->info.len);
    while (head.len % ALIGN)
        buf_char(&head, 0);
    buf_add(&head, w->data.p, w->data.len);
    snprintf(path, size, "/tmp/stepd-tiny-XXXXXX");
    int fd = mkstemp(path);
    bool ok = fd >= 0 && !head.failed && write(fd, head.p, head.len) == (ssize_t)head.len;
    if (fd >= 0)
        close(fd);
    buf_free(&head);
    return ok ? 0 : -1;
}

int tiny_gguf_write(char *path, size_t size, const struct tiny_edit *edit)
{
    struct writer w = {.edit = edit, .arch = edit->arch ? edit->arch : "llama"};
    keys_write(&w);
    tensors_write(&w);
    int rc = file_write(&w, path, size);
    buf_free(&w.kv);
    buf_free(&w.info);
    buf_free(&w.data);
    return rc;
}
