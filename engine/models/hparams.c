/* Metadata of a decoder-only transformer, by tables: key, field, range. A value out of range, of
 * another type, or in conflict with another is refused with the key's name. */
#include "engine/models/model.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#define LAYER_MAX 1024
#define WIDTH_MAX (1 << 20)
#define CTX_MAX   (1 << 26)
#define HEAD_MAX  1024 /* rope.c counts on it */

#define INT(k, f, lo, hi)                                                                          \
    {                                                                                              \
        k, HP_INT, false, offsetof(struct model_hp, f), lo, hi                                     \
    }
#define INT_OPT(k, f, lo, hi)                                                                      \
    {                                                                                              \
        k, HP_INT, true, offsetof(struct model_hp, f), lo, hi                                      \
    }
#define FLT(k, f, lo, hi)                                                                          \
    {                                                                                              \
        k, HP_FLOAT, false, offsetof(struct model_hp, f), lo, hi                                   \
    }
#define FLT_OPT(k, f, lo, hi)                                                                      \
    {                                                                                              \
        k, HP_FLOAT, true, offsetof(struct model_hp, f), lo, hi                                    \
    }

static const struct hp_row common[] = {
    INT("block_count", n_layer, 1, LAYER_MAX),
    INT("embedding_length", n_embd, 1, WIDTH_MAX),
    INT("feed_forward_length", n_ff, 1, WIDTH_MAX),
    INT("attention.head_count", n_head, 1, 4096),
    INT_OPT("attention.head_count_kv", n_kv_head, 1, 4096),
    INT_OPT("attention.key_length", head_dim, 2, HEAD_MAX),
    INT_OPT("rope.dimension_count", n_rot, 2, HEAD_MAX),
    INT("context_length", n_ctx, 1, CTX_MAX),
    INT_OPT("expert_count", n_expert, 0, 65536),
    FLT("attention.layer_norm_rms_epsilon", norm_eps, 0, 1),
    FLT_OPT("rope.freq_base", rope_base, 1, 1e12),
    FLT_OPT("rope.scaling.factor", rope_factor, 1e-6, 1e6),
    INT_OPT("rope.scaling.original_context_length", rope_ctx_orig, 1, CTX_MAX),
    FLT_OPT("rope.scaling.attn_factor", rope_attn_factor, 1e-6, 1e6),
    FLT_OPT("rope.scaling.yarn_log_multiplier", rope_log_multiplier, 0, 1e6),
    FLT_OPT("rope.scaling.yarn_beta_fast", rope_beta_fast, 1e-3, 1e6),
    FLT_OPT("rope.scaling.yarn_beta_slow", rope_beta_slow, 1e-3, 1e6),
};

static int row_read(struct model_hp *hp, const struct gguf *g, const char *key,
                    const struct hp_row *r, struct err *e)
{
    char *field = (char *)hp + r->field;
    uint32_t u = 0;
    float f = 0;
    int rc = r->type == HP_INT ? gguf_get_u32(g, key, &u, e) : gguf_get_f32(g, key, &f, e);
    if (rc == ERR_NOTFOUND)
        return r->optional ? 0 : err_set(e, ERR_NOTFOUND, "key %s is missing", key);
    if (rc)
        return rc;
    double v = r->type == HP_INT ? (double)u : (double)f;
    if (!(v >= r->min && v <= r->max)) /* also refuses NaN */
        return err_set(e, ERR_INVAL, "key %s is %g, expected %g to %g", key, v, r->min, r->max);
    if (r->type == HP_INT)
        *(int32_t *)field = (int32_t)u;
    else
        *(float *)field = f;
    return 0;
}

int model_hp_read(struct model_hp *hp, const struct gguf *g, const char *arch,
                  const struct hp_row *row, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        char key[96];
        snprintf(key, sizeof key, "%s.%s", arch, row[i].key);
        int rc = row_read(hp, g, key, &row[i], e);
        if (rc)
            return rc;
    }
    return 0;
}

static int scaling_read(struct model_hp *hp, const struct gguf *g, const char *arch, struct err *e)
{
    char key[96];
    struct view v;
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    int rc = gguf_get_str(g, key, &v, e);
    if (rc == ERR_NOTFOUND)
        return 0;
    if (rc)
        return rc;
    if (view_is(v, "none"))
        hp->rope_scaling = ROPE_SCALING_NONE;
    else if (view_is(v, "linear"))
        hp->rope_scaling = ROPE_SCALING_LINEAR;
    else if (view_is(v, "yarn"))
        hp->rope_scaling = ROPE_SCALING_YARN;
    else
        return err_set(e, ERR_UNSUPPORTED, "key %s is \"%.*s\"; known: none, linear, yarn", key,
                       (int)(v.len > 32 ? 32 : v.len), v.p);
    if (hp->rope_scaling == ROPE_SCALING_YARN && hp->rope_ctx_orig == 0)
        return err_set(e, ERR_NOTFOUND, "key %s.rope.scaling.original_context_length is missing",
                       arch);
    return 0;
}

/* The vocabulary is as long as the embedding table; nothing else says it reliably. */
static int vocab_read(struct model_hp *hp, const struct gguf *g, struct err *e)
{
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

static int heads_check(struct model_hp *hp, const char *arch, struct err *e)
{
    if (hp->n_kv_head == 0)
        hp->n_kv_head = hp->n_head;
    if (hp->n_head % hp->n_kv_head)
        return err_set(e, ERR_INVAL,
                       "%s.attention.head_count %d is no multiple of head_count_kv %d", arch,
                       hp->n_head, hp->n_kv_head);
    if (hp->head_dim == 0) {
        if (hp->n_embd % hp->n_head)
            return err_set(e, ERR_INVAL,
                           "%s.embedding_length %d is no multiple of attention.head_count %d", arch,
                           hp->n_embd, hp->n_head);
        hp->head_dim = hp->n_embd / hp->n_head;
    }
    if (hp->head_dim > HEAD_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%s: a head of %d values is over the limit %d", arch,
                       hp->head_dim, HEAD_MAX);
    if (hp->n_rot == 0)
        hp->n_rot = hp->head_dim;
    if (hp->head_dim % 2 || hp->n_rot % 2 || hp->n_rot > hp->head_dim)
        return err_set(e, ERR_INVAL,
                       "%s.rope.dimension_count %d and head size %d: both must be even, the first "
                       "no larger",
                       arch, hp->n_rot, hp->head_dim);
    return 0;
}

int model_hp_common(struct model_hp *hp, const struct gguf *g, const char *arch, struct err *e)
{
    int rc = model_hp_read(hp, g, arch, common, (int)(sizeof common / sizeof *common), e);
    if (rc || (rc = scaling_read(hp, g, arch, e)) || (rc = vocab_read(hp, g, e)) ||
        (rc = heads_check(hp, arch, e)))
        return rc;
    if (hp->n_expert > 0)
        return err_set(e, ERR_UNSUPPORTED, "%s.expert_count is %d: mixture of experts is not read",
                       arch, hp->n_expert);
    char key[96];
    uint32_t value_dim = (uint32_t)hp->head_dim;
    snprintf(key, sizeof key, "%s.attention.value_length", arch);
    rc = gguf_get_u32(g, key, &value_dim, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (value_dim != (uint32_t)hp->head_dim)
        return err_set(e, ERR_UNSUPPORTED, "key %s is %u, but keys have %d: must be equal", key,
                       value_dim, hp->head_dim);
    hp->attn_scale = (float)(1 / sqrt((double)hp->head_dim));
    hp->dim[DIM_EMBD] = hp->n_embd;
    hp->dim[DIM_VOCAB] = hp->n_vocab;
    hp->dim[DIM_FF] = hp->n_ff;
    hp->dim[DIM_Q] = (int64_t)hp->n_head * hp->head_dim;
    hp->dim[DIM_KV] = (int64_t)hp->n_kv_head * hp->head_dim;
    hp->dim[DIM_HEAD] = hp->head_dim;
    hp->dim[DIM_ROPE] = hp->n_rot / 2;
    return 0;
}
