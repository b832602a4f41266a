/* T5's encoder: RMS norms without bias, no scale on the scores, a learned bias by bucket of relative position that all
 * layers share (UMT5: each layer its own). Padding is attended to: image pipelines give no mask. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/image/enc_impl.h"

#define LEN_MAX 4096 /* the bias table grows with the square */

struct layer {
    struct nn_norm norm1, norm2;
    struct nn_linear qkv, out, in, ff_out; /* in: gate and up stacked where gated */
    float *bias;                           /* [buckets, n_head] or NULL: the last one before it */
};

struct t5 {
    int dim, n_head, head_dim, n_ff, n_layer;
    int n_bucket, max_distance;
    float eps;
    bool gated;
    enum image_act act;
    struct nn_linear tok;
    struct nn_norm final;
    struct layer *layer;
};

/* "relu", "gated-gelu", "gated-silu": what transformers makes of it. */
static int read_act(struct t5 *m, const char *proj, struct err *e)
{
    static const char gated[] = "gated-";
    m->gated = strncmp(proj, gated, sizeof gated - 1) == 0;
    const char *act = m->gated ? proj + sizeof gated - 1 : proj;
    if (m->gated && strcmp(act, "gelu") == 0)
        act = "gelu_new";
    int rc = enc__act(act, &m->act, e);
    if (rc == 0 && m->gated && m->act != IMAGE_ACT_GELU_TANH && m->act != IMAGE_ACT_GELU_ERF &&
        m->act != IMAGE_ACT_SILU)
        rc = ERR_UNSUPPORTED;
    return rc ? err_set(e, rc, "feed_forward_proj '%.60s' is not supported", proj) : 0;
}

static int read_config(struct t5 *m, struct comp *c, struct err *e)
{
    struct enc_cfg g = {c->cfg, ""};
    m->dim = enc__cfg_need(g, "d_model", 1, 1 << 16);
    m->head_dim = enc__cfg_need(g, "d_kv", 1, 1 << 12);
    m->n_ff = enc__cfg_need(g, "d_ff", 1, 1 << 18);
    m->n_head = enc__cfg_need(g, "num_heads", 1, 1 << 10);
    m->n_layer = enc__cfg_need(g, "num_layers", 1, ENC_LAYERS_MAX);
    m->n_bucket = enc__cfg_int(g, "relative_attention_num_buckets", 32, 4, 1 << 12);
    m->max_distance = enc__cfg_int(g, "relative_attention_max_distance", 128, 2, 1 << 20);
    m->eps = (float)enc__cfg_num(g, "layer_norm_epsilon", 1e-6, 0, 1);
    const char *proj = enc__cfg_str(g, "feed_forward_proj", "relu");
    int rc = config_error(c->cfg, e);
    rc = rc ? rc : read_act(m, proj, e);
    if (rc == 0 && (m->n_bucket % 4 || m->max_distance <= m->n_bucket / 4))
        rc = err_set(e, ERR_INVAL,
                     "relative_attention_num_buckets %d is no multiple of 4 with "
                     "relative_attention_max_distance %d over a quarter of it",
                     m->n_bucket, m->max_distance);
    return rc;
}

static void load_bias(struct nn_load *l, const struct t5 *m, struct layer *y, int i)
{
    static const char name[] = "layer.0.SelfAttention.relative_attention_bias.weight";
    int64_t n = 0;
    if (i > 0 && !nn_load_has(l, NULL, "encoder.block.%d.%s", i, name))
        return;
    y->bias = nn_load_host(l, &n, "encoder.block.%d.%s", i, name);
    if (y->bias && n != (int64_t)m->n_bucket * m->n_head)
        l->rc = err_set(l->e, ERR_INVAL, "encoder.block.%d.%s: %lld values, not %d x %d", i, name,
                        (long long)n, m->n_bucket, m->n_head);
}

static void load_layer(struct nn_load *l, const struct t5 *m, struct layer *y, int i)
{
    char at[64];
    int inner = m->n_head * m->head_dim;
    snprintf(at, sizeof at, "encoder.block.%d.layer.", i);
    nn_load_norm(l, &y->norm1, m->dim, NN_NO_BIAS, "%s0.layer_norm", at);
    nn_load_norm(l, &y->norm2, m->dim, NN_NO_BIAS, "%s1.layer_norm", at);
    nn_load_stack(
        l, &y->qkv,
        &(struct nn_stack){.prefix = at,
                           .name = {"0.SelfAttention.q", "0.SelfAttention.k", "0.SelfAttention.v"},
                           .n_name = 3,
                           .n_in = m->dim,
                           .n_out = {inner, inner, inner},
                           .flags = NN_NO_BIAS});
    nn_load_linear(l, &y->out, inner, m->dim, NN_NO_BIAS, "%s0.SelfAttention.o", at);
    if (m->gated)
        nn_load_stack(l, &y->in,
                      &(struct nn_stack){.prefix = at,
                                         .name = {"1.DenseReluDense.wi_0", "1.DenseReluDense.wi_1"},
                                         .n_name = 2,
                                         .n_in = m->dim,
                                         .n_out = {m->n_ff, m->n_ff},
                                         .flags = NN_NO_BIAS});
    else
        nn_load_linear(l, &y->in, m->dim, m->n_ff, NN_NO_BIAS, "%s1.DenseReluDense.wi", at);
    nn_load_linear(l, &y->ff_out, m->n_ff, m->dim, NN_NO_BIAS, "%s1.DenseReluDense.wo", at);
    load_bias(l, m, y, i);
}

static int load(struct t5 *m, struct nn_weights *w, struct comp *c, struct err *e)
{
    static const char *const prefixes[] = {"encoder.embed_tokens", "shared"};
    struct nn_load l = {.w = w, .c = c, .e = e};
    const char *p = enc__prefix(&l, prefixes, 2, ".weight");
    nn_load_table(&l, &m->tok, m->dim, NN_ANY, "%s.weight", p);
    m->layer = nn_load_room(&l, m->n_layer, sizeof *m->layer);
    for (int i = 0; i < m->n_layer && !l.rc; i++)
        load_layer(&l, m, &m->layer[i], i);
    nn_load_norm(&l, &m->final, m->dim, NN_NO_BIAS, "encoder.final_layer_norm");
    return l.rc;
}

int t5_open(struct t5 **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct t5 *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "%s: out of memory", c->name);
    int rc = read_config(m, c, e);
    rc = rc ? rc : load(m, w, c, e);
    if (rc)
        t5_close(m);
    else
        *out = m;
    return enc__opened(c, rc, e);
}

void t5_close(struct t5 *m)
{
    for (int i = 0; m && m->layer && i < m->n_layer; i++)
        free(m->layer[i].bias);
    if (m)
        free(m->layer);
    free(m);
}

int t5_dim(const struct t5 *m)
{
    return m->dim;
}

int64_t t5_vocab(const struct t5 *m)
{
    return m->tok.n_out;
}

/* ---- relative positions ---- */

/* In f32, as the reference computes it: the borders of the buckets depend on the rounding. */
int enc__t5_bucket(int n_bucket, int max_distance, int distance)
{
    int half = n_bucket / 2, exact = half / 2, d = abs(distance);
    int base = distance > 0 ? half : 0;
    if (d < exact)
        return base + d;
    float rel = logf((float)d / (float)exact) / (float)log((double)max_distance / (double)exact) *
                (float)(half - exact);
    int k = exact + (int)rel;
    return base + (k < half ? k : half - 1);
}

/* dst [n_head, len * len]: by query row and key column. */
static void fill_bias(const struct t5 *m, const float *table, const int *bucket, int len,
                      float *dst)
{
    for (int h = 0; h < m->n_head; h++)
        for (int i = 0; i < len; i++)
            for (int k = 0; k < len; k++)
                *dst++ = table[(size_t)bucket[k - i + len - 1] * (size_t)m->n_head + (size_t)h];
}

/* A layer's table to the device. */
static void put_bias(struct nn *n, const struct t5 *m, const float *table, int len,
                     struct tensor dst)
{
    if (n->rc || n->dry)
        return;
    size_t cells, bytes;
    bool fits = ck_mul((size_t)len * (size_t)len, (size_t)m->n_head, &cells) &&
                ck_mul(cells, sizeof(float), &bytes);
    float *v = fits ? mem_alloc(bytes) : NULL;
    int *bucket = mem_alloc((size_t)(2 * len - 1) * sizeof *bucket);
    if (v && bucket) {
        for (int k = 0; k < 2 * len - 1; k++)
            bucket[k] = enc__t5_bucket(m->n_bucket, m->max_distance, k - (len - 1));
        fill_bias(m, table, bucket, len, v);
        nn_put(n, &dst, v);
    } else {
        enc__fail(n, ERR_NOMEM, "encode (position bias)");
    }
    free(bucket);
    free(v);
}

/* ---- runs ---- */

/* Self-attention of h (normed): what is added to x. Frees h. */
static struct tensor attention(struct nn *n, const struct t5 *m, const struct layer *y,
                               struct tensor *h, struct tensor bias, int len)
{
    int inner = m->n_head * m->head_dim;
    struct tensor qkv = nn_linear(n, &y->qkv, *h);
    nn_free(n, h);
    struct tensor a = nn_tmp(n, n->mul, qkv.shape[0], inner);
    NN_OP(n, attend, .dst = a, .q = tensor_cols(qkv, 0, inner), .k = tensor_cols(qkv, inner, inner),
          .v = tensor_cols(qkv, 2 * inner, inner), .n_head = m->n_head, .n_kv_head = m->n_head,
          .head_dim = m->head_dim, .scale = 1, .bias = bias, .bias_cols = len);
    nn_free(n, &qkv);
    struct tensor o = nn_linear(n, &y->out, a);
    nn_free(n, &a);
    return o;
}

static struct tensor feed_forward(struct nn *n, const struct t5 *m, const struct layer *y,
                                  struct tensor *h)
{
    struct tensor f = nn_linear(n, &y->in, *h), g;
    nn_free(n, h);
    if (m->gated) {
        g = nn_tmp(n, n->mul, f.shape[0], m->n_ff);
        NN_OP(n, act_mul, .dst = g, .gate_up = f,
              .act = m->act == IMAGE_ACT_SILU       ? ACT_SILU
                     : m->act == IMAGE_ACT_GELU_ERF ? ACT_GELU_ERF
                                                    : ACT_GELU_TANH);
    } else {
        g = nn_act(n, f, m->act, n->mul);
    }
    nn_free(n, &f);
    struct tensor o = nn_linear(n, &y->ff_out, g);
    nn_free(n, &g);
    return o;
}

void t5_run(struct t5 *m, struct nn *n, const struct enc_batch *b, float *states)
{
    if (!enc__begin(n, b, m->tok.n_out, LEN_MAX))
        return;
    int len = enc__longest(b);
    struct tensor bias = nn_tmp(n, DT_F32, m->n_head, (int64_t)len * len);
    struct tensor x = enc__embed(n, b, &m->tok, NULL), y = {0};
    for (int i = 0; i < m->n_layer && !n->rc; i++) {
        const struct layer *l = &m->layer[i];
        if (l->bias)
            put_bias(n, m, l->bias, len, bias);
        struct tensor h = enc__rms(n, x, &y, l->norm1.w, m->eps, n->mul);
        y = attention(n, m, l, &h, bias, len);
        h = enc__rms(n, x, &y, l->norm2.w, m->eps, n->mul);
        y = feed_forward(n, m, l, &h);
    }
    struct tensor t = enc__rms(n, x, &y, m->final.w, m->eps, DT_F32);
    if (!n->rc)
        nn_get(n, &t, states);
    nn_free(n, &t);
    nn_free(n, &x);
    nn_free(n, &bias);
}
