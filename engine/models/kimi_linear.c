/* Kimi Linear (Kimi Team 2025): delta attention with a decay a channel of the key (KDA), every few layers latent attention
 * without positions; experts as in DeepSeek V3 behind leading dense layers. */
#include "engine/models/rows_moe.h"
#include "engine/models/state.h"

#define DELTA(field, gguf, folder, in, out) ROW_S_MAT(field, gguf, folder, in, out, MIX_DELTA)
#define MLA                                 KIND_MIX(MIX_MLA)
#define DENSE                               KIND_FFN(FFN_DENSE)

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    {.name = {"attn_q.weight", "attn_k.weight", "attn_v.weight"},
     .hf = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_S_KEYS, DIM_S_KEYS, DIM_S_INNER},
     .slot = LAYER(state.in),
     .kind = KIND_MIX(MIX_DELTA)},
    {.name = {"ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight"},
     .hf = {"self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight", "self_attn.v_conv1d.weight"},
     .flags = WEIGHT_VECTOR | WEIGHT_FLAT,
     .n_out = {DIM_S_TAPS3, DIM_S_TAPS3, DIM_S_TAPS3},
     .slot = LAYER(state.conv),
     .kind = KIND_MIX(MIX_DELTA)},
    DELTA(state.ba, "ssm_beta", "self_attn.b_proj", DIM_EMBD, DIM_S_HEADS),
    DELTA(state.f_a, "ssm_f_a", "self_attn.f_a_proj", DIM_EMBD, DIM_S_VALUE),
    DELTA(state.f_b, "ssm_f_b", "self_attn.f_b_proj", DIM_S_VALUE, DIM_S_KEYS),
    DELTA(state.g_a, "ssm_g_a", "self_attn.g_a_proj", DIM_EMBD, DIM_S_VALUE),
    DELTA(state.g_b, "ssm_g_b", "self_attn.g_b_proj", DIM_S_VALUE, DIM_S_INNER),
    ROW_S(dt_bias, "ssm_dt.bias", "self_attn.dt_bias", 0, DIM_S_KEYS, MIX_DELTA),
    ROW_S(a, "ssm_a", "self_attn.A_log", WEIGHT_HF_NEG_EXP, DIM_S_HEADS, MIX_DELTA),
    ROW_S(norm, "ssm_norm.weight", "self_attn.o_norm.weight", 0, DIM_S_VALUE, MIX_DELTA),
    DELTA(attn_out, "attn_output", "self_attn.o_proj", DIM_S_INNER, DIM_EMBD),
    {.name = {"attn_q.weight"},
     .hf = {"self_attn.q_proj.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_Q_MLA},
     .slot = LAYER(mla.q_b),
     .kind = MLA},
    {.name = {"attn_kv_a_mqa.weight"},
     .hf = {"self_attn.kv_a_proj_with_mqa.weight"},
     .n_in = DIM_EMBD,
     .n_out = {DIM_KV_A},
     .slot = LAYER(mla.kv_a),
     .kind = MLA},
    {.name = {"attn_kv_a_norm.weight"},
     .hf = {"self_attn.kv_a_layernorm.weight"},
     .flags = WEIGHT_VECTOR,
     .n_out = {DIM_RANK},
     .slot = LAYER(mla.kv_a_norm),
     .kind = MLA},
    {.name = {"attn_k_b.weight"},
     .hf = {"self_attn.kv_b_proj.weight"},
     .flags = WEIGHT_EXPERTS | WEIGHT_HF_T,
     .n_in = DIM_NOPE,
     .n_out = {DIM_RANK},
     .slot = LAYER(mla.k_b),
     .n_expert = DIM_HEADS,
     .hf_step = DIM_KV_B,
     .kind = MLA},
    {.name = {"attn_v_b.weight"},
     .hf = {"self_attn.kv_b_proj.weight"},
     .flags = WEIGHT_EXPERTS,
     .n_in = DIM_RANK,
     .n_out = {DIM_V_HEAD},
     .slot = LAYER(mla.v_b),
     .n_expert = DIM_HEADS,
     .hf_step = DIM_KV_B,
     .hf_from = DIM_NOPE,
     .kind = MLA},
    {.name = {"attn_output.weight"},
     .hf = {"self_attn.o_proj.weight"},
     .n_in = DIM_Q,
     .n_out = {DIM_EMBD},
     .slot = LAYER(attn_out),
     .kind = MLA},
    ROW_FFN_NORM,
    {.name = {"ffn_gate.weight", "ffn_up.weight"},
     .hf = {"block_sparse_moe.gate_proj.weight", "block_sparse_moe.up_proj.weight"},
     .flags = WEIGHT_ALT,
     .n_in = DIM_EMBD,
     .n_out = {DIM_FF, DIM_FF},
     .slot = LAYER(gate_up),
     .kind = DENSE},
    {.hf = {"mlp.gate_proj.weight", "mlp.up_proj.weight"},
     .flags = WEIGHT_ALT,
     .n_in = DIM_EMBD,
     .n_out = {DIM_FF, DIM_FF},
     .slot = LAYER(gate_up),
     .kind = DENSE},
    {.name = {"ffn_down.weight"},
     .hf = {"block_sparse_moe.down_proj.weight"},
     .flags = WEIGHT_ALT,
     .n_in = DIM_FF,
     .n_out = {DIM_EMBD},
     .slot = LAYER(down),
     .kind = DENSE},
    {.hf = {"mlp.down_proj.weight"},
     .flags = WEIGHT_ALT,
     .n_in = DIM_FF,
     .n_out = {DIM_EMBD},
     .slot = LAYER(down),
     .kind = DENSE},
    ROW_ROUTER("block_sparse_moe.gate"),
    ROW_SELECT_BIAS("block_sparse_moe.gate.e_score_correction_bias"),
    ROW_EXPERTS_GATE_UP("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
    ROW_EXPERTS_DOWN("block_sparse_moe.experts.{}.w2"),
    ROWS_SHARED("block_sparse_moe.shared_experts", WEIGHT_OPTIONAL),
};

#define IN "linear_attn_config."
static const struct hp_row keys[] = {
    {"ssm.conv_kernel", "linear_conv_kernel_dim|" IN "short_conv_kernel_size", HP_INT, false,
     offsetof(struct model_hp, state.n_conv), 2, STATE_CONV_MAX},
    {"kda.head_dim", "linear_head_dim|" IN "head_dim", HP_INT, false,
     offsetof(struct model_hp, state.d_key), 1, STATE_KEY_MAX},
    {"attention.head_count", "linear_num_heads|" IN "num_heads", HP_INT, false,
     offsetof(struct model_hp, state.n_head), 1, 65536},
    {NULL, "moe_renormalize", HP_BOOL, true, offsetof(struct model_hp, moe.renorm), 0, 1},
    {NULL, "num_expert_group", HP_INT, true, offsetof(struct model_hp, moe.n_group), 0, 65536},
};

static bool layer_type(struct layer_hp *l, struct view type)
{
    l->mixer = view_is(type, "linear_attention") ? MIX_DELTA : MIX_MLA;
    return l->mixer == MIX_DELTA || view_is(type, "full_attention");
}

static bool mlp_type(struct layer_hp *l, struct view type)
{
    l->ffn = view_is(type, "dense") ? FFN_DENSE : FFN_MOE;
    return l->ffn == FFN_DENSE || view_is(type, "sparse");
}

/* The release's own list: numbers of the layers that attend, from 1. */
static int full_layers(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    static const char list[] = IN "full_attn_layers";
    int n = ckpt_len(c, NULL, list), rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        double v = 0;
        if (i == 0)
            for (int k = 0; k < hp->n_layer; k++)
                hp->layer[k].mixer = MIX_DELTA;
        rc = ckpt_num_at(c, NULL, list, i, &v, e);
        if (!rc && v >= 1 && v <= hp->n_layer)
            hp->layer[(int)v - 1].mixer = MIX_MLA;
    }
    return rc;
}

static int layers(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int rc = model_hp_attends(hp, c, MIX_DELTA, e);
    if (rc || (rc = full_layers(hp, c, e)))
        return rc;
    rc = model_hp_layer_types(hp, c, "layer_types", layer_type, e);
    if (!rc || rc == ERR_NOTFOUND)
        rc = model_hp_layer_types(hp, c, "mlp_layer_types", mlp_type, e);
    return rc == ERR_NOTFOUND ? 0 : rc;
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    struct state_hp *s = &hp->state;
    int64_t *d = hp->dim;
    hp->act = ACT_SILU;
    hp->rope_style = ROPE_NORM;
    hp->moe.score = ROUTE_SIGMOID;
    hp->moe.renorm = hp->moe.group_top2 = true;
    int rc = model_hp_mla_sizes(hp, c, e);
    if (rc || (rc = model_hp_common(hp, c, e)) ||
        (rc = model_hp_act(c, "hidden_act", &hp->act, e)) ||
        (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)) ||
        (rc = model_hp_moe(hp, c, e)) || (rc = model_hp_mla(hp, c, e)) || (rc = layers(hp, c, e)))
        return rc;
    hp->rope_scaling = ROPE_SCALING_LINEAR; /* latent attention rotates: by nothing, here */
    hp->rope_factor = 1e30f;
    s->n_key_head = s->n_head;
    s->head_dim = s->d_key;
    s->norm_eps = hp->norm_eps;
    d[DIM_S_KEYS] = d[DIM_S_INNER] = (int64_t)s->n_head * s->d_key;
    d[DIM_S_VALUE] = s->d_key;
    d[DIM_S_CONV] = d[DIM_S_IN] = 3 * d[DIM_S_KEYS];
    d[DIM_S_TAPS3] = d[DIM_S_KEYS] * s->n_conv;
    d[DIM_S_BA] = s->n_head;
    model_state_set(hp);
    return 0;
}

const struct model_arch model_kimi_linear = {
    .name = "kimi-linear",
    .hf = "KimiLinearForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
