/* GPT-NeoX (Black et al. 2022; also Pythia): layer norms, attention and MLP side by side behind a norm each (or in turn),
 * part of a head rotated. A folder's q, k and v rows lie head by head, a GGUF file's stacked. */
#include "engine/models/rows.h"

static int64_t qkv_row(const struct model_hp *hp, int part, int64_t i)
{
    (void)part;
    int64_t d = hp->head_dim, n_q = hp->dim[DIM_Q];
    return i % n_q / d * 3 * d + i / n_q * d + i % d;
}

static const struct weight_row weights[] = {
    ROW_EMBD_OF("gpt_neox.embed_in.weight", "embed_out.weight"),
    ROW_HEAD_OF("embed_out.weight"),
    ROW_OUT_LAYER_NORM("gpt_neox.final_layer_norm", 0),
    ROW_LAYER_NORM(attn_norm, "attn_norm", "input_layernorm", 0),
    {.name = {"attn_qkv.weight"},
     .hf = {"attention.query_key_value.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_QKV},
     .slot = LAYER(qkv),
     .hf_row = qkv_row},
    {.name = {"attn_qkv.bias"},
     .hf = {"attention.query_key_value.bias"},
     .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL,
     .n_out = {DIM_QKV},
     .slot = LAYER(qkv_bias),
     .hf_row = qkv_row},
    ROW_MAT(attn_out, "attn_output.weight", "attention.dense.weight", DIM_Q, DIM_EMBD, 0),
    ROW_VEC(attn_out_bias, "attn_output.bias", "attention.dense.bias", DIM_EMBD, WEIGHT_OPTIONAL),
    ROW_LAYER_NORM(ffn_norm, "ffn_norm", "post_attention_layernorm", 0),
    ROW_MAT(up, "ffn_up.weight", "mlp.dense_h_to_4h.weight", DIM_EMBD, DIM_FF, 0),
    ROW_VEC(up_bias, "ffn_up.bias", "mlp.dense_h_to_4h.bias", DIM_FF, 0),
    ROW_MAT(down, "ffn_down.weight", "mlp.dense_4h_to_h.weight", DIM_FF, DIM_EMBD, 0),
    ROW_VEC(down_bias, "ffn_down.bias", "mlp.dense_4h_to_h.bias", DIM_EMBD, 0),
};

static const struct hp_row keys[] = {
    HP_OPT("use_parallel_residual", "use_parallel_residual", HP_BOOL, parallel, 0, 1),
    HP_OPT(NULL, "rotary_emb_base", HP_FLOAT, rope_base, 1, 1e12),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_GELU_ERF;
    hp->norm = NORM_LAYER;
    hp->parallel = true;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)))
        return rc;
    return model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e);
}

static const char *const ignore[] = {"attention.bias", "attention.masked_bias", NULL};

const struct model_arch model_gptneox = {
    .name = "gptneox",
    .hf = "GPTNeoXForCausalLM",
    .hf_layer = "gpt_neox.layers.%d.",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
