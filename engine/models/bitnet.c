/* BitNet b1.58 (Ma et al. 2024) with plain weights: as Llama, a norm before the last product of each block. Of the GGUF
 * files those named "bitnet" have SiLU, those named "bitnet-b1.58" squared ReLU. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_VEC(attn_sub_norm, "attn_sub_norm.weight", "self_attn.attn_sub_norm.weight", DIM_Q, 0),
    ROW_ATTN_OUT,
    ROW_FFN_NORM,
    ROW_GATE_UP,
    ROW_VEC(ffn_sub_norm, "ffn_sub_norm.weight", "mlp.ffn_sub_norm.weight", DIM_FF, 0),
    ROW_DOWN,
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    return rc ? rc : model_hp_act(c, "hidden_act", &hp->act, e);
}

static int hparams_158(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int rc = hparams(hp, c, e);
    if (!ckpt_is_hf(c))
        hp->act = ACT_RELU2;
    return rc;
}

const struct model_arch model_bitnet = {
    .name = "bitnet",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
const struct model_arch model_bitnet_b1_58 = {
    .name = "bitnet-b1.58",
    .hf = "BitNetForCausalLM",
    .hparams = hparams_158,
    ROWS(weights),
    .forward = model_forward_decoder,
};
