/* cu_im2col: a convolution is windows of its input as rows, and a product (cu_linear, which adds what a convolution adds).
 * A chunk of rows at a time, so that the windows stay in the L2 cache and need little memory. A warp an output row: its
 * place in its map is found once. Exact copies. */
#include "cuda/image.cuh"

struct window_args {
    cu_mat dst, src;
    const int32_t *in_start, *in_w, *out_start, *out_w;
    const int32_t *h, *w; /* of the map that the window slides over */
    int64_t from, n;
    int32_t n_seg, k, stride, pad, up, c;
};

/* V: N values of a tap (c is a multiple of N, rows are aligned for V). */
template <class V, int N>
static __global__ void __launch_bounds__(ROW_THREADS) im2col(window_args a)
{
    const unsigned per_tap = (unsigned)(a.c / N), all = (unsigned)(a.k * a.k) * per_tap;
    EACH_ROW(i, a.n)
    {
        const int64_t row = a.from + i;
        const int s = seg_of(a.out_start, a.n_seg, row), r = (int)(row - a.out_start[s]);
        const int h = a.h[s], w = a.w[s], in_w = a.in_w[s], out_w = a.out_w[s];
        const int y0 = r / out_w * a.stride - a.pad, x0 = r % out_w * a.stride - a.pad;
        const V *src = (const V *)a.src.p + a.in_start[s] * (a.src.ld / N);
        V *dst = (V *)a.dst.p + i * (a.dst.ld / N);
        for (unsigned at = threadIdx.x % 32; at < all; at += 32) {
            const unsigned tap = at / per_tap, ch = at % per_tap;
            const int y = y0 + (int)tap / a.k, x = x0 + (int)tap % a.k;
            V v = {};
            if (y >= 0 && x >= 0 && y < h && x < w)
                v = src[((int64_t)(y >> a.up) * in_w + (x >> a.up)) * (a.src.ld / N) + ch];
            dst[at] = v;
        }
    }
}

/* ------------------------------------------------------------------ launch */

/* Rows of both go in pieces of n values of `size` bytes. */
static bool by(const struct cu_im2col *a, int n, size_t size)
{
    return a->src.cols % n == 0 && a->src.ld % n == 0 && a->dst.ld % n == 0 &&
           (uintptr_t)a->src.p % ((size_t)n * size) == 0 &&
           (uintptr_t)a->dst.p % ((size_t)n * size) == 0;
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
                     a->stride, a->pad,  a->up ? 1 : 0, a->src.cols};
    const launch_cfg c = rows_cfg(a->n, 1, st);
    if (a->src.dt == CU_F32)
        return launched(by(a, 4, 4) ? launch(c, im2col<float4, 4>, w)
                                    : launch(c, im2col<float, 1>, w));
    return launched(by(a, 8, 2)   ? launch(c, im2col<uint4, 8>, w)
                    : by(a, 4, 2) ? launch(c, im2col<uint2, 4>, w)
                                  : launch(c, im2col<uint16_t, 1>, w));
}
