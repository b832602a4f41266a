/* cu_sample against the reference's own code, over thousands of random rows: every mix of edits and filters, ties, small
 * and large vocabularies. A token may differ from the reference's only where the random number falls within 1e-5 of a
 * step of the cumulative distribution: such tokens are held to exact sums in double over a full sort. */
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/ref_sample.h"

struct batch { /* rows and all that they point to */
    int n_vocab, ld;
    std::vector<float> x;
    std::vector<cu_sample_row> rows;
    std::vector<int32_t> ints, bias_id;
    std::vector<float> bias_val;
    std::vector<uint64_t> seed;
    int n() const
    {
        return (int)rows.size();
    }
    void add(const std::vector<float> &logits, cu_sample_row r, uint64_t s)
    {
        x.resize((size_t)(rows.size() * (size_t)ld), NAN);
        x.insert(x.end(), logits.begin(), logits.end());
        r.uniform = ref_uniform(s, 5);
        rows.push_back(r);
        seed.push_back(s);
    }
    batch(int vocab, int pitch) : n_vocab(vocab), ld(pitch), ints(1), bias_id(1), bias_val(1)
    {
    }
};

static cu_sample_row plain()
{
    cu_sample_row r = {};
    r.temperature = r.top_p = r.repetition_penalty = 1;
    r.mask = r.target = r.n_top = -1;
    return r;
}

/* Rows [from, from + n) of b. */
static std::vector<cu_sample_out> run(const batch &b, int from, int n, int simple)
{
    std::vector<cu_sample_row> rows(b.rows.begin() + from, b.rows.begin() + from + n);
    size_t at = (size_t)from * (size_t)b.ld;
    std::vector<float> x(b.x.begin() + (long)at,
                         b.x.begin() +
                             (long)(at + (size_t)(n - 1) * (size_t)b.ld + (size_t)b.n_vocab));
    Dev<float> dx(x);
    Dev<cu_sample_row> dr(rows);
    Dev<int32_t> di(b.ints), db(b.bias_id), ds((size_t)n);
    Dev<float> dv(b.bias_val);
    Dev<cu_sample_out> out((size_t)n);
    cu_count cnt = {};
    cnt.n_row = -1;
    cnt.n_logit = n;
    Dev<cu_count> dc(std::vector<cu_count>{cnt});
    cu_step s = {};
    s.count = dc.p;
    s.logit_max = n + 1; /* a launch bound, not a count */
    struct cu_sample a = {};
    a.logits = {dx.p, b.ld, CU_F32, b.n_vocab};
    a.rows = dr.p;
    a.ints = di.p;
    a.bias_id = db.p;
    a.bias_val = dv.p;
    a.out = out.p;
    a.sampled = ds.p;
    a.ws_bytes = cu_sample_ws(n + 1, b.n_vocab);
    Dev<unsigned char> ws(a.ws_bytes);
    a.ws = ws.p;
    a.simple = simple;
    CT_RUN(cu_sample(&a, &s, nullptr));
    std::vector<cu_sample_out> o = out.get();
    std::vector<int32_t> tok = ds.get();
    for (int i = 0; i < n; i++)
        CT_CHECK(o[(size_t)i].bad || tok[(size_t)i] == o[(size_t)i].token);
    ws.get();
    return o;
}

static std::vector<float> logits(int n, Rng &g, float scale, bool ties)
{
    std::vector<float> x((size_t)n);
    for (int i = 0; i < n; i++) {
        float v = scale * g.normal();
        x[(size_t)i] = ties && i % 3 == 0 ? roundf(v * 4) / 4 : v;
    }
    return x;
}

/* Random edits: values on a grid, so that double and float agree on every edited logit of a grid row. */
static void edits(batch *b, cu_sample_row *r, Rng &g)
{
    int n = b->n_vocab;
    if (g.below(3) == 0) {
        r->mask = (int32_t)b->ints.size();
        for (int i = 0; i < (n + 31) / 32; i++)
            b->ints.push_back((int32_t)(g.next() | g.next()));
    }
    if (g.below(3) == 0) {
        r->ban = (int32_t)b->ints.size();
        r->n_ban = g.below(6);
        for (int i = 0; i < r->n_ban; i++)
            b->ints.push_back(g.below(n + 2) - 1); /* out of range too */
    }
    if (g.below(3) == 0) {
        r->bias = (int32_t)b->bias_id.size();
        r->n_bias = g.below(40);
        for (int i = 0; i < r->n_bias; i++) {
            b->bias_id.push_back(i && g.below(4) == 0 ? b->bias_id.back() : g.below(n + 2) - 1);
            b->bias_val.push_back((float)(g.below(33) - 16) / 4);
        }
    }
    if (g.below(2) == 0) {
        r->hist = (int32_t)b->ints.size();
        r->n_hist = g.below(300);
        r->n_prompt = g.below(r->n_hist + 1);
        int few = 1 + g.below(n);
        for (int i = 0; i < r->n_hist; i++)
            b->ints.push_back(g.below(8) ? g.below(few) : g.below(n + 2) - 1);
        r->repetition_penalty = g.below(2) ? 2.0f : 1.0f;
        r->presence_penalty = (float)g.below(5) / 4 - 0.5f;
        r->frequency_penalty = (float)g.below(5) / 8;
    }
}

static void random_row(batch *b, Rng &g)
{
    static const int top_k[] = {0, 0, 1, 2, 5, 40, 300, 2000};
    static const float top_p[] = {1, 1, 0.95f, 0.9f, 0.5f, 0.01f}, temp[] = {0, 0.3f, 0.7f, 1, 3};
    static const float min_p[] = {0, 0, 0.05f, 0.3f}, scale[] = {0.01f, 1, 3, 8};
    cu_sample_row r = plain();
    r.temperature = temp[g.below(5)];
    r.top_k = top_k[g.below(8)];
    r.top_p = top_p[g.below(6)];
    r.min_p = min_p[g.below(4)];
    r.n_top = g.below(3) ? -1 : g.below(21);
    r.target = g.below(12) ? -1 : g.below(b->n_vocab);
    if (g.below(2))
        edits(b, &r, g);
    std::vector<float> x = logits(b->n_vocab, g, scale[g.below(4)], g.below(2));
    if (g.below(8) == 0) /* all on a coarse grid: many ties */
        for (auto &v : x)
            v = roundf(v);
    b->add(x, r, g.next());
}

struct cand {
    double x;
    int id;
};

/* How far u is from the interval in which `token` is drawn; 2 where the token may not come at all. */
static double distance(const batch &b, int row, int token)
{
    const cu_sample_row &r = b.rows[(size_t)row];
    const float *x = b.x.data() + (size_t)row * (size_t)b.ld;
    std::map<int, std::pair<int, int>> seen; /* any, of the output */
    std::vector<cand> c;
    for (int i = 0; i < r.n_hist; i++) {
        auto &s = seen[b.ints[(size_t)(r.hist + i)]];
        s.first++;
        s.second += i >= r.n_prompt;
    }
    for (int i = 0; i < b.n_vocab; i++) {
        double v = (double)x[i];
        bool off = r.mask >= 0 && !((unsigned)b.ints[(size_t)(r.mask + i / 32)] >> (i % 32) & 1);
        for (int k = 0; k < r.n_ban; k++)
            off = off || b.ints[(size_t)(r.ban + k)] == i;
        v = off ? -INFINITY : v;
        for (int k = 0; k < r.n_bias; k++)
            v +=
                b.bias_id[(size_t)(r.bias + k)] == i ? (double)b.bias_val[(size_t)(r.bias + k)] : 0;
        auto s = seen.find(i);
        if (s != seen.end()) {
            v = v > 0 ? v / (double)r.repetition_penalty : v * (double)r.repetition_penalty;
            if (s->second.second)
                v -= (double)r.presence_penalty + (double)r.frequency_penalty * s->second.second;
        }
        c.push_back({v, i});
    }
    std::sort(c.begin(), c.end(),
              [](const cand &p, const cand &q) { return p.x != q.x ? p.x > q.x : p.id < q.id; });
    if (r.temperature <= 0)
        return c[0].id == token ? 0 : 2;
    double top = c[0].x, all = 0, cut = 0;
    if (r.top_k > 0 && (size_t)r.top_k < c.size())
        c.resize((size_t)r.top_k);
    for (cand &v : c)
        v.x = exp((v.x - top) / (double)r.temperature);
    while (c.size() > 1 && c.back().x < (double)r.min_p * (1 - 1e-6))
        c.pop_back();
    for (cand &v : c)
        all += v.x;
    size_t keep = 0;
    while (keep < c.size() && (keep == 0 || cut < (double)r.top_p * all * (1 + 1e-6)))
        cut += c[keep++].x;
    c.resize(keep);
    std::sort(c.begin(), c.end(), [](const cand &p, const cand &q) { return p.id < q.id; });
    double u = ref_uniform(b.seed[(size_t)row], 5), lo = 0;
    for (cand &v : c) {
        double hi = lo + v.x / cut;
        if (v.id == token)
            return v.x <= 0 ? 2 : u < lo ? lo - u : u > hi ? u - hi : 0;
        lo = hi;
    }
    return 2;
}

static void check_logprobs(const cu_sample_out &g, const cu_sample_out &w, bool same_token)
{
    CT_CHECK(g.n_top == w.n_top);
    for (int k = 0; k < w.n_top; k++) {
        CT_CHECK(g.top_id[k] == w.top_id[k]);
        CT_CHECK(fabsf(g.top_logprob[k] - w.top_logprob[k]) <= 2e-5f ||
                 g.top_logprob[k] == w.top_logprob[k]);
    }
    if (same_token) {
        CT_CHECK(g.rank == w.rank);
        CT_CHECK(fabsf(g.logprob - w.logprob) <= 2e-5f || g.logprob == w.logprob);
    }
}

static int compare(const batch &b, int n_alone)
{
    std::vector<cu_sample_out> got = run(b, 0, b.n(), 0);
    struct cu_sample a = {};
    a.ints = b.ints.data();
    a.bias_id = b.bias_id.data();
    a.bias_val = b.bias_val.data();
    int differ = 0;
    for (int i = 0; i < b.n(); i++) {
        const cu_sample_row &r = b.rows[(size_t)i];
        const cu_sample_out &g = got[(size_t)i];
        cu_sample_out w;
        ref_sample_row(b.x.data() + (size_t)i * (size_t)b.ld, b.n_vocab, &a, &r, b.seed[(size_t)i],
                       5, &w);
        if (!!g.bad != !!w.bad)
            ct_fail("row %d of %d tokens: bad %d, expected %d", i, b.n_vocab, g.bad, w.bad);
        if (g.bad || w.bad)
            continue;
        double d = g.token == w.token ? 0 : r.target >= 0 ? 2 : distance(b, i, g.token);
        if (d > 1e-5)
            ct_fail(
                "row %d of %d tokens: token %d, reference %d, off by %g (T %g k %d p %g min %g)", i,
                b.n_vocab, g.token, w.token, d, r.temperature, r.top_k, r.top_p, r.min_p);
        differ += g.token != w.token;
        if (r.n_top >= 0)
            check_logprobs(g, w, g.token == w.token);
    }
    ct_repeat(("out " + std::to_string(b.n_vocab)).c_str(), got);
    for (int i = 0; i < n_alone; i++) {
        int row = i * b.n() / n_alone;
        ct_same("a row alone", run(b, row, 1, 0), std::vector<cu_sample_out>{got[(size_t)row]});
    }
    return differ;
}

static void random_rows(int n_vocab, int n, int n_alone)
{
    Rng g((uint64_t)n_vocab * 77);
    batch b(n_vocab, n_vocab + n_vocab % 3);
    for (int i = 0; i < (CT_SANITIZED ? (n + 31) / 32 : n); i++)
        random_row(&b, g);
    int differ = compare(b, n_alone);
    if (differ * 200 > b.n() && differ > 2)
        ct_fail("%d of %d tokens of %d differ from the reference", differ, b.n(), n_vocab);
}

static void tiny()
{
    random_rows(1, 40, 4);
    random_rows(7, 800, 6);
}
static void small()
{
    random_rows(1000, 250, 4);
    random_rows(2049, 40, 1);
}
static void large()
{
    random_rows(49152, CT_SANITIZED ? 32 : 6, 1);
}
static void largest()
{
    random_rows(128256, CT_SANITIZED ? 32 : 2, 1);
}

/* Hundreds of equal logits in one bin, cuts within them, and cuts far below the histogram's reach. */
static void hard_cuts()
{
    batch b(3000, 3000);
    Rng g(5);
    for (int i = 0; i < (CT_SANITIZED ? 5 : 24); i++) {
        std::vector<float> x(3000, i % 3 == 0 ? 1.0f : 0.5f);
        for (int k = 0; k < 3000; k++) {
            if (i % 3 == 1) /* almost equal: one bin, many keys */
                x[(size_t)k] = 4 + 1e-6f * (float)g.below(4000);
            if (i % 3 == 2) /* most of it 40 below */
                x[(size_t)k] = k % 50 == 3 ? 20 + g.normal() : -20 + 0.1f * g.normal();
        }
        cu_sample_row r = plain();
        r.temperature = i % 3 == 2 ? 20.0f : 1.0f;
        r.top_k = i % 2 ? 700 + 90 * i : 0;
        r.top_p = i % 4 < 2 ? 0.6f : 1;
        r.n_top = i % 5 ? -1 : 20;
        b.add(x, r, g.next());
    }
    compare(b, 2);
}

static void bad_rows()
{
    enum { N = 1031 };
    batch b(N, N);
    Rng g(3);
    static const int32_t all_off[(N + 31) / 32] = {};
    for (int i = 0; i < 14; i++) {
        std::vector<float> x = logits(N, g, 3, false);
        cu_sample_row r = plain();
        r.temperature = i % 2 ? 1 : 0;
        r.n_top = 3;
        if (i < 4)
            x[(size_t)(i * 343)] = i < 2 ? NAN : INFINITY;
        if (i == 4)
            std::fill(x.begin(), x.end(), -INFINITY);
        if (i == 5) {
            std::fill(x.begin(), x.end(), -INFINITY);
            x[777] = -2;
        }
        if (i == 6 || i == 7) { /* nothing is allowed */
            r.mask = (int32_t)b.ints.size();
            b.ints.insert(b.ints.end(), all_off, all_off + (N + 31) / 32);
        }
        if (i == 8 || i == 9) { /* a bias makes NaN of -Inf, or +Inf */
            x[5] = -INFINITY;
            r.bias = (int32_t)b.bias_id.size();
            r.n_bias = 1;
            b.bias_id.push_back(i == 8 ? 5 : 6);
            b.bias_val.push_back(INFINITY);
        }
        b.add(x, r, 4);
    }
    compare(b, 0);
    std::vector<cu_sample_out> o = run(b, 0, b.n(), 0);
    for (int i = 0; i < 14; i++)
        CT_CHECK(!!o[(size_t)i].bad == (i < 5 || (i > 5 && i < 10)));
    CT_CHECK(o[5].token == 777 && o[5].rank == 1 && o[5].logprob == 0);
}

/* The short path gives what the full one gives. */
static void simple_rows()
{
    for (int n : {5, 1000, 5000}) {
        batch b(n, n);
        Rng g(8);
        for (int i = 0; i < (CT_SANITIZED ? 4 : 20); i++) {
            cu_sample_row r = plain();
            r.temperature = (float)(i % 4) / 2;
            b.add(logits(n, g, 3, true), r, g.next());
        }
        ct_same("simple", run(b, 0, b.n(), 1), run(b, 0, b.n(), 0));
    }
}

/* Counts of tokens against exact probabilities: chi-square within mean + 4 sigma. */
static void distribution()
{
    enum { N = 12, DRAWS = CT_SANITIZED ? 200 : 2000 };
    batch b(N, N);
    std::vector<float> x;
    std::vector<double> p;
    double all = 0, chi = 0;
    for (int i = 0; i < N; i++)
        x.push_back(sinf((float)i * 1.7f));
    for (float v : x)
        p.push_back(exp((double)v)), all += p.back();
    for (int i = 0; i < DRAWS; i++)
        b.add(x, plain(), 1000u + (uint64_t)i);
    std::vector<int> count(N);
    for (const cu_sample_out &o : run(b, 0, DRAWS, 1))
        count[(size_t)o.token]++;
    for (size_t i = 0; i < N; i++) {
        double want = p[i] / all * DRAWS;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    CT_CHECK(chi < N - 1 + 4 * sqrt(2.0 * (N - 1)) + 4);
}

static void refused()
{
    Dev<float> x(64);
    Dev<cu_sample_row> r(2);
    Dev<cu_sample_out> o(2);
    Dev<int32_t> i(4);
    Dev<cu_count> n(std::vector<cu_count>{cu_count{}});
    cu_step s = {};
    s.count = n.p;
    s.logit_max = 2;
    struct cu_sample ok = {};
    ok.logits = {x.p, 16, CU_F32, 16};
    ok.rows = r.p;
    ok.out = o.p;
    ok.simple = 1;
    CT_CHECK(cu_sample(&ok, &s, nullptr) == 0);
    struct cu_sample a = ok;
    a.logits.dt = CU_BF16;
    CT_CHECK(cu_sample(&a, &s, nullptr) == CU_BAD);
    a = ok;
    a.logits.ld = 15;
    CT_CHECK(cu_sample(&a, &s, nullptr) == CU_BAD);
    a = ok;
    a.simple = 0; /* no lists, no work space */
    CT_CHECK(cu_sample(&a, &s, nullptr) == CU_BAD);
    a = ok;
    a.out = nullptr;
    CT_CHECK(cu_sample(&a, &s, nullptr) == CU_BAD);
    s.logit_max = 0;
    CT_CHECK(cu_sample(&ok, &s, nullptr) == 0);
    CT_CUDA(cudaDeviceSynchronize());
}

CT_MAIN({"tiny", tiny}, {"small", small}, {"large", large}, {"largest", largest},
        {"hard cuts", hard_cuts}, {"bad rows", bad_rows}, {"simple", simple_rows},
        {"distribution", distribution}, {"refused", refused})
