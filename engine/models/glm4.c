/* GLM-4 (Team GLM 2024): gate and up in one tensor, biases on q, k and v, neighbouring pairs of half a head rotated; the
 * models of 2025 have norms behind the blocks too. */
#include "engine/models/rows.h"

#define GLM_ROWS(ffn_folder)                                                                       \
    ROW_EMBD, ROW_OUT_NORM(0), ROW_HEAD, ROW_ATTN_NORM, ROW_QKV_EITHER,                            \
        ROW_QKV_BIAS_EITHER(WEIGHT_OPTIONAL), ROW_ATTN_OUT,                                        \
        ROW_NORM(ffn_norm, "ffn_norm", ffn_folder, 0),                                             \
        ROW_MAT(gate_up, "ffn_up.weight", "mlp.gate_up_proj.weight", DIM_EMBD, DIM_FF2, 0),        \
        ROW_DOWN

static const struct weight_row weights[] = {
    GLM_ROWS("post_attention_layernorm"),
    ROW_NORM(attn_post_norm, "post_attention_norm", "post_self_attn_layernorm", 0),
    ROW_NORM(ffn_post_norm, "post_ffw_norm", "post_mlp_layernorm", 0),
};
static const struct weight_row weights_chat[] = {GLM_ROWS("post_attention_layernorm")};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NORM;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    return rc ? rc : model_hp_act(c, "hidden_act", &hp->act, e);
}

const struct model_arch model_chatglm = {
    .name = "chatglm",
    .hf = "GlmForCausalLM",
    .hparams = hparams,
    ROWS(weights_chat),
    .forward = model_forward_decoder,
};
const struct model_arch model_glm4 = {
    .name = "glm4",
    .hf = "Glm4ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
