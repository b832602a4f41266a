/* Configurations of autoencoders and transformers as JSON text: what their folders on the hub say, sizes read off the
 * tensors. */
#include <stdio.h>

#include "engine/base/buf.h"
#include "engine/image/parts_impl.h"

#define LEVELS_MAX 8
#define LAYERS_MAX 256

/* Readers of these configurations check them against the tensors, name by name and shape by shape: what can't be read
 * off here is given as published, and a model that differs is refused there rather than drawn wrongly. */

/* ---- autoencoders ---- */

static void same(struct buf *b, const char *key, int n, const char *text)
{
    buf_fmt(b, "\"%s\":[", key);
    for (int i = 0; i < n; i++)
        buf_fmt(b, "%s\"%s\"", i ? "," : "", text);
    buf_str(b, "],");
}

static int config_kl(const struct source_map *m, double scaling, double shift, struct buf *b)
{
    int64_t d[SOURCE_DIMS] = {0};
    int n = names_count(m, LEVELS_MAX, "decoder.up_blocks.#.resnets.0.conv1.weight");
    int layers = names_count(m, LEVELS_MAX, "decoder.up_blocks.0.resnets.#.conv1.weight");
    buf_str(b, "{\"_class_name\":\"AutoencoderKL\",\"act_fn\":\"silu\",\"in_channels\":3,"
               "\"out_channels\":3,\"norm_num_groups\":32,\"block_out_channels\":[");
    for (int i = n;
         i-- >
         0;) { /* up_blocks begin with the coarsest level, block_out_channels with the finest */
        names_has(m, d, "decoder.up_blocks.%d.resnets.0.conv1.weight", i);
        buf_fmt(b, "%lld%s", (long long)d[0], i ? "," : "],");
    }
    same(b, "down_block_types", n, "DownEncoderBlock2D");
    same(b, "up_block_types", n, "UpDecoderBlock2D");
    names_has(m, d, "decoder.conv_in.weight");
    buf_fmt(b,
            "\"latent_channels\":%lld,\"layers_per_block\":%d,\"mid_block_add_attention\":%s,"
            "\"use_quant_conv\":%s,\"use_post_quant_conv\":%s,\"scaling_factor\":%.6g,",
            (long long)d[1], layers - 1,
            names_has(m, NULL, "decoder.mid_block.attentions.0.to_q.weight") ? "true" : "false",
            names_has(m, NULL, "quant_conv.weight") ? "true" : "false",
            names_has(m, NULL, "post_quant_conv.weight") ? "true" : "false", scaling);
    if (shift != 0)
        buf_fmt(b, "\"shift_factor\":%.6g}", shift);
    else
        buf_str(b, "\"shift_factor\":null}");
    return 0;
}

/* Qwen-Image's; the means are of the weights of one published model, which others share. */
static int config_wan(const struct source_map *m, struct buf *b, struct err *e)
{
    int64_t d[SOURCE_DIMS] = {0}, z[SOURCE_DIMS] = {0};
    names_has(m, d, "encoder.conv_in.weight");
    names_has(m, z, "post_quant_conv.weight");
    if (d[0] != 96 || z[0] != 16)
        return err_set(e, ERR_UNSUPPORTED,
                       "an autoencoder of %lld latent channels and %lld base channels is not "
                       "Qwen-Image's (16, 96); its config.json must say what it is",
                       (long long)z[0], (long long)d[0]);
    buf_str(b, "{\"_class_name\":\"AutoencoderKLQwenImage\",\"attn_scales\":[],\"base_dim\":96,"
               "\"dim_mult\":[1,2,4,4],\"dropout\":0.0,\"num_res_blocks\":2,\"z_dim\":16,"
               "\"temperal_downsample\":[false,true,true],\"latents_mean\":[-0.7571,-0.7089,"
               "-0.9113,0.1075,-0.1745,0.9653,-0.1517,1.5508,0.4134,-0.0715,0.5517,-0.3632,"
               "-0.1922,-0.9497,0.2503,-0.2921],\"latents_std\":[2.8184,1.4541,2.3275,2.6558,"
               "1.2196,1.7708,2.6052,2.0743,3.2687,2.1526,2.8652,1.5579,1.6382,1.1253,2.8251,"
               "1.9160]}");
    return 0;
}

int part_config_vae(const struct part *p, double scaling, double shift, struct buf *b,
                    struct err *e)
{
    struct source_map m = part_map(p);
    bool wan = p->kind == PART_WAN || p->kind == PART_WAN_D;
    return wan ? config_wan(&m, b, e) : config_kl(&m, scaling, shift, b);
}

/* ---- transformers ---- */

/* The sizes of attention: rows of one tensor, values of a norm of one head. */
static int heads(const struct source_map *m, const char *rows, const char *norm, int64_t *n_head,
                 int64_t *head_dim, struct err *e)
{
    int64_t d[SOURCE_DIMS] = {0}, h[SOURCE_DIMS] = {0};
    if (!names_has(m, d, "%s", rows))
        return err_set(e, ERR_NOTFOUND, "tensor %s%s is missing", m->prefix, rows);
    if (!names_has(m, h, "%s", norm))
        return err_set(e, ERR_NOTFOUND, "tensor %s%s is missing", m->prefix, norm);
    if (h[0] < 1 || d[0] % h[0])
        return err_set(e, ERR_INVAL, "tensor %s%s: heads of %lld values do not fit %lld rows",
                       m->prefix, norm, (long long)h[0], (long long)d[0]);
    *n_head = d[0] / h[0];
    *head_dim = h[0];
    return 0;
}

static int64_t dim_of(const struct source_map *m, int i, const char *name)
{
    int64_t d[SOURCE_DIMS] = {0};
    names_has(m, d, "%s", name);
    return d[i];
}

/* Rotary axes: an eighth of a head for the image's index, the rest halved for y and x (16, 56, 56 of 128). */
int part_config_flux(const struct part *p, struct buf *b, struct err *e)
{
    struct source_map m = part_map(p);
    int64_t n_head, dim;
    int rc = heads(&m, "transformer_blocks.0.attn.to_q.weight",
                   "transformer_blocks.0.attn.norm_q.weight", &n_head, &dim, e);
    if (rc)
        return rc;
    buf_fmt(
        b,
        "{\"_class_name\":\"FluxTransformer2DModel\",\"patch_size\":1,\"in_channels\":%lld,"
        "\"out_channels\":%lld,\"num_layers\":%d,\"num_single_layers\":%d,"
        "\"attention_head_dim\":%lld,\"num_attention_heads\":%lld,\"joint_attention_dim\":%lld,"
        "\"pooled_projection_dim\":%lld,\"guidance_embeds\":%s,"
        "\"axes_dims_rope\":[%lld,%lld,%lld]}",
        (long long)dim_of(&m, 1, "x_embedder.weight"), (long long)dim_of(&m, 0, "proj_out.weight"),
        names_count(&m, LAYERS_MAX, "transformer_blocks.#.norm1.linear.weight"),
        names_count(&m, LAYERS_MAX, "single_transformer_blocks.#.norm.linear.weight"),
        (long long)dim, (long long)n_head, (long long)dim_of(&m, 1, "context_embedder.weight"),
        (long long)dim_of(&m, 1, "time_text_embed.text_embedder.linear_1.weight"),
        names_has(&m, NULL, "time_text_embed.guidance_embedder.linear_1.weight") ? "true" : "false",
        (long long)dim / 8, (long long)(dim - dim / 8) / 2, (long long)(dim - dim / 8) / 2);
    return 0;
}

/* The text's MLP is missing in the last block, so blocks are counted by what the picture's has. */
int part_config_sd3(const struct part *p, struct buf *b, struct err *e)
{
    struct source_map m = part_map(p);
    int64_t n_head = 0, dim = 64, patch = dim_of(&m, 2, "pos_embed.proj.weight"), side = 0;
    int64_t pos[SOURCE_DIMS] = {0};
    int64_t rows = dim_of(&m, 0, "transformer_blocks.0.attn.to_q.weight");
    bool norm = names_has(&m, NULL, "transformer_blocks.0.attn.norm_q.weight");
    int n = names_count(&m, LAYERS_MAX, "transformer_blocks.#.attn.to_q.weight"), rc = 0;
    if (norm)
        rc = heads(&m, "transformer_blocks.0.attn.to_q.weight",
                   "transformer_blocks.0.attn.norm_q.weight", &n_head, &dim, e);
    if (rc)
        return rc;
    names_has(&m, pos, "pos_embed.pos_embed"); /* GGUF drops the 1 in front */
    while ((side + 1) * (side + 1) <= (pos[2] ? pos[1] : pos[0]) && side < 4096)
        side++;
    if (patch < 1 || rows % dim || side < 1)
        return err_set(e, ERR_UNSUPPORTED, "%s: its patches, heads or positions are not known",
                       p->what);
    buf_fmt(b,
            "{\"_class_name\":\"SD3Transformer2DModel\",\"sample_size\":128,\"patch_size\":%lld,"
            "\"in_channels\":%lld,\"out_channels\":%lld,\"num_layers\":%d,"
            "\"attention_head_dim\":%lld,\"num_attention_heads\":%lld,\"joint_attention_dim\":%lld,"
            "\"caption_projection_dim\":%lld,\"pooled_projection_dim\":%lld,"
            "\"pos_embed_max_size\":%lld,\"qk_norm\":%s,\"dual_attention_layers\":[",
            (long long)patch, (long long)dim_of(&m, 1, "pos_embed.proj.weight"),
            (long long)(dim_of(&m, 0, "proj_out.weight") / (patch * patch)), n, (long long)dim,
            (long long)(rows / dim), (long long)dim_of(&m, 1, "context_embedder.weight"),
            (long long)dim_of(&m, 0, "context_embedder.weight"),
            (long long)dim_of(&m, 1, "time_text_embed.text_embedder.linear_1.weight"),
            (long long)side, norm ? "\"rms_norm\"" : "null");
    for (int i = 0, k = 0; i < n; i++)
        if (names_has(&m, NULL, "transformer_blocks.%d.attn2.to_q.weight", i))
            buf_fmt(b, "%s%d", k++ ? "," : "", i);
    buf_str(b, "]}");
    return 0;
}

/* Rotary axes as FLUX.1's. Patches of 2 x 2 latents are one row of the first layer's input. */
int part_config_qwen(const struct part *p, struct buf *b, struct err *e)
{
    struct source_map m = part_map(p);
    int64_t n_head, dim;
    int rc = heads(&m, "transformer_blocks.0.attn.to_q.weight",
                   "transformer_blocks.0.attn.norm_q.weight", &n_head, &dim, e);
    if (rc)
        return rc;
    buf_fmt(b,
            "{\"_class_name\":\"QwenImageTransformer2DModel\",\"patch_size\":2,"
            "\"in_channels\":%lld,\"out_channels\":%lld,\"num_layers\":%d,"
            "\"attention_head_dim\":%lld,\"num_attention_heads\":%lld,\"joint_attention_dim\":%lld,"
            "\"guidance_embeds\":false,\"axes_dims_rope\":[%lld,%lld,%lld]}",
            (long long)dim_of(&m, 1, "img_in.weight"),
            (long long)dim_of(&m, 0, "proj_out.weight") / 4,
            names_count(&m, LAYERS_MAX, "transformer_blocks.#.img_mod.1.weight"), (long long)dim,
            (long long)n_head, (long long)dim_of(&m, 1, "txt_in.weight"), (long long)dim / 8,
            (long long)(dim - dim / 8) / 2, (long long)(dim - dim / 8) / 2);
    return 0;
}

int part_config_zimage(const struct part *p, struct buf *b, struct err *e)
{
    struct source_map m = part_map(p);
    int64_t n_head, dim;
    int rc = heads(&m, "layers.0.attention.to_q.weight", "layers.0.attention.norm_q.weight",
                   &n_head, &dim, e);
    if (rc)
        return rc;
    /* a quarter of a head for the first axis, the rest halved: 32, 48, 48 of 128 */
    buf_fmt(b,
            "{\"_class_name\":\"ZImageTransformer2DModel\",\"all_patch_size\":[2],"
            "\"all_f_patch_size\":[1],\"in_channels\":%lld,\"dim\":%lld,\"n_layers\":%d,"
            "\"n_refiner_layers\":%d,\"n_heads\":%lld,\"n_kv_heads\":%lld,\"norm_eps\":1e-05,"
            "\"qk_norm\":true,\"cap_feat_dim\":%lld,\"rope_theta\":256.0,\"t_scale\":1000.0,"
            "\"axes_dims\":[%lld,%lld,%lld],\"axes_lens\":[1536,512,512]}",
            (long long)dim_of(&m, 1, "all_x_embedder.2-1.weight") / 4, (long long)(n_head * dim),
            names_count(&m, LAYERS_MAX, "layers.#.attention_norm1.weight"),
            names_count(&m, LAYERS_MAX, "noise_refiner.#.attention_norm1.weight"),
            (long long)n_head, (long long)n_head, (long long)dim_of(&m, 1, "cap_embedder.1.weight"),
            (long long)dim / 4, (long long)(dim - dim / 4) / 2, (long long)(dim - dim / 4) / 2);
    return 0;
}
