/* Command R and Command R7B (Cohere 2024): layer norms without bias, attention and MLP side by side behind one norm,
 * neighbouring pairs rotated, scaled logits, tied output; layer norms of every head of q and k in the largest. Of the second, three layers have a sliding window and the
 * fourth neither that nor positions. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_VEC(head_norm.q, "attn_q_norm.weight", "self_attn.q_norm.weight", DIM_Q,
            WEIGHT_FLAT | WEIGHT_OPTIONAL),
    ROW_VEC(head_norm.k, "attn_k_norm.weight", "self_attn.k_norm.weight", DIM_KV,
            WEIGHT_FLAT | WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,
    ROW_GATE_UP,
    ROW_DOWN,
};

static const struct hp_row keys[] = {
    HP_OPT("logit_scale", "logit_scale", HP_FLOAT, logit_scale, 1e-9, 1e9),
    HP_OPT("attention.sliding_window", "sliding_window", HP_INT, window, 0, 1 << 26),
};

static int both(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NORM;
    hp->act = ACT_SILU;
    hp->norm = NORM_LAYER;
    hp->parallel = true;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)))
        return rc;
    return model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e);
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t every = 4;
    int rc = both(hp, c, e);
    if (rc)
        return rc;
    rc = ckpt_int(c, NULL, "sliding_window_pattern", &every, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (every < 1)
        return err_set(e, ERR_INVAL, "config.json: sliding_window_pattern is %lld",
                       (long long)every);
    rc = model_hp_slides(hp, c, every, e);
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].nope = !hp->layer[i].slides;
    return rc;
}

const struct model_arch model_command_r = {
    .name = "command-r",
    .hf = "CohereForCausalLM",
    .hparams = both,
    ROWS(weights),
    .forward = model_forward_decoder,
};
const struct model_arch model_cohere2 = {
    .name = "cohere2",
    .hf = "Cohere2ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
