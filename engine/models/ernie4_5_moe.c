/* ERNIE 4.5 MoE, text (Baidu 2025): interleaved rotation, leading dense layers, experts chosen by softmax scores with a
 * bias, weights of the chosen summing to one; shared experts. */
#include "engine/models/rows_moe.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_ATTN_OUT,
    ROW_FFN_NORM,
    ROW_GATE_UP,
    ROW_DOWN,
    ROW_ROUTER("mlp.gate"),
    ROW_SELECT_BIAS("mlp.moe_statics.e_score_correction_bias"),
    ROWS_EXPERTS("mlp.experts"),
    ROWS_SHARED("mlp.shared_experts", WEIGHT_OPTIONAL),
};

/* Which layers have experts; both kinds of files have the three numbers. */
static int layers_set(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t first = 1, last = -1, step = 1;
    int rc = ckpt_int(c, "leading_dense_block_count", "moe_layer_start_index", &first, e);
    if (!rc || rc == ERR_NOTFOUND)
        rc = ckpt_int(c, NULL, "moe_layer_end_index", &last, e);
    if (!rc || rc == ERR_NOTFOUND)
        rc = ckpt_int(c, "interleave_moe_layer_step", "moe_layer_interval", &step, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (step < 1)
        return err_set(e, ERR_INVAL, "moe_layer_interval is %lld, expected 1 or more",
                       (long long)step);
    for (int i = 0; i < hp->n_layer; i++) {
        bool in = (i + 1) % step == 0 && i >= first && (last < 0 || i <= last);
        hp->layer[i].ffn = in ? FFN_MOE : FFN_DENSE;
    }
    return 0;
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NORM;
    hp->act = ACT_SILU;
    hp->moe.renorm = true;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) || (rc = model_hp_moe(hp, c, e)))
        return rc;
    return layers_set(hp, c, e);
}

static const char *const ignore[] = {"mtp_", NULL};

const struct model_arch model_ernie4_5_moe = {
    .name = "ernie4_5-moe",
    .hf = "Ernie4_5_MoeForCausalLM",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
