/* The pieces of a UNet's forward. See unet.h. A feature map is rows of channels, so the transformers need no reshaping;
 * the residual stream is f32, what only products read is in their dtype. */
#include "engine/image/unet_impl.h"

#include <math.h>

/* group norm -> activation, to mul */
static struct tensor group_norm(const struct unet_pass *p, const struct nn_norm *w, struct tensor x,
                                int level, float eps, enum image_act act)
{
    struct tensor h = nn_tmp(p->n, p->n->mul, x.shape[0], x.shape[1]);
    NN_OP(p->n, group_norm, .dst = h, .x = x, .w = w->w, .b = w->b, .groups = p->m->groups,
          .eps = eps, .act = act, .layout = level);
    return h;
}

/* x += y */
static void add(struct nn *n, struct tensor x, struct tensor y)
{
    NN_OP(n, gate_add, .x = x, .y = y, .factor = 1, .layout = -1);
}

struct tensor unet__resnet(const struct unet_pass *p, const struct unet_resnet *r, struct tensor x,
                           int level)
{
    struct nn *n = p->n;
    struct tensor h = group_norm(p, &r->norm1, x, level, p->m->eps, IMAGE_ACT_SILU);
    struct tensor vec = nn_linear(n, &r->time, p->temb);
    struct tensor y = nn_tmp(n, DT_F32, x.shape[0], r->conv1.c_out);
    NN_OP(n, conv, .dst = y, .src = h, .w = r->conv1.w, .bias = r->conv1.bias, .vec = vec,
          .in = level, .out = level, .k = 3, .stride = 1, .pad = 1);
    nn_free(n, &vec);
    nn_free(n, &h);
    h = group_norm(p, &r->norm2, y, level, p->m->eps, IMAGE_ACT_SILU);
    struct tensor s = x, own = {0};
    if (r->shortcut.n_out)
        s = own = nn_linear(n, &r->shortcut, x);
    /* y is free again: the norm has read it */
    NN_OP(n, conv, .dst = y, .src = h, .w = r->conv2.w, .bias = r->conv2.bias, .add = s,
          .in = level, .out = level, .k = 3, .stride = 1, .pad = 1);
    nn_free(n, &own);
    nn_free(n, &h);
    return y;
}

/* x += out(attention of x's rows to k and v's), softmax scaled by 1 / sqrt(head_dim) */
static void attend(const struct unet_pass *p, const struct unet_transformer *t,
                   const struct nn_linear *out, struct tensor x, const struct tensor qkv[3],
                   const int layout[2])
{
    struct nn *n = p->n;
    struct tensor o = nn_tmp(n, n->mul, x.shape[0], x.shape[1]);
    NN_OP(n, attend, .dst = o, .q = qkv[0], .k = qkv[1], .v = qkv[2], .n_head = t->n_head,
          .n_kv_head = t->n_head, .head_dim = t->head_dim,
          .scale = 1.0f / sqrtf((float)t->head_dim), .q_layout = layout[0], .kv_layout = layout[1]);
    struct tensor y = nn_linear(n, out, o);
    nn_free(n, &o);
    add(n, x, y);
    nn_free(n, &y);
}

/* One transformer layer: to itself, to the prompt (layout n_level), gated feed-forward; each onto x, in place. Temporaries
 * go as soon as they are read: at 128 x 128 latents the feed-forward's [rows, 8 c] is the widest tensor of the model. */
static void layer_run(const struct unet_pass *p, const struct unet_transformer *t,
                      const struct unet_layer *y, struct tensor x, int level)
{
    struct nn *n = p->n;
    const float eps = 1e-5f; /* LayerNorm's default: no configuration has it */
    int64_t c = x.shape[1];
    struct tensor h = nn_norm_mul(n, x, &y->norm1, eps, false);
    struct tensor a = nn_linear(n, &y->qkv, h);
    nn_free(n, &h);
    attend(p, t, &y->out1, x,
           (const struct tensor[3]){tensor_cols(a, 0, c), tensor_cols(a, c, c),
                                    tensor_cols(a, 2 * c, c)},
           (const int[2]){level, level});
    nn_free(n, &a);

    h = nn_norm_mul(n, x, &y->norm2, eps, false);
    a = nn_linear(n, &y->q, h);
    nn_free(n, &h);
    struct tensor kv = nn_linear(n, &y->kv, p->context);
    attend(p, t, &y->out2, x,
           (const struct tensor[3]){a, tensor_cols(kv, 0, c), tensor_cols(kv, c, c)},
           (const int[2]){level, p->m->n_level});
    nn_free(n, &kv);
    nn_free(n, &a);

    h = nn_norm_mul(n, x, &y->norm3, eps, false);
    a = nn_linear(n, &y->ff_in, h);
    nn_free(n, &h);
    h = nn_tmp(n, n->mul, x.shape[0], 4 * c);
    NN_OP(n, act_mul, .dst = h, .gate_up = a, .act = ACT_GELU_ERF);
    nn_free(n, &a);
    a = nn_linear(n, &y->ff_out, h);
    nn_free(n, &h);
    add(n, x, a);
    nn_free(n, &a);
}

void unet__transformer(const struct unet_pass *p, const struct unet_transformer *t, struct tensor x,
                       int level)
{
    struct nn *n = p->n;
    /* 1e-6 is the class's own, whatever norm_eps says of the resnets */
    struct tensor h = group_norm(p, &t->norm, x, level, 1e-6f, IMAGE_ACT_NONE);
    struct tensor y = nn_linear(n, &t->proj_in, h);
    nn_free(n, &h);
    for (int i = 0; i < t->n_layer; i++)
        layer_run(p, t, &t->layer[i], y, level);
    h = nn_linear(n, &t->proj_out, y);
    nn_free(n, &y);
    add(n, x, h);
    nn_free(n, &h);
}

/* The way out doubles to the size that the way in had before it halved, which for an odd map is one less than twice. */
struct tensor unet__sample(const struct unet_pass *p, const struct nn_conv *c, struct tensor x,
                           int from, int to)
{
    struct nn *n = p->n;
    const struct image_layout *y = &p->m->meta.layout[to];
    struct tensor h = nn_act(n, x, IMAGE_ACT_NONE, n->mul);
    struct tensor o = nn_tmp(n, DT_F32, y->start[y->n_seg], c->c_out);
    NN_OP(n, conv, .dst = o, .src = h, .w = c->w, .bias = c->bias, .in = from, .out = to, .k = 3,
          .stride = to > from ? 2 : 1, .pad = 1, .up = to < from);
    nn_free(n, &h);
    return o;
}
