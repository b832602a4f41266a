/* Gemma 3, text (Gemma Team 2025): scaled embeddings, norms before and after each block (a GGUF file holds
 * 1 + w, a folder w), head norms, five layers with a sliding window to one without, GELU, tied output. */
#include "engine/models/rows.h"

#include <math.h>

#define LAYERS_27B 62

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(WEIGHT_HF_PLUS_1),
    ROW_HEAD,
    ROW_NORM(attn_norm, "attn_norm", "input_layernorm", WEIGHT_HF_PLUS_1),
    ROW_QKV,
    ROW_Q_NORM(WEIGHT_HF_PLUS_1),
    ROW_K_NORM(WEIGHT_HF_PLUS_1),
    ROW_ATTN_OUT,
    ROW_NORM(attn_post_norm, "post_attention_norm", "post_attention_layernorm", WEIGHT_HF_PLUS_1),
    ROW_NORM(ffn_norm, "ffn_norm", "pre_feedforward_layernorm", WEIGHT_HF_PLUS_1),
    ROW_GATE_UP,
    ROW_DOWN,
    ROW_NORM(ffn_post_norm, "post_ffw_norm", "post_feedforward_layernorm", WEIGHT_HF_PLUS_1),
};

static const struct hp_row keys[] = {
    {"attention.sliding_window", "sliding_window", HP_INT, false, offsetof(struct model_hp, window),
     1, 1 << 26},
    {"rope.freq_base_swa", "rope_local_base_freq|rope_parameters.sliding_attention.rope_theta",
     HP_FLOAT, true, offsetof(struct model_hp, rope_base_local), 1, 1e12},
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_GELU_TANH;
    hp->rope_base = 1e6f;
    hp->rope_base_local = 1e4f;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)))
        return rc;
    rc = model_hp_slides(hp, c, 6, e);
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].local = hp->layer[i].slides;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    return rc ? rc : model_gemma_scale(hp, c, LAYERS_27B, e);
}

/* The text model of the larger ones is served; pictures are refused by name before. */
static const char *const ignore[] = {"vision_tower.", "multi_modal_projector.", NULL};

const struct model_arch model_gemma3 = {
    .name = "gemma3",
    .hf = "Gemma3ForCausalLM|Gemma3ForConditionalGeneration",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
