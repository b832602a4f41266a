/* Gemma 4, text (Google 2026): as Gemma 3, but norms by w alone, values normed too, scores not scaled. Layers with a window
 * have heads of their own size; the others turn a part of wider heads, and their values may be their keys before norm and
 * rotation. The last layers read the keys and values of the last one of their kind that has some, and may have a wider
 * MLP. Embeddings and a factor a layer (ple.c); in some models experts beside the MLP (moe.c). */
#include "engine/models/rows_moe.h"

#include <math.h>
#include <stdio.h>

/* layer_hp.user, one for heads and one for the MLP: keys and values apart, values from keys, or another layer's. */
enum { ALL_APART = 1, ALL_KEYS = 2, ALL_SHARE = 4, LOCAL_APART = 8, LOCAL_SHARE = 16, FF = 32 };
enum {
    FF_OTHER = 64,
    ALL_SEE = ALL_APART | ALL_KEYS | ALL_SHARE,
    LOCAL = LOCAL_APART | LOCAL_SHARE
};
#define USER(bits) ((unsigned)(bits)*KIND_USER(0))

/* clang-format off */
#define QKV(bits, q, kv, v, hf_v)                                                                  \
    {.name = {"attn_q.weight", "attn_k.weight", v},                                                \
     .hf = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", hf_v}, .n_in = DIM_EMBD,         \
     .n_out = {q, kv, kv}, .slot = LAYER(qkv), .kind = USER(bits)}
#define Q_ONLY(bits, q)                                                                            \
    {.name = {"attn_q.weight"}, .hf = {"self_attn.q_proj.weight"}, .n_in = DIM_EMBD, .n_out = {q}, \
     .slot = LAYER(qkv), .kind = USER(bits)}
#define OUT(bits, q)                                                                               \
    {.name = {"attn_output.weight"}, .hf = {"self_attn.o_proj.weight"}, .n_in = (q),               \
     .n_out = {DIM_EMBD}, .slot = LAYER(attn_out), .kind = USER(bits)}
#define HEAD_NORM(field, gguf, folder, bits, n)                                                    \
    {.name = {gguf ".weight"}, .hf = {folder ".weight"}, .flags = WEIGHT_VECTOR, .n_out = {n},     \
     .slot = LAYER(field), .kind = USER(bits)}
#define MLP(bits, ff)                                                                              \
    {.name = {"ffn_gate.weight", "ffn_up.weight"},                                                 \
     .hf = {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, .n_in = DIM_EMBD, .n_out = {ff, ff},    \
     .slot = LAYER(gate_up), .kind = USER(bits)},                                                  \
    {.name = {"ffn_down.weight"}, .hf = {"mlp.down_proj.weight"}, .n_in = (ff),                    \
     .n_out = {DIM_EMBD}, .slot = LAYER(down), .kind = USER(bits)}
#define MOE_NORM(field, gguf, folder)                                                              \
    {.name = {gguf}, .hf = {folder}, .flags = WEIGHT_VECTOR, .n_out = {DIM_EMBD},                  \
     .slot = LAYER(field), .kind = KIND_MOE}

static const struct weight_row weights[] = {
    ROW_EMBD,
    ROW_OUT_NORM(0),
    ROW_HEAD,
    ROW_G_VEC(rope_factors, "rope_freqs.weight", NULL, DIM_ROPE, WEIGHT_OPTIONAL),
    {.name = {"per_layer_token_embd.weight"}, .hf = {"model.embed_tokens_per_layer.weight"},
     .flags = WEIGHT_GLOBAL | WEIGHT_ROWS | WEIGHT_OPTIONAL, .n_in = DIM_PLES, .n_out = {DIM_VOCAB},
     .slot = MODEL(ple_embd)},
    {.name = {"per_layer_model_proj.weight"}, .hf = {"model.per_layer_model_projection.weight"},
     .flags = WEIGHT_GLOBAL | WEIGHT_OPTIONAL, .n_in = DIM_EMBD, .n_out = {DIM_PLES},
     .slot = MODEL(ple_proj)},
    ROW_G_VEC(ple_norm, "per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight", DIM_PLE,
              WEIGHT_OPTIONAL),
    ROW_MAT(ple.gate, "inp_gate.weight", "per_layer_input_gate.weight", DIM_EMBD, DIM_PLE, WEIGHT_OPTIONAL),
    ROW_MAT(ple.proj, "proj.weight", "per_layer_projection.weight", DIM_PLE, DIM_EMBD, WEIGHT_OPTIONAL),
    ROW_NORM(ple.norm, "post_norm", "post_per_layer_input_norm", WEIGHT_OPTIONAL),
    ROW_VEC(ple.scale, "layer_output_scale.weight", "layer_scalar", DIM_ONE, WEIGHT_OPTIONAL),
    ROW_ATTN_NORM,
    QKV(ALL_APART, DIM_Q, DIM_KV, "attn_v.weight", "self_attn.v_proj.weight"),
    QKV(ALL_KEYS, DIM_Q, DIM_KV, "attn_k.weight", "self_attn.k_proj.weight"),
    Q_ONLY(ALL_SHARE, DIM_Q),
    QKV(LOCAL_APART, DIM_Q_OTHER, DIM_KV_OTHER, "attn_v.weight", "self_attn.v_proj.weight"),
    Q_ONLY(LOCAL_SHARE, DIM_Q_OTHER),
    HEAD_NORM(q_norm, "attn_q_norm", "self_attn.q_norm", ALL_SEE, DIM_HEAD),
    HEAD_NORM(q_norm, "attn_q_norm", "self_attn.q_norm", LOCAL, DIM_HEAD_OTHER),
    HEAD_NORM(k_norm, "attn_k_norm", "self_attn.k_norm", ALL_APART | ALL_KEYS, DIM_HEAD),
    HEAD_NORM(k_norm, "attn_k_norm", "self_attn.k_norm", LOCAL_APART, DIM_HEAD_OTHER),
    {.name = {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"},
     .hf = {"self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight"},
     .flags = WEIGHT_UNUSED, .kind = USER(ALL_SHARE | LOCAL_SHARE)},
    OUT(ALL_SEE, DIM_Q),
    OUT(LOCAL, DIM_Q_OTHER),
    ROW_NORM(attn_post_norm, "post_attention_norm", "post_attention_layernorm", 0),
    ROW_NORM(ffn_norm, "ffn_norm", "pre_feedforward_layernorm", 0),
    MLP(FF, DIM_FF),
    MLP(FF_OTHER, DIM_FF_OTHER),
    ROW_NORM(ffn_post_norm, "post_ffw_norm", "post_feedforward_layernorm", 0),
    ROW_ROUTER("router.proj"),
    MOE_NORM(moe.router_norm, "ffn_gate_inp.scale", "router.scale"),
    {.name = {"ffn_down_exps.scale"}, .hf = {"router.per_expert_scale"}, .flags = WEIGHT_VECTOR,
     .n_out = {DIM_EXPERTS}, .slot = LAYER(moe.expert_scale), .kind = KIND_MOE},
    ROW_EXPERTS_GATE_UP_ALL("experts.gate_up_proj", 0),
    {.name = {"ffn_down_exps.weight"}, .hf = {"experts.down_proj"}, .flags = WEIGHT_EXPERTS,
     .n_in = DIM_EXPERT_FF, .n_out = {DIM_EMBD}, .slot = LAYER(moe.down), .n_expert = DIM_EXPERTS,
     .kind = KIND_MOE},
    MOE_NORM(moe.norm, "pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"),
    MOE_NORM(moe.post_norm, "post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"),
    MOE_NORM(moe.dense_post_norm, "post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"),
};
/* clang-format on */

static const struct hp_row keys[] = {
    {"attention.sliding_window", "sliding_window", HP_INT, false, offsetof(struct model_hp, window),
     1, 1 << 26},
    HP_OPT("rope.freq_base_swa", "rope_parameters.sliding_attention.rope_theta", HP_FLOAT,
           rope_base_local, 1, 1e12),
    HP_OPT("attention.key_length_swa", NULL, HP_INT, other.head_dim, 2, MODEL_HEAD_MAX),
    HP_OPT("final_logit_softcapping", "final_logit_softcapping", HP_FLOAT, logit_softcap, 0, 1e6),
    HP_OPT("embedding_length_per_layer_input", "hidden_size_per_layer_input", HP_INT, n_ple, 0,
           1 << 16),
};

/* An optional count. */
static int count(struct ckpt *c, const char *key, const char *json, int64_t *out, int64_t max,
                 struct err *e)
{
    char name[200];
    int rc = ckpt_int(c, key, json, out, e);
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    if (*out >= 0 && *out <= max)
        return 0;
    return err_set(e, ERR_INVAL, "%s is %lld, expected 0 to %lld",
                   ckpt_key_text(c, key, json, name, sizeof name), (long long)*out, (long long)max);
}

/* Element i of a list of a GGUF file; a shorter list, or a number for all: *out stays. */
static int element(struct ckpt *c, const char *key, int i, int32_t *out, struct err *e)
{
    double v = 0;
    int n = ckpt_is_hf(c) ? 0 : ckpt_len(c, key, NULL);
    if (n < 2 || n <= i)
        return 0;
    int rc = ckpt_num_at(c, key, NULL, i, &v, e);
    if (rc)
        return rc;
    if (!(v >= 1 && v <= 1 << 20))
        return err_set(e, ERR_INVAL, "gemma4.%s holds %g", key, v);
    *out = (int32_t)v;
    return 0;
}

/* A folder's wide heads: by what it says of layer `wide`, or of all such. */
static int wide_read(struct model_hp *hp, struct ckpt *c, int wide, struct err *e)
{
    char json[128];
    int64_t dim = 512, n_kv = hp->n_kv_head;
    bool keys_too = false;
    int rc = ckpt_bool(c, NULL, "attention_k_eq_v", &keys_too, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    snprintf(json, sizeof json, "per_layer_config.%d.head_dim|global_head_dim", wide);
    if ((rc = count(c, NULL, json, &dim, MODEL_HEAD_MAX, e)))
        return rc;
    snprintf(json, sizeof json, "per_layer_config.%d.num_key_value_heads%s", wide,
             keys_too ? "|num_global_key_value_heads" : "");
    if ((rc = count(c, NULL, json, &n_kv, 4096, e)))
        return rc;
    hp->head_dim = (int32_t)dim;
    hp->n_kv_head = (int32_t)n_kv;
    hp->n_turn = 0;
    double part = 1;
    rc = ckpt_num(c, NULL, "rope_parameters.full_attention.partial_rotary_factor", &part, e);
    if (rc == 0 && hp->rope_scaling == ROPE_SCALING_PROPORTIONAL)
        hp->n_turn = (int32_t)(hp->head_dim * part) / 2;
    hp->n_rot = hp->head_dim;
    return rc == ERR_NOTFOUND ? 0 : rc;
}

/* Sizes of both kinds of heads. hp has the file's: a folder's are the local ones. */
static int heads_set(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    static const char key[] = "attention.head_count_kv";
    int local = hp->n_layer - 1, wide = hp->n_layer - 1, rc = 0;
    for (int i = hp->n_layer - 1; i >= 0; i--)
        *(hp->layer[i].local ? &local : &wide) = i;
    hp->other.n_kv_head = hp->n_kv_head;
    if (ckpt_is_hf(c) || hp->other.head_dim == 0)
        hp->other.head_dim = hp->head_dim;
    if (ckpt_is_hf(c))
        rc = wide_read(hp, c, wide, e);
    if (rc || (rc = element(c, key, local, &hp->other.n_kv_head, e)) ||
        (rc = element(c, key, wide, &hp->n_kv_head, e)))
        return rc;
    const int32_t dims[] = {hp->head_dim, hp->other.head_dim};
    const int32_t n_kv[] = {hp->n_kv_head, hp->other.n_kv_head};
    for (int i = 0; i < 2; i++)
        if (dims[i] < 2 || dims[i] % 2 || n_kv[i] < 1 || hp->n_head % n_kv[i])
            return err_set(e, ERR_INVAL,
                           "%s: %d heads over %d (head_count_kv, num_key_value_heads) of %d values "
                           "(key_length, head_dim)",
                           ckpt_is_hf(c) ? "config.json" : "gemma4", hp->n_head, n_kv[i], dims[i]);
    hp->n_rot_local = hp->other.head_dim;
    int64_t *d = hp->dim;
    d[DIM_HEAD] = hp->head_dim;
    d[DIM_Q] = (int64_t)hp->n_head * hp->head_dim;
    d[DIM_KV] = (int64_t)hp->n_kv_head * hp->head_dim;
    d[DIM_QKV] = d[DIM_Q] + 2 * d[DIM_KV];
    d[DIM_ROPE] = hp->n_rot / 2;
    d[DIM_HEAD_OTHER] = hp->other.head_dim;
    d[DIM_Q_OTHER] = (int64_t)hp->n_head * hp->other.head_dim;
    d[DIM_KV_OTHER] = (int64_t)hp->other.n_kv_head * hp->other.head_dim;
    return 0;
}

/* Whose keys and values a layer reads, and where values come from. */
static int shares_set(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    int64_t n = 0;
    bool keys_too = false;
    int of[2] = {0, 0}; /* number + 1 of the last that has some: by local */
    int rc = count(c, "attention.shared_kv_layers", "num_kv_shared_layers", &n, hp->n_layer - 1, e);
    if (rc || ((rc = ckpt_bool(c, NULL, "attention_k_eq_v", &keys_too, e)) && rc != ERR_NOTFOUND))
        return rc;
    for (int i = 0; i < hp->n_layer; i++) {
        struct layer_hp *l = &hp->layer[i];
        char v[64];
        snprintf(v, sizeof v, "blk.%d.attn_v.weight", i);
        bool from_keys = !l->local && (ckpt_is_hf(c) ? keys_too : !ckpt_has(c, v));
        if (i < hp->n_layer - n) {
            of[l->local] = i + 1;
            l->user |= l->local ? LOCAL_APART : from_keys ? ALL_KEYS : ALL_APART;
            continue;
        }
        l->share = of[l->local];
        l->user |= l->local ? LOCAL_SHARE : ALL_SHARE;
        if (l->share == 0) {
            char name[200];
            ckpt_key_text(c, "attention.shared_kv_layers", "num_kv_shared_layers", name,
                          sizeof name);
            return err_set(e, ERR_INVAL, "%s is %d of %d: no layer has keys for layer %d to share",
                           name, (int)n, hp->n_layer, i);
        }
    }
    return 0;
}

/* MLPs of two widths: a folder's are twice as wide where keys are shared, a GGUF file lists them. */
static int widths_set(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    static const char key[] = "feed_forward_length";
    bool twice = false;
    int rc = ckpt_bool(c, NULL, "use_double_wide_mlp", &twice, e);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    if ((rc = element(c, key, 0, &hp->n_ff, e)))
        return rc;
    hp->other.n_ff = twice ? 2 * hp->n_ff : 0;
    for (int i = 0; i < hp->n_layer; i++) {
        struct layer_hp *l = &hp->layer[i];
        int32_t ff = twice && l->share ? hp->other.n_ff : hp->n_ff;
        if ((rc = element(c, key, i, &ff, e)))
            return rc;
        if (ff != hp->n_ff && hp->other.n_ff == 0)
            hp->other.n_ff = ff;
        l->other_ff = ff != hp->n_ff;
        l->user |= l->other_ff ? FF_OTHER : FF;
        if (ff != hp->n_ff && ff != hp->other.n_ff)
            return err_set(e, ERR_UNSUPPORTED, "gemma4.%s has more than two sizes: %d, %d, %d", key,
                           hp->n_ff, hp->other.n_ff, ff);
    }
    hp->dim[DIM_FF] = hp->n_ff;
    hp->dim[DIM_FF_OTHER] = hp->other.n_ff;
    return 0;
}

static int experts_set(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    if (hp->moe.n_expert == 0)
        return 0;
    hp->moe.score = ROUTE_SOFTMAX;
    hp->moe.renorm = true;
    int rc = model_hp_moe(hp, c, e);
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].ffn = FFN_BOTH;
    return rc;
}

static int hparams(struct model_hp *hp, struct ckpt *c, struct err *e)
{
    struct view both = {0};
    hp->rope_style = ROPE_NEOX;
    hp->act = ACT_GELU_TANH;
    hp->rope_base = 1e6f;
    hp->rope_base_local = 1e4f;
    int rc = model_hp_common(hp, c, e);
    if (rc || (rc = model_hp_act(c, "hidden_activation", &hp->act, e)) ||
        (rc = model_hp_read(hp, c, keys, sizeof keys / sizeof *keys, e)))
        return rc;
    rc = ckpt_str(c, NULL, "use_bidirectional_attention", &both, e);
    if (rc == 0 && view_is(both, "all"))
        return err_set(e, ERR_UNSUPPORTED, "config.json: use_bidirectional_attention is \"all\"");
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].slides = (i + 1) % 6 != 0 && i + 1 < hp->n_layer;
    if ((rc = model_hp_slides(hp, c, 0, e)))
        return rc;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].local = hp->layer[i].slides;
    if ((rc = heads_set(hp, c, e)) || (rc = experts_set(hp, c, e)) || (rc = shares_set(hp, c, e)) ||
        (rc = widths_set(hp, c, e)))
        return rc;
    for (int i = 0; i < hp->n_layer; i++)
        hp->layer[i].other_heads = hp->layer[i].local;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    hp->attn_scale = 1;
    hp->v_unit = hp->layer_scale = true;
    hp->dim[DIM_PLE] = hp->n_ple;
    hp->dim[DIM_PLES] = (int64_t)hp->n_ple * hp->n_layer;
    return 0;
}

/* The text model is served. */
static const char *const ignore[] = {"vision_tower.", "audio_tower.",           "embed_vision.",
                                     "embed_audio.",  "multi_modal_projector.", NULL};

const struct model_arch model_gemma4 = {
    .name = "gemma4",
    .hf = "Gemma4ForCausalLM|Gemma4ForConditionalGeneration",
    .hf_ignore = ignore,
    .hparams = hparams,
    ROWS(weights),
    .forward = model_forward_decoder,
};
