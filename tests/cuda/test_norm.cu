/* cu_rmsnorm against a double reference: every width around a vector and a block, aligned and not, padded rows, with and
 * without addition and destination, in place; the same bits alone, in company, aligned or not, and in every order. */
#include "tests/cuda/cuda_test.h"

struct norm_case {
    int rows, d, ld, shift; /* shift: elements by which every pointer misses alignment */
    bool add, dst, in_place, bf16, logit;
};

template <class T> struct norm_out {
    std::vector<T> dst;
    std::vector<float> x;
};

/* One launch; row_max may exceed the count, which the device holds. */
template <class T>
static norm_out<T> norm_run(const norm_case &c, int row_max, const std::vector<float> &x,
                            const std::vector<float> &add, const std::vector<float> &w)
{
    size_t n = (size_t)(c.rows - 1) * (size_t)c.ld + (size_t)c.d + (size_t)c.shift;
    std::vector<float> px(n, NAN), pa(n, NAN), pw((size_t)(c.d + c.shift), NAN);
    for (int i = 0; i < c.rows; i++)
        for (int k = 0; k < c.d; k++) {
            px[(size_t)(i * c.ld + k + c.shift)] = x[(size_t)(i * c.d + k)];
            pa[(size_t)(i * c.ld + k + c.shift)] = add[(size_t)(i * c.d + k)];
        }
    std::copy(w.begin(), w.end(), pw.begin() + c.shift);
    Dev<float> dx(px), da(pa), dw(pw);
    Dev<T> dd(n);
    cu_count cnt = {};
    cnt.n_row = c.logit ? -1 : c.rows;
    cnt.n_logit = c.logit ? c.rows : -1;
    Dev<cu_count> dc(std::vector<cu_count>{cnt});
    cu_step s = {};
    s.count = dc.p;
    (c.logit ? s.logit_max : s.row_max) = row_max;
    struct cu_rmsnorm a = {};
    a.x = {dx.p + c.shift, c.ld, CU_F32, c.d};
    if (c.add)
        a.add = {da.p + c.shift, c.ld, CU_F32, c.d};
    if (c.dst)
        a.dst = {dd.p + c.shift, c.ld, sizeof(T) == 2 ? CU_BF16 : CU_F32, c.d};
    if (c.in_place)
        a.dst = a.x;
    a.w = dw.p + c.shift;
    a.eps = 1e-5f;
    a.rows = c.logit ? CU_ROWS_LOGIT : CU_ROWS_ALL;
    CT_RUN(cu_rmsnorm(&a, &s, nullptr));
    norm_out<T> o;
    std::vector<T> gd = dd.get();
    std::vector<float> gx = dx.get();
    for (int i = 0; i < c.rows; i++)
        for (int k = 0; k < c.ld && (i < c.rows - 1 || k < c.d); k++) {
            size_t at = (size_t)(i * c.ld + k + c.shift);
            if (k < c.d) {
                o.dst.push_back(gd[at]);
                o.x.push_back(gx[at]);
            } else { /* the padding of a row is nobody's */
                CT_CHECK(ct_double(gd[at]) != ct_double(gd[at]) && gx[at] != gx[at]);
            }
        }
    return o;
}

template <class T> static void norm_check(const norm_case &c)
{
    size_t n = (size_t)(c.rows * c.d);
    std::vector<float> x = ct_random<float>(n, (uint64_t)c.d, 2), add = ct_random<float>(n, 7),
                       w = ct_random<float>((size_t)c.d, 9);
    std::vector<double> want(n), sum(n);
    for (int i = 0; i < c.rows; i++) {
        double q = 0;
        for (int k = 0; k < c.d; k++) {
            size_t at = (size_t)(i * c.d + k);
            sum[at] = (double)x[at];
            if (c.add)
                sum[at] = (double)(x[at] + add[at]);
            q += sum[at] * sum[at];
        }
        for (int k = 0; k < c.d; k++)
            want[(size_t)(i * c.d + k)] =
                sum[(size_t)(i * c.d + k)] / sqrt(q / c.d + (double)1e-5f) * (double)w[(size_t)k];
    }
    norm_out<T> o = norm_run<T>(c, c.rows + 3, x, add, w);
    bool bf = sizeof(T) == 2;
    if (c.in_place)
        ct_near("in place", o.x, want, 1e-12);
    else
        ct_near("x", o.x, sum, 0);
    if (c.dst)
        ct_near("dst", o.dst, want, bf ? 1e-5 : 1e-12);
    ct_repeat("x", o.x);
    ct_repeat("dst", o.dst);
    /* The last row alone, aligned: the same bits. */
    norm_case one = c;
    one.rows = 1;
    one.shift = 0;
    one.ld = (c.d + 3) / 4 * 4;
    size_t off = n - (size_t)c.d;
    norm_out<T> p = norm_run<T>(one, 1, std::vector<float>(x.begin() + (long)off, x.end()),
                                std::vector<float>(add.begin() + (long)off, add.end()), w);
    ct_same("one row's x", p.x, std::vector<float>(o.x.begin() + (long)off, o.x.end()));
    if (c.dst)
        ct_same("one row's dst", p.dst, std::vector<T>(o.dst.begin() + (long)off, o.dst.end()));
}

static void widths()
{
    static const int ds[] = {1, 3, 4, 5, 31, 64, 127, 576, 1000, 2047, 4096};
    std::string name = ct.name;
    for (int d : ds)
        for (int v = 0; v < 4; v++) {
            norm_case c = {3,    d,     d + v * 2 % 5, v == 3 ? 1 : 0, v != 1,
                           true, false, v % 2 == 1,    v == 2};
            std::string at = name + " " + std::to_string(d) + " " + std::to_string(v);
            ct.name = at.c_str();
            c.bf16 ? norm_check<__nv_bfloat16>(c) : norm_check<float>(c);
        }
    static std::string keep;
    keep = name;
    ct.name = keep.c_str();
}

static void long_rows() /* more than the registers keep */
{
    norm_check<float>({2, 17000, 17000, 0, true, true, false, false, false});
    norm_check<__nv_bfloat16>({1, 16385, 16385, 0, false, true, false, true, false});
}

static void in_place()
{
    norm_check<float>({4, 576, 576, 0, false, false, true, false, false});
}
static void only_add()
{
    norm_check<float>({4, 577, 580, 0, true, false, false, false, false});
}

static void refused()
{
    Dev<float> x(64);
    Dev<cu_count> n(std::vector<cu_count>{cu_count{}});
    cu_step s = {};
    s.count = n.p;
    s.row_max = 2;
    struct cu_rmsnorm ok = {};
    ok.x = ok.dst = {x.p, 16, CU_F32, 16};
    ok.w = x.p;
    ok.eps = 1e-5f;
    CT_CHECK(cu_rmsnorm(&ok, &s, nullptr) == 0);
    struct cu_rmsnorm a = ok;
    a.x.ld = 15;
    CT_CHECK(cu_rmsnorm(&a, &s, nullptr) == CU_BAD);
    a = ok;
    a.dst.cols = 8;
    CT_CHECK(cu_rmsnorm(&a, &s, nullptr) == CU_BAD);
    a = ok;
    a.x.dt = CU_F16;
    CT_CHECK(cu_rmsnorm(&a, &s, nullptr) == CU_BAD);
    a = ok;
    a.b = x.p; /* a bias belongs to the layer norm */
    CT_CHECK(cu_rmsnorm(&a, &s, nullptr) == CU_BAD);
    a = ok;
    a.dst.p = nullptr; /* nothing to do */
    CT_CHECK(cu_rmsnorm(&a, &s, nullptr) == CU_BAD);
    a = ok;
    a.eps = NAN;
    CT_CHECK(cu_rmsnorm(&a, &s, nullptr) == CU_BAD);
    s.row_max = 0;
    CT_CHECK(cu_rmsnorm(&ok, &s, nullptr) == 0);
    CT_CUDA(cudaDeviceSynchronize());
}

CT_MAIN({"widths", widths}, {"long rows", long_rows}, {"in place", in_place},
        {"only add", only_add}, {"refused", refused})
