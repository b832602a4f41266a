/* Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al. 2023): layer norm, attention and MLP side by side behind one norm, biases
 * everywhere, part of a head rotated. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_LAYER_NORM("model.final_layernorm", 0),
    ROW_HEAD,
    ROW_G_VEC(head_bias, "output.bias", "lm_head.bias", DIM_VOCAB, WEIGHT_OPTIONAL),
    ROW_LAYER_NORM(attn_norm, "attn_norm", "input_layernorm", 0),
    ROW_QKV_EITHER,
    ROW_QKV_BIAS_EITHER(0),
    ROW_VEC(head_norm.q, NULL, "self_attn.q_layernorm.weight", DIM_HEAD, WEIGHT_OPTIONAL),
    ROW_VEC(head_norm.q_b, NULL, "self_attn.q_layernorm.bias", DIM_HEAD, WEIGHT_OPTIONAL),
    ROW_VEC(head_norm.k, NULL, "self_attn.k_layernorm.weight", DIM_HEAD, WEIGHT_OPTIONAL),
    ROW_VEC(head_norm.k_b, NULL, "self_attn.k_layernorm.bias", DIM_HEAD, WEIGHT_OPTIONAL),
    ROW_MAT(attn_out, "attn_output.weight", "self_attn.dense.weight", DIM_Q, DIM_EMBD, 0),
    ROW_VEC(attn_out_bias, "attn_output.bias", "self_attn.dense.bias", DIM_EMBD, 0),
    ROW_MAT(up, "ffn_up.weight", "mlp.fc1.weight", DIM_EMBD, DIM_FF, 0),
    ROW_VEC(up_bias, "ffn_up.bias", "mlp.fc1.bias", DIM_FF, 0),
    ROW_MAT(down, "ffn_down.weight", "mlp.fc2.weight", DIM_FF, DIM_EMBD, 0),
    ROW_VEC(down_bias, "ffn_down.bias", "mlp.fc2.bias", DIM_EMBD, 0),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_GELU_TANH;
    hp->norm = NORM_LAYER;
    hp->parallel = true;
    int rc = model_hp_common(hp, c, e);
    return rc ? rc : model_hp_act(c, "hidden_act", &hp->act, e);
}

const struct model_arch model_phi2 = {
    .name = "phi2",
    .hf = "PhiForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
