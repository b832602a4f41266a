/* FLUX.1's denoiser: blocks of two streams, then blocks of the joint stream that make attention and MLP side by side.
 * Text has position zero on all axes, a picture's token its row and column on the second and third. See dit_flux.h. */
#include "engine/image/dit_flux.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_MAX 1024
#define TIME_DIM   256
#define PATCH      2

/* x += gate * out(concat(attention(y), gelu(up(y)))), y the modulated norm of x. */
struct single {
    struct nn_linear mod; /* [3 d]: shift, scale, gate */
    struct nn_linear qkv, up, out;
    struct tensor norm_q, norm_k; /* [head_dim] */
};

struct dit_flux {
    struct dit_patch patch;
    struct dit_rope rope;
    int dim, text_dim, pooled_dim, n_double, n_single, n_head, head_dim;
    bool guided;
    struct nn_linear img_in, txt_in;
    struct dit_last last;
    struct dit_mlp time, guidance, pooled;
    struct dit_joint *joint;
    struct single *single;
    struct dit_rows rows; /* of the last pass: its layouts point here */
};

/* ---- opening ---- */

static int config_read(struct dit_flux *m, struct config *c, struct err *e)
{
    int channels = (int)config_int(c, "in_channels", 64, PATCH * PATCH, 4096);
    int out = (int)config_int(c, "out_channels", channels, 1, 4096);
    int patch = (int)config_int(c, "patch_size", 1, 1, 16);
    m->n_double = (int)config_int(c, "num_layers", 19, 0, LAYERS_MAX);
    m->n_single = (int)config_int(c, "num_single_layers", 38, 0, LAYERS_MAX);
    m->head_dim = (int)config_int(c, "attention_head_dim", 128, 2, 1024);
    m->n_head = (int)config_int(c, "num_attention_heads", 24, 1, 1024);
    m->text_dim = (int)config_int(c, "joint_attention_dim", 4096, 1, 1 << 20);
    m->pooled_dim = (int)config_int(c, "pooled_projection_dim", 768, 1, 1 << 20);
    m->guided = config_bool(c, "guidance_embeds", false);
    m->dim = m->n_head * m->head_dim;
    m->rope = (struct dit_rope){.dim = {16, 56, 56}, .theta = 10000};
    int rc = config_error(c, e);
    if (!rc)
        rc = dit_rope_read(&m->rope, c, "axes_dims_rope", m->head_dim, e);
    if (rc)
        return rc;
    if (patch != 1 || channels % (PATCH * PATCH))
        return err_set(e, ERR_UNSUPPORTED,
                       "transformer: patch_size %d with in_channels %d is not known", patch,
                       channels);
    if (out != channels)
        return err_set(e, ERR_UNSUPPORTED,
                       "transformer: in_channels %d and out_channels %d differ: a variant that is "
                       "not known",
                       channels, out);
    m->patch = (struct dit_patch){.p = PATCH, .c = channels / (PATCH * PATCH)};
    return 0;
}

static void single_load(struct dit_flux *m, struct single *s, struct nn_load *l, int i)
{
    int64_t d = m->dim;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "single_transformer_blocks.%d.", i);
    const struct nn_stack qkv = {.prefix = prefix,
                                 .name = {"attn.to_q", "attn.to_k", "attn.to_v"},
                                 .n_name = 3,
                                 .n_in = d,
                                 .n_out = {d, d, d}};
    nn_load_linear(l, &s->mod, d, 3 * d, 0, "%snorm.linear", prefix);
    nn_load_stack(l, &s->qkv, &qkv);
    nn_load_linear(l, &s->up, d, NN_ANY, 0, "%sproj_mlp", prefix);
    nn_load_linear(l, &s->out, d + s->up.n_out, d, 0, "%sproj_out", prefix);
    nn_load_vec(l, &s->norm_q, m->head_dim, 0, "%sattn.norm_q.weight", prefix);
    nn_load_vec(l, &s->norm_k, m->head_dim, 0, "%sattn.norm_k.weight", prefix);
}

static void weights_load(struct dit_flux *m, struct nn_load *l)
{
    int64_t d = m->dim, wide = (int64_t)m->patch.c * PATCH * PATCH;
    nn_load_linear(l, &m->img_in, wide, d, 0, "x_embedder");
    nn_load_linear(l, &m->txt_in, m->text_dim, d, 0, "context_embedder");
    dit_embedder_load(l, &m->time, "timestep", TIME_DIM, d);
    if (m->guided)
        dit_embedder_load(l, &m->guidance, "guidance", TIME_DIM, d);
    dit_embedder_load(l, &m->pooled, "text", m->pooled_dim, d);
    for (int i = 0; i < m->n_double && !l->rc; i++)
        dit_joint_load(l, &m->joint[i], i, m->n_head, m->head_dim, &dit_names_img, &dit_names_txt);
    for (int i = 0; i < m->n_single && !l->rc; i++)
        single_load(m, &m->single[i], l, i);
    dit_last_load(l, &m->last, d, &m->patch);
}

int dit_flux_open(struct dit_flux **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct dit_flux *m = mem_calloc(1, sizeof *m);
    struct nn_load l = {.w = w, .c = c, .e = e};
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the transformer");
    l.rc = config_read(m, c->cfg, e);
    m->joint = nn_load_room(&l, m->n_double + 1, sizeof *m->joint);
    m->single = nn_load_room(&l, m->n_single + 1, sizeof *m->single);
    weights_load(m, &l);
    if (l.rc)
        dit_flux_close(m);
    else
        *out = m;
    return l.rc;
}

void dit_flux_close(struct dit_flux *m)
{
    if (!m)
        return;
    dit_rows_close(&m->rows);
    free(m->joint);
    free(m->single);
    free(m);
}

struct dit_info dit_flux_info(const struct dit_flux *m)
{
    return (struct dit_info){.channels = m->patch.c,
                             .patch = m->patch.p,
                             .text_dim = m->text_dim,
                             .pooled_dim = m->pooled_dim};
}

bool dit_flux_guidance(const struct dit_flux *m)
{
    return m->guided;
}

/* ---- what all blocks read ---- */

struct joint_tables {
    struct tensor cos, sin; /* [joint rows, head_dim / 2] */
};

/* Rotary tables of the pictures' rows, for the streams, and of the joint rows. Text is at position zero, where the
 * rotation is the identity: in its own stream there is none. */
static struct joint_tables tables(const struct dit_flux *m, struct nn *n, const struct img_row *row,
                                  int n_row, struct dit_pass *p)
{
    int64_t n_img = dit_rows_sum(&m->rows, DIT_IMG), n_all = dit_rows_sum(&m->rows, DIT_JOINT);
    int32_t *img = NULL, *all = NULL;
    struct joint_tables t;
    if (!n->dry) {
        img = dit_host(n, n_img, 3, sizeof *img);
        all = dit_host(n, n_all, 3, sizeof *all);
    }
    int32_t *g = img, *j = all;
    for (int i = 0; i < n_row && img && all; i++) {
        int h = row[i].h / PATCH, w = row[i].w / PATCH;
        int32_t *first = g;
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++, g += 3) {
                g[1] = y;
                g[2] = x;
            }
        j += 3 * (ptrdiff_t)row[i].cond->n_tok;
        memcpy(j, first, (size_t)(g - first) * sizeof *g);
        j += g - first;
    }
    dit_rope_tables(n, &m->rope, img, n_img, &p->cos_img, &p->sin_img);
    dit_rope_tables(n, &m->rope, all, n_all, &t.cos, &t.sin);
    free(img);
    free(all);
    return t;
}

/* The sum of the embeddings of timestep, guidance and prompt, after SiLU: what every modulation reads. */
static struct tensor embed(const struct dit_flux *m, struct nn *n, const struct img_row *row,
                           int n_row)
{
    float *t = dit_host(n, n_row, 2, sizeof *t);
    if (!t)
        return (struct tensor){0};
    for (int i = 0; i < n_row; i++) { /* both in thousandths, rounded as the reference does */
        t[i] = row[i].timestep / 1000 * 1000;
        t[n_row + i] = row[i].guidance * 1000;
    }
    struct tensor sum = dit_time_run(n, &m->time, t, n_row, 1);
    if (m->guided)
        dit_mlp_add(n, &m->guidance, dit_sinusoids(n, t + n_row, n_row, TIME_DIM, 1), sum);
    dit_mlp_add(n, &m->pooled, dit_put_pooled(n, row, n_row, m->pooled_dim), sum);
    free(t);
    return dit_silu(n, &sum);
}

/* ---- the joint stream ---- */

/* y (mul) [joint rows, d] -> attention into dst (mul), columns of a wider tensor. */
static void single_attend(const struct dit_flux *m, struct nn *n, const struct single *s,
                          struct tensor y, const struct joint_tables *t, struct tensor dst)
{
    int64_t d = m->dim;
    struct tensor qkv = nn_linear(n, &s->qkv, y);
    for (int i = 0; i < 2; i++)
        NN_OP(n, rotate, .x = tensor_cols(qkv, i * d, d), .n_head = m->n_head,
              .head_dim = m->head_dim, .norm = i ? s->norm_k : s->norm_q, .eps = 1e-6f,
              .cos = t->cos, .sin = t->sin, .style = ROPE_NORM);
    NN_OP(n, attend, .dst = dst, .q = tensor_cols(qkv, 0, d), .k = tensor_cols(qkv, d, d),
          .v = tensor_cols(qkv, 2 * d, d), .n_head = m->n_head, .n_kv_head = m->n_head,
          .head_dim = m->head_dim, .scale = 1 / sqrtf((float)m->head_dim), .q_layout = DIT_JOINT,
          .kv_layout = DIT_JOINT);
    nn_free(n, &qkv);
}

/* x [joint rows, d] one block on, in place. */
static void single_run(const struct dit_flux *m, struct nn *n, const struct single *s,
                       const struct dit_pass *p, const struct joint_tables *t, struct tensor x)
{
    int64_t d = m->dim, wide = s->up.n_out;
    struct tensor mod = nn_linear(n, &s->mod, p->temb);
    struct tensor y = dit_modulate(n, x, dit_slice(mod, 1, d), dit_slice(mod, 0, d), DIT_JOINT);
    struct tensor cat = nn_tmp(n, n->mul, x.shape[0], d + wide);
    single_attend(m, n, s, y, t, tensor_cols(cat, 0, d));
    struct tensor up = nn_linear(n, &s->up, y);
    nn_free(n, &y);
    NN_OP(n, act, .dst = tensor_cols(cat, d, wide), .x = up, .act = IMAGE_ACT_GELU_TANH);
    nn_free(n, &up);
    struct tensor out = nn_linear(n, &s->out, cat);
    nn_free(n, &cat);
    dit_gate(n, x, &out, dit_slice(mod, 2, d), DIT_JOINT);
    nn_free(n, &mod);
}

void dit_flux_run(struct dit_flux *m, struct nn *n, const struct img_row *row, int n_row)
{
    struct dit_pass p = {.rows = &m->rows};
    if (!dit_pass_begin(n, &m->rows, &m->patch, row, n_row))
        return;
    p.temb = embed(m, n, row, n_row);
    struct joint_tables t = tables(m, n, row, n_row, &p);

    struct tensor x = dit_put_latents(n, &m->patch, row, n_row, m->rows.start[DIT_IMG]);
    struct tensor img = nn_linear(n, &m->img_in, x);
    nn_free(n, &x);
    x = dit_put_states(n, row, n_row, m->text_dim);
    struct tensor txt = nn_linear(n, &m->txt_in, x);
    nn_free(n, &x);

    for (int i = 0; i < m->n_double && !n->rc; i++)
        dit_joint_run(n, &m->joint[i], &p, txt, img);
    struct tensor joint = dit_join(n, &m->rows, txt, img);
    nn_free(n, &txt);
    nn_free(n, &img);
    for (int i = 0; i < m->n_single && !n->rc; i++)
        single_run(m, n, &m->single[i], &p, &t, joint);
    dit_split(n, &m->rows, joint, NULL, &img);
    nn_free(n, &joint);

    dit_last_run(n, &m->last, &p, &m->patch, &img, row, n_row);
    dit_pass_end(n, &p);
    nn_free(n, &t.cos);
    nn_free(n, &t.sin);
}
