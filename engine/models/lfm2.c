/* LFM2 (Liquid AI 2025): gated short convolutions, every few layers attention with norms of heads. Which layers attend,
 * a GGUF file says by their number of KV heads. */
#include "engine/models/state.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    {.name = {"token_embd_norm.weight"},
     .hf = {"model.embedding_norm.weight"},
     .flags = WEIGHT_GLOBAL | WEIGHT_VECTOR,
     .n_out = {DIM_EMBD},
     .slot = MODEL(out_norm)},
    ROW_HEAD,
    ROW_NORM(attn_norm, "attn_norm", "operator_norm", 0),
    ROW_S_MAT(state.in, "shortconv.in_proj", "conv.in_proj", DIM_EMBD, DIM_S_IN, MIX_CONV),
    ROW_S(in_bias, "shortconv.in_proj.bias", "conv.in_proj.bias", WEIGHT_OPTIONAL, DIM_S_IN,
          MIX_CONV),
    ROW_S(conv, "shortconv.conv.weight", "conv.conv.weight", 0, DIM_S_TAPS, MIX_CONV),
    ROW_S(conv_bias, "shortconv.conv.bias", "conv.conv.bias", WEIGHT_OPTIONAL, DIM_S_CONV,
          MIX_CONV),
    ROW_S_MAT(attn_out, "shortconv.out_proj", "conv.out_proj", DIM_S_INNER, DIM_EMBD, MIX_CONV),
    {.name = {"shortconv.out_proj.bias"},
     .hf = {"conv.out_proj.bias"},
     .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL,
     .n_out = {DIM_EMBD},
     .slot = LAYER(attn_out_bias),
     .kind = KIND_MIX(MIX_CONV)},
    ROW_QKV,
    {.name = {"attn_q_norm.weight"},
     .hf = {"self_attn.q_layernorm.weight"},
     .flags = WEIGHT_VECTOR,
     .n_out = {DIM_HEAD},
     .slot = LAYER(q_norm),
     .kind = KIND_MIX(MIX_ATTN)},
    {.name = {"attn_k_norm.weight"},
     .hf = {"self_attn.k_layernorm.weight"},
     .flags = WEIGHT_VECTOR,
     .n_out = {DIM_HEAD},
     .slot = LAYER(k_norm),
     .kind = KIND_MIX(MIX_ATTN)},
    {.name = {"attn_output.weight"},
     .hf = {"self_attn.out_proj.weight"},
     .n_in = DIM_Q,
     .n_out = {DIM_EMBD},
     .slot = LAYER(attn_out),
     .kind = KIND_MIX(MIX_ATTN)},
    ROW_NORM(ffn_norm, "ffn_norm", "ffn_norm", 0),
    {.name = {"ffn_gate.weight", "ffn_up.weight"},
     .hf = {"feed_forward.w1.weight", "feed_forward.w3.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_FF, DIM_FF},
     .slot = LAYER(gate_up)},
    {.name = {"ffn_down.weight"},
     .hf = {"feed_forward.w2.weight"},
     .n_in = DIM_FF,
     .n_out = {DIM_EMBD},
     .slot = LAYER(down)},
};

static const struct hp_row keys[] = {
    {"shortconv.l_cache", "conv_L_cache", HP_INT, false, offsetof(struct model_hp, state.n_conv), 2,
     STATE_CONV_MAX},
};

static bool layer_type(struct layer_hp *l, struct view type)
{
    l->mixer = view_is(type, "conv") ? MIX_CONV : MIX_ATTN;
    return l->mixer == MIX_CONV || view_is(type, "full_attention");
}

/* A folder's intermediate_size, before what the library makes of it. */
static int ff_adjust(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    bool adjust = true;
    double factor = 1;
    int64_t step = 256;
    if (!ckpt_is_hf(c))
        return 0;
    int rc = ckpt_bool(c, NULL, "block_auto_adjust_ff_dim", &adjust, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (!adjust)
        return 0;
    rc = ckpt_num(c, NULL, "block_ffn_dim_multiplier", &factor, e);
    if (!rc || rc == ERR_NOTFOUND)
        rc = ckpt_int(c, NULL, "block_multiple_of", &step, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (!(factor > 0 && factor <= 64) || step < 1 || step > 65536)
        return err_set(e, ERR_INVAL,
                       "config.json: block_ffn_dim_multiplier or block_multiple_of "
                       "is out of range");
    int64_t n = (int64_t)(factor * (double)(2 * (int64_t)hp->n_ff / 3));
    hp->n_ff = (int32_t)((n + step - 1) / step * step);
    hp->dim[DIM_FF] = hp->n_ff;
    hp->dim[DIM_FF2] = 2 * (int64_t)hp->n_ff;
    return 0;
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    hp->rope_base = 1e6f;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)) ||
        (rc = ff_adjust(hp, c, e)) || (rc = model_hp_attends(hp, c, MIX_CONV, e)))
        return rc;
    rc = model_hp_layer_types(hp, c, "layer_types", layer_type, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    hp->dim[DIM_S_INNER] = hp->dim[DIM_S_CONV] = hp->n_embd;
    hp->dim[DIM_S_IN] = 3 * (int64_t)hp->n_embd;
    model_state_set(hp);
    return 0;
}

const struct model_arch model_lfm2 = {
    .name = "lfm2",
    .hf = "Lfm2ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
