/* OLMo 2 and 3 (OLMo Team 2024): norms behind the blocks only, norms of q and k over all heads; three layers of OLMo 3 with
 * a sliding window to one without, and frequencies scaled in that one alone. OLMo (Groeneveld et al. 2024): layer norms
 * without weights before the blocks. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_QKV,
    ROW_VEC(q_norm_all, "attn_q_norm.weight", "self_attn.q_norm.weight", DIM_Q, 0),
    ROW_VEC(k_norm_all, "attn_k_norm.weight", "self_attn.k_norm.weight", DIM_KV, 0),
    ROW_ATTN_OUT,
    ROW_NORM(attn_post_norm, "post_attention_norm", "post_attention_layernorm", 0),
    ROW_GATE_UP,
    ROW_DOWN,
    ROW_NORM(ffn_post_norm, "post_ffw_norm", "post_feedforward_layernorm", 0),
};

static const struct weight_row weights_1[] = {
    ROW_EMBD, ROW_HEAD, ROW_QKV, ROW_ATTN_OUT, ROW_GATE_UP, ROW_DOWN,
};

static const struct hp_row keys[] = {
    HP_OPT("attention.sliding_window", "sliding_window", HP_INT, window, 0, 1 << 26),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)))
        return rc;
    rc = model_hp_slides(hp, c, hp->window > 0 ? 4 : 0, e);
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].local = hp->layer[i].slides;
    hp->rope_base_local = hp->rope_base;
    return rc;
}

static int hparams_1(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ckpt_is_hf(c) ? ROPE_NEOX : ROPE_NORM;
    hp->act = ACT_SILU;
    hp->norm = NORM_LAYER;
    hp->norm_bare = true;
    hp->norm_eps = 1e-5f; /* not in a folder's config */
    return model_hp_common(hp, c, e);
}

const struct model_arch model_olmo = {
    .name = "olmo",
    .hf = "OlmoForCausalLM",
    .hparams = hparams_1,
    ROWS(weights_1),
    .forward = model_forward_decoder,
};
const struct model_arch model_olmo2 = {
    .name = "olmo2",
    .hf = "Olmo2ForCausalLM|Olmo3ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
