/* cu_lt_matmul and its use by cu_linear: against double sums, ragged and strided shapes, one search a shape, work space,
 * bad arguments, a library that is missing or lacks functions. */
extern "C" {
#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/ops.h"
}
#include "cuda/gemm.h"
#include "cuda/lt_api.h"

#include "tests/cuda/cuda_test.h"

typedef __nv_bfloat16 bf16;

static struct cu_lt *open_lt()
{
    struct cu_lt *lt = nullptr;
    const int rc = cu_lt_open(&lt);
    if (rc || !lt)
        ct_fail("cuBLASLt cannot be opened: %d", rc);
    return lt;
}

struct Shape {
    int n, n_in, n_out, skew; /* skew: elements between a row's end and the next */
    bool bias;
    size_t ws;
};

/* x [n, n_in + skew] and w as the host has them, d's every element. */
struct Case {
    Shape s;
    std::vector<bf16> x, w;
    std::vector<float> bias;
    Dev<bf16> dx, dw;
    Dev<float> db, dd;
    Dev<unsigned char> ws;
    explicit Case(Shape q)
        : s(q), x(ct_random<bf16>((size_t)q.n * (size_t)(q.n_in + q.skew), 3)),
          w(ct_random<bf16>((size_t)q.n_out * (size_t)q.n_in, 4)),
          bias(ct_random<float>((size_t)q.n_out, 5)), dx(x), dw(w), db(bias),
          dd((size_t)q.n * (size_t)(q.n_out + q.skew)), ws(std::max<size_t>(q.ws, 1))
    {
    }
    struct cu_lt_args args()
    {
        struct cu_lt_args a = {};
        a.x = dx.p, a.w = dw.p, a.d = dd.p, a.bias = s.bias ? db.p : nullptr;
        a.ldx = s.n_in + s.skew, a.ldd = s.n_out + s.skew;
        a.n = s.n, a.n_in = s.n_in, a.n_out = s.n_out;
        a.ws = s.ws ? ws.p : nullptr, a.ws_bytes = s.ws;
        return a;
    }
    void compare(const char *what)
    {
        auto got = dd.get();
        std::vector<float> rows;
        std::vector<double> want;
        for (int i = 0; i < s.n; i++)
            for (int o = 0; o < s.n_out + s.skew; o++) {
                const float v = got[(size_t)i * (size_t)(s.n_out + s.skew) + (size_t)o];
                double sum = o < s.n_out && s.bias ? (double)bias[(size_t)o] : 0;
                if (o >= s.n_out) {
                    CT_CHECK(v != v); /* between rows: not written */
                    continue;
                }
                for (int k = 0; k < s.n_in; k++)
                    sum += ct_double(x[(size_t)(i * (s.n_in + s.skew) + k)]) *
                           ct_double(w[(size_t)(o * s.n_in + k)]);
                rows.push_back(v);
                want.push_back(sum);
            }
        ct_near(what, rows, want, 1e-11);
        ws.get(); /* guards */
    }
};

static void shapes_case()
{
    struct cu_lt *lt = open_lt();
    for (Shape s : {Shape{64, 64, 64, 0, false, 0},
                    {1, 8, 8, 0, true, 0},
                    {65, 72, 40, 8, true, 4096},
                    {100, 200, 136, 0, true, 1 << 20},
                    {33, 256, 24, 16, false, 256}}) {
        char what[64];
        Case c(s);
        auto a = c.args();
        snprintf(what, sizeof what, "%dx%dx%d skew %d", s.n, s.n_out, s.n_in, s.skew);
        if (lt && CT_RUN(cu_lt_matmul(lt, &a)))
            c.compare(what);
    }
    cu_lt_close(lt);
}

/* Odd sizes and places: a product or a plain refusal, for which cu_linear has its own. */
static void odd_case()
{
    struct cu_lt *lt = open_lt();
    for (Shape s :
         {Shape{3, 1, 1, 0, true, 0}, {70, 37, 5, 1, true, 0}, {64, 7, 33, 3, false, 256}}) {
        Case c(s);
        auto a = c.args();
        const int rc = lt ? cu_lt_matmul(lt, &a) : CU_BAD;
        CT_CHECK(rc == 0 || rc == CU_LT_NOT_SUPPORTED);
#ifdef CUDA_EMU
        CT_CHECK(rc == 0);
#endif
        if (!rc)
            c.compare("odd");
    }
    cu_lt_close(lt);
}

static void
cache_case() /* one search for the rows of a bucket; another for what an algorithm may depend on */
{
    struct cu_lt *lt = open_lt();
    Case c({128, 64, 48, 0, true, 8192});
    auto a = c.args();
    for (int n : {128, 65, 100, 128}) {
        a.n = n;
        CT_RUN(cu_lt_matmul(lt, &a));
        CT_CHECK(cu_lt_searches(lt) == 1);
    }
    c.compare("from the cache");
    a.n = 64;
    CT_RUN(cu_lt_matmul(lt, &a));
    CT_CHECK(cu_lt_searches(lt) == 2);
    a.bias = nullptr;
    CT_RUN(cu_lt_matmul(lt, &a));
    CT_CHECK(cu_lt_searches(lt) == 3);
    a.ws_bytes = 4096; /* less than the algorithm found may need */
    CT_RUN(cu_lt_matmul(lt, &a));
    CT_CHECK(cu_lt_searches(lt) == 4);
    a.x = c.dx.p + 8; /* 16-byte aligned only; n is smaller, so inside */
    a.n = 63;
    CT_RUN(cu_lt_matmul(lt, &a));
    CT_CHECK(cu_lt_searches(lt) == 5);
    for (int i = 1; i <= 600; i++) { /* more shapes than the cache holds */
        a.n_in = 8 + i % 2 * 8, a.ldx = 16 + 8 * i, a.n = 1;
        CT_CHECK(cu_lt_matmul(lt, &a) == 0);
    }
    CT_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    a = c.args();
    c.dd.poison();
    CT_RUN(cu_lt_matmul(lt, &a));
    c.compare("after 600 shapes");
    cu_lt_close(lt);
}

static void bad_case()
{
    struct cu_lt *lt = open_lt();
    Case c({2, 16, 8, 0, true, 256});
    const auto ok = c.args();
    auto refused = [&](void (*change)(struct cu_lt_args *)) {
        auto a = ok;
        change(&a);
        return cu_lt_matmul(lt, &a) == CU_BAD;
    };
    CT_CHECK(cu_lt_open(nullptr) == CU_BAD);
    CT_CHECK(cu_lt_matmul(nullptr, &ok) == CU_BAD && cu_lt_matmul(lt, nullptr) == CU_BAD);
    CT_CHECK(refused([](struct cu_lt_args *a) { a->x = nullptr; }));
    CT_CHECK(refused([](struct cu_lt_args *a) { a->w = nullptr; }));
    CT_CHECK(refused([](struct cu_lt_args *a) { a->d = nullptr; }));
    CT_CHECK(refused([](struct cu_lt_args *a) { a->n = -1; }));
    CT_CHECK(refused([](struct cu_lt_args *a) { a->n_in = 0; }));
    CT_CHECK(refused([](struct cu_lt_args *a) { a->n_out = 0; }));
    CT_CHECK(refused([](struct cu_lt_args *a) { a->ldx = 15; }));
    CT_CHECK(refused([](struct cu_lt_args *a) { a->ldd = 7; }));
    CT_CHECK(refused([](struct cu_lt_args *a) { a->ws = nullptr; }));
    CT_CHECK(refused([](struct cu_lt_args *a) { a->ws = (char *)a->ws + 128; }));
    CT_CHECK(refused([](struct cu_lt_args *a) { a->x = (const char *)a->x + 1; }));
    auto none = ok;
    none.n = 0;
    CT_RUN(cu_lt_matmul(lt, &none));
    for (float v : c.dd.get())
        CT_CHECK(v != v);
    CT_CHECK(lt && cu_lt_searches(lt) == 0);
    cu_lt_close(lt);
    cu_lt_close(nullptr);
}

static void
missing_case() /* no library, one without the functions, no memory: told, nothing left over */
{
    const char *const none[] = {"libno-such-thing.so.1", "libnor-this.so", nullptr};
    const char *const other[] = {"libno-such-thing.so.1", "libm.so.6", nullptr};
    struct lt_api t;
    void *so = &t;
    CT_CHECK(lt_api_load(&t, &so, none) == CU_LT_NO_LIBRARY && !so && !t.create && !t.matmul);
    so = &t;
    CT_CHECK(lt_api_load(&t, &so, other) == CU_LT_NO_SYMBOL && !so && !t.create && !t.matmul);
    struct cu_lt *lt = (struct cu_lt *)&t;
    mem_fail_after(1, false);
    CT_CHECK(cu_lt_open(&lt) == CU_LT_NO_MEMORY && !lt);
    mem_fail_after(0, false);
#ifdef CUDA_EMU
    lt = (struct cu_lt *)&t;
    setenv("STEPD_EMU_LT", "0", 1);
    CT_CHECK(cu_lt_open(&lt) == CU_LT_NO_LIBRARY && !lt);
    unsetenv("STEPD_EMU_LT");
#endif
}

/* ---- cu_linear ---- */

struct Linear {
    static constexpr int IN = 72, OUT = 37 + 64 + 11;
    std::vector<float> val[3];
    std::vector<unsigned char> raw[3];
    weight_desc d = {};
    cu_weight w = {};
    Dev<unsigned char> *mem = nullptr, *ws = nullptr;
    std::vector<bf16> x;
    explicit Linear(bool lt, enum quant_fmt middle) : x(ct_random<bf16>(100 * IN, 8))
    {
        const int n[3] = {37, 64, 11};
        const enum quant_fmt fmt[3] = {QF_BF16, middle, QF_F32};
        size_t bytes = 0;
        err e = {};
        d.name = "w", d.n_in = IN, d.n_part = 3;
        for (int i = 0; i < 3; i++) {
            const quant_format *f = quant_format_get((uint32_t)fmt[i]);
            const size_t count = (size_t)n[i] * IN;
            val[i] = ct_random<float>(count, 20 + (uint64_t)i, 0.05f);
            raw[i].resize(count / (size_t)f->block_len * (size_t)f->block_bytes);
            f->encode(val[i].data(), raw[i].data(), (int64_t)count);
            f->decode(raw[i].data(), val[i].data(), (int64_t)count);
            d.part[i] = {fmt[i], raw[i].data(), n[i]};
        }
        CT_CHECK((lt ? cu_weight_plan_lt(&w, &d, &bytes, &e)
                     : cu_weight_plan(&w, &d, 0, &bytes, &e)) == 0);
        std::vector<unsigned char> host(bytes, 0xEE);
        CT_CHECK(cu_weight_pack(&w, &d, host.data()) == 0);
        mem = new Dev<unsigned char>(host);
        cu_weight_bind(&w, mem->p);
        ws = new Dev<unsigned char>(
            std::vector<unsigned char>(cu_linear_ws(&w, 100) + CU_GEMM_HEAD_BYTES + 4096, 0));
    }
    ~Linear()
    {
        delete mem;
        delete ws;
    }
    std::vector<float> run(int n, struct cu_lt *lt, int exact)
    {
        Dev<bf16> dx(x);
        Dev<float> out((size_t)n * OUT), db(ct_random<float>(OUT, 9));
        cu_count count = {};
        count.n_row = n;
        Dev<cu_count> dc(std::vector<cu_count>{count});
        cu_step st = {};
        st.count = dc.p, st.row_max = n;
        struct cu_linear a = {};
        a.dst = {out.p, OUT, CU_F32, OUT};
        a.src = {dx.p, IN, CU_BF16, IN};
        a.w = &w, a.bias = db.p, a.ws = ws->p, a.ws_bytes = ws->n;
        a.exact = exact, a.lt = lt;
        CT_RUN(cu_linear(&a, &st, nullptr));
        auto left = ws->get();
        CT_CHECK(std::count(left.begin(), left.begin() + CU_GEMM_HEAD_BYTES, 0) ==
                 (long)CU_GEMM_HEAD_BYTES);
        return out.get();
    }
    std::vector<double> want(int n)
    {
        auto bias = ct_random<float>(OUT, 9);
        std::vector<double> all;
        for (int i = 0; i < n; i++)
            for (int p = 0, o = 0; p < 3; p++)
                for (int r = 0; r < d.part[p].n_out; r++, o++) {
                    double s = (double)bias[(size_t)o];
                    for (int k = 0; k < IN; k++)
                        s += ct_double(x[(size_t)(i * IN + k)]) *
                             (double)val[p][(size_t)(r * IN + k)];
                    all.push_back(s);
                }
        return all;
    }
};

static void linear_case() /* stacked dense parts; who computes them */
{
    struct cu_lt *lt = open_lt();
    Linear l(true, QF_F16), plain(false, QF_F16);
    CT_CHECK(l.w.part[0].rows && l.w.part[1].rows && l.w.part[2].rows);
    CT_CHECK(!plain.w.part[0].rows && plain.mem->n < l.mem->n);
    auto own = plain.run(100, nullptr, 0);
    ct_near("own", own, plain.want(100), 1e-5);
    ct_same("exact", l.run(100, lt, 1), own);
    ct_same("no library", l.run(100, nullptr, 0), own);
    ct_same("no rows for it", plain.run(100, lt, 0), own);
    ct_same("few rows", l.run(63, lt, 0), plain.run(63, nullptr, 0));
    CT_CHECK(lt && cu_lt_searches(lt) == 0); /* none of these asked it */
    ct_near("by the library", l.run(100, lt, 0), l.want(100), 1e-5);
    CT_CHECK(lt && cu_lt_searches(lt) == 3); /* three parts */
    ct_near("least rows", l.run(64, lt, 0), l.want(64), 1e-5);
    CT_CHECK(lt && cu_lt_searches(lt) == 6); /* another bucket */
    cu_lt_close(lt);
#ifdef CUDA_EMU
    setenv("STEPD_EMU_LT", "refuse", 1);
    lt = open_lt();
    ct_same("no algorithm", l.run(100, lt, 0), own);
    ct_same("no algorithm, remembered", l.run(100, lt, 0), own);
    CT_CHECK(lt && cu_lt_searches(lt) == 3);
    cu_lt_close(lt);
    unsetenv("STEPD_EMU_LT");
#endif
}

CT_MAIN({"shapes", shapes_case}, {"odd", odd_case}, {"cache", cache_case}, {"bad", bad_case},
        {"missing", missing_case}, {"linear", linear_case})
