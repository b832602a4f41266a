/* What the tests of attention share: sequences in a pool of pages, one step over pieces of them, a double reference. */
#ifndef TESTS_CUDA_ATTN_WORLD_H
#define TESTS_CUDA_ATTN_WORLD_H

#include "cuda/attn.h"

#include "engine/quant/kv8.h"
#include "tests/cuda/cuda_test.h"

struct shape {
    int hd, group, kv_head, dt, window;
    float softcap;
    bool sinks, bf16_out;
};

/* Sequences with all their tokens in the pool; blocks scattered, the pool NaN where nothing lives. */
struct world {
    shape s;
    std::vector<int> len;
    int stride = 0, n_block = 0;
    std::vector<int32_t> table;
    std::vector<float> kv; /* [seq][token][K, V][kv head][hd], rounded to the pool's dtype */
    std::vector<float> q;  /* [seq][token][n_head][hd] */
    std::vector<float> sinks;
    std::vector<unsigned char> pool;
    int n_head() const
    {
        return s.group * s.kv_head;
    }
    int first(int seq) const
    {
        int n = 0;
        for (int i = 0; i < seq; i++)
            n += len[(size_t)i];
        return n;
    }
};

static float rounded(float x, int dt)
{
    return dt == CU_F32   ? x
           : dt == CU_F16 ? __half2float(__float2half(x))
                          : __bfloat162float(__float2bfloat16(x));
}
static void pool_put(world &w, size_t at, float x)
{
    unsigned char *p = w.pool.data();
    const __half h = __float2half(x);
    const __nv_bfloat16 b = __float2bfloat16(x);
    if (w.s.dt == CU_F32)
        memcpy(p + at * 4, &x, 4);
    else
        memcpy(p + at * 2, w.s.dt == CU_F16 ? (const void *)&h : &b, 2);
}

#define LAYERS 2
#define LAYER  1
/* Vector n of the block at byte `at` of the pool; x becomes what its codes mean. */
static void codes_put(world &w, size_t at, size_t n, float *x)
{
    const size_t hd = (size_t)w.s.hd;
    uint8_t *code = &w.pool[at + n * hd];
    const float scale =
        w.s.dt == CU_I8 ? kv8_pack_i8(code, x, w.s.hd) : kv8_pack_f8(code, x, w.s.hd);
    memcpy(&w.pool[at + (size_t)2 * w.s.kv_head * 16 * hd + n * 4], &scale, 4);
    for (size_t d = 0; d < hd; d++)
        x[d] =
            scale * (w.s.dt == CU_I8 ? (float)(int8_t)code[d]
                                     : (float)__half(__nv_cvt_fp8_to_halfraw(code[d], __NV_E4M3)));
}

static world world_new(const shape &s, std::vector<int> len)
{
    world w;
    w.s = s;
    w.len = len;
    Rng r(7);
    int total = 0, n_seq = (int)len.size();
    for (int n : len)
        total += n, w.stride = std::max(w.stride, (n + 15) / 16 + 1);
    w.n_block = 1 + n_seq * w.stride;
    w.table.assign((size_t)(n_seq * w.stride), 0);
    for (int i = 0; i < n_seq * w.stride; i++)
        w.table[(size_t)i] = w.n_block - 1 - i;
    size_t kvw = (size_t)(s.kv_head * s.hd);
    w.kv = ct_random<float>((size_t)total * 2 * kvw, 3);
    w.q = ct_random<float>((size_t)(total * w.n_head() * s.hd), 4, 1.5f);
    for (int i = 0; s.sinks && i < w.n_head(); i++)
        w.sinks.push_back(i == 0 ? -INFINITY : i == 1 ? 9.0f : r.normal());
    size_t block = 2 * 16 * kvw;
    cu_kv kv = {nullptr, LAYERS, s.kv_head, s.hd, w.n_block, s.dt, 0};
    w.pool.assign(LAYERS * (size_t)w.n_block * cu_kv_layer_block_bytes(&kv), 0xFF);
    for (int q = 0, row = 0; q < n_seq; q++)
        for (int t = 0; t < len[(size_t)q]; t++, row++)
            for (int v = 0; v < 2; v++)
                for (int h = 0; h < s.kv_head; h++) {
                    const size_t b =
                        (size_t)LAYER * w.n_block + w.table[(size_t)(q * w.stride + t / 16)];
                    if (cu_is_code(s.dt)) {
                        codes_put(w, b * cu_kv_layer_block_bytes(&kv),
                                  ((size_t)v * s.kv_head + h) * 16 + t % 16,
                                  &w.kv[(((size_t)row * 2 + v) * s.kv_head + h) * s.hd]);
                        continue;
                    }
                    for (int d = 0; d < s.hd; d++) {
                        float &x = w.kv[(((size_t)row * 2 + v) * s.kv_head + h) * s.hd + d];
                        x = rounded(x, s.dt);
                        pool_put(w,
                                 b * block + (((size_t)v * s.kv_head + h) * 16 + t % 16) * s.hd + d,
                                 x);
                    }
                }
    return w;
}

/* One query row by the textbook, double. */
static void truth(const world &w, int seq, int pos, double *out)
{
    const shape &s = w.s;
    const int from = s.window > 0 && pos >= s.window ? pos - s.window + 1 : 0, base = w.first(seq);
    for (int h = 0; h < w.n_head(); h++) {
        const float *q = &w.q[(size_t)((base + pos) * w.n_head() + h) * s.hd];
        double max = w.sinks.empty() ? -INFINITY : w.sinks[(size_t)h], sum = 0, *o = out + h * s.hd;
        std::vector<double> x;
        for (int t = from; t <= pos; t++) {
            const float *k = &w.kv[(size_t)(((base + t) * 2) * s.kv_head + h / s.group) * s.hd];
            double dot = 0;
            for (int d = 0; d < s.hd; d++)
                dot += (double)q[d] * k[d];
            dot /= sqrt((double)s.hd);
            if (s.softcap > 0)
                dot = s.softcap * tanh(dot / s.softcap);
            x.push_back(dot);
            max = std::max(max, dot);
        }
        sum = w.sinks.empty() ? 0 : exp(w.sinks[(size_t)h] - max);
        std::fill(o, o + s.hd, 0.0);
        for (int t = from; t <= pos; t++) {
            const float *v = &w.kv[(size_t)(((base + t) * 2 + 1) * s.kv_head + h / s.group) * s.hd];
            double p = exp(x[(size_t)(t - from)] - max);
            sum += p;
            for (int d = 0; d < s.hd; d++)
                o[d] += p * v[d];
        }
        for (int d = 0; d < s.hd; d++)
            o[d] /= sum;
    }
}

/* Rows [from, from + n) of a sequence in one step. */
struct piece {
    int seq, from, n;
    bool tile = false; /* even one row is a tile, not a decode row */
};

/* Runs one step; out = the rows of the pieces in order, f32 (bf16 widened). `slack` widens every launch bound; wgmma: not exact. */
static std::vector<float> attend(const world &w, const std::vector<piece> &pieces, int slack,
                                 bool wgmma = false)
{
    const shape &s = w.s;
    std::vector<int32_t> pos, seq, dec;
    std::vector<cu_tile> tile;
    std::vector<float> qkv;
    std::vector<int32_t> table = w.table;
    const int cols = (w.n_head() + 2 * s.kv_head) * s.hd, oc = w.n_head() * s.hd;
    int longest = 0, rows = 0;
    for (const piece &p : pieces)
        rows += p.n;
    qkv.assign((size_t)((rows + slack) * cols), NAN); /* only q is read */
    for (size_t i = 0, row = 0; i < pieces.size(); i++) {
        const piece &p = pieces[i];
        const bool tiled = p.n > 1 || p.tile;
        for (int k = 0; tiled && k < p.n; k += CU_TILE_ROWS)
            tile.push_back({p.seq, (int)row + k, std::min(CU_TILE_ROWS, p.n - k)});
        if (!tiled)
            dec.push_back((int)row);
        for (int b = 0; s.window > 0 && b < (p.from - s.window + 1) / 16; b++)
            table[(size_t)(p.seq * w.stride + b)] = 0; /* given back */
        for (int k = 0; k < p.n; k++, row++) {
            pos.push_back(p.from + k);
            seq.push_back(p.seq);
            memcpy(&qkv[row * (size_t)cols],
                   &w.q[(size_t)(w.first(p.seq) + p.from + k) * (size_t)oc], (size_t)oc * 4);
            longest = std::max(longest, p.from + k);
        }
    }
    const size_t n_dec = dec.size(), n_tile = tile.size();
    dec.resize(n_dec + (size_t)slack, 1 << 30);
    tile.resize(n_tile + (size_t)slack, {1 << 30, 1 << 30, 64});
    Dev<cu_count> count(std::vector<cu_count>{
        {rows, (int)w.len.size(), 0, (int)n_dec, (int)n_tile, longest, {0, 0}}});
    Dev<int32_t> dpos(pos), dseq(seq), dtable(table);
    Dev<int32_t> ddec(dec.empty() ? std::vector<int32_t>{0} : dec);
    Dev<cu_tile> dtile(tile.empty() ? std::vector<cu_tile>{{0, 0, 1}} : tile);
    Dev<float> dqkv(qkv), dsinks(w.sinks.empty() ? std::vector<float>{0} : w.sinks);
    Dev<unsigned char> pool(w.pool);
    const int dec_max = (int)dec.size(), split_max = longest / CU_SPLIT_TOKENS + 1 + (slack > 0);
    const size_t ws_bytes = cu_attn_ws(w.n_head(), s.hd, dec_max, split_max);
    const int n_flag = cu_attn_flags(w.n_head(), dec_max);
    Dev<float> ws(ws_bytes / 4 + 1);
    Dev<int32_t> flags(std::vector<int32_t>((size_t)n_flag + 1, 0));
    const size_t out_n = (size_t)(rows + slack) * (size_t)oc;
    Dev<float> f32(out_n);
    Dev<__nv_bfloat16> b16(out_n);
    cu_kv kv = {pool.p, LAYERS, s.kv_head, s.hd, w.n_block, s.dt, 0};
    cu_step st = {};
    st.count = count.p, st.pos = dpos.p, st.row_seq = dseq.p, st.block_table = dtable.p;
    st.dec = ddec.p, st.tile = dtile.p;
    st.block_stride = w.stride, st.row_max = rows + slack, st.dec_max = dec_max;
    st.tile_max = (int)tile.size(), st.split_max = split_max;
    struct cu_attn a = {};
    a.dst = s.bf16_out ? cu_mat{b16.p, oc, CU_BF16, oc} : cu_mat{f32.p, oc, CU_F32, oc};
    a.qkv = {dqkv.p, cols, CU_F32, cols};
    a.n_head = w.n_head(), a.scale = 1 / sqrtf((float)s.hd), a.softcap = s.softcap,
    a.window = s.window;
    a.sinks = w.sinks.empty() ? nullptr : dsinks.p;
    a.kv = &kv, a.layer = LAYER, a.ws = ws.p, a.flags = flags.p, a.ws_bytes = ws_bytes,
    a.n_flag = n_flag, a.exact = !wgmma, a.wgmma = wgmma;
    CT_RUN(cu_attn(&a, &st, nullptr));
    std::vector<float> out(out_n);
    if (s.bf16_out) {
        auto g = b16.get();
        for (size_t i = 0; i < out_n; i++)
            out[i] = __bfloat162float(g[i]);
    } else
        out = f32.get();
    for (size_t i = (size_t)rows * (size_t)oc; i < out_n; i++)
        if (out[i] == out[i]) {
            ct_fail("a row beyond the count was written");
            break;
        }
    for (int32_t f : flags.get())
        CT_CHECK(f == 0);
    out.resize((size_t)rows * (size_t)oc);
    return out;
}

static std::vector<double> want_of(const world &w, const std::vector<piece> &pieces)
{
    std::vector<double> v;
    const size_t oc = (size_t)(w.n_head() * w.s.hd);
    for (const piece &p : pieces)
        for (int k = 0; k < p.n; k++) {
            v.resize(v.size() + oc);
            truth(w, p.seq, p.from + k, &v[v.size() - oc]);
        }
    return v;
}

#endif
