/* A UNet's pass over rows of many pictures. See unet.h. */
#include "engine/image/unet_impl.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

int unet_open(struct unet **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct unet *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the unet");
    int rc = unet__load(m, w, c, e);
    if (rc) {
        unet_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

static void block_close(struct unet_block *b)
{
    for (int i = 0; i < UNET_LAYERS; i++)
        free(b->attn[i].layer);
}

void unet_close(struct unet *m)
{
    if (!m)
        return;
    for (int i = 0; i < UNET_LEVELS; i++) {
        block_close(&m->down[i]);
        block_close(&m->up[i]);
    }
    block_close(&m->mid);
    free(m->ints);
    free(m->host);
    free(m);
}

const struct unet_info *unet_info(const struct unet *m)
{
    return &m->info;
}

/* ---- layouts ---- */

/* What a caller could get wrong, before anything is read. Dry runs have sizes only. */
static int rows_check(const struct unet *m, const struct unet_row *rows, int n_row, bool dry)
{
    const struct unet_info *f = &m->info;
    for (int i = 0; i < n_row; i++) {
        const struct unet_row *r = &rows[i];
        if (r->h < 1 || r->w < 1 || r->h > 1 << 14 || r->w > 1 << 14 || r->n_tok < 1)
            return ERR_INVAL;
        if (dry)
            continue;
        if (f->add_in && (r->n_id < 0 || r->n_id > UNET_IDS_MAX ||
                          r->n_pooled + r->n_id * f->add_id_dim != f->add_in || !r->pooled))
            return ERR_INVAL;
        if (!r->latent || !r->context || !r->out || (r->extra && f->c_in <= f->c_out))
            return ERR_INVAL;
    }
    return 0;
}

/* Sizes halve inwards, odd ones upwards; the way out comes back to the same sizes. */
static int layouts_make(struct unet *m, const struct unet_row *rows, int n_row)
{
    size_t n = (size_t)n_row, need = (size_t)m->n_level * (3 * n + 1) + n + 1;
    if (need > m->n_ints) {
        int32_t *p = mem_realloc(m->ints, need * sizeof *p);
        if (!p)
            return ERR_NOMEM;
        m->ints = p;
        m->n_ints = need;
    }
    int32_t *at = m->ints;
    m->meta.n_layout = m->n_level + 1;
    for (int l = 0; l < m->n_level; l++) {
        int32_t *start = at, *h = at + n + 1, *w = h + n;
        start[0] = 0;
        for (int i = 0; i < n_row; i++) {
            h[i] = ((rows[i].h - 1) >> l) + 1;
            w[i] = ((rows[i].w - 1) >> l) + 1;
            int64_t end = (int64_t)start[i] + (int64_t)h[i] * w[i];
            if (end > INT32_MAX)
                return ERR_NOMEM;
            start[i + 1] = (int32_t)end;
        }
        m->meta.layout[l] = (struct image_layout){n_row, start, h, w};
        at = w + n;
    }
    at[0] = 0;
    for (int i = 0; i < n_row; i++) {
        if (rows[i].n_tok > INT32_MAX - at[i])
            return ERR_NOMEM;
        at[i + 1] = at[i] + rows[i].n_tok;
    }
    m->meta.layout[m->n_level] = (struct image_layout){n_row, at, NULL, NULL};
    return 0;
}

/* Rows of all pictures at a resolution, or of all prompts. */
static int64_t rows_of(const struct unet *m, int layout)
{
    const struct image_layout *y = &m->meta.layout[layout];
    return y->start[y->n_seg];
}

/* ---- inputs ---- */

/* Staging for n values, reused: nn_put has copied when it returns. NULL in a dry run and after an error. It grows to the
 * largest step and stays, so that steps allocate nothing later. */
static float *host(struct unet *m, struct nn *n, size_t n_value)
{
    if (n->dry || n->rc)
        return NULL;
    if (n_value > m->n_host) {
        float *p = mem_realloc(m->host, n_value * sizeof *p);
        if (!p) {
            nn_done(n, "unet", ERR_NOMEM);
            return NULL;
        }
        m->host = p;
        m->n_host = n_value;
    }
    return m->host;
}

/* [c, h, w] of all rows -> (mul) [rows, c_in] */
static struct tensor latents_put(struct unet *m, struct nn *n, const struct unet_row *rows,
                                 int n_row)
{
    int c_in = m->info.c_in;
    struct tensor x = nn_tmp(n, DT_F32, rows_of(m, 0), c_in);
    float *dst = host(m, n, (size_t)rows_of(m, 0) * (size_t)c_in);
    for (int i = 0; dst && i < n_row; i++) {
        const struct unet_row *r = &rows[i];
        size_t area = (size_t)r->h * (size_t)r->w;
        int c_main = r->extra ? m->info.c_out : c_in;
        for (int c = 0; c < c_in; c++) {
            const float *src =
                c < c_main ? r->latent + (size_t)c * area : r->extra + (size_t)(c - c_main) * area;
            for (size_t k = 0; k < area; k++)
                dst[k * (size_t)c_in + (size_t)c] = m->centre ? 2 * src[k] - 1 : src[k];
        }
        dst += area * (size_t)c_in;
    }
    if (dst)
        nn_put(n, &x, m->host);
    struct tensor h = nn_act(n, x, IMAGE_ACT_NONE, n->mul);
    nn_free(n, &x);
    return h;
}

/* [n_tok, dim] of all rows behind each other -> (mul); read by every layer of every transformer */
static struct tensor context_put(struct unet *m, struct nn *n, const struct unet_row *rows,
                                 int n_row)
{
    size_t dim = (size_t)m->info.context_dim;
    int64_t n_tok = rows_of(m, m->n_level);
    struct tensor x = nn_tmp(n, DT_F32, n_tok, (int64_t)dim);
    float *dst = host(m, n, (size_t)n_tok * dim);
    for (int i = 0; dst && i < n_row; i++) {
        size_t k = (size_t)rows[i].n_tok * dim;
        memcpy(dst, rows[i].context, k * sizeof *dst);
        dst += k;
    }
    if (dst)
        nn_put(n, &x, m->host);
    struct tensor h = nn_act(n, x, IMAGE_ACT_NONE, n->mul);
    nn_free(n, &x);
    return h;
}

/* b(silu(a(x))); x goes */
static struct tensor two_linear(struct nn *n, const struct nn_linear *a, const struct nn_linear *b,
                                struct tensor *x)
{
    struct tensor y = nn_linear(n, a, *x);
    nn_free(n, x);
    struct tensor h = nn_act(n, y, IMAGE_ACT_SILU, n->mul);
    nn_free(n, &y);
    y = nn_linear(n, b, h);
    nn_free(n, &h);
    return y;
}

/* Sinusoids of every row's guidance, projected, onto x (Luo et al. 2023). */
static void guidance_add(struct unet *m, struct nn *n, const struct unet_row *rows, int n_row,
                         struct tensor x)
{
    int dim = m->info.guidance_dim;
    struct tensor w = nn_tmp(n, DT_F32, n_row, dim);
    float *dst = host(m, n, (size_t)n_row * (size_t)dim);
    for (int i = 0; dst && i < n_row; i++)
        nn_sinusoid((rows[i].guidance - 1) * 1000, dim, false, 1, 1, 10000,
                    dst + (size_t)i * (size_t)dim);
    if (dst)
        nn_put(n, &w, dst);
    struct tensor y = nn_linear(n, &m->guidance, w);
    nn_free(n, &w);
    NN_OP(n, gate_add, .x = x, .y = y, .factor = 1, .layout = -1);
    nn_free(n, &y);
}

/* Pooled text and size ids (Podell et al. 2023), as one more embedding onto x. */
static void added_add(struct unet *m, struct nn *n, const struct unet_row *rows, int n_row,
                      struct tensor x)
{
    size_t dim = (size_t)m->info.add_in, id = (size_t)m->info.add_id_dim;
    struct tensor w = nn_tmp(n, DT_F32, n_row, (int64_t)dim);
    float *dst = host(m, n, (size_t)n_row * dim);
    for (int i = 0; dst && i < n_row; i++) {
        const struct unet_row *r = &rows[i];
        float *v = dst + (size_t)i * dim;
        memcpy(v, r->pooled, (size_t)r->n_pooled * sizeof *v);
        for (int k = 0; k < r->n_id; k++)
            nn_sinusoid(r->id[k], (int)id, m->cos_first, m->freq_shift, 1, 10000,
                        v + (size_t)r->n_pooled + (size_t)k * id);
    }
    if (dst)
        nn_put(n, &w, dst);
    struct tensor y = two_linear(n, &m->add1, &m->add2, &w);
    NN_OP(n, gate_add, .x = x, .y = y, .factor = 1, .layout = -1);
    nn_free(n, &y);
}

/* What every resnet is told of its row: moment, and where the model takes them guidance, pooled text and sizes ->
 * (mul) [n_row, 4 channels[0]]. The activation in front of each resnet's own projection is made here, once. */
static struct tensor time_make(struct unet *m, struct nn *n, const struct unet_row *rows, int n_row)
{
    int dim = m->channels[0];
    struct tensor t = nn_tmp(n, DT_F32, n_row, dim);
    float *dst = host(m, n, (size_t)n_row * (size_t)dim);
    for (int i = 0; dst && i < n_row; i++)
        nn_sinusoid(rows[i].timestep, dim, m->cos_first, m->freq_shift, 1, 10000,
                    dst + (size_t)i * (size_t)dim);
    if (dst)
        nn_put(n, &t, dst);
    if (m->info.guidance_dim)
        guidance_add(m, n, rows, n_row, t);
    struct tensor x = two_linear(n, &m->time1, &m->time2, &t);
    if (m->info.add_in)
        added_add(m, n, rows, n_row, x);
    struct tensor h = nn_act(n, x, IMAGE_ACT_SILU, n->mul);
    nn_free(n, &x);
    return h;
}

/* ---- the pass ---- */

/* What the way in left for the way out; the list owns its tensors. */
struct skips {
    struct tensor t[UNET_SKIPS];
    int n;
};

/* The last skip is also the way's result: who goes on with x must not free it. */
static void way_in(const struct unet_pass *p, struct tensor x, struct skips *k)
{
    const struct unet *m = p->m;
    k->t[k->n++] = x;
    for (int l = 0; l < m->n_level; l++) {
        const struct unet_block *b = &m->down[l];
        for (int i = 0; i < b->n_res; i++) {
            x = unet__resnet(p, &b->res[i], x, l);
            if (b->attn[i].n_layer)
                unet__transformer(p, &b->attn[i], x, l);
            k->t[k->n++] = x;
        }
        if (b->sample.c_out)
            k->t[k->n++] = x = unet__sample(p, &b->sample, x, l, l + 1);
    }
}

/* Middle block of `top`, the last skip, which stays; with no middle block it is the way out's input itself. */
static struct tensor middle(const struct unet_pass *p, struct tensor top)
{
    const struct unet_block *b = &p->m->mid;
    int l = p->m->n_level - 1;
    struct tensor x = top;
    for (int i = 0; i < b->n_res; i++) {
        struct tensor y = unet__resnet(p, &b->res[i], x, l);
        if (i)
            nn_free(p->n, &x);
        x = y;
        if (b->attn[i].n_layer)
            unet__transformer(p, &b->attn[i], x, l);
    }
    return x;
}

/* Takes the skips back and frees them; x is freed where it is not the last skip itself. */
static struct tensor way_out(const struct unet_pass *p, struct tensor x, struct skips *k)
{
    const struct unet *m = p->m;
    bool owned = m->mid.n_res > 0;
    for (int i = 0; i < m->n_level; i++) {
        const struct unet_block *b = &m->up[i];
        int l = m->n_level - 1 - i;
        for (int j = 0; j < b->n_res; j++) {
            struct tensor c = nn_concat(p->n, x, k->t[--k->n]);
            nn_free(p->n, &k->t[k->n]);
            if (owned)
                nn_free(p->n, &x);
            owned = true;
            x = unet__resnet(p, &b->res[j], c, l);
            nn_free(p->n, &c);
            if (b->attn[j].n_layer)
                unet__transformer(p, &b->attn[j], x, l);
        }
        if (b->sample.c_out) {
            struct tensor y = unet__sample(p, &b->sample, x, l, l - 1);
            nn_free(p->n, &x);
            x = y;
        }
    }
    return x;
}

/* Norm, last convolution, and back to [c, h, w] on the host. x goes. */
static void finish(struct unet *m, struct nn *n, struct tensor x, const struct unet_row *rows,
                   int n_row)
{
    int64_t n_pix = rows_of(m, 0);
    int c_out = m->info.c_out;
    struct tensor h = nn_tmp(n, n->mul, n_pix, m->channels[0]);
    NN_OP(n, group_norm, .dst = h, .x = x, .w = m->norm_out.w, .b = m->norm_out.b,
          .groups = m->groups, .eps = m->eps, .act = IMAGE_ACT_SILU, .layout = 0);
    nn_free(n, &x);
    struct tensor o = nn_tmp(n, DT_F32, n_pix, c_out);
    NN_OP(n, conv, .dst = o, .src = h, .w = m->conv_out.w, .bias = m->conv_out.bias,
          .k = m->conv_out.k, .stride = 1, .pad = m->conv_out.k / 2);
    nn_free(n, &h);
    float *src = host(m, n, (size_t)n_pix * (size_t)c_out);
    if (src)
        nn_get(n, &o, src);
    nn_free(n, &o);
    for (int i = 0; src && !n->rc && i < n_row; i++) {
        size_t area = (size_t)rows[i].h * (size_t)rows[i].w;
        for (int c = 0; c < c_out; c++)
            for (size_t k = 0; k < area; k++)
                rows[i].out[(size_t)c * area + k] = src[k * (size_t)c_out + (size_t)c];
        src += area * (size_t)c_out;
    }
}

void unet_run(struct unet *m, struct nn *n, const struct unet_row *rows, int n_row)
{
    if (n->rc || n_row < 1)
        return;
    int rc = rows_check(m, rows, n_row, n->dry);
    if (!rc)
        rc = layouts_make(m, rows, n_row);
    if (rc) {
        nn_done(n, "unet", rc);
        return;
    }
    nn_layouts(n, &m->meta);
    struct unet_pass p = {.m = m, .n = n};
    p.temb = time_make(m, n, rows, n_row);
    p.context = context_put(m, n, rows, n_row);
    struct tensor in = latents_put(m, n, rows, n_row);
    struct tensor x = nn_tmp(n, DT_F32, rows_of(m, 0), m->channels[0]);
    NN_OP(n, conv, .dst = x, .src = in, .w = m->conv_in.w, .bias = m->conv_in.bias,
          .k = m->conv_in.k, .stride = 1, .pad = m->conv_in.k / 2);
    nn_free(n, &in);
    struct skips k = {.n = 0};
    way_in(&p, x, &k);
    x = middle(&p, k.t[k.n - 1]);
    x = way_out(&p, x, &k);
    nn_free(n, &p.context);
    nn_free(n, &p.temb);
    finish(m, n, x, rows, n_row);
}
