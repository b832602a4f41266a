/* The transformer block of two streams, text and image, that meet in one attention (Esser et al. 2024). See dit.h. */
#include "engine/image/dit.h"

#include <math.h>

void dit_stream_load(struct nn_load *l, struct dit_stream *s, int64_t d, int64_t head_dim,
                     const char *prefix, const struct dit_stream_names *names)
{
    const struct nn_stack qkv = {.prefix = prefix,
                                 .name = {names->q, names->k, names->v},
                                 .n_name = 3,
                                 .n_in = d,
                                 .n_out = {d, d, d}};
    nn_load_linear(l, &s->mod, d, 6 * d, 0, "%s%s", prefix, names->mod);
    nn_load_stack(l, &s->qkv, &qkv);
    nn_load_linear(l, &s->out, d, d, 0, "%s%s", prefix, names->out);
    nn_load_linear(l, &s->up, d, NN_ANY, 0, "%s%s", prefix, names->up);
    nn_load_linear(l, &s->down, s->up.n_out, d, 0, "%s%s", prefix, names->down);
    nn_load_vec(l, &s->norm_q, head_dim, NN_OPTIONAL, "%s%s.weight", prefix, names->norm_q);
    nn_load_vec(l, &s->norm_k, head_dim, NN_OPTIONAL, "%s%s.weight", prefix, names->norm_k);
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

/* q, k and v of one stream into dst [rows, 3 d]: modulated norm, product, norm of heads, rotation. */
static void stream_qkv(struct nn *n, const struct dit_joint *b, const struct dit_stream *s,
                       struct tensor x, struct tensor mod, int layout, struct tensor dst,
                       const struct dit_pass *p)
{
    int64_t d = x.shape[1];
    struct tensor y = dit_modulate(n, x, dit_slice(mod, 1, d), dit_slice(mod, 0, d), layout);
    nn_linear_to(n, &s->qkv, y, dst);
    nn_free(n, &y);
    struct tensor cos_t = layout == DIT_TXT ? p->cos_txt : p->cos_img;
    struct tensor sin_t = layout == DIT_TXT ? p->sin_txt : p->sin_img;
    for (int i = 0; i < 2; i++)
        NN_OP(n, rotate, .x = tensor_cols(dst, i * d, d), .n_head = b->n_head,
              .head_dim = b->head_dim, .norm = i ? s->norm_k : s->norm_q, .eps = 1e-6f,
              .cos = cos_t, .sin = sin_t, .style = ROPE_NORM);
}

/* Attention of all pictures: (mul) results by stream. One picture's streams already lie as the joint order has them,
 * so there nothing is copied; more are brought together first. */
static void joint_attend(struct nn *n, const struct dit_joint *b, const struct dit_pass *p,
                         const struct tensor x[2], const struct tensor mod[2], struct tensor out[2])
{
    const struct dit_rows *r = p->rows;
    int64_t d = x[0].shape[1], rows[2] = {x[0].shape[0], x[1].shape[0]};
    bool one = r->n == 1;
    struct tensor joint = {0}, qkv[2];
    if (one) {
        joint = nn_tmp(n, DT_F32, rows[0] + rows[1], 3 * d);
        qkv[0] = nn_rows(joint, 0, rows[0]);
        qkv[1] = nn_rows(joint, rows[0], rows[1]);
    } else {
        qkv[0] = nn_tmp(n, DT_F32, rows[0], 3 * d);
        qkv[1] = nn_tmp(n, DT_F32, rows[1], 3 * d);
    }
    stream_qkv(n, b, &b->txt, x[0], mod[0], DIT_TXT, qkv[0], p);
    stream_qkv(n, b, &b->img, x[1], mod[1], DIT_IMG, qkv[1], p);
    if (!one) {
        joint = dit_join(n, r, qkv[0], qkv[1]);
        nn_free(n, &qkv[0]);
        nn_free(n, &qkv[1]);
    }
    struct tensor att = nn_tmp(n, n->mul, joint.shape[0], d);
    NN_OP(n, attend, .dst = att, .q = tensor_cols(joint, 0, d), .k = tensor_cols(joint, d, d),
          .v = tensor_cols(joint, 2 * d, d), .n_head = b->n_head, .n_kv_head = b->n_head,
          .head_dim = b->head_dim, .scale = 1 / sqrtf((float)b->head_dim), .q_layout = DIT_JOINT,
          .kv_layout = DIT_JOINT);
    nn_free(n, &joint);
    struct tensor part[2];
    if (one) {
        part[0] = nn_rows(att, 0, rows[0]);
        part[1] = nn_rows(att, rows[0], rows[1]);
    } else {
        dit_split(n, r, att, &part[0], &part[1]);
    }
    out[0] = nn_linear(n, &b->txt.out, part[0]);
    out[1] = nn_linear(n, &b->img.out, part[1]);
    if (!one) {
        nn_free(n, &part[1]);
        nn_free(n, &part[0]);
    }
    nn_free(n, &att);
}

void dit_joint_run(struct nn *n, const struct dit_joint *b, const struct dit_pass *p,
                   struct tensor txt, struct tensor img)
{
    const struct dit_stream *s[2] = {&b->txt, &b->img};
    const struct tensor x[2] = {txt, img};
    int64_t d = img.shape[1];
    struct tensor mod[2];
    for (int i = 0; i < 2; i++)
        mod[i] = nn_linear(n, &s[i]->mod, p->temb);
    struct tensor out[2];
    joint_attend(n, b, p, x, mod, out);
    for (int i = 0; i < 2; i++) {
        dit_gate(n, x[i], &out[i], dit_slice(mod[i], 2, d), i);
        struct tensor y =
            dit_modulate(n, x[i], dit_slice(mod[i], 4, d), dit_slice(mod[i], 3, d), i);
        out[i] = dit_gelu_mlp(n, &s[i]->up, &s[i]->down, &y);
        dit_gate(n, x[i], &out[i], dit_slice(mod[i], 5, d), i);
        nn_free(n, &mod[i]);
    }
}
