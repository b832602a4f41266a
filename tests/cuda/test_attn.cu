/* cu_attn against a double reference, and its promises: equal bits as a decode row, in a chunk of any size and in any
 * launch bounds; tokens and blocks that no row sees are never read; rows beyond the counts stay untouched. */
#include "cuda/attn.h"

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
    if (w.s.dt == CU_F32)
        memcpy(p + at * 4, &x, 4);
    else if (w.s.dt == CU_F16) {
        __half h = __float2half(x);
        memcpy(p + at * 2, &h, 2);
    } else {
        __nv_bfloat16 h = __float2bfloat16(x);
        memcpy(p + at * 2, &h, 2);
    }
}

#define LAYERS 2
#define LAYER  1

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
    size_t es = s.dt == CU_F32 ? 4 : 2, block = 2 * 16 * kvw;
    w.pool.assign(LAYERS * (size_t)w.n_block * block * es, 0xFF);
    for (int q = 0, row = 0; q < n_seq; q++)
        for (int t = 0; t < len[(size_t)q]; t++, row++)
            for (int v = 0; v < 2; v++)
                for (int h = 0; h < s.kv_head; h++)
                    for (int d = 0; d < s.hd; d++) {
                        float &x = w.kv[(((size_t)row * 2 + v) * s.kv_head + h) * s.hd + d];
                        x = rounded(x, s.dt);
                        size_t b =
                            (size_t)LAYER * w.n_block + w.table[(size_t)(q * w.stride + t / 16)];
                        pool_put(w,
                                 b * block + (((size_t)v * s.kv_head + h) * 16 + t % 16) * s.hd + d,
                                 x);
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
};

/* Runs one step; out = the rows of the pieces in order, f32 (bf16 widened). `slack` widens every launch bound. */
static std::vector<float> attend(const world &w, const std::vector<piece> &pieces, int slack)
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
        for (int k = 0; p.n > 1 && k < p.n; k += CU_TILE_ROWS)
            tile.push_back({p.seq, (int)row + k, std::min(CU_TILE_ROWS, p.n - k)});
        if (p.n == 1)
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
    cu_kv kv = {pool.p, LAYERS, s.kv_head, s.hd, w.n_block, s.dt};
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
    a.n_flag = n_flag, a.exact = 1;
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
static double bound_of(const shape &s)
{
    return s.dt == CU_F32   ? (s.bf16_out ? 1e-5 : 1e-11)
           : s.dt == CU_F16 ? (s.bf16_out ? 1e-5 : 2e-6)
                            : 5e-5;
}

/* hd, group, kv heads, dtype, window, softcap, sinks, bf16 output */
static const shape shapes[] = {
    {64, 3, 1, CU_F16, 0, 0, false, true},    {16, 1, 2, CU_BF16, 0, 0, true, false},
    {80, 4, 1, CU_F16, 40, 0, false, false},  {128, 8, 1, CU_BF16, 100, 20, true, true},
    {256, 2, 1, CU_F16, 0, 30, false, false}, {64, 17, 1, CU_BF16, 0, 0, true, false},
    {48, 2, 2, CU_F16, 7, 0, true, false},    {64, 3, 1, CU_F32, 50, 0, true, false},
    {20, 2, 1, CU_F16, 0, 30, false, false},
};

/* Decode rows and tiles of several sequences in one step. */
static void mixed()
{
    for (const shape &s : shapes) {
        world w = world_new(s, {1, 15, 16, 17, 255, 256, 257, 30});
        std::vector<piece> p = {{0, 0, 1},   {1, 14, 1},  {2, 15, 1},   {3, 16, 1},
                                {4, 254, 1}, {5, 255, 1}, {6, 240, 17}, {7, 3, 5}};
        auto got = attend(w, p, 2);
        ct_near("mixed step", got, want_of(w, p), bound_of(s));
        ct_repeat(("mixed" + std::to_string(&s - shapes)).c_str(), got);
    }
}

/* Three splits; the row's heads fold on whichever block comes last. */
static void long_rows()
{
    for (const shape &s : {shapes[0], shapes[3], shapes[5], shapes[7]}) {
        world w = world_new(s, {700, 20});
        std::vector<piece> p = {{0, 699, 1}, {1, 18, 2}};
        ct_near("decode at 699", attend(w, p, 1), want_of(w, p), bound_of(s));
    }
}

/* A row's bits: alone as a decode row, in chunks of 7 and of 64 and more, with company and wider bounds. */
static void same_bits()
{
    for (const shape &s : {shapes[0], shapes[2], shapes[3], shapes[4], shapes[5], shapes[7]}) {
        world w = world_new(s, {530, 40});
        const size_t oc = (size_t)(w.n_head() * s.hd);
        auto all = attend(w, {{0, 456, 70}, {1, 0, 1}}, 0);
        auto few = attend(w, {{1, 3, 9}, {0, 506, 7}}, 3);
        ct_same("chunk of 7", std::vector<float>(few.begin() + (ptrdiff_t)(9 * oc), few.end()),
                std::vector<float>(all.begin() + (ptrdiff_t)(50 * oc),
                                   all.begin() + (ptrdiff_t)(57 * oc)));
        for (int at : {459, 511, 512, 525}) {
            auto one = attend(w, {{1, 39, 1}, {0, at, 1}}, at % 2);
            ct_same("decode row", std::vector<float>(one.begin() + (ptrdiff_t)oc, one.end()),
                    std::vector<float>(all.begin() + (ptrdiff_t)((size_t)(at - 456) * oc),
                                       all.begin() + (ptrdiff_t)((size_t)(at - 455) * oc)));
        }
    }
}

/* What must be refused is refused before anything is launched. */
static void refuses()
{
    world w = world_new(shapes[0], {20});
    Dev<unsigned char> pool(w.pool);
    Dev<float> x(64 * 5 * 4), ws(64 * 64);
    Dev<int32_t> n(64);
    Dev<cu_count> count(1);
    Dev<cu_tile> tile(1);
    cu_kv kv = {pool.p, LAYERS, 1, 64, w.n_block, CU_F16};
    cu_step st = {};
    st.count = count.p, st.pos = st.row_seq = st.block_table = st.dec = n.p, st.tile = tile.p;
    st.block_stride = w.stride, st.row_max = st.dec_max = 1, st.split_max = 2;
    const size_t need = cu_attn_ws(3, 64, 1, 2);
    struct cu_attn ok = {};
    ok.dst = {x.p, 192, CU_BF16, 192}, ok.qkv = {x.p, 320, CU_F32, 320}, ok.n_head = 3, ok.scale = 1,
    ok.kv = &kv;
    ok.ws = ws.p, ok.flags = n.p, ok.ws_bytes = need - 1, ok.n_flag = cu_attn_flags(3, 1);
    CT_CHECK(cu_attn(&ok, &st, nullptr) == CU_BAD); /* one byte short */
    struct cu_attn a = ok;
    a.ws_bytes = need, a.n_flag = 2;
    CT_CHECK(cu_attn(&a, &st, nullptr) == CU_BAD);
    a = ok, a.ws_bytes = need, a.n_head = 2, kv.n_kv_head = 3;
    CT_CHECK(cu_attn(&a, &st, nullptr) == CU_BAD);
    kv.n_kv_head = 1;
    a = ok, a.ws_bytes = need, a.layer = LAYERS;
    CT_CHECK(cu_attn(&a, &st, nullptr) == CU_BAD);
    a = ok, a.ws_bytes = need, a.dst.cols = 191;
    CT_CHECK(cu_attn(&a, &st, nullptr) == CU_BAD);
}

CT_MAIN({"refuses", refuses}, {"mixed", mixed}, {"long_rows", long_rows}, {"same_bits", same_bits})
