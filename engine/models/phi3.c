/* Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024): as Llama with q, k, v and gate, up in one tensor each; a long context by
 * factors of the frequencies (rope.c), part of a head rotated in the small Phi-4. */
#include "engine/models/rows.h"

#include <math.h>

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_G_VEC(rope_long, "rope_factors_long.weight", NULL, DIM_ROPE, WEIGHT_OPTIONAL),
    ROW_G_VEC(rope_short, "rope_factors_short.weight", NULL, DIM_ROPE, WEIGHT_OPTIONAL),
    ROW_ATTN_NORM,
    ROW_MAT(qkv, "attn_qkv.weight", "self_attn.qkv_proj.weight", DIM_EMBD, DIM_QKV,
            WEIGHT_OPTIONAL),
    {.name = {"attn_q.weight", "attn_k.weight", "attn_v.weight"},
     .hf = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
     .flags = WEIGHT_ELSE,
     .n_in = DIM_EMBD,
     .n_out = {DIM_Q, DIM_KV, DIM_KV},
     .slot = LAYER(qkv)},
    ROW_ATTN_OUT,
    ROW_FFN_NORM,
    ROW_MAT(gate_up, "ffn_up.weight", "mlp.gate_up_proj.weight", DIM_EMBD, DIM_FF2, 0),
    ROW_DOWN,
};

static const struct hp_row keys[] = {
    HP_OPT("attention.sliding_window", "sliding_window", HP_INT, window, 0, 1 << 26),
};

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_SILU;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_act", &hp->act, e)) ||
        (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)))
        return rc;
    /* A GGUF file does not name the scaling: its tensors do. */
    if (!ckpt_is_hf(c) && ckpt_has(c, "rope_factors_long.weight"))
        hp->rope_scaling = ROPE_SCALING_LONG;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].window = hp->window;
    return 0;
}

const struct model_arch model_phi3 = {
    .name = "phi3",
    .hf = "Phi3ForCausalLM",
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
