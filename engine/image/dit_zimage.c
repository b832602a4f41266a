/* Z-Image's denoiser: one stream of text and image rows with sandwich norms. See dit_zimage.h. */
#include "engine/image/dit_zimage.h"
#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_MAX 1024
#define TIME_DIM   256
#define TIME_MID   1024
#define FILL       32 /* text and image rows come in multiples of it */

/* x += gate * norm(attention(norm(x) * scale)), then the same around the MLP (sandwich norms; the gates through tanh). */
struct z_block {
    struct nn_linear
        mod; /* [4 d]: scale and gate of the attention, of the MLP; absent in the caption's blocks */
    struct nn_linear qkv, out, up, down; /* up: gate, then what it gates */
    struct nn_norm att_in, att_out, mlp_in, mlp_out;
    struct tensor norm_q, norm_k;
};
struct dit_zimage {
    struct dit_patch patch;
    struct dit_rope rope;
    int dim, text_dim, n_layer, n_refine, n_head, head_dim, time_dim;
    bool qk_norm;
    float eps, t_scale;
    struct dit_mlp time;
    struct nn_linear x_in, cap_in, final_mod, final;
    struct nn_norm cap_norm;
    struct tensor x_fill,
        cap_fill;          /* [FILL - 1, dim]: the learned row of what fills up, over and over */
    struct z_block *block; /* n_refine of the image, n_refine of the caption, n_layer */
    struct dit_rows rows;  /* of the last pass: its layouts point here */
};

/* ---- loading ---- */

/* Sizes from the configuration. n_kv_heads is not asked for: the reference has as many as heads. */
static int config_read(struct dit_zimage *m, struct config *c, struct err *e)
{
    m->patch = (struct dit_patch){
        .c = (int)config_int(c, "in_channels", 16, 1, 4096), .p = 2, .order = DIT_CHANNEL_LAST};
    m->dim = (int)config_int(c, "dim", 3840, 2, 1 << 16);
    m->n_layer = (int)config_int(c, "n_layers", 30, 1, LAYERS_MAX);
    m->n_refine = (int)config_int(c, "n_refiner_layers", 2, 0, LAYERS_MAX);
    m->n_head = (int)config_int(c, "n_heads", 30, 1, 1024);
    m->text_dim = (int)config_int(c, "cap_feat_dim", 2560, 1, 1 << 20);
    m->qk_norm = config_bool(c, "qk_norm", true);
    m->eps = (float)config_num(c, "norm_eps", 1e-5, 0, 1);
    m->t_scale = (float)config_num(c, "t_scale", 1000, 1e-6, 1e9);
    m->rope = (struct dit_rope){.dim = {32, 48, 48}};
    m->rope.theta = config_num(c, "rope_theta", 256, 1, 1e12);
    if (config_len(c, "all_patch_size"))
        m->patch.p = (int)config_int_at(c, "all_patch_size", 0, 1, 16);
    int rc = config_error(c, e);
    if (rc)
        return rc;
    if (m->dim % m->n_head)
        return err_set(e, ERR_INVAL, "transformer: dim %d is no multiple of n_heads %d", m->dim,
                       m->n_head);
    m->head_dim = m->dim / m->n_head;
    m->time_dim = m->dim < TIME_DIM ? m->dim : TIME_DIM;
    return dit_rope_read(&m->rope, c, "axes_dims", m->head_dim, e);
}

/* Block i of a list of the file: "noise_refiner", "context_refiner" (no modulation), "layers". */
static void block_load(const struct dit_zimage *m, struct nn_load *l, struct z_block *b,
                       const char *list, int i)
{
    int64_t d = m->dim;
    char p[64];
    snprintf(p, sizeof p, "%s.%d.", list, i);
    if (strcmp(list, "context_refiner") != 0)
        nn_load_linear(l, &b->mod, m->time_dim, 4 * d, 0, "%sadaLN_modulation.0", p);
    nn_load_stack(l, &b->qkv,
                  &(struct nn_stack){.prefix = p,
                                     .name = {"attention.to_q", "attention.to_k", "attention.to_v"},
                                     .n_name = 3,
                                     .n_in = d,
                                     .n_out = {d, d, d},
                                     .flags = NN_NO_BIAS});
    nn_load_linear(l, &b->out, d, d, NN_NO_BIAS, "%sattention.to_out.0", p);
    nn_load_stack(l, &b->up,
                  &(struct nn_stack){.prefix = p,
                                     .name = {"feed_forward.w1", "feed_forward.w3"},
                                     .n_name = 2,
                                     .n_in = d,
                                     .n_out = {NN_ANY, NN_ANY},
                                     .flags = NN_NO_BIAS});
    nn_load_linear(l, &b->down, b->up.n_out / 2, d, NN_NO_BIAS, "%sfeed_forward.w2", p);
    nn_load_norm(l, &b->att_in, d, 0, "%sattention_norm1", p);
    nn_load_norm(l, &b->att_out, d, 0, "%sattention_norm2", p);
    nn_load_norm(l, &b->mlp_in, d, 0, "%sffn_norm1", p);
    nn_load_norm(l, &b->mlp_out, d, 0, "%sffn_norm2", p);
    if (!m->qk_norm)
        return;
    nn_load_vec(l, &b->norm_q, m->head_dim, 0, "%sattention.norm_q.weight", p);
    nn_load_vec(l, &b->norm_k, m->head_dim, 0, "%sattention.norm_k.weight", p);
}

/* A learned row as often as it may be needed behind each other, so that one copy fills. */
static void fill_load(const struct dit_zimage *m, struct nn_load *l, struct tensor *out,
                      const char *name)
{
    int64_t n;
    float *v = nn_load_host(l, &n, "%s", name), *all = NULL;
    if (!v)
        return;
    size_t d = (size_t)m->dim;
    if (n != m->dim)
        l->rc = err_set(l->e, ERR_INVAL, "%s: tensor %s has %lld values, expected %d", l->c->name,
                        name, (long long)n, m->dim);
    else if (!(all = mem_calloc((FILL - 1) * d, sizeof *all)))
        l->rc = err_set(l->e, ERR_NOMEM, "%s: no memory for %s", l->c->name, name);
    for (size_t i = 0; all && i < FILL - 1; i++)
        memcpy(all + i * d, v, d * sizeof *v);
    if (all)
        nn_load_const(l, out, all, (int64_t)((FILL - 1) * d));
    if (all && !l->rc)
        *out = tensor_2d(DT_F32, out->buf, out->off, FILL - 1, m->dim);
    free(all);
    free(v);
}

static void weights_load(struct dit_zimage *m, struct nn_load *l)
{
    int64_t d = m->dim, wide = (int64_t)m->patch.c * m->patch.p * m->patch.p;
    int p = m->patch.p;
    dit_mlp_load(l, &m->time, (int64_t[3]){TIME_DIM, TIME_MID, m->time_dim}, "t_embedder.mlp.0",
                 "t_embedder.mlp.2");
    nn_load_linear(l, &m->x_in, wide, d, 0, "all_x_embedder.%d-1", p);
    nn_load_norm(l, &m->cap_norm, m->text_dim, 0, "cap_embedder.0");
    nn_load_linear(l, &m->cap_in, m->text_dim, d, 0, "cap_embedder.1");
    fill_load(m, l, &m->x_fill, "x_pad_token");
    fill_load(m, l, &m->cap_fill, "cap_pad_token");
    for (int i = 0; i < m->n_refine && !l->rc; i++)
        block_load(m, l, &m->block[i], "noise_refiner", i);
    for (int i = 0; i < m->n_refine && !l->rc; i++)
        block_load(m, l, &m->block[m->n_refine + i], "context_refiner", i);
    for (int i = 0; i < m->n_layer && !l->rc; i++)
        block_load(m, l, &m->block[2 * m->n_refine + i], "layers", i);
    nn_load_linear(l, &m->final_mod, m->time_dim, d, 0, "all_final_layer.%d-1.adaLN_modulation.1",
                   p);
    nn_load_linear(l, &m->final, d, wide, 0, "all_final_layer.%d-1.linear", p);
}

int dit_zimage_open(struct dit_zimage **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct dit_zimage *m = mem_calloc(1, sizeof *m);
    struct nn_load l = {.w = w, .c = c, .e = e};
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the transformer");
    l.rc = config_read(m, c->cfg, e);
    m->block = nn_load_room(&l, 2 * m->n_refine + m->n_layer, sizeof *m->block);
    weights_load(m, &l);
    if (l.rc)
        dit_zimage_close(m);
    else
        *out = m;
    return l.rc;
}

void dit_zimage_close(struct dit_zimage *m)
{
    if (!m)
        return;
    dit_rows_close(&m->rows);
    free(m->block);
    free(m);
}

struct dit_info dit_zimage_info(const struct dit_zimage *m)
{
    return (struct dit_info){.channels = m->patch.c, .patch = m->patch.p, .text_dim = m->text_dim};
}

int dit_zimage_dim(const struct dit_zimage *m)
{
    return m->dim;
}

static int filled(int rows)
{
    return (rows + FILL - 1) / FILL * FILL;
}

int dit_zimage_caption_rows(int n_tok)
{
    return filled(n_tok);
}

/* ---- running ---- */

/* What the rows of a run of blocks share. */
struct z_run {
    enum dit_layout layout;
    struct tensor cos, sin;
    struct tensor temb; /* (mul) [pictures, time_dim]; buf 0 where there is no modulation */
};

/* (mul) norm(x) * w * (1 + scale) */
static struct tensor norm_in(const struct dit_zimage *m, struct nn *n, struct tensor x,
                             const struct nn_norm *w, struct tensor scale, int layout)
{
    struct tensor y = nn_tmp(n, n->mul, x.shape[0], x.shape[1]);
    NN_OP(n, layer_norm, .dst = y, .x = x, .w = w->w, .scale = scale, .rms = true, .eps = m->eps,
          .layout = layout);
    return y;
}

/* x += gate * norm(y) * w; y is freed */
static void norm_out(const struct dit_zimage *m, struct nn *n, struct tensor x, struct tensor *y,
                     const struct nn_norm *w, struct tensor gate, int layout)
{
    struct tensor z = nn_tmp(n, DT_F32, x.shape[0], x.shape[1]);
    NN_OP(n, layer_norm, .dst = z, .x = *y, .w = w->w, .rms = true, .eps = m->eps, .layout = -1);
    nn_free(n, y);
    dit_gate(n, x, &z, gate, layout);
}

/* f32 [rows, dim] of normed rows x (mul), which is freed; every segment of the layout sees itself. */
static struct tensor attention(const struct dit_zimage *m, struct nn *n, const struct z_block *b,
                               const struct z_run *r, struct tensor *x)
{
    int64_t d = m->dim;
    struct tensor qkv = nn_linear(n, &b->qkv, *x);
    nn_free(n, x);
    for (int i = 0; i < 2; i++)
        NN_OP(n, rotate, .x = tensor_cols(qkv, i * d, d), .n_head = m->n_head,
              .head_dim = m->head_dim, .norm = i ? b->norm_k : b->norm_q, .eps = 1e-5f,
              .cos = r->cos, .sin = r->sin, .style = ROPE_NORM);
    struct tensor att = nn_tmp(n, n->mul, qkv.shape[0], d);
    NN_OP(n, attend, .dst = att, .q = tensor_cols(qkv, 0, d), .k = tensor_cols(qkv, d, d),
          .v = tensor_cols(qkv, 2 * d, d), .n_head = m->n_head, .n_kv_head = m->n_head,
          .head_dim = m->head_dim, .scale = 1 / sqrtf((float)m->head_dim), .q_layout = r->layout,
          .kv_layout = r->layout);
    nn_free(n, &qkv);
    struct tensor out = nn_linear(n, &b->out, att);
    nn_free(n, &att);
    return out;
}

/* f32 [rows, dim]: down(silu(w1 x) * w3 x); x (mul) is freed. */
static struct tensor gated_mlp(struct nn *n, const struct z_block *b, struct tensor *x)
{
    struct tensor wide = nn_linear(n, &b->up, *x);
    nn_free(n, x);
    struct tensor act = nn_tmp(n, n->mul, wide.shape[0], b->up.n_out / 2);
    NN_OP(n, act_mul, .dst = act, .gate_up = wide, .act = ACT_SILU);
    nn_free(n, &wide);
    struct tensor out = nn_linear(n, &b->down, act);
    nn_free(n, &act);
    return out;
}

/* x [rows, dim] one block on, in place. */
static void block_run(const struct dit_zimage *m, struct nn *n, const struct z_block *b,
                      const struct z_run *r, struct tensor x)
{
    struct tensor mod = {0}, part[4] = {{0}}; /* scale, gate of the attention; of the MLP */
    int layout = -1;
    if (b->mod.n_out) {
        mod = nn_linear(n, &b->mod, r->temb);
        for (int i = 0; i < 4; i++)
            part[i] = dit_slice(mod, i, m->dim);
        NN_OP(n, scale, .x = part[1], .scale = 1, .softcap = 1); /* tanh */
        NN_OP(n, scale, .x = part[3], .scale = 1, .softcap = 1);
        layout = (int)r->layout;
    }
    struct tensor y = norm_in(m, n, x, &b->att_in, part[0], layout);
    struct tensor out = attention(m, n, b, r, &y);
    norm_out(m, n, x, &out, &b->att_out, part[1], layout);
    y = norm_in(m, n, x, &b->mlp_in, part[2], layout);
    out = gated_mlp(n, b, &y);
    norm_out(m, n, x, &out, &b->mlp_out, part[3], layout);
    nn_free(n, &mod);
}

/* The learned row into the rows that fill up segment i of x, whose own are the first n_own. */
static void fill(struct nn *n, struct tensor x, const int32_t *start, int i, int n_own,
                 struct tensor with)
{
    int rows = start[i + 1] - start[i] - n_own;
    if (rows > 0)
        NN_OP(n, act, .dst = nn_rows(x, start[i] + n_own, rows), .x = nn_rows(with, 0, rows));
}

/* Tables of a run's rows. Caption rows count from 1 on the first axis, filling too. Image rows stay at the number
 * behind the caption and count on the other two; their filling is at zero. */
static void tables(const struct dit_zimage *m, struct nn *n, const struct img_row *row,
                   const struct dit_rows *r, struct z_run *run)
{
    int32_t n_rows = dit_rows_sum(r, run->layout), *pos = NULL;
    if (!n->dry)
        pos = dit_host(n, n_rows, 3, sizeof *pos);
    int32_t *p = pos;
    for (int i = 0; i < r->n && pos; i++) {
        int n_txt = r->start[DIT_TXT][i + 1] - r->start[DIT_TXT][i];
        int n_img = r->start[DIT_IMG][i + 1] - r->start[DIT_IMG][i];
        for (int k = 0; run->layout != DIT_IMG && k < n_txt; k++, p += 3)
            p[0] = 1 + k;
        if (run->layout == DIT_TXT)
            continue;
        int h = row[i].h / m->patch.p, w = row[i].w / m->patch.p;
        for (int k = 0; k < h * w; k++) {
            p[3 * k] = n_txt + 1;
            p[3 * k + 1] = k / w;
            p[3 * k + 2] = k % w;
        }
        p += 3 * (ptrdiff_t)n_img;
    }
    dit_rope_tables(n, &m->rope, pos, n_rows, &run->cos, &run->sin);
    free(pos);
}

static void run_end(struct nn *n, struct z_run *r)
{
    nn_free(n, &r->cos);
    nn_free(n, &r->sin);
}

void dit_zimage_caption(struct dit_zimage *m, struct nn *n, const struct dit_zimage_text *t)
{
    struct dit_rows *r = &m->rows;
    struct z_run run = {.layout = DIT_TXT};
    if (dit_rows_begin(r, t->n)) {
        nn_done(n, "rows", ERR_NOMEM);
        return;
    }
    for (int i = 0; i < t->n; i++)
        dit_rows_add(r, filled(t->start[i + 1] - t->start[i]), 0);
    dit_rows_layouts(r, n);
    tables(m, n, NULL, r, &run);
    struct tensor states = nn_tmp(n, DT_F32, t->start[t->n], m->text_dim);
    nn_put(n, &states, t->states);
    struct tensor y = nn_norm_mul(n, states, &m->cap_norm, m->eps, true);
    nn_free(n, &states);
    struct tensor x = nn_tmp(n, DT_F32, dit_rows_sum(r, DIT_TXT), m->dim);
    for (int i = 0; i < t->n; i++) {
        int n_tok = t->start[i + 1] - t->start[i];
        nn_linear_to(n, &m->cap_in, nn_rows(y, t->start[i], n_tok),
                     nn_rows(x, r->start[DIT_TXT][i], n_tok));
        fill(n, x, r->start[DIT_TXT], i, n_tok, m->cap_fill);
    }
    nn_free(n, &y);
    for (int i = 0; i < m->n_refine; i++)
        block_run(m, n, &m->block[m->n_refine + i], &run, x);
    for (int i = 0; i < t->n; i++) {
        int32_t at = r->start[DIT_TXT][i];
        struct tensor part = nn_rows(x, at, r->start[DIT_TXT][i + 1] - at);
        if (!n->dry)
            nn_get(n, &part, t->out[i]);
    }
    nn_free(n, &x);
    run_end(n, &run);
}

/* The timestep's embedding: modulations read it as it is, the last layer after SiLU. */
static struct tensor time_embed(const struct dit_zimage *m, struct nn *n, const struct img_row *row,
                                int n_row)
{
    float *t = dit_host(n, n_row, 1, sizeof *t);
    if (!t)
        return (struct tensor){0};
    for (int i = 0; i < n_row; i++)
        t[i] = (1000 - row[i].timestep) / 1000 * m->t_scale;
    struct tensor emb = dit_time_run(n, &m->time, t, n_row, 1);
    free(t);
    return emb;
}

void dit_zimage_run(struct dit_zimage *m, struct nn *n, const struct img_row *row, int n_row)
{
    struct dit_rows *r = &m->rows;
    if (dit_rows_begin(r, n_row)) {
        nn_done(n, "rows", ERR_NOMEM);
        return;
    }
    const int32_t *start = r->start[DIT_IMG];
    for (int i = 0; i < n_row; i++)
        dit_rows_add(r, row[i].cond->n_tok, filled(dit_patch_count(&m->patch, &row[i])));
    dit_rows_layouts(r, n);
    struct tensor emb = time_embed(m, n, row, n_row);
    struct z_run run = {.layout = DIT_IMG, .temb = nn_act(n, emb, IMAGE_ACT_NONE, n->mul)};
    struct tensor late = nn_act(n, emb, IMAGE_ACT_SILU, n->mul);
    nn_free(n, &emb);

    tables(m, n, row, r, &run);
    struct tensor y = dit_put_latents(n, &m->patch, row, n_row, start);
    struct tensor img = nn_linear(n, &m->x_in, y);
    nn_free(n, &y);
    for (int i = 0; i < n_row; i++)
        fill(n, img, start, i, dit_patch_count(&m->patch, &row[i]), m->x_fill);
    for (int i = 0; i < m->n_refine; i++)
        block_run(m, n, &m->block[i], &run, img);
    run_end(n, &run);

    /* the captions come ready from the host; from here on text and image are one stream */
    run.layout = DIT_JOINT;
    tables(m, n, row, r, &run);
    struct tensor txt = dit_put_states(n, row, n_row, m->dim);
    struct tensor x = dit_join(n, r, txt, img);
    nn_free(n, &txt);
    nn_free(n, &img);
    for (int i = 0; i < m->n_layer && !n->rc; i++)
        block_run(m, n, &m->block[2 * m->n_refine + i], &run, x);
    run_end(n, &run);

    dit_split(n, r, x, NULL, &img);
    nn_free(n, &x);
    struct tensor scale = nn_linear(n, &m->final_mod, late);
    y = dit_modulate(n, img, scale, (struct tensor){0}, DIT_IMG);
    struct tensor out = nn_linear(n, &m->final, y);
    dit_get_latents(n, &m->patch, out, -1, row, n_row, start);
    struct tensor *const all[] = {&run.temb, &late, &img, &scale, &y, &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        nn_free(n, all[i]);
}
