/* RWKV-4 (Peng et al. 2023): see state_rwkv.c. Layer norms with biases, one more behind the embeddings. There is no GGUF
 * layout of it. */
#include "engine/models/state.h"

#define KIND_RWKV KIND_MIX(MIX_RWKV)
#define ROW_R(field, folder, out)                                                                  \
    {                                                                                              \
        .hf = {folder}, .flags = WEIGHT_VECTOR | WEIGHT_FLAT, .n_out = {out}, .slot = LAYER(field) \
    }
#define ROW_R_MAT(field, folder, in, out)                                                          \
    {                                                                                              \
        .hf = {folder ".weight"}, .n_in = in, .n_out = {out}, .slot = LAYER(field)                 \
    }
#define ROW_R_ALL(field, folder)                                                                   \
    {                                                                                              \
        .hf = {folder}, .flags = WEIGHT_GLOBAL | WEIGHT_VECTOR, .n_out = {DIM_EMBD},               \
        .slot = MODEL(field)                                                                       \
    }

static const struct weight_row weights[] = {
    {.hf = {"rwkv.embeddings.weight"},
     .flags = WEIGHT_GLOBAL | WEIGHT_ROWS | WEIGHT_ROWS_TIED,
     .n_in = DIM_EMBD,
     .n_out = {DIM_VOCAB},
     .slot = MODEL(embd),
     .hf_tied_by = "head.weight"},
    {.hf = {"head.weight"},
     .flags = WEIGHT_GLOBAL | WEIGHT_OPTIONAL,
     .n_in = DIM_EMBD,
     .n_out = {DIM_VOCAB},
     .slot = MODEL(head)},
    ROW_R_ALL(embd_norm, "rwkv.blocks.0.pre_ln.weight"),
    ROW_R_ALL(embd_norm_b, "rwkv.blocks.0.pre_ln.bias"),
    ROW_R_ALL(out_norm, "rwkv.ln_out.weight"),
    ROW_R_ALL(out_norm_b, "rwkv.ln_out.bias"),
    ROW_R(attn_norm, "ln1.weight", DIM_EMBD),
    ROW_R(attn_norm_b, "ln1.bias", DIM_EMBD),
    ROW_R(ffn_norm, "ln2.weight", DIM_EMBD),
    ROW_R(ffn_norm_b, "ln2.bias", DIM_EMBD),
    {.hf = {"attention.time_mix_receptance", "attention.time_mix_key", "attention.time_mix_value"},
     .flags = WEIGHT_VECTOR | WEIGHT_FLAT,
     .n_out = {DIM_EMBD, DIM_EMBD, DIM_EMBD},
     .slot = LAYER(state.mix)},
    {.hf = {"attention.time_decay"},
     .flags = WEIGHT_VECTOR | WEIGHT_HF_NEG_EXP,
     .n_out = {DIM_S_INNER},
     .slot = LAYER(state.decay)},
    ROW_R(state.first, "attention.time_first", DIM_S_INNER),
    ROW_R_MAT(state.r, "attention.receptance", DIM_EMBD, DIM_S_INNER),
    ROW_R_MAT(state.k, "attention.key", DIM_EMBD, DIM_S_INNER),
    ROW_R_MAT(state.v, "attention.value", DIM_EMBD, DIM_S_INNER),
    ROW_R_MAT(attn_out, "attention.output", DIM_S_INNER, DIM_EMBD),
    {.hf = {"feed_forward.time_mix_receptance", "feed_forward.time_mix_key"},
     .flags = WEIGHT_VECTOR | WEIGHT_FLAT,
     .n_out = {DIM_EMBD, DIM_EMBD},
     .slot = LAYER(state.ffn_mix)},
    ROW_R_MAT(state.ffn_r, "feed_forward.receptance", DIM_EMBD, DIM_EMBD),
    ROW_R_MAT(up, "feed_forward.key", DIM_EMBD, DIM_FF),
    ROW_R_MAT(down, "feed_forward.value", DIM_FF, DIM_EMBD),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t ff = 0, att = 0;
    hp->norm = NORM_LAYER;
    hp->bare = true;
    hp->n_ctx = MODEL_CTX_FREE;
    int rc = model_hp_common(hp, c, e);
    if (rc)
        return rc;
    rc = ckpt_int(c, NULL, "intermediate_size", &ff, e);
    if (!rc || rc == ERR_NOTFOUND)
        rc = ckpt_int(c, NULL, "attention_hidden_size", &att, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if (ff == 0)
        ff = 4 * (int64_t)hp->n_embd;
    if (ff < 1 || ff > 1 << 20 || (att && att != hp->n_embd))
        return err_set(e, ERR_UNSUPPORTED,
                       "config.json: intermediate_size %lld, attention_hidden_size %lld of %d",
                       (long long)ff, (long long)att, hp->n_embd);
    hp->n_ff = (int32_t)ff;
    hp->dim[DIM_FF] = ff;
    hp->dim[DIM_FF2] = 2 * ff;
    hp->dim[DIM_S_INNER] = hp->n_embd;
    hp->state.n_conv = 1;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i] = (struct layer_hp){.mixer = MIX_RWKV, .ffn = FFN_RWKV};
    model_state_set(hp);
    return 0;
}

const struct model_arch model_rwkv = {
    .name = "rwkv",
    .hf = "RwkvForCausalLM",
    .hf_layer = "rwkv.blocks.%d.",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
