/* GPT-J (Wang and Komatsuzaki 2021): attention and MLP side by side behind one layer norm, neighbouring pairs of part of a
 * head rotated. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD_OF("transformer.wte.weight", "lm_head.weight"),
    ROW_HEAD_OF("lm_head.weight"),
    ROW_G_VEC(head_bias, "output.bias", "lm_head.bias", DIM_VOCAB, WEIGHT_OPTIONAL),
    ROW_OUT_LAYER_NORM("transformer.ln_f", 0),
    ROW_LAYER_NORM(attn_norm, "attn_norm", "ln_1", 0),
    {.name = {"attn_q.weight", "attn_k.weight", "attn_v.weight"},
     .hf = {"attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_Q, DIM_KV, DIM_KV},
     .slot = LAYER(qkv)},
    ROW_MAT(attn_out, "attn_output.weight", "attn.out_proj.weight", DIM_Q, DIM_EMBD, 0),
    ROW_MAT(up, "ffn_up.weight", "mlp.fc_in.weight", DIM_EMBD, DIM_FF, 0),
    ROW_VEC(up_bias, "ffn_up.bias", "mlp.fc_in.bias", DIM_FF, 0),
    ROW_MAT(down, "ffn_down.weight", "mlp.fc_out.weight", DIM_FF, DIM_EMBD, 0),
    ROW_VEC(down_bias, "ffn_down.bias", "mlp.fc_out.bias", DIM_EMBD, 0),
};

static const struct hp_row keys[] = {
    HP_OPT(NULL, "rotary_dim", HP_INT, n_rot, 2, 1024),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t n_embd = 0;
    hp->rope_style = ROPE_NORM;
    hp->act = ACT_GELU_TANH;
    hp->norm = NORM_LAYER;
    hp->parallel = true;
    int rc = ckpt_int(c, "embedding_length", "n_embd|hidden_size", &n_embd, e);
    if (!rc && n_embd > 0 && n_embd < 1 << 20)
        hp->n_ff = (int32_t)n_embd * 4;
    if ((rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)) ||
        (rc = model_hp_common(hp, c, e)))
        return rc;
    return model_hp_act(c, "activation_function", &hp->act, e);
}

static const char *const ignore[] = {"attn.bias", "attn.masked_bias", NULL};

const struct model_arch model_gptj = {
    .name = "gptj",
    .hf = "GPTJForCausalLM",
    .hf_layer = "transformer.h.%d.",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
