/* cu_im2col, cu_conv_post: a convolution is windows of its input as rows, a product (cu_linear), and what is added. A
 * chunk of rows at a time, so that the windows need little memory. Exact copies; sums in one order. */
#include "cuda/image.cuh"

#define THREADS 256

struct window_args {
    cu_mat dst, src;
    const int32_t *in_start, *in_w, *out_start, *out_w;
    const int32_t *h, *w; /* of the map that the window slides over */
    int64_t from, n;
    int32_t n_seg, k, stride, pad, up, c;
};

/* V values of a tap at a time (c is a multiple of V, rows are aligned for it). */
template <class V, int N> static __global__ void __launch_bounds__(THREADS) im2col(window_args a)
{
    const int per_tap = a.c / N, per_row = a.k * a.k * per_tap;
    const int64_t all = a.n * per_row;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = a.from + i / per_row;
        const int at = (int)(i % per_row), tap = at / per_tap, ch = at % per_tap;
        const int s = seg_of(a.out_start, a.n_seg, row), r = (int)(row - a.out_start[s]);
        const int h = a.h[s], w = a.w[s];
        const int y = r / a.out_w[s] * a.stride + tap / a.k - a.pad,
                  x = r % a.out_w[s] * a.stride + tap % a.k - a.pad;
        V v = {};
        if (y >= 0 && x >= 0 && y < h && x < w) {
            const int64_t from = a.in_start[s] + (int64_t)(y / a.up) * a.in_w[s] + x / a.up;
            v = ((const V *)a.src.p)[from * (a.src.ld / N) + ch];
        }
        ((V *)a.dst.p)[(row - a.from) * (a.dst.ld / N) + at] = v;
    }
}

static __global__ void __launch_bounds__(THREADS)
    conv_post(cu_mat dst, cu_mat vec, cu_mat add, const int32_t *start, int n_seg, int64_t n)
{
    const int64_t all = n * dst.cols;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / dst.cols;
        const int c = (int)(i % dst.cols);
        float v = row_at<float>(dst, row)[c];
        if (vec.p)
            v = __fadd_rn(v, row_at<const float>(vec, seg_of(start, n_seg, row))[c]);
        if (add.p)
            v = __fadd_rn(v, row_at<const float>(add, row)[c]);
        row_at<float>(dst, row)[c] = v;
    }
}

/* ------------------------------------------------------------------ launch */

#define BLOCKS_MAX 65535

static unsigned blocks(int64_t n)
{
    const int64_t g = (n + THREADS - 1) / THREADS;
    return (unsigned)(g < BLOCKS_MAX ? g : BLOCKS_MAX);
}

extern "C" int cu_im2col(const struct cu_im2col *a, cu_stream st)
{
    if (!mat_ok(&a->dst) || !mat_ok(&a->src) || a->dst.dt != a->src.dt || !layout_ok(a->in) ||
        !layout_ok(a->out) || !a->in->h || !a->out->h || a->in->n_seg != a->out->n_seg ||
        a->dst.cols != (int64_t)a->k * a->k * a->src.cols || a->from < 0 || a->n < 0 ||
        a->from + a->n > a->out->n_row || (a->stride != 1 && a->stride != 2))
        return CU_BAD;
    if (a->n == 0)
        return 0;
    const struct cu_layout *size = a->up ? a->out : a->in;
    window_args w = {a->dst,    a->src,  a->in->start,  a->in->w,   a->out->start, a->out->w,
                     size->h,   size->w, a->from,       a->n,       a->in->n_seg,  a->k,
                     a->stride, a->pad,  a->up ? 2 : 1, a->src.cols};
    const bool four = a->src.cols % 4 == 0 && mat_vec4(&a->src) && mat_vec4(&a->dst);
    launch_cfg c = cfg_of(dim3(blocks(a->n * a->dst.cols / (four ? 4 : 1))), THREADS, st);
    if (a->src.dt == CU_F32)
        return launched(four ? launch(c, im2col<float4, 4>, w) : launch(c, im2col<float, 1>, w));
    return launched(four ? launch(c, im2col<uint2, 4>, w) : launch(c, im2col<uint16_t, 1>, w));
}

extern "C" int cu_conv_post(const struct cu_conv_post *a, cu_stream st)
{
    if (!mat_ok(&a->dst) || a->dst.dt != CU_F32 || !layout_ok(a->out) ||
        (a->vec.p && (!mat_ok(&a->vec) || a->vec.cols != a->dst.cols || a->vec.dt != CU_F32)) ||
        (a->add.p && (!mat_ok(&a->add) || a->add.cols != a->dst.cols || a->add.dt != CU_F32)))
        return CU_BAD;
    if (a->out->n_row == 0)
        return 0;
    return launched(launch(cfg_of(dim3(blocks(a->out->n_row * a->dst.cols)), THREADS, st),
                           conv_post, a->dst, a->vec, a->add, a->out->start, a->out->n_seg,
                           a->out->n_row));
}
