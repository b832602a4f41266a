/* A folder as CTranslate2 converts it (model.bin, a config.json of its own): tensors under transformers' names, and the
 * configuration, which is in the tensors' shapes. See model.h. */
#include <stdio.h>
#include <string.h>

#include "engine/audio/model.h"

static int slice(struct source_slice *s, int part, int n_part, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int slice(struct source_slice *s, int part, int n_part, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(s->name, sizeof s->name, fmt, ap);
    va_end(ap);
    s->part = part;
    s->n_part = n_part;
    return n > 0 && (size_t)n < sizeof s->name ? 1 : -1;
}

static const struct {
    const char *theirs, *ours;
    int part, n_part;
    bool norm;
} names[] = {
    {"self_attn_layer_norm", "self_attention/layer_norm", 0, 1, true},
    {"self_attn.q_proj", "self_attention/linear_0", 0, 3, false},
    {"self_attn.k_proj", "self_attention/linear_0", 1, 3, false},
    {"self_attn.v_proj", "self_attention/linear_0", 2, 3, false},
    {"self_attn.out_proj", "self_attention/linear_1", 0, 1, false},
    {"encoder_attn_layer_norm", "attention/layer_norm", 0, 1, true},
    {"encoder_attn.q_proj", "attention/linear_0", 0, 1, false},
    {"encoder_attn.k_proj", "attention/linear_1", 0, 2, false},
    {"encoder_attn.v_proj", "attention/linear_1", 1, 2, false},
    {"encoder_attn.out_proj", "attention/linear_2", 0, 1, false},
    {"final_layer_norm", "ffn/layer_norm", 0, 1, true},
    {"fc1", "ffn/linear_0", 0, 1, false},
    {"fc2", "ffn/linear_1", 0, 1, false},
};

/* "fc1.weight" of a layer. */
static int in_layer(const char *side, int layer, const char *rest, struct source_slice *s)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i].theirs);
        if (strncmp(rest, names[i].theirs, n) != 0 || rest[n] != '.')
            continue;
        const char *what = rest + n + 1;
        bool bias = strcmp(what, "bias") == 0;
        if (names[i].norm)
            what = bias ? "beta" : "gamma";
        return slice(s, names[i].part, names[i].n_part, "%s/layer_%d/%s/%s", side, layer,
                     names[i].ours, what);
    }
    return -1;
}

static int find(const struct source_map *m, const char *want,
                struct source_slice out[SOURCE_SLICES])
{
    static const char *const sides[] = {"encoder", "decoder"};
    (void)m;
    for (int k = 0; k < 2; k++) {
        const char *side = sides[k];
        char head[32];
        int layer, len = snprintf(head, sizeof head, "model.%s.", side), at = 0;
        if (strncmp(want, head, (size_t)len) != 0)
            continue;
        const char *rest = want + len;
        if (sscanf(rest, "layers.%d.%n", &layer, &at) == 1 && at)
            return in_layer(side, layer, rest + at, out);
        if (strcmp(rest, "layer_norm.weight") == 0)
            return slice(out, 0, 1, "%s/layer_norm/gamma", side);
        if (strcmp(rest, "layer_norm.bias") == 0)
            return slice(out, 0, 1, "%s/layer_norm/beta", side);
        if (strcmp(rest, "embed_positions.weight") == 0)
            return slice(out, 0, 1, "%s/position_encodings/encodings", side);
        if (strcmp(rest, "embed_tokens.weight") == 0)
            return slice(out, 0, 1, "%s/embeddings/weight", side);
        if (strncmp(rest, "conv", 4) == 0 && rest[4] && rest[5] == '.')
            return slice(out, 0, 1, "%s/conv%c/%s", side, rest[4], rest + 6);
    }
    return -1;
}

static int64_t size_of(const struct source *s, const char *name, int dim)
{
    const struct source_tensor *t = source_find(s, name);
    return t && dim < t->n_dim ? t->dim[dim] : 0;
}

static int layers(const struct source *s, const char *side)
{
    char name[64];
    int n = 0;
    for (;; n++) {
        snprintf(name, sizeof name, "%s/layer_%d/", side, n);
        if (!source_has_prefix(s, name))
            return n;
    }
}

/* Every published Whisper has heads of 64. */
static int config_of(struct config **out, const struct source *s, const char *path, struct err *e)
{
    char text[1024];
    long long d = size_of(s, "decoder/embeddings/weight", 1);
    int n = snprintf(
        text, sizeof text,
        "{\"model_type\":\"whisper\",\"d_model\":%lld,\"vocab_size\":%lld,\"num_mel_bins\":%lld,"
        "\"encoder_layers\":%d,\"decoder_layers\":%d,\"encoder_attention_heads\":%lld,"
        "\"decoder_attention_heads\":%lld,\"encoder_ffn_dim\":%lld,\"decoder_ffn_dim\":%lld,"
        "\"max_source_positions\":%lld,\"max_target_positions\":%lld}",
        d, (long long)size_of(s, "decoder/embeddings/weight", 0),
        (long long)size_of(s, "encoder/conv1/weight", 1), layers(s, "encoder"),
        layers(s, "decoder"), d / 64, d / 64,
        (long long)size_of(s, "encoder/layer_0/ffn/linear_0/weight", 0),
        (long long)size_of(s, "decoder/layer_0/ffn/linear_0/weight", 0),
        (long long)size_of(s, "encoder/position_encodings/encodings", 0),
        (long long)size_of(s, "decoder/position_encodings/encodings", 0));
    return config_open_text(out, text, (size_t)n, path, e);
}

bool aud_is_ct2(const char *dir)
{
    char path[4096], kind[64];
    int n = snprintf(path, sizeof path, "%s/model.bin", dir);
    return n > 0 && (size_t)n < sizeof path && ct2_sniff(path, kind, sizeof kind) &&
           strcmp(kind, "WhisperSpec") == 0;
}

int aud_ct2_map(struct audio_model *m, const char *path, struct err *e)
{
    config_close(m->comp.cfg);
    m->comp.cfg = NULL;
    m->comp.map.find = find;
    return config_of(&m->comp.cfg, m->src, path, e);
}
