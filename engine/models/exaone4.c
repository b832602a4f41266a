/* EXAONE 4.0 (LG AI Research 2025): norms behind the blocks only, norms of q and k heads; where there is a sliding window,
 * every fourth layer has neither that nor positions. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_G_VEC(rope_factors, "rope_freqs.weight", NULL, DIM_ROPE, WEIGHT_OPTIONAL),
    ROW_QKV,
    ROW_Q_NORM(0),
    ROW_K_NORM(0),
    ROW_ATTN_OUT,
    ROW_NORM(attn_post_norm, "post_attention_norm", "post_attention_layernorm", 0),
    ROW_GATE_UP,
    ROW_DOWN,
    ROW_NORM(ffn_post_norm, "post_ffw_norm", "post_feedforward_layernorm", 0),
};

static const struct hp_row keys[] = {
    HP_OPT("attention.sliding_window", "sliding_window", HP_INT, window, 0, 1 << 26),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)) || hp->window == 0)
        return rc;
    rc = model_hp_slides(hp, c, 4, e);
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].nope = !hp->layer[i].slides;
    return rc;
}

const struct model_arch model_exaone4 = {
    .name = "exaone4",
    .hf = "Exaone4ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
