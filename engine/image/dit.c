/* Rows, patches, rotary tables and embeddings of diffusion transformers. See dit.h. */
#include "engine/image/dit.h"
#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows ---- */

int dit_rows_begin(struct dit_rows *r, int n)
{
    if (n > r->cap || !r->start[0]) {
        size_t per = (size_t)n + 1, bytes;
        if (n < 0 || !ck_mul(per, DIT_N_LAYOUT * sizeof(int32_t), &bytes))
            return ERR_NOMEM;
        int32_t *p = mem_alloc(bytes);
        if (!p)
            return ERR_NOMEM;
        free(r->start[0]);
        for (size_t l = 0; l < DIT_N_LAYOUT; l++)
            r->start[l] = p + l * per;
        r->cap = n;
    }
    r->n = 0;
    for (int l = 0; l < DIT_N_LAYOUT; l++)
        r->start[l][0] = 0;
    return 0;
}

void dit_rows_add(struct dit_rows *r, int n_txt, int n_img)
{
    CHECK(r->n < r->cap && n_txt >= 0 && n_img >= 0);
    const int add[DIT_N_LAYOUT] = {n_txt, n_img, n_txt + n_img};
    for (int l = 0; l < DIT_N_LAYOUT; l++)
        r->start[l][r->n + 1] = r->start[l][r->n] + add[l];
    r->n++;
}

void dit_rows_close(struct dit_rows *r)
{
    free(r->start[0]);
    *r = (struct dit_rows){0};
}

void dit_rows_layouts(const struct dit_rows *r, struct nn *n)
{
    struct image_meta m = {.n_layout = DIT_N_LAYOUT};
    for (int l = 0; l < DIT_N_LAYOUT; l++)
        m.layout[l] = (struct image_layout){.n_seg = r->n, .start = r->start[l]};
    nn_layouts(n, &m);
}

/* The picture's rows of one stream between the stream's tensor and the joint one. */
static void copy_part(struct nn *n, const struct dit_rows *r, struct tensor joint,
                      struct tensor part, enum dit_layout l, bool to_joint)
{
    for (int i = 0; i < r->n; i++) {
        int32_t rows = r->start[l][i + 1] - r->start[l][i];
        int32_t at = r->start[DIT_JOINT][i];
        if (!rows)
            continue;
        if (l == DIT_IMG) /* behind the picture's text */
            at += r->start[DIT_TXT][i + 1] - r->start[DIT_TXT][i];
        struct tensor a = nn_rows(joint, at, rows), b = nn_rows(part, r->start[l][i], rows);
        NN_OP(n, act, .dst = to_joint ? a : b, .x = to_joint ? b : a);
    }
}

struct tensor dit_join(struct nn *n, const struct dit_rows *r, struct tensor txt, struct tensor img)
{
    struct tensor joint = nn_tmp(n, img.dtype, dit_rows_sum(r, DIT_JOINT), img.shape[1]);
    copy_part(n, r, joint, txt, DIT_TXT, true);
    copy_part(n, r, joint, img, DIT_IMG, true);
    return joint;
}

void dit_split(struct nn *n, const struct dit_rows *r, struct tensor joint, struct tensor *txt,
               struct tensor *img)
{
    if (txt) {
        *txt = nn_tmp(n, joint.dtype, dit_rows_sum(r, DIT_TXT), joint.shape[1]);
        copy_part(n, r, joint, *txt, DIT_TXT, false);
    }
    if (img) {
        *img = nn_tmp(n, joint.dtype, dit_rows_sum(r, DIT_IMG), joint.shape[1]);
        copy_part(n, r, joint, *img, DIT_IMG, false);
    }
}

/* ---- host side ---- */

void *dit_host(struct nn *n, int64_t rows, int64_t cols, size_t size)
{
    size_t count;
    void *p = NULL;
    if (!n->rc && rows >= 0 && cols >= 0 && ck_mul((size_t)rows, (size_t)cols, &count))
        p = mem_calloc(count, size);
    if (!p)
        nn_done(n, "host", ERR_NOMEM);
    return p;
}

/* For every value: its place among the rows and in the latents. */
static void patch_copy(const struct dit_patch *a, int h_n, int w_n, const float *src, float *dst,
                       float unpack)
{
    size_t h = (size_t)h_n, w = (size_t)w_n, p = (size_t)a->p, c_n = (size_t)a->c;
    size_t cols = c_n * p * p;
    for (size_t c = 0; c < c_n; c++)
        for (size_t y = 0; y < h; y++)
            for (size_t x = 0; x < w; x++) {
                size_t row = y / p * (w / p) + x / p, in = y % p * p + x % p;
                size_t at = row * cols;
                at += a->order == DIT_CHANNEL_FIRST ? c * p * p + in : in * c_n + c;
                size_t of = (c * h + y) * w + x;
                if (unpack == 0)
                    dst[at] = src[of];
                else
                    dst[of] = src[at] * unpack;
            }
}

void dit_patch_pack(const struct dit_patch *a, int h, int w, const float *latent, float *rows)
{
    patch_copy(a, h, w, latent, rows, 0);
}

void dit_patch_unpack(const struct dit_patch *a, int h, int w, const float *rows, float factor,
                      float *latent)
{
    patch_copy(a, h, w, rows, latent, factor);
}

struct tensor dit_put_latents(struct nn *n, const struct dit_patch *a, const struct img_row *row,
                              int n_row, const int32_t *start)
{
    int64_t cols = (int64_t)a->c * a->p * a->p;
    struct tensor t = nn_tmp(n, DT_F32, start[n_row], cols);
    if (n->dry || n->rc)
        return t;
    float *v = dit_host(n, start[n_row], cols, sizeof *v);
    if (!v)
        return t;
    for (int i = 0; i < n_row; i++)
        dit_patch_pack(a, row[i].h, row[i].w, row[i].latent, v + start[i] * cols);
    nn_put(n, &t, v);
    free(v);
    return t;
}

void dit_get_latents(struct nn *n, const struct dit_patch *a, struct tensor t, float factor,
                     const struct img_row *row, int n_row, const int32_t *start)
{
    int64_t cols = (int64_t)a->c * a->p * a->p;
    if (n->dry || n->rc)
        return;
    float *v = dit_host(n, start[n_row], cols, sizeof *v);
    if (!v)
        return;
    nn_get(n, &t, v);
    for (int i = 0; i < n_row && !n->rc; i++)
        dit_patch_unpack(a, row[i].h, row[i].w, v + start[i] * cols, factor, row[i].out);
    free(v);
}

struct tensor dit_put_states(struct nn *n, const struct img_row *row, int n_row, int dim)
{
    int64_t rows = 0, at = 0;
    for (int i = 0; i < n_row; i++)
        rows += row[i].cond->n_tok;
    struct tensor t = nn_tmp(n, DT_F32, rows, dim);
    if (n->dry || n->rc)
        return t;
    for (int i = 0; i < n_row && !n->rc; i++) {
        struct tensor part = nn_rows(t, at, row[i].cond->n_tok);
        if (row[i].cond->dim != dim)
            nn_done(n, "states", ERR_INVAL);
        nn_put(n, &part, row[i].cond->states);
        at += row[i].cond->n_tok;
    }
    return t;
}

/* ---- rotation ---- */

int dit_rope_dim(const struct dit_rope *r)
{
    int d = 0;
    for (int a = 0; a < r->n_axis; a++)
        d += r->dim[a];
    return d;
}

int dit_rope_read(struct dit_rope *r, struct config *c, const char *key, int head_dim,
                  struct err *e)
{
    int n = config_len(c, key);
    r->n_axis = 3;
    for (int i = 0; i < n && i < 3; i++)
        r->dim[i] = (int)config_int_at(c, key, i, 2, 1024);
    int rc = config_error(c, e);
    if (rc)
        return rc;
    if ((n && n != 3) || dit_rope_dim(r) != head_dim || r->dim[0] % 2 || r->dim[1] % 2 ||
        r->dim[2] % 2)
        return err_set(e, ERR_INVAL, "transformer: %s must be 3 even numbers whose sum is %d", key,
                       head_dim);
    return 0;
}

/* Columns of one axis for all rows. A table over the range of positions comes first: pictures have far fewer
 * positions on an axis than rows, and sines are slow. ERR_NOMEM. */
static int axis_fill(const struct dit_rope *r, int axis, const int32_t *pos, size_t rows,
                     float *out[2])
{
    size_t half = (size_t)r->dim[axis] / 2, stride = (size_t)dit_rope_dim(r) / 2, bytes;
    size_t n_axis = (size_t)r->n_axis;
    int32_t lo = pos[axis], hi = pos[axis];
    for (size_t i = 1; i < rows; i++) {
        int32_t p = pos[i * n_axis + (size_t)axis];
        lo = p < lo ? p : lo;
        hi = p > hi ? p : hi;
    }
    size_t n_pos = (size_t)((int64_t)hi - lo + 1);
    if (!ck_mul(n_pos, 2 * half * sizeof(float), &bytes))
        return ERR_NOMEM;
    float *table = mem_alloc(bytes);
    if (!table)
        return ERR_NOMEM;
    for (size_t k = 0; k < half; k++) {
        double freq = pow(r->theta, -2.0 * (double)k / r->dim[axis]);
        for (size_t i = 0; i < n_pos; i++) {
            double angle = (double)((int64_t)lo + (int64_t)i) * freq;
            table[2 * i * half + k] = (float)cos(angle);
            table[(2 * i + 1) * half + k] = (float)sin(angle);
        }
    }
    for (size_t i = 0; i < rows; i++) {
        const float *t = table + 2 * half * (size_t)(pos[i * n_axis + (size_t)axis] - lo);
        memcpy(out[0] + i * stride, t, half * sizeof *t);
        memcpy(out[1] + i * stride, t + half, half * sizeof *t);
    }
    free(table);
    return 0;
}

void dit_rope_tables(struct nn *n, const struct dit_rope *r, const int32_t *pos, int64_t rows,
                     struct tensor *cos_out, struct tensor *sin_out)
{
    size_t half = (size_t)dit_rope_dim(r) / 2, values = (size_t)rows * half;
    *cos_out = nn_tmp(n, DT_F32, rows, (int64_t)half);
    *sin_out = nn_tmp(n, DT_F32, rows, (int64_t)half);
    if (n->dry || n->rc || !rows)
        return;
    float *both = dit_host(n, rows, 2 * (int64_t)half, sizeof *both);
    if (!both)
        return;
    float *at[2] = {both, both + values};
    int rc = 0;
    for (int a = 0; a < r->n_axis && !rc; a++) {
        rc = axis_fill(r, a, pos, (size_t)rows, at);
        at[0] += r->dim[a] / 2;
        at[1] += r->dim[a] / 2;
    }
    if (rc)
        nn_done(n, "rope_tables", rc);
    nn_put(n, cos_out, both);
    nn_put(n, sin_out, both + values);
    free(both);
}

/* ---- embeddings and modulation ---- */

void dit_mlp_load(struct nn_load *l, struct dit_mlp *m, const int64_t size[3], const char *in,
                  const char *out)
{
    nn_load_linear(l, &m->in, size[0], size[1], 0, "%s", in);
    nn_load_linear(l, &m->out, size[1], size[2], 0, "%s", out);
}

void dit_embedder_load(struct nn_load *l, struct dit_mlp *m, const char *what, int64_t n_in,
                       int64_t d)
{
    char in[64], out[64];
    snprintf(in, sizeof in, "time_text_embed.%s_embedder.linear_1", what);
    snprintf(out, sizeof out, "time_text_embed.%s_embedder.linear_2", what);
    dit_mlp_load(l, m, (int64_t[3]){n_in, d, d}, in, out);
}

struct tensor dit_mlp_run(struct nn *n, const struct dit_mlp *m, struct tensor x)
{
    struct tensor mid = nn_linear(n, &m->in, x);
    struct tensor act = nn_act(n, mid, IMAGE_ACT_SILU, n->mul);
    nn_free(n, &mid);
    struct tensor out = nn_linear(n, &m->out, act);
    nn_free(n, &act);
    return out;
}

void dit_mlp_add(struct nn *n, const struct dit_mlp *m, struct tensor x, struct tensor sum)
{
    struct tensor y = dit_mlp_run(n, m, x);
    nn_free(n, &x);
    NN_OP(n, gate_add, .x = sum, .y = y, .factor = 1, .layout = -1);
    nn_free(n, &y);
}

struct tensor dit_time_run(struct nn *n, const struct dit_mlp *m, const float *t, int n_t,
                           float scale)
{
    struct tensor wave = dit_sinusoids(n, t, n_t, (int)m->in.n_in, scale);
    struct tensor out = dit_mlp_run(n, m, wave);
    nn_free(n, &wave);
    return out;
}

struct tensor dit_silu(struct nn *n, struct tensor *x)
{
    struct tensor out = nn_act(n, *x, IMAGE_ACT_SILU, n->mul);
    nn_free(n, x);
    return out;
}

struct tensor dit_sinusoids(struct nn *n, const float *t, int n_t, int dim, float scale)
{
    struct tensor out = nn_tmp(n, DT_F32, n_t, dim);
    if (n->dry || n->rc)
        return out;
    float *v = dit_host(n, n_t, dim, sizeof *v);
    if (!v)
        return out;
    for (int i = 0; i < n_t; i++)
        nn_sinusoid(t[i], dim, true, 0, scale, 10000, v + (size_t)i * (size_t)dim);
    nn_put(n, &out, v);
    free(v);
    return out;
}

struct tensor dit_put_pooled(struct nn *n, const struct img_row *row, int n_row, int dim)
{
    struct tensor t = nn_tmp(n, DT_F32, n_row, dim);
    for (int i = 0; i < n_row && !n->dry && !n->rc; i++) {
        struct tensor to = nn_rows(t, i, 1);
        if (row[i].cond->n_pooled == dim && row[i].cond->pooled)
            nn_put(n, &to, row[i].cond->pooled);
        else
            nn_done(n, "pooled", ERR_INVAL);
    }
    return t;
}

struct tensor dit_modulate(struct nn *n, struct tensor x, struct tensor scale, struct tensor shift,
                           int layout)
{
    struct tensor out = nn_tmp(n, n->mul, x.shape[0], x.shape[1]);
    NN_OP(n, layer_norm, .dst = out, .x = x, .scale = scale, .shift = shift, .eps = 1e-6f,
          .layout = layout);
    return out;
}

void dit_gate(struct nn *n, struct tensor x, struct tensor *y, struct tensor gate, int layout)
{
    NN_OP(n, gate_add, .x = x, .y = *y, .gate = gate, .factor = 1, .layout = layout);
    nn_free(n, y);
}

/* ---- the last layer ---- */

void dit_last_load(struct nn_load *l, struct dit_last *m, int64_t d, const struct dit_patch *a)
{
    nn_load_linear(l, &m->mod, d, 2 * d, 0, "norm_out.linear");
    nn_load_linear(l, &m->out, d, (int64_t)a->c * a->p * a->p, 0, "proj_out");
}

void dit_last_run(struct nn *n, const struct dit_last *m, const struct dit_pass *p,
                  const struct dit_patch *a, struct tensor *img, const struct img_row *row,
                  int n_row)
{
    int64_t d = img->shape[1];
    struct tensor mod = nn_linear(n, &m->mod, p->temb);
    struct tensor x = dit_modulate(n, *img, dit_slice(mod, 0, d), dit_slice(mod, 1, d), DIT_IMG);
    struct tensor out = nn_linear(n, &m->out, x);
    dit_get_latents(n, a, out, 1, row, n_row, p->rows->start[DIT_IMG]);
    struct tensor *const all[] = {img, &mod, &x, &out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        nn_free(n, all[i]);
}
