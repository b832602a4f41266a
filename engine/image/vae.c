/* Autoencoders: opening by class, and AutoencoderKL's configuration and tensors under diffusers' names. */
#include "engine/image/vae_impl.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHANNELS_MAX 8192

/* ---- AutoencoderKL ---- */

static void kl_res(struct nn_load *l, struct vae_res *r, const char *prefix, int c_in, int c_out)
{
    *r = (struct vae_res){.c_in = c_in, .c_out = c_out};
    nn_load_norm(l, &r->norm1, c_in, 0, "%s.norm1", prefix);
    nn_load_conv(l, &r->conv1, c_in, c_out, 3, "%s.conv1", prefix);
    nn_load_norm(l, &r->norm2, c_out, 0, "%s.norm2", prefix);
    nn_load_conv(l, &r->conv2, c_out, c_out, 3, "%s.conv2", prefix);
    if (c_in != c_out)
        nn_load_conv(l, &r->shortcut, c_in, c_out, 1, "%s.conv_shortcut", prefix);
}

/* Files of before 2023 name the products query, key, value, proj_attn. */
static void kl_attn(struct nn_load *l, struct vae_attn *a, const char *half, int c)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.mid_block.attentions.0.", half);
    bool old = nn_load_has(l, NULL, "%squery.weight", prefix);
    struct nn_stack s = {
        .prefix = prefix,
        .name = {old ? "query" : "to_q", old ? "key" : "to_k", old ? "value" : "to_v"},
        .n_name = 3,
        .n_in = c,
        .n_out = {c, c, c}};
    a->c = c;
    nn_load_norm(l, &a->norm, c, 0, "%sgroup_norm", prefix);
    nn_load_stack(l, &a->qkv, &s);
    nn_load_linear(l, &a->out, c, c, 0, "%s%s", prefix, old ? "proj_attn" : "to_out.0");
}

struct kl_config {
    int n_level, block[VAE_LEVELS]; /* channels of each level, fine to coarse */
    int layers;
    bool attn, quant, post_quant;
};

static void kl_mid(struct nn_load *l, struct vae_half *h, const char *half,
                   const struct kl_config *k)
{
    char name[64];
    int c = k->block[k->n_level - 1];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s.mid_block.resnets.%d", half, i);
        kl_res(l, &h->mid[i], name, c, c);
    }
    if (k->attn)
        kl_attn(l, &h->attn, half, c);
}

/* n_res blocks from c[0] to c[1] channels; the first one makes the change. */
static void kl_level(struct nn_load *l, struct vae_level *y, const char *prefix, int n_res,
                     const int *c)
{
    char name[96];
    y->n_res = n_res;
    for (int i = 0; i < n_res; i++) {
        snprintf(name, sizeof name, "%s.resnets.%d", prefix, i);
        kl_res(l, &y->res[i], name, i ? c[1] : c[0], c[1]);
    }
}

/* Level i halves the sides behind its blocks; the coarsest one does not. */
static void kl_encoder(struct nn_load *l, struct vae *m, const struct kl_config *k)
{
    struct vae_half *h = &m->enc;
    nn_load_conv(l, &h->in, 3, k->block[0], 3, "encoder.conv_in");
    for (int i = 0; i < k->n_level; i++) {
        char name[64];
        snprintf(name, sizeof name, "encoder.down_blocks.%d", i);
        kl_level(l, &h->level[i], name, k->layers,
                 (int[]){i ? k->block[i - 1] : k->block[0], k->block[i]});
        h->level[i].resample = i + 1 < k->n_level;
        if (h->level[i].resample)
            nn_load_conv(l, &h->level[i].conv, k->block[i], k->block[i], 3,
                         "%s.downsamplers.0.conv", name);
    }
    kl_mid(l, h, "encoder", k);
    int c = k->block[k->n_level - 1];
    nn_load_norm(l, &h->norm, c, 0, "encoder.conv_norm_out");
    nn_load_conv(l, &h->out, c, 2 * m->c, 3, "encoder.conv_out");
    h->quant = k->quant;
    if (h->quant)
        nn_load_conv(l, &h->quant_conv, 2 * m->c, 2 * m->c, 1, "quant_conv");
}

/* up_blocks.0 is the coarsest level; each has one block more than the encoder's. */
static void kl_decoder(struct nn_load *l, struct vae *m, const struct kl_config *k)
{
    struct vae_half *h = &m->dec;
    int last = k->n_level - 1;
    h->quant = k->post_quant;
    if (h->quant)
        nn_load_conv(l, &h->quant_conv, m->c, m->c, 1, "post_quant_conv");
    nn_load_conv(l, &h->in, m->c, k->block[last], 3, "decoder.conv_in");
    kl_mid(l, h, "decoder", k);
    for (int i = 0; i < k->n_level; i++) {
        char name[64];
        int c = k->block[last - i];
        snprintf(name, sizeof name, "decoder.up_blocks.%d", i);
        kl_level(l, &h->level[i], name, k->layers + 1, (int[]){i ? k->block[last - i + 1] : c, c});
        h->level[i].resample = i < last;
        if (h->level[i].resample)
            nn_load_conv(l, &h->level[i].conv, c, c, 3, "%s.upsamplers.0.conv", name);
    }
    nn_load_norm(l, &h->norm, k->block[0], 0, "decoder.conv_norm_out");
    nn_load_conv(l, &h->out, k->block[0], 3, 3, "decoder.conv_out");
}

/* What this network cannot be. */
static int kl_refuse(struct config *cfg, struct err *e)
{
    static const char *const key[] = {"down_block_types", "up_block_types"};
    static const char *const known[] = {"DownEncoderBlock2D", "UpDecoderBlock2D"};
    for (int i = 0; i < 2; i++)
        for (int k = 0, n = config_len(cfg, key[i]); k < n; k++) {
            const char *s = config_str_at(cfg, key[i], k);
            if (s && strcmp(s, known[i]))
                return err_set(e, ERR_UNSUPPORTED, "vae: %s: block \"%.60s\" is not known", key[i],
                               s);
        }
    const char *act = config_str(cfg, "act_fn", "silu");
    if (act && strcmp(act, "silu") && strcmp(act, "swish"))
        return err_set(e, ERR_UNSUPPORTED, "vae: act_fn \"%.60s\" is not known", act);
    if (config_int(cfg, "in_channels", 3, 1, CHANNELS_MAX) != 3 ||
        config_int(cfg, "out_channels", 3, 1, CHANNELS_MAX) != 3)
        return err_set(e, ERR_UNSUPPORTED, "vae: in_channels and out_channels must be 3");
    return 0;
}

/* Defaults are AutoencoderKL's own. m->mul and m->add undo scaling_factor and shift_factor, and where a file has them
 * (fine-tuned SDXL autoencoders) the mean and deviation by channel, in diffusers' order. */
static int kl_configure(struct vae *m, struct kl_config *k, struct config *cfg, struct err *e)
{
    config_need(cfg, "block_out_channels");
    int n = config_len(cfg, "block_out_channels");
    if (n > VAE_LEVELS)
        return err_set(e, ERR_UNSUPPORTED, "vae: block_out_channels has %d levels, at most %d", n,
                       VAE_LEVELS);
    k->n_level = m->n_level = n;
    for (int i = 0; i < n; i++)
        k->block[i] = (int)config_int_at(cfg, "block_out_channels", i, 1, CHANNELS_MAX);
    k->layers = (int)config_int(cfg, "layers_per_block", 1, 1, VAE_RES - 1);
    k->attn = config_bool(cfg, "mid_block_add_attention", true);
    k->quant = config_bool(cfg, "use_quant_conv", true);
    k->post_quant = config_bool(cfg, "use_post_quant_conv", true);
    m->groups = (int)config_int(cfg, "norm_num_groups", 32, 1, CHANNELS_MAX);
    m->c = (int)config_int(cfg, "latent_channels", 4, 1, 1024);
    m->scaling = config_num(cfg, "scaling_factor", 0.18215, 1e-6, 1e6);
    double shift = config_num(cfg, "shift_factor", 0, -1e6, 1e6);
    int rc = config_error(cfg, e);
    if (rc || (rc = kl_refuse(cfg, e)))
        return rc;
    if (n == 0)
        return err_set(e, ERR_INVAL, "vae: block_out_channels is empty");
    for (int i = 0; i < n; i++)
        if (k->block[i] % m->groups)
            return err_set(e, ERR_INVAL,
                           "vae: block_out_channels[%d] is %d, no multiple of norm_num_groups %d",
                           i, k->block[i], m->groups);
    if ((rc = vae__scale_new(m, e)))
        return rc;
    vae__mean_std(m, cfg);
    for (int i = 0; i < m->c; i++) {
        m->mul[i] = (float)((double)m->mul[i] / m->scaling);
        m->add[i] = (float)((double)m->add[i] + shift);
    }
    return config_error(cfg, e);
}

int vae__kl_load(struct vae *m, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct kl_config k = {0};
    int rc = kl_configure(m, &k, c->cfg, e);
    if (rc)
        return rc;
    struct nn_load l = {.w = w, .c = c, .e = e};
    /* Files for making pictures only may leave it out. */
    m->encoder = nn_load_has(&l, NULL, "encoder.conv_in.weight");
    if (m->encoder)
        kl_encoder(&l, m, &k);
    kl_decoder(&l, m, &k);
    return l.rc;
}

/* ---- all classes ---- */

int vae__scale_new(struct vae *m, struct err *e)
{
    m->mul = mem_alloc((size_t)m->c * sizeof *m->mul);
    m->add = mem_calloc((size_t)m->c, sizeof *m->add);
    if (!m->mul || !m->add)
        return err_set(e, ERR_NOMEM, "vae: no memory for %d channels", m->c);
    for (int i = 0; i < m->c; i++)
        m->mul[i] = 1;
    return 0;
}

void vae__mean_std(struct vae *m, struct config *cfg)
{
    if (config_has(cfg, "latents_std"))
        for (int i = 0; i < m->c; i++)
            m->mul[i] *= (float)config_num_at(cfg, "latents_std", i);
    if (config_has(cfg, "latents_mean"))
        for (int i = 0; i < m->c; i++)
            m->add[i] = (float)config_num_at(cfg, "latents_mean", i);
}

/* Encoding divides by mul. */
static int scale_check(const struct vae *m, struct err *e)
{
    for (int i = 0; i < m->c; i++)
        if (!(m->mul[i] > 0) || !isfinite(m->mul[i]) || !isfinite(m->add[i]))
            return err_set(e, ERR_INVAL, "vae: latents_mean or latents_std of channel %d is wrong",
                           i);
    return 0;
}

int vae_open(struct vae **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    static const struct {
        const char *cls;
        int (*load)(struct vae *m, struct nn_weights *w, struct comp *c, struct err *e);
    } class[] = {{"AutoencoderKL", vae__kl_load},
                 {"", vae__kl_load},
                 {"AutoencoderKLQwenImage", vae__wan_load},
                 {"AutoencoderKLWan", vae__wan_load}};
    *out = NULL;
    size_t i = 0, n = sizeof class / sizeof *class;
    while (i < n && strcmp(class[i].cls, c->cls))
        i++;
    if (i == n)
        return err_set(e, ERR_UNSUPPORTED,
                       "vae: class \"%.60s\" is not known; known: AutoencoderKL, "
                       "AutoencoderKLQwenImage, AutoencoderKLWan",
                       c->cls);
    struct vae *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "vae: no memory");
    int rc = class[i].load(m, w, c, e);
    if (!rc)
        rc = scale_check(m, e);
    if (rc) {
        vae_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void vae_close(struct vae *m)
{
    if (!m)
        return;
    free(m->mul);
    free(m->add);
    free(m->rows);
    free(m);
}

int vae_factor(const struct vae *m)
{
    return 1 << (m->n_level - 1);
}

int vae_channels(const struct vae *m)
{
    return m->c;
}

double vae_scaling(const struct vae *m)
{
    return m->scaling;
}

bool vae_has_encoder(const struct vae *m)
{
    return m->encoder;
}
