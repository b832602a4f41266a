/* Llama family (Touvron et al. 2023): also Mistral (Jiang et al. 2023, sliding window), Mixtral (Jiang et al. 2024,
 * experts; a GGUF file of it is one of llama), SmolLM2 and others of the shape.
 * A GGUF file rotates interleaved pairs, its q and k rows permuted to match (Llama 3's scaling is in
 * rope_freqs.weight); a folder rotates halves. */
#include "engine/models/rows_moe.h"

#include <math.h>

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    {.name = {"rope_freqs.weight"},
     .flags = WEIGHT_GLOBAL | WEIGHT_VECTOR | WEIGHT_OPTIONAL,
     .n_out = {DIM_ROPE},
     .slot = MODEL(rope_factors)},
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,
    ROW_ATTN_OUT_BIAS(WEIGHT_OPTIONAL),
    ROW_FFN_NORM,
    ROW_GATE_UP,
    ROW_GATE_UP_BIAS,
    ROW_DOWN,
    ROW_DOWN_BIAS,
    ROW_ROUTER("block_sparse_moe.gate"),
    ROWS_EXPERTS_W("block_sparse_moe.experts"),
};

static const struct hp_row keys[] = {
    HP_OPT("attention.sliding_window", "sliding_window", HP_INT, window, 0, 1 << 26),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ckpt_is_hf(c) ? ROPE_NEOX : ROPE_NORM;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) ||
        (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)))
        return rc;
    hp->moe.renorm = true;
    if (hp->moe.n_expert > 0 && (rc = model_hp_moe(hp, c, e)))
        return rc;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].window = hp->window;
    return 0;
}

/* The text model of the ones with vision is served. */
static const char *const ignore[] = {"vision_tower.", "vision_model.", "multi_modal_projector.",
                                     "image_newline", NULL};

/* The multiplier of such a GGUF file is what the folder calls mscale_all_dim: it divides the rotation's factor. */
static void mistral3_yarn(struct model_hp *hp)
{
    double s = (double)hp->rope_factor, all = (double)hp->rope_log_multiplier;
    if (hp->rope_scaling == ROPE_SCALING_YARN && s > 1 && all > 0)
        hp->rope_attn_factor = (float)(1 / (0.1 * all * log(s) + 1));
    hp->rope_log_multiplier = 0;
}

/* Queries grow with the position past the first context. */
static int mistral3(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    static const struct hp_row temper[] = {
        HP_OPT("attention.temperature_scale", "rope_parameters.llama_4_scaling_beta", HP_FLOAT,
               temper, 0, 1e6),
    };
    int rc = hparams(hp, c, e);
    if (rc)
        return rc;
    if (!ckpt_is_hf(c))
        mistral3_yarn(hp);
    hp->temper_every = hp->rope_ctx_orig;
    rc = model_hp_read(hp, c, temper, 1, e);
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].temper = hp->temper > 0 && hp->temper_every > 0;
    return rc;
}

const struct model_arch model_mistral3 = {
    .name = "mistral3",
    .hf = "Ministral3ForCausalLM|Mistral3ForConditionalGeneration",
    .hf_ignore = ignore,
    .hparams = mistral3,
    ROWS(weights),
    .forward = model_forward_decoder,
};
const struct model_arch model_llama = {
    .name = "llama",
    .hf = "LlamaForCausalLM|MistralForCausalLM|LlavaForConditionalGeneration|"
          "LlavaNextForConditionalGeneration|InternLM3ForCausalLM|MixtralForCausalLM",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
