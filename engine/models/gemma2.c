/* Gemma (Gemma Team 2024): scaled embeddings, norms by 1 + w (a GGUF file holds that, a folder w), GELU, tied output.
 * Gemma 2: norms before and after each block, every second layer with a sliding window, soft caps of scores and
 * logits. */
#include "engine/models/rows.h"

#include <math.h>

#define LAYERS_27B 46

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(WEIGHT_HF_PLUS_1),
    ROW_HEAD,
    ROW_NORM(attn_norm, "attn_norm", "input_layernorm", WEIGHT_HF_PLUS_1),
    ROW_QKV,
    ROW_ATTN_OUT,
    ROW_NORM(attn_post_norm, "post_attention_norm", "post_attention_layernorm", WEIGHT_HF_PLUS_1),
    ROW_NORM(ffn_norm, "ffn_norm", "pre_feedforward_layernorm", WEIGHT_HF_PLUS_1),
    ROW_GATE_UP,
    ROW_DOWN,
    ROW_NORM(ffn_post_norm, "post_ffw_norm", "post_feedforward_layernorm", WEIGHT_HF_PLUS_1),
};

static const struct weight_row weights_1[] = {
    ROW_EMBD,
    ROW_OUT_NORM(WEIGHT_HF_PLUS_1),
    ROW_HEAD,
    ROW_NORM(attn_norm, "attn_norm", "input_layernorm", WEIGHT_HF_PLUS_1),
    ROW_QKV,
    ROW_ATTN_OUT,
    ROW_NORM(ffn_norm, "ffn_norm", "post_attention_layernorm", WEIGHT_HF_PLUS_1),
    ROW_GATE_UP,
    ROW_DOWN,
};

static const struct hp_row keys[] = {
    HP_OPT("attention.sliding_window", "sliding_window", HP_INT, window, 0, 1 << 26),
    HP_OPT("attn_logit_softcapping", "attn_logit_softcapping", HP_FLOAT, attn_softcap, 0, 1e6),
    HP_OPT("final_logit_softcapping", "final_logit_softcapping", HP_FLOAT, logit_softcap, 0, 1e6),
};

static int both(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_GELU_TANH;
    int rc = model_hp_common(hp, c, e);
    hp->embd_scale = sqrtf((float)hp->n_embd);
    return rc;
}

int model_gemma_scale(struct model_hp *hp, struct ckpt *c, int n_layer, struct err *e)
{
    double scalar = 0;
    if (!ckpt_is_hf(c) && hp->n_layer == n_layer)
        hp->attn_scale = 1 / sqrtf((float)hp->n_embd / (float)hp->n_head);
    int rc = ckpt_num(c, NULL, "query_pre_attn_scalar", &scalar, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (scalar > 0)
        hp->attn_scale = (float)(1 / sqrt(scalar));
    return 0;
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int rc = both(hp, c, e);
    if (rc || (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)))
        return rc;
    rc = model_hp_slides(hp, c, 2, e);
    return rc ? rc : model_gemma_scale(hp, c, LAYERS_27B, e);
}

const struct model_arch model_gemma = {
    .name = "gemma",
    .hf = "GemmaForCausalLM",
    .hparams = both,
    ROWS(weights_1),
    .forward = model_forward_decoder,
};
const struct model_arch model_gemma2 = {
    .name = "gemma2",
    .hf = "Gemma2ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
