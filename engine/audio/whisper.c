/* See whisper.h: configuration, weights, the pool of slots. */
#include "engine/audio/whisper_impl.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

#define LAYERS_MAX 256

static int need(struct config *c, const char *key, int max)
{
    config_need(c, key);
    return (int)config_int(c, key, 1, 1, max);
}

static int act_of(const char *name, enum image_act *out, struct err *e)
{
    *out = strcmp(name, "relu") == 0 ? IMAGE_ACT_RELU : IMAGE_ACT_GELU_ERF;
    if (strcmp(name, "gelu") == 0 || strcmp(name, "relu") == 0)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "config.json: activation_function '%.60s' is not supported",
                   name);
}

static int read_config(struct whisper_dims *m, struct config *c, struct err *e)
{
    m->d = need(c, "d_model", 1 << 14);
    m->n_mel = need(c, "num_mel_bins", 256);
    m->n_vocab = need(c, "vocab_size", 1 << 22);
    m->n_sound = need(c, "max_source_positions", 1 << 14);
    m->n_text = need(c, "max_target_positions", WHISPER_ROWS);
    m->enc_layer = need(c, "encoder_layers", LAYERS_MAX);
    m->enc_head = need(c, "encoder_attention_heads", 1 << 10);
    m->enc_ff = need(c, "encoder_ffn_dim", 1 << 18);
    m->dec_layer = need(c, "decoder_layers", LAYERS_MAX);
    m->dec_head = need(c, "decoder_attention_heads", 1 << 10);
    m->dec_ff = need(c, "decoder_ffn_dim", 1 << 18);
    bool scaled = config_bool(c, "scale_embedding", false);
    const char *act = config_str(c, "activation_function", "gelu");
    int rc = config_error(c, e);
    rc = rc ? rc : act_of(act, &m->act, e);
    if (!rc && scaled)
        rc = err_set(e, ERR_UNSUPPORTED, "config.json: scale_embedding is not supported");
    if (!rc && (m->d % m->enc_head || m->d % m->dec_head))
        rc = err_set(e, ERR_INVAL, "config.json: attention heads do not divide d_model %d", m->d);
    if (!rc && m->n_text < 16)
        rc = err_set(e, ERR_INVAL, "config.json: max_target_positions %d is too few", m->n_text);
    return rc;
}

static void load_self(struct nn_load *l, struct wh_layer *y, int d, const char *at)
{
    char own[80];
    snprintf(own, sizeof own, "%s.self_attn.", at);
    nn_load_stack(l, &y->qkv,
                  &(struct nn_stack){.prefix = own,
                                     .name = {"q_proj", "k_proj", "v_proj"},
                                     .n_name = 3,
                                     .n_in = d,
                                     .n_out = {d, d, d},
                                     .flags = NN_PART_BIAS});
    nn_load_linear(l, &y->out, d, d, 0, "%sout_proj", own);
    nn_load_norm(l, &y->norm, d, 0, "%s.self_attn_layer_norm", at);
}

static void load_cross(struct nn_load *l, struct wh_layer *y, int d, const char *at)
{
    char own[80];
    snprintf(own, sizeof own, "%s.encoder_attn.", at);
    nn_load_linear(l, &y->q_cross, d, d, 0, "%sq_proj", own);
    nn_load_stack(l, &y->kv,
                  &(struct nn_stack){.prefix = own,
                                     .name = {"k_proj", "v_proj"},
                                     .n_name = 2,
                                     .n_in = d,
                                     .n_out = {d, d},
                                     .flags = NN_PART_BIAS});
    nn_load_linear(l, &y->out_cross, d, d, 0, "%sout_proj", own);
    nn_load_norm(l, &y->norm_cross, d, 0, "%s.encoder_attn_layer_norm", at);
}

static void load_layer(struct nn_load *l, const struct whisper *m, struct wh_layer *y, bool dec,
                       int i)
{
    char at[64];
    int d = m->dim.d, ff = dec ? m->dim.dec_ff : m->dim.enc_ff;
    snprintf(at, sizeof at, "model.%s.layers.%d", dec ? "decoder" : "encoder", i);
    load_self(l, y, d, at);
    if (dec)
        load_cross(l, y, d, at);
    nn_load_linear(l, &y->fc1, d, ff, 0, "%s.fc1", at);
    nn_load_linear(l, &y->fc2, ff, d, 0, "%s.fc2", at);
    nn_load_norm(l, &y->norm_ff, d, 0, "%s.final_layer_norm", at);
}

/* The second convolution moves two frames at a time: row t reads frame 2t - 1, which is the second half of the row of
 * pairs before, and the pair 2t, 2t + 1. Two products, no copies. */
static void load_front(struct nn_load *l, struct whisper *m)
{
    int d = m->dim.d;
    const char *at = "model.encoder.";
    nn_load_taps(l, &m->conv1, &(struct nn_taps){m->dim.n_mel, d, 3, 0, 3}, "%sconv1", at);
    nn_load_taps(l, &m->conv2_before, &(struct nn_taps){d, d, 3, 0, 1}, "%sconv2", at);
    nn_load_taps(l, &m->conv2, &(struct nn_taps){d, d, 3, 1, 2}, "%sconv2", at);
    nn_load_vec(l, &m->pos_sound, (int64_t)m->dim.n_sound * d, 0, "%sembed_positions.weight", at);
    m->pos_sound = tensor_2d(DT_F32, m->pos_sound.buf, m->pos_sound.off, m->dim.n_sound, d);
}

static int load(struct whisper *m, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct nn_load l = {.w = w, .c = c, .e = e};
    int d = m->dim.d;
    load_front(&l, m);
    for (int i = 0; i < m->dim.enc_layer; i++)
        load_layer(&l, m, &m->enc[i], false, i);
    nn_load_norm(&l, &m->enc_norm, d, 0, "model.encoder.layer_norm");
    bool tied = !nn_load_has(&l, NULL, "proj_out.weight");
    nn_load_linear(&l, &m->tok, d, m->dim.n_vocab, NN_ROWS, "model.decoder.embed_tokens");
    if (tied)
        m->head = m->tok;
    else
        nn_load_linear(&l, &m->head, d, m->dim.n_vocab, 0, "proj_out");
    nn_load_table(&l, &m->pos, d, m->dim.n_text, "model.decoder.embed_positions.weight");
    for (int i = 0; i < m->dim.dec_layer; i++)
        load_layer(&l, m, &m->dec[i], true, i);
    nn_load_norm(&l, &m->dec_norm, d, 0, "model.decoder.layer_norm");
    return l.rc;
}

int whisper_open(struct whisper **out, struct nn_weights *w, struct comp *c, struct err *e)
{
    struct whisper *m = mem_calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the model");
    int rc = read_config(&m->dim, c->cfg, e);
    if (!rc) {
        m->enc = mem_calloc((size_t)m->dim.enc_layer, sizeof *m->enc);
        m->dec = mem_calloc((size_t)m->dim.dec_layer, sizeof *m->dec);
        m->zero =
            mem_calloc(WHISPER_ROWS + (size_t)m->dim.n_sound + (size_t)m->dim.d, sizeof *m->zero);
        rc = m->enc && m->dec && m->zero ? load(m, w, c, e)
                                         : err_set(e, ERR_NOMEM, "no memory for the model");
    }
    m->blk_text = (m->dim.n_text + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    m->blk_sound = (m->dim.n_sound + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    if (rc)
        whisper_close(m);
    else
        *out = m;
    return rc;
}

void whisper_close(struct whisper *m)
{
    if (!m)
        return;
    if (m->kv)
        m->be->kv_close(m->dev, m->kv);
    free(m->enc);
    free(m->dec);
    free(m->zero);
    free(m->ints);
    free(m);
}

const struct whisper_dims *whisper_dims(const struct whisper *m)
{
    return &m->dim;
}

static struct kv_desc pool_of(const struct whisper *m, enum dtype d, int n_slot)
{
    return (struct kv_desc){.n_layer = m->dim.dec_layer,
                            .n_kv_head = m->dim.dec_head,
                            .head_dim = m->dim.d / m->dim.dec_head,
                            .n_block = 1 + n_slot * (m->blk_text + m->blk_sound),
                            .dtype = d};
}

size_t whisper_slot_bytes(const struct whisper *m, const struct backend *be, enum dtype d)
{
    struct kv_desc k = pool_of(m, d, 1);
    return be->kv_block_bytes(&k) * (size_t)(m->blk_text + m->blk_sound);
}

/* Ints of both descriptions: tokens, positions (twice), starts (twice), block tables (twice), logit rows, plus the
 * encoder's positions and its table. */
int whisper_slots_open(struct whisper *m, const struct nn *n, enum dtype d, int n_slot,
                       struct err *e)
{
    struct kv_desc k = pool_of(m, d, n_slot);
    size_t rows = WHISPER_ROWS + (size_t)m->dim.n_sound,
           ints = 6 * (rows + 1) + rows * (size_t)(m->blk_text + m->blk_sound);
    m->be = n->be;
    m->dev = n->dev;
    m->n_slot = n_slot;
    m->ints = mem_alloc(ints * sizeof *m->ints);
    if (!m->ints)
        return err_set(e, ERR_NOMEM, "no memory for the description of a step");
    return m->dev ? m->be->kv_open(m->dev, &m->kv, &k, e) : 0;
}

void wh__add(struct nn *n, struct tensor x, struct tensor *y)
{
    NN_OP(n, gate_add, .x = x, .y = *y, .factor = 1, .layout = -1);
    nn_free(n, y);
}

void wh__feed_forward(struct nn *n, const struct whisper *m, const struct wh_layer *y,
                      struct tensor x)
{
    struct tensor h = nn_norm_mul(n, x, &y->norm_ff, WH_EPS, false);
    struct tensor f = nn_linear(n, &y->fc1, h);
    nn_free(n, &h);
    struct tensor g = nn_act(n, f, m->dim.act, n->mul);
    nn_free(n, &f);
    struct tensor o = nn_linear(n, &y->fc2, g);
    nn_free(n, &g);
    wh__add(n, x, &o);
}
