/* Qwen2 and Qwen2.5 (Yang et al. 2024): as Llama, with biases on q, k and v, and rotation by halves. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,        ROW_OUT_NORM(0), ROW_HEAD,     ROW_ATTN_NORM, ROW_QKV,
    ROW_QKV_BIAS(0), ROW_ATTN_OUT,    ROW_FFN_NORM, ROW_GATE_UP,   ROW_DOWN,
};

static const struct weight_row seed_weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,
    ROW_ATTN_OUT_BIAS(WEIGHT_OPTIONAL),
    ROW_NORM(ffn_norm, "post_attention_norm", "post_attention_layernorm", 0),
    ROW_GATE_UP,
    ROW_DOWN,
};

int model_qwen_windows(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t first = 0, window = 0;
    bool slides = false;
    int rc = ckpt_bool(c, NULL, "use_sliding_window", &slides, e);
    if (rc || !slides)
        return rc == ERR_NOTFOUND ? 0 : rc;
    rc = ckpt_int(c, NULL, "sliding_window", &window, e);
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    if (window < 1 || window > 1 << 26)
        return err_set(e, ERR_INVAL, "config.json: sliding_window is %lld", (long long)window);
    rc = ckpt_int(c, NULL, "max_window_layers", &first, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    hp->window = (int32_t)window;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].slides = i >= first;
    return model_hp_slides(hp, c, 0, e);
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    return rc ? rc : model_qwen_windows(hp, c, e);
}

static const char *const ignore[] = {"visual.", NULL};

const struct model_arch model_qwen2 = {
    .name = "qwen2",
    .hf = "Qwen2ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
/* Text of the models with vision: its tokens have one position on all three axes, so the rotation is the plain one. */
const struct model_arch model_qwen2vl = {
    .name = "qwen2vl",
    .hf = "Qwen2VLForConditionalGeneration|Qwen2_5_VLForConditionalGeneration",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
/* Seed-OSS (ByteDance 2025). */
const struct model_arch model_seed_oss = {
    .name = "seed_oss",
    .hf = "SeedOssForCausalLM",
    .hparams = hparams,
    ROWS(seed_weights),
    .forward = model_forward_decoder,
};
