/* Jamba (Lieber et al. 2024): Mamba with norms of dt, B and C; every few layers attention without positions; an MLP or
 * experts in turns. A GGUF file says by KV heads which layers attend, and by its tensors which have experts. */
#include "engine/models/rows_moe.h"
#include "engine/models/state.h"

#include <stdio.h>

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_G_VEC(out_norm, "output_norm.weight", "model.final_layernorm.weight", DIM_EMBD, 0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_ATTN_OUT,
    ROWS_MAMBA("mamba."),
    ROW_S(dt_norm, "ssm_dt_norm.weight", "mamba.dt_layernorm.weight", 0, DIM_S_RANK, MIX_MAMBA),
    ROW_S(b_norm, "ssm_b_norm.weight", "mamba.b_layernorm.weight", 0, DIM_S_STATE, MIX_MAMBA),
    ROW_S(c_norm, "ssm_c_norm.weight", "mamba.c_layernorm.weight", 0, DIM_S_STATE, MIX_MAMBA),
    ROW_NORM(ffn_norm, "ffn_norm", "pre_ff_layernorm", 0),
    ROW_GATE_UP_OF("feed_forward.gate_proj", "feed_forward.up_proj"),
    ROW_DOWN_OF("feed_forward.down_proj"),
    ROW_ROUTER("feed_forward.router"),
    ROWS_EXPERTS("feed_forward.experts"),
};

/* [period, offset] of a folder's layers. */
static int every(struct ckpt *c, const char *period, const char *offset, int64_t out[2],
                 struct err *e)
{
    int rc = ckpt_int(c, NULL, period, &out[0], e);
    if (!rc || rc == ERR_NOTFOUND)
        rc = ckpt_int(c, NULL, offset, &out[1], e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (out[0] < 1 || out[1] < 0 || out[1] >= out[0])
        return err_set(e, ERR_INVAL, "config.json: %s %lld, %s %lld", period, (long long)out[0],
                       offset, (long long)out[1]);
    return 0;
}

static int layers(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t attn[2] = {8, 4}, moe[2] = {2, 1};
    bool hf = ckpt_is_hf(c);
    int rc = hf ? every(c, "attn_layer_period", "attn_layer_offset", attn, e)
                : model_hp_attends(hp, c, MIX_MAMBA, e);
    if (!rc && hf)
        rc = every(c, "expert_layer_period", "expert_layer_offset", moe, e);
    for (int i = 0; i < hp->n_layer && !rc; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", i);
        bool experts = hf ? i % moe[0] == moe[1] : ckpt_has(c, name);
        if (hf)
            hp->layer[i].mixer = i % attn[0] == attn[1] ? MIX_ATTN : MIX_MAMBA;
        hp->layer[i].ffn = experts && hp->moe.n_expert > 1 ? FFN_MOE : FFN_DENSE;
        hp->layer[i].nope = true;
    }
    return rc;
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NONE;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) ||
        (hp->moe.n_expert > 1 && (rc = model_hp_moe(hp, c, e))) ||
        (rc = model_hp_mamba(hp, c, e)) || (rc = layers(hp, c, e)))
        return rc;
    hp->state.inner_norm = true;
    model_state_set(hp);
    return 0;
}

const struct model_arch model_jamba = {
    .name = "jamba",
    .hf = "JambaForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
