/* cu_linear and cu_embed: every weight format against its reference decoder with double sums; ragged shapes, any
 * number of rows, stacked parts, both precisions; equal bits in any company; counters left zero. */
extern "C" {
#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/ops.h"
}
#include "cuda/gemm.h"

#include "tests/cuda/cuda_test.h"

/* Where a block keeps its half-precision scales (which random bytes must not decide). */
struct Format {
    enum quant_fmt id;
    int half
        [2]; /* -1: none; half[0] -2: a float at 0 and perhaps one at half[1]; -3: the exponent of 2 */
};
static const Format formats[] = {
    {QF_F32, {-1, -1}},    {QF_F16, {-1, -1}},   {QF_BF16, {-1, -1}},   {QF_Q4_0, {0, -1}},
    {QF_Q4_1, {0, 2}},     {QF_Q5_0, {0, -1}},   {QF_Q5_1, {0, 2}},     {QF_Q8_0, {0, -1}},
    {QF_Q2_K, {80, 82}},   {QF_Q3_K, {108, -1}}, {QF_Q4_K, {0, 2}},     {QF_Q5_K, {0, 2}},
    {QF_Q6_K, {208, -1}},  {QF_IQ4_NL, {0, -1}}, {QF_IQ4_XS, {0, -1}},  {QF_I8_32, {-2, -1}},
    {QF_I8M_32, {-2, 4}},  {QF_I4_32, {-2, 4}},  {QF_F8_32, {-2, -1}},  {QF_F4_16, {-2, -1}},
    {QF_NF4_32, {-2, -1}}, {QF_B4_32, {-2, -1}}, {QF_IQ2_XXS, {0, -1}}, {QF_IQ2_XS, {0, -1}},
    {QF_TQ1_0, {52, -1}},  {QF_MXFP4, {-3, -1}},
};
static const Format *format_of(enum quant_fmt id)
{
    for (const Format &f : formats)
        if (f.id == id)
            return &f;
    abort();
}

/* Random rows in the file's form, and their values. */
struct Part {
    enum quant_fmt fmt;
    std::vector<unsigned char> raw;
    std::vector<float> val;
    Part(enum quant_fmt id, int n_out, int n_in, uint64_t seed) : fmt(id)
    {
        const quant_format *q = quant_format_get(id);
        const Format *f = format_of(id);
        const size_t n = (size_t)n_out * (size_t)n_in, blocks = n / (size_t)q->block_len;
        Rng r(seed);
        raw.resize(blocks * (size_t)q->block_bytes);
        val.resize(n);
        if (f->half[0] == -2) { /* a float scale, then codes; no NaN among them */
            for (size_t i = 0; i < raw.size(); i++) {
                raw[i] = (unsigned char)r.next();
                if ((raw[i] & 0x7f) == 0x7f)
                    raw[i] ^= 1;
            }
            for (size_t i = 0; i < blocks; i++) {
                for (int k = 0; k < (f->half[1] > 0 ? 2 : 1); k++) {
                    const float v = 0.003f * r.normal();
                    memcpy(&raw[i * (size_t)q->block_bytes + (size_t)(k * 4)], &v, 4);
                }
            }
        } else if (f->half[0] == -3) {
            for (auto &b : raw)
                b = (unsigned char)r.next();
            for (size_t i = 0; i < blocks; i++)
                raw[i * (size_t)q->block_bytes] = (unsigned char)(117 + r.next() % 4);
        } else if (f->half[0] < 0) {
            for (float &x : val)
                x = 0.05f * r.normal();
            q->encode(val.data(), raw.data(), (int64_t)n);
        } else {
            for (auto &b : raw)
                b = (unsigned char)r.next();
            for (size_t i = 0; i < blocks; i++)
                for (int h : f->half)
                    if (h >= 0) {
                        uint16_t v = f32_to_f16(0.003f * r.normal());
                        memcpy(&raw[i * (size_t)q->block_bytes + (size_t)h], &v, 2);
                    }
        }
        q->decode(raw.data(), val.data(), (int64_t)n);
    }
};

struct Weight {
    std::vector<Part> part;
    weight_desc d = {};
    cu_weight w = {};
    Dev<unsigned char> *mem = nullptr;
    std::vector<float> val; /* all rows */
    Weight(int n_in, const std::vector<std::pair<enum quant_fmt, int>> &parts, int f32)
    {
        size_t bytes = 0;
        err e = {};
        for (auto &p : parts)
            part.emplace_back(p.first, p.second, n_in, 77 + part.size() + (size_t)p.first);
        d.name = "w";
        d.n_in = n_in;
        d.n_part = (int)parts.size();
        for (size_t i = 0; i < part.size(); i++) {
            d.part[i] = {part[i].fmt, part[i].raw.data(), parts[i].second};
            val.insert(val.end(), part[i].val.begin(), part[i].val.end());
        }
        CT_CHECK(cu_weight_plan(&w, &d, f32, &bytes, &e) == 0);
        std::vector<unsigned char> host(bytes, 0xEE);
        CT_CHECK(cu_weight_pack(&w, &d, host.data()) == 0);
        mem = new Dev<unsigned char>(host);
        cu_weight_bind(&w, mem->p);
    }
    ~Weight()
    {
        delete mem;
    }
};

/* The work space of a model: shared by all products, zeroed once. */
struct Space {
    Dev<unsigned char> mem;
    explicit Space(size_t n) : mem(std::vector<unsigned char>(std::max<size_t>(n, 16), 0))
    {
    }
};

struct Shape {
    int n, bound; /* rows, launch bound */
    int skew;     /* elements by which rows are longer than they need be */
    bool bias;
};

template <class T>
static std::vector<float> product(const Weight &w, const std::vector<float> &x, Shape s,
                                  const std::vector<float> &bias, Space &space)
{
    const int n_in = (int)w.d.n_in, n_out = (int)w.w.n_out, lds = n_in + s.skew,
              ldd = n_out + s.skew;
    std::vector<T> src((size_t)s.bound * (size_t)lds, ct_from<T>(NAN));
    for (int i = 0; i < s.n; i++)
        for (int k = 0; k < n_in; k++)
            src[(size_t)(i * lds + k)] = ct_from<T>(x[(size_t)(i * n_in + k)]);
    Dev<T> dx(src);
    Dev<float> db(bias), out((size_t)s.bound * (size_t)ldd);
    cu_count count = {};
    count.n_row = -1; /* the other count: must not be read */
    count.n_logit = s.n;
    Dev<cu_count> dc(std::vector<cu_count>{count});
    cu_step st = {};
    st.count = dc.p;
    st.row_max = 0;
    st.logit_max = s.bound;
    struct cu_linear a = {};
    a.dst = {out.p, ldd, CU_F32, n_out};
    a.src = {dx.p, lds, sizeof(T) == 4 ? CU_F32 : CU_BF16, n_in};
    a.w = &w.w;
    a.bias = s.bias ? db.p : nullptr;
    a.rows = CU_ROWS_LOGIT;
    a.ws = space.mem.p;
    a.ws_bytes = space.mem.n;
    CT_CHECK(cu_linear_ws(&w.w, s.bound) <= space.mem.n);
    CT_RUN(cu_linear(&a, &st, nullptr));
    auto ws = space.mem.get();
    for (size_t i = 0; i < std::min(ws.size(), CU_GEMM_HEAD_BYTES); i++)
        if (ws[i]) {
            ct_fail("counter %zu was not left zero", i / 4);
            break;
        }
    auto got = out.get();
    std::vector<float> rows;
    for (int i = 0; i < s.bound; i++)
        for (int o = 0; o < ldd; o++) {
            const float v = got[(size_t)(i * ldd + o)];
            if (i < s.n && o < n_out)
                rows.push_back(v);
            else if (v == v) {
                ct_fail("row %d, column %d is not of the product and was written", i, o);
                return rows;
            }
        }
    return rows;
}

static std::vector<double> reference(const Weight &w, const std::vector<float> &x, int n,
                                     const std::vector<float> *bias)
{
    const size_t n_in = (size_t)w.d.n_in, n_out = (size_t)w.w.n_out;
    std::vector<double> want;
    for (size_t i = 0; i < (size_t)n; i++)
        for (size_t o = 0; o < n_out; o++) {
            double s = bias ? (double)(*bias)[o] : 0;
            for (size_t k = 0; k < n_in; k++)
                s += (double)x[i * n_in + k] * (double)w.val[o * n_in + k];
            want.push_back(s);
        }
    return want;
}

/* Activations that are bf16 already, so that the bound is the weights' rounding alone. */
static std::vector<float> activations(int n, int n_in)
{
    auto x = ct_random<float>((size_t)n * (size_t)n_in, 5);
    for (float &v : x)
        v = bf16_to_f32(f32_to_bf16(v));
    return x;
}

template <class T> static void check(const Weight &w, Shape s, double nmse, Space &space)
{
    char what[96];
    const int n_in = (int)w.d.n_in;
    auto x = activations(s.n, n_in), bias = ct_random<float>((size_t)w.w.n_out, 6);
    snprintf(what, sizeof what, "%s %dx%dx%d", quant_format_get((uint32_t)w.d.part[0].fmt)->name,
             s.n, (int)w.w.n_out, n_in);
    auto got = product<T>(w, x, s, bias, space);
    ct_near(what, got, reference(w, x, s.n, s.bias ? &bias : nullptr), nmse);
    ct_repeat(what, got);
}

static void
formats_case() /* every format, both tiles; 37 outputs: no whole panel; 512: K is split */
{
    for (const Format &f : formats) {
        Weight w(512, {{f.id, 37}}, 0);
        Space space(cu_linear_ws(&w.w, 20));
        check<__nv_bfloat16>(w, {3, 5, 0, true}, 1e-5, space);
        check<__nv_bfloat16>(w, {20, 20, 8, false}, 1e-5, space);
    }
}

static void f32_case()
{
    for (const Format &f : formats) {
        Weight w(256, {{f.id, 130}}, 1);
        Space space(16);
        check<float>(w, {9, 11, 3, true}, 1e-11, space);
    }
    Weight odd(37, {{QF_F32, 5}, {QF_F16, 3}}, 1);
    Space space(16);
    check<float>(odd, {1, 1, 0, false}, 1e-11, space);
}

static void
ragged_case() /* odd n_in (no 16-byte rows), n_in of one and a half stages, stacked parts */
{
    for (int n_in : {1, 7, 37, 72, 200}) {
        Weight w(n_in, {{QF_F32, 33}}, 0);
        Space space(cu_linear_ws(&w.w, 17));
        check<__nv_bfloat16>(w, {17, 17, 1, true}, 1e-5, space);
    }
    Weight q(96, {{QF_Q4_1, 129}, {QF_Q8_0, 1}, {QF_Q5_0, 40}}, 0);
    Space space(cu_linear_ws(&q.w, 18));
    check<__nv_bfloat16>(q, {1, 4, 0, true}, 1e-5, space);
    check<__nv_bfloat16>(q, {18, 18, 3, true}, 1e-5, space);
}

static void company_case() /* a row alone, among others, under other bounds: the same bits */
{
    for (enum quant_fmt f : {QF_Q4_1, QF_Q6_K, QF_BF16}) {
        Weight w(768, {{f, 40}}, 0);
        const int n_in = 768, n_out = 40, most = 100;
        auto x = activations(most, n_in), bias = ct_random<float>((size_t)n_out, 6);
        Space space(cu_linear_ws(&w.w, 128));
        auto all = product<__nv_bfloat16>(w, x, {most, 128, 0, true}, bias, space);
        for (int n : {1, 3, 16, 17, 64}) {
            for (int bound : {n, n + 30}) {
                auto got = product<__nv_bfloat16>(w, x, {n, bound, 0, true}, bias, space);
                std::vector<float> want(all.begin(), all.begin() + n * n_out);
                ct_same("rows in company", got, want);
            }
        }
        std::vector<float> last(x.end() - n_in, x.end()); /* another place in its tile */
        auto got = product<__nv_bfloat16>(w, last, {1, 1, 0, true}, bias, space);
        ct_same("the last row alone", got, std::vector<float>(all.end() - n_out, all.end()));
    }
}

static void
space_case() /* one work space for all shapes: what one leaves must not disturb the next */
{
    Weight narrow(512, {{QF_Q8_0, 128}}, 0), wide(512, {{QF_Q4_0, 128 * 66}}, 0);
    Space space(std::max(cu_linear_ws(&narrow.w, 16), cu_linear_ws(&wide.w, 4)));
    CT_CHECK(cu_splits(512, 128) > 1 && cu_splits(512, 128 * 66) > 1);
    check<__nv_bfloat16>(narrow, {16, 16, 0, false}, 1e-5, space);
    check<__nv_bfloat16>(wide, {1, 1, 0, false}, 1e-5, space);
    check<__nv_bfloat16>(narrow, {1, 1, 0, false}, 1e-5, space);
}

/* The products of a small model's layer (576 wide) for one row, and a piece of its vocabulary. --bench tells the time. */
static void layer_case()
{
    struct Piece {
        enum quant_fmt f;
        int n_in, n_out;
    };
    for (Piece p : {Piece{QF_Q4_1, 576, 960},
                    {QF_Q4_1, 576, 576},
                    {QF_Q4_1, 576, 3072},
                    {QF_Q4_1, 1536, 576},
                    {QF_Q8_0, 576, 2048}}) {
        Weight w(p.n_in, {{p.f, p.n_out}}, 0);
        Space space(cu_linear_ws(&w.w, 1));
        check<__nv_bfloat16>(w, {1, 1, 0, false}, 1e-5, space);
        if (!ct.bench)
            continue;
        Dev<__nv_bfloat16> x(ct_random<__nv_bfloat16>((size_t)p.n_in, 1));
        Dev<float> out((size_t)p.n_out);
        cu_count count = {};
        count.n_row = 1;
        Dev<cu_count> dc(std::vector<cu_count>{count});
        cu_step st = {};
        st.count = dc.p, st.row_max = 1;
        struct cu_linear a = {};
        a.dst = {out.p, p.n_out, CU_F32, p.n_out};
        a.src = {x.p, p.n_in, CU_BF16, p.n_in};
        a.w = &w.w, a.ws = space.mem.p, a.ws_bytes = space.mem.n;
        double best = 1e9;
        for (int i = 0; i < 5; i++) {
            auto t = std::chrono::steady_clock::now();
            CT_RUN(cu_linear(&a, &st, nullptr));
            best = std::min(
                best, std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count());
        }
        printf("  %s %d x %d: %.0f us, %.3f GB/s of weights\n",
               quant_format_get((uint32_t)p.f)->name, p.n_out, p.n_in, best * 1e6,
               (double)w.mem->n / best / 1e9);
    }
}

static void pack_case() /* no memory at any place, sizes that cannot be */
{
    Part p(QF_Q4_K, 3, 256, 9);
    weight_desc d = {};
    cu_weight w;
    err e = {};
    size_t bytes = 0;
    d.name = "blk.0.w";
    d.n_in = 256, d.n_part = 1;
    d.part[0] = {p.fmt, p.raw.data(), 3};
    CT_CHECK(cu_weight_plan(&w, &d, 0, &bytes, &e) == 0 && bytes % 256 == 0);
    std::vector<unsigned char> host(bytes), again(bytes, 0x5A);
    CT_CHECK(cu_weight_pack(&w, &d, host.data()) == 0);
    long fails = 0;
    for (int rc = ERR_NOMEM; rc == ERR_NOMEM; fails += rc != 0) {
        mem_fail_after(fails + 1, false);
        rc = cu_weight_pack(&w, &d, again.data());
        mem_fail_after(0, false);
        CT_CHECK(rc == 0 || rc == ERR_NOMEM);
    }
    CT_CHECK(fails == 4); /* each of the row's arrays */
    ct_same("packed after failures", host, again);
    d.part[0].n_out = INT64_MAX / 2;
    CT_CHECK(cu_weight_plan(&w, &d, 1, &bytes, &e) == ERR_NOMEM && strstr(e.text, "blk.0.w"));
}

static void bad_case() /* broken preconditions are told, not run */
{
    Weight w(512, {{QF_Q4_1, 37}}, 0);
    Space space(cu_linear_ws(&w.w, 4));
    Dev<__nv_bfloat16> x(4 * 512);
    Dev<float> out(4 * 37);
    cu_count count = {};
    Dev<cu_count> dc(std::vector<cu_count>{count});
    cu_step st = {};
    st.count = dc.p;
    st.row_max = 4;
    struct cu_linear ok = {};
    ok.dst = {out.p, 37, CU_F32, 37};
    ok.src = {x.p, 512, CU_BF16, 512};
    ok.w = &w.w;
    ok.rows = CU_ROWS_ALL;
    ok.ws = space.mem.p;
    ok.ws_bytes = space.mem.n;
    CT_RUN(cu_linear(&ok, &st, nullptr)); /* no rows: nothing is written */
    for (float v : out.get())
        CT_CHECK(v != v);
    struct cu_linear a = ok;
    a.ws_bytes = cu_linear_ws(&w.w, 4) - 1;
    CT_CHECK(cu_linear(&a, &st, nullptr) == CU_BAD);
    a = ok, a.ws = nullptr;
    CT_CHECK(cu_linear(&a, &st, nullptr) == CU_BAD);
    a = ok, a.src.dt = CU_F32;
    CT_CHECK(cu_linear(&a, &st, nullptr) == CU_BAD);
    a = ok, a.dst.dt = CU_BF16;
    CT_CHECK(cu_linear(&a, &st, nullptr) == CU_BAD);
    a = ok, a.src.cols = 511;
    CT_CHECK(cu_linear(&a, &st, nullptr) == CU_BAD);
    a = ok, a.dst.ld = 36;
    CT_CHECK(cu_linear(&a, &st, nullptr) == CU_BAD);
}

static void
embed_case() /* every format by row, equal to the decoder but for the scales' rounding to half */
{
    for (const Format &f : formats)
        for (int f32 = 0; f32 < 2; f32++) {
            const int n_in = 512, n_out = 70, n = 5, bound = 6;
            Weight w(n_in, {{f.id, n_out}}, f32);
            const std::vector<int32_t> tok = {0, 69, -2, 33, 8}, sampled = {5, 64};
            Dev<int32_t> dt(tok), ds(sampled);
            Dev<float> out((size_t)bound * (size_t)(n_in + 1));
            cu_count count = {};
            count.n_row = n;
            Dev<cu_count> dc(std::vector<cu_count>{count});
            cu_step st = {};
            st.count = dc.p, st.tok = dt.p, st.sampled = ds.p, st.row_max = bound;
            struct cu_embed a = {{out.p, n_in + 1, CU_F32, n_in}, &w.w, nullptr, 1.5f};
            CT_RUN(cu_embed(&a, &st, nullptr));
            auto got = out.get();
            std::vector<float> rows;
            std::vector<double> want;
            for (int i = 0; i < n; i++) {
                const size_t row =
                    (size_t)(tok[(size_t)i] < 0 ? sampled[(size_t)(-1 - tok[(size_t)i])]
                                                : tok[(size_t)i]);
                for (int k = 0; k < n_in; k++) {
                    rows.push_back(got[(size_t)(i * (n_in + 1) + k)]);
                    want.push_back(1.5 * (double)w.val[row * n_in + (size_t)k]);
                }
                CT_CHECK(got[(size_t)(i * (n_in + 1) + n_in)] !=
                         got[(size_t)(i * (n_in + 1) + n_in)]);
            }
            char what[64];
            snprintf(what, sizeof what, "%s, f32 %d", quant_format_get((uint32_t)f.id)->name, f32);
            ct_near(what, rows, want, f32 ? 1e-14 : 1e-5);
            ct_repeat(what, rows);
        }
}

CT_MAIN({"formats", formats_case}, {"f32", f32_case}, {"ragged", ragged_case},
        {"company", company_case}, {"space", space_case}, {"layer", layer_case},
        {"pack", pack_case}, {"bad", bad_case}, {"embed", embed_case})
