/* Nemotron-H and Nemotron 3 (NVIDIA 2025): a layer is one norm and one thing behind it: Mamba 2, attention without
 * positions, an MLP of squared ReLU, or experts of the same kind. A GGUF file tells by each layer's KV heads and width of
 * the MLP. */
#include "engine/models/rows_moe.h"
#include "engine/models/state.h"

static const struct weight_row weights[] = {
    ROW_EMBD_OF("backbone.embeddings.weight", "lm_head.weight"),
    ROW_G_VEC(out_norm, "output_norm.weight", "backbone.norm_f.weight", DIM_EMBD, 0),
    ROW_HEAD,
    ROW_NORM(attn_norm, "attn_norm", "norm", 0),
    {.name = {"attn_q.weight", "attn_k.weight", "attn_v.weight"},
     .hf = {"mixer.q_proj.weight", "mixer.k_proj.weight", "mixer.v_proj.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_Q, DIM_KV, DIM_KV},
     .slot = LAYER(qkv),
     .kind = KIND_MIX(MIX_ATTN)},
    {.name = {"attn_output.weight"},
     .hf = {"mixer.o_proj.weight"},
     .n_in = DIM_Q,
     .n_out = {DIM_EMBD},
     .slot = LAYER(attn_out),
     .kind = KIND_MIX(MIX_ATTN)},
    ROWS_MAMBA2("mixer.", attn_out, 0),
    {.name = {"ffn_up.weight"},
     .hf = {"mixer.up_proj.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_FF},
     .slot = LAYER(up),
     .kind = KIND_FFN(FFN_DENSE)},
    {.name = {"ffn_down.weight"},
     .hf = {"mixer.down_proj.weight"},
     .n_in = DIM_FF,
     .n_out = {DIM_EMBD},
     .slot = LAYER(down),
     .kind = KIND_FFN(FFN_DENSE)},
    ROW_ROUTER("mixer.gate"),
    ROW_SELECT_BIAS("mixer.gate.e_score_correction_bias"),
    {.name = {"ffn_up_exps.weight"},
     .hf = {"mixer.experts.{}.up_proj.weight"},
     .flags = WEIGHT_EXPERTS,
     .n_in = DIM_EMBD,
     .n_out = {DIM_EXPERT_FF},
     .slot = LAYER(moe.gate_up),
     .n_expert = DIM_EXPERTS,
     .kind = KIND_MOE},
    {.name = {"ffn_down_exps.weight"},
     .hf = {"mixer.experts.{}.down_proj.weight"},
     .flags = WEIGHT_EXPERTS,
     .n_in = DIM_EXPERT_FF,
     .n_out = {DIM_EMBD},
     .slot = LAYER(moe.down),
     .n_expert = DIM_EXPERTS,
     .kind = KIND_MOE},
    {.name = {"ffn_up_shexp.weight"},
     .hf = {"mixer.shared_experts.up_proj.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_SHARED_FF},
     .slot = LAYER(moe.shared_gate_up),
     .kind = KIND_MOE},
    {.name = {"ffn_down_shexp.weight"},
     .hf = {"mixer.shared_experts.down_proj.weight"},
     .n_in = DIM_SHARED_FF,
     .n_out = {DIM_EMBD},
     .slot = LAYER(moe.shared_down),
     .kind = KIND_MOE},
};

static bool layer_set(struct layer_hp *l, enum mixer_kind mixer, enum ffn_kind ffn)
{
    *l = (struct layer_hp){.mixer = (uint8_t)mixer, .ffn = (uint8_t)ffn, .nope = true};
    return true;
}

static bool layer_type(struct layer_hp *l, struct view type)
{
    if (view_is(type, "mamba") || view_is(type, "linear_attention"))
        return layer_set(l, MIX_MAMBA2, FFN_NONE);
    if (view_is(type, "attention") || view_is(type, "full_attention"))
        return layer_set(l, MIX_ATTN, FFN_NONE);
    if (view_is(type, "moe"))
        return layer_set(l, MIX_NONE, FFN_MOE);
    return view_is(type, "mlp") && layer_set(l, MIX_NONE, FFN_DENSE);
}

/* One letter a layer: M, *, E, -. */
static int pattern(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    struct view v;
    int rc = ckpt_str(c, NULL, "hybrid_override_pattern", &v, e);
    if (rc)
        return rc;
    for (int i = 0; i < hp->n_layer; i++) {
        char ch = (size_t)i < v.len ? v.p[i] : '?';
        if (ch == 'M')
            layer_set(&hp->layer[i], MIX_MAMBA2, FFN_NONE);
        else if (ch == '*')
            layer_set(&hp->layer[i], MIX_ATTN, FFN_NONE);
        else if (ch == 'E' || ch == '-')
            layer_set(&hp->layer[i], MIX_NONE, ch == 'E' ? FFN_MOE : FFN_DENSE);
        else
            return err_set(e, ERR_UNSUPPORTED, "config.json: hybrid_override_pattern holds '%c'",
                           ch);
    }
    return 0;
}

static int layers_gguf(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    static const char kv_key[] = "attention.head_count_kv", ff_key[] = "feed_forward_length";
    for (int i = 0; i < hp->n_layer; i++) {
        double kv = 0, ff = 0;
        char name[200];
        const char *key = kv_key;
        int rc = ckpt_num_at(c, key, NULL, i, &kv, e);
        if (!rc)
            rc = ckpt_num_at(c, key = ff_key, NULL, i, &ff, e);
        if (rc)
            return rc != ERR_NOTFOUND ? rc
                                      : err_set(e, rc, "%s is missing",
                                                ckpt_key_text(c, key, NULL, name, sizeof name));
        enum ffn_kind mlp = hp->moe.n_expert > 0 ? FFN_MOE : FFN_DENSE;
        layer_set(&hp->layer[i],
                  kv > 0   ? MIX_ATTN
                  : ff > 0 ? MIX_NONE
                           : MIX_MAMBA2,
                  kv <= 0 && ff > 0 ? mlp : FFN_NONE);
    }
    return 0;
}

static int layers(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    if (!ckpt_is_hf(c))
        return layers_gguf(hp, c, e);
    int rc = model_hp_layer_types(hp, c, "layers_block_type|layer_types", layer_type, e);
    return rc == ERR_NOTFOUND ? pattern(hp, c, e) : rc;
}

static const struct hp_row keys[] = {
    {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size", HP_INT, true,
     offsetof(struct model_hp, moe.n_ff_shared), 0, 1 << 20},
};

/* transformers bounds dt from below by what others only initialise it with. */
static const struct hp_row limits[] = {
    {NULL, "time_step_min", HP_FLOAT, true, offsetof(struct model_hp, state.dt_min), 0, 1e6},
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->n_layer = ckpt_len(c, NULL, "layers_block_type"); /* newer folders say it by this alone */
    hp->rope_style = ROPE_NONE;
    hp->act = ACT_RELU2;
    hp->moe.score = ROUTE_SIGMOID;
    hp->moe.act = ACT_RELU2;
    hp->moe.single = hp->moe.renorm = hp->moe.group_top2 = true;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "mlp_hidden_act", &hp->act, e)))
        return rc;
    if (hp->moe.n_expert > 0) {
        int64_t latent = 0;
        rc = ckpt_int(c, "moe_latent_size", "moe_latent_size", &latent, e);
        if (!rc && latent > 0)
            return err_set(e, ERR_UNSUPPORTED, "moe_latent_size is %lld: not read here",
                           (long long)latent);
        if ((rc = model_hp_read(hp, c, keys, 1, e)) && rc != ERR_NOTFOUND)
            return rc;
        rc = model_hp_moe(hp, c, e);
        hp->moe.act = hp->act;
    }
    if (rc || (rc = model_hp_mamba2(hp, c, e)) || (rc = layers(hp, c, e)) ||
        (rc = model_hp_read(hp, c, limits, 1, e)))
        return rc;
    if (hp->state.dt_min > hp->state.dt_max)
        return err_set(e, ERR_INVAL, "config.json: time_step_min is beyond time_step_limit");
    model_state_set(hp);
    return 0;
}

const struct model_arch model_nemotron_h = {
    .name = "nemotron_h",
    .hf = "NemotronHForCausalLM",
    .hf_layer = "backbone.layers.%d.",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};

const struct model_arch model_nemotron_h_moe = {
    .name = "nemotron_h_moe",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
