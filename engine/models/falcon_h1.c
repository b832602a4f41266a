/* Falcon-H1 (Zuo et al. 2025): attention and Mamba 2 beside each other on the same input, factors on most products (a
 * GGUF file's weights hold them). */
#include "engine/models/state.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_G_VEC(out_norm, "output_norm.weight", "model.final_layernorm.weight", DIM_EMBD, 0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,
    ROWS_MAMBA2("mamba.", state.out, WEIGHT_OPTIONAL),
    {.name = {"ffn_norm"}, /* llama.cpp's converter writes it without an ending */
     .flags = WEIGHT_VECTOR | WEIGHT_OPTIONAL,
     .n_out = {DIM_EMBD},
     .slot = LAYER(ffn_norm)},
    ROW_NORM(ffn_norm, "ffn_norm", "pre_ff_layernorm", WEIGHT_ELSE),
    ROW_GATE_UP_OF("feed_forward.gate_proj", "feed_forward.up_proj"),
    ROW_DOWN_OF("feed_forward.down_proj"),
};

#define FACTOR(json, f)                                                                            \
    {                                                                                              \
        NULL, json, HP_FLOAT, true, offsetof(struct model_hp, f), -1e6, 1e6                        \
    }
static const struct hp_row keys[] = {
    FACTOR("embedding_multiplier", embd_scale),
    FACTOR("lm_head_multiplier", logit_scale),
    FACTOR("attention_in_multiplier", mup.qkv),
    FACTOR("key_multiplier", mup.k),
    FACTOR("attention_out_multiplier", mup.attn_out),
    FACTOR("ssm_out_multiplier", mup.ssm_out),
    {NULL, "mamba_norm_before_gate", HP_BOOL, true, offsetof(struct model_hp, state.norm_then_gate),
     0, 1},
};

/* A list of n factors; ones when there is none. */
static int factors(struct ckpt *c, const char *json, float *dst, int n, struct err *e)
{
    int have = ckpt_len(c, NULL, json), rc = 0;
    if (have && have != n)
        return err_set(e, ERR_INVAL, "config.json: %s has %d numbers, expected %d", json, have, n);
    for (int i = 0; i < n && !rc; i++) {
        double v = 1;
        if (have)
            rc = ckpt_num_at(c, NULL, json, i, &v, e);
        dst[i] = (float)v;
    }
    return rc;
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    float mlp[2];
    double in = 1;
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    hp->state.norm_then_gate = ckpt_is_hf(c); /* llama.cpp gates first */
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) ||
        (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)) ||
        (rc = model_hp_mamba2(hp, c, e)) || (rc = factors(c, "mlp_multipliers", mlp, 2, e)) ||
        (rc = factors(c, "ssm_multipliers", hp->mup.ssm, 5, e)))
        return rc;
    rc = ckpt_num(c, NULL, "ssm_in_multiplier", &in, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    for (int i = 0; i < 5; i++)
        hp->mup.ssm[i] *= (float)in;
    bool norm = false;
    rc = ckpt_bool(c, NULL, "mamba_rms_norm", &norm, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    hp->state.norm_then_gate = hp->state.norm_then_gate && norm;
    hp->mup.gate = mlp[0];
    hp->mup.down = mlp[1];
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].beside = MIX_MAMBA2;
    model_state_set(hp);
    return 0;
}

const struct model_arch model_falcon_h1 = {
    .name = "falcon-h1",
    .hf = "FalconH1ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
