/* ModernBERT (Warner et al. 2024): pre-norm blocks, rotation, most layers see only a window around a token, GeGLU. */
#include "engine/encode/encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

#define LAYERS_MAX 256

struct layer {
    struct nn_linear qkv, out, gate_up, down;
    struct nn_norm norm1, norm2; /* the first layer has no norm1 */
    bool local;
};

struct modernbert {
    const char *root; /* of all names */
    int dim, n_head, n_ff, n_layer, n_label, n_pos, window;
    int64_t n_vocab;
    bool raw,
        mean; /* see eng_encoder_info.raw_scores; a classifier pools by the mean, else the first token */
    float eps, theta[2]; /* of layers that see all, of the others */
    enum image_act act, head_act;
    struct nn_linear tok, pool, head;
    struct nn_norm norm, last, head_norm;
    struct layer *layer; /* [n_layer] */
};

static int acts_read(struct modernbert *m, struct config *c, struct err *e)
{
    int rc = encoder_act(config_str(c, "hidden_activation", "gelu"), &m->act, e);
    if (!rc)
        rc = encoder_act(config_str(c, "classifier_activation", "gelu"), &m->head_act, e);
    if (!rc && m->act == IMAGE_ACT_RELU)
        rc = err_set(e, ERR_UNSUPPORTED, "config.json: hidden_activation 'relu' is not supported");
    return rc;
}

static int read_config(struct modernbert *m, struct config *c, struct err *e)
{
    m->dim = encoder_need(c, "hidden_size", 1 << 16);
    m->n_head = encoder_need(c, "num_attention_heads", 1 << 10);
    m->n_ff = encoder_need(c, "intermediate_size", 1 << 18);
    m->n_layer = encoder_need(c, "num_hidden_layers", LAYERS_MAX);
    m->n_pos = encoder_need(c, "max_position_embeddings", 1 << 20);
    m->eps = (float)config_num(c, "norm_eps", 1e-5, 0, 1);
    m->window = (int)config_int(c, "local_attention", 128, 2, 1 << 20) / 2;
    m->theta[0] = (float)config_num(c, "rope_parameters.full_attention.rope_theta",
                                    config_num(c, "global_rope_theta", 160000, 1, 1e12), 1, 1e12);
    m->theta[1] = (float)config_num(c, "rope_parameters.sliding_attention.rope_theta",
                                    config_num(c, "local_rope_theta", 10000, 1, 1e12), 1, 1e12);
    m->n_label = encoder_labels(c);
    m->raw = encoder_raw_scores(c);
    m->mean = strcmp(config_str(c, "classifier_pooling", "cls"), "mean") == 0;
    int64_t every = config_int(c, "global_attn_every_n_layers", 3, 1, LAYERS_MAX);
    int rc = config_error(c, e);
    if (!rc)
        rc = acts_read(m, c, e);
    if (!rc && (m->dim % m->n_head || m->dim / m->n_head % 2))
        rc = err_set(e, ERR_INVAL, "config.json: %d attention heads do not divide hidden_size %d",
                     m->n_head, m->dim);
    if (rc)
        return rc;
    m->layer = mem_calloc((size_t)m->n_layer, sizeof *m->layer);
    if (!m->layer)
        return err_set(e, ERR_NOMEM, "no memory for the encoder");
    int n = config_len(c, "layer_types");
    for (int i = 0; i < m->n_layer; i++) {
        const char *type = n > i ? config_str_at(c, "layer_types", i) : NULL;
        m->layer[i].local = type ? !strcmp(type, "sliding_attention") : i % every != 0;
    }
    return config_error(c, e);
}

static void load_layer(struct nn_load *l, const struct modernbert *m, struct layer *y, int i)
{
    char at[64];
    snprintf(at, sizeof at, "%slayers.%d.", m->root, i);
    if (i > 0)
        nn_load_norm(l, &y->norm1, m->dim, 0, "%sattn_norm", at);
    nn_load_linear(l, &y->qkv, m->dim, 3 * m->dim, 0, "%sattn.Wqkv", at);
    nn_load_linear(l, &y->out, m->dim, m->dim, 0, "%sattn.Wo", at);
    nn_load_norm(l, &y->norm2, m->dim, 0, "%smlp_norm", at);
    nn_load_linear(l, &y->gate_up, m->dim, 2 * m->n_ff, 0, "%smlp.Wi", at);
    nn_load_linear(l, &y->down, m->n_ff, m->dim, 0, "%smlp.Wo", at);
}

static int load(struct modernbert *m, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct nn_load l = {.w = w, .c = c, .e = e};
    m->root = nn_load_has(&l, NULL, "embeddings.tok_embeddings.weight") ? "" : "model.";
    nn_load_table(&l, &m->tok, m->dim, NN_ANY, "%sembeddings.tok_embeddings.weight", m->root);
    m->n_vocab = m->tok.n_out;
    nn_load_norm(&l, &m->norm, m->dim, 0, "%sembeddings.norm", m->root);
    for (int i = 0; i < m->n_layer; i++)
        load_layer(&l, m, &m->layer[i], i);
    nn_load_norm(&l, &m->last, m->dim, 0, "%sfinal_norm", m->root);
    if (m->n_label) {
        nn_load_linear(&l, &m->pool, m->dim, m->dim, 0, "head.dense");
        nn_load_norm(&l, &m->head_norm, m->dim, 0, "head.norm");
        nn_load_linear(&l, &m->head, m->dim, m->n_label, 0, "classifier");
    }
    return l.rc;
}

static void model_close(void *p)
{
    struct modernbert *m = p;
    if (m)
        free(m->layer);
    free(m);
}

static int model_open(void **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct modernbert *m = mem_calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the encoder");
    int rc = read_config(m, c->cfg, e);
    rc = rc ? rc : load(m, w, c, e);
    if (rc)
        model_close(m);
    else
        *out = m;
    return rc;
}

static void facts(const void *p, struct eng_encoder_info *out, int32_t *n_vocab, int *width)
{
    const struct modernbert *m = p;
    out->dim = m->n_label ? 0 : m->dim;
    out->n_label = m->n_label;
    out->raw_scores = m->raw;
    out->n_tok_max = m->n_pos;
    out->n_type = 1;
    *n_vocab = (int32_t)m->n_vocab;
    *width = m->dim;
}

static void positions(const void *p, const int32_t *ids, int32_t n, int32_t *pos)
{
    (void)p;
    (void)ids;
    for (int32_t i = 0; i < n; i++)
        pos[i] = i;
}

/* ---- runs ---- */

static struct tensor norm(struct nn *n, const struct modernbert *m, struct tensor x,
                          const struct nn_norm *w)
{
    struct tensor y = nn_tmp(n, DT_F32, x.shape[0], x.shape[1]);
    NN_OP(n, layer_norm, .dst = y, .x = x, .w = w->w, .b = w->b, .eps = m->eps, .layout = -1);
    return y;
}

static void attention(struct nn *n, const struct modernbert *m, const struct layer *y,
                      struct tensor x, const struct tensor cs[2])
{
    int hd = m->dim / m->n_head;
    struct tensor h = x;
    if (y->norm1.w.buf || (n->dry && y != m->layer))
        h = norm(n, m, x, &y->norm1);
    struct tensor qkv = nn_linear(n, &y->qkv, h);
    if (y != m->layer)
        nn_free(n, &h);
    for (int i = 0; i < 2; i++)
        NN_OP(n, rotate, .x = tensor_cols(qkv, i * m->dim, m->dim), .n_head = m->n_head,
              .head_dim = hd, .cos = cs[0], .sin = cs[1], .style = ROPE_NEOX);
    struct tensor a = nn_tmp(n, n->mul, x.shape[0], m->dim);
    NN_OP(n, attend, .dst = a, .q = tensor_cols(qkv, 0, m->dim),
          .k = tensor_cols(qkv, m->dim, m->dim), .v = tensor_cols(qkv, 2 * m->dim, m->dim),
          .n_head = m->n_head, .n_kv_head = m->n_head, .head_dim = hd,
          .scale = 1 / sqrtf((float)hd), .window = y->local ? m->window : 0);
    nn_free(n, &qkv);
    struct tensor o = nn_linear(n, &y->out, a);
    nn_free(n, &a);
    encoder_add(n, x, &o);
}

static void feed_forward(struct nn *n, const struct modernbert *m, const struct layer *y,
                         struct tensor x)
{
    struct tensor h = norm(n, m, x, &y->norm2), both = nn_linear(n, &y->gate_up, h);
    nn_free(n, &h);
    struct tensor g = nn_tmp(n, n->mul, x.shape[0], m->n_ff);
    NN_OP(n, act_mul, .dst = g, .gate_up = both,
          .act = m->act == IMAGE_ACT_SILU        ? ACT_SILU
                 : m->act == IMAGE_ACT_GELU_TANH ? ACT_GELU_TANH
                                                 : ACT_GELU_ERF);
    nn_free(n, &both);
    struct tensor o = nn_linear(n, &y->down, g);
    nn_free(n, &g);
    encoder_add(n, x, &o);
}

/* One row a text: the first token's, or the mean of all, which the host sums in double. */
static struct tensor pooled(struct nn *n, const struct modernbert *m, struct tensor x,
                            const struct encoder_batch *b)
{
    struct tensor rows = nn_tmp(n, DT_F32, b->n, m->dim);
    size_t d = (size_t)m->dim, all = (size_t)b->start[b->n] * d;
    float *v = n->rc || n->dry || !m->mean ? NULL : mem_alloc(all * sizeof *v);
    if (!n->rc && !n->dry && m->mean && !v) {
        n->rc = ERR_NOMEM;
        n->failed = "pooling";
    }
    for (int i = 0; i < b->n && !m->mean; i++)
        NN_OP(n, act, .dst = nn_rows(rows, i, 1), .x = nn_rows(x, n->dry ? 0 : b->start[i], 1),
              .act = IMAGE_ACT_NONE);
    if (!v)
        return rows;
    nn_get(n, &x, v);
    for (int i = 0; i < b->n; i++)
        for (size_t c = 0; c < d; c++) {
            double sum = 0;
            for (int32_t r = b->start[i]; r < b->start[i + 1]; r++)
                sum += (double)v[(size_t)r * d + c];
            v[(size_t)i * d + c] = (float)(sum / (b->start[i + 1] - b->start[i]));
        }
    nn_put(n, &rows, v);
    free(v);
    return rows;
}

static void classify(struct nn *n, const struct modernbert *m, struct tensor x,
                     const struct encoder_batch *b, float *scores)
{
    struct tensor rows = pooled(n, m, x, b), p = nn_linear(n, &m->pool, rows);
    nn_free(n, &rows);
    struct tensor a = nn_act(n, p, m->head_act, DT_F32);
    nn_free(n, &p);
    struct tensor h = norm(n, m, a, &m->head_norm), s = nn_linear(n, &m->head, h);
    nn_get(n, &s, scores);
    nn_free(n, &s);
    nn_free(n, &h);
    nn_free(n, &a);
}

static void run(void *p, struct nn *n, const struct encoder_batch *b, float *states, float *scores)
{
    const struct modernbert *m = p;
    struct tensor cs[2][2] = {{{0}}};
    int64_t rows = b->start[b->n];
    nn_layouts(n,
               &(struct image_meta){.n_layout = 1, .layout = {{.n_seg = b->n, .start = b->start}}});
    for (int i = 0; i < 2; i++)
        encoder_rotation(n, b, m->dim / m->n_head / 2, m->theta[i], cs[i]);
    struct tensor e = nn_tmp(n, DT_F32, rows, m->dim),
                  ids = encoder_put(n, DT_I32, 1, rows, b->ids);
    NN_OP(n, lookup, .dst = e, .ids = ids, .w = m->tok.w);
    nn_free(n, &ids);
    struct tensor x = norm(n, m, e, &m->norm);
    nn_free(n, &e);
    for (int i = 0; i < m->n_layer && !n->rc; i++) {
        attention(n, m, &m->layer[i], x, cs[m->layer[i].local]);
        feed_forward(n, m, &m->layer[i], x);
    }
    for (int i = 0; i < 4; i++)
        nn_free(n, &cs[i / 2][i % 2]);
    struct tensor y = norm(n, m, x, &m->last);
    nn_free(n, &x);
    if (m->n_label)
        classify(n, m, y, b, scores);
    else
        nn_get(n, &y, states);
    nn_free(n, &y);
}

static const char *const types[] = {"modernbert", NULL};

const struct encoder_ops encoder_modernbert = {.types = types,
                                               .open = model_open,
                                               .close = model_close,
                                               .facts = facts,
                                               .positions = positions,
                                               .run = run};
