/* Mamba 2 (Dao and Gu 2024): layers of one norm and a scan by heads, no attention and no MLP. */
#include "engine/models/state.h"

static const struct weight_row weights[] = {
    ROW_EMBD_OF("backbone.embeddings.weight", "lm_head.weight"),
    ROW_G_VEC(out_norm, "output_norm.weight", "backbone.norm_f.weight", DIM_EMBD, 0),
    ROW_HEAD,
    ROW_NORM(attn_norm, "attn_norm", "norm", 0),
    ROWS_MAMBA2("mixer.", attn_out, 0),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->bare = true;
    hp->n_ctx = MODEL_CTX_FREE;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_mamba2(hp, c, e)))
        return rc;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i] = (struct layer_hp){.mixer = MIX_MAMBA2, .ffn = FFN_NONE};
    model_state_set(hp);
    return 0;
}

const struct model_arch model_mamba2 = {
    .name = "mamba2",
    .hf = "Mamba2ForCausalLM",
    .hf_layer = "backbone.layers.%d.",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
