/* Llama 4, text (Meta 2025): three layers that rotate neighbouring pairs and see their own chunk of positions, then one that
 * sees all and rotates nothing, its queries growing with the position; q and k normed by head without weights where they
 * are rotated; in all or every other layer experts, one a token, whose weight multiplies their input, beside a shared one. */
#include "engine/models/rows_moe.h"

#define CHUNK 8192 /* GGUF files do not say */
#define EVERY 4    /* layers from one that sees all to the next */
#define E128  128  /* experts of the model that has no norms of q and k; no key tells */

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_G_VEC(rope_factors, "rope_freqs.weight", NULL, DIM_ROPE, WEIGHT_OPTIONAL),
    ROW_ATTN_NORM,
    ROW_QKV,
    ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,
    ROW_ATTN_OUT_BIAS(WEIGHT_OPTIONAL),
    ROW_FFN_NORM,
    ROW_GATE_UP_OF("feed_forward.gate_proj", "feed_forward.up_proj"),
    ROW_DOWN_OF("feed_forward.down_proj"),
    ROW_ROUTER("feed_forward.router"),
    ROW_EXPERTS_GATE_UP("feed_forward.experts.{}.gate_proj", "feed_forward.experts.{}.up_proj"),
    ROW_EXPERTS_GATE_UP_ALL("feed_forward.experts.gate_up_proj", WEIGHT_HF_T),
    ROW_EXPERTS_DOWN("feed_forward.experts.{}.down_proj"),
    ROW_EXPERTS_DOWN_ALL("feed_forward.experts.down_proj", WEIGHT_HF_T),
    ROWS_SHARED("feed_forward.shared_expert", 0),
};

static const struct hp_row keys[] = {
    {"expert_feed_forward_length", "intermediate_size", HP_INT, false,
     offsetof(struct model_hp, moe.n_ff_shared), 1, 1 << 20},
    HP_OPT(NULL, "attention_chunk_size", HP_INT, window, 0, 1 << 26),
    HP_OPT("attention.temperature_scale", "attn_scale", HP_FLOAT, temper, 0, 1e6),
    HP_OPT("attention.temperature_length", "floor_scale", HP_INT, temper_every, 1, 1 << 26),
};
static const struct hp_row dense[] = {
    HP_OPT(NULL, "intermediate_size_mlp", HP_INT, n_ff, 1, 1 << 20),
};

static bool layer_type(struct layer_hp *l, struct view type)
{
    l->user = view_is(type, "chunked_attention");
    return l->user || view_is(type, "full_attention");
}

/* Which layers rotate (a list of 1 and 0), and which see their chunk alone. */
static int attention_set(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    static const char json[] = "no_rope_layers";
    bool norm = ckpt_is_hf(c) || hp->moe.n_expert != E128, temper = true;
    int n = ckpt_is_hf(c) ? ckpt_len(c, NULL, json) : 0, rc = 0;
    int64_t every = EVERY, window = hp->window;
    if (n > 0 && n < hp->n_layer)
        return err_set(e, ERR_INVAL, "config.json: %s has %d elements, expected %d", json, n,
                       hp->n_layer);
    if (((rc = ckpt_bool(c, NULL, "use_qk_norm", &norm, e)) && rc != ERR_NOTFOUND) ||
        ((rc = ckpt_bool(c, NULL, "attn_temperature_tuning", &temper, e)) && rc != ERR_NOTFOUND) ||
        ((rc = ckpt_int(c, NULL, "no_rope_layer_interval", &every, e)) && rc != ERR_NOTFOUND))
        return rc;
    if ((rc = ckpt_int(c, "attention.sliding_window", NULL, &window, e)) && rc != ERR_NOTFOUND)
        return rc;
    if (window == 0) { /* such a file means: every layer sees all and rotates */
        hp->window = 0;
        every = MODEL_LAYERS_MAX + 1;
    }
    if (every < 1)
        return err_set(e, ERR_INVAL, "config.json: no_rope_layer_interval is %lld",
                       (long long)every);
    for (int i = 0; i < hp->n_layer; i++) {
        struct layer_hp *l = &hp->layer[i];
        double rope = (i + 1) % every != 0;
        if (n > 0 && (rc = ckpt_num_at(c, NULL, json, i, &rope, e)))
            return rc;
        l->user = rope != 0;
        l->nope = rope == 0;
        l->qk_unit = norm && !l->nope;
        l->temper = temper && l->nope && hp->temper > 0;
    }
    rc = model_hp_layer_types(hp, c, "layer_types", layer_type, e);
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].window = hp->layer[i].user ? -hp->window : 0;
    return rc == ERR_NOTFOUND ? 0 : rc;
}

/* Layers with experts: a list of their numbers, or every so many. */
static int experts_set(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int n = ckpt_is_hf(c) ? ckpt_len(c, NULL, "moe_layers") : 0;
    int64_t every = 1;
    int rc = ckpt_int(c, "interleave_moe_layer_step", "interleave_moe_layer_step", &every, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].ffn = n == 0 && every > 0 && (i + 1) % every == 0 ? FFN_MOE : FFN_DENSE;
    for (int i = 0; i < n; i++) {
        double at = -1;
        if ((rc = ckpt_num_at(c, NULL, "moe_layers", i, &at, e)))
            return rc;
        if (!(at >= 0 && at < hp->n_layer))
            return err_set(e, ERR_INVAL, "config.json: moe_layers holds %g of %d layers", at,
                           hp->n_layer);
        hp->layer[(int)at].ffn = FFN_MOE;
    }
    return 0;
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NORM;
    hp->act = ACT_SILU;
    hp->window = CHUNK;
    hp->temper = 0.1f;
    hp->temper_every = CHUNK;
    hp->temper_from = 1;
    hp->moe.score = ROUTE_SIGMOID;
    hp->moe.in_scale = true;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) ||
        (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)) ||
        (rc = model_hp_moe(hp, c, e)) ||
        (rc = model_hp_read(hp, c, dense, sizeof dense / sizeof *dense, e)))
        return rc;
    hp->dim[DIM_FF] = hp->n_ff;
    hp->dim[DIM_FF2] = 2 * (int64_t)hp->n_ff;
    rc = experts_set(hp, c, e);
    return rc ? rc : attention_set(hp, c, e);
}

/* The text model is served. */
static const char *const ignore[] = {"vision_model.", "multi_modal_projector.", NULL};

const struct model_arch model_llama4 = {
    .name = "llama4",
    .hf = "Llama4ForCausalLM|Llama4ForConditionalGeneration",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
