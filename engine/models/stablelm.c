/* StableLM (Bellagente et al. 2024): layer norms, a gated MLP in turn or beside the attention, part of a head rotated.
 * Nemotron (Parmar et al. 2024): layer norms by 1 + w (a GGUF file holds that), squared ReLU without a gate. */
#include "engine/models/rows.h"

/* Of every head; a GGUF file has them in one tensor. */
#define HEAD_NORM(field, gguf, folder, all, heads)                                                 \
    {                                                                                              \
        .name = {gguf}, .hf = {"self_attn." folder ".norms.{}.weight"},                            \
        .flags = WEIGHT_VECTOR | WEIGHT_FLAT | WEIGHT_EXPERTS | WEIGHT_OPTIONAL, .n_out = {all},   \
        .hf_n_out = {DIM_HEAD}, .n_expert = (heads), .slot = LAYER(field)                          \
    }

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_HEAD,
    ROW_OUT_LAYER_NORM("model.norm", 0),
    ROW_LAYER_NORM(attn_norm, "attn_norm", "input_layernorm", 0),
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    HEAD_NORM(head_norm.q, "attn_q_norm.weight", "q_layernorm", DIM_Q, DIM_HEADS),
    HEAD_NORM(head_norm.k, "attn_k_norm.weight", "k_layernorm", DIM_KV, DIM_KV_HEADS),
    ROW_ATTN_OUT,
    ROW_LAYER_NORM(ffn_norm, "ffn_norm", "post_attention_layernorm", WEIGHT_OPTIONAL),
    ROW_GATE_UP,
    ROW_DOWN,
};

static const struct weight_row nemotron_weights[] = {
    ROW_EMBD,
    ROW_HEAD,
    ROW_OUT_LAYER_NORM("model.norm", WEIGHT_HF_PLUS_1),
    ROW_LAYER_NORM(attn_norm, "attn_norm", "input_layernorm", WEIGHT_HF_PLUS_1),
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,
    ROW_ATTN_OUT_BIAS(WEIGHT_OPTIONAL),
    ROW_LAYER_NORM(ffn_norm, "ffn_norm", "post_attention_layernorm", WEIGHT_HF_PLUS_1),
    ROW_MAT(up, "ffn_up.weight", "mlp.up_proj.weight", DIM_EMBD, DIM_FF, 0),
    ROW_VEC(up_bias, "ffn_up.bias", "mlp.up_proj.bias", DIM_FF, WEIGHT_OPTIONAL),
    ROW_DOWN,
    ROW_DOWN_BIAS,
};

static const struct hp_row keys[] = {
    HP_OPT("use_parallel_residual", "use_parallel_residual", HP_BOOL, parallel, 0, 1),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    hp->norm = NORM_LAYER;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)))
        return rc;
    return model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e);
}

static int nemotron_hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_RELU2;
    hp->norm = NORM_LAYER;
    int rc = model_hp_common(hp, c, e);
    return rc ? rc : model_hp_act(c, "hidden_act", &hp->act, e);
}

const struct model_arch model_stablelm = {
    .name = "stablelm",
    .hf = "StableLmForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
const struct model_arch model_nemotron = {
    .name = "nemotron",
    .hf = "NemotronForCausalLM",
    .hparams = nemotron_hparams,
    ROWS(nemotron_weights),
    .forward = model_forward_decoder,
};
