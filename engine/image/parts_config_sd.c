/* Configurations of Stable Diffusion's UNets and of text encoders as JSON text, sizes read off the tensors. */
#include <stdio.h>

#include "engine/base/buf.h"
#include "engine/image/parts_impl.h"
#include "engine/load/gguf.h"

#define LEVELS_MAX 8
#define LAYERS_MAX 256

/* ---- UNet ---- */

struct level {
    int64_t width;
    int layers; /* res blocks going down */
    int depth;  /* transformer blocks of an attention; 0: none going down */
    bool attn_down, attn_up;
};

static int depth_of(const struct source_map *m, const char *block)
{
    return names_count(m, LAYERS_MAX, "%s.attentions.0.transformer_blocks.#.attn1.to_q.weight",
                       block);
}

/* Levels; 0 when their sizes can't be read. */
static int levels(const struct source_map *m, struct level *v)
{
    int n = names_count(m, LEVELS_MAX, "down_blocks.#.resnets.0.conv1.weight");
    for (int i = 0; i < n; i++) {
        int64_t d[SOURCE_DIMS] = {0};
        char block[32];
        snprintf(block, sizeof block, "down_blocks.%d", i);
        names_has(m, d, "%s.resnets.0.conv1.weight", block);
        v[i].width = d[0];
        v[i].layers = names_count(m, LEVELS_MAX, "%s.resnets.#.conv1.weight", block);
        v[i].depth = depth_of(m, block);
        v[i].attn_down = names_has(m, NULL, "%s.attentions.0.proj_in.weight", block);
        v[i].attn_up = names_has(m, NULL, "up_blocks.%d.attentions.0.proj_in.weight", n - 1 - i);
    }
    return n;
}

static void types(struct buf *b, const struct level *v, int n, bool up)
{
    buf_fmt(b, "\"%s_block_types\":[", up ? "up" : "down");
    for (int i = 0; i < n; i++) {
        bool attn = up ? v[n - 1 - i].attn_up : v[i].attn_down;
        buf_fmt(b, "%s\"%s%sBlock2D\"", i ? "," : "", attn ? "CrossAttn" : "", up ? "Up" : "Down");
    }
    buf_str(b, "],");
}

/* Per level: width, transformer blocks, heads. Published models have 8 heads, or heads of 64 values where the
 * attention's ends are linear. */
static void per_level(struct buf *b, const struct level *v, int n, int mid, bool linear)
{
    buf_str(b, "\"block_out_channels\":[");
    for (int i = 0; i < n; i++)
        buf_fmt(b, "%s%lld", i ? "," : "", (long long)v[i].width);
    buf_str(b, "],\"layers_per_block\":");
    bool alike = true;
    for (int i = 1; i < n; i++)
        alike &= v[i].layers == v[0].layers;
    for (int i = 0; i < (alike ? 1 : n); i++)
        buf_fmt(b, "%s%d", alike ? "" : i ? "," : "[", v[i].layers);
    buf_str(b,
            alike ? ",\"transformer_layers_per_block\":[" : "],\"transformer_layers_per_block\":[");
    for (int i = 0; i < n; i++) /* the middle has what the last level says */
        buf_fmt(b, "%s%d", i ? "," : "", v[i].depth ? v[i].depth : i == n - 1 && mid ? mid : 1);
    buf_str(b, "],\"attention_head_dim\":");
    for (int i = 0; linear && i < n; i++)
        buf_fmt(b, "%s%lld", i ? "," : "[", (long long)(v[i].width < 64 ? 1 : v[i].width / 64));
    buf_str(b, linear ? "]," : "8,");
}

/* Width of the text that attention reads. */
static int64_t context(const struct source_map *m, int n)
{
    int64_t d[SOURCE_DIMS];
    for (int i = 0; i < n; i++)
        if (names_has(m, d, "down_blocks.%d.attentions.0.transformer_blocks.0.attn2.to_k.weight",
                      i))
            return d[1];
    return names_has(m, d, "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight") ? d[1]
                                                                                            : 0;
}

int64_t part_context(const struct part *p)
{
    struct source_map m = part_map(p);
    return context(&m, LEVELS_MAX);
}

int part_config_unet(const struct part *p, bool v_prediction, struct buf *b, struct err *e)
{
    struct source_map m = part_map(p);
    struct level v[LEVELS_MAX] = {{0}};
    int64_t in[SOURCE_DIMS] = {0}, out[SOURCE_DIMS] = {0}, add[SOURCE_DIMS] = {0}, d[SOURCE_DIMS];
    int n = levels(&m, v), mid = depth_of(&m, "mid_block");
    bool ends = names_has(&m, in, "conv_in.weight") && names_has(&m, out, "conv_out.weight");
    if (!n || !ends)
        return err_set(e, ERR_UNSUPPORTED, "the UNet's blocks are not those of Stable Diffusion");
    bool linear = names_has(&m, d, "mid_block.attentions.0.proj_in.weight") && d[2] == 0;
    for (int i = 0; i < n && !mid; i++)
        linear =
            names_has(&m, d, "down_blocks.%d.attentions.0.proj_in.weight", i) ? d[2] == 0 : linear;
    bool xl = names_has(&m, add, "add_embedding.linear_1.weight");
    buf_fmt(b,
            "{\"_class_name\":\"UNet2DConditionModel\",\"act_fn\":\"silu\",\"in_channels\":%lld,"
            "\"out_channels\":%lld,\"cross_attention_dim\":%lld,"
            "\"norm_num_groups\":32,\"norm_eps\":1e-05,\"flip_sin_to_cos\":true,\"freq_shift\":0,"
            "\"sample_size\":%d,\"use_linear_projection\":%s,",
            (long long)in[1], (long long)out[0], (long long)context(&m, n),
            xl             ? 128
            : v_prediction ? 96
                           : 64,
            linear ? "true" : "false");
    types(b, v, n, false);
    types(b, v, n, true);
    per_level(b, v, n, mid, linear);
    if (names_has(&m, d, "time_embedding.cond_proj.weight"))
        buf_fmt(b, "\"time_cond_proj_dim\":%lld,", (long long)d[1]);
    if (xl)
        buf_fmt(b,
                "\"addition_embed_type\":\"text_time\",\"addition_time_embed_dim\":256,"
                "\"projection_class_embeddings_input_dim\":%lld,",
                (long long)add[1]);
    bool res = names_has(&m, NULL, "mid_block.resnets.0.conv1.weight");
    /* null is not the same as absent: an absent one is the usual */
    buf_str(b, mid   ? "\"mid_block_type\":\"UNetMidBlock2DCrossAttn\"}"
               : res ? "\"mid_block_type\":\"UNetMidBlock2D\"}"
                     : "\"mid_block_type\":null}");
    return 0;
}

/* ---- text encoders ---- */

static int64_t dim_of(const struct source_map *m, int i, const char *name)
{
    int64_t d[SOURCE_DIMS] = {0};
    names_has(m, d, "%s", name);
    return d[i];
}

int part_config_clip(const struct part *p, bool projection, struct buf *b, struct err *e)
{
    struct source_map m = part_map(p);
    int64_t dim = dim_of(&m, 1, "embeddings.token_embedding.weight");
    int64_t vocab = dim_of(&m, 0, "embeddings.token_embedding.weight");
    /* OpenCLIP's is the other way round, and not called a weight */
    int64_t proj = p->kind == PART_OPENCLIP ? dim_of(&m, 1, "text_projection")
                                            : dim_of(&m, 0, "text_projection.weight");
    int n = names_count(&m, LAYERS_MAX, "encoder.layers.#.layer_norm1.weight");
    /* Stable Diffusion 2 was trained on the last layer but one: its folder on the hub leaves the last out */
    if (!projection && (p->kind == PART_OPENCLIP || (dim == 1024 && n == 24)) && n > 1)
        n--;
    if (dim < 1 || vocab < 2)
        return err_set(e, ERR_INVAL, "%s: its token embedding is no matrix", p->what);
    buf_fmt(b,
            "{\"architectures\":[\"CLIPTextModel%s\"],\"model_type\":\"clip_text_model\","
            "\"hidden_act\":\"%s\",\"hidden_size\":%lld,\"intermediate_size\":%lld,"
            "\"num_hidden_layers\":%d,\"num_attention_heads\":%lld,"
            "\"max_position_embeddings\":%lld,\"vocab_size\":%lld,\"bos_token_id\":%lld,"
            "\"eos_token_id\":%lld,\"projection_dim\":%lld,\"layer_norm_eps\":1e-05}",
            projection ? "WithProjection" : "",
            p->kind == PART_OPENCLIP || dim >= 1024 ? "gelu" : "quick_gelu", (long long)dim,
            (long long)dim_of(&m, 0, "encoder.layers.0.mlp.fc1.weight"), n,
            (long long)(dim < 64 ? 1 : dim / 64),
            (long long)dim_of(&m, 0, "embeddings.position_embedding.weight"), (long long)vocab,
            (long long)vocab - 2, (long long)vocab - 1, (long long)(proj ? proj : dim));
    return 0;
}

/* The heads of attention are the columns of its table of relative positions. */
int part_config_t5(const struct part *p, struct buf *b, struct err *e)
{
    struct source_map m = part_map(p);
    const char *q = "encoder.block.0.layer.0.SelfAttention.q.weight";
    const char *bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
    int64_t n_head = dim_of(&m, 1, bias), inner = dim_of(&m, 0, q);
    bool gated = names_has(&m, NULL, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight");
    if (n_head < 1 || inner % n_head)
        return err_set(e, ERR_INVAL, "%s: tensor %s%s does not say how many heads there are",
                       p->what, p->prefix, bias);
    buf_fmt(b,
            "{\"architectures\":[\"T5EncoderModel\"],\"model_type\":\"t5\",\"d_model\":%lld,"
            "\"d_kv\":%lld,\"d_ff\":%lld,\"num_layers\":%d,\"num_heads\":%lld,"
            "\"relative_attention_num_buckets\":%lld,\"relative_attention_max_distance\":128,"
            "\"feed_forward_proj\":\"%s\",\"layer_norm_epsilon\":1e-06,\"vocab_size\":%lld}",
            (long long)dim_of(&m, 1, q), (long long)(inner / n_head),
            (long long)dim_of(&m, 1, "encoder.block.0.layer.1.DenseReluDense.wo.weight"),
            names_count(&m, LAYERS_MAX, "encoder.block.#.layer.0.SelfAttention.q.weight"),
            (long long)n_head, (long long)dim_of(&m, 0, bias), gated ? "gated-gelu" : "relu",
            (long long)dim_of(&m, 0, "shared.weight"));
    return 0;
}

/* A number of a GGUF file's metadata, "<architecture>.<key>". */
static double gguf_num(const struct source *s, const char *key, double def)
{
    const char *arch = source_meta(s, "general.architecture");
    const struct gguf *g = source_gguf(s);
    char name[128];
    float f;
    uint32_t u;
    if (!g || !arch)
        return def;
    snprintf(name, sizeof name, "%.60s.%s", arch, key);
    if (gguf_get_u32(g, name, &u, NULL) == 0)
        return u;
    return gguf_get_f32(g, name, &f, NULL) == 0 ? (double)f : def;
}

/* Sizes that shapes do not tell: in GGUF its metadata does; in safetensors they are Qwen's (heads of 128 values where
 * no norm of one head says otherwise, theta 1e6). */
int part_config_lm(const struct part *p, struct buf *b, struct err *e)
{
    struct source_map m = part_map(p);
    bool norm = names_has(&m, NULL, "layers.0.self_attn.q_norm.weight");
    int64_t q = dim_of(&m, 0, "layers.0.self_attn.q_proj.weight");
    int64_t kv = dim_of(&m, 0, "layers.0.self_attn.k_proj.weight");
    int64_t head = norm ? dim_of(&m, 0, "layers.0.self_attn.q_norm.weight") : 128;
    double n_head = gguf_num(p->src, "attention.head_count", 0);
    if (!norm && n_head >= 1)
        head = q / (int64_t)n_head;
    if (head < 1 || q % head || kv % head || kv < head)
        return err_set(e, ERR_INVAL, "%s: heads of %lld values do not fit %lld and %lld rows",
                       p->what, (long long)head, (long long)q, (long long)kv);
    buf_fmt(b,
            "{\"model_type\":\"%s\",\"hidden_act\":\"silu\",\"hidden_size\":%lld,"
            "\"intermediate_size\":%lld,\"num_hidden_layers\":%d,\"num_attention_heads\":%lld,"
            "\"num_key_value_heads\":%lld,\"head_dim\":%lld,\"rms_norm_eps\":%.9g,"
            "\"rope_theta\":%.9g,\"vocab_size\":%lld}",
            norm ? "qwen3" : "qwen2_5_vl_text", (long long)dim_of(&m, 1, "embed_tokens.weight"),
            (long long)dim_of(&m, 0, "layers.0.mlp.gate_proj.weight"),
            names_count(&m, LAYERS_MAX, "layers.#.input_layernorm.weight"), (long long)(q / head),
            (long long)(kv / head), (long long)head,
            gguf_num(p->src, "attention.layer_norm_rms_epsilon", 1e-6),
            gguf_num(p->src, "rope.freq_base", 1e6),
            (long long)dim_of(&m, 0, "embed_tokens.weight"));
    return 0;
}
