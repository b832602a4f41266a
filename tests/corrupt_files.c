/* Layouts that no test data has as files: a sharded folder, a folder of CTranslate2 (corrupt.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/load/ct2.h"
#include "engine/load/safetensors.h"
#include "tests/corrupt.h"
#include "tests/tree.h"

static struct safetensors *weights_of(const char *dir)
{
    struct safetensors *s = NULL;
    struct err e = {0};
    if (safetensors_open(&s, tree_path(dir, "model.safetensors"), &e))
        fprintf(stderr, "%s\n", e.text);
    CHECK(s);
    return s;
}

void corrupt_shard(const char *dir)
{
    static struct tree_tensor part[2][128];
    static const char *const file[2] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    struct safetensors *s = weights_of(dir);
    struct buf index = {0};
    int n[2] = {0, 0};
    size_t all = safetensors_n_tensor(s);
    buf_fmt(&index, "{\"metadata\":{\"total_size\":%zu},\"weight_map\":{",
            safetensors_file_bytes(s));
    for (size_t i = 0; i < all; i++) {
        const struct st_tensor *t = safetensors_tensor_at(s, i);
        int k = i >= all / 2;
        CHECK(n[k] < 128 && t->n_dim <= 6);
        struct tree_tensor *to = &part[k][n[k]++];
        *to = (struct tree_tensor){t->name.p, st_dtype_name(t->dtype), t->n_dim, {0}, t->data};
        memcpy(to->dim, t->dim, (size_t)t->n_dim * sizeof *t->dim);
        buf_fmt(&index, "%s\"%s\":\"%s\"", i ? "," : "", t->name.p, file[k]);
    }
    buf_fmt(&index, "}}");
    for (int k = 0; k < 2; k++)
        tree_safetensors(dir, file[k], part[k], n[k]);
    tree_put(dir, "model.safetensors.index.json", index.p, index.len);
    buf_free(&index);
    safetensors_close(s);
    remove(tree_path(dir, "model.safetensors"));
}

/* ---- CTranslate2 ---- */

static void put(struct buf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buf_char(b, (char)(v >> (8 * i)));
}

static void put_name(struct buf *b, const char *s)
{
    put(b, strlen(s) + 1, 2);
    buf_add(b, s, strlen(s) + 1);
}

static enum ct2_dtype dtype_of(enum st_dtype t)
{
    CHECK(t == ST_F32 || t == ST_F16 || t == ST_BF16);
    return t == ST_F32 ? CT2_F32 : t == ST_F16 ? CT2_F16 : CT2_BF16;
}

static const struct st_tensor *any_of(const struct safetensors *s, const char *const *from, int n)
{
    const struct st_tensor *t = NULL;
    for (int i = 0; i < n && !t; i++)
        t = safetensors_tensor_find(s, from[i]);
    return t;
}

/* `from`: names of tensors that stand one below the other; an absent bias is zeros. */
static void put_tensor(struct buf *b, const struct safetensors *s, const char *name,
                       const char *const *from, int n_from)
{
    const struct st_tensor *first = any_of(s, from, n_from), *t;
    int64_t rows = 0;
    CHECK(first);
    for (int i = 0; i < n_from; i++) {
        t = safetensors_tensor_find(s, from[i]);
        rows += t ? t->dim[0] : first->dim[0];
    }
    put_name(b, name);
    put(b, (uint64_t)first->n_dim, 1);
    for (int k = 0; k < first->n_dim; k++)
        put(b, (uint64_t)(k ? first->dim[k] : rows), 4);
    put(b, dtype_of(first->dtype), 1);
    put(b, first->bytes / (size_t)first->dim[0] * (size_t)rows, 4);
    for (int i = 0; i < n_from; i++) {
        t = safetensors_tensor_find(s, from[i]);
        for (size_t k = 0; !t && k < first->bytes; k++)
            buf_char(b, 0);
        if (t)
            buf_add(b, t->data, t->bytes);
    }
}

struct rename {
    const char *to, *from[3]; /* the part between layer and ".weight" */
    bool norm, cross;
};
static const struct rename in_layer[] = {
    {"self_attention/layer_norm", {"self_attn_layer_norm"}, true, false},
    {"self_attention/linear_0",
     {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
     false,
     false},
    {"self_attention/linear_1", {"self_attn.out_proj"}, false, false},
    {"attention/layer_norm", {"encoder_attn_layer_norm"}, true, true},
    {"attention/linear_0", {"encoder_attn.q_proj"}, false, true},
    {"attention/linear_1", {"encoder_attn.k_proj", "encoder_attn.v_proj"}, false, true},
    {"attention/linear_2", {"encoder_attn.out_proj"}, false, true},
    {"ffn/layer_norm", {"final_layer_norm"}, true, false},
    {"ffn/linear_0", {"fc1"}, false, false},
    {"ffn/linear_1", {"fc2"}, false, false},
};

struct ct2_maker {
    struct buf b;
    uint32_t n;
    const struct safetensors *s;
};

/* Weight and bias of one product or norm: `to` under CTranslate2's name, `head` + from[] under transformers'. */
static void put_pair(struct ct2_maker *m, const char *to, const char *head, const struct rename *r)
{
    static const char *const ends[2] = {"weight", "bias"};
    for (int w = 0; w < 2; w++) {
        char name[3][128], out[160];
        const char *from[3];
        int n = 0;
        for (; n < 3 && r->from[n]; n++) {
            snprintf(name[n], sizeof name[n], "%s%s.%s", head, r->from[n], ends[w]);
            from[n] = name[n];
        }
        if (!any_of(m->s, from, n)) /* a product without bias */
            continue;
        snprintf(out, sizeof out, "%s/%s", to, r->norm ? (w ? "beta" : "gamma") : ends[w]);
        put_tensor(&m->b, m->s, out, from, n);
        m->n++;
    }
}

static void put_side(struct ct2_maker *m, const char *side, int n_layer)
{
    char to[128], head[64], name[128];
    const char *from[1] = {name};
    for (int l = 0; l < n_layer; l++)
        for (size_t i = 0; i < sizeof in_layer / sizeof *in_layer; i++) {
            if (in_layer[i].cross && side[0] == 'e')
                continue;
            snprintf(to, sizeof to, "%s/layer_%d/%s", side, l, in_layer[i].to);
            snprintf(head, sizeof head, "model.%s.layers.%d.", side, l);
            put_pair(m, to, head, &in_layer[i]);
        }
    snprintf(to, sizeof to, "%s/layer_norm", side);
    snprintf(head, sizeof head, "model.%s.", side);
    put_pair(m, to, head, &(struct rename){"", {"layer_norm"}, true, false});
    snprintf(name, sizeof name, "%sembed_positions.weight", head);
    snprintf(to, sizeof to, "%s/position_encodings/encodings", side);
    put_tensor(&m->b, m->s, to, from, 1);
    m->n++;
}

void corrupt_to_ct2(const char *dir)
{
    struct ct2_maker m = {.s = weights_of(dir)}, all = {0};
    put_side(&m, "encoder", 2);
    put_side(&m, "decoder", 2);
    put_pair(&m, "encoder/conv1", "model.encoder.", &(struct rename){"", {"conv1"}, false, false});
    put_pair(&m, "encoder/conv2", "model.encoder.", &(struct rename){"", {"conv2"}, false, false});
    const char *embd[1] = {"model.decoder.embed_tokens.weight"};
    put_tensor(&m.b, m.s, "decoder/embeddings/weight", embd, 1);
    m.n++;
    put(&all.b, 6, 4);
    put_name(&all.b, "WhisperSpec");
    put(&all.b, 3, 4);
    put(&all.b, m.n, 4);
    buf_add(&all.b, m.b.p, m.b.len);
    put(&all.b, 0, 4);
    tree_put(dir, "model.bin", all.b.p, all.b.len);
    tree_text(dir, "config.json", "{\"suppress_ids\": [], \"alignment_heads\": [[0, 0]]}");
    buf_free(&m.b);
    buf_free(&all.b);
    remove(tree_path(dir, "generation_config.json"));
    safetensors_close((struct safetensors *)(uintptr_t)m.s);
    remove(tree_path(dir, "model.safetensors"));
}
