/* MiniMax M2 (MiniMax 2025): norms of q and k over all heads, part of a head rotated, experts in every layer, chosen by
 * sigmoid scores with a bias. */
#include "engine/models/rows_moe.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROWS_QK_NORM_ALL,
    ROW_ATTN_OUT,
    ROW_FFN_NORM,
    ROW_ROUTER("block_sparse_moe.gate"),
    ROW_SELECT_BIAS("block_sparse_moe.e_score_correction_bias"),
    ROWS_EXPERTS_W("block_sparse_moe.experts"),
};

static const struct hp_row keys[] = {
    {NULL, "rotary_dim", HP_INT, true, offsetof(struct model_hp, n_rot), 2, 1024},
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    hp->moe.score = ROUTE_SIGMOID;
    hp->moe.renorm = true;
    int rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e);
    if (rc || (rc = model_hp_common(hp, c, e)) || (rc = model_hp_act(c, "hidden_act", &hp->act, e)))
        return rc;
    return model_hp_moe(hp, c, e);
}

const struct model_arch model_minimax_m2 = {
    .name = "minimax-m2",
    .hf = "MiniMaxM2ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
