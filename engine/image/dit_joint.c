/* The transformer block of two streams, text and image, that meet in one attention (Esser et al. 2024). See dit.h. */
#include "engine/image/dit.h"

#include <math.h>
#include <stdio.h>

static void attention_load(struct nn_load *l, struct dit_attention *a, int64_t d, int64_t head_dim,
                           const char *prefix, const struct dit_stream_names *names)
{
    const struct nn_stack qkv = {.prefix = prefix,
                                 .name = {names->q, names->k, names->v},
                                 .n_name = 3,
                                 .n_in = d,
                                 .n_out = {d, d, d}};
    nn_load_stack(l, &a->qkv, &qkv);
    if (names->out)
        nn_load_linear(l, &a->out, d, d, 0, "%s%s", prefix, names->out);
    nn_load_vec(l, &a->norm_q, head_dim, NN_OPTIONAL, "%s%s.weight", prefix, names->norm_q);
    nn_load_vec(l, &a->norm_k, head_dim, NN_OPTIONAL, "%s%s.weight", prefix, names->norm_k);
}

void dit_stream_load(struct nn_load *l, struct dit_stream *s, int64_t d, int64_t head_dim,
                     const char *prefix, const struct dit_stream_names *names)
{
    static const struct dit_stream_names second = {.q = "to_q",
                                                   .k = "to_k",
                                                   .v = "to_v",
                                                   .norm_q = "norm_q",
                                                   .norm_k = "norm_k",
                                                   .out = "to_out.0"};
    s->ends = !names->out;
    s->has_second = names->second;
    nn_load_linear(l, &s->mod, d,
                   (s->ends         ? 2
                    : s->has_second ? 9
                                    : 6) *
                       d,
                   0, "%s%s", prefix, names->mod);
    attention_load(l, &s->att, d, head_dim, prefix, names);
    if (s->ends)
        return;
    nn_load_linear(l, &s->up, d, NN_ANY, 0, "%s%s", prefix, names->up);
    nn_load_linear(l, &s->down, s->up.n_out, d, 0, "%s%s", prefix, names->down);
    if (!s->has_second)
        return;
    char more[96];
    snprintf(more, sizeof more, "%s%s", prefix, names->second);
    attention_load(l, &s->second, d, head_dim, more, &second);
}

const struct dit_stream_names dit_names_img = {
    .mod = "norm1.linear",
    .q = "attn.to_q",
    .k = "attn.to_k",
    .v = "attn.to_v",
    .norm_q = "attn.norm_q",
    .norm_k = "attn.norm_k",
    .out = "attn.to_out.0",
    .up = "ff.net.0.proj",
    .down = "ff.net.2",
};
const struct dit_stream_names dit_names_txt = {
    .mod = "norm1_context.linear",
    .q = "attn.add_q_proj",
    .k = "attn.add_k_proj",
    .v = "attn.add_v_proj",
    .norm_q = "attn.norm_added_q",
    .norm_k = "attn.norm_added_k",
    .out = "attn.to_add_out",
    .up = "ff_context.net.0.proj",
    .down = "ff_context.net.2",
};

void dit_joint_load(struct nn_load *l, struct dit_joint *b, int i, int n_head, int head_dim,
                    const struct dit_stream_names *img, const struct dit_stream_names *txt)
{
    int64_t d = (int64_t)n_head * head_dim;
    char prefix[48];
    snprintf(prefix, sizeof prefix, "transformer_blocks.%d.", i);
    b->n_head = n_head;
    b->head_dim = head_dim;
    dit_stream_load(l, &b->img, d, head_dim, prefix, img);
    dit_stream_load(l, &b->txt, d, head_dim, prefix, txt);
}

bool dit_pass_begin(struct nn *n, struct dit_rows *r, const struct dit_patch *a,
                    const struct img_row *row, int n_row)
{
    if (dit_rows_begin(r, n_row)) {
        nn_done(n, "rows", ERR_NOMEM);
        return false;
    }
    for (int i = 0; i < n_row; i++)
        dit_rows_add(r, row[i].cond->n_tok, dit_patch_count(a, &row[i]));
    dit_rows_layouts(r, n);
    return true;
}

void dit_pass_end(struct nn *n, struct dit_pass *p)
{
    struct tensor *const all[] = {&p->temb, &p->cos_txt, &p->sin_txt, &p->cos_img, &p->sin_img};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        nn_free(n, all[i]);
}

struct tensor dit_gelu_mlp(struct nn *n, const struct nn_linear *up, const struct nn_linear *down,
                           struct tensor *x)
{
    struct tensor wide = nn_linear(n, up, *x);
    nn_free(n, x);
    struct tensor act = nn_act(n, wide, IMAGE_ACT_GELU_TANH, n->mul);
    nn_free(n, &wide);
    struct tensor out = nn_linear(n, down, act);
    nn_free(n, &act);
    return out;
}

/* q, k and v of normed rows y (freed) into dst [rows, 3 d]: product, norm of heads, rotation. */
static void project(struct nn *n, const struct dit_joint *b, const struct dit_attention *a,
                    struct tensor *y, int layout, struct tensor dst, const struct dit_pass *p)
{
    int64_t d = dst.shape[1] / 3;
    struct tensor cos_t = layout == DIT_TXT ? p->cos_txt : p->cos_img;
    struct tensor sin_t = layout == DIT_TXT ? p->sin_txt : p->sin_img;
    nn_linear_to(n, &a->qkv, *y, dst);
    nn_free(n, y);
    for (int i = 0; i < 2; i++) {
        struct tensor norm = i ? a->norm_k : a->norm_q;
        if (norm.n_dim || cos_t.n_dim)
            NN_OP(n, rotate, .x = tensor_cols(dst, i * d, d), .n_head = b->n_head,
                  .head_dim = b->head_dim, .norm = norm, .eps = 1e-6f, .cos = cos_t, .sin = sin_t,
                  .style = ROPE_NORM);
    }
}

/* (mul) [rows, d] of qkv [rows, 3 d], which is freed. */
static struct tensor attend(struct nn *n, const struct dit_joint *b, struct tensor *qkv, int layout)
{
    int64_t d = qkv->shape[1] / 3;
    struct tensor att = nn_tmp(n, n->mul, qkv->shape[0], d);
    NN_OP(n, attend, .dst = att, .q = tensor_cols(*qkv, 0, d), .k = tensor_cols(*qkv, d, d),
          .v = tensor_cols(*qkv, 2 * d, d), .n_head = b->n_head, .n_kv_head = b->n_head,
          .head_dim = b->head_dim, .scale = 1 / sqrtf((float)b->head_dim), .q_layout = layout,
          .kv_layout = layout);
    nn_free(n, qkv);
    return att;
}

/* Attention of all pictures over y (mul, freed): results by stream. One picture's streams already lie as the joint
 * order has them, so there nothing is copied; more are brought together first. */
static void joint_attend(struct nn *n, const struct dit_joint *b, const struct dit_pass *p,
                         struct tensor y[2], struct tensor out[2])
{
    const struct dit_stream *s[2] = {&b->txt, &b->img};
    const struct dit_rows *r = p->rows;
    int64_t d = y[1].shape[1], rows[2] = {y[0].shape[0], y[1].shape[0]};
    bool one = r->n == 1;
    struct tensor joint = {0}, part[2];
    if (one) {
        joint = nn_tmp(n, DT_F32, rows[0] + rows[1], 3 * d);
        part[0] = nn_rows(joint, 0, rows[0]);
        part[1] = nn_rows(joint, rows[0], rows[1]);
    } else {
        part[0] = nn_tmp(n, DT_F32, rows[0], 3 * d);
        part[1] = nn_tmp(n, DT_F32, rows[1], 3 * d);
    }
    for (int i = 0; i < 2; i++)
        project(n, b, &s[i]->att, &y[i], i, part[i], p);
    if (!one) {
        joint = dit_join(n, r, part[0], part[1]);
        nn_free(n, &part[0]);
        nn_free(n, &part[1]);
    }
    struct tensor att = attend(n, b, &joint, DIT_JOINT);
    if (one) {
        part[0] = nn_rows(att, 0, rows[0]);
        part[1] = nn_rows(att, rows[0], rows[1]);
    } else {
        dit_split(n, r, att, s[0]->ends ? NULL : &part[0], &part[1]);
    }
    for (int i = 0; i < 2; i++) {
        out[i] = (struct tensor){0};
        if (s[i]->ends)
            continue;
        out[i] = nn_linear(n, &s[i]->att.out, part[i]);
        if (!one)
            nn_free(n, &part[i]);
    }
    nn_free(n, &att);
}

/* The rest of a stream behind its attention `out`: gate, second attention over y2, MLP. */
static void stream_finish(struct nn *n, const struct dit_joint *b, const struct dit_pass *p,
                          struct tensor x, struct tensor mod, struct tensor part[2], int layout)
{
    const struct dit_stream *s = layout == DIT_TXT ? &b->txt : &b->img;
    int64_t d = x.shape[1];
    dit_gate(n, x, &part[0], dit_slice(mod, 2, d), layout);
    if (s->has_second) {
        struct tensor qkv = nn_tmp(n, DT_F32, x.shape[0], 3 * d);
        project(n, b, &s->second, &part[1], layout, qkv, p);
        struct tensor att = attend(n, b, &qkv, layout);
        struct tensor out = nn_linear(n, &s->second.out, att);
        nn_free(n, &att);
        dit_gate(n, x, &out, dit_slice(mod, 8, d), layout);
    }
    struct tensor y = dit_modulate(n, x, dit_slice(mod, 4, d), dit_slice(mod, 3, d), layout);
    struct tensor out = dit_gelu_mlp(n, &s->up, &s->down, &y);
    dit_gate(n, x, &out, dit_slice(mod, 5, d), layout);
}

void dit_joint_run(struct nn *n, const struct dit_joint *b, const struct dit_pass *p,
                   struct tensor txt, struct tensor img)
{
    const struct dit_stream *s[2] = {&b->txt, &b->img};
    const struct tensor x[2] = {txt, img};
    int64_t d = img.shape[1];
    struct tensor mod[2], y[2], out[2], part[2][2];
    for (int i = 0; i < 2; i++) {
        int scale = s[i]->ends ? 0 : 1;
        mod[i] = nn_linear(n, &s[i]->mod, p->temb);
        y[i] =
            dit_modulate(n, x[i], dit_slice(mod[i], scale, d), dit_slice(mod[i], 1 - scale, d), i);
        part[i][1] = (struct tensor){0};
        if (s[i]->has_second)
            part[i][1] = dit_modulate(n, x[i], dit_slice(mod[i], 7, d), dit_slice(mod[i], 6, d), i);
    }
    joint_attend(n, b, p, y, out);
    for (int i = 0; i < 2; i++) {
        part[i][0] = out[i];
        if (!s[i]->ends)
            stream_finish(n, b, p, x[i], mod[i], part[i], i);
        nn_free(n, &mod[i]);
    }
}
