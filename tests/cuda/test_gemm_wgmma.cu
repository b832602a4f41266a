/* cu_gemm_wgmma: every packed format on ragged shapes against a double reference of operands rounded to bf16; the choice
 * of kernel; equal bits whatever the other rows. */
#include "cuda/gemm.h"

#include "tests/cuda/cuda_test.h"

extern "C" {
#include "engine/base/err.h"
#include "engine/ops.h"
#include "engine/quant/quant.h"
}

static float round_bf16(float x)
{
    return __bfloat162float(__float2bfloat16(x));
}

/* Random numbers in a format: what its decoder makes of them, rounded to bf16, and the packing. */
struct Weight {
    std::vector<float> values;
    struct cu_weight w;
    std::vector<unsigned char> packed;

    Weight(enum quant_fmt fmt, int n_in, int n_out, uint64_t seed)
        : values((size_t)n_in * (size_t)n_out)
    {
        const struct quant_format *f = quant_format_get((uint32_t)fmt);
        size_t row = 0, bytes = 0;
        CT_CHECK(f && f->encode && quant_row_bytes(f, n_in, &row));
        std::vector<unsigned char> raw(row * (size_t)n_out);
        values = ct_random<float>(values.size(), seed);
        for (int r = 0; r < n_out; r++) {
            float *v = values.data() + (size_t)r * (size_t)n_in;
            f->encode(v, raw.data() + (size_t)r * row, n_in);
            f->decode(raw.data() + (size_t)r * row, v, n_in);
        }
        for (float &v : values)
            v = round_bf16(v);
        struct weight_desc d = {};
        struct err e;
        d.name = "w";
        d.n_in = n_in;
        d.n_part = 1;
        d.part[0].fmt = fmt;
        d.part[0].n_out = n_out;
        d.part[0].data = raw.data();
        CT_CHECK(cu_weight_plan(&w, &d, 0, &bytes, &e) == 0);
        packed.resize(bytes);
        CT_CHECK(cu_weight_pack(&w, &d, packed.data()) == 0);
    }
};

/* Runs n rows of x under a launch bound of n_max. */
static std::vector<float> product(Weight &w, const std::vector<__nv_bfloat16> &x, int n, int n_max,
                                  const std::vector<float> &bias)
{
    const int n_in = (int)w.w.n_in, n_out = (int)w.w.n_out, ld = (n_in + 15) / 8 * 8;
    std::vector<__nv_bfloat16> padded((size_t)n_max * (size_t)ld, __float2bfloat16(NAN));
    for (int r = 0; r < n; r++)
        for (int k = 0; k < n_in; k++)
            padded[(size_t)(r * ld + k)] = x[(size_t)(r * n_in + k)];
    Dev<__nv_bfloat16> src(padded);
    Dev<unsigned char> pack(w.packed);
    Dev<float> dst((size_t)n * (size_t)n_out), b(bias);
    struct cu_count count = {};
    count.n_row = n;
    Dev<cu_count> c(std::vector<cu_count>(1, count));
    cu_weight_bind(&w.w, pack.p);
    struct cu_step s = {};
    s.count = c.p;
    s.row_max = n_max;
    struct cu_linear a = {};
    a.dst = {dst.p, n_out, CU_F32, n_out};
    a.src = {src.p, ld, CU_BF16, n_in};
    a.w = &w.w;
    a.bias = b.p;
    CT_RUN(cu_gemm_wgmma(&a, 0, 0, &s, nullptr));
    return dst.get();
}

static bool device_ok()
{
    int cc = 0;
    CT_CUDA(cudaDeviceGetAttribute(&cc, cudaDevAttrComputeCapabilityMajor, 0));
    if (cc != 9)
        printf("  wgmma: not on compute capability %d\n", cc);
    return cc == 9;
}

static void one(enum quant_fmt fmt, int n_in, int n_out, int n)
{
    if (!device_ok())
        return;
    Weight w(fmt, n_in, n_out, 11);
    const auto x = ct_random<__nv_bfloat16>((size_t)n * (size_t)n_in, 12);
    const auto bias = ct_random<float>((size_t)n_out, 13);
    std::vector<double> want((size_t)n * (size_t)n_out);
    for (int r = 0; r < n; r++)
        for (int o = 0; o < n_out; o++) {
            double v = bias[(size_t)o];
            for (int k = 0; k < n_in; k++)
                v += ct_double(x[(size_t)(r * n_in + k)]) * w.values[(size_t)(o * n_in + k)];
            want[(size_t)(r * n_out + o)] = v;
        }
    const auto got = product(w, x, n, n, bias);
    ct_near(quant_format_get((uint32_t)fmt)->name, got, want, 1e-9);
    ct_repeat(quant_format_get((uint32_t)fmt)->name, got);
    /* fewer rows under a larger bound: the same bits */
    const int less = n / 2 + 1;
    auto part = product(w, x, less, n + 130, bias);
    ct_same("rows in other company", part,
            std::vector<float>(got.begin(), got.begin() + (long)less * n_out));
}

static void dense_case()
{
    one(QF_BF16, 200, 72, 137); /* no multiple of anything */
    one(QF_BF16, 8, 130, 3);
}
static void quant_case()
{
    one(QF_Q4_0, 288, 161, 130);
    one(QF_Q4_1, 96, 40, 129);
    one(QF_Q5_0, 64, 33, 20);
    one(QF_Q5_1, 64, 33, 20);
    one(QF_Q8_0, 352, 129, 70);
}

static void choice_case()
{
    struct cu_weight w = {};
    struct cu_linear a = {};
    a.w = &w;
    a.wgmma = 1;
    a.src = {(void *)4096, 64, CU_BF16, 64};
    w.part[0].bits = 4;
    CT_CHECK(cu_gemm_wgmma_takes(&a, 0, 128) && !cu_gemm_wgmma_takes(&a, 0, 127));
    a.src.ld = 65;
    CT_CHECK(!cu_gemm_wgmma_takes(&a, 0, 128));
    CT_CHECK(cu_gemm_wgmma(&a, 0, 0, nullptr, nullptr) == CU_BAD);
    a.src = {(void *)4098, 64, CU_BF16, 64};
    CT_CHECK(!cu_gemm_wgmma_takes(&a, 0, 128));
    a.src.p = (void *)4096;
    w.part[0].bits = 32;
    CT_CHECK(!cu_gemm_wgmma_takes(&a, 0, 128));
    w.part[0].bits = 4;
    a.wgmma = 0;
    CT_CHECK(!cu_gemm_wgmma_takes(&a, 0, 128));
}

CT_MAIN({"dense", dense_case}, {"quantised", quant_case}, {"choice", choice_case})
