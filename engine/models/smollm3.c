/* SmolLM3 (Bakouch et al. 2025): as Llama, every fourth layer without positions. */
#include "engine/models/rows.h"

static const struct weight_row weights[] = {
    ROW_EMBD,         ROW_OUT_NORM(0),
    ROW_HEAD,         ROW_ATTN_NORM,
    ROW_QKV,          ROW_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_ATTN_OUT,     ROW_ATTN_OUT_BIAS(WEIGHT_OPTIONAL),
    ROW_FFN_NORM,     ROW_GATE_UP,
    ROW_GATE_UP_BIAS, ROW_DOWN,
    ROW_DOWN_BIAS,
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    static const char list[] = "no_rope_layers";
    bool slides = false;
    hp->rope_style = ckpt_is_hf(c) ? ROPE_NEOX : ROPE_NORM;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e), n = ckpt_len(c, NULL, list);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)))
        return rc;
    rc = ckpt_bool(c, NULL, "use_sliding_window", &slides, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (slides)
        return err_set(e, ERR_UNSUPPORTED, "config.json: use_sliding_window true is not supported");
    if (n > 0 && n < hp->n_layer)
        return err_set(e, ERR_INVAL, "config.json: %s has %d elements, expected %d", list, n,
                       hp->n_layer);
    for (int i = 0; i < hp->n_layer; i++) {
        double rotated = (i + 1) % 4 != 0; /* GGUF files do not say */
        rc = n > 0 ? ckpt_num_at(c, NULL, list, i, &rotated, e) : 0;
        if (rc)
            return rc;
        hp->layer[i].nope = !(rotated > 0);
    }
    return 0;
}

const struct model_arch model_smollm3 = {
    .name = "smollm3",
    .hf = "SmolLM3ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
