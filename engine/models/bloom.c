/* BLOOM (BigScience 2022) and MPT (MosaicML 2023): slopes by distance in place of positions, layer norms, GELU. BLOOM has
 * biases, a norm of the embeddings, and a folder's q, k and v rows head by head. */
#include "engine/models/rows.h"

static int64_t qkv_row(const struct model_hp *hp, int part, int64_t i)
{
    (void)part;
    int64_t d = hp->head_dim, n_q = hp->dim[DIM_Q];
    return i % n_q / d * 3 * d + i / n_q * d + i % d;
}

static const struct weight_row weights[] = {
    ROW_EMBD_OF("transformer.word_embeddings.weight", "lm_head.weight"),
    ROW_HEAD_OF("lm_head.weight"),
    ROW_G_VEC(embd_norm, "token_embd_norm.weight", "transformer.word_embeddings_layernorm.weight",
              DIM_EMBD, 0),
    ROW_G_VEC(embd_norm_b, "token_embd_norm.bias", "transformer.word_embeddings_layernorm.bias",
              DIM_EMBD, 0),
    ROW_OUT_LAYER_NORM("transformer.ln_f", 0),
    ROW_LAYER_NORM(attn_norm, "attn_norm", "input_layernorm", 0),
    {.name = {"attn_qkv.weight"},
     .hf = {"self_attention.query_key_value.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_QKV},
     .slot = LAYER(qkv),
     .hf_row = qkv_row},
    {.name = {"attn_qkv.bias"},
     .hf = {"self_attention.query_key_value.bias"},
     .flags = WEIGHT_VECTOR,
     .n_out = {DIM_QKV},
     .slot = LAYER(qkv_bias),
     .hf_row = qkv_row},
    ROW_MAT(attn_out, "attn_output.weight", "self_attention.dense.weight", DIM_Q, DIM_EMBD, 0),
    ROW_VEC(attn_out_bias, "attn_output.bias", "self_attention.dense.bias", DIM_EMBD, 0),
    ROW_LAYER_NORM(ffn_norm, "ffn_norm", "post_attention_layernorm", 0),
    ROW_MAT(up, "ffn_up.weight", "mlp.dense_h_to_4h.weight", DIM_EMBD, DIM_FF, 0),
    ROW_VEC(up_bias, "ffn_up.bias", "mlp.dense_h_to_4h.bias", DIM_FF, 0),
    ROW_MAT(down, "ffn_down.weight", "mlp.dense_4h_to_h.weight", DIM_FF, DIM_EMBD, 0),
    ROW_VEC(down_bias, "ffn_down.bias", "mlp.dense_4h_to_h.bias", DIM_EMBD, 0),
};

static const struct weight_row mpt_weights[] = {
    ROW_EMBD_OF("transformer.wte.weight", "lm_head.weight"),
    ROW_HEAD_OF("lm_head.weight"),
    ROW_G_VEC(out_norm, "output_norm.weight", "transformer.norm_f.weight", DIM_EMBD, 0),
    ROW_NORM(attn_norm, "attn_norm", "norm_1", 0),
    ROW_MAT(qkv, "attn_qkv.weight", "attn.Wqkv.weight", DIM_EMBD, DIM_QKV, 0),
    ROW_MAT(attn_out, "attn_output.weight", "attn.out_proj.weight", DIM_Q, DIM_EMBD, 0),
    ROW_NORM(ffn_norm, "ffn_norm", "norm_2", 0),
    ROW_MAT(up, "ffn_up.weight", "ffn.up_proj.weight", DIM_EMBD, DIM_FF, 0),
    ROW_MAT(down, "ffn_down.weight", "ffn.down_proj.weight", DIM_FF, DIM_EMBD, 0),
};

/* The MLP is a multiple of the width where the file gives no number. */
static int width_ff(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t n_embd = 0;
    int rc = ckpt_int(c, "embedding_length", "hidden_size|n_embed|d_model", &n_embd, e);
    if (!rc && n_embd > 0 && n_embd < 1 << 20)
        hp->n_ff = (int32_t)n_embd * 4;
    return rc == ERR_NOTFOUND ? 0 : rc;
}

static int both(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NONE;
    hp->norm = NORM_LAYER;
    hp->norm_eps = 1e-5f;
    hp->n_ctx = 2048; /* where the config is silent */
    hp->alibi_max = 8;
    int rc = width_ff(hp, c, e);
    return rc ? rc : model_hp_common(hp, c, e);
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->act = ACT_GELU_TANH;
    return both(hp, c, e);
}

static const struct hp_row mpt_keys[] = {
    HP_OPT("attention.max_alibi_bias", "attn_config.alibi_bias_max", HP_FLOAT, alibi_max, 0, 64),
    HP_OPT(NULL, "attn_config.softmax_scale", HP_FLOAT, attn_scale, 1e-9, 1e9),
};

static int mpt_hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    bool alibi = true;
    hp->act = ACT_GELU_ERF;
    int rc = both(hp, c, e);
    if (rc || (rc = model_hp_read(hp, c, mpt_keys, sizeof mpt_keys / sizeof *mpt_keys, e)))
        return rc;
    rc = ckpt_bool(c, NULL, "attn_config.alibi", &alibi, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (!alibi || !(hp->alibi_max > 0))
        return err_set(e, ERR_UNSUPPORTED,
                       "config.json: attn_config.alibi: MPT without ALiBi is not supported");
    return 0;
}

const struct model_arch model_bloom = {
    .name = "bloom",
    .hf = "BloomForCausalLM",
    .hf_layer = "transformer.h.%d.",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
const struct model_arch model_mpt = {
    .name = "mpt",
    .hf = "MptForCausalLM|MPTForCausalLM",
    .hf_layer = "transformer.blocks.%d.",
    .hparams = mpt_hparams,
    ROWS(mpt_weights),
    .forward = model_forward_decoder,
};
