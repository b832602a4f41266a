/* The shape checks of the image ops. See backend.h. */
#include "engine/backend.h"

#include <math.h>

#define WANT(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return ERR_INVAL;                                                                      \
    } while (0)

int ops_check_image(const struct image_meta *im)
{
    WANT(im->n_layout >= 0 && im->n_layout <= IMAGE_LAYOUTS);
    for (int l = 0; l < im->n_layout; l++) {
        const struct image_layout *y = &im->layout[l];
        WANT(y->n_seg >= 0 && y->start && y->start[0] == 0 && !y->h == !y->w);
        for (int s = 0; s < y->n_seg; s++) {
            WANT(y->start[s + 1] >= y->start[s]);
            if (y->h)
                WANT(y->h[s] > 0 && y->w[s] > 0 &&
                     (int64_t)y->h[s] * y->w[s] == y->start[s + 1] - y->start[s]);
        }
    }
    return 0;
}

static const struct image_layout *layout_of(const struct image_meta *im, int layout)
{
    return layout >= 0 && layout < im->n_layout ? &im->layout[layout] : NULL;
}

static bool is_rows(const struct tensor *t, enum dtype mul, int64_t rows, int64_t cols)
{
    return ops_is_2d(t, t->dtype == mul ? mul : DT_F32, rows, cols);
}

/* f32 [n_seg, d], or absent */
static bool is_per_seg(const struct tensor *t, const struct image_layout *y, int64_t d)
{
    return !t->buf || (y && ops_is_2d(t, DT_F32, y->n_seg, d));
}

static bool is_act(enum image_act a)
{
    return a >= IMAGE_ACT_NONE && a <= IMAGE_ACT_RELU;
}

int ops_check_conv(const struct op_conv *a, enum dtype mul, const struct image_meta *im,
                   int64_t n_in, int64_t n_out)
{
    const struct image_layout *in = layout_of(im, a->in), *out = layout_of(im, a->out);
    int64_t c_in = a->src.shape[1];
    WANT(in && out && in->h && out->h && in->n_seg == out->n_seg);
    WANT((a->k == 1 || a->k == 3) && (a->stride == 1 || a->stride == 2) &&
         (a->pad == 0 || a->pad == 1));
    WANT(ops_is_2d(&a->src, mul, in->start[in->n_seg], c_in) &&
         (int64_t)a->k * a->k * c_in == n_in);
    WANT(ops_is_2d(&a->dst, DT_F32, out->start[out->n_seg], n_out));
    WANT(ops_is_vec(&a->bias, n_out, true) && is_per_seg(&a->vec, out, n_out));
    WANT(!a->add.buf || ops_is_2d(&a->add, DT_F32, a->dst.shape[0], n_out));
    for (int s = 0; s < in->n_seg; s++) { /* the window of the last row and column starts inside */
        int64_t h = in->h[s], w = in->w[s];
        if (a->up) {
            WANT(a->stride == 1 && a->pad == a->k / 2);
            WANT((out->h[s] + 1) / 2 == h && (out->w[s] + 1) / 2 == w);
            continue;
        }
        WANT((int64_t)(out->h[s] - 1) * a->stride - a->pad < h &&
             (int64_t)(out->w[s] - 1) * a->stride - a->pad < w);
    }
    return 0;
}

int ops_check_group_norm(const struct op_group_norm *a, enum dtype mul, const struct image_meta *im)
{
    const struct image_layout *y = layout_of(im, a->layout);
    int64_t c = a->x.shape[1];
    WANT(y && a->groups > 0 && c % a->groups == 0 && a->eps >= 0 && is_act(a->act));
    WANT(ops_is_2d(&a->x, DT_F32, y->start[y->n_seg], c) &&
         is_rows(&a->dst, mul, a->x.shape[0], c));
    WANT(ops_is_vec(&a->w, c, false) && ops_is_vec(&a->b, c, false));
    return 0;
}

int ops_check_layer_norm(const struct op_layer_norm *a, enum dtype mul, const struct image_meta *im)
{
    const struct image_layout *y = layout_of(im, a->layout);
    int64_t d = a->x.shape[1];
    WANT(ops_is_2d(&a->x, DT_F32, -1, d) && is_rows(&a->dst, mul, a->x.shape[0], d) && a->eps >= 0);
    WANT(ops_is_vec(&a->w, d, true) && ops_is_vec(&a->b, d, true));
    WANT(is_per_seg(&a->scale, y, d) && is_per_seg(&a->shift, y, d));
    WANT(!y || a->x.shape[0] == y->start[y->n_seg]);
    return 0;
}

int ops_check_attend(const struct op_attend *a, enum dtype mul, const struct image_meta *im)
{
    const struct image_layout *q = layout_of(im, a->q_layout), *kv = layout_of(im, a->kv_layout);
    WANT(q && kv && q->n_seg == kv->n_seg && a->head_dim > 0 && isfinite(a->scale));
    WANT(a->n_kv_head > 0 && a->n_head > 0 && a->n_head % a->n_kv_head == 0);
    int64_t d = (int64_t)a->n_head * a->head_dim, dk = (int64_t)a->n_kv_head * a->head_dim;
    WANT(ops_is_2d(&a->q, DT_F32, q->start[q->n_seg], d) &&
         ops_is_2d(&a->dst, mul, a->q.shape[0], d));
    WANT(ops_is_2d(&a->k, DT_F32, kv->start[kv->n_seg], dk) &&
         ops_is_2d(&a->v, DT_F32, kv->start[kv->n_seg], dk));
    for (int s = 0; s < q->n_seg; s++) {
        int64_t nq = q->start[s + 1] - q->start[s], nk = kv->start[s + 1] - kv->start[s];
        WANT(nq == 0 || nk > 0);
        WANT(!a->causal || nk >= nq);
        WANT(a->window == 0 || (nk == nq && a->window > 0 && !a->causal && !a->bias.buf));
        if (a->bias.buf)
            WANT(nk <= a->bias_cols && nq * a->bias_cols <= a->bias.shape[1]);
    }
    return a->bias.buf && !ops_is_2d(&a->bias, DT_F32, a->n_head, a->bias.shape[1]) ? ERR_INVAL : 0;
}

int ops_check_rotate(const struct op_rotate *a)
{
    int64_t n = a->x.shape[0];
    WANT(a->n_head > 0 && a->head_dim > 0 &&
         ops_is_2d(&a->x, DT_F32, n, (int64_t)a->n_head * a->head_dim));
    WANT(ops_is_vec(&a->norm, a->head_dim, true) && !a->cos.buf == !a->sin.buf);
    if (a->cos.buf)
        WANT(a->head_dim % 2 == 0 && (a->style == ROPE_NORM || a->style == ROPE_NEOX) &&
             ops_is_2d(&a->cos, DT_F32, n, a->head_dim / 2) &&
             ops_is_2d(&a->sin, DT_F32, n, a->head_dim / 2));
    return 0;
}

int ops_check_act(const struct op_act *a, enum dtype mul)
{
    int64_t d = a->x.shape[1];
    WANT(is_rows(&a->x, mul, -1, d) && is_rows(&a->dst, mul, a->x.shape[0], d) && is_act(a->act));
    return 0;
}

int ops_check_gate_add(const struct op_gate_add *a, const struct image_meta *im)
{
    const struct image_layout *y = layout_of(im, a->layout);
    int64_t d = a->x.shape[1];
    WANT(ops_is_2d(&a->x, DT_F32, -1, d) && ops_is_2d(&a->y, DT_F32, a->x.shape[0], d));
    WANT(is_per_seg(&a->gate, y, d) && (!y || a->x.shape[0] == y->start[y->n_seg]));
    return 0;
}

int ops_check_lookup(const struct op_lookup *a, int64_t n_in, int64_t n_in2)
{
    int64_t n = a->dst.shape[0];
    WANT(ops_is_2d(&a->dst, DT_F32, -1, n_in) && a->ids.buf && a->ids.dtype == DT_I32);
    WANT(a->ids.shape[a->ids.n_dim - 1] == n &&
         (!a->w2 || (n_in2 == n_in && a->pos.buf && a->pos.dtype == DT_I32 &&
                     a->pos.shape[a->pos.n_dim - 1] == n)));
    return 0;
}
