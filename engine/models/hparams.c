/* Metadata of a decoder-only transformer, by tables: key, field, range. A value out of range, of
 * another type, or in conflict with another is refused with the key's name. */
#include "engine/load/gguf.h"
#include "engine/models/model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define WIDTH_MAX (1 << 20)
#define CTX_MAX   (1 << 26)
#define HEAD_MAX  MODEL_HEAD_MAX

#define ROW(k, j, ty, opt, f, lo, hi)                                                              \
    {                                                                                              \
        k, j, ty, opt, offsetof(struct model_hp, f), lo, hi                                        \
    }
#define INT(k, j, f, lo, hi)     ROW(k, j, HP_INT, false, f, lo, hi)
#define INT_OPT(k, j, f, lo, hi) ROW(k, j, HP_INT, true, f, lo, hi)
#define FLT_OPT(k, j, f, lo, hi) ROW(k, j, HP_FLOAT, true, f, lo, hi)

/* Where transformers keeps a rotation's parameters: 5.x, before, and a model with two kinds of layers. */
#define ROPE(name)                                                                                 \
    "rope_parameters." name "|rope_scaling." name "|rope_parameters.full_attention." name

static const struct hp_row common[] = {
    INT_OPT("block_count", "num_hidden_layers|n_layer|n_layers|num_layers", n_layer, 1,
            MODEL_LAYERS_MAX),
    INT("embedding_length", "hidden_size|n_embd|n_embed|d_model", n_embd, 1, WIDTH_MAX),
    INT_OPT("feed_forward_length", "intermediate_size|n_inner|ffn_dim", n_ff, 0, WIDTH_MAX),
    INT_OPT("attention.head_count", "num_attention_heads|n_head|n_heads", n_head, 0, 4096),
    INT_OPT("attention.head_count_kv", "num_key_value_heads", n_kv_head, 0, 4096),
    INT_OPT("attention.key_length", "head_dim", head_dim, 2, HEAD_MAX),
    INT_OPT("rope.dimension_count", NULL, n_rot, 2, HEAD_MAX),
    INT_OPT("context_length",
            "max_position_embeddings|n_positions|n_ctx|max_sequence_length|max_seq_len|model_max_"
            "length",
            n_ctx, 1, CTX_MAX),
    INT_OPT("vocab_size", "vocab_size", n_vocab, 1, 1 << 24),
    INT_OPT("expert_count", "num_local_experts|num_experts|n_routed_experts", moe.n_expert, 0,
            65536),
    FLT_OPT("attention.layer_norm_rms_epsilon",
            "rms_norm_eps|norm_eps|layer_norm_epsilon|layer_norm_eps|norm_epsilon", norm_eps, 0, 1),
    FLT_OPT("attention.layer_norm_epsilon", NULL, norm_eps, 0, 1),
    FLT_OPT("attention.clamp_kqv", "clip_qkv|attn_config.clip_qkv", clip_qkv, 0, 1e6),
    FLT_OPT("rope.freq_base", ROPE("rope_theta") "|rope_theta", rope_base, 1, 1e12),
    FLT_OPT("rope.scaling.factor", ROPE("factor"), rope_factor, 1e-6, 1e6),
    INT_OPT("rope.scaling.original_context_length",
            ROPE("original_max_position_embeddings") "|original_max_position_embeddings",
            rope_ctx_orig, 1, CTX_MAX),
    FLT_OPT("rope.scaling.attn_factor", ROPE("attention_factor"), rope_attn_factor, 1e-6, 1e6),
    FLT_OPT("rope.scaling.yarn_log_multiplier", NULL, rope_log_multiplier, 0, 1e6),
    FLT_OPT("rope.scaling.yarn_beta_fast", ROPE("beta_fast"), rope_beta_fast, 1e-3, 1e6),
    FLT_OPT("rope.scaling.yarn_beta_slow", ROPE("beta_slow"), rope_beta_slow, 1e-3, 1e6),
    FLT_OPT(NULL, ROPE("mscale"), rope_mscale, 0, 1e6),
    FLT_OPT(NULL, ROPE("mscale_all_dim"), rope_mscale_all, 0, 1e6),
    FLT_OPT(NULL, ROPE("low_freq_factor"), rope_low_freq, 1e-3, 1e6),
    FLT_OPT(NULL, ROPE("high_freq_factor"), rope_high_freq, 1e-3, 1e6),
};

/* Hybrid models give some numbers of a GGUF file by layer, 0 where a layer has none: the largest counts. */
static int largest(struct ckpt *c, const struct hp_row *r, int64_t *out, struct err *e)
{
    int n = ckpt_is_hf(c) ? 0 : ckpt_len(c, r->key, r->json), rc = 0;
    double v, most = 0;
    if (n < 2)
        return ckpt_int(c, r->key, r->json, out, e);
    for (int i = 0; i < n && !rc; i++) {
        rc = ckpt_num_at(c, r->key, r->json, i, &v, e);
        most = !rc && v > most ? v : most;
    }
    *out = most < 1e15 ? (int64_t)most : INT64_MAX;
    return rc;
}

static int row_read(struct model_hp *hp, struct ckpt *c, const struct hp_row *r, struct err *e)
{
    char *field = (char *)hp + r->field, name[200];
    int64_t i = 0;
    double v = 0;
    bool b = false;
    int rc = r->type == HP_INT    ? largest(c, r, &i, e)
             : r->type == HP_BOOL ? ckpt_bool(c, r->key, r->json, &b, e)
                                  : ckpt_num(c, r->key, r->json, &v, e);
    ckpt_key_text(c, r->key, r->json, name, sizeof name);
    if (rc == ERR_NOTFOUND)
        return r->optional ? 0 : err_set(e, ERR_NOTFOUND, "%s is missing", name);
    if (rc)
        return rc;
    if (r->type == HP_BOOL) {
        *(bool *)field = b;
        return 0;
    }
    v = r->type == HP_INT ? (double)i : v;
    if (!(v >= r->min && v <= r->max)) /* also refuses NaN */
        return err_set(e, ERR_INVAL, "%s is %g, expected %g to %g", name, v, r->min, r->max);
    if (r->type == HP_INT)
        *(int32_t *)field = (int32_t)i;
    else
        *(float *)field = (float)v;
    return 0;
}

int model_hp_read(struct model_hp *hp, struct ckpt *c, const struct hp_row *row, int n,
                  struct err *e)
{
    for (int i = 0; i < n; i++) {
        ckpt_note_row(c, row[i].key, &row[i]);
        int rc = row_read(hp, c, &row[i], e);
        if (rc)
            return rc;
    }
    return 0;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

/* A folder's values, as transformers means them, to those of a GGUF file: attn_factor multiplies YaRN's own. Contexts
 * are as long as the scaling makes them (as vLLM has it). */
static int scaling_hf(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    double s = (double)hp->rope_factor, given = (double)hp->rope_attn_factor;
    bool yarn = hp->rope_scaling == ROPE_SCALING_YARN, truncate = true;
    if (hp->rope_scaling == ROPE_SCALING_LINEAR || hp->rope_scaling == ROPE_SCALING_DYNAMIC ||
        yarn) {
        if (hp->rope_ctx_orig == 0)
            hp->rope_ctx_orig = hp->n_ctx;
        double longest = (yarn ? hp->rope_ctx_orig : hp->n_ctx) * s;
        if (longest > hp->n_ctx)
            hp->n_ctx = (int32_t)fmin(longest, CTX_MAX);
    }
    if (!yarn)
        return 0;
    int rc = ckpt_bool(c, NULL, ROPE("truncate"), &truncate, e);
    hp->rope_exact = !truncate;
    if (given <= 0 && hp->rope_mscale > 0 && hp->rope_mscale_all > 0)
        given =
            yarn_mscale(s, (double)hp->rope_mscale) / yarn_mscale(s, (double)hp->rope_mscale_all);
    if (given > 0)
        hp->rope_attn_factor = (float)(given / yarn_mscale(s, 1));
    return rc == ERR_NOTFOUND ? 0 : rc;
}

/* The two lists of a folder's long context; a GGUF file has them as tensors. */
static int long_read(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    static const char *const json[] = {ROPE("long_factor"), ROPE("short_factor")};
    float *const list[] = {hp->rope_long, hp->rope_short};
    if (hp->rope_scaling != ROPE_SCALING_LONG || !ckpt_is_hf(c))
        return 0;
    for (int k = 0; k < 2; k++) {
        int n = ckpt_len(c, NULL, json[k]), rc = 0;
        if (n != hp->n_rot / 2)
            return err_set(e, ERR_INVAL, "config.json: %s_factor has %d numbers, expected %d",
                           k ? "short" : "long", n, hp->n_rot / 2);
        for (int i = 0; i < n; i++) {
            double v = 0;
            rc = ckpt_num_at(c, NULL, json[k], i, &v, e);
            if (rc)
                return rc;
            if (!(v > 1e-6 && v < 1e9))
                return err_set(e, ERR_INVAL, "config.json: %s_factor holds %g",
                               k ? "short" : "long", v);
            list[k][i] = (float)v;
        }
    }
    return 0;
}

static int scaling_read(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    static const struct {
        const char *name;
        enum rope_scaling is;
    } known[] = {{"none", ROPE_SCALING_NONE},
                 {"default", ROPE_SCALING_NONE},
                 {"linear", ROPE_SCALING_LINEAR},
                 {"yarn", ROPE_SCALING_YARN},
                 {"llama3", ROPE_SCALING_LLAMA3},
                 {"longrope", ROPE_SCALING_LONG},
                 {"su", ROPE_SCALING_LONG},
                 {"dynamic", ROPE_SCALING_DYNAMIC},
                 {"proportional", ROPE_SCALING_PROPORTIONAL}};
    static const char key[] = "rope.scaling.type", json[] = ROPE("rope_type") "|" ROPE("type");
    char name[200];
    struct view v;
    int rc = ckpt_str(c, key, json, &v, e);
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    ckpt_key_text(c, key, json, name, sizeof name);
    size_t i = 0, n = sizeof known / sizeof *known;
    while (i < n && !view_is(v, known[i].name))
        i++;
    if (i == n)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s is \"%.*s\"; known: none, linear, dynamic, yarn, llama3, longrope, "
                       "proportional",
                       name, (int)(v.len > 32 ? 32 : v.len), v.p);
    hp->rope_scaling = known[i].is;
    if (hp->rope_scaling == ROPE_SCALING_YARN && hp->rope_ctx_orig == 0) {
        if (!ckpt_is_hf(c))
            return err_set(e, ERR_NOTFOUND, "%.*s.original_context_length is missing",
                           (int)(strlen(name) - strlen(".type")), name);
        hp->rope_ctx_orig = hp->n_ctx;
    }
    return ckpt_is_hf(c) ? scaling_hf(hp, c, e) : 0;
}

/* The vocabulary is as long as the embedding table; nothing else says it reliably. */
static int vocab_read(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    const struct gguf *g = ckpt_gguf(c);
    if (!g)
        return hp->n_vocab ? 0 : err_set(e, ERR_NOTFOUND, "config.json: vocab_size is missing");
    const struct gguf_tensor *t = gguf_tensor_find(g, "token_embd.weight");
    if (!t)
        return err_set(e, ERR_NOTFOUND, "tensor token_embd.weight is missing");
    if (t->n_dim != 2 || t->dim[1] < 1 || t->dim[1] > (1 << 24))
        return err_set(e, ERR_INVAL, "tensor token_embd.weight has %d dimensions and %lld rows",
                       t->n_dim, (long long)t->dim[1]);
    hp->n_vocab = (int32_t)t->dim[1];
    const struct gguf_kv *tok = gguf_kv_find(g, "tokenizer.ggml.tokens");
    if (tok && tok->type == GGUF_ARRAY && tok->n > (uint64_t)hp->n_vocab)
        return err_set(e, ERR_INVAL, "tokenizer.ggml.tokens has %llu tokens, token_embd.weight %d",
                       (unsigned long long)tok->n, hp->n_vocab);
    return 0;
}

/* Rotated dimensions of a folder that gives their share of a head. */
static int partial_read(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    double part = 1;
    int rc = ckpt_num(c, NULL, "partial_rotary_factor|" ROPE("partial_rotary_factor") "|rotary_pct",
                      &part, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (!(part > 0 && part <= 1))
        return err_set(e, ERR_INVAL, "config.json: partial_rotary_factor is %g, expected 0 to 1",
                       part);
    if (hp->rope_scaling == ROPE_SCALING_PROPORTIONAL) {
        hp->n_rot = hp->head_dim;
        hp->n_turn = (int32_t)(hp->head_dim * part) / 2;
    }
    if (hp->n_rot == 0)
        hp->n_rot = (int32_t)(hp->head_dim * part);
    return 0;
}

static int heads_check(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    char kv[200], embd[200], rot[200];
    ckpt_key_text(c, "attention.head_count", "num_attention_heads|n_head", kv, sizeof kv);
    ckpt_key_text(c, "embedding_length", "hidden_size|n_embd", embd, sizeof embd);
    ckpt_key_text(c, "rope.dimension_count", "partial_rotary_factor", rot, sizeof rot);
    if (hp->n_kv_head == 0)
        hp->n_kv_head = hp->n_head;
    if (hp->n_head % hp->n_kv_head)
        return err_set(e, ERR_INVAL, "%s %d is no multiple of head_count_kv %d", kv, hp->n_head,
                       hp->n_kv_head);
    if (hp->head_dim == 0) {
        if (hp->n_embd % hp->n_head)
            return err_set(e, ERR_INVAL, "%s %d is no multiple of attention.head_count %d", embd,
                           hp->n_embd, hp->n_head);
        hp->head_dim = hp->n_embd / hp->n_head;
    }
    if (hp->head_dim > HEAD_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%s is %d: a head of %d values is over the limit %d",
                       embd, hp->n_embd, hp->head_dim, HEAD_MAX);
    int rc = partial_read(hp, c, e);
    if (rc)
        return rc;
    if (!hp->own_heads && (hp->head_dim % 2 || hp->n_rot % 2 || hp->n_rot > hp->head_dim))
        return err_set(e, ERR_INVAL,
                       "%s %d and head size %d: both must be even, the first no larger", rot,
                       hp->n_rot, hp->head_dim);
    return 0;
}

static int value_check(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t value_dim = hp->head_dim;
    char name[200];
    int rc = ckpt_int(c, "attention.value_length", NULL, &value_dim, e);
    ckpt_key_text(c, "attention.value_length", NULL, name, sizeof name);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    return value_dim == hp->head_dim || hp->own_heads
               ? 0
               : err_set(e, ERR_UNSUPPORTED, "%s is %lld, but keys have %d: must be equal", name,
                         (long long)value_dim, hp->head_dim);
}

static void dims_set(struct model_hp *hp)
{
    int64_t *d = hp->dim;
    d[DIM_EMBD] = hp->n_embd;
    d[DIM_VOCAB] = hp->n_vocab;
    d[DIM_FF] = hp->n_ff;
    d[DIM_FF2] = 2 * (int64_t)hp->n_ff;
    d[DIM_Q] = (int64_t)hp->n_head * hp->head_dim;
    d[DIM_KV] = (int64_t)hp->n_kv_head * hp->head_dim;
    d[DIM_QKV] = d[DIM_Q] + 2 * d[DIM_KV];
    d[DIM_HEAD] = hp->head_dim;
    d[DIM_HEADS] = hp->n_head;
    d[DIM_KV_HEADS] = hp->n_kv_head;
    d[DIM_ROPE] = hp->n_rot / 2;
    d[DIM_CTX] = hp->n_ctx;
    d[DIM_ONE] = 1;
}

static int need(bool value, struct ckpt *c, const char *key, const char *json, struct err *e)
{
    char name[200];
    return value ? 0
                 : err_set(e, ERR_NOTFOUND, "%s is missing",
                           ckpt_key_text(c, key, json, name, sizeof name));
}

int model_hp_common(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int rc = model_hp_read(hp, c, common, (int)(sizeof common / sizeof *common), e);
    if (!rc && hp->n_layer > MODEL_LAYERS_MAX)
        rc =
            err_set(e, ERR_LIMIT, "%d layers are over the limit %d", hp->n_layer, MODEL_LAYERS_MAX);
    if (rc || (rc = need(hp->n_layer > 0, c, "block_count", "num_hidden_layers", e)) ||
        (rc = need(hp->n_ff || hp->bare, c, "feed_forward_length", "intermediate_size", e)) ||
        (rc = need(hp->n_head || hp->bare, c, "attention.head_count", "num_attention_heads", e)) ||
        (rc = need(hp->n_ctx, c, "context_length", "max_position_embeddings", e)) ||
        (rc = need(hp->norm_eps >= 0, c, "attention.layer_norm_rms_epsilon", "rms_norm_eps", e)) ||
        (rc = scaling_read(hp, c, e)) || (rc = vocab_read(hp, c, e)) ||
        (!hp->bare && ((rc = heads_check(hp, c, e)) || (rc = value_check(hp, c, e)) ||
                       (rc = long_read(hp, c, e)))))
        return rc;
    if (hp->bare)
        hp->n_head = hp->n_kv_head = hp->head_dim = hp->n_rot = hp->n_ff = 0;
    else
        hp->attn_scale = (float)(1 / sqrt((double)hp->head_dim));
    dims_set(hp);
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i] = (struct layer_hp){.mixer = MIX_ATTN, .ffn = FFN_DENSE};
    return 0;
}

int model_hp_act(struct ckpt *c, const char *json, enum act_kind *out, struct err *e)
{
    static const struct {
        const char *name;
        enum act_kind is;
    } known[] = {{"silu", ACT_SILU},           {"swish", ACT_SILU},
                 {"gelu", ACT_GELU_ERF},       {"gelu_new", ACT_GELU_TANH},
                 {"gelu_fast", ACT_GELU_TANH}, {"gelu_pytorch_tanh", ACT_GELU_TANH},
                 {"relu", ACT_RELU},           {"relu2", ACT_RELU2}};
    struct view v;
    char name[200];
    int rc = ckpt_str(c, NULL, json, &v, e);
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (view_is(v, known[i].name)) {
            *out = known[i].is;
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED, "%s is \"%.*s\", an activation that is not known",
                   ckpt_key_text(c, NULL, json, name, sizeof name), (int)(v.len > 32 ? 32 : v.len),
                   v.p);
}

/* A GGUF file says at most which layers have a window. */
static int layer_windows(struct model_hp *hp, struct ckpt *c,
                         bool (*fn)(struct layer_hp *l, struct view type), struct err *e)
{
    static const char key[] = "attention.sliding_window_pattern";
    int n = ckpt_len(c, key, NULL), rc = 0;
    if (n < 2) /* a number: every so many layers, which the architectures know */
        return ERR_NOTFOUND;
    if (n < hp->n_layer)
        return err_set(e, ERR_INVAL, "%s has %d elements, expected %d", key, n, hp->n_layer);
    for (int i = 0; i < hp->n_layer && !rc; i++) {
        double v = 0;
        rc = ckpt_num_at(c, key, NULL, i, &v, e);
        if (!rc)
            fn(&hp->layer[i], view_str(v > 0 ? "sliding_attention" : "full_attention"));
    }
    return rc;
}

int model_hp_layer_types(struct model_hp *hp, struct ckpt *c, const char *json,
                         bool (*fn)(struct layer_hp *l, struct view type), struct err *e)
{
    int n = ckpt_len(c, NULL, json);
    if (!ckpt_is_hf(c))
        return layer_windows(hp, c, fn, e);
    if (n == 0)
        return ERR_NOTFOUND;
    if (n < hp->n_layer)
        return err_set(e, ERR_INVAL, "config.json: %s has %d elements, expected %d", json, n,
                       hp->n_layer);
    for (int i = 0; i < hp->n_layer; i++) {
        struct view v;
        int rc = ckpt_str_at(c, json, i, &v, e);
        if (rc)
            return rc;
        if (!fn(&hp->layer[i], v))
            return err_set(e, ERR_UNSUPPORTED, "config.json: %s holds \"%.*s\"", json,
                           (int)(v.len > 32 ? 32 : v.len), v.p);
    }
    return 0;
}

static bool slides_type(struct layer_hp *l, struct view type)
{
    l->slides = view_is(type, "sliding_attention");
    return l->slides || view_is(type, "full_attention");
}

int model_hp_slides(struct model_hp *hp, struct ckpt *c, int64_t full_every, struct err *e)
{
    for (int i = 0; full_every > 0 && i < hp->n_layer; i++)
        hp->layer[i].slides = (i + 1) % full_every != 0;
    int rc = model_hp_layer_types(hp, c, "layer_types", slides_type, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].window = hp->layer[i].slides ? hp->window : 0;
    return 0;
}
