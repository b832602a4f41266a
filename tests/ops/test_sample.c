/* op_sample: the random generator against its published vectors; every table against ref over the filters;
 * distributions against exact probabilities (chi-square, fixed seeds); penalties against sums by hand; ties,
 * masks, bad logits; equal results in any company. */
#include "engine/base/rng.h"
#include "tests/ops/ops_test.h"

static const struct sample_row plain = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1, .target = -1, .n_top = -1};

/* Known answers of Salmon et al.'s Random123. */
static void test_philox(void **st)
{
    (void)st;
    uint32_t r[4];
    rng_philox(0, (const uint32_t[4]){0}, r);
    assert_true(r[0] == 0x6627e8d5 && r[1] == 0xe169c58d && r[2] == 0xbc57ac4c &&
                r[3] == 0x9b00dbd8);
    rng_philox(~0ull, (const uint32_t[4]){~0u, ~0u, ~0u, ~0u}, r);
    assert_true(r[0] == 0x408f276d && r[1] == 0x41c83b0e && r[2] == 0xa20bc7c6 &&
                r[3] == 0x6d5451fd);
    rng_philox(0x299f31d0a4093822u,
               (const uint32_t[4]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, r);
    assert_true(r[0] == 0xd16cfe09 && r[1] == 0x94fdcceb && r[2] == 0x5001e420 &&
                r[3] == 0x24126ea1);
    double sum = 0;
    for (uint32_t i = 0; i < 1000000; i++) {
        double u = rng_uniform(7, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(fabs(sum / 1000000 - 0.5) < 0.001);
}

static int sample(const struct ot_back *o, const float *logits, int64_t n, int64_t n_vocab,
                  const struct sample_row *rows, struct sample_out *out)
{
    struct tensor t = ot_tensor(o, n, n_vocab, logits);
    struct op_sample a = {.logits = t, .rows = rows, .out = out};
    int rc = ot_sample(o, &a);
    ot_take(o, t, NULL);
    return rc;
}

static int32_t one(const struct ot_back *o, const float *x, int64_t n, struct sample_row r)
{
    struct sample_out out;
    assert_int_equal(sample(o, x, 1, n, &r, &out), 0);
    assert_false(out.bad);
    return out.token;
}

/* Every combination of filters, both against ref (token, log-probabilities, rank, most likely) and, per
 * row, against the same row alone. */
static void test_against_ref(void **st)
{
    (void)st;
    static const int64_t vocabs[] = {1, 2, 17, 1000, 33003};
    static const int top_k[] = {0, 1, 5, 40, 300, 2000};
    static const float top_p[] = {1, 0.9f, 0.5f, 0.01f}, temp[] = {0, 0.3f, 1, 3};
    enum { ROWS = 6 * 4 * 4 };
    static struct sample_row rows[ROWS];
    static struct sample_out want[ROWS], got[ROWS], alone;
    int n_diff = 0, n_all = 0;
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
        int64_t n = vocabs[v];
        float *x = malloc((size_t)(ROWS * n) * sizeof *x);
        ot_fill(x, (size_t)(ROWS * n), 8);
        for (int i = 0; i < ROWS; i++) {
            rows[i] = plain;
            rows[i].top_k = top_k[i % 6];
            rows[i].top_p = top_p[i / 6 % 4];
            rows[i].temperature = temp[i / 24];
            rows[i].min_p = i % 5 == 4 ? 0.1f : 0;
            rows[i].seed = 1000u + (uint64_t)i;
            rows[i].position = (uint32_t)i * 3;
            rows[i].n_top = i % 7 == 0 ? -1 : i % 21;
            for (int64_t k = 0; k < n; k += 3) /* ties */
                x[i * n + k] = roundf(x[i * n + k] * 4) / 4;
        }
        assert_int_equal(sample(&ot_backs[0], x, ROWS, n, rows, want), 0);
        for (int b = 1; b < ot_n; b++) {
            if (ot_leave_out(b, v))
                continue;
            assert_int_equal(sample(&ot_backs[b], x, ROWS, n, rows, got), 0);
            for (int i = 0; i < ROWS; i++) {
                assert_int_equal(got[i].n_top, want[i].n_top);
                assert_memory_equal(got[i].top_id, want[i].top_id, sizeof got[i].top_id);
                for (int k = 0; k < got[i].n_top; k++)
                    assert_true(fabsf(got[i].top_logprob[k] - want[i].top_logprob[k]) < 1e-5f);
                n_all++;
                if (got[i].token != want[i].token) {
                    n_diff++;
                    continue;
                }
                assert_int_equal(got[i].rank, want[i].rank);
                assert_true(fabsf(got[i].logprob - want[i].logprob) < 1e-5f);
            }
            for (int i = 0; i < ROWS; i += 13) {
                assert_int_equal(sample(&ot_backs[b], x + i * n, 1, n, &rows[i], &alone), 0);
                assert_memory_equal(&alone, &got[i], sizeof alone);
            }
        }
        free(x);
    }
    if (n_diff * 500 > n_all)
        fail_msg("%d of %d tokens differ from ref", n_diff, n_all);
}

/* Chi-square of `draws` tokens against probabilities p; the bound is mean + 4 sigma of the statistic. */
static void check_counts(const struct ot_back *o, const float *x, int n, struct sample_row r,
                         const double *p)
{
    enum { DRAWS = 20000, BATCH = 200 };
    static struct sample_row rows[BATCH];
    static struct sample_out out[BATCH];
    static int count[64];
    float *all = malloc((size_t)(BATCH * n) * sizeof *all);
    memset(count, 0, sizeof count);
    for (int i = 0; i < BATCH; i++)
        memcpy(all + i * n, x, (size_t)n * sizeof *x);
    for (int k = 0; k < DRAWS; k += BATCH) {
        for (int i = 0; i < BATCH; i++) {
            rows[i] = r;
            rows[i].position = (uint32_t)(k + i);
        }
        assert_int_equal(sample(o, all, BATCH, n, rows, out), 0);
        for (int i = 0; i < BATCH; i++)
            count[out[i].token]++;
    }
    free(all);
    double chi = 0;
    int df = -1;
    for (int i = 0; i < n; i++) {
        double want = p[i] * DRAWS;
        if (want < 1e-9) {
            assert_int_equal(count[i], 0);
            continue;
        }
        chi += (count[i] - want) * (count[i] - want) / want;
        df++;
    }
    if (chi > df + 4 * sqrt(2.0 * df) + 4)
        fail_msg("%s: chi-square %g at %d degrees of freedom", o->name, chi, df);
}

/* Probabilities by the definition, from a full sort. */
static void exact(const float *x, int n, const struct sample_row *r, double *p)
{
    int order[64];
    double all = 0, run = 0;
    for (int i = 0; i < n; i++) {
        int k = i;
        for (; k > 0 && x[order[k - 1]] < x[i]; k--)
            order[k] = order[k - 1];
        order[k] = i;
        p[i] = 0;
    }
    int keep = r->top_k > 0 && r->top_k < n ? r->top_k : n;
    double w[64];
    for (int k = 0; k < keep; k++)
        w[k] = exp((double)(x[order[k]] - x[order[0]]) / (double)r->temperature);
    while (keep > 1 && w[keep - 1] < (double)r->min_p)
        keep--;
    for (int k = 0; k < keep; k++)
        all += w[k];
    int last = 0;
    while (last < keep && (last == 0 || run < (double)r->top_p * all))
        run += w[last++];
    for (int k = 0; k < last; k++)
        p[order[k]] = w[k] / run;
}

static void test_distribution(void **st)
{
    (void)st;
    enum { N = 40 };
    float x[N];
    double p[64];
    for (int i = 0; i < N; i++)
        x[i] = 3 * sinf((float)i * 1.7f);
    struct sample_row cases[6];
    for (int i = 0; i < 6; i++) {
        cases[i] = plain;
        cases[i].seed = 42u + (uint64_t)i;
    }
    cases[1].temperature = 0.5f;
    cases[2].top_k = 7;
    cases[3].top_p = 0.8f;
    cases[4].min_p = 0.2f;
    cases[5].top_k = 20;
    cases[5].top_p = 0.9f;
    cases[5].temperature = 1.5f;
    for (int i = 0; i < 6; i++) {
        exact(x, N, &cases[i], p);
        for (int b = 0; b < ot_n; b++)
            if (!ot_emulated(
                    b)) /* many draws; its tokens are compared with the reference's above */
                check_counts(&ot_backs[b], x, N, cases[i], p);
    }
}

/* Repetition over prompt and output, presence and frequency over output only; by hand. */
static void test_penalties(void **st)
{
    (void)st;
    static const int32_t hist[] = {0, 1, 1, /* output: */ 2, 3, 3, 99, -5};
    static const float x[] = {2.0f, -1.0f, 2.2f, 3.0f, 0.9f, 0.5f};
    /* repetition 2: {1, -2, 1.1, 1.5, .9, .5}; presence .25, frequency .5 on 2 (once) and 3 (twice):
     * 2 -> .35, 3 -> .25. Order now: 0 (1), 4 (.9), 5 (.5), 2 (.35), 3 (.25), 1 (-2). */
    static const int32_t order[] = {0, 4, 5, 2, 3, 1};
    struct sample_row r = plain;
    r.temperature = 0;
    r.repetition_penalty = 2;
    r.presence_penalty = 0.25f;
    r.frequency_penalty = 0.5f;
    r.hist = hist;
    r.n_hist = 8;
    r.n_prompt = 3;
    r.n_top = 2;
    for (int b = 0; b < ot_n; b++)
        for (int k = 0; k < 6; k++) { /* ban the first k of the order: the next must come */
            struct sample_out o;
            r.ban = order;
            r.n_ban = k;
            assert_int_equal(sample(&ot_backs[b], x, 1, 6, &r, &o), 0);
            assert_int_equal(o.token, order[k]);
            assert_int_equal(o.top_id[0], 3); /* of the raw distribution */
            assert_int_equal(o.top_id[1], 2);
            double all = 0;
            for (int i = 0; i < 6; i++)
                all += exp((double)x[i]);
            assert_true(fabs((double)o.logprob - ((double)x[o.token] - log(all))) < 1e-5);
        }
}

static void test_mask_bias_ties(void **st)
{
    (void)st;
    static const float x[] = {1, 5, 5, 5, 0};
    static const uint32_t mask[] = {0x15}; /* 0, 2, 4 */
    static const struct token_bias bias[] = {{4, 10}, {77, 1}, {-1, 1}};
    for (int b = 0; b < ot_n; b++) {
        const struct ot_back *o = &ot_backs[b];
        struct sample_row r = plain;
        struct sample_out out;
        r.temperature = 0;
        assert_int_equal(one(o, x, 5, r), 1); /* lowest id of equals */
        r.mask = mask;
        assert_int_equal(one(o, x, 5, r), 2);
        r.bias = bias;
        r.n_bias = 3;
        assert_int_equal(one(o, x, 5, r), 4);
        r.mask = (const uint32_t[]){0};
        assert_int_equal(sample(o, x, 1, 5, &r, &out), 0);
        assert_true(out.bad); /* nothing is allowed */
        r = plain;
        r.top_k = 1;
        r.temperature = 1e-30f;
        assert_int_equal(one(o, x, 5, r), 1);
        r.top_k = 2; /* of three equals the two lower ids */
        for (uint32_t i = 0; i < 50; i++) {
            r.position = i;
            int32_t t = one(o, x, 5, r);
            assert_true(t == 1 || t == 2);
        }
        r = plain;
        r.target = 4;
        r.n_top = 3;
        assert_int_equal(sample(o, x, 1, 5, &r, &out), 0);
        assert_int_equal(out.token, 4);
        assert_int_equal(out.rank, 5);
        assert_int_equal(out.top_id[2], 3);
        r.target = 3;
        assert_int_equal(sample(o, x, 1, 5, &r, &out), 0);
        assert_int_equal(out.rank, 3);
    }
}

/* NaN or +Inf anywhere spoils that row and no other; -Inf is a token that can't come. */
static void test_bad(void **st)
{
    (void)st;
    enum { N = 37 };
    float x[4 * N];
    ot_fill(x, 4 * N, 3);
    x[0 * N + 36] = NAN;
    x[1 * N + 3] = INFINITY;
    for (int i = 0; i < N; i++)
        x[2 * N + i] = i == 20 ? 1 : -INFINITY;
    struct sample_row rows[4] = {plain, plain, plain, plain};
    struct sample_out out[4];
    for (int b = 0; b < ot_n; b++) {
        assert_int_equal(sample(&ot_backs[b], x, 4, N, rows, out), 0);
        assert_true(out[0].bad && out[1].bad && !out[2].bad && !out[3].bad);
        assert_int_equal(out[2].token, 20);
    }
}

static void test_checks(void **st)
{
    (void)st;
    float x[8] = {0};
    struct sample_out out;
    for (int b = 0; b < ot_n; b++) {
        struct sample_row r = plain;
        r.target = 8;
        assert_int_equal(sample(&ot_backs[b], x, 1, 8, &r, &out), ERR_INVAL);
        r = plain;
        r.n_top = SAMPLE_TOP_MAX + 1;
        assert_int_equal(sample(&ot_backs[b], x, 1, 8, &r, &out), ERR_INVAL);
        r = plain;
        r.n_hist = 1;
        assert_int_equal(sample(&ot_backs[b], x, 1, 8, &r, &out), ERR_INVAL);
        r = plain;
        r.temperature = NAN;
        assert_int_equal(sample(&ot_backs[b], x, 1, 8, &r, &out), ERR_INVAL);
    }
}

static void bench(void)
{
    enum { N = 151936, REP = 20 };
    float *x = malloc(sizeof(float) * N);
    for (int i = 0; i < N; i++)
        x[i] = 4 * ot_rand() + 4 * ot_rand() + 4 * ot_rand();
    struct sample_row rows[4] = {plain, plain, plain, plain};
    static const char *const names[] = {"greedy", "top_k 40 top_p .9", "top_p .9", "logprobs 20"};
    rows[0].temperature = 0;
    rows[1].top_k = 40;
    rows[1].top_p = rows[2].top_p = 0.9f;
    rows[3].n_top = 20;
    for (int b = 1; b < ot_n; b++)
        for (int k = 0; k < 4; k++) {
            const struct ot_back *o = &ot_backs[b];
            struct tensor t = ot_tensor(o, 1, N, x);
            struct sample_out out;
            struct op_sample a = {.logits = t, .rows = &rows[k], .out = &out};
            ot_sample(o, &a);
            int64_t t0 = clock_us();
            for (int i = 0; i < REP; i++)
                ot_sample(o, &a);
            printf("%-28s %-18s %8.1f us\n", o->name, names[k], (double)(clock_us() - t0) / REP);
            ot_take(o, t, NULL);
        }
    free(x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),         cmocka_unit_test(test_against_ref),
        cmocka_unit_test(test_distribution),   cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_mask_bias_ties), cmocka_unit_test(test_bad),
        cmocka_unit_test(test_checks),
    };
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        ot_open(NULL);
        bench();
        return ot_close(NULL);
    }
    return cmocka_run_group_tests(tests, ot_open, ot_close);
}
