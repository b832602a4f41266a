/* CLIP's text transformer: learned positions, causal self-attention within a prompt (padding is attended to, as
 * diffusers runs it), pre-norm blocks. OpenCLIP's differs in the activation only. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/image/enc_impl.h"

struct layer {
    struct nn_norm norm1, norm2;
    struct nn_linear qkv, out, fc1, fc2;
};

struct clip {
    int dim, n_head, n_ff, n_layer;
    int skip; /* layers at the end that are not loaded */
    int eos;
    float eps;
    enum image_act act;
    struct nn_linear tok, pos, proj; /* proj.w NULL: none, or proj_t */
    float *proj_t; /* [dim, n_proj]: OpenCLIP's files hold the projection the other way round */
    int n_proj;
    struct nn_norm final;
    struct layer *layer; /* [n_layer - skip] */
};

static int read_config(struct clip *m, struct comp *c, struct err *e)
{
    struct enc_cfg g = enc__cfg(c->cfg, "text_config.", "hidden_size");
    m->dim = enc__cfg_need(g, "hidden_size", 1, 1 << 16);
    m->n_head = enc__cfg_need(g, "num_attention_heads", 1, 1 << 10);
    m->n_ff = enc__cfg_need(g, "intermediate_size", 1, 1 << 18);
    m->n_layer = enc__cfg_need(g, "num_hidden_layers", 1, ENC_LAYERS_MAX);
    m->eps = (float)enc__cfg_num(g, "layer_norm_eps", 1e-5, 0, 1);
    m->eos = enc__cfg_int(g, "eos_token_id", 49407, 0, INT32_MAX);
    const char *act = enc__cfg_str(g, "hidden_act", "quick_gelu");
    int rc = config_error(c->cfg, e);
    rc = rc ? rc : enc__act(act, &m->act, e);
    if (rc == 0 && m->dim % m->n_head)
        rc = err_set(e, ERR_INVAL, "hidden_size %d is no multiple of num_attention_heads %d",
                     m->dim, m->n_head);
    if (rc == 0 && (m->skip < 0 || m->skip > m->n_layer))
        rc = err_set(e, ERR_INVAL, "cannot leave out %d of %d layers", m->skip, m->n_layer);
    return rc;
}

static void load_layer(struct nn_load *l, const struct clip *m, struct layer *y, const char *prefix,
                       int i)
{
    char at[96];
    snprintf(at, sizeof at, "%sencoder.layers.%d.", prefix, i);
    nn_load_norm(l, &y->norm1, m->dim, 0, "%slayer_norm1", at);
    nn_load_norm(l, &y->norm2, m->dim, 0, "%slayer_norm2", at);
    nn_load_stack(
        l, &y->qkv,
        &(struct nn_stack){.prefix = at,
                           .name = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                           .n_name = 3,
                           .n_in = m->dim,
                           .n_out = {m->dim, m->dim, m->dim}});
    nn_load_linear(l, &y->out, m->dim, m->dim, 0, "%sself_attn.out_proj", at);
    nn_load_linear(l, &y->fc1, m->dim, m->n_ff, 0, "%smlp.fc1", at);
    nn_load_linear(l, &y->fc2, m->n_ff, m->dim, 0, "%smlp.fc2", at);
}

/* One matrix for one row a prompt: the turned one stays on the host. */
static void load_projection(struct nn_load *l, struct clip *m, bool must)
{
    int64_t dim[SOURCE_DIMS] = {0}, n = 0;
    if (nn_load_has(l, dim, "text_projection")) {
        m->proj_t = nn_load_host(l, &n, "text_projection");
        if (m->proj_t && (dim[0] != m->dim || dim[1] < 1 || n != dim[0] * dim[1]))
            l->rc =
                err_set(l->e, ERR_INVAL, "tensor text_projection is no matrix of %d rows", m->dim);
        m->n_proj = (int)dim[1];
        return;
    }
    nn_load_linear(l, &m->proj, m->dim, NN_ANY, NN_NO_BIAS | (must ? 0u : NN_OPTIONAL),
                   "text_projection");
    m->n_proj = (int)m->proj.n_out;
}

static int load(struct clip *m, struct nn_weights *w, struct comp *c, struct err *e)
{
    static const char *const prefixes[] = {"", "text_model."};
    struct nn_load l = {.w = w, .c = c, .e = e};
    const char *p = enc__prefix(&l, prefixes, 2, "embeddings.token_embedding.weight");
    nn_load_table(&l, &m->tok, m->dim, NN_ANY, "%sembeddings.token_embedding.weight", p);
    nn_load_table(&l, &m->pos, m->dim, NN_ANY, "%sembeddings.position_embedding.weight", p);
    m->layer = nn_load_room(&l, m->n_layer, sizeof *m->layer);
    for (int i = 0; i < m->n_layer - m->skip && !l.rc; i++)
        load_layer(&l, m, &m->layer[i], p, i);
    nn_load_norm(&l, &m->final, m->dim, 0, "%sfinal_layer_norm", p);
    /* CLIPTextModel's files may hold the projection that the class does not use */
    if (strcmp(c->cls, "CLIPTextModel") != 0 && !m->skip)
        load_projection(&l, m, strcmp(c->cls, "CLIPTextModelWithProjection") == 0);
    return l.rc;
}

int clip_open(struct clip **out, struct nn_weights *w, struct comp *c, int skip, struct err *e)
{
    struct clip *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "%s: out of memory", c->name);
    m->skip = skip;
    int rc = read_config(m, c, e);
    rc = rc ? rc : load(m, w, c, e);
    if (rc)
        clip_close(m);
    else
        *out = m;
    return enc__opened(c, rc, e);
}

void clip_close(struct clip *m)
{
    if (m) {
        free(m->layer);
        free(m->proj_t);
    }
    free(m);
}

int clip_dim(const struct clip *m)
{
    return m->dim;
}

int clip_positions(const struct clip *m)
{
    return (int)m->pos.n_out;
}

int clip_projection(const struct clip *m)
{
    return m->n_proj;
}

int clip_eos_at(const struct clip *m, const int32_t *ids, int n)
{
    int at = 0;
    for (int i = 0; i < n; i++) {
        if (m->eos != 2 && ids[i] == m->eos)
            return i;
        if (m->eos == 2 && ids[i] > ids[at])
            at = i;
    }
    return at;
}

/* ---- runs ---- */

static void attention(struct nn *n, const struct clip *m, const struct layer *y, struct tensor x)
{
    int hd = m->dim / m->n_head;
    struct tensor h = nn_norm_mul(n, x, &y->norm1, m->eps, false);
    struct tensor qkv = nn_linear(n, &y->qkv, h);
    nn_free(n, &h);
    struct tensor a = nn_tmp(n, n->mul, x.shape[0], m->dim);
    NN_OP(n, attend, .dst = a, .q = tensor_cols(qkv, 0, m->dim),
          .k = tensor_cols(qkv, m->dim, m->dim), .v = tensor_cols(qkv, 2 * m->dim, m->dim),
          .n_head = m->n_head, .n_kv_head = m->n_head, .head_dim = hd,
          .scale = 1 / sqrtf((float)hd), .causal = true);
    nn_free(n, &qkv);
    struct tensor o = nn_linear(n, &y->out, a);
    nn_free(n, &a);
    enc__add(n, x, &o);
}

static void feed_forward(struct nn *n, const struct clip *m, const struct layer *y, struct tensor x)
{
    struct tensor h = nn_norm_mul(n, x, &y->norm2, m->eps, false);
    struct tensor f = nn_linear(n, &y->fc1, h);
    nn_free(n, &h);
    struct tensor g = nn_act(n, f, m->act, n->mul);
    nn_free(n, &f);
    struct tensor o = nn_linear(n, &y->fc2, g);
    nn_free(n, &g);
    enc__add(n, x, &o);
}

static void blocks(struct nn *n, const struct clip *m, struct tensor x, int from, int to)
{
    for (int i = from; i < to && !n->rc; i++) {
        attention(n, m, &m->layer[i], x);
        feed_forward(n, m, &m->layer[i], x);
    }
}

/* Final norm of x to f32 or (mul). */
static struct tensor final_norm(struct nn *n, const struct clip *m, struct tensor x, enum dtype to)
{
    struct tensor t = nn_tmp(n, to, x.shape[0], m->dim);
    NN_OP(n, layer_norm, .dst = t, .x = x, .w = m->final.w, .b = m->final.b, .eps = m->eps,
          .layout = -1);
    return t;
}

static void read_states(struct nn *n, const struct clip *m, struct tensor x,
                        const struct clip_out *o)
{
    struct tensor t = {0};
    if (o->skip == 0 || o->final_norm)
        t = final_norm(n, m, x, DT_F32);
    if (!n->rc)
        nn_get(n, t.buf ? &t : &x, o->states);
    nn_free(n, &t);
}

/* dst [rows, n_proj] = t * proj_t; row by row, so that a row's sum does not depend on the others. */
static void project_host(struct nn *n, const struct clip *m, struct tensor t, float *dst)
{
    size_t rows = (size_t)t.shape[0], d = (size_t)m->dim, p = (size_t)m->n_proj;
    float *v = n->rc || n->dry ? NULL : mem_alloc(rows * d * sizeof *v);
    if (!n->rc && !n->dry && !v)
        enc__fail(n, ERR_NOMEM, "encode (projection)");
    nn_get(n, &t, v);
    if (!n->rc && v) {
        memset(dst, 0, rows * p * sizeof *dst);
        for (size_t i = 0; i < rows * d; i++)
            for (size_t k = 0; k < p; k++)
                dst[i / d * p + k] += v[i] * m->proj_t[i % d * p + k];
    }
    free(v);
}

/* One row a prompt, gathered before the norm and the projection. */
static void read_pooled(struct nn *n, const struct clip *m, struct tensor x,
                        const struct enc_batch *b, const struct clip_out *o)
{
    struct tensor rows = nn_tmp(n, DT_F32, b->n, m->dim);
    for (int i = 0; i < b->n && !n->rc && !n->dry; i++) {
        int32_t at = o->at[i];
        if (at < 0 || at >= b->start[i + 1] - b->start[i])
            enc__fail(n, ERR_INVAL, "encode (a pooled row outside its prompt)");
        else
            NN_OP(n, act, .dst = nn_rows(rows, i, 1), .x = nn_rows(x, b->start[i] + at, 1),
                  .act = IMAGE_ACT_NONE);
    }
    struct tensor t = final_norm(n, m, rows, m->proj.w ? n->mul : DT_F32);
    nn_free(n, &rows);
    if (m->proj.w) {
        struct tensor p = nn_linear(n, &m->proj, t);
        nn_free(n, &t);
        t = p;
    }
    if (m->proj_t)
        project_host(n, m, t, o->pooled);
    else
        nn_get(n, &t, o->pooled);
    nn_free(n, &t);
}

void clip_run(struct clip *m, struct nn *n, const struct enc_batch *b, const struct clip_out *o)
{
    int stop = m->n_layer - o->skip;
    if (o->skip < m->skip || stop < 0 || (o->pooled && m->skip)) {
        enc__fail(n, ERR_INVAL, "encode (a layer that is not there)");
        return;
    }
    if (!enc__begin(n, b, m->tok.n_out, clip_positions(m)))
        return;
    struct tensor x = enc__embed(n, b, &m->tok, &m->pos);
    blocks(n, m, x, 0, o->states ? stop : 0);
    if (o->states)
        read_states(n, m, x, o);
    if (o->pooled) {
        blocks(n, m, x, o->states ? stop : 0, m->n_layer);
        read_pooled(n, m, x, b, o);
    }
    nn_free(n, &x);
}
