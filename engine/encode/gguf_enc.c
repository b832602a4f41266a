/* Encoders in GGUF files, under llama.cpp's names: `bert` (BERT, RoBERTa and XLM-R, whose table of positions is already
 * cut to those that a text can have), `nomic-bert`, and decoders (`qwen3`, `qwen2`) whose pooling_type says that they give
 * vectors. The file's keys become the configuration that a folder would have. */
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/encode/encode.h"
#include "engine/load/config.h"
#include "engine/load/gguf.h"
#include "engine/load/source.h"

static const struct arch {
    const char *name, *model_type;
    bool decoder;
} archs[] = {{"bert", "bert", false},
             {"nomic-bert", "nomic_bert", false},
             {"qwen3", "qwen3", true},
             {"qwen2", "qwen2", true}};

/* Keys of a file and of a config.json. */
static const struct key {
    const char *gguf, *hf;
    bool number; /* else a whole one */
} keys[] = {{"embedding_length", "hidden_size", false},
            {"block_count", "num_hidden_layers", false},
            {"feed_forward_length", "intermediate_size", false},
            {"attention.head_count", "num_attention_heads", false},
            {"attention.head_count_kv", "num_key_value_heads", false},
            {"attention.key_length", "head_dim", false},
            {"context_length", "max_position_embeddings", false},
            {"attention.layer_norm_epsilon", "layer_norm_eps", true},
            {"attention.layer_norm_rms_epsilon", "rms_norm_eps", true},
            {"rope.freq_base", "rope_theta", true}};

/* pooling_type of the format; its 0 is "none". */
static const char *const poolings[] = {"", "mean", "cls", "lasttoken"};

static const struct arch *arch_of(const struct gguf *g)
{
    struct view v;
    if (gguf_get_str(g, "general.architecture", &v, NULL))
        return NULL;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (view_is(v, archs[i].name))
            return &archs[i];
    return NULL;
}

/* *out: 0 where the file does not say. */
static int pooling_of(const struct gguf *g, const struct arch *a, uint32_t *out, struct err *e)
{
    char key[80];
    *out = 0;
    snprintf(key, sizeof key, "%s.pooling_type", a->name);
    int rc = gguf_get_u32(g, key, out, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (*out >= sizeof poolings / sizeof *poolings)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s %u: mean (1), cls (2) and last (3) are known; a re-ranker needs a folder", key,
            *out);
    return 0;
}

static int add_keys(struct buf *b, const struct gguf *g, const struct arch *a, struct err *e)
{
    char key[120];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        float f = 0;
        uint32_t u = 0;
        snprintf(key, sizeof key, "%s.%s", a->name, keys[i].gguf);
        int rc = keys[i].number ? gguf_get_f32(g, key, &f, e) : gguf_get_u32(g, key, &u, e);
        if (rc == ERR_NOTFOUND)
            continue;
        if (rc)
            return rc;
        if (keys[i].number)
            buf_fmt(b, ",\"%s\":%.9g", keys[i].hf, (double)f);
        else
            buf_fmt(b, ",\"%s\":%u", keys[i].hf, u);
    }
    return 0;
}

/* The configuration's text. */
static int write_config(struct buf *b, const struct gguf *g, const struct arch *a, struct err *e)
{
    char key[80];
    bool causal = a->decoder;
    uint32_t pooling = 0;
    float base = 0;
    int rc = pooling_of(g, a, &pooling, e);
    if (rc)
        return rc;
    buf_fmt(b, "{\"model_type\":\"%s\"", a->model_type);
    if ((rc = add_keys(b, g, a, e)))
        return rc;
    snprintf(key, sizeof key, "%s.attention.causal", a->name);
    rc = gguf_get_bool(g, key, &causal, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    buf_fmt(b, ",\"is_causal\":%s", causal ? "true" : "false");
    snprintf(key, sizeof key, "%s.rope.freq_base", a->name);
    if (gguf_get_f32(g, key, &base, NULL) == 0)
        buf_fmt(b, ",\"rotary_emb_base\":%.9g", (double)base);
    if (pooling)
        buf_fmt(b, ",\"pooling_mode\":\"%s\"", poolings[pooling]);
    if (!strcmp(a->name, "nomic-bert"))
        buf_str(b, ",\"hidden_act\":\"silu\"");
    buf_str(b, "}");
    return b->failed ? err_set(e, ERR_NOMEM, "no memory for the configuration") : 0;
}

int encode__gguf_config(struct config **out, const char *path, struct err *e)
{
    struct gguf *g = NULL;
    struct buf b = {0};
    int rc = gguf_open(&g, path, e);
    if (rc)
        return rc;
    const struct arch *a = arch_of(g);
    if (!a)
        rc = err_set(e, ERR_UNSUPPORTED, "general.architecture is no known encoder's");
    rc = rc ? rc : write_config(&b, g, a, e);
    rc = rc ? rc : config_open_text(out, buf_cstr(&b), b.len, path, e);
    buf_free(&b);
    gguf_close(g);
    return rc;
}

/* ---- names of tensors ---- */

struct pair {
    const char *hf, *gguf;
};
static const struct pair outer[] = {{"embeddings.word_embeddings.", "token_embd."},
                                    {"embeddings.position_embeddings.", "position_embd."},
                                    {"embeddings.token_type_embeddings.", "token_types."},
                                    {"embeddings.LayerNorm.", "token_embd_norm."},
                                    {"emb_ln.", "token_embd_norm."}};
static const struct pair inner[] = {{"attention.self.query.", "attn_q."},
                                    {"attention.self.key.", "attn_k."},
                                    {"attention.self.value.", "attn_v."},
                                    {"attention.output.dense.", "attn_output."},
                                    {"attention.output.LayerNorm.", "attn_output_norm."},
                                    {"intermediate.dense.", "ffn_up."},
                                    {"output.dense.", "ffn_down."},
                                    {"output.LayerNorm.", "layer_output_norm."},
                                    {"attn.Wqkv.", "attn_qkv."},
                                    {"attn.out_proj.", "attn_output."},
                                    {"norm1.", "attn_output_norm."},
                                    {"mlp.fc11.", "ffn_up."},
                                    {"mlp.fc12.", "ffn_gate."},
                                    {"mlp.fc2.", "ffn_down."},
                                    {"norm2.", "layer_output_norm."}};

static const struct pair *pair_of(const struct pair *p, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(name, p[i].hf, strlen(p[i].hf)) == 0)
            return &p[i];
    return NULL;
}

int encode__gguf_find(const struct source_map *m, const char *want,
                      struct source_slice slice[SOURCE_SLICES])
{
    static const char *const layers[] = {"encoder.layer.%5d.%n", "encoder.layers.%5d.%n"};
    int layer = -1, len = 0;
    const struct pair *p = pair_of(outer, sizeof outer / sizeof *outer, want);
    const char *rest = want;
    for (int i = 0; i < 2 && !p && !len; i++)
        if (sscanf(want, layers[i], &layer, &len) == 1 && len > 0) {
            rest = want + len;
            p = pair_of(inner, sizeof inner / sizeof *inner, rest);
        }
    if (!p)
        return 0; /* decoders are read under the file's own names */
    rest += strlen(p->hf);
    slice[0] = (struct source_slice){.n_part = 1};
    if (layer < 0)
        snprintf(slice[0].name, sizeof slice[0].name, "%s%.60s", p->gguf, rest);
    else
        snprintf(slice[0].name, sizeof slice[0].name, "blk.%d.%s%.60s", layer, p->gguf, rest);
    return source_find(m->src, slice[0].name) ? 1 : -1;
}
