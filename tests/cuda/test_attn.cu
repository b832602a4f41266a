/* cu_attn against a double reference, and its promises: equal bits as a decode row, in a chunk of any size and in any
 * launch bounds; tokens and blocks that no row sees are never read; rows beyond the counts stay untouched. */
#include "tests/cuda/attn_world.h"

static double bound_of(const shape &s)
{
    return s.dt == CU_F32    ? (s.bf16_out ? 1e-5 : 1e-11)
           : s.dt != CU_BF16 ? (s.bf16_out ? 1e-5 : 2e-6)
                             : 5e-5;
}

/* hd, group, kv heads, dtype, window, softcap, sinks, bf16 output */
static const shape shapes[] = {
    {64, 3, 1, CU_F16, 0, 0, false, true},    {16, 1, 2, CU_BF16, 0, 0, true, false},
    {80, 4, 1, CU_F16, 40, 0, false, false},  {128, 8, 1, CU_BF16, 100, 20, true, true},
    {256, 2, 1, CU_F16, 0, 30, false, false}, {64, 17, 1, CU_BF16, 0, 0, true, false},
    {48, 2, 2, CU_F16, 7, 0, true, false},    {64, 3, 1, CU_F32, 50, 0, true, false},
    {20, 2, 1, CU_F16, 0, 30, false, false},  {64, 3, 1, CU_I8, 0, 0, true, true},
    {128, 8, 1, CU_F8, 100, 20, false, true}, {48, 2, 2, CU_F8, 0, 0, false, false},
    {20, 2, 1, CU_I8, 7, 0, true, true},      {256, 2, 1, CU_I8, 0, 0, false, true},
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
    for (const shape &s : {shapes[0], shapes[3], shapes[5], shapes[7], shapes[9], shapes[10]}) {
        world w = world_new(s, {700, 20});
        std::vector<piece> p = {{0, 699, 1}, {1, 18, 2}};
        ct_near("decode at 699", attend(w, p, 1), want_of(w, p), bound_of(s));
    }
}

/* A row's bits: alone as a decode row, in chunks of 7 and of 64 and more, with company and wider bounds. */
static void same_bits()
{
    for (const shape &s : {shapes[0], shapes[2], shapes[3], shapes[4], shapes[5], shapes[7],
                           shapes[9], shapes[10]}) {
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
    cu_kv kv = {pool.p, LAYERS, 1, 64, w.n_block, CU_F16, 0};
    cu_step st = {};
    st.count = count.p, st.pos = st.row_seq = st.block_table = st.dec = n.p, st.tile = tile.p;
    st.block_stride = w.stride, st.row_max = st.dec_max = 1, st.split_max = 2;
    const size_t need = cu_attn_ws(3, 64, 1, 2);
    struct cu_attn ok = {};
    ok.dst = {x.p, 192, CU_BF16, 192}, ok.qkv = {x.p, 320, CU_F32, 320}, ok.n_head = 3,
    ok.scale = 1, ok.kv = &kv;
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
