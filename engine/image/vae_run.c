/* The autoencoder's forward: maps as rows (ops_image.h), one layout a resolution, the latents' first. Temporaries are
 * released as soon as they are read, because at full resolution two of them are most of a picture's memory. */
#include "engine/image/vae_impl.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>

#define EPS_GROUP 1e-6f
#define EPS_RMS   1e-12f

struct run {
    struct vae *m;
    struct nn *n;
    int64_t rows[VAE_LEVELS];
};

/* Layouts of the tiles at every level. 0, or a negative code with the run's error set. */
static int run_begin(struct run *r, const struct img_tile *in, int n_in)
{
    struct vae *m = r->m;
    size_t per = 3 * (size_t)n_in + 1, n;
    free(m->rows);
    m->rows = ck_mul(per, (size_t)m->n_level * sizeof *m->rows, &n) ? mem_alloc(n) : NULL;
    if (!m->rows) {
        nn_done(r->n, "vae", ERR_NOMEM);
        return ERR_NOMEM;
    }
    for (int l = 0; l < m->n_level; l++) {
        int32_t *start = m->rows + (size_t)l * per, *h = start + n_in + 1, *w = h + n_in;
        int64_t at = 0;
        for (int i = 0; i < n_in; i++) {
            start[i] = (int32_t)at;
            h[i] = in[i].h << l;
            w[i] = in[i].w << l;
            at += (int64_t)h[i] * w[i];
            if (at > INT32_MAX) {
                nn_done(r->n, "vae", ERR_LIMIT);
                return ERR_LIMIT;
            }
        }
        start[n_in] = (int32_t)at;
        r->rows[l] = at;
        m->layout[l] = (struct image_layout){.n_seg = n_in, .start = start, .h = h, .w = w};
    }
    struct image_meta meta = {.n_layout = m->n_level};
    for (int l = 0; l < m->n_level; l++)
        meta.layout[l] = m->layout[l];
    nn_layouts(r->n, &meta);
    return r->n->rc;
}

/* x as products read it; x is used up. */
static struct tensor as_mul(struct run *r, struct tensor x)
{
    if (x.dtype == r->n->mul)
        return x;
    struct tensor y = nn_act(r->n, x, IMAGE_ACT_NONE, r->n->mul);
    nn_free(r->n, &x);
    return y;
}

enum conv_kind { CONV, CONV_UP, CONV_DOWN };

/* From level `in`; src (mul) is used up. sum, if it has rows, is added to and returned. */
static struct tensor conv(struct run *r, const struct nn_conv *c, struct tensor src, int in,
                          enum conv_kind kind, struct tensor sum)
{
    int out = in + (kind == CONV_UP) - (kind == CONV_DOWN);
    struct tensor dst = sum.n_dim ? sum : nn_tmp(r->n, DT_F32, r->rows[out], c->c_out);
    NN_OP(r->n, conv, .dst = dst, .src = src, .w = c->w, .bias = c->bias, .add = sum, .in = in,
          .out = out, .k = c->k, .stride = kind == CONV_DOWN ? 2 : 1,
          .pad = kind == CONV_DOWN ? 0 : c->k / 2, .up = kind == CONV_UP);
    nn_free(r->n, &src);
    return dst;
}

static const struct tensor none;

/* act(norm x) to mul; x stays. */
static struct tensor norm_act(struct run *r, const struct nn_norm *w, struct tensor x, int level,
                              enum image_act act)
{
    struct nn *n = r->n;
    int64_t c = x.shape[1];
    if (r->m->groups) {
        struct tensor y = nn_tmp(n, n->mul, r->rows[level], c);
        NN_OP(n, group_norm, .dst = y, .x = x, .w = w->w, .b = w->b, .groups = r->m->groups,
              .eps = EPS_GROUP, .act = act, .layout = level);
        return y;
    }
    /* The activation rounds, not the norm. */
    struct tensor f = nn_tmp(n, DT_F32, r->rows[level], c);
    NN_OP(n, layer_norm, .dst = f, .x = x, .w = w->w, .rms = true, .eps = EPS_RMS, .layout = -1);
    if (n->mul == DT_F32) {
        NN_OP(n, act, .dst = f, .x = f, .act = act);
        return f;
    }
    struct tensor y = nn_act(n, f, act, n->mul);
    nn_free(n, &f);
    return y;
}

/* x is used up. */
static struct tensor res(struct run *r, const struct vae_res *b, struct tensor x, int level)
{
    struct tensor a = norm_act(r, &b->norm1, x, level, IMAGE_ACT_SILU);
    struct tensor h = conv(r, &b->conv1, a, level, CONV, none);
    a = norm_act(r, &b->norm2, h, level, IMAGE_ACT_SILU);
    nn_free(r->n, &h);
    if (b->c_in != b->c_out)
        x = conv(r, &b->shortcut, as_mul(r, x), level, CONV, none);
    return conv(r, &b->conv2, a, level, CONV, x);
}

static void attention(struct run *r, const struct vae_attn *t, struct tensor x, int level)
{
    struct nn *n = r->n;
    struct tensor a = norm_act(r, &t->norm, x, level, IMAGE_ACT_NONE);
    struct tensor qkv = nn_linear(n, &t->qkv, a);
    nn_free(n, &a);
    a = nn_tmp(n, n->mul, r->rows[level], t->c);
    NN_OP(n, attend, .dst = a, .q = tensor_cols(qkv, 0, t->c), .k = tensor_cols(qkv, t->c, t->c),
          .v = tensor_cols(qkv, 2 * t->c, t->c), .n_head = 1, .n_kv_head = 1, .head_dim = t->c,
          .scale = 1.0f / sqrtf((float)t->c), .q_layout = level, .kv_layout = level);
    nn_free(n, &qkv);
    struct tensor y = nn_linear(n, &t->out, a);
    nn_free(n, &a);
    NN_OP(n, gate_add, .x = x, .y = y, .factor = 1, .layout = -1);
    nn_free(n, &y);
}

/* The two middle blocks and the attention between them, at the latents' resolution. */
static struct tensor middle(struct run *r, const struct vae_half *h, struct tensor x)
{
    x = res(r, &h->mid[0], x, 0);
    if (h->attn.c)
        attention(r, &h->attn, x, 0);
    return res(r, &h->mid[1], x, 0);
}

/* act(norm x) through the last convolution; x is used up. */
static struct tensor tail(struct run *r, const struct vae_half *h, struct tensor x, int level)
{
    struct tensor a = norm_act(r, &h->norm, x, level, IMAGE_ACT_SILU);
    nn_free(r->n, &x);
    return conv(r, &h->out, a, level, CONV, none);
}

static struct tensor levels(struct run *r, const struct vae_half *h, struct tensor x, int level,
                            enum conv_kind kind)
{
    for (int i = 0; i < r->m->n_level; i++) {
        const struct vae_level *y = &h->level[i];
        for (int k = 0; k < y->n_res; k++)
            x = res(r, &y->res[k], x, level);
        if (y->resample) {
            x = conv(r, &y->conv, as_mul(r, x), level, kind, none);
            level += kind == CONV_UP ? 1 : -1;
        }
    }
    return x;
}

/* ---- host side ---- */

/* Between [c, h, w] at `planes` and c0 values a position at `rows` of ld values each, through v * mul + add (by
 * channel; NULL: 1 and 0). */
struct pack {
    int64_t c, ld, n;
    const float *mul, *add;
};
static void to_rows(const struct pack *p, const float *planes, float *rows)
{
    for (int64_t c = 0; c < p->c; c++) {
        float mul = p->mul ? p->mul[c] : 1, add = p->add ? p->add[c] : 0;
        for (int64_t i = 0; i < p->n; i++)
            rows[i * p->ld + c] = planes[c * p->n + i] * mul + add;
    }
}

/* The other way round: (v - add) / mul. */
static void to_planes(const struct pack *p, const float *rows, float *planes)
{
    for (int64_t c = 0; c < p->c; c++) {
        float mul = p->mul ? p->mul[c] : 1, add = p->add ? p->add[c] : 0;
        for (int64_t i = 0; i < p->n; i++)
            planes[c * p->n + i] = (rows[i * p->ld + c] - add) / mul;
    }
}

static float *host_rows(struct run *r, int64_t rows, int64_t c)
{
    size_t n;
    float *p = ck_mul((size_t)rows, (size_t)c * sizeof *p, &n) ? mem_alloc(n) : NULL;
    if (!p)
        nn_done(r->n, "vae", ERR_NOMEM);
    return p;
}

/* The tiles' values as a temporary (mul) [rows of level, c]. */
static struct tensor upload(struct run *r, const struct img_tile *in, int n_in, int level)
{
    bool latents = level == 0;
    int c = latents ? r->m->c : 3;
    struct tensor x = nn_tmp(r->n, DT_F32, r->rows[level], c);
    if (!r->n->dry && !r->n->rc) {
        float *p = host_rows(r, r->rows[level], c);
        const struct image_layout *y = &r->m->layout[level];
        for (int i = 0; p && i < n_in; i++) {
            struct pack k = {.c = c, .ld = c, .n = y->start[i + 1] - y->start[i]};
            if (latents) {
                k.mul = r->m->mul;
                k.add = r->m->add;
            }
            to_rows(&k, latents ? in[i].latent : in[i].rgb, p + (int64_t)y->start[i] * c);
        }
        if (p)
            nn_put(r->n, &x, p);
        free(p);
    }
    return as_mul(r, x);
}

/* x's first channels back to the tiles; x is used up. */
static void download(struct run *r, struct tensor x, const struct img_tile *in, int n_in, int level)
{
    if (!r->n->dry && !r->n->rc) {
        int64_t ld = x.shape[1];
        bool latents = level == 0;
        float *p = host_rows(r, r->rows[level], ld);
        const struct image_layout *y = &r->m->layout[level];
        if (p)
            nn_get(r->n, &x, p);
        for (int i = 0; p && !r->n->rc && i < n_in; i++) {
            struct pack k = {
                .c = latents ? r->m->c : 3, .ld = ld, .n = y->start[i + 1] - y->start[i]};
            if (latents) {
                k.mul = r->m->mul;
                k.add = r->m->add;
            }
            to_planes(&k, p + y->start[i] * ld, latents ? in[i].latent : in[i].rgb);
        }
        free(p);
    }
    nn_free(r->n, &x);
}

void vae_decode(struct vae *m, struct nn *n, const struct img_tile *in, int n_in)
{
    struct run r = {.m = m, .n = n};
    const struct vae_half *h = &m->dec;
    int top = m->n_level - 1;
    if (n->rc || run_begin(&r, in, n_in))
        return;
    struct tensor x = upload(&r, in, n_in, 0);
    if (h->quant)
        x = as_mul(&r, conv(&r, &h->quant_conv, x, 0, CONV, none));
    x = middle(&r, h, conv(&r, &h->in, x, 0, CONV, none));
    x = levels(&r, h, x, 0, CONV_UP);
    download(&r, tail(&r, h, x, top), in, n_in, top);
}

void vae_encode(struct vae *m, struct nn *n, const struct img_tile *in, int n_in)
{
    struct run r = {.m = m, .n = n};
    const struct vae_half *h = &m->enc;
    int top = m->n_level - 1;
    if (!n->rc && !m->encoder)
        nn_done(n, "vae encoder", ERR_UNSUPPORTED);
    if (n->rc || run_begin(&r, in, n_in))
        return;
    struct tensor x = upload(&r, in, n_in, top);
    x = levels(&r, h, conv(&r, &h->in, x, top, CONV, none), top, CONV_DOWN);
    x = tail(&r, h, middle(&r, h, x), 0);
    if (h->quant)
        x = conv(&r, &h->quant_conv, as_mul(&r, x), 0, CONV, none);
    download(&r, x, in, n_in, 0);
}
