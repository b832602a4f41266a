/* GPT-2 (Radford et al. 2019) and GPT BigCode (StarCoder; Li et al. 2023: one head of keys and values): learned positions,
 * layer norms, biases, GELU. GPT-2's folders hold matrices as [inputs, outputs]. */
#include "engine/models/rows.h"

#define GPT2_ROWS(turned)                                                                          \
    ROW_EMBD_OF("transformer.wte.weight", "lm_head.weight"), ROW_HEAD_OF("lm_head.weight"),        \
        ROW_POS_EMBD("transformer.wpe.weight"), ROW_OUT_LAYER_NORM("transformer.ln_f", 0),         \
        ROW_LAYER_NORM(attn_norm, "attn_norm", "ln_1", 0),                                         \
        ROW_MAT(qkv, "attn_qkv.weight", "attn.c_attn.weight", DIM_EMBD, DIM_QKV, turned),          \
        ROW_VEC(qkv_bias, "attn_qkv.bias", "attn.c_attn.bias", DIM_QKV, 0),                        \
        ROW_MAT(attn_out, "attn_output.weight", "attn.c_proj.weight", DIM_Q, DIM_EMBD, turned),    \
        ROW_VEC(attn_out_bias, "attn_output.bias", "attn.c_proj.bias", DIM_EMBD, 0),               \
        ROW_LAYER_NORM(ffn_norm, "ffn_norm", "ln_2", 0),                                           \
        ROW_MAT(up, "ffn_up.weight", "mlp.c_fc.weight", DIM_EMBD, DIM_FF, turned),                 \
        ROW_VEC(up_bias, "ffn_up.bias", "mlp.c_fc.bias", DIM_FF, 0),                               \
        ROW_MAT(down, "ffn_down.weight", "mlp.c_proj.weight", DIM_FF, DIM_EMBD, turned),           \
        ROW_VEC(down_bias, "ffn_down.bias", "mlp.c_proj.bias", DIM_EMBD, 0)

static const struct weight_row gpt2_weights[] = {GPT2_ROWS(WEIGHT_HF_T)};
static const struct weight_row starcoder_weights[] = {GPT2_ROWS(0)};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    bool many = true, by_layer = false;
    int64_t n_embd = 0;
    hp->rope_style = ROPE_NONE;
    hp->act = ACT_GELU_TANH;
    hp->norm = NORM_LAYER;
    int rc = ckpt_int(c, "embedding_length", "n_embd|hidden_size", &n_embd, e);
    if (!rc && n_embd > 0 && n_embd < 1 << 20)
        hp->n_ff = (int32_t)n_embd * 4;
    rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "activation_function", &hp->act, e)))
        return rc;
    rc = ckpt_bool(c, NULL, "scale_attn_by_inverse_layer_idx", &by_layer, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (by_layer)
        return err_set(e, ERR_UNSUPPORTED,
                       "config.json: scale_attn_by_inverse_layer_idx true is not supported");
    rc = ckpt_bool(c, NULL, "multi_query", &many, e);
    if (rc == 0 && many) {
        hp->n_kv_head = 1;
        hp->dim[DIM_KV] = hp->head_dim;
        hp->dim[DIM_QKV] = hp->dim[DIM_Q] + 2 * hp->dim[DIM_KV];
    }
    return rc == ERR_NOTFOUND ? 0 : rc;
}

/* Masks that older files hold as tensors. */
static const char *const ignore[] = {"attn.bias", "attn.masked_bias", NULL};

const struct model_arch model_gpt2 = {
    .name = "gpt2",
    .hf = "GPT2LMHeadModel",
    .hf_layer = "transformer.h.%d.",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(gpt2_weights),
    .forward = model_forward_decoder,
};
const struct model_arch model_starcoder = {
    .name = "starcoder",
    .hf = "GPTBigCodeForCausalLM",
    .hf_layer = "transformer.h.%d.",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(starcoder_weights),
    .forward = model_forward_decoder,
};
