/* Decoder-only language models as text encoders: the hidden states of a prompt. Qwen2.5 (also the text side of
 * Qwen2.5-VL, whose three-part rotation is the plain one for text) and Qwen3, which norms q and k by head. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/image/enc_impl.h"

/* Names of a layer's parts in the two file formats. */
struct names {
    const char *const *prefix; /* what may stand before everything */
    int n_prefix;
    const char *tok, *block, *norm, *attn_norm, *q, *k, *v, *o, *q_norm, *k_norm, *ff_norm, *gate,
        *up, *down;
};
static const char *const hf_prefix[] = {"model.language_model.", "language_model.model.",
                                        "language_model.", "", "model."};
static const char *const gguf_prefix[] = {""};
static const struct names name_set[] = {
    {gguf_prefix, 1, "token_embd.weight", "blk.", "output_norm", "attn_norm", "attn_q", "attn_k",
     "attn_v", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm", "ffn_gate", "ffn_up",
     "ffn_down"},
    {hf_prefix, 5, "embed_tokens.weight", "layers.", "norm", "input_layernorm", "self_attn.q_proj",
     "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
     "self_attn.k_norm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
     "mlp.down_proj"},
};

struct layer {
    struct nn_norm norm1, norm2, q_norm, k_norm; /* q_norm, k_norm: absent in Qwen2.5 */
    struct nn_linear qkv, out, in, down;         /* in: gate and up stacked */
};

struct lm_enc {
    int dim, n_head, n_kv_head, head_dim, n_ff, n_layer, len_max;
    int skip;    /* layers at the end that are not loaded */
    bool causal; /* else a token sees all of its prompt */
    float eps;
    double theta;
    struct nn_linear tok;
    struct nn_norm final;
    struct layer *layer; /* [n_layer - skip] */
};

/* What other models of the same tensor names would need, and this forward does not do. */
static int check_kind(struct enc_cfg g, struct err *e)
{
    static const char *const types[] = {
        "qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text",
        "qwen3", "qwen3_vl", "qwen3_vl_text", "llama",      "mistral"};
    static const char *const rope_keys[] = {"rope_parameters.rope_type", "rope_scaling.rope_type",
                                            "rope_scaling.type"};
    const char *type = enc__cfg_str(g, "model_type", "qwen3");
    size_t i = 0, n = sizeof types / sizeof types[0];
    while (i < n && strcmp(type, types[i]) != 0)
        i++;
    if (i == n)
        return err_set(e, ERR_UNSUPPORTED, "model_type '%.60s' is not supported as text encoder",
                       type);
    for (i = 0; i < sizeof rope_keys / sizeof rope_keys[0]; i++) {
        const char *rope = enc__cfg_str(g, rope_keys[i], "default");
        if (strcmp(rope, "default") != 0 && strcmp(rope, "mrope") != 0)
            return err_set(e, ERR_UNSUPPORTED, "%s '%.60s' is not supported", rope_keys[i], rope);
    }
    const char *act = enc__cfg_str(g, "hidden_act", "silu");
    if (strcmp(act, "silu") != 0)
        return err_set(e, ERR_UNSUPPORTED, "hidden_act '%.60s' is not supported", act);
    if (enc__cfg_bool(g, "use_sliding_window", false))
        return err_set(e, ERR_UNSUPPORTED, "use_sliding_window is not supported");
    return 0;
}

static int read_config(struct lm_enc *m, struct comp *c, struct err *e)
{
    struct enc_cfg g = enc__cfg(c->cfg, "text_config.", "hidden_size");
    m->dim = enc__cfg_need(g, "hidden_size", 1, 1 << 16);
    m->n_head = enc__cfg_need(g, "num_attention_heads", 1, 1 << 10);
    m->n_kv_head = enc__cfg_int(g, "num_key_value_heads", m->n_head, 1, 1 << 10);
    m->n_ff = enc__cfg_need(g, "intermediate_size", 1, 1 << 18);
    m->n_layer = enc__cfg_need(g, "num_hidden_layers", 1, ENC_LAYERS_MAX);
    m->len_max = enc__cfg_int(g, "max_position_embeddings", 32768, 1, 1 << 20);
    m->eps = (float)enc__cfg_num(g, "rms_norm_eps", 1e-6, 0, 1);
    m->head_dim = enc__cfg_int(g, "head_dim", m->dim / m->n_head, 2, 1 << 12);
    m->theta = enc__cfg_num(g, "rope_theta", 10000, 1, 1e12);
    m->theta = enc__cfg_num(g, "rope_parameters.rope_theta", m->theta, 1, 1e12);
    m->causal = enc__cfg_bool(g, "is_causal", true);
    /* Mistral sees a window of that many tokens: texts of no more are the same with it and without it */
    if (strcmp(enc__cfg_str(g, "model_type", ""), "mistral") == 0)
        m->len_max = enc__cfg_int(g, "sliding_window", m->len_max, 1, m->len_max);
    int rc = check_kind(g, e);
    int rc2 = config_error(c->cfg, rc ? NULL : e);
    if (rc || rc2)
        return rc ? rc : rc2;
    if (m->n_head % m->n_kv_head)
        return err_set(e, ERR_INVAL, "num_attention_heads %d is no multiple of %s %d", m->n_head,
                       "num_key_value_heads", m->n_kv_head);
    if (m->head_dim % 2)
        return err_set(e, ERR_INVAL, "head_dim %d is odd", m->head_dim);
    if (m->skip < 0 || m->skip > m->n_layer)
        return err_set(e, ERR_INVAL, "cannot leave out %d of %d layers", m->skip, m->n_layer);
    return 0;
}

static void load_layer(struct nn_load *l, const struct lm_enc *m, struct layer *y,
                       const struct names *s, const char *at)
{
    int nq = m->n_head * m->head_dim, nk = m->n_kv_head * m->head_dim;
    nn_load_norm(l, &y->norm1, m->dim, NN_NO_BIAS, "%s%s", at, s->attn_norm);
    nn_load_norm(l, &y->norm2, m->dim, NN_NO_BIAS, "%s%s", at, s->ff_norm);
    nn_load_stack(l, &y->qkv,
                  &(struct nn_stack){.prefix = at,
                                     .name = {s->q, s->k, s->v},
                                     .n_name = 3,
                                     .n_in = m->dim,
                                     .n_out = {nq, nk, nk}});
    if (nn_load_has(l, NULL, "%s%s.weight", at, s->q_norm) ||
        nn_load_has(l, NULL, "%s%s.weight", at, s->k_norm)) {
        nn_load_norm(l, &y->q_norm, m->head_dim, NN_NO_BIAS, "%s%s", at, s->q_norm);
        nn_load_norm(l, &y->k_norm, m->head_dim, NN_NO_BIAS, "%s%s", at, s->k_norm);
    }
    nn_load_linear(l, &y->out, nq, m->dim, 0, "%s%s", at, s->o);
    nn_load_stack(l, &y->in,
                  &(struct nn_stack){.prefix = at,
                                     .name = {s->gate, s->up},
                                     .n_name = 2,
                                     .n_in = m->dim,
                                     .n_out = {m->n_ff, m->n_ff}});
    nn_load_linear(l, &y->down, m->n_ff, m->dim, 0, "%s%s", at, s->down);
}

static int load(struct lm_enc *m, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct nn_load l = {.w = w, .c = c, .e = e};
    const struct names *s = &name_set[nn_load_has(&l, NULL, "%s", name_set[0].tok) ? 0 : 1];
    const char *p = enc__prefix(&l, s->prefix, s->n_prefix, s->tok);
    nn_load_table(&l, &m->tok, m->dim, NN_ANY, "%s%s", p, s->tok);
    m->layer = nn_load_room(&l, m->n_layer, sizeof *m->layer);
    for (int i = 0; i < m->n_layer - m->skip && !l.rc; i++) {
        char at[96];
        snprintf(at, sizeof at, "%s%s%d.", p, s->block, i);
        load_layer(&l, m, &m->layer[i], s, at);
    }
    if (!m->skip)
        nn_load_norm(&l, &m->final, m->dim, NN_NO_BIAS, "%s%s", p, s->norm);
    return l.rc;
}

int lm_enc_open(struct lm_enc **out, struct nn_weights *w, struct comp *c, int skip, struct err *e)
{
    struct lm_enc *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "%s: out of memory", c->name);
    m->skip = skip;
    int rc = read_config(m, c, e);
    rc = rc ? rc : load(m, w, c, e);
    if (rc)
        lm_enc_close(m);
    else
        *out = m;
    return enc__opened(c, rc, e);
}

void lm_enc_close(struct lm_enc *m)
{
    if (m)
        free(m->layer);
    free(m);
}

int lm_enc_dim(const struct lm_enc *m)
{
    return m->dim;
}

int lm_enc_len_max(const struct lm_enc *m)
{
    return m->len_max;
}

int64_t lm_enc_vocab(const struct lm_enc *m)
{
    return m->tok.n_out;
}

/* ---- runs ---- */

/* Rotation tables of every row's position in its prompt (Su et al. 2021): v [2][rows, half]. Frequencies and angles in
 * f32, as the reference has them. */
static void fill_rotation(const struct lm_enc *m, const struct enc_batch *b, float *v)
{
    size_t half = (size_t)m->head_dim / 2, rows = (size_t)enc__rows(b);
    for (size_t i = 0; i < half; i++) {
        float inv = 1.0f / powf((float)m->theta, (float)(2 * i) / (float)m->head_dim);
        for (int s = 0; s < b->n; s++)
            for (int32_t r = b->start[s]; r < b->start[s + 1]; r++) {
                float angle = (float)(r - b->start[s]) * inv;
                v[(size_t)r * half + i] = cosf(angle);
                v[(rows + (size_t)r) * half + i] = sinf(angle);
            }
    }
}

/* [2 * rows, head_dim / 2]: cosines, then sines. */
static struct tensor rotation(struct nn *n, const struct lm_enc *m, const struct enc_batch *b)
{
    struct tensor t = nn_tmp(n, DT_F32, 2 * enc__rows(b), m->head_dim / 2);
    size_t cells;
    if (n->rc || n->dry)
        return t;
    bool fits = ck_mul((size_t)enc__rows(b), (size_t)m->head_dim * sizeof(float), &cells);
    float *v = fits ? mem_alloc(cells) : NULL;
    if (v) {
        fill_rotation(m, b, v);
        nn_put(n, &t, v);
    } else {
        enc__fail(n, ERR_NOMEM, "encode (rotation tables)");
    }
    free(v);
    return t;
}

static struct tensor attention(struct nn *n, const struct lm_enc *m, const struct layer *y,
                               struct tensor *h, struct tensor rot)
{
    int hd = m->head_dim, nq = m->n_head * hd, nk = m->n_kv_head * hd;
    struct tensor qkv = nn_linear(n, &y->qkv, *h);
    nn_free(n, h);
    int64_t rows = qkv.shape[0];
    struct tensor q = tensor_cols(qkv, 0, nq), k = tensor_cols(qkv, nq, nk),
                  v = tensor_cols(qkv, nq + nk, nk);
    struct tensor cos = nn_rows(rot, 0, rows), sin = nn_rows(rot, rows, rows);
    NN_OP(n, rotate, .x = q, .n_head = m->n_head, .head_dim = hd, .norm = y->q_norm.w,
          .eps = m->eps, .cos = cos, .sin = sin, .style = ROPE_NEOX);
    NN_OP(n, rotate, .x = k, .n_head = m->n_kv_head, .head_dim = hd, .norm = y->k_norm.w,
          .eps = m->eps, .cos = cos, .sin = sin, .style = ROPE_NEOX);
    struct tensor a = nn_tmp(n, n->mul, rows, nq);
    NN_OP(n, attend, .dst = a, .q = q, .k = k, .v = v, .n_head = m->n_head,
          .n_kv_head = m->n_kv_head, .head_dim = hd, .scale = 1 / sqrtf((float)hd),
          .causal = m->causal);
    nn_free(n, &qkv);
    struct tensor o = nn_linear(n, &y->out, a);
    nn_free(n, &a);
    return o;
}

static struct tensor feed_forward(struct nn *n, const struct lm_enc *m, const struct layer *y,
                                  struct tensor *h)
{
    struct tensor f = nn_linear(n, &y->in, *h);
    nn_free(n, h);
    struct tensor g = nn_tmp(n, n->mul, f.shape[0], m->n_ff);
    NN_OP(n, act_mul, .dst = g, .gate_up = f, .act = ACT_SILU);
    nn_free(n, &f);
    struct tensor o = nn_linear(n, &y->down, g);
    nn_free(n, &g);
    return o;
}

void lm_enc_run(struct lm_enc *m, struct nn *n, const struct enc_batch *b, int skip, float *states)
{
    if (skip < m->skip || skip > m->n_layer) {
        enc__fail(n, ERR_INVAL, "encode (a layer that is not there)");
        return;
    }
    if (!enc__begin(n, b, m->tok.n_out, m->len_max))
        return;
    struct tensor rot = rotation(n, m, b);
    struct tensor x = enc__embed(n, b, &m->tok, NULL), y = {0};
    for (int i = 0; i < m->n_layer - skip && !n->rc; i++) {
        const struct layer *l = &m->layer[i];
        struct tensor h = enc__rms(n, x, &y, l->norm1.w, m->eps, n->mul);
        y = attention(n, m, l, &h, rot);
        h = enc__rms(n, x, &y, l->norm2.w, m->eps, n->mul);
        y = feed_forward(n, m, l, &h);
    }
    struct tensor t = {0};
    if (skip == 0)
        t = enc__rms(n, x, &y, m->final.w, m->eps, DT_F32);
    else if (skip < m->n_layer)
        enc__add(n, x, &y);
    if (!n->rc)
        nn_get(n, t.buf ? &t : &x, states);
    nn_free(n, &t);
    nn_free(n, &x);
    nn_free(n, &rot);
}
