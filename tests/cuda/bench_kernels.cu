/* Speed of the kernels on the device, beside what the device reaches in a plain copy and in plain matrix instructions.
 *
 *     bench_kernels [--tiny] [--commit ID]
 *
 * One JSON line a shape: time, bytes and operations a second, the fraction of the measured ceiling that bounds the kernel,
 * and the fraction that it is meant to reach. Inputs rotate over more memory than the L2 cache holds. --tiny: small shapes,
 * each once, for the emulation, whose times say nothing. Exit status 1 when a kernel fails. tests/device.sh runs it. */
extern "C" {
#include "engine/base/err.h"
#include "engine/ops.h"
}
#include "cuda/image.h"
#include "cuda/ptx.cuh"
#include "cuda/weight.h"
#include "tests/cuda/cuda_test.h"

static bool tiny;
static const char *commit = "unknown";
static std::string gpu;
static double copy_gbs, peak_tflops; /* the ceilings, measured first */
static int cc90;
static int errors;

static int pick(int full, int small)
{
    return tiny ? small : full;
}

enum bound { BY_BYTES, BY_FLOPS, BY_US };

/* Prints one shape. `target` is a fraction of the ceiling, for BY_US microseconds; 0 = none. */
template <class F>
static void measure(const std::string &kernel, const std::string &shape, double bytes, double flops,
                    enum bound by, double target, F fn)
{
    int rc = fn(0);
    cudaError_t e = cudaDeviceSynchronize();
    if (rc || e != cudaSuccess) {
        printf("{\"kernel\": \"%s\", \"shape\": \"%s\", \"error\": \"%d, %s\"}\n", kernel.c_str(),
               shape.c_str(), rc, cudaGetErrorString(e));
        errors++;
        return;
    }
    const double us = ct_time([&](int i) { rc |= fn(i); }), gbs = bytes / us * 1e-3,
                 tflops = flops / us * 1e-6;
    errors += rc != 0;
    if (kernel == "copy")
        copy_gbs = gbs;
    if (kernel == "mma.sync peak")
        peak_tflops = tflops;
    const double reached = by == BY_BYTES   ? gbs / copy_gbs
                           : by == BY_FLOPS ? tflops / peak_tflops
                                            : us;
    printf("{\"kernel\": \"%s\", \"shape\": \"%s\", \"us\": %.2f, \"gb_s\": %.1f, \"tflop_s\": "
           "%.2f, \"of\": "
           "\"%s\", \"reached\": %.3f, \"target\": %.2f, \"gpu\": \"%s\", \"commit\": \"%s\"}\n",
           kernel.c_str(), shape.c_str(), us, gbs, tflops,
           by == BY_BYTES   ? "copy"
           : by == BY_FLOPS ? "mma.sync peak"
                            : "microseconds",
           reached, target, gpu.c_str(), commit);
    fflush(stdout);
}

/* Device memory that holds a random block of up to 1 MiB again and again. */
template <class T> struct Mem {
    T *p = nullptr;
    size_t n;
    Mem(size_t count, std::vector<T> block) : n(count)
    {
        CT_CUDA(cudaMalloc((void **)&p, n * sizeof(T)));
        for (size_t at = 0; at < n; at += block.size())
            CT_CUDA(cudaMemcpy(p + at, block.data(), std::min(block.size(), n - at) * sizeof(T),
                               cudaMemcpyHostToDevice));
    }
    explicit Mem(size_t count) : Mem(count, random_block())
    {
    }
    Mem(const Mem &) = delete;
    Mem &operator=(const Mem &) = delete;
    ~Mem()
    {
        cudaFree(p);
    }
    static std::vector<T> random_block()
    {
        std::vector<T> v;
        for (float x : ct_random<float>(tiny ? 4099 : 262139, 5))
            v.push_back(ct_from<T>(x));
        return v;
    }
};
/* n equal values, or n zero bytes for counters. */
template <class T> static std::vector<T> same(size_t n, T x)
{
    return std::vector<T>(n, x);
}

struct Counts { /* a step whose every count is given */
    Mem<cu_count> mem;
    cu_step st = {};
    Counts(int rows, int dec, int tiles, int max_pos)
        : mem(1, {{rows, dec ? dec : 1, rows, dec, tiles, max_pos, {0, 0}}})
    {
        st.count = mem.p;
        st.row_max = st.logit_max = rows;
        st.dec_max = dec, st.tile_max = tiles;
        st.split_max = max_pos / CU_SPLIT_TOKENS + 1;
    }
};

/* ---- ceilings ---- */

static __global__ void mma_kernel(float *out, int n)
{
    float d[8][4] = {};
    const uint32_t a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {threadIdx.x, 5};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 8; k++)
            ptx::mma_bf16(d[k], a, b);
    float sum = 0;
    for (int k = 0; k < 8; k++)
        sum += d[k][0] + d[k][1] + d[k][2] + d[k][3];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

static void ceilings()
{
    const size_t n = (size_t)pick(512 << 20, 1 << 20);
    Mem<float> from(n / 4), to(n / 4);
    measure("copy", std::to_string(n >> 20) + " MiB", 2.0 * (double)n, 0, BY_BYTES, 0, [&](int) {
        return (int)cudaMemcpyAsync(to.p, from.p, n, cudaMemcpyDeviceToDevice, nullptr);
    });
    const int blocks = pick(132 * 8, 1), loops = pick(2000, 2), threads = 256;
    launch_cfg c = {};
    c.grid = dim3((unsigned)blocks), c.block = dim3(threads);
    measure("mma.sync peak", "bf16", 0,
            (double)blocks * (threads / 32) * loops * 8 * 2 * 16 * 8 * 16, BY_FLOPS, 0,
            [&](int) { return (int)launch(c, mma_kernel, to.p, loops); });
}

/* ---- rows ---- */

static void rows_bench(int rows)
{
    const int d = pick(4096, 256), ff = pick(14336, 512), hd = pick(128, 64), h = pick(32, 4),
              kvh = pick(8, 2), cols = (h + 2 * kvh) * hd, rot = rows >= 1024 ? 1 : 8;
    const size_t r = (size_t)rows;
    const std::string shape = std::to_string(rows) + " rows";
    Mem<float> x(r * (size_t)d * (size_t)rot), w((size_t)d), gu(r * 2 * (size_t)ff),
        qkv(r * (size_t)cols);
    Mem<__nv_bfloat16> o(r * (size_t)std::max(d, ff));
    Counts c(rows, 0, 0, rows);
    measure("rmsnorm", shape, (double)r * d * 6, 0, BY_BYTES, rows < 1024 ? 0 : 0.85, [&](int i) {
        struct cu_rmsnorm a = {};
        a.x = {x.p + (size_t)(i % rot) * r * (size_t)d, d, CU_F32, d};
        a.dst = {o.p, d, CU_BF16, d};
        a.w = w.p, a.eps = 1e-5f, a.rows = CU_ROWS_ALL;
        return cu_rmsnorm(&a, &c.st, nullptr);
    });
    measure("act_mul", shape, (double)r * ff * 10, 0, BY_BYTES, rows < 1024 ? 0 : 0.85, [&](int) {
        struct cu_act_mul a = {};
        a.dst = {o.p, ff, CU_BF16, ff};
        a.gate_up = {gu.p, 2 * ff, CU_F32, 2 * ff};
        a.act = CU_ACT_SILU, a.rows = CU_ROWS_ALL;
        return cu_act_mul(&a, &c.st, nullptr);
    });
    const int blocks = rows / 16 + 2;
    std::vector<int32_t> pos, table;
    for (int i = 0; i < rows; i++)
        pos.push_back(i);
    for (int i = 0; i + 1 < blocks; i++)
        table.push_back(i + 1);
    Mem<int32_t> dpos(r, pos), seq(r, same<int32_t>(r, 0)), dtable(table.size(), table);
    Mem<float> freq((size_t)hd / 2, same(64, 1e-3f));
    Mem<__nv_bfloat16> pool((size_t)blocks * 32 * (size_t)(kvh * hd));
    const cu_kv kv = {pool.p, 1, kvh, hd, blocks, CU_BF16, 0};
    c.st.pos = dpos.p, c.st.row_seq = seq.p, c.st.block_table = dtable.p;
    c.st.block_stride = blocks - 1;
    const double bytes = (double)r * hd * (h * 8 + kvh * (8 + 4));
    measure("rope_kv", shape, bytes, 0, BY_BYTES, rows < 1024 ? 0 : 0.85, [&](int) {
        struct cu_rope_kv a = {};
        a.qkv = {qkv.p, cols, CU_F32, cols};
        a.n_head = h, a.n_rot = hd, a.style = CU_ROPE_NEOX, a.inv_freq = freq.p;
        a.attn_factor = 1, a.kv = &kv;
        return cu_rope_kv(&a, &c.st, nullptr);
    });
}

/* ---- attention: 32 heads over 8 of KV, head size 128, bf16 ---- */

/* One step of n_seq sequences of `len` tokens: their last rows, or (`prefill`) all rows of one sequence. */
static void attn_bench(int n_seq, int len, bool prefill)
{
    const int hd = pick(128, 64), h = pick(32, 4), kvh = pick(8, 2), cols = (h + 2 * kvh) * hd,
              rows = prefill ? len : n_seq, stride = (len + 15) / 16, blocks = n_seq * stride + 1;
    std::vector<int32_t> pos, seq, table, dec;
    std::vector<cu_tile> tile;
    for (int i = 0; i < rows; i++) {
        pos.push_back(prefill ? i : len - 1);
        seq.push_back(prefill ? 0 : i);
        dec.push_back(i);
    }
    for (int i = 0; prefill && i < rows; i += CU_TILE_ROWS)
        tile.push_back({0, i, std::min(CU_TILE_ROWS, rows - i)});
    for (int i = 1; i < blocks; i++) /* scattered, as a pool in use */
        table.push_back(1 + (int)((int64_t)i * 7919 % (blocks - 1)));
    const int n_dec = prefill ? 0 : rows, n_tile = (int)tile.size();
    if (tile.empty())
        tile.push_back({0, 0, 1});
    Counts c(rows, n_dec, n_tile, len - 1);
    Mem<int32_t> dpos(pos.size(), pos), dseq(seq.size(), seq), dtable(table.size(), table),
        ddec(dec.size(), dec);
    Mem<cu_tile> dtile(tile.size(), tile);
    Mem<float> qkv((size_t)rows * (size_t)cols);
    Mem<__nv_bfloat16> pool((size_t)blocks * 32 * (size_t)(kvh * hd)),
        out((size_t)rows * (size_t)(h * hd));
    const cu_kv kv = {pool.p, 1, kvh, hd, blocks, CU_BF16, 0};
    c.st.pos = dpos.p, c.st.row_seq = dseq.p, c.st.block_table = dtable.p, c.st.dec = ddec.p;
    c.st.tile = dtile.p, c.st.block_stride = stride;
    const size_t need = cu_attn_ws(h, hd, n_dec, c.st.split_max);
    const int n_flag = cu_attn_flags(h, n_dec);
    Mem<float> ws(need / 4 + 1);
    Mem<int32_t> flags((size_t)n_flag + 1, same<int32_t>(1024, 0));
    for (int exact = prefill ? 0 : 1; exact < 2; exact++) {
        const double kv_bytes = (double)n_seq * len * kvh * hd * 4,
                     flops = 4.0 * h * hd * (prefill ? (double)len * len / 2 : (double)n_seq * len);
        measure(prefill ? "prefill attention" : "decode attention",
                std::to_string(n_seq) + " x " + std::to_string(len) + ", head " +
                    std::to_string(hd) + (prefill && exact ? ", exact" : ""),
                kv_bytes, flops, prefill ? BY_FLOPS : BY_BYTES, prefill ? 0.40 : 0.75, [&](int) {
                    struct cu_attn a = {};
                    a.dst = {out.p, h * hd, CU_BF16, h * hd};
                    a.qkv = {qkv.p, cols, CU_F32, cols};
                    a.n_head = h, a.scale = 0.088f, a.kv = &kv, a.ws = ws.p, a.flags = flags.p;
                    a.ws_bytes = need, a.n_flag = n_flag, a.exact = exact;
                    return cu_attn(&a, &c.st, nullptr);
                });
    }
}

/* ---- products at the shapes of an 8B Llama ---- */

/* Raw rows of random but finite weights: Q4_K superblocks have modest scales, bf16 values lie within 1 of 0. */
static std::vector<unsigned char> raw_weights(enum quant_fmt fmt, size_t n)
{
    std::vector<unsigned char> v(fmt == QF_Q4_K ? n / 256 * 144 : n * 2);
    uint32_t x = 12345;
    for (unsigned char &b : v)
        b = (unsigned char)((x = x * 1664525 + 1013904223) >> 24);
    if (fmt == QF_Q4_K)
        for (size_t i = 0; i < v.size(); i += 144)
            v[i + 1] = v[i + 3] = 0x14; /* halves near 1e-3 */
    else
        for (size_t i = 1; i < v.size(); i += 2)
            v[i] = (unsigned char)(0x3C | (v[i] & 0x80));
    return v;
}

static void gemm_bench(enum quant_fmt fmt, int n_in, int n_out)
{
    const auto raw = raw_weights(fmt, (size_t)n_in * (size_t)n_out);
    weight_desc d = {};
    cu_weight plan;
    err e = {};
    size_t bytes = 0;
    d.name = "w", d.n_in = n_in, d.n_part = 1, d.part[0] = {fmt, raw.data(), n_out};
    if (cu_weight_plan(&plan, &d, 0, &bytes, &e)) {
        printf("{\"kernel\": \"linear\", \"error\": \"%s\"}\n", e.text);
        errors++;
        return;
    }
    std::vector<unsigned char> host(bytes);
    errors += cu_weight_pack(&plan, &d, host.data()) != 0;
    const int copies = tiny ? 1 : (int)(((size_t)256 << 20) / bytes + 1);
    Mem<unsigned char> mem(bytes * (size_t)copies, host); /* bytes: a multiple of 256 */
    std::vector<cu_weight> w((size_t)copies, plan);
    for (int i = 0; i < copies; i++)
        cu_weight_bind(&w[(size_t)i], mem.p + bytes * (size_t)i);
    for (int m : tiny ? std::vector<int>{1, 16, 70} : std::vector<int>{1, 16, 64, 512, 4096}) {
        Mem<__nv_bfloat16> x((size_t)m * (size_t)n_in);
        Mem<float> out((size_t)m * (size_t)n_out);
        const size_t need = std::max<size_t>(cu_linear_ws(&plan, m), 16);
        Mem<unsigned char> ws(need, same<unsigned char>(1 << 20, 0));
        Counts c(m, 0, 0, 0);
        const double gemm_target = fmt == QF_BF16 ? 0.45 : 0.40;
        measure(fmt == QF_BF16 ? "linear bf16" : "linear q4_k",
                "M=" + std::to_string(m) + " " + std::to_string(n_in) + " to " +
                    std::to_string(n_out),
                (double)bytes, 2.0 * m * n_in * n_out, m <= 64 ? BY_BYTES : BY_FLOPS,
                m <= 16   ? 0.75
                : m == 64 ? 0
                          : gemm_target,
                [&](int i) {
                    struct cu_linear a = {};
                    a.dst = {out.p, n_out, CU_F32, n_out};
                    a.src = {x.p, n_in, CU_BF16, n_in};
                    a.w = &w[(size_t)(i % copies)];
                    a.rows = CU_ROWS_ALL, a.ws = ws.p, a.ws_bytes = need, a.wgmma = cc90;
                    return cu_linear(&a, &c.st, nullptr);
                });
    }
}

/* ---- images: what a step of Stable Diffusion (64 x 64 latents of 320 channels, heads of 40), a DiT (4096 rows of 3072)
 * and an autoencoder (512 x 512 of 128 channels) is made of ---- */

struct Maps { /* one map */
    Mem<int32_t> mem;
    cu_layout y = {};
    Maps(int h, int w)
        : mem(16, {0, h * w, 0, (h * w + CU_CHUNK_ROWS - 1) / CU_CHUNK_ROWS, h, w, 0, 0, 0, 0, 0, 0,
                   0, 0, 0, 0})
    {
        y.n_seg = 1, y.n_row = (int64_t)h * w,
        y.n_chunk = (h * w + CU_CHUNK_ROWS - 1) / CU_CHUNK_ROWS;
        y.start = mem.p, y.chunk = mem.p + 2, y.h = mem.p + 4, y.w = mem.p + 5;
    }
};

static void maps_bench(int side, int c)
{
    Maps m(side, side);
    const int64_t rows = m.y.n_row;
    const size_t n = (size_t)(rows * c);
    const std::string shape =
        std::to_string(side) + " x " + std::to_string(side) + " x " + std::to_string(c);
    Mem<float> x(n), w((size_t)c), out(n);
    Mem<__nv_bfloat16> o(n);
    Mem<double> ws(cu_group_norm_ws(&m.y, c) / 8 + 1, same(1024, 0.0));
    measure("group norm and silu", shape, (double)n * 10, 0, BY_BYTES, 0.75, [&](int) {
        struct cu_group_norm a = {};
        a.dst = {o.p, c, CU_BF16, c}, a.x = {x.p, c, CU_F32, c};
        a.w = a.b = w.p, a.groups = 32, a.act = CU_IM_SILU, a.eps = 1e-5f, a.y = &m.y, a.ws = ws.p;
        return cu_group_norm(&a, nullptr);
    });
    const int64_t chunk = std::min<int64_t>(rows, (32 << 20) / (18 * c));
    Mem<__nv_bfloat16> col((size_t)(chunk * 9 * c));
    struct cu_im2col v = {};
    v.dst = {col.p, 9 * c, CU_BF16, 9 * c}, v.src = {o.p, c, CU_BF16, c};
    v.in = v.out = &m.y, v.n = chunk, v.k = 3, v.stride = v.pad = 1;
    measure("windows 3x3", shape, (double)chunk * 20 * c, 0, BY_BYTES, 0.75,
            [&](int) { return cu_im2col(&v, nullptr); });
    const auto raw = raw_weights(QF_BF16, (size_t)(9 * c) * (size_t)c);
    weight_desc d = {};
    cu_weight plan;
    err e = {};
    size_t bytes = 0;
    d.name = "w", d.n_in = 9 * c, d.n_part = 1, d.part[0] = {QF_BF16, raw.data(), c};
    if (cu_weight_plan(&plan, &d, 0, &bytes, &e)) {
        errors++;
        return;
    }
    std::vector<unsigned char> host(bytes);
    errors += cu_weight_pack(&plan, &d, host.data()) != 0;
    Mem<unsigned char> mem(bytes, host);
    cu_weight_bind(&plan, mem.p);
    Counts count((int)chunk, 0, 0, 0);
    measure("convolution 3x3", shape, 0, 18.0 * (double)rows * c * c, BY_FLOPS, 0.40, [&](int) {
        int rc = 0;
        for (int64_t from = 0; from + chunk <= rows; from += chunk) {
            v.from = from;
            struct cu_linear a = {};
            a.dst = a.after.add = {out.p + from * c, c, CU_F32, c};
            a.src = v.dst, a.w = &plan, a.bias = w.p, a.steady = 1, a.wgmma = cc90;
            rc |= cu_im2col(&v, nullptr) | cu_linear(&a, &count.st, nullptr);
        }
        return rc;
    });
}

static void dit_bench(int rows, int d)
{
    Maps m(rows, 1);
    const size_t n = (size_t)rows * (size_t)d;
    const std::string shape = std::to_string(rows) + " x " + std::to_string(d);
    Mem<float> x(n), y(n), w((size_t)d);
    Mem<__nv_bfloat16> o(n);
    const cu_mat mx = {x.p, d, CU_F32, d}, my = {y.p, d, CU_F32, d}, mw = {w.p, d, CU_F32, d},
                 mo = {o.p, d, CU_BF16, d};
    measure("layer norm, adaptive", shape, (double)n * 6, 0, BY_BYTES, 0.75, [&](int) {
        struct cu_layer_norm a = {};
        a.dst = mo, a.x = mx, a.n = rows, a.scale = a.shift = mw, a.eps = 1e-6f, a.y = &m.y;
        return cu_layer_norm(&a, nullptr);
    });
    measure("gated sum", shape, (double)n * 12, 0, BY_BYTES, 0.85, [&](int) {
        struct cu_gate_add a = {};
        a.x = mx, a.y = my, a.gate = mw, a.n = rows, a.factor = 1, a.l = &m.y;
        return cu_gate_add(&a, nullptr);
    });
    measure("activation", shape, (double)n * 6, 0, BY_BYTES, 0.85, [&](int) {
        struct cu_act a = {};
        a.dst = mo, a.x = mx, a.n = rows, a.act = CU_IM_GELU_TANH;
        return cu_act(&a, nullptr);
    });
    const int hd = 64;
    Mem<float> table((size_t)rows * (size_t)hd / 2);
    measure("rotation", shape, (double)n * 8, 0, BY_BYTES, 0.75, [&](int) {
        struct cu_rotate a = {};
        a.x = mx, a.n = rows, a.n_head = d / hd, a.head_dim = hd, a.style = CU_ROPE_NORM;
        a.cos = a.sin = {table.p, hd / 2, CU_F32, hd / 2};
        a.norm = w.p, a.eps = 1e-6f;
        return cu_rotate(&a, nullptr);
    });
}

/* One segment to itself: K and V packed, then attention without a mask. */
static void segment_bench(int rows, int heads, int hd)
{
    Maps m(rows, 1);
    const int d = heads * hd, wide = cc90 ? (hd + 63) / 64 * 64 : (hd + 15) / 16 * 16,
              blocks = (rows + CU_BLOCK_TOKENS - 1) / CU_BLOCK_TOKENS + 1;
    std::vector<int32_t> table, first{1};
    std::vector<cu_tile> tile;
    for (int i = 1; i < blocks; i++)
        table.push_back(i);
    for (int i = 0; i < rows; i += CU_TILE_ROWS)
        tile.push_back({0, i, std::min(CU_TILE_ROWS, rows - i)});
    Mem<int32_t> pos((size_t)rows, same<int32_t>((size_t)rows, rows - 1)),
        seq((size_t)rows, same<int32_t>((size_t)rows, 0)), dtable(table.size(), table),
        block(1, first);
    Mem<cu_tile> dtile(tile.size(), tile);
    Counts c(rows, 0, (int)tile.size(), rows - 1);
    c.st.pos = pos.p, c.st.row_seq = seq.p, c.st.block_table = dtable.p, c.st.tile = dtile.p;
    c.st.block_stride = blocks - 1;
    Mem<float> qkv((size_t)rows * 3 * (size_t)d), q((size_t)rows * (size_t)(heads * wide));
    Mem<__nv_bfloat16> pool((size_t)blocks * 32 * (size_t)(heads * wide)),
        out((size_t)rows * (size_t)(heads * wide));
    const cu_kv kv = {pool.p, 1, heads, wide, blocks, CU_BF16, 0};
    const std::string shape =
        std::to_string(rows) + " rows, " + std::to_string(heads) + " x " + std::to_string(hd);
    measure("packing of K and V", shape, (double)rows * d * 12, 0, BY_BYTES, 0.75, [&](int) {
        struct cu_pack_kv a = {};
        a.k = {qkv.p + d, 3 * d, CU_F32, d}, a.v = {qkv.p + 2 * d, 3 * d, CU_F32, d};
        a.head_dim = hd, a.kv = &kv, a.l = &m.y, a.block = block.p;
        return cu_pack_kv(&a, nullptr);
    });
    measure("attention of a segment", shape, 0, 4.0 * rows * rows * d, BY_FLOPS, 0.40, [&](int) {
        struct cu_attn a = {};
        a.dst = {out.p, heads * wide, CU_BF16, heads * wide};
        a.qkv = {q.p, heads * wide, CU_F32, 3 * heads * wide};
        a.n_head = heads, a.scale = 0.1f, a.kv = &kv, a.wgmma = cc90;
        return cu_attn(&a, &c.st, nullptr);
    });
}

static void images_bench()
{
    maps_bench(pick(64, 8), pick(320, 32));
    maps_bench(pick(512, 8), pick(128, 64));
    dit_bench(pick(4096, 20), pick(3072, 128));
    segment_bench(pick(4096, 70), pick(8, 2), pick(40, 40));
    segment_bench(pick(4608, 70), pick(24, 1), pick(128, 64));
}

static void sample_bench(int n, int vocab, bool simple)
{
    Mem<float> x((size_t)n * (size_t)vocab);
    cu_sample_row r = {};
    r.temperature = r.top_p = r.repetition_penalty = 1, r.uniform = 0.5;
    r.mask = r.target = r.n_top = -1;
    if (!simple)
        r.top_k = 40, r.top_p = 0.9f;
    Mem<cu_sample_row> rows((size_t)n, same((size_t)n, r));
    Mem<int32_t> ints(1, {0}), tok((size_t)n, same<int32_t>((size_t)n, 0));
    Mem<float> bias(1, {0});
    Mem<cu_sample_out> out((size_t)n, same((size_t)n, cu_sample_out()));
    const size_t need = cu_sample_ws(n, vocab);
    Mem<unsigned char> ws(need, same<unsigned char>(1 << 20, 0));
    Counts c(n, n, 0, 0);
    measure(simple ? "sample plain" : "sample top-k top-p",
            std::to_string(n) + " x " + std::to_string(vocab), (double)n * vocab * 4, 0, BY_US, 50,
            [&](int) {
                struct cu_sample a = {};
                a.logits = {x.p, vocab, CU_F32, vocab};
                a.rows = rows.p, a.ints = ints.p, a.bias_id = ints.p, a.bias_val = bias.p;
                a.out = out.p, a.sampled = tok.p, a.ws = ws.p, a.ws_bytes = need;
                a.simple = simple;
                return cu_sample(&a, &c.st, nullptr);
            });
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--tiny"))
            tiny = true;
        else if (!strcmp(argv[i], "--commit") && i + 1 < argc)
            commit = argv[++i];
    cudaDeviceProp p;
    CT_CUDA(cudaGetDeviceProperties(&p, 0));
    gpu = p.name;
    cc90 = p.major == 9 && p.minor == 0;
    ceilings();
    for (int rows : tiny ? std::vector<int>{3} : std::vector<int>{1, 64, 8192})
        rows_bench(rows);
    attn_bench(pick(64, 2), pick(1024, 40), false);
    attn_bench(pick(16, 1), pick(8192, 300), false);
    attn_bench(1, pick(4096, 130), true);
    for (enum quant_fmt fmt : {QF_Q4_K, QF_BF16})
        for (auto s : tiny ? std::vector<std::pair<int, int>>{{256, 96}}
                           : std::vector<std::pair<int, int>>{
                                 {4096, 6144}, {4096, 4096}, {4096, 28672}, {14336, 4096}})
            gemm_bench(fmt, s.first, s.second);
    images_bench();
    for (bool simple : {true, false})
        sample_bench(pick(64, 3), pick(128256, 1000), simple);
    return errors != 0;
}
