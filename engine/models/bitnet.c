/* BitNet b1.58 (Ma et al. 2024) with plain weights: as Llama, squared ReLU, a norm before the last product of each
 * block. */
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
    hp->act = ACT_RELU2;
    int rc = model_hp_common(hp, c, e);
    return rc ? rc : model_hp_act(c, "hidden_act", &hp->act, e);
}

const struct model_arch model_bitnet = {
    .name = "bitnet",
    .hf = "BitNetForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
