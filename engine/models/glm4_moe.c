/* GLM 4.5 (GLM Team 2025): part of a head rotated, norms of q and k in the larger ones, leading dense layers, then experts
 * chosen by sigmoid scores with a bias, and a shared expert. Layers behind the last (draft heads) are left alone. */
#include "engine/models/rows_moe.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_Q_NORM(WEIGHT_OPTIONAL),
    ROW_K_NORM(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,
    ROW_NORM(ffn_norm, "post_attention_norm", "post_attention_layernorm", 0),
    ROW_GATE_UP,
    ROW_DOWN,
    ROW_ROUTER("mlp.gate"),
    ROW_SELECT_BIAS("mlp.gate.e_score_correction_bias"),
    ROWS_EXPERTS("mlp.experts"),
    ROWS_SHARED("mlp.shared_experts", WEIGHT_OPTIONAL),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    hp->moe.score = ROUTE_SIGMOID;
    hp->moe.renorm = true;
    hp->moe.group_top2 = true;
    int64_t n_draft = 0; /* a GGUF file counts them among its blocks */
    int rc = model_hp_common(hp, c, e);
    if (!rc && (rc = ckpt_int(c, "nextn_predict_layers", NULL, &n_draft, e)) == ERR_NOTFOUND)
        rc = 0;
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)))
        return rc;
    if (n_draft < 0 || n_draft >= hp->n_layer)
        return err_set(e, ERR_INVAL, "glm4moe.nextn_predict_layers is %lld of %d blocks",
                       (long long)n_draft, hp->n_layer);
    hp->n_layer -= (int32_t)n_draft;
    return model_hp_moe(hp, c, e);
}

const struct model_arch model_glm4_moe = {
    .name = "glm4moe",
    .hf = "Glm4MoeForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
