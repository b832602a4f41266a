/* The KV cache in eight bits on the default chat model: perplexity, best token and KL divergence of a text of 1536
 * tokens against a cache of f16, all else equal; what of the memory plan and of the layout's number changes. Bytes in
 * company, chunks and after preemption: test_determinism. Families of models: tiny ones, every backend. Data:
 * tests/data/smollm2/SOURCES, tests/data/folders. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "tests/golden.h"
#include "tests/tree.h"
#include "tests/unxz.h"

enum {
    N_VOCAB = 49152,
    TEXTS = 24,
    TEXT_TOK = 64,
    N_TOK = TEXTS * TEXT_TOK,
    CHUNK = 128,
    KL_STEP = 4
};
enum { RECORD = 4 + TEXT_TOK * 4 + TEXT_TOK * (4 + 64 * 6) }; /* bytes of a text in teacher.bin */
enum { F16, INT8, FP8, N_KIND };

static const char *const kind[N_KIND] = {"f16", "int8", "fp8"};
static const char *model;
static float logits[N_KIND][(size_t)CHUNK * N_VOCAB];

static struct eng_opts options(const char *kv)
{
    return (struct eng_opts){.path = model,
                             .device = "cpu",
                             .kv_dtype = kv,
                             .keep_logits = true,
                             .max_seqs = 1,
                             .n_ctx = N_TOK + 16,
                             .max_logit_rows = CHUNK};
}

/* Tokens [at, at + CHUNK) of ids, each row scoring the next one; their logits to dst. Sum of -log p. */
static double chunk_score(struct engine *g, const int32_t *ids, int32_t at, float *dst)
{
    static struct sample_row rows[CHUNK];
    static struct sample_out out[CHUNK];
    int32_t block[N_TOK / 16];
    struct err e = {0};
    double nll = 0;
    for (int i = 0; i < N_TOK / 16; i++)
        block[i] = 1 + i;
    for (int i = 0; i < CHUNK; i++)
        rows[i] = (struct sample_row){.top_p = 1,
                                      .repetition_penalty = 1,
                                      .position = (uint32_t)(at + i + 1),
                                      .target = ids[(at + i + 1) % N_TOK]};
    struct step_seq s = {.tok = ids + at,
                         .n_tok = CHUNK,
                         .pos = at,
                         .block = block,
                         .n_block = (at + CHUNK) / 16,
                         .state_src = -1,
                         .n_logit = CHUNK,
                         .rows = rows,
                         .out = out};
    if (eng_step(g, &(struct step_plan){.n_seq = 1, .seq = &s}, &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < CHUNK; i++) {
        nll -= at + i + 1 < N_TOK ? (double)out[i].logprob : 0;
        assert_int_equal(eng_logits(g, i, dst + (size_t)i * N_VOCAB), 0);
    }
    return nll;
}

static double log_sum_exp(const float *l)
{
    double s = 0;
    for (int i = 0; i < N_VOCAB; i++)
        s += (double)expf(l[i] - l[0]);
    return (double)l[0] + log(s);
}

static double divergence(const float *p, const float *q)
{
    double lp = log_sum_exp(p), lq = log_sum_exp(q), s = 0;
    for (int i = 0; i < N_VOCAB; i++)
        s += (double)expf((float)((double)p[i] - lp)) * (((double)p[i] - lp) - ((double)q[i] - lq));
    return s;
}

static int best(const float *l)
{
    int b = 0;
    for (int i = 1; i < N_VOCAB; i++)
        b = l[i] > l[b] ? i : b;
    return b;
}

static void test_quality(void **st)
{
    (void)st;
    static int32_t ids[N_TOK];
    size_t bytes;
    char *teacher = unxz_read("tests/data/smollm2/teacher.bin.xz", &bytes);
    assert_non_null(teacher);
    assert_true(bytes >= 8 + (size_t)TEXTS * RECORD);
    for (int t = 0; t < TEXTS; t++)
        memcpy(ids + t * TEXT_TOK, teacher + 8 + (size_t)t * RECORD + 4, TEXT_TOK * sizeof *ids);
    free(teacher);
    struct engine *g[N_KIND];
    double nll[N_KIND] = {0}, kl[N_KIND] = {0};
    int top1[N_KIND] = {0};
    for (int k = 0; k < N_KIND; k++) {
        struct eng_opts o = options(kind[k]);
        g[k] = run_open(&o);
        assert_non_null(g[k]);
    }
    for (int32_t at = 0; at < N_TOK; at += CHUNK)
        for (int k = 0; k < N_KIND; k++) {
            nll[k] += chunk_score(g[k], ids, at, logits[k]);
            for (size_t i = 0; i < CHUNK; i++) {
                const float *x = logits[F16] + i * N_VOCAB, *y = logits[k] + i * N_VOCAB;
                top1[k] += best(x) == best(y);
                if (k != F16 && i % KL_STEP == 0)
                    kl[k] += divergence(x, y) * KL_STEP / N_TOK;
            }
        }
    double base = exp(nll[F16] / (N_TOK - 1));
    for (int k = 0; k < N_KIND; k++) {
        double ppl = exp(nll[k] / (N_TOK - 1));
        print_message(
            "%s: perplexity %.4f (%+.3f %%), top-1 %d of %d (%.2f %%), mean KL %.2g nats\n",
            kind[k], ppl, 100 * (ppl / base - 1), top1[k], N_TOK, 100.0 * top1[k] / N_TOK, kl[k]);
        assert_true(fabs(ppl / base - 1) < (k == FP8 ? 0.02 : 0.002));
        assert_true(top1[k] * 1000 >= N_TOK * (k == FP8 ? 935 : 970));
        assert_true(kl[k] < (k == FP8 ? 1e-2 : 1.5e-3));
        eng_close(g[k]);
    }
}

/* A pool of as many bytes holds nearly twice the blocks; no two formats have one layout. */
static void test_plan(void **st)
{
    (void)st;
    static const char *const name[] = {"f16", "int8", "fp8", "fp8_e4m3", "bf16", "auto"};
    struct eng_memory m[6];
    uint64_t id[6];
    for (int i = 0; i < 6; i++) {
        struct err e = {0};
        struct eng_opts o = options(name[i]);
        o.n_ctx = 0;
        o.kv_bytes = (size_t)32 << 20;
        if (eng_memory_plan(&o, &m[i], &e))
            fail_msg("%s: %s", name[i], e.text);
        struct engine *g = run_open(&o);
        assert_int_equal(eng_info(g)->n_block, m[i].n_block);
        assert_int_equal(eng_info(g)->kv_bytes, m[i].kv);
        assert_true(m[i].kv <= o.kv_bytes);
        id[i] = eng_info(g)->layout_id;
        eng_close(g);
    }
    /* 30 layers, 3 heads of 64: two bytes a value, or one, and four for the scale of 64 */
    assert_int_equal(m[0].kv_per_token, 30 * 3 * 2 * (64 * 2 + 4));
    assert_int_equal(m[1].kv_per_token, 30 * 3 * 2 * (64 + 4));
    assert_int_equal(m[2].kv_per_token, m[1].kv_per_token);
    assert_true(m[1].n_block * 100 >= m[0].n_block * 185 && m[2].n_block == m[1].n_block);
    assert_true(id[0] != id[1] && id[1] != id[2] && id[0] != id[2] && id[4] != id[0]);
    assert_true(id[2] == id[3] && id[5] == id[0]);
}

/* ---- families, tiny random models ---- */

static uint64_t digest_of(struct engine *g, const int32_t *ids, int32_t n, int32_t chunk)
{
    static struct run_seq s;
    run_seq_init(&s, ids, n, 20);
    run_generate(g, &s, chunk, 4);
    return s.digest;
}

/* Logits on each device near those of the reference backend with the same codes; equal bytes in chunks. */
static void family_check(const char *path, const char *kv, const int32_t *ids, int32_t n)
{
    static const char *const device[] = {"ref", "cpu", "cuda-emu"};
    static float want[64 * 512], got[64 * 512];
    for (int d = 0; d < 3; d++) {
        struct eng_opts o = {.path = path,
                             .device = device[d],
                             .precision = PRECISION_F32,
                             .kv_dtype = kv,
                             .n_ctx = 64,
                             .keep_logits = true,
                             .max_rows = 64,
                             .max_logit_rows = 64,
                             .max_seqs = 64};
        struct engine *g = run_open(&o);
        float worst = 0;
        assert_true(g || d == 2);
        if (!g)
            continue;
        assert_int_equal(eng_info(g)->n_vocab, 512);
        run_logits(g, ids, n, 1, d ? got : want);
        for (int i = 0; d && i < n * 512; i++) {
            float e = fabsf(got[i] - want[i]);
            worst = e <= worst ? worst : e; /* NaN counts as worst */
        }
        print_message("  %-24s %s: largest difference of a logit %.2g\n", eng_info(g)->backend, kv,
                      (double)worst);
        assert_true(worst < 2e-3f);
        assert_true(digest_of(g, ids, n, 7) == digest_of(g, ids, n, 64));
        eng_close(g);
    }
}

/* Latent attention, a window, slopes, caps with two kinds of layer, layers with states. */
static void test_families(void **st)
{
    (void)st;
    static const char *const name[] = {"deepseek_v2", "mistral-swa", "bloom", "gemma2",
                                       "falcon_h1"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char dir[TREE_PATH], src[TREE_PATH], path[TREE_PATH + 96];
        size_t n;
        tree_make(dir);
        snprintf(src, sizeof src, "tests/data/folders/%s", name[i]);
        snprintf(path, sizeof path, "%s/%s", dir, name[i]);
        tree_copy(src, path);
        snprintf(src, sizeof src, "tests/data/folders/%s/golden.safetensors.xz", name[i]);
        struct golden *w = golden_open(src);
        assert_non_null(w);
        const int32_t *ids = golden_i32(w, "input_ids", &n);
        assert_non_null(ids);
        remove(tree_path(path, "golden.safetensors"));
        family_check(path, i % 2 ? "fp8" : "int8", ids, (int32_t)n);
        if (i == 0)
            family_check(path, "fp8", ids, (int32_t)n);
        golden_close(w);
        tree_remove(dir);
    }
}

int main(void)
{
    const struct CMUnitTest own[] = {cmocka_unit_test(test_families)};
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plan), cmocka_unit_test(test_quality)};
    size_t n_test = sizeof tests / sizeof *tests;
    int failed = cmocka_run_group_tests_name("kv8", own, NULL, NULL);
    model = run_model_path((int)n_test);
    if (!model)
        return failed ? failed : 77;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    n_test = 1;
    print_message("skipped: the comparison of texts is too slow in a sanitizer build\n");
#endif
    return failed + _cmocka_run_group_tests("kv8 smollm2", tests, n_test, NULL, NULL);
}
