/* Qwen-Image's denoiser: blocks of two streams, picture positions centred on zero, text positions behind them. See
 * dit_qwen.h. */
#include "engine/image/dit_qwen.h"
#include "engine/base/mem.h"
#include "engine/image/dit.h"

#include <stdio.h>
#include <stdlib.h>

#define LAYERS_MAX 1024
#define TIME_DIM   256

/* img [img rows, dim] and txt [txt rows, dim] are the residual streams; everything else lives for one block. */
struct dit_qwen {
    struct dit_patch patch;
    struct dit_rope rope;
    int dim, text_dim, n_layer, n_head, head_dim;
    struct nn_linear img_in, txt_in, norm_out, proj_out;
    struct nn_norm txt_norm;
    struct dit_mlp time;
    struct dit_joint *block;
    struct dit_rows rows; /* of the last pass: its layouts point here */
};

static const struct dit_stream_names img_names = {
    .mod = "img_mod.1",
    .q = "attn.to_q",
    .k = "attn.to_k",
    .v = "attn.to_v",
    .norm_q = "attn.norm_q",
    .norm_k = "attn.norm_k",
    .out = "attn.to_out.0",
    .up = "img_mlp.net.0.proj",
    .down = "img_mlp.net.2",
};
static const struct dit_stream_names txt_names = {
    .mod = "txt_mod.1",
    .q = "attn.add_q_proj",
    .k = "attn.add_k_proj",
    .v = "attn.add_v_proj",
    .norm_q = "attn.norm_added_q",
    .norm_k = "attn.norm_added_k",
    .out = "attn.to_add_out",
    .up = "txt_mlp.net.0.proj",
    .down = "txt_mlp.net.2",
};

/* Sizes from the configuration. zero_cond_t is not asked for: it tells reference pictures from the one that is made,
 * and there are none here. */
static int config_read(struct dit_qwen *m, struct config *c, struct err *e)
{
    int channels = (int)config_int(c, "in_channels", 64, 1, 4096);
    m->patch = (struct dit_patch){.p = (int)config_int(c, "patch_size", 2, 1, 16)};
    int out = (int)config_int(c, "out_channels", 16, 1, 4096);
    m->n_layer = (int)config_int(c, "num_layers", 60, 1, LAYERS_MAX);
    m->head_dim = (int)config_int(c, "attention_head_dim", 128, 2, 1024);
    m->n_head = (int)config_int(c, "num_attention_heads", 24, 1, 1024);
    m->text_dim = (int)config_int(c, "joint_attention_dim", 3584, 1, 1 << 20);
    m->dim = m->n_head * m->head_dim;
    m->rope = (struct dit_rope){.n_axis = 3, .dim = {16, 56, 56}, .theta = 10000};
    int n = config_len(c, "axes_dims_rope");
    for (int i = 0; i < n && i < 3; i++)
        m->rope.dim[i] = (int)config_int_at(c, "axes_dims_rope", i, 2, 1024);
    bool guidance = config_bool(c, "guidance_embeds", false);
    bool layers =
        config_bool(c, "use_layer3d_rope", false) || config_bool(c, "use_additional_t_cond", false);
    int rc = config_error(c, e);
    if (rc)
        return rc;
    if (guidance || layers)
        return err_set(e, ERR_UNSUPPORTED, "transformer: %s is of a variant that is not known",
                       guidance ? "guidance_embeds" : "use_layer3d_rope / use_additional_t_cond");
    if ((n && n != 3) || dit_rope_dim(&m->rope) != m->head_dim || m->rope.dim[0] % 2 ||
        m->rope.dim[1] % 2 || m->rope.dim[2] % 2)
        return err_set(e, ERR_INVAL,
                       "transformer: axes_dims_rope must be 3 even numbers whose sum is %d",
                       m->head_dim);
    m->patch.c = channels / (m->patch.p * m->patch.p);
    if (channels != m->patch.c * m->patch.p * m->patch.p || out != m->patch.c)
        return err_set(e, ERR_INVAL,
                       "transformer: in_channels %d, out_channels %d and patch_size %d don't fit",
                       channels, out, m->patch.p);
    return 0;
}

/* Every layer, by diffusers' names; the first error stops the rest (nn_load is sticky). */
static void weights_load(struct dit_qwen *m, struct nn_load *l)
{
    int64_t d = m->dim, wide = (int64_t)m->patch.c * m->patch.p * m->patch.p;
    nn_load_linear(l, &m->img_in, wide, d, 0, "img_in");
    nn_load_norm(l, &m->txt_norm, m->text_dim, 0, "txt_norm");
    nn_load_linear(l, &m->txt_in, m->text_dim, d, 0, "txt_in");
    dit_mlp_load(l, &m->time, (int64_t[3]){TIME_DIM, d, d},
                 "time_text_embed.timestep_embedder.linear_1",
                 "time_text_embed.timestep_embedder.linear_2");
    for (int i = 0; i < m->n_layer && !l->rc; i++) {
        char prefix[48];
        struct dit_joint *b = &m->block[i];
        snprintf(prefix, sizeof prefix, "transformer_blocks.%d.", i);
        b->n_head = m->n_head;
        b->head_dim = m->head_dim;
        dit_stream_load(l, &b->img, d, m->head_dim, prefix, &img_names);
        dit_stream_load(l, &b->txt, d, m->head_dim, prefix, &txt_names);
    }
    nn_load_linear(l, &m->norm_out, d, 2 * d, 0, "norm_out.linear");
    nn_load_linear(l, &m->proj_out, d, wide, 0, "proj_out");
}

int dit_qwen_open(struct dit_qwen **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct dit_qwen *m = mem_calloc(1, sizeof *m);
    struct nn_load l = {.w = w, .c = c, .e = e};
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the transformer");
    l.rc = config_read(m, c->cfg, e);
    if (!l.rc) {
        m->block = mem_calloc((size_t)m->n_layer, sizeof *m->block);
        if (!m->block)
            l.rc = err_set(e, ERR_NOMEM, "no memory for %d blocks", m->n_layer);
    }
    if (!l.rc)
        weights_load(m, &l);
    if (l.rc)
        dit_qwen_close(m);
    else
        *out = m;
    return l.rc;
}

void dit_qwen_close(struct dit_qwen *m)
{
    if (!m)
        return;
    dit_rows_close(&m->rows);
    free(m->block);
    free(m);
}

int dit_qwen_channels(const struct dit_qwen *m)
{
    return m->patch.c;
}

int dit_qwen_patch(const struct dit_qwen *m)
{
    return m->patch.p;
}

int dit_qwen_text_dim(const struct dit_qwen *m)
{
    return m->text_dim;
}

/* Rotary tables of both streams. A picture's rows count from -ceil(n / 2) on both axes, so that its middle stays at
 * zero whatever the size; its text goes on after the larger half, the same number on all axes. */
static void tables(const struct dit_qwen *m, struct nn *n, const struct img_row *row, int n_row,
                   struct dit_pass *p)
{
    int64_t n_txt = dit_rows_sum(&m->rows, DIT_TXT), n_img = dit_rows_sum(&m->rows, DIT_IMG);
    int32_t *txt = NULL, *img = NULL;
    if (!n->dry) {
        txt = dit_host(n, n_txt, 3, sizeof *txt);
        img = dit_host(n, n_img, 3, sizeof *img);
    }
    int32_t *t = txt, *g = img;
    for (int i = 0; i < n_row && txt && img; i++) {
        int h = row[i].h / m->patch.p, w = row[i].w / m->patch.p;
        int first = h / 2 > w / 2 ? h / 2 : w / 2;
        for (int k = 0; k < row[i].cond->n_tok; k++, t += 3)
            t[0] = t[1] = t[2] = first + k;
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++, g += 3) {
                g[1] = y - (h - h / 2);
                g[2] = x - (w - w / 2);
            }
    }
    dit_rope_tables(n, &m->rope, txt, n_txt, &p->cos_txt, &p->sin_txt);
    dit_rope_tables(n, &m->rope, img, n_img, &p->cos_img, &p->sin_img);
    free(txt);
    free(img);
}

/* The timestep's embedding after SiLU: what every modulation reads. */
static struct tensor time_embed(const struct dit_qwen *m, struct nn *n, const struct img_row *row,
                                int n_row)
{
    float *t = dit_host(n, n_row, 1, sizeof *t);
    if (!t)
        return (struct tensor){0};
    for (int i = 0; i < n_row; i++)
        t[i] = row[i].timestep / 1000;
    struct tensor wave = dit_sinusoids(n, t, n_row, TIME_DIM, 1000);
    struct tensor emb = dit_mlp_run(n, &m->time, wave);
    nn_free(n, &wave);
    struct tensor act = nn_act(n, emb, IMAGE_ACT_SILU, n->mul);
    nn_free(n, &emb);
    free(t);
    return act;
}

void dit_qwen_run(struct dit_qwen *m, struct nn *n, const struct img_row *row, int n_row)
{
    struct dit_pass p = {.rows = &m->rows};
    if (dit_rows_begin(&m->rows, n_row)) {
        nn_done(n, "rows", ERR_NOMEM);
        return;
    }
    for (int i = 0; i < n_row; i++)
        dit_rows_add(&m->rows, row[i].cond->n_tok, dit_patch_count(&m->patch, &row[i]));
    dit_rows_layouts(&m->rows, n);
    p.temb = time_embed(m, n, row, n_row);
    tables(m, n, row, n_row, &p);

    /* x is whatever goes into the next product, one at a time */
    struct tensor x = dit_put_latents(n, &m->patch, row, n_row, m->rows.start[DIT_IMG]);
    struct tensor img = nn_linear(n, &m->img_in, x);
    nn_free(n, &x);
    struct tensor states = dit_put_states(n, row, n_row, m->text_dim);
    x = nn_norm_mul(n, states, &m->txt_norm, 1e-6f, true);
    nn_free(n, &states);
    struct tensor txt = nn_linear(n, &m->txt_in, x);
    nn_free(n, &x);

    for (int i = 0; i < m->n_layer && !n->rc; i++)
        dit_joint_run(n, &m->block[i], &p, txt, img);

    /* only the image's rows are of interest from here on; scale comes before shift in this layer */
    struct tensor mod = nn_linear(n, &m->norm_out, p.temb);
    x = dit_modulate(n, img, dit_slice(mod, 0, m->dim), dit_slice(mod, 1, m->dim), DIT_IMG);
    struct tensor out = nn_linear(n, &m->proj_out, x);
    dit_get_latents(n, &m->patch, out, 1, row, n_row, m->rows.start[DIT_IMG]);
    struct tensor *const all[] = {&p.temb, &p.cos_txt, &p.sin_txt, &p.cos_img, &p.sin_img,
                                  &img,    &txt,       &mod,       &x,         &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        nn_free(n, all[i]);
}
