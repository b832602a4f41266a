/* Qwen-Image's denoiser: blocks of two streams, picture positions centred on zero, text positions behind them. See
 * dit_qwen.h. */
#include "engine/image/dit_qwen.h"
#include "engine/base/mem.h"

#include <stdlib.h>

#define LAYERS_MAX 1024
#define TIME_DIM   256

/* img [img rows, dim] and txt [txt rows, dim] are the residual streams; everything else lives for one block. */
struct dit_qwen {
    struct dit_patch patch;
    struct dit_rope rope;
    int dim, text_dim, n_layer, n_head, head_dim;
    struct nn_linear img_in, txt_in;
    struct dit_last last;
    struct nn_norm txt_norm;
    struct dit_mlp time;
    struct dit_joint *block;
    struct dit_rows rows; /* of the last pass: its layouts point here */
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
    m->rope = (struct dit_rope){.dim = {16, 56, 56}, .theta = 10000};
    bool guidance = config_bool(c, "guidance_embeds", false);
    bool layers =
        config_bool(c, "use_layer3d_rope", false) || config_bool(c, "use_additional_t_cond", false);
    int rc = config_error(c, e);
    if (rc)
        return rc;
    if (guidance || layers)
        return err_set(e, ERR_UNSUPPORTED, "transformer: %s is of a variant that is not known",
                       guidance ? "guidance_embeds" : "use_layer3d_rope / use_additional_t_cond");
    rc = dit_rope_read(&m->rope, c, "axes_dims_rope", m->head_dim, e);
    if (rc)
        return rc;
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
    struct dit_stream_names img = dit_names_img, txt = dit_names_txt;
    img.mod = "img_mod.1";
    img.up = "img_mlp.net.0.proj";
    img.down = "img_mlp.net.2";
    txt.mod = "txt_mod.1";
    txt.up = "txt_mlp.net.0.proj";
    txt.down = "txt_mlp.net.2";
    nn_load_linear(l, &m->img_in, wide, d, 0, "img_in");
    nn_load_norm(l, &m->txt_norm, m->text_dim, 0, "txt_norm");
    nn_load_linear(l, &m->txt_in, m->text_dim, d, 0, "txt_in");
    dit_embedder_load(l, &m->time, "timestep", TIME_DIM, d);
    for (int i = 0; i < m->n_layer && !l->rc; i++)
        dit_joint_load(l, &m->block[i], i, m->n_head, m->head_dim, &img, &txt);
    dit_last_load(l, &m->last, d, &m->patch);
}

int dit_qwen_open(struct dit_qwen **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct dit_qwen *m = mem_calloc(1, sizeof *m);
    struct nn_load l = {.w = w, .c = c, .e = e};
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the transformer");
    l.rc = config_read(m, c->cfg, e);
    m->block = nn_load_room(&l, m->n_layer, sizeof *m->block);
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

struct dit_info dit_qwen_info(const struct dit_qwen *m)
{
    return (struct dit_info){.channels = m->patch.c, .patch = m->patch.p, .text_dim = m->text_dim};
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
    struct tensor emb = dit_time_run(n, &m->time, t, n_row, 1000);
    free(t);
    return dit_silu(n, &emb);
}

void dit_qwen_run(struct dit_qwen *m, struct nn *n, const struct img_row *row, int n_row)
{
    struct dit_pass p = {.rows = &m->rows};
    if (!dit_pass_begin(n, &m->rows, &m->patch, row, n_row))
        return;
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
    /* only the image's rows are of interest from here on */
    dit_last_run(n, &m->last, &p, &m->patch, &img, row, n_row);
    dit_pass_end(n, &p);
    nn_free(n, &txt);
}
