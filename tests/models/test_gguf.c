/* GGUF files as llama.cpp's converter writes them, of the models of tests/data/folders: what the reference implementation
 * computes of the folder, within 1e-4 of a logit, and its greedy ids. A case is a file of tests/data/gguf-cases
 * (record_gguf.py). With arguments: those cases only. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "tests/engine_run.h"
#include "tests/golden.h"
#include "tests/tree.h"
#include "tests/unxz.h"

#define DATA      "tests/data/gguf-cases"
#define FOLDERS   "tests/data/folders"
#define CASES_MAX 128
#define N_VOCAB   512
#define BOUND     1e-4f

static char cases[CASES_MAX][64];
static int n_case;

static float worst_of(struct engine *g, struct golden *want, const char *in, const char *out)
{
    static float got[64 * N_VOCAB];
    size_t n_in, n_logit;
    float worst = 0;
    const int32_t *ids = golden_i32(want, in, &n_in);
    const float *logits = golden_f32(want, out, &n_logit);
    assert_non_null(ids);
    assert_non_null(logits);
    assert_true(n_in > 0 && n_in <= 64 && n_logit == n_in * N_VOCAB);
    run_logits(g, ids, (int32_t)n_in, 1, got);
    for (size_t i = 0; i < n_logit; i++) {
        float d = fabsf(got[i] - logits[i]);
        worst = d <= worst ? worst : d; /* NaN counts as worst */
    }
    return worst;
}

static void check_device(const char *path, const char *device, struct golden *want)
{
    static struct run_seq s;
    size_t n_in, n_greedy;
    struct eng_opts o = {.path = path,
                         .device = device,
                         .precision = PRECISION_F32,
                         .keep_logits = true,
                         .n_ctx = 64, /* as test_folders.c */
                         .max_rows = 64,
                         .max_logit_rows = 64,
                         .max_seqs = 64};
    struct engine *g = run_open(&o);
    assert_non_null(g);
    assert_int_equal(eng_info(g)->n_vocab, N_VOCAB);
    float a = worst_of(g, want, "input_ids", "logits"),
          b = worst_of(g, want, "short_ids", "short_logits");
    print_message("  %-24s largest difference of a logit %.2g\n", eng_info(g)->backend,
                  (double)fmaxf(a, b));
    assert_true(a < BOUND && b < BOUND);
    const int32_t *ids = golden_i32(want, "input_ids", &n_in);
    const int32_t *greedy = golden_i32(want, "greedy_ids", &n_greedy);
    assert_non_null(greedy);
    run_seq_init(&s, ids, (int32_t)n_in, 20);
    run_generate(g, &s, 7, (int32_t)n_greedy);
    assert_memory_equal(s.tok + n_in, greedy, n_greedy * sizeof *greedy);
    eng_close(g);
}

static void test_case(void **st)
{
    const char *name = *st;
    char src[256], path[256];
    snprintf(src, sizeof src, DATA "/%s.gguf.xz", name);
    assert_int_equal(unxz_temp(src, path, sizeof path), 0);
    snprintf(src, sizeof src, FOLDERS "/%s/golden.safetensors.xz", name);
    struct golden *want = golden_open(src);
    assert_non_null(want);
    check_device(path, "ref", want);
    check_device(path, "cpu", want);
    golden_close(want);
    unlink(path);
}

/* ---- a model in three files ---- */

#define PART(n) "qwen2-0000" n "-of-00003.gguf"

static void part_refused(const char *dir, const char *name, int code, const char *word)
{
    struct engine *g = NULL;
    struct err e = {0};
    struct eng_opts o = {.path = tree_path(dir, name), .device = "ref"};
    assert_int_equal(eng_open(&g, &o, &e), code);
    if (!strstr(e.text, word))
        fail_msg("\"%s\" does not say %s", e.text, word);
}

static void test_split(void **st)
{
    (void)st;
    char dir[TREE_PATH], first[TREE_PATH];
    struct golden *want = golden_open(FOLDERS "/qwen2/golden.safetensors.xz");
    assert_non_null(want);
    tree_make(dir);
    tree_copy(DATA "/split", dir);
    snprintf(first, sizeof first, "%s", tree_path(dir, PART("1")));
    check_device(first, "ref", want);
    golden_close(want);
    for (int n = 1, rc = ERR_NOMEM; rc; n++) {
        struct engine *g = NULL;
        struct err e = {0};
        struct eng_opts o = {.path = first, .device = "ref"};
        mem_fail_after(n, true);
        rc = eng_open(&g, &o, &e);
        mem_fail_after(0, false);
        eng_close(g);
        assert_true(n < 3000);
    }
    part_refused(dir, PART("2"), ERR_INVAL, "give the first one");
    assert_int_equal(rename(first, tree_path(dir, "first.gguf")), 0);
    part_refused(dir, "first.gguf", ERR_INVAL, "must end in -00001-of-00003.gguf");
    assert_int_equal(rename(tree_path(dir, "first.gguf"), first), 0);
    assert_int_equal(rename(tree_path(dir, PART("3")), tree_path(dir, "third")), 0);
    part_refused(dir, PART("1"), ERR_NOTFOUND, PART("3"));
    assert_int_equal(rename(tree_path(dir, PART("2")), tree_path(dir, PART("3"))), 0);
    assert_int_equal(rename(tree_path(dir, "third"), tree_path(dir, PART("2"))), 0);
    part_refused(dir, PART("1"), ERR_PARSE, "it is part 3 of 3, expected part 2 of 3");
    tree_remove(dir);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void cases_list(void)
{
    static const char end[] = ".gguf.xz";
    DIR *d = opendir(DATA);
    struct dirent *x;
    while (d && (x = readdir(d)) && n_case < CASES_MAX) {
        size_t n = strlen(x->d_name), e = sizeof end - 1;
        if (n > e && n - e < sizeof cases[0] && !strcmp(x->d_name + n - e, end))
            snprintf(cases[n_case++], sizeof cases[0], "%.*s", (int)(n - e), x->d_name);
    }
    if (d)
        closedir(d);
    qsort(cases, (size_t)n_case, sizeof cases[0], by_name);
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[CASES_MAX + 1];
    int n = 0;
    cases_list();
    if (argc < 2)
        tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_split);
    for (int i = 0; i < n_case; i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++)
            wanted = wanted || !strcmp(argv[k], cases[i]);
        if (wanted)
            tests[n++] = (struct CMUnitTest){
                .name = cases[i], .test_func = test_case, .initial_state = cases[i]};
    }
    if (n == 0) {
        printf("no case in " DATA "\n");
        return 1;
    }
    return _cmocka_run_group_tests("gguf", tests, (size_t)n, NULL, NULL);
}
