/* The image kernels against loops in double: windows of convolutions and what a product adds to its rows, group and
 * layer norm, attention with a bias, packing of K and V, rotation, activations. Ragged and empty segments, columns that
 * are no vector, rows off alignment: the same bits there, alone, in company and in every order of threads. */
extern "C" {
#include "engine/base/err.h"
#include "engine/ops.h"
}
#include "cuda/weight.h"
#include "tests/cuda/test_image.h"

/* ---- windows ---- */

struct conv_case {
    int c, k, stride, pad, up, extra, shift;
};

template <class T>
static void windows_one(const conv_case &c, Layout &in, Layout &out, int from, int n)
{
    const int cols = c.k * c.k * c.c;
    const auto x = ct_random<T>((size_t)in.y.n_row * (size_t)c.c, 3);
    Mat<T> src((int)in.y.n_row, c.c, x, c.extra, c.shift), dst(n, cols, (8 - cols % 8) % 8);
    struct cu_im2col a = {};
    a.dst = dst.m(), a.src = src.m(), a.in = &in.y, a.out = &out.y;
    a.from = from, a.n = n, a.k = c.k, a.stride = c.stride, a.pad = c.pad, a.up = c.up;
    CT_RUN(cu_im2col(&a, nullptr));
    std::vector<T> want;
    for (int i = 0; i < n; i++) {
        const int s = out.seg(from + i), r = from + i - out.start[(size_t)s];
        const int h = c.up ? out.h[(size_t)s] : in.h[(size_t)s],
                  w = c.up ? out.w[(size_t)s] : in.w[(size_t)s];
        for (int t = 0; t < c.k * c.k; t++) {
            const int y = r / out.w[(size_t)s] * c.stride + t / c.k - c.pad,
                      p = r % out.w[(size_t)s] * c.stride + t % c.k - c.pad;
            const bool inside = y >= 0 && p >= 0 && y < h && p < w;
            const int at = in.start[(size_t)s] +
                           (c.up ? y / 2 * in.w[(size_t)s] + p / 2 : y * in.w[(size_t)s] + p);
            for (int k = 0; k < c.c; k++)
                want.push_back(inside ? x[(size_t)(at * c.c + k)] : ct_from<T>(0));
        }
    }
    ct_same("windows", dst.get(), want);
}

static void windows()
{
    Layout maps({5, 1, 4}, {3, 1, 6}), half({3, 1, 2}, {2, 1, 3}), twice({9, 2, 8}, {6, 1, 12});
    const conv_case cases[] = {{4, 3, 1, 1, 0, 0, 0},
                               {5, 3, 1, 1, 0, 2, 0},
                               {16, 3, 1, 1, 0, 8, 0},
                               {8, 3, 1, 1, 0, 0, 1},
                               {12, 1, 1, 0, 0, 0, 0}};
    for (const conv_case &c : cases) {
        windows_one<float>(c, maps, maps, 0, 40);
        windows_one<__nv_bfloat16>(c, maps, maps, 13, 21);
    }
    windows_one<__nv_bfloat16>({8, 3, 2, 1, 0, 0, 0}, maps, half, 0, 13);
    windows_one<float>({3, 3, 2, 0, 0, 0, 0}, maps, half, 2, 11);
    windows_one<float>({4, 1, 2, 0, 0, 0, 0}, maps, half, 0, 13);
    windows_one<__nv_bfloat16>({24, 3, 1, 1, 1, 0, 0}, maps, twice, 50, 98);
    windows_one<float>({3, 3, 1, 1, 1, 0, 0}, maps, twice, 0, 152);
}

/* ---- a product and what it adds: the f32 kernel, ours, and that of compute capability 9.0 ---- */

static std::vector<float> after_run(const cu_weight *w, Layout &y, int from, int n, int n_in,
                                    int n_out, bool bf, int wgmma)
{
    const auto x = ct_random<float>((size_t)y.y.n_row * (size_t)n_in, 5);
    std::vector<__nv_bfloat16> xb;
    for (float v : x)
        xb.push_back(__float2bfloat16(v));
    const auto bias = ct_random<float>((size_t)n_out, 6),
               vec = ct_random<float>((size_t)(y.n_seg() * n_out), 7),
               add = ct_random<float>((size_t)(y.y.n_row * n_out), 8);
    const int ld = (n_in + 7) / 8 * 8;
    Mat<float> sf(n, n_in, part(x, from * n_in, n * n_in), ld - n_in), v(y.n_seg(), n_out, vec, 3),
        dst(n, n_out, part(add, from * n_out, n * n_out), 5);
    Mat<__nv_bfloat16> sb(n, n_in, part(xb, from * n_in, n * n_in), ld - n_in);
    Dev<float> b(bias);
    struct cu_count c = {};
    c.n_row = n;
    Dev<cu_count> count(std::vector<cu_count>{c});
    struct cu_step s = {};
    s.count = count.p, s.row_max = n;
    struct cu_linear a = {};
    a.dst = dst.m(), a.src = bf ? sb.m() : sf.m(), a.w = w, a.bias = b.p;
    a.steady = 1, a.wgmma = wgmma;
    a.after.vec = v.m(), a.after.add = dst.m(); /* in place */
    a.after.start = y.y.start, a.after.n_seg = y.n_seg(), a.after.row = from;
    CT_RUN(cu_linear(&a, &s, nullptr));
    return dst.get();
}

static void after_one(int n_in, int n_out, bool bf, int wgmma)
{
    Layout y({3, 0, 140, 1});
    const int rows = (int)y.y.n_row;
    const auto x = ct_random<float>((size_t)rows * (size_t)n_in, 5);
    auto val = ct_random<float>((size_t)n_in * (size_t)n_out, 4, 0.2f);
    for (float &v : val)
        v = bf ? ct_from<float>((float)ct_double(__float2bfloat16(v))) : v;
    weight_desc d = {};
    cu_weight w;
    err e = {};
    size_t bytes = 0;
    d.name = "w", d.n_in = n_in, d.n_part = 1, d.part[0] = {QF_F32, val.data(), n_out};
    CT_CHECK(cu_weight_plan(&w, &d, !bf, &bytes, &e) == 0);
    std::vector<unsigned char> host(bytes);
    CT_CHECK(cu_weight_pack(&w, &d, host.data()) == 0);
    Dev<unsigned char> mem(host);
    cu_weight_bind(&w, mem.p);
    const auto bias = ct_random<float>((size_t)n_out, 6),
               vec = ct_random<float>((size_t)(y.n_seg() * n_out), 7),
               add = ct_random<float>((size_t)(rows * n_out), 8);
    std::vector<double> want;
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < n_out; o++) {
            double v = (double)bias[(size_t)o] + (double)add[(size_t)(r * n_out + o)] +
                       (double)vec[(size_t)(y.seg(r) * n_out + o)];
            for (int k = 0; k < n_in; k++) {
                const float q = x[(size_t)(r * n_in + k)];
                v += (bf ? ct_double(__float2bfloat16(q)) : (double)q) *
                     (double)val[(size_t)(o * n_in + k)];
            }
            want.push_back(v);
        }
    const auto got = after_run(&w, y, 0, rows, n_in, n_out, bf, wgmma);
    ct_near("product and more", got, want, 1e-10);
    ct_repeat(key({n_in, n_out, bf, wgmma}).c_str(), got);
    for (int n : {1, 17, 70}) /* any number of rows, from any row on */
        ct_same("rows alone", after_run(&w, y, 70, n, n_in, n_out, bf, wgmma),
                part(got, 70 * n_out, n * n_out));
}

static void after()
{
    after_one(20, 9, false, 0);
    after_one(36, 40, true, 0);
    after_one(1152, 33, true, 0);
    int cc = 0;
    CT_CUDA(cudaDeviceGetAttribute(&cc, cudaDevAttrComputeCapabilityMajor, 0));
    if (cc == 9) {
        after_one(36, 40, true, 1);
        after_one(328, 130, true, 1);
    }
}

/* ---- norms ---- */

static double act_of(double x, int act)
{
    switch (act) {
    case CU_IM_SILU:
        return x / (1 + exp(-x));
    case CU_IM_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case CU_IM_GELU_ERF:
        return 0.5 * x * (1 + erf(x * 0.7071067811865476));
    case CU_IM_QUICK_GELU:
        return x / (1 + exp(-1.702 * x));
    case CU_IM_RELU:
        return x > 0 ? x : 0;
    default:
        return x;
    }
}

template <class T>
static std::vector<T> group_run(Layout &y, int c, int groups, const std::vector<float> &x, int act,
                                int pad, int shift)
{
    Mat<float> src((int)y.y.n_row, c, x, pad, shift);
    Mat<T> dst((int)y.y.n_row, c, pad, shift);
    Dev<float> w(ct_random<float>((size_t)c, 21)), b(ct_random<float>((size_t)c, 22));
    Dev<double> ws(cu_group_norm_ws(&y.y, c) / 8 + 1);
    struct cu_group_norm a = {};
    a.dst = dst.m(), a.x = src.m(), a.w = w.p, a.b = b.p, a.groups = groups, a.act = act;
    a.eps = 1e-5f, a.y = &y.y, a.ws = ws.p;
    CT_RUN(cu_group_norm(&a, nullptr));
    return dst.get();
}

template <class T>
static void group_one(int c, int groups, int act, double mean, int pad, int shift)
{
    Layout y({1, 64, 0, 65, 129, 7}), one({65});
    const int n = (int)y.y.n_row, per = c / groups;
    auto x = ct_random<float>((size_t)(n * c), 20);
    for (float &v : x)
        v += (float)mean;
    const auto w = ct_random<float>((size_t)c, 21), b = ct_random<float>((size_t)c, 22);
    std::vector<double> want((size_t)(n * c));
    for (int s = 0; s < y.n_seg(); s++)
        for (int g = 0; g < groups; g++) {
            double sum = 0, sq = 0, count = (double)y.rows(s) * per;
            for (int pass = 0; pass < 3; pass++)
                for (int r = y.start[(size_t)s]; r < y.start[(size_t)s + 1]; r++)
                    for (int k = g * per; k < (g + 1) * per; k++) {
                        const double v = (double)x[(size_t)(r * c + k)];
                        const double d = v - sum / count;
                        if (pass == 0)
                            sum += v;
                        else if (pass == 1)
                            sq += d * d;
                        else
                            want[(size_t)(r * c + k)] =
                                act_of(d / sqrt(sq / count + (double)1e-5f) * (double)w[(size_t)k] +
                                           (double)b[(size_t)k],
                                       act);
                    }
        }
    const auto got = group_run<T>(y, c, groups, x, act, pad, shift);
    ct_near("group norm", got, want, sizeof(T) == 2 ? 1e-5 : mean > 0 ? 1e-8 : 1e-11);
    ct_repeat(key({c, groups, act, shift}).c_str(), got);
    const int from = y.start[3] * c;
    ct_same("a segment alone, aligned",
            group_run<T>(one, c, groups, part(x, from, 65 * c), act, 0, 0),
            part(got, from, 65 * c));
}

static void group_norm()
{
    group_one<float>(24, 8, CU_IM_SILU, 0, 0, 0);
    group_one<__nv_bfloat16>(24, 3, CU_IM_NONE, 0, 4, 0);
    group_one<float>(6, 2, CU_IM_GELU_ERF, 0, 3, 1);
    group_one<float>(130, 13, CU_IM_RELU, 1000, 0, 0);
    group_one<__nv_bfloat16>(300, 1, CU_IM_QUICK_GELU, 0, 0, 2);
}

struct layer_case {
    int d;
    bool rms, affine, by_seg;
};

template <class T>
static std::vector<T> layer_run(const layer_case &c, Layout &y, const std::vector<float> &x,
                                const std::vector<float> &mod, int pad, int shift)
{
    Mat<float> src((int)y.y.n_row, c.d, x, pad, shift), scale(y.n_seg(), c.d, mod, pad, shift),
        more(y.n_seg(), c.d, mod, pad, 0);
    Mat<T> dst((int)y.y.n_row, c.d, pad, shift);
    Dev<float> w(ct_random<float>((size_t)c.d, 31)), b(ct_random<float>((size_t)c.d, 32));
    struct cu_layer_norm a = {};
    a.dst = dst.m(), a.x = src.m(), a.n = y.y.n_row, a.rms = c.rms, a.eps = 1e-6f;
    if (c.affine)
        a.w = w.p, a.b = b.p;
    if (c.by_seg)
        a.scale = scale.m(), a.shift = more.m(), a.y = &y.y;
    CT_RUN(cu_layer_norm(&a, nullptr));
    return dst.get();
}

template <class T> static void layer_one(const layer_case &c)
{
    Layout y({2, 0, 3}), one({3});
    const int n = 5, d = c.d;
    const auto x = ct_random<float>((size_t)(n * d), 30, 2),
               mod = ct_random<float>((size_t)(3 * d), 33);
    const auto w = ct_random<float>((size_t)d, 31), b = ct_random<float>((size_t)d, 32);
    std::vector<double> want;
    for (int r = 0; r < n; r++) {
        double mean = 0, sq = 0;
        for (int k = 0; k < d && !c.rms; k++)
            mean += (double)x[(size_t)(r * d + k)] / d;
        for (int k = 0; k < d; k++)
            sq += pow((double)x[(size_t)(r * d + k)] - mean, 2) / d;
        for (int k = 0; k < d; k++) {
            double v = ((double)x[(size_t)(r * d + k)] - mean) / sqrt(sq + (double)1e-6f);
            if (c.affine)
                v = v * (double)w[(size_t)k] + (double)b[(size_t)k];
            if (c.by_seg) {
                const double m = (double)mod[(size_t)(y.seg(r) * d + k)];
                v = v * (1 + m) + m;
            }
            want.push_back(v);
        }
    }
    const auto got = layer_run<T>(c, y, x, mod, d % 2 ? 3 : 4, 0);
    ct_near("layer norm", got, want, sizeof(T) == 2 ? 1e-5 : 1e-11);
    ct_repeat(key({d, c.rms, c.affine, c.by_seg, (int)sizeof(T)}).c_str(), got);
    ct_same("alone, off alignment",
            layer_run<T>(c, one, part(x, 2 * d, 3 * d), part(mod, 2 * d, d), 0, 1),
            part(got, 2 * d, 3 * d));
}

static void layer_norm()
{
    for (int d : {2, 3, 4, 64, 127, 516, 1030}) {
        layer_one<float>({d, d % 4 == 3, d != 64, d != 4});
        layer_one<__nv_bfloat16>({d, d == 64, d != 516, d != 127});
    }
}

/* ---- rows ---- */

static void rotate_one(int n_head, int d, int style, bool norm, bool turn)
{
    const int n = 5, half = d / 2;
    const auto x = ct_random<float>((size_t)(n * n_head * d), 40),
               w = ct_random<float>((size_t)d, 41);
    std::vector<float> c, s;
    for (int i = 0; i < n * half; i++) {
        c.push_back(cosf(0.1f * (float)i));
        s.push_back(sinf(0.1f * (float)i));
    }
    Mat<float> m(n, n_head * d, x, 3), mc(n, half ? half : 1, c, 1), ms(n, half ? half : 1, s, 2);
    Dev<float> dw(w);
    struct cu_rotate a = {};
    a.x = m.m(), a.n = n, a.n_head = n_head, a.head_dim = d, a.style = style, a.eps = 1e-6f;
    a.norm = norm ? dw.p : nullptr;
    if (turn)
        a.cos = mc.m(), a.sin = ms.m();
    CT_RUN(cu_rotate(&a, nullptr));
    std::vector<double> want;
    for (int i = 0; i < n * n_head; i++) {
        std::vector<double> v;
        double sq = 0;
        for (int k = 0; k < d; k++)
            sq += pow((double)x[(size_t)(i * d + k)], 2) / d;
        for (int k = 0; k < d; k++)
            v.push_back((double)x[(size_t)(i * d + k)] *
                        (norm ? (double)w[(size_t)k] / sqrt(sq + (double)1e-6f) : 1));
        for (int k = 0; k < half && turn; k++) {
            const size_t p = (size_t)(style == CU_ROPE_NORM ? 2 * k : k),
                         q = (size_t)(style == CU_ROPE_NORM ? 2 * k + 1 : half + k),
                         at = (size_t)(i / n_head * half + k);
            const double u = v[p], z = v[q];
            v[p] = u * (double)c[at] - z * (double)s[at];
            v[q] = u * (double)s[at] + z * (double)c[at];
        }
        want.insert(want.end(), v.begin(), v.end());
    }
    const auto got = m.get();
    ct_near("rotation", got, want, 1e-11);
    ct_repeat(key({n_head, d, style}).c_str(), got);
}

static void rotate()
{
    for (int d : {2, 6, 64, 66, 128})
        for (int style : {CU_ROPE_NORM, CU_ROPE_NEOX})
            rotate_one(3, d, style, d != 6, d != 64 || style == CU_ROPE_NEOX);
    rotate_one(2, 5, CU_ROPE_NONE, true, false);
}

template <class T, class S> static void act_one(int n, int cols, int act, int pad, int shift)
{
    const auto x = ct_random<S>((size_t)(n * cols), 50, 3);
    Mat<S> src(n, cols, x, pad, shift);
    Mat<T> dst(n, cols, pad);
    struct cu_act a = {};
    a.dst = dst.m(), a.x = src.m(), a.n = n, a.act = act;
    CT_RUN(cu_act(&a, nullptr));
    std::vector<double> want;
    for (S v : x)
        want.push_back(act_of(ct_double(v), act));
    ct_near("activation", dst.get(), want, sizeof(T) == 2 ? 1e-5 : 1e-11);
}

static void acts()
{
    for (int act = CU_IM_NONE; act <= CU_IM_RELU; act++)
        act_one<float, float>(3, 12 + act % 3, act, 0, 0);
    for (int cols : {1, 4, 127, 512, 516, 1030}) {
        act_one<__nv_bfloat16, float>(9, cols, CU_IM_SILU, 4, 0);
        act_one<float, __nv_bfloat16>(9, cols, CU_IM_NONE, 0, cols % 2);
        act_one<__nv_bfloat16, __nv_bfloat16>(2, cols, CU_IM_GELU_TANH, 1, 0);
    }
    if (!CT_SANITIZED) /* more rows than a launch has warps */
        act_one<float, float>(16384 * 8 + 5, 1, CU_IM_RELU, 0, 0);
}

static void gate_one(int cols, bool gated, int pad, int shift)
{
    Layout y({1, 0, 12, 3}), *l = gated ? &y : nullptr;
    const int n = 16;
    const auto x = ct_random<float>((size_t)(n * cols), 60), z = ct_random<float>(x.size(), 61),
               g = ct_random<float>((size_t)(4 * cols), 62);
    Mat<float> mx(n, cols, x, pad, shift), my(n, cols, z, 0), mg(4, cols, g, pad, 0);
    struct cu_gate_add a = {};
    a.x = mx.m(), a.y = my.m(), a.n = n, a.factor = 0.7f;
    if (l)
        a.gate = mg.m(), a.l = &l->y;
    CT_RUN(cu_gate_add(&a, nullptr));
    std::vector<double> want;
    for (int i = 0; i < n * cols; i++)
        want.push_back((double)x[(size_t)i] +
                       (double)0.7f * (double)z[(size_t)i] *
                           (l ? (double)g[(size_t)(y.seg(i / cols) * cols + i % cols)] : 1));
    ct_near("gated sum", mx.get(), want, 1e-12);
}

static void gates()
{
    for (int cols : {1, 4, 63, 512, 640})
        for (bool gated : {false, true})
            gate_one(cols, gated, cols % 2 ? 3 : 4, cols == 640);
}

/* ---- attention ---- */

template <class T> static void pack_one(int heads, int from, int to, int pad, int shift)
{
    Layout y({1, 0, 17, 40});
    const int n = (int)y.y.n_row, block_of[] = {3, 3, 1, 4}, n_block = 7, cols = heads * from;
    const auto k = ct_random<float>((size_t)(n * cols), 70),
               v = ct_random<float>((size_t)(n * cols), 71);
    Mat<float> mk(n, cols, k, pad, shift), mv(n, cols, v, pad, 0);
    Dev<int32_t> block(std::vector<int32_t>(block_of, block_of + 4));
    Dev<T> pool((size_t)(n_block * 2 * heads * CU_BLOCK_TOKENS * to));
    const struct cu_kv kv = {pool.p, 1, heads, to, n_block, sizeof(T) == 2 ? CU_BF16 : CU_F32, 0};
    struct cu_pack_kv a = {};
    a.k = mk.m(), a.v = mv.m(), a.head_dim = from, a.kv = &kv, a.l = &y.y, a.block = block.p;
    CT_RUN(cu_pack_kv(&a, nullptr));
    const auto got = pool.get();
    std::vector<T> want(got.size(), ct_from<T>(NAN));
    for (int r = 0; r < n; r++)
        for (int i = 0; i < 2 * heads * to; i++) {
            const int s = y.seg(r), at = r - y.start[(size_t)s], is_v = i / (heads * to),
                      h = i / to % heads, c = i % to;
            const int b = block_of[s] + at / CU_BLOCK_TOKENS;
            const float x = (is_v ? v : k)[(size_t)(r * cols + h * from + (c < from ? c : 0))];
            want[(size_t)((((b * 2 + is_v) * heads + h) * CU_BLOCK_TOKENS + at % CU_BLOCK_TOKENS) *
                              to +
                          c)] = ct_from<T>(c < from ? x : 0);
        }
    for (size_t i = 0; i < got.size(); i++) {
        const double a1 = ct_double(got[i]), b1 = ct_double(want[i]);
        if (a1 != b1 && (a1 == a1 || b1 == b1)) {
            ct_fail("pool value %zu is %g, expected %g", i, a1, b1);
            break;
        }
    }
}

template <class T> static void pad_one(int heads, int from, int to, int extra)
{
    const int n = 11;
    const auto x = ct_random<T>((size_t)(n * heads * from), 72);
    Mat<T> src(n, heads * from, x, extra), wide(n, heads * to, extra), back(n, heads * from, extra);
    struct cu_pad_heads a = {};
    a.dst = wide.m(), a.src = src.m(), a.n = n, a.n_head = heads, a.from = from, a.to = to;
    CT_RUN(cu_pad_heads(&a, nullptr));
    std::vector<T> want;
    for (int i = 0; i < n * heads * to; i++)
        want.push_back(i % to < from ? x[(size_t)(i / to * from + i % to)] : ct_from<T>(0));
    ct_same("wider heads", wide.get(), want);
    a.dst = back.m(), a.src = wide.m(), a.from = to, a.to = from;
    CT_RUN(cu_pad_heads(&a, nullptr));
    ct_same("and back", back.get(), x);
}

static void heads()
{
    pack_one<float>(2, 12, 12, 0, 0);
    pack_one<__nv_bfloat16>(3, 40, 64, 4, 0);
    pack_one<__nv_bfloat16>(1, 5, 16, 1, 1);
    pack_one<float>(2, 8, 10, 0, 0);
    pad_one<float>(3, 40, 48, 0);
    pad_one<__nv_bfloat16>(2, 72, 80, 4);
    pad_one<__nv_bfloat16>(2, 5, 16, 3);
    pad_one<float>(5, 160, 256, 0);
}

struct bias_case {
    int heads, kv_heads, d;
    bool causal;
    int pad, shift;
};

template <class T>
static std::vector<T> bias_run(const bias_case &c, Layout &q, Layout &k,
                               const std::vector<float> (&v)[3], const std::vector<float> &bias,
                               int cols)
{
    const int dq = c.heads * c.d, dk = c.kv_heads * c.d;
    Mat<float> mq((int)q.y.n_row, dq, v[0], c.pad, c.shift),
        mk((int)k.y.n_row, dk, v[1], c.pad, c.shift), mv((int)k.y.n_row, dk, v[2], c.pad),
        mb(c.heads, (int)bias.size() / c.heads, bias);
    Mat<T> dst((int)q.y.n_row, dq, c.pad);
    struct cu_attend_bias a = {};
    a.dst = dst.m(), a.q = mq.m(), a.k = mk.m(), a.v = mv.m(), a.bias = mb.m();
    a.n_head = c.heads, a.n_kv_head = c.kv_heads, a.head_dim = c.d, a.causal = c.causal;
    a.bias_cols = cols, a.scale = 0.3f, a.ql = &q.y, a.kl = &k.y;
    CT_RUN(cu_attend_bias(&a, nullptr));
    return dst.get();
}

template <class T> static void bias_one(const bias_case &c)
{
    const int cols = 200;
    Layout q({1, 0, 9, 40}), k({1, 3, 150, 70}), q1({9}), k1({150});
    const int dq = c.heads * c.d, dk = c.kv_heads * c.d, group = c.heads / c.kv_heads;
    const std::vector<float> v[3] = {ct_random<float>((size_t)(q.y.n_row * dq), 80),
                                     ct_random<float>((size_t)(k.y.n_row * dk), 81),
                                     ct_random<float>((size_t)(k.y.n_row * dk), 82)};
    const auto bias = ct_random<float>((size_t)(c.heads * cols * 40), 83);
    std::vector<double> want;
    for (int r = 0; r < q.y.n_row; r++)
        for (int h = 0; h < c.heads; h++) {
            const int s = q.seg(r), at = r - q.start[(size_t)s], k0 = k.start[(size_t)s],
                      n = c.causal ? at + 1 : k.rows(s), off = h / group * c.d;
            std::vector<double> p, o((size_t)c.d);
            double top = -INFINITY, sum = 0;
            for (int j = 0; j < n; j++) {
                double x = 0;
                for (int i = 0; i < c.d; i++)
                    x += (double)v[0][(size_t)(r * dq + h * c.d + i)] *
                         (double)v[1][(size_t)((k0 + j) * dk + off + i)];
                p.push_back(x * (double)0.3f + (double)bias[(size_t)((h * 40 + at) * cols + j)]);
                top = std::max(top, p.back());
            }
            for (int j = 0; j < n; j++) {
                p[(size_t)j] = exp(p[(size_t)j] - top);
                sum += p[(size_t)j];
            }
            for (int j = 0; j < n; j++)
                for (int i = 0; i < c.d; i++)
                    o[(size_t)i] +=
                        p[(size_t)j] / sum * (double)v[2][(size_t)((k0 + j) * dk + off + i)];
            want.insert(want.end(), o.begin(), o.end());
        }
    const auto got = bias_run<T>(c, q, k, v, bias, cols);
    ct_near("attention", got, want, sizeof(T) == 2 ? 1e-5 : 1e-11);
    ct_repeat(key({c.heads, c.d}).c_str(), got);
    const std::vector<float> one[3] = {part(v[0], dq, 9 * dq), part(v[1], 4 * dk, 150 * dk),
                                       part(v[2], 4 * dk, 150 * dk)};
    ct_same("a segment alone",
            bias_run<T>({c.heads, c.kv_heads, c.d, c.causal, 0, 1}, q1, k1, one, bias, cols),
            part(got, dq, 9 * dq));
}

static void biased()
{
    bias_one<float>({2, 2, 8, false, 0, 0});
    bias_one<__nv_bfloat16>({4, 2, 12, true, 4, 0});
    bias_one<float>({3, 1, 5, false, 1, 1});
    bias_one<float>({1, 1, 160, true, 0, 0});
}

/* ---- what launchers refuse ---- */

static void refused()
{
    Layout y({4}), maps({2}, {2});
    Mat<float> x(4, 8, std::vector<float>(32, 1)), z(4, 8), wide(4, 72);
    Dev<double> ws(64);
    Dev<int32_t> block(std::vector<int32_t>{1});
    struct cu_group_norm g = {};
    g.dst = z.m(), g.x = x.m(), g.w = g.b = x.mem.p, g.groups = 2, g.y = &y.y, g.ws = ws.p;
    g.eps = 1e-5f;
    CT_CHECK(cu_group_norm(&g, nullptr) == 0);
    g.groups = 3;
    CT_CHECK(cu_group_norm(&g, nullptr) == CU_BAD);
    g.groups = 2, g.ws = (char *)ws.p + 4;
    CT_CHECK(cu_group_norm(&g, nullptr) == CU_BAD);
    struct cu_layer_norm l = {};
    l.dst = z.m(), l.x = x.m(), l.n = 4, l.eps = 1e-5f;
    CT_CHECK(cu_layer_norm(&l, nullptr) == 0);
    l.scale = x.m(); /* without segments */
    CT_CHECK(cu_layer_norm(&l, nullptr) == CU_BAD);
    struct cu_im2col w = {};
    w.dst = wide.m(), w.src = x.m(), w.in = w.out = &maps.y, w.n = 4, w.k = 3, w.stride = w.pad = 1;
    CT_CHECK(cu_im2col(&w, nullptr) == 0);
    w.from = 1; /* past the last row */
    CT_CHECK(cu_im2col(&w, nullptr) == CU_BAD);
    w.from = 0, w.in = &y.y; /* no maps */
    CT_CHECK(cu_im2col(&w, nullptr) == CU_BAD);
    struct cu_rotate r = {};
    r.x = z.m(), r.n = 4, r.n_head = 3, r.head_dim = 2;
    CT_CHECK(cu_rotate(&r, nullptr) == CU_BAD);
    struct cu_act act = {};
    act.dst = wide.m(), act.x = x.m(), act.n = 4;
    CT_CHECK(cu_act(&act, nullptr) == CU_BAD);
    struct cu_gate_add gate = {};
    gate.x = z.m(), gate.y = x.m(), gate.gate = x.m(), gate.n = 4;
    CT_CHECK(cu_gate_add(&gate, nullptr) == CU_BAD);
    Dev<float> pool(4096);
    const struct cu_kv kv = {pool.p, 1, 1, 4, 2, CU_F32, 0};
    struct cu_pack_kv p = {};
    p.k = p.v = x.m(), p.head_dim = 8, p.kv = &kv, p.l = &y.y, p.block = block.p;
    CT_CHECK(cu_pack_kv(&p, nullptr) == CU_BAD); /* heads of 8 in a pool of 4 */
    struct cu_pad_heads h = {};
    h.dst = wide.m(), h.src = x.m(), h.n = 4, h.n_head = 2, h.from = 4, h.to = 8;
    CT_CHECK(cu_pad_heads(&h, nullptr) == CU_BAD);
    struct cu_attend_bias b = {};
    b.dst = z.m(), b.q = b.k = b.v = x.m(), b.bias = x.m(), b.n_head = b.n_kv_head = 2;
    b.head_dim = 4, b.bias_cols = 1 << 20, b.ql = b.kl = &y.y;
    CT_CHECK(cu_attend_bias(&b, nullptr) == CU_BAD);
    CT_CUDA(cudaDeviceSynchronize());
}

CT_MAIN({"windows", windows}, {"after", after}, {"group norm", group_norm},
        {"layer norm", layer_norm}, {"rotate", rotate}, {"activations", acts}, {"gates", gates},
        {"heads", heads}, {"biased attention", biased}, {"refused", refused})
