/* The BERT family: BERT (Devlin et al. 2019), RoBERTa and XLM-R (positions counted from the padding id on), Nomic BERT
 * (rotation, gated feed-forward). Post-norm blocks without causality; weights under transformers' names. */
#include "engine/encode/encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

#define LAYERS_MAX 256

/* Where the kinds differ: names of tensors, and what is done with positions. NULL: not there. */
struct kind {
    const char *model_type;
    const char *root[2]; /* prefixes of all names; "" first */
    const char *norm;    /* of the embeddings */
    const char *layer;   /* printf format of a layer's prefix */
    const char *q, *k, *v, *qkv, *out, *norm1, *fc1, *gate, *fc2, *norm2;
    const char *pool, *head; /* of a classifier: dense + tanh, scores */
    bool rotate, from_pad, double_sep;
};

#define BERT_LAYER                                                                                 \
    .norm = "embeddings.LayerNorm", .layer = "encoder.layer.%d.", .q = "attention.self.query",     \
    .k = "attention.self.key", .v = "attention.self.value", .out = "attention.output.dense",       \
    .norm1 = "attention.output.LayerNorm", .fc1 = "intermediate.dense", .fc2 = "output.dense",     \
    .norm2 = "output.LayerNorm"
#define ROBERTA_HEAD                                                                               \
    .pool = "classifier.dense", .head = "classifier.out_proj", .from_pad = true, .double_sep = true

static const struct kind kinds[] = {
    {"bert", {"", "bert."}, BERT_LAYER, .pool = "pooler.dense", .head = "classifier"},
    {"roberta", {"", "roberta."}, BERT_LAYER, ROBERTA_HEAD},
    {"xlm-roberta", {"", "roberta."}, BERT_LAYER, ROBERTA_HEAD},
    {"camembert", {"", "roberta."}, BERT_LAYER, ROBERTA_HEAD},
    {"nomic_bert",
     {"", "nomic_bert."},
     .norm = "emb_ln",
     .layer = "encoder.layers.%d.",
     .qkv = "attn.Wqkv",
     .out = "attn.out_proj",
     .norm1 = "norm1",
     .fc1 = "mlp.fc11",
     .gate = "mlp.fc12",
     .fc2 = "mlp.fc2",
     .norm2 = "norm2",
     .rotate = true},
};

struct layer {
    struct nn_linear qkv, out, fc1, gate, fc2;
    struct nn_norm norm1, norm2;
};

struct bert {
    const struct kind *kind;
    const char *root;
    int dim, n_head, n_ff, n_layer, n_label;
    bool raw;     /* sentence-transformers takes the classifier's scores as they are */
    int n_pos;    /* positions that a text may have */
    int pos_from; /* the first one's row in the table */
    int64_t n_vocab, n_type;
    float eps, theta;
    enum image_act act;
    struct nn_linear tok, pos, type;
    struct nn_norm norm;
    struct layer *layer; /* [n_layer] */
    struct nn_linear pool, head;
};

static const struct kind *kind_of(const char *type)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].model_type, type) == 0)
            return &kinds[i];
    return NULL;
}

static int read_config(struct bert *m, struct config *c, struct err *e)
{
    m->kind = kind_of(config_str(c, "model_type", ""));
    if (!m->kind)
        return err_set(e, ERR_UNSUPPORTED, "config.json: model_type '%.60s' is no known encoder",
                       config_str(c, "model_type", ""));
    m->dim = encoder_need(c, "hidden_size", 1 << 16);
    m->n_head = encoder_need(c, "num_attention_heads", 1 << 10);
    m->n_ff = encoder_need(c, "intermediate_size", 1 << 18);
    m->n_layer = encoder_need(c, "num_hidden_layers", LAYERS_MAX);
    m->n_pos = encoder_need(c, "max_position_embeddings", 1 << 20);
    m->eps = (float)config_num(c, "layer_norm_eps", 1e-12, 0, 1);
    m->theta = (float)config_num(c, "rope_parameters.rope_theta",
                                 config_num(c, "rotary_emb_base", 1000, 1, 1e12), 1, 1e12);
    m->pos_from = m->kind->from_pad ? (int)config_int(c, "pad_token_id", 1, 0, 1 << 20) + 1 : 0;
    m->n_label = encoder_labels(c);
    m->raw = encoder_raw_scores(c);
    const char *act = config_str(c, "hidden_act", "gelu");
    const char *how = config_str(c, "position_embedding_type", "absolute");
    const char *rope = config_str(c, "rope_parameters.rope_type", "default");
    int rc = config_error(c, e);
    if (!rc)
        rc = encoder_act(act, &m->act, e);
    if (!rc && strcmp(how, "absolute") != 0 && !m->kind->rotate)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "config.json: position_embedding_type '%.60s' is not supported", how);
    if (!rc && m->kind->rotate && strcmp(rope, "default") != 0)
        rc = err_set(e, ERR_UNSUPPORTED, "config.json: rope_type '%.60s' is not supported", rope);
    if (!rc && (m->dim % m->n_head || (m->kind->rotate && m->dim / m->n_head % 2)))
        rc = err_set(e, ERR_INVAL, "config.json: %d attention heads do not divide hidden_size %d",
                     m->n_head, m->dim);
    if (!rc && m->pos_from >= m->n_pos)
        rc = err_set(e, ERR_INVAL, "config.json: pad_token_id leaves no position");
    if (!rc && m->n_label && !m->kind->head)
        rc = err_set(e, ERR_UNSUPPORTED, "a classifier of model_type '%s' is not supported",
                     m->kind->model_type);
    m->n_pos -= m->pos_from;
    return rc;
}

static void load_layer(struct nn_load *l, const struct bert *m, struct layer *y, int i)
{
    const struct kind *k = m->kind;
    char own[64], at[96];
    snprintf(own, sizeof own, k->layer, i);
    snprintf(at, sizeof at, "%s%s", m->root, own);
    struct nn_stack s = {.prefix = at,
                         .name = {k->q, k->k, k->v},
                         .n_name = 3,
                         .n_in = m->dim,
                         .n_out = {m->dim, m->dim, m->dim}};
    if (k->qkv)
        nn_load_linear(l, &y->qkv, m->dim, 3 * m->dim, 0, "%s%s", at, k->qkv);
    else
        nn_load_stack(l, &y->qkv, &s);
    nn_load_linear(l, &y->out, m->dim, m->dim, 0, "%s%s", at, k->out);
    nn_load_norm(l, &y->norm1, m->dim, 0, "%s%s", at, k->norm1);
    nn_load_linear(l, &y->fc1, m->dim, m->n_ff, 0, "%s%s", at, k->fc1);
    if (k->gate)
        nn_load_linear(l, &y->gate, m->dim, m->n_ff, 0, "%s%s", at, k->gate);
    nn_load_linear(l, &y->fc2, m->n_ff, m->dim, 0, "%s%s", at, k->fc2);
    nn_load_norm(l, &y->norm2, m->dim, 0, "%s%s", at, k->norm2);
}

static int load(struct bert *m, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct nn_load l = {.w = w, .c = c, .e = e};
    const char *at = "embeddings.";
    m->root = m->kind->root[0];
    if (!nn_load_has(&l, NULL, "%s%sword_embeddings.weight", m->root, at))
        m->root = m->kind->root[1];
    nn_load_table(&l, &m->tok, m->dim, NN_ANY, "%s%sword_embeddings.weight", m->root, at);
    m->n_vocab = m->tok.n_out;
    if (!m->kind->rotate)
        nn_load_table(&l, &m->pos, m->dim, m->n_pos + m->pos_from, "%s%sposition_embeddings.weight",
                      m->root, at);
    if (nn_load_has(&l, NULL, "%s%stoken_type_embeddings.weight", m->root, at)) {
        nn_load_table(&l, &m->type, m->dim, NN_ANY, "%s%stoken_type_embeddings.weight", m->root,
                      at);
        m->n_type = m->type.n_out;
    }
    nn_load_norm(&l, &m->norm, m->dim, 0, "%s%s", m->root, m->kind->norm);
    for (int i = 0; i < m->n_layer; i++)
        load_layer(&l, m, &m->layer[i], i);
    if (m->n_label) { /* BERT's pooler belongs to the body, RoBERTa's to the head */
        bool body = m->kind->pool[0] == 'p';
        nn_load_linear(&l, &m->pool, m->dim, m->dim, 0, "%s%s", body ? m->root : "", m->kind->pool);
        nn_load_linear(&l, &m->head, m->dim, m->n_label, 0, "%s", m->kind->head);
    }
    return l.rc;
}

static void bert_close(void *p)
{
    struct bert *m = p;
    if (m)
        free(m->layer);
    free(m);
}

static int bert_open(void **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct bert *m = mem_calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the encoder");
    int rc = read_config(m, c->cfg, e);
    if (!rc) {
        m->layer = mem_calloc((size_t)m->n_layer, sizeof *m->layer);
        rc = m->layer ? load(m, w, c, e) : err_set(e, ERR_NOMEM, "no memory for the encoder");
    }
    if (rc)
        bert_close(m);
    else
        *out = m;
    return rc;
}

static void bert_facts(const void *p, struct eng_encoder_info *out, int32_t *n_vocab, int *width)
{
    const struct bert *m = p;
    out->dim = m->n_label ? 0 : m->dim;
    out->n_label = m->n_label;
    out->raw_scores = m->raw;
    out->n_tok_max = m->n_pos;
    /* RoBERTa has the table but was never given anything but zeros */
    out->n_type = m->kind->from_pad || m->n_type < 2 ? 1 : 2;
    out->double_sep = m->kind->double_sep;
    *n_vocab = (int32_t)m->n_vocab;
    *width = m->dim;
}

/* RoBERTa's count tokens that are no padding, and a padding id inside a text stays at its own number, as in
 * transformers' create_position_ids_from_input_ids. */
static void bert_positions(const void *p, const int32_t *ids, int32_t n, int32_t *pos)
{
    const struct bert *m = p;
    int32_t next = m->pos_from;
    for (int32_t i = 0; i < n; i++)
        pos[i] = m->kind->from_pad && ids[i] == m->pos_from - 1 ? ids[i] : next++;
}

/* ---- runs ---- */

/* Norm of *x into a new tensor that takes its place. */
static void norm(struct nn *n, const struct bert *m, struct tensor *x, const struct nn_norm *w)
{
    struct tensor y = nn_tmp(n, DT_F32, x->shape[0], x->shape[1]);
    NN_OP(n, layer_norm, .dst = y, .x = *x, .w = w->w, .b = w->b, .eps = m->eps, .layout = -1);
    nn_free(n, x);
    *x = y;
}

static struct tensor embed(struct nn *n, const struct bert *m, const struct encoder_batch *b)
{
    int64_t rows = b->start[b->n];
    struct tensor x = nn_tmp(n, DT_F32, rows, m->dim);
    struct tensor ids = encoder_put(n, DT_I32, 1, rows, b->ids), pos = {0};
    if (m->pos.w || !m->kind->rotate)
        pos = encoder_put(n, DT_I32, 1, rows, b->pos);
    NN_OP(n, lookup, .dst = x, .ids = ids, .pos = pos, .w = m->tok.w, .w2 = m->pos.w);
    nn_free(n, &pos);
    nn_free(n, &ids);
    if (m->n_type) {
        struct tensor type = encoder_put(n, DT_I32, 1, rows, b->type);
        struct tensor y = nn_tmp(n, DT_F32, rows, m->dim);
        NN_OP(n, lookup, .dst = y, .ids = type, .w = m->type.w);
        nn_free(n, &type);
        encoder_add(n, x, &y);
    }
    norm(n, m, &x, &m->norm);
    return x;
}

static void attention(struct nn *n, const struct bert *m, const struct layer *y, struct tensor *x,
                      const struct tensor cs[2])
{
    int hd = m->dim / m->n_head;
    struct tensor qkv = nn_linear(n, &y->qkv, *x);
    for (int i = 0; i < 2 && m->kind->rotate; i++)
        NN_OP(n, rotate, .x = tensor_cols(qkv, i * m->dim, m->dim), .n_head = m->n_head,
              .head_dim = hd, .cos = cs[0], .sin = cs[1], .style = ROPE_NEOX);
    struct tensor a = nn_tmp(n, n->mul, x->shape[0], m->dim);
    NN_OP(n, attend, .dst = a, .q = tensor_cols(qkv, 0, m->dim),
          .k = tensor_cols(qkv, m->dim, m->dim), .v = tensor_cols(qkv, 2 * m->dim, m->dim),
          .n_head = m->n_head, .n_kv_head = m->n_head, .head_dim = hd,
          .scale = 1 / sqrtf((float)hd));
    nn_free(n, &qkv);
    struct tensor o = nn_linear(n, &y->out, a);
    nn_free(n, &a);
    encoder_add(n, *x, &o);
    norm(n, m, x, &y->norm1);
}

/* up * act(gate), to mul. */
static struct tensor gated(struct nn *n, const struct bert *m, const struct layer *y,
                           struct tensor x)
{
    struct tensor both = nn_tmp(n, DT_F32, x.shape[0], 2 * (int64_t)m->n_ff);
    nn_linear_to(n, &y->gate, x, tensor_cols(both, 0, m->n_ff));
    nn_linear_to(n, &y->fc1, x, tensor_cols(both, m->n_ff, m->n_ff));
    struct tensor g = nn_tmp(n, n->mul, x.shape[0], m->n_ff);
    NN_OP(n, act_mul, .dst = g, .gate_up = both, .act = ACT_SILU);
    nn_free(n, &both);
    return g;
}

static void feed_forward(struct nn *n, const struct bert *m, const struct layer *y,
                         struct tensor *x)
{
    struct tensor g;
    if (m->kind->gate) {
        g = gated(n, m, y, *x);
    } else {
        struct tensor f = nn_linear(n, &y->fc1, *x);
        g = nn_act(n, f, m->act, n->mul);
        nn_free(n, &f);
    }
    struct tensor o = nn_linear(n, &y->fc2, g);
    nn_free(n, &g);
    encoder_add(n, *x, &o);
    norm(n, m, x, &y->norm2);
}

/* The first row of every text through pooler and head. The tanh is the host's: a row of a text is little. */
static void classify(struct nn *n, const struct bert *m, struct tensor x,
                     const struct encoder_batch *b, float *scores)
{
    size_t all = (size_t)b->n * (size_t)m->dim;
    float *v = n->rc || n->dry ? NULL : mem_alloc(all * sizeof *v);
    struct tensor rows = nn_tmp(n, DT_F32, b->n, m->dim);
    if (!n->rc && !n->dry && !v) {
        n->rc = ERR_NOMEM;
        n->failed = "classifier";
    }
    for (int i = 0; i < b->n; i++)
        NN_OP(n, act, .dst = nn_rows(rows, i, 1), .x = nn_rows(x, n->dry ? 0 : b->start[i], 1),
              .act = IMAGE_ACT_NONE);
    struct tensor p = nn_linear(n, &m->pool, rows);
    nn_get(n, &p, v);
    for (size_t i = 0; v && i < all; i++)
        v[i] = tanhf(v[i]);
    nn_put(n, &p, v);
    struct tensor s = nn_linear(n, &m->head, p);
    nn_get(n, &s, scores);
    nn_free(n, &s);
    nn_free(n, &p);
    nn_free(n, &rows);
    free(v);
}

static void bert_run(void *p, struct nn *n, const struct encoder_batch *b, float *states,
                     float *scores)
{
    struct bert *m = p;
    struct tensor cs[2] = {{0}};
    nn_layouts(n,
               &(struct image_meta){.n_layout = 1, .layout = {{.n_seg = b->n, .start = b->start}}});
    if (m->kind->rotate)
        encoder_rotation(n, b, m->dim / m->n_head / 2, m->theta, cs);
    struct tensor x = embed(n, m, b);
    for (int i = 0; i < m->n_layer && !n->rc; i++) {
        attention(n, m, &m->layer[i], &x, cs);
        feed_forward(n, m, &m->layer[i], &x);
    }
    nn_free(n, &cs[0]);
    nn_free(n, &cs[1]);
    if (m->n_label)
        classify(n, m, x, b, scores);
    else
        nn_get(n, &x, states);
    nn_free(n, &x);
}

static const char *const types[] = {"bert",      "roberta",    "xlm-roberta",
                                    "camembert", "nomic_bert", NULL};

const struct encoder_ops encoder_bert = {.types = types,
                                         .open = bert_open,
                                         .close = bert_close,
                                         .facts = bert_facts,
                                         .positions = bert_positions,
                                         .run = bert_run};
