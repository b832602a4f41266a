/* cu_attn with tiles on wgmma, against a double reference: ragged lengths, every mask, pages that no row sees (NaN); what
 * goes to it and what not; a row's bits in any company. */
#include "tests/cuda/attn_world.h"

#define BOUND 5e-5

/* hd, group, kv heads, dtype, window, softcap, sinks, bf16 output */
static const shape shapes[] = {
    {64, 1, 2, CU_BF16, 0, 0, false, true},   {64, 3, 1, CU_BF16, 40, 0, true, true},
    {128, 3, 1, CU_BF16, 0, 20, false, true}, {128, 1, 1, CU_BF16, 100, 0, true, true},
    {64, 3, 1, CU_BF16, 0, 30, true, true},
};

static bool device_ok()
{
    int cc = 0;
    CT_CUDA(cudaDeviceGetAttribute(&cc, cudaDevAttrComputeCapabilityMajor, 0));
    if (cc != 9)
        printf("  wgmma: not on compute capability %d\n", cc);
    return cc == 9;
}

/* Whole prompts as tiles: one row, less than a tile, a tile, more. */
static void prompts()
{
    for (const shape &s : shapes) {
        if (!device_ok())
            return;
        world w = world_new(s, {1, 17, 64, 130, 300});
        std::vector<piece> p = {{0, 0, 1, true}, {1, 0, 17}, {2, 0, 64}, {3, 0, 130}, {4, 0, 300}};
        auto got = attend(w, p, 1, true);
        ct_near("prompts", got, want_of(w, p), BOUND);
        ct_repeat(("prompts" + std::to_string(&s - shapes)).c_str(), got);
    }
}

/* Later chunks: pages before the window are given back; decode rows in the same step keep the bits of an exact one. */
static void chunks()
{
    for (const shape &s : shapes) {
        if (!device_ok())
            return;
        world w = world_new(s, {300, 40});
        const size_t oc = (size_t)(w.n_head() * s.hd);
        std::vector<piece> p = {{0, 201, 70}, {1, 39, 1}};
        auto all = attend(w, p, 0, true);
        ct_near("chunk at 201", all, want_of(w, p), BOUND);
        auto few = attend(w, {{1, 3, 9}, {0, 251, 7}}, 3, true);
        ct_same("chunk of 7", std::vector<float>(few.begin() + (ptrdiff_t)(9 * oc), few.end()),
                std::vector<float>(all.begin() + (ptrdiff_t)(50 * oc),
                                   all.begin() + (ptrdiff_t)(57 * oc)));
        ct_same("decode row", std::vector<float>(all.end() - (ptrdiff_t)oc, all.end()),
                attend(w, {{1, 39, 1}}, 0));
    }
}

/* A window far smaller than a step: most rows of a block see nothing in most of its steps. */
static void far_windows()
{
    if (!device_ok())
        return;
    shape s = {64, 1, 1, CU_BF16, 3, 0, false, true};
    world w = world_new(s, {200});
    std::vector<piece> p = {{0, 30, 150}};
    ct_near("window of 3", attend(w, p, 0, true), want_of(w, p), BOUND);
}

static void choice()
{
    cu_kv kv = {(void *)4096, 1, 1, 64, 1, CU_BF16, 0};
    struct cu_attn a = {};
    struct cu_step st = {};
    a.kv = &kv;
    CT_CHECK(cu_attn_wgmma_takes(&a));
    CT_CHECK(cu_attn_wgmma(&a, &st, nullptr) == 0); /* no tile, no launch */
    kv.head_dim = 128;
    CT_CHECK(cu_attn_wgmma_takes(&a));
    kv.head_dim = 80;
    CT_CHECK(!cu_attn_wgmma_takes(&a) && cu_attn_wgmma(&a, &st, nullptr) == CU_BAD);
    kv.head_dim = 64, kv.dt = CU_F16;
    CT_CHECK(!cu_attn_wgmma_takes(&a));
    kv.dt = CU_BF16, kv.p = (void *)4104;
    CT_CHECK(!cu_attn_wgmma_takes(&a));
}

CT_MAIN({"prompts", prompts}, {"chunks", chunks}, {"far_windows", far_windows}, {"choice", choice})
