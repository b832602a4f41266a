/* Stable Diffusion 3's denoiser: blocks of two streams without rotation, positions by a table whose middle is cut out.
 * See dit_sd3.h. */
#include "engine/image/dit_sd3.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define LAYERS_MAX 1024
#define TIME_DIM   256

struct dit_sd3 {
    struct dit_patch patch;
    int dim, text_dim, pooled_dim, n_layer, n_head, head_dim, pos_max, sample_size;
    struct nn_conv img_in; /* [dim, p, p, c]: as a product over patches whose channels come last */
    struct nn_linear pos, txt_in;
    struct dit_last last;
    struct dit_mlp time, pooled;
    struct dit_joint *block;
    bool *dual;           /* [n_layer] an attention of the image to itself, too */
    struct dit_rows rows; /* of the last pass: its layouts point here */
};

/* Sizes from the configuration; qk_norm null (SD3) shows in the tensors that are absent. */
static int config_read(struct dit_sd3 *m, struct config *c, struct err *e)
{
    int out;
    m->patch = (struct dit_patch){.c = (int)config_int(c, "in_channels", 16, 1, 4096),
                                  .p = (int)config_int(c, "patch_size", 2, 1, 16),
                                  .order = DIT_CHANNEL_LAST};
    out = (int)config_int(c, "out_channels", 16, 1, 4096);
    m->n_layer = (int)config_int(c, "num_layers", 18, 1, LAYERS_MAX);
    m->head_dim = (int)config_int(c, "attention_head_dim", 64, 1, 1024);
    m->n_head = (int)config_int(c, "num_attention_heads", 18, 1, 1024);
    m->text_dim = (int)config_int(c, "joint_attention_dim", 4096, 1, 1 << 20);
    m->pooled_dim = (int)config_int(c, "pooled_projection_dim", 2048, 1, 1 << 20);
    m->pos_max = (int)config_int(c, "pos_embed_max_size", 96, 1, 4096);
    m->sample_size = (int)config_int(c, "sample_size", 128, 1, 4096);
    m->dim = m->n_head * m->head_dim;
    int caption = (int)config_int(c, "caption_projection_dim", 1152, 1, 1 << 20);
    const char *norm = config_str(c, "qk_norm", "rms_norm");
    int rc = config_error(c, e);
    if (rc)
        return rc;
    if (strcmp(norm, "rms_norm") != 0)
        return err_set(e, ERR_UNSUPPORTED, "transformer: qk_norm \"%.40s\" is not known", norm);
    if (caption != m->dim || out != m->patch.c)
        return err_set(e, ERR_INVAL,
                       "transformer: caption_projection_dim %d must be %d, out_channels %d must be "
                       "in_channels",
                       caption, m->dim, out);
    return 0;
}

/* Which blocks have the second attention. */
static int dual_read(struct dit_sd3 *m, struct config *c, struct err *e)
{
    int n = config_len(c, "dual_attention_layers");
    for (int i = 0; i < n; i++)
        m->dual[config_int_at(c, "dual_attention_layers", i, 0, m->n_layer - 1)] = true;
    return config_error(c, e);
}

/* The text stream ends in the last block: nothing behind it reads the text any more. */
static void block_load(struct dit_sd3 *m, struct nn_load *l, int i)
{
    struct dit_stream_names img = dit_names_img, txt = dit_names_txt;
    img.second = m->dual[i] ? "attn2." : NULL;
    if (i == m->n_layer - 1)
        txt.out = NULL;
    dit_joint_load(l, &m->block[i], i, m->n_head, m->head_dim, &img, &txt);
}

static void weights_load(struct dit_sd3 *m, struct nn_load *l)
{
    int64_t d = m->dim;
    nn_load_conv(l, &m->img_in, m->patch.c, m->dim, m->patch.p, "pos_embed.proj");
    nn_load_table(l, &m->pos, d, (int64_t)m->pos_max * m->pos_max, "pos_embed.pos_embed");
    nn_load_linear(l, &m->txt_in, m->text_dim, d, 0, "context_embedder");
    dit_embedder_load(l, &m->time, "timestep", TIME_DIM, d);
    dit_embedder_load(l, &m->pooled, "text", m->pooled_dim, d);
    for (int i = 0; i < m->n_layer && !l->rc; i++)
        block_load(m, l, i);
    dit_last_load(l, &m->last, d, &m->patch);
}

int dit_sd3_open(struct dit_sd3 **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct dit_sd3 *m = mem_calloc(1, sizeof *m);
    struct nn_load l = {.w = w, .c = c, .e = e};
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the transformer");
    l.rc = config_read(m, c->cfg, e);
    m->block = nn_load_room(&l, m->n_layer, sizeof *m->block);
    m->dual = nn_load_room(&l, m->n_layer, sizeof *m->dual);
    if (!l.rc)
        l.rc = dual_read(m, c->cfg, e);
    weights_load(m, &l);
    if (l.rc)
        dit_sd3_close(m);
    else
        *out = m;
    return l.rc;
}

void dit_sd3_close(struct dit_sd3 *m)
{
    if (!m)
        return;
    dit_rows_close(&m->rows);
    free(m->block);
    free(m->dual);
    free(m);
}

struct dit_info dit_sd3_info(const struct dit_sd3 *m)
{
    return (struct dit_info){.channels = m->patch.c,
                             .patch = m->patch.p,
                             .text_dim = m->text_dim,
                             .pooled_dim = m->pooled_dim};
}

int dit_sd3_tokens_max(const struct dit_sd3 *m)
{
    return m->pos_max;
}

int dit_sd3_sample_size(const struct dit_sd3 *m)
{
    return m->sample_size;
}

/* img [img rows, dim] += the middle of the table of positions, cut to each picture's size. */
static void positions_add(const struct dit_sd3 *m, struct nn *n, const struct img_row *row,
                          int n_row, struct tensor img)
{
    int32_t n_img = dit_rows_sum(&m->rows, DIT_IMG), *ids = NULL;
    struct tensor at = nn_tmp(n, DT_I32, 1, n_img);
    struct tensor pos = nn_tmp(n, DT_F32, n_img, m->dim);
    if (!n->dry)
        ids = dit_host(n, n_img, 1, sizeof *ids);
    int32_t *p = ids;
    for (int i = 0; i < n_row && ids; i++) {
        int h = row[i].h / m->patch.p, w = row[i].w / m->patch.p;
        int top = (m->pos_max - h) / 2, left = (m->pos_max - w) / 2;
        if (h > m->pos_max || w > m->pos_max) {
            nn_done(n, "positions", ERR_LIMIT);
            break;
        }
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                *p++ = (top + y) * m->pos_max + left + x;
    }
    if (ids)
        nn_put(n, &at, ids);
    free(ids);
    NN_OP(n, lookup, .dst = pos, .ids = at, .w = m->pos.w);
    NN_OP(n, gate_add, .x = img, .y = pos, .factor = 1, .layout = -1);
    nn_free(n, &pos);
    nn_free(n, &at);
}

/* The sum of the embeddings of timestep and prompt, after SiLU: what every modulation reads. */
static struct tensor embed(const struct dit_sd3 *m, struct nn *n, const struct img_row *row,
                           int n_row)
{
    float *t = dit_host(n, n_row, 1, sizeof *t);
    if (!t)
        return (struct tensor){0};
    for (int i = 0; i < n_row; i++)
        t[i] = row[i].timestep;
    struct tensor sum = dit_time_run(n, &m->time, t, n_row, 1);
    free(t);
    dit_mlp_add(n, &m->pooled, dit_put_pooled(n, row, n_row, m->pooled_dim), sum);
    return dit_silu(n, &sum);
}

void dit_sd3_run(struct dit_sd3 *m, struct nn *n, const struct img_row *row, int n_row)
{
    struct dit_pass p = {.rows = &m->rows};
    if (!dit_pass_begin(n, &m->rows, &m->patch, row, n_row))
        return;
    p.temb = embed(m, n, row, n_row);

    const struct nn_linear in = {m->img_in.w, m->img_in.bias,
                                 (int64_t)m->patch.c * m->patch.p * m->patch.p, m->dim};
    struct tensor x = dit_put_latents(n, &m->patch, row, n_row, m->rows.start[DIT_IMG]);
    struct tensor img = nn_linear(n, &in, x);
    nn_free(n, &x);
    positions_add(m, n, row, n_row, img);
    x = dit_put_states(n, row, n_row, m->text_dim);
    struct tensor txt = nn_linear(n, &m->txt_in, x);
    nn_free(n, &x);

    for (int i = 0; i < m->n_layer && !n->rc; i++)
        dit_joint_run(n, &m->block[i], &p, txt, img);
    dit_last_run(n, &m->last, &p, &m->patch, &img, row, n_row);
    dit_pass_end(n, &p);
    nn_free(n, &txt);
}
