/* StarCoder 2 (Lozhkov et al. 2024): layer norms, biases, GELU without a gate, a sliding window, tied output. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_HEAD,
    ROW_OUT_LAYER_NORM("model.norm", 0),
    ROW_LAYER_NORM(attn_norm, "attn_norm", "input_layernorm", 0),
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,
    ROW_ATTN_OUT_BIAS(WEIGHT_OPTIONAL),
    ROW_LAYER_NORM(ffn_norm, "ffn_norm", "post_attention_layernorm", 0),
    ROW_MAT(up, "ffn_up.weight", "mlp.c_fc.weight", DIM_EMBD, DIM_FF, 0),
    ROW_VEC(up_bias, "ffn_up.bias", "mlp.c_fc.bias", DIM_FF, WEIGHT_OPTIONAL),
    ROW_MAT(down, "ffn_down.weight", "mlp.c_proj.weight", DIM_FF, DIM_EMBD, 0),
    ROW_VEC(down_bias, "ffn_down.bias", "mlp.c_proj.bias", DIM_EMBD, WEIGHT_OPTIONAL),
};

static const struct hp_row keys[] = {
    HP_OPT("attention.sliding_window", "sliding_window", HP_INT, window, 0, 1 << 26),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_GELU_TANH;
    hp->norm = NORM_LAYER;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) ||
        (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)))
        return rc;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].window = hp->window;
    return 0;
}

const struct model_arch model_starcoder2 = {
    .name = "starcoder2",
    .hf = "Starcoder2ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
