/* The causal 3-D autoencoders of Wan 2.1 and Qwen-Image, for a single frame. Before the first frame lies nothing but
 * zeros, so of every causal convolution only the last moment of its kernel sees the frame, and the temporal parts of
 * the resampling blocks do nothing: what is left is the network of vae_impl.h with RMS norms. */
#include "engine/image/vae_impl.h"

#include <stdio.h>

#define CHANNELS_MAX 8192

struct wan_config {
    int enc[VAE_LEVELS], dec[VAE_LEVELS]; /* channels of each level, fine to coarse */
    int layers;
};

static void wan_norm(struct nn_load *l, struct nn_norm *n, int c, const char *prefix)
{
    *n = (struct nn_norm){0};
    nn_load_vec(l, &n->w, c, 0, "%s.gamma", prefix);
}

/* Its convolutions are 3-D, the shortcut's too (1 x 1 x 1). */
static void wan_res(struct nn_load *l, struct vae_res *r, const char *prefix, int c_in, int c_out)
{
    char name[128];
    *r = (struct vae_res){.c_in = c_in, .c_out = c_out};
    snprintf(name, sizeof name, "%s.norm1", prefix);
    wan_norm(l, &r->norm1, c_in, name);
    nn_load_conv_3d(l, &r->conv1, c_in, c_out, -1, "%s.conv1", prefix);
    snprintf(name, sizeof name, "%s.norm2", prefix);
    wan_norm(l, &r->norm2, c_out, name);
    nn_load_conv_3d(l, &r->conv2, c_out, c_out, -1, "%s.conv2", prefix);
    if (c_in != c_out)
        nn_load_conv_3d(l, &r->shortcut, c_in, c_out, -1, "%s.conv_shortcut", prefix);
}

/* A 1x1 convolution is a product by row. */
static void wan_linear(struct nn_load *l, struct nn_linear *out, int c_in, int c_out,
                       const char *name)
{
    struct nn_conv v = {0};
    nn_load_conv(l, &v, c_in, c_out, 1, "%s", name);
    *out = (struct nn_linear){.w = v.w, .bias = v.bias, .n_in = c_in, .n_out = c_out};
}

static void wan_mid(struct nn_load *l, struct vae_half *h, const char *half, int c)
{
    char name[96];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s.mid_block.resnets.%d", half, i);
        wan_res(l, &h->mid[i], name, c, c);
    }
    h->attn.c = c;
    snprintf(name, sizeof name, "%s.mid_block.attentions.0.norm", half);
    wan_norm(l, &h->attn.norm, c, name);
    snprintf(name, sizeof name, "%s.mid_block.attentions.0.to_qkv", half);
    wan_linear(l, &h->attn.qkv, c, 3 * c, name);
    snprintf(name, sizeof name, "%s.mid_block.attentions.0.proj", half);
    wan_linear(l, &h->attn.out, c, c, name);
}

/* The encoder's blocks are one flat list: the residual blocks of a level, then its downsampling. */
static void wan_encoder(struct nn_load *l, struct vae *m, const struct wan_config *k)
{
    struct vae_half *h = &m->enc;
    int at = 0, c = k->enc[0], last = k->enc[m->n_level - 1];
    char name[96];
    nn_load_conv_3d(l, &h->in, 3, c, -1, "encoder.conv_in");
    for (int i = 0; i < m->n_level; i++) {
        struct vae_level *y = &h->level[i];
        for (y->n_res = 0; y->n_res < k->layers; y->n_res++, c = k->enc[i]) {
            snprintf(name, sizeof name, "encoder.down_blocks.%d", at++);
            wan_res(l, &y->res[y->n_res], name, c, k->enc[i]);
        }
        y->resample = i + 1 < m->n_level;
        if (y->resample)
            nn_load_conv(l, &y->conv, c, c, 3, "encoder.down_blocks.%d.resample.1", at++);
    }
    wan_mid(l, h, "encoder", last);
    wan_norm(l, &h->norm, last, "encoder.norm_out");
    nn_load_conv_3d(l, &h->out, last, 2 * m->c, -1, "encoder.conv_out");
    h->quant = true;
    nn_load_conv_3d(l, &h->quant_conv, 2 * m->c, 2 * m->c, -1, "quant_conv");
}

/* Upsampling halves the channels. */
static void wan_decoder(struct nn_load *l, struct vae *m, const struct wan_config *k)
{
    struct vae_half *h = &m->dec;
    int last = m->n_level - 1, c = k->dec[last];
    char name[96];
    h->quant = true;
    nn_load_conv_3d(l, &h->quant_conv, m->c, m->c, -1, "post_quant_conv");
    nn_load_conv_3d(l, &h->in, m->c, c, -1, "decoder.conv_in");
    wan_mid(l, h, "decoder", c);
    for (int i = 0; i < m->n_level; i++) {
        struct vae_level *y = &h->level[i];
        int to = k->dec[last - i];
        for (y->n_res = 0; y->n_res < k->layers + 1; y->n_res++, c = to) {
            snprintf(name, sizeof name, "decoder.up_blocks.%d.resnets.%d", i, y->n_res);
            wan_res(l, &y->res[y->n_res], name, c, to);
        }
        y->resample = i < last;
        if (y->resample) {
            c = to / 2;
            nn_load_conv(l, &y->conv, to, c, 3, "decoder.up_blocks.%d.upsamplers.0.resample.1", i);
        }
    }
    wan_norm(l, &h->norm, k->dec[0], "decoder.norm_out");
    nn_load_conv_3d(l, &h->out, k->dec[0], 3, -1, "decoder.conv_out");
}

static int wan_refuse(struct config *cfg, struct err *e)
{
    if (config_bool(cfg, "is_residual", false))
        return err_set(e, ERR_UNSUPPORTED, "vae: is_residual (Wan 2.2) is not known");
    if (config_int(cfg, "patch_size", 1, 1, 64) != 1)
        return err_set(e, ERR_UNSUPPORTED, "vae: patch_size must be 1");
    if (config_len(cfg, "attn_scales"))
        return err_set(e, ERR_UNSUPPORTED, "vae: attn_scales must be empty");
    if (config_int(cfg, "input_channels", 3, 1, 64) != 3 ||
        config_int(cfg, "in_channels", 3, 1, 64) != 3 ||
        config_int(cfg, "out_channels", 3, 1, 64) != 3)
        return err_set(e, ERR_UNSUPPORTED, "vae: pictures must have 3 channels");
    return 0;
}

/* Defaults are diffusers' but for the latents' mean and deviation, which must be there: without them a picture would
 * only look slightly wrong. */
static int wan_configure(struct vae *m, struct wan_config *k, struct config *cfg, struct err *e)
{
    config_need(cfg, "dim_mult");
    config_need(cfg, "latents_mean");
    config_need(cfg, "latents_std");
    int rc = config_error(cfg, e);
    if (rc)
        return rc;
    int n = config_len(cfg, "dim_mult"), base = (int)config_int(cfg, "base_dim", 96, 1, 1024);
    int dec = (int)config_int(cfg, "decoder_base_dim", base, 1, 1024);
    if (n < 1 || n > VAE_LEVELS)
        return err_set(e, ERR_UNSUPPORTED, "vae: dim_mult has %d levels, expected 1 to %d", n,
                       VAE_LEVELS);
    m->n_level = n;
    for (int i = 0; i < n; i++) {
        int mult = (int)config_int_at(cfg, "dim_mult", i, 1, 64);
        k->enc[i] = base * mult;
        k->dec[i] = dec * mult;
        if (i && k->dec[i] % 2)
            return err_set(e, ERR_INVAL, "vae: dim_mult[%d] gives an odd number of channels", i);
    }
    k->layers = (int)config_int(cfg, "num_res_blocks", 2, 1, VAE_RES - 1);
    m->c = (int)config_int(cfg, "z_dim", 16, 1, 1024);
    m->scaling = 1;
    if ((rc = config_error(cfg, e)) || (rc = wan_refuse(cfg, e)) || (rc = vae__scale_new(m, e)))
        return rc;
    vae__mean_std(m, cfg);
    return config_error(cfg, e);
}

int vae__wan_load(struct vae *m, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct wan_config k = {0};
    int rc = wan_configure(m, &k, c->cfg, e);
    if (rc)
        return rc;
    struct nn_load l = {.w = w, .c = c, .e = e};
    m->encoder = nn_load_has(&l, NULL, "encoder.conv_in.weight");
    if (m->encoder)
        wan_encoder(&l, m, &k);
    wan_decoder(&l, m, &k);
    return l.rc;
}
