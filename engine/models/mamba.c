/* Mamba (Gu and Dao 2023), Falcon Mamba (Zuo et al. 2024): layers of one norm and a selective scan, no attention and no
 * MLP. Falcon's norms dt, B and C, without weights. */
#include "engine/models/state.h"

static const struct weight_row weights[] = {
    ROW_EMBD_OF("backbone.embeddings.weight", "lm_head.weight"),
    ROW_G_VEC(out_norm, "output_norm.weight", "backbone.norm_f.weight", DIM_EMBD, 0),
    ROW_HEAD,
    ROW_NORM(attn_norm, "attn_norm", "norm", 0),
    ROWS_MAMBA("mixer."),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    struct view arch;
    bool falcon = false, rms = false;
    hp->bare = true;
    hp->n_ctx = MODEL_CTX_FREE;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_mamba(hp, c, e)))
        return rc;
    if (ckpt_is_hf(c) && !ckpt_arch(c, &arch, e))
        falcon = view_is(arch, "FalconMambaForCausalLM");
    rc = ckpt_bool(c, "ssm.dt_b_c_rms", NULL, &rms, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    hp->state.inner_norm = falcon || rms;
    double eps = falcon ? 1e-6 : (double)hp->norm_eps;
    rc = ckpt_num(c, NULL, "mixer_rms_eps", &eps, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (!(eps >= 0 && eps <= 1))
        return err_set(e, ERR_INVAL, "config.json: mixer_rms_eps is %g, expected 0 to 1", eps);
    hp->state.norm_eps = (float)eps;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i] = (struct layer_hp){.mixer = MIX_MAMBA, .ffn = FFN_NONE};
    model_state_set(hp);
    return 0;
}

const struct model_arch model_mamba = {
    .name = "mamba",
    .hf = "MambaForCausalLM|FalconMambaForCausalLM",
    .hf_layer = "backbone.layers.%d.",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
