/* Option `quantize`, and GGUF files that tools_quantize makes of folders: dense matrices of a folder rounded at load. Near the exact logits by as much as the format allows, on
 * the reference and the CPU alike; the plan counts the smaller weights. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/tools.h"
#include "tests/engine_run.h"
#include "tests/golden.h"
#include "tests/tree.h"

#define N_VOCAB 512
#define ROWS    24

static char dir[TREE_PATH], path[TREE_PATH];
static struct golden *want;

static int setup(void **st)
{
    (void)st;
    tree_make(dir);
    snprintf(path, sizeof path, "%.400s/llama", dir);
    tree_copy("tests/data/folders/llama", path);
    want = golden_open("tests/data/folders/llama/golden.safetensors.xz");
    remove(tree_path(path, "golden.safetensors"));
    return want ? 0 : -1;
}

static int teardown(void **st)
{
    (void)st;
    golden_close(want);
    tree_remove(dir);
    return 0;
}

/* All logits of the golden prompt; the weights' bytes. */
static size_t run(const char *device, const char *to, float *got)
{
    size_t n;
    const int32_t *ids = golden_i32(want, "input_ids", &n);
    struct eng_opts o = {.path = path,
                         .device = device,
                         .quantize = to,
                         .precision = PRECISION_F32,
                         .keep_logits = true,
                         .max_rows = 64,
                         .max_logit_rows = 64};
    struct eng_memory plan;
    struct err e = {0};
    struct engine *g = run_open(&o);
    assert_non_null(g);
    assert_int_equal(n, ROWS);
    run_logits(g, ids, ROWS, 1, got);
    assert_int_equal(eng_memory_plan(&o, &plan, &e), 0);
    assert_int_equal(plan.weights, eng_info(g)->weight_bytes);
    eng_close(g);
    return plan.weights;
}

static double difference(const float *a, const float *b)
{
    double err = 0, all = 0;
    for (int i = 0; i < ROWS * N_VOCAB; i++) {
        err += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(err / all);
}

static void test_near(void **st)
{
    (void)st;
    static const struct {
        const char *to;
        double lo, hi; /* of the relative difference: it is rounded, and by no more than that */
    } t[] = {{"q8", 1e-4, 0.03}, {"fp8", 1e-3, 0.12}, {"q4", 0.005, 0.35}};
    static float exact[ROWS * N_VOCAB], ref[ROWS * N_VOCAB], cpu[ROWS * N_VOCAB];
    size_t n_logit, full = run("cpu", NULL, cpu);
    const float *logits = golden_f32(want, "logits", &n_logit);
    memcpy(exact, logits, sizeof exact);
    assert_true(difference(cpu, exact) < 1e-5);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        run("ref", t[i].to, ref);
        size_t bytes = run("cpu", t[i].to, cpu);
        double d = difference(ref, exact);
        print_message("  %s: difference %.4f, weights %zu of %zu bytes\n", t[i].to, d, bytes, full);
        assert_true(d > t[i].lo && d < t[i].hi);
        assert_true(difference(cpu, ref) < 1e-5);
        assert_true(bytes < full * 3 / 5);
    }
}

/* The file made of a folder in a type is the folder rounded to it at load: the logits are as near as the order of sums
 * lets them be (queries and keys lie in another order), the greedy ids equal. */
static void logits_of(const char *from, const char *to, float *got)
{
    size_t n;
    const int32_t *ids = golden_i32(want, "input_ids", &n);
    struct eng_opts o = {.path = from,
                         .device = "cpu",
                         .quantize = to,
                         .precision = PRECISION_F32,
                         .keep_logits = true,
                         .max_rows = 64,
                         .max_logit_rows = 64};
    struct engine *g = run_open(&o);
    assert_non_null(g);
    run_logits(g, ids, ROWS, 1, got);
    eng_close(g);
}

static int best_of(const float *x)
{
    int best = 0;
    for (int i = 1; i < N_VOCAB; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static void test_file(void **st)
{
    (void)st;
    static const struct {
        const char *name, *at_load, *type;
    } t[] = {{"llama", "q8", "Q8_0"},   {"llama", "q4", "Q4_1"}, {"gemma3", "q8", "Q8_0"},
             {"mixtral", "q8", "Q8_0"}, {"gpt2", "q8", "Q8_0"},  {"q-gptq4", NULL, "F32"},
             {"gpt_oss", NULL, "MXFP4"}};
    static float a[ROWS * N_VOCAB], b[ROWS * N_VOCAB];
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char from[TREE_PATH + 16], src[TREE_PATH], file[TREE_PATH + 32];
        struct err e = {0};
        snprintf(src, sizeof src, "tests/data/folders/%s", t[i].name);
        snprintf(from, sizeof from, "%.400s/%s%zu", dir, t[i].name, i);
        snprintf(file, sizeof file, "%s.gguf", from);
        tree_copy(src, from);
        remove(tree_path(from, "golden.safetensors"));
        if (tools_quantize(from, file, t[i].type, NULL, NULL, &e))
            fail_msg("%s: %s", t[i].name, e.text);
        logits_of(from, t[i].at_load, a);
        logits_of(file, NULL, b);
        double d = difference(b, a);
        int equal = 0;
        for (int r = 0; r < ROWS; r++)
            equal += best_of(a + r * N_VOCAB) == best_of(b + r * N_VOCAB);
        print_message("  %s as %s: difference %.2g, %d of %d ids equal\n", t[i].name, t[i].type, d,
                      equal, ROWS);
        bool rounded = t[i].at_load == NULL && strcmp(t[i].type, "F32") != 0;
        assert_true(rounded || (d < 1e-5 && equal == ROWS));
        if (i)
            continue;
        for (int k = 1;; k++) {
            mem_fail_after(k, true);
            int rc = tools_quantize(from, file, t[i].type, NULL, NULL, &e);
            mem_fail_after(0, false);
            if (!rc)
                break;
            assert_int_equal(rc, ERR_NOMEM);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_near), cmocka_unit_test(test_file)};
    return cmocka_run_group_tests_name("quantize", tests, setup, teardown);
}
