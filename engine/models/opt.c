/* OPT (Zhang et al. 2022), as folders: learned positions that begin at 2, layer norms, ReLU, biases. */
#include "engine/models/rows.h"

#define POS_OFFSET 2 /* rows that the folder's table has before position 0 */

/* The table's last rows stand for positions behind the context, which no step reaches. */
static int64_t pos_row(const struct model_hp *hp, int part, int64_t i)
{
    (void)part;
    int64_t last = hp->dim[DIM_CTX] - 1;
    return i + POS_OFFSET > last ? last : i + POS_OFFSET;
}

#define OPT_BOTH(field, bias, folder, in, out)                                                     \
    ROW_MAT(field, NULL, folder ".weight", in, out, 0),                                            \
        ROW_VEC(bias, NULL, folder ".bias", out, WEIGHT_OPTIONAL)

static const struct weight_row weights[] = {
    ROW_EMBD_OF("model.decoder.embed_tokens.weight", "lm_head.weight"),
    ROW_HEAD_OF("lm_head.weight"),
    {.hf = {"model.decoder.embed_positions.weight"},
     .flags = WEIGHT_GLOBAL | WEIGHT_ROWS,
     .n_in = DIM_EMBD,
     .n_out = {DIM_CTX},
     .slot = MODEL(pos_embd),
     .hf_row = pos_row},
    ROW_OUT_LAYER_NORM("model.decoder.final_layer_norm", 0),
    ROW_LAYER_NORM(attn_norm, "attn_norm", "self_attn_layer_norm", 0),
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    OPT_BOTH(attn_out, attn_out_bias, "self_attn.out_proj", DIM_Q, DIM_EMBD),
    ROW_LAYER_NORM(ffn_norm, "ffn_norm", "final_layer_norm", 0),
    OPT_BOTH(up, up_bias, "fc1", DIM_EMBD, DIM_FF),
    OPT_BOTH(down, down_bias, "fc2", DIM_FF, DIM_EMBD),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    bool before = true;
    hp->rope_style = ROPE_NONE;
    hp->act = ACT_RELU;
    hp->norm = NORM_LAYER;
    hp->norm_eps = 1e-5f; /* not in the config */
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "activation_function", &hp->act, e)))
        return rc;
    rc = ckpt_bool(c, NULL, "do_layer_norm_before", &before, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (!before)
        return err_set(e, ERR_UNSUPPORTED,
                       "config.json: do_layer_norm_before false is not supported");
    hp->dim[DIM_CTX] = hp->n_ctx + POS_OFFSET;
    return 0;
}

const struct model_arch model_opt = {
    .name = "opt",
    .hf = "OPTForCausalLM",
    .hf_layer = "model.decoder.layers.%d.",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
