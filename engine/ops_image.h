/* Operations that image pipelines and encoders need beside ops.h: convolution, group and layer norm, attention between
 * row segments, rotation by tables. Included by ops.h only.
 *
 * A feature map of height h and width w is h * w consecutive rows of C channels (NHWC), so a 1x1 convolution is
 * op_linear and a transformer block needs no reshaping. Maps of several images, of different sizes, lie behind each
 * other; which rows belong to whom is a layout: image_begin registers up to IMAGE_LAYOUTS of them (one a resolution, one
 * for text rows, one for per-image vectors, ...), ops name them by number. A row's result does not depend on the other
 * images: the same bits alone and in any company. */
#ifndef ENGINE_OPS_IMAGE_H
#define ENGINE_OPS_IMAGE_H

#define IMAGE_LAYOUTS 12

struct image_layout {
    int n_seg;
    const int32_t *start; /* [n_seg + 1] first row of each segment; start[n_seg] = rows in all */
    const int32_t *h, *w; /* [n_seg] of a map, or NULL: segments of tokens */
};
/* Pointers belong to the caller and stay valid until the next image_begin. */
struct image_meta {
    int n_layout;
    struct image_layout layout[IMAGE_LAYOUTS];
};

/* dst = conv(src) + bias + vec[segment] + add. Padding is by zeros: `pad` rows and columns before the map, after it
 * as many as the output size needs (so the asymmetric padding of a VAE's downsampling is pad 0). The weight's rows are
 * [k, k, c_in] (ky, kx, channel; channel fastest), n_in = k * k * c_in. */
struct op_conv {
    struct tensor dst; /* [rows of out, c_out] */
    struct tensor src; /* (mul) [rows of in, c_in] */
    const struct dev_weight *w;
    struct tensor bias; /* f32 [c_out] or buf 0 */
    struct tensor vec;  /* f32 [n_seg, c_out] or buf 0: a time embedding */
    struct tensor add;  /* f32 as dst or buf 0 (may be dst itself): a residual */
    int in, out;        /* layouts; out's h and w say the output size */
    int k;              /* 1 or 3 */
    int stride;         /* 1 or 2 */
    int pad;            /* 0 or 1 */
    bool
        up; /* nearest-neighbour doubling before the convolution (stride 1, pad k / 2) to the size of out: 2 h, or
              * 2 h - 1 where an odd map was halved */
};

/* Wu and He 2018, over the rows of a segment and c / groups channels; then the activation. */
struct op_group_norm {
    struct tensor dst;  /* [rows, c] f32 or (mul) */
    struct tensor x;    /* [rows, c] */
    struct tensor w, b; /* f32 [c] */
    int groups;
    float eps;
    enum image_act act;
    int layout;
};

/* dst = norm(x) * w + b, then * (1 + scale[segment]) + shift[segment] (adaptive norm, Peebles and Xie 2023). */
struct op_layer_norm {
    struct tensor dst;          /* [rows, d] f32 or (mul) */
    struct tensor x;            /* [rows, d] */
    struct tensor w, b;         /* f32 [d] or buf 0 */
    struct tensor scale, shift; /* f32 [n_seg, d] or buf 0 */
    bool rms;                   /* no mean is taken off */
    float eps;
    int layout; /* of rows; -1 when scale and shift are absent */
};

/* Attention of every q segment to the kv segment of the same number, softmax(scale * q k^T + bias) v. */
struct op_attend {
    struct tensor dst;     /* [q rows, n_head * head_dim] (mul) */
    struct tensor q, k, v; /* f32 [rows, heads * head_dim]; usually columns of one product */
    int n_head, n_kv_head, head_dim;
    float scale;
    bool causal; /* row i of a segment sees rows 0..i */
    int window; /* row i sees rows i - window .. i + window only; 0 = all. Not with causal or bias */
    struct tensor
        bias; /* f32 [n_head, lq_max * lk_max] or buf 0: by row and column inside the segment (T5) */
    int bias_cols; /* lk_max */
    int q_layout, kv_layout;
};

/* In place on [rows, n_head * head_dim]: optional RMS norm of each head, then rotation by per-row tables. */
struct op_rotate {
    struct tensor x;
    int n_head, head_dim;
    struct tensor norm; /* f32 [head_dim] or buf 0 */
    float eps;
    struct tensor cos, sin; /* f32 [rows, head_dim / 2] or buf 0: no rotation */
    enum rope_style style;
};

/* dst = act(x); also the way to convert a dtype and to copy columns (strides may differ). */
struct op_act {
    struct tensor dst; /* [rows, d] f32 or (mul) */
    struct tensor x;   /* [rows, d] f32 or (mul) */
    enum image_act act;
};

/* x += factor * gate[segment] * y */
struct op_gate_add {
    struct tensor x, y;
    struct tensor gate; /* f32 [n_seg, d] or buf 0 */
    float factor;
    int layout; /* -1 without gate */
};

/* dst[i,:] = w[ids[i],:], and + w2[pos[i],:] when w2 is there */
struct op_lookup {
    struct tensor dst;      /* [n, d] */
    struct tensor ids, pos; /* i32 [n] in device memory */
    const struct dev_weight *w, *w2;
};

#define OPS_IMAGE_LIST(X)                                                                          \
    X(conv) X(group_norm) X(layer_norm) X(attend) X(rotate) X(act) X(gate_add) X(lookup)

#endif
