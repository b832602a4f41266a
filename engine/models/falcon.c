/* Falcon (Almazrouei et al. 2023): layer norms, attention and MLP side by side behind one norm or one each, GELU; the
 * smallest has them in turn and slopes in place of rotation. A folder's q, k and v rows lie group by group. */
#include "engine/models/rows.h"

#include <math.h>

#define TWO_NORMS 1 /* layer_hp.user: attention and MLP have norms of their own */
#define ONE_NORM  2
#define IN_TURN   4

/* Groups of n_head / n_kv_head queries, then a key and a value. */
static int64_t qkv_row(const struct model_hp *hp, int part, int64_t i)
{
    (void)part;
    int64_t d = hp->head_dim, n_q = hp->n_head, n_kv = hp->n_kv_head, group = n_q / n_kv;
    int64_t h = i / d, at;
    if (h < n_q)
        at = h / group * (group + 2) + h % group;
    else
        at = (h - n_q) % n_kv * (group + 2) + group + (h - n_q) / n_kv;
    return at * d + i % d;
}

#define NORM_OF(field, gguf, folder, layers)                                                       \
    {.name = {gguf ".weight"},                                                                     \
     .hf = {folder ".weight"},                                                                     \
     .flags = WEIGHT_VECTOR,                                                                       \
     .n_out = {DIM_EMBD},                                                                          \
     .slot = LAYER(field),                                                                         \
     .kind = (layers)},                                                                            \
    {                                                                                              \
        .name = {gguf ".bias"}, .hf = {folder ".bias"}, .flags = WEIGHT_VECTOR,                    \
        .n_out = {DIM_EMBD}, .slot = LAYER(field##_b), .kind = (layers)                            \
    }

static const struct weight_row weights[] = {
    ROW_EMBD_OF("transformer.word_embeddings.weight", "lm_head.weight"),
    ROW_HEAD_OF("lm_head.weight"),
    ROW_OUT_LAYER_NORM("transformer.ln_f", 0),
    NORM_OF(attn_norm, "attn_norm_2", "ln_attn", KIND_USER(0)),
    NORM_OF(ffn_norm, "attn_norm", "ln_mlp", KIND_USER(0)),
    NORM_OF(attn_norm, "attn_norm", "input_layernorm", KIND_USER(1) | KIND_USER(2)),
    NORM_OF(ffn_norm, "ffn_norm", "post_attention_layernorm", KIND_USER(2)),
    {.name = {"attn_qkv.weight"},
     .hf = {"self_attention.query_key_value.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_QKV},
     .slot = LAYER(qkv),
     .hf_row = qkv_row},
    {.name = {"attn_qkv.bias"},
     .hf = {"self_attention.query_key_value.bias"},
     .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL,
     .n_out = {DIM_QKV},
     .slot = LAYER(qkv_bias),
     .hf_row = qkv_row},
    ROW_MAT(attn_out, "attn_output.weight", "self_attention.dense.weight", DIM_Q, DIM_EMBD, 0),
    ROW_VEC(attn_out_bias, "attn_output.bias", "self_attention.dense.bias", DIM_EMBD,
            WEIGHT_OPTIONAL),
    ROW_MAT(up, "ffn_up.weight", "mlp.dense_h_to_4h.weight", DIM_EMBD, DIM_FF, 0),
    ROW_VEC(up_bias, "ffn_up.bias", "mlp.dense_h_to_4h.bias", DIM_FF, WEIGHT_OPTIONAL),
    ROW_MAT(down, "ffn_down.weight", "mlp.dense_4h_to_h.weight", DIM_FF, DIM_EMBD, 0),
    ROW_VEC(down_bias, "ffn_down.bias", "mlp.dense_4h_to_h.bias", DIM_EMBD, WEIGHT_OPTIONAL),
};

static int flag(struct ckpt *c, const char *json, bool otherwise, bool *out, struct err *e)
{
    *out = otherwise;
    int rc = ckpt_bool(c, NULL, json, out, e);
    return rc == ERR_NOTFOUND ? 0 : rc;
}

static int number(struct ckpt *c, const char *json, int64_t *out, struct err *e)
{
    int rc = ckpt_int(c, NULL, json, out, e);
    return rc == ERR_NOTFOUND ? 0 : rc;
}

/* What a folder says in words of its own. */
static int folder(struct model_hp *hp, struct ckpt *c, bool *two, struct err *e)
{
    bool fresh, many, beside, alibi;
    int64_t n_kv = 0, n_ln = 0, n_embd = 0;
    int rc = flag(c, "new_decoder_architecture", false, &fresh, e);
    if (rc || (rc = flag(c, "multi_query", true, &many, e)) ||
        (rc = flag(c, "parallel_attn", true, &beside, e)) ||
        (rc = flag(c, "alibi", false, &alibi, e)) ||
        (rc = number(c, "num_kv_heads|n_head_kv", &n_kv, e)) ||
        (rc = number(c, "num_ln_in_parallel_attn", &n_ln, e)) ||
        (rc = number(c, "hidden_size|n_embed", &n_embd, e)))
        return rc;
    if (!hp->n_ff && n_embd > 0 && n_embd < 1 << 20)
        hp->n_ff = (int32_t)n_embd * 4;
    *two = fresh && n_ln != 1;
    hp->parallel = beside || fresh;
    hp->rope_style = alibi ? ROPE_NONE : ROPE_NEOX;
    hp->alibi_max = alibi ? 8 : 0;
    if (!fresh)
        hp->n_kv_head = many ? 1 : 0;
    else if (n_kv > 0 && n_kv <= 4096)
        hp->n_kv_head = (int32_t)n_kv;
    return 0;
}

static const struct hp_row keys[] = {
    HP_OPT(NULL, "ffn_hidden_size", HP_INT, n_ff, 1, 1 << 20),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    bool two = ckpt_has(c, "blk.0.attn_norm_2.weight");
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_GELU_ERF;
    hp->norm = NORM_LAYER;
    hp->parallel = true;
    hp->n_ctx = 2048; /* where the config is silent */
    int rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e);
    if (rc || (ckpt_is_hf(c) && (rc = folder(hp, c, &two, e))) ||
        (rc = model_hp_common(hp, c, e)) || (rc = model_hp_act(c, "activation", &hp->act, e)))
        return rc;
    hp->alibi_scale = hp->attn_scale; /* slopes are added before the scores are scaled */
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].user = (uint8_t)(two ? TWO_NORMS : hp->parallel ? ONE_NORM : IN_TURN);
    return 0;
}

const struct model_arch model_falcon = {
    .name = "falcon",
    .hf = "FalconForCausalLM|RWForCausalLM",
    .hf_layer = "transformer.h.%d.",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
