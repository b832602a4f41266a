/* Granite 4 (IBM 2025): Mamba 2 and, in some layers, attention without rotation (or with it); experts and an MLP beside
 * them, or the MLP alone; factors as in Granite. A GGUF file says by KV heads which layers attend. */
#include "engine/models/rows_moe.h"
#include "engine/models/state.h"

#define KIND_DENSE KIND_FFN(FFN_DENSE)

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_ATTN_OUT,
    ROWS_MAMBA2("mamba.", attn_out, 0),
    ROW_FFN_NORM,
    ROWS_GRANITE_EXPERTS(0),
    {.name = {"ffn_gate.weight", "ffn_up.weight"},
     .hf = {"shared_mlp.input_linear.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_FF, DIM_FF},
     .hf_n_out = {DIM_FF2},
     .slot = LAYER(gate_up),
     .kind = KIND_DENSE},
    {.name = {"ffn_down.weight"},
     .hf = {"shared_mlp.output_linear.weight"},
     .n_in = DIM_FF,
     .n_out = {DIM_EMBD},
     .slot = LAYER(down),
     .kind = KIND_DENSE},
};

static bool layer_type(struct layer_hp *l, struct view type)
{
    bool attends = view_is(type, "attention") || view_is(type, "full_attention");
    l->mixer = attends ? MIX_ATTN : MIX_MAMBA2;
    return attends || view_is(type, "mamba") || view_is(type, "linear_attention");
}

/* Rotation is the exception: a folder says so, a GGUF file by a base of its own. */
static int rotation(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    struct view v;
    bool rope = false;
    double base;
    int rc = ckpt_is_hf(c) ? ckpt_str(c, NULL, "position_embedding_type", &v, e)
                           : ckpt_num(c, "rope.freq_base", NULL, &base, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (!rc)
        rope = !ckpt_is_hf(c) || view_is(v, "rope");
    if (!ckpt_is_hf(c) && rope) {
        rc = ckpt_bool(c, "rope.scaling.finetuned", NULL, &rope, e);
        if (rc && rc != ERR_NOTFOUND)
            return rc;
    }
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].nope = !rope;
    return 0;
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t ff = 0;
    hp->rope_style = ckpt_is_hf(c) ? ROPE_NEOX : ROPE_NORM;
    hp->act = ACT_SILU;
    hp->moe.score = ROUTE_SOFTMAX_USED;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) ||
        (rc = model_granite_factors(hp, c, e)))
        return rc;
    if (hp->moe.n_expert > 0) {
        rc = model_hp_moe(hp, c, e);
    } else if (ckpt_is_hf(c)) {
        rc = ckpt_int(c, NULL, "shared_intermediate_size", &ff, e);
        if (!rc && (ff < 1 || ff > 1 << 20))
            rc = err_set(e, ERR_INVAL, "config.json: shared_intermediate_size is %lld",
                         (long long)ff);
        hp->n_ff = (int32_t)ff;
        hp->dim[DIM_FF] = ff;
        hp->dim[DIM_FF2] = 2 * ff;
    }
    if (rc || (rc = model_hp_mamba2(hp, c, e)) || (rc = model_hp_attends(hp, c, MIX_MAMBA2, e)) ||
        (rc = rotation(hp, c, e)))
        return rc;
    rc = model_hp_layer_types(hp, c, "layer_types|layers_block_type", layer_type, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    model_state_set(hp);
    return 0;
}

const struct model_arch model_granite_hybrid = {
    .name = "granitehybrid",
    .hf = "GraniteMoeHybridForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
