/* DBRX (Databricks 2024): layer norms without bias, q, k and v in one product and clipped, experts in every layer, all of
 * one matrix in one tensor: the last of them stored turned. */
#include "engine/models/rows_moe.h"

static const struct weight_row weights[] = {
    ROW_EMBD_OF("transformer.wte.weight", "lm_head.weight"),
    ROW_G_VEC(out_norm, "output_norm.weight", "transformer.norm_f.weight", DIM_EMBD, 0),
    ROW_HEAD,
    ROW_NORM(attn_norm, "attn_norm", "norm_attn_norm.norm_1", 0),
    ROW_MAT(qkv, "attn_qkv.weight", "norm_attn_norm.attn.Wqkv.weight", DIM_EMBD, DIM_QKV, 0),
    ROW_MAT(attn_out, "attn_output.weight", "norm_attn_norm.attn.out_proj.weight", DIM_Q, DIM_EMBD,
            0),
    ROW_NORM(ffn_norm, "attn_output_norm", "norm_attn_norm.norm_2", 0),
    ROW_ROUTER("ffn.router.layer"),
    {.name = {"ffn_gate_exps.weight", "ffn_up_exps.weight"},
     .hf = {"ffn.experts.mlp.w1", "ffn.experts.mlp.v1"},
     .flags = WEIGHT_EXPERTS,
     .n_in = DIM_EMBD,
     .n_out = {DIM_EXPERT_FF, DIM_EXPERT_FF},
     .slot = LAYER(moe.gate_up),
     .n_expert = DIM_EXPERTS,
     .hf_step = DIM_EXPERT_FF},
    {.name = {"ffn_down_exps.weight"},
     .hf = {"ffn.experts.mlp.w2"},
     .flags = WEIGHT_EXPERTS | WEIGHT_HF_T,
     .n_in = DIM_EXPERT_FF,
     .n_out = {DIM_EMBD},
     .slot = LAYER(moe.down),
     .n_expert = DIM_EXPERTS,
     .hf_step = DIM_EXPERT_FF},
};

/* A folder has some under names of its own. */
static const struct hp_row keys[] = {
    HP_OPT(NULL, "ffn_config.ffn_hidden_size", HP_INT, n_ff, 1, 1 << 20),
    HP_OPT(NULL, "attn_config.kv_n_heads", HP_INT, n_kv_head, 1, 4096),
    HP_OPT(NULL, "attn_config.rope_theta", HP_FLOAT, rope_base, 1, 1e12),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    double power = 1;
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    hp->norm = NORM_LAYER;
    hp->norm_eps = 1e-5f; /* not in a folder's config */
    int rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e);
    if (rc || (rc = model_hp_common(hp, c, e)) ||
        (rc = model_hp_act(c, "ffn_config.ffn_act_fn.name", &hp->act, e)))
        return rc;
    hp->moe.score = ROUTE_SOFTMAX;
    hp->moe.renorm = true;
    rc = ckpt_num(c, NULL, "ffn_config.moe_normalize_expert_weights", &power, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (power != 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "config.json: ffn_config.moe_normalize_expert_weights is %g, known: 1",
                       power);
    return model_hp_moe(hp, c, e);
}

const struct model_arch model_dbrx = {
    .name = "dbrx",
    .hf = "DbrxForCausalLM",
    .hf_layer = "transformer.blocks.%d.",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
