/* Configuration and weights of a UNet. See unet.h. */
#include "engine/image/unet_impl.h"

#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_MAX 64 /* of one transformer */

/* ---- configuration ---- */

/* What the configuration says of the blocks, before any tensor is looked at. Levels are counted from the outside; the
 * way out's lists in the file are from the inside. */
struct shape {
    int n_level, channels[UNET_LEVELS], layers[UNET_LEVELS], heads[UNET_LEVELS];
    bool down_attn[UNET_LEVELS], up_attn[UNET_LEVELS];
    enum { MID_NONE, MID_RESNET, MID_ATTN } mid;
    int in_kernel, out_kernel;
};

/* Variants that are not done here: keys that must be null, false, or the given text. */
static int refused(struct config *c, struct err *e)
{
    static const struct {
        const char *key, *only;
    } texts[] = {
        {"class_embed_type", NULL},
        {"encoder_hid_dim_type", NULL},
        {"time_embedding_act_fn", NULL},
        {"timestep_post_act", NULL},
        {"cross_attention_norm", NULL},
        {"act_fn", "silu"},
        {"resnet_time_scale_shift", "default"},
        {"time_embedding_type", "positional"},
        {"attention_type", "default"},
        {"addition_embed_type", "text_time"},
    };
    static const char *const absent[] = {"num_class_embeds", "num_attention_heads",
                                         "time_embedding_dim"};
    static const char *const off[] = {"dual_cross_attention", "only_cross_attention",
                                      "mid_block_only_cross_attention", "class_embeddings_concat",
                                      "resnet_skip_time_act"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *v = config_str(c, texts[i].key, texts[i].only ? texts[i].only : "");
        bool ok = texts[i].only ? !strcmp(v, texts[i].only) : !*v;
        if (!ok && !(!strcmp(texts[i].key, "act_fn") && !strcmp(v, "swish")))
            return err_set(e, ERR_UNSUPPORTED, "unet: %s \"%.40s\" is not supported", texts[i].key,
                           v);
    }
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (config_has(c, absent[i]))
            return err_set(e, ERR_UNSUPPORTED, "unet: %s is not supported", absent[i]);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (config_bool(c, off[i], false))
            return err_set(e, ERR_UNSUPPORTED, "unet: %s is not supported", off[i]);
    if (config_int(c, "downsample_padding", 1, 0, 1) != 1 ||
        config_num(c, "mid_block_scale_factor", 1, 0, 1e6) != 1 ||
        config_num(c, "resnet_out_scale_factor", 1, 0, 1e6) != 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "unet: a downsample_padding, mid_block_scale_factor or "
                       "resnet_out_scale_factor that is not 1 is not supported");
    return 0;
}

/* A number or a list of one number a level. */
static int per_level(struct config *c, const char *key, int def, int max, const struct shape *s,
                     int *out, struct err *e)
{
    int n = config_has(c, key) ? config_len(c, key) : 0;
    if (n > 1 && n != s->n_level)
        return err_set(e, ERR_INVAL, "unet: %s has %d values, block_out_channels %d", key, n,
                       s->n_level);
    for (int i = 0; i < s->n_level; i++)
        out[i] = n ? (int)config_int_at(c, key, n > 1 ? i : 0, 1, max) : def;
    return 0;
}

/* Whether block i of a list of types has transformers. */
static int block_types(struct config *c, const char *key, const char *plain, const char *attn,
                       const struct shape *s, bool *out, struct err *e)
{
    if (config_len(c, key) != s->n_level)
        return err_set(e, ERR_INVAL, "unet: %s has %d values, block_out_channels %d", key,
                       config_len(c, key), s->n_level);
    for (int i = 0; i < s->n_level; i++) {
        const char *v = config_str_at(c, key, i);
        out[i] = v && !strcmp(v, attn);
        if (!v || (!out[i] && strcmp(v, plain) != 0))
            return err_set(e, ERR_UNSUPPORTED, "unet: %s \"%.40s\" is not supported", key,
                           v ? v : "");
    }
    return 0;
}

/* null is no middle block; an absent key the usual one. */
static int mid_type(struct config *c, struct shape *s, struct err *e)
{
    bool is_null = false;
    if (!config_has(c, "mid_block_type"))
        for (int i = 0; i < config_n_key(c); i++)
            is_null |= !strcmp(config_key_at(c, i), "mid_block_type");
    const char *v = config_str(c, "mid_block_type", is_null ? "" : "UNetMidBlock2DCrossAttn");
    if (!*v)
        s->mid = MID_NONE;
    else if (!strcmp(v, "UNetMidBlock2D"))
        s->mid = MID_RESNET;
    else if (!strcmp(v, "UNetMidBlock2DCrossAttn"))
        s->mid = MID_ATTN;
    else
        return err_set(e, ERR_UNSUPPORTED, "unet: mid_block_type \"%.40s\" is not supported", v);
    return 0;
}

static int shape_read(struct shape *s, struct config *c, struct err *e)
{
    s->n_level = config_len(c, "block_out_channels");
    if (s->n_level < 1 || s->n_level > UNET_LEVELS)
        return err_set(e, ERR_INVAL, "unet: block_out_channels has %d values, not 1..%d",
                       s->n_level, UNET_LEVELS);
    int rc = per_level(c, "block_out_channels", 0, 1 << 16, s, s->channels, e);
    if (!rc)
        rc = per_level(c, "layers_per_block", 2, UNET_LAYERS - 1, s, s->layers, e);
    if (!rc)
        rc = per_level(c, "attention_head_dim", 8, 1 << 12, s, s->heads, e);
    if (!rc)
        rc = block_types(c, "down_block_types", "DownBlock2D", "CrossAttnDownBlock2D", s,
                         s->down_attn, e);
    if (!rc)
        rc = block_types(c, "up_block_types", "UpBlock2D", "CrossAttnUpBlock2D", s, s->up_attn, e);
    if (!rc)
        rc = mid_type(c, s, e);
    s->in_kernel = config_int(c, "conv_in_kernel", 3, 1, 3) == 1 ? 1 : 3;
    s->out_kernel = config_int(c, "conv_out_kernel", 3, 1, 3) == 1 ? 1 : 3;
    return rc;
}

/* `attention_head_dim` is the number of heads: an old misnomer of diffusers that all published files keep. */
static int config_read(struct unet *m, struct shape *s, struct config *c, struct err *e)
{
    int rc = refused(c, e);
    if (!rc)
        rc = shape_read(s, c, e);
    if (rc)
        return rc;
    struct unet_info *f = &m->info;
    f->c_in = (int)config_int(c, "in_channels", 4, 1, 4096);
    f->c_out = (int)config_int(c, "out_channels", 4, 1, 4096);
    f->sample_size =
        config_has(c, "sample_size") ? (int)config_int_at(c, "sample_size", 0, 1, 1 << 16) : 64;
    f->context_dim = config_has(c, "cross_attention_dim")
                         ? (int)config_int_at(c, "cross_attention_dim", 0, 1, 1 << 16)
                         : 1280;
    f->guidance_dim = (int)config_int(c, "time_cond_proj_dim", 0, 2, 1 << 16);
    if (config_has(c, "addition_embed_type")) {
        f->add_id_dim = (int)config_int(c, "addition_time_embed_dim", 256, 2, 1 << 16);
        config_need(c, "projection_class_embeddings_input_dim");
        f->add_in = (int)config_int(c, "projection_class_embeddings_input_dim", 0, 1, 1 << 20);
    }
    m->n_level = s->n_level;
    memcpy(m->channels, s->channels, sizeof m->channels);
    m->groups = (int)config_int(c, "norm_num_groups", 32, 1, 1 << 16);
    m->eps = (float)config_num(c, "norm_eps", 1e-5, 0, 1);
    m->cos_first = config_bool(c, "flip_sin_to_cos", true);
    m->freq_shift = (float)config_num(c, "freq_shift", 0, -1, 1);
    m->centre = config_bool(c, "center_input_sample", false);
    rc = config_error(c, e);
    for (int i = 0; !rc && i < s->n_level; i++)
        if (s->channels[i] % m->groups || s->channels[i] % s->heads[i])
            rc = err_set(e, ERR_INVAL,
                         "unet: block_out_channels %d is no multiple of %d groups and %d heads",
                         s->channels[i], m->groups, s->heads[i]);
    return rc;
}

/* ---- weights ---- */

/* The gated feed-forward's first product: files have the values' rows before the gates', op_act_mul wants the gates
 * first. A map over the component's own gives the halves names, so that they can be stacked the other way round. */
#define GEGLU       ".ff.net.0.proj"
#define GEGLU_GATE  ".gate-half"
#define GEGLU_VALUE ".value-half"

static int halves_find(const struct source_map *m, const char *want,
                       struct source_slice slice[SOURCE_SLICES])
{
    const struct source_map *base = m->arg;
    const char *at = strstr(want, GEGLU), *end = at ? at + strlen(GEGLU) : NULL;
    bool gate = end && !strncmp(end, GEGLU_GATE, strlen(GEGLU_GATE));
    if (!gate && !(end && !strncmp(end, GEGLU_VALUE, strlen(GEGLU_VALUE))))
        return base->find ? base->find(base, want, slice) : 0;
    char name[sizeof slice->name];
    int k = snprintf(name, sizeof name, "%.*s%s", (int)(end - want), want,
                     end + strlen(gate ? GEGLU_GATE : GEGLU_VALUE));
    if (k < 0 || (size_t)k >= sizeof name)
        return -1;
    struct source_slice whole[SOURCE_SLICES] = {{.n_part = 1}};
    int n = base->find ? base->find(base, name, whole) : 0;
    if (n < 0 || n > 1 || (n == 1 && whole[0].n_part != 1))
        return -1;
    *slice = (struct source_slice){.part = gate, .n_part = 2, .n_take = 1};
    memcpy(slice->name, n ? whole[0].name : name, sizeof name);
    return 1;
}

/* The error of `l` is sticky, so that the loaders below run on to the end. */
struct loader {
    struct nn_load l;
    struct unet *m;
    const struct shape *s;
};

static void resnet_load(struct loader *d, struct unet_resnet *r, int c_in, int c_out,
                        const char *name)
{
    struct nn_load *l = &d->l;
    nn_load_norm(l, &r->norm1, c_in, 0, "%s.norm1", name);
    nn_load_conv(l, &r->conv1, c_in, c_out, 3, "%s.conv1", name);
    nn_load_linear(l, &r->time, 4 * d->s->channels[0], c_out, 0, "%s.time_emb_proj", name);
    nn_load_norm(l, &r->norm2, c_out, 0, "%s.norm2", name);
    nn_load_conv(l, &r->conv2, c_out, c_out, 3, "%s.conv2", name);
    if (c_in != c_out) {
        struct nn_conv k;
        nn_load_conv(l, &k, c_in, c_out, 1, "%s.conv_shortcut", name);
        r->shortcut = (struct nn_linear){k.w, k.bias, c_in, c_out};
    }
}

/* One product for both halves: [gate, value] rows. */
static void geglu_load(struct nn_load *l, struct nn_linear *out, int c, const char *name)
{
    int64_t dim[SOURCE_DIMS] = {0};
    char prefix[192];
    if (!nn_load_has(l, dim, "%s" GEGLU ".weight", name) || dim[0] != 8 * c || dim[1] != c) {
        nn_load_linear(l, out, c, 8 * c, 0, "%s" GEGLU, name); /* says what is wrong */
        return;
    }
    snprintf(prefix, sizeof prefix, "%s" GEGLU, name);
    nn_load_stack(l, out,
                  &(struct nn_stack){.prefix = prefix,
                                     .name = {GEGLU_GATE, GEGLU_VALUE},
                                     .n_name = 2,
                                     .n_in = c,
                                     .n_out = {4 * c, 4 * c}});
}

static void layer_load(struct loader *d, struct unet_layer *y, int c, const char *name)
{
    struct nn_load *l = &d->l;
    int ctx = d->m->info.context_dim;
    char prefix[192];
    nn_load_norm(l, &y->norm1, c, 0, "%s.norm1", name);
    nn_load_norm(l, &y->norm2, c, 0, "%s.norm2", name);
    nn_load_norm(l, &y->norm3, c, 0, "%s.norm3", name);
    snprintf(prefix, sizeof prefix, "%s.attn1.", name);
    nn_load_stack(l, &y->qkv,
                  &(struct nn_stack){.prefix = prefix,
                                     .name = {"to_q", "to_k", "to_v"},
                                     .n_name = 3,
                                     .n_in = c,
                                     .n_out = {c, c, c}});
    nn_load_linear(l, &y->out1, c, c, 0, "%s.attn1.to_out.0", name);
    nn_load_linear(l, &y->q, c, c, 0, "%s.attn2.to_q", name);
    snprintf(prefix, sizeof prefix, "%s.attn2.", name);
    nn_load_stack(
        l, &y->kv,
        &(struct nn_stack){
            .prefix = prefix, .name = {"to_k", "to_v"}, .n_name = 2, .n_in = ctx, .n_out = {c, c}});
    nn_load_linear(l, &y->out2, c, c, 0, "%s.attn2.to_out.0", name);
    geglu_load(l, &y->ff_in, c, name);
    nn_load_linear(l, &y->ff_out, 4 * c, c, 0, "%s.ff.net.2", name);
}

/* The files say how many layers a transformer has: configurations spell it in four ways. */
static void transformer_load(struct loader *d, struct unet_transformer *t, int c, int n_head,
                             const char *name)
{
    struct nn_load *l = &d->l;
    char child[160];
    struct nn_conv k;
    nn_load_norm(l, &t->norm, c, 0, "%s.norm", name);
    nn_load_conv(l, &k, c, c, 1, "%s.proj_in", name);
    t->proj_in = (struct nn_linear){k.w, k.bias, c, c};
    nn_load_conv(l, &k, c, c, 1, "%s.proj_out", name);
    t->proj_out = (struct nn_linear){k.w, k.bias, c, c};
    t->n_head = n_head;
    t->head_dim = c / n_head;
    if (l->rc)
        return;
    int n = 0;
    for (int i = 0; i < LAYERS_MAX; i++) /* with a gap, what is missing is reported below */
        if (nn_load_has(l, NULL, "%s.transformer_blocks.%d.norm1.weight", name, i))
            n = i + 1;
    t->layer = mem_calloc((size_t)n + 1, sizeof *t->layer);
    if (!t->layer) {
        l->rc = err_set(l->e, ERR_NOMEM, "no memory for the unet");
        return;
    }
    t->n_layer = n ? n : 1; /* one must be there: its first tensor is reported */
    for (int i = 0; i < t->n_layer; i++) {
        snprintf(child, sizeof child, "%s.transformer_blocks.%d", name, i);
        layer_load(d, &t->layer[i], c, child);
    }
}

/* Block `name` with the channels that each of its resnets reads. */
static void block_load(struct loader *d, struct unet_block *b, const char *name, const int *c_in,
                       int c_out, int n_head)
{
    char child[96];
    for (int i = 0; i < b->n_res; i++) {
        snprintf(child, sizeof child, "%s.resnets.%d", name, i);
        resnet_load(d, &b->res[i], c_in[i], c_out, child);
        snprintf(child, sizeof child, "%s.attentions.%d", name, i);
        /* the middle block has one transformer less than resnets */
        if (n_head && (b != &d->m->mid || i + 1 < b->n_res))
            transformer_load(d, &b->attn[i], c_out, n_head, child);
    }
}

/* Channels of the tensors that the way out takes back, in the order they are made. */
struct skips {
    int c[UNET_SKIPS], n;
};

/* The way in: notes what it leaves behind. */
static void down_load(struct loader *d, struct skips *k)
{
    const struct shape *s = d->s;
    int c = s->channels[0], c_in[UNET_LAYERS];
    k->c[k->n++] = c;
    for (int i = 0; i < s->n_level; i++) {
        struct unet_block *b = &d->m->down[i];
        char name[32];
        snprintf(name, sizeof name, "down_blocks.%d", i);
        b->n_res = s->layers[i];
        for (int j = 0; j < b->n_res; j++) {
            c_in[j] = c;
            k->c[k->n++] = c = s->channels[i];
        }
        block_load(d, b, name, c_in, c, s->down_attn[i] ? s->heads[i] : 0);
        if (i + 1 < s->n_level) {
            nn_load_conv(&d->l, &b->sample, c, c, 3, "%s.downsamplers.0.conv", name);
            k->c[k->n++] = c;
        }
    }
}

/* The way out: a resnet reads what comes from below and the skip beside it. */
static void up_load(struct loader *d, struct skips *k)
{
    const struct shape *s = d->s;
    int c = s->channels[s->n_level - 1], c_in[UNET_LAYERS];
    for (int i = 0; i < s->n_level; i++) {
        struct unet_block *b = &d->m->up[i];
        int level = s->n_level - 1 - i;
        char name[32];
        snprintf(name, sizeof name, "up_blocks.%d", i);
        b->n_res = s->layers[level] + 1;
        for (int j = 0; j < b->n_res; j++) {
            c_in[j] = c + k->c[--k->n];
            c = s->channels[level];
        }
        block_load(d, b, name, c_in, c, s->up_attn[i] ? s->heads[level] : 0);
        if (level)
            nn_load_conv(&d->l, &b->sample, c, c, 3, "%s.upsamplers.0.conv", name);
    }
}

static void ends_load(struct loader *d)
{
    struct unet *m = d->m;
    struct nn_load *l = &d->l;
    int c = m->channels[0], t = 4 * c;
    nn_load_conv(l, &m->conv_in, m->info.c_in, c, d->s->in_kernel, "conv_in");
    nn_load_linear(l, &m->time1, c, t, 0, "time_embedding.linear_1");
    nn_load_linear(l, &m->time2, t, t, 0, "time_embedding.linear_2");
    if (m->info.guidance_dim)
        nn_load_linear(l, &m->guidance, m->info.guidance_dim, c, NN_NO_BIAS,
                       "time_embedding.cond_proj");
    if (m->info.add_in) {
        nn_load_linear(l, &m->add1, m->info.add_in, t, 0, "add_embedding.linear_1");
        nn_load_linear(l, &m->add2, t, t, 0, "add_embedding.linear_2");
    }
    nn_load_norm(l, &m->norm_out, c, 0, "conv_norm_out");
    nn_load_conv(l, &m->conv_out, c, m->info.c_out, d->s->out_kernel, "conv_out");
}

int unet__load(struct unet *m, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct shape s = {0};
    int rc = config_read(m, &s, c->cfg, e);
    if (rc)
        return rc;
    struct comp own = *c; /* only while loading: names and bytes stay those of the component */
    own.map.find = halves_find;
    own.map.arg = &c->map;
    struct loader d = {{w, &own, 0, e}, m, &s};
    struct skips k = {.n = 0};
    ends_load(&d);
    down_load(&d, &k);
    if (s.mid != MID_NONE) {
        int last = s.n_level - 1, c_mid[2] = {s.channels[last], s.channels[last]};
        m->mid.n_res = s.mid == MID_ATTN ? 2 : 1;
        block_load(&d, &m->mid, "mid_block", c_mid, c_mid[0],
                   s.mid == MID_ATTN ? s.heads[last] : 0);
    }
    up_load(&d, &k);
    return d.l.rc;
}
