/* See whisper.h: the forwards. */
#include "engine/audio/whisper_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

static void begin_step(struct nn *n, struct whisper *m, const struct step_meta *s)
{
    if (!n->rc && !n->dry)
        nn_done(n, "step_begin", m->be->step_begin(m->dev, s));
}

static int head_dim(const struct whisper *m)
{
    return m->dim.d / m->dim.dec_head;
}

/* ---- encoder ---- */

/* Frames t - 1, t, t + 1 side by side: what a tap of three reads. */
static struct tensor gather_frames(struct nn *n, const struct whisper *m, const float *mel)
{
    size_t c = (size_t)m->dim.n_mel, rows = 2 * (size_t)m->dim.n_sound;
    struct tensor t = nn_tmp(n, DT_F32, (int64_t)rows, 3 * (int64_t)c);
    if (n->rc || n->dry)
        return t;
    float *v = mem_calloc(rows * 3 * c, sizeof *v);
    if (!v) {
        nn_done(n, "frames", ERR_NOMEM);
        return t;
    }
    for (size_t r = 0; r < rows; r++) {
        size_t from = r ? r - 1 : 0, to = r + 2 < rows ? r + 2 : rows;
        memcpy(v + r * 3 * c + (r ? 0 : c), mel + from * c, (to - from) * c * sizeof *v);
    }
    nn_put(n, &t, v);
    free(v);
    return t;
}

static struct tensor front(struct nn *n, const struct whisper *m, const float *mel)
{
    int64_t d = m->dim.d, rows = 2 * (int64_t)m->dim.n_sound, half = rows / 2;
    struct tensor f = gather_frames(n, m, mel);
    struct tensor a = nn_linear(n, &m->conv1, f);
    nn_free(n, &f);
    struct tensor h = nn_tmp(n, n->mul, rows + 1, d), first = nn_rows(h, 0, 1);
    nn_put(
        n, &first,
        m->zero); /* the frame before the first: n_sound + WHISPER_ROWS zeros are enough of them */
    NN_OP(n, act, .dst = nn_rows(h, 1, rows), .x = a, .act = IMAGE_ACT_GELU_ERF);
    nn_free(n, &a);
    struct tensor before = h, pair = nn_rows(h, 1, half);
    before.shape[0] = half;
    before.stride[0] = pair.stride[0] = 2 * d;
    pair.shape[1] = 2 * d;
    struct tensor x = nn_linear(n, &m->conv2, pair), y = nn_linear(n, &m->conv2_before, before);
    nn_free(n, &h);
    wh__add(n, x, &y);
    NN_OP(n, act, .dst = x, .x = x, .act = IMAGE_ACT_GELU_ERF);
    NN_OP(n, gate_add, .x = x, .y = m->pos_sound, .factor = 1, .layout = -1);
    return x;
}

static void enc_attention(struct nn *n, const struct whisper *m, const struct wh_layer *y,
                          struct tensor x)
{
    int64_t d = m->dim.d;
    int hd = m->dim.d / m->dim.enc_head;
    struct tensor h = nn_norm_mul(n, x, &y->norm, WH_EPS, false);
    struct tensor qkv = nn_linear(n, &y->qkv, h);
    nn_free(n, &h);
    struct tensor a = nn_tmp(n, n->mul, x.shape[0], d);
    NN_OP(n, attend, .dst = a, .q = tensor_cols(qkv, 0, d), .k = tensor_cols(qkv, d, d),
          .v = tensor_cols(qkv, 2 * d, d), .n_head = m->dim.enc_head, .n_kv_head = m->dim.enc_head,
          .head_dim = hd, .scale = 1 / sqrtf((float)hd));
    nn_free(n, &qkv);
    struct tensor o = nn_linear(n, &y->out, a);
    nn_free(n, &a);
    wh__add(n, x, &o);
}

/* Blocks of a slot: those of text, or those of sound. */
static void table_fill(const struct whisper *m, int32_t *t, int slot, bool sound)
{
    int32_t at = 1 + slot * (m->blk_text + m->blk_sound) + (sound ? m->blk_text : 0);
    for (int b = 0; b < (sound ? m->blk_sound : m->blk_text); b++)
        t[b] = at + b;
}

/* One sequence: the positions of a window, into its sound blocks. */
static void sound_meta(struct whisper *m, int slot)
{
    int32_t rows = m->dim.n_sound, *pos = m->ints, *start = pos + rows, *table = start + 2;
    for (int32_t i = 0; i < rows; i++)
        pos[i] = i;
    start[0] = 0;
    start[1] = rows;
    table_fill(m, table, slot, true);
    m->cross = (struct step_meta){.n_row = rows,
                                  .n_seq = 1,
                                  .tok = m->zero,
                                  .pos = pos,
                                  .seq_start = start,
                                  .block_table = table,
                                  .block_stride = m->blk_sound};
}

/* Keys and values of every decoder layer into the slot. The query columns are nobody's. */
static void write_sound(struct nn *n, struct whisper *m, struct tensor x, int slot)
{
    int64_t d = m->dim.d;
    struct tensor h = nn_norm_mul(n, x, &m->enc_norm, WH_EPS, false);
    struct tensor qkv = nn_tmp(n, DT_F32, x.shape[0], 3 * d);
    sound_meta(m, slot);
    begin_step(n, m, &m->cross);
    for (int i = 0; i < m->dim.dec_layer; i++) {
        nn_linear_to(n, &m->dec[i].kv, h, tensor_cols(qkv, d, 2 * d));
        NN_OP(n, rope_kv, .qkv = qkv, .n_head = m->dim.dec_head, .n_kv_head = m->dim.dec_head,
              .head_dim = head_dim(m), .style = ROPE_NONE, .attn_factor = 1, .kv = m->kv,
              .layer = i);
    }
    nn_free(n, &qkv);
    nn_free(n, &h);
}

static void read_states(struct nn *n, struct whisper *m, struct tensor x, float *states)
{
    struct tensor y = nn_tmp(n, DT_F32, x.shape[0], x.shape[1]);
    NN_OP(n, layer_norm, .dst = y, .x = x, .w = m->enc_norm.w, .b = m->enc_norm.b, .eps = WH_EPS,
          .layout = -1);
    nn_get(n, &y, states);
    nn_free(n, &y);
}

void whisper_encode(struct whisper *m, struct nn *n, const float *mel, int slot, float *states)
{
    const int32_t start[2] = {0, m->dim.n_sound};
    nn_layouts(n, &(struct image_meta){.n_layout = 1, .layout = {{.n_seg = 1, .start = start}}});
    struct tensor x = front(n, m, mel);
    for (int i = 0; i < m->dim.enc_layer && !n->rc; i++) {
        enc_attention(n, m, &m->enc[i], x);
        wh__feed_forward(n, m, &m->enc[i], x);
    }
    write_sound(n, m, x, slot);
    if (states || n->dry)
        read_states(n, m, x, states);
    nn_free(n, &x);
    /* start lives on this stack: nothing may read it later */
    if (!n->rc && !n->dry)
        nn_done(n, "sync", m->be->sync(m->dev));
}

/* ---- decoder ---- */

/* Self-attention: a sequence is a slot's rows. Cross-attention: every row is a sequence of its own that sees all of
 * its slot's sound. Returns the number of rows. */
static int text_meta(struct whisper *m, const struct whisper_row *row, int n_row)
{
    int rows = 0, n_logit = 0;
    for (int i = 0; i < n_row; i++)
        rows += row[i].n_tok;
    int32_t *tok = m->ints, *pos = tok + rows, *end = pos + rows, *one = end + rows,
            *start = one + rows + 1, *logit = start + n_row + 1, *self = logit + rows,
            *cross = self + (size_t)n_row * (size_t)m->blk_text;
    int at = 0;
    for (int i = 0; i < n_row; i++) {
        start[i] = at;
        table_fill(m, self + (size_t)i * (size_t)m->blk_text, row[i].slot, false);
        for (int k = 0; k < row[i].n_tok; k++, at++) {
            tok[at] = row[i].tok ? row[i].tok[k] : 0;
            pos[at] = row[i].pos + k;
            end[at] = m->dim.n_sound - 1;
            one[at] = at;
            table_fill(m, cross + (size_t)at * (size_t)m->blk_sound, row[i].slot, true);
            if (k >= row[i].n_tok - row[i].n_logit)
                logit[n_logit++] = at;
        }
    }
    start[n_row] = one[rows] = rows;
    m->self = (struct step_meta){.n_row = rows,
                                 .n_seq = n_row,
                                 .n_logit = n_logit,
                                 .tok = tok,
                                 .pos = pos,
                                 .seq_start = start,
                                 .block_table = self,
                                 .block_stride = m->blk_text,
                                 .logit_row = logit};
    m->cross = (struct step_meta){.n_row = rows,
                                  .n_seq = rows,
                                  .n_logit = n_logit,
                                  .tok = tok,
                                  .pos = end,
                                  .seq_start = one,
                                  .block_table = cross,
                                  .block_stride = m->blk_sound,
                                  .logit_row = logit};
    return rows;
}

static struct tensor paged(struct nn *n, const struct whisper *m, struct tensor qkv, int layer)
{
    struct tensor a = nn_tmp(n, n->mul, qkv.shape[0], m->dim.d);
    NN_OP(n, attn, .dst = a, .qkv = qkv, .n_head = m->dim.dec_head, .n_kv_head = m->dim.dec_head,
          .head_dim = head_dim(m), .scale = 1 / sqrtf((float)head_dim(m)), .kv = m->kv,
          .layer = layer);
    return a;
}

static void dec_self(struct nn *n, struct whisper *m, struct tensor x, int i)
{
    const struct wh_layer *y = &m->dec[i];
    struct tensor h = nn_norm_mul(n, x, &y->norm, WH_EPS, false);
    struct tensor qkv = nn_linear(n, &y->qkv, h);
    nn_free(n, &h);
    begin_step(n, m, &m->self);
    NN_OP(n, rope_kv, .qkv = qkv, .n_head = m->dim.dec_head, .n_kv_head = m->dim.dec_head,
          .head_dim = head_dim(m), .style = ROPE_NONE, .attn_factor = 1, .kv = m->kv, .layer = i);
    struct tensor a = paged(n, m, qkv, i);
    nn_free(n, &qkv);
    struct tensor o = nn_linear(n, &y->out, a);
    nn_free(n, &a);
    wh__add(n, x, &o);
}

static void dec_cross(struct nn *n, struct whisper *m, struct tensor x, int i, float *tap)
{
    const struct wh_layer *y = &m->dec[i];
    int64_t d = m->dim.d;
    struct tensor h = nn_norm_mul(n, x, &y->norm_cross, WH_EPS, false);
    struct tensor q = nn_tmp(n, DT_F32, x.shape[0], 3 * d);
    nn_linear_to(n, &y->q_cross, h, tensor_cols(q, 0, d));
    nn_free(n, &h);
    if (tap || n->dry) {
        struct tensor c = nn_act(n, tensor_cols(q, 0, d), IMAGE_ACT_NONE, DT_F32);
        nn_get(n, &c, tap);
        nn_free(n, &c);
    }
    begin_step(n, m, &m->cross);
    struct tensor a = paged(n, m, q, i);
    nn_free(n, &q);
    struct tensor o = nn_linear(n, &y->out_cross, a);
    nn_free(n, &a);
    wh__add(n, x, &o);
}

static struct tensor put_ids(struct nn *n, const int32_t *v, int rows)
{
    struct tensor t = nn_tmp(n, DT_I32, 1, rows);
    nn_put(n, &t, v);
    return t;
}

void whisper_decode(struct whisper *m, struct nn *n, const struct whisper_row *row, int n_row,
                    float *logits, const struct whisper_tap *tap)
{
    int rows = text_meta(m, row, n_row);
    struct tensor x = nn_tmp(n, DT_F32, rows, m->dim.d);
    struct tensor ids = put_ids(n, m->self.tok, rows), pos = put_ids(n, m->self.pos, rows);
    NN_OP(n, lookup, .dst = x, .ids = ids, .pos = pos, .w = m->tok.w, .w2 = m->pos.w);
    nn_free(n, &pos);
    nn_free(n, &ids);
    for (int i = 0; i < m->dim.dec_layer && !n->rc; i++) {
        dec_self(n, m, x, i);
        dec_cross(n, m, x, i, tap ? tap->q[i] : NULL);
        wh__feed_forward(n, m, &m->dec[i], x);
    }
    if (m->self.n_logit) {
        struct tensor h = nn_norm_mul(n, x, &m->dec_norm, WH_EPS, false);
        struct tensor last = nn_tmp(n, n->mul, m->self.n_logit, m->dim.d);
        NN_OP(n, gather, .dst = last, .src = h);
        struct tensor z = nn_linear(n, &m->head, last);
        nn_get(n, &z, logits);
        nn_free(n, &z);
        nn_free(n, &last);
        nn_free(n, &h);
    }
    nn_free(n, &x);
}

void whisper_keys(struct whisper *m, struct nn *n, const float *states, int layer, float *k)
{
    int64_t d = m->dim.d;
    struct tensor x = nn_tmp(n, DT_F32, m->dim.n_sound, d);
    nn_put(n, &x, states);
    struct tensor kv = nn_linear(n, &m->dec[layer].kv, x);
    struct tensor c = nn_act(n, tensor_cols(kv, 0, d), IMAGE_ACT_NONE, DT_F32);
    nn_get(n, &c, k);
    nn_free(n, &c);
    nn_free(n, &kv);
    nn_free(n, &x);
}
