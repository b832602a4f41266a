/* cu_act_mul, cu_gather, cu_scale against plain double loops: odd widths, padded and unaligned rows, both dtypes, row
 * counts below the launch bound (rows past the count stay as they were); the same bits alone and in company. */
#include "tests/cuda/cuda_test.h"

static cu_step step_of(Dev<cu_count> &c, int n_row, int n_logit, int slack)
{
    cu_count v = {};
    v.n_row = n_row;
    v.n_logit = n_logit;
    c.set({v});
    cu_step s = {};
    s.count = c.p;
    s.row_max = n_row + slack;
    s.logit_max = n_logit + slack;
    return s;
}

static double act(double x, int kind)
{
    if (kind == CU_ACT_SILU)
        return x / (1 + exp(-x));
    if (kind == CU_ACT_GELU_TANH)
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    return 0.5 * x * erfc(-x * M_SQRT1_2);
}

/* Rows of d values with pitch ld, from element `shift`. */
template <class T>
static std::vector<T> rows_of_flat(const std::vector<T> &v, int rows, int d, int ld, int shift)
{
    std::vector<T> o;
    for (int i = 0; i < rows; i++)
        o.insert(o.end(), v.begin() + i * ld + shift, v.begin() + i * ld + shift + d);
    return o;
}

/* What is not written keeps the poison: everything outside rows x d. */
template <class T>
static void untouched(const std::vector<T> &v, int rows, int d, int ld, int shift)
{
    for (int i = 0; i < (int)v.size(); i++) {
        int at = i - shift;
        bool in = at >= 0 && at / ld < rows && at % ld < d;
        if (!in && ct_double(v[(size_t)i]) == ct_double(v[(size_t)i]))
            ct_fail("element %d (row %d, column %d) is not the op's", i, at / ld, at % ld);
    }
}

template <class T> static void act_check(int rows, int d, int pad, int shift, int kind, bool logit)
{
    int ld = 2 * d + pad, ldo = d + pad;
    std::vector<float> x = ct_random<float>((size_t)(rows * ld + shift), (uint64_t)(d + kind), 3);
    std::vector<double> want;
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < d; k++) {
            const float *r = &x[(size_t)(i * ld + shift)];
            want.push_back(act((double)r[k], kind) * (double)r[d + k]);
        }
    Dev<float> dx(x);
    Dev<T> out((size_t)((rows + 2) * ldo + shift));
    Dev<cu_count> c(1);
    cu_step s = step_of(c, logit ? -7 : rows, logit ? rows : -7, 2);
    struct cu_act_mul a = {};
    a.gate_up = {dx.p + shift, ld, CU_F32, 2 * d};
    a.dst = {out.p + shift, ldo, sizeof(T) == 2 ? CU_BF16 : CU_F32, d};
    a.act = kind;
    a.rows = logit ? CU_ROWS_LOGIT : CU_ROWS_ALL;
    CT_RUN(cu_act_mul(&a, &s, nullptr));
    std::vector<T> got = out.get();
    untouched(got, rows, d, ldo, shift);
    std::vector<T> flat = rows_of_flat(got, rows, d, ldo, shift);
    ct_near("act", flat, want, sizeof(T) == 2 ? 1e-5 : 1e-12);
    /* The last row alone and aligned. */
    Dev<float> one(std::vector<float>(x.end() - ld, x.end()));
    Dev<T> out1((size_t)d);
    s = step_of(c, 1, 1, 0);
    a.gate_up = {one.p, ld, CU_F32, 2 * d};
    a.dst = {out1.p, d, a.dst.dt, d};
    CT_RUN(cu_act_mul(&a, &s, nullptr));
    ct_same("one row", out1.get(), std::vector<T>(flat.end() - d, flat.end()));
}

static void activations()
{
    for (int d : {1, 3, 4, 7, 64, 130, 1024, 1537})
        for (int v = 0; v < 6; v++) {
            act_check<float>(3, d, v % 3, v == 5, v % 3, v % 2);
            act_check<__nv_bfloat16>(2, d, 4 * (v % 2), v == 4, v % 3, v % 2);
        }
}

/* Far out: silu and gelu go to x or 0, never NaN. */
static void extremes()
{
    static const float in[] = {-1e30f, -200, -90, -0.0f, 0, 1e-30f, 90, 200, 1e30f};
    std::vector<float> x(in, in + 9);
    x.resize(18, 1.0f);
    Dev<float> dx(x), out(9);
    Dev<cu_count> c(1);
    cu_step s = step_of(c, 1, 0, 0);
    for (int kind = 0; kind < 3; kind++) {
        struct cu_act_mul a = {};
        a.gate_up = {dx.p, 18, CU_F32, 18};
        a.dst = {out.p, 9, CU_F32, 9};
        a.act = kind;
        CT_RUN(cu_act_mul(&a, &s, nullptr));
        std::vector<float> o = out.get();
        for (int i = 0; i < 9; i++)
            CT_CHECK(in[i] > 1 ? o[(size_t)i] == in[i] : fabsf(o[(size_t)i]) < 1e-20f);
    }
}

template <class T> static void gather_check(int d, int ld_src, int ld_dst, int shift)
{
    static const std::vector<int32_t> which = {1, 2, 5, 6};
    std::vector<T> x = ct_random<T>((size_t)(7 * ld_src + shift), 4);
    Dev<T> src(x), dst((size_t)(6 * ld_dst + shift));
    Dev<int32_t> w(which);
    Dev<cu_count> c(1);
    cu_step s = step_of(c, 7, 4, 2);
    s.logit_row = w.p;
    int dt = sizeof(T) == 2 ? CU_BF16 : CU_F32;
    struct cu_gather a = {{dst.p + shift, ld_dst, dt, d}, {src.p + shift, ld_src, dt, d}};
    CT_RUN(cu_gather(&a, &s, nullptr));
    std::vector<T> got = dst.get(), want;
    untouched(got, 4, d, ld_dst, shift);
    for (int32_t i : which)
        want.insert(want.end(), x.begin() + i * ld_src + shift, x.begin() + i * ld_src + shift + d);
    ct_same("gather", rows_of_flat(got, 4, d, ld_dst, shift), want);
}

static void gathers()
{
    for (int d : {1, 5, 8, 576, 2051}) {
        gather_check<float>(d, d, d, 0);
        gather_check<float>(d, d + 3, d + 4, 1);
        gather_check<__nv_bfloat16>(d, d + 8, d, 0);
        gather_check<__nv_bfloat16>(d, d, d + 1, 3);
    }
}

static void scales()
{
    for (int d : {1, 6, 8, 1030})
        for (int v = 0; v < 4; v++) {
            int ld = d + v, shift = v == 3, rows = 3;
            float cap = v % 2 ? 30.0f : 0, factor = v == 2 ? 1 : 0.125f;
            std::vector<float> x((size_t)((rows + 1) * ld + shift), NAN),
                in = ct_random<float>((size_t)(rows * d), 6, 40);
            std::vector<double> want;
            for (int i = 0; i < rows; i++)
                for (int k = 0; k < d; k++) {
                    double y = (double)in[(size_t)(i * d + k)];
                    x[(size_t)(i * ld + k + shift)] = (float)y;
                    want.push_back((cap > 0 ? (double)cap * tanh(y / (double)cap) : y) *
                                   (double)factor);
                }
            Dev<float> dx(x);
            Dev<cu_count> c(1);
            cu_step s = step_of(c, -1, rows, 1);
            struct cu_scale a = {
                {dx.p + shift, ld, CU_F32, d}, factor, cap, 0, 0, 0, 0, CU_ROWS_LOGIT};
            CT_RUN(cu_scale(&a, &s, nullptr));
            std::vector<float> got = dx.get();
            untouched(got, rows, d, ld, shift);
            ct_near("scale", rows_of_flat(got, rows, d, ld, shift), want, 1e-12);
        }
}

static void refused()
{
    Dev<float> x(64);
    Dev<cu_count> c(1);
    cu_step s = step_of(c, 1, 1, 0);
    struct cu_act_mul m = {{x.p, 8, CU_F32, 8}, {x.p + 8, 16, CU_F32, 16}, 7, 0, 0, CU_ROWS_ALL};
    CT_CHECK(cu_act_mul(&m, &s, nullptr) == CU_BAD);
    m.act = CU_ACT_SILU;
    m.gate_up.cols = 15;
    CT_CHECK(cu_act_mul(&m, &s, nullptr) == CU_BAD);
    struct cu_gather g = {{x.p, 8, CU_F32, 8}, {x.p + 32, 8, CU_BF16, 8}};
    CT_CHECK(cu_gather(&g, &s, nullptr) == CU_BAD);
    struct cu_scale z = {{x.p, 7, CU_F32, 8}, 1, 0, 0, 0, 0, 0, CU_ROWS_ALL};
    CT_CHECK(cu_scale(&z, &s, nullptr) == CU_BAD);
    z.x.ld = 8;
    z.softcap = NAN;
    CT_CHECK(cu_scale(&z, &s, nullptr) == CU_BAD);
    s.row_max = 0;
    z.softcap = 0;
    CT_CHECK(cu_scale(&z, &s, nullptr) == 0);
}

CT_MAIN({"activations", activations}, {"extremes", extremes}, {"gathers", gathers},
        {"scales", scales}, {"refused", refused})
