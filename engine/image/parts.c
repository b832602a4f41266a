/* See parts_impl.h. A part is known by one tensor's name, whatever stands before it: "model.diffusion_model.", "vae.",
 * "text_encoders.clip_l.transformer.", nothing. */
#include <stdio.h>
#include <string.h>

#include "engine/image/parts_impl.h"
#include "engine/load/map.h"

#define TEXT_MODEL "text_model."

/* `with` tells apart what shares a name: a UNet from its ControlNet (which has no way up), CLIP's text side from its
 * vision side, T5 and Qwen in GGUF. `without` does the same for models that were made from others. */

static const struct {
    enum part_kind kind;
    const char *what;
    const char *tail;           /* end of a name that every such part has */
    const char *with, *without; /* names beside it that must, must not be there; NULL: none */
} markers[] = {
    {PART_UNET, "UNet", "input_blocks.0.0.weight", "out.2.weight", NULL},
    {PART_UNET_D, "UNet", "time_embedding.linear_1.weight", "conv_norm_out.weight",
     "controlnet_cond_embedding.conv_in.weight"},
    {PART_FLUX, "FLUX.1 transformer", "double_blocks.0.img_attn.qkv.weight",
     "single_blocks.0.linear1.weight", "distilled_guidance_layer.in_proj.weight"},
    {PART_FLUX_D, "FLUX.1 transformer", "single_transformer_blocks.0.proj_mlp.weight",
     "time_text_embed.text_embedder.linear_1.weight", NULL},
    {PART_SD3, "Stable Diffusion 3 transformer", "joint_blocks.0.x_block.attn.qkv.weight",
     "context_embedder.weight", NULL},
    {PART_SD3_D, "Stable Diffusion 3 transformer", "pos_embed.pos_embed", "context_embedder.weight",
     NULL},
    {PART_QWEN, "Qwen-Image transformer", "transformer_blocks.0.img_mod.1.weight", "img_in.weight",
     NULL},
    {PART_ZIMAGE, "Z-Image transformer", "layers.0.attention.qkv.weight",
     "layers.0.adaLN_modulation.0.weight", NULL},
    {PART_ZIMAGE_D, "Z-Image transformer", "layers.0.attention.to_q.weight",
     "layers.0.adaLN_modulation.0.weight", NULL},
    {PART_OTHER, "a FLUX.2 transformer", "double_stream_modulation_img.lin.weight", NULL, NULL},
    {PART_OTHER, "a Chroma transformer", "distilled_guidance_layer.in_proj.weight", NULL, NULL},
    {PART_OTHER, "a Wan transformer", "blocks.0.cross_attn.norm_k.weight", "head.modulation", NULL},
    {PART_OTHER, "a HunyuanVideo transformer",
     "txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1.weight", NULL, NULL},
    {PART_OTHER, "an LTX or PixArt transformer", "adaln_single.linear.weight", NULL, NULL},
    {PART_OTHER, "a Lumina 2 transformer", "layers.0.adaLN_modulation.1.weight",
     "cap_embedder.0.weight", NULL},
    {PART_VAE, "autoencoder (AutoencoderKL)", "decoder.mid.block_1.conv1.weight",
     "decoder.conv_in.weight", NULL},
    {PART_VAE_D, "autoencoder (AutoencoderKL)", "decoder.mid_block.resnets.0.conv1.weight",
     "decoder.conv_norm_out.weight", NULL},
    {PART_WAN, "Qwen-Image autoencoder", "decoder.middle.0.residual.2.weight",
     "decoder.conv1.weight", NULL},
    {PART_WAN_D, "Qwen-Image autoencoder", "decoder.mid_block.resnets.0.conv1.weight",
     "decoder.norm_out.gamma", NULL},
    {PART_CLIP, "CLIP text encoder", "embeddings.token_embedding.weight",
     "encoder.layers.0.self_attn.q_proj.weight", NULL},
    {PART_OPENCLIP, "OpenCLIP text encoder", "transformer.resblocks.0.attn.in_proj_weight",
     "token_embedding.weight", NULL},
    {PART_T5, "T5 encoder", "encoder.block.0.layer.0.SelfAttention.q.weight",
     "encoder.final_layer_norm.weight", NULL},
    {PART_T5_GGUF, "T5 encoder", "enc.blk.0.attn_q.weight", "token_embd.weight", NULL},
    {PART_LM, "Qwen text encoder", "layers.0.self_attn.q_proj.weight", "embed_tokens.weight", NULL},
    {PART_LM_GGUF, "Qwen text encoder", "blk.0.attn_q.weight", "token_embd.weight", NULL},
};
#define N_MARKERS (sizeof markers / sizeof *markers)

struct source_map part_map(const struct part *p)
{
    return (struct source_map){.find = p->find, .src = p->src, .prefix = p->prefix, .arg = &p->arg};
}

static bool beside(const struct part *p, const char *name)
{
    struct source_map m = {.src = p->src, .prefix = p->prefix};
    return names_has(&m, NULL, "%s", name);
}

/* Whether `name` is marker k's, and if so the part that it shows. */
static bool is_part(size_t k, struct source *src, const char *name, struct part *out)
{
    size_t n = strlen(name), tail = strlen(markers[k].tail);
    if (n < tail || strcmp(name + n - tail, markers[k].tail) != 0 || n - tail >= PART_PREFIX ||
        (n > tail && name[n - tail - 1] != '.'))
        return false;
    *out = (struct part){.kind = markers[k].kind, .what = markers[k].what, .src = src};
    memcpy(out->prefix, name, n - tail);
    return (!markers[k].with || beside(out, markers[k].with)) &&
           (!markers[k].without || !beside(out, markers[k].without));
}

/* The part's other names, and what they depend on. */
static void set_names(struct part *p)
{
    struct source_map m = {.src = p->src, .prefix = p->prefix};
    int64_t l[SOURCE_DIMS] = {0}, d[SOURCE_DIMS] = {0};
    size_t n = strlen(p->prefix), t = strlen(TEXT_MODEL);
    static names_find_fn *const find[PART_N_KIND] = {
        [PART_UNET] = names_unet,         [PART_VAE] = names_vae,
        [PART_WAN] = names_vae_wan,       [PART_CLIP] = names_clip,
        [PART_OPENCLIP] = names_openclip, [PART_FLUX] = names_flux,
        [PART_SD3] = names_sd3,           [PART_ZIMAGE] = names_zimage,
        [PART_T5_GGUF] = names_t5_gguf,   [PART_LM_GGUF] = names_lm_gguf,
    };
    p->find = find[p->kind];
    if (p->kind == PART_UNET) /* res blocks before the first downsampler */
        while (p->arg < 8 &&
               names_has(&m, NULL, "input_blocks.%d.0.in_layers.2.weight", p->arg + 1))
            p->arg++;
    if (p->kind == PART_VAE)
        p->arg = names_count(&m, 8, "decoder.up.#.block.0.conv1.weight");
    if (p->kind == PART_WAN) /* going up there is one more */
        p->arg = names_count(&m, 8, "decoder.upsamples.#.residual.2.weight") - 1;
    if (p->kind == PART_SD3)
        p->arg = names_count(&m, 256, "joint_blocks.#.x_block.attn.qkv.weight");
    /* pieces of single_blocks.N.linear1 that are as large as q: 7 with an MLP four times as wide */
    if (p->kind == PART_FLUX && names_has(&m, l, "single_blocks.0.linear1.weight") &&
        names_has(&m, d, "img_in.weight") && d[0] > 0)
        p->arg = (int)(l[0] / d[0]);
    if (p->kind == PART_CLIP && n >= t && strcmp(p->prefix + n - t, TEXT_MODEL) == 0) {
        p->prefix[n - t] = 0; /* a projection lies beside it */
        p->arg = 1;
    }
}

/* A few thousand names, two dozen ends: no index is worth it. */
int parts_find(struct parts *p, struct source *src, bool extra, struct err *e)
{
    size_t n = source_n(src);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < N_MARKERS; k++) {
            struct part new;
            if (!is_part(k, src, source_at(src, i)->name, &new))
                continue;
            if (p->n == PARTS_MAX) {
                err_set(e, ERR_LIMIT, "over %d models in these files", PARTS_MAX);
                return file_map_prefix(e, source_path(src));
            }
            new.extra = extra;
            set_names(&new);
            p->at[p->n++] = new;
        }
    return 0;
}

const char *part_marker(enum part_kind kind)
{
    size_t k = 0;
    while (k + 1 < N_MARKERS && markers[k].kind != kind)
        k++;
    return markers[k].tail;
}

int64_t part_width(const struct part *p)
{
    static const char *const table[PART_N_KIND] = {
        [PART_CLIP] = "embeddings.token_embedding.weight",
        [PART_OPENCLIP] = "embeddings.token_embedding.weight",
        [PART_T5] = "encoder.block.0.layer.0.SelfAttention.q.weight",
        [PART_T5_GGUF] = "encoder.block.0.layer.0.SelfAttention.q.weight",
        [PART_LM] = "embed_tokens.weight",
        [PART_LM_GGUF] = "embed_tokens.weight",
    };
    int64_t dim[SOURCE_DIMS];
    struct source_map m = part_map(p);
    return table[p->kind] && names_has(&m, dim, "%s", table[p->kind]) ? dim[1] : 0;
}
