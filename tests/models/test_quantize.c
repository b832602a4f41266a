/* Option `quantize`: dense matrices of a folder rounded at load. Near the exact logits by as much as the format allows, on
 * the reference and the CPU alike; the plan counts the smaller weights. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_near)};
    return cmocka_run_group_tests_name("quantize", tests, setup, teardown);
}
