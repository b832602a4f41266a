/* Tiny random models against logits and greedy ids of the reference implementation: on the reference
 * backend and on every CPU table of this machine, f32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/engine_run.h"
#include "tests/golden.h"
#include "tests/unxz.h"

static const struct {
    const char *device, *isa;
} devices[] = {{"ref", NULL},      {"cpu", "scalar"},    {"cpu", "avx2"},
               {"cpu", "avx512"},  {"cpu", "amx"},       {"cuda", NULL},
               {"cuda-emu", NULL}, {"cuda-emu", "/rev"}, {"cuda-emu", "/7"}};

static void check_device(const char *path, struct golden *want, size_t d)
{
    struct eng_opts o = {.path = path,
                         .device = devices[d].device,
                         .isa = devices[d].isa,
                         .precision = PRECISION_F32,
                         .keep_logits = true,
                         .max_logit_rows = 64};
    struct engine *g = run_open(&o);
    if (!g)
        return;
    size_t n_in, n_logit, n_greedy;
    const int32_t *ids = golden_i32(want, "input_ids", &n_in);
    const int32_t *greedy = golden_i32(want, "greedy_ids", &n_greedy);
    const float *logits = golden_f32(want, "logits", &n_logit);
    assert_non_null(ids);
    assert_non_null(greedy);
    assert_non_null(logits);
    size_t n_vocab = (size_t)eng_info(g)->n_vocab;
    assert_int_equal(n_logit, n_in * n_vocab);
    static float got[64 * 512];
    assert_true(n_logit <= sizeof got / sizeof *got);
    run_logits(g, ids, (int32_t)n_in, 1, got);
    float worst = 0;
    for (size_t i = 0; i < n_logit; i++)
        worst = fmaxf(worst, fabsf(got[i] - logits[i]));
    print_message("%s: largest difference of a logit %.2g\n", eng_info(g)->backend, (double)worst);
    assert_true(worst < 1e-4f);
    static struct run_seq s;
    run_seq_init(&s, ids, (int32_t)n_in, 20);
    run_generate(g, &s, 7, (int32_t)n_greedy);
    assert_memory_equal(s.tok + n_in, greedy, n_greedy * sizeof *greedy);
    eng_close(g);
}

static void check_model(const char *name)
{
    char path[256], src[256];
    snprintf(src, sizeof src, "tests/data/gguf-tiny/%s.golden.safetensors.xz", name);
    struct golden *want = golden_open(src);
    assert_non_null(want);
    snprintf(src, sizeof src, "tests/data/gguf-tiny/%s.gguf.xz", name);
    assert_int_equal(unxz_temp(src, path, sizeof path), 0);
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++)
        check_device(path, want, d);
    unlink(path);
    golden_close(want);
}

static void test_llama_f32(void **st)
{
    (void)st;
    check_model("tiny-llama-f32");
}

static void test_llama_q4_0(void **st)
{
    (void)st;
    check_model("tiny-llama-q4_0");
}

static void test_llama_q8_0(void **st)
{
    (void)st;
    check_model("tiny-llama-q8_0");
}

static void test_qwen2_f16(void **st)
{
    (void)st;
    check_model("tiny-qwen2-f16");
}

static void test_qwen2_bf16(void **st)
{
    (void)st;
    check_model("tiny-qwen2-bf16");
}

/* Rotation scaled by rope_freqs.weight (with a tied output), and by YaRN keys. */
static void test_llama3_rope(void **st)
{
    (void)st;
    check_model("tiny-llama-llama3");
}

static void test_yarn(void **st)
{
    (void)st;
    check_model("tiny-llama-yarn");
}

static void test_gemma3(void **st)
{
    (void)st;
    check_model("tiny-gemma3-f32");
}

static void test_qwen3(void **st)
{
    (void)st;
    check_model("tiny-qwen3-f32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_f32),  cmocka_unit_test(test_llama_q4_0),
        cmocka_unit_test(test_llama_q8_0), cmocka_unit_test(test_qwen2_f16),
        cmocka_unit_test(test_qwen2_bf16), cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_gemma3),     cmocka_unit_test(test_llama3_rope),
        cmocka_unit_test(test_yarn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
