/* cu_rope_kv and cu_kv_copy against double arithmetic: styles, partial rotation, per-head norms, pool dtypes, positions
 * up to 128k; rows beyond the count and everything else in the pool stay untouched. */
#include "tests/cuda/cuda_test.h"

struct shape {
    int hd, n_rot, style, dt, n_head, kv_head;
    bool norm;
    int far; /* position of the first row */
};

template <class T> static std::vector<double> widened(Dev<unsigned char> &pool)
{
    auto b = pool.get();
    std::vector<double> v(b.size() / sizeof(T));
    for (size_t i = 0; i < v.size(); i++) {
        T x;
        memcpy(&x, &b[i * sizeof(T)], sizeof x);
        v[i] = ct_double(x);
    }
    return v;
}

static void rope_one(const shape &s, const std::vector<float> &freq, const float *w, double pos,
                     double *x)
{
    double sum = 0;
    for (int i = 0; i < s.hd; i++)
        sum += x[i] * x[i];
    for (int i = 0; w && i < s.hd; i++)
        x[i] = x[i] / sqrt(sum / s.hd + 1e-6) * w[i];
    for (int i = 0; s.style != CU_ROPE_NONE && i < s.n_rot / 2; i++) {
        double t = pos * (double)freq[(size_t)i];
        double &p = x[s.style == CU_ROPE_NORM ? 2 * i : i];
        double &q = x[s.style == CU_ROPE_NORM ? 2 * i + 1 : s.n_rot / 2 + i];
        double u = p, v = q;
        p = 1.25 * (u * cos(t) - v * sin(t));
        q = 1.25 * (u * sin(t) + v * cos(t));
    }
}

#define ROWS   5
#define SLACK  2
#define LAYERS 2
#define LAYER  1

static void rope_case(const shape &s, int index)
{
    const int heads = s.n_head + 2 * s.kv_head, cols = heads * s.hd, first = s.far / 16,
              n_block = 4;
    auto data = ct_random<float>((size_t)(ROWS + SLACK) * (size_t)cols, 11);
    auto qn = ct_random<float>((size_t)s.hd, 12), kn = ct_random<float>((size_t)s.hd, 13);
    std::vector<float> freq;
    for (int i = 0; i < s.n_rot / 2; i++)
        freq.push_back(powf(10000, -2.0f * (float)i / (float)s.n_rot));
    std::vector<int32_t> table((size_t)first + 2, 0), pos, seq((size_t)ROWS, 0);
    table[(size_t)first] = 3, table[(size_t)first + 1] = 1;
    for (int i = 0; i < ROWS; i++) /* over a block's end */
        pos.push_back(first * 16 + 13 + i);
    const size_t es = s.dt == CU_F32 ? 4 : 2, block = (size_t)2 * 16 * (size_t)(s.kv_head * s.hd);
    Dev<float> qkv(data), dfreq(freq), dqn(qn), dkn(kn);
    Dev<int32_t> dtable(table), dpos(pos), dseq(seq);
    Dev<cu_count> count(std::vector<cu_count>{{ROWS, 1, 0, 0, 1, pos.back(), {0, 0}}});
    Dev<unsigned char> pool(LAYERS * (size_t)n_block * block * es);
    cu_kv kv = {pool.p, LAYERS, s.kv_head, s.hd, n_block, s.dt, 0};
    cu_step st = {};
    st.count = count.p, st.pos = dpos.p, st.row_seq = dseq.p, st.block_table = dtable.p;
    st.block_stride = (int)table.size(), st.row_max = ROWS + SLACK;
    struct cu_rope_kv a = {};
    a.qkv = {qkv.p, cols, CU_F32, cols};
    a.n_head = s.n_head, a.n_rot = s.n_rot, a.style = s.style, a.inv_freq = dfreq.p,
    a.attn_factor = 1.25f;
    a.q_norm = s.norm ? dqn.p : nullptr, a.k_norm = s.norm ? dkn.p : nullptr, a.norm_eps = 1e-6f;
    a.kv = &kv, a.layer = LAYER;
    CT_RUN(cu_rope_kv(&a, &st, nullptr));
    auto got = qkv.get();
    auto in_pool = s.dt == CU_F32   ? widened<float>(pool)
                   : s.dt == CU_F16 ? widened<__half>(pool)
                                    : widened<__nv_bfloat16>(pool);
    std::vector<float> got_q, got_kv;
    std::vector<double> want_q, want_kv;
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < heads; h++) {
            std::vector<double> x;
            for (int d = 0; d < s.hd; d++)
                x.push_back(data[(size_t)(r * cols + h * s.hd + d)]);
            const int kind = h < s.n_head               ? 0
                             : h < s.n_head + s.kv_head ? 1
                                                        : 2,
                      kh = (h - s.n_head) % s.kv_head;
            if (kind < 2)
                rope_one(s, freq,
                         !s.norm     ? nullptr
                         : kind == 0 ? qn.data()
                                     : kn.data(),
                         pos[(size_t)r], x.data());
            const size_t b = (size_t)LAYER * n_block + (size_t)table[(size_t)pos[(size_t)r] / 16];
            for (int d = 0; d < s.hd; d++) {
                if (kind == 0) {
                    got_q.push_back(got[(size_t)(r * cols + h * s.hd + d)]);
                    want_q.push_back(x[(size_t)d]);
                    continue;
                }
                const size_t at =
                    b * block +
                    (size_t)((((kind - 1) * s.kv_head + kh) * 16 + pos[(size_t)r] % 16) * s.hd + d);
                got_kv.push_back((float)in_pool[at]);
                want_kv.push_back(x[(size_t)d]);
                in_pool[at] = NAN; /* seen */
            }
        }
    ct_near("q", got_q, want_q, 1e-11);
    ct_near("pool", got_kv, want_kv, s.dt == CU_F32 ? 1e-11 : s.dt == CU_F16 ? 1e-6 : 1e-5);
    ct_repeat(("rope" + std::to_string(index)).c_str(), got_kv);
    for (double x : in_pool)
        if (x == x) {
            ct_fail("shape %d: wrote elsewhere in the pool", index);
            break;
        }
    CT_CHECK(
        !memcmp(&got[ROWS * (size_t)cols], &data[ROWS * (size_t)cols], SLACK * (size_t)cols * 4));
}

static void rope()
{
    static const shape shapes[] = {
        {64, 64, CU_ROPE_NEOX, CU_F16, 3, 1, false, 0},
        {128, 128, CU_ROPE_NORM, CU_BF16, 2, 2, true, 131008},
        {80, 40, CU_ROPE_NORM, CU_F32, 4, 2, false, 131008},
        {20, 10, CU_ROPE_NEOX, CU_F32, 1, 1, true, 5000},
        {16, 16, CU_ROPE_NONE, CU_F16, 2, 1, false, 100},
        {256, 64, CU_ROPE_NEOX, CU_F32, 1, 1, true, 131008},
    };
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        rope_case(shapes[i], i);
}

static void copy()
{
    const int n_block = 6;
    const size_t block = 2 * 16 * 3 * 20;
    auto data = ct_random<float>(LAYERS * n_block * block, 5);
    Dev<float> pool(data);
    Dev<int32_t> src(std::vector<int32_t>{1, 4}), dst(std::vector<int32_t>{3, 2});
    cu_kv kv = {pool.p, LAYERS, 3, 20, n_block, CU_F32, 0};
    CT_RUN(cu_kv_copy(&kv, src.p, dst.p, 2, nullptr));
    for (size_t l = 0; l < LAYERS; l++) {
        float *p = &data[l * n_block * block];
        std::copy(p + block, p + 2 * block, p + 3 * block);
        std::copy(p + 4 * block, p + 5 * block, p + 2 * block);
    }
    ct_same("pool", pool.get(), data);
    CT_CHECK(cu_kv_copy(&kv, src.p, dst.p, -1, nullptr) == CU_BAD);
    CT_CHECK(cu_kv_copy(&kv, src.p, dst.p, 0, nullptr) == 0);
}

CT_MAIN({"rope", rope}, {"copy", copy})
