/* DeepSeek V2 and V3 (DeepSeek-AI 2024), V3.2 with sparse attention (2025), Kimi K2 (Moonshot AI 2025): latent attention, leading dense layers, then experts:
 * V2 by softmax, V3 by sigmoid scores with a bias, chosen inside the best groups; shared experts. The rotated part of a
 * head is behind the other; interleaved pairs. Draft layers behind the last are left alone. */
#include "engine/models/rows_moe.h"

#include <math.h>

/* clang-format off */
#define ROWS_DEEPSEEK \
    ROW_EMBD, \
    ROW_OUT_NORM(0), \
    ROW_HEAD, \
    ROW_ATTN_NORM, \
    {.name = {"attn_q_a.weight"}, \
    .hf = {"self_attn.q_a_proj.weight"}, \
    .flags = WEIGHT_OPTIONAL, \
    .n_in = DIM_EMBD, \
    .n_out = {DIM_Q_RANK}, \
    .slot = LAYER(mla.q_a)}, \
    {.name = {"attn_q_a_norm.weight"}, \
    .hf = {"self_attn.q_a_layernorm.weight"}, \
    .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL, \
    .n_out = {DIM_Q_RANK}, \
    .slot = LAYER(mla.q_a_norm)}, \
    {.name = {"attn_q_b.weight"}, \
    .hf = {"self_attn.q_b_proj.weight"}, \
    .flags = WEIGHT_ALT, \
    .n_in = DIM_Q_RANK, \
    .n_out = {DIM_Q_MLA}, \
    .slot = LAYER(mla.q_b)}, \
    {.name = {"attn_q.weight"}, \
    .hf = {"self_attn.q_proj.weight"}, \
    .flags = WEIGHT_ALT, \
    .n_in = DIM_EMBD, \
    .n_out = {DIM_Q_MLA}, \
    .slot = LAYER(mla.q_b)}, \
    {.name = {"attn_kv_a_mqa.weight"}, \
    .hf = {"self_attn.kv_a_proj_with_mqa.weight"}, \
    .n_in = DIM_EMBD, \
    .n_out = {DIM_KV_A}, \
    .slot = LAYER(mla.kv_a)}, \
    {.name = {"attn_kv_a_norm.weight"}, \
    .hf = {"self_attn.kv_a_layernorm.weight"}, \
    .flags = WEIGHT_VECTOR, \
    .n_out = {DIM_RANK}, \
    .slot = LAYER(mla.kv_a_norm)}, \
    {.name = {"attn_k_b.weight"}, \
    .hf = {"self_attn.kv_b_proj.weight"}, \
    .flags = WEIGHT_EXPERTS | WEIGHT_HF_T, \
    .n_in = DIM_NOPE, \
    .n_out = {DIM_RANK}, \
    .slot = LAYER(mla.k_b), \
    .n_expert = DIM_HEADS, \
    .hf_step = DIM_KV_B}, \
    {.name = {"attn_v_b.weight"}, \
    .hf = {"self_attn.kv_b_proj.weight"}, \
    .flags = WEIGHT_EXPERTS, \
    .n_in = DIM_RANK, \
    .n_out = {DIM_V_HEAD}, \
    .slot = LAYER(mla.v_b), \
    .n_expert = DIM_HEADS, \
    .hf_step = DIM_KV_B, \
    .hf_from = DIM_NOPE}, \
    {.name = {"attn_output.weight"}, \
    .hf = {"self_attn.o_proj.weight"}, \
    .n_in = DIM_Q, \
    .n_out = {DIM_EMBD}, \
    .slot = LAYER(attn_out)}, \
    ROW_FFN_NORM, \
    ROW_GATE_UP, \
    ROW_DOWN, \
    ROW_ROUTER("mlp.gate"), \
    ROW_SELECT_BIAS("mlp.gate.e_score_correction_bias"), \
    ROWS_EXPERTS("mlp.experts"), \
    ROWS_SHARED("mlp.shared_experts", WEIGHT_OPTIONAL)
/* clang-format on */

static const struct weight_row weights[] = {ROWS_DEEPSEEK};

/* V3.2: keys and queries of the index of sparse attention. */
static const struct weight_row weights_32[] = {
    ROWS_DEEPSEEK,
    ROW_MAT(mla.index_q, "indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight", DIM_Q_RANK,
            DIM_INDEX_Q, 0),
    ROW_MAT(mla.index_k, "indexer.attn_k.weight", "self_attn.indexer.wk.weight", DIM_EMBD,
            DIM_INDEX_K, 0),
    ROW_MAT(mla.index_w, "indexer.proj.weight", "self_attn.indexer.weights_proj.weight", DIM_EMBD,
            DIM_INDEX_HEADS, 0),
    ROW_VEC(mla.index_norm, "indexer.k_norm.weight", "self_attn.indexer.k_norm.weight", DIM_INDEX_K,
            0),
    ROW_VEC(mla.index_norm_b, "indexer.k_norm.bias", "self_attn.indexer.k_norm.bias", DIM_INDEX_K,
            0),
};

#define HEAD_INT(k, j, f)                                                                          \
    {                                                                                              \
        k, j, HP_INT, false, offsetof(struct model_hp, f), 1, 65536                                \
    }
static const struct hp_row sizes[] = {
    HEAD_INT("attention.kv_lora_rank", "kv_lora_rank", kv_rank),
    HEAD_INT("rope.dimension_count", "qk_rope_head_dim", n_rot),
    HEAD_INT("attention.value_length_mla", "v_head_dim", v_head),
    {"attention.q_lora_rank", "q_lora_rank", HP_INT, true, offsetof(struct model_hp, q_rank), 0,
     65536},
};

int model_hp_mla_sizes(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->own_heads = true;
    return model_hp_read(hp, c, sizes, sizeof sizes / sizeof *sizes, e);
}

/* Sizes of heads; the pool keeps one vector a token. */
int model_hp_mla(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t n = 0, *d = hp->dim, whole = 0;
    char name[200];
    int rc = ckpt_is_hf(c) ? ckpt_int(c, NULL, "qk_nope_head_dim", &n, e)
                           : ckpt_int(c, "attention.key_length_mla", NULL, &whole, e);
    ckpt_key_text(c, "attention.key_length_mla", "qk_nope_head_dim", name, sizeof name);
    if (rc)
        return rc == ERR_NOTFOUND ? err_set(e, rc, "%s is missing", name) : rc;
    n = whole ? whole - hp->n_rot : n;
    if (n < 1 || n > 65536 || hp->n_rot % 2)
        return err_set(e, ERR_INVAL, "%s makes a head of %lld values of which %d are rotated", name,
                       (long long)n + hp->n_rot, hp->n_rot);
    hp->n_nope = (int32_t)n;
    hp->n_kv_head = 1;
    hp->head_dim = hp->kv_rank + hp->n_rot;
    if (hp->head_dim > OPS_LATENT_MAX)
        return err_set(
            e, ERR_UNSUPPORTED, "%s makes a latent vector of %d values, at most %d",
            ckpt_key_text(c, "attention.kv_lora_rank", "kv_lora_rank", name, sizeof name),
            hp->head_dim, OPS_LATENT_MAX);
    hp->attn_scale = 1 / sqrtf((float)(hp->n_nope + hp->n_rot));
    d[DIM_Q_RANK] = hp->q_rank;
    d[DIM_Q_MLA] = (int64_t)hp->n_head * (hp->n_nope + hp->n_rot);
    d[DIM_RANK] = hp->kv_rank;
    d[DIM_KV_A] = hp->head_dim;
    d[DIM_NOPE] = hp->n_nope;
    d[DIM_V_HEAD] = hp->v_head;
    d[DIM_KV_B] = (int64_t)hp->n_nope + hp->v_head;
    d[DIM_Q] = (int64_t)hp->n_head * hp->v_head; /* what attention leaves */
    d[DIM_KV] = 0;
    d[DIM_KV_HEADS] = 1;
    d[DIM_ROPE] = hp->n_rot / 2;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].mixer = MIX_MLA;
    return 0;
}

/* YaRN as DeepSeek has it: a factor for the scores. A GGUF file has it as its logarithm's multiplier, and none for the
 * rotation. */
static void yarn_set(struct model_hp *hp, bool hf)
{
    double s = (double)hp->rope_factor;
    if (hp->rope_scaling != ROPE_SCALING_YARN || s <= 1)
        return;
    double mul = hf ? 0.1 * (double)hp->rope_mscale_all : (double)hp->rope_log_multiplier;
    double f = mul * log(s) + 1;
    hp->attn_scale *= (float)(f * f);
    if (!hf)
        hp->rope_attn_factor =
            (float)(1 / ((mul > 0 ? mul : 0.1) * log(s) + 1)); /* rope.c multiplies by as much */
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    struct view method;
    bool interleave = true;
    hp->act = ACT_SILU;
    int rc = model_hp_mla_sizes(hp, c, e);
    if (rc || (rc = model_hp_common(hp, c, e)) ||
        (rc = model_hp_act(c, "hidden_act", &hp->act, e)) || (rc = model_hp_moe(hp, c, e)) ||
        (rc = model_hp_mla(hp, c, e)))
        return rc;
    yarn_set(hp, ckpt_is_hf(c));
    rc = ckpt_bool(c, NULL, "rope_interleave", &interleave, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    hp->rope_style = interleave ? ROPE_NORM : ROPE_NEOX;
    rc = ckpt_str(c, NULL, "topk_method", &method, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (!rc && view_is(method, "greedy"))
        hp->moe.n_group = 0;
    return 0;
}

static int hparams_v2(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    /* V3's files are of the same kind in GGUF; they say by a key how scores are made. */
    int rc = hparams(hp, c, e);
    hp->moe.group_top2 = hp->moe.score == ROUTE_SIGMOID;
    return rc;
}

static int hparams_v3(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->moe.score = ROUTE_SIGMOID;
    hp->moe.renorm = true;
    hp->moe.group_top2 = true;
    return hparams(hp, c, e);
}

#define INDEX_INT(key, json, f, hi)                                                                \
    {                                                                                              \
        key, json, HP_INT, false, offsetof(struct model_hp, index.f), 1, hi                        \
    }
static const struct hp_row index_keys[] = {
    INDEX_INT("attention.indexer.head_count", "index_n_heads", n_head, 1024),
    INDEX_INT("attention.indexer.key_length", "index_head_dim", dim, OPS_LATENT_MAX),
    INDEX_INT("attention.indexer.top_k", "index_topk", n_top, 1 << 26),
};

static int hparams_v32(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int rc = hparams_v3(hp, c, e);
    if (rc || (rc = model_hp_read(hp, c, index_keys, sizeof index_keys / sizeof *index_keys, e)))
        return rc;
    if (hp->index.n_head > OPS_INDEX_MAX / hp->index.dim || hp->n_rot > hp->index.dim ||
        hp->q_rank == 0) {
        char name[200];
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s makes an index of %d heads of %d values, %d of them rotated, on queries of rank %d",
            ckpt_key_text(c, "attention.indexer.key_length", "index_head_dim", name, sizeof name),
            hp->index.n_head, hp->index.dim, hp->n_rot, hp->q_rank);
    }
    hp->dim[DIM_INDEX_Q] = (int64_t)hp->index.n_head * hp->index.dim;
    hp->dim[DIM_INDEX_K] = hp->index.dim;
    hp->dim[DIM_INDEX_HEADS] = hp->index.n_head;
    return 0;
}

const struct model_arch model_deepseek2 = {
    .name = "deepseek2",
    .hf = "DeepseekV2ForCausalLM",
    .hparams = hparams_v2,
    ROWS(weights),
    .forward = model_forward_decoder,
};

const struct model_arch model_deepseek3 = {
    .name = "deepseek3", /* no GGUF file says so: they are all deepseek2 */
    .hf = "DeepseekV3ForCausalLM|KimiK2ForCausalLM",
    .gguf = "deepseek2",
    .hparams = hparams_v3,
    ROWS(weights),
    .forward = model_forward_decoder,
};

const struct model_arch model_deepseek32 = {
    .name = "deepseek32",
    .hf = "DeepseekV32ForCausalLM",
    .hparams = hparams_v32,
    ROWS(weights_32),
    .forward = model_forward_decoder,
};
